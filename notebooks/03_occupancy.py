# %% [markdown]
# # 03 · Occupancy
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - what occupancy is, when it helps, and when it does not
# - how blocks run in waves, and what happens to values that do not fit into registers

# %% [markdown]
# ## The problem
#
# To be written.

# %%

from labkit import measure, show_source
from labkit.course.drawings import the_machine as pictures
from labkit.device import occupancy
from labkit.kernels import machine as kernels

gpu = occupancy.of_device() or occupancy.H200
recorded = measure.recorded_series("machine")

print(f"{gpu.name}: {gpu.multiprocessors} SMs")
print(f"each has places for {gpu.threads:,} threads in {gpu.blocks} blocks at most,")
print(f"{gpu.registers:,} registers, {gpu.shared_bytes // 1024} KB of shared memory")

# %% [markdown]
# ## Occupancy
#
# *Occupancy* is the number of warps that an SM holds, over the number that it has places for. The warps and blocks that
# it holds are *resident*. A block comes as a whole or not at all, and four things can run out: places for warps, places
# for blocks, registers, and shared memory. The scarcest decides.
#
# Predict: blocks of 256 threads. With 32 registers{{ example }} a thread, an SM of an H200 holds
# {{ 65536 // (32 * 256) }} blocks, and all places for warps are taken. How many blocks does it hold at 64
# registers{{ example }}? And at 33?

# %%
print("registers  blocks allowed by: threads  blocks  registers  shared   occupancy")
for registers, shared in ((32, 0), (33, 0), (64, 0), (128, 0), (255, 0), (32, 48 * 1024)):
    found = occupancy.limits(occupancy.H200, 256, registers, shared)
    share = occupancy.occupancy(occupancy.H200, 256, registers, shared)
    print(f"{registers:9}{found['threads']:28}{found['blocks']:8}{found['registers']:11}"
          f"{found['shared memory']:8}{share:12.0%}")

# %% [markdown]
# A warp gets its registers in steps of 256, which is 8 for each lane, so 33 registers{{ example }} cost as much
# as {{ -(-33 // 8) * 8 }}. In the last row each block takes 48 KB of shared memory as well.
#
# Is more always better? In Little's law occupancy is one of two factors, the number of threads. The other is what each
# thread has in flight. Predict: we take resident blocks away from two kernels that read, with one load a thread and
# with 8, and from two that compute, with one *chain* of multiply-adds, each of which needs the result of the one
# before, and with four chains. Which of the four rates falls at once, and which stays level for longest?

# %%
pictures.occupancy(recorded)

# %% [markdown]
# Occupancy helps where each thread has little in flight: with one load a thread, half the occupancy means little more
# than half the rate{{ if half_occupancy_half_rate }}. Once the memory or the schedulers are busy, more of it gains
# nothing. Four chains stay level for longest: on the H200 they reach {{ four_chains:.0% }} of their best rate at an
# occupancy of {{ 1 / 16:.0% }}, where one chain is at {{ one_chain:.0% }}. That is one warp for each scheduler, and a
# result takes four clocks. Independent instructions in one thread do the same job as more threads; that is
# *instruction-level parallelism*. Here is a look ahead, at the matrix products of lesson 07. Before you run it: does
# the fastest have the highest occupancy?

# %%
for row in measure.recorded_ladder("matmul", gpu="NVIDIA H200").rungs:
    taken = row.resources[0]
    print(f"{row.name:28}{taken['registers']:4} registers, {taken['local_bytes']:5,} bytes "
          f"spilled, occupancy {taken['occupancy']:4.0%}: {row.timing.p50:6.1f} ms")

# %% [markdown]
# The slowest has full occupancy, and the fastest has not{{ if slowest_is_full }}. One row has the lowest occupancy of
# all and is slow for another reason: the bytes in the middle column, which come below.

# %% [markdown]
# ## Waves and the tail
#
# A launch may have many more blocks than fit. The first ones fill the GPU: they are a *wave*. When a block ends, the
# next one takes its place. If all blocks take equally long, the whole wave ends at one moment.

# %%
pictures.schedule(blocks=14, places=6)

# %% [markdown]
# Predict: 132 SMs hold 4 blocks each, and a block takes 10 µs{{ example }}. How long do 528 blocks take? And 529?

# %%
for blocks in (100, 528, 529, 1056, 5281):
    waves = -(-blocks // 528)
    print(f"{blocks:5} blocks: waves {waves:2}, {10 * waves:3} us, "
          f"{blocks / (waves * 528):4.0%} of the places used")

# %%
pictures.waves(recorded)

# %% [markdown]
# The 529th block nearly doubles the time{{ if tail_doubles }}. (Not quite: the launch itself takes some microseconds,
# once.) What is left for the last wave is called the *tail*. It hurts when there are few waves: after ten of them, one
# block too many costs a tenth. Blocks of uneven length blur the stairs. There are two remedies: smaller blocks, which
# end sooner, and a launch of exactly as many blocks as fit, each of which takes one piece of work after another (lesson
# 08).

# %% [markdown]
# ## Values that do not fit
#
# A thread can have 255 registers{{ hardware }} at most. If more values are alive at one time, the compiler stores some
# of them in memory and loads them again when they are needed. They are *spilled*, to *local memory*. The name says who
# may use it, one thread, and not where it is: it lies in the GPU's memory, behind the caches, like everything else.
#
# A lower limit can be set, by `@cuda.jit(max_registers=32)` or by `launch_bounds`, so that more warps fit. This kernel
# has 64 values in each thread, and every round needs all of them.

# %%
show_source(kernels.make_many_values_kernel(32))

# %% [markdown]
# Compiled for an H200, by ptxas of CUDA 13.0, it takes 70 registers{{ compiled }}. Held to 32, it keeps 264 bytes of
# each thread in local memory. With 32 the occupancy is {{ 65536 // (32 * 32) / 64:.0% }}, with 70 it is less than half
# of that{{ if below_half }}. Predict which one is faster.

# %%
pictures.spills(recorded)

# %% [markdown]
# On the H200, with 32 registers{{ example }}, the kernel takes {{ spilling_slowdown:.0f }} times as long. Its 64 values
# are independent, so a few warps are enough{{ if few_warps_suffice }} to keep the schedulers busy, and there is nothing
# for a higher occupancy to hide. Each spilled value costs a store and a load in each round. 2,048 threads spill
# {{ spilled_kb }} KB in an SM, twice{{ if near(spilled_over_l1, 2) }} its L1 cache. In all some {{ spilled / 1e9:.0f }}
# GB move, at {{ spilled_tbs }} TB/s, about what L2 delivers{{ if as_l2_delivers }} in the last figure. The kernel with
# 255 registers{{ if spills }} in the table above spills because its threads need more than there can be.

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
