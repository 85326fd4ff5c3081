"""From a model to text: sampling tokens and generating text."""
