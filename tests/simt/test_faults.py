"""Every way in which a kernel can go wrong: the error, what it says, and a process that goes on afterwards.

Lines that fault carry a mark, `# name`; a test asks for the line of its mark.
"""

import contextlib
import functools
import gc
import inspect
import os
import sys
import threading
import time

import numpy as np
import pytest
from numba import float32, int32, int64

from labkit import cuda, observe, simt
from labkit.simt import settings, strict_barriers, workers
from labkit.simt.errors import (
    ArgumentError,
    BarrierError,
    BarrierWarning,
    DeviceFault,
    KernelAssertionError,
    KernelError,
    KernelTimeout,
    KernelTypeError,
    LaunchError,
    OutOfBoundsError,
    UnsupportedError,
    WarpError,
)
from labkit.simt.faults import ERRORS
from labkit.simt.runtime.fault_record import CODES
from tests import interrupts
from tests.simt.helpers import kernel_of, line_of, run_python

pytestmark = pytest.mark.cpu_device

FULL = 0xFFFFFFFF


def fault(kind, launch, *args):
    with pytest.raises(kind) as caught:
        launch(*args)
    error = caught.value
    assert isinstance(error, KernelError)
    if isinstance(error, DeviceFault):
        assert f"{error.kernel}, line {error.line}" in str(error)
    else:
        assert len(str(error)) < 700
    return error


@cuda.jit
def healthy(out):
    s = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncthreads()
    out[t] = s[31 - t]


@pytest.fixture(autouse=True)
def fine_afterwards():
    """After each fault the same process launches fine."""
    yield
    out = np.zeros(32, np.int64)
    healthy[1, 32](out)
    np.testing.assert_array_equal(out, np.arange(31, -1, -1))


# Out of bounds --------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def read_at(values, k):
    return values[k] + 1  # device


@cuda.jit(device=True)
def read_late(values, k):
    cuda.syncthreads()
    return values[k + 1]  # inlined


@cuda.jit
def bounds(a, b, c, out, which, k):
    shared = cuda.shared.array((4, 8), int64)
    local = cuda.local.array(6, int64)
    wide = cuda.local.array(4, int64)
    i = cuda.grid(1)
    x = 0
    shared[0, 0] = 0
    wide[0] = 0
    if which == 0:
        x = a[i]  # load
    elif which == 1:
        out[i + 1] = 5  # store
    elif which == 2:
        out[k] += 1  # augmented
    elif which == 3:
        cuda.atomic.add(out, k, 1)  # atomic
    elif which == 4:
        x = b[i, 2]  # rows
    elif which == 5:
        x = b[2, k]  # columns
    elif which == 6:
        c[1, k, 1] = 3  # deep
    elif which == 7:
        row = b[k]  # view
        x = row[0]
    elif which == 8:
        part = b[k, 1:3]  # beside a slice
        x = part[0]
    elif which == 9:
        part = a[2:5]
        x = part[k]  # in a slice
    elif which == 10:
        shared[k, 1] = 3  # shared
    elif which == 11:
        local[k] = 3  # local
    elif which == 12:
        x = read_at(a, k)
    elif which == 13:
        while a[k] > 0:  # test
            x += 1
            k = 100
    elif which == 14:
        x = (1
             + a[k])  # second line
    elif which == 15:
        if x == 0 and (x == 1 or b[1][k] > 0):  # condition
            x = 2
    elif which == 16:
        for j in range(k, k + a[k]):  # range
            x += j
    elif which == 17:
        b[k:, 1][0] = 1
        x = cuda.atomic.max(c, (1, 2, k), 7)  # atomic tuple
    elif which == 18:
        x = b.shape[1] + a[b[1, 1] * 0 + a[a[k]] * 0]  # nested
    elif which == 19:
        a[0], a[k] = 1, 2  # unpacked
    elif which == 20:
        pair = (1, k)
        x = b[pair]  # tuple
    elif which == 21:
        b[1, k:k + 2] = 4  # a slice is clipped, as in Python
        b[k, :] = 4  # slice of a missing row
    cuda.syncthreads()
    wide[1] = x
    cuda.syncthreads()
    if which == 30:
        x = read_late(a, k)
    elif which == 31:
        wide[k] += 1  # kept local
    elif which == 32:
        x = shared[3, k]  # shared later
    cuda.syncthreads()
    if which < 0:
        x = a[k] + b[k, -1] + c[k, k, k]  # negative: from the end
    if i < out.size:
        out[i] = x + wide[1] * 0


