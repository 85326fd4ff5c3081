"""The exercises of lesson 29: RMSNorm by a block, the rotation of heads, the launches and rotations of a larger Llama,
and heads that are normalised and rotated by one warp each.

Sizes are T tokens, C columns, H heads, and D numbers in a head.
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
    SUMMED,
    ZEROS,
    any_angles,
    at,
    in_place,
    of,
    parameter,
)
from labkit.kernels.elements import FLOAT32
from labkit.kernels.op import uniform
from labkit.kernels.ops.rope import head_tolerance
from labkit.kernels.rope import frequencies, rope_table, rotated_reference
from labkit.kernels.tolerance import EPS32
from labkit.models.llama import Config

ALL_LANES = 0xFFFFFFFF

# --- RMSNorm by a block -----------------------------------------------------------------------------------------------

THREADS = 128
NORMED = {"T": 2, "C": 130}


def _normed(x, weight, epsilon):
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + epsilon) * weight


def _norm_inputs(rng, T, C):
    """Every second row is small, so that epsilon counts there; epsilon differs from case to case."""
    scale = np.where(np.arange(T) % 2, 1e-3, 1.0).astype(np.float32)[:, None]
    return uniform(rng, T, C) * scale, 1 + uniform(rng, C) / 4, np.float32(rng.choice([1e-6, 1e-5, 1e-4]))


@asks("A row takes two barriers at most and is read twice at most.", shuffles)
def _one_barrier(report) -> str | None:
    """The four warps meet once or twice, and the row is read twice."""
    warps, loads = report.counts["barriers"], report.counts["global_loads"]
    rows, columns = NORMED["T"], NORMED["C"]
    if warps > 2 * THREADS * rows:
        return (f"Each row takes {warps // (THREADS * rows)} barriers, and two are enough: the lanes of a warp add up "
                f"their squares by shuffles without a barrier, and the four warps have to meet only once.")
    enough = 4 * rows * columns  # x * x may be written with two loads
    if loads > enough:
        return (f"At {rows} x {columns} it loads {loads:,} numbers from global memory, more than {enough:,}: each "
                f"thread needs its own columns of x, twice, and of the weight.")
    return None


@cuda.jit
def rmsnorm_block_by_a_tree(x, weight, epsilon, out):
    partial = cuda.shared.array(128, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    squares = float32(0.0)
    for col in range(thread, columns, 128):
        squares += x[row, col] * x[row, col]
    partial[thread] = squares
    cuda.syncthreads()
    distance = 64
    while distance > 0:
        if thread < distance:
            partial[thread] += partial[thread + distance]
        cuda.syncthreads()
        distance //= 2
    scale = cuda.rsqrt(partial[0] / float32(columns) + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = x[row, col] * scale * weight[col]


@cuda.jit
def rmsnorm_block_each_thread_alone(x, weight, epsilon, out):
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    squares = float32(0.0)
    for col in range(columns):
        squares += x[row, col] * x[row, col]
    cuda.syncthreads()
    scale = cuda.rsqrt(squares / float32(columns) + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = x[row, col] * scale * weight[col]


@cuda.jit
def rmsnorm_block_subtracts_the_mean(x, weight, epsilon, out):
    partial = cuda.shared.array(8, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    total, squares = float32(0.0), float32(0.0)
    for col in range(thread, columns, 128):
        total += x[row, col]
        squares += x[row, col] * x[row, col]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
        squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
    if thread % 32 == 0:
        partial[thread // 32], partial[4 + thread // 32] = total, squares
    cuda.syncthreads()
    mean = (partial[0] + partial[1] + partial[2] + partial[3]) / float32(columns)
    square = (partial[4] + partial[5] + partial[6] + partial[7]) / float32(columns)
    scale = cuda.rsqrt(square - mean * mean + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = (x[row, col] - mean) * scale * weight[col]


RMSNORM_BLOCK = KernelExercise(
    name="rmsnorm_block",
    reference=_normed,
    inputs=_norm_inputs,
    shape=lambda T, C: (T, C),
    sizes=tuple({"T": T, "C": C} for T, C in ((1, 1), (3, 5), (2, 32), (3, 127), (2, 130), (2, 300))),
    random_size=lambda rng: {"T": int(rng.integers(2, 5)), "C": int(rng.integers(33, 280))},
    launch=lambda T, C: (T, THREADS),
    tolerance=lambda x, weight, epsilon: EPS32 * (np.sqrt(x.shape[1]) + 6) * np.abs(_normed(x, weight, epsilon)),
    observe_sizes=(NORMED,),
    demand=_one_barrier,
    domain=(in_place(0), at("a row has fewer columns than a warp has lanes", T=2, C=7),
            at("a row has several columns for each thread", T=2, C=513),
            *parameter(2, "epsilon", 0, 0.5),
            *of(0, ZEROS, HUGE_AND_TINY, EQUAL, FAR_ABOVE_ZERO, ONE_FAR_ABOVE, at={"T": 4, "C": 100}),
            *of(1, NEGATIVE)),
    wrong={
        "the mean is subtracted, as in LayerNorm": rmsnorm_block_subtracts_the_mean,
        "the sum of the squares, not their mean": Edit("total / float32(columns)", "total"),
        "epsilon is left out: a row of zeros is divided by 0": Edit(" + epsilon", ""),
        "epsilon is added after the root": Edit("cuda.rsqrt(total / float32(columns) + epsilon)",
                                                "float32(1.0) / (math.sqrt(total / float32(columns)) + epsilon)"),
        "each warp takes the squares of its own columns alone": Edit(
            "total = partial[0] + partial[1] + partial[2] + partial[3]", "total = squares"),
        "the partial sum of the last warp is left out": Edit(" + partial[3]", ""),
        "the warps' sums are read before they are written: the barrier is missing": Edit("cuda.syncthreads()", ""),
        "the last lane stores the sum of a warp that only the first lane has": Edit(
            "shfl_xor_sync", "shfl_down_sync", "thread % 32 == 0", "thread % 32 == 31"),
        "every thread adds up the whole row, and nothing is exchanged": rmsnorm_block_each_thread_alone,
        "the weight is left out": Edit(" * weight[col]", ""),
        "a tree in shared memory, with a barrier for each of its levels": rmsnorm_block_by_a_tree,
    },
)

# --- The rotation of heads --------------------------------------------------------------------------------------------

POSITIONS = 40
ROTATED = {"T": 3, "H": 2, "D": 6}


def _rope_inputs(rng, T, H, D):
    return (uniform(rng, T, H, D), rope_table(POSITIONS, D, 10_000.0), rng.integers(0, POSITIONS, T).astype(np.int32))


def _rope_tolerance(x, table, positions):
    return head_tolerance(x, None, FLOAT32)


@asks("Everything is loaded once: both numbers of a pair, their cosine and sine, and the position.")
def _pairs_once(report) -> str | None:
    tokens, heads, size = ROTATED["T"], ROTATED["H"], ROTATED["D"]
    numbers = tokens * heads * size
    enough = 2 * numbers + numbers // 2  # x; cosines and sines of each pair; a position for each thread
    loads = report.counts["global_loads"]
    if loads > enough:
        return (f"At {tokens} tokens of {heads} heads of {size} it loads {loads:,} numbers, and {enough:,} are enough: "
                f"a thread loads both numbers of its pair, their cosine and sine, and a position, each once.")
    return None


def _at_positions(words, choose):
    return Reach(words, lambda rng, x, table, positions: (x, table, choose(positions).astype(np.int32)),
                 {"T": 4, "H": 3, "D": 8})


@cuda.jit
def rope_heads_second_from_first(x, table, positions, out):
    tokens, heads, size = x.shape
    half = size // 2
    i = cuda.grid(1)
    if i < tokens * heads * half:
        d, head, t = i % half, i // half % heads, i // half // heads
        p = positions[t]
        cos, sin = table[p, d], table[p, d + half]
        b = x[t, head, d + half]
        out[t, head, d] = x[t, head, d] * cos - b * sin
        out[t, head, d + half] = b * cos + x[t, head, d] * sin


@cuda.jit
def rope_heads_number_by_number(x, table, positions, out):
    tokens, heads, size = x.shape
    half = size // 2
    i = cuda.grid(1)
    if i < tokens * heads * half:
        d, head, t = i % half, i // half % heads, i // half // heads
        a, b = x[t, head, d], x[t, head, d + half]
        first = a * table[positions[t], d] - b * table[positions[t], d + half]
        out[t, head, d + half] = b * table[positions[t], d] + a * table[positions[t], d + half]
        out[t, head, d] = first


ROPE_HEADS = KernelExercise(
    name="rope_heads",
    reference=rotated_reference,
    inputs=_rope_inputs,
    shape=lambda T, H, D: (T, H, D),
    sizes=tuple({"T": T, "H": H, "D": D} for T, H, D in ((1, 1, 2), (3, 2, 6), (4, 3, 8), (2, 5, 34), (7, 3, 64))),
    random_size=lambda rng: {"T": int(rng.integers(2, 6)), "H": int(rng.integers(2, 6)),
                             "D": 2 * int(rng.integers(2, 20))},
    launch=lambda T, H, D: (-(-T * H * D // 128), 64),
    tolerance=_rope_tolerance,
    observe_sizes=(ROTATED,),
    demand=_pairs_once,
    domain=(in_place(0),
            _at_positions("all tokens stand at position 0", lambda positions: 0 * positions),
            _at_positions("all tokens stand at the last position of the table",
                          lambda positions: 0 * positions + POSITIONS - 1),
            _at_positions("the tokens stand in reverse order", lambda positions: 17 - np.arange(len(positions))),
            _at_positions("the tokens stand far apart", lambda positions: 13 * np.arange(len(positions))),
            any_angles(1), *of(0, *SUMMED, EQUAL)),
    wrong={
        "neighbours are taken as pairs": Edit("a, b = x[t, head, d], x[t, head, d + half]",
                                              "a, b = x[t, head, 2 * d], x[t, head, 2 * d + 1]",
                                              "out[t, head, d] =", "out[t, head, 2 * d] =",
                                              "out[t, head, d + half] =", "out[t, head, 2 * d + 1] ="),
        "rotated the other way": Edit("a * cos - b * sin", "a * cos + b * sin", "b * cos + a * sin",
                                      "b * cos - a * sin"),
        "both signs are plus": Edit("a * cos - b * sin", "a * cos + b * sin"),
        "the token's number is taken for its position": Edit("p = positions[t]", "p = t"),
        "cosines and sines are taken to stand side by side": Edit("table[p, d], table[p, d + half]",
                                                                 "table[p, 2 * d], table[p, 2 * d + 1]"),
        "the sine is that of the first angle, for all pairs": Edit("table[p, d + half]", "table[p, half]"),
        "every head gets the angles of another token: heads and tokens are exchanged": Edit(
            "d, head, t = i % half, i // half % heads, i // half // heads",
            "d, t, head = i % half, i // half % tokens, i // half // tokens", "p = positions[t]",
            "p = positions[i // half // heads]"),
        "no guard: the last block has threads without a pair": Edit("if i < tokens * heads * half:", "if True:"),
        "in place, the second number is computed from the rotated first one": rope_heads_second_from_first,
        "the position is loaded again for each use": rope_heads_number_by_number,
    },
)

# --- Predict: launches and rotations ----------------------------------------------------------------------------------

LLAMA_3_1_8B = Config(
    vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=131_072, rms_norm_eps=1e-5, rope_theta=500_000.0,
    rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192})


def _launches_and_rotations() -> dict:
    c = LLAMA_3_1_8B
    plain = frequencies(c.head_dim, c.rope_theta)
    factor = plain / frequencies(c.head_dim, c.rope_theta, c.rope_scaling)
    return {"launches": 8 * c.num_hidden_layers + 4,
            "qkv_rows": (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim,
            "pairs_kept": int(np.isclose(factor, 1).sum()), "pairs_slowed": int(np.isclose(factor, 8).sum())}


PREDICT_ROTATIONS = PredictionExercise(
    name="predict_rotations",
    truth=_launches_and_rotations,
    how={"launches": "Eight in each layer; around them the embedding, the last norm, the gathering of the last rows, "
                     "and the logits.",
         "qkv_rows": "A row for each output: 32 heads of queries, 8 of keys and 8 of values, 128 numbers each.",
         "pairs_kept": "Pair d turns once in 2 pi 500,000^(d / 64) tokens; that must be at most 8,192 / 4. The last "
                       "such d is 28, and pair 0 counts as well.",
         "pairs_slowed": "At least 8,192 tokens for a turn: from d = 35 on."},
    wrong={"the launches of the layers alone": {"launches": 256},
           "16 layers, as Llama 3.2 1B has": {"launches": 132},
           "as many heads of keys and values as of queries": {"qkv_rows": 12288},
           "the values are forgotten: queries and keys": {"qkv_rows": 5120},
           "a head has 4096 / 8 numbers: the width is divided by the heads of keys": {"qkv_rows": 24576},
           "pairs are counted from 1: the fastest one is forgotten": {"pairs_kept": 28},
           "the wavelength is the inverse of the frequency: 2 pi is forgotten": {"pairs_kept": 38, "pairs_slowed": 20},
           "those between count as slowed by the whole factor": {"pairs_slowed": 35}},
)

# --- From a blank page: normalised and rotated ------------------------------------------------------------------------

NORMED_HEAD = 64
NORMED_ROTATED = {"T": 3, "H": 2}


def _normed_heads(x, weight, epsilon):
    return _normed(x.reshape(-1, NORMED_HEAD), weight, epsilon).reshape(x.shape)


def _normed_rotated(x, weight, epsilon, table, positions):
    return rotated_reference(_normed_heads(x, weight, epsilon), table, positions)


def _normed_rotated_inputs(rng, T, H):
    """Every second head is small, so that epsilon counts there; epsilon differs from case to case."""
    scale = np.where(np.arange(T * H).reshape(T, H, 1) % 2, 1e-3, 1.0).astype(np.float32)
    return (uniform(rng, T, H, NORMED_HEAD) * scale, 1 + uniform(rng, NORMED_HEAD) / 2,
            np.float32(rng.choice([1e-6, 1e-5, 1e-4])), rope_table(POSITIONS, NORMED_HEAD, 10_000.0),
            rng.integers(1, POSITIONS, T).astype(np.int32))


def _normed_rotated_tolerance(x, weight, epsilon, table, positions):
    """Relative to the length of a pair: the roundings of the norm, and of two products and their sum."""
    normed = _normed_heads(x, weight, epsilon)
    a, b = np.split(normed, 2, axis=2)
    return EPS32 * (np.sqrt(NORMED_HEAD) + 10) * np.tile(np.hypot(a, b), 2)


@asks("Everything is loaded once.", shuffles)
def _head_once(report) -> str | None:
    heads = NORMED_ROTATED["T"] * NORMED_ROTATED["H"]
    loads, enough = report.counts["global_loads"], heads * (3 * NORMED_HEAD + 32)
    if loads > enough:
        return (f"For {heads} heads it loads {loads:,} numbers, and {enough:,} are enough: a lane loads both numbers "
                f"of its pair, their weights, their cosine and sine, and a position, and each of these once.")
    return None


def _standing(words, choose):
    return Reach(words, lambda rng, x, weight, epsilon, table, positions: (
        x, weight, epsilon, table, choose(positions).astype(np.int32)), {"T": 4, "H": 3})


@cuda.jit
def rotate_normed_weights_last(x, weight, epsilon, table, positions, out):
    head, t, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    a, b = x[t, head, lane], x[t, head, lane + 32]
    squares = a * a + b * b
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
    scale = cuda.rsqrt(squares / float32(64.0) + epsilon)
    p = positions[t]
    cos, sin = table[p, lane], table[p, lane + 32]
    out[t, head, lane] = (a * cos - b * sin) * scale * weight[lane]
    out[t, head, lane + 32] = (b * cos + a * sin) * scale * weight[lane + 32]


@cuda.jit
def rotate_normed_loaded_again(x, weight, epsilon, table, positions, out):
    head, t, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    squares = float32(0.0)
    for d in range(lane, 64, 32):
        squares += x[t, head, d] * x[t, head, d]
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
    scale = cuda.rsqrt(squares / float32(64.0) + epsilon)
    a, b = x[t, head, lane] * scale * weight[lane], x[t, head, lane + 32] * scale * weight[lane + 32]
    p = positions[t]
    cos, sin = table[p, lane], table[p, lane + 32]
    out[t, head, lane] = a * cos - b * sin
    out[t, head, lane + 32] = b * cos + a * sin


ROTATE_NORMED = KernelExercise(
    name="rotate_normed",
    reference=_normed_rotated,
    inputs=_normed_rotated_inputs,
    shape=lambda T, H: (T, H, NORMED_HEAD),
    sizes=tuple({"T": T, "H": H} for T, H in ((1, 1), (3, 2), (2, 5), (7, 3))),
    random_size=lambda rng: {"T": int(rng.integers(2, 7)), "H": int(rng.integers(2, 7))},
    launch=lambda T, H: ((H, T), 32),
    tolerance=_normed_rotated_tolerance,
    observe_sizes=(NORMED_ROTATED,),
    demand=_head_once,
    domain=(in_place(0),
            _standing("all tokens stand at position 0", lambda positions: 0 * positions),
            _standing("all tokens stand at the last position of the table",
                      lambda positions: 0 * positions + POSITIONS - 1),
            _standing("the tokens stand in reverse order", lambda positions: 17 - np.arange(len(positions))),
            any_angles(3, {"T": 4, "H": 3}), *parameter(2, "epsilon", 0, 0.5),
            *of(0, ZEROS, HUGE_AND_TINY, EQUAL, FAR_ABOVE_ZERO, ONE_FAR_ABOVE), *of(1, NEGATIVE)),
    wrong={
        "the weights multiply what is rotated already": rotate_normed_weights_last,
        "both numbers of a pair get the weight of the first": Edit("weight[lane + 32]", "weight[lane]"),
        "the weights are left out": Edit(" * weight[lane],", ",", " * weight[lane + 32]", ""),
        "the squares of the second half of the head are left out": Edit("squares = a * a + b * b", "squares = a * a"),
        "the sum of the squares is divided by the number of lanes": Edit("float32(64.0)", "float32(32.0)"),
        "the sum of the squares, not their mean": Edit("squares / float32(64.0)", "squares"),
        "epsilon is left out: a head of zeros is divided by 0": Edit(" + epsilon", ""),
        "each lane takes the squares of its own pair alone": Edit(
            "for distance in (16, 8, 4, 2, 1):\n    squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)",
            "squares *= float32(32.0)"),
        "shfl_down: lane 0 alone has the sum of all": Edit("shfl_xor_sync", "shfl_down_sync"),
        "rotated the other way": Edit("a * cos - b * sin", "a * cos + b * sin", "b * cos + a * sin",
                                      "b * cos - a * sin"),
        "neighbours are taken as pairs": Edit(
            "x[t, head, lane], x[t, head, lane + 32]", "x[t, head, 2 * lane], x[t, head, 2 * lane + 1]",
            "weight[lane],", "weight[2 * lane],", "weight[lane + 32]", "weight[2 * lane + 1]",
            "out[t, head, lane] =", "out[t, head, 2 * lane] =", "out[t, head, lane + 32] =",
            "out[t, head, 2 * lane + 1] ="),
        "the token's number is taken for its position": Edit("p = positions[t]", "p = t"),
        "the number of the head is taken for the token's in `positions`": Edit("positions[t]",
                                                                           "positions[head % x.shape[0]]"),
        "the numbers are loaded again after the sum": rotate_normed_loaded_again,
    },
)

EXERCISES = (RMSNORM_BLOCK, ROPE_HEADS, PREDICT_ROTATIONS, ROTATE_NORMED)
