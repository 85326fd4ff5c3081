"""The exercises of lesson 22: the KV cache and what it saves, a mask that knows where it is, temperature and top-k, and
Amdahl's law.

Sizes are S (tokens), C (width), N (rows of the cache) and before (tokens in it); T queries; V the size of a vocabulary.
"""

import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.domains import (
    EXPONENTIALS,
    FAR_ABOVE_ZERO,
    FAR_BELOW_ZERO,
    MOVED,
    ONE_FAR_ABOVE,
    ONE_FAR_BELOW,
    of,
)
from labkit.kernels.op import uniform

ALL_LANES = 0xFFFFFFFF

# --- Into the cache ------------------------------------------------------------------------------------------------


def _appended(qkv, start, cache):
    result, first = cache.copy(), int(start[0])
    rows = result[first : first + len(qkv)]
    rows[:] = qkv[: len(rows), qkv.shape[1] // 3 :]
    return result


@cuda.jit
def append_one_round(qkv, start, cache):
    t, col = cuda.blockIdx.x, cuda.threadIdx.x
    width = cache.shape[1] // 2
    row = start[0] + t
    if row < cache.shape[0] and col < 2 * width:
        cache[row, col] = qkv[t, width + col]


def _cache_inputs(rng, S, C, N, before):
    return uniform(rng, S, 3 * C), np.array([before], np.int32), uniform(rng, N, 2 * C)


@cuda.jit
def append_by_lane_0(qkv, start, cache):
    t = cuda.blockIdx.x
    width = cache.shape[1] // 2
    if start[0] + t < cache.shape[0] and cuda.threadIdx.x == 0:
        for col in range(2 * width):
            cache[start[0] + t, col] = qkv[t, width + col]


def _starting_at(place):
    return lambda rng, qkv, start, cache: (qkv, np.array([place(cache)], np.int32), cache)


APPEND_ROWS = KernelExercise(
    name="append_rows",
    reference=_appended,
    inputs=_cache_inputs,
    shape=lambda S, C, N, before: (N, 2 * C),
    start=lambda qkv, start, cache: cache,
    arguments=lambda inputs, out, size: (inputs[0], inputs[1], out),
    sizes=tuple({"S": S, "C": C, "N": N, "before": before} for S, C, N, before in
                ((2, 20, 6, 3), (1, 17, 8, 7), (5, 24, 9, 6), (3, 48, 11, 0), (4, 33, 16, 9))),
    random_size=lambda rng: {"S": int(rng.integers(1, 6)), "C": int(rng.integers(17, 70)), "N": 12,
                             "before": int(rng.integers(1, 12))},
    launch=lambda S, C, N, before: (S, 32),
    domain=(*of((0, 2), MOVED), Reach("the cache is empty", _starting_at(lambda cache: 0)),
            Reach("the cache is full", _starting_at(len))),
    wrong={
        "the rows go to the beginning of the cache: `start` is not used": Edit("row = start[0] + t", "row = t"),
        "queries and keys are copied, not keys and values: the columns begin one width later":
            Edit("qkv[t, width + col]", "qkv[t, col]"),
        "the keys are copied, the values are not": Edit("2 * width, 32", "width, 32"),
        "one column a thread: rows longer than 32 are left unfinished": append_one_round,
        "no guard: a full cache has no row for the last tokens": Edit("if row < cache.shape[0]:", "if True:"),
        "the first lane of each block copies the whole row": append_by_lane_0,
    },
)

# --- Predict: rows and bytes of a cache ------------------------------------------------------------------------------


def _rows():
    prompt, new = 10, 50
    return {"rows_with": prompt + new - 1, "rows_without": sum(range(prompt, prompt + new)),
            "cache_bytes": 12 * 2 * 768 * 4}


PREDICT_ROWS = PredictionExercise(
    name="predict_rows",
    truth=_rows,
    how={"rows_with": "The prompt's 10 rows give the first token. Each further token needs one row: 49 of them.",
         "rows_without": "The first token needs 10 rows, the second 11, the last 59: the sum of 10 to 59.",
         "cache_bytes": "A key and a value of 768 numbers in each of 12 layers, 4 bytes a number."},
    wrong={"the last token is counted, though nothing is computed from it": {
               "rows_with": 60, "rows_without": 1725, "cache_bytes": 73728},
           "the keys alone": {"rows_with": 59, "rows_without": 1725, "cache_bytes": 36864},
           "one layer alone": {"rows_with": 59, "rows_without": 1725, "cache_bytes": 6144},
           "every pass counted with all 60": {"rows_with": 59, "rows_without": 3000, "cache_bytes": 73728}},
)

# --- Find the bug: where the row is ----------------------------------------------------------------------------------


def _seen(scores, start):
    count, keys = scores.shape
    return np.arange(keys) <= int(start[0]) + np.arange(count)[:, None]


def _masked_softmax(scores, start):
    x = np.where(_seen(scores, start), scores.astype(np.float64), -np.inf)
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


@cuda.jit(device=True)
def _softmax_of_first(scores, out, t, seen):
    """One warp: softmax of the first `seen` scores of row t, zeros behind them."""
    lane = cuda.threadIdx.x
    largest = float32(-np.inf)
    for key in range(lane, seen, 32):
        largest = max(largest, scores[t, key])
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, distance))
    total = float32(0.0)
    for key in range(lane, seen, 32):
        total += math.exp(scores[t, key] - largest)
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
    for key in range(lane, scores.shape[1], 32):
        out[t, key] = math.exp(scores[t, key] - largest) / total if key < seen else float32(0.0)


