"""Top-p without a sort

`weights` (R, V) int32 holds the weights of the tokens of each row, from 0 to 2³¹ − 1. `need` (R,) int64 is the mass
that the kept tokens must reach, at least 1 and at most the sum of the row. Tokens are kept if their weight is at least
a threshold. Find the largest threshold whose kept tokens together reach `need`, and write it to `thresholds` (R,)
int32. The sum of a row may be far above 2³¹.

An example: of the weights 5, 9, 2 and 9, with a need of 20, the threshold is 5. With 6 or more only the nines are kept,
and 18 is too little; with 5 the sum is 23.

The grid has one block of one warp per row. Search bit by bit, from the highest down: a bit stays in the threshold if
the tokens with at least that weight still reach `need`. Each bit needs one pass over the row, in which a lane adds up
every 32nd weight, and shuffles that give every lane the sum.
"""

HINTS = ("If the kept tokens reach `need` with some threshold, do they also with a smaller one? How many comparisons "
         "then find the largest threshold below 2**31?",
         "threshold starts at 0 and bit at 1 << 30. For each bit: do the tokens with weights >= threshold + bit reach "
         "need[row]? Each lane adds up every 32nd weight in an int64, and five xor shuffles give all lanes the sum.",
         "mass += weights[row, col] where weights[row, col] >= trial; mass += cuda.shfl_xor_sync(0xFFFFFFFF, mass, "
         "distance) for 16, 8, 4, 2, 1; if mass >= need[row]: threshold = trial; bit //= 2.")
POINTS = 3

from numba import int32, int64

from labkit import cuda


# %%
@cuda.jit
def top_p_threshold(weights, need, thresholds):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    ### BEGIN SOLUTION
    threshold, bit = int32(0), int32(1 << 30)
    while bit > 0:
        trial = threshold + bit
        mass = int64(0)
        for col in range(lane, weights.shape[1], 32):
            if weights[row, col] >= trial:
                mass += weights[row, col]
        for distance in (16, 8, 4, 2, 1):
            mass += cuda.shfl_xor_sync(0xFFFFFFFF, mass, distance)
        if mass >= need[row]:
            threshold = trial
        bit //= 2
    if lane == 0:
        thresholds[row] = threshold
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, elements_of_argument
from labkit.course.exercises.the_engine import HIGHEST, only, random_weights


def _threshold_of(weights, need):
    """The largest number that is reached: one of the weights."""
    thresholds = []
    for row, wanted in zip(weights.tolist(), need.tolist(), strict=True):
        mass = 0
        for weight in sorted(row, reverse=True):
            mass += weight
            if mass >= wanted:
                break
        thresholds.append(weight)
    return np.array(thresholds, np.int32)


def _need(rng, weights):
    mass = weights.astype(np.int64).sum(1)
    return np.maximum(1, (mass * rng.random(len(mass))).astype(np.int64))


def _mass_inputs(rng, R, V):
    weights = random_weights(rng, R, V)
    return weights, _need(rng, weights)


def _masses(words, make, need=None, size=(3, 70)):
    """make(rng, R, V) -> weights; need(rng, weights) -> what has to be reached."""
    def turn(rng, weights, _):
        weights = make(rng, *weights.shape).astype(np.int32)
        return weights, (need or _need)(rng, weights).astype(np.int64)

    return Reach(words, turn, dict(zip("RV", size, strict=True)))


def _whole(rng, weights):
    return weights.astype(np.int64).sum(1)


def _one_likely(rng, R, V):
    weights = rng.integers(0, 3, (R, V))
    weights[np.arange(R), rng.integers(0, V, R)] = HIGHEST - 1
    return weights


def _heavy(rng, R, V):
    return HIGHEST - 1 - rng.permuted(np.tile(np.arange(V), (R, 1)), axis=1)


def _reached_exactly(rng, weights):
    """By the largest few together."""
    ordered = -np.sort(-weights.astype(np.int64), axis=1)
    return np.cumsum(ordered, axis=1)[:, min(4, weights.shape[1] - 1)]


@asks("The row is read once per bit of the threshold, and all lanes share the work.")
def _passes(report) -> str | None:
    """A pass over the row for each bit, with all lanes; and no pass for each token."""
    elements, loads = elements_of_argument(report, 0), report.counts["global_loads"]
    if loads > 60 * elements:
        return (f"It makes {loads:,} loads from global memory for {elements:,} weights. A weight has 31 bits, and one "
                f"pass over the row for each is enough, {31 * elements:,} loads.")
    name = next(iter(report.arrays))
    lanes = {thread % 32 for (array, space), cells in report.touched.items() if (array, space) == (name, "global")
             for (thread, _), kinds in cells.items() if "load" in kinds}
    if len(lanes) < 16:
        return (f"The weights are loaded by only {len(lanes)} of the 32 lanes. Let each lane load every 32nd weight, "
                f"and add up the lanes' sums with shuffles.")
    return None


