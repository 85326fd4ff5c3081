"""Inputs that are never filled lead to the same launches as real ones, and large ones take no memory."""

import functools

import numpy as np
import pytest

from labkit import cuda, device
from labkit.device import gpus, launches
from labkit.kernels.agree import to_device
from labkit.measure import fits, unfilled
from labkit.measure.ops import HOMES, op

SIZES = {"softmax": {"R": 33, "C": 4100}, "linear_bf16": {"M": 37, "N": 400, "K": 264}, "sample": {"R": 3, "V": 32000},
         "paged_decode_bf16": None, "linear_swiglu": None}


def shapes(found) -> set:
    return {(one.kernel.__name__, one.grid, one.block, one.shared_bytes, str(one.signature)) for one in found}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("gpu", ["t4", "h200"])
def test_launches_are_those_of_real_inputs(monkeypatch, name, gpu):
    monkeypatch.setattr(unfilled, "SMALL", 64)
    operation, gpu = op(name), gpus.GPUS[gpu]
    size = SIZES[name] or operation.awkward[-1]
    real = (*to_device(operation.inputs(np.random.default_rng(0), **size)),
            cuda.device_array(operation.shape(**size), operation.dtype))
    for rung in operation.rungs:
        with gpus.plan_for(gpu):
            if rung.missing:
                continue
            expected = launches.planned(functools.partial(rung, *real))
        assert shapes(fits.launches_for(operation, rung, size, gpu)) == shapes(expected), rung


@pytest.mark.sampled(4, quick="lm_head")
@pytest.mark.parametrize("name", HOMES)
def test_every_operation_at_its_timed_size(name):
    """The inputs have the shapes and types of real ones."""
    operation = op(name)
    arguments = unfilled.arguments(operation, operation.work.timed_gpu)
    small = operation.awkward[-1]
    real, others = operation.inputs(np.random.default_rng(0), **small), unfilled.arguments(operation, small)
    for value, other, large in zip(real, others, arguments, strict=False):
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.shape) == (other.dtype, other.shape)
            assert (value.dtype, value.ndim) == (large.dtype, len(large.shape))
    assert arguments[-1].shape == tuple(np.atleast_1d(operation.shape(**operation.work.timed_gpu)))


@pytest.mark.cpu_device
def test_two_gigabytes_are_not_written():
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arguments = unfilled.arguments(op("vector_add"), {"n": 2**28})
    assert sum(array.nbytes for array in arguments) == 3 * 2**30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KB
    assert not device.on_gpu()


def test_arithmetic_keeps_shape_and_type():
    large = unfilled.zeros((3, 2**20), np.float32)
    assert type(2 * large + np.float32(1)) is unfilled.Unfilled
    assert (large / np.float32(3)).dtype == np.float32 and (large < 0.5).dtype == bool
    assert (large + np.zeros((3, 1))).shape == large.shape and (large + np.zeros((3, 1))).dtype == np.float64
    large[0] = 7
    large *= 2
    assert not np.asarray(large[0, :10]).any()


def test_small_draws_are_the_generators_and_large_ones_zeros():
    drawn, real = unfilled.Generator(), np.random.default_rng(0)
    assert np.array_equal(drawn.integers(0, 9, 5, np.int32), real.integers(0, 9, 5, np.int32))
    assert np.array_equal(drawn.random(3), real.random(3)) and drawn.integers(9) == real.integers(9)
    for large in (drawn.standard_normal((2, 2**17), np.float32), drawn.random(size=(2, 2**17), dtype=np.float32)):
        assert large.shape == (2, 2**17) and large.dtype == np.float32 and not np.asarray(large).any()
