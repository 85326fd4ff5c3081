# %% [markdown]
# # 09 · Copies that run ahead
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how long a product waits for its tiles, and how copies in flight hide that wait
# - how groups of `cp.async` and a ring of stages are counted, and what goes wrong when they are not
# - how many stages pay off, and what they cost

# %% [markdown]
# ## The problem
#
# The rung *large_tiles* of lesson 08 has one pair of tiles. In each step along k a block starts its copies, waits until
# the last byte has arrived, and only then multiplies. How long is that wait, next to the products? A block multiplies
# 128 × 128 elements over 32 steps of k, and an SM has its share of the peak of `mma.sync`. The copy takes at least the
# latency of memory, which lesson 02 measured on an H200. For what share of the time can the tensor cores be busy, if
# one block has the SM to itself?

# %%
from labkit import measure, show_source, table
from labkit.kernels.ops.matmul_half import MATMUL_HALF
from labkit.measure.plots.matmul import climb, overlap

H100 = "NVIDIA H100 80GB HBM3"
recorded = measure.recorded_ladder("matmul_half", gpu=H100)
limits = measure.recorded_ladder("matmul_half", gpu="NVIDIA H200").limits
memories = measure.recorded_series("machine", gpu="NVIDIA H200")["memories"]
copy_ns = next(one["latency_ns"] for one in memories if one["name"] == "memory")
products_ns = 2 * 128 * 128 * 32 / (1000 * limits["mma_f16_tflops"] / 132)
table([("one buffer", copy_ns + products_ns, products_ns / (copy_ns + products_ns)),
       ("two buffers", max(copy_ns, products_ns), products_ns / max(copy_ns, products_ns)),
       ("three buffers", max(copy_ns / 2, products_ns), min(1, products_ns / (copy_ns / 2)))],
      {"": "", "a step, ns": ".0f", "tensor cores busy, at most": ".0%"},
      f"A copy of {copy_ns:.0f} ns, products of {products_ns:.0f} ns", note="From recordings on an NVIDIA H200.")

# %% [markdown]
# With one buffer every step is a copy and then its products. With two, the copy of the next step runs during the
# products of this one, and a step is as long as the longer of the two. That is still the copy. With three, a copy may
# take two steps, and the products are the longer part.
#
# The drawing has the same proportions. `load` and `multiply` are durations; try others.

# %%
overlap(load=copy_ns / 150, multiply=products_ns / 150)

# %% [markdown]
# From top to bottom: one pair of tiles, two, and a ring of three. The gaps between products shrink, and with three
# pairs the copies overlap one another as well.
#
# ## Groups and stages
#
# A *stage* is a buffer in shared memory for one pair of tiles. The loop of lesson 08's kernel is the same for two
# stages and for three. Here is how it starts, and how each step begins:

# %%
from labkit.kernels.matmul.mma import make_pipelined, make_staged

show_source(make_staged, "for s in u32.range(STAGES - 1):", "stage = step % STAGES")

# %% [markdown]
# Every thread closes one group of copies per step, with `cp_async_commit`. `cp_async_wait(PENDING)` returns when at
# most PENDING = STAGES - 2 of its groups are still in flight. After the barrier that follows, the same is true for all
# threads of the block, and all have read the stage that is filled next. Near the end there is nothing left to copy, and
# the groups that are closed are empty: they keep the count right. For three stages and five steps of k, for which group
# does each step wait, and which stage is filled meanwhile?

# %% tags=["hide-input"]
stages, steps = 3, 5
table([(step, f"group {step}", f"group {step + 1}" if step + 1 < steps else "an empty one",
        f"tile {step + stages - 1} into stage {(step + stages - 1) % stages}" if step + stages - 1 < steps else None,
        f"tile {step} in stage {step % stages}") for step in range(steps)],
      ["step", "waits for", "may be under way", "starts to copy", "multiplies"])

