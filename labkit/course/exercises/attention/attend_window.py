r"""From a blank page: a window of keys

Some models let a query see only the most recent keys: its own and the `window - 1` before it. One head of 64 elements:
`queries`, `keys`, `values` and `out` (N, 64), and `window`, at most 64.

$$\text{out}_t = \sum_{j = t - window + 1}^{t} \text{softmax}_j\left(\frac{q_t \cdot k_j}{8}\right) v_j$$

The first queries have fewer keys before them, and see only those. With a window of 3, query 1 sees the keys 0 and 1,
and query 10 sees 8, 9 and 10. A block has 64 threads and one query: `blockIdx.x` is t.

Write `attend_window(queries, keys, values, window, out)` from the decorator down.
"""

HINTS = ("What is the first key that query t sees, if the window is 64 and t is 100? And if t is 10?",
         "The window begins at max(t - window + 1, 0). Thread j computes the score of the window's j-th key and "
         "stores it in shared memory; after a barrier each thread has one column of the values.",
         "weights = cuda.shared.array(64, float32); if thread < seen: weights[thread] = ...; cuda.syncthreads(); then "
         "two loops over range(seen): the first finds row_max, the second adds up exp(weights[j] - row_max), and the "
         "same times values[begin + j, thread]. Store acc / row_sum.")
POINTS = 4
NEEDS = ("query_scores",)

import math

from numba import float32

from labkit import cuda

# %%
attend_window = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_window(queries, keys, values, window, out):
    weights = cuda.shared.array(64, float32)
    t, thread = cuda.blockIdx.x, cuda.threadIdx.x
    begin = max(t - window + 1, 0)
    seen = t + 1 - begin
    if thread < seen:  # a thread takes one key
        score = float32(0.0)
        for i in range(64):
            score += queries[t, i] * keys[begin + thread, i]
        weights[thread] = score * float32(0.125)
    cuda.syncthreads()
    row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
    for j in range(seen):
        row_max = max(row_max, weights[j])
    for j in range(seen):  # a thread takes one column of the values
        weight = math.exp(weights[j] - row_max)
        row_sum += weight
        acc += weight * values[begin + j, thread]
    out[t, thread] = acc / row_sum


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, HUGE_AND_TINY, ZEROS, Edit, KernelExercise, Reach, asks, of, uniform
from labkit.course.exercises.attention import WIDE, sizes_of


@cuda.jit
def attend_all_before(queries, keys, values, window, out):
    weights = cuda.shared.array(64, float32)
    t, thread = cuda.blockIdx.x, cuda.threadIdx.x
    row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
    for first in range(0, t + 1, 64):
        key = first + thread
        score = float32(-math.inf)
        if key <= t:
            score = float32(0.0)
            for i in range(64):
                score += queries[t, i] * keys[key, i]
            score *= float32(0.125)
        weights[thread] = score if key > t - window else float32(-math.inf)
        cuda.syncthreads()
        for j in range(min(64, t + 1 - first)):
            if weights[j] > float32(-math.inf):
                new = max(row_max, weights[j])
                factor, weight = math.exp(row_max - new), math.exp(weights[j] - new)
                row_sum = row_sum * factor + weight
                acc = acc * factor + weight * values[first + j, thread]
                row_max = new
        cuda.syncthreads()
    out[t, thread] = acc / row_sum


@cuda.jit
def attend_window_alone(queries, keys, values, window, out):
    t, thread = cuda.blockIdx.x, cuda.threadIdx.x
    begin = max(t - window + 1, 0)
    row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
    for j in range(begin, t + 1):
        score = float32(0.0)
        for i in range(64):
            score += queries[t, i] * keys[j, i]
        score *= float32(0.125)
        new = max(row_max, score)
        factor, weight = math.exp(row_max - new), math.exp(score - new)
        row_sum = row_sum * factor + weight
        acc = acc * factor + weight * values[j, thread]
        row_max = new
    out[t, thread] = acc / row_sum


def _in_window(tokens: int, window: int):
    query, key = np.arange(tokens)[:, None], np.arange(tokens)
    return (key <= query) & (key > query - window)


