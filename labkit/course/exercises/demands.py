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
WARP = 32
JOINING = 62  # calls of a shuffle that join 32 lanes at least: by 32 of them, then 16, 8, 4 and 2
LOOKED_UP = 4  # numbers that every lane of a warp may load: an index, a length
PARTIALS = 32  # numbers in shared memory that one lane may add up alone: a sum of each warp


@dataclass(frozen=True)
class Demand:
    """asked: the sentence below the exercise's text. unmet(report or run): why it is not met, in one, or None."""

    asked: str
    unmet: Callable

    def __call__(self, seen) -> str | None:
        return self.unmet(seen)


def asks(asked: str, *also: Demand) -> Callable[[Callable], Demand]:
    """Make a function a Demand that includes the checks of others."""
    def made(unmet: Callable) -> Demand:
        checks = (unmet, *also)
        return Demand(" ".join([asked, *(each.asked for each in also)]),
                      lambda seen: next((missing for each in checks if (missing := each(seen))), None))

    return made


def elements_of_argument(report, number: int) -> int:
    """How many elements an array of the launch has; arrays alone are counted."""
    _, shape, _ = list(report.arrays.values())[number]
    return int(np.prod(shape))


def times_used(report, *prefixes: str) -> int:
    """How often threads came to an instruction whose name begins so: "shfl_", "ptx.mma_"."""
    return sum(times for name, times in report.instructions.items() if name.startswith(prefixes))


@asks("The lanes of a warp share the loads evenly, each element is loaded by one of them, and they combine their "
      "results with shuffles.")
def shuffles(report) -> str | None:
    """What the lanes exchange must be of use: where each loads the whole row, or one loads nearly all of it, a shuffle
    is there for show."""
    made = times_used(report, "shfl_")
    if not made:
        return ("No shuffle was called, and this exercise is about shuffles: let each lane load its share of the row, "
                "and combine the lanes' results with the shuffles that the text names.")
    return _shared_by_lanes(report) or _joined(report, made)


def _shared_by_lanes(report) -> str | None:
    for warp, lanes in elements_of_warps(report, "load").items():
        loads, elements = sum(map(len, lanes.values())), len(set().union(*lanes.values()))
        if loads > 2 * elements + LOOKED_UP * WARP:
            return (f"The lanes of warp {warp} make {loads:,} loads of {elements:,} different elements: several lanes "
                    "load the same ones. Let each lane load every 32nd element of a row, and combine the lanes' "
                    "results with shuffles.")
        if uneven := _uneven(lanes, WARP, 3):
            return (f"Lane {uneven[0]} of warp {warp} loads {uneven[1]:,} of the {loads:,} elements that its 32 lanes "
                    "load. Let each lane load every 32nd element of a row.")
    for warp, lanes in elements_of_warps(report, "load", "shared").items():
        if uneven := _uneven(lanes, WARP, PARTIALS):
            return (f"Lane {uneven[0]} of warp {warp} reads {uneven[1]:,} elements from shared memory, and the others "
                    "hardly any: it does all the work. Let each lane do its share, and combine the results with "
                    "shuffles.")
    return None


def _joined(report, made: int) -> str | None:
    enough = JOINING * len(elements_of_warps(report, "store"))
    if made >= enough:
        return None
    return (f"Threads call shuffles {made:,} times, but combining all 32 lanes of each warp needs at least {enough:,} "
            "calls: five rounds, with the distance halved in each.")


def _uneven(of_threads: dict, threads: int, slack: int) -> tuple[int, int] | None:
    """(thread, elements) of the busiest of so many threads, if it has more than twice an even share and `slack`."""
    busiest = max(of_threads, key=lambda thread: len(of_threads[thread]))
    most = len(of_threads[busiest])
    return (busiest, most) if most > 2 * sum(map(len, of_threads.values())) / threads + slack else None


