"""Four exercises: a sum that starts over, a bug on the way down a tree, a prediction, and a compaction from a blank
page. `hint("sums_since")` gives a hint, and a second call a better one.
"""

from labkit.course.exercises import asks, elements_of_argument, one_reads_for_all

FIRST_CELL = """import numpy as np
from numba import int32

from labkit import check, cuda, hint
"""

SCANNED = 128  # elements of a block, a thread each


def in_steps(loads_a_step: int):
    """Seven steps with so many loads from shared memory, and each element of global memory loaded twice at most."""
    enough = loads_a_step * 7 * SCANNED

    @asks("Each element is loaded from global memory at most twice, and sums are built from sums, in seven "
          f"steps with at most {loads_a_step} loads from shared memory per thread and step.")
    def demand(report) -> str | None:
        arrays = len(report.arrays) - 1
        most = 2 * arrays * elements_of_argument(report, 0)
        loads, shared = report.counts["global_loads"], report.counts["shared_loads"]
        if loads > most:
            return (f"It loads {loads:,} elements from global memory, and {most:,} are enough: each thread loads its "
                    f"own. It finds the others in shared memory, as sums.")
        if shared > enough:
            return (f"It loads {shared:,} elements from shared memory; seven steps need {enough:,} at most. Add sums "
                    f"of sums, with twice the distance in each step.")
        return one_reads_for_all(report, loads_a_step * 7)

    return demand
