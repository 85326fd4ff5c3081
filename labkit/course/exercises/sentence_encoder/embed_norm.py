"""From a blank page: BERT's embedding

Row t of `out` (T, C) begins as the sum of three rows: row `ids[t]` of `words`, row `types[t]` of `kinds` and row
`positions[t]` of `places`. Then it is normalised: its mean is subtracted, the rest is divided by the root of its
variance plus 1e-12, multiplied by `weight`, and `bias` is added; these two have C elements each. `ids`, `types` and
`positions` are (T,) int32, everything else is float32. A block has `(32, 4)` threads and computes four rows, one per
warp; `cuda.threadIdx.x` is the lane. The lanes of a row combine their sums with shuffles. The elements of a row may be
large and close together: subtract the mean before you square.

Write `embed_norm(ids, types, positions, words, places, kinds, weight, bias, out)` from the decorator down.
"""

HINTS = ("A row is needed three times: for its mean, for its variance, and to be normalised. Where can a lane keep its "
         "share of it in the meantime?",
         "Each lane has the columns lane, lane + 32, ... Let it store the sum of the three rows in out and add it up; "
         "five shuffles give the mean to all lanes. Then the squares of the differences from the mean, five shuffles "
         "again, and a third loop that normalises. The row is blockIdx.x * 4 + threadIdx.y, with a guard.",
         "v = words[ids[t], col] + kinds[types[t], col] + places[positions[t], col]; out[t, col] = v; total += v; then "
         "total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance) for 16, 8, 4, 2, 1; mean = total / "
         "float32(columns). The same for the squares, and scale = cuda.rsqrt(squares / float32(columns) + "
         "float32(1e-12)).")
POINTS = 3

from numba import float32

from labkit import cuda

