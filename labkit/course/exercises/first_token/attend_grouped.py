"""From a blank page: grouped-query attention

The last token of a text attends to all N of its tokens. `q` is (H, 32), `keys` and `values` are (N, K, 32), and `out`
is (H, 32), all float32. H is a multiple of K, at most eight times K, and query head h reads head h // (H // K) of keys
and values: with H = 6 and K = 2, heads 0 to 2 read head 0, and heads 3 to 5 read head 1. A score is the dot product of
query and key divided by the root of 32, the weights are the softmax of the scores, and the result is the weighted sum
of the values. Scores may be thousands apart.

The grid has K blocks of 32 threads, so that a warp serves all query heads of its group and loads each key and value
only once. Keep the queries in an array of the thread, such as `cuda.local.array(8, float32)`, with everything else
that a query head needs during the loop over the keys.

Write `attend_grouped(q, keys, values, out)` from the decorator down.
"""

HINTS = ("A warp reads one head of keys and values, and each lane one element of it. Which query heads read that head, "
         "and what has to be kept for each of them during the loop over the keys?",
         "The outer loop goes over the tokens and loads a key and a value; the inner one goes over the query heads of "
         "the group. Keep a maximum, a sum of weights and a weighted sum of values for each of these in local arrays, "
         "and rescale both sums when a larger score appears.",
         "query[r] = q[first + r, lane] before the loops; score = query[r] * key, five exchanges at distances 16, 8, "
         "4, 2, 1, times 1 / sqrt(32); new = max(row_max[r], score); correct row_sum[r] and acc[r] by exp(row_max[r] - "
         "new), then add the weight and weight * value; last out[first + r, lane] = acc[r] / row_sum[r], with first = "
         "blockIdx.x * (H // K).")
POINTS = 3
NEEDS = ("attend_warp",)

import math

from numba import float32

from labkit import cuda

# %%
attend_grouped = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_grouped(q, keys, values, out):
    head, lane = cuda.blockIdx.x, cuda.threadIdx.x
    group = q.shape[0] // keys.shape[1]
    first = head * group
    query, acc = cuda.local.array(8, float32), cuda.local.array(8, float32)
    row_max, row_sum = cuda.local.array(8, float32), cuda.local.array(8, float32)
    for r in range(group):
        query[r] = q[first + r, lane]
        row_max[r], row_sum[r], acc[r] = float32(-math.inf), float32(0.0), float32(0.0)
    for n in range(keys.shape[0]):
        key, value = keys[n, head, lane], values[n, head, lane]
        for r in range(group):
            score = query[r] * key
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
            score *= float32(0.17677669)  # 1 / sqrt(32)
            new = max(row_max[r], score)
            factor, weight = math.exp(row_max[r] - new), math.exp(score - new)
            row_sum[r] = row_sum[r] * factor + weight
            acc[r] = acc[r] * factor + weight * value
            row_max[r] = new
    for r in range(group):
        out[first + r, lane] = acc[r] / row_sum[r]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, at, shuffles, uniform
from labkit.course.exercises.llama_by_hand import ALL_LANES
from labkit.kernels.attention.pages import attend_reference
from labkit.kernels.elements import FLOAT32
from labkit.kernels.ops.pages import rounding_errors

SIZE, MOST = 32, 8
ATTENDED = {"H": 4, "K": 2, "N": 5}


def _attended(q, keys, values, tolerance=None):
    return attend_reference(q[None], keys, values, len(keys) - 1, SIZE**-0.5, tolerance)[0]


@asks("A group's keys and values are loaded once for all of its query heads, in at most two passes, and a query "
      "once.", shuffles)
def _loads_shared(report) -> str | None:
    H, K, N = (ATTENDED[axis] for axis in "HKN")
    loads, enough = report.counts["global_loads"], 3 * N * K * SIZE + H * SIZE
    if loads > enough:
        return (f"With {H} query heads, {K} key heads and {N} tokens it loads {loads:,} values, more than "
                f"{enough:,}. The {H // K} query heads of a group share their keys and values: load a key and a value "
                f"once, use it for all of them, and keep the queries in registers.")
    return None


def _times(queries, keys_by, values_by):
    return lambda rng, q, keys, values: (np.float32(queries) * q, np.float32(keys_by) * keys,
                                         np.float32(values_by) * values)


def _scores_below(rng, q, keys, values):
    return np.abs(q) - np.float32(9), np.abs(keys) + np.float32(9), values


def _equal_keys(rng, q, keys, values):
    return q, np.broadcast_to(keys[:1], keys.shape).copy(), values


