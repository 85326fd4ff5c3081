r"""From a blank page: attention by a warp

One head of 64 elements: `queries` (Q, 64), `keys` and `values` (N, 64), `out` (Q, 64). Every query sees every key.

$$\text{out}_q = \sum_j \text{softmax}_j\left(\frac{q \cdot k_j}{8}\right) v_j$$

A block has 64 threads, two warps, and each warp has one query. A lane has the columns `lane` and `lane + 32`: of the
query, which stays in registers, of each key, of each value, and of the result. The scores are not kept: the softmax
is corrected as it goes along.

Write `attend_warp(queries, keys, values, out)` from the decorator down.
"""

HINTS = ("What does a lane know of a score after it has multiplied its two columns, and how do all 32 lanes get the "
         "whole score?",
         "For each key: two products, five shuffles with xor, divided by 8. Then the three lines of weighted_values: "
         "the new row_max, the factor and the weight, and the sums; a lane has two weighted sums.",
         "Start with row_max = float32(-math.inf) and all sums 0; in the loop row_sum = row_sum * factor + weight and "
         "acc_left = acc_left * factor + weight * values[j, lane], the same for the right; after it, divide by row_sum "
         "and store at lane and lane + 32.")
POINTS = 5
NEEDS = ("weighted_values",)

import math

from numba import float32

from labkit import cuda

# %%
attend_warp = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_warp(queries, keys, values, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < queries.shape[0]:
        left, right = queries[row, lane], queries[row, lane + 32]
        row_max, row_sum = float32(-math.inf), float32(0.0)
        acc_left, acc_right = float32(0.0), float32(0.0)
        for j in range(keys.shape[0]):
            score = left * keys[j, lane] + right * keys[j, lane + 32]
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
            score *= float32(0.125)
            new = max(row_max, score)
            factor, weight = math.exp(row_max - new), math.exp(score - new)  # the first factor is 0
            row_sum = row_sum * factor + weight
            acc_left = acc_left * factor + weight * values[j, lane]
            acc_right = acc_right * factor + weight * values[j, lane + 32]
            row_max = new
        out[row, lane], out[row, lane + 32] = acc_left / row_sum, acc_right / row_sum


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, HUGE_AND_TINY, ZEROS, Edit, KernelExercise, Reach, asks, of, uniform
from labkit.course.exercises.flash_attention import sizes_of, softmax

ALL_LANES = 0xFFFFFFFF


@cuda.jit
def attend_in_two_passes(queries, keys, values, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < queries.shape[0]:
        left, right = queries[row, lane], queries[row, lane + 32]
        row_max, row_sum = float32(-math.inf), float32(0.0)
        acc_left, acc_right = float32(0.0), float32(0.0)
        for j in range(keys.shape[0]):
            score = left * keys[j, lane] + right * keys[j, lane + 32]
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(ALL_LANES, score, distance)
            row_max = max(row_max, score * float32(0.125))
        for j in range(keys.shape[0]):
            score = left * keys[j, lane] + right * keys[j, lane + 32]
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(ALL_LANES, score, distance)
            weight = math.exp(score * float32(0.125) - row_max)
            row_sum += weight
            acc_left += weight * values[j, lane]
            acc_right += weight * values[j, lane + 32]
        out[row, lane], out[row, lane + 32] = acc_left / row_sum, acc_right / row_sum


def _attend_inputs(rng, Q, N):
    """The scores of the first query and of every second one after it are all far below 0: exp of them is 0."""
    keys = uniform(rng, N, 64) + np.float32(3.0)
    queries = uniform(rng, Q, 64)
    queries[::2] -= np.float32(7.0)
    return queries, keys, uniform(rng, N, 64)


def _attend_scores(queries, keys):
    return queries.astype(np.float64) @ keys.astype(np.float64).T / 8


def _attend_tolerance(queries, keys, values):
    weights = softmax(_attend_scores(queries, keys))
    sizes = np.abs(queries) @ np.abs(keys).T / 8
    each = 16 + 4 * np.sqrt(keys.shape[0]) + 4 * sizes.max(axis=1, keepdims=True)
    return EPS32 * (weights * each) @ np.abs(values)


ATTENDED = {"Q": 2, "N": 5}


@asks("Per query, each key and each value is loaded once, and so is the query.")
def _keys_read_once(report) -> str | None:
    least = ATTENDED["Q"] * (64 + 2 * ATTENDED["N"] * 64)
    loads = report.counts["global_loads"]
    if loads <= least:
        return None
    return (f"For {ATTENDED['Q']} queries and {ATTENDED['N']} keys it loads {loads:,} elements; {least:,} are enough: "
            f"each query once, and per query each key and each value once. Keep the query in registers, and correct "
            f"the sums when a larger score comes.")


EXERCISE = KernelExercise(
    name="attend_warp",
    reference=lambda queries, keys, values: softmax(_attend_scores(queries, keys)) @ values.astype(np.float64),
    inputs=_attend_inputs,
    shape=lambda Q, N: (Q, 64),
    sizes=(ATTENDED, *sizes_of("QN", (1, 1), (3, 32), (5, 100), (8, 7))),
    random_size=lambda rng: {"Q": int(rng.integers(3, 9)), "N": int(rng.integers(2, 60))},
    observe_sizes=(ATTENDED,),
    launch=lambda Q, N: (-(-Q // 2), 64),
    tolerance=_attend_tolerance,
    demand=_keys_read_once,
    domain=(Reach("scores are thousands apart", lambda rng, queries, keys, values: (60 * queries, keys, values)),
            Reach("all keys are equal", lambda rng, queries, keys, values: (queries, 0 * keys + keys[:1], values)),
            *of((0, 1), ZEROS), *of(2, HUGE_AND_TINY)),
    wrong={
        "`row_sum` is corrected, but the weighted values are not":
            Edit("acc_left * factor", "acc_left", "acc_right * factor", "acc_right"),
        "`row_max` starts at 0, and scores far below it vanish": Edit("(-math.inf)", "(0.0)"),
        "`shfl_down_sync`: only lane 0 has the whole score": Edit("cuda.shfl_xor_sync", "cuda.shfl_down_sync"),
        "the scores are not divided by 8, the root of 64": Edit("score *= float32(0.125)", ""),
        "the division by the sum of the exponentials is missing":
            Edit("acc_left / row_sum, acc_right / row_sum", "acc_left, acc_right"),
        "a lane treats its own two products as the whole score":
            Edit("for distance in (16, 8, 4, 2, 1):\n"
                 "    score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)",
                 ""),
        "the keys are read twice, or the query again for each key": attend_in_two_passes,
    },
)