# %%
embed_norm = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def embed_norm(ids, types, positions, words, places, kinds, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    columns = out.shape[1]
    if t < out.shape[0]:
        word, kind, place = ids[t], types[t], positions[t]
        total = float32(0.0)
        for col in range(lane, columns, 32):
            v = words[word, col] + kinds[kind, col] + places[place, col]
            out[t, col] = v  # only this lane reads it again
            total += v
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        mean = total / float32(columns)

        squares = float32(0.0)
        for col in range(lane, columns, 32):
            squares += (out[t, col] - mean) * (out[t, col] - mean)
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
        scale = cuda.rsqrt(squares / float32(columns) + float32(1e-12))

        for col in range(lane, columns, 32):
            out[t, col] = (out[t, col] - mean) * scale * weight[col] + bias[col]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, shuffles, uniform
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, HUGE_AND_TINY, NEGATIVE, ONE_FAR_ABOVE, ZEROS, of
from labkit.kernels.embedding_sum import embedding_layernorm_reference
from labkit.kernels.ops.embedding_layernorm import tolerance as embedding_tolerance

ALL_LANES = 0xFFFFFFFF
EPSILON = 1e-12


def _embed_inputs(rng, T, C):
    """Positions begin at 0 again with each sentence, and are not the rows."""
    ids, types = rng.integers(0, 50, T), rng.integers(0, 2, T)
    positions = (np.arange(T) + int(rng.integers(1, 9))) % 11
    tables = (uniform(rng, count, C) for count in (50, 11, 2))
    indices = (each.astype(np.int32) for each in (ids, types, positions))
    return *indices, *tables, 1 + uniform(rng, C) / 4, uniform(rng, C)


def _tables_times(factor):
    def turn(rng, ids, types, positions, words, places, kinds, weight, bias):
        words, places, kinds = (np.float32(factor) * table for table in (words, places, kinds))
        return ids, types, positions, words, places, kinds, weight, bias

    return turn


def _indices(choose):
    """choose(indices, rows of their table)."""
    def turn(rng, ids, types, positions, words, places, kinds, weight, bias):
        chosen = (choose(each, len(table)).astype(np.int32)
                  for each, table in ((ids, words), (types, kinds), (positions, places)))
        return *chosen, words, places, kinds, weight, bias

    return turn


@cuda.jit
def embed_norm_without_shuffles(ids, types, positions, words, places, kinds, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if t < out.shape[0]:
        word, kind, place = ids[t], types[t], positions[t]
        total, squares = float32(0.0), float32(0.0)
        for col in range(out.shape[1]):
            total += words[word, col] + kinds[kind, col] + places[place, col]
        mean = total / float32(out.shape[1])
        for col in range(out.shape[1]):
            v = words[word, col] + kinds[kind, col] + places[place, col] - mean
            squares += v * v
        scale = cuda.rsqrt(squares / float32(out.shape[1]) + float32(1e-12))
        for col in range(lane, out.shape[1], 32):
            v = words[word, col] + kinds[kind, col] + places[place, col] - mean
            out[t, col] = v * scale * weight[col] + bias[col]


@cuda.jit
def embed_norm_in_one_pass(ids, types, positions, words, places, kinds, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if t < out.shape[0]:
        total, squares = float32(0.0), float32(0.0)
        for col in range(lane, out.shape[1], 32):
            v = words[ids[t], col] + kinds[types[t], col] + places[positions[t], col]
            out[t, col] = v
            total += v
            squares += v * v
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        mean = total / float32(out.shape[1])
        scale = cuda.rsqrt(squares / float32(out.shape[1]) - mean * mean + float32(1e-12))
        for col in range(lane, out.shape[1], 32):
            out[t, col] = (out[t, col] - mean) * scale * weight[col] + bias[col]


@cuda.jit
def embed_norm_one_element_a_lane(ids, types, positions, words, places, kinds, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if t < out.shape[0]:
        inside = lane < out.shape[1]
        v = float32(0.0)
        if inside:
            v = words[ids[t], lane] + kinds[types[t], lane] + places[positions[t], lane]
        total = v
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
        v -= total / float32(out.shape[1])
        squares = v * v if inside else float32(0.0)
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        if inside:
            scale = cuda.rsqrt(squares / float32(out.shape[1]) + float32(1e-12))
            out[t, lane] = v * scale * weight[lane] + bias[lane]


EXERCISE = KernelExercise(
    name="embed_norm",
    reference=lambda *inputs: embedding_layernorm_reference(*inputs, epsilon=EPSILON),
    inputs=_embed_inputs,
    shape=lambda T, C: (T, C),
    sizes=tuple({"T": T, "C": C} for T, C in ((1, 1), (2, 3), (4, 32), (5, 31), (3, 33), (7, 100), (9, 260))),
    launch=lambda T, C: (-(-T // 4), (32, 4)),
    tolerance=lambda *inputs: embedding_tolerance(*inputs, epsilon=EPSILON),
    observe_sizes=({"T": 5, "C": 31}, {"T": 3, "C": 33}),
    demand=shuffles,
    domain=(Reach("the three rows are small, and epsilon must be smaller", _tables_times(1e-4)),
            Reach("all tokens, types and positions are the first of their tables",
                  _indices(lambda each, rows: 0 * each)),
            Reach("all tokens, types and positions are the last of their tables",
                  _indices(lambda each, rows: 0 * each + rows - 1)),
            *of((3, 4, 5), ZEROS, HUGE_AND_TINY), *of(3, FAR_ABOVE_ZERO, ONE_FAR_ABOVE), *of((6, 7), NEGATIVE)),
    wrong={
        "the position is the row, but each sentence of a batch begins at 0 again": Edit("positions[t]", "t"),
        "the type is never added": Edit(" + kinds[kind, col]", ""),
        "epsilon is GPT-2's 1e-5, and BERT's is 1e-12": Edit("float32(1e-12)", "float32(1e-5)"),
        "no epsilon: a row without variance is divided by 0": Edit(" + float32(1e-12)", ""),
        "the last shuffle of the mean, with the neighbour, is missing":
            Edit("for distance in (16, 8, 4, 2, 1):\n"
                 "    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)",
                 "for distance in (16, 8, 4, 2):\n"
                 "    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)"),
        "`shfl_down_sync`: only lane 0 has the sum of the row":
            Edit("total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)",
                 "total += cuda.shfl_down_sync(0xFFFFFFFF, total, distance)"),
        "no guard: the last block has warps without a row": Edit("if t < out.shape[0]:", "if True:"),
        "one pass for both sums: the variance is the difference of two large numbers": embed_norm_in_one_pass,
        "one element per lane: rows longer than 32 are left unfinished": embed_norm_one_element_a_lane,
        "every lane adds up the whole row, without shuffles": embed_norm_without_shuffles,
    },
)

EQUIVALENT = {
    "type: float32(columns) -> int32(columns)":
        "An int32 that is divided by becomes a float64 in Numba: the quotient is right, and slower to compute.",
    "type: float32(columns) -> int32(columns) (2)":
        "An int32 that is divided by becomes a float64 in Numba: the quotient is right, and slower to compute.",
}

AFTER = """
It is the first launch of an encoder. The next cell puts it into a small one with random weights, and compares what
each launch writes with NumPy in float64. One of the sentences is empty.

# %%
encoder = yours.small_encoder()
sentences = [[3, 1, 4, 1, 5], [], [9, 2], [6]]
yours.one_by_one(yours.answers(embed_norm=embed_norm), encoder, sentences)
"""
