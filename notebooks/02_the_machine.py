# %% [markdown]
# # 02 · The machine
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - what a warp is, and when a branch costs twice
# - how a GPU hides the wait for memory, and how many bytes must be in flight to do it
# - where data can live, and what a load from each memory costs

# %% [markdown]
# ## The problem
#
# Lesson 01 ended with a surprise. A loop that many tutorials recommend made little difference, while four elements per
# thread instead of one helped a lot, although the kernel moves exactly the same bytes. To explain that, and most of the
# surprises to come, we need a picture of the machine that runs the blocks. It has only a few parts. Here they are, for
# your GPU if you have one and for an H200 otherwise.

# %%
import numpy as np

from labkit import agree, cuda, measure, observe, show_source, table
from labkit.course.drawings import the_machine as pictures
from labkit.device import occupancy
from labkit.kernels import machine as kernels
from labkit.kernels import pointer_chase

gpu = occupancy.of_device() or occupancy.H200
recorded = measure.recorded_series("machine")

table([("SMs", gpu.multiprocessors), ("threads in each SM, at most", gpu.threads),
       ("blocks in each SM, at most", gpu.blocks), ("registers in each SM", gpu.registers),
       ("shared memory in each SM, KB", gpu.shared_bytes // 1024)], [gpu.name, "how many"])

# %% [markdown]
# *SM* is short for *streaming multiprocessor*. A block runs on one SM from its first instruction to its last.
# *Registers* hold the variables of the threads. *Shared memory* is a small, fast memory that all threads of a block can
# read and write; for now it is just a box in the picture, and lesson 06 puts it to use.

# %% [markdown]
# ## Warps and schedulers
#
# An SM does not run threads one by one. It cuts each block into *warps* of 32 threads: threads 0 to 31 are the first
# warp, 32 to 63 the second, and so on. A warp never mixes threads of two blocks, so a block of 48 threads has one full
# warp and one that is half empty. A thread's position within its warp is its *lane*.
#
# Each SM has four *schedulers*, and each scheduler looks after a quarter of the SM's warps. In every clock cycle (a
# *clock*, for short) it picks a warp whose operands have arrived and issues one instruction from it, which all 32 lanes
# execute together. In the next clock it may pick a different warp. Switching is free: the registers of every warp stay
# in the SM for as long as the warp lives, so there is nothing to save and nothing to restore.
#
# A scheduler of an H200 can issue one multiply-add for 32 lanes in each clock, at 1.98 GHz{{ hardware }}. How many
# floating-point operations can the whole GPU do in a second?

# %%
limits = measure.recorded(gpu="NVIDIA H200")["limits"]
flops = 132 * 4 * 32 * 2 * 1.98e9  # a multiply-add counts as two
table([("132 SMs × 4 schedulers × 32 lanes × 2 × 1.98 GHz", flops / 1e12),
       ("recorded on an H200", limits["fp32_tflops"])], {"": "", "TFLOP/s": ".1f"})

# %% [markdown]
# The paper figure and the recorded one agree to within a few percent{{ if paper_agrees }}. Nothing about the arithmetic
# of a GPU is mysterious: it is a few hundred schedulers, each feeding 32 lanes.

# %% [markdown]
# ## Branches
#
# If one instruction drives 32 lanes, what happens at an `if` where the lanes disagree? The warp executes both sides,
# one after the other. While it runs one side, the lanes that chose the other are *masked*: the instruction has no
# effect on them. This is called *divergence*.

# %%
pictures.split([lane % 2 for lane in range(32)])

# %% [markdown]
# The figure shows the worst case for two branches: every lane is masked half of the time. If all lanes agree, the other
# side is skipped. So the cost of a branch depends not on how many threads take it, but on which ones. This kernel does
# the same amount of arithmetic on both sides.

# %%
show_source(kernels.two_branches_kernel)

# %% [markdown]
# We run it three times. First `side` is 0 everywhere; then it alternates from warp to warp; then from lane to lane. In
# the last two runs {{ words(1 / 2) }} of the threads go each way. `observe` counts split warps without a GPU: it runs a
# kernel slowly and records every access and every branch.
#
# How many of the eight warps in a block of 256 split in each of the three runs, and which run should take twice as long
# as the first?

# %%
i = np.arange(256)
out = cuda.device_array(256, np.float32)
split = []
for name, side in {"one branch": 0 * i, "by warp": i // 32 % 2, "by lane": i % 2}.items():
    arguments = cuda.to_device(side.astype(np.uint32)), np.uint32(2), *np.float32([1, 1, -1]), out
    report = observe(kernels.two_branches_kernel[1, 256], *arguments)
    split.append((name, report.counts["divergent_branches"]))
table(split, ["side changes", "warps that split, of 8"])

# %% tags=["hide-input"]
pictures.branches(recorded)

# %% [markdown]
# Only alternating from lane to lane splits warps, all eight of them, and on the H200 only that run takes about twice as
# long{{ if only_lanes_double }}. The lower part of the figure repeats the experiment with up to 32 branches; the dashed
# line is the prediction. By lane, a warp must execute every branch that any of its lanes takes, and on the H200 32
# branches take {{ lanes_slowdown:.0f }} times as long as one. By warp, each warp takes a single branch, and the time
# stays the same{{ if warps_unaffected }}.
#
# It follows that a guard is nearly free: only the one warp that hangs over the end can split. Divergence hurts where
# neighbouring threads have different kinds of work, as in a reduction whose threads drop out step by step (lesson 15),
# or under a causal mask (lesson 20). The cure is to give all lanes of a warp the same kind of work, which is what the
# last exercise is about. Very short branches are often compiled without a jump: all lanes execute both sides, and each
# keeps one of the two results.

# %% [markdown]
# ## Latency
#
# The time from the request for a value to its arrival is the *latency* of the load. A single thread can measure it by
# following a trail: each element of an array holds the index of the next one to visit, in random order.

# %%
show_source(pointer_chase.chase_global_kernel)

# %% [markdown]
# No load can start before the last one has arrived, because its address is not known until then. So the time of the
# loop, divided by the number of steps, is the latency of one load. The size of the array decides which memory answers.
# A trail of {{ l1_kb }} KB fits into the *L1 cache*, a small memory inside each SM that keeps what was loaded recently;
# {{ l2_mb }} MB fit into the *L2 cache*, which all SMs share; {{ memory_mb }} MB fit into neither, so almost every load
# goes to the GPU's own memory, which CUDA calls *global memory*. To measure shared memory, the kernel first copies the
# trail there.
#
# How many clocks does a load from global memory take: about ten, a hundred, or a thousand?

# %%
places = measure.recorded_series("memory_latency", gpu="NVIDIA H200")["places"]
table([(name, place["ns"], place["ns"] * 1.98) for name, place in places.items()],
      {"a load from": "", "ns": ".0f", "clocks at 1.98 GHz": ".0f"}, note="recorded on an NVIDIA H200")

# %% [markdown]
# Several hundred clocks for global memory, and about thirty even for shared memory{{ if near(shared_clocks, 29) }}. In
# each of them a scheduler could have issued an instruction.

# %% [markdown]
# ## Hiding latency
#
# A CPU fights such waits with large caches and by guessing what comes next. A GPU does something simpler: while one
# warp waits, the scheduler issues instructions from others. This is *latency hiding*.
#
# Suppose a warp has to wait five clocks after each instruction. How many warps keep the scheduler busy?

# %%
pictures.hidden(warps=(1, 3, 6), wait=5)

# %% [markdown]
# With six warps no clock is lost: one of them issues while the other five wait. Each warp waits just as long as before.
# Nothing has become faster, but the wait no longer costs time; it is *hidden*.
#
# Real waits for memory are hundreds of clocks long, and an SM has room for 64 warps. So it matters how much each warp
# requests before it waits. Think of memory as a pipe. Every byte spends the latency inside the pipe, and bytes come out
# at the far end at the rate of the *bandwidth*, the bytes that the memory delivers per second. The product of the
# two is the number of bytes inside. This is *Little's law*:
#
# $$\text{bytes in flight} = \text{bandwidth} \times \text{latency}$$
#
# How many bytes must be in flight in each SM of an H200 to reach the 4,800 GB/s{{ hardware }} of its data sheet, and is
# one 4-byte load per thread enough, with 2,048 threads?

# %%
latency = places["memory"]["ns"]
needed = 4800 * latency  # GB/s times ns are bytes
an_sm = needed / 132
print(f"4,800 GB/s × {latency:.0f} ns = {needed / 1e6:.2f} MB, {an_sm / 1e3:.1f} KB in each SM")
table([(threads, 4 * threads / 1e3, an_sm / (4 * threads)) for threads in (2048, 256)],
      {"threads in an SM": "", "KB with one load each": ".1f", "loads that each needs": ".2f"})

# %% [markdown]
# One load is not enough even if the SM is full{{ if 4 * 2048 < in_flight }}, and with 256 threads each would need about
# a dozen. So a thread should request several values before it uses the first. That is the only thing `four_loads` did
# differently in lesson 01. All three rungs agree with NumPy and move the same bytes.

# %%
from labkit.kernels.ops.elementwise import VECTOR_ADD

agree(VECTOR_ADD)

# %% [markdown]
# The difference is how many loads a thread issues before it has to wait: two, one from each vector, or eight. By
# Little's law two per thread are enough in a full SM. Do `per_thread` and `grid_stride`, with two loads in flight,
# reach the bound?

# %%
ten, big = (measure.recorded_ladder("vector_add", {"n": n}, gpu="NVIDIA H200") for n in (10_000_000, 2**28))
table([(rung, loads, 4 * loads * 2048 / 1e3, *(ladder.row(f"vector_add_{rung}").fraction for ladder in (ten, big)))
       for rung, loads in (("per_thread", 2), ("grid_stride", 2), ("four_loads", 8))],
      {"rung": "", "loads in flight": "", "KB in a full SM": ".1f", "of the bound, 10 million": ".0%",
       "of the bound, 2^28": ".0%"}, note="recorded on an NVIDIA H200")

# %% [markdown]
# They do not{{ if two_loads_fall_short }}. The law gives only the least that can suffice. A thread has its loads in
# flight for only part of its life: it also computes an index, stores a sum, and makes way for a thread of the next
# block. Also, we measured the latency while memory was idle, and a busy memory takes longer to answer.

# %% [markdown]
# ## Little's law, measured
#
# To see the law on its own, we need a kernel that does nothing but wait for loads. This is the version with four loads.

# %%
show_source(kernels.make_read_kernel(4))

# %% [markdown]
# `cuda.local.array(LOADS, uint32)` is a small array that belongs to one thread. Variables that a kernel closes over,
# such as `LOADS`, are compile-time constants, so the compiler knows every index into `values` and keeps its elements in
# registers. The first inner loop therefore issues four loads in a row, and the thread does not stop until the second,
# where it needs the first value. `mask` keeps the index inside the array, and `acc & zero`, which is always 0, prevents
# the compiler from starting the loads of the next round too early.
#
# We run it with 32 to 2,048 threads per SM and with one to eight loads per thread, and plot the bandwidth against the
# bytes in flight, on logarithmic axes. What shape should the curve have by Little's law, and do 64 threads with eight
# loads differ from 512 threads with one?

# %% tags=["hide-input"]
pictures.bytes_in_flight(recorded)

# %% [markdown]
# The dashed line is the law: bytes in flight divided by latency, capped at the measured bandwidth. It bends at
# {{ bend_mb:.1f }} MB, not at {{ latency_law_mb:.1f }}, because the line uses the latency and the bandwidth that were
# measured together with the points. On the H200 the points follow the line at first. Near the bend they fall behind,
# since a busy memory answers later, and they reach the top only at {{ top_mb:.1f }} MB, {{ words(top_over_bend) }}
# times what the law requires. Threads and loads are nearly interchangeable: 512 threads with one load reach
# {{ flying[512, 1]:.0f }} GB/s, 64 threads with eight loads {{ flying[64, 8]:.0f }} GB/s.
#
# That answers the question from lesson 01. Four elements per thread put four times as many bytes in flight. You will
# meet the law again in loads of 16 bytes (lesson 07), in copies that run ahead of the arithmetic (lesson 09), and
# wherever a kernel has too few blocks to keep the memory busy (lesson 32).

# %% [markdown]
# ## The memories in one picture
#
# Now we have met all the memories of a GPU. Registers belong to one thread, shared memory to one block. In each SM, the
# L1 cache and shared memory divide the same 256 KB{{ hardware }} between them. All SMs share the L2 cache, and behind
# it is global memory. A *cache* needs no instructions of its own: loads and stores go through it, and it keeps copies
# of what was used recently.
#
# Predict the order of the five by size, by latency and by bandwidth.

# %% tags=["hide-input"]
pictures.memories(recorded)

# %%
l2 = measure.recorded(gpu="NVIDIA H200")["machine"]["l2_mb"]
table([("registers", 4 * 65_536 / 2**10, 132 * 4 * 65_536 / 2**20),
       ("shared memory", occupancy.H200.shared_bytes / 2**10, 132 * occupancy.H200.shared_bytes / 2**20),
       ("L2 cache", None, l2)], {"": "", "KB in each SM": ".0f", "MB in an H200": ".0f"})

# %% [markdown]
# With every step outwards, memory gets slower and, with one exception, larger. The exception is the registers: the
# fastest memory of all, and yet larger than shared memory. Together, the registers of an H200 are more than half as
# large as its L2 cache{{ if registers_above_half_of_l2 }}, so a good deal of data can stay in them. And because every
# step outwards costs bandwidth, a value that has been loaded once should be used many times. Lesson 06 turns that idea
# into a kernel.

# %% [markdown]
# ## What I learned
#
# - A warp takes both sides of a branch if its lanes disagree. So it matters which threads share a warp.
# - Latency does not have to be short. It has to be hidden, by enough threads with enough loads each.
# - Little's law gives a minimum. The H200 needs about {{ words(top_over_bend) }} times as much in flight to reach its
#   full bandwidth.
# - Registers are not a small reserve. They are the fastest memory there is, and one of the larger ones.

# %% [markdown]
# ## Resources
#
# - [CUDA C++ Programming Guide: SIMT
#   Architecture](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#simt-architecture)
# - [V. Volkov: Understanding Latency Hiding on GPUs
#   (2016)](https://www2.eecs.berkeley.edu/Pubs/TechRpts/2016/EECS-2016-143.html)
# - [J. D. C. Little: A Proof for the Queuing Formula L = λW (1961)](https://doi.org/10.1287/opre.9.3.383)

# %% [markdown]
# ## Try it
#
# - `pictures.split([lane < 20 for lane in range(32)])`: which lanes are masked in the second half?
# - Repeat the arithmetic of Little's law for an L4 with 300 GB/s{{ hardware }} and 58 SMs, and the same latency. Is one
#   load per thread enough?
# - On a GPU, run `labkit bench machine`, then this notebook again: its figures now show your GPU.
#
# Next: **03 · Occupancy**: how many warps an SM can hold, and whether it should hold as many as it can.

# %% [numbers]
# taken = series.machine
# flying = {(row.threads, row.loads): row.gbs for row in taken.in_flight}
# in_flight = 4800 * series.memory_latency.places['memory'].ns / 132
# paper_agrees = 0.95 < limits.fp32_tflops / (132 * 4 * 32 * 2 * 1.98e-3) < 1.05
# shared_clocks = series.memory_latency.places['shared memory'].ns * 1.98
# only_lanes_double = (1.8 < taken.branches[2].us.p50 / taken.branches[0].us.p50 < 2.2 and
#                      taken.branches[1].us.p50 / taken.branches[0].us.p50 < 1.1)
# l1_kb = series.memory_latency.places['L1 cache'].bytes // 2**10
# l2_mb = series.memory_latency.places['L2 cache'].bytes // 2**20
# memory_mb = series.memory_latency.places['memory'].bytes // 2**20
# lanes_slowdown = taken.ways[5].lanes.p50 / taken.ways[0].lanes.p50
# warps_unaffected = taken.ways[5].warps.p50 / taken.ways[0].warps.p50 < 1.02
# two_loads_fall_short = 8 * 2048 > in_flight and row('vector_add', 'per_thread', n=2**28).fraction < 0.95
# bend_mb = taken.memories['memory'].gbs * taken.memories['memory'].latency_ns / 1e6
# latency_law_mb = 4800 * series.memory_latency.places['memory'].ns / 1e6
# top_mb = (min(row.bytes_in_flight for row in taken.in_flight if row.gbs > 0.99 * max(each.gbs for each in
#           taken.in_flight)) / 1e6)
# top_over_bend = top_mb / bend_mb
# registers_above_half_of_l2 = machine.sms * 4 * 65536 / 2**20 > machine.l2_mb / 2
