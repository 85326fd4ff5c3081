"""Find the bug: the last copy

`a` has R rows of 64 elements. The kernel adds up each column and writes the sums in reverse order. One block of 64
threads streams the rows through two stages in shared memory: while it adds one row, the copy of the next one is in
flight. Each thread reads what another one has copied.

On a GPU it may pass any number of tests. Which row does the last round not wait for? `observe` finds it, and the
lesson's table of groups shows why.
"""

HINTS = ("How many groups has a thread committed when it reaches the wait in the first round, with R = 3? And in the "
         "last?",
         "ptx.cp_async_wait(1) does not wait for the newest group. In the last round the newest group is the row that "
         "is about to be read.",
         "Commit in every round, even when there is nothing left to copy: then the empty group is the newest.")
POINTS = 3

from numba import float32

from labkit import cuda, ptx


# %%
@cuda.jit
def mirrored_sums(a, out):
    tile = cuda.shared.array(128, float32)  # two rows
    i = cuda.threadIdx.x
    rows = a.shape[0]
    ptx.cp_async_4(tile, i, a, i, 4)
    ptx.cp_async_commit()
    total = float32(0.0)
    row = 0
    while row < rows:
        after = row + 1
        if after < rows:
            ptx.cp_async_4(tile, after % 2 * 64 + i, a, after * 64 + i, 4)
            ptx.cp_async_commit()
        ptx.cp_async_wait(1)  # the newest group may still be on its way: that is the next row
        cuda.syncthreads()
        total += tile[row % 2 * 64 + 63 - i]
        cuda.syncthreads()
        row = after
    out[i] = total


### BEGIN SOLUTION
@cuda.jit
def mirrored_sums(a, out):
    tile = cuda.shared.array(128, float32)  # two rows
    i = cuda.threadIdx.x
    rows = a.shape[0]
    ptx.cp_async_4(tile, i, a, i, 4)
    ptx.cp_async_commit()
    total = float32(0.0)
    row = 0
    while row < rows:
        after = row + 1
        if after < rows:
            ptx.cp_async_4(tile, after % 2 * 64 + i, a, after * 64 + i, 4)
        ptx.cp_async_commit()  # in every round: in the last one the group is empty, and the wait still counts right
        ptx.cp_async_wait(1)
        cuda.syncthreads()  # this row is everybody's
        total += tile[row % 2 * 64 + 63 - i]
        cuda.syncthreads()  # everybody has read it: its place may be filled again
        row = after
    out[i] = total


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, dot_products, of, uniform
from labkit.course.exercises.async_copies import ZERO, by_asynchronous_copies


@cuda.jit
def mirrored_sums_by_loads(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    total = ZERO
    for row in range(a.shape[0]):
        tile[i] = a[row, i]
        cuda.syncthreads()
        total += tile[63 - i]
        cuda.syncthreads()
    out[i] = total


EXERCISE = KernelExercise(
    name="mirrored_sums",
    reference=lambda a: a.astype(np.float64).sum(axis=0)[::-1],
    inputs=lambda rng, R: (uniform(rng, R, 64),),
    shape=lambda R: (64,),
    sizes=tuple({"R": R} for R in (1, 2, 3, 6)),
    launch=lambda R: (1, 64),
    tolerance=dot_products(lambda a: np.abs(a).sum(axis=0)[::-1], length=lambda a: a.shape[0]),
    domain=of(0, *SUMMED),
    demand=by_asynchronous_copies,
    wrong={
        "in the last round the newest group is the row to be read, and nothing waits for it":
            Edit("ptx.cp_async_commit()\n"
                 "ptx.cp_async_wait(1)",
                 "    ptx.cp_async_commit()\n"
                 "ptx.cp_async_wait(1)"),
        "nothing waits for the copies": Edit("ptx.cp_async_wait(1)", ""),
        "no barrier between the wait and the reads":
            Edit("cuda.syncthreads()\n"
                 "total += tile[row % 2 * 64 + 63 - i]",
                 "total += tile[row % 2 * 64 + 63 - i]"),
        "no barrier between the reads and the next copy into the same stage":
            Edit("cuda.syncthreads()\n"
                 "row = after",
                 "row = after"),
        "no asynchronous copies: every row is waited for": mirrored_sums_by_loads,
    },
)
