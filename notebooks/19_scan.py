# %% [markdown]
# # 19 · Scan
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how a running sum, which looks like one long chain of additions, is computed in a few steps
# - why fewer additions can take more time
# - how one pass over the data can be enough, although every block needs the results of all blocks before it

# %% [markdown]
# ## The problem
#
# A *scan* is the running sum of an array. It comes in two kinds:
#
# $$\text{inclusive: } \text{out}_i = x_0 + \dots + x_i$$
#
# $$\text{exclusive: } \text{out}_i = x_0 + \dots + x_{i-1}$$
#
# It tells threads where to write. Suppose that some elements of an array are kept and the others dropped. Mark those
# that are kept with 1 and the others with 0. The exclusive scan of these flags is the place of each kept element in the
# output, and every thread can write its element independently of the others.

# %%
import numpy as np
from numba import float32, int32

from labkit import agree, cuda, device, ladder, measure, observe, plots, show_source, table
from labkit.course.drawings import scan as pictures
from labkit.device.launches import planned
from labkit.kernels import histogram, scan, scan_blocks
from labkit.kernels.ops.scan import SCAN

pictures.compaction()

# %% [markdown]
# This is *compaction*, and we will come back to it. But a scan looks like a chain: each result is the one before it
# plus one more element. A reduction needed only the last of these sums, so a tree was possible. Here we want all of
# them.

# %% [markdown]
# ## Prediction
#
# Try it on paper with eight elements and eight threads, all of which may add in the same step. In how many steps can it
# be done, and with how many additions in all?

# %% tags=["hide-input"]
pictures.steps()

# %% [markdown]
# This is the algorithm of Hillis and Steele. In the first step each element adds its left neighbour, in the second step
# the element two to the left, then the one four to the left. After step $k$ every element holds the sum of (up to)
# $2^k$ elements, itself the last, so $n$ elements need $\log_2 n$ steps. Each step has two barriers: a thread must not
# store its new sum before its neighbour has read the old one.

# %%
show_source(scan_blocks.make_scan_hillis_steele(float32))

# %% [markdown]
# ## Fewer additions
#
# The steps are few, but the work is not. A loop would add $n - 1$ times; here nearly all threads add in every step.
# Blelloch's algorithm needs only about $2n$ additions. It goes up a tree as a reduction does, and then down again.

# %% tags=["hide-input"]
pictures.tree()

# %% [markdown]
# On the way up, the last element of each pair becomes the sum of the pair, then of a pair of pairs. On the way down,
# every node holds the sum of everything to the left of its range. The left child gets that sum unchanged; the right
# child gets it plus the sum of the left child. The result is an exclusive scan.
#
# For 1,024 elements, how many additions does each algorithm make? And which of the two makes neighbouring threads
# access elements that are 2, 4, 8, … apart, so that they wait for the 32 banks of shared memory?

# %%
rows = []
for name, kernel, threads, elements, additions in (
    ("Hillis and Steele", scan_blocks.make_scan_hillis_steele(float32), 1024, 1024, 10 * 1024 - 1023),
    ("Blelloch", scan_blocks.make_scan_blelloch(float32, False), 512, 1024, 2 * 1023),
    ("Blelloch, with gaps", scan_blocks.make_scan_blelloch(float32, True), 512, 1024 + 32, 2 * 1023),
):
    x, out, total = np.ones(1024, np.float32), np.zeros(1024, np.float32), np.zeros(1, np.float32)
    counts = observe(kernel[1, threads, 0, 4 * elements], x, out, total, np.bool_(True)).counts
    rows.append((name, additions, counts["shared_loads"], counts["barriers"], counts["bank_conflicts"]))
table(rows, ["1,024 elements", "additions", "shared loads", "barriers", "bank conflicts"])

# %% [markdown]
# Blelloch's tree saves most of the additions and pays with bank conflicts, for the same reason as the second kernel of
# lesson 15: elements that are 32 apart are all in the same bank. The third line leaves a gap after every 32 elements,
# as in a padded tile (lesson 07), which moves them into different banks.
#
# Here is the tree of 64 elements without gaps, by 32 threads, step by step. In which steps are most threads idle?

# %%
x, out, totals = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32), np.zeros(1, np.int32)
observe(scan_blocks.make_scan_blelloch(int32, False)[1, 32, 0, 4 * 64], x, out, totals, np.bool_(True)).play()

