# %% [markdown]
# # 15 · Reductions
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how threads that each hold a part of a sum arrive at one total
# - what split warps, bank conflicts, barriers and too few loads in flight cost, one change at a time
# - which barrier is missing when a reduction works once but not twice

# %% [markdown]
# ## The problem
#
# So far every thread has computed its own part of the result. A *reduction* combines many values into one, for example
# into the sum of a large array:
#
# $$\text{out} = \sum_i x_i$$
#
# Dividing the work is easy, because the additions can be done in any order. But in the end the partial sums have to be
# combined, so threads must exchange values.
#
# A famous set of slides makes such a kernel fast one step at a time: Mark Harris's [*Optimizing Parallel Reduction in
# CUDA*](https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf) (2007). He ends with a table of what
# each step was worth on a GPU of his time. We take the same steps on an H100 and keep the same table.

# %% [markdown]
# ## Prediction
#
# The array has 2²⁷ elements of float32. What limits its sum on an H100, arithmetic or memory, and how long must it take
# at least?

# %%
import numpy as np

from labkit import agree, cuda, device, ladder, measure, observe, plots, roofline, show_source, table
from labkit.course.drawings import reductions as pictures
from labkit.kernels import array_sum, reduce
from labkit.kernels.ops.array_sum import ARRAY_SUM

H100 = "NVIDIA H100 80GB HBM3"
roofline.predict(ARRAY_SUM, roofline.Limits(**measure.recorded(gpu=H100)["limits"]), N=2**27)

# %% [markdown]
# One addition for every four bytes is next to nothing: the sum should run at the speed of memory. Any time beyond that
# bound is the kernel's own overhead. The steps below remove it bit by bit.

# %% [markdown]
# ## A tree in every block
#
# A block can add up its own elements, but blocks cannot wait for one another: there may be thousands that have not even
# started. So each launch leaves one sum per block in a shorter array, and the next launch adds those up. The end of a
# launch is the barrier that all blocks share. With 256 elements per block, 2²⁷ elements become 2¹⁹ sums, then 2¹¹, then
# 8, then one: four launches, and the first one does nearly all the work.
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
# thread reads what another one wrote in the previous step.
#
# Look at which threads do the adding. In the first step it is every second thread, so each warp splits at the `if`:
# half of its lanes add while the other half wait (lesson 02). In the next step a quarter of the lanes work, then an
# eighth, and so on. A block has eight warps and the tree has eight steps, which makes eight times eight cases of a warp
# at the `if`. In how many of them does the warp split?

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
# In 47 of 64: all eight warps split in each of the first five steps, then four of them, two and one. The 48th split is
# at the `if` in front of the final store. Most of the instructions in this tree are issued for a fraction of a warp.

# %% [markdown]
# ## The first threads do the adding
#
# The additions can stay as they are, if other threads do them: thread 0 the first one, thread 1 the second, thread 2
# the third. Then entire warps work or idle.

# %% tags=["hide-input"]
pictures.tree("strided")

# %% [markdown]
# The only change is in the index. `left` is the element that thread `thread` adds to, and the `if` now lets the first
# threads through.

# %%
show_source(array_sum.sum_strided)

# %% [markdown]
# This step made Harris's kernel 2.33{{ quoted }} times as fast. But the figure also shows a new problem. Shared memory
# has 32 banks, and element $i$ is in bank $i \bmod 32$ (lesson 07; in the figure there are four). With a *stride* of 16
# from one sum to the next, the threads of the first warp add to elements 0, 32, 64 and so on. How many of their
# accesses can be served together?

# %%
counted("divergent", "strided")

# %% [markdown]
# No two of them: all those elements are in bank 0, so they are served one after another. Every conflict is one more
# trip to shared memory, and 104 requests with 210 conflicts make 314 trips, exactly as many as before.
#
# Worse, the trips are now unevenly spread. At a barrier every warp waits for the slowest, and that is the first one. A
# step is two loads and a store, and an access of a warp makes as many trips as there are elements in its fullest bank.
# How many trips does the first warp make in all eight steps?

# %%
def trips(elements):
    """How often a warp goes to shared memory for these elements, one for each lane: at most one per bank and trip."""
    return int(np.bincount(elements % 32).max())


