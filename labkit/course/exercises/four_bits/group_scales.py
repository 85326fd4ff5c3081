"""A scale for each group

Every 64 consecutive weights of a row of `weights` (R, 64 G), float32, from the first on, are a group.
`scales[row, group]` (R, G), float32, should be the largest absolute value of the group divided by 7.5: with it the
group's weights become codes from -8 to 7. If all weights of a group are 0, the scale should be 1, so that nothing is
divided by 0. The launch has one warp per group: the grid is `(G, R)`, and blocks have 32 threads.
"""

HINTS = ("Each lane loads two of the 64 weights. How does a warp find the largest of 32 values without shared "
         "memory?",
         "Start with the larger absolute value of the lane's two weights; then, for distances 16, 8, 4, 2 and 1, take "
         "the larger of the lane's own value and `cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance)`.",
         "Lane 0 stores largest / float32(7.5) if largest > 0, else 1.")
POINTS = 1
NEEDS = ("unpack_awq",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def group_scales(weights, scales):
    ### BEGIN SOLUTION
    group, row, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    col = 64 * group + lane
    largest = max(abs(weights[row, col]), abs(weights[row, col + 32]))
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))
    if lane == 0:
        scales[row, group] = largest / float32(7.5) if largest > 0 else float32(1.0)
    ### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, shuffles, uniform
from labkit.course.exercises.domains import EQUAL, HUGE_AND_TINY, NEGATIVE, ONE_FAR_ABOVE, ONE_FAR_BELOW, ZEROS, of


def _scales(weights):
    largest = np.abs(weights.astype(np.float64)).reshape(weights.shape[0], -1, 64).max(axis=2)
    return np.where(largest > 0, largest / 7.5, 1.0)


def _one_group_of_zeros(rng, weights):
    changed = weights.copy()
    changed[:, :64] = 0
    return (changed,)


def _largest_below_zero(rng, weights):
    """Everything above 0 is smaller than the lowest."""
    return (np.where(weights > 0, weights / 3, weights).astype(np.float32),)


@cuda.jit
def group_scales_alone(weights, scales):
    group, row, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    if lane == 0:
        largest = float32(0.0)
        for i in range(64):
            largest = max(largest, abs(weights[row, 64 * group + i]))
        scales[row, group] = largest / float32(7.5) if largest > 0 else float32(1.0)


EXERCISE = KernelExercise(
    name="group_scales",
    reference=_scales,
    inputs=lambda rng, R, G: (uniform(rng, R, 64 * G),),
    shape=lambda R, G: (R, G),
    sizes=tuple({"R": R, "G": G} for R, G in ((1, 1), (2, 3), (5, 2), (3, 7))),
    random_size=lambda rng: {"R": int(rng.integers(1, 9)), "G": int(rng.integers(1, 9))},
    launch=lambda R, G: ((G, R), 32),
    tolerance=lambda weights: 2 * EPS32 * _scales(weights),
    observe_sizes=({"R": 2, "G": 3},),
    demand=shuffles,
    domain=(*of(0, ZEROS, NEGATIVE, EQUAL, HUGE_AND_TINY, ONE_FAR_ABOVE, ONE_FAR_BELOW),
            Reach("one group of each row is all 0", _one_group_of_zeros),
            Reach("the weights farthest from 0 are negative", _largest_below_zero)),
    wrong={
        "the largest weight, not the largest absolute value": Edit(
            "max(abs(weights[row, col]), abs(weights[row, col + 32]))",
            "max(weights[row, col], weights[row, col + 32])"),
        "the second half of the group is left out": Edit(
            "max(abs(weights[row, col]), abs(weights[row, col + 32]))", "abs(weights[row, col])"),
        "the scale of a group of zeros is 0": Edit(" if largest > 0 else float32(1.0)", ""),
        "the largest value is divided by 8": Edit("float32(7.5)", "float32(8.0)"),
        "the largest value is divided by 15, as if all codes were positive": Edit("float32(7.5)", "float32(15.0)"),
        "a round of the shuffles is missing": Edit("(16, 8, 4, 2, 1)", "(16, 8, 4, 2)"),
        "the absolute values are added up": Edit(
            "largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))",
            "largest += cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance)"),
        "groups begin every 32 columns": Edit("64 * group", "32 * group"),
        "one lane loads the whole group": group_scales_alone,
    },
)

EQUIVALENT = {
    "guard: if lane == 0: ... -> if not lane == 0: ...":
        "After the shuffles every lane has the largest: the others then store the same scale, all of them.",
    "number: 4 -> 5":
        "Distances 16, 8, 5, 2 and 1 bring every lane the largest of all 32, too.",
}
