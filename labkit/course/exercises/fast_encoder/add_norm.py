"""A residual and a LayerNorm, in place

Row t of `out` (T, C) is the LayerNorm of the sum of two rows, `x[t] + residual[t]`: its mean is subtracted, the rest is
divided by the root of its variance plus 1e-12, multiplied by `weight`, and `bias` is added; these two are (C,).
Everything is float32, and C is at most 384. `out` may be the same array as `residual`, as it is at the end of each
layer. A block has `(32, 4)` threads, and each warp computes one row. A lane keeps its share of the row, at most 12
elements, in `kept`. The elements may be large and close together, so subtract the mean before you square.
"""

HINTS = ("When has every lane read all that it needs of residual? Only then may anything be stored into out.",
         "Four steps: the sums of a lane's columns into kept, and their total; shuffles and the mean; kept minus the "
         "mean, and its squares; shuffles, the root, the stores. Element k of kept belongs to column lane + 32 * k.",
         "kept[k] = x[t, col] + residual[t, col] where col < x.shape[1]; ... kept[k] -= mean; ... out[t, col] = "
         "kept[k] * scale * weight[col] + bias[col].")
POINTS = 2
NEEDS = ("embed_norm",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def add_norm(x, residual, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    kept = cuda.local.array(12, float32)
    ### BEGIN SOLUTION
    columns = x.shape[1]
    if t < x.shape[0]:
        total = float32(0.0)
        for k in range(12):
            col = lane + 32 * k
            if col < columns:
                kept[k] = x[t, col] + residual[t, col]
                total += kept[k]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        mean = total / float32(columns)

        squares = float32(0.0)
        for k in range(12):
            if lane + 32 * k < columns:
                kept[k] -= mean
                squares += kept[k] * kept[k]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
        scale = cuda.rsqrt(squares / float32(columns) + float32(1e-12))

        for k in range(12):
            col = lane + 32 * k
            if col < columns:
                out[t, col] = kept[k] * scale * weight[col] + bias[col]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, asks, shuffles, uniform
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
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rows import tolerance as layernorm_tolerance

ALL_LANES = 0xFFFFFFFF
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


EXERCISE = KernelExercise(
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
        "out is written, then the residual is read again: if they are one array, it holds the sum":
            add_norm_writes_first,
        "x and the residual are read three times": add_norm_reads_again,
        "the sums are stored in `out`, in global memory, and read back": add_norm_through_out,
    },
)

EQUIVALENT = {
    "type: float32(columns) -> int32(columns) (2)":
        "An int32 that is divided by becomes a float64 in Numba: the quotient is right, and slower to compute.",
}

AFTER = """
Each layer of the encoder launches it twice. One of the sentences is empty.

# %%
encoder = yours.small_encoder()
sentences = [[3, 1, 4, 1, 5], [], [9, 2], [6]]
yours.one_by_one(yours.answers(add_norm=add_norm), encoder, sentences)
"""