BOUNDS = [  # which, k, mark, array, index, shape, thread
    (0, 0, "load", "a", (8,), (8,), 8), (1, 0, "store", "out", (16,), (16,), 15),
    (2, 16, "augmented", "out", (16,), (16,), 0), (3, -17, "atomic", "out", (-17,), (16,), 0),
    (4, 0, "rows", "b", (5, 2), (5, 3), 5), (5, 3, "columns", "b", (2, 3), (5, 3), 0),
    (5, -4, "columns", "b", (2, -4), (5, 3), 0), (6, 4, "deep", "c", (1, 4, 1), (2, 3, 4), 0),
    (7, 5, "view", "b", (5,), (5, 3), 0), (9, 3, "in a slice", "part", (3,), (3,), 0),
    (10, 4, "shared", "shared", (4, 1), (4, 8), 0), (11, 6, "local", "local", (6,), (6,), 0),
    (12, 9, "device", "values", (9,), (8,), 0), (13, 8, "test", "a", (8,), (8,), 0),
    (14, 8, "second line", "a", (8,), (8,), 0), (15, 3, "condition", "b[1]", (3,), (3,), 0),
    (16, 70, "range", "a", (70,), (8,), 0), (17, 4, "atomic tuple", "c", (1, 2, 4), (2, 3, 4), 0),
    (18, -9, "nested", "a", (-9,), (8,), 0), (19, 8, "unpacked", "a", (8,), (8,), 0),
    (20, 3, "tuple", "b", (1, 3), (5, 3), 0), (30, 7, "inlined", "values", (8,), (8,), 0),
    (31, 4, "kept local", "wide", (4,), (4,), 0), (32, 8, "shared later", "shared", (3, 8), (4, 8), 0),
]  # fmt: skip


def bounds_arrays():
    return np.arange(8), np.ones((5, 3), np.int64), np.ones((2, 3, 4), np.int64), np.full(16, -1)


@pytest.mark.parametrize("which, k, mark, array, index, shape, thread", BOUNDS)
def test_out_of_bounds(which, k, mark, array, index, shape, thread):
    error = fault(OutOfBoundsError, bounds[1, 16], *bounds_arrays(), which, k)
    marked = {"device": read_at, "inlined": read_late}.get(mark, bounds)
    assert (error.kernel, error.line, error.block) == ("bounds", line_of(marked, mark), (0, 0, 0))
    # an inlined function's parameter may be known by the name of what was passed
    assert error.array in (array, "a" if mark == "inlined" else array)
    assert (error.index, error.shape, error.thread) == (index, shape, (thread, 0, 0))
    assert error.filename == __file__
    assert isinstance(error, IndexError)


def test_out_of_bounds_beside_a_slice():
    error = fault(OutOfBoundsError, bounds[1, 16], *bounds_arrays(), 8, 5)
    assert (error.line, error.array) == (line_of(bounds, "beside a slice"), "b")
    error = fault(OutOfBoundsError, bounds[1, 16], *bounds_arrays(), 21, 5)
    assert (error.line, error.array) == (line_of(bounds, "slice of a missing row"), "b")


def test_negative_indices_count_from_the_end():
    a, b, c, out = bounds_arrays()
    b[-2, -1], c[-2, -2, -2] = 100, 10000
    bounds[1, 8](a, b, c, out, -1, -2)
    assert out[0] == 6 + 100 + 10000


def test_block_and_thread_of_a_fault():
    @cuda.jit
    def one(a):
        x, y, z = cuda.grid(3)
        if x == 5 and y == 3 and z == 1:
            a[x, y, z, -7] = 1  # here

    error = fault(OutOfBoundsError, one[(3, 2, 2), (2, 3, 1)], np.zeros((9, 9, 9, 6)))
    assert (error.block, error.thread, error.line) == ((2, 1, 1), (1, 0, 0), line_of(one, "here"))
    assert error.index == (5, 3, 1, -7) and error.shape == (9, 9, 9, 6)


@cuda.jit
def first_block_is_late(x, out):
    total = float32(0.0)
    if cuda.blockIdx.x == 0:
        for k in range(3_000_000):
            total += x[k % x.size]
    if cuda.threadIdx.x == 0:
        out[out.size + cuda.blockIdx.x] = total


@pytest.mark.parametrize("blocks", [2, 64])
def test_the_fault_of_the_first_block_is_the_one_reported(blocks):
    """Whichever core comes to its fault first: a verdict must not depend on that."""
    for _ in range(3):
        with pytest.raises(OutOfBoundsError, match="block 0, thread 0 "):
            first_block_is_late[blocks, 2](np.ones(7, np.float32), np.zeros(5, np.float32))


