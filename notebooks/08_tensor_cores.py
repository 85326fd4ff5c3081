# %% [markdown]
# # 08 · Tensor cores
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - what a tensor core multiplies, and which lane of a warp holds which element
# - how tiles reach it fast enough: 16-byte copies, `ldmatrix`, larger tiles, swizzled tiles
# - what float16, bfloat16, TF32 and float16 accumulators cost in accuracy

# %% [markdown]
# ## The problem
#
# Lesson 07 ended near the limit of the multiply-add units. A multiply-add instruction of a warp does 64 flops. Each of
# an SM's four schedulers also has a *tensor core*, which does thousands with one instruction. It multiplies two small
# matrices and adds the product to a third. `mma.sync` m16n8k16 (*mma* stands for matrix multiply-accumulate; M, N and K
# are in the name) multiplies 16 × 16 by 16 × 8 elements in *float16*, two bytes each, and adds the product to 16 × 8
# float32 accumulators.

# %%
from labkit import measure, plots, show_source, table
from labkit.course.drawings import tensor_cores as pictures
from labkit.kernels.matmul.half import load_row_pair, matmul_half_tensor_core_kernel
from labkit.kernels.ops.matmul_half import MATMUL_HALF
from labkit.measure.plots.matmul import climb

H100 = "NVIDIA H100 80GB HBM3"
recorded = measure.recorded_ladder("matmul_half", gpu=H100)
limits = recorded.limits
table([("multiply-add, float32", 2 * 32, limits["fp32_tflops"]),
       ("mma.sync, float16", 2 * 16 * 8 * 16, limits["mma_f16_tflops"])],
      {"instruction of a warp": "", "flops": ",d", "peak, TFLOP/s": ".0f"}, note=recorded.where)

# %% [markdown]
# An `mma.sync` does {{ 2 * 16 * 8 * 16 // 64 }} times the flops of a multiply-add. But it issues less often, so the
# peak is {{ words(peaks) }} times as high.
#
# ## A product for a warp
#
# All 32 lanes of a warp execute the instruction together, and each holds a part of the matrices in its registers, a
# *fragment*. Which lane holds what is fixed. Keep this picture next to your editor.

# %%
pictures.mma_lanes(lane=13)

# %% [markdown]
# Here is the simplest product that I could write with it. A warp computes 16 × 16 elements of `out`, with two products
# of 16 × 8 in each step of k. `group_id` and `pair` are the picture's g and 2 q, and the indices are read off the
# picture.

# %%
show_source(matmul_half_tensor_core_kernel, "group_id, pair =", "add_product(")

# %% [markdown]
# `load_row_pair` loads two neighbours in a row from global memory and packs them into one register, and `load_col_pair`
# does so for two neighbours in a column. In both matrices they are neighbours along k.

# %%
show_source(load_row_pair)

# %% [markdown]
# The float32 pipeline of lesson 07 reaches {{ pipeline:.0f }} TFLOP/s. How fast is this kernel, with a unit that is
# {{ words(peaks) }} times as fast?

# %%
climb(recorded, "tensor_core")

# %% [markdown]
# About a third{{ if near(half['tensor_core'] / pipeline, 1 / 3) }} of what the float32 pipeline does without tensor
# cores. A unit that is {{ words(peaks) }} times as fast needs its operands {{ words(peaks) }} times as fast, but this
# kernel loads them two bytes at a time. So the climb begins again, with the same steps: reuse in shared memory, wide
# copies, larger tiles.
#
# Is it right? The CPU device does what the instruction does, lane by lane, so you need no tensor cores to test it.

# %%
from labkit import agree

agree(MATMUL_HALF, ["matmul_half_tensor_core"], sizes=MATMUL_HALF.awkward[:4])

# %% [markdown]
# It is, even at sizes that are not multiples of 16: beyond an edge a lane packs zeros.
#
# ## Tiles, filled by hand
#
# The first idea is that of lesson 06: tiles in shared memory. `hand_blocked` computes tiles of 64 × 64. It fills shared
# memory value by value, and each lane collects its fragments from there: two loads per register, and an instruction
# that packs the two values into it. Is `hand_blocked` faster than the rung without tiles?

# %%
climb(recorded, "hand_blocked")

# %% tags=["hide-input"]
from labkit.measure import ncu

counted = ncu.recorded(measure.slug(H100))["ops"]["matmul_half"]["rows"]
profiled = {row["name"].removeprefix("matmul_half_"): row for row in counted}
MMAS = 4096**3 / (16 * 8 * 16)  # mma.sync for the whole product