# %% [markdown]
# Group n holds tile n. The wait of step n leaves one group in flight, so group n must be complete. Without the empty
# groups, the wait of the last step would let group 4 itself be the one still in flight: that bug is an exercise of this
# lesson, and `observe` finds it.
#
# ## Two buffers
#
# The first table says that one block alone would be {{ (copy_ns + step_ns) / copy_ns:.1f }} times as fast with two
# buffers. But two blocks share an SM. While one waits for its copy, the other can multiply. How much does a second
# buffer add?

# %%
climb(recorded, "double_buffered")

# %% [markdown]
# {{ half['double_buffered'] / half['large_tiles']:.2f }} times as fast, which is less. The table gives an upper bound:
# it assumes the latency of an idle memory, and a step of nothing but copies and products. In the kernel all SMs copy at
# the same time, there are barriers and `ldmatrix` between a copy and its products, and the second block already hides
# part of the wait. Without the second buffer the kernel reached {{ half['large_tiles'] / mma_peak:.0% }} of the peak of
# `mma.sync`, with it {{ half['double_buffered'] / mma_peak:.0% }}.
#
# ## A third buffer
#
# With two buffers a copy has one step in which to arrive, with three it has two. Shared memory has room: a stage takes
# {{ stage_kb:.0f }} KB. Does a third buffer pay, when two blocks already share the SM?

# %%
climb(recorded, "three_stage", against="double_buffered")

# %% tags=["hide-input"]
from labkit.measure import ncu

counted = ncu.recorded(measure.slug(H100))["ops"]["matmul_half"]["rows"]
profiled = {row["name"].removeprefix("matmul_half_"): row for row in counted}
WAITS = {"long_scoreboard": "copies and global memory", "barrier": "a barrier",
         "mio_throttle": "the queue of shared memory",
         "wait": "the instruction before", "math_pipe_throttle": "the tensor cores"}


def waits(*names):
    return table([(name, *(profiled[name]["stalls"].get(reason, 0.0) for reason in WAITS)) for name in names],
                 {"": ""} | {f"for {text}": ".2f" for text in WAITS.values()}, "Warps that wait, for each that issues")


waits("large_tiles", "double_buffered", "three_stage")

# %% [markdown]
# It pays: {{ half['three_stage'] / half['double_buffered'] - 1:.0% }}. With one buffer {{ waited[0]:.1f }} warps wait
# for copies whenever an instruction is issued, with two {{ waited[1]:.1f }}, with three {{ waited[2]:.1f }}. Now
# another wait is the largest, for the queue of shared memory{{ if queue_leads }}: the `ldmatrix` between the tile and
# the registers.
#
# ## Fragments that run ahead
#
# That is a second copy in each step: from shared memory to the registers. In *three_stage* a warp first loads its
# fragments and then multiplies them, and the products wait for the loads. Lesson 07 had the cure: read one step ahead,
# into a second set of registers. `load_buf` and `mma_buf` are the indices of the two sets.

# %%
show_source(make_pipelined, "for k in u32.range(STEPS):", "b_frag[mma_buf")

# %% [markdown]
# The copies of the next stage start with the last of these loads: a load from shared memory does not overtake a copy
# into it that was started earlier. A warp computes 64 × 64 elements, so that each `ldmatrix` feeds four products, and
# tiles are swizzled (lesson 08). `a_offset ^ 16 * k` is the address of step k in a swizzled row: the XOR applies to the
# index of the piece.
#
# The rung *pipelined* picks one of three tiles. For a large product it is 128 × 256 with four stages: one such block
# fills an SM, so no second block hides its waits, and its own pipeline must. Why is it nevertheless the fastest of the
# three? The last column is the speed of the kernel with each tile, relative to the first, from an earlier measurement
# on an H200.

# %% tags=["hide-input"]
from labkit.kernels.matmul.half import PIPELINED_TILES

table([(f"{tile.rows} x {tile.cols}", tile.stages, tile.blocks, tile.stages * 2 * tile.depth * (tile.rows + tile.cols)
        / 1024, tile.rows * tile.cols / (tile.rows + tile.cols), speed) for tile, speed in PIPELINED_TILES.items()],
      {"tile of a block": "", "stages": "d", "blocks on an SM": "d", "KB of the ring": ".0f",
       "products for each copied value": ".0f", "relative speed": ".2f"})

