"""A transpose through shared memory

A transpose reads rows and writes columns. However you arrange the threads, either the loads or the stores of a warp are
far apart. Shared memory is the way out: a block loads a tile of 16 × 16 along the rows of `a`, and stores it along the
rows of `out`. The transpose happens inside the tile, where it costs little.

`a` has the shape (R, C) and `out` the shape (C, R). The grid covers `a`, with its x along the columns; `left` and `top`
are where this block's tile begins in `a`. Load, wait, store, so that neighbouring threads store neighbours. Note that a
thread stores a different element from the one it loaded, and that the store needs a different guard.
"""

HINTS = ("This block holds rows top to top + 15 and columns left to left + 15 of a. Which rows and which columns of "
         "out are that?",
         "Three steps. Load: tile[y, x] from a at (top + y, left + x), guarded by the shape of a. A barrier that every "
         "thread reaches. Store: out at (left + y, top + x), guarded by the shape of out. So the block's tile moves to "
         "its mirrored position, and is transposed on the way.",
         "After cuda.syncthreads(): if left + y < out.shape[0] and top + x < out.shape[1]: out[left + y, top + x] = "
         "tile[x, ...]")
POINTS = 3
NEEDS = ("matmul_bt",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def transpose_tiled(a, out):
    tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * 16, cuda.blockIdx.y * 16
    ### BEGIN SOLUTION
    if top + y < a.shape[0] and left + x < a.shape[1]:
        tile[y, x] = a[top + y, left + x]
    cuda.syncthreads()  # the tile is complete
    if left + y < out.shape[0] and top + x < out.shape[1]:
        out[left + y, top + x] = tile[x, y]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import MOVED, Edit, KernelExercise, asks, of, uniform
from labkit.course.exercises.matmul import over, through_tiles


@asks("Neighbouring threads load and store neighbouring elements.",
      through_tiles(lambda shape, blocks: int(np.prod(shape)), lambda shape: min(shape[0], 16) * min(shape[1], 16)))
def _rows_both_ways(report) -> str | None:
    """Strided accesses on one side move four times as many sectors; sizes are at least a tile."""
    if report.coalescing > 0.5:
        return None
    return (f"Of the bytes in the {report.counts['sectors']:,} sectors that the warps move, {report.coalescing:.0%} "
            "are used. With loads along the rows of `a` and stores along the rows of `out` it is more than half: let "
            "neighbouring threads, `x` and `x + 1`, load and store neighbouring elements.")


@cuda.jit
def transpose_without_tile(a, out):
    col, row = cuda.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        out[col, row] = a[row, col]


EXERCISE = KernelExercise(
    name="transpose_tiled",
    reference=lambda a: a.T,
    inputs=lambda rng, R, C: (uniform(rng, R, C),),
    shape=lambda R, C: (C, R),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (1, 7), (5, 3), (16, 16), (17, 16), (19, 37), (50, 33))),
    launch=lambda R, C: over(C, R),
    observe_sizes=({"R": 17, "C": 16}, {"R": 19, "C": 37}),
    demand=_rows_both_ways,
    domain=of(0, MOVED),
    wrong={
        "no barrier between writing the tile and reading it": Edit("cuda.syncthreads()", ""),
        "each tile is transposed, but stays where it was":
            Edit("left + y < out.shape[0] and top", "top + y < out.shape[0] and left",
                 "out[left + y, top + x] = tile[x, y]", "out[top + y, left + x] = tile[x, y]"),
        "each tile goes to its new position, but is not transposed":
            Edit("out[left + y, top + x] = tile[x, y]", "out[left + y, top + x] = tile[y, x]"),
        "the store uses the guard of the load":
            Edit("if left + y < out.shape[0] and top + x < out.shape[1]:",
                 "if top + y < a.shape[0] and left + x < a.shape[1]:"),
        "the barrier is inside the guard":
            Edit("cuda.syncthreads()\n"
                 "if left + y < out.shape[0] and top + x < out.shape[1]:",
                 "    cuda.syncthreads()\n"
                 "if left + y < out.shape[0] and top + x < out.shape[1]:"),
        "no shared memory: a warp stores down a column": transpose_without_tile,
        "the tile is filled and read along its rows, and a warp stores down a column of `out`":
            Edit("if left + y < out.shape[0] and top + x < out.shape[1]:",
                 "if left + x < out.shape[0] and top + y < out.shape[1]:",
                 "out[left + y, top + x] = tile[x, y]", "out[left + x, top + y] = tile[y, x]"),
    },
)
