"""observe: planted bugs are named with their kind, lines, threads and array; counts are those worked out by hand."""

import math
import re

import numpy as np
import pytest
from numba import float32, float64, int32, uint32

from labkit import cuda, observe
from labkit.device import ptx
from labkit.device.launches import kernels_of
from labkit.kernels.op import Op
from labkit.kernels.ops import broadcast, elementwise
from labkit.kernels.ops.matmul import MATMUL
from labkit.kernels.positions import positions_kernel
from labkit.simt import thread_order
from labkit.simt.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32
from tests.simt.helpers import line_of, lines_of

pytestmark = pytest.mark.cpu_device


def zeros(*shape, dtype=np.float32):
    return cuda.to_device(np.zeros(shape, dtype))


def counting(*shape, dtype=np.float32):
    return cuda.to_device(np.arange(math.prod(shape), dtype=dtype).reshape(shape))


def only(report, kind, count=1):
    """The findings of one kind; there must be no others."""
    found = getattr(report, kind)
    assert len(found) == count, str(report)
    assert report.findings == found, str(report)
    return found[0]


PLANTED = []


def planted(kind, marks, launch, *words, **facts):
    """Enter a kernel with a bug: observing it gives one finding of this kind, at the marked lines, whose text matches
    the words and whose attributes are the facts."""
    def enter(kernel):
        PLANTED.append(pytest.param(kernel, kind, marks.split(), launch, words, facts, id=kernel.__name__))
        return kernel

    return enter


@pytest.mark.parametrize("kernel, kind, marks, launch, words, facts", PLANTED)
def test_a_planted_bug_is_found_and_named(kernel, kind, marks, launch, words, facts):
    finding = only(launch(kernel), kind)
    assert finding.lines == lines_of(kernel, *marks)
    for pattern in words:
        assert re.search(pattern, str(finding)), str(finding)
    assert {name: getattr(finding, name) for name in facts} == facts


# ---------------------------------------------------------------- planted bugs: races within a block


@cuda.jit
def reversed_without_barrier(a, out):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = a[i]  # write
    out[i] = s[63 - i]  # read


def test_missing_barrier_after_a_write():
    report = observe(reversed_without_barrier[1, 64], counting(64), zeros(64))
    race = only(report, "races")
    write, read = lines_of(reversed_without_barrier, "write", "read")
    assert race.lines == [write, read] and race.array == "s" and race.kernel == "reversed_without_barrier"
    one, other = race.threads
    assert one[0] + other[0] == 63  # each reads what the other wrote
    assert f"writes s[{one[0]}] at line {write}" in str(race)
    assert f"Put cuda.syncthreads() between line {write} and line {read}" in str(race)


@cuda.jit
def one_updates_the_other_does_not(a, out, first, stores):
    i = cuda.threadIdx.x
    if i == first:
        cuda.atomic.add(a, 0, float32(1))  # update
    elif stores:
        a[0] = float32(2)  # write
    else:
        out[i] = a[0]  # read


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("first", [0, 1])  # threads are observed in their order: once the update comes first
def test_an_atomic_and_a_plain_access_race_whichever_comes_first(first, stores):
    race = only(observe(one_updates_the_other_does_not[1, 2], zeros(1), zeros(2), first, stores), "races")
    assert race.lines == sorted(lines_of(one_updates_the_other_does_not, "update", "write" if stores else "read"))


@cuda.jit
def all_store(a):
    a[0] = float32(cuda.threadIdx.x)


@pytest.mark.parametrize(("grid", "block", "reach"), [(1, 32, 0), (1, 64, 1), (2, 64, 2)])
def test_of_the_races_of_two_lines_the_widest_is_reported(grid, block, reach):
    """A barrier of the warp would mend the first, none within a launch the last."""
    race = only(observe(all_store[grid, block], zeros(1)), "races")
    assert race.reach == reach and race.times > 1
    assert ("blocks run in any order" in str(race)) == (reach == 2)


@planted("races", "read write", lambda kernel: observe(kernel[1, 64], counting(64), zeros(64)),
         r"reads s\[\d+\] at line \d+, and thread \d+ writes it at line \d+, with no barrier", array="s")
@cuda.jit
def two_rounds(a, out):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = a[i]
    cuda.syncthreads()
    out[i] = s[63 - i]  # read
    s[i] = a[i] * float32(2)  # write
    cuda.syncthreads()
    out[i] += s[63 - i]


@cuda.jit
def matmul_without_second_barrier(a, b, out):
    a_tile = cuda.shared.array((8, 8), float32)
    b_tile = cuda.shared.array((8, 8), float32)
    col, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, a.shape[1], 8):
        a_tile[y, x] = a[row, start + x]  # write a
        b_tile[y, x] = b[start + y, col]  # write b
        cuda.syncthreads()
        for k in range(8):
            total += a_tile[y, k] * b_tile[k, x]  # read
    out[row, col] = total


def test_missing_barrier_in_a_loop():
    report = observe(matmul_without_second_barrier[(1, 1), (8, 8)], counting(8, 16), counting(16, 8), zeros(8, 8))
    only(report, "races", 2)
    write_a, write_b, read = lines_of(matmul_without_second_barrier, "write a", "write b", "read")
    assert [(r.array, r.lines) for r in sorted(report.races, key=lambda r: r.array)] == [
        ("a_tile", [write_a, read]),
        ("b_tile", [write_b, read]),
    ]
    first = next(r for r in report.races if r.array == "a_tile")
    assert f"Put cuda.syncthreads() after line {read}, before line {write_a} is reached again" in str(first)
    assert "thread (" in str(first)


@cuda.jit(device=True)
def neighbour(s, i):
    return s[(i + 1) % 32]  # read


@cuda.jit
def reads_in_device_function(a, out):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    s[i] = a[i]  # write
    out[i] = neighbour(s, i)


