"""Find the bug: a sum that loses what is added

`out[r]` (R,) float32 should be the dot product of row r of `w` (R, C) with `x` (C,); both are uint16 and hold bfloat16
numbers. Each warp computes one row, in blocks of `(32, 4)` threads, and `bfloat16_number` converts an element to
float32. For small whole numbers the result is right. For the weights of a model it has two correct digits, or fewer. A
product of two bfloat16 numbers is exact in float32, and the sum should be as accurate as a float32 sum.
"""

HINTS = ("Let every product be 1. What is acc after 300 of them, if it is rounded to bfloat16 each time?",
         "A product of two bfloat16 is exact in float32, and the accumulator is a float32. Where does the loop round "
         "to 16 bits, and is anything stored in 16 bits there?",
         "acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col]), without rounding.")
POINTS = 1

from numba import float32

from labkit import cuda
from labkit.kernels.elements import bfloat16_number, bfloat16_rounded


# %%
@cuda.jit
def dot_rows(w, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < w.shape[0]:
        acc = float32(0.0)
        for col in range(lane, x.size, 32):
            product = bfloat16_rounded(bfloat16_number(w[r, col]) * bfloat16_number(x[col]))
            acc = bfloat16_rounded(acc + product)
        for distance in (16, 8, 4, 2, 1):
            acc += cuda.shfl_xor_sync(0xFFFFFFFF, acc, distance)
        if lane == 0:
            out[r] = acc


### BEGIN SOLUTION
@cuda.jit
def dot_rows(w, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < w.shape[0]:
        acc = float32(0.0)
        for col in range(lane, x.size, 32):
            acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])
        for distance in (16, 8, 4, 2, 1):
            acc += cuda.shfl_xor_sync(0xFFFFFFFF, acc, distance)
        if lane == 0:
            out[r] = acc


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, shuffles, uniform
from labkit.course.exercises.domains import EQUAL, HUGE_AND_TINY, NEGATIVE, ONE_FAR_ABOVE, POSITIVE, ZEROS, of_bfloat16
from labkit.kernels.dtypes import bfloat16_of, float32_of


def _dots(w, x):
    return float32_of(w).astype(np.float64) @ float32_of(x)


def _dot_tolerance(w, x):
    """That of a float32 sum in any order; the constant covers sums that are subnormal."""
    return x.size * EPS32 * (np.abs(float32_of(w)).astype(np.float64) @ np.abs(float32_of(x))) + 1e-40


def _whole_numbers(rng, w, x):
    return bfloat16_of(rng.integers(-3, 4, w.shape)), bfloat16_of(rng.integers(-3, 4, x.shape))


def _ones(rng, w, x):
    return bfloat16_of(np.ones(w.shape)), bfloat16_of(np.ones(x.shape))


@cuda.jit
def dot_rows_alone(w, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < w.shape[0] and lane == 0:
        acc = float32(0.0)
        for col in range(x.size):
            acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])
        out[r] = acc


LONG = {"R": 2, "C": 12_000}

EXERCISE = KernelExercise(
    name="dot_rows",
    reference=_dots,
    inputs=lambda rng, R, C: (bfloat16_of(uniform(rng, R, C)), bfloat16_of(uniform(rng, C))),
    shape=lambda R, C: (R,),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 3), (4, 32), (5, 33), (3, 100), (9, 384))),
    random_size=lambda rng: {"R": int(rng.integers(2, 12)), "C": int(rng.integers(30, 400))},
    launch=lambda R, C: (-(-R // 4), (32, 4)),
    tolerance=_dot_tolerance,
    observe_sizes=({"R": 3, "C": 100},),
    demand=shuffles,
    domain=(Reach("all numbers are small whole numbers", _whole_numbers),
            Reach("12,000 ones are added", _ones, LONG),
            *of_bfloat16((0, 1), POSITIVE, NEGATIVE, HUGE_AND_TINY, ZEROS, EQUAL),
            *of_bfloat16((0,), ONE_FAR_ABOVE)),
    wrong={
        "the accumulator is a bfloat16": Edit("acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])",
                                              "acc = bfloat16_rounded(acc + bfloat16_number(w[r, col]) * "
                                              "bfloat16_number(x[col]))"),
        "each product is rounded to bfloat16": Edit("acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])",
                                                    "acc += bfloat16_rounded(bfloat16_number(w[r, col]) * "
                                                    "bfloat16_number(x[col]))"),
        "the lanes' sums are rounded before they are added": Edit("cuda.shfl_xor_sync(0xFFFFFFFF, acc, distance)",
                                                                   "bfloat16_rounded(cuda.shfl_xor_sync(0xFFFFFFFF, "
                                                                   "acc, distance))"),
        "the result is rounded to bfloat16": Edit("out[r] = acc", "out[r] = bfloat16_rounded(acc)"),
        "the bits are multiplied as whole numbers": Edit("bfloat16_number(w[r, col]) * bfloat16_number(x[col])",
                                                         "float32(w[r, col]) * float32(x[col])"),
        "a round of the shuffles is missing": Edit("(16, 8, 4, 2, 1)", "(16, 8, 4, 2)"),
        "every row gets the result of the block's first row": Edit("cuda.blockIdx.x * 4 + cuda.threadIdx.y",
                                                               "cuda.blockIdx.x * 4"),
        "one lane adds up the whole row": dot_rows_alone,
    },
)
