r"""A sum for each thread

A grid-stride loop does not have to write an element in every step. Here each thread of the grid adds up, in a variable,
the elements that it visits, and writes the total at the end:

$$\text{out}_t = x_t + x_{t+T} + x_{t+2T} + \dots$$

$T$ is the number of threads in the whole grid, `cuda.gridsize(1)`, and `out` has one element per thread. With four
threads and `x` = (1, 2, 3, 4, 5, 6), `out` is (6, 8, 3, 4). Threads without any element of `x` write 0. This is the
first half of a sum over millions of elements; lesson 15 writes the second.

`np.float32(0)` starts the total as float32. A plain `0.0` would make it float64, which is slow on many GPUs.
"""

HINTS = ("Which variable runs through x, and which one has to keep its value so that the sum is stored at the right "
         "index?",
         "A grid-stride loop over x that starts at me and adds to total; one store after the loop, outside it, at "
         "out[me]. Every thread stores.",
         "i = me; while i < x.size: total += x[i], then i += cuda.gridsize(1); after the loop out[me] = total.")
POINTS = 3
NEEDS = ("scale_grid_stride",)

import numpy as np

from labkit import cuda


# %%
@cuda.jit
def partial_sums(x, out):
    me = cuda.grid(1)
    total = np.float32(0)
    ### BEGIN SOLUTION
    i = me
    while i < x.size:
        total += x[i]
        i += cuda.gridsize(1)
    out[me] = total
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import SUMMED, Edit, KernelExercise, asks, dot_products, of, uniform
from labkit.course.exercises.vector_add import blocks_of


def _rows(x, threads):
    """x as one row for each round of the grid, zeros behind its end. (rounds, threads)"""
    rounds = blocks_of(len(x), threads)
    rows = np.zeros(rounds * threads)
    rows[: len(x)] = x
    return rows.reshape(rounds, threads)


@asks("Each thread stores one value.")
def _one_store_each(report):
    threads = int(np.prod(report.grid) * np.prod(report.block))
    stores = report.counts["global_stores"]
    if stores <= threads:
        return None
    return (f"{threads:,} threads make {stores:,} stores to global memory. Each should make one, at the end: add up in "
            "a local variable.")


EXERCISE = KernelExercise(
    name="partial_sums",
    reference=lambda x, threads: _rows(x, threads).sum(axis=0),
    inputs=lambda rng, n, blocks, threads: (uniform(rng, n), blocks * threads),
    shape=lambda n, blocks, threads: (blocks * threads,),
    arguments=lambda inputs, out, size: (inputs[0], out),
    sizes=(
        {"n": 1, "blocks": 1, "threads": 8},
        {"n": 64, "blocks": 2, "threads": 32},
        {"n": 65, "blocks": 2, "threads": 32},
        {"n": 1000, "blocks": 3, "threads": 32},
        {"n": 20_011, "blocks": 4, "threads": 96},
    ),
    launch=lambda n, blocks, threads: (blocks, threads),
    tolerance=dot_products(lambda x, threads: _rows(np.abs(x), threads).sum(axis=0),
                           lambda x, threads: blocks_of(len(x), threads)),
    domain=of(0, *SUMMED),
    demand=_one_store_each,
    in_float32=True,
    wrong={
        "the stride is a block, not the grid, so blocks add each other's elements":
            Edit("i += cuda.gridsize(1)", "i += cuda.blockDim.x"),
        "each thread begins one round late and misses its first element": Edit("i = me", "i = me + cuda.gridsize(1)"),
        "the total is replaced, not added to": Edit("total += x[i]", "total = x[i]"),
        "the sum so far is kept in out, and is stored and loaded again in every step":
            Edit("out[me] = total", "",
                 "i = me\n"
                 "while i < x.size:\n"
                 "    total += x[i]",
                 "i = me\n"
                 "out[me] = total\n"
                 "while i < x.size:\n"
                 "    out[me] += x[i]"),
        "a thread without an element writes nothing, but should write 0":
            Edit("out[me] = total",
                 "if me < x.size:\n"
                 "    out[me] = total"),
    },
)

EQUIVALENT = {
    "type: i += cuda.gridsize(1) -> i += int32(cuda.gridsize(1))": "It is an integer already.",
}
