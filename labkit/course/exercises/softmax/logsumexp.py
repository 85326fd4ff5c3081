r"""From a blank page: log of the sum of exponentials

$$\text{out}_r = \log \sum_c e^{x_{r,c}}$$

Up to a subtraction, this is the loss of a language model. The elements go up to 120, where $e^x$ is beyond float32.
Write `logsumexp(x, out)` from the decorator down, with one thread per row, for blocks of 64.
"""

HINTS = ("What becomes of log(exp(a) + exp(b)) if you factor exp(a) out of the sum?",
         "Keep two values while you go through the row: the largest so far, and the sum of exp(x - largest) so far. "
         "When a larger element comes, multiply the sum by exp(old largest - new largest).",
         "Start with largest = x[row, 0] and total = float32(1.0), loop from column 1 on, and store largest + "
         "math.log(total).")
POINTS = 4
NEEDS = ("join_parts",)

import math

from numba import float32

from labkit import cuda

# %%
logsumexp = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def logsumexp(x, out):
    row = cuda.grid(1)
    if row < out.size:
        largest, total = x[row, 0], float32(1.0)
        for col in range(1, x.shape[1]):
            value = x[row, col]
            if value > largest:
                total *= math.exp(largest - value)  # what came before is measured against the new maximum
                largest = value
            total += math.exp(value - largest)
        out[row] = largest + math.log(total)


### END SOLUTION

# %% [check]
import numpy as np
from numba import float64

from labkit.course.exercises import EXPONENTIALS, ZEROS, Edit, KernelExercise, asks, of, uniform
from labkit.course.exercises.softmax import rows


@cuda.jit
def lse_overflows(x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = float32(0.0)
        for col in range(x.shape[1]):
            total += math.exp(x[row, col])
        out[row] = math.log(total)


@cuda.jit
def lse_two_passes(x, out):
    row = cuda.grid(1)
    if row < out.size:
        largest = x[row, 0]
        for col in range(x.shape[1]):
            largest = max(largest, x[row, col])
        total = float32(0.0)
        for col in range(x.shape[1]):
            total += math.exp(x[row, col] - largest)
        out[row] = largest + math.log(total)


@cuda.jit
def lse_overflows_in_float64(x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = 0.0
        for col in range(x.shape[1]):
            total += math.exp(float64(x[row, col]))
        out[row] = math.log(total)


def _lse_reference(x):
    x = x.astype(np.float64)
    m = x.max(axis=1)
    return m + np.log(np.exp(x - m[:, None]).sum(axis=1))


@asks("Each element is loaded once.")
def _one_pass(report) -> str | None:
    loads = report.counts["global_loads"]
    if loads <= 3 * 20:
        return None
    return (f"It loads {loads} elements for 3 rows of 20. One pass is enough: keep a running maximum and a running "
            f"sum, and correct the sum when the maximum changes.")


EXERCISE = KernelExercise(
    name="logsumexp",
    reference=_lse_reference,
    inputs=lambda rng, R, C: (80 * uniform(rng, R, C),),  # up to 120: exp of it is beyond float32
    shape=lambda R, C: (R,),
    sizes=rows((1, 1), (2, 2), (3, 20), (65, 7), (4, 300)),
    launch=lambda R, C: (-(-R // 64), 64),
    tolerance=lambda x: 2.0**-23 * (8 + 4 * np.sqrt(x.shape[1]) + 2 * np.abs(_lse_reference(x))),
    demand=_one_pass,
    observe_sizes=rows((1, 1), (3, 20)),
    domain=of(0, *EXPONENTIALS, ZEROS),
    wrong={
        "nothing is subtracted, and exp of 120 is infinite": lse_overflows,
        "nothing is subtracted, and float64 only postpones the overflow: exp(1000) is infinite there, too":
            lse_overflows_in_float64,
        "it reads every row twice": lse_two_passes,
        "the sum is not corrected when the maximum changes":
            Edit("if value > largest:\n"
                 "    total *= math.exp(largest - value)\n"
                 "    largest = value",
                 "largest = max(largest, value)"),
        "the maximum is left out of the result":
            Edit("out[row] = largest + math.log(total)", "out[row] = math.log(total)"),
    },
)

EQUIVALENT = {
    "guard: value > largest -> value >= largest": "An equal value rescales the sum by exp(0), which is 1.",
}

AFTER = r"""
The softmax of an element is then $e^{x - \text{out}}$: one subtraction and one exponential, without a maximum.
"""
