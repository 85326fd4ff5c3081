"""Shared by all packages: tables, the exception shown as a sentence, the version, the location of the repository."""
