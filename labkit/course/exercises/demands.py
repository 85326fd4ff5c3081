"""What several exercises demand of an answer whose result is right: what was counted, and what was asked for.

A demand has the sentence that a learner reads below the exercise's text; given what happened, it returns another one,
or None if it is met. `report` is what observe saw of a kernel,
`run` what the CPU device saw of a function of the host (labkit.course.check.host_runs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit.simt.observer.drawing import DRAWN

ALONE = 8  # stored elements of a block: with fewer there may be no work for a second thread
ALONE_LOADED = 33  # loaded ones: one thread may look up an index or a length in each of a few tables


@dataclass(frozen=True)
class Demand:
    """asked: the sentence below the exercise's text. unmet(report or run): why it is not met, in one, or None."""

    asked: str
    unmet: Callable

    def __call__(self, seen) -> str | None:
        return self.unmet(seen)


def asks(asked: str) -> Callable[[Callable], Demand]:
    """Makes a function a Demand."""
    return lambda unmet: Demand(asked, unmet)


def elements_of_argument(report, number: int) -> int:
    """How many elements an array of the launch has; arrays alone are counted."""
    _, shape, _ = list(report.arrays.values())[number]
    return int(np.prod(shape))


def times_used(report, *prefixes: str) -> int:
    """How often threads came to an instruction whose name begins so: "shfl_", "ptx.mma_"."""
    return sum(times for name, times in report.instructions.items() if name.startswith(prefixes))


@asks("The lanes of a warp join their results with shuffles.")
def shuffles(report) -> str | None:
    """The lanes of a warp must exchange values."""
    if times_used(report, "shfl_"):
        return None
    return ("No shuffle was made, and this exercise is about that way: let each lane take its share of the row, and "
            "join the lanes' results with the shuffles that the text names.")


def several_threads(report) -> str | None:
    """In no block may one thread do all the work: all stores, or all loads. Asked of every kernel; a block that stores
    and loads little says nothing."""
    threads = int(np.prod(report.block))
    for kind, least in (("store", ALONE), ("load", ALONE_LOADED)):
        busy = [of_thread for of_thread in elements_of_threads(report, kind).values()
                if sum(of_thread.values()) >= least]
        if threads > 1 and busy and all(len(of_thread) == 1 for of_thread in busy):
            (thread, elements), = busy[0].items()
            return (f"Of the {threads:,} threads of a block one alone, number {thread}, {kind}s all {elements:,} "
                    f"elements that the block {kind}s. The launch has threads for all of them: let each do its share.")
    return None


def elements_of_threads(report, kind: str) -> dict[int, dict[int, int]]:
    """{block: {thread: how many elements of global memory it loads, or stores}}; an atomic does both."""
    threads, found = int(np.prod(report.block)), {}
    for (_, space), cells in report.touched.items():
        for (thread, _), kinds in cells.items():
            if space == "global" and (kind in kinds or "atomic" in kinds):
                of_block = found.setdefault(thread // threads, {})
                of_block[thread % threads] = of_block.get(thread % threads, 0) + 1
    return found


@asks("Every block does its share of the work.")
def whole_grid(report) -> str | None:
    """No block may idle while others do what it could: for launches that are smaller than their data."""
    blocks, stores = int(np.prod(report.grid)), elements_of_threads(report, "store")
    blocks = min(blocks, DRAWN // int(np.prod(report.block)))  # whose accesses were remembered
    most = max((sum(of_thread.values()) for of_thread in stores.values()), default=0)
    idle = sorted(set(range(blocks)) - set(stores))
    if not idle or most <= int(np.prod(report.block)):
        return None
    return (f"Of {blocks:,} blocks {len(idle):,} compute nothing (block {idle[0]} is the first), and others compute up "
            f"to {most:,} elements each. A step of the whole grid, `cuda.gridsize(1)`, from `cuda.grid(1)` on gives "
            "each block its share.")


@asks("The device computes the result, not the host.")
def on_the_device(run) -> str | None:
    """Kernels or a library must compute the result."""
    if not run.launches and not run.calls:
        return "Nothing was launched and no library was called: the result was computed on the host."
    if run.right_without:
        done = f"{len(run.launches)} launches" if run.launches else f"{len(run.calls)} calls of cuBLAS"
        return (f"Of {done} none computes the result: with all of them left out it is the same. The host computes it, "
                "and the device is asked for.")
    return None


@asks("What is returned is an int.")
def whole_number(run) -> str | None:
    """The function counts something: what it returns can be given to a launch."""
    if isinstance(run.returned, (int, np.integer)):
        return None
    return f"What is returned is a {type(run.returned).__name__}, and a whole number is asked for: an int."
