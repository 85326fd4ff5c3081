# %% [markdown]
# # 19 · Scan: exercises
#
# Four exercises: a sum that starts over, a bug on the way down a tree, a prediction, and a compaction from a blank
# page. `hint("sums_since")` gives a hint, and a second call a better one.

# %%
import numpy as np
from numba import int32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · A sum that starts over
#
# One block of 128 threads computes the inclusive running sums of up to 128 int32 elements, but `heads` (int32) marks
# where a sum starts over: `out[i]` runs from the last head at or before i, that is, the last j ≤ i with `heads[j] == 1`,
# up to i. If there is none, it runs from the beginning. This is called a *segmented scan*. For example,
# `x = [1, 2, 3, 4]` with `heads = [0, 0, 1, 0]` gives `[1, 3, 3, 7]`.
#
# Seven steps of Hillis and Steele are enough. The sum of an element stops growing once a head is in it.


# %%
@cuda.jit
def sums_since(x, heads, out):
    sums, headed = cuda.shared.array(128, int32), cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    sums[i] = x[i] if i < x.size else 0
    headed[i] = heads[i] if i < x.size else 0  # 1 where the sum of this element has a head in it
    cuda.syncthreads()
    distance = 1
    while distance < 128:
        ### BEGIN SOLUTION
        before, head_before = 0, 0
        if i >= distance and headed[i] == 0:
            before, head_before = sums[i - distance], headed[i - distance]
        cuda.syncthreads()
        sums[i] += before
        headed[i] += head_before
        cuda.syncthreads()
        ### END SOLUTION
        distance *= 2
    if i < x.size:
        out[i] = sums[i]


# %%
check("sums_since", sums_since)

# %% [markdown]
# ## 2 · Find the bug: the way down
#
# This kernel scans each row exclusively by Blelloch's algorithm: `x` and `out` are (R, 128) int32, and a block of 64
# threads works on a row. On some GPUs it is wrong now and then.


# %%
@cuda.jit
def tree_scan(x, out):
    shared = cuda.shared.array(128, int32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    shared[thread], shared[thread + 64] = x[row, thread], x[row, thread + 64]
    distance = 1
    while distance < 128:  # up
        cuda.syncthreads()
        right = 2 * distance * (thread + 1) - 1
        if right < 128:
            shared[right] += shared[right - distance]
        distance *= 2
    cuda.syncthreads()
    if thread == 0:
        shared[127] = 0
    cuda.syncthreads()
    while distance > 1:  # down
        distance //= 2
        right = 2 * distance * (thread + 1) - 1
        if right < 128:
            before = shared[right]
            shared[right] += shared[right - distance]
            shared[right - distance] = before
    cuda.syncthreads()
    out[row, thread], out[row, thread + 64] = shared[thread], shared[thread + 64]


### BEGIN SOLUTION
@cuda.jit
def tree_scan(x, out):
    shared = cuda.shared.array(128, int32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    shared[thread], shared[thread + 64] = x[row, thread], x[row, thread + 64]
    distance = 1
    while distance < 128:  # up
        cuda.syncthreads()
        right = 2 * distance * (thread + 1) - 1
        if right < 128:
            shared[right] += shared[right - distance]
        distance *= 2
    cuda.syncthreads()
    if thread == 0:
        shared[127] = 0
    while distance > 1:  # down
        distance //= 2
        cuda.syncthreads()  # the step above has written what this one reads
        right = 2 * distance * (thread + 1) - 1
        if right < 128:
            before = shared[right]
            shared[right] += shared[right - distance]
            shared[right - distance] = before
    cuda.syncthreads()
    out[row, thread], out[row, thread + 64] = shared[thread], shared[thread + 64]


### END SOLUTION

# %%
check("tree_scan", tree_scan)

# %% [markdown]
# ## 3 · Predict: additions, bytes, rounds
#
# On paper:
#
# - `hillis_additions`: a block scans 512 elements as Hillis and Steele do. How many additions does it make?
# - `blelloch_additions`: and with Blelloch's tree, up and down together?
# - `look_back_mb`: how many MB (10⁶ bytes) does a single pass with look-back read and write to scan 1,000,000 int32,
#   leaving aside the states of its tiles?
# - `reduce_first_mb`: and the scan that reduces first, leaving aside the totals?
# - `rounds`: a warp looks back at 32 tiles at a time. The nearest tile whose whole sum is known is 70 tiles before its
#   own, and all tiles in between have published their totals. How many times does the warp look?

# %%
hillis_additions = None
blelloch_additions = None
look_back_mb = None
reduce_first_mb = None
rounds = None
### BEGIN SOLUTION
hillis_additions = 9 * 512 - 511  # in the step with distance d, 512 - d threads add: 1 + 2 + ... + 256 = 511 do not
blelloch_additions = 2 * 511  # one for each inner node of the tree, twice
look_back_mb = 8  # read once, write once
reduce_first_mb = 12  # read twice, write once
rounds = 3  # tiles 1 to 32 before it, 33 to 64, 65 to 96
### END SOLUTION

# %%
check("predict_scan", hillis_additions=hillis_additions, blelloch_additions=blelloch_additions,
      look_back_mb=look_back_mb, reduce_first_mb=reduce_first_mb, rounds=rounds)


# %% [markdown]
# ## 4 · From a blank page: pack the positive elements
#
# `x` has up to 128 int32 elements, and one block of 128 threads runs. Move the positive elements to the beginning of
# `out`, in their order. `out` is as long as `x` and full of −1 when the kernel starts; the rest of it keeps that value.
# For example, `[5, -2, 0, 7]` becomes `[5, 7, -1, -1]`. Write `pack_positive(x, out)` from the decorator down.

# %%
pack_positive = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def pack_positive(x, out):
    places = cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    value = x[i] if i < x.size else 0
    places[i] = 1 if value > 0 else 0
    cuda.syncthreads()
    distance = 1
    while distance < 128:
        before = places[i - distance] if i >= distance else 0
        cuda.syncthreads()
        places[i] += before
        cuda.syncthreads()
        distance *= 2
    if value > 0:
        out[places[i] - 1] = value  # inclusive: the element itself was counted


### END SOLUTION

# %%
check("pack_positive", pack_positive)

# %% [markdown]
# With `cuda.ballot_sync` and `cuda.popc` a warp finds the places of its elements without a loop: each lane counts the set
# bits below its own.
