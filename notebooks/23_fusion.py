# %% [markdown]
# # 23 · Fusion
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how to predict, from bytes alone, what one kernel saves over two
# - how an activation disappears into the product that comes before it
# - when fusing stops helping: what an epilogue saves in bytes and pays in arithmetic
#
# ## The problem
#
# Between its large products a model runs small kernels that compute next to nothing: an addition, a norm, an
# activation. Each of them reads its arrays from memory and writes one back, and the next kernel reads that one again.
# Once such a kernel runs at the speed of memory, it cannot be made any faster. But it can be left out: *fusion* does
# the work of two kernels in one, and what the first would pass to the second never leaves the registers.
#
# ## Two kernels made one
#
# In a transformer an addition comes right before a LayerNorm. A layer's output is added to its input, the *residual*,
# and the sum is normalised. Per four-byte element,
#
# - the addition reads two elements and writes one,
# - LayerNorm reads one and writes one.
#
# What LayerNorm reads is what the addition has just written. In one kernel the sum stays in registers. BERT, and
# MiniLM, a small model of its kind, need only the normalised row afterwards. GPT-2 adds to the sum again in its next
# layer, so there the fused kernel has to store the sum as well.
#
# ## Prediction
#
# How many bytes per element do the two kernels move, the fused one that keeps the sum, and the fused one that does not?

# %%
from labkit import plots

moved = {"addition, then LayerNorm": (4 * 3, 4 * 2), "fused, sum kept (GPT-2)": (4 * 2, 4 * 2),
         "fused (BERT, MiniLM)": (4 * 2, 4 * 1)}
plots.traffic(moved, "Fused, twelve bytes per element are left of twenty", "bytes", least=12)

# %% [markdown]
# Twenty bytes become sixteen or twelve. If bytes are all that counts, the fused kernels need
# {{ 16 / 20:.0% }} and {{ 12 / 20:.0% }} of the time.
#
# The fused kernel is the LayerNorm of lesson 21 with a second load. `keep` says whether the sum is stored too, and
# `warps` whether a warp or a whole block shares a row.

# %%
import numpy as np

from labkit import agree, cuda, graphs, ladder, measure, show_source, table
from labkit.kernels.norm.layernorm import make_residual_layernorm
from labkit.kernels.ops.layernorm import ADD_LAYERNORM

show_source(make_residual_layernorm)

# %%
agree(ADD_LAYERNORM)

# %% [markdown]
# Fusing also saves a launch. A graph (lesson 13) knows how many kernels it contains:

# %%
arrays = [cuda.to_device(array) for array in ADD_LAYERNORM.inputs(np.random.default_rng(3), R=8, C=768)]
out = cuda.device_array((8, 768), np.float32)
table([(launch.__name__, graphs.capture(lambda stream, launch=launch: launch(*arrays, out, stream=stream)).nodes)
       for launch in ADD_LAYERNORM.rungs], ["rung", "kernels"])

# %% [markdown]
# Now the clock. Will the fused kernels be faster than their bytes predict, or slower?

# %%
plots.ladder(ladder(ADD_LAYERNORM))

# %%
rows = []
for name, least in (("add_layernorm", 12), ("residual_layernorm", 16)):
    recorded = measure.recorded_ladder(name, gpu="NVIDIA H200")
    two, one = (recorded.row(f"{name}_{kind}").timing.p50 for kind in ("unfused", "fused"))
    rows.append((name, least / 20, one / two))
table(rows, {"fused kernel": "", "predicted share of the time": ".0%", "measured": ".0%"}, note="NVIDIA H200")

# %% [markdown]
# Bytes predict the time to within a few percent{{ if bytes_predict }}. `residual_layernorm` is the one that keeps the
# sum.
#
# Nobody has to write this fusion by hand. In the figure, PyTorch's two calls take
# twice{{ if near(two_calls, 2, 0.12) }} as long as the fused kernel. Compiled, they become one kernel, which needs
# {{ compiled_gain:.0% }} less time than mine.
#
# ## Two forms of GELU
#
# The other small kernel of a layer is its activation, *GELU*. It comes in two forms. BERT uses the exact one, with the
# error function. GPT-2 approximates it with a tanh:
#
# $$\frac{x}{2}\left(1 + \text{erf}\frac{x}{\sqrt{2}}\right) \qquad
# \frac{x}{2}\left(1 + \tanh\left(\sqrt{2/\pi}\,(x + 0.044715\,x^3)\right)\right)$$

# %% tags=["hide-input"]
from labkit.kernels.gelu import gelu_erf_reference, gelu_tanh_reference

