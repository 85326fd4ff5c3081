# %% [markdown]
# # 15 · Reductions
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how threads that each hold a part of a sum arrive at one total
# - what split warps, bank conflicts, barriers and too few loads cost, one change at a time
# - which barrier is missing when a reduction works once but not twice

# %% [markdown]
# ## The problem
#
# So far every thread has computed its own part of the result. A *reduction* makes a single value of many, for example
# the sum of a large array:
#
# $$\text{out} = \sum_i x_i$$
#
# Dividing the work is easy, because additions may be made in any order. But in the end the partial sums have to meet,
# so threads must exchange values.
#
# A famous set of slides climbs this mountain one step at a time: Mark Harris's [*Optimizing Parallel Reduction in
# CUDA*](https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf) (2007). We follow him on a GPU that is
# many generations younger, and keep his table: what is each step worth today?

# %% [markdown]
# ## Prediction
#
# The array has 2²⁷ elements of float32. What limits its sum on an H200, arithmetic or memory, and how long does it take
# at best?

# %%
import numpy as np

from labkit import agree, cuda, device, measure, observe, plots, roofline, show_source, table
from labkit.course.drawings import reductions as pictures
from labkit.kernels import array_sum, reduce
from labkit.kernels.ops.array_sum import ARRAY_SUM

roofline.predict(ARRAY_SUM, N=2**27)

# %% [markdown]
# One addition for every four bytes is next to nothing: the sum has to run at the speed of memory. Whatever a kernel
# needs beyond that bound is time that it spends on its own organisation, and that is what the steps below remove.

# %% [markdown]
# ## A tree in every block
#
# A block can add up its own elements, but blocks cannot wait for one another: there may be thousands that have not even
# started. So each launch leaves one sum per block in a shorter array, and the next launch adds those up. The end of a
# launch is the barrier that all blocks share. With 256 elements per block, 2²⁷ elements become 2¹⁹ sums, then 2¹¹, then
# 8, then one: four launches, the first of which does nearly all the work.
#
# Within the block, each thread loads one element into shared memory. Then the threads add in pairs, and every step
# halves the number of sums. This is a *tree*. In the figure a block has 16 threads and a warp has four lanes.

# %% tags=["hide-input"]
pictures.tree("divergent")

# %% [markdown]
# With 256 threads, the tree has $\log_2 256 = 8$ steps. A single thread would need 255.

# %%
show_source(array_sum.sum_divergent)

# %%
show_source(array_sum.array_sum_divergent_kernel)

# %% [markdown]
# `sum_divergent` is a *device function*: kernels can call it, Python cannot. A barrier follows every step, because a
# thread reads what another one wrote in the step before.
#
# Look at who does the adding. In the first step it is every second thread, so each warp splits at the `if`: half of its
# lanes add while the other half wait (lesson 02). In the next step a quarter of the lanes work, then an eighth, and so
# on. A block has eight warps and the tree has eight steps, which makes eight times eight cases of a warp at the `if`.
# In how many of them does the warp split?

# %%
def counted(*rungs):
    """What one block of 512 elements, or two of 256, do to add them up."""
    rows = []
    for rung in rungs:
        blocks = 1 if rung in ("first_add", "last_warp") else 2
        kernel = getattr(array_sum, f"array_sum_{rung}_kernel")
        counts = observe(kernel[blocks, 256], np.ones(512, np.float32), np.zeros(blocks, np.float32)).counts
        rows.append((rung, blocks, counts["divergent_branches"] // blocks, counts["barriers"] // blocks,
                     counts["shared_requests"], counts["bank_conflicts"]))
    return table(rows, ["kernel", "blocks", "splits per block", "barriers", "shared requests", "bank conflicts"],
                 note="Requests and conflicts: of all blocks, for 512 elements.")


counted("divergent")

# %% [markdown]
# In 47 of 64: all eight warps split in each of the first five steps, then four of them, two and one. (The 48th is the
# `if` in front of the final store.) Most of the instructions in this tree are issued for a fraction of a warp.

# %% [markdown]
# ## The first threads do the adding
#
# The additions can stay as they are, if other threads make them: thread 0 the first one, thread 1 the second, thread 2
# the third. Then entire warps work or rest.

