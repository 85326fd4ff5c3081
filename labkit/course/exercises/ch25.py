"""The exercises of lesson 25: the occupancy of a block with a whole score matrix, a residual and a LayerNorm in place,
and attention over packed sentences.

Sizes are B sentences of at most S tokens, T rows of C columns, H heads of 32 numbers. The packed batches at the top
serve a later lesson, too.
"""

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, shuffles
from labkit.course.exercises.domains import (
    EQUAL,
    FAR_ABOVE_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    ONE_FAR_ABOVE,
    ZEROS,
    in_place,
    of,
)
from labkit.device import occupancy
from labkit.kernels.attention.sentences import attention_sentences_reference
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rows import tolerance as layernorm_tolerance
from labkit.kernels.op import uniform
from labkit.kernels.ops.attention_sentences import tolerance_sentences
from labkit.kernels.tolerance import EPS32

ALL_LANES = 0xFFFFFFFF
UNTOUCHED = -7  # in elements of no sentence
GAP = 3  # rows of no sentence after each, at most


def some_lengths(rng, B, S):
    """One of them is S; the others may be 0."""
    lengths = rng.integers(0, S + 1, B).astype(np.int32)
    lengths[rng.integers(B)] = S
    return lengths


def some_begins(rng, lengths, gap=None):
    """Sentences of these lengths in any order, with up to GAP rows of no sentence after each, or exactly `gap`."""
    begins, end = np.zeros(len(lengths), np.int32), 0
    for sentence in rng.permutation(len(lengths)):
        begins[sentence] = end
        end += int(lengths[sentence]) + (int(rng.integers(0, GAP + 1)) if gap is None else gap)
    return begins


def rows_for(B, S):
    return B * (S + GAP)


# The properties of lengths: (in words, lengths from those drawn and S, the gap after each).
LENGTHS = (
    ("all sentences are empty", lambda old, S: 0 * old, None),
    ("every sentence has a single token", lambda old, S: 0 * old + 1, None),
    ("no sentence has padding", lambda old, S: 0 * old + S, 0),
    ("the first sentence is empty", lambda old, S: np.where(np.arange(len(old)) == 0, 0, S), None),
    ("the last sentence is empty", lambda old, S: np.where(np.arange(len(old)) == len(old) - 1, 0, S), None),
    ("sentences lie end to end, with no row between them", lambda old, S: old, 0),
    ("every sentence is followed by rows of no sentence", lambda old, S: old, GAP),
)

# --- Predict: a score matrix in shared memory -------------------------------------------------------------------------

RTX_3090 = occupancy.GPU("RTX 3090", 82, 1536, 16, 65_536, 102_400)  # compute capability 8.6


def _whole_matrix() -> dict:
    scores = 128 * 128 * 2
    block = scores + 3 * 128 * 32 * 2
    tiles = 3 * 64 * 32 * 2
    few = 32  # registers a thread, which leave the limit to shared memory
    return {"score_bytes": scores, "block_bytes": block,
            "blocks_3090": occupancy.blocks(RTX_3090, 256, few, block),
            "blocks_h200": occupancy.blocks(occupancy.H200, 256, few, block),
            "tiled_warps_3090": 4 * occupancy.blocks(RTX_3090, 128, few, tiles)}


PREDICT_WHOLE_MATRIX = PredictionExercise(
    name="predict_whole_matrix",
    truth=_whole_matrix,
    how={"score_bytes": "128 times 128 scores of 2 bytes.",
         "block_bytes": "Queries, keys and values are 128 times 32 numbers each: three times 8,192 bytes more.",
         "blocks_3090": "57,344 and 1,024 bytes go once into 102,400, and not twice.",
         "blocks_h200": "58,368 goes four times into 233,472, without a remainder. Four blocks are 32 warps of 64.",
         "tiled_warps_3090": "3 times 64 times 32 numbers are 12,288 bytes, with the 1,024 13,312: seven blocks. The "
                             "warps would allow twelve. Seven blocks have four warps each."},
    wrong={"the numbers have four bytes: they are float16": {
               "score_bytes": 65536, "block_bytes": 114688, "blocks_3090": 0, "blocks_h200": 2,
               "tiled_warps_3090": 16},
           "the scores alone fill the block: queries, keys and values lie beside them": {
               "score_bytes": 32768, "block_bytes": 32768, "blocks_3090": 3, "blocks_h200": 6,
               "tiled_warps_3090": 28},
           "the 1,024 bytes that each block takes for itself are left out": {
               "score_bytes": 32768, "block_bytes": 57344, "blocks_3090": 1, "blocks_h200": 4,
               "tiled_warps_3090": 32},
           "blocks in place of warps": {
               "score_bytes": 32768, "block_bytes": 57344, "blocks_3090": 1, "blocks_h200": 4, "tiled_warps_3090": 7},
           "the warps decide, and the shared memory is forgotten": {
               "score_bytes": 32768, "block_bytes": 57344, "blocks_3090": 6, "blocks_h200": 8,
               "tiled_warps_3090": 48}},
)

