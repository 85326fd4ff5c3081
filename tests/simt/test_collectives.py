"""Shuffles, votes and atomics, compiled and as observe runs them, against their definition."""

import math

import numpy as np
import pytest
from numba import float32, int32

from labkit import cuda, observe
from tests.simt.helpers import WAYS, run

pytestmark = pytest.mark.cpu_device

ALL_LANES = 0xFFFFFFFF


@cuda.jit
def shuffles(x, by, out):
    i = cuda.threadIdx.x
    out[0, i] = cuda.shfl_sync(ALL_LANES, x[i], by)
    out[1, i] = cuda.shfl_up_sync(ALL_LANES, x[i], by)
    out[2, i] = cuda.shfl_down_sync(ALL_LANES, x[i], by)
    out[3, i] = cuda.shfl_xor_sync(ALL_LANES, x[i], by)


@WAYS
@pytest.mark.parametrize("by", [0, 1, 7, 16, 31])
def test_a_shuffle_gives_the_value_of_its_lane_and_outside_the_warp_the_threads_own(way, by):
    x, out = np.arange(100, 164, dtype=np.float32), np.zeros((4, 64), np.float32)
    run(way, shuffles[1, 64], x, np.int32(by), out)
    lane = np.arange(32)
    for row, source in zip(out, (np.full(32, by), lane - by, lane + by, lane ^ by), strict=True):
        source = np.where((source < 0) | (source > 31), lane, source)
        np.testing.assert_array_equal(row, np.concatenate([x[source], x[32 + source]]))


@cuda.jit
def votes(x, out):
    i = cuda.threadIdx.x
    out[0, i] = cuda.ballot_sync(ALL_LANES, x[i] > 0)
    out[1, i] = cuda.all_sync(ALL_LANES, x[i] > 0)
    out[2, i] = cuda.any_sync(ALL_LANES, x[i] > 0)


@WAYS
def test_a_vote_is_of_one_warp(way):
    x = np.zeros(96, np.int32)
    x[[3, 31]], x[64:] = 1, 1  # two lanes, none, all
    out = np.full((3, 96), -7, np.int32)
    run(way, votes[1, 96], x, out)
    np.testing.assert_array_equal(out[0].view(np.uint32), np.repeat([2**31 + 2**3, 0, 2**32 - 1], 32))
    np.testing.assert_array_equal(out[1] != 0, np.repeat([False, False, True], 32))
    np.testing.assert_array_equal(out[2] != 0, np.repeat([True, False, True], 32))


def make(operation):
    @cuda.jit
    def update(array, value, before):
        before[0] = operation(array, 0, value)

    return update


MOST = 2**32 - 1
EXPECTED = {  # (dtype, what is there, the value): what is there afterwards
    "add": {("i4", 5, -7): -2, ("u4", MOST, 3): 2, ("f4", 1.5, 2.25): 3.75},
    "sub": {("i4", 5, 7): -2, ("u4", 1, 3): MOST - 1, ("f4", 1.5, 2.25): -0.75},
    "max": {("i4", -1, 1): 1, ("u4", MOST, 1): MOST, ("u4", 1, MOST): MOST, ("f4", -3, -2): -2,
            ("f4", 1, math.nan): 1, ("f4", math.nan, 1): math.nan},  # numba-cuda stores nothing where one is NaN
    "min": {("i4", -1, 1): -1, ("u4", MOST, 1): 1, ("f4", -3, -2): -3, ("f4", 1, math.nan): 1,
            ("f4", math.nan, 1): math.nan},
    "nanmax": {("f4", 1, math.nan): 1, ("f4", math.nan, 1): 1, ("f4", 1, 2): 2},
    "nanmin": {("f4", 1, math.nan): 1, ("f4", math.nan, 1): 1, ("f4", 1, 2): 1},
    "inc": {("u4", 3, 5): 4, ("u4", 4, 5): 5, ("u4", 5, 5): 0, ("u4", 9, 5): 0},
    "dec": {("u4", 3, 5): 2, ("u4", 0, 5): 5, ("u4", 5, 5): 4, ("u4", 9, 5): 5},
    "and_": {("u4", 12, 10): 8}, "or_": {("u4", 12, 10): 14}, "xor": {("u4", 12, 10): 6}, "exch": {("i4", 12, -1): -1},
}  # fmt: skip


@WAYS
@pytest.mark.parametrize("name", EXPECTED)
def test_an_atomic_leaves_its_result_and_returns_what_was_there(name, way):
    update = make(getattr(cuda.atomic, name))
    for (dtype, old, value), new in EXPECTED[name].items():
        array, before = np.array([old, 77], dtype), np.zeros(1, dtype)
        run(way, update[1, 1], array, np.dtype(dtype).type(value), before)
        np.testing.assert_array_equal(array, np.array([new, 77], dtype), err_msg=f"{dtype}: {old}, {value}")
        np.testing.assert_array_equal(before, np.array([old], dtype))


