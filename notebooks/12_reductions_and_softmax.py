# %% [markdown]
# # 12 · Reductions and softmax
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - how 256 threads compute one sum, and how many steps that takes
# - which barrier is missing when a reduction works once but not twice
# - how a softmax that reads its row three times becomes one that reads it once
#
# ## The problem
#
# So far threads have shared what they read, and each computed its own part of the result. A *reduction* makes one
# number out of many, such as the sum of each row of a matrix:
#
# $$\text{out}_r = \sum_c x_{r,c}$$
#
# If several threads share a row, they have to exchange their results.
#
# ## Prediction
#
# Before you run the next cell, write down for 8,192 rows of 8,192 numbers: the bytes, and what sets the limit. Then a
# second number, which the table does not have. One thread adds up a row in 8,191 steps, one after another. If 256
# threads share the row, how many steps does the slowest of them take?

# %%
from labkit import roofline
from labkit.kernels.reduce import REDUCE_SUM

roofline.predict(REDUCE_SUM, R=8192, C=8192)

# %% [markdown]
# Each of the 256 threads first adds up 32 numbers by itself, in 31 steps. That leaves 256 sums to be joined. One thread
# could add all of them, in 255 steps, while 255 threads wait. Or the threads could add in pairs.

# %%
from labkit import plots

plots.reductions(8)

# %% [markdown]
# On the left, every step halves the number of sums: 8, 4, 2, 1. This is a *tree*. For 256 sums it takes $\log_2 256 =
# 8$ steps, with 128 threads at work in the first and one in the last. The right half comes later in this lesson.

# %%
from labkit import show_source
from labkit.kernels.reduce import block_reduce_sum

show_source(block_reduce_sum)

# %% [markdown]
# This is a *device function*: kernels can call it, Python cannot. It takes a number from each thread and returns the
# same total to all of them. In the loop, `stride` is the distance to the partner. Between two steps is a barrier,
# because a thread reads what its partner wrote in the step before. `shared` has one place for each thread, so its
# length depends on the launch: the kernel declares it with length 0, and the fourth number in the brackets,
# `kernel[grid, block, stream, bytes]`, says how large it is. (The third, 0, is the default stream.) `observe` counts
# the barriers that a thread passes.

# %%
import numpy as np

from labkit import observe
from labkit.kernels.reduce import sum_tree_kernel

print("threads   one after another   steps of the tree   barriers")
for threads in (32, 64, 128, 256, 512, 1024):
    ones, out = np.ones((1, threads), np.float32), np.zeros(1, np.float32)
    barriers = observe(sum_tree_kernel[1, threads, 0, 4 * threads], ones, out).counts["barriers"]
    print(f"{threads:7} {threads - 1:19} {barriers - 2:19} {barriers:10}")

# %% [markdown]
# Twice as many threads, one step more. I subtracted two barriers that do not belong to the tree. One comes before it:
# no thread may read until all have stored. The other comes after the total has been read, and looks useless. What is it
# for?
#
# ## The barrier that is missing in print
#
# A GPT-2 in CUDA, published with its source, has this function without the last barrier. It calls it twice in a row,
# first for the mean of a row, then for its variance. Here is a kernel that does the same. Before you run the cell: will
# the result be right?

# %%
from labkit import cuda, device
from labkit.kernels.reduce import mean_and_variance_kernel, mean_and_variance_racy_kernel

x = np.random.default_rng(0).random((4, 1000), dtype=np.float32)
out = cuda.device_array((4, 2), np.float32)
mean_and_variance_racy_kernel[4, 256](cuda.to_device(x), out)
mean, variance = out.copy_to_host().T
error = max(abs(mean - x.mean(axis=1)).max(), abs(variance - x.var(axis=1)).max())
print(f"largest error {error:.1e} ({device.name()})")

# %% [markdown]
# On the CPU device it is wrong, because between two barriers thread 0 always runs first there. On a GPU it may be right
# for years, which proves nothing, as lesson 05 showed. So ask `observe` whether anything keeps the accesses apart,
# first for the kernel with the barrier, then for the one without. A block of two warps is enough.

# %%
for name, kernel in (("with", mean_and_variance_kernel), ("without", mean_and_variance_racy_kernel)):
    report = observe(kernel[1, 64], x[:1], np.zeros((1, 2), np.float32))
    print(f"{name} the last barrier: {len(report.races) or 'no'} race")
    for race in report.races:
        print("  ", race)

# %% [markdown]
# The second call begins by storing into `shared`. A fast thread 0 returns with the mean, goes through its part of the
# row, and stores its new number into `shared[0]`. A slow thread of another warp has not yet read the old total from
# there. It reads one thread's part of the second sum, and takes it for the first total.
#
# Here it is step by step, with two warps and 64 numbers. The button *show it* jumps to the race: both threads, both
# lines, and the element.