# %% tags=["hide-input"]
pictures.tree("strided")

# %% [markdown]
# The only change is in the index. `left` is where thread `thread` adds, and the `if` now asks for the first threads.

# %%
show_source(array_sum.sum_strided)

# %% [markdown]
# But the figure shows a new problem. Shared memory has 32 banks, and element $i$ is in bank $i \bmod 32$ (lesson 07; in
# the figure there are four). In the step with stride 16, the threads of the first warp add to elements 0, 32, 64 and so
# on. How many of their accesses can be served together?

# %%
counted("divergent", "strided")

# %% [markdown]
# None: all those elements are in bank 0, so they are served one after another. Every conflict is another trip to shared
# memory, and 104 requests with 210 conflicts make 314 trips, exactly as many as before. Still the step is worth a
# factor of {{ step['strided']:.2f }} on the H200, because only a third as many instructions are issued for them.

# %% [markdown]
# ## Neighbours read neighbours
#
# If the order of the additions is free, so is the choice of partners. Let the first half of the sums add the second
# half, then the first quarter the second quarter. Consecutive threads now read consecutive elements, which are in
# different banks.

# %% tags=["hide-input"]
pictures.tree("sequential")

# %%
show_source(array_sum.sum_sequential)

# %%
counted("strided", "sequential")

# %% [markdown]
# No conflict is left, and warps split only in the last five steps, in which a single warp has fewer than 32 sums to
# make. It brings a factor of {{ step['sequential']:.2f }}.

# %% [markdown]
# ## Add while loading
#
# Half of the threads never add anything in this tree. They load one element, store it, and then do nothing but pass
# barriers. It is better to let each thread load two elements and add them before the tree begins: half as many blocks
# do the same work.

# %% tags=["hide-input"]
pictures.tree("first_add")

# %%
show_source(array_sum.array_sum_first_add_kernel)

# %% [markdown]
# How much work in shared memory does that save for 512 elements?

# %%
counted("sequential", "first_add")

# %% [markdown]
# Half of it: one tree instead of two. On the H200 this step brings a factor of {{ step['first_add']:.2f }}. Each thread
# now has two loads in flight as well, a thought that will return.

# %% [markdown]
# ## The last warp needs no barrier
#
# When 32 sums are left, one warp does the rest of the work, yet all eight warps still meet at a barrier after every
# step. The lanes of a warp can exchange registers directly. A *shuffle* passes a value to another lane, without shared
# memory and without a barrier: `shfl_xor_sync(mask, value, 16)` gives each lane the value of the lane whose number
# differs in bit 16, so lanes 0 and 16 swap, 1 and 17 swap, and so on. The mask has one bit for every lane that takes
# part; 0xFFFFFFFF is all 32.

# %% tags=["hide-input"]
pictures.tree("last_warp")

# %%
show_source(reduce.warp_sum)

# %%
show_source(array_sum.sum_last_warp)

# %% [markdown]
# The first two steps still cross warps and need their barriers. The last warp then adds the remaining 64 sums, the
# first 32 of them from shared memory and the rest in five shuffles, after which every lane has the total. Of the nine
# barriers in front of you, how many are left?

# %%
counted("first_add", "last_warp")

# %% [markdown]
# Three: one after the values are stored, and one after each of the two steps that cross warps. The factor on the H200
# is {{ step['last_warp']:.2f }}.
#
# Harris unrolls the rest of the loop by hand in his next step. Here the compiler has already done so: `BLOCK` is a
# constant, so it knows the number of rounds, and the PTX of `sum_last_warp` has three `bar.sync` and no loop. In the
# first kernel it even turned `%` into a bit mask.

# %% [markdown]
# ## One tree per block, many elements per thread
#
# There are still 2¹⁸ blocks, and each builds a tree for 512 elements. An H200 holds {{ blocks_in_all }} blocks of 256
# threads at a time. Let us launch just those, and let each go through the array in steps of the whole grid (a
# *grid-stride loop*, lesson 01). A thread adds up hundreds of elements in a register, and there is one tree at the end.

# %% tags=["hide-input"]
pictures.grid_stride()

