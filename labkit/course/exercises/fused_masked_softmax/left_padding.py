"""Padding on the left

When a model generates text, all sequences of a batch have to end in the same column, where the next token goes. So the
padding comes first: in sequence b the keys from `size - lengths[b]` on are visible, and those before are hidden and get
the probability 0. A row of five scores with the length 2, for example, has three zeros and then two probabilities.

`scores` and `out` are (B, S, S), and each thread handles one row, query q of sequence b. Write the three loops: the
largest visible score, the sum of exponentials, and the quotients.
"""

HINTS = ("For a row of 5 and a length of 2: which keys are visible? And what has to be stored at the other three?",
         "The softmax of lesson 16 with loops that begin at `first`. Only the last loop runs over all keys, and stores "
         "0 before `first`.",
         "for k in range(first, size) for the largest and for the sum; then for k in range(size): out[b, q, k] = ... "
         "if k >= first else float32(0.0).")
POINTS = 2

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def left_padding(scores, lengths, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        first = size - lengths[b]
        ### BEGIN SOLUTION
        largest = float32(-math.inf)
        for k in range(first, size):
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(first, size):
            total += math.exp(scores[b, q, k] - largest)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k >= first else float32(0.0)
        ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EXPONENTIALS, Edit, KernelExercise, Reach, of, uniform
from labkit.course.exercises.fused_masked_softmax import few_roundings, hidden_above, matrices, probabilities


@cuda.jit
def left_as_right(scores, lengths, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        largest = float32(-math.inf)
        for k in range(lengths[b]):
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(lengths[b]):
            total += math.exp(scores[b, q, k] - largest)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k < lengths[b] else float32(0.0)


def _left_seen(scores, lengths):
    return np.arange(scores.shape[-1]) >= (scores.shape[-1] - lengths)[:, None, None]


def _left_reference(scores, lengths):
    return probabilities(scores, _left_seen(scores, lengths))


def _left_inputs(rng, B, S):
    lengths = rng.integers(1, S + 1, B).astype(np.int32)
    lengths[0] = (S + 1) // 2  # at least one sequence is padded, unless a row is one element
    return 5 * uniform(rng, B, S, S), lengths


EXERCISE = KernelExercise(
    name="left_padding",
    reference=_left_reference,
    inputs=_left_inputs,
    shape=lambda B, S: (B, S, S),
    sizes=matrices((1, 4), (2, 3), (1, 1), (3, 8), (4, 33), (2, 70)),
    launch=lambda B, S: ((-(-S // 64), B), (64, 1)),
    domain=(*of(0, *EXPONENTIALS), hidden_above(_left_seen),
            Reach("each sequence has one key", lambda rng, scores, lengths: (scores, np.ones_like(lengths))),
            Reach("no sequence is padded", lambda rng, scores, lengths: (scores, lengths * 0 + scores.shape[-1]))),
    tolerance=lambda scores, lengths: few_roundings(scores, _left_seen(scores, lengths)),
    wrong={
        "the last keys are hidden, not the first": left_as_right,
        "what is hidden is never written (check fills `out` with NaN)":
            Edit("for k in range(size):", "for k in range(first, size):",
                 "total if k >= first else float32(0.0)", "total"),
        "one key too many is visible": Edit("first = size - lengths[b]", "first = max(size - lengths[b] - 1, 0)"),
        "the length is looked up by the query's index, not by the sequence's":
            Edit("first = size - lengths[b]", "first = size - lengths[q % lengths.size]"),
        "nothing is subtracted, and exp of a large score is infinite":
            Edit("largest = max(largest, scores[b, q, k])", "largest = float32(0.0)"),
        "the largest begins at 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "the score of the query's own key is used as the largest":
            Edit("for k in range(first, size):\n"
                 "    largest = max(largest, scores[b, q, k])",
                 "largest = scores[b, q, q]"),
    },
)
