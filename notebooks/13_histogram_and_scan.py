# %% [markdown]
# # 13 · Histogram and scan
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how many threads can add to the same number, what that costs, and how private copies make it cheap
# - how a running sum, which looks like one long chain of additions, is computed in a few steps
# - how one pass over the data can be enough, although every block needs the result of all blocks before it
#
# ## The problem
#
# In the lessons so far, a thread knew in advance where its result belonged. Now it does not. A *histogram* counts how
# often each value occurs: which of the counters, or *bins*, a thread has to increment depends on the element that it
# reads. This kernel does it in the obvious way.

# %%
import numpy as np

from labkit import cuda, observe, show_source


@cuda.jit
def count_plainly(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[x[i]] += 1


# %% [markdown]
# ## Prediction
#
# Two blocks of 64 threads read 128 elements, all of them equal to 3. What will `out[3]` be on a GPU? Write a number
# down, or a range of numbers. Then let `observe` look at every access.

# %%
threes = np.full(128, 3, np.uint8)
report = observe(count_plainly[2, 64], threes, np.zeros(8, np.int32))
for race in report.races:
    print(race)

# %% [markdown]
# `out[x[i]] += 1` is three steps: read, add, write. If two threads both read 5, both write 6, and one of two elements
# is lost. On a GPU the 32 lanes of a warp read together and write together, so most of the counts are lost. (The CPU
# device runs one thread after the other, and its result would happen to be right.)
#
# ## Atomics
#
# An *atomic* does all three steps as one: between its read and its write no other thread can touch the element. That
# is all it guarantees. It says nothing about the order in which threads get their turn, and it is no barrier.

# %%
from labkit.kernels.histogram import histogram_global_kernel

show_source(histogram_global_kernel)

# %% [markdown]
# An atomic on global memory is carried out in the L2 cache, which all multiprocessors share. Atomics on different
# addresses run side by side. Those on the same address have to queue, as far as the hardware does not join them. So the
# time of a histogram depends on the data.
#
# Take 2,048 elements and 256 bins. In the first input all values are equally likely, in the second many elements have
# the same value, and in the third all of them. How many atomics does the kernel make for each? And how long is the
# queue within a warp: how many of its 32 lanes want the same bin?

# %%
from labkit.kernels.histogram import HISTOGRAM

rng = np.random.default_rng(0)
inputs = {f"{share}% equal": HISTOGRAM.inputs(rng, N=2048, B=256, S=share)[0] for share in (0, 50, 100)}
lines = ["            atomics   queue in a warp   queue in all"]
for name, x in inputs.items():
    out = np.zeros(256, np.int32)
    counts = observe(histogram_global_kernel[8, 256], x, out).counts
    queues = [np.bincount(warp).max() for warp in x.reshape(-1, 32)]
    lines.append(f"{name:12}{counts['global_atomics']:7}{np.mean(queues):18.1f}{out.max():15}")
print("\n".join(lines))

# %% [markdown]
# The number of atomics is the same, one for each element. The queues are not.
#
# ## Private bins
#
# The counts of a block can be kept apart from those of all other blocks until the end. Each block has a histogram of
# its own in shared memory, where atomics are near and where the other blocks do not queue. When a block has counted
# all its elements, it adds its bins to global memory.

# %%
from labkit.kernels.histogram import histogram_shared_kernel

show_source(histogram_shared_kernel)

# %% [markdown]
# The loop lets a fixed number of blocks take all elements, each thread one in every round. Two blocks of 256 threads
# count the 2,048 elements above in 256 bins. How many atomics on global memory are left? And does it matter how many
# blocks there are?

# %%
from labkit.kernels.histogram import histogram_copies_kernel, histogram_matched_kernel

launches = {
    "global": (histogram_global_kernel[8, 256],),
    "shared, 8 blocks": (histogram_shared_kernel[8, 256, 0, 4 * 256],),
    "shared, 2 blocks": (histogram_shared_kernel[2, 256, 0, 4 * 256],),
    "one for each warp": (histogram_copies_kernel[2, 256, 0, 8 * 4 * 256], np.uint32(8)),
    "lanes joined": (histogram_matched_kernel[2, 256, 0, 8 * 4 * 256], np.uint32(8)),
}
lines = ["atomics on               global    shared   global, all equal    shared, all equal"]
for name, (launch, *rest) in launches.items():
    random, equal = (observe(launch, inputs[one], np.zeros(256, np.int32), *rest).counts
                     for one in ("0% equal", "100% equal"))
    lines.append(f"{name:20}{random['global_atomics']:11}{random['shared_atomics']:10}{equal['global_atomics']:20}"
                 f"{equal['shared_atomics']:21}")
print("\n".join(lines))

# %% [markdown]
# At most blocks times bins are left, and a bin that stayed empty costs nothing. That is why there should be only as
# many blocks as the multiprocessors can hold, and not one for each 256 elements.
#
# Two more ideas are in the table. With *a histogram for each warp*, two warps of a block do not queue for the same bin
# either. And the lanes of a warp can join: `match_any_sync` tells each lane which others hold the same value, the
# lowest of them adds their number, and 32 equal values cost one atomic. Which of these pays depends on the data, and on
# how fast a GPU handles a queue in shared memory. One rung more loads 16 elements at once.

# %%
from labkit import agree

agree(HISTOGRAM)

# %% [markdown]
# Which rung loses the most when all elements are equal, and which the least?

# %%
from labkit import device, ladder, measure, plots


def times(op, **size):
    """The ladder of this GPU, or without one the ladder that was recorded on the H200."""
    found = ladder(op, size) if device.on_gpu() else measure.recorded_ladder(op.name, size, gpu="NVIDIA H200")
    if found is None:
        print(f"{op.title}, {size}, on the H200: not recorded yet")
    return found and plots.ladder(found)


times(HISTOGRAM, N=2**28, B=256, S=0)

# %%
times(HISTOGRAM, N=2**28, B=256, S=100)

# %% [markdown]
# ## Scan
#
# A *scan* is the running sum of an array. It comes in two kinds:
#
# $$\text{inclusive: } \text{out}_i = x_0 + \dots + x_i \qquad \text{exclusive: } \text{out}_i = x_0 + \dots + x_{i-1}$$
#
# It looks like a chain: each result is the one before it plus one more element. A reduction could add in any order,
# so a tree was possible. Here *every* partial sum is wanted. Try it on paper with eight elements and eight threads: in
# how many steps, and with how many additions in all?

# %%
from labkit.measure.plots import scans

scans.steps()

# %% [markdown]
# That is the algorithm of Hillis and Steele. In the first step each element adds the one before it, in the second the
# one two places before it, then four. After step $k$ each element holds the sum of the $2^k$ elements that end with
# it. For $n$ elements there are $\log_2 n$ steps.

# %%
from numba import float32

from labkit.kernels.scan_blocks import make_scan_blelloch, make_scan_hillis_steele

show_source(make_scan_hillis_steele(float32))

# %% [markdown]
# Two barriers stand in each step: a thread may store only when its neighbour has read the old value.
#
# The steps are few, and the work is not. A loop would add $n - 1$ times. Here nearly all threads add in every step.
# Can a scan be had for about $n$ additions? Blelloch's algorithm goes up a tree as a reduction does, and down again.

# %%
scans.tree()

# %% [markdown]
# On the way up, the last element of each pair becomes the sum of the pair, then of a pair of pairs. On the way down, a
# node knows what stands before its whole range. Its left child gets that as it is, and its right child gets it with the
# sum of the left one added. The result is an exclusive scan.
#
# For 1,024 elements, write down the additions of both algorithms before you run the next cell. Then think of the
# elements that are added in one step: they lie 2, 4, 8, … places apart, and shared memory has 32 banks.

# %%
def observed(kernel, threads, elements, places):
    x, out, total = np.ones(elements, np.float32), np.zeros(elements, np.float32), np.zeros(1, np.float32)
    return observe(kernel[1, threads, 0, 4 * places], x, out, total, np.bool_(True)).counts


n = 1024
counted = {"Hillis and Steele": observed(make_scan_hillis_steele(float32), n, n, n),
           "Blelloch": observed(make_scan_blelloch(float32, False), n // 2, n, n),
           "Blelloch, with gaps": observed(make_scan_blelloch(float32, True), n // 2, n, n + n // 32)}
additions = {"Hillis and Steele": sum(n - 2**k for k in range(10)), "Blelloch": 2 * (n - 1)}
print("                       additions   shared loads   barriers   bank conflicts")
for name, counts in counted.items():
    print(f"{name:22}{additions[name.split(',')[0]]:10}{counts['shared_loads']:15}{counts['barriers']:11}"
          f"{counts['bank_conflicts']:17}")

# %% [markdown]
# Blelloch's tree saves most of the additions and pays with bank conflicts: 32 elements that lie 32 places apart are all
# in one bank. A gap after every 32 elements, as in a padded tile, moves neighbours of the tree into different banks.
#
# The tree of 64 elements without gaps, by 32 threads, step by step. Where are most threads idle, and in which steps do
# the accesses of a warp meet in few banks?

# %%
from numba import int32

x, out, totals = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32), np.zeros(1, np.int32)
observe(make_scan_blelloch(int32, False)[1, 32, 0, 4 * 64], x, out, totals, np.bool_(True)).play()

# %% [markdown]
# Within a warp, *shuffles* do without any of it. `shfl_up_sync` gives each lane the value of a lane below it, so five
# steps of Hillis and Steele need neither shared memory nor barriers. The additions that a tree would save cost nothing
# here: the lanes that make them would wait anyway. A block has two levels, as in lesson 12: each warp scans, then every
# warp scans the warps' sums.

# %%
from labkit.kernels.scan_blocks import scan_functions

show_source(scan_functions(float32)[0])

# %% [markdown]
# ## Many blocks
#
# A block scans one *tile*. What stands before the tile has to be added, and it is known when all tiles before it are
# summed. Blocks cannot wait for each other at a barrier, but a kernel can wait for the one before it:
#
# 1. each block scans its tile, writes it, and writes the tile's total;
# 2. the totals are scanned, exclusively: a much smaller scan, by the same kernel;
# 3. each block adds to its tile what stands before it.
#
# How many bytes does that move for each int32? And how many, if the first kernel only adds up its tile, and the third
# one reads `x` again and scans?

# %%
from labkit.device.launches import planned
from labkit.kernels.scan import SCAN, TILE, scan_look_back, scan_reduce_first, scan_warps


def bytes_moved(launcher, elements):
    """For each element, counted over all launches."""
    x, out = cuda.to_device(np.ones(elements, np.int32)), cuda.to_device(np.zeros(elements, np.int32))
    sectors = 0  # of 32 bytes, requested by warps
    for one in planned(lambda: launcher(x, out)):
        sectors += observe(one.kernel[one.grid, one.block, 0, one.shared_bytes], *one.args).counts["sectors"]
    assert out.copy_to_host()[-1] == elements
    return 32 * sectors / elements


print(f"scan, write, add: {bytes_moved(scan_warps, 2 * TILE):6.2f} bytes an element")
print(f"reduce, scan:     {bytes_moved(scan_reduce_first, 2 * TILE):6.2f} bytes an element")

# %% [markdown]
# Sixteen against twelve, and a little for the totals. A scan computes almost nothing, so its bytes decide. The least
# possible is eight: read once, write once.
#
# ## A single pass
#
# For that, a block has to get what stands before its tile while the other blocks are still running. The obvious way is
# a chain: block 5 waits until block 4 has published the sum up to the end of its tile. But then one late block holds
# up all blocks behind it, one after another.
#
# *Decoupled look-back* publishes earlier. As soon as a block knows the total of its own tile, it says so. A block that
# looks for what stands before it goes back tile by tile, adds the totals that it finds, and stops at the first tile
# for which the whole sum is known. Before you look at the picture: tile 2 is late. When can tile 7 end, in the chain
# and with the look-back?

# %%
scans.look_back()

# %%
from numba import int32

from labkit.kernels.scan import look_back_functions

show_source(look_back_functions(int32)[0])

# %% [markdown]
# Three details make this right on every GPU.
#
# - The number and what it means are one word of 64 bits, written by one atomic. A reader can never see the flag of one
#   moment with the number of another. With two arrays, the writer would need `cuda.threadfence()` between the number
#   and the flag, and the reader one between the flag and the number.
# - The word is read by an atomic, too, which adds 0. An ordinary load in a loop may be answered by the L1 cache for
#   ever, or be moved out of the loop by the compiler.
# - A block may wait only for blocks that are running. Blocks start in any order, so a block does not take the tile of
#   its own number. It takes a ticket from a counter: the first block to start gets tile 0. Whatever it waits for was
#   taken before, by a block that has started.

# %%
from labkit.kernels.scan import make_look_back

print(f"a single pass: {bytes_moved(scan_look_back, 2 * TILE):5.2f} bytes an element")
show_source(make_look_back(int32, False))

# %% [markdown]
# The sum of float32 numbers depends on the order of the additions, and here on how far a block happened to look back.
# Two runs may differ in the last digits. Integers cannot.

# %%
sizes = ({"N": 1}, {"N": 1025}, {"N": 20_481})
agree(SCAN, ["scan_hillis_steele", "scan_blelloch", "scan_padded", "scan_warps", "scan_look_back"], sizes=sizes)

# %% [markdown]
# Additions, bank conflicts, bytes: which of the three should decide for a long array on a GPU? PyTorch calls cuB,
# NVIDIA's library of such algorithms, whose scan is a single pass with look-back, too.

# %%
times(SCAN, N=2**27)

# %% [markdown]
# ## What a scan is for
#
# A scan answers the question of the beginning: where does my result belong? Suppose that each element is kept or
# dropped. The exclusive scan of the flags, 1 for kept, counts the kept elements before each element. That is its place
# in the output.

# %%
scans.compaction()

# %% [markdown]
# This is *compaction*. Sorting works in the same way. A histogram says how many elements have each value, its exclusive
# scan where each value begins, and every element takes the next place of its value. Five launches sort bytes:

# %%
from labkit.kernels.histogram import histogram
from labkit.kernels.scan import scan


@cuda.jit
def take_places(x, places, out):
    i = cuda.grid(1)
    if i < x.size:
        out[cuda.atomic.add(places, x[i], 1)] = x[i]


values = rng.integers(0, 256, 5000, dtype=np.uint8)
x, out = cuda.to_device(values), cuda.device_array(values.size, np.uint8)
places = cuda.device_array(256, np.int32)
histogram(x, 256, places)
scan(places, places, exclusive=True)
take_places[-(-values.size // 256), 256](x, places, out)
print("sorted:", np.array_equal(out.copy_to_host(), np.sort(values)))

# %% [markdown]
# The atomic returns the old number, which is the place. Which of two equal elements comes first is open. For bytes
# alone that does not matter. *Radix sort* sorts longer numbers digit by digit, from the lowest to the highest, and
# there elements with equal digits must keep their order. So it replaces the atomic by scans within each block.
#
# ## What I learned
#
# - An atomic is cheap where threads want different things. I ask how long the queue is, not how many atomics there are.
# - Private copies, joined at the end, turn many atomics that meet into few.
# - Fewer steps, fewer additions and fewer bytes are three different aims, and each has its own algorithm.
# - A block may wait for another one if it is certain that the other has started.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Atomic Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#atomic-functions)
# - [G. Blelloch: Prefix Sums and Their Applications (1990)](https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf)
# - [M. Harris, S. Sengupta, J. Owens: Parallel Prefix Sum (Scan) with CUDA](https://developer.nvidia.com/gpugems/gpugems3/part-vi-gpu-computing/chapter-39-parallel-prefix-sum-scan-cuda)
# - [D. Merrill, M. Garland: Single-pass Parallel Prefix Scan with Decoupled Look-back (2016)](https://research.nvidia.com/publication/2016-03_single-pass-parallel-prefix-scan-decoupled-look-back)
#
# ## Try it
#
# - `scans.tree((1,) * 16)`: what does the last row hold, and why?
# - Count with `observe` how many bank conflicts are left if the gap comes after every 16 elements.
# - Change `take_places` so that it sorts indices by a key of bytes. Are equal keys still in order?
#
# Next: **fused masked softmax**, where the reductions of lesson 12 meet the scores of attention.
