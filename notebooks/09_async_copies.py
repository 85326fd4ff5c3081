# %% [markdown]
# # 09 · Copies that run ahead
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how a product waits for its tiles, and how copies in flight hide that wait

# %% [markdown]
# ## The problem
#
# To be written.

# %%
from labkit import measure
from labkit.measure.plots.matmul import climb, overlap

h200 = measure.recorded_ladder("matmul_half", gpu="NVIDIA H200")
limits = h200.limits
print(f"one mma.sync: {2 * 16 * 8 * 16:,} flops; one multiply-add of a warp: {2 * 32}")
print(f"peaks of the H200: {limits['fp32_tflops']:.0f} TFLOP/s in float32, "
      f"{limits['mma_f16_tflops']:.0f} with mma.sync in float16, {limits['f16_tflops']:.0f} with wgmma")

# %% [markdown]
# ## A third buffer
#
# A copy takes as long as before, and the products of a step take a fraction of the time: they may no longer cover it.
# With a third buffer, or *stage* (`stages=3` in the kernel above), a copy has two steps to arrive in. Does that pay?

# %%
overlap(load=2.2, multiply=1.2)

# %%
climb(h200, "three_stage")

# %% [markdown]
# It pays, by less than in the drawing: two blocks share an SM, and each covers for the other.

# %% [markdown]
# ## What I learned
#
# - {{ words(peaks).capitalize() }} times the peak is worth nothing until the numbers arrive {{ words(peaks) }} times as
#   fast.
# - Every rung removed a detour: of numbers through registers, of addresses through threads, of a tile through an empty
#   pipeline.
# - A layout is part of an algorithm. A fragment, a swizzle and a descriptor each say which number lies where.

# %% [markdown]
# ## Resources
#
# - [PTX ISA: Matrix Fragments for
#   mma.m16n8k16](https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#warp-level-matrix-fragment-mma-16816-float)
# - [PTX ISA: Asynchronous Warpgroup Level Matrix
#   Instructions](https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#asynchronous-warpgroup-level-matrix-instructions)
# - [NVIDIA CUTLASS: Efficient GEMM in CUDA](https://docs.nvidia.com/cutlass/media/docs/cpp/efficient_gemm.html)

# %% [markdown]
# ## Try it
#
# - `pictures.swizzle(5)`: predict the places of piece 5 before you draw it.
# - Draw `pictures.specialised(load=3.0)`. Which warpgroups wait now? Would more stages help?
# - Add 100 to `a` before it is rounded in the cell on accumulators. Predict which of the two lines rises, and what
#   happens at K = 4,096.
#
# Next: **where the time goes**, when the product is fast and the program is slow.

# %% [numbers]
# pipeline = row('matmul', 'pipelined').tflops
# peaks = limits.mma_f16_tflops / limits.fp32_tflops
# half = rates_of('matmul_half', ('tensor_core', 'hand_blocked', 'double_buffered', 'three_stage', 'pipelined',
#                 'wgmma_specialised', 'PyTorch'))
# below_third = half['tensor_core'] / pipeline < 1 / 3
# by_hand_slower = half['hand_blocked'] < half['tensor_core']
# mma_sync_left = limits.mma_f16_tflops / half['three_stage']
# three_stages_ahead = half['three_stage'] > half['double_buffered']
# gap_closed = half['wgmma_specialised'] / half['PyTorch'] > 0.95
# cublas_us = row('matmul_half', 'PyTorch').graph_us
# wgmma_us = row('matmul_half', 'wgmma_specialised').graph_us
# mma_sync_behind = half['pipelined'] / half['PyTorch'] < 0.87
