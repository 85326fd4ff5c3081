"""The exercises of lesson 16: banks, a bias and a GELU in one kernel, a residual and a norm that read everything once.

Sizes are R (rows) and C (columns). Kernels with a warp for each row get blocks of 32 x 4 threads: four rows a block.
"""

import numpy as np
from numba import float32

from labkit import cuda, observe
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise
from labkit.course.exercises.ch15 import (
    ALL_LANES,
    four_rows,
    rmsnorm_reference,
    rmsnorm_tolerance,
    rows_and_columns,
    some_rows_small,
)
from labkit.course.exercises.demands import asks
from labkit.course.exercises.domains import (
    EQUAL,
    FAR_ABOVE_ZERO,
    FAR_BELOW_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    ONE_FAR_ABOVE,
    ONE_FAR_BELOW,
    ZEROS,
    of,
)
from labkit.kernels.gelu import gelu_erf_reference
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to

# --- Predict: the banks of a padded tile ---------------------------------------------------------------------------


def _steps(pitch: int) -> int:
    """In how many steps a warp reads a column of a tile whose rows are `pitch` elements long, by observe."""

    @cuda.jit
    def read_a_column(out):
        tile = cuda.shared.array((32, pitch), float32)
        lane = cuda.threadIdx.x
        for row in range(32):
            tile[row, lane] = float32(row)
        cuda.syncthreads()
        out[lane] = tile[lane, 5]

    return 1 + observe(read_a_column[1, 32], np.zeros(32, np.float32)).counts["bank_conflicts"]


PREDICT_BANKS = PredictionExercise(
    name="predict_banks",
    truth=lambda: {f"pitch_{pitch}": _steps(pitch) for pitch in (32, 33, 34, 40, 47)},
    how={f"pitch_{pitch}": f"lane L reads element {pitch} * L + 5; count how many lanes meet in one bank of 32, and "
                           f"take the most crowded bank" for pitch in (32, 33, 34, 40, 47)},
    wrong={"counts the crowded banks, not the lanes in one": {"pitch_32": 1, "pitch_33": 32, "pitch_34": 16,
                                                             "pitch_40": 4, "pitch_47": 32},
           "takes every padding for a cure": {"pitch_32": 32, "pitch_33": 1, "pitch_34": 1, "pitch_40": 1,
                                              "pitch_47": 1},
           "takes the padding itself for the number of steps": {"pitch_32": 32, "pitch_33": 1, "pitch_34": 2,
                                                               "pitch_40": 8, "pitch_47": 15}},
)


# --- Bias and GELU in one kernel -----------------------------------------------------------------------------------


BIAS_GELU = KernelExercise(
    name="bias_gelu",
    reference=lambda x, bias: gelu_erf_reference(x.astype(np.float64) + bias),
    inputs=lambda rng, R, C: (2 * uniform(rng, R, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=rows_and_columns((1, 1), (2, 3), (8, 32), (5, 33), (17, 40)),
    launch=lambda R, C: ((-(-C // 32), -(-R // 8)), (32, 8)),
    tolerance=relative_to(lambda x, bias: np.abs(x) + np.abs(bias), roundings=8),
    domain=of(0, FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS),
    wrong={
        "the bias is added after GELU":
            Edit("v = x[row, col] + bias[col]", "v = x[row, col]",
                 "(float32(1.0) + math.erf(v * ROOT_HALF))", "(float32(1.0) + math.erf(v * ROOT_HALF)) + bias[col]"),
        "the bias is read at the row": Edit("v = x[row, col] + bias[col]", "v = x[row, col] + bias[row % bias.size]"),
        "the tanh form: close, but not the exact one":
            Edit("out[row, col] = float32(0.5) * v * (float32(1.0) + math.erf(v * ROOT_HALF))",
                 "inner = float32(0.7978845608) * (v + float32(0.044715) * v * v * v)\n"
                 "out[row, col] = float32(0.5) * v * (float32(1.0) + math.tanh(inner))"),
        "the argument of erf is not divided by the root of 2": Edit("v * ROOT_HALF", "v"),
        "the factor in front lacks the bias": Edit("float32(0.5) * v", "float32(0.5) * x[row, col]"),
        "no guard": Edit("if row < x.shape[0] and col < x.shape[1]:", "if True:"),
    },
)


# --- From a blank page: a residual and RMSNorm, everything read once ------------------------------------------------


@cuda.jit
def add_rmsnorm_reads_twice(x, residual, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        squares = float32(0.0)
        for col in range(lane, x.shape[1], 32):
            total = x[row, col] + residual[row, col]
            squares += total * total
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        scale = cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))
        for col in range(lane, x.shape[1], 32):
            out[row, col] = (x[row, col] + residual[row, col]) * scale * weight[col]


@cuda.jit
def add_rmsnorm_through_out(x, residual, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        squares = float32(0.0)
        for col in range(lane, x.shape[1], 32):
            total = x[row, col] + residual[row, col]
            out[row, col] = total
            squares += total * total
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        scale = cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))
        for col in range(lane, x.shape[1], 32):
            out[row, col] *= scale * weight[col]


OBSERVED = {"R": 3, "C": 100}


@asks("`x`, `residual` and `weight` are loaded once for each element of `out`, and each element is stored once.")
def _each_read_once(report) -> str | None:
    least = 3 * OBSERVED["R"] * OBSERVED["C"]  # x, the residual and the weight, once for each element of out
    stores = OBSERVED["R"] * OBSERVED["C"]
    loads, stored = report.counts["global_loads"], report.counts["global_stores"]
    if loads <= least and stored <= stores:
        return None
    return (f"At {OBSERVED['R']} x {OBSERVED['C']} your kernel makes {loads:,} loads and {stored:,} stores in global "
            f"memory; {least:,} and {stores:,} suffice. Keep the sums of a lane, four at most, in "
            f"`cuda.local.array(4, float32)`.")


ADD_RMSNORM = KernelExercise(
    name="add_rmsnorm",
    reference=lambda x, residual, weight: rmsnorm_reference(np.asarray(x, np.float64) + residual, weight),
    inputs=lambda rng, R, C: (some_rows_small(rng, R, C), some_rows_small(rng, R, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=rows_and_columns((1, 1), (2, 3), (3, 100), (4, 32), (5, 33), (7, 127), (9, 128)),
    random_size=lambda rng: {"R": int(rng.integers(1, 12)), "C": int(rng.integers(1, 129))},
    observe_sizes=(OBSERVED,),
    launch=four_rows,
    tolerance=lambda x, residual, weight: (rmsnorm_tolerance(x + residual, weight)
                                           + 1e-6 * np.abs(weight) * (np.abs(x) + np.abs(residual))),
    demand=_each_read_once,
    domain=(*of(0, EQUAL, ONE_FAR_BELOW), *of((0, 1), ZEROS, ONE_FAR_ABOVE, HUGE_AND_TINY)),
    wrong={
        "`x` and the residual are read twice": add_rmsnorm_reads_twice,
        "the sums wait in `out`, in global memory, and are read back": add_rmsnorm_through_out,
        "the squares are those of `x`, without the residual":
            Edit("squares += kept[k] * kept[k]",
                 "if col < x.shape[1]:\n"
                 "    squares += x[row, col] * x[row, col]"),
        "the residual is added after the norm":
            Edit("x[row, col] + residual[row, col] if", "x[row, col] if",
                 "weight[col]", "weight[col] + residual[row, col]"),
    },
)

EXERCISES = (PREDICT_BANKS, BIAS_GELU, ADD_RMSNORM)
