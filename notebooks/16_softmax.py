# %% [markdown]
# # 16 · Softmax
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how a softmax reads its row once

# %% [markdown]
# ## The problem
#
# To be written.

# %%
import numpy as np

from labkit import agree, ladder, measure, plots, roofline, show_source
from labkit.kernels.ops.reduce import REDUCE_SUM

roofline.predict(REDUCE_SUM, R=8192, C=8192)

# %% [markdown]
# ## Softmax
#
# $$\text{out}_{r,c} = \frac{e^{x_{r,c}}}{\sum_k e^{x_{r,k}}}$$
#
# Softmax turns a row of numbers into probabilities: positive, with the sum 1. It needs a sum, and in practice a second
# reduction: in float32, $e^{89}$ is infinite. So the maximum of the row, $m$, is subtracted first. Numerator and
# denominator both change by the factor $e^{-m}$, and the quotient stays the same. That makes three loops: maximum, sum,
# quotient. In the first kernel one thread takes a row. In the second a block shares it, with two trees.

# %%
from labkit.kernels.ops.softmax import SOFTMAX
from labkit.kernels.softmax import rows

show_source(rows.softmax_block_tree_kernel)

# %% [markdown]
# Next, the recorded times of both for 8,192 × 8,192 numbers, and of the last rung of this lesson. They are compared
# with the same three loops in Python, compiled by Numba's `njit` for one core of a CPU. How far are the kernels from
# what the roofline allows?

# %%
from labkit._common.tables import number

softmax = measure.recorded_ladder("softmax", gpu="NVIDIA H200")
cpu_ms = measure.recorded_series("softmax_cpu", gpu="NVIDIA H200")["ms"]
print(f"one core of the host     {number(cpu_ms):>6} ms")
for name, rung in (("one thread a row", "naive"), ("one block a row", "block_tree"), ("the last rung", "vectorized")):
    ms = softmax.row(f"softmax_{rung}").timing.p50
    print(f"{name:24} {number(ms):>6} ms, {number(cpu_ms / ms):>5} times as fast")
roofline.predict(SOFTMAX, R=8192, C=8192)

# %% [markdown]
# One thread for each row is slow because 8,192 threads leave most places for warps empty, and neighbouring lanes read
# addresses 32 KB apart, so that each request touches 32 sectors.
#
# The last rung is another factor of {{ words(last_over_trees) }} over the trees, and close to the bound, which assumes
# that x is read once and `out` written once. The kernel with the trees reads x twice, writes the exponentials, reads
# them back and writes again: {{ words(2 + 1 + 1 + 1) }} times the matrix instead of two. A cache supplies some of it.
# But a row of x and one of `out` take 32 KB each, and eight blocks share the 256 KB of an SM's L1 cache and shared
# memory.

# %% [markdown]
# ## How far away is memory?
#
# Shared memory is said to be 80 times{{ quoted }} faster than global memory. To measure it, one thread follows a chain
# of addresses in which each load gives the address of the next. No load can be issued ahead, so the time of a step is
# the latency of a load (lesson 02).

# %%
series = measure.recorded_series("memory_latency", gpu="NVIDIA H200")
nearest = series["places"]["shared memory"]["ns"]
for name, place in series["places"].items():
    print(f"{name:14} {place['bytes']:12,} bytes   {place['ns']:6.1f} ns a load   {place['ns'] / nearest:5.1f} times")
print(f"measured on {series['where']}, {series['date']}")

# %% [markdown]
# On this H200 memory takes {{ memory_over_shared:.0f }} times as long as shared memory, not 80. A number that the L1
# cache happens to hold takes only {{ l1_over_shared:.1f }} times as long as one that was put into shared memory: the
# two are the same hardware. So shared memory is not worth much as a mere cache. What it offers is that the program
# decides what it holds, and that threads can exchange values through it.

