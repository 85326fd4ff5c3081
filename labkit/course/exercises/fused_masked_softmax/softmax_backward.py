r"""From a blank page: the way back

Training a model requires the derivative of the loss with respect to each score. `p` holds the probabilities of a row
and `g` the derivatives with respect to those. Then

$$\text{out}_{r,c} = \text{scale} \cdot p_{r,c} \, \left(g_{r,c} - \sum_k p_{r,k} \, g_{r,k}\right)$$

Write `softmax_backward(p, g, scale, out)` from the decorator down. `p`, `g` and `out` are (R, C), a warp computes a
row, and a block has two warps. Where the mask was, p is 0, and so is the result: the kernel need not know the mask.
"""

HINTS = ("Which part of the formula is the same for all elements of a row? How do the 32 lanes get it?",
         "A loop over the lane's columns adds up p * g, five shuffles add up the lanes, and a second loop over the "
         "same columns stores.",
         "total += p[row, col] * g[row, col]; then total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance) for 16, 8, "
         "4, 2, 1; then out[row, col] = scale * p[row, col] * (g[row, col] - ...).")
POINTS = 4
NEEDS = ("left_padding",)

from numba import float32

from labkit import cuda

# %%
softmax_backward = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def softmax_backward(p, g, scale, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < p.shape[0]:
        total = float32(0.0)
        for col in range(lane, p.shape[1], 32):
            total += p[row, col] * g[row, col]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        for col in range(lane, p.shape[1], 32):
            out[row, col] = scale * p[row, col] * (g[row, col] - total)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, elements_of_argument, shuffles, uniform
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS, of, parameter
from labkit.course.exercises.fused_masked_softmax import probabilities


def _backward_reference(p, g, scale):
    p, g = p.astype(np.float64), g.astype(np.float64)
    return float(scale) * p * (g - (p * g).sum(axis=1, keepdims=True))


def _backward_inputs(rng, R, C):
    p = probabilities(3 * uniform(rng, R, C), True).astype(np.float32)
    return p, uniform(rng, R, C), np.float32(rng.uniform(0.1, 0.4))


@asks("Each element is loaded at most twice.", shuffles)
def _shared_by_the_lanes(report) -> str | None:
    """p and g, each for the sum and for the result: four loads an element."""
    loads, enough = report.counts["global_loads"], 4 * elements_of_argument(report, 0)
    if loads <= 2 * enough:  # with room for those who read a number again
        return None
    return (f"It loads {loads:,} elements, and {enough:,} are enough: p and g, each for the sum and for the result. A "
            "warp handles a row, so give each lane every 32nd column, and add up the lanes' sums with shuffles.")


def _one_is_certain(rng, p, g, scale):
    return (np.arange(p.shape[1]) == rng.integers(0, p.shape[1], (len(p), 1))).astype(np.float32), g, scale


def _half_is_hidden(rng, p, g, scale):
    return np.where(np.arange(p.shape[1]) < p.shape[1] // 2, p, np.float32(0)), g, scale


EXERCISE = KernelExercise(
    name="softmax_backward",
    reference=_backward_reference,
    inputs=_backward_inputs,
    shape=lambda R, C: (R, C),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 40), (3, 1), (2, 31), (5, 64), (7, 200))),
    launch=lambda R, C: (-(-R // 2), 64),
    tolerance=lambda p, g, scale: 2.0**-23 * (6 + 2 * np.sqrt(p.shape[1])) * scale * p
    * (np.abs(g) + (p * np.abs(g)).sum(axis=1, keepdims=True)),
    domain=(Reach("one probability of each row is 1 and the others 0", _one_is_certain),
            Reach("the first half of each row is hidden, with the probability 0", _half_is_hidden),
            *of(1, FAR_ABOVE_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS), *parameter(2, "scale", 1, 0.02)),
    demand=_shared_by_the_lanes,
    wrong={
        "the sum of `g` alone: each has to be weighted by its `p`":
            Edit("total += p[row, col] * g[row, col]", "total += g[row, col]"),
        "`scale` is left out": Edit("scale * p[row, col]", "p[row, col]"),
        "each lane subtracts its own sum, not that of all lanes":
            Edit("for distance in (16, 8, 4, 2, 1):\n"
                 "    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)",
                 ""),
        "every lane adds up the whole row, and nothing is exchanged":
            Edit("for col in range(lane, p.shape[1], 32):\n"
                 "    total += p[row, col] * g[row, col]\n"
                 "for distance in (16, 8, 4, 2, 1):\n"
                 "    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)",
                 "for col in range(p.shape[1]):\n"
                 "    total += p[row, col] * g[row, col]"),
        "the sum is subtracted without its factor `p`":
            Edit("p[row, col] * (g[row, col] - total)", "(p[row, col] * g[row, col] - total)"),
    },
)

EQUIVALENT = {
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
}