def counters(*names):
    return table([(name, row["instructions"] / 1e6, MMAS / row["instructions"], row["l2_bytes"] / 1e9,
                   row["bank_conflicts"] / 1e6, row["stalls"].get("long_scoreboard", 0.0))
                  for name in names for row in [profiled[name]]],
                 {"": "", "instructions, millions": ",.0f", "mma.sync among them": ".1%", "from L2, GB": ".1f",
                  "bank conflicts, millions": ",.2f", "warps waiting for global memory": ".2f"})


counters("tensor_core", "hand_blocked")

# %% [markdown]
# It is slower{{ if by_hand_slower }}. The tiles do what they should: less than half as many bytes come from
# L2{{ if less_from_l2 }}. But look at the instructions. Only one in two
# hundred{{ if near(MMAS / by_hand.instructions, 1 / 200) }} is an `mma.sync`, in both kernels. The others load values
# one by one, test edges and pack fragments, and in the second kernel {{ by_hand.bank_conflicts / 1e6:.0f }} million
# bank conflicts slow the reads as well. Shared memory is not at fault; the way in and the way out are. The next two
# rungs change one each.
#
# ## The way in: 16 bytes at a time
#
# `cp.async` with 16 bytes, as in lesson 07, copies eight values in one instruction, without going through registers.
# The tiles are the same, and each lane still collects its fragments by hand. Are 16-byte copies enough to overtake
# `tensor_core`?

# %%
climb(recorded, "wide_copies", against="hand_blocked")

# %% [markdown]
# {{ half['wide_copies'] / half['hand_blocked']:.1f }} times as fast, and now ahead of
# `tensor_core`{{ if half['wide_copies'] > half['tensor_core'] }}:
# {{ 1 - wide.instructions / by_hand.instructions:.0% }} of the instructions are gone. The bank conflicts are still
# there, because the fragments are read as before.
#
# ## The way out: ldmatrix
#
# For the fragments there is an instruction: `ldmatrix` reads four 8 × 8 blocks of float16 values from shared memory and
# distributes them to the lanes in exactly the layout that `mma.sync` needs. Each lane gives the address of one row of
# 16 bytes. One instruction replaces eight loads and four packings.

# %%
pictures.ldmatrix(lane=13)

# %% [markdown]
# The rung *ldmatrix* and the next ones share their source. Sizes are names there, and become constants when the kernel
# is compiled. These are their values for a block that computes 64 × 64 elements, with 32 × 32 per warp:

# %% tags=["hide-input"]
from labkit.kernels.matmul.half import LDMATRIX

