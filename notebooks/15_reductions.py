# %% [markdown]
# # 15 · Reductions and softmax
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - how 256 threads compute one sum, and how many steps that takes
# - which barrier is missing when a reduction works once but not twice
# - how a softmax that reads its row three times becomes one that reads it once

# %% [markdown]
# ## The problem
#
# So far threads have shared what they read, and each has computed its own part of the result. A *reduction* makes one
# number out of many, such as the sum of each row of a matrix:
#
# $$\text{out}_r = \sum_c x_{r,c}$$
#
# If several threads share a row, they have to exchange their results.

# %% [markdown]
# ## Prediction
#
# Before you run the next cell, write down for 8,192 rows of 8,192 numbers: the bytes, and what sets the limit. Then
# write down a number that is not in the table. One thread adds up a row in 8,191 steps, one after another. If 256
# threads share the row, how many steps does the slowest of them take?

# %%
import numpy as np

from labkit import agree, cuda, device, ladder, observe, plots, roofline, show_source
from labkit.course.drawings import reductions as pictures
from labkit.kernels import reduce
from labkit.kernels.ops.reduce import REDUCE_SUM

roofline.predict(REDUCE_SUM, R=8192, C=8192)

# %% [markdown]
# Each of the 256 threads first adds up 32 numbers by itself, in 31 steps. That leaves 256 sums. One thread could add
# them up in 255 steps while the others wait. Or the threads could add in pairs.

# %%
pictures.reductions(8)

# %% [markdown]
# On the left, every step halves the number of sums: 8, 4, 2, 1. This is a *tree*. For 256 sums it takes $\log_2 256 =
# 8$ steps, with 128 threads at work in the first and one in the last: with the 31 before, 39 instead of 8,191. The
# right half comes later in this lesson.

# %%
show_source(reduce.block_reduce_sum)

# %% [markdown]
# This is a *device function*: kernels can call it, Python cannot. It takes a number from each thread and returns the
# same total to all of them. In the loop, `stride` is the distance to the partner. A barrier follows each step, because
# a thread reads what its partner wrote in the step before. `shared` has one place for each thread, so its length
# depends on the launch: the kernel declares it with length 0, and the fourth number in the brackets, `kernel[grid,
# block, stream, bytes]`, says how large it is. (The third, 0, is the default stream.)

# %%
print("threads   one after another   steps of the tree   barriers")
for threads in (32, 64, 128, 256, 512, 1024):
    ones, out = np.ones((1, threads), np.float32), np.zeros(1, np.float32)
    barriers = observe(reduce.sum_tree_kernel[1, threads, 0, 4 * threads], ones, out).counts["barriers"]
    print(f"{threads:7} {threads - 1:19} {barriers - 2:19} {barriers:10}")

# %% [markdown]
# Twice as many threads, one step more. For the steps I subtracted two of the barriers that a thread passes. One comes
# before the tree: no thread may read until all have stored. The other comes after the total has been read, and looks
# useless. What is it for?

# %% [markdown]
# ## The barrier that is missing in print
#
# A GPT-2 in CUDA, published with its source, has this function without the last barrier. It calls it twice in a row,
# first for the mean of a row, then for its variance. Here is a kernel that does the same. Before you run the cell: will
# the result be right, and will `observe` find accesses to one element that no barrier separates?

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
# be right for years, which proves nothing, as lesson 06 showed. The race is there all the same. Thread 0 returns with
# the mean, goes through its part of the row, and begins the second call by storing its new number into `shared[0]`. A
# slow thread of another warp has not yet read the old total from there. It reads thread 0's part of the second sum and
# takes it for the first total.
#
# Here it is step by step. The button *show it* jumps to the race: both threads, both lines, and the element.

# %%
observe(reduce.mean_and_variance_racy_kernel[1, 64], x[:1, :64], np.zeros((1, 2), np.float32)).play()

# %% [markdown]
# What happens on a real GPU? The racy kernel was launched again and again on an H200, then once under NVIDIA's checker
# (`compute-sanitizer --tool racecheck`), which delays some threads more than others.

# %%
from labkit.measure import sanitizer

print(sanitizer.recorded_race())

# %% [markdown]
# Left alone, the race never showed. Under the checker most rows were wrong, and it reported one hazard: the read and
# the write that race. On every other kernel of this course it reported nothing. A function cannot tell how often a
# kernel calls it, so the barrier belongs inside. (Or the second call gets a second array. Then no barrier is needed,
# and that is what the fast kernels below do.)

# %% [markdown]
# ## Without shared memory
#
# The 32 lanes of a warp can exchange values without shared memory. A *shuffle* passes a register to another lane, and
# needs no barrier, since the lanes of a warp execute it together. `shfl_xor_sync(mask, value, 16)` gives each lane the
# value of the lane whose number differs in the bit 16: lanes 0 and 16 exchange their values, 1 and 17, and so on. The
# mask says which lanes take part, one bit for each; 0xFFFFFFFF is all 32.

