"""What several exercises demand of an answer whose result is right: what was counted, and what was asked for.

A demand is given what happened, and returns a sentence, or None if it is met. `report` is what observe saw of a kernel,
`run` what the CPU device saw of a function of the host (labkit.course.check.host_runs).
"""

from __future__ import annotations

import numpy as np

ALONE = 8  # elements of a block: with fewer there may be no work for a second thread


def elements_of_argument(report, number: int) -> int:
    """How many elements an array of the launch has; arrays alone are counted."""
    _, shape, _ = list(report.arrays.values())[number]
    return int(np.prod(shape))


def times_used(report, *prefixes: str) -> int:
    """How often threads came to an instruction whose name begins so: "shfl_", "ptx.mma_"."""
    return sum(times for name, times in report.instructions.items() if name.startswith(prefixes))


def shuffles(report) -> str | None:
    """The lanes of a warp must exchange values."""
    if times_used(report, "shfl_"):
        return None
    return ("No shuffle was made, and this exercise is about that way: let each lane take its share of the row, and "
            "join the lanes' results with the shuffles that the text names.")


def several_threads(report) -> str | None:
    """In no block may one thread do all the work. Asked of every kernel; a block that stores little says nothing."""
    threads = int(np.prod(report.block))
    stores = {}  # block: {thread: how many elements it stores}, of the first threads of the launch
    for (_, space), cells in report.touched.items():
        for (thread, _), kinds in cells.items():
            if space == "global" and "store" in kinds:
                of_block = stores.setdefault(thread // threads, {})
                of_block[thread % threads] = of_block.get(thread % threads, 0) + 1
    busy = [of_block for of_block in stores.values() if sum(of_block.values()) >= ALONE]
    if threads == 1 or not busy or any(len(of_block) > 1 for of_block in busy):
        return None
    (thread, elements), = busy[0].items()
    return (f"Of the {threads:,} threads of a block one alone, number {thread}, stores all {elements:,} elements that "
            "the block stores. The launch has threads for all of them: let each do its share.")


def on_the_device(run) -> str | None:
    """Kernels or a library must compute the result."""
    if not run.launches and not run.calls:
        return "Nothing was launched and no library was called: the result was computed on the host."
    if run.right_without:
        done = f"{len(run.launches)} launches" if run.launches else f"{len(run.calls)} calls of cuBLAS"
        return (f"Of {done} none computes the result: with all of them left out it is the same. The host computes it, "
                "and the device is asked for.")
    return None
