"""The kernels of the course, one file or one folder for each operation, slowest rung first.

Arithmetic on uint32 stays in 32 bits here, as labkit.simt.unsigned says.
"""

from labkit.simt import unsigned

unsigned.applies_to(__name__)
