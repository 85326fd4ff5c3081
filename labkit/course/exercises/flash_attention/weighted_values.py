"""Find the bug: corrected, but not all of it

The last step of attention, with the scores already computed: a row of `out` is the average of all values, weighted by
the softmax of a row of scores. One thread computes one element of `out` and goes through the row once, with three
variables, `row_max`, `row_sum` and `acc`. For rows that begin with their largest score the result is right; for others
it is not.
"""

HINTS = ("Take the scores [0, 5]. What are row_sum and acc after the second of them, and against which maximum is each "
         "of their terms measured?",
         "row_sum and acc are both sums of exponentials measured against row_max. When row_max changes, both have to "
         "be corrected.",
         "acc = acc * math.exp(row_max - new) + weight * values[j, i]")
POINTS = 2

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def weighted_values(scores, values, out):
    i, row = cuda.grid(2)
    if row < out.shape[0] and i < out.shape[1]:
        row_max, row_sum, acc = scores[row, 0], float32(1.0), values[0, i]
        for j in range(1, scores.shape[1]):
            new = max(row_max, scores[row, j])
            weight = math.exp(scores[row, j] - new)
            row_sum = row_sum * math.exp(row_max - new) + weight
            acc = acc + weight * values[j, i]
            row_max = new
        out[row, i] = acc / row_sum


### BEGIN SOLUTION
@cuda.jit
def weighted_values(scores, values, out):
    i, row = cuda.grid(2)
    if row < out.shape[0] and i < out.shape[1]:
        row_max, row_sum, acc = scores[row, 0], float32(1.0), values[0, i]
        for j in range(1, scores.shape[1]):
            new = max(row_max, scores[row, j])
            factor, weight = math.exp(row_max - new), math.exp(scores[row, j] - new)
            row_sum = row_sum * factor + weight
            acc = acc * factor + weight * values[j, i]  # a sum of the same exponentials
            row_max = new
        out[row, i] = acc / row_sum


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, EXPONENTIALS, HUGE_AND_TINY, ZEROS, Edit, KernelExercise, of, uniform
from labkit.course.exercises.flash_attention import sizes_of, softmax


@cuda.jit
def average_unshifted(scores, values, out):
    i, row = cuda.grid(2)
    if row < out.shape[0] and i < out.shape[1]:
        row_sum, acc = float32(0.0), float32(0.0)
        for j in range(scores.shape[1]):
            weight = math.exp(scores[row, j])
            row_sum = row_sum + weight
            acc = acc + weight * values[j, i]
        out[row, i] = acc / row_sum


def _climbing(rng, Q, N, D):
    """Scores that climb along each row, so that the largest changes again and again; every second long row climbs so
    far that exp of its last score less its first is infinite in float32."""
    scores = 2 * uniform(rng, Q, N) + np.linspace(-4, 4, N, dtype=np.float32)
    if N >= 100:
        scores[::2] += np.linspace(-60, 60, N, dtype=np.float32)
    return scores, uniform(rng, N, D)


def _average_tolerance(scores, values):
    weights = softmax(scores)
    each = 16 + 4 * np.sqrt(scores.shape[1]) + 4 * np.abs(scores).max(axis=1, keepdims=True)
    return EPS32 * (weights * each) @ np.abs(values)


EXERCISE = KernelExercise(
    name="weighted_values",
    reference=lambda scores, values: softmax(scores.astype(np.float64)) @ values.astype(np.float64),
    inputs=_climbing,
    shape=lambda Q, N, D: (Q, D),
    sizes=sizes_of("QND", (1, 12, 3), (3, 20, 5), (2, 1, 40), (5, 33, 16), (9, 100, 33)),
    launch=lambda Q, N, D: ((-(-D // 32), -(-Q // 4)), (32, 4)),
    tolerance=_average_tolerance,
    domain=(*of(0, *EXPONENTIALS, ZEROS), *of(1, HUGE_AND_TINY)),
    wrong={
        "`row_sum` is corrected but `acc` is not, or only by a factor of 1, computed after `row_max` has changed":
            Edit("acc = acc * factor", "acc = acc"),
        "`acc` is corrected but `row_sum` is not": Edit("row_sum = row_sum * factor", "row_sum = row_sum"),
        "the new term is multiplied by the factor, too":
            Edit("row_sum * factor + weight", "(row_sum + weight) * factor",
                 "acc * factor + weight * values[j, i]", "(acc + weight * values[j, i]) * factor"),
        "`row_max` never becomes `new`": Edit("row_max = new", ""),
        "the factor is exp(row_max - new), never more than 1; this is its inverse":
            Edit("math.exp(row_max - new)", "math.exp(new - row_max)"),
        "the first score instead of the largest: exponentials of far larger ones are infinite":
            Edit("new = max(row_max, scores[row, j])", "new = row_max"),
        "the division by `row_sum` is missing": Edit("acc / row_sum", "acc"),
        "nothing is subtracted, and exp of a large score is infinite": average_unshifted,
    },
)

AFTER = """
Why does the bug not show when the largest score comes first?
"""
