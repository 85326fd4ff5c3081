"""Histogram: every rung, values that are no bin, skewed inputs, and the atomics that each rung claims to save."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.kernels.agree import agree
from labkit.kernels.histogram import (
    MOST_BINS,
    histogram,
    histogram_copies_kernel,
    histogram_global_kernel,
    histogram_matched_kernel,
    histogram_reference,
    histogram_shared_kernel,
)
from labkit.kernels.ops.histogram import HISTOGRAM, HISTOGRAM_INT32
from labkit.measure.ops import op as registered
from tests.launching import every_rung


@pytest.mark.sampled(2)
@every_rung(HISTOGRAM, HISTOGRAM_INT32)
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed
    assert registered(op.name) is op


@pytest.mark.sampled(2)
@every_rung(HISTOGRAM, HISTOGRAM_INT32)
def test_values_that_are_no_bin_are_not_counted(op, launcher):
    dtype = np.uint8 if op is HISTOGRAM else np.int32
    values = [0, 9, 10, 255] if op is HISTOGRAM else [0, 9, 10, -1, -(2**31), 2**31 - 1, 256]
    x = np.resize(np.array(values, np.int64), 700).astype(dtype)
    out = cuda.to_device(np.full(10, -7, np.int32))  # what it held before is not added to
    launcher(cuda.to_device(x), 10, out)
    np.testing.assert_array_equal(out.copy_to_host(), histogram_reference(x, 10))
    assert histogram_reference(x, 10).sum() == (x == 0).sum() + (x == 9).sum()


def test_a_misaligned_view_and_more_bins_than_shared_memory_holds():
    x = np.random.default_rng(0).integers(0, 99, 1000, dtype=np.uint8)
    out = cuda.device_array(99, np.int32)
    histogram(cuda.to_device(x)[1:], 99, out)
    np.testing.assert_array_equal(out.copy_to_host(), np.bincount(x[1:], minlength=99))
    many = np.array([0, MOST_BINS, 5, MOST_BINS], np.int32)
    out = cuda.device_array(MOST_BINS + 1, np.int32)
    histogram(cuda.to_device(many), MOST_BINS + 1, out)
    assert out.copy_to_host()[[0, 5, MOST_BINS]].tolist() == [1, 1, 2]


def test_errors_name_the_argument():
    x = cuda.to_device(np.zeros(8, np.uint8))
    for launch in HISTOGRAM.rungs:
        with pytest.raises(ValueError, match=r"out has shape \(3,\); it must be \(4,\)"):
            launch(x, 4, cuda.device_array(3, np.int32))
        with pytest.raises(TypeError, match="x has dtype float32; only int32"):
            launch(cuda.to_device(np.zeros(8, np.float32)), 4, cuda.device_array(4, np.int32))


# --- What is counted -------------------------------------------------------------------------------------------------


def counts(launch, x, bins, *rest) -> dict:
    out = np.zeros(bins, np.int32)
    report = observe(launch, x, out, *rest)
    assert report.ok, str(report)
    np.testing.assert_array_equal(out, np.bincount(x, minlength=bins))
    return report.counts


def test_private_bins_move_the_atomics_from_global_to_shared_memory():
    x = np.random.default_rng(0).integers(0, 16, 2048).astype(np.uint8)
    alone = counts(histogram_global_kernel[8, 256], x, 16)
    assert (alone["global_atomics"], alone["shared_atomics"]) == (2048, 0)
    private = counts(histogram_shared_kernel[2, 256, 0, 4 * 16], x, 16)
    assert (private["global_atomics"], private["shared_atomics"]) == (2 * 16, 2048)  # blocks times bins
    copies = counts(histogram_copies_kernel[2, 256, 0, 4 * 16 * 8], x, 16, np.uint32(8))
    assert (copies["global_atomics"], copies["shared_atomics"]) == (2 * 16, 2048)


def test_lanes_with_one_value_make_one_atomic():
    equal, different = np.full(512, 3, np.uint8), np.tile(np.arange(32, dtype=np.uint8), 16)
    for x, atomics in ((equal, 512 // 32), (different, 512)):
        found = counts(histogram_matched_kernel[1, 256, 0, 4 * 32], x, 32, np.uint32(1))
        assert found["shared_atomics"] == atomics
