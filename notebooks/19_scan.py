# %% [markdown]
# # 19 · Scan
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how a running sum, which looks like one long chain of additions, is computed in a few steps

# %% [markdown]
# ## The problem
#
# To be written.

# %%
import numpy as np
from numba import float32, int32

from labkit import agree, cuda, observe, show_source
from labkit.course.drawings import histogram_and_scan as pictures
from labkit.device.launches import planned
from labkit.kernels import histogram, scan, scan_blocks
from labkit.kernels.ops.scan import SCAN


@cuda.jit
def count_plainly(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[x[i]] += 1


report = observe(count_plainly[2, 64], np.full(128, 3, np.uint8), np.zeros(8, np.int32))
print(*report.races, sep="\n")

# %% [markdown]
# ## Scan
#
# A *scan* is the running sum of an array. It comes in two kinds:
#
# $$\text{inclusive: } \text{out}_i = x_0 + \dots + x_i$$
#
# $$\text{exclusive: } \text{out}_i = x_0 + \dots + x_{i-1}$$
#
# It looks like a chain: each result is the one before it plus one more element. A reduction could add in any order, so
# a tree was possible. Here *every* partial sum is wanted. Try it on paper with eight elements and eight threads: in how
# many steps, and with how many additions in all?

# %%
pictures.steps()

# %% [markdown]
# That is the algorithm of Hillis and Steele. In the first step each element adds the one before it, in the second the
# one two places before it, then four. After step $k$ each element holds the sum of the $2^k$ elements that end with it.
# For $n$ elements there are $\log_2 n$ steps. Each step has two barriers: a thread may store only when its neighbour
# has read the old value.

# %%
show_source(scan_blocks.make_scan_hillis_steele(float32))

# %% [markdown]
# The steps are few, but the work is not. A loop would add $n - 1$ times. Here nearly all threads add in every step. Can
# a scan be had for about $n$ additions? Blelloch's algorithm goes up a tree as a reduction does, and down again.

# %%
pictures.tree()

# %% [markdown]
# On the way up, the last element of each pair becomes the sum of the pair, then of a pair of pairs. On the way down,
# each node holds the sum of everything before its range. Its left child gets that as it is, and its right child gets it
# with the sum of the left one added. The result is an exclusive scan.
#
# For 1,024 elements, write down the additions of both algorithms before you run the next cell. Then think of the
# elements that are added in one step: they lie 2, 4, 8, … places apart, and shared memory has 32 banks.

# %%
print("                       additions   shared loads   barriers   bank conflicts")
for name, kernel, threads, places, additions in (
    ("Hillis and Steele", scan_blocks.make_scan_hillis_steele(float32), 1024, 1024, 10 * 1024 - 1023),
    ("Blelloch", scan_blocks.make_scan_blelloch(float32, False), 512, 1024, 2 * 1023),
    ("Blelloch, with gaps", scan_blocks.make_scan_blelloch(float32, True), 512, 1024 + 32, 2 * 1023),
):
    x, out, total = np.ones(1024, np.float32), np.zeros(1024, np.float32), np.zeros(1, np.float32)
    counts = observe(kernel[1, threads, 0, 4 * places], x, out, total, np.bool_(True)).counts
    print(f"{name:22}{additions:10}{counts['shared_loads']:15}{counts['barriers']:11}{counts['bank_conflicts']:17}")

# %% [markdown]
# Blelloch's tree saves most of the additions and pays with bank conflicts: 32 elements that lie 32 places apart are all
# in one bank. A gap after every 32 elements, as in a padded tile, moves neighbours of the tree into different banks.
#
# Here is the tree of 64 elements without gaps, by 32 threads, step by step. Where are most threads idle, and in which
# steps do the accesses of a warp meet in few banks?

# %%
x, out, totals = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32), np.zeros(1, np.int32)
observe(scan_blocks.make_scan_blelloch(int32, False)[1, 32, 0, 4 * 64], x, out, totals, np.bool_(True)).play()

# %% [markdown]
# In the middle steps, at the top of the tree, a single thread works.
#
# Within a warp, *shuffles* need none of this. `shfl_up_sync` gives each lane the value of a lane below it, so five
# steps of Hillis and Steele need neither shared memory nor barriers. The additions that a tree would save cost nothing
# here: the lanes that make them would wait anyway. A block has two levels, as in lesson 15: each warp scans, then every
# warp scans the warps' sums.

# %%
show_source(scan_blocks.scan_functions(float32)[0])

# %% [markdown]
# ## Many blocks
#
# A block scans one *tile*. The sum of all tiles before it has to be added. Blocks cannot wait for each other at a
# barrier, but a kernel can wait for the one before it:
#
# 1. each block scans its tile, writes it, and writes the tile's total;
# 2. the totals are scanned, exclusively: a much smaller scan, by the same kernel;
# 3. each block adds to its tile the sum of what comes before it.
#
# How many bytes does that move for each int32? And how many, if the first kernel only adds up its tile, and the third
# one reads `x` again and scans?

