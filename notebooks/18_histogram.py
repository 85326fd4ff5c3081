# %% [markdown]
# # 18 · Histogram
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - what goes wrong when threads add to the same counter without coordination
# - what an atomic guarantees, and what it costs when many threads use the same address
# - how private copies turn a long queue into a short one

# %% [markdown]
# ## The problem
#
# In every lesson so far a thread knew in advance where its result would go. A *histogram* counts how often each value
# occurs, and which counter, or *bin*, a thread has to increment depends on the element that it has just read. Here is a
# kernel that does this in the obvious way.

# %%
import numpy as np

from labkit import agree, cuda, device, ladder, measure, observe, plots, show_source, table
from labkit.course.drawings import histogram as pictures
from labkit.kernels import histogram
from labkit.kernels.ops.histogram import HISTOGRAM


@cuda.jit
def count_plainly(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[x[i]] += 1

# %% [markdown]
# ## Prediction
#
# Two blocks of 64 threads read 128 elements, all of them equal to 3. What might `out[3]` be on a GPU, and what will
# `observe` say?

# %%
report = observe(count_plainly[2, 64], np.full(128, 3, np.uint8), np.zeros(8, np.int32))
print(*report.races, sep="\n")

# %% [markdown]
# `out[x[i]] += 1` is three steps: read, add, write. If two threads both read 5, both write 6, and one element is lost.
# The 32 lanes of a warp even read together and write together, so a warp adds 1 where it should add 32. Expect anything
# from 1 to 4, at most one per warp. The CPU device runs one thread after another and would happen to get 128.

# %% [markdown]
# ## Atomics
#
# An *atomic* performs all three steps as one: no other thread can touch the element between its read and its write.
# That is all it guarantees. It does not order the threads, and it is not a barrier.

# %%
show_source(histogram.histogram_global_kernel)

# %% [markdown]
# An atomic on global memory is carried out in the L2 cache, which all SMs share. Atomics on different addresses run in
# parallel, while those on the same address form a queue. So the time depends on the data, as it did for the branches of
# lesson 02.
#
# To see it, let none, half or all of 2,048 elements have the same value, and the others be spread evenly over 256 bins.
# How many atomics does the kernel make in each case, and how many of a warp's 32 lanes meet in one bin?

# %%
rng = np.random.default_rng(0)
inputs = {share: HISTOGRAM.inputs(rng, N=2048, B=256, S=share)[0] for share in (0, 50, 100)}
rows = []
for share, x in inputs.items():
    out = np.zeros(256, np.int32)
    counts = observe(histogram.histogram_global_kernel[8, 256], x, out).counts
    queues = [np.bincount(warp).max() for warp in x.reshape(-1, 32)]
    rows.append((share / 100, counts["global_atomics"], np.mean(queues), out.max()))
table(rows, {"equal": ".0%", "atomics": ",d", "longest queue of a warp": ".1f", "longest queue in all": ",d"})

# %% [markdown]
# Always one atomic per element. The queues are another matter: two lanes meet by chance in the first case, and all 32
# in the last, where 2,048 threads queue for a single address.

# %% [markdown]
# ## Private bins
#
# The solution is not to share until the end. Every block gets its own histogram in shared memory, where atomics are
# faster and other blocks do not queue. When a block has counted all of its elements, it adds its bins to those in
# global memory.

# %% tags=["hide-input"]
pictures.private_bins()

# %%
show_source(histogram.histogram_shared_kernel)

# %% [markdown]
# The grid-stride loop lets a fixed number of blocks share the elements. That matters here. For the 2,048 random
# elements above and 256 bins, how many atomics on global memory are left with eight blocks, and how many with two?

# %%
def atomics(launches):
    """Atomics on global and on shared memory: for random values, and for equal ones."""
    rows = []
    for name, (launch, *rest) in launches.items():
        counts = [observe(launch, inputs[share], np.zeros(256, np.int32), *rest).counts for share in (0, 100)]
        rows.append((name, *(one[kind] for one in counts for kind in ("global_atomics", "shared_atomics"))))
    return table(rows, ["", "global, random", "shared, random", "global, equal", "shared, equal"])


one_histogram = {"global": (histogram.histogram_global_kernel[8, 256],)}
private = {f"shared, {blocks} blocks": (histogram.histogram_shared_kernel[blocks, 256, 0, 4 * 256],)
           for blocks in (8, 2)}
atomics(one_histogram | private)

# %% [markdown]
# At most blocks times bins; empty bins cost nothing. With one block per 256 elements little would be saved, so there
# should be only as many blocks as the SMs can hold.
#
# How much is it worth on the H200? Predict the factor for random values, and say whether it will be larger or smaller
# when all elements are equal.

# %%
def us(rung, share):
    """The recorded time: 2²⁸ bytes, of which this many percent are equal."""
    row = measure.recorded_ladder("histogram", {"N": 2**28, "B": 256, "S": share}, gpu="NVIDIA H200").row(
        f"histogram_{rung}")
    return 1000 * (row.graph or row.timing).p50


table([(name, us(name, 0), us(name, 100)) for name in ("global", "shared")],
      {"": "", "random, us": ",.0f", "all equal, us": ",.0f"})

# %% [markdown]
# A factor of {{ global_over_shared:.0f }} for random values, and {{ equal_over_shared:.0f }} for equal ones. The
# atomics on global memory take nearly three{{ if near(global_slowdown, 2.85) }} times as long when all meet in one bin.
# Those on shared memory take the same time{{ if unaffected }}, although all 32 lanes of a warp address the same bin.
# Why not?
#
# The answer is in the machine code. An atomic that adds the constant 1 in shared memory, and whose result is not used,
# is compiled to `ATOMS.POPC.INC`. That instruction counts the lanes with the same bin and adds the count in one step.
# The hardware combines equal lanes by itself.

# %% [markdown]
# ## Two more ideas
#
# There are two more ways to shorten a queue. With *a histogram for each warp*, the warps of a block do not queue for
# the same bin either. And equal lanes of a warp can be joined in software: `match_any_sync` tells each lane which
# others hold the same value, the lowest of them adds their count, and 32 equal values cost one atomic.

# %%
show_source(histogram.histogram_matched_kernel)

# %%
by_warps = {"a histogram per warp": (histogram.histogram_copies_kernel[2, 256, 0, 8 * 4 * 256], np.uint32(8)),
            "lanes joined": (histogram.histogram_matched_kernel[2, 256, 0, 8 * 4 * 256], np.uint32(8))}
atomics(by_warps)

# %% [markdown]
# For equal values, joining lanes leaves one atomic in 32. Given what the hardware does anyway, what do you expect of
# the two on a GPU?

# %%
table([(name, us(name, 0), us(name, 100)) for name in ("shared", "copies", "matched")],
      {"": "", "random, us": ",.0f", "all equal, us": ",.0f"})

# %% [markdown]
# A histogram per warp saves nothing{{ if copies_gain_nothing }}: the kernel was not waiting for the queue that this
# shortens. And joining lanes in software is {{ words(matched_slowdown) }} times slower for random values, because
# `match_any_sync` goes through the different values of a warp one after another. It competes with an instruction that
# does the job for free.

# %% [markdown]
# ## Sixteen elements per load
#
# What did the kernel wait for, then? Each thread loads a single byte, counts it, and loads the next. The last rung has
# one histogram per block again, and loads 16 elements with one instruction, twice before the first atomic.

# %%
agree(HISTOGRAM)

# %% [markdown]
# Every rung counts correctly, empty bins and equal elements included. How close does the last one come to the bound,
# one read of every byte?

# %%
def times(op, **size):
    """The ladder of this GPU next to the one that was recorded on the H200, or that one alone."""
    recorded = measure.recorded_ladder(op.name, size, gpu="NVIDIA H200")
    return plots.ladder(ladder(op, size) if device.on_gpu() else recorded, recorded)


times(HISTOGRAM, N=2**28, B=256, S=0)

# %%
times(HISTOGRAM, N=2**28, B=256, S=100)

# %% [markdown]
# It is {{ wide_gain:.1f }} times as fast as `shared` for random and for equal values alike, and needs less than a
# tenth{{ if below_tenth }} of the time of PyTorch's `bincount`, which `torch.compile` calls as it is.
#
# The one to beat is CUB, NVIDIA's library of such algorithms in CUDA C++. On the H200 it takes
# {{ us['histogram', 'CUB', 0]:.0f }} us for random values where the last rung takes
# {{ us['histogram', 'vectorized', 0]:.0f }}, and {{ us['histogram', 'CUB', 100]:.0f }} for equal ones, not far from the
# bound of {{ bound_us:.0f }}. The last rung needs {{ clocks_per_atomic:.1f }} clocks of an SM per atomic of a warp, at
# 1.98 GHz{{ hardware }}, for random and for equal values. All times here are from CUDA graphs, except the longest.

# %% [markdown]
# ## What I learned
#
# - `+= 1` is three steps, and all lanes of a warp take each step together.
# - Atomics on one address queue. In shared memory the hardware combines lanes that add 1 to the same bin.
# - A private copy per block replaces many contended atomics with a few.
# - Two clever ways to shorten a queue did not pay, because the kernel was not waiting for the queue.

# %% [markdown]
# ## Resources
#
# - [CUDA C++ Programming Guide: Atomic
#   Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#atomic-functions)
# - [CUB: DeviceHistogram](https://nvidia.github.io/cccl/cub/api/structcub_1_1DeviceHistogram.html)

# %% [markdown]
# ## Try it
#
# - Count the atomics of `histogram_shared_kernel` for two blocks when half of the elements are equal. Do you have to
#   run it to know?
# - `pictures.private_bins(((2,) * 6, (2,) * 6))`: how many atomics on global memory are left?
# - In `count_plainly`, give each block only one thread. Does `observe` still find a race?
#
# Next: **scan**, where every element gets its own sum.

# %% [numbers]
# us = {('histogram', name, S): row('histogram', name, N=2**28, B=256, S=S).graph_us or row('histogram', name,
#       N=2**28, B=256, S=S).us for name in ('global', 'shared', 'copies', 'matched', 'vectorized', 'PyTorch', 'CUB')
#       for S in (0, 100)}
# global_over_shared = us['histogram', 'global', 0] / us['histogram', 'shared', 0]
# equal_over_shared = us['histogram', 'global', 100] / us['histogram', 'shared', 100]
# global_slowdown = us['histogram', 'global', 100] / us['histogram', 'global', 0]
# unaffected = all(abs(us['histogram', name, 100] / us['histogram', name, 0] - 1) < 0.02 for name in ('shared',
#                  'copies', 'vectorized'))
# matched_slowdown = us['histogram', 'matched', 0] / us['histogram', 'copies', 0]
# copies_gain_nothing = us['histogram', 'copies', 0] > us['histogram', 'shared', 0]
# wide_gain = us['histogram', 'shared', 0] / us['histogram', 'vectorized', 0]
# below_tenth = us['histogram', 'vectorized', 0] / us['histogram', 'PyTorch', 0] < 0.1
# bound_us = 1000 * row('histogram', 'vectorized', N=2**28, B=256, S=0).bound_ms
# clocks_per_atomic = us['histogram', 'vectorized', 0] * 1980 * machine.sms / (2**28 / 32)
