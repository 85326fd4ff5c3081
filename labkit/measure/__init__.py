"""Timing: how long a launch takes, on what device, and compared with what.

    ladder(MATMUL)                     every rung and its baselines, checked and timed
    time_kernel(lambda: launch(...))   p5, p50, p95 in milliseconds, and where they were taken
    time_copy(nbytes)                  host to device and back
    recorded_ladder("matmul")          a ladder as recorded on a GPU; recorded_series(name) for a series
    machine()                          GPU, driver, versions, date

The names live in labkit.measure.timing, .machine, .recorded or .ladder.
"""

from labkit.device import CPU_DEVICE, where
from labkit.measure.ladder import (
    TORCH_TENSORS,
    Ladder,
    LadderRow,
    baselines_of,
    days,
    hand_over,
    ladder,
    recorded_ladder,
)
from labkit.measure.machine import import_library, machine, slug, stamped, torch_on_gpu
from labkit.measure.recorded import recorded, recorded_series
from labkit.measure.timing import (
    SMALL_MS,
    Timing,
    fill_kernel,
    flush_cache,
    steps,
    time_copy,
    time_graph,
    time_host,
    time_kernel,
    time_launch,
    time_torch_graph,
)

__all__ = [
    "CPU_DEVICE", "SMALL_MS", "TORCH_TENSORS", "Ladder", "LadderRow", "Timing", "baselines_of", "days", "fill_kernel",
    "flush_cache", "hand_over", "import_library", "ladder", "machine", "recorded", "recorded_ladder",
    "recorded_series", "slug", "stamped", "steps", "time_copy", "time_graph", "time_host", "time_kernel",
    "time_launch", "time_torch_graph", "torch_on_gpu", "where",
]
