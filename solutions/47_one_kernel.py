# %% [markdown]
# # 47 · One kernel for a token: exercises
#
# Four exercises. Predict what a ring covers and which launches hang, compute a softmax with two joins in one launch, let
# blocks wait only for their neighbours, and write the copying warp of a ring. `hint("predict_joins")` gives a hint, and a
# second call a better one.
#
# They run without a GPU: on the CPU device, blocks that wait for one another take turns, and a wait that no block can end
# is an error.

# %%
import math

from numba import float32, uint64

from labkit import check, cuda, hint, ptx

# %% [markdown]
# ## 1 · Predict: what a ring covers, and which launches hang
#
# On paper: a GPU has 100 SMs, and its memory delivers 3,000 bytes per nanosecond, shared evenly among them. A persistent
# kernel has one block per SM, and a ring of 45,000 bytes in each block. At a join a block waits for 2 microseconds. How
# many bytes must a ring hold to keep the memory busy for the whole wait? How many stages of 16,384 bytes does that take,
# at least? With the ring of 45,000 bytes, for how many nanoseconds of a join is the memory idle? And for how many
# microseconds in all, in a model of 20 layers with 5 joins each?
#
# Each block of another kernel uses 90,000 bytes of shared memory, and an SM of this GPU has 230,000. All blocks wait for
# one another at a join. The kernel is launched with 100, 150, 200, 201 and 300 blocks: how many of these five launches
# hang?

# %%
ring_bytes = None  # needed to keep the memory busy for 2 microseconds
stages = None  # of 16,384 bytes
idle_ns = None  # at each join, with a ring of 45,000 bytes
idle_us = None  # at all joins of the model
hang = None  # of the five launches
### BEGIN SOLUTION
ring_bytes = 60_000
stages = 4
idle_ns = 500
idle_us = 50
hang = 2
### END SOLUTION

# %%
check("predict_joins", ring_bytes=ring_bytes, stages=stages, idle_ns=idle_ns, idle_us=idle_us, hang=hang)

# %% [markdown]
# ## 2 · From a blank page: a softmax with two joins
#
# `out` should be the softmax of a long vector `x` (n,), float32, in one launch of three blocks of 64 threads:
#
# $$\text{out}_i = \frac{e^{x_i - m}}{\sum_k e^{x_k - m}}, \qquad m = \max_k x_k$$
#
# Each block processes its share of the elements, and all blocks need the maximum and the sum of the whole vector. So
# there are three phases, with a join after the first and another after the second. `largest` and `sums` (3,), float32,
# have one element per block. `counters` (1,), uint32, is 0 when the kernel starts. Do not reset it between the joins:
# wait for a larger value at the second one. The parameters are `x`, `largest`, `sums`, `counters` and `out`.

# %%
softmax_joined = None  # write the kernel here: def softmax_joined(x, largest, sums, counters, out)
### BEGIN SOLUTION
@cuda.jit(device=True)
def join(counters, target):
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        cuda.atomic.add(counters, 0, 1)
        while cuda.atomic.add(counters, 0, 0) < target:
            pass
        cuda.threadfence()
    cuda.syncthreads()


