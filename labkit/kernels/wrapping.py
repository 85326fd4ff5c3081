"""Arithmetic of uint32 modulo 2**32: for hashes and random numbers.

The `+` and `*` of 32-bit indices must not wrap around: the compiler relies on it.
"""

from numba import uint32, uint64

from labkit import cuda


@cuda.jit(device=True)
def wrapping_add(a, b):
    return uint32(uint64(a) + uint64(b))


@cuda.jit(device=True)
def wrapping_mul(a, b):
    return uint32(uint64(a) * uint64(b))
