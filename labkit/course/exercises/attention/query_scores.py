r"""The scores of one query

One head: `queries` and `keys` have one row per token. Compute the scores of query `t` against all keys:

$$\text{out}_j = \frac{q_t \cdot k_j}{\sqrt{D}}$$

under a causal mask: query t sees the keys 0 to t. The score of any other key becomes `float32(-1e30)`, so low that its
exponential is 0. Each thread has one key.
"""

HINTS = ("Which two rows does thread j multiply? And for which j is the result masked?",
         "A loop over the columns of both rows adds up the products. Then the sum is divided by the root of the number "
         "of columns, and masked if j is larger than t.",
         "score += queries[t, i] * keys[j, i] in the loop; then out[j] = score / math.sqrt(float32(keys.shape[1])) if "
         "j <= t else ...")
POINTS = 1

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def query_scores(queries, keys, t, out):
    j = cuda.grid(1)
    if j < keys.shape[0]:
        score = float32(0.0)
        ### BEGIN SOLUTION
        for i in range(keys.shape[1]):
            score += queries[t, i] * keys[j, i]
        out[j] = score / math.sqrt(float32(keys.shape[1])) if j <= t else float32(-1e30)
        ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, SUMMED, Edit, KernelExercise, Reach, of, uniform
from labkit.course.exercises.attention import sizes_of

HIDDEN = np.float32(-1e30)  # a score that does not count


def _query_scores(queries, keys, t):
    queries, keys = queries.astype(np.float64), keys.astype(np.float64)
    scores = keys @ queries[t] / math.sqrt(keys.shape[1])
    return np.where(np.arange(len(keys)) <= t, scores, np.float64(HIDDEN))


def _scores_tolerance(queries, keys, t):
    return EPS32 * (4 + np.sqrt(keys.shape[1])) * (np.abs(keys) @ np.abs(queries[t])) / math.sqrt(keys.shape[1])


EXERCISE = KernelExercise(
    name="query_scores",
    reference=_query_scores,
    inputs=lambda rng, S, D: (uniform(rng, S, D), uniform(rng, S, D), (S - 1) // 2),
    shape=lambda S, D: (S,),
    sizes=sizes_of("SD", (5, 3), (9, 16), (64, 5), (70, 64), (1, 8)),
    random_size=lambda rng: {"S": int(rng.integers(10, 90)), "D": int(rng.integers(2, 40))},
    launch=lambda S, D: (-(-S // 64), 64),
    tolerance=_scores_tolerance,
    domain=(*of((0, 1), *SUMMED), Reach("the query is the first", lambda rng, queries, keys, t: (queries, keys, 0)),
            Reach("the query is the last", lambda rng, queries, keys, t: (queries, keys, len(keys) - 1))),
    wrong={
        "the scores are not divided by the root of the size":
            Edit("score / math.sqrt(float32(keys.shape[1]))", "score"),
        "divided by the size, not by its root": Edit("math.sqrt(float32(keys.shape[1]))", "float32(keys.shape[1])"),
        "divided by 8, the root of 64: here the keys have other sizes":
            Edit("math.sqrt(float32(keys.shape[1]))", "float32(8.0)"),
        "no mask: a query must not see the keys of later tokens": Edit(" if j <= t else float32(-1e30)", ""),
        "a query does not see its own key": Edit("j <= t else", "j < t else"),
        "a masked score is 0, which masks nothing: its exponential is 1": Edit("float32(-1e30)", "float32(0.0)"),
        "query `j` against key `t`: the other way round":
            Edit("score += queries[t, i] * keys[j, i]", "score += queries[j, i] * keys[t, i]"),
    },
)

EQUIVALENT = {
    "type: float32(keys.shape[1]) -> int32(keys.shape[1])":
        "An int32 that is divided by becomes a float64 in Numba: the quotient is right, and slower to compute.",
}
