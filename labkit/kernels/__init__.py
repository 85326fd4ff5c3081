"""The kernels of the course, one file or one folder for each operation, slowest rung first."""

from labkit.simt import unsigned

unsigned.applies_to(__name__)
