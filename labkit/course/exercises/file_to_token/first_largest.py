"""From a blank page: the likeliest token

`out[row]` is the column of the largest element of the row, the first of them if several are equal. A block is one warp
of 32 threads, and there are as many blocks as rows. A lane goes through the columns lane, lane + 32, ... and keeps the
largest element and its column. Then the lanes compare their results in five exchanges, each of an element and its
column. All elements of a row may be negative. Columns fit into int32.

Write `first_largest(x, out)` from the decorator down.
"""

HINTS = ("What does a lane have to keep so that after five exchanges it knows the column, and not only the element?",
         "Each lane begins with float32(-np.inf) and a column larger than any. An element beats another if it is "
         "larger, or equal with a smaller column. Exchange both with cuda.shfl_xor_sync, at distances 16, 8, 4, 2, 1.",
         "other = cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance); other_at = the same for at; if other > largest or "
         "(other == largest and other_at < at): largest, at = other, other_at. At the end lane 0 stores at.")
POINTS = 3

import numpy as np
from numba import float32, int32

from labkit import cuda

# %%
first_largest = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def first_largest(x, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    largest, at = float32(-np.inf), int32(0x7FFFFFFF)  # loses against every element
    for col in range(lane, x.shape[1], 32):
        if x[row, col] > largest:  # not >=: the first of equals stays
            largest, at = x[row, col], int32(col)
    for distance in (16, 8, 4, 2, 1):
        other = cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance)
        other_at = cuda.shfl_xor_sync(0xFFFFFFFF, at, distance)
        if other > largest or (other == largest and other_at < at):
            largest, at = other, other_at
    if lane == 0:
        out[row] = at


### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, KernelExercise, asks, shuffles
from labkit.course.exercises.domains import (
    EQUAL,
    FAR_ABOVE_ZERO,
    LARGEST_APART,
    LOWEST,
    ONE_FAR_ABOVE,
    TIES,
    ZEROS,
    largest_at,
    of,
)
from labkit.kernels.argmax import argmax_reference


def _few_values(rng, R, C):
    """Negative whole numbers, few of them, so that the largest of a row comes several times."""
    return (rng.integers(-9, -4, (R, C)).astype(np.float32),)


@cuda.jit
def largest_by_one_lane(x, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    if lane == 0:
        at = int32(0)
        for col in range(1, x.shape[1]):
            if x[row, col] > x[row, at]:
                at = int32(col)
        out[row] = at


@cuda.jit
def largest_without_shuffles(x, out):
    found = cuda.shared.array((32, 2), float32)
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    largest, at = float32(-np.inf), int32(0x7FFFFFF)
    for col in range(lane, x.shape[1], 32):
        if x[row, col] > largest:
            largest, at = x[row, col], int32(col)
    found[lane, 0], found[lane, 1] = largest, float32(at)
    cuda.syncwarp()
    if lane == 0:
        for other in range(1, 32):
            if found[other, 0] > largest or (found[other, 0] == largest and int32(found[other, 1]) < at):
                largest, at = found[other, 0], int32(found[other, 1])
        out[row] = at


@asks("All lanes of a warp search its row.", shuffles)
def _all_lanes_look(report) -> str | None:
    requests = report.counts["global_requests"]
    if requests <= 12 * 12:  # 3 for 70 columns, with room for those who read a column again
        return None
    return (f"The launch makes {requests} memory requests for 12 rows of 70. If each of the 32 "
            "lanes reads every 32nd column, 3 requests per row are enough.")


EXERCISE = KernelExercise(
    name="first_largest",
    reference=argmax_reference,
    inputs=_few_values,
    shape=lambda R, C: (R,),
    dtype=np.int32,
    sizes=tuple({"R": R, "C": C} for R, C in ((12, 70), (14, 33), (13, 1), (16, 260), (20, 31))),
    random_size=lambda rng: {"R": int(rng.integers(15, 25)), "C": int(rng.integers(2, 300))},
    observe_sizes=({"R": 12, "C": 70},),
    launch=lambda R, C: (R, 32),
    demand=_all_lanes_look,
    domain=(*of(0, EQUAL, LOWEST, TIES, ZEROS, ONE_FAR_ABOVE, FAR_ABOVE_ZERO),
            *of(0, largest_at(32), LARGEST_APART, at={"R": 12, "C": 70})),
    wrong={
        "the last of equal elements is chosen":
            Edit("largest, at = float32(-np.inf), int32(0x7FFFFFFF)", "largest, at = float32(-np.inf), int32(-1)",
                 "if x[row, col] > largest:", "if x[row, col] >= largest:",
                 "other_at < at", "other_at > at"),
        "the search begins at 0, and all of these elements are less":
            Edit("largest, at = float32(-np.inf), int32(0x7FFFFFFF)", "largest, at = float32(0.0), int32(0)"),
        "the lanes exchange the elements, but not their columns":
            Edit("other = cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance)\n"
                 "other_at = cuda.shfl_xor_sync(0xFFFFFFFF, at, distance)\n"
                 "if other > largest or (other == largest and other_at < at):\n"
                 "    largest, at = other, other_at",
                 "largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))"),
        "between lanes, the lane decides between equal elements, not the column":
            Edit("if other > largest or (other == largest and other_at < at):", "if other > largest:"),
        "between lanes, the other lane's column wins when the elements are equal":
            Edit("largest, at = float32(-np.inf), int32(0x7FFFFFFF)", "largest, at = float32(-np.inf), int32(0)",
                 "if other > largest or (other == largest and other_at < at):", "if other >= largest:"),
        "one lane goes through the whole row, and 31 wait": largest_by_one_lane,
        "one lane combines the lanes' results, through shared memory": largest_without_shuffles,
        "the last shuffle, with the neighbour, is missing":
            Edit("for distance in (16, 8, 4, 2, 1):", "for distance in (16, 8, 4, 2):"),
    },
)

EQUIVALENT = {
    "call: cuda.shfl_xor_sync(4294967295, at, distance) -> cuda.shfl_down_sync(4294967295, at, distance)":
        "Lane 0 alone stores, and it gets the same from shfl_down as from shfl_xor; the other lanes' values are not "
        "used.",
    "guard: other_at < at -> other_at <= at": "If both are equal, the other is the same element.",
    "number: 2147483647 -> 2147483648":
        "int32 wraps it to a negative number, which loses only where a lane has no element; such a lane's value is "
        "-inf.",
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
    "type: int32(col) -> float32(col)": "A float32 holds a column below 2**24 exactly.",
}
