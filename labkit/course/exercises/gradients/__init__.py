"""
Three exercises. Predict the shapes and bytes of a backward pass, write the gradient of a bias before a SiLU from a
blank page, and add up the gradient of a gather in a fixed order. `hint("predict_backward")` gives a hint, and a second
call a better one.
"""

from labkit.course.exercises import asks

FIRST_CELL = """import math

from numba import float32

from labkit import check, cuda, hint
"""


@asks("Nothing is added atomically.")
def without_atomics(report) -> str | None:
    """The order of the sum must not depend on which block comes first."""
    if not report.counts["global_atomics"] and not report.counts["shared_atomics"]:
        return None
    return ("It adds atomically, so the order of the sum, and with it the last bits, may differ from run to run. Let "
            "one thread compute each element, or store partial sums and add these up in order.")
