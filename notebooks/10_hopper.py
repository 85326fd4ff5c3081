# %% [markdown]
# # 10 · Hopper's tensor cores
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how four warps multiply together with wgmma
# - how one thread copies a tile with TMA, and what specialised warps are

# %% [markdown]
# ## The problem
#
# To be written.

# %%
from labkit import measure, plots, show_source
from labkit.course.drawings import tensor_cores as pictures
from labkit.kernels.ops.matmul_half import MATMUL_HALF
from labkit.measure.plots.matmul import climb

h200 = measure.recorded_ladder("matmul_half", gpu="NVIDIA H200")
limits = h200.limits
print(f"one mma.sync: {2 * 16 * 8 * 16:,} flops; one multiply-add of a warp: {2 * 32}")
print(f"peaks of the H200: {limits['fp32_tflops']:.0f} TFLOP/s in float32, "
      f"{limits['mma_f16_tflops']:.0f} with mma.sync in float16, {limits['f16_tflops']:.0f} with wgmma")

# %% [markdown]
# ## wgmma: products of four warps
#
# `mma.sync` takes everything from registers, so every number of `a` and `b` passes through them. Hopper, the H200's
# generation, has `wgmma` instead. Four warps, a *warpgroup*, multiply 64 rows of `a` by up to 256 columns of `b`, for
# 16 steps of k, and the tensor cores read both from shared memory. Only the accumulators are in registers.

# %%
pictures.warpgroup(columns=128)

# %% [markdown]
# An instruction that reads shared memory has to know where a tile begins and how it is swizzled. A *descriptor*, a
# number of 64 bits, says both. `a_desc` and `b_desc` are descriptors. They count addresses in units of 16 bytes, so 16
# float16 numbers further along a row of `a` is 2 more. Here are the products of one stage, 64 steps of k:

# %%
from labkit.kernels.matmul.wgmma import make_wgmma, make_wgmma_specialised
from labkit.kernels.matmul.wgmma_tiles import make_load

show_source(make_wgmma, "ptx.wgmma_fence()", "ptx.wgmma_wait")

# %% [markdown]
# Each `wgmma` only starts a product, and the threads go on. As with `cp.async` in lesson 07, `wgmma_commit` closes the
# group of four, and `wgmma_wait(0)` waits for it. (`scale_d` is 0 for the very first product, which overwrites whatever
# the registers hold. `wgmma_fence` makes sure that the products find the accumulators as the threads left them.)

# %% [markdown]
# ## TMA: one thread requests a tile
#
# Where do these tiles come from? So far every thread computed addresses for its share of a copy. Hopper's *tensor
# memory accelerator*, TMA, copies whole boxes of a matrix. One thread requests a box by its coordinates. It arrives
# swizzled, with zeros for what lies beyond the edges.

# %%
pictures.tma()

# %% [markdown]
# How do the other threads know that the tile is complete? They wait at an *mbarrier*, a barrier in shared memory that
# counts bytes. The thread that requests the tile first says how many to expect. TMA counts what it has written, and
# once all bytes are there, the waiting threads go on. (`a_offset` and `b_offset` are offsets in shared memory. A box
# has rows of 128 bytes, so `b` takes one for every 64 columns.)

# %%
show_source(make_load, "def load(", "tma_load_2d(tiles, b_offset + box")

# %% [markdown]
# The stages form a ring, and each has its own mbarrier, `loaded`. In the next lap the same mbarrier is used again, so a
# waiting thread must say which lap it means. One bit is enough: `parity` is 0 in even laps and 1 in odd ones. Here is
# the end of a step, when the stage has been read:

# %%
show_source(make_wgmma, "cuda.syncthreads()  # both", "stage, parity = 0, 1")

# %% [markdown]
# How much faster are `wgmma` and TMA together? The peak rose as well, from what `mma.sync` can do to what `wgmma` can.

# %%
climb(h200, "wgmma")

# %% [markdown]
# ## Specialised warps
#
# Two losses are left. All threads of a block do the same, so while they wait for one another at the end of a step, no
# product of theirs is under way. And when a block has stored its part of `out`, the next one starts with empty buffers.
# The last rung has a remedy for each.
#
# - Specialised warps: one warpgroup, the *producer*, only requests tiles, as far ahead as the ring allows. Two others,
#   the *consumers*, multiply and store the result. While one waits, the other's products are under way.
# - *Persistent* blocks: one block for each SM computes one part of `out` after another. While the consumers store one
#   part, the producer already requests tiles for the next.

# %%
pictures.specialised()

