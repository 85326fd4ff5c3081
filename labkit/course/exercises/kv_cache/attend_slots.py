"""From a blank page: one query over a slot

Now the other kernel of the cache. `q` (B, H, 64) float32 has one query per sequence and head, and `cache`
(2, B, K, N, 64) the keys and values as in exercise 2. H is a multiple of K: the first H / K query heads share the first
head of keys and values, the next ones the second, and so on. With 8 query heads and 2 key heads, query head 5 reads
head 1.

`lengths` (B,) int32 counts the tokens in each slot, including the new one. The rest of a slot may hold anything, even
NaN. A score is the dot product of query and key divided by the square root of 64, the weights are the softmax of the
scores, and row (b, head) of `out` (B, H, 64) is the weighted sum of the values. Where the length is 0, store 0.

The grid is `(H, B)` with 32 threads per block: a warp computes one query, and a lane holds elements lane and lane + 32.
The loop is that of the exercise `attend_packed`, with two elements per lane.

Write `attend_slots(q, cache, lengths, out)` from the decorator down.
"""

HINTS = ("How does query head 5 find its key head, if there are 8 query heads and 2 key heads? What does a lane hold "
         "of the query, and how do the lanes get the whole score?",
         "kv = head // (q.shape[1] // cache.shape[2]). Each lane multiplies two elements of the query by two of the "
         "key; five exchanges add up the products of all lanes. Keep row_max, row_sum and two accumulators, and "
         "correct the sum and the accumulators where the maximum grows. Divide at the end; where the length is 0, "
         "store 0.",
         "score = low * cache[0, b, kv, place, lane] + high * cache[0, b, kv, place, 32 + lane]; shfl_xor_sync at 16, "
         "8, 4, 2, 1; times 0.125; new = max(row_max, score); factor = exp(row_max - new), weight = exp(score - new); "
         "acc_low = acc_low * factor + weight * cache[1, b, kv, place, lane], acc_high the same with 32 + lane.")
POINTS = 3
NEEDS = ("append_rotated", "attend_packed")

import math

from numba import float32

from labkit import cuda

# %%
attend_slots = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_slots(q, cache, lengths, out):
    head, b, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    kv, seen = head // (q.shape[1] // cache.shape[2]), lengths[b]
    low, high = q[b, head, lane], q[b, head, 32 + lane]
    row_max, row_sum = float32(-math.inf), float32(0.0)
    acc_low, acc_high = float32(0.0), float32(0.0)
    for place in range(seen):
        score = low * cache[0, b, kv, place, lane] + high * cache[0, b, kv, place, 32 + lane]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        score *= float32(0.125)  # 1 / sqrt(64)
        new = max(row_max, score)
        factor, weight = math.exp(row_max - new), math.exp(score - new)
        row_sum = row_sum * factor + weight
        acc_low = acc_low * factor + weight * cache[1, b, kv, place, lane]
        acc_high = acc_high * factor + weight * cache[1, b, kv, place, 32 + lane]
        row_max = new
    out[b, head, lane] = acc_low / row_sum if seen > 0 else float32(0.0)
    out[b, head, 32 + lane] = acc_high / row_sum if seen > 0 else float32(0.0)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, asks, elements_of_argument, shuffles, uniform
from labkit.course.exercises.domains import EQUAL, at, of
from labkit.course.exercises.kv_cache import WIDE

ALL_LANES = 0xFFFFFFFF
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
        return (f"It loads {loads:,} elements from global memory, and {enough:,} are enough: each warp loads its "
                f"query, its keys and its values once. With a running maximum, corrected as larger scores come, one "
                f"pass is enough.")
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

EXERCISE = KernelExercise(
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
            at("each query head has its own keys", B=2, H=3, K=3, N=5),
            at("all query heads share their keys", B=2, H=4, K=1, N=5),
            Reach("scores are thousands apart", _times(100, 100, 1), {"B": 2, "H": 4, "K": 2, "N": 6}),
            Reach("values are large", _times(1, 1, 10_000), {"B": 2, "H": 4, "K": 2, "N": 6}),
            Reach("all scores are far below 0", _scores_below, {"B": 2, "H": 4, "K": 2, "N": 6}),
            Reach("all scores and values are 0", _times(0, 0, 0), {"B": 2, "H": 4, "K": 2, "N": 6}),
            *of(0, EQUAL)),
    wrong={
        "query head h reads head h % K: neighbouring query heads share one instead": Edit(
            "head // (q.shape[1] // cache.shape[2])", "head % cache.shape[2]"),
        "the whole slot is read, beyond the end of the sequence": Edit("range(seen)", "range(cache.shape[3])"),
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

EQUIVALENT = {
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
}
