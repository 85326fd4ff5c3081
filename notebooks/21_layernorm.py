# %% [markdown]
# # 21 · LayerNorm
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - why a variance in one pass can come out negative, and two ways around it
# - how a row that stays in registers is read once, however many passes a formula makes over it
# - why three passes over a row can cost hardly more than one
#
# ## The problem
#
# GPT-2 and its relatives, the *transformers*, pass a row of numbers for each token from layer to layer. Before or after
# each layer the row is normalised: shifted and scaled to a mean of 0 and a variance of 1, then multiplied by a weight
# and increased by a bias. Each column has its own weight and bias, which were learned in training:
#
# $$\text{out}_{r,c} = \frac{x_{r,c} - \mu_r}{\sqrt{\sigma_r^2 + 10^{-5}}} \; w_c + b_c$$
#
# $\mu_r$ is the mean of the row and $\sigma_r^2$ its variance, the mean of the squared differences from $\mu_r$. GPT-2
# does this {{ 2 * 12 + 1 }} times for each token, twice in each of its 12 layers and once at the end, with rows of 768.
# The small number under the root prevents a division by zero when all values of a row are equal.
#
# ## Prediction
#
# There are two sums, and the second needs the result of the first. As the formula stands, that is three passes over the
# row: one for the mean, one for the variance, one for the result.
#
# Before you run the next cell, write down for 65,536 rows of 4,096: the bytes if each row is read once and written
# once, and the time that takes at {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s. Then guess how much longer a kernel
# takes that reads each row three times.

# %%
from labkit import roofline
from labkit.kernels.ops.layernorm import LAYERNORM

roofline.predict(LAYERNORM, R=65536, C=4096)

# %% [markdown]
# ## A block for each row
#
# In the first kernel 256 threads share a row, and a tree in shared memory adds up their sums. The tree is
# `block_reduce_sum` from lesson 15, with the barrier that was missing in print.

# %%
from labkit import show_source
from labkit.kernels.norm.layernorm import layernorm_block_tree_kernel

show_source(layernorm_block_tree_kernel)

# %% [markdown]
# It has three loops over the row. How many barriers does a thread pass, and how often is each element loaded?

# %%
import numpy as np

from labkit import observe

x, weight, bias = LAYERNORM.inputs(np.random.default_rng(0), R=1, C=768)
report = observe(layernorm_block_tree_kernel[1, 256], x, weight, bias, np.zeros_like(x))
print(f"{report.counts['barriers']} barriers")
print(f"{report.counts['global_loads'] / 768:.0f} loads for each element: three of x, one of weight, one of bias")

# %% [markdown]
# ## A variance that keeps its digits
#
# It is tempting to save a pass. The variance is also the mean of the squares minus the square of the mean,
#
# $$\sigma^2 = \frac{1}{C} \sum_k x_k^2 - \mu^2,$$
#
# and both sums can be computed in one pass. On paper the two formulas are equal. Here is a row with a mean of 10,000
# and a variance of about 1. Before you run the cell: how many digits does a float32 have?

# %%
row = (10_000 + np.random.default_rng(1).standard_normal(768)).astype(np.float32)
mean = row.mean()

print(f"in float64                       {row.astype(np.float64).var():.6f}")
print(f"differences from the mean        {((row - mean) ** 2).mean():.6f}")
print(f"mean of squares minus square     {(row * row).mean() - mean * mean:.6f}")
print(f"neighbours of 10,000 squared     {np.spacing(np.float32(10_000**2)):.0f} apart")

# %% [markdown]
# A float32 has 24 bits, some seven digits. The mean of the squares is about 100,000,000, and there the next float32 is
# 8 away. The difference of two such numbers can be a multiple of 8, such as 0 or -8, but not 1. The subtraction itself
# is exact. The digits were lost before it, when the squares were rounded. This is called *cancellation*.
#
# `layernorm_one_pass` computes the variance this way. The next cell runs it over rows whose mean is a growing multiple
# of their spread, beside the kernel with three loops and beside a third one, which is explained below.

# %%
from labkit import cuda, device, plots
from labkit.course.drawings import layernorm as pictures
from labkit.kernels.norm.layernorm import (
    layernorm_block_tree,
    layernorm_one_pass,
    layernorm_reference,
    layernorm_welford,
)

ratios = [1, 10, 100, 300, 1000, 3000, 10_000]
rungs = {"three loops": layernorm_block_tree, "one pass": layernorm_one_pass, "Welford": layernorm_welford}
ones, zeros = np.ones(768, np.float32), np.zeros(768, np.float32)
errors = {name: [] for name in rungs}
spoilt = []
for ratio in ratios:
    x = (ratio + np.random.default_rng(2).standard_normal((64, 768))).astype(np.float32)
    for name, launch in rungs.items():
        out = cuda.device_array(x.shape, np.float32)
        launch(*map(cuda.to_device, (x, ones, zeros)), out)
        wrong = np.abs(out.copy_to_host() - layernorm_reference(x, ones, zeros))
        errors[name].append(np.nanmax(wrong))
        spoilt.append((name, ratio, int(np.isnan(wrong).any(axis=1).sum())))

