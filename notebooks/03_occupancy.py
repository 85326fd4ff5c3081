# %% [markdown]
# # 03 · Occupancy
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - what occupancy is, when more of it helps, and when it does not
# - how blocks run in waves, and what the last wave costs
# - what happens to values that do not fit into registers

# %% [markdown]
# ## The problem
#
# Lesson 02 ended with a rule: keep enough bytes in flight. They are the product of two factors, the threads that an SM
# holds and the loads that each of them has in flight. We have raised the second factor, from two loads to eight. What
# about the first? An SM of an H200 has room for 2,048 threads, but a kernel cannot always use all of it. Its registers
# and its shared memory have to fit as well, and they too are limited.
#
# So this lesson is about how well a launch fills the machine: how many blocks fit into an SM, what happens when there
# are more than fit, and whether a thread should make do with fewer registers so that more threads fit.

# %%
from labkit import agree, measure, show_source, table
from labkit.course.drawings import the_machine as pictures
from labkit.device import occupancy
from labkit.kernels import machine as kernels

gpu = occupancy.of_device() or occupancy.H200
recorded = measure.recorded_series("machine")

print(f"An SM of {gpu.name} holds at most {gpu.threads:,} threads in at most {gpu.blocks} blocks.")
print(f"They share {gpu.registers:,} registers and {gpu.shared_bytes // 1024} KB of shared memory.")

# %% [markdown]
# ## What fits into an SM
#
# The warps and blocks that an SM holds at a given moment are *resident*. *Occupancy* is the number of resident warps
# divided by the most that the SM can hold, which is 64 on an H200. A block fits as a whole or not at all, and it needs
# four things: room for its warps, one of the 32 block slots, registers, and shared memory. The scarcest of the four
# decides.
#
# Take blocks of 256 threads. With 32 registers{{ example }} per thread, an SM of an H200 holds
# {{ 65536 // (32 * 256) }} of them, and every warp slot is in use. How many blocks of 256 threads does it hold at 64
# registers{{ example }} per thread, and how many at 33?

# %%
rows = []
for registers, shared in ((32, 0), (33, 0), (64, 0), (128, 0), (255, 0), (32, 48)):
    found = occupancy.limits(occupancy.H200, 256, registers, shared * 1024)
    share = occupancy.occupancy(occupancy.H200, 256, registers, shared * 1024)
    rows.append((registers, shared, *found.values(), share))
table(rows, {"registers per thread": "", "KB shared per block": "", "blocks by warps": "", "by slots": "",
             "by registers": "", "by shared memory": "", "occupancy": ".0%"})

# %% [markdown]
# Twice the registers, half the blocks. The surprise is 33: one register more costs two of the eight blocks. A warp gets
# its registers in steps of 256, which is eight per lane, so 33 registers{{ example }} per thread cost as much as
# {{ -(-33 // 8) * 8 }}. In the last row each block also needs 48 KB of shared memory, and that becomes the scarcest
# resource.

# %% [markdown]
# ## Does more occupancy help?
#
# We need kernels whose occupancy we can choose. Two of them read, like the kernel at the end of lesson 02, with one
# load per thread in flight and with eight. The other two compute. This is the version with four *chains*.

# %%
show_source(kernels.make_chains_kernel(4))

# %% [markdown]
# In a chain each multiply-add needs the result of the one before, so a thread with one chain has to wait after every
# instruction. Four chains are independent of each other: while the first waits for its result, the other three can go
# on. `CHAINS` and `UNROLL` are compile-time constants, so the compiler unrolls both inner loops and keeps `x` in
# registers.
#
# Now we lower the occupancy of all four kernels, from full down to {{ words(64 / 32) }} warps per SM. Which of the four
# kernels slows down right away, and which one stays level for longest?

# %% tags=["hide-input"]
pictures.occupancy(recorded)

