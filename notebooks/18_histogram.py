# %% [markdown]
# # 18 · Histogram and scan
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how many threads can add to the same number, what that costs, and how private copies make it cheap
# - how a running sum, which looks like one long chain of additions, is computed in a few steps
# - how one pass over the data can be enough, although every block needs the result of all blocks before it

# %% [markdown]
# ## The problem
#
# In the lessons so far, a thread knew in advance where its result belonged. A *histogram* counts how often each value
# occurs, and which of the counters, or *bins*, a thread has to increment depends on the element that it reads. The next
# cell begins with a kernel that does it in the obvious way.

# %% [markdown]
# ## Prediction
#
# Two blocks of 64 threads read 128 elements, all of them equal to 3. What will `out[3]` be on a GPU? Write down a
# number or a range of numbers. Then let `observe` look at every access.

# %%
import numpy as np

from labkit import agree, cuda, device, ladder, measure, observe, plots, show_source
from labkit.kernels import histogram
from labkit.kernels.ops.histogram import HISTOGRAM


@cuda.jit
def count_plainly(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[x[i]] += 1


report = observe(count_plainly[2, 64], np.full(128, 3, np.uint8), np.zeros(8, np.int32))
print(*report.races, sep="\n")

# %% [markdown]
# `out[x[i]] += 1` is three steps: read, add, write. If two threads both read 5, both write 6, and one of the two
# elements is not counted. On a GPU the 32 lanes of a warp read together and write together: expect 1 to 4, at most one
# for each of the four warps. (The CPU device runs one thread after the other, and its result would happen to be right.)

# %% [markdown]
# ## Atomics
#
# An *atomic* does all three steps as one: between its read and its write no other thread can touch the element. That is
# all it guarantees. It says nothing about the order in which threads get their turn, and it is no barrier.

# %%
show_source(histogram.histogram_global_kernel)

# %% [markdown]
# An atomic on global memory is carried out in the L2 cache, which all SMs share. Atomics on different addresses run
# side by side. Those on the same address queue, unless the hardware joins them, so the time depends on the data.
#
# Take 2,048 elements and 256 bins. In the first input all values are equally likely, in the second many elements have
# the same value, and in the third all of them. How many atomics does the kernel make for each? And how long is the
# queue within a warp: how many of its 32 lanes address the same bin?

# %%
rng = np.random.default_rng(0)
inputs = {share: HISTOGRAM.inputs(rng, N=2048, B=256, S=share)[0] for share in (0, 50, 100)}
print("% equal   atomics   queue in a warp   queue in all")
for share, x in inputs.items():
    out = np.zeros(256, np.int32)
    counts = observe(histogram.histogram_global_kernel[8, 256], x, out).counts
    queues = [np.bincount(warp).max() for warp in x.reshape(-1, 32)]
    print(f"{share:7}{counts['global_atomics']:10}{np.mean(queues):18.1f}{out.max():15}")

# %% [markdown]
# The number of atomics is the same, the queues are not.

# %% [markdown]
# ## Private bins
#
# The counts of a block can be kept apart from those of the other blocks until the end. Each block has a histogram of
# its own in shared memory, where atomics are faster and the other blocks do not queue. When a block has counted all its
# elements, it adds its bins to global memory.

# %%
show_source(histogram.histogram_shared_kernel)

# %% [markdown]
# The loop lets a fixed number of blocks take all elements, each thread one in every round. Two blocks of 256 threads
# count the 2,048 elements above in 256 bins. How many atomics on global memory are left? And does it matter how many
# blocks there are?

# %%
launches = {
    "global": (histogram.histogram_global_kernel[8, 256],),
    "shared, 8 blocks": (histogram.histogram_shared_kernel[8, 256, 0, 4 * 256],),
    "shared, 2 blocks": (histogram.histogram_shared_kernel[2, 256, 0, 4 * 256],),
    "one for each warp": (histogram.histogram_copies_kernel[2, 256, 0, 8 * 4 * 256], np.uint32(8)),
    "lanes joined": (histogram.histogram_matched_kernel[2, 256, 0, 8 * 4 * 256], np.uint32(8)),
}
print("atomics on               global    shared   global, all equal    shared, all equal")
for name, (launch, *rest) in launches.items():
    random, equal = (observe(launch, inputs[share], np.zeros(256, np.int32), *rest).counts for share in (0, 100))
    print(f"{name:20}{random['global_atomics']:11}{random['shared_atomics']:10}{equal['global_atomics']:20}"
          f"{equal['shared_atomics']:21}")

# %% [markdown]
# At most blocks times bins are left, and a bin that stayed empty costs nothing. That is why there should be only as
# many blocks as the SMs can hold, and not one for each 256 elements.
#
# Two more ideas are in the table. With *a histogram for each warp*, two warps of a block do not queue for the same bin
# either. And the lanes of a warp can join: `match_any_sync` tells each lane which others hold the same value, the
# lowest of them adds their number, and 32 equal values cost one atomic. Does either of them pay? The last rung has one
# histogram for each block again, and loads 16 elements at once. Which rung loses the most when all elements are equal,
# and which the least?

# %%
agree(HISTOGRAM)

# %%
def times(op, **size):
    """The ladder of this GPU beside the one that was recorded on the H200, or that one alone."""
    recorded = measure.recorded_ladder(op.name, size, gpu="NVIDIA H200")
    return plots.ladder(ladder(op, size) if device.on_gpu() else recorded, recorded)


times(HISTOGRAM, N=2**28, B=256, S=0)

# %%
times(HISTOGRAM, N=2**28, B=256, S=100)

# %% [markdown]
# With equal elements the atomics on global memory take nearly three{{ if near(global_slowdown, 2.85) }} times as long
# on the H200. Only the joined lanes gain, {{ us['histogram', 'matched', 100]:.0f }} us instead of
# {{ us['histogram', 'matched', 0]:,.0f }}. The other private histograms take as long as before{{ if unaffected }},
# although all 32 lanes of a warp address the same bin. The reason is in the machine code. An atomic on shared memory
# that adds the constant 1, and whose return value is not used, is compiled to `ATOMS.POPC.INC`, which counts the lanes
# with the same bin and adds their number at once. So the hardware joins equal lanes by itself. `match_any_sync` only
# costs time: it takes the different values of a warp one after another, and with random values its kernel is
# {{ words(matched_slowdown) }} times slower. A histogram for each warp gains nothing{{ if copies_gain_nothing }}
# either. Wide loads do: the last rung takes less than a tenth{{ if below_tenth }} of the time of PyTorch's `bincount`,
# which `torch.compile` calls as it is.
#
# `bincount` is not the one to beat, though. CUB, NVIDIA's library of such algorithms, has a histogram in CUDA C++. On
# the H200 it takes {{ us['histogram', 'CUB', 0]:.0f }} us for random values, where the last rung takes
# {{ us['histogram', 'vectorized', 0]:.0f }}, and {{ us['histogram', 'CUB', 100]:.0f }} us for equal ones. So it gets
# faster where an atomic in shared memory joins all lanes, and mine does not. It must be something else that mine waits
# for. (These times, but for the longest, are in CUDA graphs. The figures' rates are those of single launches.)

# %% [markdown]
# ## What I learned
#
# - Atomics on one address of global memory queue. In shared memory the hardware joins the lanes that add 1.
# - Private copies, joined at the end, turn many atomics that meet into few.
# - Fewer steps, fewer additions and fewer bytes are three different aims, and each has its own algorithm.
# - A block may wait for another one if it is certain that the other has started.

# %% [markdown]
# ## Resources
#
# - [CUDA C++ Programming Guide: Atomic Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#atomic-functions)
# - [G. Blelloch: Prefix Sums and Their Applications (1990)](https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf)
# - [M. Harris, S. Sengupta, J. Owens: Parallel Prefix Sum (Scan) with CUDA](https://developer.nvidia.com/gpugems/gpugems3/part-vi-gpu-computing/chapter-39-parallel-prefix-sum-scan-cuda)
# - [D. Merrill, M. Garland: Single-pass Parallel Prefix Scan with Decoupled Look-back (2016)](https://research.nvidia.com/publication/2016-03_single-pass-parallel-prefix-scan-decoupled-look-back)

# %% [markdown]
# ## Try it
#
# - `pictures.tree((1,) * 16)`: what does the last row hold, and why?
# - Count with `observe` how many bank conflicts are left if the gap comes after every 16 elements.
# - Change `take_places` so that it sorts indices by a key of bytes. Are equal keys still in order?
#
# Next: **fused masked softmax**, where the reductions of lesson 15 meet the scores of attention.

# %% [numbers]
# scans = ('hillis_steele', 'blelloch', 'padded', 'warps')
# us = {**{('histogram', name, S): row('histogram', name, N=2**28, B=256, S=S).graph_us or row('histogram', name,
#       N=2**28, B=256, S=S).us for name in ('global', 'shared', 'copies', 'matched', 'vectorized', 'PyTorch', 'CUB')
#       for S in (0, 100)}, **{('scan', name): row('scan', name, N=2**27).graph_us or row('scan', name, N=2**27).us for
#       name in ('hillis_steele', 'blelloch', 'padded', 'warps', 'reduce_first', 'look_back', 'look_back_warp',
#       'PyTorch')}}
# global_slowdown = us['histogram', 'global', 100] / us['histogram', 'global', 0]
# unaffected = all(abs(us['histogram', name, 100] / us['histogram', name, 0] - 1) < 0.02 for name in ('shared',
#                  'copies', 'vectorized'))
# matched_slowdown = us['histogram', 'matched', 0] / us['histogram', 'copies', 0]
# copies_gain_nothing = us['histogram', 'copies', 0] > us['histogram', 'shared', 0]
# below_tenth = us['histogram', 'vectorized', 0] / us['histogram', 'PyTorch', 0] < 0.1
# blelloch_slowest = us['scan', 'blelloch'] == max(us['scan', name] for name in scans)
# padded_overtakes = us['scan', 'padded'] < us['scan', 'hillis_steele']
# shuffles_lead = us['scan', 'warps'] < us['scan', 'padded']
# reduce_first_gain = us['scan', 'warps'] / us['scan', 'reduce_first']
# look_back_slower = us['scan', 'look_back'] > us['scan', 'reduce_first']
# of_bound = 1000 * row('scan', 'look_back_warp', N=2**27).bound_ms / us['scan', 'look_back_warp']
# cub_over_ours = us['scan', 'PyTorch'] / us['scan', 'look_back_warp']
