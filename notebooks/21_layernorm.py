# %% [markdown]
# # 21 · LayerNorm
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - why a variance computed in one pass can come out negative, and two ways around it
# - how a row that stays in registers is read once, however many passes a formula makes over it
# - how to tell from a few counts what each pass over a row costs, and why a clever kernel lost
#
# ## The problem
#
# GPT-2 and its relatives, the *transformers*, pass a row of values per token from layer to layer. Before or after
# each layer the row is normalised: shifted and scaled to a mean of 0 and a variance of 1, then multiplied by a weight
# and increased by a bias. Each column has its own weight and bias, which were learned in training:
#
# $$\text{out}_{r,c} = \frac{x_{r,c} - \mu_r}{\sqrt{\sigma_r^2 + 10^{-5}}} \; w_c + b_c$$
#
# $\mu_r$ is the mean of the row and $\sigma_r^2$ its variance, the mean of the squared differences from $\mu_r$. The
# small constant under the root prevents a division by zero when all values of a row are equal. GPT-2 does this
# {{ 2 * 12 + 1 }} times per token: twice in each of its 12 layers and once at the end, with rows of 768.
#
# ## Prediction
#
# There are two sums, and the second needs the result of the first. Taken literally, the formula makes three passes over
# the row: one for the mean, one for the variance, one for the result. Take 65,536 rows of 4,096. How long does it take
# to read and write each row once at {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s, and how much longer if each row is
# read three times?

# %%
from labkit import roofline
from labkit.kernels.ops.layernorm import LAYERNORM

roofline.predict(LAYERNORM, R=65536, C=4096)

# %% [markdown]
# If every pass goes to memory, three reads and a write take twice as long as one of each. We will see whether they do.
#
# ## A block for each row
#
# In the first kernel 256 threads share a row, and a tree in shared memory adds up their sums. The tree is
# `block_reduce_sum` from lesson 15.

# %%
from labkit import show_source
from labkit.kernels.norm.layernorm import layernorm_block_tree_kernel

show_source(layernorm_block_tree_kernel)

# %% [markdown]
# It has three loops over the row. How many barriers does a thread pass, and how many loads does the kernel make per
# element?

# %%
import numpy as np

from labkit import observe, table

