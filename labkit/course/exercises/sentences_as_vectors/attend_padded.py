"""Find the bug: padding that takes part

Attention of one head of width 32, over sentences that are padded to S rows. `queries`, `keys`, `values` and `out` are
(B × S, 32) float32, and `lengths` (B,) int32 says how many tokens each sentence has. A block is one warp of 32 threads
and computes one row. A token sees all tokens of its sentence and no others, and the result in a row of padding is 0.
Padding may hold anything, even NaN. Alone, a sentence comes out right; in a batch with a longer one, it does not.
"""

HINTS = ("What is the weight of a padding key, and which three variables does it change?",
         "The exponential of a score of 0 is not 0. A score of minus infinity would give the weight 0; but what is 0 "
         "times a value that is NaN? Keys of padding need not be read at all.",
         "for j in range(seen), and without the lines about j >= seen.")
POINTS = 2

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def attend_padded(queries, keys, values, lengths, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    S = queries.shape[0] // lengths.size
    first, seen = t - t % S, lengths[t // S]
    row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
    for j in range(S):
        score = queries[t, lane] * keys[first + j, lane]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        score *= float32(0.17677669)  # 1 / sqrt(32)
        if j >= seen:
            score = float32(0.0)
        new = max(row_max, score)
        factor, weight = math.exp(row_max - new), math.exp(score - new)
        row_sum = row_sum * factor + weight
        acc = acc * factor + weight * values[first + j, lane]
        row_max = new
    out[t, lane] = acc / row_sum if t - first < seen else float32(0.0)


### BEGIN SOLUTION
@cuda.jit
def attend_padded(queries, keys, values, lengths, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    S = queries.shape[0] // lengths.size
    first, seen = t - t % S, lengths[t // S]
    row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
    for j in range(seen):  # what is not read takes no part, whatever it holds
        score = queries[t, lane] * keys[first + j, lane]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        score *= float32(0.17677669)  # 1 / sqrt(32)
        new = max(row_max, score)
        factor, weight = math.exp(row_max - new), math.exp(score - new)
        row_sum = row_sum * factor + weight
        acc = acc * factor + weight * values[first + j, lane]
        row_max = new
    out[t, lane] = acc / row_sum if t - first < seen else float32(0.0)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, HUGE_AND_TINY, ZEROS, Edit, KernelExercise, Reach, of, uniform
from labkit.course.exercises.sentences_as_vectors import random_lengths

WIDE = 32


def _weights(queries, keys):
    scores = queries @ keys.T / math.sqrt(WIDE)
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _of_sentences(compute, queries, keys, values, lengths):
    """compute(queries, keys, values) of each sentence; 0 in the rows of padding."""
    out = np.zeros(queries.shape)
    padded = len(queries) // len(lengths)
    for sentence, length in enumerate(lengths):
        rows = slice(sentence * padded, sentence * padded + length)
        if length:
            out[rows] = compute(*(part[rows].astype(np.float64) for part in (queries, keys, values)))
    return out


def _attended(queries, keys, values, lengths):
    return _of_sentences(lambda q, k, v: _weights(q, k) @ v, queries, keys, values, lengths)


def _attended_tolerance(queries, keys, values, lengths):
    def of_one(q, k, v):
        sizes = np.abs(q) @ np.abs(k).T / math.sqrt(WIDE)
        each = 16 + 4 * np.sqrt(len(k)) + 4 * sizes.max(axis=1, keepdims=True)
        return EPS32 * (_weights(q, k) * each) @ np.abs(v)

    return _of_sentences(of_one, queries, keys, values, lengths)


def _attend_inputs(rng, B, S):
    return *(uniform(rng, B * S, WIDE) for _ in range(3)), random_lengths(rng, B, S)


def _padding_holds(value, *which):
    """Sentences that all have padding; there these of the three arrays hold this number."""
    def turn(rng, *inputs):
        *parts, lengths = inputs
        S = len(parts[0]) // len(lengths)
        lengths = (S - 1 - np.arange(len(lengths)) % S).astype(np.int32)
        return *_with_padding(parts, lengths, value, which), lengths

    return turn


def _with_padding(parts, lengths, value, which):
    is_padding = (np.arange(len(parts[0]) // len(lengths)) >= lengths[:, None]).reshape(-1, 1)
    return (np.where(is_padding, np.float32(value), part) if number in which else part
            for number, part in enumerate(parts))


def _attended_with(words, lengths):
    """NaN in all padding, and the lengths that `lengths` makes of those that were drawn and S."""
    def turn(rng, *inputs):
        *parts, old = inputs
        new = lengths(old, len(parts[0]) // len(old)).astype(np.int32)
        return *_with_padding(parts, new, np.nan, (0, 1, 2)), new

    return Reach(words, turn, PADDED)


def _far_below(rng, queries, keys, values, lengths):
    return _padding_holds(0, 0, 1)(rng, -np.abs(queries) - 9, np.abs(keys) + 9, values, lengths)


PADDED = {"B": 3, "S": 5}
SCALED = "score *= float32(0.17677669)"


def _padding_scored(score: str) -> Edit:
    """All S rows are read, and those of padding have this score."""
    return Edit("for j in range(seen):", "for j in range(S):",
                SCALED, f"{SCALED}\nif j >= seen:\n    score = {score}")


EXERCISE = KernelExercise(
    name="attend_padded",
    reference=_attended,
    inputs=_attend_inputs,
    shape=lambda B, S: (B * S, WIDE),
    sizes=tuple({"B": B, "S": S} for B, S in ((1, 1), (2, 3), (3, 5), (2, 16), (1, 40))),
    launch=lambda B, S: (B * S, WIDE),
    tolerance=_attended_tolerance,
    observe_sizes=(PADDED,),
    domain=(Reach("keys of padding are far above the others", _padding_holds(100, 1), PADDED),
            Reach("values of padding are NaN", _padding_holds(np.nan, 2), PADDED),
            Reach("all scores are far below 0, except those of padding", _far_below, PADDED),
            Reach("all that padding holds is NaN", _padding_holds(np.nan, 0, 1, 2), PADDED),
            _attended_with("no sentence has padding", lambda old, S: 0 * old + S),
            _attended_with("every sentence has a single token", lambda old, S: 0 * old + 1),
            _attended_with("all sentences are empty", lambda old, S: 0 * old),
            _attended_with("the first sentence is empty", lambda old, S: np.minimum(np.arange(len(old)) * S, S - 1)),
            Reach("scores are thousands apart", lambda rng, queries, *others: (200 * queries, *others)),
            *of(2, HUGE_AND_TINY), *of((0, 1), ZEROS)),
    wrong={
        "the score of padding is 0, and the exponential of 0 is not": _padding_scored("float32(0.0)"),
        "the score of padding is -10000: its weight is 0, but 0 times NaN is NaN": _padding_scored("float32(-10000.0)"),
        "padding is left out of the sum of the weights, but its values are added":
            Edit("for j in range(seen):", "for j in range(S):",
                 "row_sum = row_sum * factor + weight",
                 "row_sum = row_sum * factor + (weight if j < seen else float32(0.0))"),
        "all rows of the batch are keys of every token":
            Edit("for j in range(seen):", "for j in range(-first, queries.shape[0] - first):"),
        "the keys are those of the first sentence, for all of them":
            Edit("queries[t, lane] * keys[first + j, lane]", "queries[t, lane] * keys[j, lane]"),
        "the values are those of the first sentence, for all of them":
            Edit("weight * values[first + j, lane]", "weight * values[j, lane]"),
        "a token sees no later ones, as in a GPT": Edit("for j in range(seen):", "for j in range(t - first + 1):"),
        "the last token is left out": Edit("for j in range(seen):", "for j in range(seen - 1):"),
        "rows of padding get a result, too, but should be 0":
            Edit("acc / row_sum if t - first < seen else float32(0.0)", "acc / row_sum"),
        "the scores are not divided by the root of 32": Edit(SCALED, ""),
    },
)

EQUIVALENT = {
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
    "type: float32(-math.inf) -> int32(-math.inf)":
        "The lowest int32, which it becomes, is below every score of vectors whose elements are within 10,000.",
}
