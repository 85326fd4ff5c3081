# %% [markdown]
# # 12 · Inside a kernel: Nsight Compute
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - what the counters of a kernel say, and in which order to read them

# %% [markdown]
# ## The problem
#
# To be written.

# %%
from labkit import measure, plots, roofline
from labkit.kernels.ops.matmul import MATMUL

roofline.predict(MATMUL, M=256, N=256, K=256)

# %% [markdown]
# ## Inside a kernel: Nsight Compute
#
# When it is the kernel that takes the time, the tool is `ncu`. It runs a kernel again and again, each time with other
# hardware counters switched on, and joins the counts. This is its report on lesson 06's tiled product:
#
# ```
# ncu --clock-control none --section SpeedOfLight --section LaunchStats \
#     --section Occupancy python my_program.py
# ```

# %%
from labkit.measure import ncu as counters

print(counters.recorded_report())

# %% [markdown]
# Read *Throughput* first: how close is the kernel to what memory can deliver, and how close to what the SMs can issue?
# If one of the two is nearly all of it, that is the limit. If neither is, the kernel waits for something. In this
# report memory stands above 90%{{ if report('Memory Throughput') > 90 }}, and the lines below say which memory. It is
# not DRAM, the GPU's memory, with a fifth{{ if near(report('DRAM Throughput') / 100, 1 / 5) }} of what it could
# deliver. It is L1/TEX, the unit to which shared memory belongs (lesson 06).
#
# *Occupancy* is high, and does not help: more warps hide latency, but a unit that is busy all the time does not get
# faster when more warps queue for it.
#
# `--clock-control none` leaves the clocks alone. By default `ncu` keeps them low, so that its counts repeat, and then
# its times are not those of your program.
#
# There are also counters for what warps wait for. `python -m labkit.measure.ncu --profile` reads them for the rungs of
# the course. Here is the ladder of products.

# %%
counters.profile("matmul")

# %% [markdown]
# Look at two columns first. *load* is the mean number of sectors of 32 bytes that one load of a warp touches. When 32
# lanes load 32 different numbers of four bytes, 4 is the best possible value, and 16 when each lane loads four of them
# at once. Fewer than 4 means that lanes share a number. Lesson 06 counted by hand: 17 sectors for the two loads of the
# naive kernel, 4 for those of the coalesced one. Half of that, the mean of two loads, is what stands
# here{{ if half_the_sectors }}.
#
# *waits* has the two commonest reasons why warps could not issue their next instruction, and how many warps on average.
# The lines under the table say what each name means. They say what warps wait for, not which unit is the cause: behind
# a busy L1 every load takes long, and so `long_scoreboard` leads for the tiled kernel{{ if long_scoreboard_leads }}.
#
# *read MB*, what comes from memory, is a surprise. The tiled kernel loads far less than the coalesced one, and
# {{ words(more_from_memory) }} times as many bytes come from memory for it. Lesson 06 left that open. To see why, look
# at which blocks run at the same time. Blocks of 256 threads fit eight to an SM, so 1,056 of them run at once: four
# rows of blocks, since a row of them has 4,096 / 16. All four rows need the same columns of `b`, which is all of `b`,
# {{ 4 * 4096**2 / 1e6:.0f }} MB, more than the L2 cache can hold. If the four rows walk down `b` in step, each tile of
# it is fetched once for all of them, and they share it in the cache. If each row is at another place, a tile has left
# the cache before the next row needs it. That gives two predictions.

# %%
b_mb, rows_of_blocks = 4 * 4096**2 / 1e6, 4096 // 16
for how, times in (("b once for all blocks that run together", rows_of_blocks**2 / (8 * 132)),
                   ("b once for each row of blocks", rows_of_blocks)):
    print(f"{how:40} {times:4.0f} x {b_mb:.0f} MB = {times * b_mb:6,.0f} MB")
