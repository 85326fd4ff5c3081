"""A warp per key

In the first pass of the lesson's kernel each lane had a different key, and a request touched 32 lines. Here a warp
shares one key: `query` has 64 elements, `keys` one row of 64 per key, and `out` gets the scores, `query . key / 8`. The
launch has 32 threads per key, in blocks of 128. The result is right, but one lane does all the work. Let all lanes
work, with neighbours reading neighbouring elements, and add up their products with shuffles.
"""

HINTS = ("Which two elements of the key should lane 5 load, so that lanes 4, 5 and 6 load neighbours?",
         "A lane has the columns lane and lane + 32 of the query and of the key. The lanes' sums of two products are "
         "added up by five shuffles with xor.",
         "score = query[lane] * keys[key, lane] + query[lane + 32] * ...; then score += cuda.shfl_xor_sync(0xFFFFFFFF, "
         "score, distance) for 16, 8, 4, 2, 1; lane 0 stores score * float32(0.125).")
POINTS = 2
NEEDS = ("query_scores",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def warp_scores(query, keys, out):
    key, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if key < keys.shape[0] and lane == 0:
        score = float32(0.0)
        for i in range(64):
            score += query[i] * keys[key, i]
        out[key] = score * float32(0.125)


### BEGIN SOLUTION
@cuda.jit
def warp_scores(query, keys, out):
    key, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if key < keys.shape[0]:  # the same for all lanes of a warp
        score = query[lane] * keys[key, lane] + query[lane + 32] * keys[key, lane + 32]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        if lane == 0:
            out[key] = score * float32(0.125)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, SUMMED, Edit, KernelExercise, asks, of, shuffles, uniform
from labkit.course.exercises.attention import WIDE, sizes_of

OBSERVED_KEYS = 8


@cuda.jit
def scores_by_one_lane(query, keys, out):
    key, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if key < keys.shape[0] and lane == 0:
        score = float32(0.0)
        for i in range(64):
            score += query[i] * keys[key, i]
        out[key] = score * float32(0.125)


def _warp_scores_tolerance(query, keys):
    return EPS32 * 12 * (np.abs(keys) @ np.abs(query)) / 8


@asks("The lanes of a warp read neighbouring elements: at most 17 sectors of 32 bytes per key.", shuffles)
def _neighbours_read_neighbours(report) -> str | None:
    least = OBSERVED_KEYS * (2 * WIDE // 8 + 1)
    if report.counts["sectors"] > least:
        return (f"For {OBSERVED_KEYS} keys it requests {report.counts['sectors']:,} sectors of 32 bytes, and {least:,} "
                f"are enough: per key 8 of the query, 8 of the key and one of `out`. Let neighbouring lanes read "
                f"neighbouring elements.")
    return None


EXERCISE = KernelExercise(
    name="warp_scores",
    reference=lambda query, keys: keys.astype(np.float64) @ query.astype(np.float64) / 8,
    inputs=lambda rng, N: (uniform(rng, WIDE), uniform(rng, N, WIDE)),
    shape=lambda N: (N,),
    sizes=sizes_of("N", (1,), (4,), (OBSERVED_KEYS,), (13,), (130,)),
    launch=lambda N: (-(-N // 4), 128),
    tolerance=_warp_scores_tolerance,
    demand=_neighbours_read_neighbours,
    observe_sizes=sizes_of("N", (OBSERVED_KEYS,)),
    domain=of((0, 1), *SUMMED),
    wrong={
        "one lane computes the whole score, element by element": scores_by_one_lane,
        "a lane has columns 2 * lane and 2 * lane + 1: neighbours are two elements apart":
            Edit("query[lane] * keys[key, lane] + query[lane + 32] * keys[key, lane + 32]",
                 "query[2 * lane] * keys[key, 2 * lane] + query[2 * lane + 1] * keys[key, 2 * lane + 1]"),
        "the right half of the columns is left out": Edit(" + query[lane + 32] * keys[key, lane + 32]", ""),
        "the lanes' products are not added up: lane 0 stores its own":
            Edit("for distance in (16, 8, 4, 2, 1):\n"
                 "    score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)", ""),
        "four shuffles add up 16 lanes, but a warp has 32": Edit("(16, 8, 4, 2, 1)", "(8, 4, 2, 1)"),
        "the score is not divided by 8, the root of 64": Edit("score * float32(0.125)", "score"),
    },
)

EQUIVALENT = {
    "call: cuda.shfl_xor_sync(4294967295, score, distance) -> cuda.shfl_down_sync(4294967295, score, distance)":
        "Lane 0, which stores the score, has the sum of all 32 lanes either way.",
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
}
