# %% [markdown]
# # 09 · Reductions and softmax
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - how 256 threads agree on one number, and how many steps that takes
# - which barrier is missing when a reduction works once and not twice
# - how a softmax comes down from three readings of its row to one
#
# ## The problem
#
# So far every thread had its own part of the result, and worked it out alone. A *reduction* makes one number out of so
# many that one thread should not. Here is the sum of each row of a matrix:
#
# $$\text{out}_r = \sum_c x_{r,c}$$
#
# Nothing in it is hard except that every element of a row must end up in the same place. The threads have to talk.
#
# ## Prediction
#
# Before you run the next cell, write down for 8,192 rows of 8,192 numbers: the bytes, and what sets the limit. Then a
# second number that the table does not have. One thread adds up a row in 8,191 steps, one after another. If 256 threads
# share the row, how many steps does the slowest of them take?

# %%
from labkit import roofline
from labkit.kernels.reduce import REDUCE_SUM

roofline.predict(REDUCE_SUM, R=8192, C=8192)

# %% [markdown]
# Each of the 256 threads first adds up 32 numbers by itself, in 31 steps. That leaves 256 sums, and the question is how
# to join them. One thread could add all of them, in 255 steps, while 255 threads watch. Or the threads could add in
# pairs.

# %%
from labkit import plots

plots.reductions(8)

# %% [markdown]
# On the left, every step halves the number of sums: 8, 4, 2, 1. It is called a *tree*. For 256 sums it takes
# $\log_2 256 = 8$ steps, with 128 threads at work in the first and one in the last. On the right is another way, which
# comes later.

# %%
from labkit import show_source
from labkit.kernels.reduce import block_reduce_sum

show_source(block_reduce_sum)

# %% [markdown]
# This is a *device function*: a kernel can call it, Python cannot. It gets a number from each thread and returns the
# same total to all of them. In the loop, `stride` is the distance to the partner. Between two steps stands a barrier,
# because a thread reads what its partner wrote in the step before.
#
# Count them. `observe` counts the barriers that a thread comes by, whatever the size of the block.

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
# Twice as many threads, one step more. I subtracted two barriers. One stands before the tree: nobody may read until all
# have stored. The other stands after the total has been read, and it looks useless. What is it for?
#
# ## The barrier that is missing in print
#
# A GPT-2 in CUDA that I studied has this function without its last barrier. It calls it twice in a row, first for the
# mean of a row, then for its variance. Here is a kernel that does so. Before you run the cell: will the result be
# right?

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
# On the CPU device it is wrong: there thread 0 always comes first. On a GPU it may be right for years. That proves
# nothing, as lesson 04 found out. So ask `observe` whether anything keeps the accesses apart, first for the kernel with
# the barrier, then for the one without. A block of two warps is enough to see it.

# %%
for name, kernel in (("with", mean_and_variance_kernel), ("without", mean_and_variance_racy_kernel)):
    report = observe(kernel[1, 64], x[:1], np.zeros((1, 2), np.float32))
    print(f"{name} the last barrier: {len(report.races) or 'no'} race")
    for race in report.races:
        print("  ", race)

# %% [markdown]
# The second call begins by storing into `shared`. A fast thread 0 comes back with the mean, goes through its part of
# the row, and stores its new number into `shared[0]`. A slow thread of another warp has not yet read the old total from
# there. What it gets is one thread's part of the second sum, and it takes that for the first.
#
# What happens on a real GPU? I launched the racy kernel again and again on an H200, then once under NVIDIA's own
# checker (`compute-sanitizer --tool racecheck`), which delays some threads more than others.

# %%
from labkit.measure import sanitizer

print(sanitizer.recorded_race())

