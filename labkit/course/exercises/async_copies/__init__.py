"""Three exercises: a prediction about groups of copies, a bug in a ring of two stages, and a ring of three from a blank
page. `hint("predict_groups")` gives a hint, and a second call a better one.

They run without a GPU: the CPU device delivers a copy at the wait for its group, as late as it is allowed to arrive.
"""

from numba import float32

from labkit.course.exercises import asks, times_used

FIRST_CELL = """from numba import float32

from labkit import check, cuda, hint, ptx
"""

ZERO = float32(0.0)


@asks("The rows of `a` are loaded by asynchronous copies, and by nothing else.")
def by_asynchronous_copies(report) -> str | None:
    copies, loads = times_used(report, "ptx.cp_async_4", "ptx.cp_async_16"), report.counts["global_loads"]
    if copies and copies >= loads:
        return None
    return (f"{copies:,} of {loads:,} loads from global memory are asynchronous copies, but all should be: start the "
            "copy of the next row with `ptx.cp_async_4`, so that it is in flight while this one is added.")
