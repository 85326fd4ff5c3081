# %% [markdown]
# # 19 · The GPT-2 block: exercises
#
# Five exercises: where the weights lie, a GELU that goes into the model, a block put together in the wrong order, a
# prediction about bytes, and from a blank page the first kernel of GPT-2. Two of your kernels take their place in the
# model at once. `hint("block_offsets")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours
from labkit.kernels.linear.fused import fused_tiled
from labkit.kernels.norm.layernorm import layernorm

# %% [markdown]
# ## 1 · Where each parameter begins
#
# A block's twelve parameters lie in one flat buffer, one after the other, in this order:
#
# | parameter | shape |
# |---|---|
# | ln_1.weight, ln_1.bias | (C,) each |
# | attn.c_attn.weight, attn.c_attn.bias | (C, 3C), (3C,) |
# | attn.c_proj.weight, attn.c_proj.bias | (C, C), (C,) |
# | ln_2.weight, ln_2.bias | (C,) each |
# | mlp.c_fc.weight, mlp.c_fc.bias | (C, I), (I,) |
# | mlp.c_proj.weight, mlp.c_proj.bias | (I, C), (C,) |
#
# C is `width`, I is `inner`. Return a list of 13 numbers: where each parameter begins, and last where the buffer ends.
# For GPT-2 small the first are 0, 768, 1,536, and the last is 7,087,872. Do it for any width.


# %%
def block_offsets(width, inner):
    ### BEGIN SOLUTION
    C = width
    sizes = [C, C, C * 3 * C, 3 * C, C * C, C, C, C, C * inner, inner, inner * C, C]
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return offsets
    ### END SOLUTION


# %%
check("block_offsets", block_offsets)

# %% [markdown]
# ## 2 · Bias and GELU, for GPT-2
#
# In lesson 16 you may have written a bias and a GELU in one kernel, in the exact form. GPT-2 was trained with the other
# form. With $v = x_{r,c} + \text{bias}_c$:
#
# $$\text{out}_{r,c} = \frac{v}{2} \left(1 + \tanh\left(\sqrt{2/\pi}\,(v + 0.044715\,v^3)\right)\right)$$
#
# Blocks are 32 × 8, with the grid's x along the columns. `ROOT` and `CUBIC` are there, in float32, and `math.tanh`
# works in a kernel. Mind large numbers, if you write it with exponentials: `exp(90)` is infinite in float32, and
# infinity over infinity is NaN.

# %%
ROOT = float32(math.sqrt(2 / math.pi))
CUBIC = float32(0.044715)


