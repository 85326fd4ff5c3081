"""Advice that survives what it advises: barriers where all threads come by, closeness of numbers and not of bits, words
for what is there."""

import ast
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from labkit import cuda
from labkit.course.check import diagnose
from labkit.course.check.compare import compare_attempt, compared
from labkit.course.check.diagnose import findings
from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.diagnose.divergence import around, divergent_blocks
from labkit.course.check.diagnose.outputs import describe_elements
from labkit.course.check.diagnose.patterns import pattern
from labkit.course.check.draw import Case
from labkit.course.check.run import run_answer
from labkit.course.exercises import FunctionExercise, demands
from labkit.course.exercises.graphs_and_streams.fused_tail import _each_array_once
from labkit.course.exercises.graphs_and_streams.run_steps import _replays_a_graph
from labkit.course.exercises.tensor_cores.swizzled_transpose import _no_conflicts
from labkit.course.exercises.the_machine.two_polynomials import _together
from labkit.simt.observer.report import KernelFinding

pytestmark = pytest.mark.cpu_device
SHARED = """
def made_here(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    n = x.size
    if t < n:
        tile[t] = x[t]
        out[t] = tile[n - 1 - t]
    if n > 3:
        tile[t] = x[t]
        for k in range(t):
            out[t] += tile[k]
    while t < n:
        t += 32
"""


def test_divergent_is_what_depends_on_the_thread_and_what_stands_inside():
    function = ast.parse(SHARED).body[0]
    assert [block.lineno for block in divergent_blocks(function)] == [6, 11, 13]
    assert around(function, 7, 8).lineno == 6 and around(function, 10) is None and around(function, 7, 12) is None


def race(first, second, one_warp=False):
    advice, end = "Put cuda.syncthreads() between them.", "These threads are in the same warp." * one_warp
    return KernelFinding("race", "kernel", [first, second], [], 0, "out", (0,), f"race: it races. {advice} {end}",
                         advice=advice, barrier=True, one_warp=end)


@cuda.jit
def reversed_in_a_branch(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]
        out[i] += out[out.size - 1 - i]


def test_where_a_race_stands_in_a_branch_the_barrier_is_not_put_into_it():
    first = reversed_in_a_branch.py_func.__code__.co_firstlineno

    text, = findings._where_no_barrier_may_stand(race(first + 4, first + 5), reversed_in_a_branch)
    assert f"the `if` on line {first + 3}" in text
    assert not findings._where_no_barrier_may_stand(race(first + 2, first + 5), reversed_in_a_branch)


@cuda.jit
def transposed_by_warps(x, out):
    tile = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    for _ in range(2):
        before = tile[63 - t]
        cuda.syncwarp()
        tile[t] = before
    out[t] = tile[t]


@pytest.mark.parametrize("one_warp", [False, True])
def test_where_a_warp_alone_waits_that_line_is_named(one_warp):
    first = transposed_by_warps.py_func.__code__.co_firstlineno

    found = findings._where_a_warp_alone_waits(race(first + 7, first + 9, one_warp), transposed_by_warps)
    assert bool(found) == (not one_warp)
    assert not found or f"Line {first + 8}: `cuda.syncwarp()`" in found[0] and "different warps" in found[0]
    assert not findings._where_a_warp_alone_waits(race(first + 4, first + 5), transposed_by_warps)


@pytest.mark.parametrize("where, added", [("", True), ("all elements are 0 or -0", False)])
def test_what_a_larger_case_shows_is_added_but_not_of_special_inputs(where, added):
    one, many = (Case({"n": n}, (), np.ones(n), np.zeros(n), None, place) for n, place in ((1, ""), (33, where)))
    exercise = FunctionExercise(name="zeros", reference=lambda n: np.ones(n), inputs=lambda rng, n: (n,),
                                sizes=({"n": 1},), domain="Made up, for a test.", wrong={"a": np.zeros, "b": np.ones})
    one, many = (replace(case, inputs=(case.expected.size,)) for case in (one, many))
    difference = compare_attempt(exercise, run_answer(exercise, np.zeros, one))
    later = diagnose._later(exercise, np.zeros, [one, many], difference)
    found = diagnose._with_larger(Diagnosis("wrong_result", "The value is wrong.", ("n=1",)), one, later)
    assert (len(found.details) == 2) == added


