# %% [markdown]
# # 23 · Fusion and the transpose
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - what a bank conflict is, and how one unused column removes it
# - what it is worth to make one kernel of two: count the bytes first, then look at the clock
# - when fusing stops helping: bytes against arithmetic in the epilogue of a product

# %% [markdown]
# ## The problem
#
# Between the large products of a model stand small kernels that compute next to nothing: a transpose, an addition, an
# activation. Each reads arrays from memory and writes one back. A transpose can at best be as fast as a copy, and
# getting there takes a closer look at shared memory. For the others there is something better than making them fast:
# not running them at all.

# %% [markdown]
# ## Two kernels made one
#
# Next to a LayerNorm stands an addition. A layer's output is added to its input, the *residual*, and the sum is
# normalised. As two kernels, counted for each element of four bytes:
#
# - the addition reads two and writes one
# - LayerNorm reads one and writes one
#
# The second reads what the first has just written. *Fusion* makes one kernel of both, and the sum stays in registers.
# BERT, and MiniLM, a small model of its kind, need only the normalised row. GPT-2 adds to the sum again in its next
# layer, so there the fused kernel stores both. Before you run the next cell, work out the three counts, and the factors
# between them.

# %%
moved = {"addition, then LayerNorm": (4 * 3, 4 * 2), "fused, sum kept (GPT-2)": (4 * 2, 4 * 2),
         "fused (BERT, MiniLM)": (4 * 2, 4 * 1)}
plots.traffic(moved, "Bytes for each element", "bytes", least=12)

# %%
from labkit.kernels.norm.layernorm import make_residual_layernorm
from labkit.kernels.ops.layernorm import ADD_LAYERNORM

show_source(make_residual_layernorm)

# %% [markdown]
# It is the kernel of lesson 21 with two loads in place of one. `keep` says whether the sum is stored, `warps` whether a
# warp or a block shares the row. Fusing also saves a launch, as a graph shows, which counts its kernels.

# %%
arrays = [cuda.to_device(array) for array in ADD_LAYERNORM.inputs(np.random.default_rng(3), R=8, C=768)]
out = cuda.device_array((8, 768), np.float32)
for launch in ADD_LAYERNORM.rungs:
    graph = graphs.capture(lambda stream, launch=launch: launch(*arrays, out, stream=stream))
    print(f"{launch.__name__:22} {graph.nodes} in the graph")

# %%
plots.ladder(ladder(ADD_LAYERNORM))

# %%
for name, least in (("add_layernorm", 12), ("residual_layernorm", 16)):
    recorded = measure.recorded_ladder(name, gpu="NVIDIA H200")
    two, one = (recorded.row(f"{name}_{kind}").timing.p50 for kind in ("unfused", "fused"))
    print(f"{name:20} predicted {least / 20:.2f}, measured {one / two:.2f} of the time of two kernels")

# %% [markdown]
# The bytes predict it. What remains between the two numbers has two causes: some of the sum is still in the cache when
# the second kernel reads it, and at the beginning and the end of a launch memory is not busy.
#
# Nobody has to write this fusion by hand. PyTorch's two calls take twice{{ if near(two_calls, 2, 0.12) }} as long as
# the fused kernel, in the figure; compiled, they become one kernel, which takes {{ compiled_gain:.0% }} less time than
# mine.

# %% [markdown]
# ## The cheapest kernel is none
#
# The other small kernel of a layer is its activation. *GELU* comes in two forms: BERT's is exact, GPT-2's has a tanh in
# place of the error function.
#
# $$\frac{x}{2}\left(1 + \text{erf}\frac{x}{\sqrt{2}}\right) \qquad
# \frac{x}{2}\left(1 + \tanh\left(\sqrt{2/\pi}\,(x + 0.044715\,x^3)\right)\right)$$

# %%
from labkit.kernels.gelu import gelu_erf_reference, gelu_tanh_reference

