"""How long a launch takes: percentiles over many runs, and where they were taken.

    time_kernel(lambda: launch(...))   p5, p50, p95 in milliseconds
    time_host(call)                    the wall clock around a call
    time_graph(launch)                 one launch among many inside a CUDA graph; time_torch_graph(call) for PyTorch
    time_launch(launch)                what the caller pays for one launch in a row of many
    time_copy(nbytes)                  host to device and back

On a GPU a kernel is timed by one pair of CUDA events for each run. Before each run a buffer much larger than the L2
cache is written. That has two effects: no input is left in the cache, and the GPU is busy while Python enqueues the
events and the launch, so the events bracket the kernel and not Python (which takes about 50 us for a launch). Compile
time is left out. On the CPU device the time is the wall clock around launch and synchronise, and every result says so.
"""

from __future__ import annotations

import functools
import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np

from labkit import cuda, device
from labkit._common.tables import number
from labkit.device import CPU_DEVICE, graphs, where
from labkit.measure.machine import import_library

FLUSH_BYTES = 512 * 2**20  # ten times the L2 of an H200; written in about 0.15 ms there
GRAPH_LAUNCHES = 20
GRAPH_BUDGET_S, MIN_GRAPH_RUNS = 0.2, 5
HOST_CPU = "host CPU"
SMALL_MS = 1.0  # a kernel below this is timed in a graph, too


@dataclass(frozen=True)
class Timing:
    """Percentiles over `runs` runs, in milliseconds."""

    p5: float
    p50: float
    p95: float
    runs: int
    where: str

    @classmethod
    def of(cls, times_ms, where: str) -> Timing:
        p5, p50, p95 = (float(p) for p in np.percentile(times_ms, (5, 50, 95)))
        return cls(p5, p50, p95, len(times_ms), where)

    def percentiles(self, scale: float = 1) -> dict[str, float]:
        """Return p5, p50 and p95 as a series records them; scale: 1000 for microseconds."""
        return {name: scale * getattr(self, name) for name in ("p5", "p50", "p95")}

    def __str__(self) -> str:
        return (f"{number(self.p50)} ms (p5 {number(self.p5)}, p95 {number(self.p95)}; {self.runs} runs; "
                f"{self.where})")


def time_kernel(launch: Callable[[], None], *, budget_s: float = 0.6, min_runs: int = 5, max_runs: int = 100,
                flush: bool = True) -> Timing:
    """Time `launch()`, which enqueues work on the default stream: for about `budget_s`, at least `min_runs` times."""
    if not device.on_gpu():
        return time_host(launch, where=CPU_DEVICE, after=cuda.synchronize, budget_s=budget_s, min_runs=min_runs,
                         max_runs=max_runs)
    launch()  # compiles
    cuda.synchronize()
    begin = time.perf_counter()
    launch()
    cuda.synchronize()
    once = time.perf_counter() - begin
    runs = int(np.clip(budget_s / once, min_runs, max_runs))
    pairs = [(cuda.event(), cuda.event()) for _ in range(runs)]
    for start, stop in pairs:
        if flush:
            flush_cache()
        start.record()
        launch()
        stop.record()
    cuda.synchronize()
    return Timing.of([cuda.event_elapsed_time(start, stop) for start, stop in pairs], device.name())


def time_host(call: Callable[[], object], *, where: str = HOST_CPU, after: Callable[[], object] | None = None,
              budget_s: float = 0.6, min_runs: int = 5, max_runs: int = 100, warm_up: bool = True) -> Timing:
    """Wall clock around `call()` and, if given, `after()`. One run before the clock starts, if it has not run yet."""
    def once() -> float:
        begin = time.perf_counter()
        call()
        if after is not None:
            after()
        return time.perf_counter() - begin

    if warm_up:
        once()
    times = []
    while len(times) < min_runs or (sum(times) < budget_s and len(times) < max_runs):
        times.append(once())
    return Timing.of([1000 * t for t in times], where)


@cuda.jit
def fill_kernel(buffer, value):
    i = cuda.grid(1)
    if i < buffer.size:
        buffer[i] = value


