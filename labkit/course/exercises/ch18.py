"""The exercises of lesson 18: tiles, a softmax that is corrected, and tiles left out.

Sizes are S (tokens), D (numbers of a head); Q and N where queries and keys are counted apart.
"""

import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, elements_of_warps
from labkit.course.exercises.domains import EXPONENTIALS, HUGE_AND_TINY, SUMMED, ZEROS, of
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32

ALL_LANES = 0xFFFFFFFF


def _sizes(names: str, *sizes):
    return tuple(dict(zip(names, size, strict=True)) for size in sizes)


def _softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


# --- Predict: shared memory and tiles --------------------------------------------------------------------------------


def _rooms():
    from labkit.kernels.attention.flash import make_flash

    tokens, heads, size = 500, 12, 64
    kernel = make_flash(size, 4)
    tiles = -(-tokens // kernel.rows)
    return {"row_bytes": 4 * tokens, "matrix_kb": 4 * tokens * tokens / 1000, "blocks": heads * tiles,
            "tiles_causal": tiles * (tiles + 1) // 2, "fewer": tokens / tiles}


PREDICT_ROOMS = PredictionExercise(
    name="predict_rooms",
    truth=_rooms,
    how={"row_bytes": "one float32 for each key, and there are as many keys as tokens",
         "matrix_kb": "a row of scores for each of the 500 queries; a KB has 1,000 bytes here",
         "blocks": "500 queries in groups of 64, the last of them not full; and each head needs them all",
         "tiles_causal": "the first group of queries needs one tile of keys, the second two, and so on",
         "fewer": "every block goes through all keys and values once: how many blocks does a head have before, how "
                  "many after?"},
    wrong={"the last group, which is not full, is forgotten": {"blocks": 84, "tiles_causal": 28,
                                                              "fewer": 500 / 7},
           "the tiles on the diagonal are left out": {"tiles_causal": 28},
           "counts the tiles of a causal mask as half of all": {"tiles_causal": 32},
           "a float32 has four bytes": {"row_bytes": 500, "matrix_kb": 250}},
)


# --- Find the bug: corrected, but not all of it --------------------------------------------------------------------


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


@cuda.jit
def average_first_for_largest(scores, values, out):
    i, row = cuda.grid(2)
    if row < out.shape[0] and i < out.shape[1]:
        row_sum, acc = float32(1.0), values[0, i]
        for j in range(1, scores.shape[1]):
            weight = math.exp(scores[row, j] - scores[row, 0])
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
    weights = _softmax(scores)
    each = 16 + 4 * np.sqrt(scores.shape[1]) + 4 * np.abs(scores).max(axis=1, keepdims=True)
    return EPS32 * (weights * each) @ np.abs(values)


WEIGHTED_VALUES = KernelExercise(
    name="weighted_values",
    reference=lambda scores, values: _softmax(scores.astype(np.float64)) @ values.astype(np.float64),
    inputs=_climbing,
    shape=lambda Q, N, D: (Q, D),
    sizes=_sizes("QND", (1, 12, 3), (3, 20, 5), (2, 1, 40), (5, 33, 16), (9, 100, 33)),
    launch=lambda Q, N, D: ((-(-D // 32), -(-Q // 4)), (32, 4)),
    tolerance=_average_tolerance,
    domain=(*of(0, *EXPONENTIALS, ZEROS), *of(1, HUGE_AND_TINY)),
    wrong={
        "`row_sum` is corrected and `acc` is not, or with a factor taken after `row_max` has moved, which is 1":
            Edit("acc = acc * factor", "acc = acc"),
        "`acc` is corrected and `row_sum` is not": Edit("row_sum = row_sum * factor", "row_sum = row_sum"),
        "what is new is multiplied by the factor, too":
            Edit("row_sum * factor + weight", "(row_sum + weight) * factor",
                 "acc * factor + weight * values[j, i]", "(acc + weight * values[j, i]) * factor"),
        "`row_max` never becomes `new`": Edit("row_max = new", ""),
        "the factor is exp(row_max - new), never more than 1; this is its inverse":
            Edit("math.exp(row_max - new)", "math.exp(new - row_max)"),
        "the first score in place of the largest: exponentials of far larger ones are infinite":
            average_first_for_largest,
        "the division by `row_sum` is missing": Edit("acc / row_sum", "acc"),
        "nothing is subtracted, and exp of a large score is infinite": average_unshifted,
    },
)


# --- Tiles above the diagonal --------------------------------------------------------------------------------------

TILE, WIDE = 32, 8


@cuda.jit
def best_without_tiles(queries, keys, out):
    t = cuda.grid(1)
    if t < keys.shape[0]:
        best = float32(-math.inf)
        for j in range(t + 1):
            score = float32(0.0)
            for i in range(8):
                score += queries[t, i] * keys[j, i]
            best = max(best, score)
        out[t] = best


@cuda.jit
def best_barrier_for_some(queries, keys, out):
    tile = cuda.shared.array((32, 8), float32)
    t, thread = cuda.grid(1), cuda.threadIdx.x
    tokens = keys.shape[0]
    if t < tokens:
        best = float32(-math.inf)
        for first in range(0, min(cuda.blockIdx.x * 32 + 32, tokens), 32):
            for i in range(8):
                tile[thread, i] = keys[first + thread, i] if first + thread < tokens else float32(0.0)
            cuda.syncthreads()
            for j in range(32):
                if first + j <= t:
                    score = float32(0.0)
                    for i in range(8):
                        score += queries[t, i] * tile[j, i]
                    best = max(best, score)
            cuda.syncthreads()
        out[t] = best


def _best(queries, keys):
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T
    return np.where(np.tril(np.ones(scores.shape, bool)), scores, -np.inf).max(axis=1)


def _best_tolerance(queries, keys):
    return EPS32 * 12 * (np.abs(queries) @ np.abs(keys).T).max(axis=1)


OBSERVED_TOKENS = 96


@asks("The keys go through shared memory: one thread of a block loads each number, and only of tiles of which some "
      "query sees a key.")
def _tiles_needed(report) -> str | None:
    """One tile for the first block, two for the second, three for the third: so many are stored, and no key is loaded
    by more than one thread of a block."""
    if not report.counts["shared_loads"]:
        return ("Nothing is read from shared memory, and the tiles of keys are meant to go through it: 32 queries "
                "share what is loaded once.")
    stored, needed = report.counts["shared_stores"], (1 + 2 + 3) * TILE * WIDE
    keys = list(report.arrays)[1]
    loaded = sum("load" in kinds for kinds in report.touched.get((keys, "global"), {}).values())
    if loaded > needed:
        return (f"Threads load {loaded:,} numbers of `{keys}` from global memory, and {needed:,} are enough: one "
                "thread of a block loads each, into shared memory, and all 32 queries take it from there.")
    places = elements_of_warps(report, "store", "shared").values()
    different = len(set().union(*(elements for lanes in places for elements in lanes.values())))
    if different < TILE * WIDE:
        return (f"{different:,} numbers are stored in shared memory at the same time, and a tile of keys has "
                f"{TILE * WIDE:,}: stage all of it there.")
    if stored <= needed:
        return None
    return (f"For {OBSERVED_TOKENS} tokens it puts {stored:,} numbers into shared memory, and of {needed:,} some query "
            f"sees the key. Let the loop over the tiles end after the one on the diagonal.")


BEST_SCORES = KernelExercise(
    name="best_scores",
    reference=_best,
    inputs=lambda rng, S: (uniform(rng, S, WIDE), uniform(rng, S, WIDE)),
    shape=lambda S: (S,),
    sizes=_sizes("S", (40,), (1,), (32,), (70,), (OBSERVED_TOKENS,), (130,)),
    launch=lambda S: (-(-S // 32), 32),
    tolerance=_best_tolerance,
    demand=_tiles_needed,
    observe_sizes=_sizes("S", (OBSERVED_TOKENS,)),
    domain=(*of((0, 1), *SUMMED),
            Reach("all scores are far below 0",
                  lambda rng, queries, keys: (-np.abs(queries) - 100, np.abs(keys) + 100))),
    wrong={
        "tiles above the diagonal are loaded, too, and all of their scores hidden":
            Edit("min(cuda.blockIdx.x * 32 + 32, tokens)", "tokens"),
        "the loop ends before the tile on the diagonal":
            Edit("min(cuda.blockIdx.x * 32 + 32, tokens)", "cuda.blockIdx.x * 32"),
        "in the tile on the diagonal nothing is hidden":
            Edit("if first + j <= t and t < tokens:", "if first + j < tokens and t < tokens:"),
        "a query does not see its own key":
            Edit("if first + j <= t and t < tokens:", "if first + j < t and t < tokens:"),
        "threads without a query stay away from the barriers": best_barrier_for_some,
        "no tiles: every thread walks through the keys in global memory": best_without_tiles,
        "the search begins at 0, and all scores may be less": Edit("(-math.inf)", "(0.0)"),
    },
)


# --- From a blank page: attention by a warp ------------------------------------------------------------------------


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
    weights = _softmax(_attend_scores(queries, keys))
    sizes = np.abs(queries) @ np.abs(keys).T / 8
    each = 16 + 4 * np.sqrt(keys.shape[0]) + 4 * sizes.max(axis=1, keepdims=True)
    return EPS32 * (weights * each) @ np.abs(values)


ATTENDED = {"Q": 2, "N": 5}


@asks("For a query, each key and each value is loaded once, and so is the query.")
def _keys_read_once(report) -> str | None:
    least = ATTENDED["Q"] * (64 + 2 * ATTENDED["N"] * 64)
    loads = report.counts["global_loads"]
    if loads <= least:
        return None
    return (f"For {ATTENDED['Q']} queries and {ATTENDED['N']} keys it loads {loads:,} numbers; {least:,} suffice: each "
            f"query once, and for each query each key and each value once. Keep the query in registers, and correct "
            f"the sums when a larger score comes.")


ATTEND_WARP = KernelExercise(
    name="attend_warp",
    reference=lambda queries, keys, values: _softmax(_attend_scores(queries, keys)) @ values.astype(np.float64),
    inputs=_attend_inputs,
    shape=lambda Q, N: (Q, 64),
    sizes=(ATTENDED, *_sizes("QN", (1, 1), (3, 32), (5, 100), (8, 7))),
    random_size=lambda rng: {"Q": int(rng.integers(3, 9)), "N": int(rng.integers(2, 60))},
    observe_sizes=(ATTENDED,),
    launch=lambda Q, N: (-(-Q // 2), 64),
    tolerance=_attend_tolerance,
    demand=_keys_read_once,
    domain=(Reach("scores are thousands apart", lambda rng, queries, keys, values: (60 * queries, keys, values)),
            Reach("all keys are equal", lambda rng, queries, keys, values: (queries, 0 * keys + keys[:1], values)),
            *of((0, 1), ZEROS), *of(2, HUGE_AND_TINY)),
    wrong={
        "`row_sum` is corrected and the weighted values are not":
            Edit("acc_left * factor", "acc_left", "acc_right * factor", "acc_right"),
        "`row_max` begins at 0, and scores far below it vanish": Edit("(-math.inf)", "(0.0)"),
        "`shfl_down_sync`: only lane 0 has the whole score": Edit("cuda.shfl_xor_sync", "cuda.shfl_down_sync"),
        "the scores are not divided by 8, the root of 64": Edit("score *= float32(0.125)", ""),
        "the division by the sum of the exponentials is missing":
            Edit("acc_left / row_sum, acc_right / row_sum", "acc_left, acc_right"),
        "a lane takes its own two products for the whole score":
            Edit("for distance in (16, 8, 4, 2, 1):\n"
                 "    score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)",
                 ""),
        "the keys are read twice, or the query again for each key": attend_in_two_passes,
    },
)

EXERCISES = (PREDICT_ROOMS, WEIGHTED_VALUES, BEST_SCORES, ATTEND_WARP)
