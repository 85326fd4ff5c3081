# %% [markdown]
# # 05 · Matrix multiplication to the limit: exercises
#
# Seven exercises: a thread tile in registers, copies that are on their way, two products on the tensor cores, and three
# predictions to be done on paper. `hint("linear_patch")` gives a hint, and a second call a better one.
#
# The tensor-core exercises run without a GPU: the CPU device does what the instruction does, lane by lane.

# %%
from numba import float32, uint32

from labkit import check, cuda, hint, ptx

# %% [markdown]
# ## 1 · Predict: a thread tile that is not square
#
# Blocks of 16 × 16 threads, and a thread computes a tile of 6 rows and 4 columns. Tiles are 8 deep. Work out on paper:
#
# - `loads`: how many numbers does a thread read from shared memory in one step of k?
# - `products`: how many multiply-adds does it do with them?
# - `busy`: at most how many percent of the multiply-add units are busy, if shared memory serves one warp in the time in
#   which they serve four?
# - `tile_bytes`: how many bytes of shared memory does a pair of tiles take, one of `a` and one of `b`?

# %%
loads = None
products = None
busy = None  # in percent
tile_bytes = None
### BEGIN SOLUTION
loads = 6 + 4
products = 6 * 4
busy = 100 * products // (4 * loads)  # 60
tile_bytes = (16 * 6 + 16 * 4) * 8 * 4
### END SOLUTION

# %%
check("predict_patch", loads=loads, products=products, busy=busy, tile_bytes=tile_bytes)

# %% [markdown]
# ## 2 · A linear layer, four by four
#
# $$\text{out}_{m,n} = \sum_k x_{m,k} \, w_{n,k}$$
#
# That is `x @ w.T`, the form of a linear layer: `x` is (M, K), `w` is (N, K). A thread computes the tile of 4 × 4
# elements that begins at `row0` and `col0`. No shared memory this time: in each step of k load four numbers of `x` and
# four of `w` into `x_part` and `w_part`, zeros beyond the edges, and multiply each with each. Blocks are 8 × 8 threads.


# %%
@cuda.jit
def linear_patch(x, w, out):
    col0, row0 = cuda.grid(2)
    row0, col0 = row0 * 4, col0 * 4
    rows, cols = out.shape
    sums = cuda.local.array((4, 4), float32)
    x_part = cuda.local.array(4, float32)
    w_part = cuda.local.array(4, float32)
    for i in range(4):
        for j in range(4):
            sums[i, j] = float32(0.0)
    ### BEGIN SOLUTION
    for k in range(x.shape[1]):
        for i in range(4):
            x_part[i] = x[row0 + i, k] if row0 + i < rows else float32(0.0)
            w_part[i] = w[col0 + i, k] if col0 + i < cols else float32(0.0)
        for i in range(4):
            for j in range(4):
                sums[i, j] += x_part[i] * w_part[j]
    for i in range(4):
        for j in range(4):
            if row0 + i < rows and col0 + j < cols:
                out[row0 + i, col0 + j] = sums[i, j]
    ### END SOLUTION


# %%
check("linear_patch", linear_patch)

# %% [markdown]
# ## 3 · Find the bug: the last copy
#
# `a` has R rows of 64 numbers. The kernel adds up each column and writes the sums in reverse order. One block of 64
# threads streams the rows through two places in shared memory: while it adds one row, the copy of the next one is on
# its way. Each thread reads what another one has copied.
#
# On a GPU it may pass any number of tests. What is it that the last round does not wait for? (`observe` knows. The
# lesson's sentence about groups does, too.)


# %%
@cuda.jit
def mirrored_sums(a, out):
    tile = cuda.shared.array(128, float32)  # two rows
    i = uint32(cuda.threadIdx.x)
    rows = uint32(a.shape[0])
    ptx.cp_async_4(tile, i, a, i, 4)
    ptx.cp_async_commit()
    total = float32(0.0)
    row = uint32(0)
    while row < rows:
        after = uint32(row + uint32(1))
        if after < rows:
            ptx.cp_async_4(tile, uint32(after % uint32(2) * uint32(64) + i), a, uint32(after * uint32(64) + i), 4)
            ptx.cp_async_commit()
        ptx.cp_async_wait(1)  # the newest group may still be on its way: that is the next row
        cuda.syncthreads()
        total += tile[row % uint32(2) * uint32(64) + uint32(63) - i]
        cuda.syncthreads()
        row = after
    out[i] = total