# %%
observe(mean_and_variance_racy_kernel[1, 64], x[:1, :64], np.zeros((1, 2), np.float32)).play()

# %% [markdown]
# What happens on a real GPU? The racy kernel was launched again and again on an H200, then once under NVIDIA's checker
# (`compute-sanitizer --tool racecheck`), which delays some threads more than others.

# %%
from labkit.measure import sanitizer

print(sanitizer.recorded_race())

# %% [markdown]
# Left alone, the race never showed. Under the checker most rows were wrong, and it reported one hazard: the read and
# the write that race. It was run over every kernel of this course as well and reported nothing.
#
# Called once, the function is right without the last barrier. Called twice, it needs it. A function cannot tell how
# often a kernel calls it, so the barrier belongs inside. (Or the second call gets a second array. Then no barrier is
# needed, and that is what the fast kernels below do.)
#
# ## Without shared memory
#
# The 32 lanes of a warp can exchange values without shared memory. A *shuffle* passes a register to another lane, and
# needs no barrier, since the lanes of a warp execute it together. `shfl_xor_sync(mask, value, 16)` gives each lane the
# value of the lane whose number differs in the bit 16: lanes 0 and 16 exchange their values, 1 and 17, and so on. The
# mask says which lanes take part, one bit for each; 0xFFFFFFFF is all 32.

# %%
from labkit.kernels.reduce import block_sum, warp_sum

show_source(warp_sum)

# %% [markdown]
# These are five steps for 32 lanes, as on the right of the picture. Every lane works in every step, and at the end
# every lane has the total, so nothing needs to be passed back.
#
# A block has several warps, and a shuffle does not leave its warp. So there is a second level: each warp stores one
# number, and a warp adds those. So of 32 numbers only one goes through shared memory.

# %%
show_source(block_sum)

# %%
from labkit.kernels.reduce import sum_two_level_kernel, sum_warp_kernel

ones, out = np.ones((1, 256), np.float32), np.zeros(1, np.float32)
print("256 numbers          barriers   shared loads   shared stores")
for name, launch in (("tree", sum_tree_kernel[1, 256, 0, 1024]), ("two levels", sum_two_level_kernel[1, 256]),
                     ("one warp", sum_warp_kernel[1, 256])):
    counts = observe(launch, ones, out).counts
    print(f"{name:18} {counts['barriers']:10} {counts['shared_loads']:14} {counts['shared_stores']:15}")

# %% [markdown]
# ## The ladder of sums

# %%
from labkit import agree

agree(REDUCE_SUM)

# %% [markdown]
# Each rung adds in a different order, so the last digits differ. The allowed error grows with the square root of the
# length, as independent rounding errors do. `sequential` has the largest error: it adds one number after another, so
# the sum soon is much larger than what is added. (A launch of `warp` has one warp for each row, that of `two_level` a
# block.)
#
# `vectorized` is new: a thread loads four neighbours with one instruction (`ptx.load_nc4`, lesson 06), four times
# before it adds. Now predict, for a GPU: the tree has ten barriers and the two levels have two. What is that worth,
# when each thread has to load 32 numbers first?

# %%
from labkit import ladder

found = ladder(REDUCE_SUM)
plots.ladder(found)

# %%
from labkit import measure

h200 = measure.recorded_ladder("reduce_sum", gpu="NVIDIA H200")
for name in ("tree", "two_level", "warp", "vectorized"):
    row = h200.row(f"reduce_sum_{name}")
    print(f"{name:11} {1000 * row.timing.p50:6.1f} us   {row.fraction:.0%} of what a copy's bandwidth would allow")

# %% [markdown]
# On the H200 eight barriers fewer are worth a few percent. How the threads join their sums hardly matters: that happens
# once for each row, after thousands of loads.
#
# What does matter is visible in the PTX. The loops of tree and two levels hold one load each: a thread loads, waits,
# adds, and loads again. The step of these loops is the size of the block, which the compiler does not know. In the
# warp's loop the step is 32, a constant, so the compiler unrolled four rounds and put four loads before the first
# addition. `vectorized` does the same on purpose. It is Little's law again (lesson 02): with one load of four bytes in
# each thread, too few bytes are on their way.
#
# ## Softmax
#
# $$\text{out}_{r,c} = \frac{e^{x_{r,c}}}{\sum_k e^{x_{r,k}}}$$
#
# Softmax turns a row of numbers into probabilities: positive, with the sum 1. It needs a sum, and in practice a second
# reduction: in float32, $e^{89}$ is infinite. So the maximum of the row, $m$, is subtracted first. Numerator and
# denominator both change by the factor $e^{-m}$, and the quotient stays the same.

