"""The optimiser's step and the norm of all gradients."""