# %% [markdown]
# Producer and consumers wait for each other, so each stage has two mbarriers: `loaded` says that it may be read, and
# `freed` that it may be overwritten. (`freed` counts no bytes but the consumers that arrive.) Before you look: who
# waits for which of them? This is the producer. It needs few registers, and `setmaxnreg` leaves the rest to the
# consumers.

# %%
show_source(make_wgmma_specialised, "ptx.setmaxnreg_decrease", "tile_id = tile_id +")

# %% [markdown]
# `tile_id` is the part of `out`, and the inner loop goes along k. (`split` is for products with fewer parts than SMs;
# here it is false.) The consumers have the same two loops. Inside, they wait for `loaded`, multiply as above, and
# arrive at `freed`. How much was left to gain?

# %%
ours, theirs = h200.row("matmul_half_wgmma_specialised"), h200.row("PyTorch (cuBLAS)")
print(f"{ours.tflops:.0f} TFLOP/s on the H200, {ours.tflops / theirs.tflops:.2f} of cuBLAS's speed")
climb(h200, "wgmma_specialised")

# %%
from labkit import device, ladder

plots.ladder(ladder(MATMUL_HALF) if device.on_gpu() else h200, None)

# %% [markdown]
# ## What the formats cost
#
# float16 has 11 bits of precision and a largest value of 65,504. bfloat16 has the range of float32 and 8 bits. TF32 has
# that range and 11 bits. In all three the product of two numbers is exact and the accumulators are float32. So the
# error comes from rounding the inputs, and NumPy can show it.

# %%
import numpy as np

from labkit.kernels.dtypes import bfloat16_of, float32_of


def relative_error(got, true):
    return np.linalg.norm(got - true) / np.linalg.norm(true)


rng = np.random.default_rng(5)
a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((256, 1024), (1024, 256)))
true = a.astype(np.float64) @ b.astype(np.float64)
formats = {"float16": lambda x: x.astype(np.float16), "bfloat16": lambda x: float32_of(bfloat16_of(x)),
           "TF32": lambda x: ((x.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)}
for name, rounded in formats.items():
    print(f"{name:9} {relative_error(rounded(a).astype(np.float64) @ rounded(b).astype(np.float64), true):.1e}")
print(f"float32   {relative_error(a @ b, true):.1e}\n")
for name in ("matmul_half", "matmul_bf16", "matmul_tf32"):
    rate = measure.recorded_ladder(name, gpu="NVIDIA H200").row(f"{name}_pipelined").tflops
    print(f"{name + '_pipelined':21} {rate:4.0f} TFLOP/s on the H200")

# %% [markdown]
# Three digits, or a little more than two for bfloat16. For a neural network that is often plenty. (TF32 numbers take
# four bytes each and their instruction has half the rate.) One can also keep the *accumulators* in float16. Then they
# are rounded after every instruction. Predict how the error grows with K.

# %%
depths, errors = (64, 256, 1024, 4096), {"float32 accumulators": [], "float16 accumulators": []}
for depth in depths:
    a, b = (rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in ((128, depth), (depth, 128)))
    true = a.astype(np.float64) @ b.astype(np.float64)
    total = np.zeros((128, 128), np.float16)
    for k in range(0, depth, 16):  # one mma.sync
        total = (total + a[:, k : k + 16] @ b[k : k + 16]).astype(np.float16)
    errors["float32 accumulators"].append(relative_error((a @ b).astype(np.float16), true))
    errors["float16 accumulators"].append(relative_error(total, true))
plots.curves(depths, errors, "Rounding once, or in every step", "K", "error", log_x=True, log_y=True, marks=True)

# %% [markdown]
# With float32 accumulators the error is that of the one rounding at the end, for every K. With float16 it grows about
# like the square root of the number of steps. And the gain? On a GeForce card such an `mma.sync` runs at twice the rate
# of the one with float32 accumulators. The H200 is no GeForce:

# %%
climb(h200, "f16_accumulators", against="double_buffered")

# %% [markdown]
# ## Against an article
#
# *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch* climbs such a ladder on an RTX 3090 (lesson 32 runs its
# model). On both GPUs tiles that are filled by hand are slower than none{{ if by_hand_slower }}. A third buffer was
# slower there on every shape, and here it is ahead{{ if three_stages_ahead }}. At equal precision the article's product
# stayed about 13%{{ quoted }} behind cuBLAS. With `wgmma` that gap is closed here{{ if gap_closed }}, and with
# `mma.sync`, which is what the RTX 3090 has, it is not{{ if mma_sync_behind }}.
#
# Closed, that is, for one product at a time. Back to back in a CUDA graph (lesson 13), cuBLAS takes {{ cublas_us:.0f }}
# us for each and `wgmma_specialised` {{ wgmma_us:.0f }}. I do not know why.

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
