"""The exercises of lesson 17: where a head lies, scores and their mask, requests of a warp, a window of keys.

Sizes are S (tokens), H (heads) and D (numbers of a head); N (keys) and W (of a window).
"""

import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, shuffles
from labkit.course.exercises.domains import HUGE_AND_TINY, MOVED, SUMMED, ZEROS, of
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32

HIDDEN = np.float32(-1e30)  # a score that does not count


def _sizes(names: str, *sizes):
    return tuple(dict(zip(names, size, strict=True)) for size in sizes)


# --- The values of one head ----------------------------------------------------------------------------------------


def _values_of(flat, heads, head, size):
    return flat.reshape(-1, 3, heads, size)[:, 2, head]


HEAD_VALUES = KernelExercise(
    name="head_values",
    reference=_values_of,
    inputs=lambda rng, S, H, D: (uniform(rng, S * 3 * H * D), H, H - 2, D),
    arguments=lambda inputs, out, size: (*inputs[:3], out),
    shape=lambda S, H, D: (S, D),
    sizes=_sizes("SHD", (2, 3, 2), (1, 4, 8), (5, 3, 16), (20, 4, 33)),
    launch=lambda S, H, D: ((-(-D // 32), -(-S // 8)), (32, 8)),
    domain=(*of(0, MOVED), Reach("the head is the first", lambda rng, flat, heads, head, size: (flat, heads, 0, size)),
            Reach("the head is the last", lambda rng, flat, heads, head, size: (flat, heads, heads - 1, size))),
    wrong={
        "those are the keys: the values are another heads * size numbers further": Edit("2 * width", "width"),
        "it takes all queries to come first, then all keys, then all values":
            Edit("t * 3 * width + 2 * width", "(2 * out.shape[0] + t) * width"),
        "it takes each head to have its query, key and value side by side":
            Edit("2 * width + head * size", "head * 3 * size + 2 * size"),
        "the numbers of a head lie side by side, not `heads` apart": Edit("head * size + i", "i * heads + head"),
        "before the values lie the queries and the keys of all heads: 2 * heads * size, then head * size":
            Edit("2 * width + head * size", "2 * head * size"),
        "the grid's x runs along the columns: `i` comes first": Edit("i, t = cuda.grid(2)", "t, i = cuda.grid(2)"),
        "a token's row is three times as long: it holds queries, keys and values": Edit("t * 3 * width", "t * width"),
    },
)


# --- The scores of one query ---------------------------------------------------------------------------------------


def _query_scores(queries, keys, t):
    queries, keys = queries.astype(np.float64), keys.astype(np.float64)
    scores = keys @ queries[t] / math.sqrt(keys.shape[1])
    return np.where(np.arange(len(keys)) <= t, scores, np.float64(HIDDEN))


def _scores_tolerance(queries, keys, t):
    return EPS32 * (4 + np.sqrt(keys.shape[1])) * (np.abs(keys) @ np.abs(queries[t])) / math.sqrt(keys.shape[1])


QUERY_SCORES = KernelExercise(
    name="query_scores",
    reference=_query_scores,
    inputs=lambda rng, S, D: (uniform(rng, S, D), uniform(rng, S, D), (S - 1) // 2),
    shape=lambda S, D: (S,),
    sizes=_sizes("SD", (5, 3), (9, 16), (64, 5), (70, 64), (1, 8)),
    random_size=lambda rng: {"S": int(rng.integers(10, 90)), "D": int(rng.integers(2, 40))},
    launch=lambda S, D: (-(-S // 64), 64),
    tolerance=_scores_tolerance,
    domain=(*of((0, 1), *SUMMED), Reach("the query is the first", lambda rng, queries, keys, t: (queries, keys, 0)),
            Reach("the query is the last", lambda rng, queries, keys, t: (queries, keys, len(keys) - 1))),
    wrong={
        "the scores are not divided by the root of the size":
            Edit("score / math.sqrt(float32(keys.shape[1]))", "score"),
        "divided by the size, not by its root": Edit("math.sqrt(float32(keys.shape[1]))", "float32(keys.shape[1])"),
        "divided by 8, the root of 64: here the keys have other sizes":
            Edit("math.sqrt(float32(keys.shape[1]))", "float32(8.0)"),
        "no mask: a query does not see the keys of later tokens": Edit(" if j <= t else float32(-1e30)", ""),
        "a query does not see its own key": Edit("j <= t else", "j < t else"),
        "a hidden score is 0, which is not hidden at all: its exponential is 1": Edit("float32(-1e30)", "float32(0.0)"),
        "query `j` against key `t`: the other way round":
            Edit("score += queries[t, i] * keys[j, i]", "score += queries[j, i] * keys[t, i]"),
    },
)


# --- Predict: what attention asks for ------------------------------------------------------------------------------


def _asked():
    tokens, heads, size, block, warp = 2048, 16, 96, 256, 32
    return {"gflop": 4 * tokens**2 * heads * size / 1e9, "least_mb": 4 * 4 * tokens * heads * size / 1e6,
            "scores_mb": 4 * heads * tokens**2 / 1e6, "row_bytes": 4 * tokens, "idle": block - size,
            "lines": warp, "keys_mb": 4 * heads * tokens * tokens * size / 1e6}


PREDICT_ATTENTION = PredictionExercise(
    name="predict_attention",
    truth=_asked,
    how={"gflop": "a score is a dot product of 96 numbers, two flops each; the weighted values take as many again",
         "least_mb": "queries, keys and values are read once and the output is written once: four arrays of 2,048 rows "
                     "with 16 * 96 numbers",
         "scores_mb": "a score for each query, key and head",
         "row_bytes": "one float32 for each key",
         "idle": "in the third pass a thread takes a column of the values; a head has 96 of them",
         "lines": "each lane of the first pass reads a number of another key, and the keys lie a row of qkv apart",
         "keys_mb": "each of the 2,048 queries of a head asks for all 2,048 keys of it, 96 numbers each"},
    wrong={"a multiply-add is two flops": {"gflop": 2 * 2048**2 * 16 * 96 / 1e9},
           "the heads are left out: each has a matrix of its own": {"scores_mb": 4 * 2048**2 / 1e6},
           "a float32 has four bytes": {"row_bytes": 2048, "scores_mb": 16 * 2048**2 / 1e6},
           "counts the threads that work": {"idle": 96},
           "counts the keys once, as if all queries shared them": {"keys_mb": 4 * 16 * 2048 * 96 / 1e6},
           "neighbouring lanes do not share a line: their keys are a row of qkv apart": {"lines": 1}},
)


# --- A warp for each key -------------------------------------------------------------------------------------------

WIDE = 64  # numbers of a head, in this exercise and the next
OBSERVED_KEYS = 8


@cuda.jit
def scores_by_one_lane(query, keys, out):
    key, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if key < keys.shape[0] and lane == 0:
        score = float32(0.0)
        for i in range(64):
            score += query[i] * keys[key, i]
        out[key] = score * float32(0.125)


def _warp_scores_tolerance(query, keys):
    return EPS32 * 12 * (np.abs(keys) @ np.abs(query)) / 8


@asks("The lanes of a warp read neighbouring numbers: at most 17 sectors of 32 bytes for each key.", shuffles)
def _neighbours_read_neighbours(report) -> str | None:
    least = OBSERVED_KEYS * (2 * WIDE // 8 + 1)
    if report.counts["sectors"] > least:
        return (f"For {OBSERVED_KEYS} keys it asks for {report.counts['sectors']:,} sectors of 32 bytes, and {least:,} "
                f"suffice: 8 of the query, 8 of the key and one of `out` for each key. Let neighbouring lanes read "
                f"neighbouring numbers.")
    return None


WARP_SCORES = KernelExercise(
    name="warp_scores",
    reference=lambda query, keys: keys.astype(np.float64) @ query.astype(np.float64) / 8,
    inputs=lambda rng, N: (uniform(rng, WIDE), uniform(rng, N, WIDE)),
    shape=lambda N: (N,),
    sizes=_sizes("N", (1,), (4,), (OBSERVED_KEYS,), (13,), (130,)),
    launch=lambda N: (-(-N // 4), 128),
    tolerance=_warp_scores_tolerance,
    demand=_neighbours_read_neighbours,
    observe_sizes=_sizes("N", (OBSERVED_KEYS,)),
    domain=of((0, 1), *SUMMED),
    wrong={
        "one lane computes the whole score, number by number": scores_by_one_lane,
        "a lane has columns 2 * lane and 2 * lane + 1: neighbours are two numbers apart":
            Edit("query[lane] * keys[key, lane] + query[lane + 32] * keys[key, lane + 32]",
                 "query[2 * lane] * keys[key, 2 * lane] + query[2 * lane + 1] * keys[key, 2 * lane + 1]"),
        "the right half of the columns is left out": Edit(" + query[lane + 32] * keys[key, lane + 32]", ""),
        "the lanes' products are not added up: lane 0 stores its own":
            Edit("for distance in (16, 8, 4, 2, 1):\n"
                 "    score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)", ""),
        "four shuffles add up 16 lanes, and a warp has 32": Edit("(16, 8, 4, 2, 1)", "(8, 4, 2, 1)"),
        "the score is not divided by 8, the root of 64": Edit("score * float32(0.125)", "score"),
    },
)


# --- From a blank page: a window of keys ---------------------------------------------------------------------------


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
            f"numbers, and {most:,} suffice: of each pair of a query and a key of its window the query, the key and "
            f"the value, once for the block. Leave out the keys before the window, let one thread compute each score, "
            f"and pass the scores on in shared memory.")


ATTEND_WINDOW = KernelExercise(
    name="attend_window",
    reference=lambda queries, keys, values, window:
        _window_weights(queries, keys, window) @ values.astype(np.float64),
    inputs=_window_inputs,
    shape=lambda N, W: (N, WIDE),
    sizes=(OBSERVED_WINDOW, *_sizes("NW", (1, 1), (5, 64), (70, 64), (100, 7), (9, 2))),
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
        "the window has one key more: with the query's own it should begin at t - window + 1":
            Edit("t - window + 1", "t - window"),
        "near the beginning the window would begin before the first key": Edit("max(t - window + 1, 0)",
                                                                              "t - window + 1"),
        "a query does not see its own key": Edit("seen = t + 1 - begin", "seen = max(t - begin, 1)"),
        "all keys before the query are gone through, and those before the window hidden": attend_all_before,
        "every thread computes all scores": attend_window_alone,
        "`row_max` begins at 0, and scores far below it vanish": Edit("(-math.inf)", "(0.0)"),
        "the barrier is missing: other threads' scores may not be there yet": Edit("cuda.syncthreads()", ""),
        "the scores are not divided by 8, the root of 64": Edit("score * float32(0.125)", "score"),
        "the division by the sum of the exponentials is missing": Edit("acc / row_sum", "acc"),
    },
)

EXERCISES = (HEAD_VALUES, QUERY_SCORES, PREDICT_ATTENTION, WARP_SCORES, ATTEND_WINDOW)
