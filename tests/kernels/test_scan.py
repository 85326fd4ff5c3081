"""Scan: every rung, both kinds, sums that wrap around, in place, in a graph; the look-back at states made by hand."""

import numpy as np
import pytest
from numba import float32, int32, uint32

from labkit import cuda, observe
from labkit.device import graphs
from labkit.kernels.agree import agree
from labkit.kernels.ops.scan import SCAN, SCAN_F32
from labkit.kernels.scan import (
    THROUGH,
    TILE,
    TOTAL,
    clear_states_kernel,
    look_back_functions,
    make_look_back,
    scan_look_back_warp,
    scan_reference,
)
from labkit.kernels.scan_blocks import make_scan_blelloch, make_scan_hillis_steele, scan_hillis_steele, scratch_size
from labkit.measure.ops import op as registered
from tests.launching import every_rung


def run(launch, x, **options):
    out = cuda.device_array(len(x), x.dtype)
    launch(cuda.to_device(x), out, **options)
    return out.copy_to_host()


@pytest.mark.sampled(0, sweep=3)
@every_rung(SCAN, SCAN_F32)
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed
    assert registered(op.name) is op


@pytest.mark.sampled(0, sweep=3)
@every_rung(SCAN, SCAN_F32)
def test_an_exclusive_scan(op, launcher):
    rng = np.random.default_rng(0)
    for n in (1, 2, 33, TILE, 2 * TILE + 5):
        x = rng.integers(-9, 9, n).astype(op.dtype)  # of small whole numbers float32 makes exact sums, too
        through = np.cumsum(x).astype(op.dtype)
        np.testing.assert_array_equal(run(launcher, x, exclusive=True), through - x)
        np.testing.assert_array_equal(run(launcher, x), through)


@pytest.mark.sweep
def test_sums_wrap_around():
    x = np.full(5000, 2**30, np.int32)
    found = run(scan_look_back_warp, x)
    assert found[:4].tolist() == [2**30, -(2**31), -(2**30), 0]
    np.testing.assert_array_equal(found, scan_reference(x))


@pytest.mark.sweep
def test_in_place_from_a_misaligned_view_and_twice():
    x = np.random.default_rng(0).integers(-9, 9, 2 * TILE + 3).astype(np.int32)
    memory = cuda.to_device(np.concatenate([[77], x]).astype(np.int32))
    scan_look_back_warp(memory[1:], memory[1:])
    scan_look_back_warp(memory[1:], memory[1:])  # the states of the first scan are cleared
    np.testing.assert_array_equal(memory.copy_to_host(), [77, *np.cumsum(np.cumsum(x))])


@pytest.mark.sweep(every=True)
def test_a_graph_clears_the_states_at_each_replay():
    x = np.random.default_rng(0).integers(-9, 9, 2 * TILE + 3).astype(np.int32)
    here, out = cuda.to_device(x), cuda.device_array(x.size, np.int32)
    scratch = cuda.to_device(np.full(scratch_size(x.size), 2**64 - 1, np.uint64))
    graph = graphs.capture(lambda stream: scan_look_back_warp(here, out, stream=stream, scratch=scratch))
    for factor in (1, 3):
        here.copy_to_device(factor * x)
        graph.launch()
        cuda.synchronize()
        np.testing.assert_array_equal(out.copy_to_host(), factor * np.cumsum(x))


def test_errors_name_the_argument():
    x = cuda.to_device(np.zeros(8, np.int32))
    for launch in SCAN.rungs:
        with pytest.raises(ValueError, match=r"out has shape \(3,\); it must be \(8,\)"):
            launch(x, cuda.device_array(3, np.int32))
        with pytest.raises(TypeError, match="out has dtype float32; only int32"):
            launch(x, cuda.device_array(8, np.float32))
        with pytest.raises(ValueError, match="no elements"):
            launch(cuda.to_device(np.zeros(0, np.int32)), cuda.device_array(0, np.int32))
    scratch = cuda.device_array(1, np.uint64)
    with pytest.raises(ValueError, match="scratch has 1 elements; this scan needs 2"):
        scan_look_back_warp(x, cuda.device_array(8, np.int32), scratch=scratch)


