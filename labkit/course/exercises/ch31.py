"""The exercises of lesson 31: what a cache saves, keys and values of new tokens put into slots, buffers placed by first
fit, and attention of one query over a slot.

Sizes are B slots of N places, H heads of queries and K of keys and values, 64 numbers each; n buffers.
"""

import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, elements_of_argument, shuffles
from labkit.course.exercises.domains import EQUAL, HUGE_AND_TINY, ZEROS, any_angles, at, of
from labkit.kernels.op import uniform
from labkit.kernels.rope import rope_table
from labkit.kernels.tolerance import EPS32

WIDE, HALF = 64, 32
ALL_LANES = 0xFFFFFFFF

# --- Predict: an answer with a cache and without one ------------------------------------------------------------------


def _answer() -> dict:
    prompt, tokens, weights = 400, 100, 10**9
    kept, rows = 2 * 25 * 4 * 100 * 2, [prompt + done for done in range(tokens)]  # bytes of a token; without a cache
    by_bytes = 2 * weights / 4_000_000  # us, at 4,000 GB/s
    step = [max(by_bytes, 2 * weights * count / 800_000_000) for count in rows]  # us, at 800 TFLOP/s
    return {"rows_with": prompt + tokens - 1, "rows_without": sum(rows), "kept_bytes": (prompt + tokens - 1) * kept,
            "decode_us_with": (tokens - 1) * by_bytes, "all_us_without": sum(step)}


PREDICT_ANSWER = PredictionExercise(
    name="predict_answer",
    truth=_answer,
    how={"rows_with": "400 rows of the prompt, and one for each token of the answer but the last.",
         "rows_without": "The first step has 400 rows, the last one 499: 100 steps with 449.5 rows on average.",
         "kept_bytes": "A key and a value of 100 numbers in each of 4 heads and 25 layers, 2 bytes a number, are "
                       "40,000 bytes, for each of 499 tokens.",
         "decode_us_with": "A step of one row takes as long as the weights' 2,000 MB: 500 microseconds. 99 follow.",
         "all_us_without": "400 rows take 1,000 microseconds for their flops, longer than the bytes, and later steps "
                           "have more. So all rows count, with 2.5 microseconds each."},
    wrong={"the last token goes through the model as well: nothing is computed after it": {
               "rows_with": 500, "kept_bytes": 20_000_000, "decode_us_with": 50_000},
           "a step computes the token that it is to find: 401 rows in the first, 500 in the last": {
               "rows_without": 45_050, "all_us_without": 112_625},
           "the prompt is computed again in every step, but not the answer so far": {
               "rows_without": 40_000, "all_us_without": 100_000},
           "the keys alone, without the values": {"kept_bytes": 9_980_000},
           "one layer alone": {"kept_bytes": 798_400},
           "a single row takes as long as its flops: the weights are not read": {"decode_us_with": 247.5},
           "steps without a cache take as long as the weights' bytes, however many rows they have": {
               "all_us_without": 50_000},
           "bytes and flops one after the other, not at the same time": {
               "decode_us_with": 49_747.5, "all_us_without": 162_375}},
)

# --- Into the slots ---------------------------------------------------------------------------------------------------

ANGLES = rope_table(128, WIDE, 10_000.0, None)
APPENDED = {"B": 3, "K": 2, "N": 5}


def _kept(k, v, table, lengths, cache):
    out = cache.copy()
    places = cache.shape[3]
    for b, place in enumerate(lengths):
        if 0 <= place < places:
            low, high = k[b, :, :HALF].astype(np.float64), k[b, :, HALF:].astype(np.float64)
            cos, sin = table[place, :HALF].astype(np.float64), table[place, HALF:].astype(np.float64)
            out[0, b, :, place] = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)
            out[1, b, :, place] = v[b]
    return out


