# %% [markdown]
# # 12 · Inside a kernel: Nsight Compute
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how to tell wasted traffic, a saturated unit and waiting warps apart by a kernel's counters
# - why what the warps wait for is not yet the cause
# - in which order to look when a kernel, or a program, is slow
#
# ## The problem
#
# The last lesson found out which part of a program takes the time. Suppose that it is one kernel. Why is it slow? A
# clock cannot say: it measures the sum of everything that happens inside. Here is a kernel that we know well, the tiled
# product of lesson 06, and the least time that it could take on this machine or on an H200.

# %%
from labkit import agree, measure, plots, roofline, show_source, table
from labkit.kernels.matmul import float32
from labkit.kernels.ops.matmul import MATMUL

show_source(float32.make_matmul_tiled, "a_tile = cuda.shared.array", "out[row, col] = total")

# %%
agree(MATMUL, ["matmul_tiled"])

# %%
roofline.predict(MATMUL, M=4096, N=4096, K=4096)

# %% [markdown]
# The kernel takes {{ tiled.time_us / 1000:.0f }} ms on an H100, many times the bound{{ if far_from_bound }}. The GPU
# itself knows more than the clock. Its units contain *hardware counters*, which count cycles, instructions, sectors and
# waiting warps while a kernel runs. NVIDIA's tool to read them is *Nsight Compute*, on the command line `ncu`. There
# are far more counters than can be read in one run, so `ncu` runs a kernel again and again, each time with different
# counters, and combines the results.
#
# ```
# ncu --clock-control none --section SpeedOfLight --section LaunchStats \
#     --section Occupancy python my_program.py
# ```
#
# `--clock-control none` leaves the clocks alone. By default `ncu` locks them at a low frequency so that its results are
# repeatable, and then its times are not those of your program. Never mix times taken under a profiler with times from a
# benchmark.
#
# ## The report
#
# *Throughput* compares what a unit did with the most that it can do. The tiled kernel was written to spare the GPU's
# memory. Which unit is the busiest according to its report: DRAM, the L2 cache, L1 with shared memory, or the
# arithmetic units?

# %%
from labkit.course.expressions import H100
from labkit.measure import ncu as counters

counted = counters.recorded(measure.slug(H100))
report = counted["report"]
print(f"ncu on {counted['machine']['device']}, {counted['machine']['date']}\n")
print(report[report.index("    Section: GPU Speed"):])

# %% [markdown]
# It is L1/TEX, the unit to which shared memory belongs (lesson 06), at {{ tiled.l1_percent:.0f }}% of its peak. *Memory
# Throughput* is the largest value among the memory units, so it is almost the same. DRAM, the GPU's memory, delivers
# {{ tiled.dram_percent:.0f }}% of what it could, so this kernel is not limited by what we usually call memory.
#
# So read the throughputs first. If one of them is near 100%{{ example }}, that unit is the limit, and the question is
# how to give it less to do. If none is, the warps are waiting for something. The rest of the report describes the
# launch: registers, shared memory, waves, and *occupancy* (lesson 03). Occupancy is nearly full here and does not help.
# More warps hide latency, but a unit that is always busy does not get faster when more warps queue for it.
#
# ## Is the traffic wasted?
#
# The counter that says most about a kernel's code is *sectors per request*, the mean number of 32-byte sectors that one
# load of a warp touches. When 32 lanes load neighbouring values of 4 bytes, that is 4. Lesson 06 counted by hand: 17
# sectors for the two loads of the naive kernel, 4 for those of the coalesced one. The kernel called `vectorized` loads
# 16 bytes per lane (lesson 07). What does the counter say for each of the four kernels, naive, coalesced, tiled and
# vectorized?

# %% tags=["hide-input"]
ladder = {row["name"].removeprefix("matmul_"): row for row in counted["ops"]["matmul"]["rows"]}
note = f"Nsight Compute on {counted['machine']['device']}, {counted['ops']['matmul']['date']}. M = N = K = 4,096."
table([(name, row["time_us"] / 1000, row["load_sectors_per_request"], row["store_sectors_per_request"],
        row["dram_read"] / 1e9) for name in ("naive", "coalesced", "tiled", "vectorized") for row in [ladder[name]]],
      {"": "", "ms": ".1f", "sectors per load": ".1f", "sectors per store": ".1f", "GB from memory": ".2f"}, note=note)

# %% [markdown]
# The first two counts are half of those made by hand, because they are the mean of two loads{{ if half_the_sectors }}.
# Fewer than 4 means that lanes share a value, 4 is ideal for loads of 4 bytes, and 16 for loads of 16 bytes. So judge
# the counter by what a lane loads: `vectorized` wastes nothing, and the naive kernel wastes most of what it moves. If a
# kernel wastes sectors, fix that first, before you read the other counters (lessons 01, 04 and 22).
#
# The last column shows the other kind of waste: bytes that come from memory several times because they have left the
# cache. The two inputs have {{ 2 * 4 * 4096**2 / 1e9:.2f }} GB. Lesson 06 explains why the tiled kernel reads
# {{ tiled.dram_read / 1e9:.0f }}, and how a different order of the blocks fixes that.
#
# ## Which unit is full?
#
# From the naive kernel to the pipeline of lesson 07 the time falls by a factor of
# {{ naive.time_us / pipelined.time_us:.0f }}. Does one unit remain the limit all the way, or does the limit move from
# unit to unit?