# %%
from labkit.measure.series.softmax import softmax_on_one_core

show_source(softmax_on_one_core)

# %% [markdown]
# There are three loops: maximum, sum, quotient. This is Python compiled for one core of a CPU by Numba's `njit`, the
# baseline for the kernels. The first kernel does the same with one thread for each row, the second with a block for
# each row and two trees.

# %%
from labkit.kernels.softmax.rows import softmax_block_tree_kernel

show_source(softmax_block_tree_kernel)

# %% [markdown]
# Here are the recorded times of these three for 8,192 × 8,192 numbers, with the last rung of this lesson below.

# %%
from labkit._common.tables import number

softmax = measure.recorded_ladder("softmax", gpu="NVIDIA H200")
cpu_ms = measure.recorded_series("softmax_cpu", gpu="NVIDIA H200")["ms"]
print(f"one core of the host     {number(cpu_ms):>6} ms")
for name, rung in (("one thread a row", "naive"), ("one block a row", "block_tree"), ("the last rung", "vectorized")):
    ms = softmax.row(f"softmax_{rung}").timing.p50
    print(f"{name:24} {number(ms):>6} ms, {number(cpu_ms / ms):>5} times as fast")

# %% [markdown]
# Why is one thread for each row so slow? 8,192 threads leave most places for warps empty, and neighbouring lanes read
# addresses 32 KB apart, so each request touches 32 sectors. The last line above is another factor of three over the
# trees. Where can it come from? The roofline says what there is to gain.

# %%
from labkit.kernels.softmax.rows import SOFTMAX

roofline.predict(SOFTMAX, R=8192, C=8192)

# %% [markdown]
# These are the bytes of reading once and writing once. The kernel with the trees reads x twice, writes the
# exponentials, reads them back and writes again: five times the matrix instead of two. A cache supplies some of it. But
# a row of x and one of `out` take 32 KB each, and eight blocks share the 256 KB of an SM's L1 cache and shared memory.
#
# ## How far away is memory?
#
# Shared memory is said to be 80 times faster than global memory. To measure it, one thread follows a chain of addresses
# in which each load gives the address of the next. No load can be issued ahead, so the time of a step is the latency of
# a load (lesson 02).

# %%
from labkit.kernels.pointer_chase import chase_global_kernel

show_source(chase_global_kernel)

# %%
series = measure.recorded_series("memory_latency", gpu="NVIDIA H200")
nearest = series["places"]["shared memory"]["ns"]
for name, place in series["places"].items():
    print(f"{name:14} {place['bytes']:12,} bytes   {place['ns']:6.1f} ns a load   {place['ns'] / nearest:5.1f} times")
print(f"measured on {series['where']}, {series['date']}")

# %% [markdown]
# On this H200 memory takes 24 times as long as shared memory, not 80. The second line is as interesting: a number that
# the L1 cache happens to hold takes only 1.4 times as long as one that was put into shared memory. The two are the same
# hardware. So shared memory is not worth much as a mere cache. Its use is that the program decides what it holds, and
# that threads can exchange values through it.
#
# ## Maximum and sum in one pass
#
# The maximum has to be known before it can be subtracted, so the sum seems to need a second pass. It does not. Suppose
# that one part of the row has the maximum $m$ and the sum $s = \sum e^{x - m}$, and another part $m'$ and $s'$. Let $M$
# be the larger of $m$ and $m'$. Over both parts, each term is measured against $M$:
#
# $$e^{x - M} = e^{x - m} \, e^{m - M}$$
#
# The second factor is the same for all terms of a part, so it can be taken out of the sum:
#
# $$S = s \, e^{m - M} + s' \, e^{m' - M}$$
#
# Two numbers for each part are enough to join it to any other, wherever the row was cut. Here is a test with 300 random
# rows, each cut at random places.

# %%
def join(m, s, m2, s2):
    row_max = max(m, m2)
    return row_max, s * np.exp(m - row_max) + s2 * np.exp(m2 - row_max)


rng = np.random.default_rng(1)
worst = 0.0
for _ in range(300):
    row = rng.uniform(-60, 60, rng.integers(2, 200))
    m, s = -np.inf, 0.0
    for part in np.split(row, np.sort(rng.integers(1, row.size, 5))):
        if part.size:
            m, s = join(m, s, part.max(), np.exp(part - part.max()).sum())
    assert m == row.max()
    worst = max(worst, abs(s / np.exp(row - row.max()).sum() - 1))
print(f"largest relative difference from two passes: {worst:.1e}")