def _kept_tolerance(k, v, table, lengths, cache):
    """Two products and a sum for a key; values are copied."""
    allowed = np.zeros(cache.shape)
    for b, place in enumerate(lengths.astype(int)):
        if 0 <= place < cache.shape[3]:
            size = np.abs(k[b, :, :HALF]) + np.abs(k[b, :, HALF:])
            allowed[0, b, :, place] = 4 * EPS32 * np.concatenate([size, size], axis=1)
    return allowed


def _kept_inputs(rng, B, K, N):
    lengths = rng.integers(0, N, B).astype(np.int32)
    return (uniform(rng, B, K, WIDE), uniform(rng, B, K, WIDE), ANGLES[:N].copy(), lengths,
            uniform(rng, 2, B, K, N, WIDE))


def _places(words, choose, **size):
    """Inputs with these lengths: choose(B, N) -> B of them."""
    def turn(rng, k, v, table, lengths, cache):
        return k, v, table, np.asarray(choose(len(lengths), cache.shape[3])).astype(np.int32), cache

    return Reach(words, turn, size or {"B": 4, "K": 2, "N": 6})


@asks("A block loads each number of key, value and table once.")
def _loads_a_pair_once(report) -> str | None:
    """Both numbers of a pair by one thread, with one cosine and one sine."""
    pairs = APPENDED["B"] * APPENDED["K"] * HALF
    loads, enough = report.counts["global_loads"], 10 * pairs
    if loads <= enough:
        return None
    return (f"It loads {loads:,} numbers from global memory, and {enough:,} are enough. Let a thread compute both "
            f"numbers of a pair: it loads the two of the key, one cosine, one sine, and two of the value.")


@cuda.jit
def append_number_by_number(k, v, table, lengths, cache):
    head, b = cuda.blockIdx.x, cuda.blockIdx.y
    place = lengths[b]
    if 0 <= place < cache.shape[3]:
        for d in range(cuda.threadIdx.x, 64, 32):
            cos, sin = table[place, d % 32], table[place, 32 + d % 32]
            if d < 32:
                cache[0, b, head, place, d] = k[b, head, d] * cos - k[b, head, d + 32] * sin
            else:
                cache[0, b, head, place, d] = k[b, head, d] * cos + k[b, head, d - 32] * sin
            cache[1, b, head, place, d] = v[b, head, d]


LOW, HIGH = "low * cos - high * sin", "high * cos + low * sin"