### BEGIN SOLUTION
@cuda.jit
def mirrored_sums(a, out):
    tile = cuda.shared.array(128, float32)  # two rows
    i = uint32(cuda.threadIdx.x)
    rows = uint32(a.shape[0])
    ptx.cp_async_4(tile, i, a, i, 4)
    ptx.cp_async_commit()
    total = float32(0.0)
    row = uint32(0)
    while row < rows:
        after = uint32(row + uint32(1))
        if after < rows:
            ptx.cp_async_4(tile, uint32(after % uint32(2) * uint32(64) + i), a, uint32(after * uint32(64) + i), 4)
        ptx.cp_async_commit()  # in every round: in the last one the group is empty, and the wait still counts right
        ptx.cp_async_wait(1)
        cuda.syncthreads()  # this row is everybody's
        total += tile[row % uint32(2) * uint32(64) + uint32(63) - i]
        cuda.syncthreads()  # everybody has read it: its place may be filled again
        row = after
    out[i] = total


### END SOLUTION

# %%
check("mirrored_sums", mirrored_sums)

# %% [markdown]
# ## 4 · Predict: who holds it?
#
# `mma.sync` m16n8k16, as in the lesson's picture. Without looking at it: which lane holds
#
# - `a[11, 6]`, and in which of its registers a0 to a3?
# - `b[13, 2]`, and in which of b0 and b1?
# - the sum at row 2, column 7, and in which of c0 to c3?

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
# ## 5 · One product on the tensor cores
#
# In float16, `a` is 16 T × 16 and `b` is 16 × 8; `out` is 16 T × 8 in float32. Each block is one warp, and computes 16
# rows of `out` with a single instruction:
#
# `c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)`
#
# What is missing is who loads what: a0 to a3, b0 and b1, and where the four sums go. They begin at `float32(0.0)`.
# `ptx.pack_half2(x, y)` puts two float32 numbers into one register as float16, the first into the low half.


# %%
@cuda.jit
def one_mma(a, b, out):
    lane = uint32(cuda.threadIdx.x)
    g, q = uint32(lane // uint32(4)), uint32(lane % uint32(4))
    top = uint32(uint32(cuda.blockIdx.x) * uint32(16))  # the first of this block's rows of a and out
    ### BEGIN SOLUTION
    row, col = uint32(top + g), uint32(uint32(2) * q)
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
# ## 6 · From a blank page: a linear layer on the tensor cores
#
# `x @ w.T` once more, now in float16: `x` is (16 T, 16 S), `w` is (8 C, 16 S), `out` is (16 T, 8 C) in float32. A block
# is one warp and computes 16 × 8 elements of `out`: rows from 16 · blockIdx.y, columns from 8 · blockIdx.x. It walks
# along K in steps of 16 and gives the four sums of one product to the next.
#
# Look at what the instruction wants of `b`: two neighbours down a column. In `w`, whose rows are the columns of `b`,
# these lie side by side. So the weights need not be transposed, which is why libraries store them in this way.

# %%
linear_mma = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def linear_mma(x, w, out):
    lane = uint32(cuda.threadIdx.x)
    g, pair = uint32(lane // uint32(4)), uint32(lane % uint32(4) * uint32(2))
    row = uint32(uint32(cuda.blockIdx.y) * uint32(16) + g)
    left = uint32(uint32(cuda.blockIdx.x) * uint32(8))
    n = uint32(left + g)
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
    col = uint32(left + pair)
    out[row, col], out[row, col + 1] = c0, c1
    out[row + 8, col], out[row + 8, col + 1] = c2, c3


### END SOLUTION

# %%
check("linear_mma", linear_mma)

# %% [markdown]
# ## 7 · Predict: bytes per flop
#
# The pipelined kernel at M = N = K = 4,096 on a GPU with 132 multiprocessors. A block computes 128 × 128 elements, two
# blocks fit on a multiprocessor.
#
# - `loaded`: how many numbers does one block load from global memory in all?
# - `flop_per_byte`: how many flops does it do for each byte of them?
# - `rounds`: as many blocks run at a time as fit on the whole GPU. How many rounds do all blocks take, the last one
#   counted whole?
# - `ring_bytes`: how many bytes of shared memory does a block use? Three pairs of tiles, 16 steps of k each, and a line
#   has 128 + 4 numbers of `a` and 128 of `b`.

# %%
loaded = None
flop_per_byte = None
rounds = None
ring_bytes = None
### BEGIN SOLUTION
loaded = 2 * 128 * 4096
flop_per_byte = 2 * 128 * 128 * 4096 // (4 * loaded)  # 32
rounds = -(-32 * 32 // (2 * 132))  # 1,024 blocks, 264 at a time: 3.9
ring_bytes = 3 * 16 * (128 + 4 + 128) * 4  # more than 48 KB
### END SOLUTION

# %%
check("predict_traffic", loaded=loaded, flop_per_byte=flop_per_byte, rounds=rounds, ring_bytes=ring_bytes)

# %% [markdown]
# Compare `flop_per_byte` with the intensity at which both limits bind, from the lesson's first table. Besides, most of
# those bytes come from the L2 cache: all blocks in a row of tiles read the same rows of `a`. And how full is the last
# round? That is the price of a grid that does not divide evenly.