# %%
show_source(array_sum.array_sum_grid_stride_kernel)

# %% [markdown]
# Trees now hardly count: a block builds one for {{ elements_per_block:,.0f }} elements, and a second launch with a
# single block adds up the rest. On the H200 this step brings a factor of {{ step['grid_stride']:.2f }}.

# %% [markdown]
# ## Wide loads, four in flight
#
# What is left is a loop that loads, waits and adds. By Little's law (lesson 02), an H200 needs {{ needed_per_sm:.0f }}
# KB in flight on every SM to keep its memory busy. With two loads of 4 bytes in each of 2,048 threads there are 16 KB,
# and only for the moment before the first one arrives: then the thread waits for the second, adds, and starts again
# with nothing in flight.
#
# So let a thread load four neighbours with one instruction (`ptx.load_nc4`, lesson 07), and issue four of those before
# the first addition.

# %% tags=["hide-input"]
pictures.wide()

# %%
show_source(array_sum.array_sum_wide_kernel)

# %% [markdown]
# First, is everything right? The inputs are small integers, so that sums are exact in any order and a single lost
# element would show.

# %%
agree(ARRAY_SUM)

# %% [markdown]
# Here is the table of the climb, as on Harris's last slide. His seven kernels were 30{{ quoted }} times apart. Which
# step do you expect to be worth the most on an H200, and how far will the whole climb go?

# %%
climb = [(row.name.removeprefix("array_sum_"), row.graph or row.timing) for row in
         measure.recorded_ladder("array_sum", gpu="NVIDIA H200").rows if row.name.startswith("array_sum_")]
us = [1000 * timing.p50 for _, timing in climb]
table([(name, now, 4 * 2**27 / now / 1e3, us[i - 1] / now if i else None, us[0] / now)
       for i, ((name, _), now) in enumerate(zip(climb, us, strict=True))],
      {"kernel": "", "us": ".0f", "GB/s": ",.0f", "step": ".2f", "cumulative": ".2f"},
      "From the first tree to the memory's bandwidth", note="2²⁷ float32, recorded on an NVIDIA H200.")

# %% [markdown]
# TO BE WRITTEN

# %%
plots.ladder(measure.recorded_ladder("array_sum", gpu="NVIDIA H200"))

# %% [markdown]
# ## The barrier that is missing in print
#
# Softmax and LayerNorm reduce twice in one kernel: a maximum and a sum, or a mean and a variance. For them the tree is
# a device function that returns the total to every thread.

# %%
show_source(reduce.block_reduce_sum)

# %% [markdown]
# Compared with `sum_sequential` it has one more barrier, the last one, after the total has been read. By then the sum
# is complete, so what is that barrier for?
#
# The blog post on a GPT-2 block in CUDA that lesson 26 follows prints this function without it, and calls it twice in a
# row, first for the mean and then for the variance. Here is a kernel that does the same. Will its result be right, and
# will `observe` find two accesses to one element that no barrier separates?

# %%
x = np.random.default_rng(0).random((4, 1000), dtype=np.float32)
out = cuda.device_array((4, 2), np.float32)
reduce.mean_and_variance_racy_kernel[4, 256](cuda.to_device(x), out)
mean, variance = out.copy_to_host().T
error = max(abs(mean - x.mean(axis=1)).max(), abs(variance - x.var(axis=1)).max())
print(f"largest error {error:.1e} ({device.name()})")

for name, kernel in (("with", reduce.mean_and_variance_kernel), ("without", reduce.mean_and_variance_racy_kernel)):
    report = observe(kernel[1, 64], x[:1], np.zeros((1, 2), np.float32))
    print(f"{name} the last barrier: {len(report.races) or 'no'} race", *report.races, sep="\n   ")

# %% [markdown]
# On the CPU device the result is wrong, because there thread 0 always runs first between two barriers. On a GPU it may
# be right for years, which proves nothing (lesson 06). The race is there either way. Thread 0 returns with the mean,
# goes through its part of the row, and begins the second call by storing its new value in `shared[0]`. Meanwhile a slow
# thread of another warp has not yet read the first total from there. It picks up thread 0's part of the second sum and
# takes that for the mean.
#
# Here it is step by step. The button *show it* jumps to the race: both threads, both lines, and the element.