for row in counters.recorded()["ops"]["matmul"]["rows"]:
    if row["name"] in ("matmul_coalesced", "matmul_tiled"):
        print(f"counted, {row['name']:47} {row['dram_read'] / 1e6:6,.0f} MB")

# %% [markdown]
# Both predictions come within a few percent of a count. So it looks as if the blocks of the coalesced kernel keep in
# step, and those of the tiled kernel do not. (The counts do not say why.) It costs the tiled kernel little: it is the
# faster one with {{ words(more_from_memory) }} times the bytes, because neither kernel is limited by the bandwidth of
# memory. Tiling promises fewer loads. It does not promise fewer bytes from memory.

# %% [markdown]
# ## In which order to look
#
# 1. Is the GPU busy? Ranges and a time line. If it has gaps: launches, copies, cold start.
# 2. Is it busy with kernels or with copies? If with copies: move less, move it once, pin it.
# 3. Which kernel takes the most? Only that one is worth improving.
# 4. How far is it from its roof? If near: fuse, or compute something else.
# 5. If far: what do its warps wait for?
#
# Most programs can be mended at the first question. For the fourth there is a picture: kernels of this course as
# recorded on the H200, many of them from later lessons, under the limits of memory and arithmetic. Find the products of
# lesson 06. Then find a kernel that cannot be made faster by doing less work.

# %%
names = ("vector_add", "broadcast_add", "reduce_sum", "softmax", "masked_softmax_causal", "layernorm", "gelu",
         "bias_gelu_add", "logits", "attention_cached", "skinny_linear", "attention", "linear", "matmul", "matmul_half")
plots.every_rung([measure.recorded_ladder(name, gpu="NVIDIA H200") for name in names])

# %% [markdown]
# Those on the slope move their bytes as fast as memory allows. The only way to make them faster is to move fewer bytes.

# %% [markdown]
# ## What I learned
#
# - The first call pays for the context, whichever it is. Make one on purpose before you time anything.
# - A range that does not wait shows when the host launched the work, not when the GPU did it.
# - Percentages of nested ranges count things twice. In that notebook's table, 50% and 50%{{ quoted }} are one and the
#   same 125 ms{{ quoted }}.
# - Many small copies pay many times for starting.
# - Fewer loads need not be fewer bytes from memory. That depends on the caches, and on which blocks run together.

# %% [markdown]
# ## Resources
#
# - [NVTX: the Python package and its documentation](https://nvidia.github.io/NVTX/)
# - [Nsight Systems: User Guide](https://docs.nvidia.com/nsight-systems/UserGuide/index.html)
# - [Nsight Compute: Kernel Profiling Guide](https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html)

# %% [markdown]
# ## Try it
#
# - Give `product_trip` matrices of 1,024 rows: `large = ranges.Ranges("1,024")`, then `overheads.product_trip(large,
#   n=1024)`, and show `large`. Predict: which parts grow by sixteen, which by sixty-four, which not at all?
# - Put ten copies of 4 KB into a range, and one copy of 40 KB into another. Predict the ratio from the curve above.
#
# Next: **graphs and streams**: the price of a launch, how to pay it once, and copies that run beside kernels.

# %% [numbers]
# cold = {part['path'][-1]: part['ms'] for part in series.cold_start.trips._value[0]}
# copy = series.copy_sizes
# compiling_share = cold['kernel'] / cold['matrix product']
# start_ratio = copy.h2d_pageable_us[0] / copy.d2h_pageable_us[0]
# long_scoreboard_leads = (stall('matmul', 'tiled', 'long_scoreboard') > max(stall('matmul', 'tiled', 'mio_throttle'),
#                          stall('matmul', 'tiled', 'barrier'), stall('matmul', 'tiled', 'short_scoreboard')))
# more_from_memory = ncu('matmul', 'tiled').dram_read / ncu('matmul', 'coalesced').dram_read
# half_the_sectors = (ncu('matmul', 'naive').load_sectors_per_request == 17 / 2 and ncu('matmul',
#                     'coalesced').load_sectors_per_request == 4 / 2)
