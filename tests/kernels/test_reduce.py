"""Reductions: every rung, every block size, infinities, and the race that a missing barrier leaves."""

import numpy as np
import pytest
from numba import float32

from labkit import cuda, observe
from labkit.kernels.agree import agree
from labkit.kernels.op import uniform
from labkit.kernels.ops.reduce import REDUCE_SUM
from labkit.kernels.reduce import (
    block_max,
    block_reduce_max,
    block_reduce_sum,
    block_sum,
    mean_and_variance_kernel,
    mean_and_variance_racy_kernel,
    reduce_sum_tree,
    reduce_sum_two_level,
    reduce_sum_vectorized,
    row_max,
)


def test_every_rung_agrees():
    assert agree(REDUCE_SUM, seed=1).passed


@pytest.mark.parametrize("launch", [reduce_sum_tree, reduce_sum_two_level], ids=lambda f: f.__name__)
@pytest.mark.parametrize("block", [32, 64, 128, 256, 512, 1024])
def test_a_sum_is_within_1e_5_at_every_block_size(launch, block):
    x = np.random.default_rng(block).random((3, 1000), dtype=np.float32)
    out = cuda.to_device(np.full(3, np.nan, np.float32))
    launch(cuda.to_device(x), out, block=block)
    np.testing.assert_allclose(out.copy_to_host(), x.sum(axis=1, dtype=np.float64), rtol=1e-5)


def make_block_max(block_reduce):
    """The largest of each row by a block."""

    @cuda.jit
    def block_max_kernel(x, out):
        shared = cuda.shared.array(1024, float32)
        row, thread = cuda.blockIdx.x, cuda.threadIdx.x
        largest = float32(-np.inf)
        for col in range(thread, x.shape[1], cuda.blockDim.x):
            largest = max(largest, x[row, col])
        largest = block_reduce(largest, shared)
        if thread == 0:
            out[row] = largest

    return lambda x, out, block=256: block_max_kernel[x.shape[0], block](x, out)


MAXIMA = [row_max, make_block_max(block_reduce_max), make_block_max(block_max)]


@pytest.mark.sampled(1, sweep=99, quick="<lambda>0")
@pytest.mark.parametrize("launch", MAXIMA)
def test_a_maximum_is_exact_with_negative_numbers_and_infinities(launch):
    x = -1000 - 10 * np.abs(uniform(np.random.default_rng(3), 5, 1000))
    x[0, ::3] = -np.inf
    x[1, :] = -np.inf
    x[2, 999] = np.inf
    x[3, :999] = -np.inf
    out = cuda.to_device(np.zeros(5, np.float32))
    launch(cuda.to_device(x), out)
    np.testing.assert_array_equal(out.copy_to_host(), x.max(axis=1))


@pytest.mark.parametrize("C", [1, 31, 257, 4099])
def test_a_maximum_by_warps_is_exact_in_any_number_of_rows(C):
    x = -np.random.default_rng(C).random((11, C), dtype=np.float32) - 1
    out = cuda.to_device(np.zeros(11, np.float32))
    row_max(cuda.to_device(x), out)
    np.testing.assert_array_equal(out.copy_to_host(), x.max(axis=1))


@pytest.mark.parametrize("block", [32, 128, 1024])
def test_a_maximum_is_exact_at_every_block_size(block):
    x = -np.random.default_rng(block).random((2, 1500), dtype=np.float32) - 1
    for launch in MAXIMA[1:]:
        out = cuda.to_device(np.zeros(2, np.float32))
        launch(cuda.to_device(x), out, block=block)
        np.testing.assert_array_equal(out.copy_to_host(), x.max(axis=1))


def make_twice(reduce_first, reduce_then):
    """Two reductions through the same shared memory; every thread stores what it got."""

    @cuda.jit
    def twice_kernel(x, out):
        shared = cuda.shared.array(256, float32)
        thread = cuda.threadIdx.x
        out[0, thread] = reduce_first(x[thread], shared)
        out[1, thread] = reduce_then(-x[thread], shared)

    return twice_kernel


@pytest.mark.parametrize(("first", "then"), [(block_reduce_sum, block_reduce_max), (block_reduce_max, block_reduce_sum),
                                             (block_sum, block_max), (block_max, block_sum)])
def test_every_thread_gets_the_result_and_shared_memory_can_be_used_again(first, then):
    kernel = make_twice(first, then)
    x = np.arange(1, 65, dtype=np.float32)
    out = np.zeros((2, 64), np.float32)
    report = observe(kernel[1, 64], x, out)
    assert report.races == []
    largest_first = first in (block_reduce_max, block_max)
    assert set(out[0]) == {64.0 if largest_first else x.sum()}
    assert set(out[1]) == {-x.sum() if largest_first else -1.0}


def test_observe_finds_the_race_of_the_form_without_the_last_barrier_and_none_in_ours():
    x = uniform(np.random.default_rng(0), 1, 64)
    found = observe(mean_and_variance_racy_kernel[1, 64], x, np.zeros((1, 2), np.float32)).races
    assert found
    assert any("shared" in str(race) for race in found)
    out = np.zeros((1, 2), np.float32)
    assert observe(mean_and_variance_kernel[1, 64], x, out).races == []
    np.testing.assert_allclose(out[0], [x.mean(), x.var()], rtol=1e-5)


def test_a_tree_of_256_threads_takes_eight_steps():
    """One barrier after the store, eight in the tree, one after the result is read."""
    x = np.ones((1, 256), np.float32)
    report = observe(reduce_sum_tree.kernel[1, 256, 0, 1024], x, np.zeros(1, np.float32))
    assert report.counts["barriers"] == 1 + 8 + 1


def test_errors_name_the_argument():
    x, out = cuda.to_device(np.ones((2, 8), np.float32)), cuda.to_device(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="block is 96; a tree needs"):
        reduce_sum_tree(x, out, block=96)
    with pytest.raises(ValueError, match="block is 48; two levels need a multiple of 32"):
        reduce_sum_two_level(x, out, block=48)
    with pytest.raises(ValueError, match=r"out has shape \(3,\); it must be \(2,\)"):
        reduce_sum_vectorized(x, cuda.to_device(np.ones(3, np.float32)))
