"""Arithmetic of uint32 modulo 2**32: for hashes and random numbers.

The `+` and `*` of two uint32 wrap around here as well (labkit.simt.unsigned); these say that it is meant, and do so in
plain Numba, too.
"""

from numba import uint32, uint64

from labkit import cuda


@cuda.jit(device=True)
def wrapping_add(a, b):
    return uint32(uint64(a) + uint64(b))


@cuda.jit(device=True)
def wrapping_mul(a, b):
    return uint32(uint64(a) * uint64(b))
