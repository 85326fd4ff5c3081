# %% [markdown]
# # 11 · LayerNorm and fusion: exercises
#
# Five exercises: a norm by a warp, a bug between two sums, a prediction about banks, a bias and a GELU in one kernel,
# and from a blank page a residual and a norm that read everything once. `hint("rmsnorm_warp")` gives a hint, and a
# second call a better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · RMSNorm by a warp
#
# Llama and its relatives leave the mean alone and divide by the root of the mean of the squares:
#
# $$\text{out}_{r,c} = \frac{x_{r,c}}{\sqrt{\frac{1}{C} \sum_k x_{r,k}^2 + 10^{-5}}} \; w_c$$
#
# A block has 32 × 4 threads. Its four warps take a row each: `threadIdx.x` is the lane, `threadIdx.y` says which of
# the four rows. A row may have any number of columns, so a lane takes the columns `lane`, `lane + 32`, and so on. Every
# lane needs the sum of the whole row: `cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)` gives a lane the value of the
# lane whose number differs in that bit. `cuda.rsqrt` is one over the root.


# %%
@cuda.jit
def rmsnorm_warp(x, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        squares = float32(0.0)
        ### BEGIN SOLUTION
        for col in range(lane, x.shape[1], 32):
            squares += x[row, col] * x[row, col]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
        scale = cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))
        for col in range(lane, x.shape[1], 32):
            out[row, col] = x[row, col] * scale * weight[col]
        ### END SOLUTION


# %%
check("rmsnorm_warp", rmsnorm_warp)

# %% [markdown]
# ## 2 · Find the bug: two sums
#
# A LayerNorm with a block of 64 threads, two warps, for each row. Each warp adds up its part by shuffles, lane 0 puts
# the result into `partial`, and after the barrier everyone adds the two. The same two places serve both sums. The
# numbers that it gives are right, at least here, and still it may not stay as it is.


# %%
@cuda.jit
def layernorm_two_sums(x, weight, bias, out):
    partial = cuda.shared.array(2, float32)
    thread, row, columns = cuda.threadIdx.x, cuda.blockIdx.x, x.shape[1]

    total = float32(0.0)
    for col in range(thread, columns, 64):
        total += x[row, col]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if thread % 32 == 0:
        partial[thread // 32] = total
    cuda.syncthreads()
    mean = (partial[0] + partial[1]) / float32(columns)

    squares = float32(0.0)
    for col in range(thread, columns, 64):
        squares += (x[row, col] - mean) * (x[row, col] - mean)
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
    if thread % 32 == 0:
        partial[thread // 32] = squares
    cuda.syncthreads()
    variance = (partial[0] + partial[1]) / float32(columns)

    scale = cuda.rsqrt(variance + float32(1e-5))
    for col in range(thread, columns, 64):
        out[row, col] = (x[row, col] - mean) * scale * weight[col] + bias[col]


### BEGIN SOLUTION
@cuda.jit
def layernorm_two_sums(x, weight, bias, out):
    partial = cuda.shared.array(2, float32)
    thread, row, columns = cuda.threadIdx.x, cuda.blockIdx.x, x.shape[1]

    total = float32(0.0)
    for col in range(thread, columns, 64):
        total += x[row, col]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if thread % 32 == 0:
        partial[thread // 32] = total
    cuda.syncthreads()
    mean = (partial[0] + partial[1]) / float32(columns)
    cuda.syncthreads()  # all have read the first sum: partial is free for the second

    squares = float32(0.0)
    for col in range(thread, columns, 64):
        squares += (x[row, col] - mean) * (x[row, col] - mean)
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
    if thread % 32 == 0:
        partial[thread // 32] = squares
    cuda.syncthreads()
    variance = (partial[0] + partial[1]) / float32(columns)

    scale = cuda.rsqrt(variance + float32(1e-5))
    for col in range(thread, columns, 64):
        out[row, col] = (x[row, col] - mean) * scale * weight[col] + bias[col]


### END SOLUTION

# %%
check("layernorm_two_sums", layernorm_two_sums)

# %% [markdown]
# There are two cures. One costs a barrier, the other eight bytes of shared memory. Did you find both?
#
# ## 3 · Predict: the banks of a padded tile
#
# The 32 lanes of a warp read a column of a tile in shared memory: lane L reads `tile[L, 5]`. The rows of the tile are
# `pitch` elements long, of which 32 hold data. Shared memory has 32 banks, and the element at place i lies in bank
# i % 32. In how many steps does the warp get its column?

# %%
pitch_32 = None  # steps, with rows of 32
pitch_33 = None
pitch_34 = None
pitch_40 = None
pitch_47 = None
### BEGIN SOLUTION
pitch_32 = 32  # every lane in bank 5
pitch_33 = 1  # bank L + 5: all different
pitch_34 = 2  # bank 2 L + 5: 16 banks, two lanes each
pitch_40 = 8  # bank 8 L + 5: four banks, eight lanes each
pitch_47 = 1  # 15 L + 5: 15 and 32 have no common factor
### END SOLUTION

# %%
check("predict_banks", pitch_32=pitch_32, pitch_33=pitch_33, pitch_34=pitch_34, pitch_40=pitch_40, pitch_47=pitch_47)

# %% [markdown]
# ## 4 · A bias and a GELU
#
# The end of the first half of a feed-forward layer, in one kernel. With $v = x_{r,c} + \text{bias}_c$:
#
# $$\text{out}_{r,c} = \frac{v}{2} \left(1 + \text{erf}\left(\frac{v}{\sqrt{2}}\right)\right)$$
#
# This is the exact form. `math.erf` works in a kernel, and `ROOT_HALF` is one over the root of 2, in float32. Blocks
# are 32 × 8, with the grid's x along the columns.

# %%
ROOT_HALF = float32(math.sqrt(0.5))


@cuda.jit
def bias_gelu(x, bias, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < x.shape[0] and col < x.shape[1]:
        v = x[row, col] + bias[col]
        out[row, col] = float32(0.5) * v * (float32(1.0) + math.erf(v * ROOT_HALF))
    ### END SOLUTION


# %%
check("bias_gelu", bias_gelu)

# %% [markdown]
# ## 5 · From a blank page: a residual and a norm
#
# `out = rmsnorm(x + residual)`, with the norm of the first exercise, its blocks of 32 × 4 threads and its epsilon of
# 1e-5. A row has at most 128 columns, so a lane has at most four elements. The condition: `x`, `residual` and `weight`
# are loaded once for each element of `out`, and `out` is stored once. The sums wait in registers:
# `kept = cuda.local.array(4, float32)`.
#
# Write `add_rmsnorm(x, residual, weight, out)` from the decorator down.

# %%
add_rmsnorm = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def add_rmsnorm(x, residual, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        kept = cuda.local.array(4, float32)
        squares = float32(0.0)
        for k in range(4):
            col = lane + 32 * k
            kept[k] = x[row, col] + residual[row, col] if col < x.shape[1] else float32(0.0)
            squares += kept[k] * kept[k]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
        scale = cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))
        for k in range(4):
            col = lane + 32 * k
            if col < x.shape[1]:
                out[row, col] = kept[k] * scale * weight[col]


### END SOLUTION

# %%
check("add_rmsnorm", add_rmsnorm)