# %% [markdown]
# Reading with one load per thread falls right away: on the H200, half the occupancy means little more than half the
# rate{{ if half_occupancy_half_rate }}. By Little's law it has to, since half of the bytes in flight are gone. With
# eight loads per thread, memory is already busy at half the occupancy{{ if eight_loads_suffice }}, and more warps add
# nothing.
#
# Four chains stay level for longest. At an occupancy of {{ 1 / 16:.0% }}, which is a single warp per scheduler, they
# still reach {{ four_chains:.0% }} of their best rate, and one chain {{ one_chain:.0% }} of its own. The result of a
# multiply-add takes four clocks. A lone warp with one chain therefore issues in about one clock in
# four{{ if near(lone_chain, 1 / 4) }}, while four chains fill all four. Independent instructions within a thread do the
# same job as more threads. That is *instruction-level parallelism*.
#
# Two details of the figure deserve a word. However many warps there are, one chain tops out at {{ best[1]:.0f }}
# TFLOP/s and four chains at {{ best[4]:.0f }}. One reason is in the source: the loop also has to count and jump, once
# every `UNROLL` multiply-adds with one chain, but only once in four times as many with four. And in the middle of their
# curve the four chains dip to {{ dip:.0f }} TFLOP/s. I have not found out why; the dip is small, and nothing else in
# this course depends on it.

# %% [markdown]
# ## A look ahead
#
# The matrix products of lessons 06 and 07 all compute the same result. Here are two of them, the slowest and the
# fastest, compared with NumPy.

# %%
from labkit.kernels.ops.matmul import MATMUL

agree(MATMUL, ["matmul_naive", "matmul_pipelined"])

# %% [markdown]
# The answers are equally good, so only the time differs. Does the fastest of the ten products have the highest
# occupancy?

# %%
products = measure.recorded_ladder("matmul", gpu="NVIDIA H200").rungs
table([(row.name, row.resources[0]["registers"], row.resources[0]["local_bytes"], row.resources[0]["occupancy"],
        row.timing.p50) for row in products],
      {"rung": "", "registers per thread": "", "bytes spilled": "", "occupancy": ".0%", "ms": ".1f"},
      note="recorded on an NVIDIA H200")

# %% [markdown]
# Quite the opposite: the slowest has full occupancy, and the fastest a quarter of it{{ if slowest_is_full }}. The fast
# ones give each thread many registers and let it compute many elements, which is instruction-level parallelism at work.
# One row does not fit the pattern: 255 registers{{ if spills }}, the lowest occupancy of all, and slow. Its *bytes
# spilled* are the subject of the last section.

# %% [markdown]
# ## Waves and the tail
#
# A launch may have far more blocks than fit. As many as fit start together: they are a *wave*. Whenever a block ends,
# the next one takes its place. If all blocks take equally long, the whole wave ends at the same moment, and the next
# begins.

# %%
pictures.schedule(blocks=14, places=6)

# %% [markdown]
# The last wave of the figure is only partly full, and yet it takes as long as the others. The blocks left over for the
# last wave are called the *tail*, and the time lost in it the *tail effect*.
#
# Suppose 132 SMs hold four blocks each, and a block takes 10 µs{{ example }}. How long do 528 blocks take, and how long
# 529?