at = np.linspace(-6, 6, 1201)
apart = gelu_tanh_reference(at) - gelu_erf_reference(at)
plots.curves(at, {"apart": apart}, f"The two forms differ by {abs(apart).max():.4f} at most", "x",
             "tanh form minus exact form")

# %% [markdown]
# Half a thousandth is less than the spacing of float16 values near 1. Still, a model was trained with one of the two
# and applies it in every layer, so use the same one. In PyTorch, `gelu` is the exact form unless you pass
# `approximate="tanh"`.
#
# Which form is faster? A tanh and an error function each cost many instructions. The tanh form does not need a tanh:
# with $u$ for its argument, $(1 + \tanh u) / 2 = 1 / (1 + e^{-2u})$, one exponential and one division.

# %%
from labkit.kernels.gelu import gelu_erf, gelu_sigmoid

show_source(gelu_erf)

# %%
show_source(gelu_sigmoid)

# %% [markdown]
# Which form of GELU will make the faster kernel on an H200?

# %%
rows = [row for op in ("gelu", "gelu_erf") for row in measure.recorded_ladder(op, gpu="NVIDIA H200").rows]
table([(row.name, row.gbs, row.fraction) for row in rows], {"": "", "GB/s": ",.0f", "of a copy": ".0%"},
      "With four elements per load, both forms reach the speed of memory", note="NVIDIA H200")

# %% [markdown]
# Neither. GELU reads four bytes per element and writes four, and while these are in flight there is ample time for
# either form. So the kernel cannot be made faster.
#
# ## The cheapest kernel is none
#
# It can be left out, though. The input of GELU comes from a matrix product, which holds every element in a register
# just before it stores it. What a product does to its elements at that point is called its *epilogue*: add the bias,
# apply GELU, store. The kernel and all of its bytes are gone. Here is the epilogue of the course's linear layers. What
# the epilogue does is fixed when the product is compiled: `gelu_of` returns the device function for a form of GELU, and
# without one the value is left `unchanged`.

# %%
from labkit.kernels.linear.fused import epilogue_for

show_source(epilogue_for)

# %%
from labkit.kernels.ops.linear import LINEAR_GELU

LINEAR_GELU

# %% [markdown]
# MiniLM's layer in float16 has 8,192 tokens, 384 inputs and 1,536 outputs. How many microseconds does the epilogue
# save, if a separate GELU runs at {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s?

# %%
moved_mb = 2 * 2 * 8192 * 1536 / 1e6
shape = {"M": 8192, "N": 1536, "K": 384}
layer, tanh, plain = (measure.recorded_ladder(name, shape, gpu="NVIDIA H200")
                      for name in ("linear_gelu", "linear_gelu_tanh", "linear"))
rows = {row.name: row for row in layer.rows}
rows["linear_pipelined, without any GELU (lesson 09)"] = plain.row("linear_pipelined")
rows["linear_wgmma_specialised, without any GELU (lesson 10)"] = plain.row("linear_wgmma_specialised")
rows["linear_gelu_tanh_wgmma, with the tanh form"] = tanh.row("linear_gelu_tanh_wgmma")
table([(name, 1000 * row.graph.p50) for name, row in rows.items()], {"": "", "us": ".1f"},
      f"Predicted: {moved_mb:.0f} MB fewer, {1000 * moved_mb / 4200:.0f} us", note="NVIDIA H200, in graphs")

# %% [markdown]
# Start from `linear_pipelined`, the same product without any GELU, at {{ product_us:.1f }} us. A separate GELU adds
# {{ unfused_us - product_us:.1f }} us to it. In the epilogue GELU still adds {{ fused_us - product_us:.1f }}. The bytes
# are gone, but the arithmetic is not: twelve million error functions, computed while the tensor cores wait. The number
# of registers is not to blame, since both kernels have {{ registers }} of them per thread{{ if same_registers }}.
#
# The rung on `wgmma` is the fastest of the course, and it computes GELU while the copies for its next tile are in
# flight. That hides the copies behind the arithmetic, but not the arithmetic itself: compared with the line without
# GELU, the error functions cost about as much time as their {{ gelu_mb:.0f }} MB would have{{ if erf_as_traffic }}. A
# separate GELU waits for bytes; in an epilogue it waits for arithmetic, and now the form does matter. GPT-2's form, in
# the last line, costs less than half as much{{ if tanh_below_half }}.
#
# PyTorch's first line is a cuBLAS product with the bias in its epilogue, followed by a GELU. Compiling it does not
# help, because the GELU remains a separate kernel. For the tanh form cuBLAS has an epilogue too; with it PyTorch needs
# {{ torch_us:.1f }} us, and our rung {{ layer['tanh']:.1f }}.
#
# ## What it saves a model
#
# The article *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch* takes MiniLM through these same two steps on an
# RTX 3090, in float16, with 64 sentences of 128 tokens. It reports 0.118 ms{{ quoted }} per sentence at first,
# 0.109{{ quoted }} once each LayerNorm has a warp per row, and 0.102{{ quoted }} once GELU is in the epilogue. The
# model has 13 LayerNorms, 384 wide, and 6 GELUs, 1,536 wide. Which of the two steps saves more on an H200, the 13
# LayerNorms or the 6 GELUs?