@cuda.jit
def softmax_joined(x, largest, sums, counters, out):
    of_threads = cuda.shared.array(64, float32)
    thread, block = cuda.threadIdx.x, cuda.blockIdx.x
    m = float32(-math.inf)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        m = max(m, x[i])
    of_threads[thread] = m
    cuda.syncthreads()
    if thread == 0:
        for other in range(64):
            m = max(m, of_threads[other])
        largest[block] = m
    join(counters, cuda.gridDim.x)

    m = max(largest[0], max(largest[1], largest[2]))
    total = float32(0.0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += math.exp(x[i] - m)
    of_threads[thread] = total
    cuda.syncthreads()
    if thread == 0:
        for other in range(1, 64):
            total += of_threads[other]
        sums[block] = total
    join(counters, 2 * cuda.gridDim.x)

    total = sums[0] + sums[1] + sums[2]
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = math.exp(x[i] - m) / total


### END SOLUTION

# %%
check("softmax_joined", softmax_joined)

# %% [markdown]
# ## 3 · Wait for the neighbours only
#
# Not every phase needs all results of the previous one. Row 0 of `values` (R + 1, n), float32, is given, and each element
# of the following R rows should be the mean of three neighbours in the row before it:
#
# $$\text{values}_{r+1,i} = \frac{\text{values}_{r,i-1} + \text{values}_{r,i} + \text{values}_{r,i+1}}{3}$$
#
# Beyond the edges, elements count as 0. The launch has n / 32 blocks of 32 threads, at most eight, and a thread computes
# element `cuda.grid(1)` of every row. So a block needs only what its left and right neighbours have written. `rounds_of`
# (8,), uint32, counts the rows that each block has written, and is 0 when the kernel starts. After each row but the last,
# a block should add 1 to its own counter, and wait only for those of its neighbours. Block 0 has none on the left, and
# the last block none on the right.


# %%
@cuda.jit
def wait_for_neighbours(rounds_of, values):
    block, i, n = cuda.blockIdx.x, cuda.grid(1), values.shape[1]
    rounds = values.shape[0] - 1
    for r in range(rounds):
        left = values[r, i - 1] if i > 0 else float32(0.0)
        right = values[r, i + 1] if i + 1 < n else float32(0.0)
        values[r + 1, i] = (left + values[r, i] + right) / float32(3.0)
        if r + 1 < rounds:
            ### BEGIN SOLUTION
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                cuda.threadfence()
                cuda.atomic.add(rounds_of, block, 1)
                if block > 0:
                    while cuda.atomic.add(rounds_of, block - 1, 0) < r + 1:
                        pass
                if block + 1 < cuda.gridDim.x:
                    while cuda.atomic.add(rounds_of, block + 1, 0) < r + 1:
                        pass
                cuda.threadfence()
            cuda.syncthreads()
            ### END SOLUTION


# %%
check("wait_for_neighbours", wait_for_neighbours)

# %% [markdown]
# ## 4 · The copying warp
#
# `out` (n,) should be the product of `a` (n, 64) and `x` (64,), float32. A launch has three blocks, and block b computes
# rows b, b + 3, b + 6 and so on. A block has two warps and a ring of two stages of one row each. Warp 0 is given: it
# keeps `x` in registers, and for each row it waits until the next stage is full, multiplies, and arrives at `empty`.
#
# Write the copying warp, warp 1. Thread 32 alone is enough. For each row of this block, in the same order, it should wait
# until the stage is empty, announce 256 bytes at `full`, and start the copy with `ptx.bulk_load(ring, start of the stage,
# a, start of the row, bytes, full, stage)`. Both starts are in elements, counted in `a` as if it were flat. Row number
# `count` of the block, counted from 0, uses stage `count % 2`, in lap `count // 2`.


# %%
@cuda.jit
def copying_warp(a, x, out):
    ring = cuda.shared.array(128, float32, alignment=16)  # two rows
    full, empty = cuda.shared.array(2, uint64), cuda.shared.array(2, uint64)
    thread = cuda.threadIdx.x
    if thread == 0:
        for stage in range(2):
            ptx.mbarrier_init(full, stage, 1)
            ptx.mbarrier_init(empty, stage, 1)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    count = 0
    if thread < 32:
        x_low, x_high = x[thread], x[thread + 32]
        for row in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):
            stage, parity = count % 2, count // 2 % 2
            ptx.mbarrier_wait(full, stage, parity)
            total = ring[stage * 64 + thread] * x_low + ring[stage * 64 + thread + 32] * x_high
            for distance in (16, 8, 4, 2, 1):
                total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
            if thread == 0:
                out[row] = total
                ptx.mbarrier_arrive(empty, stage)
            count += 1
    elif thread == 32:
        ### BEGIN SOLUTION
        for row in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):
            stage, parity = count % 2, count // 2 % 2
            ptx.mbarrier_wait(empty, stage, parity ^ 1)
            ptx.mbarrier_expect_tx(full, stage, 256)
            ptx.bulk_load(ring, stage * 64, a, row * 64, 256, full, stage)
            count += 1
        ### END SOLUTION


# %%
check("copying_warp", copying_warp)