def test_arrays_of_size_zero_and_other_layouts():
    @cuda.jit
    def kernel(a, k):
        a[k] = a[0] + 1

    assert fault(OutOfBoundsError, kernel[1, 1], np.zeros(0), 0).shape == (0,)
    strided = np.zeros(40)[::4]
    kernel[1, 1](strided, 9)
    assert strided[9] == 1
    assert fault(OutOfBoundsError, kernel[1, 1], strided, 10).shape == (10,)
    reversed_ = np.arange(6.0)[::-1]
    kernel[1, 1](reversed_, -1)
    assert reversed_[5] == 6
    fault(OutOfBoundsError, kernel[1, 1], reversed_, -7)
    assert fault(OutOfBoundsError, kernel[1, 1], np.zeros(4), np.uint64(2**63 + 1)).shape == (4,)


TABLE = np.arange(5)


def test_fault_in_a_device_function_of_another_file(tmp_path):
    """Also: a global array is known by its name."""
    path = tmp_path / "elsewhere.py"
    path.write_text("@cuda.jit(device=True)\ndef late(a, k):\n    cuda.syncwarp()\n    return a[k]\n")
    names = {"cuda": cuda}
    exec(compile(path.read_text(), str(path), "exec"), names)
    late = names["late"]

    @cuda.jit
    def kernel(a, k):
        a[0] = TABLE[k]  # global
        a[1] = late(a, 9)

    error = fault(OutOfBoundsError, kernel[1, 1], np.zeros(4), 0)
    assert (error.filename, error.line, error.kernel) == (str(path), 4, "kernel")
    error = fault(OutOfBoundsError, kernel[1, 1], np.zeros(4), 5)
    assert (error.filename, error.line, error.array) == (__file__, line_of(kernel, "global"), "TABLE")


def test_an_exception_leaves_device_arrays_usable():
    a, b, c, out = (cuda.to_device(x) for x in bounds_arrays())
    fault(OutOfBoundsError, bounds[1, 16], a, b, c, out, 0, 0)
    assert a.copy_to_host()[:3].tolist() == [0, 1, 2]
    bounds[1, 8](a, b, c, out, 0, 0)
    np.testing.assert_array_equal(out.copy_to_host()[:8], np.arange(8))
    a.copy_to_device(np.arange(8) * 2)
    assert a[3] == 6


# Barriers -------------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def waits(out, t, n):
    for k in range(n):
        out[t] += k
        cuda.syncthreads()  # here


@cuda.jit(device=True)
def waits_late(out, t):
    if t == 9:
        return
    cuda.syncthreads()  # here
    out[t] = 3


def in_if(out):
    if cuda.threadIdx.x < 20:
        cuda.syncthreads()  # here


