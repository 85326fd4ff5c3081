# %% [markdown]
# # 06 · Matrix multiplication: exercises
#
# Eight exercises: three products with one thread per element, two kernels that use shared memory, two bugs and a
# prediction. In two of them you write the kernel from a blank page. `hint("matvec")` gives a hint, and a second call a
# better one.
#
# One thing to keep in mind. `check` runs your kernel under several orders of the threads, and even so a right result does
# not prove that the barriers are right. For each barrier, say which write it separates from which read.

# %%
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Matrix times vector
#
# $$\text{out}_r = \sum_k a_{r,k} \, x_k$$
#
# `a` has M rows and K columns, `x` has K elements, `out` has M. One thread computes one element of `out`, in blocks of
# 64. Write the loop, and the store after it.


# %%
@cuda.jit
def matvec(a, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = float32(0.0)
        ### BEGIN SOLUTION
        for k in range(x.size):
            total += a[row, k] * x[k]
        out[row] = total
        ### END SOLUTION


# %%
check("matvec", matvec)

# %% [markdown]
# ## 2 · Rows against rows: A @ B.T
#
# $$\text{out}_{r,c} = \sum_k a_{r,k} \, b_{c,k}$$
#
# That is `a @ b.T`. `a` is (M, K), `b` is (N, K), `out` is (M, N), and nothing is transposed in memory: only the index
# changes. Attention compares every query with every key in this way. Blocks are 16 × 16, and the grid's x runs along the
# columns of `out`.


# %%
@cuda.jit
def matmul_bt(a, b, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[col, k]
        out[row, col] = total
    ### END SOLUTION


# %%
check("matmul_bt", matmul_bt)

# %% [markdown]
# ## 3 · A layer in one kernel
#
# A layer of a neural network multiplies, adds the bias of the column, and sets negative values to zero:
#
# $$\text{out}_{r,c} = \max\left(0, \; \sum_k a_{r,k} \, b_{k,c} + \text{bias}_c\right)$$
#
# With three calls, two matrices are written and read back. In one kernel they never leave the registers: fusion, as in
# lesson 05. `a` is (M, K), `b` is (K, N), `bias` has N elements. Write `dense_layer(a, b, bias, out)` from the decorator
# down, for blocks of 16 × 16 with the grid's x along the columns. `max(total, float32(0.0))` works in a kernel.

# %%
dense_layer = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def dense_layer(a, b, bias, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = bias[col]
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = max(total, float32(0.0))


### END SOLUTION

# %%
check("dense_layer", dense_layer)

# %% [markdown]
# ## 4 · A transpose through shared memory
#
# A transpose reads rows and writes columns. However you arrange the threads, either the loads or the stores of a warp are
# far apart. Shared memory is the way out: a block loads a tile of 16 × 16 along the rows of `a`, and stores it along the
# rows of `out`. The transpose happens inside the tile, where it costs little.
#
# `a` has the shape (R, C) and `out` the shape (C, R). The grid covers `a`, with its x along the columns; `left` and `top`
# are where this block's tile begins in `a`. Load, wait, store, so that neighbouring threads store neighbours. Note that a
# thread stores a different element from the one it loaded, and that the store needs a different guard.


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


# %%
check("transpose_tiled", transpose_tiled)

# %% [markdown]
# ## 5 · Find the bug: the edge of a tile
#
# `a @ a.T`, the Gram matrix, holds the dot product of every row of `a` with every row. Both tiles come from `a`: `mine`
# from the rows that belong to the block's rows of `out`, `theirs` from those that belong to its columns.
#
# The kernel is right for 64 × 64, for 16 × 160 and for every other size that I tried at first.


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

# %%
check("gram", gram)

# %% [markdown]
# ## 6 · Find the bug: loading ahead
#
# This is `a @ b` again, with one more idea. The first tiles are loaded before the loop, and each round ends by loading
# the tiles of the next one. (With a second pair of tiles, such loads could run while the block still multiplies.) The
# last round loads zeros that no thread uses.
#
# There is a barrier after every load. Is that enough?


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

# %%
check("matmul_ahead", matmul_ahead)

# %% [markdown]
# ## 7 · Predict, then observe: loads with and without tiles
#
# `a` is 40 × 50, `b` is 50 × 24. Blocks are 16 × 16, and so are tiles. Work out on paper:
#
# - `naive`: how many elements do all threads together load from global memory, with one thread per element of `out` and
#   no tiles?
# - `tiled`: how many with tiles? A zero beyond an edge is no load.
# - `barriers`: at how many barriers does one thread of the tiled kernel wait?

# %%
naive = None  # loads from global memory, all threads together
tiled = None  # the same with tiles of 16 x 16
barriers = None  # of one thread
### BEGIN SOLUTION
naive = 40 * 24 * 2 * 50  # each of 40 * 24 threads: a row of a and a column of b
tiled = 2 * (40 * 50) + 3 * (50 * 24)  # a is loaded once for each of 2 block columns, b for each of 3 block rows
barriers = 2 * 4  # two a step, four steps: 16 + 16 + 16 + 2
### END SOLUTION

# %%
check("predict_loads", naive=naive, tiled=tiled, barriers=barriers)

# %% [markdown]
# Then observe. The next kernel has the loops of the tiled one but loads nothing: it counts the loads and the barriers.
# `counts[0]` is the sum over all threads; `counts[1]` is counted by one of them.

# %%
import numpy as np


@cuda.jit
def count_loads(counts, rows, depth, cols):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    loads, waits = 0, 0
    for start in range(0, depth, 16):
        if row < rows and start + x < depth:
            loads += 1
        if start + y < depth and col < cols:
            loads += 1
        waits += 2
    cuda.atomic.add(counts, 0, loads)
    if row == 0 and col == 0:
        counts[1] = waits


counts = cuda.to_device(np.zeros(2, np.int64))
count_loads[(2, 3), (16, 16)](counts, 40, 50, 24)
loads, waits = counts.copy_to_host()
print(f"{loads:,} loads from global memory in tiles of 16 x 16, and {waits} barriers a thread")

# %% [markdown]
# ## 8 · Columns against columns: A.T @ B in tiles
#
# $$\text{out}_{r,c} = \sum_k a_{k,r} \, b_{k,c}$$
#
# That is `a.T @ b`, which every linear layer needs in training: `a` is (K, M), `b` is (K, N), `out` is (M, N). Write it
# with tiles of 16 × 16 in shared memory, from the decorator down: `matmul_at(a, b, out)`, for blocks of 16 × 16 with the
# grid's x along the columns of `out`.
#
# Load both tiles along rows, so that neighbouring threads load neighbours. Then one of the tiles is read along columns.

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

# %%
check("matmul_at", matmul_at)

# %% [markdown]
# Count what a warp reads of `a_tile` in one step of the inner loop: two elements, each of them for 16 lanes. Here the
# transpose costs nothing.