# %%
show_source(reduce.warp_sum)

# %% [markdown]
# These are five steps for 32 lanes, as on the right of the picture. Every lane works in every step, and at the end
# every lane has the total, so nothing needs to be passed back.
#
# A shuffle does not leave its warp, so a block of several warps needs a second level: each warp stores its sum, and
# after a barrier every warp adds up those sums. Of 32 numbers only one goes through shared memory. How many barriers
# are left?

# %%
ones, out = np.ones((1, 256), np.float32), np.zeros(1, np.float32)
print("256 numbers          barriers   shared loads   shared stores")
for name, launch in (("tree", reduce.sum_tree_kernel[1, 256, 0, 1024]),
                     ("two levels", reduce.sum_two_level_kernel[1, 256]), ("one warp", reduce.sum_warp_kernel[1, 256])):
    counts = observe(launch, ones, out).counts
    print(f"{name:18} {counts['barriers']:10} {counts['shared_loads']:14} {counts['shared_stores']:15}")
show_source(reduce.block_sum)

# %% [markdown]
# ## The ladder of sums

# %%
agree(REDUCE_SUM)

# %% [markdown]
# Each rung adds in a different order, so the last digits differ. The allowed error grows with the square root of the
# length, as independent rounding errors do. `sequential` has the largest error: it adds one number after another, and
# soon its sum is much larger than what it adds. (`warp` has one warp for each row, `two_level` a block.)
#
# `vectorized` is new: a thread loads four neighbours with one instruction (`ptx.load_nc4`, lesson 07), and does so four
# times before it adds. Now predict, for a GPU: the tree has ten barriers and the two levels have two. What is that
# worth, when each thread first has to load 32 numbers?

# %%
plots.ladder(ladder(REDUCE_SUM))

# %% [markdown]
# On the H200 eight barriers fewer are worth a few percent{{ if barriers_gain }}. How the threads join their sums hardly
# matters: that happens once for each row, after thousands of loads.
#
# What does matter can be seen in the PTX. The loops of the tree and of the two levels hold one load each: a thread
# loads, waits, adds, and loads again. In the warp's loop the step is a constant, 32, so the compiler could unroll four
# rounds and put four loads before the first addition. `vectorized` does the same on purpose. It is Little's law again
# (lesson 02): with one load of four bytes in each thread, too few bytes are on their way.

# %% [markdown]
# ## What I learned
#
# - $\log_2 256 = 8$ steps look like the heart of a reduction. They take a few percent of its time.
# - A device function that uses shared memory has to leave it in a state in which it can be used again.
# - Count the loads that a loop has in flight. That explained three results of this lesson.
# - The online rule is worth more as algebra than as a faster softmax. A row that fits into registers does not need it.
# - Sentences such as "80 times{{ quoted }} faster" are worth measuring. It was {{ memory_over_shared:.0f }}, and the
#   cache between the two is what counts.

# %% [markdown]
# ## Resources
#
# - [M. Harris: Optimizing Parallel Reduction in CUDA](https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf)
# - [CUDA C++ Programming Guide: Warp Shuffle Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#warp-shuffle-functions)
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
# - [X. Mei, X. Chu: Dissecting GPU Memory Hierarchy through Microbenchmarking (2017)](https://arxiv.org/abs/1509.02308)

# %% [markdown]
# ## Try it
#
# - In the cell with the races, launch one warp: `kernel[1, 32]`. Does `observe` still find the race? Should it?
# - In the cell that joins parts, forget the factor of one part: `s + s2 * np.exp(m2 - row_max)`. For which rows does
#   the result stay right?
# - `pictures.reductions(16)`: before you look, how many lines are there in the last step of each half?
#
# Next: **histogram and scan**, where threads share counters, and every element gets a sum of its own.

# %% [numbers]
# ns = series.memory_latency.places
# barriers_gain = 0.01 < row('reduce_sum', 'tree').ms / row('reduce_sum', 'two_level').ms - 1 < 0.06
# last_over_trees = row('softmax', 'block_tree').ms / row('softmax', 'vectorized').ms
# memory_over_shared = ns['memory'].ns / ns['shared memory'].ns
# l1_over_shared = ns['L1 cache'].ns / ns['shared memory'].ns
# online_mb = ncu('softmax', 'online').dram_read / 1e6
# three_loops_mb = ncu('softmax', 'warp').dram_read / 1e6
# online_gain = 0.01 < row('softmax', 'warp').ms / row('softmax', 'online').ms - 1 < 0.06
# reads = ncu('softmax', 'warp').dram_read / 2**28
