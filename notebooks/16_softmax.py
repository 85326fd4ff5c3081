# %% [markdown]
# # 16 · Softmax
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - why a softmax that can handle large numbers reads its row three times
# - how the maximum and the sum can be found in one pass
# - what reading the row only once saves, and where to keep it meanwhile

# %% [markdown]
# ## The problem
#
# Softmax turns a row of numbers into probabilities, which are positive and add up to 1:
#
# $$\text{out}_{r,c} = \frac{e^{x_{r,c}}}{\sum_k e^{x_{r,k}}}$$
#
# Language models end with it, and attention (lesson 24) is built around it. Taken literally, the formula fails: in
# float32, $e^{89}$ is infinite. So the largest element of the row, $m$, is subtracted first. That multiplies numerator
# and denominator by the same factor $e^{-m}$, and no exponential is larger than 1. The price is a second reduction, and
# three loops over the row: the maximum, the sum, the quotients.

# %% [markdown]
# ## Prediction
#
# How long must the softmax of 8,192 rows of 8,192 elements take on an H200, if every byte is moved just once?

# %%
import numpy as np

from labkit import agree, cuda, ladder, measure, observe, plots, roofline, show_source, table
from labkit.course.drawings import softmax as pictures
from labkit.device.launches import planned
from labkit.kernels.ops.softmax import SOFTMAX
from labkit.kernels.softmax import rows
from labkit.measure import ncu as counters

roofline.predict(SOFTMAX, R=8192, C=8192)

# %% [markdown]
# That counts one read of `x` and one write of `out`. Three loops will move more. The kernels of this lesson bring that
# down.

# %% [markdown]
# ## One thread per row
#
# The first kernel is the formula as a loop: one thread works through a whole row.

# %%
show_source(rows.softmax_naive_kernel)

# %% [markdown]
# Two things are wrong with it. There are only 8,192 threads, and an H200 has room for {{ machine.sms * 2048:,d }}. And
# the lanes of a warp are in 32 different rows, whose addresses are 32 KB apart, so a request touches 32 sectors where
# four would do (lesson 04). On the H200 it takes {{ ms['naive']:.1f }} ms. The same three loops on one core of its
# host, compiled by Numba's `njit`, take {{ series.softmax_cpu.ms:.0f }} ms.

# %% [markdown]
# ## One block per row
#
# In the second kernel the threads of a block share a row: neighbouring lanes read neighbouring elements, and two of the
# trees of lesson 15 combine the threads' results.

# %%
show_source(rows.softmax_block_tree_kernel)

# %% [markdown]
# That is {{ ms['naive'] / ms['block_tree']:.0f }} times as fast. But how often does it go through the matrix? In the
# second loop it stores the exponentials in `out`, and in the third it reads them back and divides. How many passes over
# the matrix, reading and writing, does that make?

# %%
def passes(launcher):
    """Passes over the matrix, read and written, that the threads of this launcher request."""
    x, out = cuda.to_device(np.ones((8, 1024), np.float32)), cuda.device_array((8, 1024), np.float32)
    counts = [observe(one.kernel[one.grid, one.block, 0, one.shared_bytes], *one.args).counts
              for one in planned(lambda: launcher(x, out))]
    return tuple(sum(each[f"bytes_{kind}"] for each in counts) / (4 * 8 * 1024) for kind in ("loaded", "stored"))


table([("block_tree", *passes(rows.softmax_block_tree))], {"kernel": "", "read": ".1f", "written": ".1f"},
      "Passes over the matrix")

# %% [markdown]
# Five: it reads `x` twice and writes the exponentials, then reads those and writes the result.

# %% [markdown]
# ## One warp per row
#
# Nothing forces us to keep the exponentials in memory. Computing them a second time is cheaper than writing and reading
# them back. And if a warp handles the row instead of a block, its lanes can exchange their results by shuffles: no
# shared memory and no barrier.

# %%
show_source(rows.softmax_warp_kernel)

# %% [markdown]
# Three reads and one write: four passes instead of five, for twice the exponentials. The H200 needs
# {{ us['warp']:.0f }} us instead of {{ us['block_tree']:.0f }}. Four fifths of the passes take four
# fifths{{ if near(us['warp'] / us['block_tree'], 0.8, 0.03) }} of the time, so the second exponential has no visible
# cost.

# %% [markdown]
# ## Maximum and sum in one pass
#
# The sum seems to need a separate pass, because the maximum has to be known before it can be subtracted. It does not.
# Say that one part of the row has the maximum $m$ and the sum $s = \sum e^{x - m}$, another part $m'$ and $s'$, and let
# $M$ be the larger of $m$ and $m'$. One factor per part rescales all of its terms from its own maximum to the common
# one:
#
# $$e^{x - M} = e^{x - m} \, e^{m - M} \qquad\Rightarrow\qquad S = s \, e^{m - M} + s' \, e^{m' - M}$$

# %% tags=["hide-input"]
pictures.join()

# %% [markdown]
# So two values per part are enough to join it to any other part, wherever the row was cut. A test with 300 random rows,
# each cut at random places:

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
# This is the *online softmax* of [Milakov and Gimelshein (2018)](https://arxiv.org/abs/1805.02867), and lesson 25
# builds an attention on it that never stores its matrix of scores. In the kernel each thread keeps its own $m$ and $s$
# while it reads its part of the row. `warp_merge` then joins those of a warp by shuffles, in the same way as `join`.

# %%
show_source(rows.softmax_online_kernel)

# %% [markdown]
# The threads now request two reads and one write, {{ words(1 / 4) }} less than before. How much time should that save?