# %% [markdown]
# In the middle ones, at the top of the tree, where a single thread works and the others wait at the barriers.

# %% [markdown]
# ## Within a warp, by shuffles
#
# Within a warp none of this is needed. `shfl_up_sync` gives each lane the value of a lower lane, so five steps of
# Hillis and Steele need neither shared memory nor barriers. The additions that a tree would save cost nothing here,
# because the lanes that make them would otherwise be idle. A block works in two levels, as in lesson 15: each warp
# scans its own values, then every warp scans the sums of the warps.

# %%
show_source(scan_blocks.scan_functions(float32)[0])

# %% [markdown]
# ## Many blocks
#
# A block scans one *tile*. The sum of all tiles before it must then be added to it. `syncthreads` does not reach beyond
# a block, but the end of a launch is a barrier for all blocks:
#
# 1. each block scans its tile, writes it, and writes the tile's total;
# 2. the totals are scanned exclusively, which is a much smaller scan by the same kernel;
# 3. each block adds to its tile the sum of everything before it.
#
# It could also be done the other way round: the first kernel only adds up its tile, and the third one reads `x` again,
# scans it, and adds what comes before. How many bytes does each version move per int32?

# %%
def bytes_moved(launcher, elements=2 * scan.TILE):
    """For each element: the sectors of 32 bytes that warps request, over all launches."""
    x, out = cuda.to_device(np.ones(elements, np.int32)), cuda.to_device(np.zeros(elements, np.int32))
    counted = (observe(one.kernel[one.grid, one.block, 0, one.shared_bytes], *one.args).counts
               for one in planned(lambda: launcher(x, out)))
    return 32 * sum(counts["sectors"] for counts in counted) / elements


table([("scan, write, add", bytes_moved(scan_blocks.scan_warps)),
       ("reduce, then scan", bytes_moved(scan.scan_reduce_first))], {"": "", "bytes per element": ".2f"})

# %% [markdown]
# Sixteen against twelve, plus a little for the totals. The least possible is eight: read once, write once.

# %% [markdown]
# ## A single pass
#
# To get there, a block has to learn the sum of all tiles before its own while the other blocks are still running. The
# obvious way is a chain: block 5 waits until block 4 has published the sum up to the end of its tile. But then a single
# late block holds up all blocks behind it, one after another.
#
# With *decoupled look-back* ([Merrill and Garland,
# 2016](https://research.nvidia.com/publication/2016-03_single-pass-parallel-prefix-scan-decoupled-look-back)), a block
# publishes the total of its tile as soon as it has it. To find the sum of what comes before, it walks back tile by
# tile, adds up the totals it finds, and stops at the first tile whose whole sum is known. Suppose that tile 2 is late.
# When can tile 7 finish, in the chain and with look-back?

# %% tags=["hide-input"]
pictures.look_back()

# %% [markdown]
# In the chain, tile 7 is five links behind tile 2. With look-back, tiles 3 to 7 have their sums almost as soon as tile
# 2 does.

# %%
show_source(scan.look_back_functions(int32)[0])

# %% [markdown]
# Three details make this right on every GPU.
#
# - The value and the flag that says what the value means are in one 64-bit word, written by one atomic. So no reader
#   can see a new flag with an old value. With two arrays, both sides would need `cuda.threadfence()`.
# - The word is read by an atomic as well, one that adds 0. An ordinary load in a loop may be answered by the L1 cache
#   for ever, or be moved out of the loop by the compiler.
# - A block may wait only for blocks that have started, and blocks start in any order. So a block cannot simply work on
#   the tile that has its number. It draws a ticket from a counter: the first block to start gets tile 0.

# %%
show_source(scan.make_look_back(int32, False))

# %% [markdown]
# Each element is read once and written once. The kernel also reads and writes a word of state per tile. How many bytes
# per element will that be in all?

# %%
print(f"a single pass: {bytes_moved(scan.scan_look_back):5.2f} bytes per element")

# %% [markdown]
# Hardly more than eight. For float32 there is still a price: the sum depends on the order of the additions, and that
# depends on how far a block happened to look back, so two runs may differ in the last digits. With integers they
# cannot.

# %% [markdown]
# ## The climb
#
# First, do all of them scan correctly, tails and single elements included?

# %%
agree(SCAN, ["scan_hillis_steele", "scan_blelloch", "scan_padded", "scan_warps", "scan_look_back"],
      sizes=({"N": 1}, {"N": 1025}, {"N": 20_481}))

