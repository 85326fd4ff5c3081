# %% [markdown]
# # 09 · Copies that run ahead: exercises
#
# Three exercises: a prediction about groups of copies, a bug in a ring of two stages, and a ring of three from a blank
# page. `hint("predict_groups")` gives a hint, and a second call a better one.
#
# They run without a GPU: the CPU device delivers a copy at the wait for its group, as late as it is allowed to arrive.

# %%
from numba import float32

from labkit import check, cuda, hint, ptx

# %% [markdown]
# ## 1 · Predict: groups and stages
#
# A kernel has a ring of stages and copies as the lesson's does: before the loop it closes one group of copies for each
# stage but one, and in every step one more, which is empty when there is nothing left to copy. For 3 stages and 5 steps
# the lesson's table says: each wait leaves 1 group in flight, in step 1 that is group 2, and 2 groups are empty.
#
# Now there are 4 stages and 10 steps. Steps, tiles, groups and stages are counted from 0.
#
# - `pending`: what is the n of `cp_async_wait(n)`, if as many copies as possible should be in flight?
# - `newest`: when the wait of step 3 returns, what is the newest group that may be in flight?
# - `stage`: into which stage goes the copy that step 3 starts?
# - `empty`: how many of all groups are empty?
# - `ring_bytes`: a stage holds 128 × 32 float16 values of `a` and 32 × 128 of `b`. How many bytes does the ring take?

# %%
pending = None
newest = None
stage = None
empty = None
ring_bytes = None
### BEGIN SOLUTION
pending = 4 - 2  # in step s, groups up to s + 2 are closed, and group s must be complete
newest = 3 + 2
stage = (3 + 3) % 4
empty = (3 + 10) - 10
ring_bytes = 4 * (128 * 32 + 32 * 128) * 2
### END SOLUTION

# %%
check("predict_groups", pending=pending, newest=newest, stage=stage, empty=empty, ring_bytes=ring_bytes)

# %% [markdown]
# A fourth stage needs another 16 KB and lets every copy take three steps. Whether it pays depends on how much waiting is
# left with three.
#
# ## 2 · Find the bug: the last copy
#
# `a` has R rows of 64 elements. The kernel adds up each column and writes the sums in reverse order. One block of 64
# threads streams the rows through two stages in shared memory: while it adds one row, the copy of the next one is in
# flight. Each thread reads what another one has copied.
#
# On a GPU it may pass any number of tests. Which row does the last round not wait for? `observe` finds it, and the
# lesson's table of groups shows why.


# %%
@cuda.jit
def mirrored_sums(a, out):
    tile = cuda.shared.array(128, float32)  # two rows
    i = cuda.threadIdx.x
    rows = a.shape[0]
    ptx.cp_async_4(tile, i, a, i, 4)
    ptx.cp_async_commit()
    total = float32(0.0)
    row = 0
    while row < rows:
        after = row + 1
        if after < rows:
            ptx.cp_async_4(tile, after % 2 * 64 + i, a, after * 64 + i, 4)
            ptx.cp_async_commit()
        ptx.cp_async_wait(1)  # the newest group may still be on its way: that is the next row
        cuda.syncthreads()
        total += tile[row % 2 * 64 + 63 - i]
        cuda.syncthreads()
        row = after
    out[i] = total


### BEGIN SOLUTION
@cuda.jit
def mirrored_sums(a, out):
    tile = cuda.shared.array(128, float32)  # two rows
    i = cuda.threadIdx.x
    rows = a.shape[0]
    ptx.cp_async_4(tile, i, a, i, 4)
    ptx.cp_async_commit()
    total = float32(0.0)
    row = 0
    while row < rows:
        after = row + 1
        if after < rows:
            ptx.cp_async_4(tile, after % 2 * 64 + i, a, after * 64 + i, 4)
        ptx.cp_async_commit()  # in every round: in the last one the group is empty, and the wait still counts right
        ptx.cp_async_wait(1)
        cuda.syncthreads()  # this row is everybody's
        total += tile[row % 2 * 64 + 63 - i]
        cuda.syncthreads()  # everybody has read it: its place may be filled again
        row = after
    out[i] = total


### END SOLUTION

# %%
check("mirrored_sums", mirrored_sums)

# %% [markdown]
# ## 3 · A ring of three
#
# `a` has R rows of 64 elements, and `out` has 64: `out[i]` is the sum of column 63 - i. With R = 2 and rows of 4 instead
# of 64, `[[1, 2, 3, 4], [10, 20, 30, 40]]` gives `[44, 33, 22, 11]`.
#
# One block of 64 threads streams the rows through a ring of three stages in shared memory. While a row is added, the
# copies of the next two are in flight. Each thread reads what another one has copied, and one barrier per row is enough.
# Copy with `ptx.cp_async_4(tile, offset, a, r * 64 + i, 4)`. R may be 1.

# %%
ring_of_three = None  # write the kernel: ring_of_three(a, out)
### BEGIN SOLUTION
@cuda.jit
def ring_of_three(a, out):
    tile = cuda.shared.array(192, float32)  # three rows
    i = cuda.threadIdx.x
    rows = a.shape[0]
    for row in range(2):
        if row < rows:
            ptx.cp_async_4(tile, row * 64 + i, a, row * 64 + i, 4)
        ptx.cp_async_commit()
    total = float32(0.0)
    for row in range(rows):
        ptx.cp_async_wait(1)
        cuda.syncthreads()  # this row is everybody's, and everybody has read the last one
        after = row + 2
        if after < rows:
            ptx.cp_async_4(tile, after % 3 * 64 + i, a, after * 64 + i, 4)
        ptx.cp_async_commit()
        total += tile[row % 3 * 64 + 63 - i]
    out[i] = total
### END SOLUTION

# %%
check("ring_of_three", ring_of_three)