# --- A residual and a LayerNorm, in place -----------------------------------------------------------------------------

EPSILON = 1e-12
NORMED = {"T": 3, "C": 100}


def _norm_inputs(rng, T, C):
    return uniform(rng, T, C), uniform(rng, T, C), 1 + uniform(rng, C) / 4, uniform(rng, C)


def _norm_tolerance(x, residual, weight, bias):
    """LayerNorm's, and the rounding of the sum before it."""
    total = x + residual
    scale = np.abs(weight) / np.sqrt(total.var(axis=1, keepdims=True) + EPSILON)
    return layernorm_tolerance(total, weight, bias, EPSILON) + EPS32 * np.abs(total) * scale


@asks("Each element is loaded once and stored once.", shuffles)
def _loads_once(report) -> str | None:
    """Everything once, and the sums in registers."""
    rows, columns = NORMED["T"], NORMED["C"]
    loads, stores = report.counts["global_loads"], report.counts["global_stores"]
    if loads <= 4 * rows * columns and stores <= rows * columns:
        return None
    return (f"At {rows} x {columns} your kernel makes {loads:,} loads and {stores:,} stores in global memory; "
            f"{4 * rows * columns:,} and {rows * columns:,} suffice. Keep a lane's share of the sums in `kept`.")


def _small(rng, x, residual, weight, bias):
    return np.float32(1e-5) * x, np.float32(1e-5) * residual, weight, bias


def _cancels(rng, x, residual, weight, bias):
    return x, -x, weight, bias


