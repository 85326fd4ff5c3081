"""Philox4x32-10: four random 32-bit words from a 128-bit counter and a 64-bit key, and no state between them.

Source  J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (2011)

Ten rounds of a bijection scramble the counter; so a draw can be made anywhere, in any order, and made again, if its
counter and key are known. Integers only: the words are the same on every device.
"""

import numpy as np
from numba import uint32, uint64

from labkit import cuda
from labkit.kernels.wrapping import wrapping_add

ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_1 = uint64(0xD2511F53), uint64(0xCD9E8D57)
STEP_0, STEP_1 = uint32(0x9E3779B9), uint32(0xBB67AE85)  # of the key, from round to round
WORD = uint64(32)  # bits


@cuda.jit(device=True)
def philox(counter_0, counter_1, counter_2, counter_3, key_0, key_1):
    """The four uint32 words of a counter of four uint32 and a key of two."""
    a, b, c, d = counter_0, counter_1, counter_2, counter_3
    for _ in range(ROUNDS):
        first, second = MULTIPLIER_0 * uint64(a), MULTIPLIER_1 * uint64(c)
        a, b, c, d = (uint32(uint32(second >> WORD) ^ b ^ key_0), uint32(second),
                      uint32(uint32(first >> WORD) ^ d ^ key_1), uint32(first))
        key_0, key_1 = wrapping_add(key_0, STEP_0), wrapping_add(key_1, STEP_1)
    return a, b, c, d


def philox_reference(counter, key) -> tuple[int, int, int, int]:
    """The same on the host, in Python's integers. counter: four words; key: two."""
    a, b, c, d = (int(word) for word in counter)
    key_0, key_1 = (int(word) for word in key)
    low = 0xFFFFFFFF
    for _ in range(ROUNDS):
        first, second = int(MULTIPLIER_0) * a, int(MULTIPLIER_1) * c
        a, b, c, d = (second >> 32) ^ b ^ key_0, second & low, (first >> 32) ^ d ^ key_1, first & low
        key_0, key_1 = (key_0 + int(STEP_0)) & low, (key_1 + int(STEP_1)) & low
    return a, b, c, d


def seed_words(seed: int) -> np.ndarray:
    """A seed of 0 to 2**64 - 1 as the two uint32 words of a key, low word first."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}; it must be 0 to 2**64 - 1")
    return np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
