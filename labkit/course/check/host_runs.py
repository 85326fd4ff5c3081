"""What a function of the host did on the CPU device: its launches, its graphs, its calls of libraries.

A function that computes on the host what a kernel or a library should compute gives itself away: its result is right
even where launches and calls do nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from labkit import cuda
from labkit.course.check.stream_order import StreamOrder
from labkit.device import graphs
from labkit.kernels.libraries import blas
from labkit.kernels.libraries import cutile_model as tiles
from labkit.simt import observe
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
    observed: Callable = field(default=None, compare=False)  # () -> the Report of the same launch, made once more


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


@contextlib.contextmanager
def recording(host_run: HostRun):
    """Record every launch and library call in `host_run`, and make it."""
    replays, active = [], []  # the stream on which a graph is being replayed; the library that is at work

    def on_launch(configured, *args):
        arrays = sum(isinstance(value, np.ndarray) for value in args)
        host_run.launches.append(Launched(configured.kernel.__name__, configured.grid, configured.block, bool(replays),
                                          arrays, _stream_handle(configured.stream),
                                          tuple(str(value.dtype) for value in args if hasattr(value, "shape")),
                                          lambda: observe(configured, *args)))
        host_run.order.append(("launch", _stream_handle(configured.stream)))
        if not active:  # a graph is ordered by the stream that replays it
            stream = replays[-1] if replays else _stream_handle(configured.stream)
            host_run.streams.launch(configured.kernel, args, stream, configured.grid, bool(replays))
        return run(configured, *args)

    def on_replay(graph, stream=0):
        host_run.replays += 1
        replays.append(_stream_handle(stream))
        try:
            return replay(graph, stream)
        finally:
            replays.pop()

    def on_capture(graph, work):
        host_run.captures += 1
        capture(graph, work)

    def on_library_call(product, *args, **options):
        host_run.calls.append(product.__name__.removesuffix("_column_major"))
        return run_active(call, product, *args, **options)

    def on_tile_launch(stream, grid, program, args):
        host_run.launches.append(Launched(program.__name__, tuple(grid), (), False, 0))
        return run_active(tile, stream, grid, program, args)

    def run_active(function, *args, **options):
        active.append(function)
        try:
            return function(*args, **options)
        finally:
            active.pop()

    def on_copy_to_host(array, ary=None, stream=0):
        values = copy(array, ary, stream)
        if not active:
            host_run.copies_to_host += 1
            host_run.order.append(("copy back", _stream_handle(stream)))
            host_run.streams.copy("the copy back", _stream_handle(stream), array, values)
        return values

    def on_copy_to_device(array, ary, stream=0):
        if not active:
            host_run.order.append(("copy there", _stream_handle(stream)))
            host_run.streams.copy("the copy there", _stream_handle(stream), ary, array)
        return send(array, ary, stream)

    def on_to_device(obj, stream=0, *args, **options):
        array = make(obj, stream, *args, **options)
        if not active and options.get("to") is None:
            host_run.streams.copy("the copy there", _stream_handle(stream), None, array)
        return array

    def on_synchronize(stream=None):
        host_run.order.append(("wait", _stream_handle(stream or 0)))
        host_run.streams.wait(None if stream is None else _stream_handle(stream))

    def on_record(event, stream=0):
        host_run.streams.record(event, _stream_handle(stream))
        return record(event, stream)

    def on_stream_wait(event, stream=0):
        host_run.streams.wait_for(event, _stream_handle(stream))

    def on_host_wait(event):
        host_run.streams.wait_for(event)

    def on_query(event):
        done = ask(event)
        if done:
            host_run.streams.wait_for(event)
        return done

    run, replay, call, tile = (ConfiguredKernel.run, graphs._RecordedGraph.launch, blas._on_host, tiles.launch)
    copy, send, capture = DeviceNDArray.copy_to_host, DeviceNDArray.copy_to_device, graphs._RecordedGraph.__init__
    make, record, ask = cuda.to_device, Event.record, Event.query
    with _replaced(on_launch, on_replay, on_library_call, on_tile_launch, on_copy_to_host, on_copy_to_device,
                   on_synchronize, on_synchronize, on_capture, on_to_device, on_record, on_stream_wait, on_host_wait,
                   on_query):
        yield


def _stream_handle(stream) -> int:
    """A stream's handle; 0 for the default stream, which may be given as 0 or as an object."""
    return int(getattr(stream, "handle", stream) or 0)


def idle():
    """Within the block, launches and library calls do nothing."""
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
    originals = [getattr(owner, name) for owner, name in owners]
    try:
        for (owner, name), replacement in zip(owners, replacements, strict=True):
            setattr(owner, name, replacement)
        yield
    finally:
        for (owner, name), original in zip(owners, originals, strict=True):
            setattr(owner, name, original)
