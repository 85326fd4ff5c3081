"""Find the bug: loading ahead

This is `a @ b` again, with one more idea. The first tiles are loaded before the loop, and each round ends by loading
the tiles of the next one. (With a second pair of tiles, such loads could run while the block still multiplies.) The
last round loads zeros that no thread uses.

There is a barrier after every load. Is that enough?
"""

HINTS = ("Thread 0 reaches the end of its inner loop while thread 255 has just begun. What does thread 0 do "
         "next?",
         "The tiles are written at the end of a round and were read just before. A barrier has to keep a fast thread "
         "from writing while a slow one still reads; the barrier after the loads comes too late for that.",
         "One more cuda.syncthreads(), between the inner loop and the two loads, in the loop over the tiles.")
POINTS = 3
NEEDS = ("gram",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def matmul_ahead(a, b, out):
    a_tile = cuda.shared.array((16, 16), float32)
    b_tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    rows, depth, cols = a.shape[0], a.shape[1], b.shape[1]

    a_tile[y, x] = a[row, x] if row < rows and x < depth else float32(0.0)
    b_tile[y, x] = b[y, col] if y < depth and col < cols else float32(0.0)
    cuda.syncthreads()
    total = float32(0.0)
    for ahead in range(16, depth + 16, 16):
        for k in range(16):
            total += a_tile[y, k] * b_tile[k, x]
        a_tile[y, x] = a[row, ahead + x] if row < rows and ahead + x < depth else float32(0.0)
        b_tile[y, x] = b[ahead + y, col] if ahead + y < depth and col < cols else float32(0.0)
        cuda.syncthreads()
    if row < rows and col < cols:
        out[row, col] = total


### BEGIN SOLUTION
@cuda.jit
def matmul_ahead(a, b, out):
    a_tile = cuda.shared.array((16, 16), float32)
    b_tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    rows, depth, cols = a.shape[0], a.shape[1], b.shape[1]

    a_tile[y, x] = a[row, x] if row < rows and x < depth else float32(0.0)
    b_tile[y, x] = b[y, col] if y < depth and col < cols else float32(0.0)
    cuda.syncthreads()  # the tiles are complete
    total = float32(0.0)
    for ahead in range(16, depth + 16, 16):
        for k in range(16):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()  # all have read: the tiles are free to overwrite
        a_tile[y, x] = a[row, ahead + x] if row < rows and ahead + x < depth else float32(0.0)
        b_tile[y, x] = b[ahead + y, col] if ahead + y < depth and col < cols else float32(0.0)
        cuda.syncthreads()  # the next tiles are complete
    if row < rows and col < cols:
        out[row, col] = total


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, dot_products, of, uniform
from labkit.course.exercises.matmul import AWKWARD, over, products, two_tiles_a_step, wide


def _product_reference(a, b):
    a, b = wide(a, b)
    return a @ b


@cuda.jit
def ahead_without_tiles(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


EXERCISE = KernelExercise(
    name="matmul_ahead",
    reference=_product_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    launch=lambda M, N, K: over(N, M),
    observe_sizes=products((5, 3, 4), (1, 33, 17), (16, 16, 16)),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    demand=two_tiles_a_step(depth=1),
    in_float32=True,
    wrong={
        "no barrier between reading the tiles and writing the next ones":
            Edit("cuda.syncthreads()\n"
                 "a_tile[y, x] = a[row, ahead + x] if row < rows and ahead + x < depth else float32(0.0)",
                 "a_tile[y, x] = a[row, ahead + x] if row < rows and ahead + x < depth else float32(0.0)"),
        "the last tiles are loaded but never multiplied":
            Edit("for ahead in range(16, depth + 16, 16):", "for ahead in range(16, depth, 16):"),
        "no barrier between writing the tiles and reading them":
            Edit("cuda.syncthreads()\n"
                 "total = float32(0.0)",
                 "total = float32(0.0)",
                 "    cuda.syncthreads()\n"
                 "if row < rows and col < cols:",
                 "if row < rows and col < cols:"),
        "no tiles: every thread loads everything from global memory": ahead_without_tiles,
    },
)

EQUIVALENT = {
    "loop: for ahead in range(16, depth + 16, 16): ... -> for ahead in range(16, depth + 16 + 1, 16)":
        "One more round, if any, multiplies tiles that lie beyond the edge and hold zeros.",
    "number: 0.0 -> -1.0 (5)":
        "Beyond the depth the other factor is 0, and beyond the edge of the output nothing is stored.",
}
