"""Find the bug: NaN in the first rows

This is a causal softmax with one thread per row. It is right for every random matrix that I tried. In a trained model
its first rows came out as NaN.
"""

HINTS = ("In row 0 one score is visible. What is its exponential if the largest score of the whole row is 200 higher?",
         "exp(-200) is 0 in float32. If all visible scores of a row are that far below the maximum, the sum is 0, too.",
         "The loop for the largest has to end where the other loop ends: range(q + 1).")
POINTS = 2
NEEDS = ("left_padding",)

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def largest_seen(scores, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        largest = float32(-math.inf)
        for k in range(size):
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(q + 1):
            total += math.exp(scores[b, q, k] - largest)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k <= q else float32(0.0)


### BEGIN SOLUTION
@cuda.jit
def largest_seen(scores, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        largest = float32(-math.inf)
        for k in range(q + 1):  # without what is hidden, next to which the others may vanish
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(q + 1):
            total += math.exp(scores[b, q, k] - largest)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k <= q else float32(0.0)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EXPONENTIALS, Edit, KernelExercise, of, uniform
from labkit.course.exercises.fused_masked_softmax import few_roundings, hidden_above, matrices, probabilities


@cuda.jit
def largest_without_the_diagonal(scores, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        largest = scores[b, q, 0]
        for k in range(q):
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(q):
            total += math.exp(scores[b, q, k] - largest)
        total = total if q > 0 else float32(1.0)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k <= q else float32(0.0)


def _causal_seen(scores):
    return np.tril(np.ones(scores.shape[-2:], bool))


def _causal_inputs(rng, B, S):
    """What the mask hides is larger by 200 than what it leaves, as scores of the future may well be."""
    scores = 5 * uniform(rng, B, S, S)
    scores[:, np.triu(np.ones((S, S), bool), 1)] += np.float32(200.0)
    return (scores,)


EXERCISE = KernelExercise(
    name="largest_seen",
    reference=lambda scores: probabilities(scores, _causal_seen(scores)),
    inputs=_causal_inputs,
    shape=lambda B, S: (B, S, S),
    sizes=matrices((1, 3), (1, 1), (2, 8), (3, 33), (1, 70)),
    launch=lambda B, S: ((-(-S // 64), B), (64, 1)),
    domain=(*of(0, *EXPONENTIALS), hidden_above(_causal_seen)),
    tolerance=lambda scores: few_roundings(scores, _causal_seen(scores)),
    wrong={
        "the search for the largest includes hidden scores, next to which all others vanish":
            Edit("for k in range(q + 1):\n"
                 "    largest = max(largest, scores[b, q, k])",
                 "for k in range(size):\n"
                 "    largest = max(largest, scores[b, q, k])"),
        "the diagonal is left out, but a query sees its own key": largest_without_the_diagonal,
        "hidden scores count in the sum":
            Edit("for k in range(q + 1):\n"
                 "    total += math.exp(scores[b, q, k] - largest)",
                 "for k in range(size):\n"
                 "    total += math.exp(scores[b, q, k] - largest)"),
        "nothing is subtracted, and exp of a large score is infinite":
            Edit("for k in range(q + 1):\n"
                 "    largest = max(largest, scores[b, q, k])",
                 "largest = float32(0.0)"),
        "the largest begins at 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "the score of the query's own key is used as the largest":
            Edit("for k in range(q + 1):\n"
                 "    largest = max(largest, scores[b, q, k])",
                 "largest = scores[b, q, q]"),
    },
)