# %% tags=["hide-input"]
names = ("naive", "coalesced", "tiled", "tiled_grouped", "register_blocked", "vectorized", "pipelined")
table([(name, row["time_us"] / 1000, *(row[f"{unit}_percent"] for unit in ("dram", "l1", "fma", "occupancy")))
       for name in names for row in [ladder[name]]],
      {"": "", "ms": ".1f", "DRAM, %": ".0f", "L1 and shared, %": ".0f", "multiply-add, %": ".0f",
       "occupancy, %": ".0f"},
      "The limit moves from L1 to the arithmetic", note=note)

# %% [markdown]
# The first four kernels saturate the same unit{{ if l1_full }}. Two of the three steps between them give it less to do
# per multiplication, first by fewer sectors per load and then by fewer loads, and the time falls. The third, the
# grouped order of the blocks, relieves only the memory behind L1. That was not the limit, so it saves next to nothing.
# The step that matters is the next one. A thread that keeps 8 × 8 sums in registers uses every value it loads eight
# times: L1 falls to {{ blocked.l1_percent:.0f }}%, and the multiply-add units are almost as
# busy{{ if almost_as_busy }}. From `vectorized` on they are the busiest{{ if arithmetic_leads }}, and the rest of the
# ladder is about feeding them, up to {{ pipelined.fma_percent:.0f }}%.
#
# Look at the last column, too. The slow kernels have full occupancy, the fast ones a quarter{{ if quarter_occupied }}
# of it. Occupancy is one means of hiding latency, and a kernel that hides it in another way can do without.
#
# ## What do the warps wait for?
#
# In every cycle a scheduler picks a warp that is ready and issues its next instruction. For all the others the counters
# record why not: the *stall reasons*. The table gives the two most common ones as numbers of waiting warps, added up
# over the cycles from one issued instruction to the next. A scheduler has at most 16 warps{{ hardware }}, so a larger
# sum means that many cycles pass without an instruction. Do the warps of the first four kernels, which saturate the
# same unit, wait for the same thing?

# %% tags=["hide-input"]
rows = []
for name in ("naive", "coalesced", "tiled", "tiled_grouped", "register_blocked"):
    waits = sorted(((warps, reason) for reason, warps in ladder[name]["stalls"].items() if reason != "selected"),
                   reverse=True)[:2]
    rows.append((name, *(value for warps, reason in waits for value in (reason, warps))))
table(rows, {"": "", "commonest reason": "", "warps": ".1f", "the next": "", "warps ": ".1f"},
      "One full unit, three reasons to wait", note=note)

# %% [markdown]
# They do not. The naive kernel's loads split into so many sectors that the queue in front of L1 is full, and warps wait
# for a place in it: `lg_throttle`. The coalesced kernel's loads get into the queue, and the warps wait for their data:
# `long_scoreboard`. For the tiled kernels the queue of shared memory, `mio_throttle`, is one of the
# two{{ if mio_among_two }}, because that is where their loads go. The cause is the same unit each time. A stall reason
# says what warps wait for. It does not say which unit is to blame, so look for a saturated unit first.
#
# In `register_blocked` the most common reason is `not_selected`: the warp was ready, but the scheduler issued another
# one. No other reason holds up even one warp{{ if nobody_waits }}. When that reason leads, more warps would not help.
#
# With a GPU and `ncu` you can read these counters for every rung of the course with
# `python -m labkit.measure.ncu --profile`. Without them, `counters.profile("softmax")` shows what was recorded on the
# H200, with every reason spelled out.
#
# ## Why is my kernel slow? In which order to look
#
# Each question is cheaper to answer than the next, and an answer often makes the next one unnecessary.
#
# 1. **Is the GPU busy at all?** A timeline shows it (Nsight Systems, lesson 11). Gaps are the host's: launches that
#    cost more than their kernels (a graph, lesson 13), a `synchronize` that is not needed, a first call (cold start).
# 2. **With kernels or with copies?** Copy less, copy once, copy many small arrays as one, from pinned memory (lesson
#    11), and while a kernel runs (lesson 13).
# 3. **Which kernel takes the most time?** Improve only that one. Making a tenth of the time twice as fast saves a
#    twentieth.
# 4. **How far is it from its roof?** Divide the bytes that have to move by the bandwidth, and the flops by the peak
#    (`roofline.predict`). A kernel at nine tenths of its roof is finished. Now only less work helps: fuse it with its
#    neighbours (lesson 23), use a smaller type (lesson 33), use tensor cores (lesson 08).
# 5. **Does it fill the GPU?** Fewer blocks than SMs, or a last wave with a few blocks, leave SMs idle (lesson 03).
# 6. **Does it waste traffic?** More than 4 sectors for a load of 4 bytes: let neighbouring lanes read neighbouring
#    addresses (lessons 01, 04, 22). More bytes from memory than it has to move: read them once and keep them, or change
#    the order of the blocks (lesson 06).
# 7. **Is a unit saturated?** L1 and shared memory: keep more in registers (lesson 07), and remove bank conflicts
#    (lesson 22). The schedulers: fewer and wider instructions. The arithmetic: you are at another roof.
# 8. **If none is, what do the warps wait for?** The usual cures for the most common reasons are:
#
# - `long_scoreboard`, the latency of global memory: more bytes in flight, by more warps (lesson 03), several loads per
#   thread (lesson 01), or copies ahead of time (lesson 09).
# - `lg_throttle`, too many requests to global memory: wider loads, and fewer sectors per request.
# - `short_scoreboard` and `mio_throttle`, shared memory or functions such as `exp`: wider loads, no bank conflicts,
#   more work on values in registers (lesson 07).
# - `barrier`, warps that arrive late: smaller blocks, fewer barriers, or shuffles (lesson 15).
# - `wait` and `math_pipe_throttle`, arithmetic: independent sums in one thread (lesson 02), or tensor cores (lesson
#   08).
# - `not_selected`, nothing, since other warps were ready: fewer instructions.
#
# Most programs can be fixed at the first three questions, before anyone opens a kernel. For the fourth there is a
# picture, with kernels of this course as recorded on the H200, many of them from later lessons, under the limits of
# memory and arithmetic. Which kernels can only be made faster by moving fewer bytes?

