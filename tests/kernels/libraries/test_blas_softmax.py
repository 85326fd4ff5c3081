"""Softmax from BLAS reductions: right where it can be, and wrong where it must be."""

import numpy as np
import pytest

from labkit import agree, cuda
from labkit.kernels.libraries.blas_softmax import BLAS_SOFTMAX, softmax_by_isamax, softmax_by_row_max, softmax_on_device
from labkit.measure.series import libraries as series

SMALL = tuple(size for size in BLAS_SOFTMAX.awkward if size["R"] * size["C"] < 3000)


def softmax_of(launcher, rows):
    x = cuda.to_device(np.array(rows, np.float32))
    out = cuda.to_device(np.full(x.shape, np.nan, np.float32))
    launcher(x, out)
    return out.copy_to_host()


def test_each_rung_agrees():
    agree(BLAS_SOFTMAX, sizes=SMALL)


TRAP = [[-200.0, 100.0], [3.0, 4.0]]


def test_the_largest_absolute_value_is_not_the_largest_value():
    assert np.isnan(softmax_of(softmax_by_isamax, TRAP)[0]).any()


@pytest.mark.parametrize("launcher", (softmax_by_row_max, softmax_on_device))
def test_a_true_maximum_survives_the_trap(launcher):
    np.testing.assert_allclose(softmax_of(launcher, TRAP), [[0, 1], [1 / (1 + np.e), np.e / (1 + np.e)]], atol=1e-6)


@pytest.mark.parametrize("launcher", (softmax_by_row_max, softmax_on_device))
def test_masked_elements(launcher):
    np.testing.assert_allclose(softmax_of(launcher, [[-np.inf, 2.0, 2.0]]), [[0, 0.5, 0.5]], atol=1e-6)


def test_the_sources_own_test_passes_and_cannot_see_the_trap():
    found = series.softmax_check()
    assert (found["rows"], found["cols"]) == (128, 128)
    for row in found["found"]:
        assert row["max_difference"] < 1e-5
        assert f"{row['first_row_sum']:.6f}" == "1.000000"


def test_the_failed_rung_says_so():
    assert "exp(300)" in softmax_by_isamax.failed
    assert not softmax_by_row_max.failed