tile = LDMATRIX.tile
table([("MMA_M", tile.warp_rows // 16, "fragments of a, 16 rows each, in a warp's part of the tile"),
       ("MMA_N", tile.warp_cols // 8, "fragments of b, 8 columns each"),
       ("PAIRS", tile.warp_cols // 16, "ldmatrix for b: one fetches two fragments"),
       ("STEPS", tile.depth // 16, "steps of 16 along k in one tile"),
       ("A_PITCH", tile.depth + 8, "values from one row of the tile of a to the next, with 16 bytes of padding"),
       ("B_PITCH", tile.cols + 8, "the same for b"),
       ("ACC", 4, "accumulators of a lane for one product of 16 x 8"),
       ("stage", 0, "where the tile begins in shared memory: here there is only one")], ["name", "value", "meaning"])

# %%
from labkit.kernels.matmul.mma import make_copy, make_staged

show_source(make_staged, "for k in u32.range(STEPS):", "b_frag[j * 2 + 1]")

# %% [markdown]
# For 16 steps of k a warp loads MMA_M fragments of `a`, four registers each, into `a_frag`, and MMA_N fragments of `b`,
# two registers each, into `b_frag`. Then it multiplies each of the first by each of the second, and product (i, j) is
# added to the ACC accumulators that begin at `(i * MMA_N + j) * ACC`. `a_offset` and `b_offset` are where the row
# begins whose address this lane gives to `ldmatrix`. `ldmatrix_x4_trans` also transposes each block of 8 × 8, because
# `b` is stored along its rows. `weights` is for a `b` stored as (N, K), and is false here.
#
# How much faster is the kernel when one instruction replaces eight loads and four packings?

# %%
climb(recorded, "ldmatrix")

# %%
counters("hand_blocked", "wide_copies", "ldmatrix")

# %% [markdown]
# {{ half['ldmatrix'] / half['wide_copies']:.1f }} times as fast, the largest factor of this ladder. Of
# {{ wide.instructions / 1e9:.1f }} billion instructions {{ matrix.instructions / 1e9:.2f }} billion are left, and more
# than a quarter{{ if MMAS / matrix.instructions > 1 / 4 }} of them multiply. The bank conflicts are gone as well,
# thanks to the *padding*, 16 unused bytes at the end of each row of a tile. Now the kernel waits: for each warp that
# issues an instruction, {{ stall('matmul_half', 'ldmatrix', 'long_scoreboard', H100):.0f }} wait for copies.
#
# ## Larger tiles
#
# A fragment that is loaded can be used more than once. In a warp's 32 × 32 elements each fragment of `a` is multiplied
# by four of `b`, and each of `b` by two of `a`. With 64 × 32 there are four of each. How many products does each
# `ldmatrix` feed in these two shapes?

# %% tags=["hide-input"]
table([(f"{rows} x {cols}", rows // 16 + cols // 16, rows // 16 * cols // 8,
        rows // 16 * cols // 8 / (rows // 16 + cols // 16), rows // 16 * cols // 8 * 4)
       for rows, cols in ((16, 16), (32, 32), (64, 32), (64, 64))],
      {"a warp computes": "", "ldmatrix": "d", "products": "d", "products for each ldmatrix": ".1f",
       "accumulators of a lane": "d"})

# %% [markdown]
# Larger is better, until the accumulators need all the registers: this is the thread tile of lesson 07 again, with
# fragments instead of elements. The rung *large_tiles* has 64 × 32 per warp and 128 × 128 per block, which also halves
# what each product needs from L2. How much faster do larger tiles make the kernel?

# %%
climb(recorded, "large_tiles", against="ldmatrix")

# %% [markdown]
# {{ half['large_tiles'] / half['ldmatrix']:.2f }} times as fast: {{ 1 - large.instructions / matrix.instructions:.0% }}
# fewer instructions, half the bytes from L2{{ if near(large.l2_bytes / matrix.l2_bytes, 1 / 2) }}, and half as many
# warps that wait for copies{{ if half_wait }}. From tiles filled by hand to here it is a factor of
# {{ half['large_tiles'] / half['hand_blocked']:.0f }}, with {{ words(by_hand.instructions / large.instructions) }}
# times fewer instructions. The warps still wait for copies; the next lesson hides that wait.
#
# ## Swizzled tiles
#
# `ldmatrix` reads eight rows of 16 bytes in one step if they are in different banks. In a tile whose rows are 128 bytes
# long, the same piece of every row is in the same four banks. Padding helps, as in lesson 07 and in the rungs above,
# but costs memory. A *swizzle* costs none: piece p of row r is stored at position p XOR r. In a swizzled tile, does
# each row still hold all its pieces, and in how many banks is the same piece of eight rows?

# %%
pictures.swizzle()

# %% [markdown]
# For one r, p XOR r runs through all eight positions as p does, so a row still holds every piece once. And for one p it
# runs through all eight as r does, so the pieces of eight rows are spread over all 32 banks. In the copy this is one
# line, `swizzled_piece`. With four pieces in a row, two rows share 128 bytes; hence the shift.

# %%
show_source(make_copy, "for i in u32.range(copies):", "matrix, src_offset")

# %% [markdown]
# *pipelined*, the last rung of lesson 09, stores its tiles this way, and so do the rungs of lesson 10. How many bank
# conflicts are left with padded tiles, and how many with swizzled ones?

# %% tags=["hide-input"]
table([(name, profiled[name]["bank_conflicts"], how) for name, how in
       (("hand_blocked", "as they are"), ("large_tiles", "padded"), ("pipelined", "swizzled"))],
      {"": "", "bank conflicts": ",.0f", "tiles": ""})

# %% [markdown]
# Padded or swizzled, less than a ten-thousandth{{ if conflicts_gone }} of them are left. Swizzled tiles need not one
# byte more than their elements.
#
# ## On a T4
#
# The T4, which Colab offers, and the RTX 20 series have tensor cores too, of an older kind called *Turing* (compute
# capability 7.5{{ hardware }}). They have `ldmatrix`. They have no `cp.async`, bfloat16 or TF32, and their largest
# `mma.sync` in float16 is m16n8k8: half as deep, with two registers of `a` and one of `b`. The rung *turing* is
# *ldmatrix* rewritten for them. In its inner loop, two instructions do what one did before:

# %%
from labkit.kernels.matmul.turing import matmul_half_turing_kernel

show_source(matmul_half_turing_kernel, "for start in u32.range(", "right1)")

# %% [markdown]
# Without `cp.async` a copy passes through registers, and a thread that needs the value waits for it. That is why
# `fetch_tiles` comes so early: it loads this thread's part of the next tiles into `words`, sixteen registers, and the
# warp multiplies while the loads are in flight. `store_tiles` stores them to shared memory once both tiles are free.

# %%
agree(MATMUL_HALF, ["matmul_half_turing"], sizes=MATMUL_HALF.awkward[-3:])

# %% [markdown]
# The other rungs of this lesson run on a T4 as well. Their source is the same; only the instructions that labkit
# generates from it differ. On a T4 `ptx.mma_m16n8k16_f32_f16` becomes two m16n8k8, and `ptx.cp_async_16` a load and a
# store. The results are right, but the copy no longer runs ahead: each thread waits for its load before it can store
# the value. For bfloat16 and TF32 there is no replacement, so checks and ladders leave such a rung out and say why.
#
# ## What the formats cost
#
# float16 has 11 bits of precision and a largest value of 65,504. *bfloat16* has the range of float32 and 8 bits (lesson
# 33). *TF32* has that range and 11 bits. In all three formats the product of two values is exact and the accumulators
# are float32. So the error comes from rounding the inputs, and NumPy can show it. Which of the three formats loses most
# accuracy?

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
lost = {name: relative_error(rounded(a).astype(np.float64) @ rounded(b).astype(np.float64), true)
        for name, rounded in formats.items()} | {"float32": relative_error(a @ b, true)}
ops = {"float16": "matmul_half", "bfloat16": "matmul_bf16", "TF32": "matmul_tf32", "float32": "matmul"}
table([(name, lost[name], measure.recorded_ladder(op, gpu="NVIDIA H200").row(f"{op}_pipelined").tflops)
       for name, op in ops.items()], {"": "", "relative error": ".1e", "TFLOP/s of its pipelined rung": ".0f"},
      note="Rates recorded on an NVIDIA H200.")

# %% [markdown]
# bfloat16, with the fewest bits of precision: a little more than two digits are right, and more than three in float16
# and TF32. For a neural network that is often plenty. TF32 values take four bytes each, and their instruction has half
# the rate.
#
# One can also keep the *accumulators* in float16. Then they are rounded after every instruction. How does the error of
# float16 accumulators grow with K?

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
plots.curves(depths, errors, "Rounding in every step: the error grows with K", "K", "error", log_x=True, log_y=True,
             marks=True)

# %% [markdown]
# With float32 accumulators the error is that of the one rounding at the end, for every K. With float16 accumulators it
# grows roughly as the square root of the number of steps. On a GeForce card such an `mma.sync` runs at twice the rate
# of the one with float32 accumulators. The H100 is no GeForce: two rungs that differ only in their accumulators run at
# {{ half['f16_accumulators']:.0f }} (float16) and {{ half['double_buffered']:.0f }} TFLOP/s. Here the digits are lost
# for nothing{{ if no_faster }}.

# %% [markdown]
# ## What I learned
#
# - {{ words(peaks).capitalize() }} times the peak is useless until the operands arrive {{ words(peaks) }} times as
#   fast.
# - Tiles in shared memory help only if the way in and the way out are wide: `cp.async` and `ldmatrix`.
# - A layout is part of an algorithm. A fragment and a swizzle each say which element is where.

# %% [markdown]
# ## Resources
#
# - [PTX ISA: Matrix Fragments for
#   mma.m16n8k16](https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#warp-level-matrix-fragment-mma-16816-float)
# - [NVIDIA CUTLASS: Efficient GEMM in CUDA](https://docs.nvidia.com/cutlass/media/docs/cpp/efficient_gemm.html)

# %% [markdown]
# ## Try it
#
# - `pictures.swizzle(5)`: predict the positions of piece 5 before you draw it.
# - In the cell on accumulators, add 5 to `a` and `b` before they are rounded. Predict whether the two lines change, and
#   what happens at K = 4,096.
#
# Next: **copies that run ahead**. *large_tiles* waits for each pair of tiles before it multiplies them.

# %% [numbers]
# MMAS = 4096**3 / (16 * 8 * 16)
# pipeline = row('matmul', 'pipelined', H100).tflops
# peaks = limits_of(H100).mma_f16_tflops / limits_of(H100).fp32_tflops
# half = rates_of('matmul_half', ('tensor_core', 'hand_blocked', 'wide_copies', 'ldmatrix', 'large_tiles',
#                 'double_buffered', 'f16_accumulators'), H100)
# by_hand_slower = half['hand_blocked'] < half['tensor_core']
# by_lanes = ncu('matmul_half', 'tensor_core', H100)
# by_hand = ncu('matmul_half', 'hand_blocked', H100)
# wide = ncu('matmul_half', 'wide_copies', H100)
# matrix = ncu('matmul_half', 'ldmatrix', H100)
# large = ncu('matmul_half', 'large_tiles', H100)
# less_from_l2 = by_hand.l2_bytes < by_lanes.l2_bytes / 2
# half_wait = near(stall('matmul_half', 'large_tiles', 'long_scoreboard', H100),
#                  stall('matmul_half', 'ldmatrix', 'long_scoreboard', H100) / 2)
# conflicts_gone = max(large.bank_conflicts, ncu('matmul_half', 'pipelined', H100).bank_conflicts) < (
#                  by_hand.bank_conflicts / 10_000)
# no_faster = half['f16_accumulators'] < 1.02 * half['double_buffered']
