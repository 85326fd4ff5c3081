"""The course: lessons, exercises and what checks them, progress, notebooks, README and the site."""