x, weight, bias = LAYERNORM.inputs(np.random.default_rng(0), R=1, C=768)
report = observe(layernorm_block_tree_kernel[1, 256], x, weight, bias, np.zeros_like(x))
table([(report.counts["barriers"], report.counts["global_loads"] // 768)], ["barriers", "loads per element"])

# %% [markdown]
# Ten barriers for each of the two sums. Of the five loads, three are of `x`, one of the weight and one of the bias.
#
# ## A variance that keeps its digits
#
# It is tempting to save a pass. The variance is also the mean of the squares minus the square of the mean,
#
# $$\sigma^2 = \frac{1}{C} \sum_k x_k^2 - \mu^2,$$
#
# and both sums can be computed in one pass. On paper the two formulas are equal. Here is a row with a mean of 10,000
# and a variance of about 1. A float32 has about seven digits. What variance will this formula give?

# %%
row = (10_000 + np.random.default_rng(1).standard_normal(768)).astype(np.float32)
mean = row.mean()

table([("in float64", row.astype(np.float64).var()),
       ("mean of the squared differences", ((row - mean) ** 2).mean()),
       ("mean of squares minus square of the mean", (row * row).mean() - mean * mean)],
      {"variance": "", "": ".6f"},
      note=f"neighbouring float32 near 10,000 squared are {np.spacing(np.float32(10_000**2)):.0f} apart")

# %% [markdown]
# The mean of the squares is about 100,000,000, and there the next float32 is 8 away. So the difference of two such
# values can only be a multiple of 8, such as 0 or -8, but never 1. The subtraction itself is exact. The digits were
# already lost when the squares were rounded. This is called *cancellation*.
#
# `layernorm_one_pass` computes the variance this way. The next cell runs it over rows whose mean is a growing multiple
# of their spread, next to the kernel with three loops and a third one, Welford's, which is explained below. At which
# multiple do the results become useless?

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

plots.curves(ratios, errors, "One pass loses its digits as the mean grows", "mean of a row, in units of its spread",
             "largest error", log_x=True, log_y=True, marks=True, place=f"On {device.name()}")

# %%
table([row for row in spoilt if row[2]], ["kernel", "mean, in units of the spread", "rows of 64 with a NaN"])

# %% [markdown]
# Results should be around 1. With a mean a thousand times the spread, the one-pass kernel is wrong in the first digit.
# Beyond that the variance is negative in some rows, and its root is NaN: *not a number*, the result of an operation
# that has none. The other two curves grow as well, but slowly: that is the rounding of the mean itself, which no
# formula avoids.
#
# Rows whose mean is a thousand times their spread are rare. But a kernel that is right for ordinary rows and returns
# NaN for others is hard to find in a model of a hundred layers.
#
# One formula needs a single pass and keeps its digits: *Welford's algorithm*, published in 1962. It keeps the mean of
# the elements so far and the sum of their squared differences from that mean, and corrects both with every element.

# %%
from labkit.kernels.norm.layernorm import layernorm_welford_kernel

show_source(layernorm_welford_kernel)

# %% [markdown]
# Each lane does this for its own columns. Then the counts, means and sums of the 32 lanes are joined, two at a time, by
# shuffles (lesson 15). If the means of two sets differ by `mean_delta`, joining them adds its square, weighted by the
# sizes of the two sets. The price is a division per element.
#
# ## A row that stays
#
# All of these formulas try to avoid reading the row again. There is a simpler way: keep it. Each of the 32 lanes of a
# warp can have up to 255 registers{{ hardware }}, and a row of 768 needs 24 of them. Passes over registers cost no
# memory traffic, so the first formula, with a pass for the mean and another for the variance, is good enough.

# %%
pictures.quads(columns=27, lanes=4)

# %% [markdown]
# A lane loads four neighbours with one 128-bit instruction: a *quad*. The lanes of a warp load neighbouring quads, so
# the access is coalesced. The picture has 4 lanes instead of 32.

# %%
from labkit.kernels.norm.layernorm import make_layernorm_warp
from labkit.kernels.norm.rows import make_row

show_source(make_layernorm_warp)

# %%
show_source(make_row)

# %% [markdown]
# `v` is a local array that never reaches memory. The loops have constant bounds, so the compiler unrolls them, every
# index becomes a constant, and each element becomes a register. That is why a function makes the kernel, one for each
# number of quads. For rows of 768, ptxas counts {{ registers_768 }} registers per thread, and nothing spills.
#
# The sums go through `warp_sum`, five shuffles. This kernel has no shared memory and no barrier. Zeros beyond the end
# of a row do not change the sum. In the variance they would count, since a zero differs from the mean, so `centre` has
# a guard.
#
# There are three versions of `load_four`, and the launcher chooses. If a row fills all lanes, no guard is needed. If
# its length is a multiple of four, a quad is inside or outside as a whole. With any other length, rows can begin at
# addresses where a 128-bit load would fault, so a quad is loaded one element at a time.
#
# A row of 4,096 needs {{ 4096 // 32 }} registers per lane, and then only a few warps fit on an SM.
# `layernorm_registers` gives such a row to a block of 512 threads. Each of its sums takes two levels, within a warp and
# across warps, and one barrier.
#
# ## Right at every size

# %%
from labkit import agree

agree(LAYERNORM, LAYERNORM.rungs[:5], sizes=({"R": 5, "C": 767}, {"R": 6, "C": 768}))

# %% [markdown]
# 767 is not a multiple of four, so in the last kernel the rows begin at different alignments. The tests cover more
# lengths, including a single column, views that begin at odd addresses, and the kernels for wide rows.
#
# ## The ladder
#
# In which order will the rungs finish on a GPU with 65,536 rows of 4,096, and where is PyTorch among them?

# %%
from labkit import ladder

found = ladder(LAYERNORM, rungs=None if device.on_gpu() else LAYERNORM.rungs[:5])
found

# %%
plots.ladder(found)

# %% [markdown]
# That was the order on wide rows. Will it be the same with 8,192 tokens of GPT-2, 768 wide? The small kernels run in a
# graph, so that no launch from Python is part of their times.

# %%
from labkit import measure

wide = measure.recorded_ladder("layernorm", {"R": 65536, "C": 4096}, gpu="NVIDIA H200")
small = measure.recorded_ladder("layernorm", {"R": 8192, "C": 768}, gpu="NVIDIA H200")
table([(row.name, row.gbs, row.fraction, 1000 * small.row(row.name).graph.p50) for row in wide.rows
       if small.row(row.name).graph],
      {"": "", "65,536 x 4,096, GB/s": ",.0f", "of a copy": ".0%", "8,192 x 768, us": ".1f"}, note="NVIDIA H200")

# %% [markdown]
# The kernel with three loops is near the top for wide rows and falls far behind for small ones. There are two reasons,
# and both can be counted.
#
# *Where the later passes read from.* I had predicted twice{{ if near((3 + 1) / (1 + 1), 2) }} the time of a copy for
# three passes, and `block_tree` reaches {{ block_tree_fraction:.0% }} of a copy's speed. The counters of Nsight Compute
# explain it: it reads {{ tree_reads:.2f }} times the bytes of `x` from memory, not three times. A row is 16 KB, its
# block reads it again right away, and the caches still have it. With 8 blocks on each of {{ machine.sms }} SMs, some
# {{ tree_mb:.0f }} MB of rows are in use at any time, less than the {{ machine.l2_mb }} MB of L2.
#
# The two kernels in the middle, `one_pass` and `welford`, make fewer passes and are slower. In these a row belongs to a
# warp. So 64 rows are in use on each SM, {{ warps_mb:.0f }} MB in all, more than twice what L2 can hold, so the second
# pass has to go to memory again. Two reads and a write allow at most {{ 2 / 3:.0% }} of a copy's speed; `one_pass`
# reaches {{ one_pass_fraction:.0% }}. With 768 columns the same 64 rows per SM are {{ warps_small_mb:.0f }} MB, L2 is
# large enough, and `one_pass` is fast. `naive` has one row per thread and reads {{ naive_reads:.1f }} times the bytes
# of `x`.
#
# *How much is done between two barriers.* With 768 columns each of 256 threads of `block_tree` has three elements to
# add, and then passes ten barriers. Here the work is mostly barriers, and `warp_per_row`, which has none, is
# {{ words(warp_gain) }} times as fast.
#
# *PyTorch.* Its kernel takes a third{{ if near(wide_longer, 1 / 3) }} longer than the best rung on the wide rows, and
# nearly twice{{ if near(small_longer, 1.9) }} as long on the small ones. On the wide rows it reads
# {{ torch_reads:.1f }} times the bytes of `x` from memory. Compiled, PyTorch is a little faster than any rung at both
# sizes: {{ wide['PyTorch, compiled']:.0f }} us and {{ compiled_small:.1f }}, where the best rungs take
# {{ wide['registers']:.0f }} and {{ small['warp_per_row']:.1f }}. I read the Triton kernel that it generates for the
# wide rows. It keeps no row in registers: it goes over the row twice, and its loads carry hints. Those of the first
# pass ask the cache to keep the line, those of the second to drop it.
#
# ## The rung that failed
#
# `layernorm_persistent` was meant to be the top of this ladder. The grid is as large as the GPU can run at the same
# time, a block goes from row to row, keeps weight and bias in registers, and loads its next row before it adds up the
# current one. That saves two of three loads per element, and memory never pauses. How much faster than
# `layernorm_registers` will it be?

# %%
rows = []
for name in ("layernorm_registers", "layernorm_persistent"):
    row, used = wide.row(name), wide.row(name).resources[0]
    rows.append((name, row.gbs, row.fraction, used["registers"], used["blocks_per_sm"]))
table(rows, {"": "", "GB/s": ",.0f", "of a copy": ".0%", "registers per thread": "", "blocks per SM": ""},
      note="NVIDIA H200, 65,536 x 4,096")

# %% [markdown]
# It is {{ persistent_longer:.0% }} slower. Three facts show why it could not win. First, `registers` already runs at
# {{ registers_fraction:.0% }} of a copy, so there was next to nothing left. Second, the loads it saves never went to
# memory: by the counters `registers` reads {{ registers_reads:.3f }} times the bytes of `x`, so the weights and the
# biases of all {{ 65_536:, }} rows came from caches. Third, what it adds has a price. The second row, the weights and
# the biases bring it to {{ persistent_registers }} registers per thread instead of {{ plain_registers }}, and so an SM
# holds two blocks instead of four. While one of four blocks adds up, three others can load, and no code is needed for
# that. The pipeline written by hand did the same with half as many warps.
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
# - Passes are not trips to memory. Multiply the rows in use by their size, and compare with the cache.
# - Barriers are cheap between loads of 16 KB and expensive between loads of 3 KB.
# - Before optimising, look at how much there is to gain, and whether the bytes to be saved are moved at all.
#
# ## Resources
#
# - [B. P. Welford: Note on a Method for Calculating Corrected Sums of Squares and Products
#   (1962)](https://doi.org/10.1080/00401706.1962.10490022)
# - [Ba, Kiros, Hinton: Layer Normalization (2016)](https://arxiv.org/abs/1607.06450)
# - [Chan, Golub, LeVeque: Updating Formulae and a Pairwise Algorithm for Computing Sample Variances
#   (1979)](http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf)
#
# ## Try it
#
# - In the cell with the three variances, lower the mean to 1,000 and to 100. When does the last formula get its first
#   digit right? Predict it from `np.spacing`.
# - Run `observe` on `layernorm_welford_kernel` with a row of 768. How many loads per element are there, and how many
#   barriers?
# - How many columns may a row have before the rows in use by `one_pass` no longer fit into L2?
#
# Next: **the transpose**, which computes nothing, and where a tile in shared memory is all that counts.

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
# x_bytes = 4 * 65536 * 4096
# tree_reads = ncu('layernorm', 'layernorm_block_tree').dram_read / x_bytes
# naive_reads = ncu('layernorm', 'layernorm_naive').dram_read / x_bytes
# registers_reads = ncu('layernorm', 'layernorm_registers').dram_read / x_bytes
# torch_reads = ncu('layernorm', 'PyTorch').dram_read / x_bytes
# tree_mb = machine.sms * 8 * 4 * 4096 / 1e6
# warps_mb = machine.sms * 64 * 4 * 4096 / 1e6
# warps_small_mb = machine.sms * 64 * 4 * 768 / 1e6
# one_pass_fraction = row('layernorm', 'one_pass', R=65536, C=4096).fraction
# registers_fraction = row('layernorm', 'registers', R=65536, C=4096).fraction
# persistent_longer = (row('layernorm', 'persistent', R=65536, C=4096).ms / row('layernorm', 'registers', R=65536,
#                      C=4096).ms - 1)
# persistent_registers = row('layernorm', 'persistent', R=65536, C=4096).registers
# plain_registers = row('layernorm', 'registers', R=65536, C=4096).registers
