"""The mean over workers

W workers have computed gradients of n weights, each on its own windows: `gradients` (W, n) float32. Worker w trained on
`counts[w]` tokens, and `counts` (W,) is int32: a worker whose texts ended early has fewer than the others, and some may
have none, but not all. A worker's gradients are the mean over its tokens. `out` (n,) float32 should be the mean over
all workers' tokens.

Add up the workers in order, so that every run gives the same bits. The launch may have fewer threads than weights: use
a grid-stride loop. Blocks have 64 threads.
"""

HINTS = ("If one worker has 30 tokens and another has 10, what weight should each mean have?",
         "A worker's mean times its count is the sum over its tokens. Divide the total of these sums by "
         "that of the counts.",
         "For each weight i: total += float32(counts[w]) * gradients[w, i] over all w, and then out[i] = total / "
         "float32(tokens), where tokens is the sum of the counts.")
POINTS = 2
NEEDS = ("predict_training",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def mean_of_workers(gradients, counts, out):
    ### BEGIN SOLUTION
    tokens = 0
    for w in range(counts.size):
        tokens += counts[w]
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        total = float32(0.0)
        for w in range(counts.size):
            total += float32(counts[w]) * gradients[w, i]
        out[i] = total / float32(tokens)
    ### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, SUMMED, Edit, KernelExercise, Reach, of, uniform, whole_grid


def _mean(gradients, counts):
    return counts.astype(np.float64) @ gradients / counts.sum()


def _inputs(rng, W, n):
    counts = rng.integers(0, 2000, W).astype(np.int32)
    counts[rng.integers(W)] = 1024
    return uniform(rng, W, n), counts


def _one_has_all(rng, gradients, counts):
    return gradients, np.where(np.arange(counts.size) == counts.size - 1, 777, 0).astype(np.int32)


EXERCISE = KernelExercise(
    name="mean_of_workers",
    reference=_mean,
    inputs=_inputs,
    shape=lambda W, n: (n,),
    sizes=tuple({"W": W, "n": n} for W, n in ((1, 1), (2, 5), (3, 64), (4, 300), (8, 513))),
    random_size=lambda rng: {"W": int(rng.integers(2, 9)), "n": int(rng.integers(30, 600))},
    launch=lambda W, n: (min(3, -(-n // 64)), 64),
    tolerance=lambda gradients, counts: (4 + counts.size) * EPS32 * (counts @ np.abs(gradients) / counts.sum()) + 1e-30,
    observe_sizes=({"W": 4, "n": 300},),
    demand=whole_grid,
    domain=(*of(0, *SUMMED), Reach("the last worker has all the tokens", _one_has_all),
            Reach("all workers have equally many tokens", lambda rng, gradients, counts: (
                gradients, np.full_like(counts, 512))),
            Reach("the workers have millions of tokens", lambda rng, gradients, counts: (gradients, 100_000 * counts))),
    wrong={
        "every worker has the same weight": Edit("float32(counts[w]) * gradients[w, i]", "gradients[w, i]",
                                             "float32(tokens)", "float32(counts.size)"),
        "the sums are not divided": Edit("total / float32(tokens)", "total"),
        "the weighted sum is divided by the number of workers": Edit("float32(tokens)", "float32(counts.size)"),
        "the means are added up without being weighted by their tokens": Edit("float32(counts[w]) * gradients[w, i]",
                                                                         "gradients[w, i]"),
        "every worker is weighted by the count of the first": Edit("float32(counts[w])", "float32(counts[0])"),
        "only the first worker is added up": Edit("gradients[w, i]", "gradients[w, i] * float32(w == 0)"),
        "the sum is carried on from weight to weight": Edit("tokens = 0", "tokens, total = 0, float32(0.0)",
                                                            "total = float32(0.0)", ""),
        "each thread computes only one weight": Edit("out.size, cuda.gridsize(1)",
                                                 "min(out.size, cuda.gridsize(1)), cuda.gridsize(1)"),
    },
)

EQUIVALENT = {
    "type: tokens += counts[w] -> tokens += int32(counts[w])":
        "The counts are int32 already.",
    "type: float32(counts[w]) -> int32(counts[w])":
        "The product with a float32 is then computed in float64: as exact, or more.",
}