def _largest_last(rng, q, keys, values):
    """The last key has by far the largest score in each head."""
    keys = keys.copy()
    for head in range(keys.shape[1]):
        keys[-1, head] = 50 * q[head * (len(q) // keys.shape[1])]
    return q, keys, values


@cuda.jit
def attend_grouped_head_by_head(q, keys, values, out):
    head, lane = cuda.blockIdx.x, cuda.threadIdx.x
    group = q.shape[0] // keys.shape[1]
    for r in range(group):
        h = head * group + r
        query = q[h, lane]
        row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
        for n in range(keys.shape[0]):
            score = query * keys[n, head, lane]
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(ALL_LANES, score, distance)
            score *= float32(0.17677669)
            new = max(row_max, score)
            factor, weight = math.exp(row_max - new), math.exp(score - new)
            row_sum = row_sum * factor + weight
            acc = acc * factor + weight * values[n, head, lane]
            row_max = new
        out[h, lane] = acc / row_sum


SCALED = "score *= float32(0.17677669)"

EXERCISE = KernelExercise(
    name="attend_grouped",
    reference=_attended,
    inputs=lambda rng, H, K, N: (uniform(rng, H, SIZE), uniform(rng, N, K, SIZE), uniform(rng, N, K, SIZE)),
    shape=lambda H, K, N: (H, SIZE),
    sizes=tuple({"H": H, "K": K, "N": N} for H, K, N in ((1, 1, 1), (4, 2, 5), (3, 3, 4), (6, 2, 9), (8, 1, 33))),
    random_size=lambda rng: {"H": 6, "K": 3, "N": int(rng.integers(10, 30))},
    launch=lambda H, K, N: (K, SIZE),
    tolerance=lambda q, keys, values: 2 * _attended(q, keys, values, rounding_errors(FLOAT32, SIZE)),
    observe_sizes=(ATTENDED,),
    demand=_loads_shared,
    domain=(at("each query head has its own keys", H=2, K=2, N=6),
            at("eight query heads share their keys", H=16, K=2, N=6),
            at("there is a single token", H=4, K=2, N=1),
            Reach("scores are thousands apart", _times(100, 100, 1), {"H": 4, "K": 2, "N": 7}),
            Reach("values are large", _times(1, 1, 10_000), {"H": 4, "K": 2, "N": 7}),
            Reach("all scores are far below 0", _scores_below, {"H": 4, "K": 2, "N": 7}),
            Reach("all scores are equal", _equal_keys, {"H": 4, "K": 2, "N": 7}),
            Reach("the last token has by far the largest score", _largest_last, {"H": 4, "K": 2, "N": 7}),
            Reach("all scores and values are 0", _times(0, 0, 0), {"H": 4, "K": 2, "N": 7})),
    wrong={
        "query head h reads head h % K, as if groups were interleaved": Edit(
            "first = head * group", "first = head", "= q[first + r, lane]", "= q[first + r * keys.shape[1], lane]",
            "out[first + r, lane]", "out[first + r * keys.shape[1], lane]"),
        "all groups read the first head of keys and values": Edit(
            "key, value = keys[n, head, lane], values[n, head, lane]",
            "key, value = keys[n, 0, lane], values[n, 0, lane]"),
        "every head of a group uses the first one's query": Edit("= q[first + r, lane]", "= q[first, lane]"),
        "the values are the keys": Edit("values[n, head, lane]", "keys[n, head, lane]"),
        "the scores are not divided by the root of 32": Edit(SCALED, ""),
        "divided by 32, not by its root": Edit("float32(0.17677669)", "float32(0.03125)"),
        "the last token is left out": Edit("range(keys.shape[0])", "range(max(1, keys.shape[0] - 1))"),
        "the first maximum is 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "the earlier sums are not corrected when the maximum grows": Edit(
            "row_sum[r] = row_sum[r] * factor + weight", "row_sum[r] += weight",
            "acc[r] = acc[r] * factor + weight * value", "acc[r] += weight * value"),
        "the division by the sum of the weights is missing": Edit("acc[r] / row_sum[r]", "acc[r]"),
        "only the first head of each group is written": Edit(
            "for r in range(group):\n    out[first + r, lane] = acc[r] / row_sum[r]",
            "out[first, lane] = acc[0] / row_sum[0]"),
        "one query head after another: keys and values are loaded again for each": attend_grouped_head_by_head,
    },
)

EQUIVALENT = {
    "number: 4 -> 5": "With distances 16, 8, 5, 2 and 1 every lane also gets the sum of all 32, in another order.",
}
