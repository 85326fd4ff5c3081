# %% [markdown]
# # 08 · Tensor cores: exercises
#
# Four exercises: two products on the tensor cores, a swizzled tile, and a prediction to work out on paper.
# `hint("one_mma")` gives a hint, and a second call a better one.
#
# They run without a GPU: the CPU device does what the instruction does, lane by lane.

# %%
from numba import float32, uint32

from labkit import check, cuda, hint, ptx

# %% [markdown]
# ## 1 · Predict: who holds it?
#
# `mma.sync` m16n8k16, as in the lesson's picture. Without looking at it: which lane holds
#
# - `a[11, 6]`, and in which of its registers a0 to a3?
# - `b[13, 2]`, and in which of b0 and b1?
# - the accumulator at row 2, column 7, and in which of c0 to c3?

# %%
a_lane, a_register = None, None
b_lane, b_register = None, None
sum_lane, sum_register = None, None
### BEGIN SOLUTION
a_lane, a_register = 4 * (11 % 8) + 6 // 2, 1  # g = 3, q = 3; the lower half, the left one
b_lane, b_register = 4 * 2 + (13 - 8) // 2, 1  # g is the column; the lower half
sum_lane, sum_register = 4 * 2 + 7 // 2, 1  # an odd column: the second of the two neighbours
### END SOLUTION

# %%
check("predict_lanes", a_lane=a_lane, a_register=a_register, b_lane=b_lane, b_register=b_register, sum_lane=sum_lane,
      sum_register=sum_register)


# %% [markdown]
# ## 2 · One product on the tensor cores
#
# In float16, `a` is 16 T × 16 and `b` is 16 × 8; `out` is 16 T × 8 in float32. Each block is one warp, and computes 16
# rows of `out` with a single instruction:
#
# `c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)`
#
# What is missing is what each lane loads into a0 to a3, b0 and b1, and where it stores the four accumulators. They start
# at `float32(0.0)`. `ptx.pack_half2(x, y)` puts two float32 values into one register as float16, the first into the low
# half.


# %%
@cuda.jit
def one_mma(a, b, out):
    lane = cuda.threadIdx.x
    g, q = lane // 4, lane % 4
    top = cuda.blockIdx.x * 16  # the first of this block's rows of a and out
    ### BEGIN SOLUTION
    row, col = top + g, 2 * q
    a0 = ptx.pack_half2(float32(a[row, col]), float32(a[row, col + 1]))
    a1 = ptx.pack_half2(float32(a[row + 8, col]), float32(a[row + 8, col + 1]))
    a2 = ptx.pack_half2(float32(a[row, col + 8]), float32(a[row, col + 9]))
    a3 = ptx.pack_half2(float32(a[row + 8, col + 8]), float32(a[row + 8, col + 9]))
    b0 = ptx.pack_half2(float32(b[col, g]), float32(b[col + 1, g]))  # col counts the rows of b here: both are k
    b1 = ptx.pack_half2(float32(b[col + 8, g]), float32(b[col + 9, g]))
    zero = float32(0.0)
    c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, zero, zero, zero, zero)
    out[row, col], out[row, col + 1] = c0, c1
    out[row + 8, col], out[row + 8, col + 1] = c2, c3
    ### END SOLUTION


# %%
check("one_mma", one_mma)

# %% [markdown]
# ## 3 · From a blank page: a linear layer on the tensor cores
#
# `x @ w.T` again, now in float16: `x` is (16 T, 16 S), `w` is (8 C, 16 S), `out` is (16 T, 8 C) in float32. A block is
# one warp and computes 16 × 8 elements of `out`: rows from 16 · blockIdx.y, columns from 8 · blockIdx.x. It goes along K
# in steps of 16 and passes the four accumulators of one product to the next.
#
# Look at what the instruction needs from `b`: two neighbours in a column. In `w`, whose rows are the columns of `b`, they
# are side by side. So the weights need not be transposed, which is why libraries store them this way.

# %%
linear_mma = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def linear_mma(x, w, out):
    lane = cuda.threadIdx.x
    g, pair = lane // 4, lane % 4 * 2
    row = cuda.blockIdx.y * 16 + g
    left = cuda.blockIdx.x * 8
    n = left + g
    c0, c1, c2, c3 = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
    for start in range(0, x.shape[1], 16):
        k = start + pair
        a0 = ptx.pack_half2(float32(x[row, k]), float32(x[row, k + 1]))
        a1 = ptx.pack_half2(float32(x[row + 8, k]), float32(x[row + 8, k + 1]))
        a2 = ptx.pack_half2(float32(x[row, k + 8]), float32(x[row, k + 9]))
        a3 = ptx.pack_half2(float32(x[row + 8, k + 8]), float32(x[row + 8, k + 9]))
        b0 = ptx.pack_half2(float32(w[n, k]), float32(w[n, k + 1]))
        b1 = ptx.pack_half2(float32(w[n, k + 8]), float32(w[n, k + 9]))
        c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
    col = left + pair
    out[row, col], out[row, col + 1] = c0, c1
    out[row + 8, col], out[row + 8, col + 1] = c2, c3


### END SOLUTION

# %%
check("linear_mma", linear_mma)

# %% [markdown]
# ## 4 · A tile without padding
#
# `a` is (32 T, 32), `out` is its transpose, (32, 32 T). A block is one warp, and transposes 32 rows of `a` through a tile
# of 1,024 elements in shared memory. It writes rows into the tile and reads columns from it. For now, each column is in a
# single bank. Swizzle the tile, so that neither the writes nor the reads have bank conflicts. The tile stays as large as
# it is.


# %%
@cuda.jit
def swizzled_transpose(a, out):
    tile = cuda.shared.array(1024, float32)
    lane = cuda.threadIdx.x
    left = cuda.blockIdx.x * 32  # the first of this block's rows of a
    for row in range(32):
        tile[row * 32 + lane] = a[left + row, lane]
    cuda.syncwarp()
    for col in range(32):
        out[col, left + lane] = tile[lane * 32 + col]


### BEGIN SOLUTION
@cuda.jit
def swizzled_transpose(a, out):
    tile = cuda.shared.array(1024, float32)
    lane = cuda.threadIdx.x
    left = cuda.blockIdx.x * 32  # the first of this block's rows of a
    for row in range(32):
        tile[row * 32 + (lane ^ row)] = a[left + row, lane]
    cuda.syncwarp()
    for col in range(32):
        out[col, left + lane] = tile[lane * 32 + (col ^ lane)]


### END SOLUTION

# %%
check("swizzled_transpose", swizzled_transpose)