def _window_weights(queries, keys, window):
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T / 8
    scores = np.where(_in_window(len(keys), window), scores, -np.inf)
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _window_inputs(rng, N, W):
    """The scores of every second query are all far below 0, where exp of them is 0."""
    queries, keys = uniform(rng, N, WIDE), uniform(rng, N, WIDE) + np.float32(3.0)
    queries[::2] -= np.float32(7.0)
    return queries, keys, uniform(rng, N, WIDE), W


def _window_tolerance(queries, keys, values, window):
    sizes = np.abs(queries) @ np.abs(keys).T / 8
    # One EPS32 of a size is the standard deviation of a score that is summed in order; a weight has in it the errors of
    # two scores, its own and the largest one.
    each = 16 + 4 * np.sqrt(window) + 10 * sizes.max(axis=1, keepdims=True)
    return EPS32 * (_window_weights(queries, keys, window) * each) @ np.abs(values)


OBSERVED_WINDOW = {"N": 12, "W": 3}


@asks("A block computes each of its scores once, and loads nothing from before its window.")
def _window_read_once(report) -> str | None:
    pairs = int(_in_window(OBSERVED_WINDOW["N"], OBSERVED_WINDOW["W"]).sum())
    most, loads = 3 * WIDE * pairs, report.counts["global_loads"]
    if loads <= most:
        return None
    return (f"For {OBSERVED_WINDOW['N']} tokens and a window of {OBSERVED_WINDOW['W']} the kernel loads {loads:,} "
            f"elements, and {most:,} are enough: the query, the key and the value of each query and each key in its "
            f"window, once per block. Leave out the keys before the window, let one thread compute each score, and "
            f"share the scores through shared memory.")


EXERCISE = KernelExercise(
    name="attend_window",
    reference=lambda queries, keys, values, window:
        _window_weights(queries, keys, window) @ values.astype(np.float64),
    inputs=_window_inputs,
    shape=lambda N, W: (N, WIDE),
    sizes=(OBSERVED_WINDOW, *sizes_of("NW", (1, 1), (5, 64), (70, 64), (100, 7), (9, 2))),
    random_size=lambda rng: {"N": int(rng.integers(3, 40)), "W": int(rng.integers(2, 20))},
    observe_sizes=(OBSERVED_WINDOW,),
    launch=lambda N, W: (N, 64),
    tolerance=_window_tolerance,
    demand=_window_read_once,
    domain=(Reach("the window holds a single key",
                  lambda rng, queries, keys, values, window: (queries, keys, values, 1)),
            Reach("scores are thousands apart",
                  lambda rng, queries, keys, values, window: (60 * queries, keys, values, window)),
            *of((0, 1), ZEROS), *of(2, HUGE_AND_TINY)),
    wrong={
        "the window has one key too many: including the query's own it begins at t - window + 1":
            Edit("t - window + 1", "t - window"),
        "near the beginning the window would begin before the first key": Edit("max(t - window + 1, 0)",
                                                                              "t - window + 1"),
        "a query does not see its own key": Edit("seen = t + 1 - begin", "seen = max(t - begin, 1)"),
        "the loop goes through all keys before the query, and masks those before the window": attend_all_before,
        "every thread computes all scores": attend_window_alone,
        "`row_max` starts at 0, and scores far below it vanish": Edit("(-math.inf)", "(0.0)"),
        "the barrier is missing: other threads' scores may not be there yet": Edit("cuda.syncthreads()", ""),
        "the scores are not divided by 8, the root of 64": Edit("score * float32(0.125)", "score"),
        "the division by the sum of the exponentials is missing": Edit("acc / row_sum", "acc"),
    },
)

EQUIVALENT = {
    "barrier moved: attend_window -> cuda.syncthreads() behind row_max, row_sum, acc = (float32(-math.inf), "
    "float32(0.0), float32(0.0))":
        "The three belong to one thread: nothing shared is accessed between the two positions.",
    "identity: score = float32(0.0) -> score = float32(1.0)":
        "Every score is larger by the same amount, and that does not change a softmax.",
}