plots.curves(ratios, errors, "The error of LayerNorm", "mean of a row, in units of its spread",
             "largest error", log_x=True, log_y=True, marks=True, place=f"On {device.name()}")

# %%
for name, ratio, rows in spoilt:
    if rows:
        print(f"{name}, mean {ratio:,} times the spread: {rows} of 64 rows are NaN")

# %% [markdown]
# The results should be numbers around 1. With a mean a thousand times the spread, the one-pass kernel is wrong in the
# first digit. Above that the variance is negative in some rows, and its root is NaN: *not a number*, the result of an
# operation that has none. The other two lines grow as well, but slowly: that is the rounding of the mean itself, which
# no formula avoids.
#
# Rows with a mean of a thousand spreads are rare. But a kernel that is right for usual numbers and returns NaN for
# others is hard to find in a model of a hundred layers.
#
# One formula needs a single pass and keeps its digits: *Welford's algorithm*, published in 1962. It keeps the mean of
# the elements so far and the sum of their squared differences from that mean, and corrects both with every element.

# %%
from labkit.kernels.norm.layernorm import layernorm_welford_kernel

show_source(layernorm_welford_kernel)

# %% [markdown]
# Each lane does this for its own columns. Then the counts, means and sums of the 32 lanes are joined, two at a time, by
# shuffles (lesson 15). If the means of two sets differ by `mean_delta`, joining them adds its square, weighted by the
# sizes of the two sets. The price is a division for every element.
#
# ## A row that stays
#
# All of these formulas try to avoid reading the row again. There is a simpler way: keep it. A warp has 32
# times{{ hardware }} up to 255 registers{{ hardware }}, and a row of 768 takes 24 of them in each lane. Passes over
# registers cost no memory traffic, so the first formula, with its pass for the mean and its pass for the variance, is
# good enough.

# %%
pictures.quads(columns=27, lanes=4)

# %% [markdown]
# A lane loads four neighbours with one instruction, 128 bits, and the lanes of a warp load side by side. These four are
# a *quad*. The picture has 4 lanes in place of 32.

# %%
from labkit.kernels.norm.layernorm import make_layernorm_warp
from labkit.kernels.norm.rows import make_row

show_source(make_layernorm_warp)

# %%
show_source(make_row)

# %% [markdown]
# `v` is an array of each thread's own that never reaches memory: the loops have constant bounds, so the compiler
# unrolls them, every index becomes a constant, and each element becomes a register. That is why a function makes the
# kernel, one for each number of quads. For rows of 768, ptxas counts {{ registers_768 }} registers a thread, and
# nothing spills to local memory.
#
# The sums go through `warp_sum`, five shuffles. This kernel has no shared memory and no barrier. Zeros beyond the end
# of a row do not change the sum. In the variance they would count, since a zero differs from the mean, so `centre` has
# a guard.
#
# `load_four` comes in three kinds, and the launcher chooses. If a row fills all lanes, no guard is needed. If its
# length is a multiple of four, a quad lies inside or outside as a whole. For any other length rows can begin at any
# address where a load of 128 bits would fault, so a quad is loaded one element at a time.
#
# A row of 4,096 takes {{ 4096 // 32 }} registers in each lane, and then only few warps fit on an SM.
# `layernorm_registers` gives such a row to a block of 512 threads. The sums then take two levels, with one barrier
# each.
#
# ## Right at every size

# %%
from labkit import agree

agree(LAYERNORM, LAYERNORM.rungs[:5], sizes=({"R": 5, "C": 767}, {"R": 6, "C": 768}))

# %% [markdown]
# 767 is not a multiple of four, so in the last kernel the rows begin at different alignments. The tests run more
# lengths, a single column among them, views that begin at odd addresses, and the kernels for wide rows.
#
# ## The ladder
#
# Write down an order of the rungs for a GPU, with PyTorch in it.

# %%
from labkit import ladder

found = ladder(LAYERNORM, rungs=None if device.on_gpu() else LAYERNORM.rungs[:5])
found

# %%
plots.ladder(found)

# %% [markdown]
# These are the rates of the recorded H200 at that size, and its times at a smaller one: 8,192 tokens of GPT-2, 768
# wide. The small kernels run in a graph, so that no launch from Python is in their times.

# %%
from labkit import measure

wide = measure.recorded_ladder("layernorm", {"R": 65536, "C": 4096}, gpu="NVIDIA H200")
small = measure.recorded_ladder("layernorm", {"R": 8192, "C": 768}, gpu="NVIDIA H200")