@cuda.jit
def top_p_threshold_counts(weights, need, thresholds):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    for col in range(lane, weights.shape[1], 32):
        above, mass = int64(0), int64(0)
        for other in range(weights.shape[1]):
            if weights[row, other] > weights[row, col]:
                above += weights[row, other]
            if weights[row, other] >= weights[row, col]:
                mass += weights[row, other]
        if above < need[row] and mass >= need[row]:
            thresholds[row] = weights[row, col]


@cuda.jit
def top_p_threshold_alone(weights, need, thresholds):
    row = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        threshold, bit = int32(0), int32(1 << 30)
        while bit > 0:
            mass = int64(0)
            for col in range(weights.shape[1]):
                if weights[row, col] >= threshold + bit:
                    mass += weights[row, col]
            if mass >= need[row]:
                threshold += bit
            bit //= 2
        thresholds[row] = threshold


EXERCISE = KernelExercise(
    name="top_p_threshold",
    reference=_threshold_of,
    inputs=_mass_inputs,
    shape=lambda R, V: (R,),
    dtype=np.int32,
    sizes=tuple({"R": R, "V": V} for R, V in ((1, 1), (2, 5), (3, 33), (3, 128), (2, 200))),
    random_size=lambda rng: {"R": int(rng.integers(1, 5)), "V": int(rng.integers(20, 260))},
    launch=lambda R, V: (R, 32),
    observe_sizes=({"R": 2, "V": 200},),
    demand=_passes,
    domain=(_masses("the whole mass has to be reached", random_weights, _whole),
            _masses("the most likely token is enough", _one_likely),
            _masses("the mass of a few tokens is reached exactly", random_weights, _reached_exactly),
            _masses("the mass of a few tokens is missed by one",
                    random_weights, lambda rng, weights: _reached_exactly(rng, weights) + 1),
            _masses("all weights are equal", lambda rng, R, V: np.full((R, V), 1000)),
            _masses("many weights are equal", lambda rng, R, V: rng.integers(0, 3, (R, V)) + (np.arange(V) == 0)),
            _masses("weights are close to 2**31, and their sum is far above it", _heavy),
            _masses("weights are close to 2**31, and the mass of a few is missed by one",
                    _heavy, lambda rng, weights: _reached_exactly(rng, weights) + 1),
            _masses("only one weight is more than 0", only(-1)),
            _masses("the largest weights come after the first 32",
                    lambda rng, R, V: np.where(np.arange(V) < 32, 3, 10_000) + rng.integers(0, 3, (R, V)))),
    wrong={
        "tokens whose weight equals the threshold are left out": Edit(">= trial", "> trial"),
        "a mass that is reached exactly counts as missed": Edit(">= need[row]", "> need[row]"),
        "one bit too few: weights of 2**30 and more are never reached": Edit("int32(1 << 30)", "int32(1 << 29)"),
        "the lowest bit is never tried": Edit("while bit > 0:", "while bit > 1:"),
        "the tokens are counted, not weighed": Edit("mass += weights[row, col]", "mass += 1"),
        "32 bits for the sum: it overflows": Edit("mass = int64(0)", "mass = int32(0)", "mass += weights[row, col]",
                                                  "mass = int32(mass + weights[row, col])"),
        "each lane adds up only one weight, and the rest of the row is left out":
            Edit("range(lane, weights.shape[1], 32)", "range(lane, min(weights.shape[1], 32), 32)"),
        "every lane keeps the sum of its own weights": Edit("mass += cuda.shfl_xor_sync(0xFFFFFFFF, mass, distance)",
                                                          "pass"),
        "`shfl_down_sync` instead of xor, and the last lane stores": Edit("shfl_xor_sync(", "shfl_down_sync(",
                                                                           "lane == 0", "lane == 31"),
        "a round is missing: half a warp": Edit("(16, 8, 4, 2, 1)", "(8, 4, 2, 1)"),
        "a bit is kept where the mass is missed": Edit(">= need[row]", "< need[row]"),
        "the sum is a float32: it is rounded":
            Edit("mass = int64(0)", "mass = np.float32(0)",
                 "mass += weights[row, col]", "mass += np.float32(weights[row, col])"),
        "one pass over the row per token": top_p_threshold_counts,
        "one thread does all the work": top_p_threshold_alone,
    },
)

EQUIVALENT = {
    "guard: if lane == 0: ... -> if not lane == 0: ...": "All lanes have the threshold: 31 of them store it, not one.",
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
    "type: int32(1 << 30) -> float32(1 << 30)":
        "Each bit is a float32 exactly, and an int32 and a float32 add up to a float64 in Numba, which holds every "
        "threshold.",
    "type: mass += weights[row, col] -> mass += int32(weights[row, col])": "They are int32 already.",
}
