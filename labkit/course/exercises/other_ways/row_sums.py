"""From a blank page: the sum of each row

In Triton:

    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=0.0)
    tl.store(out_ptr + row, tl.sum(x, axis=0))

Write `row_sums(x, out)` in Numba, from the decorator down: one block of 32 threads, a single warp, per row of `x`; rows
have any length. Each lane adds elements 32 apart. Then the lanes add up their sums with
`cuda.shfl_down_sync(0xFFFFFFFF, total, offset)`, which gives a lane the value of the lane `offset` further up. After
offsets of 16, 8, 4, 2 and 1, lane 0 has the sum.
"""

HINTS = ("Which elements of a row of 100 does lane 5 add, if the lanes go through it together in steps of 32?",
         "Lane 5 adds the elements 5, 37 and 69. Then 32 sums are left, one in each lane: in five exchanges, each lane "
         "adds the sum of the lane 16 further up, then 8, 4, 2 and 1.",
         "for col in range(lane, x.shape[1], 32): total += x[row, col]; then the five offsets with total += "
         "cuda.shfl_down_sync(...); then if lane == 0: out[row] = total.")
POINTS = 3
NEEDS = ("axpy_program",)

from numba import float32

from labkit import cuda

# %%
row_sums = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def row_sums(x, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    for col in range(lane, x.shape[1], 32):
        total += x[row, col]
    for offset in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, offset)
    if lane == 0:
        out[row] = total


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, dot_products, of, shuffles, uniform


@cuda.jit
def row_sums_by_lane_0(x, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    if lane == 0:
        total = np.float32(0)
        for col in range(x.shape[1]):
            total += x[row, col]
        out[row] = total


EXERCISE = KernelExercise(
    name="row_sums",
    reference=lambda x: x.astype(np.float64).sum(axis=1),
    inputs=lambda rng, R, C: (uniform(rng, R, C),),
    shape=lambda R, C: (R,),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 31), (3, 32), (4, 33), (5, 100), (2, 781))),
    launch=lambda R, C: (R, 32),
    tolerance=dot_products(lambda x: np.abs(x).sum(axis=1), length=lambda x: x.shape[1]),
    domain=of(0, *SUMMED),
    demand=shuffles,
    wrong={
        "only the first 32 elements of a row are added":
            Edit("total = float32(0.0)\n"
                 "for col in range(lane, x.shape[1], 32):\n"
                 "    total += x[row, col]",
                 "total = x[row, lane] if lane < x.shape[1] else float32(0.0)"),
        "the lanes never combine their sums":
            Edit("for offset in (16, 8, 4, 2, 1):\n"
                 "    total += cuda.shfl_down_sync(0xFFFFFFFF, total, offset)",
                 ""),
        "the last element is added instead of those that are missing":
            Edit("total = float32(0.0)",
                 "last = x.shape[1] - 1\n"
                 "total = float32(0.0)",
                 "for col in range(lane, x.shape[1], 32):", "for start in range(0, x.shape[1], 32):",
                 "total += x[row, col]", "total += x[row, min(start + lane, last)]"),
        "lane 31 stores, but the sum is in lane 0": Edit("if lane == 0:", "if lane == 31:"),
        "lane 0 adds up the whole row, and 31 lanes wait": row_sums_by_lane_0,
    },
)