# %%
table([(blocks, -(-blocks // 528), 10 * -(-blocks // 528), blocks / (-(-blocks // 528) * 528))
       for blocks in (100, 528, 529, 1056, 5281)],
      {"blocks": "", "waves": "", "µs": "", "of the slots used": ".0%"}, "By arithmetic")

# %% tags=["hide-input"]
pictures.waves(recorded)

# %% [markdown]
# The table says twice as long, and the measurement nearly agrees: on the H200 the 529th block raises the time from
# {{ taken.waves.us[6]:.0f }} to {{ taken.waves.us[7]:.0f }} µs{{ if tail_doubles }}. It is not quite twice because each
# launch also takes a few microseconds to start and to end, however many waves it has.
#
# The tail hurts when there are few waves. After ten full ones, one block too many costs a tenth. Blocks of uneven
# length blur the steps. There are two remedies: smaller blocks, which end sooner, and a launch of exactly as many
# blocks as fit, each working through one piece after another. The last exercise is such a kernel, and lesson 10 has
# another.

# %% [markdown]
# ## Values that do not fit
#
# A thread can have at most 255 registers{{ hardware }}. What assigns them? Numba translates a kernel into PTX, NVIDIA's
# portable assembly language (lesson 07), and `ptxas`, NVIDIA's assembler, turns that into the machine code of one GPU.
# It is `ptxas` that assigns registers. If more values are live at one time than there are registers, it stores some of
# them in memory and loads them back when they are needed. They are *spilled* to *local memory*. The name says who may
# use that memory, a single thread; it does not say where it is. It is in global memory, behind the same caches as
# everything else.
#
# Since high occupancy seems to require few registers, one can set a lower limit, with `@cuda.jit(max_registers=32)`, or
# with `launch_bounds=512`, which limits the registers so that a block of 512 threads fits. This kernel has 64 values
# per thread, and every round needs all of them.

# %%
show_source(kernels.make_many_values_kernel(32))

# %% [markdown]
# `values` is a `cuda.local.array`, as in lesson 02: in registers if it fits, and in local memory if it does not.
# Compiled for an H200 by the `ptxas` of CUDA 13.0, the kernel gets 70 registers{{ compiled }}. Held to 32, it keeps 264
# bytes{{ compiled }} per thread in local memory. With 32 registers{{ example }} the occupancy is
# {{ 65536 // (32 * 32) / 64:.0% }}, with 70 it is less than half of that{{ if below_half }}.
#
# Which version of the kernel is faster, the one with more registers or the one with more warps?

# %% tags=["hide-input"]
pictures.spills(recorded)

# %% [markdown]
# The one with more registers, by far: on the H200, holding the kernel to 32 registers{{ example }} makes it
# {{ spilling_slowdown:.0f }} times slower. Even at 64, six fewer than it needs, the few values that are spilled cost a
# factor of {{ slightly_spilled:.1f }}.
#
# Occupancy had nothing to offer in return. The 64 values of a thread are 64 independent chains, so a few warps are
# enough{{ if few_warps_suffice }} to keep the schedulers busy. The spilled values, on the other hand, have to be stored
# and loaded again in every round. 2,048 threads spill {{ spilled_kb }} KB in each SM,
# twice{{ if near(spilled_over_l1, 2) }} the size of its L1 cache. In all, about {{ spilled / 1e9:.0f }} GB move, at
# {{ spilled_tbs }} TB/s, which is about what the L2 cache delivers{{ if as_l2_delivers }} in the last figure of lesson
# 02. The product with 255 registers{{ hardware }} in the table above spills for a different reason: its threads need
# more registers than a thread can have.

# %% [markdown]
# ## Would it fit on another GPU?
#
# None of this needs the GPU in question. `ptxas` is a program like any other, and it assembles for every GPU wherever
# it runs. `fits` asks it how many registers a kernel needs and how many bytes it spills, adds up the shared memory, and
# does the arithmetic above for each GPU. Here it is for the product with the spills; the bound is the least time for
# its bytes or its flops, by the data sheet.

# %%
from labkit import fits

fits("matmul_register_blocked_16", gpu="t4,rtx3060,a100,h100")

# %% [markdown]
# It spills on all four. For a kernel of your own, write `fits(my_kernel, gpu="t4,rtx3060")` after you have launched it
# once, or, in a terminal, `labkit fits mine.py:my_kernel --gpu t4,rtx3060`. If `ptxas` is not installed, both tell you
# how to get it.

# %% [markdown]
# ## What I learned
#
# - The scarcest resource decides how many blocks fit, and registers come in steps of eight per thread.
# - Occupancy is a means to an end. Once enough is in flight, more warps add nothing.
# - Independent work within a thread is as good as more threads, and it leaves each thread more registers.
# - I count the blocks of the last wave before I wonder about the time.
# - Spilled values are memory traffic that the source does not show.
# - Whether a kernel fits on a GPU can be found out without that GPU.

# %% [markdown]
# ## Resources
#
# - [CUDA C++ Best Practices Guide:
#   Occupancy](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#occupancy)
# - [V. Volkov: Understanding Latency Hiding on GPUs
#   (2016)](https://www2.eecs.berkeley.edu/Pubs/TechRpts/2016/EECS-2016-143.html)

# %% [markdown]
# ## Try it
#
# - `occupancy.limits(occupancy.L4, 256, 40)`: which resource is scarce? Which one is it on an H200?
# - How many registers per thread can a kernel use so that an SM of an H200 still holds three blocks of 256 threads?
#   Find the largest number by hand, then with `occupancy.blocks(occupancy.H200, 256, registers)`.
# - Draw `pictures.schedule(blocks=14, places=7)`. How many slots stay empty now?
# - On a GPU, run `labkit bench machine`, then this notebook again: its figures now show your GPU.
#
# Next: **04 · Indexing in three dimensions**, where the same bytes are loaded in a different order.

# %% [numbers]
# taken = series.machine
# spilled = 2 * taken.spills[4].local_bytes * 256 * 132 * 2048  # a store and a load in each of 256 rounds
# held = {(row.work, row.each, row.occupancy): row.rate for row in taken.occupancy}
# best = {each: max([held['multiply-adds', each, share / 32] for share in (1, 2, 4, 8, 16, 32)]) for each in (1, 4)}
# products = times_of('matmul', ('naive', 'coalesced', 'tiled', 'tiled_32', 'register_blocked_4', 'register_blocked',
#                     'register_blocked_16', 'vectorized', 'double_buffered', 'pipelined'))
# half_occupancy_half_rate = 0.5 < held['reading', 1, 0.5] / held['reading', 1, 1.0] < 0.6
# eight_loads_suffice = held['reading', 8, 0.5] > 0.95 * held['reading', 8, 1.0]
# four_chains = held['multiply-adds', 4, 1 / 16] / best[4]
# one_chain = held['multiply-adds', 1, 1 / 16] / best[1]
# lone_chain = held['multiply-adds', 1, 1 / 16] / limits.fp32_tflops
# dip = max(held['multiply-adds', 4, 1 / 4], held['multiply-adds', 4, 1 / 2])
# slowest_is_full = (row('matmul', 'naive').occupancy == 1 and row('matmul', 'naive').ms == max(products.values()) and
#                    row('matmul', 'pipelined').occupancy == 0.25 and row('matmul', 'pipelined').ms ==
#                    min(products.values()))
# tail_doubles = taken.waves.blocks[7] == 529 and 1.8 < taken.waves.us[7] / taken.waves.us[6] < 2
# below_half = 65536 // (72 * 32) // 8 * 8 / 64 < 0.5
# spills = (row('matmul', 'register_blocked_16').registers == 255 and row('matmul', 'register_blocked_16').local_bytes >
#           0)
# spilling_slowdown = taken.spills[4].us.p50 / taken.spills[0].us.p50
# slightly_spilled = taken.spills[1].us.p50 / taken.spills[0].us.p50
# few_warps_suffice = held['multiply-adds', 4, 1 / 16] > 0.8 * best[4]
# spilled_kb = 2048 * taken.spills[4].local_bytes // 1024
# spilled_over_l1 = 2048 * taken.spills[4].local_bytes / taken.memories['L1 cache'].bytes
# spilled_tbs = round(spilled / taken.spills[4].us.p50 / 1e6)
# as_l2_delivers = abs(spilled / taken.spills[4].us.p50 / 1e3 / taken.memories['L2 cache'].gbs - 1) < 0.1
