"""Tiles above the diagonal

A block has 32 threads, one for each of 32 queries of 8 elements. The keys come in tiles of 32 through shared memory.
Each thread looks for the largest score, an unscaled `q . k`, among the keys that its query sees: query t sees the keys
0 to t. The result is right. But every block goes through all tiles, even those in which none of its queries sees a key.
Skip those.

Every thread of a block must reach both barriers in every round.
"""

HINTS = ("Block 1 has the queries 32 to 63. What is the last key that any of them sees, and in which tile is it?",
         "The loop may end after the tile with the block's own tokens. Its end depends only on the block's "
         "index, so that all threads of a block agree on it.",
         "for first in range(0, min(cuda.blockIdx.x * 32 + ..., tokens), 32)")
POINTS = 2
NEEDS = ("query_scores",)

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def best_scores(queries, keys, out):
    tile = cuda.shared.array((32, 8), float32)
    t, thread = cuda.grid(1), cuda.threadIdx.x
    tokens = keys.shape[0]
    best = float32(-math.inf)
    for first in range(0, tokens, 32):
        for i in range(8):
            tile[thread, i] = keys[first + thread, i] if first + thread < tokens else float32(0.0)
        cuda.syncthreads()
        for j in range(32):
            if first + j <= t and t < tokens:
                score = float32(0.0)
                for i in range(8):
                    score += queries[t, i] * tile[j, i]
                best = max(best, score)
        cuda.syncthreads()
    if t < tokens:
        out[t] = best


### BEGIN SOLUTION
@cuda.jit
def best_scores(queries, keys, out):
    tile = cuda.shared.array((32, 8), float32)
    t, thread = cuda.grid(1), cuda.threadIdx.x
    tokens = keys.shape[0]
    best = float32(-math.inf)
    for first in range(0, min(cuda.blockIdx.x * 32 + 32, tokens), 32):  # the last query of the block sees no more
        for i in range(8):
            tile[thread, i] = keys[first + thread, i] if first + thread < tokens else float32(0.0)
        cuda.syncthreads()
        for j in range(32):
            if first + j <= t and t < tokens:
                score = float32(0.0)
                for i in range(8):
                    score += queries[t, i] * tile[j, i]
                best = max(best, score)
        cuda.syncthreads()
    if t < tokens:
        out[t] = best


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, SUMMED, Edit, KernelExercise, Reach, asks, elements_of_warps, of, uniform
from labkit.course.exercises.flash_attention import sizes_of

TILE, WIDE = 32, 8


@cuda.jit
def best_without_tiles(queries, keys, out):
    t = cuda.grid(1)
    if t < keys.shape[0]:
        best = float32(-math.inf)
        for j in range(t + 1):
            score = float32(0.0)
            for i in range(8):
                score += queries[t, i] * keys[j, i]
            best = max(best, score)
        out[t] = best


@cuda.jit
def best_barrier_for_some(queries, keys, out):
    tile = cuda.shared.array((32, 8), float32)
    t, thread = cuda.grid(1), cuda.threadIdx.x
    tokens = keys.shape[0]
    if t < tokens:
        best = float32(-math.inf)
        for first in range(0, min(cuda.blockIdx.x * 32 + 32, tokens), 32):
            for i in range(8):
                tile[thread, i] = keys[first + thread, i] if first + thread < tokens else float32(0.0)
            cuda.syncthreads()
            for j in range(32):
                if first + j <= t:
                    score = float32(0.0)
                    for i in range(8):
                        score += queries[t, i] * tile[j, i]
                    best = max(best, score)
            cuda.syncthreads()
        out[t] = best


def _best(queries, keys):
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T
    return np.where(np.tril(np.ones(scores.shape, bool)), scores, -np.inf).max(axis=1)


def _best_tolerance(queries, keys):
    return EPS32 * 12 * (np.abs(queries) @ np.abs(keys).T).max(axis=1)


OBSERVED_TOKENS = 96


@asks("The keys go through shared memory: each element is loaded by one thread of a block, and only from tiles in "
      "which some query sees a key.")
def _tiles_needed(report) -> str | None:
    """One tile for the first block, two for the second, three for the third: so many are stored, and no key is loaded
    by more than one thread of a block."""
    if not report.counts["shared_loads"]:
        return ("Nothing is read from shared memory: stage the tiles of keys there, so that 32 queries share what is "
                "loaded once.")
    stored, needed = report.counts["shared_stores"], (1 + 2 + 3) * TILE * WIDE
    keys = list(report.arrays)[1]
    loaded = sum("load" in kinds for kinds in report.touched.get((keys, "global"), {}).values())
    if loaded > needed:
        return (f"Threads load {loaded:,} elements of `{keys}` from global memory, and {needed:,} are enough: one "
                "thread of a block loads each into shared memory, and all 32 queries read it from there.")
    places = elements_of_warps(report, "store", "shared").values()
    different = len(set().union(*(elements for lanes in places for elements in lanes.values())))
    if different < TILE * WIDE:
        return (f"{different:,} elements are stored in shared memory at the same time, but a tile of keys has "
                f"{TILE * WIDE:,}: stage all of it there.")
    if stored <= needed:
        return None
    return (f"For {OBSERVED_TOKENS} tokens it stores {stored:,} elements in shared memory, and {needed:,} are enough. "
            f"Let the loop over the tiles end after the one on the diagonal.")


EXERCISE = KernelExercise(
    name="best_scores",
    reference=_best,
    inputs=lambda rng, S: (uniform(rng, S, WIDE), uniform(rng, S, WIDE)),
    shape=lambda S: (S,),
    sizes=sizes_of("S", (40,), (1,), (32,), (70,), (OBSERVED_TOKENS,), (130,)),
    launch=lambda S: (-(-S // 32), 32),
    tolerance=_best_tolerance,
    demand=_tiles_needed,
    observe_sizes=sizes_of("S", (OBSERVED_TOKENS,)),
    domain=(*of((0, 1), *SUMMED),
            Reach("all scores are far below 0",
                  lambda rng, queries, keys: (-np.abs(queries) - 100, np.abs(keys) + 100))),
    wrong={
        "tiles above the diagonal are loaded, too, and all of their scores masked":
            Edit("min(cuda.blockIdx.x * 32 + 32, tokens)", "tokens"),
        "the loop ends before the tile on the diagonal":
            Edit("min(cuda.blockIdx.x * 32 + 32, tokens)", "cuda.blockIdx.x * 32"),
        "in the tile on the diagonal nothing is masked":
            Edit("if first + j <= t and t < tokens:", "if first + j < tokens and t < tokens:"),
        "a query does not see its own key":
            Edit("if first + j <= t and t < tokens:", "if first + j < t and t < tokens:"),
        "threads without a query skip the barriers": best_barrier_for_some,
        "no tiles: every thread goes through the keys in global memory": best_without_tiles,
        "the search starts at 0, but all scores may be less": Edit("(-math.inf)", "(0.0)"),
    },
)

EQUIVALENT = {
    "number: 32 -> 16 (3)": "Tiles begin at multiples of 32: those below 32 b + 16 are those below 32 b + 32.",
}
