"""Transpose: every rung, and the bank conflicts that each claims to have or to avoid, counted by observe."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.kernels.agree import agree
from labkit.kernels.ops.transpose import TRANSPOSE
from labkit.kernels.transpose import (
    transpose_padded_kernel,
    transpose_swizzled_kernel,
    transpose_tiled_kernel,
    transpose_vectorized,
    transpose_vectorized_kernel,
)
from tests.launching import ones


def test_every_rung_agrees():
    assert agree(TRANSPOSE, seed=1).passed


def test_a_misaligned_view():
    a = np.arange(65, dtype=np.float32)
    out = cuda.device_array((8, 8), np.float32)
    transpose_vectorized(cuda.to_device(a)[1:].reshape(8, 8), out)
    np.testing.assert_array_equal(out.copy_to_host(), a[1:].reshape(8, 8).T)


def conflicts(kernel) -> int:
    a = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    report = observe(kernel[(1, 1), (32, 8)], a, np.zeros_like(a))
    assert report.ok
    return report.counts["bank_conflicts"]


def test_bank_conflicts_are_as_claimed():
    assert conflicts(transpose_tiled_kernel) == 32 * 31  # each of 32 columns is read in 32 steps instead of one
    assert conflicts(transpose_padded_kernel) == 0
    assert conflicts(transpose_swizzled_kernel) == 0


def test_the_vectorized_tile_has_no_bank_conflicts():
    a = np.arange(64 * 64, dtype=np.float32)
    report = observe(transpose_vectorized_kernel[(1, 1), (32, 8)], a, np.zeros_like(a), np.uint32(64), np.uint32(64))
    assert report.ok
    assert report.counts["bank_conflicts"] == 0


def test_errors_name_the_argument():
    for launch in TRANSPOSE.rungs:
        with pytest.raises(ValueError, match=r"out has shape \(2, 3\); it must be \(3, 2\)"):
            launch(ones(2, 3), ones(2, 3))