@functools.cache
def _flush_buffer():
    return cuda.device_array(FLUSH_BYTES // 4, np.float32)


def flush_cache() -> None:
    """Evict everything else from the GPU's L2 cache by writing FLUSH_BYTES. Returns while the GPU still writes."""
    buffer = _flush_buffer()
    fill_kernel[-(-buffer.size // 256), 256](buffer, np.float32(1.0))


def time_graph(launch: Callable, *, launches: int = GRAPH_LAUNCHES, runs: int = 20) -> Timing | None:
    """Time of one launch inside a CUDA graph of `launches`, without Python's overhead. The inputs stay in the cache.

    `launch(stream)` must launch on that stream. None without a GPU, or where the launch cannot be captured: then it was
    not measured.
    """
    if not device.on_gpu():
        return None

    def many(stream):
        for _ in range(launches):
            launch(stream)

    try:
        graph = graphs.capture(many)
    except Exception as error:  # one rung that cannot be captured must not end the measurement of the others
        print(f"not measured in a graph: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return time_replay(graph.launch, launches, runs)


def time_torch_graph(call: Callable[[], object], *, launches: int = GRAPH_LAUNCHES, runs: int = 20) -> Timing | None:
    """As time_graph, for a call into PyTorch or Triton, or on_torchs_stream: captured by torch.cuda.CUDAGraph."""
    torch = import_library("torch") if device.on_gpu() else None
    if torch is None:
        return None
    before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(before)
    frozen = gc.get_freeze_count()
    try:
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose their kernels and allocate their workspace before the capture
                call()
        before.wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        gc.freeze()  # a capture begins with a collection: half a second over all that PyTorch and Numba have imported
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            for _ in range(launches):
                call()
    except Exception as error:
        torch.cuda.set_stream(before)  # a capture that fails leaves its own current, whose work no event would time
        print(f"not measured in a graph: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    finally:
        if not frozen:
            gc.unfreeze()
    return time_replay(graph.replay, launches, runs)


def on_torchs_stream(call: Callable[[], object]) -> Callable[[], object]:
    """A call into CuPy on PyTorch's current stream, so that time_torch_graph can capture it."""
    torch, cupy = import_library("torch"), import_library("cupy")

    def moved():
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            return call()

    return moved


def time_replay(replay: Callable[[], object], launches: int, runs: int) -> Timing:
    """The replay before each timed one keeps the GPU busy while Python enqueues the events and the graph. As many runs
    as fit into GRAPH_BUDGET_S, up to `runs`; MIN_GRAPH_RUNS at least, after two that do not count."""
    times = []
    began = time.perf_counter()
    while len(times) < runs + 2:
        if len(times) >= MIN_GRAPH_RUNS + 2 and time.perf_counter() - began > GRAPH_BUDGET_S:
            break
        start, stop = cuda.event(), cuda.event()
        replay()
        start.record()
        replay()
        stop.record()
        cuda.synchronize()
        times.append(cuda.event_elapsed_time(start, stop) / launches)
    return Timing.of(times[2:], f"{device.name()}, in a CUDA graph")


def graph_launches(once_ms: float) -> int:
    """Return how many launches make a replay take about 2 ms, long compared with the cost of starting it."""
    return int(np.clip(2.0 / once_ms, 4, 100))


def time_launch(launch: Callable[[], None], *, launches: int = 200) -> Timing:
    """What the caller pays for one launch: wall clock of many launches in a row, over their number."""
    launch()
    cuda.synchronize()
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(launches):
            launch()
        cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin) / launches)
    return Timing.of(times, where())


def time_copy(nbytes: int = 2**28) -> dict[str, dict]:
    """Copies between host and device: {"h2d_pageable": {"p50": ms, ..., "gbs": GB/s}, "h2d_pinned", "d2h_...", ...}.

    Pageable memory is what NumPy allocates; pinned memory stays where it is, so the GPU can read it directly.
    """
    count = nbytes // 4
    on_device = cuda.device_array(count, np.float32)
    pageable = np.ones(count, np.float32)
    pinned = cuda.pinned_array(count, np.float32)
    pinned[:] = 1.0
    result = {}
    for kind, host in (("pageable", pageable), ("pinned", pinned)):
        for direction, copy in (("h2d", lambda host=host: on_device.copy_to_device(host)),
                                ("d2h", lambda host=host: on_device.copy_to_host(host))):
            timing = time_host(copy, where=where(), after=cuda.synchronize, budget_s=0.3, max_runs=20)
            result[f"{direction}_{kind}"] = {**asdict(timing), "gbs": 4 * count / timing.p50 / 1e6}
    return result


def steps(label: str, items: list) -> Iterator:
    """Iterate over `items` and show on the terminal which one is running. Silent in a pipe or a notebook."""
    show = sys.stderr.isatty()
    for position, item in enumerate(items, 1):
        if show:
            name = item if isinstance(item, str) else getattr(item, "__name__", "")
            print(f"\r\033[K{label} {position}/{len(items)} {name}", end="", file=sys.stderr, flush=True)
        yield item
    if show:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
