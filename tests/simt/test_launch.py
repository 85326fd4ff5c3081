"""Thread orders, time limits, what show prints, and the promises of `labkit bench simt`."""

import numba
import numpy as np
import pytest
from numba import float32

from labkit import cuda
from labkit.measure.series import simt as bench
from labkit.simt import blocks_in_turn, show, thread_order, time_limit
from labkit.simt.errors import KernelTimeout, LaunchError
from labkit.simt.kernel import _quick_typeof

pytestmark = pytest.mark.cpu_device


@cuda.jit
def racy(a, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = a[t]
    out[t] = tile[(t + 1) % 64]


@cuda.jit
def ordered(a, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x + 8 * cuda.threadIdx.y
    tile[t] = a[t]
    cuda.syncthreads()
    out[t] = tile[(t + 1) % 64]


def _right(kernel, block, order):
    a, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with thread_order(order):
        kernel[1, block](a, out)
    return np.array_equal(out, np.roll(a, -1))


@pytest.mark.parametrize("order", ["forward", "reverse", "scattered"])
def test_a_right_kernel_is_right_in_every_order(order):
    assert _right(ordered, (8, 8), order)


def test_a_race_shows_itself():
    assert not all(_right(racy, 64, order) for order in ("forward", "reverse", "scattered"))


@cuda.jit
def last_one_wins(out):
    out[0] = cuda.threadIdx.x


def test_one_kernel_is_run_in_each_order_in_turn():
    seen = []
    for order in ("forward", "reverse", "forward", "scattered"):
        out = np.full(1, -1, np.int64)
        with thread_order(order):
            last_one_wins[1, 64](out)
        seen.append(out[0])
    assert seen[:3] == [63, 0, 63] and seen[3] not in (-1, 0, 63)


@pytest.mark.parametrize(("block", "threads"), [((32, 33), "1,056"), ((64, 32), "2,048"), ((8, 8, 17), "1,088")])
def test_a_block_of_more_than_1024_threads_is_refused(block, threads):
    with pytest.raises(LaunchError, match=f"has {threads} threads; a block may have at most 1,024"):
        ordered[1, block](np.zeros(64, np.float32), np.zeros(64, np.float32))


def test_a_configuration_of_something_else_than_integers_is_refused():
    with pytest.raises(TypeError, match=r"griddim must be a sequence of integers, got \[2\.0\]") as caught:
        ordered[2.0, 3]
    assert isinstance(caught.value, LaunchError)
    with pytest.raises(LaunchError, match=r"blockdim must be a sequence of 1, 2 or 3 integers, got \[3, 4, 5, 6\]"):
        ordered[(1, 2), (3, 4, 5, 6)]
    with pytest.raises(ValueError, match="launch configuration was not specified"):
        ordered(0)


@cuda.jit
def as_much_as_asked_for(out):
    tile = cuda.shared.array(0, float32)
    tile[cuda.threadIdx.x] = 1
    out[0] = tile[0]


def test_a_block_has_48_kilobytes_of_shared_memory_unless_it_was_allowed_more():
    out = np.zeros(1, np.float32)
    as_much_as_asked_for[1, 1, 0, 48 * 1024](out)
    with pytest.raises(LaunchError, match="uses too much shared memory"):
        as_much_as_asked_for[1, 1, 0, 48 * 1024 + 4](out)


@cuda.jit
def last_block_stays(out):
    seen = 0
    if cuda.blockIdx.x == 0:
        for k in range(3_000_000):
            seen += out[k % 2]
    out[0] = cuda.blockIdx.x + min(seen, 0)  # which is 0, and the loop has to run


def test_blocks_in_turn():
    """Blocks that write the same element race; in turn, the last one's number stays, however slow the first one is."""
    for _ in range(3):
        out = np.zeros(2, np.int64)
        with blocks_in_turn():
            last_block_stays[64, 1](out)
        assert out[0] == 63


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match="order is 'sideways'"), thread_order("sideways"):
        pass


def test_a_time_limit_stops_an_endless_kernel():
    @cuda.jit
    def endless(a):
        while a[0] < 1:
            a[1] += 1

    with pytest.raises(KernelTimeout, match="endless, line"), time_limit(0.3):
        endless[1, 1](np.zeros(2, np.float32))


def test_show_is_readable_python():
    a = np.zeros(64, np.float32)
    text = show(ordered, a, a)
    compile(text, "shown", "exec")
    assert "cuda.syncthreads()" in text and "_load" not in text
    assert text.count("tile[t] = a[t]") == 1


@pytest.mark.slow
def test_the_promises_of_bench():
    found = bench.time_cpu_device()
    for what, (number, _, sense) in bench.GOALS.items():
        if what in found:
            assert found[what] >= number if sense == "at least" else found[what] <= number, (what, found[what])


def test_the_type_of_an_argument_is_numbas():
    """Looked up by what decides it: dtype, rank, order, and whether it may be written."""
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    record = np.zeros(2, np.dtype([("a", np.int32), ("b", np.float32)], align=True))
    plane = np.zeros((2, 3), np.float32)
    values = (np.zeros(3, np.float32), np.zeros(3), plane, plane.T, plane[:, ::2], frozen, record, record["a"],
              np.uint32(1), np.int64(1), np.float32(1), True, 1, 2**40)
    for value in (*values, *values):
        assert _quick_typeof(value) == numba.typeof(value)
