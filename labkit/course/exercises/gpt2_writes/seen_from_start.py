"""Find the bug: where the row is

This kernel computes the softmax of rows of scores under a causal mask, one warp per row. Row t belongs to the query at
position `start[0] + t` of the text, since `start[0]` tokens came in earlier passes; column j belongs to the key at
position j. A query sees the keys up to its own position; the weights of all other keys are 0. While the prompt is
computed in one pass, the result is right. From the first token after it, the model writes nonsense.
"""

HINTS = ("start[0] is 20 and there is a single row. At which position is its query, and how many keys does the kernel "
         "let it see?",
         "Positions are counted from the beginning of the text: row t is at start[0] + t, and sees all keys up to "
         "there, its own among them.",
         "seen = start[0] + t + 1")
POINTS = 2
NEEDS = ("append_rows",)

import math

import numpy as np
from numba import float32

from labkit import cuda


# %%
@cuda.jit
def seen_from_start(scores, start, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    seen = t + 1

    largest = float32(-np.inf)
    for key in range(lane, seen, 32):
        largest = max(largest, scores[t, key])
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))

    total = float32(0.0)
    for key in range(lane, seen, 32):
        total += math.exp(scores[t, key] - largest)
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)

    for key in range(lane, scores.shape[1], 32):
        out[t, key] = math.exp(scores[t, key] - largest) / total if key < seen else float32(0.0)


### BEGIN SOLUTION
@cuda.jit
def seen_from_start(scores, start, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    seen = start[0] + t + 1  # the keys of earlier passes, and those of this one up to its own

    largest = float32(-np.inf)
    for key in range(lane, seen, 32):
        largest = max(largest, scores[t, key])
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))

    total = float32(0.0)
    for key in range(lane, seen, 32):
        total += math.exp(scores[t, key] - largest)
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)

    for key in range(lane, scores.shape[1], 32):
        out[t, key] = math.exp(scores[t, key] - largest) / total if key < seen else float32(0.0)


### END SOLUTION

# %% [check]
from labkit.course.exercises import EXPONENTIALS, Edit, KernelExercise, Reach, of, uniform


def _seen(scores, start):
    count, keys = scores.shape
    return np.arange(keys) <= int(start[0]) + np.arange(count)[:, None]


def _masked_softmax(scores, start):
    x = np.where(_seen(scores, start), scores.astype(np.float64), -np.inf)
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _hidden_far_above(rng, scores, start):
    return np.where(_seen(scores, start), scores, np.float32(10_000)), start


def _masked_tolerance(scores, start):
    far = np.where(_seen(scores, start), np.abs(scores), 0).max(axis=1, keepdims=True)
    return 2e-5 + 2.0**-21 * far * _masked_softmax(scores, start)


def _scores_inputs(rng, T, N, before):
    return 4 * uniform(rng, T, N), np.array([before], np.int32)


EXERCISE = KernelExercise(
    name="seen_from_start",
    reference=_masked_softmax,
    inputs=_scores_inputs,
    shape=lambda T, N, before: (T, N),
    sizes=tuple({"T": T, "N": N, "before": before} for T, N, before in
                ((3, 9, 4), (1, 30, 20), (5, 40, 34), (4, 70, 37), (33, 40, 0))),
    random_size=lambda rng: {"T": int(rng.integers(2, 8)), "N": int(rng.integers(50, 90)),
                             "before": int(rng.integers(1, 40))},
    launch=lambda T, N, before: (T, 32),
    benign_races=False,  # each weight is computed by one thread
    domain=(*of(0, *EXPONENTIALS), Reach("no token came before", lambda rng, scores, start: (scores, 0 * start)),
            Reach("hidden scores are far above those that are seen", _hidden_far_above)),
    tolerance=_masked_tolerance,
    wrong={"`start` is forgotten: the queries do not see the tokens that came before this pass":
        Edit("start[0] + t + 1", "t + 1"),
           "a query does not see its own token": Edit("start[0] + t + 1", "start[0] + t"),
           "every query sees all tokens of the pass, those after it as well":
               Edit("start[0] + t + 1", "start[0] + scores.shape[0]"),
           "the query's position in the pass is forgotten: all see as much as the first":
               Edit("start[0] + t + 1", "start[0] + 1"),
           "nothing is hidden": Edit("start[0] + t + 1", "scores.shape[1]"),
           "nothing is subtracted, and exp of a large score is infinite":
               Edit("largest = max(largest, scores[t, key])", "largest = float32(0.0)",
                    "float32(-np.inf)", "float32(0.0)"),
           "the largest begins at 0, and scores far below it vanish": Edit("float32(-np.inf)", "float32(0.0)")},
)
