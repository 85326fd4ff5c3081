"""Find the bug: the edge of a tile

`a @ a.T`, the Gram matrix, holds the dot product of every row of `a` with every row. Both tiles come from `a`: `mine`
from the rows that belong to the block's rows of `out`, `theirs` from those that belong to its columns.

The kernel is right for 64 × 64, for 16 × 160 and for every other size that I tried at first.
"""

HINTS = ("For K = 19 the second step has three columns of a left. The inner loop runs over all 16 of each tile: what "
         "is in the other 13?",
         "A thread whose load falls beyond the edge leaves its element of the tile as it was: from the step before, "
         "or never written. What value does no harm in a dot product?",
         "mine[y, x] = a[row, start + x] if row < rows and start + x < depth else float32(0.0), and the same for "
         "theirs.")
POINTS = 2
NEEDS = ("matmul_bt",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def gram(a, out):
    mine = cuda.shared.array((16, 16), float32)
    theirs = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    other = cuda.blockIdx.x * 16 + y  # the row of a that this thread loads into theirs
    rows, depth = a.shape
    total = float32(0.0)
    for start in range(0, depth, 16):
        if row < rows and start + x < depth:
            mine[y, x] = a[row, start + x]
        if other < rows and start + x < depth:
            theirs[y, x] = a[other, start + x]
        cuda.syncthreads()
        for k in range(16):
            total += mine[y, k] * theirs[x, k]
        cuda.syncthreads()
    if row < rows and col < rows:
        out[row, col] = total


### BEGIN SOLUTION
@cuda.jit
def gram(a, out):
    mine = cuda.shared.array((16, 16), float32)
    theirs = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    other = cuda.blockIdx.x * 16 + y  # the row of a that this thread loads into theirs
    rows, depth = a.shape
    total = float32(0.0)
    for start in range(0, depth, 16):
        # In both tiles: NaN times zero is NaN, and what lay there before may be one.
        mine[y, x] = a[row, start + x] if row < rows and start + x < depth else float32(0.0)
        theirs[y, x] = a[other, start + x] if other < rows and start + x < depth else float32(0.0)
        cuda.syncthreads()
        for k in range(16):
            total += mine[y, k] * theirs[x, k]
        cuda.syncthreads()
    if row < rows and col < rows:
        out[row, col] = total


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, dot_products, of, uniform
from labkit.course.exercises.matmul import over, two_tiles_a_step, wide


def _gram_reference(a):
    (a,) = wide(a)
    return a @ a.T


@cuda.jit
def gram_without_tiles(a, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1]):
            total += a[row, k] * a[col, k]
        out[row, col] = total


EXERCISE = KernelExercise(
    name="gram",
    reference=_gram_reference,
    inputs=lambda rng, M, K: (uniform(rng, M, K),),
    shape=lambda M, K: (M, M),
    sizes=tuple({"M": M, "K": K} for M, K in ((1, 1), (16, 16), (5, 3), (16, 35), (33, 16), (37, 19), (23, 50))),
    launch=lambda M, K: over(M, M),
    observe_sizes=({"M": 5, "K": 3}, {"M": 16, "K": 35}),
    tolerance=dot_products(lambda a: np.abs(a) @ np.abs(a).T, length=lambda a: a.shape[1]),
    domain=of(0, *SUMMED),
    demand=two_tiles_a_step(depth=1),
    in_float32=True,
    wrong={
        "where a tile reaches beyond `a`, it keeps its old values instead of zeros":
            Edit("mine[y, x] = a[row, start + x] if row < rows and start + x < depth else float32(0.0)\n"
                 "theirs[y, x] = a[other, start + x] if other < rows and start + x < depth else float32(0.0)",
                 "if row < rows and start + x < depth:\n"
                 "    mine[y, x] = a[row, start + x]\n"
                 "if other < rows and start + x < depth:\n"
                 "    theirs[y, x] = a[other, start + x]"),
        "one tile has zeros beyond the edge, but the other keeps its old values":
            Edit("mine[y, x] = a[row, start + x] if row < rows and start + x < depth else float32(0.0)",
                 "if row < rows and start + x < depth:\n"
                 "    mine[y, x] = a[row, start + x]"),
        "the last tile is left out where K is not a multiple of 16":
            Edit("for start in range(0, depth, 16):", "for start in range(0, depth // 16 * 16, 16):",
                 "row < rows and start + x < depth else", "row < rows else",
                 "other < rows and start + x < depth else", "other < rows else"),
        "threads without an element return before the barriers":
            Edit("rows, depth = a.shape",
                 "rows, depth = a.shape\n"
                 "if row >= rows or col >= rows:\n"
                 "    return"),
        "no tiles: every thread loads everything from global memory": gram_without_tiles,
    },
)