at = np.linspace(-6, 6, 1201)
apart = gelu_tanh_reference(at) - gelu_erf_reference(at)
print(f"at most {abs(apart).max():.6f} apart, at x = {abs(at[abs(apart).argmax()]):.2f}")
plots.curves(at, {"apart": apart}, "GELU: the tanh form minus the exact one", "x", "difference")

# %% [markdown]
# That is half a thousandth; a float16 near 1 has a step of one thousandth. But a model was trained with one of the two,
# and it has many layers, so use the form it was trained with. (PyTorch's `gelu` is the exact form unless one asks for
# `approximate="tanh"`.)
#
# Which of them is faster? The tanh and the error function each cost many instructions. The tanh form can be written
# without a tanh: with $u$ for what stands in its brackets, $(1 + \tanh u) / 2 = 1 / (1 + e^{-2u})$.

# %%
gelu, erf = (measure.recorded_ladder(name, gpu="NVIDIA H200") for name in ("gelu", "gelu_erf"))
for recorded in (gelu, erf):
    for row in recorded.rows:
        print(f"{row.name:20} {row.gbs:6,.0f} GB/s  {row.fraction:4.0%}")

# %% [markdown]
# On the H200 it makes no difference: once each thread loads four values at a time, both forms run at the speed of
# memory. A GELU reads four bytes and writes four for each element, and while they are on their way there is time for
# either form. So the kernel itself cannot be made faster. But it need not exist. Before GELU comes a product of
# matrices, which holds each element in a register just before it stores it. GELU can be computed there, in the
# *epilogue* of the product: bias, GELU, store. That saves the whole kernel and all of its bytes.
#
# Take MiniLM's layer in float16: 8,192 tokens, 384 inputs and 1,536 outputs. A GELU of its own would read and write
# {{ gelu_mb / 2:.0f }} MB each. Before you run the cell: how many microseconds is that at
# {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s?

# %%
from labkit.kernels.ops.linear import LINEAR_GELU

LINEAR_GELU

# %%
moved_mb = 2 * 2 * 8192 * 1536 / 1e6
print(f"predicted: {moved_mb:.0f} MB less, {1000 * moved_mb / 4200:.0f} us")
shape = {"M": 8192, "N": 1536, "K": 384}
layer, tanh, plain = (measure.recorded_ladder(name, shape, gpu="NVIDIA H200")
                      for name in ("linear_gelu", "linear_gelu_tanh", "linear"))
rows = {row.name: row for row in layer.rows}
rows["the layer on wgmma without any GELU, from lesson 08"] = plain.row("linear_wgmma_specialised")
rows["the layer on wgmma with the tanh form"] = tanh.row("linear_gelu_tanh_wgmma")
for name, row in rows.items():
    print(f"{name:52} {1000 * row.graph.p50:5.1f} us in a graph")

# %% [markdown]
# The names say what is fused and what is not. PyTorch's first line is a product by cuBLAS, with the bias in its
# epilogue, and a GELU after it. Compiling gains nothing here, because the GELU stays a kernel of its own; nor does
# tuning the product. An epilogue is not free: the product's accumulators fill most of the registers, and the error
# function needs some, too. The first version of `fused` was slower than the two kernels that it replaced.
#
# The rung on wgmma is the fastest. It computes GELU while its next tile is being copied. That hides the copy and not
# the arithmetic, as the line without GELU shows: twelve million error functions cost about what the {{ gelu_mb:.0f }}
# MB would have cost{{ if erf_as_traffic }}. As a kernel of its own, GELU waits for bytes. In the epilogue it waits for
# arithmetic, and there the form counts after all: the last line has GPT-2's, without a tanh, and costs less than half
# as much{{ if tanh_below_half }}. (cuBLAS has an epilogue for this form, too. With it PyTorch takes {{ torch_us:.1f }}
# us, and ours {{ layer['tanh']:.1f }}.)

# %% [markdown]
# ## Beside an article
#
# An article, *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, reports these two steps for MiniLM on an RTX
# 3090, in float16, at 64 sentences of 128 tokens. A sentence took 0.118 ms{{ quoted }} before them, 0.109{{ quoted }}
# after a warp took each LayerNorm, and 0.102{{ quoted }} after GELU moved into the product. The model has 13
# LayerNorms, 384 wide, and 6 GELUs, 1,536 wide. The H200's times for such pieces, in float32, can be added up:

