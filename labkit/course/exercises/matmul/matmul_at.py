r"""Columns against columns: A.T @ B in tiles

$$\text{out}_{r,c} = \sum_k a_{k,r} \, b_{k,c}$$

That is `a.T @ b`, which every linear layer needs in training: `a` is (K, M), `b` is (K, N), `out` is (M, N). Write it
with tiles of 16 × 16 in shared memory, from the decorator down: `matmul_at(a, b, out)`, for blocks of 16 × 16 with the
grid's x along the columns of `out`.

Load both tiles along rows, so that neighbouring threads load neighbours. Then one of the tiles is read along columns.
"""

HINTS = ("In the lesson a tile of a held 16 rows of out and 16 steps of k. It does here, too, but which of the two "
         "runs along a row of a in memory?",
         "Load both tiles alike: a thread loads a[k, top + x] and b[k, left + x] with k = start + y, zeros beyond the "
         "edges. A barrier. In the inner loop the tile of a is read down a column. A barrier. Only the store has an "
         "if.",
         "for i in range(16): total += a_tile[i, y] * b_tile[i, x]; with a_tile[y, x] = a[k, top + x] if k < depth and "
         "top + x < rows else float32(0.0).")
POINTS = 5
NEEDS = ("transpose_tiled", "gram")

from numba import float32

from labkit import cuda

# %%
matmul_at = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def matmul_at(a, b, out):
    a_tile = cuda.shared.array((16, 16), float32)
    b_tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * 16, cuda.blockIdx.y * 16
    depth, rows, cols = a.shape[0], a.shape[1], b.shape[1]

    total = float32(0.0)
    for start in range(0, depth, 16):
        k = start + y
        a_tile[y, x] = a[k, top + x] if k < depth and top + x < rows else float32(0.0)
        b_tile[y, x] = b[k, left + x] if k < depth and left + x < cols else float32(0.0)
        cuda.syncthreads()  # both tiles are complete
        for i in range(16):
            total += a_tile[i, y] * b_tile[i, x]
        cuda.syncthreads()  # both tiles are free to overwrite
    if top + y < rows and left + x < cols:
        out[top + y, left + x] = total


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, asks, dot_products, of, uniform
from labkit.course.exercises.matmul import AWKWARD, over, products, two_tiles_a_step, wide


@cuda.jit
def at_without_tiles(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[0]):
            total += a[k, row] * b[k, col]
        out[row, col] = total


def _at_reference(a, b):
    a, b = wide(a, b)
    return a.T @ b


@asks("Both matrices are loaded along their rows.", two_tiles_a_step(depth=0))
def _loaded_along_rows(report) -> str | None:
    """Loads along columns on one side move eight times as many sectors, in whole tiles."""
    if min(length for _, shape, _ in list(report.arrays.values())[:2] for length in shape) < 16:
        return None
    if report.coalescing > 0.5:
        return None
    return (f"Of the bytes in the {report.counts['sectors']:,} sectors that the warps move, {report.coalescing:.0%} "
            "are used. Load both tiles along rows: let neighbouring threads, `x` and `x + 1`, load neighbouring "
            "elements. Then read one of the tiles along its columns.")


EXERCISE = KernelExercise(
    name="matmul_at",
    reference=_at_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, K, M), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    launch=lambda M, N, K: over(N, M),
    observe_sizes=products((5, 3, 4), (1, 33, 17), (16, 16, 16)),
    demand=_loaded_along_rows,
    tolerance=dot_products(lambda a, b: np.abs(a).T @ np.abs(b), length=lambda a, b: a.shape[0]),
    domain=of((0, 1), *SUMMED),
    in_float32=True,
    wrong={
        "the tile of `a` is read along a row, as for `a @ b`":
            Edit("total += a_tile[i, y] * b_tile[i, x]", "total += a_tile[y, i] * b_tile[i, x]"),
        "no barrier between writing the tiles and reading them":
            Edit("cuda.syncthreads()\n"
                 "for i in range(16):",
                 "for i in range(16):"),
        "where a tile reaches beyond its matrix, it keeps its old values instead of zeros":
            Edit("a_tile[y, x] = a[k, top + x] if k < depth and top + x < rows else float32(0.0)\n"
                 "b_tile[y, x] = b[k, left + x] if k < depth and left + x < cols else float32(0.0)",
                 "if k < depth and top + x < rows:\n"
                 "    a_tile[y, x] = a[k, top + x]\n"
                 "if k < depth and left + x < cols:\n"
                 "    b_tile[y, x] = b[k, left + x]"),
        "threads without an element return before the barriers":
            Edit("depth, rows, cols = a.shape[0], a.shape[1], b.shape[1]",
                 "depth, rows, cols = a.shape[0], a.shape[1], b.shape[1]\n"
                 "if top + y >= rows or left + x >= cols:\n"
                 "    return"),
        "the loads have no guard":
            Edit(" if k < depth and top + x < rows else float32(0.0)", "",
                 " if k < depth and left + x < cols else float32(0.0)", ""),
        "every step loads the first tiles again": Edit("k = start + y", "k = y"),
        "no barrier between reading the tiles and writing the next ones":
            Edit("    cuda.syncthreads()\n"
                 "if top + y < rows and left + x < cols:",
                 "if top + y < rows and left + x < cols:"),
        "no tiles: every thread loads everything from global memory": at_without_tiles,
        "the tile of `a` is loaded along columns: neighbouring threads load elements a row apart":
            Edit("a_tile[y, x] = a[k, top + x] if k < depth and top + x < rows else float32(0.0)",
                 "a_tile[x, y] = a[start + x, top + y] if start + x < depth and top + y < rows else float32(0.0)"),
    },
)

AFTER = """
Count what a warp reads of `a_tile` in one step of the inner loop: two elements, each of them for 16 lanes. Here the
transpose costs nothing.
"""
