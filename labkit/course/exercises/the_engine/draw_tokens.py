"""Sampling with whole numbers

`weights` (R, V) int32 holds the weights of the tokens, from 0 to 2³¹ − 1; a token that was not kept has 0. `at` (R,)
int64 holds one random number per row, at least 0 and below the sum of its weights. Laid end to end, the weights of a
row are intervals, and the sampled token is the one whose interval contains `at[row]`. Write it to `tokens` (R,) int32.
The sum of a row may be far above 2³¹.

An example: with weights 3, 0 and 2, the numbers 0, 1 and 2 select token 0, and 3 and 4 select token 2.

The grid has one block of one warp per row. The warp goes through the row in chunks of 32 tokens. In each chunk a lane
needs the sum over all lanes up to its own; `cuda.shfl_up_sync(0xFFFFFFFF, value, distance)` gives it the value of the
lane `distance` below it.
"""

HINTS = ("A token's interval begins at the sum of all weights before it and ends before that sum plus its own weight. "
         "Which comparison is <=, and which is <?",
         "In a chunk, five rounds with distances 1, 2, 4, 8 and 16 give each lane the sum up to itself; lanes with "
         "fewer than `distance` before them add nothing. Beyond the row's end a weight is 0. `before`, an int64, is "
         "the sum of all earlier chunks.",
         "if before + through - own <= at[row] and at[row] < before + through: tokens[row] = col; then before += "
         "cuda.shfl_sync(0xFFFFFFFF, through, 31).")
POINTS = 2

from numba import int64

from labkit import cuda


# %%
@cuda.jit
def draw_tokens(weights, at, tokens):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    ### BEGIN SOLUTION
    before = int64(0)  # what all chunks before weigh
    for first in range(0, weights.shape[1], 32):
        col = first + lane
        own = int64(weights[row, col]) if col < weights.shape[1] else int64(0)
        through = own
        for distance in (1, 2, 4, 8, 16):
            other = cuda.shfl_up_sync(0xFFFFFFFF, through, distance)
            if lane >= distance:
                through += other
        if before + through - own <= at[row] and at[row] < before + through:
            tokens[row] = col
        before += cuda.shfl_sync(0xFFFFFFFF, through, 31)
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, elements_of_argument, shuffles
from labkit.course.exercises.the_engine import HIGHEST, drawn, only, random_weights


def _share(rng, weights):
    return (weights.astype(np.int64).sum(1) * rng.random(len(weights))).astype(np.int64)


def _first_of_a_token(rng, weights):
    """The number at which the interval of a token begins that weighs something, and is not the first one."""
    begins = np.cumsum(weights.astype(np.int64), axis=1) - weights
    return np.array([rng.choice(row[own > 0][1:] if (own > 0).sum() > 1 else [0])
                     for row, own in zip(begins, weights, strict=True)])


def _draw_inputs(rng, R, V):
    weights = random_weights(rng, R, V) * (rng.random((R, V)) < 0.6).astype(np.int32)
    weights[:, rng.integers(V)] += 1
    return weights, np.where(np.arange(R) % 2 == 0, _first_of_a_token(rng, weights), _share(rng, weights))


def _draws(words, make, at=None, size=(3, 70)):
    def turn(rng, weights, _):
        weights = make(rng, *weights.shape).astype(np.int32)
        return weights, (at or _share)(rng, weights).astype(np.int64)

    return Reach(words, turn, dict(zip("RV", size, strict=True)))


@asks("Each weight is loaded once, and one token of a row is stored.", shuffles)
def _scans(report) -> str | None:
    elements, loads = elements_of_argument(report, 0), report.counts["global_loads"]
    rows, stores = elements_of_argument(report, 1), report.counts["global_stores"]
    if stores > rows:
        return (f"For {rows} rows it stores {stores} tokens: the intervals of two tokens overlap. An interval ends "
                f"before the first number of the next.")
    if loads > 3 * elements + 200:
        return (f"It makes {loads:,} loads from global memory for {elements:,} weights. Load each weight once, and get "
                f"the sums of earlier lanes with shuffles.")
    return None


