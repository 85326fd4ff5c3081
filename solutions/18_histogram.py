# %% [markdown]
# # 18 · Histogram: exercises
#
# Three exercises: private bins for another key, a prediction, and another atomic from a blank page.
# `hint("count_bits")` gives a hint, and a second call a better one.

# %%
from numba import int32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · How many bits are set?
#
# `x` is an array of uint32, and `out`, 33 elements of int32, is full of zeros when the kernel starts. Afterwards `out[k]`
# is the number of elements of `x` with exactly k bits set; `cuda.popc(x[i])` counts the bits of one. For example,
# `[0, 3, 5]` gives `out[0] == 1` and `out[2] == 2`. There are two blocks of 64 threads, and `x` may be longer than that.


# %%
@cuda.jit
def count_bits(x, out):
    counts = cuda.shared.array(33, int32)
    thread = cuda.threadIdx.x
    ### BEGIN SOLUTION
    if thread < 33:
        counts[thread] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, cuda.popc(x[i]), 1)
    cuda.syncthreads()  # all threads of the block have counted
    if thread < 33:
        cuda.atomic.add(out, thread, counts[thread])
    ### END SOLUTION


# %%
check("count_bits", count_bits)

# %% [markdown]
# ## 2 · Predict: how many atomics?
#
# On paper:
#
# - `lost_at_most`: a kernel with `out[x[i]] += 1` and no atomic runs with two blocks of 64 threads. All 128 elements are
#   equal, and the lanes of a warp read together and write together. What is the largest value that the bin can end with?
# - `global_atomics`: 40 blocks count 1,000,000 random bytes in 256 private bins each. How many atomics on global memory
#   do they make at most?
# - `shared_atomics`: and how many on shared memory?
# - `joined`: now the lanes of a warp join equal values in software before they add, and all 1,000,000 bytes are equal.
#   How many atomics on shared memory are left?

# %%
lost_at_most = None
global_atomics = None
shared_atomics = None
joined = None
### BEGIN SOLUTION
lost_at_most = 4  # 1 for each of the four warps
global_atomics = 40 * 256  # one for each bin of each block
shared_atomics = 1_000_000  # one for each element
joined = 1_000_000 // 32  # one for each warp's 32 elements
### END SOLUTION

# %%
check("predict_atomics", lost_at_most=lost_at_most, global_atomics=global_atomics, shared_atomics=shared_atomics,
      joined=joined)


# %% [markdown]
# ## 3 · From a blank page: where each value comes first
#
# The elements of `x` are uint8 below 16, and `out` has 16 elements of int32, all equal to `x.size` when the kernel
# starts. Afterwards `out[v]` is the index of the first element that equals v; for values that never occur it stays
# `x.size`. For example, `[5, 2, 5]` gives `out[5] == 0`, `out[2] == 1` and 3 everywhere else.
#
# Write `first_seen(x, out)` from the decorator down, for two blocks of 64 threads and any length of `x`.

# %%
first_seen = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def first_seen(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.min(out, x[i], i)


### END SOLUTION

# %%
check("first_seen", first_seen)
