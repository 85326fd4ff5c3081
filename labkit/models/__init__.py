"""Whole models, one file each; read them from top to bottom.

Arithmetic on uint32 stays in 32 bits here, as in labkit.kernels.
"""

from labkit.simt import unsigned

unsigned.applies_to(__name__)