# %% [markdown]
# Left alone, the race never showed. Under the checker it ruined most rows, and the checker named the read and the write
# that race. It ran over every kernel of this course as well, with the barrier in place, and reported nothing.
#
# The function is right when it is called once. Called twice it needs the barrier, and it cannot know how often it is
# called. So the barrier belongs in the function. (It could also be given a second array for the second call. Then no
# barrier is needed, and that is how the fast kernels below do it.)
#
# ## Without shared memory
#
# The 32 lanes of a warp have a shorter way to talk. A *shuffle* hands a register to another lane: no memory, no
# barrier, since the lanes of a warp do it together. `shfl_xor_sync(mask, value, 16)` gives each lane the value of the
# lane whose number differs in the bit 16: lanes 0 and 16 exchange their values, 1 and 17, and so on. The mask says
# which lanes take part, a bit for each; 0xFFFFFFFF is all 32.

# %%
from labkit.kernels.reduce import block_sum, warp_sum

show_source(warp_sum)

# %% [markdown]
# Five steps for 32 lanes: the right half of the picture. Every lane works in every step, and at the end every lane has
# the total. That saves handing it round.
#
# A block has several warps, and a shuffle does not leave its warp. So there is a second level: each warp stores one
# number, and a warp adds those. Of the data, only one number of 32 passes through shared memory.

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
# Sums are added in another order on each rung, so the last digits differ. The allowed error grows with the square root
# of the length, as rounding errors do that know nothing of each other. The rung with the largest error adds one number
# after another.
#
# `vectorized` is new: a thread loads four neighbours with one instruction (`ptx.load_nc4`, lesson 05), and four times
# before it adds. Now the prediction, for a GPU. Tree against two levels: ten barriers against two. What will that be
# worth, when a thread has to load 32 numbers first?

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
# On the H200 eight barriers fewer are worth a few percent. The way in which the threads join their sums hardly matters,
# because it happens once for each row and the loads happen thousands of times. (The times of the CPU device say nothing
# about that. There a shuffle costs time for every thread that takes part, and with two levels 256 threads take part ten
# times for each row.)
#
# What does matter I found in the PTX. The loops of tree and two levels hold one load each: a thread asks, waits, adds,
# and asks again. The step of their loops is the size of the block, which the compiler does not know. In the warp's loop
# the step is 32, a constant. So the compiler took four rounds together and put four loads before the first addition.
# `vectorized` does the same on purpose. Memory is far away, and the way to hide it is to have asked for more before you
# wait.
#
# ## Softmax
#
# $$\text{out}_{r,c} = \frac{e^{x_{r,c}}}{\sum_k e^{x_{r,k}}}$$
#
# Softmax turns a row of numbers into probabilities: positive, with the sum 1. It needs a reduction, and in practice
# two. In float32, $e^{89}$ is infinite. So the largest number of the row, $m$, is subtracted first. Numerator and
# denominator both change by the factor $e^{-m}$, and the quotient stays.

# %%
from labkit.measure.series.softmax import softmax_on_one_core

show_source(softmax_on_one_core)

# %% [markdown]
# Three loops: largest, sum, quotient. That is Python compiled for one core of a processor, with Numba's `njit`, and it
# is what the kernels have to beat. The first of them does the same with one thread a row, the second with a block a row
# and two trees.

# %%
from labkit.kernels.softmax.rows import softmax_block_tree_kernel

show_source(softmax_block_tree_kernel)

# %% [markdown]
# The author of the notebook that this course grew from measured these three, for 8,192 × 8,192 numbers on a GPU that is
# not named. Here are those times beside ours.

# %%
from labkit._common.tables import PlainTable, number

softmax = measure.recorded_ladder("softmax", gpu="NVIDIA H200")
cpu_ms = measure.recorded_series("softmax_cpu", gpu="NVIDIA H200")["ms"]
naive_ms, tree_ms, best_ms = (softmax.row(f"softmax_{n}").timing.p50 for n in ("naive", "block_tree", "vectorized"))
table = (("one core", "484.017", "1", cpu_ms), ("one thread a row", "16.456", "29.41", naive_ms),
         ("one block a row", "1.812", "267.17", tree_ms), ("this lesson's last rung", "-", "-", best_ms))

