"""From the lowest to the highest

For each row, compute the largest element minus the smallest: `x` is (R, C), `out` has R elements, and a block has two
warps, one row each. Every lane has already found the largest and the smallest of its elements. Now let the lanes
exchange them by `cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)`, five times for each of the two, and let one lane
store the result.
"""

HINTS = ("After the loop, lane 5 knows the largest of the columns 5, 37, 69, ... Which lanes know the rest of the row?",
         "In each of five steps a lane gets the values of another lane, and keeps the larger maximum and the smaller "
         "minimum. The distances are 16, 8, 4, 2, 1.",
         "largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance)), the same with min; after the "
         "steps, under if lane == 0, the store.")
POINTS = 2

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def row_range(x, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < x.shape[0]:  # the same for all lanes of a warp
        largest, smallest = float32(-math.inf), float32(math.inf)
        for col in range(lane, x.shape[1], 32):
            largest = max(largest, x[row, col])
            smallest = min(smallest, x[row, col])
        ### BEGIN SOLUTION
        for distance in (16, 8, 4, 2, 1):
            largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))
            smallest = min(smallest, cuda.shfl_xor_sync(0xFFFFFFFF, smallest, distance))
        if lane == 0:
            out[row] = largest - smallest
        ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, relative_to, shuffles, uniform
from labkit.course.exercises.domains import EQUAL, HUGE_AND_TINY, ONE_FAR_ABOVE, ONE_FAR_BELOW, POSITIVE, largest_at, of
from labkit.course.exercises.reductions import rows


@cuda.jit
def range_without_shuffles(x, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < x.shape[0]:
        largest, smallest = float32(-math.inf), float32(math.inf)
        for col in range(x.shape[1]):
            largest, smallest = max(largest, x[row, col]), min(smallest, x[row, col])
        if lane == 0:
            out[row] = largest - smallest


EXERCISE = KernelExercise(
    name="row_range",
    reference=lambda x: x.astype(np.float64).max(axis=1) - x.astype(np.float64).min(axis=1),
    inputs=lambda rng, R, C: (uniform(rng, R, C) - np.float32(2.0),),  # all negative: a start of 0 shows
    shape=lambda R, C: (R,),
    sizes=rows((1, 70), (1, 33), (2, 31), (3, 1), (3, 32), (4, 100), (7, 257)),
    launch=lambda R, C: (-(-R // 2), 64),
    tolerance=relative_to(lambda x: np.abs(x).max(axis=1), roundings=2),
    domain=(*of(0, POSITIVE, EQUAL, ONE_FAR_ABOVE, ONE_FAR_BELOW, HUGE_AND_TINY),
            *of(0, largest_at(32), at={"R": 3, "C": 70})),
    demand=shuffles,
    wrong={
        "the step with distance 1 is missing: lanes 0 and 1 never exchange values":
            Edit("for distance in (16, 8, 4, 2, 1):", "for distance in (16, 8, 4, 2):"),
        "lane 0 stores its own result, without the other lanes' values":
            Edit("for distance in (16, 8, 4, 2, 1):\n"
                 "    largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))\n"
                 "    smallest = min(smallest, cuda.shfl_xor_sync(0xFFFFFFFF, smallest, distance))",
                 ""),
        "the largest of the lanes' minima":
            Edit("min(smallest, cuda.shfl_xor_sync", "max(smallest, cuda.shfl_xor_sync"),
        "`shfl_down` gathers in lane 0, and another lane stores":
            Edit("largest, cuda.shfl_xor_sync", "largest, cuda.shfl_down_sync",
                 "smallest, cuda.shfl_xor_sync", "smallest, cuda.shfl_down_sync",
                 "if lane == 0:", "if lane == 31:"),
        "every lane goes through the whole row, and nothing is exchanged": range_without_shuffles,
    },
)

EQUIVALENT = {
    "call: cuda.shfl_xor_sync(4294967295, smallest, distance) -> cuda.shfl_down_sync(4294967295, smallest, distance)":
        "Only lane 0 stores, and it gets the same from shfl_down as from shfl_xor; the other lanes' values are not "
        "used.",
    "guard: if lane == 0: ... -> if not lane == 0: ...":
        "After the butterfly all lanes hold the same value, and each of the others stores it.",
    "number: 32 -> 16 (3)":
        "Two lanes read most elements, which does not change a maximum. It only costs loads, and their number is not "
        "checked.",
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
}
