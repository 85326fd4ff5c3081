r"""From a blank page: distances

$$\text{out}_r = \sqrt{\sum_c (a_{r,c} - b_{r,c})^2}$$

Write `distances(a, b, out)`: for each row of `a`, its distance from the same row of `b`. Both are (R, C), `out` has R
elements. A block has 64 threads, which are two warps, and each warp handles one row, of any length. `math.sqrt` works
in a kernel.
"""

HINTS = ("Which columns should a lane handle, so that neighbouring lanes load neighbours? What does lane 5 know after "
         "its last column?",
         "Three steps: a lane adds up the squares of its columns, lane, lane + 32, and so on; five shuffles with the "
         "distances 16, 8, 4, 2 and 1 add up the lanes' sums; one lane computes the root and stores it.",
         "total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance), five times. All lanes of a warp have to reach "
         "it, so the only condition around it is the one on the row.")
POINTS = 3
NEEDS = ("row_range",)

import math

from numba import float32

from labkit import cuda

# %%
distances = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def distances(a, b, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < a.shape[0]:  # the same for all lanes of a warp
        total = float32(0.0)
        for col in range(lane, a.shape[1], 32):
            difference = a[row, col] - b[row, col]
            total += difference * difference
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        if lane == 0:
            out[row] = math.sqrt(total)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, of, shuffles, uniform
from labkit.course.exercises.domains import EQUAL, FAR_BELOW_ZERO, HUGE_AND_TINY, ONE_FAR_ABOVE
from labkit.course.exercises.reductions import rows


def _reference(a, b):
    return np.sqrt(((a.astype(np.float64) - b.astype(np.float64)) ** 2).sum(axis=1))


@cuda.jit
def distances_without_shuffles(a, b, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < a.shape[0] and lane == 0:
        total = float32(0.0)
        for col in range(a.shape[1]):
            difference = a[row, col] - b[row, col]
            total += difference * difference
        out[row] = math.sqrt(total)


@cuda.jit
def distances_one_column_a_lane(a, b, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < a.shape[0]:
        total = float32(0.0)
        if lane < a.shape[1]:
            difference = a[row, lane] - b[row, lane]
            total = difference * difference
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        if lane == 0:
            out[row] = math.sqrt(total)


@cuda.jit
def distances_by_products(a, b, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < a.shape[0]:
        total = float32(0.0)
        for col in range(lane, a.shape[1], 32):
            x, y = a[row, col], b[row, col]
            total += x * x + y * y - float32(2.0) * x * y
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        if lane == 0:
            out[row] = math.sqrt(max(total, float32(0.0)))


def _both_far(rng, a, b):
    return a + np.float32(10_000.0), b + np.float32(10_000.0)


EXERCISE = KernelExercise(
    name="distances",
    reference=_reference,
    inputs=lambda rng, R, C: (uniform(rng, R, C), uniform(rng, R, C)),
    shape=lambda R, C: (R,),
    sizes=rows((1, 1), (2, 3), (1, 32), (3, 33), (4, 100), (7, 257)),
    launch=lambda R, C: (-(-R // 2), 64),
    # All terms are positive, so the error of the sum is relative to it; the root halves it.
    tolerance=lambda a, b: EPS32 * (4 + np.sqrt(a.shape[1])) * _reference(a, b),
    domain=(*of(0, EQUAL, ONE_FAR_ABOVE, FAR_BELOW_ZERO, HUGE_AND_TINY),
            Reach("all elements of both are near 10,000", _both_far),
            Reach("the rows are the same", lambda rng, a, b: (a, a.copy()))),
    demand=shuffles,
    wrong={
        "the lanes' roots are added, not their squares":
            Edit("for distance in (16, 8, 4, 2, 1):", "total = math.sqrt(total)\nfor distance in (16, 8, 4, 2, 1):",
                 "out[row] = math.sqrt(total)", "out[row] = total"),
        "the root is left out": Edit("out[row] = math.sqrt(total)", "out[row] = total"),
        "the step with distance 16 is missing: lanes from 16 on never exchange with the others":
            Edit("for distance in (16, 8, 4, 2, 1):", "for distance in (8, 4, 2, 1):"),
        "the differences are added, and the sum is squared":
            Edit("total += difference * difference", "total += difference",
                 "out[row] = math.sqrt(total)", "out[row] = abs(total)"),
        "one column per lane: rows longer than 32 are left unfinished": distances_one_column_a_lane,
        "lane 0 adds up the whole row, and nothing is exchanged": distances_without_shuffles,
        "a² + b² - 2ab in place of (a - b)²: between large numbers nearly all digits cancel": distances_by_products,
    },
)

EQUIVALENT = {
    "call: cuda.shfl_xor_sync(4294967295, total, distance) -> cuda.shfl_down_sync(4294967295, total, distance)":
        "Only lane 0 stores, and it gets the same from shfl_down as from shfl_xor.",
    "guard: if lane == 0: ... -> if not lane == 0: ...":
        "After the butterfly all lanes hold the same sum, and each of the others stores it.",
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
}