def trips(out):
    for _k in range(cuda.threadIdx.x // 16):
        cuda.syncthreads()  # here


def after_return(out):
    if cuda.threadIdx.x == 63:
        return
    out[cuda.threadIdx.x] = 1
    cuda.syncthreads()  # here


def in_device_function(out):
    waits(out, cuda.threadIdx.x, 2 + (cuda.threadIdx.x == 40))


def after_break(out):
    t = cuda.threadIdx.x
    while True:
        cuda.syncthreads()  # here
        if t == 5:
            break
        out[t] += 1


def in_both_arms(out):
    if cuda.threadIdx.x % 2:
        cuda.syncthreads()  # here
    else:
        cuda.syncthreads()


def after_device_return(out):
    waits_late(out, cuda.threadIdx.x)


def after_continue(out):
    for k in range(3):
        if k == 1 and cuda.threadIdx.x > 60:
            continue
        cuda.syncthreads()  # here


def in_conditional_expression(out):
    t = cuda.threadIdx.x
    out[t] = cuda.syncthreads_count(1) if t < 60 else 0  # here


def in_condition(out):
    t = cuda.threadIdx.x
    if t > 2 and cuda.syncthreads_or(1):  # here
        out[t] = 1


def in_while(out):
    k = 0
    while k < cuda.threadIdx.x:
        k += 1
        if k > 50:
            cuda.syncthreads()  # here


@pytest.mark.sampled(6, sweep=5)
@pytest.mark.parametrize(
    "kernel, reached, owner",
    [(in_if, 20, None), (trips, 48, None), (after_return, 63, None), (in_device_function, 1, waits),
     (after_break, 63, None), (in_both_arms, 32, None), (after_device_return, 63, waits_late),
     (after_continue, 61, None), (in_conditional_expression, 60, None), (in_condition, 61, None), (in_while, 13, None)],
)  # fmt: skip
def test_divergent_barrier(kernel, reached, owner):
    launch = cuda.jit(kernel)
    error = fault(BarrierError, launch[2, 64], np.zeros(64, np.int64))
    assert (error.kernel, error.line) == (kernel.__name__, line_of(owner or launch, "here"))
    assert f"{reached} of the 64 threads" in str(error)
    assert "returned" in str(error) if kernel is after_return else "elsewhere" in str(error)


@cuda.jit
def grid_barriers(out, which):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    grid = cuda.cg.this_grid()
    grid.sync()
    if which == 0 and b == 1 and t + 5 * cuda.threadIdx.y > 4:
        return
    if which == 1 and b == 2:
        return
    if which == 2 and b == 1 and t == 3:
        cuda.syncthreads()  # block
    if which == 3:
        out[b, t] = 1  # row
    grid.sync()  # grid
    out[b, t] = 2


def test_divergent_grid_barrier():
    """A grid's barrier is for every thread of every block."""
    for which, block, thread in ((0, 1, 5), (1, 2, 0)):
        with strict_barriers():
            error = fault(BarrierError, grid_barriers[4, (5, 2)], np.zeros((4, 5)), which)
        assert (error.line, error.block) == (line_of(grid_barriers, "grid"), (block, 0, 0))
        assert error.thread == (thread % 5, thread // 5, 0)
    error = fault(BarrierError, grid_barriers[4, 5], np.zeros((4, 5)), 2)
    assert (error.line, error.block) == (line_of(grid_barriers, "block"), (1, 0, 0))
    error = fault(OutOfBoundsError, grid_barriers[4, (5, 2)], np.zeros((3, 5)), 3)
    assert (error.line, error.block, error.index) == (line_of(grid_barriers, "row"), (3, 0, 0), (3, 0))
    out = np.zeros((4, 5))
    grid_barriers[4, 5](out, 9)
    assert (out == 2).all()
    fault(LaunchError, grid_barriers[100_000, 1024], out, 9)  # more than a GPU holds at once


@cuda.jit
def grid_barrier_in_a_branch(out, first, after):
    i = cuda.grid(1)
    if i % 4 < first:
        cuda.cg.this_grid().sync()  # branch
        out[i] = 1
    if after:
        out[i] = 3


@cuda.jit
def grid_barrier_at_the_end(out, seen, which):
    i = cuda.grid(1)
    out[i] = 2
    if i % 4 < 2 and which == 0 or i % 4 > 0 and which == 1:
        cuda.cg.this_grid().sync()  # end
        seen[i] = out[(i + 4) % 8] + 1


def test_grid_barrier_that_a_gpu_lets_pass():
    """Threads that end early are no fault where thread 0 of every block is there; a warning names the line."""
    out = np.zeros((4, 5))
    with pytest.warns(BarrierWarning) as caught:
        grid_barriers[4, (5, 2)](out, 0)
    assert (out == 2).all()
    text = str(caught[0].message)
    assert f"line {line_of(grid_barriers, 'grid')}" in text and "35 of the 40 threads" in text and "block 1" in text
    assert caught[0].filename == __file__
    fault(BarrierError, grid_barriers[4, (5, 2)], out, 1)  # a whole block is missing: a GPU waits for ever
    seen = np.zeros(8)
    with pytest.warns(BarrierWarning, match=f"line {line_of(grid_barrier_at_the_end, 'end')}"):
        grid_barrier_at_the_end[2, 4](np.zeros(8), seen, 0)
    assert seen.tolist() == [3, 3, 0, 0, 3, 3, 0, 0]
    with strict_barriers():
        fault(BarrierError, grid_barrier_at_the_end[2, 4], np.zeros(8), seen, 0)
    fault(BarrierError, grid_barrier_at_the_end[2, 4], np.zeros(8), seen, 1)  # thread 0 is missing
    fault(BarrierError, grid_barrier_in_a_branch[2, 4], np.zeros(8), 2, 1)  # the others go on to something else


@cuda.jit
def exchange_of_some(x, n, out):
    t, shared = cuda.threadIdx.x, cuda.shared.array(64, float32)
    i = cuda.grid(1)
    if i >= n:
        return
    shared[t] = x[i]
    cuda.syncthreads()  # first
    out[i] = shared[t ^ 1] + cuda.syncthreads_count(i % 2)  # second


@cuda.jit
def barrier_for_some(out):
    if cuda.threadIdx.x < 40:
        cuda.syncthreads()  # for some
    else:
        cuda.syncthreads()
    out[cuda.threadIdx.x] = 1


def launch(configured, *args):
    configured(*args)


def interpret(configured, *args):
    """As a launch that cannot be compiled."""
    compiled, values = configured.kernel.compiled_for(args)
    workers.interpret(compiled, configured.grid, configured.block, 0, values)


@pytest.mark.parametrize("run", [launch, interpret])
def test_a_barrier_that_gpus_pass_without_threads_that_have_returned(monkeypatch, run):
    """For programs other than the course's. A thread that is still running elsewhere is an error there, too."""
    monkeypatch.setattr(settings, "_returned_are_awaited", False)
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    with pytest.warns(BarrierWarning) as caught:
        run(exchange_of_some[2, 64], x, 100, out)
    expected = x.reshape(-1, 2)[:, ::-1].ravel() + np.repeat([32, 18], 64)
    np.testing.assert_array_equal(out, np.where(x < 100, expected, 0))
    text = str(caught[0].message)
    assert f"line {line_of(exchange_of_some, 'first')}: cuda.syncthreads() was reached by 36 of the 64" in text
    assert "block 1; thread 36 has returned" in text
    fault(BarrierError, functools.partial(run, barrier_for_some[1, 64]), out)
    with strict_barriers():
        fault(BarrierError, functools.partial(run, exchange_of_some[2, 64]), x, 100, out)
    assert not observe(exchange_of_some[2, 64], x, 100, out).ok


def test_whole_blocks_may_return_early():
    @cuda.jit
    def kernel(out):
        if cuda.blockIdx.x % 2:
            return
        cuda.syncthreads()
        out[cuda.blockIdx.x] = 1

    out = np.zeros(4)
    kernel[4, 40](out)
    assert out.tolist() == [1, 0, 1, 0]


# Warps ----------------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_total(v):
    for d in (16, 8, 4, 2, 1):
        v += cuda.shfl_down_sync(FULL, v, d)  # here
    return v


def half_a_warp(out, mask):
    t = cuda.threadIdx.x
    if t % 32 < 16:
        out[t] = cuda.shfl_xor_sync(mask, t, 1)  # here


def own_lane(out, mask):
    t = cuda.threadIdx.x
    out[t] = cuda.shfl_xor_sync(mask, t, 1)  # here


def returned_source(out, mask):
    t = cuda.threadIdx.x
    if t == 33:
        return
    out[t] = cuda.shfl_sync(mask, t, 1)  # here


def trips_of_lanes(out, mask):
    for _k in range(cuda.threadIdx.x):
        cuda.syncwarp()  # here


def device_function_of_lanes(out, mask):
    t = cuda.threadIdx.x
    if t != 70:
        out[t] = warp_total(t)


def after_and(out, mask):
    t = cuda.threadIdx.x
    out[t] = 1 if t % 32 < 4 and cuda.any_sync(mask, t) else 0  # here


def vote(out, mask):
    t = cuda.threadIdx.x
    if t > 0:
        out[t] = cuda.popc(cuda.ballot_sync(mask, t))  # here


HALF_A_WARP, OWN_LANE = cuda.jit(half_a_warp), cuda.jit(own_lane)


@pytest.mark.sampled(4, sweep=4)
@pytest.mark.parametrize(
    "kernel, mask, words",
    [(HALF_A_WARP, FULL, "lanes 16 to 31"), (OWN_LANE, 0xFFFF, "leaves out its own lane, 16"),
     (OWN_LANE, 0, "leaves out its own lane, 0"), (returned_source, FULL, "reads lane 1"),
     (trips_of_lanes, 0, "lane 0"), (device_function_of_lanes, 0, "lane 6"),
     (after_and, FULL, "lanes 4 to 31"), (vote, FULL, "lane 0")],
)  # fmt: skip
def test_divergent_collective(kernel, mask, words):
    kernel = kernel if hasattr(kernel, "py_func") else cuda.jit(kernel)
    error = fault(WarpError, kernel[1, 96], np.zeros(96, np.int64), mask)
    owner = warp_total if "device" in kernel.__name__ else kernel
    assert error.line == line_of(owner, "here")
    assert words in str(error)


def test_a_subset_of_lanes_that_is_all_there():
    out = np.zeros(96, np.int64)
    HALF_A_WARP[1, 96](out, 0xFFFF)
    assert out[:16].tolist() == [t ^ 1 for t in range(16)] and not out[16:32].any()


# Launches -------------------------------------------------------------------------------------------------------------


def test_launch_limits():
    out = np.zeros(32, np.int64)
    assert "1,024" in str(fault(LaunchError, lambda: healthy[1, 1025](out)))
    assert "1,056 threads" in str(fault(LaunchError, lambda: healthy[1, (32, 33)](out)))
    fault(LaunchError, lambda: healthy[1, (1, 1, 65)](out))
    fault(LaunchError, lambda: healthy[(1, 65536), 32](out))
    fault(LaunchError, lambda: healthy[(1, 1, 65536), 32](out))
    fault(LaunchError, lambda: healthy[2**31, 32](out))
    for wrong in (0, -1, 1.0, "1", (), (1, 1, 1, 1), (1, 0), None, True, np.float32(1)):
        fault(LaunchError, lambda wrong=wrong: healthy[wrong, 32](out))
        fault(LaunchError, lambda wrong=wrong: healthy[1, wrong](out))
    fault(LaunchError, lambda: healthy[1](out))
    fault(LaunchError, lambda: healthy[1, 32, 0, 0, 0](out))
    fault(LaunchError, lambda: healthy(out))
    fault(LaunchError, lambda: healthy[1, 32, 0, -1](out))
    with pytest.raises(TypeError):
        read_at(out, 1)


def test_shared_memory_limits():
    @cuda.jit
    def much(out):
        s = cuda.shared.array(12288, float32)
        d = cuda.shared.array(0, float32)
        s[cuda.threadIdx.x] = 1
        d[cuda.threadIdx.x] = 2
        out[0] = s[0] + d[0]

    @cuda.jit
    def too_much(out):
        s = cuda.shared.array((12289,), float32)
        s[0] = 1
        out[0] = s[0]

    out = np.zeros(1)
    assert "49,156" in str(fault(LaunchError, too_much[1, 32], out))
    assert f"{1 << 20:,} at launch" in str(fault(LaunchError, much[1, 32, 0, 1 << 20], out))
    fault(OutOfBoundsError, much[1, 32, 0, 0], out)  # no dynamic shared memory: its array has no elements


def test_wrong_arguments():
    out = np.zeros(32, np.int64)
    assert "2 given" in str(fault(ArgumentError, healthy[1, 32], out, 1))
    fault(ArgumentError, healthy[1, 32])
    for wrong in ([1, 2], {}, "x", None, print, object(), np.array([None]), 2**64):
        assert "'out'" in str(fault(ArgumentError, healthy[1, 32], wrong))
    assert fault(KernelTypeError, healthy[1, 32], 3)
    fault(KernelTypeError, healthy[1, 32], np.array(["a"]))  # it stores numbers
    assert fault(OutOfBoundsError, healthy[1, 32], np.zeros((2, 2)))  # out[t] is a row, to be filled
    read_only = np.zeros(32)
    read_only.flags.writeable = False
    fault(KernelTypeError, healthy[1, 32], read_only)


def test_a_view_at_an_odd_address():
    bytes_ = cuda.to_device(np.zeros(32 * 8 + 1, np.uint8))
    assert "not a multiple of the 8 bytes" in str(fault(ArgumentError, healthy[1, 32], bytes_[1:].view(np.int64)))
    healthy[1, 32](np.zeros(32 * 8 + 1, np.uint8)[1:].view(np.int64))  # a launch copies it to an address that is


UNSUPPORTED = {  # what stands in the kernel: what the error says
    "out[0] = [1, 2][0]": "a list", "x = {}\nout[0] = len(x)": "a dictionary", "with open('x'): pass": "with",
    "out[0] = [k for k in out][0]": "a list comp",
    "try:\n    out[0] = 1\nexcept: pass": "try",
    "import math": "import", "out[0] = f'{n}'": "f-string", "return out[0]": "cannot return", "yield n": "yield",
    "s = cuda.shared.array(n, int64)\nout[0] = s[0]": "constant", "out[0] = sorted(out)": "sorted", "del n": "del",
    "out[0] = host(n)": "host", "out[0] = undefined_name": "undefined_name", "out[0] = N[0]": "host object",
    "out[0] = np.zeros(3)[0]": "zeros", "out.sort()": "sort", "out[0] = cuda.nothing(1)": "nothing",
    "out[0] = cuda.grid(4)": "grid", "out[0] = cuda.grid(n)": "grid",
    "out[0] = (*out,)[0]": "starred", "out['x'] = 1": "", "out[0] = n.nothing": "nothing", "out[0, 0] = 1": "",
    "out[0.5] = 1": "float", "s = cuda.shared.array(-1, int64)\nout[0] = s[0]": "positive",
    "cuda.syncthreads(1)": "syncthreads",
    "out[0] = cuda.threadIdx": "threadIdx", "out[0] = cuda.atomic.add(n, 0, 1)": "atomic", "n()": "",
    "out[0] = out": "",
    "match n:\n    case 1: pass": "match", "out[0] = x = 'abc'": "", "cuda.shfl_sync(1, 2)": "shfl_sync",
    "out[0] = (k := 3)": ":=",
}  # fmt: skip


def host(x):
    return x


@pytest.mark.parametrize("source", UNSUPPORTED)
def test_unsupported_source(source):
    kernel = kernel_of(source, "out, n", np=np, int64=int64, host=host, N=[3])
    message = str(fault((UnsupportedError, KernelTypeError), kernel[1, 1], np.zeros(4, np.int64), 3))
    assert UNSUPPORTED[source] in message and ("line 3" in message or "line 4" in message), message


def test_not_kernels():
    fault(UnsupportedError, lambda: cuda.jit(print))
    fault(UnsupportedError, lambda: cuda.jit(no_such_option=True))


# comments and docstrings at column 0 within a nested kernel
def test_source_with_text_at_column_0():
    @cuda.jit
    def kernel(out):
        """A docstring that goes on
at column 0."""
# and a comment
        out[cuda.threadIdx.x] = 1
        out[9] = 1  # here

    out = np.zeros(3)
    assert fault(OutOfBoundsError, kernel[1, 3], out).line == line_of(kernel, "here")
    assert out[0] == 1


@pytest.mark.parametrize("name", ["_load", "_copy", "_E"])
def test_kernels_named_like_internals(name):
    kernel = kernel_of("""\
t = cuda.threadIdx.x
for k in range(n):
    if k < 2:
        cuda.syncthreads()
    out[t] += cuda.shfl_xor_sync(0xFFFFFFFF, t, 1)""", "out, n", name)
    out = np.zeros(32, np.int64)
    kernel[1, 32](out, 3)
    np.testing.assert_array_equal(out, 3 * (np.arange(32) ^ 1))


def test_assertions():
    @cuda.jit(device=True)
    def checked(v):
        assert v < 5, "too much"  # device
        return v

    @cuda.jit
    def kernel(a, which):
        i = cuda.grid(1)
        if which == 0:
            assert a[i] >= 0  # negative
        elif which == 1:
            a[i] = checked(a[i])
        elif which == 2 and i == 35:
            raise ValueError("no")  # raise
        cuda.syncthreads()
        assert cuda.any_sync(FULL, a[i] < 9) or which != 3, "none"  # collective

    a = np.arange(64) - 40
    error = fault(KernelAssertionError, kernel[2, 32], a, 0)
    assert (error.line, error.thread) == (line_of(kernel, "negative"), (0, 0, 0))
    error = fault(KernelAssertionError, kernel[2, 32], a, 1)
    assert (error.line, error.block, error.thread) == (line_of(checked, "device"), (1, 0, 0), (13, 0, 0))
    error = fault(KernelAssertionError, kernel[2, 32], a, 2)
    assert (error.line, error.thread) == (line_of(kernel, "raise"), (3, 0, 0))
    error = fault(KernelAssertionError, kernel[2, 32], a + 60, 3)
    assert error.line == line_of(kernel, "collective")
    assert isinstance(error, AssertionError)
    kernel[2, 32](a, 9)


class Refused(Exception):
    """An exception of a program's own."""


@pytest.mark.parametrize("interpreted", [False, True])
def test_an_exception_of_the_programs_own_can_be_caught(interpreted):
    @cuda.jit
    def kernel(a):
        if a[cuda.grid(1)] == 3:
            raise Refused("three")

    with pytest.raises(Refused, match="thread 3 raised Refused: three") as caught:
        simt.observe(kernel[1, 8], np.arange(8)) if interpreted else kernel[1, 8](np.arange(8))
    assert isinstance(caught.value, KernelAssertionError) and caught.value.thread == (3, 0, 0)


def test_division_by_zero_does_not_stop_the_process():
    @cuda.jit
    def kernel(a, f, out):
        i = cuda.grid(1)
        out[i] = f[i] / float32(a[i] * 0)
        if a[i] < 0:
            out[i] = a[i] // (a[i] * 0) + a[i] % (a[i] * 0) + int32(-(2**31)) // int32(-1) + (-(2**62) * 2) // a[i]

    out = np.zeros(4)
    kernel[1, 4](-np.ones(4, np.int64), np.ones(4, np.float32), out)


# Endless loops --------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def never(v):
    while v >= 0:
        v += 1 - v  # 1 for ever
    return v


@cuda.jit(device=True)
def never_with_barrier(s, t):
    while True:
        cuda.syncthreads()
        s[t] += 1
        if s[t] < 0:
            return 0


@cuda.jit
def endless(out, which):
    s = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    s[t] = 0
    cuda.syncthreads()
    if which == 0:
        while True:
            pass
    elif which == 1:
        while out[t] == 0:
            for k in range(10**15):
                if k % 2 == 5:
                    out[t] = 1
    elif which == 2:
        while True:
            cuda.syncthreads()
    elif which == 3:
        out[t] = never(t)
    elif which == 4:
        out[t] = never_with_barrier(s, t)
    elif which == 5:
        for k in range(2**62):
            s[t] += cuda.shfl_xor_sync(FULL, k, 1)
    elif which == 6:
        while s[(t + 1) % 32] == 0:  # each waits for its neighbour
            out[t] += 1
        s[t] = 1
    elif which == 7:
        k = 0
        while True:
            k += 1
            if k > 3:
                k -= 3
                continue
            if k < 0:
                break
    out[t] += 1


@pytest.mark.sampled(3, sweep=5)
@pytest.mark.parametrize("which", range(8))
def test_endless_loops_are_stopped(which, monkeypatch):
    monkeypatch.setenv("LABKIT_TIME_LIMIT", "0.2")
    start = time.monotonic()
    error = fault(KernelTimeout, endless[3, 32], np.zeros(32, np.int64), which)
    assert time.monotonic() - start < 20  # with the compile
    assert "0.2 s" in str(error)
    text = inspect.getsource(sys.modules[__name__]).split("\n")[error.line - 1]
    assert text.strip().startswith(("while", "for", "def endless"))


ENDLESS = """
    import os, sys, threading, time, signal
    import numpy as np
    from labkit import cuda

    @cuda.jit
    def endless(out, go):
        t = cuda.threadIdx.x
        while go:
            cuda.syncthreads()
            out[t] += 1

    out = np.zeros(32)
    endless[1, 32](out, False)
    mode = sys.argv[1]
    def later():
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
    for again in range(3):
        threading.Thread(target=later).start()
        try:
            endless[4, 32](out, True)
        except KeyboardInterrupt:
            print("interrupted")
    endless[4, 32](out, False)
    print("done")
"""


def test_ctrl_c(tmp_path):
    done = run_python(ENDLESS, "x", cache=tmp_path / "cache", env={"LABKIT_TIME_LIMIT": "0"}, timeout=60,
                      preexec_fn=interrupts.heed)
    assert done.stdout.split() == ["interrupted"] * 3 + ["done"]


def test_deep_recursion_is_no_crash(tmp_path):
    done = run_python(
        """
        import numpy as np
        from labkit import cuda

        @cuda.jit(device=True)
        def down(n):
            if n <= 0:
                return 0
            return down(n - 1) + 1

        @cuda.jit
        def kernel(out, n):
            out[0] = down(n)

        out = np.zeros(1, np.int64)
        try:
            kernel[1, 1](out, 10)
            kernel[1, 1](out, 10**9)
        except Exception as error:
            print(type(error).__name__)
        """,
        cache=tmp_path / "cache", check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip().endswith("Error"), (done.returncode, done.stdout, done.stderr)


# Processes and threads ------------------------------------------------------------------------------------------------


def test_launches_from_several_threads():
    results, errors = {}, []

    def work(k):
        try:
            for _ in range(50):
                out = np.zeros(32, np.int64)
                healthy[3, 32](out)
                results[k] = out
                with pytest.raises(OutOfBoundsError):
                    healthy[2, 32](np.zeros(20 + k, np.int64))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not errors and len(results) == 4
    for out in results.values():
        np.testing.assert_array_equal(out, np.arange(31, -1, -1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork(tmp_path):
    """A child made by fork launches as its parent does, also if another thread was launching at that moment."""
    done = run_python(
        """
        import os, sys, threading, warnings
        import numpy as np
        from labkit import cuda
        warnings.simplefilter("ignore")

        @cuda.jit
        def add(out, n):
            t = cuda.threadIdx.x
            for k in range(n):
                cuda.syncthreads()
                out[t] += 1

        add[2, 32](np.zeros(32), 3)
        stop = False
        def busy():
            while not stop:
                add[2, 32](np.zeros(32), 500)
        threading.Thread(target=busy).start()
        codes = []
        for k in range(5):
            child = os.fork()
            if child == 0:
                out = np.zeros(32)
                import signal; signal.alarm(4)
                add[1, 32](out, k)
                os._exit(int(out[5]) + 100)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop = True
        print(codes)
        """,
        cache=tmp_path / "cache",
    )  # fmt: skip
    assert done.stdout.strip() == "[100, 101, 102, 103, 104]", done.stdout


def resident_bytes():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_memory_stays_flat(request):
    request.addfinalizer(functools.partial(gc.set_threshold, *gc.get_threshold()))
    gc.set_threshold(700, 10, 10)  # as Python has it; tests/conftest.py lets the collector wait
    out, short = cuda.to_device(np.zeros(32, np.int64)), cuda.to_device(np.zeros(20, np.int64))
    host, launch = np.zeros(32, np.int64), healthy[2, 32]

    def faults(n):
        for _ in range(n):
            with contextlib.suppress(OutOfBoundsError):
                launch(short)

    for _ in range(500):
        launch(out)
        launch(host)
    faults(300)
    before = resident_bytes()
    for _ in range(9000):
        launch(out)
    for _ in range(1000):
        launch(host)
    after = resident_bytes()
    faults(2000)
    assert after - before < 2 << 20, f"{(after - before) / 10000:.0f} bytes a launch"
    assert resident_bytes() - after < 2 << 20, f"{(resident_bytes() - after) / 2000:.0f} bytes a fault"


def test_threads_come_to_rest():
    """No threads are left behind by launches and faults."""
    healthy[1, 32](np.zeros(32, np.int64))
    before = threading.active_count()
    for _ in range(20):
        fault(OutOfBoundsError, healthy[4, 32], np.zeros(3, np.int64))
    assert threading.active_count() <= before


def test_every_fault_code_has_its_error():
    assert sorted(ERRORS) == list(CODES)