@cuda.jit
def seen_without_start(scores, start, out):
    t = cuda.blockIdx.x
    _softmax_of_first(scores, out, t, t + 1)


@cuda.jit
def seen_not_itself(scores, start, out):
    t = cuda.blockIdx.x
    _softmax_of_first(scores, out, t, start[0] + t)


@cuda.jit
def seen_all_of_the_pass(scores, start, out):
    t = cuda.blockIdx.x
    _softmax_of_first(scores, out, t, start[0] + scores.shape[0])


@cuda.jit
def seen_start_only(scores, start, out):
    t = cuda.blockIdx.x
    _softmax_of_first(scores, out, t, start[0] + 1)


@cuda.jit
def seen_everything(scores, start, out):
    t = cuda.blockIdx.x
    _softmax_of_first(scores, out, t, scores.shape[1])


def _hidden_far_above(rng, scores, start):
    return np.where(_seen(scores, start), scores, np.float32(10_000)), start


def _masked_tolerance(scores, start):
    far = np.where(_seen(scores, start), np.abs(scores), 0).max(axis=1, keepdims=True)
    return 2e-5 + 2.0**-21 * far * _masked_softmax(scores, start)


def _scores_inputs(rng, T, N, before):
    return 4 * uniform(rng, T, N), np.array([before], np.int32)


SEEN_FROM_START = KernelExercise(
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
    wrong={"`start` is forgotten: the queries do not see the tokens that came before this pass": seen_without_start,
           "a query does not see its own token": seen_not_itself,
           "every query sees all tokens of the pass, those after it as well": seen_all_of_the_pass,
           "the query's place in the pass is forgotten: all see as much as the first": seen_start_only,
           "nothing is hidden": seen_everything,
           "nothing is subtracted, and exp of a large score is infinite":
               Edit("largest = max(largest, scores[t, key])", "largest = float32(0.0)",
                    "float32(-np.inf)", "float32(0.0)"),
           "the largest begins at 0, and scores far below it vanish": Edit("float32(-np.inf)", "float32(0.0)")},
)

# --- Temperature and top-k -------------------------------------------------------------------------------------------


