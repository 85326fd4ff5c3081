# %% [markdown]
# # 22 · The transpose
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how a tile in shared memory turns strided stores into coalesced ones, without bank conflicts

# %% [markdown]
# ## The problem
#
# To be written.

# %%
import numpy as np

from labkit import agree, ladder, observe, plots, show_source

plots.banks({"rows of 8": lambda row, col: 8 * row + col, "rows of 9": lambda row, col: 9 * row + col,
             "col ^ row": lambda row, col: 8 * row + (col ^ row)})

# %% [markdown]
# ## The transpose
#
# $$\text{out}_{c,r} = a_{r,c}$$
#
# No arithmetic. But however the threads are arranged, either the loads or the stores of a warp run down a column of the
# matrix, so that each lane needs a sector of its own (lesson 04). The way out is an exercise of lesson 06: a block
# loads a tile along the rows of `a`, waits, and stores it along the rows of `out`. The transposition happens in shared
# memory, and it is not free there either.
#
# Shared memory has 32 *banks* (lesson 07), each four bytes wide. Element i of a float32 array is in bank i % 32. In one
# step every bank delivers one element. If the lanes of a warp need elements of 32 different banks, that takes one step.
# If all need different elements of the same bank, it takes 32 steps: a *bank conflict*.

# %%

from labkit import plots

plots.banks({"rows of 8": lambda row, col: 8 * row + col, "rows of 9": lambda row, col: 9 * row + col,
             "col ^ row": lambda row, col: 8 * row + (col ^ row)})

# %% [markdown]
# The picture has 8 banks. On the left a column lies in a single bank, because a row is as long as there are banks. In
# the middle each row has one more element, which is never used. Now each row begins one bank further, and a column goes
# through all of them. On the right nothing is wasted: row r stores its element c in column c ^ r, exclusive or, and
# finds it there again. That is a *swizzle*.

# %%
from labkit.kernels.ops.transpose import TRANSPOSE
from labkit.kernels.transpose import (
    make_transpose_tiled,
    transpose_padded_kernel,
    transpose_swizzled_kernel,
    transpose_tiled_kernel,
)

show_source(make_transpose_tiled)

# %% [markdown]
# The tile is 32 × 32, and the *pitch*, the length of its rows in memory, is 32 or 33. To read the columns of a tile
# takes 32 requests, one for each column, by one warp each. Before you run the cell: how many steps beyond one for each
# request does the pitch of 32 cost, for one tile?

# %%
square = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
for kernel, name in ((transpose_tiled_kernel, "pitch 32"), (transpose_padded_kernel, "pitch 33"),
                     (transpose_swizzled_kernel, "col ^ row")):
    counts = observe(kernel[1, (32, 8)], square, np.zeros_like(square)).counts
    print(f"{name:10} {counts['bank_conflicts']:4} steps too many")

# %% [markdown]
# With the pitch of 32, step by step: the stores of a warp into the tile go to 32 banks, and its loads all to one. Find
# the step in which that happens.

# %%
observe(transpose_tiled_kernel[1, (32, 8)], square, np.zeros_like(square)).play()

# %%
agree(TRANSPOSE)

# %% [markdown]
# What will the unused column be worth on a GPU? And which of the kernels will come close to a copy?

# %%
plots.ladder(ladder(TRANSPOSE))

# %% [markdown]
# On the H200 the naive kernel writes a sector of 32 bytes for every four that it needs. The tile avoids that, the pitch
# of 33 doubles the speed{{ if near(pitch_gain, 2) }} once more, and loads and stores of 128 bits bring it to nine
# tenths{{ if near(of_copy, 0.9) }} of a copy. PyTorch's is slower. It uses its general copy, which works for any
# strides. `torch.compile` writes a kernel with tiles for it, which is as fast as the last
# rung{{ if compiled_as_fast }}.
#
# The exclusive or has no conflicts either, and yet it is slower than the padding. One difference is in the addresses:
# with the padding the four places of a thread lie a fixed distance apart; with the exclusive or each has to be computed
# separately.

# %% [markdown]
# ## What was implemented
#
# - a transpose in five rungs: naive, a tile, a padded tile, a swizzled tile, 128 bits at a time

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
