# %% [markdown]
# # 17 · Other ways to write a kernel: exercises
#
# Seven exercises: masks on paper, a program of Triton's kind written by hand in Numba, a bug in the padding, a
# product in tiles, a reduction from a blank page, and two bugs that the reductions of a Fortran library invite. None
# needs a GPU, Triton or cuTile: they teach how such programs are built.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.kernels.libraries import cutile_model as ct
from labkit.kernels.libraries.column_major import isamax, sasum

# %% [markdown]
# ## 1 · Predict: programs and masks
#
# 100,000 elements are added by programs of 1,024. Rows of 781 elements go through softmax, one row per program, in a
# vector whose length is a power of two.
#
# - `programs`: how many programs does the addition launch?
# - `masked`: how many slots of the last program are masked?
# - `length`: how long is the vector of the softmax?
# - `wasted`: how many of its slots hold no element?

# %%
programs, masked = None, None  # of the addition
length, wasted = None, None  # of the softmax
### BEGIN SOLUTION
programs, masked = 98, 352  # 98 * 1024 = 100,352
length, wasted = 1024, 243
### END SOLUTION

# %%
check("predict_masks", programs=programs, masked=masked, length=length, wasted=wasted)

# %% [markdown]
# ## 2 · A program, by hand
#
# This is a program in Triton:
#
#     offsets = tl.program_id(0) * 256 + tl.arange(0, 256)
#     mask = offsets < n
#     x = tl.load(x_ptr + offsets, mask=mask)
#     y = tl.load(y_ptr + offsets, mask=mask)
#     tl.store(out_ptr + offsets, s * x + y, mask=mask)
#
# Play the compiler. A block of 64 threads does the work of one program of 256 elements, so each thread handles four.
# Which four is up to you; a compiler would let neighbouring threads load neighbouring elements.


# %%
@cuda.jit
def axpy_program(s, x, y, out):
    start = cuda.blockIdx.x * 256
    ### BEGIN SOLUTION
    for step in range(0, 256, 64):
        i = start + step + cuda.threadIdx.x
        if i < out.size:  # the mask, for each element its own
            out[i] = s * x[i] + y[i]
    ### END SOLUTION


# %%
check("axpy_program", axpy_program)

# %% [markdown]
# ## 3 · Find the bug: what is in the padding
#
# Softmax of rows with up to 64 columns. A block of 64 threads handles a row, as a program would: a vector of 64, with
# padding where there is no element. The barriers are right.


