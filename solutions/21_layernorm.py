# %% [markdown]
# # 21 · LayerNorm: exercises
#
# Three exercises: a prediction about digits and registers, a bug between two sums, and a norm by a warp from a blank
# page. `hint("predict_variance")` gives a hint, and a second call a better one.

# %%
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: digits and registers
#
# A row has a mean of 4,096 and a variance of about 1. The mean of its squares is about 4,096², and a float32 has 24
# bits. How far apart are neighbouring float32 values there? And with a mean of 16,384? Both squares are powers of two, so
# paper is enough.
#
# Then take a kernel with a warp per row that keeps the row in registers, as in the lesson. For rows of 1,536, how many
# registers does each lane need for its part of the row? And how many shuffles does a lane execute for a whole
# LayerNorm, the mean and the variance?

# %%
near_4096 = None  # the distance between neighbours near 4,096 squared
near_16384 = None
registers = None  # per lane, for the row
shuffles = None  # per lane
### BEGIN SOLUTION
near_4096 = 2**24 // 2**23  # 2
near_16384 = 2**28 // 2**23  # 32
registers = 1536 // 32  # 48
shuffles = 2 * 5  # distances 16, 8, 4, 2, 1, for two sums
### END SOLUTION

# %%
check("predict_variance", near_4096=near_4096, near_16384=near_16384, registers=registers, shuffles=shuffles)

# %% [markdown]
# With a mean of 16,384, the mean of squares minus the squared mean can be 0 or 32, but not 1.
#
# ## 2 · Find the bug: two sums
#
# A LayerNorm with one block per row, of 64 threads or two warps. Each warp adds up its part with shuffles, lane 0 stores
# the result in `partial`, and after the barrier every thread adds the two. Both sums use the same two elements. The
# results are right, at least here, but the kernel is wrong nevertheless.


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
# ## 3 · From a blank page: RMSNorm by a warp
#
# Llama and its relatives do not subtract a mean. They divide by the root of the mean of the squares:
#
# $$\text{out}_{r,c} = \frac{x_{r,c}}{\sqrt{\frac{1}{C} \sum_k x_{r,k}^2 + 10^{-5}}} \; w_c$$
#
# A block has 32 × 4 threads. Each of its four warps has one row: `threadIdx.x` is the lane, and `threadIdx.y` says which
# of the four rows. A row may have any number of columns, so a lane has the columns `lane`, `lane + 32`, and so on. Every
# lane needs the sum of the whole row: `cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)` gives a lane the value of lane
# `lane ^ distance`. `cuda.rsqrt` is one over the root.

# %%
rmsnorm_warp = None  # write the kernel: def rmsnorm_warp(x, weight, out)


### BEGIN SOLUTION
@cuda.jit
def rmsnorm_warp(x, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        squares = float32(0.0)
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
# Next: the exercises of **22 · The transpose**.