# %% [markdown]
# ## Maximum and sum in one pass
#
# The maximum has to be known before it can be subtracted, so the sum seems to need a second pass. It does not. Suppose
# that one part of the row has the maximum $m$ and the sum $s = \sum e^{x - m}$, and another part $m'$ and $s'$. Let $M$
# be the larger of $m$ and $m'$. Each term becomes relative to $M$ by a factor that is the same for its whole part:
#
# $$e^{x - M} = e^{x - m} \, e^{m - M} \qquad\Rightarrow\qquad S = s \, e^{m - M} + s' \, e^{m' - M}$$
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
    row = rng.uniform(-60, 60, 200)
    m, s = -np.inf, 0.0
    for part in np.split(row, np.unique(rng.integers(1, row.size, 5))):
        m, s = join(m, s, part.max(), np.exp(part - part.max()).sum())
    worst = max(worst, abs(s / np.exp(row - row.max()).sum() - 1))
print(f"largest relative difference from two passes: {worst:.1e}")

# %% [markdown]
# This is the *online* softmax. Lesson 25 uses it for an attention that never stores its matrix of scores. In the kernel
# each thread has a part of the row and keeps its own $m$ and $s$ while it reads. `warp_merge` joins those of a warp, as
# `join` does, by shuffles.

# %%
show_source(rows.softmax_online_kernel)

# %% [markdown]
# ## A row kept in registers
#
# This kernel still reads the row a second time to write the result, because it has not kept it. 8,192 numbers are 32
# KB, and an SM has 256 KB of registers. Give each of 256 threads 32 numbers, and the row fits into the fastest memory
# there is.

# %%
show_source(rows.softmax_vectorized_kernel)

# %% [markdown]
# `cuda.local.array` is an array of each thread's own. Once the loops are unrolled, its indices are constants, so each
# element becomes a register and nothing goes to local memory. All eight loads of a thread, 128 bytes, come before the
# first use. `launch_bounds` (lesson 02) keeps the kernel within the registers that 512 threads can have.
#
# The exponential is different, too: `ex2.approx`, the hardware's instruction for $2^x$, with $e^x = 2^{x \log_2 e}$.
# `math.exp` uses the same instruction, after a correction of its argument. What does leaving the correction out cost?
# Look at the errors in the next table.

# %%
agree(SOFTMAX, sizes=({"R": 1, "C": 4}, {"R": 33, "C": 36}, {"R": 7, "C": 1000}, {"R": 3, "C": 8192}))

# %% [markdown]
# The tolerance is a number of roundings: a few for each operation, more where $x$ lies far below the maximum, more for
# long sums. `naive` comes closest to it, because it adds 8,192 numbers one after another. `vectorized` is next, and
# well within it. (With lengths that are no multiple of four, rows do not begin at a multiple of 16 bytes, and another
# kernel loads them one element at a time.)

# %%
taken = softmax.row("softmax_vectorized").resources[0]
print(f"vectorized: {taken['registers']} registers a thread, {taken['blocks_per_sm']} blocks of "
      f"{taken['block'][0]} threads on each SM")
plots.ladder(ladder(SOFTMAX))

# %% [markdown]
# On the same GPU Nsight Compute counted the bytes that memory delivered, and what the warps waited for. `load` and
# `store` are sectors for each request, and `long_scoreboard` is the wait for a load from memory.

# %%
from labkit.measure import ncu as counters

counters.profile("softmax")

# %% [markdown]
# On the recorded H200 the row in registers runs at the speed of a copy, which is the limit: every byte is moved once,
# and memory never pauses. With five blocks on an SM there are 1,280 threads with 128 bytes each in flight, far more
# than Little's law requires. While one block reduces, the others load.
#
# The kernel with a warp for each row reads the matrix {{ words(reads) }} times from memory, as its loops say: the
# caches cannot hold the rows of all warps until the next loop. The online kernel, where a block shares a row, is a
# disappointment. Memory reads {{ online_mb:.0f }} MB for it and {{ three_loops_mb:.0f }} for the three loops of a warp,
# and it wins a few percent{{ if online_gain }}. Its loop has one load in flight, as in the ladder of sums. Fewer bytes
# only help a kernel that waits for bytes.

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
