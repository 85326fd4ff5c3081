"""What a function of the host did: launches, graphs and calls of libraries are seen, and can be left out."""

from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda
from labkit.course.check import examine
from labkit.course.check.host_runs import HostRun, idle, recording
from labkit.course.exercises import FunctionExercise
from labkit.course.exercises.demands import Demand
from labkit.device import graphs
from labkit.kernels.libraries import blas
from labkit.kernels.libraries.blas import OP_N, gemm
from labkit.simt.launch import ConfiguredKernel

pytestmark = pytest.mark.cpu_device


@cuda.jit
def add_one(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += np.float32(1)


def launched(x):
    add_one[2, 32](x)


def replayed(x):
    graphs.capture(lambda stream: add_one[2, 32, stream](x), warm_up=False).launch()


def on_the_host(x):
    add_one[2, 32](cuda.to_device(np.zeros(3, np.float32)))  # for the look of it
    x.copy_to_device(x.copy_to_host() + 1)


ADD_ONE = FunctionExercise(
    "add_one", reference=lambda x: x + 1, inputs=lambda rng, n: np.arange(n, dtype=np.float32), sizes=({"n": 50},),
    shape=lambda n: (n,), start=lambda x: x, arguments=lambda inputs, out, size: (out,),
    domain="It only adds one to each element.", wrong={"one": launched, "two": launched},
)


def facts_of(function):
    found = []
    demanding = replace(ADD_ONE, demand=Demand("Anything.", found.append))
    assert examine(demanding, function, seed=1).passed
    return found[-1]


def test_launches_and_replays_are_distinguished():
    (direct,), (inside,) = facts_of(launched).launches, facts_of(replayed).launches
    assert (direct.name, direct.grid, direct.block, direct.in_graph) == ("add_one", (2, 1, 1), (32, 1, 1), False)
    assert inside.in_graph and inside.block == (32, 1, 1)


def on_streams(x):
    first, second = cuda.stream(), cuda.stream()
    values = x.copy_to_host(stream=first)
    first.synchronize()
    x.copy_to_device(values, second)
    add_one[2, 32, second](x)
    second.synchronize()
    cuda.synchronize()


def test_copies_launches_and_waits_are_seen_in_their_order_with_their_streams():
    order = facts_of(on_streams).order
    assert [what for what, _ in order] == ["copy back", "wait", "copy there", "launch", "wait", "wait"]
    (_, first), _, (_, second), (_, launch), (_, of_second), (_, of_all) = order
    assert 0 != first != second == launch == of_second and of_all == 0
    assert facts_of(launched).order == [("launch", 0)]


def test_a_result_of_the_host_is_right_without_the_launches():
    assert facts_of(on_the_host).right_without
    assert not facts_of(launched).right_without
    assert not facts_of(replayed).right_without


def test_copies_to_the_host_are_counted_but_not_those_of_a_library():
    a, out = cuda.to_device(np.ones((2, 2), np.float32)), cuda.to_device(np.zeros((2, 2), np.float32))
    run = HostRun({})
    with recording(run):
        gemm(OP_N, OP_N, 2, 2, 2, 1.0, a, 2, a, 2, 0.0, out, 2)
        assert run.copies_to_host == 0
        out.copy_to_host()
    assert run.copies_to_host == 1
    assert facts_of(launched).copies_to_host == 0  # the check's own copies do not count


def test_a_function_of_the_host_may_not_change_its_inputs():
    exercise = FunctionExercise(
        "twice", reference=lambda x: 2 * x, inputs=lambda rng, n: np.arange(n, dtype=np.float32), sizes=({"n": 5},),
        domain="It only doubles each element.", wrong={"one": lambda x: x, "two": lambda x: x + 1})

    def in_place(x):
        x *= 2
        return x

    assert examine(exercise, lambda x: 2 * x).passed
    verdict = examine(exercise, in_place)
    assert verdict.kind == "input_changed" and verdict.headline == "Input number 1 was changed."


def test_calls_of_a_library_are_seen_and_left_out():
    a, out = cuda.to_device(np.ones((2, 2), np.float32)), cuda.to_device(np.zeros((2, 2), np.float32))
    run = HostRun({})
    with idle():
        gemm(OP_N, OP_N, 2, 2, 2, 1.0, a, 2, a, 2, 0.0, out, 2)
    assert not out.copy_to_host().any()
    with recording(run):
        gemm(OP_N, OP_N, 2, 2, 2, 1.0, a, 2, a, 2, 0.0, out, 2)
    assert run.calls == ["gemm"] and (out.copy_to_host() == 2).all()


def test_everything_is_put_back_after_an_error():
    before = ConfiguredKernel.run, graphs._RecordedGraph.launch, blas._on_host
    with pytest.raises(KeyError), recording(HostRun({})):
        raise KeyError
    assert (ConfiguredKernel.run, graphs._RecordedGraph.launch, blas._on_host) == before


def test_a_demand_that_is_not_met_is_the_verdict():
    two_launches = Demand("There are two launches.", lambda run: "Two launches are asked for.")
    verdict = examine(replace(ADD_ONE, demand=two_launches), launched)
    assert verdict.kind == "demand" and verdict.details == ("Two launches are asked for.",)
    assert verdict.headline.startswith("The result is right")
