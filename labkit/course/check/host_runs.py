"""What a function of the host did on the CPU device: its launches, its graphs, its calls of libraries.

A function that computes on the host what a kernel or a library should compute gives itself away: its result is right
even where launches and calls do nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import numpy as np

from labkit import cuda
from labkit.course.check.cases import Attempt, Case
from labkit.course.check.run import run_once
from labkit.course.check.stream_order import StreamOrder
from labkit.course.exercises import Exercise
from labkit.device import graphs
from labkit.kernels.libraries import blas
from labkit.kernels.libraries import cutile_model as tiles
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.launch import ConfiguredKernel
from labkit.simt.streams import Event, Stream


@dataclass(frozen=True)
class Launched:
    """A kernel that ran, or a tile program."""

    name: str
    grid: tuple
    block: tuple
    in_graph: bool  # a replay of a graph ran it
    host_arrays: int  # how many of its arguments are arrays of the host
    stream: int = 0  # 0 is the default stream
    types: tuple[str, ...] = ()  # of the elements of its arrays


@dataclass
class HostRun:
    """One run of the function. Lists are in the order of the events."""

    size: dict
    launches: list[Launched] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)  # of cuBLAS: "gemm", "gemm_strided_batched"
    copies_to_host: int = 0  # by the function itself, not by the launches and calls
    order: list[tuple[str, int]] = field(default_factory=list)  # "copy there", "launch", "copy back", "wait"; stream
    captures: int = 0  # graphs that were captured
    replays: int = 0  # of all of them
    returned: object = None
    streams: StreamOrder = field(default_factory=StreamOrder)
    right_without: bool = False  # right even where no kernel runs and no library is called


def host_observer(exercise: Exercise, case: Case):
    """A run in which the exercise's demand is made of what the function did."""

    def run(answer) -> Attempt:
        seen = HostRun(case.size)

        def remembering(*arguments):
            with _seen_by(seen):
                seen.returned = answer(*arguments)
            return seen.returned

        attempt = run_once(exercise, remembering, case)
        if not attempt.good:
            return attempt
        if seen.streams.unordered:
            return Attempt("race", "The result is right here, but work on two streams is not ordered: a race.",
                           tuple(seen.streams.unordered[:2]), trace=seen.streams.conflicts[0], whole=None)
        if exercise.demand is None:
            return Attempt("passed")
        with _idle():
            seen.right_without = run_once(exercise, answer, case).good
        if missing := exercise.demand(seen):
            return Attempt("demand", "The result is right, but one thing is asked for besides.", (missing,),
                           trace=(missing,))
        return Attempt("passed")

    return run


@contextlib.contextmanager
def _seen_by(seen: HostRun):
    """Every launch and every call of a library goes into `seen`, and is made."""
    replays, inside = [], []  # the stream on which a graph is being replayed; the library that is at work

    def ran(configured, *args):
        arrays = sum(isinstance(value, np.ndarray) for value in args)
        seen.launches.append(Launched(configured.kernel.__name__, configured.grid, configured.block, bool(replays),
                                      arrays, _number(configured.stream),
                                      tuple(str(value.dtype) for value in args if hasattr(value, "shape"))))
        seen.order.append(("launch", _number(configured.stream)))
        if not inside:  # a graph is ordered by the stream that replays it
            stream = replays[-1] if replays else _number(configured.stream)
            seen.streams.launch(configured.kernel, args, stream, configured.grid, bool(replays))
        return run(configured, *args)

    def replayed(graph, stream=0):
        seen.replays += 1
        replays.append(_number(stream))
        try:
            return replay(graph, stream)
        finally:
            replays.pop()

    def captured(graph, work):
        seen.captures += 1
        capture(graph, work)

    def called(product, *args, **options):
        seen.calls.append(product.__name__.removesuffix("_column_major"))
        return at_work(call, product, *args, **options)

    def tiled(stream, grid, program, args):
        seen.launches.append(Launched(program.__name__, tuple(grid), (), False, 0))
        return at_work(tile, stream, grid, program, args)

    def at_work(function, *args, **options):
        inside.append(function)
        try:
            return function(*args, **options)
        finally:
            inside.pop()

    def copied(array, ary=None, stream=0):
        values = copy(array, ary, stream)
        if not inside:
            seen.copies_to_host += 1
            seen.order.append(("copy back", _number(stream)))
            seen.streams.copy("the copy back", _number(stream), array, values)
        return values

    def sent(array, ary, stream=0):
        if not inside:
            seen.order.append(("copy there", _number(stream)))
            seen.streams.copy("the copy there", _number(stream), ary, array)
        return send(array, ary, stream)

    def made(obj, stream=0, *args, **options):
        array = make(obj, stream, *args, **options)
        if not inside and options.get("to") is None:
            seen.streams.copy("the copy there", _number(stream), None, array)
        return array

    def waited(stream=None):
        seen.order.append(("wait", _number(stream or 0)))
        seen.streams.wait(None if stream is None else _number(stream))

    def recorded(event, stream=0):
        seen.streams.record(event, _number(stream))
        return record(event, stream)

    def awaited(event, stream=0):
        seen.streams.wait_for(event, _number(stream))

    def host_awaited(event):
        seen.streams.wait_for(event)

    def asked(event):
        done = ask(event)
        if done:
            seen.streams.wait_for(event)
        return done

    run, replay, call, tile = (ConfiguredKernel.run, graphs._RecordedGraph.launch, blas._on_host, tiles.launch)
    copy, send, capture = DeviceNDArray.copy_to_host, DeviceNDArray.copy_to_device, graphs._RecordedGraph.__init__
    make, record, ask = cuda.to_device, Event.record, Event.query
    with _replaced(ran, replayed, called, tiled, copied, sent, waited, waited, captured, made, recorded, awaited,
                   host_awaited, asked):
        yield


def _number(stream) -> int:
    """A stream's handle; 0 for the default stream, which may be given as 0 or as an object."""
    return int(getattr(stream, "handle", stream) or 0)


def _idle():
    """No launch and no call of a library does anything."""
    return _replaced(*[lambda *args, **options: None] * 4)


@contextlib.contextmanager
def _replaced(*replacements):
    """Other functions for a launch, a graph's replay, a call of cuBLAS, the launch of a tile program, copies back and
    there, waiting for a stream and for all, the capture of a graph, to_device, recording an event, waiting for it on
    a stream and on the host, and asking whether it is done; for as many of them as are given."""
    owners = ((ConfiguredKernel, "run"), (graphs._RecordedGraph, "launch"), (blas, "_on_host"), (tiles, "launch"),
              (DeviceNDArray, "copy_to_host"), (DeviceNDArray, "copy_to_device"), (Stream, "synchronize"),
              (cuda, "synchronize"), (graphs._RecordedGraph, "__init__"), (cuda, "to_device"), (Event, "record"),
              (Event, "wait"), (Event, "synchronize"), (Event, "query"))[:len(replacements)]
    before = [getattr(owner, name) for owner, name in owners]
    try:
        for (owner, name), replacement in zip(owners, replacements, strict=True):
            setattr(owner, name, replacement)
        yield
    finally:
        for (owner, name), original in zip(owners, before, strict=True):
            setattr(owner, name, original)