print("                       65,536 x 4,096          8,192 x 768")
for row in wide.rows:
    us = small.row(row.name).graph
    if us is not None:
        print(f"{row.name:23} {row.gbs:6,.0f} GB/s {row.fraction:4.0%}  {1000 * us.p50:9.1f} us in a graph")

# %% [markdown]
# *Three passes.* The kernel with three loops reaches {{ block_tree_fraction:.0% }} of the speed of a copy on the wide
# rows. I had counted (3 + 1) / (1 + 1), twice{{ if near((3 + 1) / (1 + 1), 2) }} as slow. But a row is 16 KB, and its
# block reads it again at once: the second and the third pass come from a cache. A kernel's source shows what it loads.
# What of that comes from memory, and what from a cache, is a different question.
#
# *Barriers.* The same kernel falls far behind on the small rows. Each of 256 threads has three elements to add, and
# then waits at twenty barriers. Here the barriers are the work, and the warp that has none is {{ words(warp_gain) }}
# times as fast.
#
# *Fewer bytes.* Reading less does not always help. The two kernels in the middle read a row twice, not three times, and
# on the wide rows they are slower than the tree. Their loops load four bytes a lane, use them, and load the next four:
# few bytes are in flight (lesson 02), and Welford also waits for a division in each round. On the small rows they win,
# since they have no barrier.
#
# *PyTorch.* As it is called, it takes a third{{ if near(wide_longer, 1 / 3) }} longer than the best rung on the wide
# rows, and nearly twice{{ if near(small_longer, 1.9) }} as long on the small ones. Compiled, it is a little faster than
# any rung at both: {{ wide['PyTorch, compiled']:.0f }} us and {{ compiled_small:.1f }}, beside
# {{ wide['registers']:.0f }} and {{ small['warp_per_row']:.1f }}. I read the Triton kernel that it generates for the
# wide rows. It keeps no row in registers: it goes over the row twice, and its loads carry hints. Those of the first
# pass ask the cache to keep the line, those of the second to drop it. So the second pass comes from the cache, and no
# thread needs the registers for a whole row.
#
# ## The rung that failed
#
# `layernorm_persistent` was meant as the end of this ladder. The grid is as large as the GPU can run at once, a block
# goes from row to row, keeps weight and bias in registers, and loads its next row before it adds up the present one. On
# paper memory never pauses.

# %%
for name in ("layernorm_registers", "layernorm_persistent"):
    row = wide.row(name)
    print(f"{name:22} {row.gbs:,.0f} GB/s, {row.resources[0]['registers']} registers a thread")

# %% [markdown]
# It is slower than the kernel it was meant to replace, and its source is longer. With several blocks on an SM one of
# them loads while another adds up, and no code is needed for that.
#
# ## What was implemented
#
# - LayerNorm in seven rungs, two of which failed: one for its digits, one for its speed
# - rows in registers, of any length and at any address, in a warp or in a block
#
# ## What I learned
#
# - A formula that saves a pass can cost all digits. I check a variance with a mean of 10,000.
# - The best way not to read a row twice is to keep it. Registers are the fastest memory of an SM, and larger than its
#   shared memory.
# - Count what a kernel asks for, then ask where it comes from. Three passes were nearly free where a cache held the
#   row.
# - Barriers are cheap beside 16 KB of loading and expensive beside 3 KB.
# - I wrote a pipeline by hand. Several blocks on an SM did the same without it, and faster.
#
# ## Resources
#
# - [Ba, Kiros, Hinton: Layer Normalization (2016)](https://arxiv.org/abs/1607.06450)
# - [Chan, Golub, LeVeque: Updating Formulae and a Pairwise Algorithm for Computing Sample Variances
#   (1979)](http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf)
#
# ## Try it
#
# - In the cell with the four variances, lower the mean to 1,000 and to 100. From where on has the last formula a digit
#   right? Predict it from `np.spacing`.
# - Run `observe` on `layernorm_welford_kernel` with a row of 768. How many loads for each element, and how many
#   barriers?
#
# Next: **fusion and the transpose**: a tile without bank conflicts, and a LayerNorm that includes the addition before
# it.

# %% [numbers]
# wide = {name: row('layernorm', name, R=65536, C=4096).graph_us for name in ('PyTorch', 'PyTorch, compiled',
#         'registers')}
# small = {'block_tree': row('layernorm', 'block_tree', R=8192, C=768).graph_us, 'warp_per_row': row('layernorm',
#          'warp_per_row', R=8192, C=768).graph_us}
# registers_768 = row('layernorm', 'warp_per_row', R=8192, C=768).registers
# wide_longer = wide['PyTorch'] / wide['registers'] - 1
# small_longer = row('layernorm', 'PyTorch', R=8192, C=768).graph_us / small['warp_per_row']
# compiled_small = row('layernorm', 'PyTorch, compiled', R=8192, C=768).graph_us
# block_tree_fraction = row('layernorm', 'block_tree').fraction
# warp_gain = small['block_tree'] / small['warp_per_row']