# --- The look-back ---------------------------------------------------------------------------------------------------
# The CPU device runs block after block, so that a block finds the sum up to the tile before it. On a GPU many tiles may
# have published their totals alone.

alone, by_warp = look_back_functions(int32)


@cuda.jit
def look_back_both_ways(states, out):
    tile, lane = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
    found = by_warp(states, tile, lane)
    out[1, tile, lane] = found
    if lane == uint32(0):
        out[0, tile, 0] = alone(states, tile)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("through", [-1, 0, 1, 31, 32, 33, 50, 69])
def test_a_block_looks_back_over_totals_to_a_known_sum(through):
    """Tiles 0 to 69: up to number `through` the sum is known, and of later ones the total alone. With -1 that is all of
    them, and the look-back must end at tile 0."""
    totals = np.random.default_rng(1 + through).integers(-99, 99, 70)
    sums = np.cumsum(totals)
    known = np.where(np.arange(70) <= through, THROUGH, TOTAL).astype(np.uint64)
    numbers = np.where(known == THROUGH, sums, totals).astype(np.int32).view(np.uint32)
    out = cuda.to_device(np.zeros((2, 71, 32), np.int32))
    look_back_both_ways[71, 32](cuda.to_device(known << np.uint64(32) | numbers), out)
    found = out.copy_to_host()
    np.testing.assert_array_equal(found[0, :, 0], [0, *sums])
    np.testing.assert_array_equal(found[1], np.tile(np.array([0, *sums])[:, None], 32))


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("window", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_every_tile_ends_with_the_sum_up_to_its_end(window):
    x = np.ones(3 * TILE - 5, np.int32)
    states, out = cuda.to_device(np.full(4, 99, np.uint64)), cuda.device_array(x.size, np.int32)
    clear_states_kernel[1, 32](states)
    make_look_back(int32, window)[3, 256](cuda.to_device(x), out, states, np.bool_(True), np.bool_(False))
    found = states.copy_to_host()
    assert found[3] == 3  # tiles that were taken
    assert (found[:3] >> np.uint64(32)).tolist() == [THROUGH] * 3
    assert (found[:3] & np.uint64(0xFFFFFFFF)).tolist() == [TILE, 2 * TILE, 3 * TILE - 5]


# --- What is counted -------------------------------------------------------------------------------------------------


def observed(launch, x, totals=1) -> dict:
    out = np.zeros_like(x)
    report = observe(launch, x, out, np.zeros(totals, x.dtype), np.bool_(False))
    assert report.ok, str(report)
    np.testing.assert_array_equal(out, np.cumsum(x))
    return report.counts


def test_the_trees_work_steps_and_conflicts_are_as_claimed():
    n = 256
    x = np.ones(n, np.float32)
    steps = observed(make_scan_hillis_steele(float32)[1, n, 0, 4 * n], x)
    assert steps["barriers"] == 1 + 2 * 8
    assert steps["shared_loads"] == n * 8 - (n - 1)  # in step k all but 2^k threads add
    tree = observed(make_scan_blelloch(float32, False)[1, n // 2, 0, 4 * n], x)
    padded = observed(make_scan_blelloch(float32, True)[1, n // 2, 0, 4 * (n + n // 32)], x)
    assert tree["barriers"] == padded["barriers"] == 2 * 8 + 1
    assert tree["shared_loads"] == 2 * (n - 1) + 2 * (n - 1) + 1 + n  # up, down, the total, the result
    assert (tree["bank_conflicts"], padded["bank_conflicts"]) == (145, 6)


def test_levels_read_and_write_as_often_as_the_docstrings_say():
    """Of an array that takes several tiles: the tiles, their totals, and the addition."""
    x = np.arange(1300, dtype=np.int32)
    np.testing.assert_array_equal(run(scan_hillis_steele, x), np.cumsum(x))
    assert scratch_size(1) == 3 and scratch_size(512**2) == 512 + 1 + 2
