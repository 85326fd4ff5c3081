# %% [markdown]
# # 19 · Scan: exercises
#
# Five exercises: private bins for another key, a sum that begins anew, a bug on the way down a tree, a prediction, and
# from a blank page a compaction. `hint("count_bits")` gives a hint, and a second call a better one.

# %%
import numpy as np
from numba import int32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · A sum that begins anew
#
# One block of 128 threads computes running sums of up to 128 int32 numbers, inclusive ones, and `heads` (int32) says
# where a sum begins anew: `out[i]` is the sum from the last place j ≤ i with `heads[j] == 1` up to i. If there is none,
# it is the sum from the beginning. This is called a *segmented scan*. Seven steps in the manner of Hillis and Steele
# are enough. The sum of an element no longer grows once a head is in it.


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
# An exclusive scan of each row by Blelloch's algorithm: `x` and `out` are (R, 128) int32, and a block of 64 threads
# takes a row. The kernel is wrong now and then, on some GPUs.


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
# ## 3 · Predict: work, atomics, bytes
#
# On paper:
#
# - `hillis_additions`: a block scans 512 elements in the manner of Hillis and Steele. How many additions does it make?
# - `blelloch_additions`: and by Blelloch's tree, up and down together?
# - `global_atomics`: 40 blocks count 1,000,000 random bytes in 256 private bins each. How many atomics on global memory
#   are made at most?
# - `look_back_mb`: how many MB (10⁶ bytes) does a single pass with look-back read and write, to scan 1,000,000 int32,
#   without its tiles' states? And `reduce_first_mb`: how many does the scan that reduces first, without its totals?
# - `rounds`: a warp looks back at 32 tiles at a time. The nearest tile with a known sum is 70 tiles before its own, and
#   of all tiles between the totals are known. How many times does the warp look?

# %%
hillis_additions = None
blelloch_additions = None
global_atomics = None
look_back_mb = None
reduce_first_mb = None
rounds = None
### BEGIN SOLUTION
hillis_additions = 9 * 512 - 511  # in the step with distance d, 512 - d threads add: 1 + 2 + ... + 256 = 511 do not
blelloch_additions = 2 * 511  # one for each inner node of the tree, twice
global_atomics = 40 * 256  # one for each bin of each block
look_back_mb = 8  # read once, write once
reduce_first_mb = 12  # read twice, write once
rounds = 3  # tiles 1 to 32 before it, 33 to 64, 65 to 96
### END SOLUTION

# %%
check("predict_scan", hillis_additions=hillis_additions, blelloch_additions=blelloch_additions,
      global_atomics=global_atomics, look_back_mb=look_back_mb, reduce_first_mb=reduce_first_mb, rounds=rounds)


# %% [markdown]
# ## 4 · From a blank page: what is positive, packed
#
# `x` has up to 128 int32 numbers, and one block of 128 threads runs. The positive ones go to the beginning of `out`, in
# their order. `out` is as long as `x` and full of −1 when the kernel starts; what lies behind the packed numbers stays
# so. Write `pack_positive(x, out)` from the decorator down.

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
# With `cuda.ballot_sync` and `cuda.popc` a warp finds the places of its elements without a loop: each lane counts the
# bits below its own.