# %% [markdown]
# This is the *online* softmax. Lesson 18 uses it for an attention that never stores its matrix of scores. In the kernel
# the parts belong to the threads. Each keeps its own $m$ and $s$ while it reads, and the shuffles join pairs of them.

# %%
from labkit.kernels.softmax.rows import merge, softmax_online_kernel

show_source(merge)

# %%
show_source(softmax_online_kernel)

# %% [markdown]
# ## A row kept in registers
#
# This kernel still reads the row a second time to write the result, because it has not kept it. 8,192 numbers are 32
# KB, and an SM has 256 KB of registers. Give each of 256 threads 32 numbers, and the row fits into the fastest memory
# there is.

# %%
from labkit.kernels.softmax.rows import softmax_vectorized_kernel

show_source(softmax_vectorized_kernel)

# %% [markdown]
# `cuda.local.array` is an array of each thread's own. Once the loops are unrolled, its indices are constants, so each
# element becomes a register and nothing goes to local memory. All eight loads of a thread, 128 bytes, come before the
# first use. `launch_bounds` (lesson 02) keeps the kernel within the registers that 512 threads can have.
#
# The exponential is different, too: `ex2.approx`, the hardware's instruction for $2^x$, with $e^x = 2^{x \log_2 e}$.
# `math.exp` uses the same instruction, after a correction of its argument. What does leaving the correction out cost?
# Look at the errors in the next table.

# %%
sizes = ({"R": 1, "C": 4}, {"R": 33, "C": 36}, {"R": 7, "C": 1000}, {"R": 3, "C": 8192})
agree(SOFTMAX, sizes=sizes)

# %% [markdown]
# The tolerance is a number of roundings: a few for each operation, more where $x$ lies far below the maximum, more for
# long sums. `naive` comes closest to it, because it adds 8,192 numbers one after another. `vectorized` is next, and
# well within it. (The lengths here are multiples of four. With others, rows do not begin at a multiple of 16 bytes, and
# a second kernel loads them one element at a time.)

# %%
plots.ladder(ladder(SOFTMAX))

# %%
taken = softmax.row("softmax_vectorized").resources[0]
print(f"vectorized: {taken['registers']} registers a thread, {taken['blocks_per_sm']} blocks of "
      f"{taken['block'][0]} threads on each SM")

# %% [markdown]
# And this is what Nsight Compute counted on that GPU: the bytes that memory delivered, and what the warps waited for.
# `load` and `store` are sectors for each request, and `long_scoreboard` is the wait for a load from memory.

# %%
from labkit.measure import ncu as counters

counters.profile("softmax")

# %% [markdown]
# On the recorded H200 the row in registers runs at the speed of a copy, which is the limit: every byte is moved once,
# and memory never pauses. With five blocks on an SM there are 1,280 threads with 128 bytes each in flight, far more
# than Little's law requires. While one block reduces, the others load.
#
# The kernel with a warp for each row reads the matrix three times from memory, as its loops say: the rows of all warps
# on an SM are more than a cache can hold until the next loop. Where a block shares a row, there are fewer rows at a
# time, and a cache answers part of the second pass.
#
# The online kernel is a disappointment. Memory reads 471 MB for it and 805 for the three loops of a warp, and it wins a
# few percent. Its loop has one load in flight, as in the ladder of sums. Fewer bytes only help a kernel that waits for
# bytes.
#
#
#
# ## What I learned
#
# - $\log_2 256 = 8$ steps look like the heart of a reduction. They take a few percent of its time.
# - A device function that uses shared memory has to leave it in a state in which it can be used again.
# - Count the loads that a loop has in flight. That explained three results of this lesson.
# - The online rule is worth more as algebra than as a faster softmax. A row that fits into registers does not need it.
# - Sentences such as "80 times faster" are worth measuring. It was 24, and the cache between the two is what counts.
#
# ## Resources
#
# - [M. Harris: Optimizing Parallel Reduction in
#   CUDA](https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf)
# - [CUDA C++ Programming Guide: Warp Shuffle
#   Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#warp-shuffle-functions)
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
# - [X. Mei, X. Chu: Dissecting GPU Memory Hierarchy through Microbenchmarking (2017)](https://arxiv.org/abs/1509.02308)
#
# ## Try it
#
# - In the cell with the races, launch one warp: `kernel[1, 32]`. Does `observe` still find the race? Should it?
# - In the cell that joins parts, forget the factor of one part: `s + s2 * np.exp(m2 - row_max)`. For which rows does
#   the result stay right?
# - `plots.reductions(16)`: before you look, how many lines are there in the last step of each half?
#
# Next: **histogram and scan**, where threads share counters, and every element gets a sum of its own.
