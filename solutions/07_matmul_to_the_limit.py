# %% [markdown]
# # 07 · To the limit of the CUDA cores: exercises
#
# Four exercises: two thread tiles in registers, and two predictions to work out on paper.
# `hint("linear_patch")` gives a hint, and a second call a better one.

# %%
from numba import float32, uint32

from labkit import check, cuda, hint, ptx

# %% [markdown]
# ## 1 · Predict: a thread tile that is not square
#
# Blocks have 16 × 16 threads, and each thread computes a tile of 6 rows and 4 columns. Tiles are 8 deep. Work out on
# paper:
#
# - `loads`: how many elements does a thread read from shared memory in one step of k?
# - `products`: how many multiply-adds does it do with them?
# - `busy`: for what percentage of the time are the multiply-add units busy at most, if a warp's load from shared memory
#   takes as long as four of its multiply-adds?
# - `tile_bytes`: how many bytes of shared memory does a pair of tiles need, one of `a` and one of `b`?

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
# elements that begins at `row0` and `col0`. No shared memory this time: in each step of k load four elements of `x` into
# `x_part` and four of `w` into `w_part`, with zeros beyond the edges, and multiply each of `x_part` by each of `w_part`.
# Blocks are 8 × 8 threads.


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
# ## 3 · From a blank page: an outer product, four at a time
#
# `out[i, j] = x[i] * y[j]`. `x` has M elements and `y` has N, both multiples of 4, and `out` is (M, N). Blocks are 8 × 8
# threads, and a thread computes the tile of 4 × 4 elements that begins at four times its row and four times its column of
# the grid. Load with `ptx.load_nc4(array, i)`, which returns the four elements from flat index `i` on, and store with
# `ptx.store_global4(array, i, p, q, r, s)`.

# %%
outer_tiles = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def outer_tiles(x, y, out):
    col, row = cuda.grid(2)
    row, col = row * 4, col * 4
    if row < out.shape[0] and col < out.shape[1]:
        a = ptx.load_nc4(x, row)
        b0, b1, b2, b3 = ptx.load_nc4(y, col)
        for i in range(4):
            at = (row + i) * out.shape[1] + col
            ptx.store_global4(out, at, a[i] * b0, a[i] * b1, a[i] * b2, a[i] * b3)


### END SOLUTION

# %%
check("outer_tiles", outer_tiles)

# %% [markdown]
# ## 4 · Predict: bytes per flop
#
# The pipelined kernel at M = N = K = 4,096 on a GPU with 132 SMs. A block computes 128 × 128 elements, and two blocks fit
# on an SM.
#
# - `loaded`: how many elements does one block load from global memory in all?
# - `flop_per_byte`: how many flops does it do per byte of these?
# - `rounds`: as many blocks run at a time as fit on the whole GPU. How many rounds (the waves of lesson 03) do all blocks
#   need, with the last one counted as a whole?
# - `ring_bytes`: how many bytes of shared memory does a block use? It has three pairs of tiles of 16 steps of k each, and
#   a step has 128 + 4 elements of `a` and 128 of `b`.

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
# Compare `flop_per_byte` with the intensity at which both limits bind, in the first table of lesson 06. Besides, most of
# those bytes come from the L2 cache, since all blocks in a row of tiles read the same rows of `a`. And how full is the
# last round? What is missing is the tail.
