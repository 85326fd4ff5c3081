# %% [markdown]
# # 08 · Tensor cores
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - what a tensor core multiplies, and which lane of a warp holds which number
# - how tiles reach it fast enough: `ldmatrix`, swizzled tiles, and on Hopper `wgmma`, TMA and specialised warps
# - what float16, bfloat16, TF32 and float16 accumulators cost in accuracy

# %% [markdown]
# ## The problem
#
# Lesson 07 ended near the limit of the multiply-add units. A multiply-add instruction of a warp does 64 flops. Beside
# the units for those, each of an SM's four schedulers has a *tensor core*, which does thousands with one instruction.
# It multiplies two small matrices and adds the product to a third. `mma.sync` m16n8k16 (M, N and K are in the name)
# multiplies 16 × 16 by 16 × 8 numbers in float16, two bytes each, and adds the product to 16 × 8 float32 accumulators.

# %%
from labkit import measure, show_source
from labkit.course.drawings import tensor_cores as pictures
from labkit.kernels.matmul.half import matmul_half_tensor_core_kernel
from labkit.kernels.ops.matmul_half import MATMUL_HALF
from labkit.measure.plots.matmul import climb

h200 = measure.recorded_ladder("matmul_half", gpu="NVIDIA H200")
limits = h200.limits
print(f"one mma.sync: {2 * 16 * 8 * 16:,} flops; one multiply-add of a warp: {2 * 32}")
print(f"peaks of the H200: {limits['fp32_tflops']:.0f} TFLOP/s in float32, "
      f"{limits['mma_f16_tflops']:.0f} with mma.sync in float16, {limits['f16_tflops']:.0f} with wgmma")

# %% [markdown]
# ## A product for a warp
#
# All 32 lanes of a warp execute the instruction together, and each brings a part of the matrices in its registers, a
# *fragment*. Which lane holds what is fixed. Keep this picture beside your editor.

# %%
pictures.mma_lanes(lane=13)

# %% [markdown]
# Here is the simplest product with it that I could write. A warp computes 16 × 16 elements, and each lane collects its
# fragments from global memory, number by number.

# %%
show_source(matmul_half_tensor_core_kernel, "depth = u32.shape", "add_product(")

# %% [markdown]
# Predict: the float32 pipeline reaches {{ pipeline:.0f }} TFLOP/s on the H200. How far does this kernel get, with a
# unit that is {{ words(peaks) }} times as fast?

# %%
climb(h200, "tensor_core")

# %% [markdown]
# Less than a third{{ if below_third }} of what the float32 pipeline does without tensor cores. A unit that is
# {{ words(peaks) }} times as fast needs its numbers {{ words(peaks) }} times as fast, and this kernel fetches them two
# bytes at a time. So the climb begins again, with the same steps: reuse in shared memory, wide copies, two buffers, a
# pipeline.
#
# Is it right? The CPU device does what the instruction does, lane by lane, so you need no tensor cores to test it.

# %%
from labkit import agree

agree(MATMUL_HALF, ["matmul_half_tensor_core"], sizes=MATMUL_HALF.awkward[:4])

# %% [markdown]
# ## ldmatrix
#
# The first idea is that of lesson 06: tiles in shared memory. `hand_blocked` fills tiles of 64 × 64 number by number,
# and each lane collects its fragments from there: two loads for each register, and an instruction that packs the two
# values into it. What do you expect?

# %%
climb(h200, "hand_blocked")

# %% [markdown]
# It is slower{{ if by_hand_slower }}. The repeated reads of the rung before hit the caches anyway, and now there are
# copies of single numbers and barriers besides. Shared memory is not at fault; the way in and the way out are.
#
# The way in is `cp.async` with 16 bytes, as in lesson 07. For the way out there is an instruction: `ldmatrix` reads
# four 8 × 8 blocks of float16 values from shared memory and deals them out to the lanes in just the layout that
# `mma.sync` needs. Each lane gives the address of one row of 16 bytes. One instruction replaces eight loads and four
# packings.

# %%
pictures.ldmatrix(lane=13)

# %% [markdown]
# In `double_buffered` a warp computes 64 × 32 elements. For 16 steps of k it loads four fragments of `a` and four of
# `b`, and multiplies each with each: 16 products for six `ldmatrix`, since one of them fetches a fragment of `a` or two
# of `b`. How many times as fast may that be? (`ldmatrix_x4_trans` also transposes each block of 8 × 8, because `b` is
# stored along its rows. `weights` is for a `b` stored as (N, K); here it is false.)

# %%
from labkit.kernels.matmul.mma import make_copy, make_pipelined, make_staged

show_source(make_staged, "for step in u32.range(steps):", "b_frag[j * 2 + 1]")

# %%
climb(h200, "double_buffered")

# %% [markdown]
# ## Swizzled tiles
#
# `ldmatrix` reads eight rows of 16 bytes in one step if they lie in different banks. In a tile whose rows are 128 bytes
# long the same piece of every row lies in the same four banks. Padding helps, as in lesson 07, but costs memory. A
# *swizzle* costs none: piece p of row r is stored at place p XOR r. Before you look: does each row still hold all its
# pieces, and how many different banks does one piece of eight rows reach?

# %%
pictures.swizzle()

# %%
show_source(make_copy, "for i in u32.range(copies):", "matrix, src_offset")

# %% [markdown]
# `pipelined` stores its tiles in this way, in four stages. A warp computes 64 × 64 elements, so that a fragment of `a`
# is used eight times and one of `b` four times. The fragments of the next 16 steps are loaded while these are
# multiplied: `load_buf` and `mma_buf` are two sets of registers. (A row of its tile of `a` has four pieces, so two rows
# share 128 bytes; hence the shift.) `mma.sync` could do twice{{ if near(mma_sync_left, 2) }} what `three_stage` did.
# How much of that do you expect?

# %%
show_source(make_pipelined, "for k in u32.range(STEPS):", "b_frag[mma_buf")

# %%
climb(h200, "pipelined", against="three_stage")

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
