"""The exercises of lesson 15: sums over a warp, the barrier between two of them, digits and registers.

Sizes are R (rows) and C (columns). Kernels with a warp for each row get blocks of 32 x 4 threads: four rows a block.
"""


import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise
from labkit.course.exercises.demands import shuffles
from labkit.course.exercises.domains import (
    EQUAL,
    FAR_BELOW_ZERO,
    HUGE_AND_TINY,
    ONE_FAR_ABOVE,
    ZEROS,
    of,
)
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rows import tolerance as layernorm_tolerance
from labkit.kernels.op import uniform

ALL_LANES = 0xFFFFFFFF
EPSILON = 1e-5


def rows_and_columns(*sizes):
    return tuple({"R": R, "C": C} for R, C in sizes)


def _wide(*arrays):
    return (np.asarray(array, np.float64) for array in arrays)


def four_rows(R, C):
    return -(-R // 4), (32, 4)


# --- RMSNorm by a warp ---------------------------------------------------------------------------------------------


def some_rows_small(rng, R, C):
    """Every second row is a thousandth of the others: there the epsilon counts."""
    scale = np.where(np.arange(R) % 2, 1e-3, 1.0).astype(np.float32)
    return uniform(rng, R, C) * scale[:, None]


def rmsnorm_reference(x, weight):
    x, weight = _wide(x, weight)
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON) * weight


def rmsnorm_tolerance(x, weight):
    return 1e-6 * (4 + np.sqrt(x.shape[1])) * (np.abs(rmsnorm_reference(x, weight)) + 1e-3 * np.abs(weight))


@cuda.jit
def rmsnorm_subtracts_the_mean(x, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        total, squares = float32(0.0), float32(0.0)
        for col in range(lane, x.shape[1], 32):
            total += x[row, col]
            squares += x[row, col] * x[row, col]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        mean = total / float32(x.shape[1])
        scale = cuda.rsqrt(squares / float32(x.shape[1]) - mean * mean + float32(1e-5))
        for col in range(lane, x.shape[1], 32):
            out[row, col] = (x[row, col] - mean) * scale * weight[col]


@cuda.jit
def rmsnorm_one_element_a_lane(x, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        squares = float32(0.0)
        if lane < x.shape[1]:
            squares = x[row, lane] * x[row, lane]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        scale = cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))
        if lane < x.shape[1]:
            out[row, lane] = x[row, lane] * scale * weight[lane]


@cuda.jit
def rmsnorm_without_shuffles(x, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        squares = float32(0.0)
        for col in range(x.shape[1]):
            squares += x[row, col] * x[row, col]
        scale = cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))
        for col in range(lane, x.shape[1], 32):
            out[row, col] = x[row, col] * scale * weight[col]


RMSNORM_WARP = KernelExercise(
    name="rmsnorm_warp",
    reference=rmsnorm_reference,
    inputs=lambda rng, R, C: (some_rows_small(rng, R, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=rows_and_columns((1, 1), (2, 3), (4, 32), (5, 31), (3, 33), (7, 100), (9, 260)),
    launch=four_rows,
    tolerance=rmsnorm_tolerance,
    domain=of(0, ZEROS, EQUAL, ONE_FAR_ABOVE, FAR_BELOW_ZERO, HUGE_AND_TINY),
    demand=shuffles,
    wrong={
        "the mean is subtracted, as in LayerNorm": rmsnorm_subtracts_the_mean,
        "the last shuffle, with the neighbour, is missing":
            Edit("for distance in (16, 8, 4, 2, 1):", "for distance in (16, 8, 4, 2):"),
        "`shfl_down_sync`: only lane 0 has the sum of the row": Edit("cuda.shfl_xor_sync", "cuda.shfl_down_sync"),
        "the sum is divided by the 32 lanes, not by the columns": Edit("(x.shape[1])", "(32)"),
        "no epsilon under the root": Edit("(x.shape[1]) + float32(1e-5)", "(x.shape[1])"),
        "one element a lane: rows longer than 32 are left unfinished": rmsnorm_one_element_a_lane,
        "every lane adds up the whole row, and nothing is exchanged": rmsnorm_without_shuffles,
    },
)


# --- Find the bug: the second sum ----------------------------------------------------------------------------------


LAYERNORM_TWO_SUMS = KernelExercise(
    name="layernorm_two_sums",
    reference=layernorm_reference,
    inputs=lambda rng, R, C: (uniform(rng, R, C) + np.float32(0.5), uniform(rng, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=rows_and_columns((1, 1), (2, 5), (3, 64), (2, 131), (3, 300)),
    launch=lambda R, C: (R, 64),
    tolerance=layernorm_tolerance,
    domain=of(0, ZEROS, EQUAL, ONE_FAR_ABOVE, FAR_BELOW_ZERO, HUGE_AND_TINY),
    wrong={
        "the second sum is stored while a slow warp may still read the first":
            Edit("cuda.syncthreads()\n"
                 "squares = float32(0.0)",
                 "squares = float32(0.0)"),
        "the squares are those of the values, without the mean taken off":
            Edit("squares += (x[row, col] - mean) * (x[row, col] - mean)", "squares += x[row, col] * x[row, col]"),
        "the new barrier stands inside an `if`, where one lane of a warp arrives":
            Edit("cuda.syncthreads()\n"
                 "squares = float32(0.0)",
                 "squares = float32(0.0)",
                 "partial[thread // 32] = squares",
                 "cuda.syncthreads()\n"
                 "partial[thread // 32] = squares"),
    },
)


# --- Predict: digits and registers -----------------------------------------------------------------------------------


def _variance_truth() -> dict[str, int]:
    return {
        "near_4096": int(np.spacing(np.float32(4096**2))),
        "near_16384": int(np.spacing(np.float32(16384**2))),
        "registers": 1536 // 32,
        "shuffles": 2 * 5,
    }


PREDICT_VARIANCE = PredictionExercise(
    name="predict_variance",
    truth=_variance_truth,
    how={
        "near_4096": "4,096 squared is 2 to the 24. A float32 has 24 bits, the first of which is worth that much.",
        "near_16384": "16,384 squared is 2 to the 28, and the last of 24 bits is worth 2 to the 23 less.",
        "registers": "a warp has 32 lanes, and they share the row.",
        "shuffles": "each sum over 32 lanes halves the distance until it is one. How many sums does LayerNorm need?",
    },
    wrong={
        "the 24 bits are counted after the first one": {"near_4096": 1, "near_16384": 16},
        "this is the spacing near the mean, not near its square": {"near_4096": 0, "near_16384": 0},
        "the registers of a quad are counted as one": {"registers": 12},
        "the row is divided among 256 threads, and a warp has 32": {"registers": 6},
        "one sum is counted, and there are two": {"shuffles": 5},
    },
)


EXERCISES = (RMSNORM_WARP, LAYERNORM_TWO_SUMS, PREDICT_VARIANCE)
