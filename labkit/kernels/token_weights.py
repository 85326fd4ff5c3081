"""A token's weight: its unnormalised probability, as an integer, 2**43 * exp((x - row_max) / temperature) rounded down.

Integers can be added in any order without rounding: a sum of weights has the same bits however a row is split over
threads and blocks, and "do these tokens reach p?" has one answer. Even the exponential is computed in integers, from
the float32 z = (row_max - x) * log2(e) / temperature, so that a GPU, the CPU device and NumPy agree on every bit.
Tokens are ordered by logit, the largest first, of equal ones the lower index first. Every filter keeps a prefix.

Error   2**-26 of the weight from the polynomial, 2**-26 from z's last bit, and 2**-43 of the maximum's weight; z is as
        exact as float32, 2**-24 of itself, which for the likely tokens is the largest error
"""

import math

import numpy as np
from numba import float32, int64, uint32, uint64

from labkit import cuda
from labkit.device import ptx

ONE = 43  # the weight of the most likely token is 2**43
MAX_VOCAB = 2**19  # tokens of a row: the sum of so many weights is at most 2**62
FADED = float32(ONE + 1)  # from this z on the weight is 0
LOG2_E = float32(math.log2(math.e))
ZERO = float32(0.0)
LARGEST = float32(np.finfo(np.float32).max)  # of the scales: infinity times a distance of 0 would be NaN
FRACTION_BITS = 26  # of z: six bits before the point, which reach beyond FADED
UNIT = float32(2**FRACTION_BITS)
# 1 - 2**-u = u * (C0 - u * (C1 - u * ...)) for u in [0, 1), interpolated at Chebyshev's points; each times 2**32.
COEFFICIENTS = (2977044447, 1031763206, 238367376, 41218952, 5547538, 493577)
C0, C1, C2, C3, C4, C5 = (uint32(c) for c in COEFFICIENTS)
WORD = uint64(32)  # bits


@cuda.jit(device=True)
def distance(row_max, x):
    """How far a logit is below the row's maximum: 0 if both are infinite, too."""
    return ZERO if x == row_max else row_max - x


@cuda.jit(device=True)
def weight_at(delta, scale):
    """The weight, int64, of a logit this far below the maximum; scale is log2(e) / temperature."""
    z = delta * scale
    z = z if z < FADED else FADED  # no branch: the weights of a thread's tokens are computed side by side
    fixed = uint32(z * UNIT)
    u = uint32(fixed << 32 - FRACTION_BITS)  # the fraction, times 2**32: the bits before the point are shifted out
    poly = C4 - ptx.mul_hi(u, C5)
    poly = C3 - ptx.mul_hi(u, poly)
    poly = C2 - ptx.mul_hi(u, poly)
    poly = C1 - ptx.mul_hi(u, poly)
    poly = C0 - ptx.mul_hi(u, poly)
    mantissa = uint64(1 << 32) - uint64(ptx.mul_hi(u, poly))
    return int64((mantissa << uint64(ONE - 32)) >> uint64(fixed >> FRACTION_BITS))


@cuda.jit(device=True)
def high_half(a, b):
    """The upper 64 bits of the 128-bit product of two uint64."""
    mask = uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> WORD, b & mask, b >> WORD
    middle = a_high * b_low + ((a_low * b_low) >> WORD)
    cross = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> WORD) + (cross >> WORD)


@cuda.jit(device=True)
def reaching(fraction, mass):
    """ceil(fraction * mass), at least 1: the mass to keep. fraction: a float32, cut to a multiple of 2**-32."""
    fixed = uint64(fraction * float32(2.0**32))
    low = (uint64(mass) & uint64(0xFFFFFFFF)) * fixed + uint64(0xFFFFFFFF)
    return max(int64((uint64(mass) >> WORD) * fixed + (low >> WORD)), int64(1))