# %% [markdown]
# The larger the tile, the more products there are for each value that is copied: fewer bytes come from L2, and fewer
# instructions copy them. And a deeper ring makes up for the missing second block. With 128 × 128 the kernel has the
# three stages and the block size of *three_stage*, and is nearly as fast as with 128 × 256. So most of the gain from
# *three_stage* to *pipelined* must come from fragments that run ahead, in a warp's larger tile. How large is the whole
# gain, and which wait is then the largest?

# %%
climb(recorded, "pipelined", against="three_stage")

# %%
waits("double_buffered", "three_stage", "pipelined")

# %% [markdown]
# A factor of {{ half['pipelined'] / half['three_stage']:.2f }}, the largest of this lesson. The waits for copies and
# for the queue of shared memory are all but gone, and the warps wait for the tensor cores{{ if cores_lead }}: the unit
# that was idle at the beginning is now the busiest. The second largest wait is for the instruction
# before{{ if wait_second }}: the fixed latency of a warp's previous instruction, which no early copy can hide. The
# kernel reaches {{ half['pipelined'] / mma_peak:.0% }} of what `mma.sync` can do.
#
# ## Right at every size
#
# A ring must be right when there are fewer tiles than stages, and when the last tile is cut off. These sizes are such
# cases; on the CPU device a missing wait, a missing barrier or a missing group shows up as a wrong element.

# %%
from labkit import agree

agree(MATMUL_HALF, ["matmul_half_three_stage"], sizes=({"M": 5, "N": 8, "K": 8}, {"M": 130, "N": 136, "K": 72}))

# %% [markdown]
# Both pass: with K = 8 there is one tile for three stages, and with K = 72 the third tile is cut off after 8 steps.

# %% [markdown]
# ## What I learned
#
# - Compare the time of a copy with the time of the products that can cover it. That tells you how many stages are
#   needed.
# - Another block on the SM hides waits too. A stage can only add what that leaves.
# - Every step closes a group, even an empty one. Then `cp_async_wait(n)` always means the same step.
# - There are two copies to hide: from global to shared memory, and from there to the registers.

# %% [markdown]
# ## Resources
#
# - [CUDA C++ Programming Guide: Asynchronous Data
#   Copies](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#asynchronous-data-copies)
# - [NVIDIA CUTLASS: Efficient GEMM in CUDA](https://docs.nvidia.com/cutlass/media/docs/cpp/efficient_gemm.html)

# %% [markdown]
# ## Try it
#
# - `overlap(load=2.5, multiply=1.0)`: how long does each of the three plans take now? How many stages would be enough?
# - Change `stages` in the table of groups to 2 and to 4, and predict the second column first.
#
# Next: **Hopper's tensor cores**, which read shared memory themselves, and copies that one thread requests.

# %% [numbers]
# copy_ns = series.machine.memories['memory'].latency_ns
# step_ns = 2 * 128 * 128 * 32 / (1000 * limits.mma_f16_tflops / machine.sms)
# stage_kb = row('matmul_half', 'three_stage', H100).shared_bytes / 3 / 1024
# half = rates_of('matmul_half', ('large_tiles', 'double_buffered', 'three_stage', 'pipelined'), H100)
# mma_peak = limits_of(H100).mma_f16_tflops
# waited = [stall('matmul_half', name, 'long_scoreboard', H100) for name in ('large_tiles', 'double_buffered',
#           'three_stage')]
# queue_leads = stall('matmul_half', 'three_stage', 'mio_throttle', H100) > max(
#               stall('matmul_half', 'three_stage', reason, H100) for reason in ('long_scoreboard', 'barrier', 'wait'))
# cores_lead = stall('matmul_half', 'pipelined', 'math_pipe_throttle', H100) > max(
#              stall('matmul_half', 'pipelined', reason, H100) for reason in ('long_scoreboard', 'barrier',
#              'mio_throttle', 'wait'))
# wait_second = stall('matmul_half', 'pipelined', 'wait', H100) > max(stall('matmul_half', 'pipelined', reason, H100)
#               for reason in ('long_scoreboard', 'barrier', 'mio_throttle', 'short_scoreboard'))
