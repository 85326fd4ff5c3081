"""The mean of a sentence

`x` (T, C) float32 holds one row per token of a batch. Sentence b has the rows `begins[b]` to
`begins[b] + lengths[b] - 1`; both arrays are int32. Row b of `out` (B, C) is the mean of these rows, and zeros for a
sentence without tokens. Rows that belong to no sentence may hold anything, even NaN. Sentences need not follow one
another in order. The grid is `(blocks, B)`, in blocks of 64 threads: `cuda.blockIdx.y` is the sentence, and each thread
computes one column; `b` and `col` are given.
"""

HINTS = ("Which rows belong to the thread's sentence, and what is their sum divided by? What is the sum of no rows?",
         "Begin with float32(0.0), add x[row, col] for each row from begins[b] up to begins[b] + lengths[b], and "
         "divide by the length, or by 1 where it is 0. The last block of columns needs a guard.",
         "if col < x.shape[1]: total = float32(0.0); for row in range(begins[b], begins[b] + lengths[b]): total += "
         "x[row, col]; out[b, col] = total / float32(max(lengths[b], 1)).")
POINTS = 2

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def mean_pool(x, begins, lengths, out):
    b = cuda.blockIdx.y
    col = cuda.blockIdx.x * 64 + cuda.threadIdx.x
    ### BEGIN SOLUTION
    if col < x.shape[1]:
        total = float32(0.0)
        for row in range(begins[b], begins[b] + lengths[b]):
            total += x[row, col]
        out[b, col] = total / float32(max(lengths[b], 1))
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, Reach, of, uniform
from labkit.course.exercises.sentences_as_vectors import random_lengths
from labkit.kernels.ops.pooling import mean_tolerance
from labkit.kernels.pooling import mean_pool_reference

GAP = 3  # rows of no sentence after each, at most


def _laid_out(rng, rows, lengths, C, gaps):
    """Sentences of these lengths in any order, with `gaps` rows after each. In rows of no sentence there is NaN."""
    begins, end = np.zeros(len(lengths), np.int32), 0
    x = np.full((rows, C), np.nan, np.float32)
    for sentence, gap in zip(rng.permutation(len(lengths)), gaps, strict=True):
        begins[sentence], length = end, int(lengths[sentence])
        x[end : end + length] = uniform(rng, length, C)
        end += length + int(gap)
    return x, begins, lengths


def _pool_inputs(rng, B, S, C):
    return _laid_out(rng, B * (S + GAP), random_lengths(rng, B, S), C, rng.integers(0, GAP + 1, B))


def _pooled_with(words, lengths, gap=None):
    """Sentences of the lengths that `lengths` makes of theirs."""
    def turn(rng, x, begins, old):
        new = lengths(old).astype(np.int32)
        gaps = rng.integers(0, GAP + 1, len(new)) if gap is None else np.full(len(new), gap)
        return _laid_out(rng, len(x), new, x.shape[1], gaps)

    return Reach(words, turn, {"B": 4, "S": 9, "C": 33})


@cuda.jit
def mean_pool_by_thread_0(x, begins, lengths, out):
    b = cuda.blockIdx.y
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 0:
        for col in range(x.shape[1]):
            total = float32(0.0)
            for row in range(begins[b], begins[b] + lengths[b]):
                total += x[row, col]
            out[b, col] = total / float32(max(lengths[b], 1))


EXERCISE = KernelExercise(
    name="mean_pool",
    reference=mean_pool_reference,
    inputs=_pool_inputs,
    shape=lambda B, S, C: (B, C),
    sizes=tuple({"B": B, "S": S, "C": C} for B, S, C in ((1, 1, 3), (2, 3, 5), (3, 4, 64), (5, 9, 65), (4, 40, 130))),
    launch=lambda B, S, C: ((-(-C // 64), B), 64),
    tolerance=mean_tolerance,
    benign_races=False,  # each mean is computed by one thread
    domain=(_pooled_with("all sentences are empty", lambda old: 0 * old),
            _pooled_with("every sentence has a single token", lambda old: 0 * old + 1),
            _pooled_with("the first sentence is empty", lambda old: np.where(np.arange(len(old)) == 0, 0, 5)),
            _pooled_with("the last sentence is empty", lambda old: np.where(np.arange(len(old)) == len(old) - 1, 0, 5)),
            _pooled_with("sentences follow one another with no row between them", lambda old: old, gap=0),
            _pooled_with("every sentence is followed by rows of padding", lambda old: old, gap=GAP),
            _pooled_with("the last row of x is a token", lambda old: 0 * old + 9 + GAP, gap=0),
            *of(0, *SUMMED)),
    wrong={
        "an empty sentence is divided by 0, or left unwritten; its mean should be 0":
            Edit("float32(max(lengths[b], 1))", "float32(lengths[b])"),
        "the sum is not divided": Edit("total / float32(max(lengths[b], 1))", "total"),
        "the sum is divided by the same value for all sentences, the rows of the batch over their count":
            Edit("float32(max(lengths[b], 1))", "float32(max(x.shape[0] // lengths.size, 1))"),
        "every sentence is read from the first row on": Edit("range(begins[b], begins[b] + lengths[b])",
                                                            "range(lengths[b])"),
        "the length is used as the end": Edit("begins[b] + lengths[b]", "lengths[b]"),
        "the last token is left out": Edit("begins[b] + lengths[b]", "begins[b] + lengths[b] - 1"),
        "no guard: the last block of columns is not full": Edit("if col < x.shape[1]:", "if True:"),
        "columns are counted within a block: those after 64 are never written":
            Edit("cuda.blockIdx.x * 64 + cuda.threadIdx.x", "cuda.threadIdx.x"),
        "the first thread of each block does the work of all 64": mean_pool_by_thread_0,
    },
)

EQUIVALENT = {
    "type: float32(max(lengths[b], 1)) -> int32(max(lengths[b], 1))":
        "An int32 that is divided by becomes a float64 in Numba: the quotient is right, and slower to compute.",
}

AFTER = """
The next cell puts your kernel into a small encoder with random weights and compares what each launch writes with NumPy
in float64. One of the sentences is empty. Your answer of lesson 30 can run with it: add `embed_norm=`.

# %%
encoder = yours.small_encoder()
sentences = [[3, 1, 4, 1, 5], [], [9, 2], [6]]
yours.one_by_one(yours.answers(mean_pool=mean_pool), encoder, sentences)
"""
