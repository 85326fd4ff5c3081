# %% [markdown]
# # 18 · Histogram: exercises
#
# Five exercises: private bins for another key, a sum that begins anew, a bug on the way down a tree, a prediction, and
# from a blank page a compaction. `hint("count_bits")` gives a hint, and a second call a better one.

# %%
import numpy as np
from numba import int32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · How many bits are set?
#
# `x` holds uint32 numbers. `out` (33,) int32 is full of zeros when the kernel starts. Afterwards `out[k]` is how many
# numbers have exactly k bits set; `cuda.popc(x[i])` is that number for one of them. There are two blocks of 64 threads,
# and `x` may be longer than that.


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
