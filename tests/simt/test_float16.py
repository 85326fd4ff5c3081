"""float16 on the CPU device: every half, every rounding, arithmetic rounded to float16."""

import numpy as np
import pytest
from numba import float32

from labkit import cuda

pytestmark = pytest.mark.cpu_device


@cuda.jit
def convert(given, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = given[i]


def test_every_half_widens_exactly():
    in_float16 = np.arange(65536, dtype=np.uint16).view(np.float16)
    out = np.zeros(in_float16.size, np.float32)
    convert[256, 256](in_float16, out)
    expected = in_float16.astype(np.float32)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(out[numbers].view(np.uint32), expected[numbers].view(np.uint32))
    assert np.isnan(out[~numbers]).all()


def test_narrowing_rounds_to_nearest_even():
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 18, dtype=np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) | 0x1000  # half way between two float16 values
    given = np.concatenate([bits, ties]).view(np.float32)
    out = np.zeros(given.size, np.float16)
    convert[-(-given.size // 256), 256](given, out)
    with np.errstate(over="ignore"):
        expected = given.astype(np.float16)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(out[numbers].view(np.uint16), expected[numbers].view(np.uint16))
    assert np.isnan(out[~numbers]).all()


@cuda.jit
def arithmetic(a, b, out, wide):
    tile = cuda.shared.array(64, np.float16)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i < a.size:
        tile[t] = a[i]
    cuda.syncthreads()
    if i < a.size:
        x = tile[t]
        out[0, i] = x * b[i] + np.float16(1.5)
        out[1, i] = x - b[i]
        out[2, i] = -x / b[i]
        wide[i] = float32(x) * float32(b[i])


def test_arithmetic_rounds_each_step_to_a_half():
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(1000).astype(np.float16) for _ in range(2))
    out, wide = np.zeros((3, 1000), np.float16), np.zeros(1000, np.float32)
    arithmetic[16, 64](a, b, out, wide)
    np.testing.assert_array_equal(out[0], a * b + np.float16(1.5))
    np.testing.assert_array_equal(out[1], a - b)
    np.testing.assert_array_equal(out[2], -a / b)
    np.testing.assert_array_equal(wide, a.astype(np.float32) * b.astype(np.float32))