strides = [1, 2, 4, 8, 16, 32, 64, 128]
first_warp = {
    "divergent": sum(3 * trips(np.arange(0, 32, 2 * stride)) for stride in strides),
    "strided": sum(3 * trips(2 * stride * np.arange(min(32, 128 // stride))) for stride in strides),
    "sequential": sum(3 * trips(np.arange(min(32, stride))) for stride in strides),
}
table([(name, first_warp[name]) for name in ("divergent", "strided")], ["kernel", "trips of the first warp"])

# %% [markdown]
# More than four times as many, one after another, while the others wait. So the step that should have doubled the speed
# is a loss. On an H100, `divergent` takes {{ us['divergent']:.0f }} us and `strided` {{ us['strided']:.0f }}.

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
# No conflict is left, and warps split only in the last five steps, where a single warp has fewer than 32 sums to make.
# Do the two changes together at least make the tree faster than it was at the start?

# %%
recorded = measure.recorded_ladder("array_sum", gpu=H100)
us = {row.name.removeprefix("array_sum_"): 1000 * (row.graph or row.timing).p50 for row in recorded.rows}
table([(name, first_warp[name], us[name]) for name in first_warp],
      {"kernel": "", "trips of the first warp": "d", "us": ".0f"}, note=f"Recorded on {recorded.where}.")

# %% [markdown]
# Yes, by {{ us['divergent'] / us['sequential'] - 1:.0% }}. The first and the third kernel have equally long chains of
# trips and take nearly the same time, although the first splits warps eight times as often. A split costs issue slots,
# and an SM whose warps wait at barriers has plenty of those.
#
# Harris gained a factor of 4.7{{ quoted }} from the same two steps. In his first kernel `%` was a slow division, as he
# points out. `BLOCK` is a constant here, so our compiler knows every stride and turns `%` into a bit mask.

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
# Half of it: one tree instead of two. This step is worth a factor of {{ step['first_add']:.2f }}, the largest of
# all{{ if max(step.values()) == step['first_add'] }}. Half as many barriers are passed for the same elements, and each
# thread has two loads in flight instead of one.

# %% [markdown]
# ## The last warp needs no barrier
#
# When 32 sums are left, one warp does the rest of the work, yet all eight warps still meet at a barrier after every
# step. The lanes of a warp can exchange registers directly. A *shuffle* passes a value to another lane, without shared
# memory and without a barrier: `shfl_xor_sync(mask, value, 16)` gives each lane the value of the lane whose index
# differs in the bit worth 16, so lanes 0 and 16 swap, 1 and 17 swap, and so on. The mask has one bit for every lane
# that takes part; 0xFFFFFFFF is all 32.

# %% tags=["hide-input"]
pictures.tree("last_warp")

# %%
show_source(reduce.warp_sum)

# %%
show_source(array_sum.sum_last_warp)

# %% [markdown]
# The first two steps still cross warps and need their barriers. The last warp then adds the remaining 64 sums: each
# lane adds two from shared memory, and after five shuffles every lane has the total. Of the nine barriers of
# `first_add`, how many are left?

# %%
counted("first_add", "last_warp")

# %% [markdown]
# Three: one after the values are stored, and one after each of the two steps that cross warps. That is another factor
# of {{ step['last_warp']:.2f }}.
#
# In his next step Harris unrolls the rest of the loop by hand. Our compiler has done so already: the PTX of this kernel
# has three `bar.sync` and no loop.

# %% [markdown]
# ## One tree per block, many elements per thread
#
# There are still 2¹⁸ blocks, and each builds a tree for 512 elements. An H100 holds {{ blocks_in_all:,d }} blocks of
# 256 threads at a time. Let us launch just those, and let each go through the array in steps of the whole grid (a
# *grid-stride loop*, lesson 01). A thread adds up hundreds of elements in a register, and there is one tree at the end.

# %% tags=["hide-input"]
pictures.grid_stride()

# %%
show_source(array_sum.array_sum_grid_stride_kernel)

# %% [markdown]
# Trees no longer count: a block builds one for {{ elements_per_block:,.0f }} elements, and a second launch with a
# single block adds up the rest. The factor is {{ step['grid_stride']:.2f }}, and the kernel runs at
# {{ of_bound['grid_stride']:.0% }} of the bound.

# %% [markdown]
# ## Wide loads, four in flight
#
# What is left is a loop that loads, waits and adds. On every SM of an H200, {{ needed_per_sm:.0f }} KB have to be in
# flight (lesson 02), on an H100 with its slower memory somewhat less. Two loads of 4 bytes in each of 2,048 threads
# make 16 KB, but only at the start of a round: when the first load has arrived, the thread waits for the second, adds,
# and starts again with nothing in flight.
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
# Now the table of the climb, as on Harris's last slide, with his factors next to ours. His seven kernels were
# 30{{ quoted }} times apart from first to last. How far apart are ours?

# %%
harris = {"strided": 2.33, "sequential": 2.01, "first_add": 1.78, "last_warp": 1.80, "grid_stride": 1.42}
names = [rung.__name__.removeprefix("array_sum_") for rung in ARRAY_SUM.rungs]
table([(name, us[name], 4 * 2**27 / us[name] / 1e3, us[before] / us[name] if before else None, harris.get(name),
        us["divergent"] / us[name]) for before, name in zip([None, *names], names, strict=False)],
      {"kernel": "", "us": ".0f", "GB/s": ",.0f", "step": ".2f", "Harris, 2007": ".2f", "cumulative": ".2f"},
      "From the first tree to the bandwidth of memory",
      note=f"2²⁷ float32, recorded on {recorded.where}. Harris: with another factor of 1.41 for unrolling by hand.")

# %% [markdown]
# {{ us['divergent'] / us['wide']:.1f }} times. Each of the two columns of steps reflects its GPU and its compiler. In
# 2007 divergence and bank conflicts cost a factor of almost five; today the first steps that count are those that put
# fewer trees and barriers between a thread and its loads. The wide loads add a last factor of {{ step['wide']:.2f }}.
#
# Ours is at the limit, and so are the libraries. Here is the whole ladder.

# %% tags=["hide-input"]
plots.ladder(ladder(ARRAY_SUM) if device.on_gpu() else recorded, recorded)

# %% [markdown]
# `wide` is even slightly faster than the bound, which is the bandwidth of a copy: a sum has nothing to write. CuPy is
# as fast{{ if abs(cupy_over_wide - 1) < 0.02 }}, PyTorch nearly so{{ if 1 < torch_over_wide < 1.04 }}, and the kernel
# that `torch.compile` generates takes {{ compiled_over_wide - 1:.0% }} longer.

# %% [markdown]
# ## The barrier that is missing in print
#
# Softmax (lesson 16) and LayerNorm (lesson 21) reduce twice in one kernel: a maximum and a sum, or a mean and a
# variance. For them the tree is a device function that returns the total to every thread.

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
# mistakes that for the mean.
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
# second call a separate array. Then no barrier is needed, and that is what the fast kernels of the next lessons do.

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
for name, launch in (("tree", reduce.reduce_tree_kernel[1, 256, 0, 1024]),
                     ("two levels", reduce.reduce_two_level_kernel[1, 256])):
    counts = observe(launch, ones, out).counts
    rows.append((name, counts["barriers"], counts["shared_stores"], counts["shared_loads"]))
table(rows, ["256 values", "barriers", "shared stores", "shared loads"])

# %% [markdown]
# Two barriers, and one value per warp. Is it faster? For 8,192 rows of 8,192 elements, with one block per row, an H200
# needs {{ tree_us:.0f }} us with the tree and {{ two_level_us:.0f }} with two levels, a few
# percent{{ if barriers_matter_little }} less. Both kernels have one tree for 8,192 elements and a loop with one load in
# flight. Where a block has that much to load, barriers no longer decide.

# %% [markdown]
# ## What I learned
#
# - At a barrier every warp waits for the slowest. A long chain in one warp costs more than the same work spread over
#   eight.
# - Old advice is worth measuring again: divergence cost a factor of two in 2007 and next to nothing here.
# - Fewer trees beat better trees. Let each thread add up what it can before it exchanges values with the others.
# - The end of a launch is a barrier for the whole grid.
# - A device function that uses shared memory has to leave it ready to be used again.

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
# Next: **softmax**, which needs two reductions per row.

# %% [numbers]
# names = ('divergent', 'strided', 'sequential', 'first_add', 'last_warp', 'grid_stride', 'wide')
# us = {name: row('array_sum', name, gpu=H100).graph_us for name in names}
# steps = (('divergent', 'strided'), ('strided', 'sequential'), ('sequential', 'first_add'), ('first_add', 'last_warp'),
#          ('last_warp', 'grid_stride'), ('grid_stride', 'wide'))
# step = {after: us[before] / us[after] for before, after in steps}
# of_bound = {name: 1000 * row('array_sum', name, gpu=H100).bound_ms / us[name] for name in names}
# cupy_over_wide = row('array_sum', 'CuPy', gpu=H100).graph_us / us['wide']
# torch_over_wide = row('array_sum', 'PyTorch', gpu=H100).graph_us / us['wide']
# compiled_over_wide = row('array_sum', 'PyTorch, compiled', gpu=H100).graph_us / us['wide']
# blocks_in_all = 8 * machine_of(H100).sms
# elements_per_block = 2**27 / blocks_in_all
# needed_per_sm = 4800 * series.memory_latency.places.memory.ns / machine.sms / 1e3
# tree_us = row('reduce_sum', 'tree').graph_us
# two_level_us = row('reduce_sum', 'two_level').graph_us
# barriers_matter_little = 0.01 < tree_us / two_level_us - 1 < 0.06
