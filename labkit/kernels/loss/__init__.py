"""Loss functions, with their gradients."""
