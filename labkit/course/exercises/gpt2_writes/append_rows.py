"""Into the cache

A row of `qkv` holds the queries, the keys and the values of a token, `width` elements each. A row of `cache` holds keys
and values, 2 × `width` elements. `start[0]` says how many tokens are in the cache already; it is in device memory, so
that a graph can be replayed for the next token. Block t has 32 threads and copies the keys and values of row t of `qkv`
to row `start[0] + t` of `cache`. A row for which the cache has no room left is not copied, nor are the queries.
"""

HINTS = ("Three tokens are in the cache, and two more come. Which rows do they go to? Which columns of qkv are keys?",
         "The row is start[0] + t. The columns width to 3 * width - 1 of qkv go to the columns 0 to 2 * width - 1 of "
         "the cache, 32 at a time.",
         "row = start[0] + t; if row < cache.shape[0]: for col in range(cuda.threadIdx.x, 2 * width, 32): cache[row, "
         "col] = qkv[t, width + col].")
POINTS = 2

from labkit import cuda


# %%
@cuda.jit
def append_rows(qkv, start, cache):
    t = cuda.blockIdx.x
    width = cache.shape[1] // 2
    ### BEGIN SOLUTION
    row = start[0] + t
    if row < cache.shape[0]:
        for col in range(cuda.threadIdx.x, 2 * width, 32):
            cache[row, col] = qkv[t, width + col]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import MOVED, Edit, KernelExercise, Reach, of, uniform


def _appended(qkv, start, cache):
    result, first = cache.copy(), int(start[0])
    rows = result[first : first + len(qkv)]
    rows[:] = qkv[: len(rows), qkv.shape[1] // 3 :]
    return result


def _cache_inputs(rng, S, C, N, before):
    return uniform(rng, S, 3 * C), np.array([before], np.int32), uniform(rng, N, 2 * C)


def _starting_at(place):
    return lambda rng, qkv, start, cache: (qkv, np.array([place(cache)], np.int32), cache)


EXERCISE = KernelExercise(
    name="append_rows",
    reference=_appended,
    inputs=_cache_inputs,
    shape=lambda S, C, N, before: (N, 2 * C),
    start=lambda qkv, start, cache: cache,
    arguments=lambda inputs, out, size: (inputs[0], inputs[1], out),
    sizes=tuple({"S": S, "C": C, "N": N, "before": before} for S, C, N, before in
                ((2, 20, 6, 3), (1, 17, 8, 7), (5, 24, 9, 6), (3, 48, 11, 0), (4, 33, 16, 9))),
    random_size=lambda rng: {"S": int(rng.integers(1, 6)), "C": int(rng.integers(17, 70)), "N": 12,
                             "before": int(rng.integers(1, 12))},
    launch=lambda S, C, N, before: (S, 32),
    domain=(*of((0, 2), MOVED), Reach("the cache is empty", _starting_at(lambda cache: 0)),
            Reach("the cache is full", _starting_at(len))),
    wrong={
        "the rows go to the beginning of the cache: `start` is not used": Edit("row = start[0] + t", "row = t"),
        "queries and keys are copied, not keys and values: those begin one width later":
            Edit("qkv[t, width + col]", "qkv[t, col]"),
        "the keys are copied, the values are not": Edit("2 * width, 32", "width, 32"),
        "one column per thread: rows longer than 32 are left unfinished":
            Edit("2 * width, 32)", "min(2 * width, 32), 32)"),
        "no guard: a full cache has no row for the last tokens": Edit("if row < cache.shape[0]:", "if True:"),
        "the first lane of each block copies the whole row":
            Edit("range(cuda.threadIdx.x, 2 * width, 32)", "range(2 * width if cuda.threadIdx.x == 0 else 0)"),
    },
)

EQUIVALENT = {
    "index: start[0] -> start[-0]": "-0 is 0.",
}

AFTER = """
The next cell puts your kernel into the lesson's GPT-2 and compares every activation with NumPy in float64.

# %%
from labkit.models.load import load

loaded = load("tiny")
ids = loaded.tokenizer.encode("kernel: n. The essential part")
yours.one_by_one(yours.answers(append_rows=append_rows), loaded.model, ids)
"""