def test_missing_barrier_inside_a_device_function():
    race = only(observe(reads_in_device_function[1, 32], counting(32), zeros(32)), "races")
    assert race.lines == sorted(lines_of(neighbour, "read") + lines_of(reads_in_device_function, "write"))
    assert race.array == "s"


@cuda.jit(device=True)
def block_sum(s, i, value):
    s[i] = value  # write
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if i < step:
            s[i] += s[i + step]
        cuda.syncthreads()
        step //= 2
    return s[0]  # read


@cuda.jit
def two_reductions(a, out):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    first = block_sum(s, i, a[i])
    out[i] = block_sum(s, i, a[i] * first)


def test_a_reduction_overwritten_by_the_next_before_all_have_read():
    race = only(observe(two_reductions[1, 64], counting(64), zeros(64)), "races")
    assert race.lines == lines_of(block_sum, "write", "read")
    assert race.array == "s" and race.index == (0,)
    assert (0, 0, 0) in race.threads  # the one that writes s[0] again


@cuda.jit
def everyone_to_one(a, out):
    i = cuda.threadIdx.x
    out[0] = a[i]  # write


def test_two_threads_store_to_one_element():
    race = only(observe(everyone_to_one[1, 40], counting(40), zeros(1)), "races")
    assert race.lines == lines_of(everyone_to_one, "write")
    assert len(set(race.threads)) == 2 and race.array == "out" and race.index == (0,)
    assert "Two threads must not store to the same element" in str(race)


@cuda.jit
def non_atomic_histogram(values, bins):
    i = cuda.grid(1)
    if i < values.size:
        bins[values[i]] += 1  # update


def test_non_atomic_histogram():
    report = observe(non_atomic_histogram[1, 32], counting(32, dtype=np.int32), zeros(32, dtype=np.int32))
    assert report.ok  # all different
    report = observe(non_atomic_histogram[1, 32], zeros(32, dtype=np.int32), zeros(4, dtype=np.int32))
    assert report.races and not report.out_of_bounds
    assert report.races[0].array == "bins" and report.races[0].lines == lines_of(non_atomic_histogram, "update")
    assert "atomic" in str(report.races[0])


@planted("races", "plain atomic", lambda kernel: observe(kernel[1, 32], counting(32), zeros(1)), "updates", "writes")
@cuda.jit
def atomic_and_plain(values, total):
    i = cuda.threadIdx.x
    if i == 0:
        total[0] = 0  # plain
    cuda.atomic.add(total, 0, values[i])  # atomic


@planted("races", "write read", lambda kernel: observe(kernel[1, 32, 0, 128], counting(32), zeros(32)), array="s")
@cuda.jit
def dynamic_shared(a, out):
    s = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    s[i] = a[i]  # write
    out[i] = s[i ^ 1]  # read


@cuda.jit
def shift_in_place(a):
    i = cuda.threadIdx.x
    if i > 0:
        a[i] = a[i - 1]  # both


def test_a_neighbour_read_while_it_is_written():
    race = only(observe(shift_in_place[1, 40], counting(40)), "races")
    assert race.lines == lines_of(shift_in_place, "both") and race.array == "a"
    (one,), (other,) = ([t[0]] for t in race.threads)
    assert abs(one - other) == 1


@planted("races", "both", lambda kernel: observe(kernel[1, 40], (whole := counting(41))[1:], whole[:40]))
@cuda.jit
def shift_views(a, b):
    i = cuda.threadIdx.x
    b[i] = a[i]  # both


# ---------------------------------------------------------------- planted bugs: warps


@planted("races", "write read", lambda kernel: observe(kernel[1, 32], counting(32), zeros(32)), r"cuda\.syncwarp\(\)")
@cuda.jit
def warp_without_syncwarp(a, out):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    s[i] = a[i]  # write
    out[i] = s[31 - i]  # read


@planted("races", "write read", lambda kernel: observe(kernel[1, 64], counting(64), zeros(64)), r"cuda\.syncthreads")
@cuda.jit
def syncwarp_across_warps(a, out):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = a[i]  # write
    cuda.syncwarp()
    out[i] = s[63 - i]  # read


@cuda.jit
def shuffle_under_divergence(a, out):
    i = cuda.threadIdx.x
    value = a[i]
    if i < 16:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, 8)  # shuffle
    cuda.syncwarp()
    out[i] = value


def test_shuffle_under_divergence():
    finding = only(observe(shuffle_under_divergence[1, 32], counting(32), zeros(32)), "divergent_barriers")
    (line,) = lines_of(shuffle_under_divergence, "shuffle")
    assert line in finding.lines and finding.array == "shfl_down_sync"
    assert (16, 0, 0) in finding.threads
    assert "16 of the 32 lanes of warp 0" in str(finding) and "Every lane that the mask names" in str(finding)


@planted("divergent_barriers", "shuffle", lambda kernel: observe(kernel[1, 32], counting(20), zeros(20)), "lane 20",
         threads=[(19, 0, 0)])