def test_bits_are_not_close():
    bits = np.arange(0x3F800000, 0x3F800000 + 8, dtype=np.uint32)
    everywhere, nowhere = np.ones(8, bool), np.zeros(8, bool)
    assert pattern(bits, bits[::-1].copy(), everywhere, nowhere, (bits[::-1] + np.uint32(1),)) == ""
    assert "copy of input" in pattern(bits, bits[::-1].copy(), everywhere, nowhere, (bits[::-1].copy(),))
    assert pattern(bits, bits + np.uint32(65536), everywhere, nowhere) == ""  # of bits, "65,536 too large" says nothing
    case = Case({"n": 8}, (), bits, np.zeros(8), None)
    difference = compared(case, bits + np.uint32(1), nowhere)
    assert not any("It is close" in text for text in describe_elements(None, case, difference).details)
    floats = np.linspace(1, 2, 8, dtype=np.float32)
    assert "2 times" in pattern(floats, 2 * floats, everywhere, nowhere)


def test_a_graph_that_is_never_replayed_is_a_graph():
    run_of = SimpleNamespace(captures=1, replays=0, launches=[SimpleNamespace(in_graph=False)] * 3, size={"steps": 3})
    assert "never replayed" in _replays_a_graph(run_of)


@pytest.mark.parametrize("threads, words", [((0, 32), "each thread's x once"), ((0, 0), "coefficients of both")])
def test_of_two_reasons_for_too_many_loads_the_one_that_was_seen_is_given(threads, words):
    touched = {(name, "global"): {(thread, 0): {"load"}} for name, thread in zip(("even", "odd"), threads, strict=True)}
    arrays = {"x": (0, (64,), ""), "even": (0, (3,), ""), "odd": (0, (3,), "")}
    report = SimpleNamespace(arrays=arrays, touched=touched, counts={"divergent_branches": 0, "global_loads": 999})
    assert words in _together(report)


@pytest.mark.parametrize("loads, stores, words", [(300, 100, None), (500, 100, "500 values are loaded for 100"),
                                                  (500, 300, "300 values are stored for 100")])
def test_a_chain_that_was_fused_is_counted_in_loads_and_in_stores(loads, stores, words):
    arrays = {name: (0, shape, "") for name, shape in (("x", (100,)), ("bias", (10,)), ("r", (100,)), ("out", (100,)))}
    report = SimpleNamespace(arrays=arrays, counts={"global_loads": loads, "global_stores": stores})
    message = _each_array_once(report)
    assert message is None if words is None else words in message


# --- Properties that doing nothing would have ------------------------------------------------------------------------


def report_of(touched, block=(32, 1, 1), grid=(2, 1, 1), **counts):
    return SimpleNamespace(block=block, grid=grid, touched=touched, counts={"bank_conflicts": 0, **counts})


def test_no_bank_conflicts_needs_a_tile():
    assert "all 1,024" in _no_conflicts(report_of({}))
    whole = {("tile", "shared"): {(n % 32, 4 * n): {"store", "load"} for n in range(1024)}}
    assert _no_conflicts(report_of(whole)) is None


@pytest.mark.parametrize("kind", ["store", "load"])
def test_one_thread_alone_is_not_several(kind):
    alone = {("x", "global"): {(0, 4 * n): {kind} for n in range(64)}}
    assert "Only thread 0 of the 32" in demands.several_threads(report_of(alone))
    both = {("x", "global"): {(n % 2, 4 * n): {kind} for n in range(64)}}
    assert demands.several_threads(report_of(both)) is None


def test_blocks_that_idle_are_seen():
    half = {("out", "global"): {(n % 32, 4 * n): {"store"} for n in range(64)}}
    assert "block 1 is the first" in demands.whole_grid(report_of(half))
    share = {("out", "global"): {(n, 4 * n): {"store"} for n in range(64)}}
    assert demands.whole_grid(report_of(share)) is None
    few = {("out", "global"): {(n, 4 * n): {"store"} for n in range(20)}}
    assert demands.whole_grid(report_of(few)) is None
