"""What several exercises demand of an answer whose result is right: what was counted, and what was asked for.

A demand is given what happened, and returns a sentence, or None if it is met. `report` is what observe saw of a kernel,
`run` what the CPU device saw of a function of the host (labkit.course.check.host_runs).
"""

from __future__ import annotations

import numpy as np


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


def all_lanes(report) -> str | None:
    """At least a quarter of a warp's lanes, on average, take part in an access to global memory."""
    accesses = report.counts["global_loads"] + report.counts["global_stores"]
    requests = report.counts["global_requests"]
    if accesses >= 8 * requests:
        return None
    return (f"The threads make {accesses:,} accesses to global memory in {requests:,} requests of their warps, "
            f"{accesses / requests:.1f} in each, where 32 lanes can share one. Divide the work among the threads as "
            "the text says: one thread that does it all keeps the others waiting.")


def on_the_device(run) -> str | None:
    """Kernels or a library must compute the result."""
    if not run.launches and not run.calls:
        return "Nothing was launched and no library was called: the result was computed on the host."
    if run.right_without:
        done = f"{len(run.launches)} launches" if run.launches else f"{len(run.calls)} calls of cuBLAS"
        return (f"Of {done} none computes the result: with all of them left out it is the same. The host computes it, "
                "and the device is asked for.")
    return None