# %%
norms = measure.recorded_ladder("layernorm", {"R": 8192, "C": 384}, gpu="NVIDIA H200")
tree, warp = (1000 * norms.row(f"layernorm_{name}").graph.p50 for name in ("block_tree", "warp_per_row"))
gelu_alone = 1000 * measure.recorded_ladder("gelu_erf", {"n": 8192 * 1536}, gpu="NVIDIA H200").row(
    "gelu_erf_vectorized").graph.p50
table([("LayerNorm: a warp for each row", 118 - 109, 13 * (tree - warp) / 64),
       ("GELU: no separate kernel", 109 - 102, 6 * gelu_alone / 64)],
      {"": "", "RTX 3090, the article": ".0f", "H200, ours": ".1f"}, "Microseconds saved per sentence")

# %% [markdown]
# The LayerNorms, on both GPUs. The article's figures are differences between two times of a whole model in float16;
# ours are sums of kernels in float32, on a GPU with four and a half times the bandwidth. Only the order can be
# compared: in both, getting rid of barriers saves more than getting rid of bytes.
#
# ## What was implemented
#
# - a residual addition fused into LayerNorm, with or without its sum kept
# - GELU in both forms, as a kernel and in the epilogue of a product
#
# ## What I learned
#
# - When one kernel reads what another has just written, think of fusing them. Count the bytes first: they predict the
#   time.
# - A kernel at the speed of memory can still be removed.
# - In an epilogue an activation no longer waits for memory. Then its arithmetic counts.
#
# ## Resources
#
# - [Hendrycks, Gimpel: Gaussian Error Linear Units (2016)](https://arxiv.org/abs/1606.08415)
# - *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, the article quoted above
# - [NVIDIA CUTLASS: Efficient GEMM in CUDA](https://docs.nvidia.com/cutlass/media/docs/cpp/efficient_gemm.html), on
#   epilogues
#
# ## Try it
#
# - In the cell with the bytes, put a third kernel before the other two: the bias of a linear layer, added to `x`. What
#   does fusing all three save?
# - Where do the two forms of GELU differ most? Read it off the curve, then compute it from `apart`.
#
# Next: **attention**, a softmax between two products, where fusing all three takes a new idea.

# %% [numbers]
# gelu_mb = 2 * 2 * 8192 * 1536 / 1e6
# layer = {'erf': row('linear_gelu', 'linear_gelu_wgmma').graph_us, 'tanh': row('linear_gelu_tanh',
#          'linear_gelu_tanh_wgmma').graph_us, 'none': row('linear', 'linear_wgmma_specialised', M=8192, N=1536,
#          K=384).graph_us}
# product_us = row('linear', 'linear_pipelined', M=8192, N=1536, K=384).graph_us
# unfused_us = row('linear_gelu', 'linear_gelu_unfused').graph_us
# fused_us = row('linear_gelu', 'linear_gelu_fused').graph_us
# registers = row('linear_gelu', 'linear_gelu_fused').registers
# same_registers = registers == row('linear', 'linear_pipelined', M=8192, N=1536, K=384).registers
# shares = [row(op, 'fused').ms / row(op, 'unfused').ms for op in ('add_layernorm', 'residual_layernorm')]
# bytes_predict = abs(shares[0] - 12 / 20) < 0.04 and abs(shares[1] - 16 / 20) < 0.04
# two_calls = row('add_layernorm', 'PyTorch (').ms / row('add_layernorm', 'fused').ms
# compiled_gain = 1 - row('add_layernorm', 'PyTorch, compiled').ms / row('add_layernorm', 'fused').ms
# torch_us = row('linear_gelu_tanh', 'PyTorch (cuBLAS, bias and GELU').graph_us
# erf_as_traffic = 0.8 < (layer['erf'] - layer['none']) / (1000 * gelu_mb / limits.bandwidth_gbs) < 1.2
# tanh_below_half = (layer['tanh'] - layer['none']) / (layer['erf'] - layer['none']) < 0.5