APPEND_ROTATED = KernelExercise(
    name="append_rotated",
    reference=_kept,
    inputs=_kept_inputs,
    shape=lambda B, K, N: (2, B, K, N, WIDE),
    start=lambda k, v, table, lengths, cache: cache,
    arguments=lambda inputs, out, size: (*inputs[:4], out),
    sizes=tuple({"B": B, "K": K, "N": N} for B, K, N in ((1, 1, 3), (2, 1, 7), (3, 2, 5), (4, 3, 40))),
    random_size=lambda rng: {"B": int(rng.integers(1, 6)), "K": int(rng.integers(1, 4)), "N": int(rng.integers(2, 30))},
    launch=lambda B, K, N: ((K, B), 32),
    tolerance=_kept_tolerance,
    observe_sizes=(APPENDED,),
    demand=_loads_a_pair_once,
    domain=(any_angles(2, {"B": 4, "K": 2, "N": 6}), _places("all slots are empty", lambda B, N: [-1] * B),
            _places("the first slot is empty", lambda B, N: [-1] + [2] * (B - 1)),
            _places("the last slot is empty", lambda B, N: [2] * (B - 1) + [-1]),
            _places("every sequence is at its first token", lambda B, N: [0] * B),
            _places("all places of every slot are taken", lambda B, N: [N] * B),
            _places("the first slot has no place left", lambda B, N: [N] + [1] * (B - 1)),
            _places("the last place of each slot is free", lambda B, N: [N - 1] * B),
            *of((0, 1), HUGE_AND_TINY, ZEROS)),
    wrong={
        "neighbours form pairs, as in other models: here a number's partner is 32 numbers away": Edit(
            "low, high = k[b, head, lane], k[b, head, 32 + lane]",
            "low, high = k[b, head, 2 * lane], k[b, head, 2 * lane + 1]",
            "cache[0, b, head, place, lane] =", "cache[0, b, head, place, 2 * lane] =",
            "cache[0, b, head, place, 32 + lane] =", "cache[0, b, head, place, 2 * lane + 1] ="),
        "the rotation goes the other way: the signs of the sines are exchanged": Edit(
            LOW, "low * cos + high * sin", HIGH, "high * cos - low * sin"),
        "the second number is computed from the rotated first one": Edit(
            "cache[0, b, head, place, lane] = low * cos - high * sin",
            "low = low * cos - high * sin\ncache[0, b, head, place, lane] = low"),
        "the keys are stored as they came: no rotation": Edit(LOW, "low", HIGH, "high"),
        "cosine and sine are exchanged": Edit("cos, sin = table[place, lane], table[place, 32 + lane]",
                                             "sin, cos = table[place, lane], table[place, 32 + lane]"),
        "the angles are those of the token before": Edit(
            "table[place, lane]", "table[max(place - 1, 0), lane]",
            "table[place, 32 + lane]", "table[max(place - 1, 0), 32 + lane]"),
        "the place is that of the last token, which is overwritten": Edit("place = lengths[b]",
                                                                        "place = lengths[b] - 1"),
        "every sequence is as long as the first one": Edit("place = lengths[b]", "place = lengths[0]"),
        "a slot without a sequence: place -1 is the last place of the slot": Edit("if 0 <= place < cache.shape[3]:",
                                                                           "if place < cache.shape[3]:"),
        "no guard for a full slot: the token goes into the next head, or out of the array": Edit(
            "if 0 <= place < cache.shape[3]:", "if 0 <= place:"),
        "the values are the keys": Edit("= v[b, head, lane]", "= k[b, head, lane]",
                                       "= v[b, head, 32 + lane]", "= k[b, head, 32 + lane]"),
        "the second half of the values is left out": Edit(
            "cache[1, b, head, place, 32 + lane] = v[b, head, 32 + lane]", ""),
        "number by number: each key and each angle is loaded twice": append_number_by_number,
    },
)

# --- Buffers by first fit ---------------------------------------------------------------------------------------------


def _placed(sizes, first, last):
    offsets = np.zeros(len(sizes), np.int64)
    for i in range(len(sizes)):
        others = [j for j in range(i) if first[j] <= last[i] and first[i] <= last[j]]
        candidates = sorted({0, *(int(offsets[j] + sizes[j]) for j in others)})
        offsets[i] = next(at for at in candidates if all(
            at + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= at for j in others))
    return offsets


def _buffers(rng, n, launches):
    ends = np.sort(rng.integers(0, launches, (n, 2)), axis=1)
    return rng.integers(1, 12, n) * 16, ends[:, 0], ends[:, 1]


def _lives(words, choose, **size):
    def turn(rng, *arrays):
        return tuple(np.asarray(each).astype(np.int64) for each in choose(len(arrays[0])))

    return Reach(words, turn, size or {"n": 9, "launches": 6})


def place_above_all(sizes, first, last):
    offsets = np.zeros(len(sizes), np.int64)
    for i in range(len(sizes)):
        ends = [offsets[j] + sizes[j] for j in range(i) if first[j] <= last[i] and first[i] <= last[j]]
        offsets[i] = max(ends, default=0)
    return offsets


def place_unsorted(sizes, first, last):
    offsets = np.zeros(len(sizes), np.int64)
    for i in range(len(sizes)):
        at = 0
        for j in range(i):
            together = first[j] <= last[i] and first[i] <= last[j]
            if together and at < offsets[j] + sizes[j] and offsets[j] < at + sizes[i]:
                at = offsets[j] + sizes[j]
        offsets[i] = at
    return offsets