# %%
layer = measure.recorded_ladder("layernorm", {"R": 8192, "C": 384}, gpu="NVIDIA H200")
tree, warp = (1000 * layer.row(f"layernorm_{name}").graph.p50 for name in ("block_tree", "warp_per_row"))
gelu_alone = 1000 * measure.recorded_ladder("gelu_erf", {"n": 8192 * 1536}, gpu="NVIDIA H200").row(
    "gelu_erf_vectorized").graph.p50

print("saved, us for a sentence          RTX 3090, article    H200, ours")
print(f"LayerNorm: a warp for each row    {118 - 109:10}           {13 * (tree - warp) / 64:10.1f}")
print(f"GELU: no kernel of its own        {109 - 102:10}           {6 * gelu_alone / 64:10.1f}")

# %% [markdown]
# The article's are differences of two times of a whole model, ours are sums of kernels in a graph, on a GPU with four
# and a half times the bandwidth. Only the order can be compared, and it is the same in both: more is gained where a
# norm no longer waits at barriers than where an activation no longer moves bytes.

# %% [markdown]
# ## What was implemented
#
# - a transpose in five rungs: naive, a tile, a padded tile, a swizzled tile, 128 bits at a time
# - a residual addition folded into LayerNorm, with its sum kept or not
# - GELU in both forms, as a kernel and in the epilogue of a product

# %% [markdown]
# ## What I learned
#
# - A column of a tile lies in one bank if a row is as long as there are banks. One unused element in each row moves it
#   through all of them.
# - If one kernel reads what another has just written, consider fusing them. Bytes predict what it is worth.
# - Fused into a product, an activation no longer waits for memory. Then its arithmetic counts.

# %% [markdown]
# ## Resources
#
# - [M. Harris: An Efficient Matrix Transpose in CUDA
#   C/C++](https://developer.nvidia.com/blog/efficient-matrix-transpose-cuda-cc/)
# - [Hendrycks, Gimpel: Gaussian Error Linear Units (2016)](https://arxiv.org/abs/1606.08415)

# %% [markdown]
# ## Try it
#
# - In the cell with the banks, try `lambda row, col: 10 * row + col`. How many steps, and why not one?
# - In the cell with the bytes, add a third kernel before the other two: the bias of a linear layer, added to `x`. What
#   does fusing all three save?
#
# Next: **attention**, where a softmax stands between two products, and fusing all three takes a new idea.

# %% [numbers]
# gelu_mb = 2 * 2 * 8192 * 1536 / 1e6
# layer = {'erf': row('linear_gelu', 'linear_gelu_wgmma').graph_us, 'tanh': row('linear_gelu_tanh',
#          'linear_gelu_tanh_wgmma').graph_us, 'none': row('linear', 'linear_wgmma_specialised', M=8192, N=1536,
#          K=384).graph_us}
# pitch_gain = row('transpose', 'tiled').ms / row('transpose', 'padded').ms
# of_copy = row('transpose', 'vectorized').fraction
# compiled_as_fast = abs(row('transpose', 'PyTorch, compiled').ms / row('transpose', 'vectorized').ms - 1) < 0.03
# two_calls = row('add_layernorm', 'PyTorch (').ms / row('add_layernorm', 'fused').ms
# compiled_gain = 1 - row('add_layernorm', 'PyTorch, compiled').ms / row('add_layernorm', 'fused').ms
# torch_us = row('linear_gelu_tanh', 'PyTorch (cuBLAS, bias and GELU').graph_us
# erf_as_traffic = 0.8 < (layer['erf'] - layer['none']) / (1000 * gelu_mb / limits.bandwidth_gbs) < 1.2
# tanh_below_half = (layer['tanh'] - layer['none']) / (layer['erf'] - layer['none']) < 0.5
