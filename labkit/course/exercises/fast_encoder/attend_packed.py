"""From a blank page: attention over packed sentences

One product has computed queries, keys and values of all heads: `qkv` (T, 3 × heads × 32) float32. A row holds the
queries of all heads, 32 elements each, then the keys of all heads, then the values of all heads. Sentence b has the
`lengths[b]` rows from `begins[b]` on; both arrays are (B,) int32, a length may be 0, and sentences may be in any order.
Rows of no sentence may hold anything, even NaN, and the same rows of `out` must not change.

In each head, a token sees all tokens of its sentence: the weights are the softmax of the scores, a score is the dot
product of query and key divided by the root of 32, and the result is the sum of the weighted values. Write it to `out`
(T, heads × 32), one head after the other, with no copy before or after. For example, with two heads, `begins` (3, 0)
and `lengths` (1, 2), row 3 sees only itself, so `out[3]` is its values, `qkv[3, 128:192]`; rows 0 and 1 see each other.

The grid is `(longest, B, heads)`, and a block is one warp: it computes one query of one sentence in one head. No length
is more than `longest`. The loop from exercise 3 of lesson 31 computes a softmax in one pass over the keys; here the
work is in the addresses. `heads` is an int.

Write `attend_packed(qkv, heads, begins, lengths, out)` from the decorator down.
"""

HINTS = ("Where in a row of qkv is element `lane` of this head's query? Of its key, and of its value? Which "
         "rows are the sentence's?",
         "col = head * 32 + lane, and a key is heads * 32 columns to the right of the query, a value twice as far. "
         "The query is in row begins[b] + blockIdx.x, if that is less than the length; keys and values are in the rows "
         "from begins[b] to begins[b] + lengths[b] - 1. The loop over the keys is that of attend_padded.",
         "score = query * qkv[row, heads * 32 + col], five exchanges at distances 16, 8, 4, 2, 1, times 1 / sqrt(32); "
         "scale row_sum and acc by exp(row_max - new) and add the weight and weight * qkv[row, 2 * heads * 32 + "
         "col]; last out[begins[b] + i, col] = acc / row_sum.")
POINTS = 3
NEEDS = ("attend_padded", "add_norm")

import math

from numba import float32

from labkit import cuda

# %%
attend_packed = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_packed(qkv, heads, begins, lengths, out):
    i, b, head, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z, cuda.threadIdx.x
    width, begin, seen = heads * 32, begins[b], lengths[b]
    col = head * 32 + lane
    if i < seen:
        query = qkv[begin + i, col]
        row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
        for row in range(begin, begin + seen):
            score = query * qkv[row, width + col]
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
            score *= float32(0.17677669)  # 1 / sqrt(32)
            new = max(row_max, score)
            factor, weight = math.exp(row_max - new), math.exp(score - new)
            row_sum = row_sum * factor + weight
            acc = acc * factor + weight * qkv[row, 2 * width + col]
            row_max = new
        out[begin + i, col] = acc / row_sum


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, shuffles, uniform
from labkit.course.exercises.fast_encoder import GAP, LENGTHS, UNTOUCHED, rows_for, some_begins, some_lengths
from labkit.kernels.attention.sentences import attention_sentences_reference
from labkit.kernels.ops.attention_sentences import tolerance_sentences

WIDE = 32
ATTENDED = {"B": 2, "S": 5, "H": 2}


def _attended(qkv, heads, begins, lengths):
    return np.nan_to_num(attention_sentences_reference(qkv, heads, begins, lengths, 0), nan=UNTOUCHED)


def _attended_tolerance(qkv, heads, begins, lengths):
    return np.nan_to_num(2 * tolerance_sentences(qkv, heads, begins, lengths, 0))


def _laid_out(rng, qkv, begins, lengths):
    """NaN in all rows of no sentence."""
    inside = np.zeros(len(qkv), bool)
    for begin, length in zip(begins, lengths, strict=True):
        inside[begin : begin + length] = True
    return np.where(inside[:, None], qkv, np.float32(np.nan))


def _attend_inputs(rng, B, S, H):
    lengths = some_lengths(rng, B, S)
    begins = some_begins(rng, lengths)
    return _laid_out(rng, uniform(rng, rows_for(B, S), 3 * H * WIDE), begins, lengths), H, begins, lengths


