"""Softmax: every rung, extreme rows, the rule by which two parts of a row are joined."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.ops.softmax import SOFTMAX
from labkit.kernels.softmax.rows import LONGEST_ROW, softmax_block_tree, softmax_reference, softmax_vectorized


def run(launch, x):
    out = cuda.to_device(np.full(x.shape, -1.0, np.float32))
    launch(cuda.to_device(np.ascontiguousarray(x, np.float32)), out)
    return out.copy_to_host()


@pytest.mark.sweep(every=True)
def test_every_rung_agrees():
    assert agree(SOFTMAX, seed=1).passed


@pytest.mark.sampled(1, sweep=99, quick="softmax_warp")
@pytest.mark.parametrize("launch", SOFTMAX.rungs, ids=lambda f: f.__name__)
def test_large_numbers_infinities_and_equal_rows(launch):
    x = np.zeros((6, 40), np.float32)
    x[0] = 1e30  # all equal, and exp of it would overflow
    x[1] = np.linspace(-3e38, 3e38, 40)
    x[2, :20] = -np.inf  # first half hidden
    x[3, 1::2] = -np.inf
    x[4, 7] = 200.0
    x[5] = -np.inf
    x[5, 39] = -5.0  # one number left, at the end
    got = run(launch, x)
    np.testing.assert_allclose(got, softmax_reference(x), rtol=2e-6, atol=1e-37)
    np.testing.assert_allclose(got.sum(axis=1, dtype=np.float64), 1.0, rtol=1e-5)


@pytest.mark.sampled(1, sweep=99, quick="softmax_block_tree")
@pytest.mark.parametrize("launch", SOFTMAX.rungs, ids=lambda f: f.__name__)
def test_a_row_of_nothing_but_minus_infinity_is_nan(launch):
    x = np.zeros((2, 8), np.float32)
    x[0] = -np.inf
    got = run(launch, x)
    assert np.isnan(got[0]).all()
    np.testing.assert_allclose(got[1], 1 / 8)


def online(x, cuts):
    """NumPy: the parts of x between the cuts, each with its maximum and its sum, joined one after another."""
    largest, total = -np.inf, 0.0
    for part in np.split(x, cuts):
        if part.size:
            own = part.max()
            together = max(largest, own)
            own_total = np.exp(part - own).sum()
            total = total * np.exp(largest - together) + own_total * np.exp(own - together)
            largest = together
    return largest, total


@pytest.mark.parametrize("seed", range(50))
def test_any_split_of_a_row_gives_the_two_pass_result(seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-80, 80, rng.integers(1, 200))
    if seed % 2:
        x = np.sort(x)[:: rng.choice([1, -1])]  # the maximum changes at every step, or never
    largest, total = online(x, np.sort(rng.integers(0, x.size + 1, rng.integers(0, 12))))
    assert largest == x.max()
    np.testing.assert_allclose(total, np.exp(x - x.max()).sum(), rtol=1e-12)


def test_errors_name_the_argument():
    x = cuda.to_device(np.ones((2, 8), np.float32))
    with pytest.raises(ValueError, match=r"out has shape \(8, 2\); it must be \(2, 8\)"):
        softmax_vectorized(x, cuda.to_device(np.ones((8, 2), np.float32)))
    with pytest.raises(ValueError, match="block is 100; a tree needs"):
        softmax_block_tree(x, x, block=100)
    long = cuda.device_array((1, LONGEST_ROW + 4), np.float32)
    with pytest.raises(ValueError, match="16,388 columns; vectorized keeps a row in registers"):
        softmax_vectorized(long, long)
