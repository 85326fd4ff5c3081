# %% [markdown]
# # 02 · The machine
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - what a warp is, and when a branch costs twice
# - how a GPU hides the wait for memory, and how many bytes must be on their way at any moment
# - what occupancy is, when it helps, and when it does not
# - how blocks run in waves, what happens to values that do not fit into registers, and where data can live

# %% [markdown]
# ## The problem
#
# Lesson 01 ended with a surprise. A loop that many tutorials recommend gained nothing, and four elements a thread in
# place of one helped, although not a byte less was moved. To explain that, and most surprises to come, we need a
# picture of the machine that runs the blocks. It has few parts. Here they are, for your GPU or else for an H200.

# %%
import numpy as np

from labkit import agree, cuda, measure, observe, show_source
from labkit.course.drawings import the_machine as pictures
from labkit.device import occupancy
from labkit.kernels import machine as kernels

gpu = occupancy.of_device() or occupancy.H200
recorded = measure.recorded_series("machine")

print(f"{gpu.name}: {gpu.multiprocessors} SMs")
print(f"each has places for {gpu.threads:,} threads in {gpu.blocks} blocks at most,")
print(f"{gpu.registers:,} registers, {gpu.shared_bytes // 1024} KB of shared memory")

# %% [markdown]
# *SM* is short for *streaming multiprocessor*. A block runs on one SM from its first instruction to its last.
# *Registers* hold the variables of threads. *Shared memory* is a small, fast memory that the threads of a block can all
# read and write; here it is only a box in a picture, and lesson 06 uses it.

# %% [markdown]
# ## Warps and schedulers
#
# An SM does not run threads one by one. It cuts each block into *warps* of 32 threads: threads 0 to 31 are the first
# warp, 32 to 63 the second. A warp never holds threads of two blocks, so a block of 48 threads has a warp of 32 and a
# warp of 16. A thread's place in its warp is its *lane*.
#
# An SM has four *schedulers*, each of which owns a quarter of the SM's warps. In every clock cycle, *clock* for short,
# a scheduler picks a warp that is ready, because its operands have arrived, and issues one instruction, which all 32
# lanes execute together. In the next clock it may pick another warp. The change costs nothing: the registers of all
# warps stay where they are, so there is nothing to save and nothing to load.
#
# Before you run the next cell: a scheduler of an H200 issues one multiply-add for 32 lanes in each clock, at 1.98
# GHz{{ hardware }}. How many floating-point operations does the whole GPU do in a second?

# %%
flops = 132 * 4 * 32 * 2 * 1.98e9  # a multiply-add counts as two
print(f"132 SMs x 4 schedulers x 32 lanes x 2 x 1.98 GHz = {flops / 1e12:.1f} TFLOP/s")
limits = measure.recorded(gpu="NVIDIA H200")["limits"]
print(f"recorded on an H200: {limits['fp32_tflops']:.1f} TFLOP/s")

# %% [markdown]
# ## Branches
#
# One instruction for 32 lanes: then what happens at an `if` on which the lanes disagree? The warp executes both sides,
# one after the other. During each, the lanes that took the other side are *masked*: the instruction does nothing for
# them. This is called *divergence*.

# %%
pictures.split([lane % 2 for lane in range(32)])

# %% [markdown]
# If all lanes agree, the other side is skipped. So the cost of a branch does not depend on how many threads take it,
# but on which. This kernel does the same amount of arithmetic on both sides.

# %%
show_source(kernels.two_branches_kernel)

# %% [markdown]
# Predict: `side` is 0 everywhere; or it alternates from warp to warp; or from lane to lane. In the second and in the
# third case {{ words(1 / 2) }} of the threads take each side. Which case should take twice as long as the first? And
# how many warps of a block of 256 split in each? `observe` can count that without a GPU: it runs a kernel slowly and
# keeps an account of every access and every branch.

