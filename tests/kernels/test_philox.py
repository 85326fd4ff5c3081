"""Philox4x32-10: the known answers of its authors' library, on the host and in a kernel."""

import numpy as np
import pytest
from numba import uint32

from labkit import cuda
from labkit.kernels.philox import philox, philox_reference, seed_words

ONES = 0xFFFFFFFF
# kat_vectors of Random123: counter, key, words
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
)


@cuda.jit
def philox_kernel(counters, keys, out):
    i = uint32(cuda.grid(1))
    if i < out.shape[0]:
        a, b, c, d = philox(counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3], keys[i, 0], keys[i, 1])
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = a, b, c, d


def test_the_known_answers_on_the_host():
    for counter, key, words in KNOWN:
        assert philox_reference(counter, key) == words


def test_the_known_answers_and_random_ones_in_a_kernel():
    rng = np.random.default_rng(0)
    counters = np.concatenate([[counter for counter, _, _ in KNOWN], rng.integers(0, 2**32, (60, 4))])
    keys = np.concatenate([[key for _, key, _ in KNOWN], rng.integers(0, 2**32, (60, 2))])
    out = cuda.device_array((63, 4), np.uint32)
    philox_kernel[1, 64](cuda.to_device(counters.astype(np.uint32)), cuda.to_device(keys.astype(np.uint32)), out)
    got = out.copy_to_host()
    np.testing.assert_array_equal(got[:3], [words for _, _, words in KNOWN])
    np.testing.assert_array_equal(got, [philox_reference(*pair) for pair in zip(counters, keys, strict=True)])


def test_a_seed_is_two_words():
    np.testing.assert_array_equal(seed_words(0x0123456789ABCDEF), [0x89ABCDEF, 0x01234567])
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match="seed is"):
            seed_words(wrong)