rows = tuple((name, their_ms, their_gain, number(ms), number(cpu_ms / ms)) for name, their_ms, their_gain, ms in table)
PlainTable("Softmax of 8,192 rows of 8,192", ("", "theirs, ms", "speed-up", "H200, ms", "speed-up"), rows,
           ("Theirs: the text says about 25 for the first speed-up, its own log 29.41.",
            f"From one thread to one block a row: theirs 9.08, ours {naive_ms / tree_ms:.1f}.",
            "Ours: recorded on an NVIDIA H200 and one core of its host."))

# %%
from labkit.measure.series.softmax import softmax_cpu

here = softmax_cpu(256, 1024)
print(f"one core here, {here['rows']} x {here['cols']}: {here['ms']:.2f} ms, "
      f"{1e6 * here['ms'] / here['rows'] / here['cols']:.1f} ns for each element")

# %% [markdown]
# The last row of the table is another factor of three over the trees. Where can it come from? The roofline says what
# there is to gain.

# %%
from labkit.kernels.softmax.rows import SOFTMAX

roofline.predict(SOFTMAX, R=8192, C=8192)

# %% [markdown]
# These are the bytes of one reading and one writing. The kernel with the trees reads x twice, writes the exponentials,
# reads them back and writes again: five times the matrix instead of two. Some of it comes from a cache. But the row is
# 32 KB long, and eight blocks share a multiprocessor's cache of 256 KB.
#
# ## How far away is memory?
#
# Shared memory is said to be 80 times faster than global memory. I measured it: one thread follows a chain of
# addresses, where each load says where the next one goes. Then nothing can be asked for ahead, and the time of a step
# is the *latency* of a load.

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
# On this H200 memory takes 24 times as long as shared memory, not 80. What surprised me more is the second line: a
# number that the L1 cache happens to hold takes only 1.4 times as long as one that I put into shared memory. The two
# are the same piece of silicon. Shared memory is worth it for being under control, and for the exchange between
# threads. As a mere cache it gains little.
#
# ## One pass instead of two
#
# To subtract the largest number one has to know it, so the sum seems to need a second reading. It does not. Suppose I
# have read a part of the row. I know its largest number $m$ and its sum $s = \sum e^{x - m}$. Another part has $m'$ and
# $s'$. Let $M$ be the larger of $m$ and $m'$. In the sum of both, each term is measured against $M$:
#
# $$e^{x - M} = e^{x - m} \, e^{m - M}$$
#
# The second factor is the same for all terms of a part, so it can be taken out of the sum:
#
# $$S = s \, e^{m - M} + s' \, e^{m' - M}$$
#
# Two numbers for each part are enough to join it with any other, whatever lies in it and however the row was cut. Test
# it: 300 random rows, each cut at random places.

# %%
def join(m, s, m2, s2):
    largest = max(m, m2)
    return largest, s * np.exp(m - largest) + s2 * np.exp(m2 - largest)


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
# It is called *online* softmax, and it is what makes attention without a stored matrix of scores possible, in a later
# lesson. In a kernel the parts are the threads'. Each keeps its own $m$ and $s$ while it reads, and the shuffles join
# pairs of numbers instead of numbers.

# %%
from labkit.kernels.softmax.rows import merge, softmax_online_kernel

show_source(merge)

# %%
show_source(softmax_online_kernel)

# %% [markdown]
# ## One reading
#
# It still reads the row again to write the result. Unless it has kept the row. 8,192 numbers are 32 KB, and a
# multiprocessor has 256 KB of registers. Give each of 256 threads 32 numbers, and the row fits where it is fastest to
# reach.

# %%
from labkit.kernels.softmax.rows import softmax_vectorized_kernel

show_source(softmax_vectorized_kernel)

# %% [markdown]
# `values` is an array with indices that are known when the kernel is compiled, once the loops are unrolled. So the
# compiler needs no memory for it: each element is a register. And all eight loads of a thread, 128 bytes, stand before
# the first use.
#
# The exponential is another one, too: `ex2.approx`, the instruction that the hardware has for $2^x$, with
# $e^x = 2^{x \log_2 e}$. `math.exp` ends in the same instruction and corrects its argument before. Look at the errors
# in the next table: what does it cost?