@cuda.jit
def bias_gelu_tanh(x, bias, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < x.shape[0] and col < x.shape[1]:
        v = x[row, col] + bias[col]
        out[row, col] = float32(0.5) * v * (float32(1.0) + math.tanh(ROOT * (v + CUBIC * v * v * v)))
    ### END SOLUTION


# %%
check("bias_gelu_tanh", bias_gelu_tanh)

# %% [markdown]
# This one has a place in the model, between the two layers of the MLP. In the next cell a block runs with your kernel,
# and each step is compared with NumPy in float64. `out may be x` there: the model calls it in place. Is yours right in
# place?

# %%
yours.block_parity(yours.answers(bias_gelu_tanh=bias_gelu_tanh))

# %% [markdown]
# ## 3 · Find the bug: the order of things
#
# The second half of GPT-2's block, as three launches: $\text{out} = x + \text{mlp}(\text{layernorm}(x))$. The launcher
# below gives reasonable numbers. It could even be trained. It is not GPT-2.
#
# This is a function of the host, not a kernel: it allocates what it needs, and calls launchers of the course.
# `fused_tiled(x, weights, bias, out, gelu=True)` is a linear layer with GELU behind it, `residual=r` adds `r` at the
# end.


# %%
def mlp_half(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    tokens, width = x.shape
    hidden = cuda.device_array((tokens, w_fc.shape[1]), np.float32)
    added = cuda.device_array((tokens, width), np.float32)
    fused_tiled(x, w_fc, b_fc, hidden, gelu=True)
    fused_tiled(hidden, w_proj, b_proj, added, residual=x)
    layernorm(added, weight, bias, out)


### BEGIN SOLUTION
def mlp_half(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    tokens, width = x.shape
    normed = cuda.device_array((tokens, width), np.float32)
    hidden = cuda.device_array((tokens, w_fc.shape[1]), np.float32)
    layernorm(x, weight, bias, normed)
    fused_tiled(normed, w_fc, b_fc, hidden, gelu=True)
    fused_tiled(hidden, w_proj, b_proj, out, residual=x)  # x as it came: nothing normalises what runs past


### END SOLUTION

# %%
check("mlp_half", mlp_half)

# %% [markdown]
# ## 4 · Predict: what fusing saves
#
# GPT-2 small in float32: a width of 768, an inner width of 3,072. First ten launches, a kernel for each step. Then GELU
# moves into the epilogue of the product before it, and so do both additions. Work out on paper, for 1,024 tokens:
#
# - `launches`: how many launches fewer is that?
# - `gelu_bytes`: how many bytes does the kernel of its own for GELU move, which is now gone?
# - `residual_bytes`: how many bytes fewer do the two additions move? The kernel of its own reads two matrices and
#   writes one; think which of these the epilogue still has to touch.
# - `buffer_bytes`: the article's code allocates eight arrays in each call: six with 768 columns, one with 2,304, one
#   with 3,072, and a row for each token. How many bytes?
#
# And for a single token, fused:
#
# - `weights_percent`: how many percent of all bytes that the block moves are its weights? Round to a whole number.

# %%
launches = None
gelu_bytes = None
residual_bytes = None
buffer_bytes = None
weights_percent = None
### BEGIN SOLUTION
launches = 10 - 7
gelu_bytes = 2 * 1024 * 3072 * 4  # in and out
residual_bytes = 2 * (2 * 1024 * 768 * 4)  # for each: what is added is neither written nor read again
buffer_bytes = 1024 * (6 * 768 + 2304 + 3072) * 4
weights_percent = 100  # 28,351,488 bytes of weights; the token's rows are some 80 KB beside them
### END SOLUTION

# %%
check("predict_block", launches=launches, gelu_bytes=gelu_bytes, residual_bytes=residual_bytes,
      buffer_bytes=buffer_bytes, weights_percent=weights_percent)

# %% [markdown]
# The last number shows what a GPT-2 mostly does while it writes text one token at a time: it reads its weights. That is
# why the weights of language models are stored in fewer and fewer bits.
#
# ## 5 · From a blank page: tokens become rows
#
# The first kernel of GPT-2. A token is a number, and row `ids[t]` of a table belongs to it. Where it stands in the text
# matters, too, and so the row of its position is added:
#
# $$\text{out}_{t,c} = \text{tokens}_{\text{ids}_t,\,c} + \text{positions}_{s + t,\,c}$$
#
# $s$ is how many tokens came before, in an earlier call. It is in device memory, as `start[0]`, so that a graph can be
# replayed for the next token. `ids` and `start` hold int32, everything else float32.
#
# Write `embed_tokens(ids, tokens, positions, start, out)` from the decorator down. A block of 128 threads for each
# token; a row has any number of columns.

# %%
embed_tokens = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def embed_tokens(ids, tokens, positions, start, out):
    t = cuda.blockIdx.x
    for col in range(cuda.threadIdx.x, out.shape[1], 128):
        out[t, col] = tokens[ids[t], col] + positions[start[0] + t, col]


### END SOLUTION

# %%
check("embed_tokens", embed_tokens)

# %% [markdown]
# And into a model: a small GPT-2 that comes with the course, and that lesson 34 makes write. Both kernels of today,
# each alone and then together, with all activations compared.

# %%
from labkit.models.load import load

tiny = load("tiny")
prompt = tiny.tokenizer.encode("kernel: n.")
yours.one_by_one(yours.answers(bias_gelu_tanh=bias_gelu_tanh, embed_tokens=embed_tokens), tiny.model, prompt)
