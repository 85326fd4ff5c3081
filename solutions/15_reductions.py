# %% [markdown]
# # 15 · Reductions: exercises
#
# Five exercises: a reduction by shuffles, a prediction, a barrier that is missing, a test that would have found it, and a
# kernel from a blank page.
# `hint("row_range")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint, observe

# %% [markdown]
# ## 1 · From the lowest to the highest
#
# For each row, compute the largest element minus the smallest: `x` is (R, C), `out` has R elements, and a block has two
# warps, one row each. Every lane has already found the largest and the smallest of its elements. Now let the lanes
# exchange them by `cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)`, five times for each of the two, and let one lane
# store the result.


# %%
@cuda.jit
def row_range(x, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < x.shape[0]:  # the same for all lanes of a warp
        largest, smallest = float32(-math.inf), float32(math.inf)
        for col in range(lane, x.shape[1], 32):
            largest = max(largest, x[row, col])
            smallest = min(smallest, x[row, col])
        ### BEGIN SOLUTION
        for distance in (16, 8, 4, 2, 1):
            largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))
            smallest = min(smallest, cuda.shfl_xor_sync(0xFFFFFFFF, smallest, distance))
        if lane == 0:
            out[row] = largest - smallest
        ### END SOLUTION


# %%
check("row_range", row_range)

# %% [markdown]
# ## 2 · Predict: 512 threads
#
# A block of 512 threads adds up 512 values. On paper:
#
# - `steps`: how many steps does the tree have?
# - `shuffles`: with two levels, in how many shuffles does one thread take part?
# - `stored`: with two levels, how many values do all threads together store in shared memory?

# %%
steps = None  # of the tree
shuffles = None  # of one thread, with two levels
stored = None  # values stored in shared memory, with two levels
### BEGIN SOLUTION
steps = 9  # 512 = 2 ** 9
shuffles = 10  # five within the warp, five over the warps' sums
stored = 16  # one for each warp
### END SOLUTION

# %%
check("predict_steps", steps=steps, shuffles=shuffles, stored=stored)

# %% [markdown]
# ## 3 · Find the bug: one array, two reductions
#
# The kernel subtracts from each row its mean and divides by the largest distance from that mean. Two reductions use the
# same shared memory, a sum and a maximum.
#
# It is right on some GPUs, most of the time.


# %%
@cuda.jit
def centre(x, out):
    shared = cuda.shared.array(64, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    for col in range(thread, x.shape[1], 64):
        total += x[row, col]
    shared[thread] = total
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride //= 2
    mean = shared[0] / float32(x.shape[1])

    far = float32(0.0)
    for col in range(thread, x.shape[1], 64):
        far = max(far, abs(x[row, col] - mean))
    shared[thread] = far
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if thread < stride:
            shared[thread] = max(shared[thread], shared[thread + stride])
        cuda.syncthreads()
        stride //= 2
    for col in range(thread, x.shape[1], 64):
        out[row, col] = (x[row, col] - mean) / shared[0]


### BEGIN SOLUTION
@cuda.jit
def centre(x, out):
    shared = cuda.shared.array(64, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    for col in range(thread, x.shape[1], 64):
        total += x[row, col]
    shared[thread] = total
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride //= 2
    mean = shared[0] / float32(x.shape[1])
    cuda.syncthreads()  # all have read the sum: shared is free to overwrite

    far = float32(0.0)
    for col in range(thread, x.shape[1], 64):
        far = max(far, abs(x[row, col] - mean))
    shared[thread] = far
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if thread < stride:
            shared[thread] = max(shared[thread], shared[thread + stride])
        cuda.syncthreads()
        stride //= 2
    for col in range(thread, x.shape[1], 64):
        out[row, col] = (x[row, col] - mean) / shared[0]


### END SOLUTION

# %%
check("centre", centre)

# %% [markdown]
# ## 4 · From a blank page: your CI has no GPU
#
# A kernel `row_sums(x, out)` stores the sum of each row of `x` in `out`. It works with any number of blocks of 64
# threads: block b sums row b, then row b + `gridDim.x`, and so on. Other people will change this kernel, and the machine
# that runs the project's tests has no GPU.
#
# Write the test they need. `assert_row_sums(row_sums)` takes such a kernel and may launch it any number of times. It
# raises an AssertionError if a sum is wrong, and also if the kernel has a bug that shows only on some GPUs, or only now
# and then. If the kernel is right, it returns. A few hundred elements are enough for `x`.

# %%
assert_row_sums = None  # write the function


### BEGIN SOLUTION
def assert_row_sums(row_sums):
    rng = np.random.default_rng(0)
    for rows, columns, blocks in ((3, 130, 2), (2, 5, 2)):  # a second row for a block; rows shorter than a block
        x = rng.random((rows, columns), dtype=np.float32)
        out = np.full(rows, np.nan, np.float32)
        report = observe(row_sums[blocks, 64], x, out)
        assert report.ok, report.findings[0]
        assert np.allclose(out, x.sum(axis=1, dtype=np.float64), rtol=1e-5)


### END SOLUTION

# %%
check("assert_row_sums", assert_row_sums)

# %% [markdown]
# In a project that already has tests, `pytest -p labkit.simt.pytest --cuda-on-cpu --cuda-observe` runs them without a GPU
# and observes every launch. The project needs no other change.
#
# ## 5 · From a blank page: distances
#
# $$\text{out}_r = \sqrt{\sum_c (a_{r,c} - b_{r,c})^2}$$
#
# Write `distances(a, b, out)`: for each row of `a`, its distance from the same row of `b`. Both are (R, C), `out` has R
# elements. A block has 64 threads, which are two warps, and each warp handles one row, of any length. `math.sqrt` works
# in a kernel.

# %%
distances = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def distances(a, b, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < a.shape[0]:  # the same for all lanes of a warp
        total = float32(0.0)
        for col in range(lane, a.shape[1], 32):
            difference = a[row, col] - b[row, col]
            total += difference * difference
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        if lane == 0:
            out[row] = math.sqrt(total)


### END SOLUTION

# %%
check("distances", distances)