@cuda.jit
def shuffle_from_the_missing(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = cuda.shfl_down_sync(0xFFFFFFFF, a[i], 1)  # shuffle


# ---------------------------------------------------------------- planted bugs: barriers


@planted("divergent_barriers", "barrier", lambda kernel: observe(kernel[1, 64], counting(64), zeros(64)),
         r"cuda\.syncthreads\(\) was reached by 40 of the 64 threads", array="syncthreads",
         threads=[(i, 0, 0) for i in range(40, 64)])
@cuda.jit
def barrier_in_if(a, out):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 40:
        s[i] = a[i]
        cuda.syncthreads()  # barrier
        out[i] = s[39 - i]


@planted("divergent_barriers", "barrier", lambda kernel: observe(kernel[2, 32], counting(50), zeros(50)),
         "18 of the 32 threads of block 1; thread 18 has ended without it",
         block=1, threads=[(i, 0, 0) for i in range(18, 32)])
@cuda.jit
def barrier_after_return(a, out):
    s = cuda.shared.array(32, float32)
    i = cuda.grid(1)
    if i >= a.size:
        return
    s[cuda.threadIdx.x] = a[i]
    cuda.syncthreads()  # barrier
    out[i] = s[cuda.threadIdx.x]


@cuda.jit
def barrier_in_uneven_loop(out):
    i = cuda.threadIdx.x
    for _ in range(i // 32 + 1):
        cuda.syncthreads()  # barrier
    out[i] = i


def test_barrier_in_a_loop_of_uneven_length():
    finding = only(observe(barrier_in_uneven_loop[1, 64], zeros(64)), "divergent_barriers")
    assert finding.lines == lines_of(barrier_in_uneven_loop, "barrier")
    assert (0, 0, 0) in finding.threads


@planted("divergent_barriers", "one other", lambda kernel: observe(kernel[1, 64], zeros(64)), "waits at line")
@cuda.jit
def two_barriers(out):
    i = cuda.threadIdx.x
    if i < 32:
        cuda.syncthreads()  # one
    else:
        cuda.syncthreads()  # other
    out[i] = i


# ---------------------------------------------------------------- planted bugs: bounds


@cuda.jit
def off_by_one(a, out):
    i = cuda.grid(1)
    if i <= out.size:  # one too many
        out[i] = a[i]  # access


def test_off_by_one_tail():
    report = observe(off_by_one[2, 32], counting(50), zeros(50))
    only(report, "out_of_bounds", 2)
    assert {f.array for f in report.out_of_bounds} == {"a", "out"}
    for finding in report.out_of_bounds:
        assert finding.lines == lines_of(off_by_one, "access")
        assert finding.threads == [(18, 0, 0)] and finding.block == 1 and finding.index == (50,)
    (write,), (read,) = report.out_of_bounds_writes, report.out_of_bounds_reads
    assert report.findings == [write, read]  # writes first
    assert "thread 18 of block 1 writes out[50], outside its shape (50,)" in str(write)
    assert "thread 18 of block 1 reads a[50], outside its shape (50,)" in str(read)


@cuda.jit
def no_guard(a, out):
    i = cuda.grid(1)
    out[i] = a[i]  # access


def test_missing_guard():
    report = observe(no_guard[2, 32], counting(50), zeros(50))
    only(report, "out_of_bounds", 2)
    assert report.out_of_bounds[0].times == 14  # threads 50 to 63
    assert report.out_of_bounds[0].threads[0] == (18, 0, 0)


@cuda.jit
def transposed(a, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = a[col, row]  # access


def test_transposed_index():
    finding = only(observe(transposed[(1, 1), (8, 8)], counting(3, 7), zeros(3, 7)), "out_of_bounds")
    assert finding.lines == lines_of(transposed, "access")
    assert finding.array == "a" and finding.index == (3, 0) and finding.threads[0] == (3, 0, 0)
    assert "a[3, 0], outside its shape (3, 7)" in str(finding)


@planted("out_of_bounds", "access", lambda kernel: observe(kernel[1, 32], counting(32), zeros(32)),
         array="tile", index=(32,), threads=[(31, 0, 0)])
@cuda.jit
def past_a_tile(a, out):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    cuda.syncthreads()
    out[i] = tile[i] + tile[i + 1]  # access


@planted("out_of_bounds", "access", lambda kernel: observe(kernel[1, 32], counting(32), zeros(32)),
         "an unsigned number went below zero", array="a", index=(2**64 - 1,), threads=[(0, 0, 0)])
@cuda.jit
def unsigned_neighbour(a, out):
    i = uint32(cuda.grid(1))
    out[i] = a[i - uint32(1)]  # access


@planted("out_of_bounds_writes", "access", lambda kernel: observe(
    kernel[1, 32], counting(32, dtype=np.int32), zeros(1, 31, dtype=np.int32)), index=(0, 31))
@cuda.jit
def past_the_bins(values, bins):
    i = cuda.grid(1)
    cuda.atomic.add(bins, (0, values[i]), 1)  # access


@cuda.jit
def doubled_in_place(a):
    i = cuda.grid(1)
    a[i] += a[i]  # access


def test_reads_and_writes_out_of_bounds_are_counted_apart():
    """One line reads and writes the same element of one array; it reads it twice."""
    report = observe(doubled_in_place[2, 32], counting(50))
    (write,), (read,) = report.out_of_bounds_writes, report.out_of_bounds_reads
    assert report.findings == [write, read] == report.out_of_bounds
    assert " writes a[50]" in str(write) and " reads a[50]" in str(read)
    assert (write.times, read.times) == (14, 28)  # threads 50 to 63
    counts = {"out_of_bounds_writes": 14, "out_of_bounds_reads": 28}
    data = report.to_json()
    for found in (data["counts"], data["lines"][str(lines_of(doubled_in_place, "access")[0])]):
        assert counts.items() <= found.items()
    assert [len(data[kind]) for kind in counts] == [1, 1] and not data["ok"]
    for shown in (repr(report), report._repr_html_()):
        assert "out of bounds: 14 writes and 28 reads" in shown
        assert 0 < shown.index(" writes a[50]") < shown.index(" reads a[50]")
    assert "out of bounds: " not in repr(observe(doubled_in_place[1, 32], counting(50)))


# ---------------------------------------------------------------- planted bugs: memory that nothing wrote


@planted("uninitialized_reads", "read", lambda kernel: observe(kernel[1, 32], counting(32), zeros(32)),
         r"reads s\[20\], shared memory that nothing has written yet",
         array="s", index=(20,), threads=[(20, 0, 0)], times=12)
@cuda.jit
def shared_not_filled(a, out):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    if i < 20:
        s[i] = a[i]
    cuda.syncthreads()
    out[i] = s[i]  # read


# reported where it is read, and not as a lane that the mask leaves out
@planted("uninitialized_reads", "read", lambda kernel: observe(kernel[1, 32], zeros(32)))
@cuda.jit
def decides_by_unwritten(out):
    s = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    x = cuda.shfl_xor_sync(0xFFFFFFFF, s[i], 1)  # read
    if x > 3:
        out[i] = x


@planted("uninitialized_reads", "read", lambda kernel: observe(kernel[1, 8], counting(8), zeros(8)),
         r"reads sums\[0\], an element of its local array that nothing has written yet",
         array="sums", index=(0,), times=32)
@cuda.jit
def local_not_filled(a, out):
    sums = cuda.local.array(4, float64)
    i = cuda.threadIdx.x
    for k in range(4):
        sums[k] += a[i]  # read
    out[i] = sums[0]


@planted("uninitialized_reads", "read",
         lambda kernel: observe(kernel[1, 8], counting(8), cuda.device_array(8, np.float32)), array="out")
@cuda.jit
def adds_to_output(a, out):
    i = cuda.grid(1)
    out[i] += a[i]  # read


# ---------------------------------------------------------------- planted bugs: blocks


@planted("races", "read write", lambda kernel: observe(kernel[2, 32], counting(64)),
         "thread 31 of block 0", "thread 0 of block 1", "blocks run in any order", array="a", index=(32,))
@cuda.jit
def smooth_in_place(a):
    i = cuda.grid(1)
    value = a[i]
    if i + 1 < a.size:
        value += a[i + 1]  # read
    cuda.syncthreads()
    a[i] = value  # write


@cuda.jit
def sum_of_blocks(a, out):
    i = cuda.grid(1)
    if cuda.threadIdx.x == 0:
        out[0] += a[i]  # update


def test_blocks_that_add_to_one_element():
    report = observe(sum_of_blocks[3, 32], counting(96), zeros(1))
    assert report.races and report.races[0].lines == lines_of(sum_of_blocks, "update")
    assert "atomic" in str(report.races[0])


@cuda.jit
def two_steps(a, b, c):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    b[i] = a[i]  # write
    if i < 0:
        grid.sync()
    c[i] = b[b.size - 1 - i]  # read


@cuda.jit
def two_steps_right(a, b, c):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    b[i] = a[i]
    grid.sync()
    c[i] = b[b.size - 1 - i]


def test_missing_grid_sync():
    race = only(observe(two_steps[2, 32], counting(64), zeros(64), zeros(64)), "races")
    assert race.lines == lines_of(two_steps, "write", "read") and race.array == "b"
    assert "cg.this_grid().sync()" in str(race)
    c = zeros(64)
    assert observe(two_steps_right[2, 32], counting(64), zeros(64), c).ok
    assert np.array_equal(c.copy_to_host(), np.arange(64)[::-1])


@planted("divergent_barriers", "barrier", lambda kernel: observe(kernel[2, 32], zeros(64)), "block 1")
@cuda.jit
def some_blocks_sync(a):
    grid = cuda.cg.this_grid()
    if cuda.blockIdx.x == 0:
        grid.sync()  # barrier
    a[cuda.grid(1)] = 1


# ---------------------------------------------------------------- no false alarms


RUNGS = {rung.__name__: (op, rung) for op in (*vars(elementwise).values(), *vars(broadcast).values(), MATMUL)
         if isinstance(op, Op) for rung in op.rungs
         if rung.__name__ != "matmul_split"}  # at these sizes it is matmul_pipelined
READS_AHEAD = {"matmul_reads_ahead", "matmul_pipelined"}  # beyond the last tile too, into registers that nothing uses
LARGE_TILES = {name for name in RUNGS if name.startswith("matmul_")} - {
    "matmul_naive", "matmul_coalesced", "matmul_tiled", "matmul_thread_coarsened"
}  # fmt: skip


class Watching:
    """Stands in for a kernel: its launches are observed."""

    def __init__(self, kernel):
        self.kernel, self.reports = kernel, []

    def __getitem__(self, configuration):
        return lambda *args: self.reports.append(observe(self.kernel[configuration], *args))

    def allow_dynamic_shared(self, nbytes):
        self.kernel.allow_dynamic_shared(nbytes)


def _small(op):
    """Awkward sizes that are not too large for plain Python."""
    return [size for size in op.awkward if math.prod(op.shape(**size)) * size.get("K", 1) <= 5_000]


@pytest.mark.sampled(2, sweep=16, quick="forward-vector_add_per_thread")
@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize("order", ["forward", pytest.param("reverse", marks=pytest.mark.slow),
                                   pytest.param("scattered", marks=pytest.mark.slow)])
def test_no_kernel_of_the_course_raises_anything(name, order, monkeypatch):
    op, launcher = RUNGS[name]
    sizes = _small(op) if order == "forward" else _small(op)[-2:]
    if name in LARGE_TILES:  # a block computes its whole tile, however small the matrix
        sizes = sorted(sizes, key=lambda size: math.prod(size.values()))[:1]
    assert sizes
    globals_, kernels = launcher.launcher.__globals__, kernels_of(launcher)
    watching = {key: Watching(value) for key, value in globals_.items() if any(value is k for k in kernels)}
    assert watching
    for key, value in watching.items():
        monkeypatch.setitem(globals_, key, value)
    for size in sizes:
        inputs, out = op.inputs(np.random.default_rng(1), **size), zeros(*op.shape(**size), dtype=op.dtype)
        with thread_order(order):
            launcher(*map(cuda.to_device, inputs), out)
        assert np.allclose(out.copy_to_host(), op.reference(*inputs), rtol=1e-4, atol=1e-4)
    reports = [report for watch in watching.values() for report in watch.reports]
    assert len(reports) >= len(sizes)  # a rung may choose among its kernels
    for report in reports:
        allowed = report.uninitialized_reads if name in READS_AHEAD else []
        assert report.findings == allowed, str(report)


@pytest.mark.parametrize("n", [1, 31, 65])
def test_positions_raise_nothing(n):
    report = observe(positions_kernel[-(-n // 32), 32], zeros(n, dtype=np.int32), zeros(n, dtype=np.int32))
    assert report.ok and report.counts["global_stores"] == 2 * n


@cuda.jit
def warp_sum(a, out):
    s = cuda.shared.array(4, float32)
    i = cuda.threadIdx.x
    lane, warp = i % 32, i // 32
    value = a[cuda.grid(1)]
    step = 16
    while step > 0:
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
        step //= 2
    if lane == 0:
        s[warp] = value
    cuda.syncthreads()
    if warp == 0:
        value = s[lane] if lane < 4 else float32(0)
        for k in range(5):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, 1 << k)
        if lane == 0:
            cuda.atomic.add(out, 0, value)


@cuda.jit
def within_warps(a, out):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = a[i]
    cuda.syncwarp()
    value = s[i ^ 1]
    cuda.syncwarp()
    s[i] = value
    cuda.syncwarp()
    out[i] = s[i ^ 3] + float32(cuda.popc(cuda.ballot_sync(0xFFFFFFFF, i % 2 == 0)))


@cuda.jit
def ping_pong(a, out):
    s = cuda.shared.array((2, 64), float32)
    i = cuda.threadIdx.x
    s[0, i] = a[i]
    cuda.syncthreads()
    now, step = 0, 1
    while step < 64:
        value = s[now, i]
        if i >= step:
            value += s[now, i - step]
        now = 1 - now
        s[now, i] = value
        cuda.syncthreads()
        step *= 2
    out[i] = s[now, i]


@cuda.jit
def two_types_in_dynamic(a, out):
    whole = cuda.shared.array(0, float64)
    words = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    whole[i] = a[i]
    cuda.syncthreads()
    value = words[2 * i + 1]
    cuda.syncthreads()
    words[i] = value
    cuda.syncthreads()
    out[i] = words[31 - i]


@cuda.jit
def histogram(values, bins):
    s = cuda.shared.array(8, float32)
    i = cuda.grid(1)
    if cuda.threadIdx.x < 8:
        s[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    if i < values.size:
        cuda.atomic.add(s, values[i], 1)
    cuda.syncthreads()
    if cuda.threadIdx.x < 8:
        cuda.atomic.add(bins, (0, cuda.threadIdx.x), s[cuda.threadIdx.x])


@cuda.jit
def grid_rounds(a, b):
    grid = cuda.cg.this_grid()
    s = cuda.shared.array(32, float32)
    i, x = cuda.grid(1), cuda.threadIdx.x
    for _ in range(3):
        s[x] = a[a.size - 1 - i]
        cuda.syncthreads()
        b[i] = s[31 - x]
        grid.sync()
        a[i] = b[b.size - 1 - i] + float32(1)
        grid.sync()


@cuda.jit
def pair_of_arrays(pair, scale, n):
    i = cuda.grid(1)
    row = pair[0][i]
    for k in range(n):
        pair[1][i] += row[k] * scale


def test_no_false_alarm_with_warps_barriers_atomics_and_grid_barriers():
    out = zeros(1)
    assert observe(warp_sum[3, 128], counting(384), out).ok
    assert out.copy_to_host()[0] == 384 * 383 / 2
    assert observe(within_warps[1, 64], counting(64), zeros(64)).ok
    out = zeros(64)
    assert observe(ping_pong[1, 64], counting(64), out).ok
    assert np.array_equal(out.copy_to_host(), np.cumsum(np.arange(64)))
    report = observe(two_types_in_dynamic[1, 32, 0, 256], counting(32), zeros(32))
    assert report.ok, str(report)
    bins = zeros(1, 8)
    report = observe(histogram[3, 32], cuda.to_device((np.arange(90) % 8).astype(np.int64)), bins)
    assert report.ok, str(report)
    assert bins.copy_to_host().sum() == 90
    a, b = counting(96), zeros(96)
    report = observe(grid_rounds[3, 32], a, b)
    assert report.ok, str(report)
    launched = counting(96)
    grid_rounds[3, 32](launched, zeros(96))
    assert np.array_equal(a.copy_to_host(), launched.copy_to_host())
    sums = zeros(8)
    report = observe(pair_of_arrays[1, 8], (counting(8, 4), sums), np.float32(2), np.int32(4))
    assert report.ok, str(report)
    assert np.array_equal(sums.copy_to_host(), 2 * np.arange(32).reshape(8, 4).sum(axis=1))


@cuda.jit
def last_block_adds(a, parts, count, out):
    s = cuda.shared.array(32, float32)
    last = cuda.shared.array(1, int32)
    i, x = cuda.grid(1), cuda.threadIdx.x
    s[x] = a[i]
    cuda.syncthreads()
    if x == 0:
        total = float32(0)
        for k in range(32):
            total += s[k]
        parts[cuda.blockIdx.x] = total
        cuda.threadfence()
        last[0] = cuda.atomic.add(count, 0, 1)
        cuda.threadfence()
    cuda.syncthreads()
    if last[0] == cuda.gridDim.x - 1 and x == 0:
        total = float32(0)
        for k in range(parts.size):
            total += parts[k]
        out[0] = total


@planted("races", "write read", lambda kernel: observe(
    kernel[4, 32], counting(128), zeros(4), zeros(1, dtype=np.int32), zeros(1)), r"cuda\.threadfence", array="parts")
@cuda.jit
def last_block_adds_unfenced(a, parts, count, out):
    i = cuda.grid(1)
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = a[i]  # write
        if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
            for k in range(parts.size):
                out[0] += parts[k]  # read


def test_a_fence_and_an_atomic_order_blocks():
    out = zeros(1)
    report = observe(last_block_adds[4, 32], counting(128), zeros(4), zeros(1, dtype=np.int32), out)
    assert report.ok, str(report)
    assert out.copy_to_host()[0] == 128 * 127 / 2


@cuda.jit
def read_after_a_release(values, counters, out):
    block = cuda.blockIdx.x
    if cuda.threadIdx.x == 1:
        values[block] = block + 1
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        ptx.add_release(counters, 1, 1)
        while ptx.load_acquire(counters, 1) < cuda.gridDim.x:
            pass
    cuda.syncthreads()
    out[cuda.grid(1)] = values[(block + 1) % cuda.gridDim.x]


@planted("races", "write read", lambda kernel: observe(
    kernel[3, 2], zeros(3), zeros(2, dtype=np.uint32), zeros(6)), array="values")
@cuda.jit
def read_before_the_acquire(values, counters, out):
    block = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        values[block] = block + 1  # write
        ptx.add_release(counters, 1, 1)
        out[block] = values[(block + 1) % cuda.gridDim.x]  # read
        while ptx.load_acquire(counters, 1) < cuda.gridDim.x:
            pass


def test_a_release_and_an_acquire_order_blocks():
    out = zeros(6)
    report = observe(read_after_a_release[3, 2], zeros(3), zeros(2, dtype=np.uint32), out)
    assert report.ok, str(report)
    assert out.copy_to_host().tolist() == [2, 2, 3, 3, 1, 1]


def make_last_block_adds():
    @cuda.jit(device=True)
    def count_block(count):
        cuda.threadfence()
        return cuda.atomic.add(count, 0, 1)

    @cuda.jit
    def last_block_adds_from_a_factory(a, parts, count, out):
        if cuda.threadIdx.x == 0:
            parts[cuda.blockIdx.x] = a[cuda.grid(1)]
            if count_block(count) == cuda.gridDim.x - 1:
                cuda.threadfence()
                for k in range(parts.size):
                    out[0] += parts[k]

    return last_block_adds_from_a_factory


def test_a_fence_in_a_device_function_that_a_factory_made_is_seen():
    out = zeros(1)
    report = observe(make_last_block_adds()[4, 32], counting(128), zeros(4), zeros(1, dtype=np.int32), out)
    assert report.ok, str(report)
    assert out.copy_to_host()[0] == 0 + 32 + 64 + 96


@cuda.jit
def doubled(a, out):
    i = cuda.grid(1)
    out[i] = a[i] * 2


def test_the_same_array_twice():
    a = counting(32)
    assert observe(doubled[1, 32], a, a).ok
    assert np.array_equal(a.copy_to_host(), np.arange(32) * 2)


@cuda.jit(device=True)
def root(x):
    return math.sqrt(x) if x > 0 else math.log(x)


@cuda.jit
def odds_and_ends(a, words, flags, out):
    buffer = cuda.local.array(3, float32)
    i = cuda.grid(1)
    for k in range(3):
        buffer[k] = a[i] + k
    mixed = words[i] * uint32(1664525) + uint32(1013904223)
    words[i] = mixed
    flags[i] = a[i] > 3 and not flags[i]
    total = float32(0)
    for value in buffer:
        total += value
    row = out[i]
    row[0] = root(a[i] - 1)
    row[1] = total / 3 + float32(cuda.popc(i)) + min(i, 2) ** 2 + int(a[i]) // 2 + i % 3
    row[2] = cuda.fma(a[i], a[i], float32(1)) if i % 2 else abs(-a[i])


@cuda.jit
def of_records(points, states, out):
    i = cuda.grid(1)
    points[i].x += float32(2)
    points[i]["n"] = i
    out[i] = points[(i + 1) % 8].x + xoroshiro128p_uniform_float32(states, i)


def test_records_and_random_numbers():
    points = np.zeros(8, np.dtype([("x", np.float32), ("n", np.int32)]))
    out, launched = zeros(8), zeros(8)
    report = observe(of_records[1, 8], points, create_xoroshiro128p_states(8, seed=3), out)
    race = only(report, "races")  # the neighbour's x is read while it changes
    assert race.array == "points" and len(race.lines) == 2
    assert list(points["n"]) == list(range(8)) and set(points["x"]) == {2}
    of_records[1, 8](np.full(8, 0, points.dtype), create_xoroshiro128p_states(8, seed=3), launched)
    fraction = [values.copy_to_host() % 2 for values in (out, launched)]
    assert np.allclose(*fraction) and len(set(fraction[0])) == 8


def test_results_are_those_of_the_launch():
    def arguments():
        words = cuda.to_device((np.arange(8) * 123456789).astype(np.uint32))
        return counting(8), words, zeros(8, dtype=np.bool_), zeros(8, 3)

    observed, launched = arguments(), arguments()
    report = observe(odds_and_ends[1, 8], *observed)
    assert report.ok, str(report)
    odds_and_ends[1, 8](*launched)
    for one, other in zip(observed, launched, strict=True):
        assert np.allclose(one.copy_to_host(), other.copy_to_host(), equal_nan=True, rtol=1e-6)


# ---------------------------------------------------------------- counts, worked out by hand


def per_line(report, kernel, mark):
    return report.lines[line_of(kernel, mark)]


def product_with(lanes_are_rows):
    @cuda.jit
    def product(a, b, out):
        x, y = cuda.grid(2)
        row, col = (x, y) if lanes_are_rows else (y, x)
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]  # product
        out[row, col] = total  # store

    return product


@cuda.jit
def tiled(a, b, out):
    a_tile = cuda.shared.array((32, 32), float32)
    b_tile = cuda.shared.array((32, 32), float32)
    col, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, a.shape[1], 32):
        a_tile[y, x] = a[row, start + x]  # a
        b_tile[y, x] = b[start + y, col]  # b
        cuda.syncthreads()  # first
        for k in range(32):
            total += a_tile[y, k] * b_tile[k, x]  # product
        cuda.syncthreads()  # second
    out[row, col] = total  # store


def test_counts_of_matmul_naive():
    naive = product_with(lanes_are_rows=True)
    report = observe(naive[(1, 2), (32, 16)], counting(32, 64), counting(64, 32), zeros(32, 32))
    line = per_line(report, naive, "product")
    # 32 x 32 threads, each 64 products; 32 warps
    assert line["global_loads"] == 2 * 32 * 32 * 64 and line["global_requests"] == 2 * 32 * 64
    # the 32 lanes are 32 rows: a costs 32 sectors (rows are 256 bytes apart), b one (all read one element)
    assert line["sectors"] == 32 * 64 * (32 + 1)
    assert line["bytes_wanted"] == 32 * 64 * 4 * (32 + 1)
    store = per_line(report, naive, "store")
    assert (store["global_stores"], store["global_requests"], store["sectors"]) == (1024, 32, 1024)
    assert report.counts["bytes_loaded"] == 4 * 2 * 32 * 32 * 64 and report.counts["bytes_stored"] == 4 * 1024
    assert report.coalescing == 4 / 32
    assert not report.counts["shared_loads"] and not report.counts["barriers"]


def test_counts_of_matmul_coalesced():
    coalesced = product_with(lanes_are_rows=False)
    report = observe(coalesced[(1, 2), (32, 16)], counting(32, 64), counting(64, 32), zeros(32, 32))
    line = per_line(report, coalesced, "product")
    # the 32 lanes are 32 columns: a costs one sector, b four, which are one line of 128 bytes
    assert line["global_requests"] == 2 * 32 * 64 and line["sectors"] == 32 * 64 * (1 + 4)
    assert line["lines_128"] == 32 * 64 * 2
    store = per_line(report, coalesced, "store")
    assert (store["global_stores"], store["global_requests"], store["sectors"]) == (1024, 32, 32 * 4)


def test_counts_of_matmul_tiled():
    report = observe(tiled[(1, 1), (32, 32)], counting(32, 64), counting(64, 32), zeros(32, 32))
    rounds, warps = 2, 32
    for mark in "ab":
        line = per_line(report, tiled, mark)
        assert line["global_loads"] == line["shared_stores"] == rounds * 1024
        assert line["sectors"] == rounds * warps * 4 and line["bank_conflicts"] == 0
    line = per_line(report, tiled, "product")
    # a_tile: all lanes read one word; b_tile: 32 words in 32 banks
    assert line["shared_loads"] == 2 * rounds * 1024 * 32 and line["shared_requests"] == 2 * rounds * warps * 32
    assert line["bank_conflicts"] == 0
    assert report.counts["barriers"] == 2 * rounds  # one block
    assert report.counts["global_loads"] == 2 * rounds * 1024 and report.counts["global_stores"] == 1024
    assert report.coalescing == 1


def transpose_with(pad):
    width = 32 + pad

    @cuda.jit
    def transpose(a, out):
        tile = cuda.shared.array((32, width), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        top, left = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
        tile[y, x] = a[top + y, left + x]  # in
        cuda.syncthreads()
        out[left + y, top + x] = tile[x, y]  # out

    return transpose


@cuda.jit
def wide_and_strided(out):
    s = cuda.shared.array(128, float64)
    i = cuda.threadIdx.x
    s[i] = float64(i)  # side by side
    s[(i * 2) % 64 + i // 32] = float64(i)  # every second


@cuda.jit
def fours(out):
    s = cuda.shared.array(128, float32, alignment=16)
    i = cuda.threadIdx.x
    ptx.store_shared4(s, uint32(4) * uint32(i), float32(0), float32(1), float32(2), float32(3))  # four


def test_accesses_of_8_and_16_bytes_go_in_steps_of_their_own():
    """Half a warp's neighbours of 8 bytes fill the 32 banks once; at every second two words want each bank."""
    report = observe(wide_and_strided[1, 32], zeros(1))
    assert per_line(report, wide_and_strided, "side by side")["bank_conflicts"] == 0
    assert per_line(report, wide_and_strided, "every second")["bank_conflicts"] == 2  # one in each of the two steps
    assert per_line(observe(fours[1, 32], zeros(1)), fours, "four")["bank_conflicts"] == 0


@pytest.mark.parametrize("pad, conflicts", [(0, 31), (1, 0)])
def test_counts_of_a_transpose(pad, conflicts):
    transpose = transpose_with(pad)
    out = zeros(64, 32)
    report = observe(transpose[(2, 1), (32, 32)], counting(32, 64), out)
    assert report.ok
    assert np.array_equal(out.copy_to_host(), np.arange(2048).reshape(32, 64).T)
    warps = 64
    line = per_line(report, transpose, "in")
    assert line["bank_conflicts"] == 0 and line["sectors"] == warps * 4
    line = per_line(report, transpose, "out")
    assert line["bank_conflicts"] == warps * conflicts  # a column of 32 words: one bank, or 32 banks with padding
    assert line["shared_loads"] == 2048 and line["shared_requests"] == warps and line["sectors"] == warps * 4


@cuda.jit
def strided_copy(a, out, stride):
    i = cuda.grid(1)
    out[i] = a[i * stride]  # copy


@pytest.mark.parametrize("stride, sectors", [(1, 4), (2, 8), (8, 32), (32, 32)])
def test_counts_of_strided_copies(stride, sectors):
    report = observe(strided_copy[2, 64], counting(128 * stride), zeros(128), stride)
    line = per_line(report, strided_copy, "copy")
    warps = 4
    assert line["global_requests"] == 2 * warps and line["sectors"] == warps * (sectors + 4)
    assert report.coalescing == 256 / (32 * (sectors + 4))


def test_a_view_that_is_not_aligned_costs_a_sector_more():
    report = observe(strided_copy[1, 32], counting(64)[3:], zeros(32), 1)
    assert report.counts["sectors"] == 5 + 4


@pytest.mark.parametrize("first, lines", [(3, 1), (15, 2)])  # of 8 bytes: 24 to 40, and 120 to 136
def test_an_element_that_lies_in_two_sectors_costs_both(first, lines):
    across = np.zeros(18)[first : first + 2].view(np.complex128)
    report = observe(strided_copy[1, 1], across, np.zeros(1, np.complex128), 1)
    assert (report.counts["sectors"], report.counts["lines_128"]) == (2 + 1, lines + 1)


@cuda.jit
def half_branch(out):
    i = cuda.threadIdx.x
    if i % 2 == 0:  # divergent
        out[i] = 1
    if i < 32:  # whole warps
        out[i] = 2


def test_divergence_is_counted_by_warp():
    report = observe(half_branch[1, 64], zeros(64))
    assert per_line(report, half_branch, "divergent") == {"branches": 2, "divergent_branches": 2}
    assert per_line(report, half_branch, "whole warps") == {"branches": 2}


# ---------------------------------------------------------------- the report


def test_report_is_readable_and_serialisable():
    import json

    report = observe(tiled[(1, 1), (32, 32)], counting(32, 64), counting(64, 32), zeros(32, 32))
    text = repr(report)
    assert "Nothing wrong was seen" in text and "a_tile[y, k] * b_tile[k, x]" in text
    assert report._repr_mimebundle_()["text/html"].count("<tr>") == len(report.lines) + 1
    data = json.loads(json.dumps(report.to_json()))
    assert data["ok"] and data["counts"]["barriers"] == 4 and data["kernel"] == "tiled"
    report = observe(reversed_without_barrier[1, 64], counting(64), zeros(64))
    data = json.loads(json.dumps(report.to_json()))
    assert not data["ok"] and data["races"][0]["text"] == str(report.races[0])


def test_report_draws():
    report = observe(strided_copy[1, 32], counting(64), zeros(32), 2)
    figure = report.draw("a")
    assert [text.get_text() for text in figure.axes[0].texts][-3:] == ["threads", "reads", "a"]
    data, _ = figure._repr_mimebundle_()
    assert data["image/png"] and data["text/plain"] == "strided_copy: who touches a, global memory"
    with pytest.raises(ValueError, match="this launch touched a, out"):
        report.draw("b")


def test_wrong_use():
    with pytest.raises(TypeError, match=r"observe takes kernel\[grid, block\]"):
        observe(strided_copy, zeros(1))
    with pytest.raises(Exception, match="takes 3 arguments"):
        observe(strided_copy[1, 32], zeros(1))


# Races that cannot change a result -----------------------------------------------------------------------------------


@cuda.jit
def stores_alike(which, done, out):
    i = cuda.grid(1)
    if which == 0:
        done[0] = 5  # alike
    elif which == 1:
        done[0] = i // 32  # unlike
    elif which == 2:
        done[0] = 5  # seen
        out[i] = done[0]  # sees
    elif which == 3:
        done[0] = 0  # as it was
        out[i] = done[0]
    elif which == 4:
        done[0] = 5
        cuda.syncthreads()
        out[i] = done[0]
        done[0] = 5
    else:
        done[0] += 0  # update


@pytest.mark.parametrize("which, harmful, benign", [
    (0, (), ["alike"]), (1, ["unlike"], None), (2, ["seen", "sees"], None), (3, (), None), (4, (), None),
    (5, (), None),
])  # fmt: skip
def test_stores_of_the_value_that_is_there_are_benign(which, harmful, benign):
    report = observe(stores_alike[1, 64], which, zeros(1, dtype=np.int32), zeros(64, dtype=np.int32))
    assert report.ok == (not harmful), str(report)
    if harmful:
        assert only(report, "races").lines == lines_of(stores_alike, *harmful)
    else:
        assert report.benign_races and all(race.kind == "benign_race" for race in report.benign_races)
        assert "benign race: " in str(report) and "no race that could change a result" in str(report)
        assert "benign race: " in report._repr_html_() and report.to_json()["benign_races"] and report.to_json()["ok"]
    if benign:
        assert report.benign_races[0].lines == lines_of(stores_alike, *benign)
        assert "the race cannot change the result" in str(report.benign_races[0])


@cuda.jit
def benign_then_not(done):
    for k in range(2):
        done[0] = 5 if k == 0 else cuda.threadIdx.x  # store


def test_of_one_pair_of_lines_a_race_that_can_change_a_result_is_kept():
    report = observe(benign_then_not[1, 64], zeros(1, dtype=np.int32))
    assert report.races and not report.benign_races


# Fences --------------------------------------------------------------------------------------------------------------


@cuda.jit
def hands_over(scope, data, flag, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            data[0] = 42  # write
            if scope == 1:
                cuda.threadfence_block()  # narrow
            elif scope in (2, 4, 5):
                cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
            if scope == 3:
                cuda.threadfence()
        elif cuda.atomic.add(flag, 0, 0):
            if scope == 5:
                cuda.threadfence_block()  # narrow after
            elif scope != 4:
                cuda.threadfence()
            out[0] = data[0]  # read


@pytest.mark.parametrize("scope", range(6))
def test_a_fence_orders_blocks_if_it_is_wide_enough_and_before_the_atomic(scope):
    report = observe(hands_over[2, 32], scope, *(zeros(1, dtype=np.int32) for _ in range(3)))
    if scope == 2:
        assert report.ok, str(report)
        return
    race = only(report, "races")
    assert race.lines == lines_of(hands_over, "write", "read")
    if scope in (1, 5):
        [line] = lines_of(hands_over, "narrow" if scope == 1 else "narrow after")
        assert f"cuda.threadfence_block() at line {line} orders memory only for the threads of its own" in str(race)
    advice = "An atomic has signalled block 1 that the other block is done. After it, the same thread must call"
    assert (advice in str(race)) == (scope == 4)
