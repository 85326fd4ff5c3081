"""From a blank page: a residual and a norm

`out = rmsnorm(x + residual)`, with the RMSNorm from lesson 21's exercises, its blocks of 32 × 4 threads and its epsilon
of 1e-5. A row has at most 128 columns, so a lane has at most four elements. The sums stay in registers:
`kept = cuda.local.array(4, float32)`.

Write `add_rmsnorm(x, residual, weight, out)` from the decorator down.
"""

HINTS = ("In rmsnorm_warp the second loop reads x again. What would a lane have to keep to avoid that?",
         "A lane has the columns lane, lane + 32, lane + 64 and lane + 96. Keep the sum x + residual of each in "
         "kept[0] to kept[3], with a zero where there is no column, and add up their squares.",
         "for k in range(4): col = lane + 32 * k; kept[k] = x[row, col] + residual[row, col] if col < x.shape[1] else "
         "float32(0.0); squares += kept[k] * kept[k]. Then the shuffles, and a second loop over k that stores.")
POINTS = 4
NEEDS = ("rmsnorm_warp",)

from numba import float32

from labkit import cuda

# %%
add_rmsnorm = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def add_rmsnorm(x, residual, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        kept = cuda.local.array(4, float32)
        squares = float32(0.0)
        for k in range(4):
            col = lane + 32 * k
            kept[k] = x[row, col] + residual[row, col] if col < x.shape[1] else float32(0.0)
            squares += kept[k] * kept[k]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
        scale = cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))
        for k in range(4):
            col = lane + 32 * k
            if col < x.shape[1]:
                out[row, col] = kept[k] * scale * weight[col]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, asks, uniform
from labkit.course.exercises.domains import EQUAL, HUGE_AND_TINY, ONE_FAR_ABOVE, ONE_FAR_BELOW, ZEROS, of
from labkit.course.exercises.layernorm import (
    ALL_LANES,
    four_rows,
    rmsnorm_reference,
    rmsnorm_tolerance,
    rows_and_columns,
    some_rows_small,
)


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


EXERCISE = KernelExercise(
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
        "the sums are kept in `out`, in global memory, and read back": add_rmsnorm_through_out,
        "the squares are those of `x`, without the residual":
            Edit("squares += kept[k] * kept[k]",
                 "if col < x.shape[1]:\n"
                 "    squares += x[row, col] * x[row, col]"),
        "the residual is added after the norm":
            Edit("x[row, col] + residual[row, col] if", "x[row, col] if",
                 "weight[col]", "weight[col] + residual[row, col]"),
    },
)

EQUIVALENT = {
    "loop: for k in range(4): ... -> for k in range(5) (2)":
        "The guard col < x.shape[1] stops the fifth round: a row has 128 elements at most.",
    "number: 4 -> 8 (4)": "The guard col < x.shape[1] stops the further rounds: a row has 128 elements at most.",
    "type: float32(x.shape[1]) -> int32(x.shape[1])":
        "An int32 that is divided by becomes a float64 in Numba: the quotient is right, and slower to compute.",
}