PLACE_BUFFERS = FunctionExercise(
    name="place_buffers",
    reference=_placed,
    inputs=_buffers,
    sizes=tuple({"n": n, "launches": launches} for n, launches in ((1, 1), (3, 4), (8, 6), (25, 12))),
    random_size=lambda rng: {"n": int(rng.integers(10, 40)), "launches": int(rng.integers(4, 16))},
    domain=(_lives("all buffers are live in the same launch", lambda n: (16 * np.arange(1, n + 1), [0] * n, [3] * n)),
            _lives("no two buffers are live in the same launch",
                   lambda n: (16 * np.arange(1, n + 1), 2 * np.arange(n), 2 * np.arange(n) + 1)),
            _lives("each buffer is written by the launch that reads the one before it",
                   lambda n: ([64, 16, 32] * (n // 3), np.arange(n), np.arange(n) + 1)),
            _lives("a buffer fits exactly into a gap", lambda n: (
                [32, 48, 32, 48, *[16] * (n - 4)], [0, 0, 0, 3, *[9] * (n - 4)], [5, 2, 5, 5, *[9] * (n - 4)])),
            _lives("a buffer is a byte larger than a gap", lambda n: (
                [32, 48, 32, 49, *[16] * (n - 4)], [0, 0, 0, 3, *[9] * (n - 4)], [5, 2, 5, 5, *[9] * (n - 4)])),
            _lives("of two gaps the lower one is large enough", lambda n: (
                [16, 16, 16, 16, 16, 16, *[8] * (n - 6)], [0, 0, 0, 0, 0, 3, *[3] * (n - 6)],
                [5, 2, 5, 2, 5, 5, *[5] * (n - 6)])),
            _lives("a buffer is live in one launch alone", lambda n: (
                16 * (1 + np.arange(n) % 3), np.arange(n) // 3, np.arange(n) // 3))),
    wrong={
        "a buffer that a launch reads may be overwritten by what it writes": Edit(
            "first[j] <= last[i] and first[i] <= last[j]", "first[j] < last[i] and first[i] < last[j]"),
        "gaps are not used: each goes above all that are live with it": place_above_all,
        "the others are not examined in the order of their addresses: a lower gap is missed": place_unsorted,
        "all others count, whether they are live at the same time or not": Edit(
            "if first[j] <= last[i] and first[i] <= last[j]", ""),
        "a gap is taken if its first byte is free, whatever its size": Edit(
            "if offsets[j] < at + sizes[i] and at < offsets[j] + sizes[j]:",
            "if offsets[j] <= at < offsets[j] + sizes[j]:"),
        "a gap must be larger than the buffer: one of the same size is missed": Edit(
            "offsets[j] < at + sizes[i]", "offsets[j] <= at + sizes[i]"),
        "two buffers conflict only if they begin in the same launch": Edit(
            "first[j] <= last[i] and first[i] <= last[j]", "first[j] == first[i]"),
        "it moves to where the other begins, not to its end": Edit("at = offsets[j] + sizes[j]",
                                                                 "at = max(at, offsets[j])"),
    },
)

# --- From a blank page: one query over a slot -------------------------------------------------------------------------

SLOTS = {"B": 1, "H": 4, "K": 2, "N": 6}  # a single slot is full
SCALE = 1 / math.sqrt(WIDE)


def _by_head(q, cache, lengths):
    """(sequence, head, its query, its keys, its values, the weights of these) of each that is not empty, in float64."""
    for b, seen in enumerate(lengths.astype(int)):
        for head in range(q.shape[1] if seen else 0):
            kv = head // (q.shape[1] // cache.shape[2])
            query, keys, values = (x.astype(np.float64) for x in (q[b, head], cache[0, b, kv, :seen],
                                                                  cache[1, b, kv, :seen]))
            scores = keys @ query * SCALE
            weights = np.exp(scores - scores.max())
            yield b, head, query, keys, values, weights / weights.sum()


def _slots_attended(q, cache, lengths):
    out = np.zeros(q.shape)
    for b, head, _, _, values, weights in _by_head(q, cache, lengths):
        out[b, head] = weights @ values
    return out


def _slots_tolerance(q, cache, lengths):
    """An error of a score is a part of its weight, and of the sum of all weights; sums add theirs."""
    allowed = np.zeros(q.shape)
    for b, head, query, keys, values, weights in _by_head(q, cache, lengths):
        size = np.abs(keys) @ np.abs(query) * SCALE
        error = EPS32 * (8 * size + 2 * size.max() + 2 * len(keys) + 8)
        allowed[b, head] = (weights * (error + weights @ error)) @ np.abs(values)
    return allowed


def _slot_inputs(rng, B, H, K, N):
    lengths = rng.integers(0, N + 1, B).astype(np.int32)
    lengths[rng.integers(B)] = N
    return _behind(uniform(rng, B, H, WIDE), uniform(rng, 2, B, K, N, WIDE), lengths)


def _behind(q, cache, lengths):
    """NaN in all places after a sequence."""
    cache = cache.copy()
    for b, seen in enumerate(lengths):
        cache[:, b, :, seen:] = np.nan
    return q, cache, lengths


def _slots_with(words, choose, **size):
    def turn(rng, q, cache, lengths):
        new = np.asarray(choose(len(lengths), cache.shape[3])).astype(np.int32)
        return _behind(q, uniform(rng, *cache.shape), new)

    return Reach(words, turn, size or {"B": 3, "H": 2, "K": 1, "N": 7})


def _times(queries, keys, values):
    def turn(rng, q, cache, lengths):
        return (np.float32(queries) * q, cache * np.float32([keys, values]).reshape(2, 1, 1, 1, 1), lengths)

    return turn


def _scores_below(rng, q, cache, lengths):
    """All scores are far below 0: queries are negative, keys positive."""
    cache = cache.copy()
    cache[0] = np.abs(cache[0]) + 9
    return -np.abs(q) - 9, cache, lengths


@asks("A warp loads its query, its keys and its values once.", shuffles)
def _each_once(report) -> str | None:
    """One pass over keys and values."""
    queries, cache = (elements_of_argument(report, number) for number in (0, 1))
    threads, shared = 32 * SLOTS["B"] * SLOTS["H"], SLOTS["H"] // SLOTS["K"]
    loads, enough = report.counts["global_loads"], queries + shared * cache + threads * (SLOTS["N"] + 2)
    if loads > enough:
        return (f"It loads {loads:,} numbers from global memory, and {enough:,} are enough: each warp loads its query, "
                f"its keys and its values once. With a maximum that is corrected while the keys go by, one pass is "
                f"enough.")
    return None


@cuda.jit(device=True)
def slot_score(q, cache, b, head, kv, place, lane):
    score = q[b, head, lane] * cache[0, b, kv, place, lane] + q[b, head, 32 + lane] * cache[0, b, kv, place, 32 + lane]
    for distance in (16, 8, 4, 2, 1):
        score += cuda.shfl_xor_sync(ALL_LANES, score, distance)
    return score * float32(0.125)


@cuda.jit
def attend_slots_two_passes(q, cache, lengths, out):
    head, b, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    kv, seen = head // (q.shape[1] // cache.shape[2]), lengths[b]
    row_max = float32(-math.inf)
    for place in range(seen):
        row_max = max(row_max, slot_score(q, cache, b, head, kv, place, lane))
    row_sum, acc_low, acc_high = float32(0.0), float32(0.0), float32(0.0)
    for place in range(seen):
        weight = math.exp(slot_score(q, cache, b, head, kv, place, lane) - row_max)
        row_sum += weight
        acc_low += weight * cache[1, b, kv, place, lane]
        acc_high += weight * cache[1, b, kv, place, 32 + lane]
    out[b, head, lane] = acc_low / row_sum if seen > 0 else float32(0.0)
    out[b, head, 32 + lane] = acc_high / row_sum if seen > 0 else float32(0.0)


SCALED = "score *= float32(0.125)"

ATTEND_SLOTS = KernelExercise(
    name="attend_slots",
    reference=_slots_attended,
    inputs=_slot_inputs,
    shape=lambda B, H, K, N: (B, H, WIDE),
    sizes=tuple({"B": B, "H": H, "K": K, "N": N} for B, H, K, N in (
        (1, 1, 1, 1), (2, 2, 1, 3), (1, 4, 2, 6), (3, 6, 2, 9), (1, 3, 3, 40))),
    random_size=lambda rng: {"B": int(rng.integers(1, 4)), "H": int(2 * rng.integers(1, 4)), "K": 2,
                             "N": int(rng.integers(2, 20))},
    launch=lambda B, H, K, N: ((H, B), 32),
    tolerance=_slots_tolerance,
    observe_sizes=(SLOTS,),
    demand=_each_once,
    domain=(_slots_with("all slots are empty", lambda B, N: [0] * B),
            _slots_with("the first slot is empty", lambda B, N: [0] + [N] * (B - 1)),
            _slots_with("the last slot is empty", lambda B, N: [N] * (B - 1) + [0]),
            _slots_with("every sequence has a single token", lambda B, N: [1] * B),
            _slots_with("all slots are full", lambda B, N: [N] * B),
            at("each head of queries has its own keys", B=2, H=3, K=3, N=5),
            at("all heads of queries share their keys", B=2, H=4, K=1, N=5),
            Reach("scores are thousands apart", _times(100, 100, 1), {"B": 2, "H": 4, "K": 2, "N": 6}),
            Reach("values are large", _times(1, 1, 10_000), {"B": 2, "H": 4, "K": 2, "N": 6}),
            Reach("all scores are far below 0", _scores_below, {"B": 2, "H": 4, "K": 2, "N": 6}),
            Reach("all scores and values are 0", _times(0, 0, 0), {"B": 2, "H": 4, "K": 2, "N": 6}),
            *of(0, EQUAL)),
    wrong={
        "heads of queries take heads of keys in rotation: neighbours share one": Edit(
            "head // (q.shape[1] // cache.shape[2])", "head % cache.shape[2]"),
        "all places of a slot are keys, those after the sequence too": Edit("range(seen)", "range(cache.shape[3])"),
        "every sequence is as long as the first one": Edit("range(seen)", "range(lengths[0])"),
        "the last token is left out": Edit("range(seen)", "range(seen - 1)"),
        "all sequences read the keys of the first slot": Edit(
            "cache[0, b, kv, place, lane]", "cache[0, 0, kv, place, lane]",
            "cache[0, b, kv, place, 32 + lane]", "cache[0, 0, kv, place, 32 + lane]"),
        "the second half of the head is missing in the scores": Edit(
            " + high * cache[0, b, kv, place, 32 + lane]", ""),
        "the values are the keys": Edit(
            "weight * cache[1, b, kv, place, lane]", "weight * cache[0, b, kv, place, lane]",
            "weight * cache[1, b, kv, place, 32 + lane]", "weight * cache[0, b, kv, place, 32 + lane]"),
        "the scores are not divided by the root of 64": Edit(SCALED, ""),
        "the scores are divided by the root of 32": Edit(SCALED, "score *= float32(0.17677669)"),
        "the first maximum is 0, and scores far below it vanish": Edit("(-math.inf)", "(0.0)"),
        "the sum is not corrected where the maximum grows": Edit("row_sum = row_sum * factor + weight",
                                                                "row_sum = row_sum + weight"),
        "the division by the sum of the weights is missing": Edit("acc_low / row_sum", "acc_low",
                                                                 "acc_high / row_sum", "acc_high"),
        "an empty slot divides 0 by 0": Edit("acc_low / row_sum if seen > 0 else float32(0.0)", "acc_low / row_sum",
                                           "acc_high / row_sum if seen > 0 else float32(0.0)", "acc_high / row_sum"),
        "two passes: one for the maximum, one for the weights": attend_slots_two_passes,
    },
)

EXERCISES = (PREDICT_ANSWER, APPEND_ROTATED, PLACE_BUFFERS, ATTEND_SLOTS)