# %%
names = ("vector_add", "broadcast_add", "reduce_sum", "softmax", "masked_softmax_causal", "layernorm", "gelu",
         "bias_gelu_add", "logits", "attention_cached", "skinny_linear", "attention", "linear", "matmul", "matmul_half")
plots.every_rung([measure.recorded_ladder(name, gpu="NVIDIA H200") for name in names])

# %% [markdown]
# Those whose best rung is on the slope: they move their bytes as fast as memory allows. The products are on the right,
# far below the flat roof at first, and every rung of their ladders answers question 6, 7 or 8.
#
# ## What I learned
#
# - Throughputs first, then waits. A saturated unit explains the waits; the waits do not name the unit.
# - Relieving a unit that is not saturated changes nothing, however many bytes it saves.
# - The right value of a counter depends on the kernel: 16 sectors per load can be a disgrace or the ideal.
# - Full occupancy is no sign of health. The slow rungs had it, and the fast ones did not.
# - Times under a profiler are for comparing kernels under the same profiler, and for nothing else.
#
# ## Resources
#
# - [Nsight Compute: Kernel Profiling Guide](https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html)
# - [Williams, Waterman, Patterson: Roofline, an insightful visual performance model
#   (2009)](https://doi.org/10.1145/1498765.1498785)
#
# ## Try it
#
# - `counters.profile("softmax")`: ask the eight questions about the slowest rung and about the fastest. At which
#   question does each stop?
# - Look up `register_blocked_16` in `ladder`. It tries to keep 16 × 16 sums in registers and is slower than
#   `register_blocked`. Which counters say why?
# - Write a kernel that reads a column of a matrix and predict its sectors per load. Check your prediction with
#   `observe`, which counts them without a GPU.
#
# Next: **graphs and streams**: the price of a launch, how to pay it once, and copies that run alongside kernels.

# %% [numbers]
# tiled = ncu('matmul', 'matmul_tiled', H100)
# naive = ncu('matmul', 'naive', H100)
# pipelined = ncu('matmul', 'pipelined', H100)
# blocked = ncu('matmul', 'matmul_register_blocked', H100)
# first_four = [ncu('matmul', name, H100) for name in ('naive', 'coalesced', 'matmul_tiled', 'tiled_grouped')]
# far_from_bound = tiled.time_us > 5 * 1000 * row('matmul', 'tiled', H100).bound_ms
# almost_as_busy = 0.9 < blocked.fma_percent / blocked.l1_percent < 1
# arithmetic_leads = all([one.fma_percent > one.l1_percent for one in (ncu('matmul', 'vectorized', H100), pipelined)])
# l1_full = min(one.l1_percent for one in first_four) > 90
# quarter_occupied = all([near(one.occupancy_percent, 25) for one in (blocked, pipelined)])
# half_the_sectors = naive.load_sectors_per_request == 17 / 2 and first_four[1].load_sectors_per_request == 4 / 2
# mio_among_two = all([sorted(one.stalls._value.values())[-2] <= one.stalls.mio_throttle for one in first_four[2:]])
# nobody_waits = max(value for reason, value in blocked.stalls._value.items() if reason not in ('selected',
#                    'not_selected')) < 1
