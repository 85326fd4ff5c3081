"""PyTorch beside our kernels: what a graph of it takes, its profiler's events, and why a way to run it has no time."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from labkit import cuda
from labkit.measure.timing import time_torch_graph


def why_not(error: Exception) -> str:
    """What a series records in place of a time."""
    return f"{type(error).__name__}: {error}"[:200]


def still_compiling(until: float) -> None:
    """Raise TimeoutError past `until`, on time.monotonic's clock: from then on nothing more is compiled."""
    if time.monotonic() > until:
        raise TimeoutError("the time for compiling was used up")


def graph_ms(call: Callable, launches: int = 1) -> float:
    """The median of call() in a CUDA graph. Raises RuntimeError where it cannot be captured."""
    timing = time_torch_graph(call, launches=launches)
    if timing is None:
        raise RuntimeError("it could not be captured in a graph")
    return timing.p50


def profiler_events(work: Callable[[], None]) -> list[dict]:
    """What PyTorch's profiler sees of work(), in Chrome's format."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watched:
        work()
        cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