# %%
i = np.arange(256)
out = cuda.device_array(256, np.float32)
for name, side in {"one branch": 0 * i, "by warp": i // 32 % 2, "by lane": i % 2}.items():
    arguments = cuda.to_device(side.astype(np.uint32)), np.uint32(2), *np.float32([1, 1, -1]), out
    report = observe(kernels.two_branches_kernel[1, 256], *arguments)
    print(f"{name:14}{report.counts['divergent_branches']} of 8 warps split")

# %%
pictures.branches(recorded)

# %% [markdown]
# The lower part of the figure is a kernel with up to 32 branches; the dashed line is the prediction. By lane, a warp
# must execute every branch that one of its lanes takes: on the H200, 32 branches take {{ lanes_slowdown:.0f }} times as
# long as one. By warp, each warp takes one branch, and the time stays the same{{ if warps_unaffected }}.
#
# By this rule a guard is nearly free: only the one warp that hangs over the end can split. Divergence costs where
# neighbouring threads have different work, as in a reduction whose threads drop out one after the other (lesson 15), or
# under a causal mask (14). The cure is to give the lanes of a warp the same kind of work; the last exercise does that.
# Very short branches are often compiled without a jump: all lanes execute both sides, and each keeps one result.

# %% [markdown]
# ## Latency, and how it is hidden
#
# A load from memory takes long. The time from the request to the answer is its *latency*, and a single thread can
# measure it: it follows a chain of addresses, in which each load says where the next one goes. Lesson 15 shows that
# kernel; its recorded times are what we need now.

# %%
places = measure.recorded_series("memory_latency", gpu="NVIDIA H200")["places"]
for name, place in places.items():
    print(f"{name:14}{place['ns']:6.0f} ns, {place['ns'] * 1.98:5.0f} clocks")

# %% [markdown]
# These are clocks in which a scheduler could have issued instructions. A CPU fights such waits with large caches and
# guesses about what comes next. A GPU does something simpler: while one warp waits, the scheduler issues instructions
# of others. Suppose a warp waits five clocks after each instruction. How many warps keep the scheduler busy?

# %%
pictures.hidden(warps=(1, 3, 6), wait=5)

# %% [markdown]
# With six, no clock is lost. Each warp waits as long as before; the wait is *hidden*.
#
# How much must be on its way to hide the wait for memory? Think of a pipe. Every byte spends the latency inside it, and
# the bandwidth comes out at the far end. What is inside is the product of the two. This is *Little's law*:
#
# $$\text{bytes in flight} = \text{bandwidth} \times \text{latency}$$
#
# Predict: how many bytes must be in flight on an H200, whose memory delivers 4,800 GB/s{{ hardware }} by its data
# sheet? If every SM is full of threads, is one load of 4 bytes in each of them enough?

# %%
latency = places["memory"]["ns"]
needed = 4800 * latency  # GB/s times ns are bytes
an_sm = needed / 132
print(f"4,800 GB/s x {latency:.0f} ns = {needed / 1e6:.2f} MB, {an_sm / 1e3:.1f} KB in each SM")
print(f"one load of 4 bytes in each of 2,048 threads: {4 * 2048 / 1e3:.1f} KB")
for threads in (2048, 256):
    print(f"loads that each of {threads:,} threads needs: {an_sm / (4 * threads):.2f}")

# %% [markdown]
# One load is not enough, even if the SM is full{{ if 4 * 2048 < in_flight }}. So a thread should ask for several
# numbers before it uses the first. That is all that *four loads* did in lesson 01. Its three rungs agree with NumPy and
# move the same bytes. What differs is how many loads a thread makes before it waits: two, one of each vector, or eight.

# %%
from labkit.kernels.ops.elementwise import VECTOR_ADD

agree(VECTOR_ADD)

# %%
ten, big = (measure.recorded_ladder("vector_add", {"n": n}, gpu="NVIDIA H200")
            for n in (10_000_000, 2**28))
print("on the H200 we recorded        loads   KB in an SM   of the bound: 10 million   2^28")
for rung, loads in (("per_thread", 2), ("grid_stride", 2), ("four_loads", 8)):
    shares = [ladder.row(f"vector_add_{rung}").fraction for ladder in (ten, big)]
    print(f"{rung:30}{loads:6}{4 * loads * 2048 / 1e3:14.1f}{shares[0]:26.0%}{shares[1]:7.0%}")

# %% [markdown]
# Two loads in each of 2,048 threads are more than the law asks for, and yet they do not reach the
# bound{{ if two_loads_fall_short }}. The law gives the least that will do. A thread has its loads in flight for only a
# part of its life: it also computes an index, stores a sum, and makes way for a thread of the next block. And the
# latency was measured on an idle memory; a busy one takes longer to answer.
#
# The next kernel does nothing but wait for loads, so that the law can be seen alone. This is its form for four loads.

# %%
show_source(kernels.make_read_kernel(4))

# %% [markdown]
# Predict: it runs with 32 to 2,048 threads in each SM, and with 1 to 8 loads in each thread. Draw the bandwidth over
# the bytes in flight, both axes logarithmic. What shape does the law give the curve, and where does it bend? Do 64
# threads with 8 loads differ from 512 threads with one?

# %%
pictures.bytes_in_flight(recorded)

# %% [markdown]
# The dashed line is bytes over latency, flat where the memory delivers no more. It bends at {{ bend_mb:.1f }} MB, not
# at {{ latency_law_mb:.1f }}, because it uses the latency and the bandwidth that were measured with the points. On the
# H200 the points follow it at first. Near the bend they fall behind, since a busy memory answers later, and they reach
# the top only at {{ top_mb:.1f }} MB. Threads and loads are nearly interchangeable: 512 threads with one load reach
# {{ flying[512, 1]:.0f }} GB/s, 64 threads with eight {{ flying[64, 8]:.0f }}.
#
# You will meet the law again in loads of 16 bytes and in copies that run ahead of the arithmetic (lessons 07 and 08),
# and wherever a kernel has too few blocks to keep the memory busy (26).

# %% [markdown]
# ## The memories in one picture
#
# Registers belong to a thread, shared memory to a block. Each SM has an *L1 cache*, which divides 256 KB with the
# shared memory. All SMs share the *L2 cache*, and behind it lies the GPU's own memory, which CUDA calls *global*.
#
# Predict the order of the five by size, by latency and by bandwidth. Is the largest also the fastest?

# %%
pictures.memories(recorded)

# %%
l2 = measure.recorded(gpu="NVIDIA H200")["machine"]["l2_mb"]
for name, size in {"registers": 4 * 65_536, "shared memory": occupancy.H200.shared_bytes}.items():
    print(f"{name:14}{size / 2**10:4.0f} KB in each SM, {132 * size / 2**20:3.0f} MB in an H200")
print(f"L2 cache {'':23}{l2:3} MB, as its driver reports it")

# %% [markdown]
# From step to step outwards, a memory is slower, and mostly larger. The registers are the exception: the fastest of
# all, and larger than the shared memory. All registers of an H200 together are more than half as large as its L2
# cache{{ if registers_above_half_of_l2 }}, so a lot of data can stay in them. And since every step outward costs
# bandwidth, a number that was loaded once should be used often. Lesson 06 turns that into a kernel.

# %% [markdown]
# ## What I learned
#
# - A warp takes both sides of a branch if its lanes disagree. What matters is which threads are neighbours.
# - Latency need not be short. It has to be covered, by threads times what each of them has in flight.
# - Occupancy is a means. Once enough is in flight, more of it gains nothing.
# - Count the blocks of the last wave before wondering about the time.
# - Spilled values are memory traffic that the source does not show.

# %% [markdown]
# ## Resources
#
# - [CUDA C++ Programming Guide: SIMT
#   Architecture](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#simt-architecture)
# - [CUDA C++ Best Practices Guide:
#   Occupancy](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#occupancy)
# - [V. Volkov: Understanding Latency Hiding on GPUs
#   (2016)](https://www2.eecs.berkeley.edu/Pubs/TechRpts/2016/EECS-2016-143.html)
# - [J. D. C. Little: A Proof for the Queuing Formula L = λW (1961)](https://doi.org/10.1287/opre.9.3.383)

# %% [markdown]
# ## Try it
#
# - `pictures.split([lane < 20 for lane in range(32)])`: which lanes are masked in the second half?
# - Repeat the arithmetic of Little's law for an L4 with 300 GB/s{{ hardware }} and 58 SMs, and the same latency. Is one
#   load enough?
# - `occupancy.limits(occupancy.L4, 256, 40)`: which resource is scarce? Which is it on an H200?
# - On a GPU, run `labkit bench machine`. Then run this notebook again: its figures show your GPU.
#
# Next: **03 · Indexing in three dimensions**, where the same bytes are asked for in another order.

# %% [numbers]
# taken = series.machine
# spilled = 2 * taken.spills[4].local_bytes * 256 * 132 * 2048  # a store and a load in each of 256 rounds
# flying = {(row.threads, row.loads): row.gbs for row in series.machine.in_flight}
# held = {(row.work, row.each, row.occupancy): row.rate for row in series.machine.occupancy}
# best = {each: max([held['multiply-adds', each, share / 32] for share in (1, 2, 4, 8, 16, 32)]) for each in (1, 4)}
# in_flight = 4800 * series.memory_latency.places['memory'].ns / 132
# products = times_of('matmul', ('naive', 'coalesced', 'tiled', 'tiled_32', 'register_blocked_4', 'register_blocked',
#                     'register_blocked_16', 'vectorized', 'double_buffered', 'pipelined'))
# lanes_slowdown = taken.ways[5].lanes.p50 / taken.ways[0].lanes.p50
# warps_unaffected = taken.ways[5].warps.p50 / taken.ways[0].warps.p50 < 1.02
# two_loads_fall_short = 8 * 2048 > in_flight and row('vector_add', 'per_thread', n=2**28).fraction < 0.95
# bend_mb = taken.memories['memory'].gbs * taken.memories['memory'].latency_ns / 1e6
# latency_law_mb = 4800 * series.memory_latency.places['memory'].ns / 1e6
# top_mb = (min(row.bytes_in_flight for row in taken.in_flight if row.gbs > 0.99 * max(each.gbs for each in
#           taken.in_flight)) / 1e6)
# half_occupancy_half_rate = 0.5 < held['reading', 1, 0.5] / held['reading', 1, 1.0] < 0.6
# four_chains = held['multiply-adds', 4, 1 / 16] / best[4]
# one_chain = held['multiply-adds', 1, 1 / 16] / best[1]
# slowest_is_full = (row('matmul', 'naive').occupancy == 1 and row('matmul', 'naive').ms == max(products.values()) and
#                    row('matmul', 'pipelined').occupancy < 0.5 and row('matmul', 'pipelined').ms ==
#                    min(products.values()))
# tail_doubles = taken.waves.blocks[7] == 529 and 1.8 < taken.waves.us[7] / taken.waves.us[6] < 2
# below_half = 65536 // (72 * 32) // 8 * 8 / 64 < 0.5
# spills = (row('matmul', 'register_blocked_16').registers == 255 and row('matmul', 'register_blocked_16').local_bytes >
#           0)
# spilling_slowdown = taken.spills[4].us.p50 / taken.spills[0].us.p50
# few_warps_suffice = held['multiply-adds', 4, 1 / 16] > 0.8 * best[4]
# spilled_kb = 2048 * taken.spills[4].local_bytes // 1024
# spilled_over_l1 = 2048 * taken.spills[4].local_bytes / taken.memories['L1 cache'].bytes
# spilled_tbs = round(spilled / taken.spills[4].us.p50 / 1e6)
# as_l2_delivers = abs(spilled / taken.spills[4].us.p50 / 1e3 / taken.memories['L2 cache'].gbs - 1) < 0.1
# registers_above_half_of_l2 = machine.sms * 4 * 65536 / 2**20 > machine.l2_mb / 2