# %%
sizes = ({"R": 1, "C": 4}, {"R": 33, "C": 36}, {"R": 7, "C": 1000}, {"R": 3, "C": 8192})
agree(SOFTMAX, sizes=sizes)

# %% [markdown]
# Allowed is a number of roundings: a few for each operation, more where $x$ lies far below the maximum, more for long
# sums. `naive` comes closest to it, because it adds 8,192 numbers one after another. `vectorized` is next: its short
# exponential costs some accuracy, and stays well inside. (The lengths are multiples of four here. Other rows do not
# begin at a multiple of 16 bytes, and a further kernel takes those, one element at a time. The tests run it at 1, 31
# and 4,099.)

# %%
found = ladder(SOFTMAX)
found

# %%
plots.ladder(found)

# %%
for row in softmax.rows:
    if row.kind == "rung" or row.name == "PyTorch":
        print(f"{row.name:20} {number(row.timing.p50):>7} ms   {row.fraction:4.0%} of the limit")
taken = softmax.row("softmax_vectorized").resources[0]
print(f"vectorized: {taken['registers']} registers a thread, {taken['blocks_per_sm']} blocks of "
      f"{taken['block'][0]} threads on each multiprocessor")

# %% [markdown]
# And this is what Nsight Compute counted on that GPU: the bytes that memory really moved, and what the warps waited
# for.

# %%
from labkit.measure import ncu as counters

counters.profile("softmax")

# %% [markdown]
# On the H200 that we recorded, the row in registers runs at the pace of a copy. That is all there is to gain: every
# byte is moved once, and memory has no pause. With five blocks on a multiprocessor there are 1,280 threads with 128
# bytes each on their way. While one block reduces, the others load.
#
# The kernel with a warp for each row reads the matrix three times from memory, as its loops say: the rows of all the
# warps on a multiprocessor are more than a cache can hold until the next loop. Where a block shares a row there are
# fewer rows at a time, and part of the second reading is answered by a cache.
#
# The online kernel is a disappointment. Memory reads 471 MB for it and 805 for the three loops of a warp, and it wins a
# few percent. Its loop has one load in it, as in the ladder of sums. Fewer bytes only help a kernel that waits for
# bytes.
#
# On the CPU device the order is another one. Shuffles are what costs there, and the online kernel has the most.
#
# ## What was implemented
#
# - sums and maxima of rows: one after another, tree, shuffles, two levels, with 128-bit loads
# - softmax in five rungs, and on one core
# - a kernel with a race, kept for what it shows
# - a chain of loads, which measures how far each memory is away
#
# ## What I learned
#
# - $\log_2 256 = 8$ steps look like the heart of a reduction. They take a few percent of its time.
# - A device function that uses shared memory has to leave it in a state in which anyone may use it again.
# - I ask of each loop how many loads it has on their way. It explained three of my results.
# - The online rule is worth more as a piece of algebra than as a faster softmax. A row that fits into registers does
#   not need it.
# - Sentences such as "80 times faster" are worth measuring. It was 24, and the cache between the two is what counts.
#
# ## Resources
#
# - [M. Harris: Optimizing Parallel Reduction in CUDA](https://developer.download.nvidia.com/assets/cuda/files/reduction.pdf)
# - [CUDA C++ Programming Guide: Warp Shuffle Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#warp-shuffle-functions)
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
# - [X. Mei, X. Chu: Dissecting GPU Memory Hierarchy through Microbenchmarking (2017)](https://arxiv.org/abs/1509.02308)
#
# ## Try it
#
# - In the cell with the races, launch one warp: `kernel[1, 32]`. Does `observe` still find the race? Should it?
# - In the cell that joins parts, forget the factor of one part: `s + s2 * np.exp(m2 - largest)`. For which rows does
#   the result stay right?
# - `plots.reductions(16)`: before you look, how many lines are there in the last step of each half?
#
# Next: **fused masked softmax**, where the same kernel meets the scores of attention.