@cuda.jit
def draw_tokens_alone(weights, at, tokens):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    for col in range(lane, weights.shape[1], 32):
        before = int64(0)
        for other in range(col):
            before += weights[row, other]
        if before <= at[row] and at[row] < before + weights[row, col]:
            tokens[row] = col


EXERCISE = KernelExercise(
    name="draw_tokens",
    reference=drawn,
    inputs=_draw_inputs,
    shape=lambda R, V: (R,),
    dtype=np.int32,
    sizes=tuple({"R": R, "V": V} for R, V in ((1, 1), (2, 5), (3, 32), (5, 33), (4, 200))),
    random_size=lambda rng: {"R": int(rng.integers(1, 8)), "V": int(rng.integers(20, 260))},
    launch=lambda R, V: (R, 32),
    observe_sizes=({"R": 4, "V": 200},),
    demand=_scans,
    domain=(_draws("the random number is 0", lambda rng, R, V: _draw_inputs(rng, R, V)[0],
                   lambda rng, w: np.zeros(len(w))),
            _draws("the random number is the sum less 1", lambda rng, R, V: _draw_inputs(rng, R, V)[0],
                   lambda rng, weights: weights.astype(np.int64).sum(1) - 1),
            _draws("the random number is the first of a token's interval",
                   lambda rng, R, V: _draw_inputs(rng, R, V)[0], _first_of_a_token),
            _draws("all weights are 1", lambda rng, R, V: np.ones((R, V))),
            _draws("only the last token's weight is above 0", only(-1)),
            _draws("only the first token's weight is above 0", only(0)),
            _draws("weights are close to 2**31, and their sum is far above it",
                   lambda rng, R, V: HIGHEST - 1 - rng.integers(0, 9, (R, V)))),
    wrong={
        "an interval ends one number too late: it includes the first number of the next": Edit(
            "at[row] < before + through", "at[row] <= before + through"),
        "an interval begins one number too late": Edit("before + through - own <= at[row]",
                                                    "before + through - own < at[row]"),
        "the lane's own weight is counted as an earlier one": Edit("before + through - own <= at[row]",
                                                        "before + through <= at[row]",
                                                        "at[row] < before + through",
                                                        "at[row] < before + through + own"),
        "each chunk begins at 0 again": Edit("before += cuda.shfl_sync(0xFFFFFFFF, through, 31)", ""),
        "lane 0's sum is used as the sum of the chunk": Edit("through, 31)", "through, 0)"),
        "every lane adds its own running sum, not the chunk's sum":
            Edit("before += cuda.shfl_sync(0xFFFFFFFF, through, 31)", "before += through"),
        "lanes with no lane at that distance below them add something as well":
            Edit("if lane >= distance:", "if True:"),
        "a round is missing: half a warp": Edit("(1, 2, 4, 8, 16)", "(1, 2, 4, 8)"),
        "32 bits for the sums: they overflow": Edit(
            "before = int64(0)", "before = int32(0)",
            "int64(weights[row, col]) if col < weights.shape[1] else int64(0)",
            "weights[row, col] if col < weights.shape[1] else int32(0)",
            "before += cuda.shfl_sync(0xFFFFFFFF, through, 31)",
            "before = int32(before + cuda.shfl_sync(0xFFFFFFFF, through, 31))"),
        "the index in the chunk is stored, not the index in the row":
            Edit("tokens[row] = col", "tokens[row] = lane"),
        "every lane adds up all weights before its own": draw_tokens_alone,
    },
)

EQUIVALENT = {
    "number: 0 -> -1 (3)":
        "Behind the row's end a weight of -1 gives a lane an empty share, as 0 does, and no chunk follows.",
}