# %%
@cuda.jit
def padded_softmax(x, out):
    tile = cuda.shared.array(64, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    value = x[row, t] if t < x.shape[1] else float32(0.0)
    tile[t] = value
    cuda.syncthreads()
    largest = tile[0]
    for i in range(1, 64):
        largest = max(largest, tile[i])
    cuda.syncthreads()
    tile[t] = math.exp(value - largest)
    cuda.syncthreads()
    total = float32(0.0)
    for i in range(64):
        total += tile[i]
    if t < x.shape[1]:
        out[row, t] = tile[t] / total


### BEGIN SOLUTION
@cuda.jit
def padded_softmax(x, out):
    tile = cuda.shared.array(64, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    value = x[row, t] if t < x.shape[1] else float32(-np.inf)  # never the maximum, and its exponential is 0
    tile[t] = value
    cuda.syncthreads()
    largest = tile[0]
    for i in range(1, 64):
        largest = max(largest, tile[i])
    cuda.syncthreads()
    tile[t] = math.exp(value - largest)
    cuda.syncthreads()
    total = float32(0.0)
    for i in range(64):
        total += tile[i]
    if t < x.shape[1]:
        out[row, t] = tile[t] / total


### END SOLUTION

# %%
check("padded_softmax", padded_softmax)

# %% [markdown]
# ## 4 · A product in tiles
#
# `out = a @ b`, written as in cuTile. The launcher is there: one block per 16 × 16 tile of `out`, and `steps` is the
# number of tiles along a row of `a`. Write what a block does. You have
#
# - `ct.bid(0)` and `ct.bid(1)`: which row and which column of tiles
# - `ct.full((16, 16), 0, ct.float32)`: a tile of zeros
# - `ct.load(array, (i, j), (16, 16), padding_mode=ct.PaddingMode.ZERO)`: tile i, j of an array
# - `ct.mma(left, right, total)`: left @ right + total, as a new tile
# - `ct.store(array, (i, j), tile)`
#
# `ct` is labkit's model of cuTile here. With a GPU that runs cuTile, the same program is a kernel of `cuda.tile`.


# %%
def product_of_a_block(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    ### BEGIN SOLUTION
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        left = ct.load(a, (row, k), (16, 16), padding_mode=zero)
        right = ct.load(b, (k, col), (16, 16), padding_mode=zero)
        total = ct.mma(left, right, total)
    ct.store(out, (row, col), total)
    ### END SOLUTION


def tile_product(a, b, out):
    grid = (ct.cdiv(out.shape[0], 16), ct.cdiv(out.shape[1], 16), 1)
    ct.launch(None, grid, product_of_a_block, (a, b, out, ct.cdiv(a.shape[1], 16)))


# %%
check("tile_product", tile_product)

# %% [markdown]
# Compare it with the tiled kernel of lesson 06. The compiler now handles the two barriers, the guards and the shared
# memory.
#
# ## 5 · From a blank page: the sum of each row
#
# In Triton:
#
#     x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=0.0)
#     tl.store(out_ptr + row, tl.sum(x, axis=0))
#
# Write `row_sums(x, out)` in Numba, from the decorator down: one block of 32 threads, a single warp, per row of `x`; rows
# have any length. Each lane adds elements 32 apart. Then the lanes add up their sums with
# `cuda.shfl_down_sync(0xFFFFFFFF, total, offset)`, which gives a lane the value of the lane `offset` further up. After
# offsets of 16, 8, 4, 2 and 1, lane 0 has the sum.

# %%
row_sums = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def row_sums(x, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    for col in range(lane, x.shape[1], 32):
        total += x[row, col]
    for offset in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, offset)
    if lane == 0:
        out[row] = total


### END SOLUTION

# %%
check("row_sums", row_sums)

# %% [markdown]
# ## 6 · Find the bug: the largest of each row
#
# `peaks(x)` returns, for each row, the element with the largest absolute value, with its sign. `x` is a NumPy array
# here, and `isamax` is the model's. What is wrong?


# %%
def peaks(x):
    rows, cols = x.shape
    found = np.empty(rows, np.float32)
    for row in range(rows):
        found[row] = x[row, isamax(cols, x[row])]
    return found


### BEGIN SOLUTION
def peaks(x):
    rows, cols = x.shape
    found = np.empty(rows, np.float32)
    for row in range(rows):
        found[row] = x[row, isamax(cols, x[row]) - 1]  # BLAS counts from 1
    return found


### END SOLUTION

# %%
check("peaks", peaks)

# %% [markdown]
# ## 7 · Find the bug: softmax of a row
#
# It is right for values from −10 to 10, and returns NaN for the row [−200, 100]. `x` is a row of float32 on the host.
#
# Repair it for every row of finite values. You may find the maximum without BLAS. Or stay with BLAS: what does a second
# `isamax` find, if you first subtract what the first one found?


# %%
def safe_softmax(x):
    biggest = x[isamax(x.size, x) - 1]
    e = np.exp(x - biggest)
    return e / np.float32(sasum(e.size, e))


### BEGIN SOLUTION
def safe_softmax(x):
    biggest = x[isamax(x.size, x) - 1]
    if biggest < 0:  # then nothing is further from 0: no difference is negative, and the largest is the maximum's
        biggest = x[isamax(x.size, x - biggest) - 1]
    e = np.exp(x - biggest)
    return e / np.float32(sasum(e.size, e))


### END SOLUTION

# %%
check("safe_softmax", safe_softmax)