# %% [markdown]
# They do. Additions, bank conflicts, bytes: which of the three matters most for a long array on a GPU? PyTorch calls
# CUB, whose scan is also a single pass with look-back.
#
# Predict which rung will be slowest, and which step will be worth the most.

# %% tags=["hide-input"]
recorded = measure.recorded_ladder("scan", {"N": 2**27}, gpu="NVIDIA H200")
plots.ladder(ladder(SCAN, {"N": 2**27}) if device.on_gpu() else recorded, recorded)

# %% [markdown]
# All three matter. The first four rungs move the same sixteen bytes per element, and Blelloch's tree is the
# slowest{{ if blelloch_slowest }} of them: its bank conflicts cost more than its additions save. With gaps it overtakes
# Hillis and Steele{{ if padded_overtakes }}, and shuffles are faster than both{{ if shuffles_lead }}. The largest step
# is the next one, a factor of {{ reduce_first_gain:.1f }}. Fewer bytes explain {{ 16 / 12:.1f }} of it; the rest comes
# with 16 elements per thread in wide loads.
#
# The first look-back moves even fewer bytes, yet it is slower than that rung{{ if look_back_slower }}: one thread walks
# back tile by tile while its block waits. In the last rung a warp looks at 32 tiles in one step. It reaches
# {{ of_bound:.0% }} of the bound, and CUB takes {{ cub_over_ours:.1f }} times as long.

# %% [markdown]
# ## A sort in five launches
#
# Back to the question at the beginning: where does each element go? To sort bytes, a histogram says how many elements
# have each value, its exclusive scan says where each value begins, and every element goes to the next free place of its
# value.

# %%
@cuda.jit
def take_places(x, places, out):
    i = cuda.grid(1)
    if i < x.size:
        out[cuda.atomic.add(places, x[i], 1)] = x[i]


values = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)
x, out, places = cuda.to_device(values), cuda.device_array(5000, np.uint8), cuda.device_array(256, np.int32)
histogram.histogram(x, 256, places)
scan.scan(places, places, exclusive=True)
take_places[20, 256](x, places, out)
print("sorted:", np.array_equal(out.copy_to_host(), np.sort(values)))

# %% [markdown]
# The atomic returns the old value of the counter, and that is the place. Which of two equal elements comes first is
# undefined. For bare bytes that does not matter, but *radix sort* sorts longer keys digit by digit, from the lowest
# digit to the highest, and elements with equal digits must keep their order. So it replaces the atomic with scans
# inside each block.

# %% [markdown]
# ## What I learned
#
# - Fewer steps, fewer additions and fewer bytes are three different goals, and each has its own algorithm.
# - For a long array the number of bytes decides, but only once the scan within a block is fast.
# - A block may wait for another one only if the other is certain to have started.

# %% [markdown]
# ## Resources
#
# - [G. Blelloch: Prefix Sums and Their Applications (1990)](https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf)
# - [M. Harris, S. Sengupta, J. Owens: Parallel Prefix Sum (Scan) with
#   CUDA](https://developer.nvidia.com/gpugems/gpugems3/part-vi-gpu-computing/chapter-39-parallel-prefix-sum-scan-cuda)
# - [D. Merrill, M. Garland: Single-pass Parallel Prefix Scan with Decoupled Look-back
#   (2016)](https://research.nvidia.com/publication/2016-03_single-pass-parallel-prefix-scan-decoupled-look-back)

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
# us = {('scan', name): row('scan', name, N=2**27).graph_us or row('scan', name, N=2**27).us for name in
#       ('hillis_steele', 'blelloch', 'padded', 'warps', 'reduce_first', 'look_back', 'look_back_warp', 'PyTorch')}
# blelloch_slowest = us['scan', 'blelloch'] == max(us['scan', name] for name in scans)
# padded_overtakes = us['scan', 'padded'] < us['scan', 'hillis_steele']
# shuffles_lead = us['scan', 'warps'] < us['scan', 'padded']
# reduce_first_gain = us['scan', 'warps'] / us['scan', 'reduce_first']
# look_back_slower = us['scan', 'look_back'] > us['scan', 'reduce_first']
# of_bound = 1000 * row('scan', 'look_back_warp', N=2**27).bound_ms / us['scan', 'look_back_warp']
# cub_over_ours = us['scan', 'PyTorch'] / us['scan', 'look_back_warp']