# %%
def bytes_moved(launcher, elements=2 * scan.TILE):
    """For each element: the sectors of 32 bytes that warps request, over all launches."""
    x, out = cuda.to_device(np.ones(elements, np.int32)), cuda.to_device(np.zeros(elements, np.int32))
    counted = (observe(one.kernel[one.grid, one.block, 0, one.shared_bytes], *one.args).counts
               for one in planned(lambda: launcher(x, out)))
    return 32 * sum(counts["sectors"] for counts in counted) / elements


print(f"scan, write, add: {bytes_moved(scan_blocks.scan_warps):6.2f} bytes an element")
print(f"reduce, scan:     {bytes_moved(scan.scan_reduce_first):6.2f} bytes an element")

# %% [markdown]
# Sixteen against twelve, and a little for the totals. The least possible is eight: read once, write once.

# %% [markdown]
# ## A single pass
#
# For that, a block has to get the sum of the tiles before its own while the other blocks are still running. The obvious
# way is a chain: block 5 waits until block 4 has published the sum up to the end of its tile. But then one late block
# holds up all blocks behind it, one after another.
#
# With *decoupled look-back* a block publishes the total of its own tile as soon as it has it. To find the sum of what
# comes before its tile, it goes back tile by tile, adds the totals that it finds, and stops at the first tile for which
# the whole sum is known. Before you look at the picture: tile 2 is late. When can tile 7 end, in the chain and with the
# look-back?

# %%
pictures.look_back()

# %% [markdown]
# In the chain, tile 7 is five links behind tile 2. With the look-back, tiles 3 to 7 have their sums as soon as tile 2
# does.

# %%
show_source(scan.look_back_functions(int32)[0])

# %% [markdown]
# Three details make this right on every GPU.
#
# - The number and its flag, which says what the number means, are one word of 64 bits, written by one atomic. So a
#   reader can never see a new flag with an old number. With two arrays, both sides would need `cuda.threadfence()`.
# - The word is read by an atomic, too, which adds 0. An ordinary load in a loop may be answered by the L1 cache for
#   ever, or be moved out of the loop by the compiler.
# - A block may wait only for blocks that have started, and blocks start in any order. So a block does not take the tile
#   of its own number, but a ticket from a counter: the first block to start gets tile 0.

# %%
print(f"a single pass: {bytes_moved(scan.scan_look_back):5.2f} bytes an element")
show_source(scan.make_look_back(int32, False))

# %% [markdown]
# The sum of float32 numbers depends on the order of the additions, and here on how far a block happened to look back.
# Two runs may differ in the last digits. With integers they cannot.
#
# Additions, bank conflicts, bytes: which of the three decides for a long array on a GPU? Put the rungs in order before
# you look. PyTorch calls CUB, whose scan is also a single pass with look-back.

# %%
agree(SCAN, ["scan_hillis_steele", "scan_blelloch", "scan_padded", "scan_warps", "scan_look_back"],
      sizes=({"N": 1}, {"N": 1025}, {"N": 20_481}))

# %%
times(SCAN, N=2**27)

# %% [markdown]
# All three. The first four rungs move the same sixteen bytes an element, and on the H200 Blelloch's tree is the
# slowest{{ if blelloch_slowest }} of them: its bank conflicts cost more than the additions that it saves. With gaps it
# overtakes Hillis and Steele{{ if padded_overtakes }}, and shuffles are faster than both{{ if shuffles_lead }}. The
# largest step is the next one, {{ reduce_first_gain:.1f }} times. Fewer bytes explain {{ 16 / 12:.1f }} of it; the rest
# is 16 elements a thread, in wide loads.
#
# The first look-back moves fewer bytes still, and yet is slower than that rung{{ if look_back_slower }}: one thread
# goes back tile by tile, and its block waits. In the last rung a warp looks at 32 tiles at a time. That one reaches
# {{ of_bound:.0% }} of the bound, and CUB takes {{ cub_over_ours:.1f }} times as long.

# %% [markdown]
# ## What a scan is for
#
# A scan answers the question of the beginning: where does a result belong? Suppose that some elements are kept and the
# others dropped. The exclusive scan of the flags, 1 for kept, is the place of each kept element in the output.

# %%
pictures.compaction()

# %% [markdown]
# This is *compaction*. Sorting works in the same way. A histogram says how many elements have each value, its exclusive
# scan where each value begins, and every element takes the next place of its value. Five launches sort bytes:

# %%
@cuda.jit
def take_places(x, places, out):
    i = cuda.grid(1)
    if i < x.size:
        out[cuda.atomic.add(places, x[i], 1)] = x[i]


values = rng.integers(0, 256, 5000, dtype=np.uint8)
x, out, places = cuda.to_device(values), cuda.device_array(5000, np.uint8), cuda.device_array(256, np.int32)
histogram.histogram(x, 256, places)
scan.scan(places, places, exclusive=True)
take_places[20, 256](x, places, out)
print("sorted:", np.array_equal(out.copy_to_host(), np.sort(values)))

# %% [markdown]
# The atomic returns the old number, which is the place. Which of two equal elements comes first is open. For bytes
# alone that does not matter. *Radix sort* sorts longer numbers digit by digit, from the lowest to the highest, and
# elements with equal digits must keep their order. So it replaces the atomic by scans within each block.

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
