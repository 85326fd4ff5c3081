"""A ring of three

`a` has R rows of 64 elements, and `out` has 64: `out[i]` is the sum of column 63 - i. With R = 2 and rows of 4 instead
of 64, `[[1, 2, 3, 4], [10, 20, 30, 40]]` gives `[44, 33, 22, 11]`.

One block of 64 threads streams the rows through a ring of three stages in shared memory. While a row is added, the
copies of the next two are in flight. Each thread reads what another one has copied, and one barrier per row is enough.
Copy with `ptx.cp_async_4(tile, offset, a, r * 64 + i, 4)`. R may be 1.
"""

HINTS = ("Which rows are copied before the loop? When a thread has passed the barrier of row r, which row has every "
         "thread finished reading, and which row may go there?",
         "Before the loop: rows 0 and 1, one group each, empty where there is no such row. In round r: wait until at "
         "most one group is left, barrier, start the copy of row r + 2 into stage (r + 2) % 3, close the group, add "
         "row r.",
         "ptx.cp_async_wait(1); cuda.syncthreads(); if r + 2 < rows: ptx.cp_async_4(tile, (r + 2) % 3 * 64 + i, a, "
         "(r + 2) * 64 + i, 4); ptx.cp_async_commit(); total += tile[r % 3 * 64 + 63 - i].")
POINTS = 3
NEEDS = ("mirrored_sums",)

from numba import float32

from labkit import cuda, ptx

# %%
ring_of_three = None  # write the kernel: ring_of_three(a, out)
### BEGIN SOLUTION
@cuda.jit
def ring_of_three(a, out):
    tile = cuda.shared.array(192, float32)  # three rows
    i = cuda.threadIdx.x
    rows = a.shape[0]
    for row in range(2):
        if row < rows:
            ptx.cp_async_4(tile, row * 64 + i, a, row * 64 + i, 4)
        ptx.cp_async_commit()
    total = float32(0.0)
    for row in range(rows):
        ptx.cp_async_wait(1)
        cuda.syncthreads()  # this row is everybody's, and everybody has read the last one
        after = row + 2
        if after < rows:
            ptx.cp_async_4(tile, after % 3 * 64 + i, a, after * 64 + i, 4)
        ptx.cp_async_commit()
        total += tile[row % 3 * 64 + 63 - i]
    out[i] = total
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, asks, dot_products, of, uniform
from labkit.course.exercises.async_copies import ZERO, by_asynchronous_copies


@asks("The rows of `a` are loaded by asynchronous copies, through three stages, with one barrier per row.")
def _one_barrier_a_row(report) -> str | None:
    found = by_asynchronous_copies(report)
    if found:
        return found
    rows = next(iter(report.arrays.values()))[1][0]
    if rows > 1 and report.counts["barriers"] > rows + 1:
        return (f"For {rows} rows the block passes {report.counts['barriers']} barriers. With three stages one per "
                "row is enough: after it, every thread has read the previous row, whose stage is filled next.")
    return None


@cuda.jit
def ring_of_two(a, out):
    tile = cuda.shared.array(128, float32)
    i = cuda.threadIdx.x
    rows = a.shape[0]
    ptx.cp_async_4(tile, i, a, i, 4)
    ptx.cp_async_commit()
    total = ZERO
    for row in range(rows):
        after = row + 1
        if after < rows:
            ptx.cp_async_4(tile, after % 2 * 64 + i, a, after * 64 + i, 4)
        ptx.cp_async_commit()
        ptx.cp_async_wait(1)
        cuda.syncthreads()
        total += tile[row % 2 * 64 + 63 - i]
        cuda.syncthreads()
    out[i] = total


@cuda.jit
def ring_without_copies(a, out):
    tile = cuda.shared.array(192, float32)
    i = cuda.threadIdx.x
    total = ZERO
    for row in range(a.shape[0]):
        tile[row % 3 * 64 + i] = a[row, i]
        cuda.syncthreads()
        total += tile[row % 3 * 64 + 63 - i]
    out[i] = total


EXERCISE = KernelExercise(
    name="ring_of_three",
    reference=lambda a: a.astype(np.float64).sum(axis=0)[::-1],
    inputs=lambda rng, R: (uniform(rng, R, 64),),
    shape=lambda R: (64,),
    sizes=tuple({"R": R} for R in (1, 2, 3, 4, 7)),
    launch=lambda R: (1, 64),
    tolerance=dot_products(lambda a: np.abs(a).sum(axis=0)[::-1], length=lambda a: a.shape[0]),
    domain=of(0, *SUMMED),
    demand=_one_barrier_a_row,
    wrong={
        "the wait leaves two groups in flight, and this row may be one of them":
            Edit("ptx.cp_async_wait(1)", "ptx.cp_async_wait(2)"),
        "no group is closed when nothing is left to copy, so the last waits do not wait for their row":
            Edit("if after < rows:\n"
                 "    ptx.cp_async_4(tile, after % 3 * 64 + i, a, after * 64 + i, 4)\n"
                 "ptx.cp_async_commit()",
                 "if after < rows:\n"
                 "    ptx.cp_async_4(tile, after % 3 * 64 + i, a, after * 64 + i, 4)\n"
                 "    ptx.cp_async_commit()"),
        "the copy starts before the barrier: others may still read the row in that stage":
            Edit("cuda.syncthreads()\n"
                 "after = row + 2\n"
                 "if after < rows:\n"
                 "    ptx.cp_async_4(tile, after % 3 * 64 + i, a, after * 64 + i, 4)",
                 "after = row + 2\n"
                 "if after < rows:\n"
                 "    ptx.cp_async_4(tile, after % 3 * 64 + i, a, after * 64 + i, 4)\n"
                 "cuda.syncthreads()"),
        "two stages, and two barriers per row": ring_of_two,
        "no asynchronous copies: every row is waited for": ring_without_copies,
    },
)

EQUIVALENT = {
    "barrier moved: for row in range(rows): ... -> cuda.syncthreads() behind after = row + 2":
        "The line computes a thread's own value; nothing shared is read or written between the two positions.",
}