@cuda.jit
def swap(array, before):
    before[0] = cuda.atomic.cas(array, 0, int32(3), int32(9))


@WAYS
@pytest.mark.parametrize(("old", "new"), [(3, 9), (4, 4), (9, 9)])
def test_compare_and_swap_swaps_only_what_it_expects(way, old, new):
    array, before = np.array([old], np.int32), np.zeros(1, np.int32)
    run(way, swap[1, 1], array, before)
    assert (array[0], before[0]) == (new, old)


@cuda.jit
def sum_of_all(x, total):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, float32(x[i]))


@WAYS
def test_no_update_is_lost(way):
    x, total = np.arange(500, dtype=np.float32), np.zeros(1, np.float32)
    run(way, sum_of_all[8, 64], x, total)
    assert total[0] == x.sum()


@cuda.jit
def bits_of_votes(out):
    i = cuda.threadIdx.x
    every, few = cuda.ballot_sync(ALL_LANES, True), cuda.ballot_sync(ALL_LANES, i < 5)
    same = cuda.match_any_sync(ALL_LANES, 7)
    found, alike = cuda.match_all_sync(ALL_LANES, 7)
    out[i, 0], out[i, 1], out[i, 2] = cuda.popc(every), cuda.clz(few), cuda.brev(few)
    out[i, 3], out[i, 4], out[i, 5] = cuda.popc(same), cuda.clz(same), cuda.popc(found)
    out[i, 6], out[i, 7] = every >> 28, every


@WAYS
def test_votes_are_of_32_bits(way):
    """As int32, which Numba types them: counting the bits of a ballot is how compaction finds its places."""
    out = np.zeros((32, 8), np.int64)
    run(way, bits_of_votes[1, 32], out)
    np.testing.assert_array_equal(out, np.tile([32, 27, 0xF8000000, 32, 0, 32, -1, -1], (32, 1)))


@cuda.jit
def half_warp_sum(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        value = x[t]
        for k in range(4):
            value += cuda.shfl_down_sync(0xFFFF, value, 8 >> k)
        if t == 0:
            out[0] = value


@cuda.jit
def neighbour_beyond_the_mask(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = x[t] + cuda.shfl_down_sync(0xFFFF, x[t], 8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_a_lane_that_the_mask_leaves_out_gives_an_undefined_value_and_no_error(dtype):
    x = np.arange(32, dtype=dtype)
    for way in ("compiled", "observed"):
        out = np.zeros(16, dtype)
        run(way, half_warp_sum[1, 32], x, out)
        assert out[0] == 120


@cuda.jit
def uses_of_a_lane_beyond_the_mask(which, x, out):
    t = cuda.threadIdx.x
    if t < 16:
        s = cuda.shfl_down_sync(0xFFFF, x[t], 8)
        best, chosen = x[t], 0
        if s > best:
            best, chosen = s, 1
        if which == 0:
            out[t] = -s
        elif which == 1:
            cuda.atomic.add(out, 0, s)
        elif which == 2:
            if s > 5:
                out[t] = 1
        elif which == 3:
            out[t] = 1 if s > 5 else 0
        elif which == 4:
            out[int(s) & 15] = x[t]
        elif which == 5:
            out[t] = chosen
        elif which == 6:
            out[t] = not (s > 5 and t >= 0)
        elif which == 7:
            out[t] = max(int(s) * 2, 1)
        elif which == 8:  # what follows uses the lanes that the mask names
            if s > 5 and t < 8:
                out[t] = s
        elif which == 9:
            best = s if s > best else best
            best = max(best, cuda.shfl_down_sync(0xFFFF, best, 4))
            if t < 4:
                out[t] = best + chosen
        elif t < 8 and s > 5:
            out[t] = x[int(s)]


@pytest.mark.parametrize("which", range(11))
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_what_an_undefined_value_decides_or_reaches_is_found(which, dtype):
    report = observe(uses_of_a_lane_beyond_the_mask[1, 32], which, np.arange(32, dtype=dtype), np.zeros(16, dtype))
    if which >= 8:
        assert report.ok, str(report)
    else:
        assert {f.kind for f in report.findings if "which its mask leaves out" in str(f)} == {"uninitialized_read"}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_undefined_value_that_reaches_memory_is_found(dtype):
    x, compiled, observed = np.arange(32, dtype=dtype), np.zeros(16, dtype), np.zeros(16, dtype)
    neighbour_beyond_the_mask[1, 32](x, compiled)
    report = observe(neighbour_beyond_the_mask[1, 32], x, observed)
    np.testing.assert_array_equal(compiled, observed)
    assert np.isnan(compiled[8:]).all() and compiled[:8].tolist() == [8, 10, 12, 14, 16, 18, 20, 22]
    (finding,) = report.findings
    assert (finding.kind, finding.index) == ("uninitialized_read", (8,)) and "its mask leaves out" in str(finding)