# %%
timed = measure.recorded_ladder("softmax", gpu="NVIDIA H200")
ms = {row.name.removeprefix("softmax_"): (row.graph or row.timing).p50 for row in timed.rows}
table([(name, sum(passes(getattr(rows, f"softmax_{name}"))), 1000 * ms[name])
       for name in ("block_tree", "warp", "online")],
      {"kernel": "", "passes": ".1f", "us": ".0f"}, "Passes requested, and the time they take",
      note=f"Times on {timed.where}.")

# %% [markdown]
# A disappointment: {{ 1 - 1 / warp_over_online:.0% }} instead of a quarter. The loop of the online kernel loads one
# element, updates its sum, and only then loads the next, so there is one load in flight per thread, as in lesson 15.
# Fewer bytes only help a kernel that is bound by bandwidth; this one is bound by latency.

# %% [markdown]
# ## A row kept in registers
#
# It also reads the row a second time before it writes the result, because it has kept nothing. A row of 8,192 elements
# is 32 KB, and an SM has 256 KB of registers. Give each of 256 threads 32 elements, and the row fits into the fastest
# memory there is.

# %%
show_source(rows.softmax_vectorized_kernel)

# %% [markdown]
# `cuda.local.array` is an array that belongs to one thread. Once the loops are unrolled all of its indices are
# constants, so each element becomes a register and nothing goes to local memory (lesson 07). A thread issues all eight
# of its wide loads, 128 bytes, before it uses the first. `launch_bounds` (lesson 03) keeps the kernel within the
# registers that 512 threads can have.
#
# With the row in registers, the online rule is no longer needed: a second loop over registers costs next to nothing.
#
# The exponential has changed as well. `ex2.approx` is the hardware's own instruction for $2^x$, and
# $e^x = 2^{x \log_2 e}$. `math.exp` uses the same instruction, after correcting its argument. Does leaving out that
# correction cost accuracy?

# %%
agree(SOFTMAX, sizes=({"R": 1, "C": 4}, {"R": 33, "C": 36}, {"R": 7, "C": 1000}, {"R": 3, "C": 8192}))

# %% [markdown]
# Some, and it stays well within the tolerance, which allows a few roundings for each operation, more where $x$ is far
# below the maximum, and more for long sums. The kernel that comes closest to the limit is `naive`, which adds up 8,192
# terms one after another. Rows whose length is not a multiple of four do not start at a multiple of 16 bytes; they go
# to a variant that loads one element at a time.

# %% [markdown]
# ## The climb
#
# Now the whole ladder. The last rung makes two passes instead of three. Will it be one and a half times as fast as the
# online kernel, or more?

# %% tags=["hide-input"]
plots.ladder(ladder(SOFTMAX))

# %% [markdown]
# Much more: {{ us['online'] / us['vectorized']:.1f }} times. It runs at the speed of a copy, which is the limit. Each
# SM holds {{ words(blocks_per_sm) }} of its blocks, {{ blocks_per_sm * 256:,d }} threads with 128 bytes each in flight.
# That is {{ blocks_per_sm * 256 * 128 / 1024:.0f }} KB, far more than the {{ needed_per_sm:.0f }} KB that Little's law
# requires. While one block reduces, the others load.
#
# Nsight Compute (lesson 12) counted the bytes that memory really delivered. `load` and `store` are sectors per request.
# The caches may supply a part of what the threads request. For which kernels do they?

# %%
counters.profile("softmax")

# %% [markdown]
# The kernel with a warp per row requests the matrix three times and gets it from memory {{ words(reads) }} times: 64
# warps on an SM work on 64 rows of 32 KB, and no cache can hold those until the next loop. With a block per row there
# are only eight rows on an SM, and a good part of the second read comes from the caches: memory delivers
# {{ online_mb:.0f }} MB to the online kernel, not twice {{ matrix_mb:.0f }}. The last rung needs no help. It reads each
# byte once, {{ vectorized_mb:.0f }} MB.
#
# In the last column, `long_scoreboard` is the wait for a load from memory. It comes first in every line. A kernel at
# the limit waits for memory, too; the question is how much it has in flight while it waits.

# %% [markdown]
# ## What I learned
#
# - Subtracting the maximum is not an optimisation. Without it softmax is wrong.
# - Recomputing an exponential is cheaper than storing it and reading it back.
# - Parts of a softmax can be joined in any order, with two values per part. This matters more as algebra than for the
#   speed of a softmax: a row that fits into registers does not need it.
# - Fewer bytes help only once enough bytes are in flight.

# %% [markdown]
# ## Resources
#
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
# - [CUDA C++ Programming Guide: Warp Shuffle
#   Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#warp-shuffle-functions)

# %% [markdown]
# ## Try it
#
# - In the cell that joins parts, forget the factor of one part: `s + s2 * np.exp(m2 - row_max)`. For which rows is the
#   result still right?
# - `pictures.join((5, 4), (1, 3, 2))`: which of the two factors is 1 now?
# - Call `passes` for a matrix with rows of 1,001 elements. Does `softmax_vectorized` still read each of them once?
#
# Next: **other ways to write a kernel**: the same softmax by library calls, in Triton and in cuTile.

# %% [numbers]
# names = ('naive', 'block_tree', 'warp', 'online', 'vectorized')
# us = {name: row('softmax', name).graph_us or row('softmax', name).us for name in names}
# ms = {name: us[name] / 1000 for name in names}
# warp_over_online = us['warp'] / us['online']
# blocks_per_sm = row('softmax', 'vectorized').blocks_per_sm
# needed_per_sm = 4800 * series.memory_latency.places.memory.ns / machine.sms / 1e3
# reads = ncu('softmax', 'warp').dram_read / 2**28
# matrix_mb = 4 * 8192 * 8192 / 1e6
# online_mb = ncu('softmax', 'online').dram_read / 1e6
# vectorized_mb = ncu('softmax', 'vectorized').dram_read / 1e6