def several_threads(report) -> str | None:
    """In no block may one thread do all the work: all stores, or all loads. Asked of every kernel; a block that stores
    and loads little says nothing."""
    threads = int(np.prod(report.block))
    for kind, least in (("store", ALONE), ("load", ALONE_LOADED)):
        busy = [of_thread for of_thread in elements_of_threads(report, kind).values()
                if sum(of_thread.values()) >= least]
        if threads > 1 and busy and all(len(of_thread) == 1 for of_thread in busy):
            (thread, elements), = busy[0].items()
            return (f"Only thread {thread} of the {threads:,} in a block {kind}s anything: all {elements:,} elements "
                    f"that the block {kind}s. Let each thread do its share.")
    return None


def one_reads_for_all(report, enough: int) -> str | None:
    """No thread may read more numbers of shared memory than this, while the others wait for it."""
    busiest = max((len(elements) for lanes in elements_of_warps(report, "load", "shared").values()
                   for elements in lanes.values()), default=0)
    if busiest <= enough:
        return None
    return (f"One thread reads {busiest:,} elements from shared memory, and {enough:,} are enough: it does the other "
            "threads' work. Let each thread compute the sum for its own element.")


def elements_of_threads(report, kind: str) -> dict[int, dict[int, int]]:
    """{block: {thread: how many elements of global memory it loads, or stores}}; an atomic is a store."""
    threads, found = int(np.prod(report.block)), {}
    for thread, elements in _elements_by_thread(report, kind, "global").items():
        found.setdefault(thread // threads, {})[thread % threads] = len(elements)
    return found


def elements_of_warps(report, kind: str, space: str = "global") -> dict[int, dict[int, set]]:
    """{warp: {lane: the elements that it loads, or stores}}, warps counted through all blocks."""
    threads, found = int(np.prod(report.block)), {}
    of_block = -(-threads // WARP)
    for thread, elements in _elements_by_thread(report, kind, space).items():
        block, inside = divmod(thread, threads)
        found.setdefault(block * of_block + inside // WARP, {})[inside % WARP] = elements
    return found


def _elements_by_thread(report, kind: str, space: str) -> dict[int, set]:
    found = {}
    for (name, where), cells in report.touched.items():
        for (thread, address), kinds in cells.items():
            if where == space and (kind in kinds or (kind == "store" and "atomic" in kinds)):
                found.setdefault(thread, set()).add((name, address))
    return found


@asks("Every block and every thread does its share of the work.")
def whole_grid(report) -> str | None:
    """No block may idle while others do what it could, and no thread do the work of many: for launches that are
    smaller than their data."""
    threads, blocks = int(np.prod(report.block)), int(np.prod(report.grid))
    seen = min(blocks, DRAWN // threads)  # whose accesses were remembered
    for kind, does in (("store", "compute"), ("load", "load")):
        elements = elements_of_threads(report, kind)
        most = max((sum(of_thread.values()) for of_thread in elements.values()), default=0)
        idle = sorted(set(range(seen)) - set(elements))
        if idle and most > threads:
            do = f"{does}s" if len(idle) == 1 else does
            return (f"{len(idle):,} of the {seen:,} blocks {do} nothing (block {idle[0]} is the first), and others "
                    f"{does} up to {most:,} elements each. A grid-stride loop, from `cuda.grid(1)` in steps of "
                    "`cuda.gridsize(1)`, gives each block its share.")
    loads = _elements_by_thread(report, "load", "global")
    if loads and (uneven := _uneven(loads, min(blocks * threads, DRAWN), 3)):
        return (f"Thread {uneven[0]} of the grid loads {uneven[1]:,} elements, and the others hardly any. A "
                "grid-stride loop, from `cuda.grid(1)` in steps of `cuda.gridsize(1)`, gives each thread its share.")
    return None


@asks("The device computes the result, not the host.")
def on_the_device(run) -> str | None:
    """Kernels or a library must compute the result."""
    if not run.launches and not run.calls:
        return "Nothing was launched and no library was called: the result was computed on the host."
    if run.right_without:
        done = f"{len(run.launches)} launches" if run.launches else f"{len(run.calls)} calls of cuBLAS"
        return (f"The result does not come from the device: without the {done} it is the same. The host computes it, "
                "but the device should.")
    return None


@asks("The function returns an int.")
def whole_number(run) -> str | None:
    """The function counts something: what it returns can be given to a launch."""
    if isinstance(run.returned, (int, np.integer)):
        return None
    return f"The function returns a {type(run.returned).__name__}; it should return an int."