def _shares(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    kept = np.argsort(-logits, kind="stable")[:k]
    exponentials = np.exp((logits[kept] - logits.max()) / temperature)
    result = np.zeros(logits.size)
    result[kept] = exponentials / exponentials.sum()
    return result


def shares_times_temperature(logits, temperature, k):
    return _shares(logits, 1 / temperature, k)


def shares_temperature_last(logits, temperature, k):
    shares = _shares(logits, 1.0, k) / temperature
    return shares / shares.sum()


def shares_of_all(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    shares = _shares(logits, temperature, logits.size)
    shares[np.argsort(-logits, kind="stable")[k:]] = 0
    return shares


def shares_of_the_least(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    kept = np.argsort(logits, kind="stable")[:k]
    exponentials = np.exp((logits[kept] - logits[kept].max()) / temperature)
    result = np.zeros(logits.size)
    result[kept] = exponentials / exponentials.sum()
    return result


def shares_one_more(logits, temperature, k):
    return _shares(logits, temperature, k + 1)


def shares_too_large(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    with np.errstate(all="ignore"):
        exponentials = np.exp(logits / temperature)
        exponentials[np.argsort(-logits, kind="stable")[k:]] = 0
        return exponentials / exponentials.sum()


def shares_of_zeros(logits, temperature, k):
    logits = np.array(logits, np.float64)
    logits[np.argsort(-logits, kind="stable")[k:]] = 0
    exponentials = np.exp((logits - logits.max()) / temperature)
    return exponentials / exponentials.sum()


def _logits(rng, V, k, scale):
    return scale * uniform(rng, V) + np.float32(scale), float(rng.choice((0.5, 0.7, 1.6))), k


def _tied(rng, logits, temperature, k):
    """Those in the places k to k + 2 are equal: one of them is kept, whichever."""
    logits = logits.copy()
    order = np.argsort(-logits)
    logits[order[k : k + 2]] = logits[order[k - 1]]
    return logits, temperature, k


def _in_order_of_logits(shares, logits, temperature, k):
    return shares[np.lexsort((shares, logits))]


KEEP_LIKELIEST = FunctionExercise(
    name="keep_likeliest",
    reference=_shares,
    inputs=_logits,
    sizes=({"V": 6, "k": 3, "scale": 2}, {"V": 10, "k": 10, "scale": 3}, {"V": 50, "k": 1, "scale": 4},
           {"V": 300, "k": 40, "scale": 1000}),
    random_size=lambda rng: {"V": int(rng.integers(40, 200)), "k": int(rng.integers(2, 30)), "scale": 3},
    domain=(*of(0, FAR_ABOVE_ZERO, FAR_BELOW_ZERO, ONE_FAR_ABOVE, ONE_FAR_BELOW),
            Reach("some logits are as large as the last one that is kept", _tied, {"V": 10, "k": 3, "scale": 2})),
    alike=_in_order_of_logits,
    tolerance=lambda logits, temperature, k: np.full(logits.size, 2e-5 + 2.0**-22 * np.abs(logits).max() / temperature),
    wrong={"the logits are multiplied by the temperature": shares_times_temperature,
           "the temperature divides the probabilities, which changes nothing": shares_temperature_last,
           "the kept ones have the shares that they had among all: the sum is less than 1": shares_of_all,
           "the least likely are kept": shares_of_the_least,
           "one token too many is kept": shares_one_more,
           "the others get the logit 0, and exp(0) is not 0": shares_of_zeros,
           "exp of large logits is infinite: the largest has to be taken away first": shares_too_large},
)

# --- Predict: Amdahl -----------------------------------------------------------------------------------------------

PREDICT_AMDAHL = PredictionExercise(
    name="predict_amdahl",
    truth=lambda: {"step_us": 185, "least_us": 180, "prompt_us": 700, "needed_us": 100},
    how={"step_us": "20 us become 20 / 4 = 5, and the other 180 stay.",
         "least_us": "If the softmax took no time, the other 180 would be left.",
         "prompt_us": "400 us become 100, and the other 600 stay.",
         "needed_us": "Twice as fast is 100 us, and all of them are the rest's: 80 of its 180 have to go."},
    wrong={"the whole step is divided by four": {"step_us": 50, "least_us": 180, "prompt_us": 250, "needed_us": 100},
           "the share is taken away whole": {"step_us": 180, "least_us": 180, "prompt_us": 600, "needed_us": 100},
           "what goes, in place of what is left": {"step_us": 15, "least_us": 20, "prompt_us": 300, "needed_us": 80}},
)

EXERCISES = (APPEND_ROWS, PREDICT_ROWS, SEEN_FROM_START, KEEP_LIKELIEST, PREDICT_AMDAHL)
