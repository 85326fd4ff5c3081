"""From a model to text: sampling tokens and writing them."""
