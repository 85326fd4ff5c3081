"""From a blank page: transpose each matrix of a batch

`a` holds B matrices of R × C, one after the other: its shape is (B, R, C). `out` has the shape (B, C, R) and gets the
transpose of each. Write `transpose_each(a, out)`. A block has 32 × 32 threads, x along the columns of `a`, and the
grid covers `a`; `cuda.blockIdx.z` is the number of the matrix.
"""

HINTS = ("Which rows and which columns of out does the block at blockIdx.x, blockIdx.y hold? And in which bank is "
         "tile[x, y] for the lanes x of a warp, if the rows of the tile have 32 elements?",
         "Load along a row of a, wait, store along a row of out. The store needs a guard of its own, and the tile "
         "needs rows of 33.",
         "With left and top, where the tile begins in a: tile[y, x] = a[z, top + y, left + x], then after the barrier "
         "out[z, left + y, top + x] = tile[x, y], under left + y < out.shape[1] and top + x < out.shape[2].")
POINTS = 3
NEEDS = ("predict_banks",)

from numba import float32

from labkit import cuda

# %%
transpose_each = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def transpose_each(a, out):
    tile = cuda.shared.array((32, 33), float32)  # rows of 33: a column lies in 32 different banks
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    left, top = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    if top + y < a.shape[1] and left + x < a.shape[2]:
        tile[y, x] = a[z, top + y, left + x]
    cuda.syncthreads()  # the tile is complete
    if left + y < out.shape[1] and top + x < out.shape[2]:
        out[z, left + y, top + x] = tile[x, y]


### END SOLUTION

# %% [check]
from labkit.course.exercises import MOVED, Edit, KernelExercise, asks, of, uniform


@asks("Neighbouring threads load neighbours and store neighbours, and no lanes wait for one another at a bank.")
def _rows_both_ways(report) -> str | None:
    """Sizes are at least a tile; strided accesses on one side move four times as many sectors."""
    if report.coalescing <= 0.5:
        return (f"Of the bytes in the {report.counts['sectors']:,} sectors that the warps move, "
                f"{report.coalescing:.0%} are asked for. Loads along the rows of `a` and stores along the rows of "
                "`out` ask for more than half.")
    if conflicts := report.counts["bank_conflicts"]:
        return (f"Lanes of a warp wait for one another at the banks of shared memory {conflicts:,} times: give the "
                "rows of the tile one element more than they need.")
    return None


@cuda.jit
def transpose_each_without_tile(a, out):
    col, row, z = cuda.grid(3)
    if row < a.shape[1] and col < a.shape[2]:
        out[z, col, row] = a[z, row, col]


EXERCISE = KernelExercise(
    name="transpose_each",
    reference=lambda a: a.transpose(0, 2, 1),
    inputs=lambda rng, B, R, C: (uniform(rng, B, R, C),),
    shape=lambda B, R, C: (B, C, R),
    sizes=tuple({"B": B, "R": R, "C": C} for B, R, C in ((1, 1, 1), (2, 5, 3), (1, 32, 32), (2, 32, 40), (2, 65, 50))),
    launch=lambda B, R, C: ((-(-C // 32), -(-R // 32), B), (32, 32)),
    observe_sizes=({"B": 1, "R": 32, "C": 32}, {"B": 2, "R": 32, "C": 40}),
    demand=_rows_both_ways,
    domain=of(0, MOVED),
    wrong={
        "rows of 32 in the tile: a column lies in one bank": Edit("(32, 33)", "(32, 32)"),
        "no barrier between writing the tile and reading it": Edit("cuda.syncthreads()", ""),
        "every block takes the first matrix":
            Edit("cuda.blockIdx.z", "0"),
        "each tile goes to its new place, and is not transposed":
            Edit("out[z, left + y, top + x] = tile[x, y]", "out[z, left + y, top + x] = tile[y, x]"),
        "the store has the guard of the load":
            Edit("if left + y < out.shape[1] and top + x < out.shape[2]:",
                 "if top + y < a.shape[1] and left + x < a.shape[2]:"),
        "no shared memory: a warp writes down a column": transpose_each_without_tile,
    },
)
