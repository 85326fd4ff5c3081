"""Demands that several exercises share: what is counted, and what the sentence says."""

import re
from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.course import exercises, registry, workbooks
from labkit.course.check.host_runs import HostRun, Launched
from labkit.course.exercises import demands
from labkit.device import ptx

pytestmark = pytest.mark.cpu_device


@cuda.jit
def first_thread_copies(x, out):
    if cuda.threadIdx.x == 0:
        for i in range(out.size):
            out[i] = x[i]


@cuda.jit
def sums_of_rows(x, out):
    total = cuda.shared.array(1, np.float32)
    if cuda.threadIdx.x == 0:
        total[0] = 0
    cuda.syncthreads()
    for col in range(cuda.threadIdx.x, x.shape[1], 32):
        cuda.atomic.add(total, 0, x[cuda.blockIdx.x, col])
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total[0]


@cuda.jit
def all_threads_copy(x, out):
    i = cuda.threadIdx.x
    if i < out.size:
        out[i] = x[i]


@cuda.jit
def lanes_exchange(x, out):
    lane = cuda.threadIdx.x
    total = x[lane]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    out[lane] = total


@cuda.jit
def copies_asynchronously(x, out):
    tile = cuda.shared.array(32, np.float32)
    lane = cuda.threadIdx.x
    ptx.cp_async_4(tile, lane, x, lane, 4)
    ptx.cp_async_commit()
    ptx.cp_async_wait(0)
    out[lane] = tile[lane]


def seen(kernel, n=32):
    return observe(kernel[1, 32], np.ones(n, np.float32), np.zeros(n, np.float32))


def test_one_thread_for_all_is_found():
    for block in (1, 2):
        both = observe(first_thread_copies[block, 16], np.ones(32, np.float32), np.zeros(32, np.float32))
        assert "Only thread 0 of the 16 in a block stores anything: all 32 " in demands.several_threads(both)
    assert demands.several_threads(seen(all_threads_copy)) is None
    assert demands.several_threads(seen(first_thread_copies, demands.ALONE - 1)) is None  # too few to say


def test_a_thread_that_stores_what_its_block_has_found_is_not_alone():
    report = observe(sums_of_rows[12, 32], np.ones((12, 40), np.float32), np.zeros(12, np.float32))
    assert demands.several_threads(report) is None


def test_shuffles_and_copies_are_counted_by_name():
    assert demands.shuffles(seen(lanes_exchange)) is None
    assert "No shuffle was called" in demands.shuffles(seen(all_threads_copy))
    assert demands.times_used(seen(lanes_exchange), "shfl_") == 5 * 32
    assert demands.times_used(seen(copies_asynchronously), "ptx.cp_async_4") == 32
    assert demands.elements_of_argument(seen(all_threads_copy, 20), 1) == 20


def test_what_the_host_computes_is_found():
    launched = Launched("k", (1, 1, 1), (64, 1, 1), in_graph=False, host_arrays=0)
    assert demands.on_the_device(HostRun({}, launches=[launched])) is None
    assert demands.on_the_device(HostRun({}, calls=["gemm"])) is None
    assert "Nothing was launched" in demands.on_the_device(HostRun({}))
    assert "The host computes it" in demands.on_the_device(HostRun({}, launches=[launched], right_without=True))
    assert "without the 2 calls of cuBLAS" in demands.on_the_device(HostRun({}, calls=["gemm"] * 2, right_without=True))


@pytest.mark.sweep(every=True)
def test_each_demand_is_a_sentence_of_the_exercises_text_and_of_nothing_else():
    """What is asked for besides the result is printed from the demand, so that the two cannot differ."""
    course, printed = registry.load(), {}
    for chapter in workbooks.with_exercises(course, course.chapters):
        text = ""
        for cell in workbooks.to_notebook(course, chapter).cells:
            text = cell.source if cell.cell_type == "markdown" else text
            if (about := cell.metadata.get("labkit")) and about["role"] == "check":
                printed[about["exercise"]] = text
        assert "**Also checked.**" not in workbooks.source_text(course, chapter)
    for name, exercise in exercises.load().items():
        body, _, also = printed[name].partition("**Also checked.** ")
        assert also == exercise.asked
        for sentence in filter(None, re.split(r"(?<=\.) ", also)):
            assert sentence.endswith(".") and sentence[0] in f"{sentence[0].upper()}`", (name, sentence)
            assert sentence.casefold() not in " ".join(body.split()).casefold(), f"{name}: the text says so, too"


def test_a_demand_without_its_sentence_is_refused():
    with pytest.raises(ValueError, match="@asks"):
        replace(exercises.find("fused_tail"), demand=lambda report: None)