# %%
observe(reduce.mean_and_variance_racy_kernel[1, 64], x[:1, :64], np.zeros((1, 2), np.float32)).play()

# %% [markdown]
# And on a real GPU? We launched the racy kernel again and again on an H200, then once under NVIDIA's checker
# (`compute-sanitizer --tool racecheck`), which delays some threads more than others. How often did the race show
# without the checker?

# %%
from labkit.measure import sanitizer

print(sanitizer.recorded_race())

# %% [markdown]
# Never. Left alone, the kernel was right every time. Under the checker most rows were wrong, and it reported one
# hazard: the very read and write that race. On every other kernel of this course it reported nothing.
#
# A function cannot tell how often a kernel will call it, so the barrier belongs inside. The alternative is to give the
# second call an array of its own. Then no barrier is needed, and that is what the fast kernels of the next lessons do.

# %% [markdown]
# ## A sum for every thread
#
# Two levels of shuffles do the same work with fewer barriers. Each warp adds up its own lanes and stores one sum; after
# a barrier, every warp adds up those sums by another five shuffles. So every thread ends up with the total, and nothing
# needs to be passed back.

# %%
show_source(reduce.block_sum)

# %% [markdown]
# A block of 256 threads passes ten barriers in the tree above. How many does it pass here, and how many values go
# through shared memory?

# %%
ones, out = np.ones((1, 256), np.float32), np.zeros(1, np.float32)
rows = []
for name, launch in (("tree", reduce.sum_tree_kernel[1, 256, 0, 1024]),
                     ("two levels", reduce.sum_two_level_kernel[1, 256])):
    counts = observe(launch, ones, out).counts
    rows.append((name, counts["barriers"], counts["shared_stores"], counts["shared_loads"]))
table(rows, ["256 values", "barriers", "shared stores", "shared loads"])

# %% [markdown]
# Two barriers, and one value per warp. Is it faster? For 8,192 rows of 8,192 elements, with a block for each row, the
# tree takes {{ tree_us:.0f }} us on the H200 and the two levels {{ two_level_us:.0f }}: a few
# percent{{ if barriers_matter_little }}. Both loops have one load in flight, so both wait for memory. That is the
# lesson of the climb once more: first count the loads in flight, then the barriers.

# %% [markdown]
# ## What I learned
#
# - TO BE WRITTEN
# - The end of a launch is a barrier for the whole grid.
# - A device function that uses shared memory has to leave it in a state in which it can be used again.
# - Count the loads that a loop has in flight before you count its barriers.

# %% [markdown]
# ## Resources
#
# - [M. Harris: Optimizing Parallel Reduction in
#   CUDA](https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf)
# - [CUDA C++ Programming Guide: Warp Shuffle
#   Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#warp-shuffle-functions)

# %% [markdown]
# ## Try it
#
# - In the cell with the races, launch one warp: `kernel[1, 32]`. Does `observe` still find the race? Should it?
# - In the kernel with divergence, move the barrier into the `if`. What does `observe` say, and what would a GPU do?
# - Let a thread of `array_sum_first_add_kernel` load four elements instead of two. How many launches are left?
#
# Next: **softmax**, which needs two reductions for every row.

# %% [numbers]
# names = ('divergent', 'strided', 'sequential', 'first_add', 'last_warp', 'grid_stride', 'wide')
# us = {name: row('array_sum', name).graph_us or row('array_sum', name).us for name in names}
# steps = (('divergent', 'strided'), ('strided', 'sequential'), ('sequential', 'first_add'), ('first_add', 'last_warp'),
#          ('last_warp', 'grid_stride'), ('grid_stride', 'wide'))
# step = {after: us[before] / us[after] for before, after in steps}
# blocks_in_all = 8 * machine.sms
# elements_per_block = 2**27 / blocks_in_all
# needed_per_sm = 4800 * series.memory_latency.places.memory.ns / machine.sms / 1e3
# tree_us = row('reduce_sum', 'tree').graph_us
# two_level_us = row('reduce_sum', 'two_level').graph_us
# barriers_matter_little = 0.01 < tree_us / two_level_us - 1 < 0.06