@cuda.jit
def add_norm_reads_again(x, residual, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    columns = x.shape[1]
    if t < x.shape[0]:
        total, squares = float32(0.0), float32(0.0)
        for col in range(lane, columns, 32):
            total += x[t, col] + residual[t, col]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
        mean = total / float32(columns)
        for col in range(lane, columns, 32):
            v = x[t, col] + residual[t, col] - mean
            squares += v * v
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        scale = cuda.rsqrt(squares / float32(columns) + float32(1e-12))
        for col in range(lane, columns, 32):
            out[t, col] = (x[t, col] + residual[t, col] - mean) * scale * weight[col] + bias[col]


@cuda.jit
def add_norm_through_out(x, residual, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    columns = x.shape[1]
    if t < x.shape[0]:
        total, squares = float32(0.0), float32(0.0)
        for col in range(lane, columns, 32):
            out[t, col] = x[t, col] + residual[t, col]
            total += out[t, col]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
        mean = total / float32(columns)
        for col in range(lane, columns, 32):
            squares += (out[t, col] - mean) ** 2
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        scale = cuda.rsqrt(squares / float32(columns) + float32(1e-12))
        for col in range(lane, columns, 32):
            out[t, col] = (out[t, col] - mean) * scale * weight[col] + bias[col]


@cuda.jit
def add_norm_writes_first(x, residual, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    columns = x.shape[1]
    if t < x.shape[0]:
        total, squares = float32(0.0), float32(0.0)
        for col in range(lane, columns, 32):
            out[t, col] = x[t, col] + residual[t, col]
            total += x[t, col] + residual[t, col]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
        mean = total / float32(columns)
        for col in range(lane, columns, 32):
            v = x[t, col] + residual[t, col] - mean
            squares += v * v
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        scale = cuda.rsqrt(squares / float32(columns) + float32(1e-12))
        for col in range(lane, columns, 32):
            out[t, col] = (x[t, col] + residual[t, col] - mean) * scale * weight[col] + bias[col]


@cuda.jit
def add_norm_in_one_pass(x, residual, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    kept = cuda.local.array(12, float32)
    columns = x.shape[1]
    if t < x.shape[0]:
        total, squares = float32(0.0), float32(0.0)
        for k in range(12):
            col = lane + 32 * k
            if col < columns:
                kept[k] = x[t, col] + residual[t, col]
                total += kept[k]
                squares += kept[k] * kept[k]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        mean = total / float32(columns)
        scale = cuda.rsqrt(squares / float32(columns) - mean * mean + float32(1e-12))
        for k in range(12):
            col = lane + 32 * k
            if col < columns:
                out[t, col] = (kept[k] - mean) * scale * weight[col] + bias[col]


ADD_NORM = KernelExercise(
    name="add_norm",
    reference=lambda x, residual, weight, bias: layernorm_reference(
        x.astype(np.float64) + residual, weight, bias, EPSILON),
    inputs=_norm_inputs,
    shape=lambda T, C: (T, C),
    sizes=tuple({"T": T, "C": C} for T, C in ((1, 1), (2, 3), (4, 32), (5, 33), (3, 100), (9, 383), (2, 384))),
    random_size=lambda rng: {"T": int(rng.integers(2, 12)), "C": int(rng.integers(30, 385))},
    launch=lambda T, C: (-(-T // 4), (32, 4)),
    tolerance=_norm_tolerance,
    observe_sizes=(NORMED,),
    demand=_loads_once,
    domain=(in_place(1), Reach("the sums are small, and epsilon must be smaller", _small),
            Reach("the residual cancels x, and the variance is 0", _cancels),
            *of((0, 1), ZEROS, HUGE_AND_TINY, EQUAL), *of(0, FAR_ABOVE_ZERO, ONE_FAR_ABOVE), *of((2, 3), NEGATIVE)),
    wrong={
        "the residual is left out": Edit("x[t, col] + residual[t, col]", "x[t, col]"),
        "the residual is added after the norm": Edit("x[t, col] + residual[t, col]", "x[t, col]",
                                                     "* weight[col] + bias[col]",
                                                     "* weight[col] + bias[col] + residual[t, col]"),
        "epsilon is GPT-2's 1e-5, and BERT's is 1e-12": Edit("float32(1e-12)", "float32(1e-5)"),
        "no epsilon: a row without variance is divided by 0": Edit(" + float32(1e-12)", ""),
        "the mean is not subtracted": Edit("kept[k] -= mean", ""),
        "`shfl_down_sync`: only lane 0 has the sum of the squares":
            Edit("squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)",
                 "squares += cuda.shfl_down_sync(0xFFFFFFFF, squares, distance)"),
        "no guard: the last block has warps without a row": Edit("if t < x.shape[0]:", "if True:"),
        "one pass for both sums: the variance is the difference of two large numbers": add_norm_in_one_pass,
        "out is written, and then the residual is read again: where they are one array, it holds the sum":
            add_norm_writes_first,
        "x and the residual are read three times": add_norm_reads_again,
        "the sums wait in `out`, in global memory, and are read back": add_norm_through_out,
    },
)

# --- From a blank page: attention over packed sentences ---------------------------------------------------------------

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

ATTEND_PACKED = KernelExercise(
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
        "the heads are put together number by number, not side by side": Edit("out[begin + i, col]",
                                                                             "out[begin + i, lane * heads + head]"),
        "the values are the keys": Edit("qkv[row, 2 * width + col]", "qkv[row, width + col]"),
        "all heads read the keys of the first": Edit("qkv[row, width + col]", "qkv[row, width + lane]"),
        "each head is taken for 96 numbers in a row: its query, its key and its value": Edit(
            "qkv[begin + i, col]", "qkv[begin + i, 96 * head + lane]",
            "qkv[row, width + col]", "qkv[row, 96 * head + 32 + lane]",
            "qkv[row, 2 * width + col]", "qkv[row, 96 * head + 64 + lane]"),
        "the scores are not divided by the root of 32": Edit(SCALED, ""),
        "the first maximum is 0, and scores far below it vanish": Edit("(-math.inf)", "(0.0)"),
        "the division by the sum of the weights is missing": Edit("acc / row_sum", "acc"),
    },
)

EXERCISES = (PREDICT_WHOLE_MATRIX, ADD_NORM, ATTEND_PACKED)
