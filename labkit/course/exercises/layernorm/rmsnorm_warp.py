r"""From a blank page: RMSNorm by a warp

Llama and its relatives do not subtract a mean. They divide by the root of the mean of the squares:

$$\text{out}_{r,c} = \frac{x_{r,c}}{\sqrt{\frac{1}{C} \sum_k x_{r,k}^2 + 10^{-5}}} \; w_c$$

A block has 32 × 4 threads. Each of its four warps has one row: `threadIdx.x` is the lane, and `threadIdx.y` says which
of the four rows. A row may have any number of columns, so a lane has the columns `lane`, `lane + 32`, and so on. Every
lane needs the sum of the whole row: `cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)` gives a lane the value of lane
`lane ^ distance`. `cuda.rsqrt` is one over the root.
"""

HINTS = ("Which lanes hold a part of the sum after the first loop, and which need all of it for the second?",
         "Three steps: each lane adds the squares of its columns; five shuffles with the distances 16, 8, 4, 2, 1 give "
         "every lane the sum of all; a second loop over the same columns stores.",
         "for distance in (16, 8, 4, 2, 1): squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance); then scale = "
         "cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5)).")
POINTS = 2
NEEDS = ("layernorm_two_sums",)

from numba import float32

from labkit import cuda

# %%
rmsnorm_warp = None  # write the kernel: def rmsnorm_warp(x, weight, out)


### BEGIN SOLUTION
@cuda.jit
def rmsnorm_warp(x, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        squares = float32(0.0)
        for col in range(lane, x.shape[1], 32):
            squares += x[row, col] * x[row, col]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
        scale = cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))
        for col in range(lane, x.shape[1], 32):
            out[row, col] = x[row, col] * scale * weight[col]


### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, KernelExercise, shuffles, uniform
from labkit.course.exercises.domains import EQUAL, FAR_BELOW_ZERO, HUGE_AND_TINY, ONE_FAR_ABOVE, ZEROS, of
from labkit.course.exercises.layernorm import (
    ALL_LANES,
    four_rows,
    rmsnorm_reference,
    rmsnorm_tolerance,
    rows_and_columns,
    some_rows_small,
)


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


EXERCISE = KernelExercise(
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
        "one element per lane: rows longer than 32 are left unfinished": rmsnorm_one_element_a_lane,
        "every lane adds up the whole row, and nothing is exchanged": rmsnorm_without_shuffles,
    },
)

EQUIVALENT = {
    "type: float32(x.shape[1]) -> int32(x.shape[1])":
        "An int32 that is divided by becomes a float64 in Numba: the quotient is right, and slower to compute.",
}

AFTER = """
Next: the exercises of **22 · The transpose**.
"""