def _attended_with(words, choose, gap):
    def turn(rng, qkv, heads, begins, old):
        new = choose(old, len(qkv) // len(old) - GAP).astype(np.int32)
        begins = some_begins(rng, new, gap)
        return _laid_out(rng, uniform(rng, *qkv.shape), begins, new), heads, begins, new

    return Reach(words, turn, {"B": 4, "S": 7, "H": 2})


def _parts_times(queries, keys, values):
    """The three parts of qkv, each multiplied."""
    def turn(rng, qkv, heads, begins, lengths):
        factors = np.repeat(np.float32([queries, keys, values]), heads * WIDE)
        return (qkv * factors).astype(np.float32), heads, begins, lengths

    return turn


def _far_below(rng, qkv, heads, begins, lengths):
    width = heads * WIDE
    qkv = np.abs(qkv)
    qkv[:, :width] -= 9
    qkv[:, width : 2 * width] += 9
    return qkv, heads, begins, lengths


SCALED = "score *= float32(0.17677669)"

EXERCISE = KernelExercise(
    name="attend_packed",
    reference=_attended,
    inputs=_attend_inputs,
    shape=lambda B, S, H: (rows_for(B, S), H * WIDE),
    start=lambda qkv, heads, begins, lengths: np.full((len(qkv), heads * WIDE), UNTOUCHED),
    sizes=tuple({"B": B, "S": S, "H": H} for B, S, H in ((1, 1, 1), (2, 3, 1), (2, 5, 2), (3, 7, 3), (1, 40, 2))),
    launch=lambda B, S, H: ((S, B, H), WIDE),
    tolerance=_attended_tolerance,
    observe_sizes=(ATTENDED,),
    demand=shuffles,
    domain=(*(_attended_with(*each) for each in LENGTHS),
            Reach("scores are thousands apart", _parts_times(100, 100, 1)),
            Reach("values are large", _parts_times(1, 1, 10_000)),
            Reach("all scores are far below 0", _far_below),
            Reach("all scores and values are 0", _parts_times(0, 0, 0))),
    wrong={
        "all rows up to the end of the batch are keys": Edit("range(begin, begin + seen)", "range(qkv.shape[0])"),
        "the keys are the first rows of the batch, for every sentence": Edit("range(begin, begin + seen)",
                                                                            "range(seen)"),
        "a token sees no later ones, as in a GPT": Edit("range(begin, begin + seen)", "range(begin, begin + i + 1)"),
        "the last token is left out": Edit("range(begin, begin + seen)", "range(begin, begin + seen - 1)"),
        "the query is that of the batch's row i, not of the sentence's": Edit("qkv[begin + i, col]", "qkv[i, col]"),
        "the heads are interleaved, not side by side": Edit("out[begin + i, col]",
                                                            "out[begin + i, lane * heads + head]"),
        "the values are the keys": Edit("qkv[row, 2 * width + col]", "qkv[row, width + col]"),
        "all heads read the keys of the first": Edit("qkv[row, width + col]", "qkv[row, width + lane]"),
        "each head is read as 96 elements in a row: its query, its key and its value": Edit(
            "qkv[begin + i, col]", "qkv[begin + i, 96 * head + lane]",
            "qkv[row, width + col]", "qkv[row, 96 * head + 32 + lane]",
            "qkv[row, 2 * width + col]", "qkv[row, 96 * head + 64 + lane]"),
        "the scores are not divided by the root of 32": Edit(SCALED, ""),
        "the first maximum is 0, and scores far below it vanish": Edit("(-math.inf)", "(0.0)"),
        "the division by the sum of the weights is missing": Edit("acc / row_sum", "acc"),
    },
)

EQUIVALENT = {
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
}

AFTER = """
Now an encoder runs on your kernels: attention and both LayerNorms of each layer, each kernel alone and then together,
every launch compared with NumPy in float64. Your answers of lessons 30 and 31 can run with them: add `embed_norm=`
and `mean_pool=`.

# %%
yours.one_by_one(yours.answers(add_norm=add_norm, attend_packed=attend_packed), encoder, sentences)
"""
