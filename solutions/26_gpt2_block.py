# %% [markdown]
# # 26 · The GPT-2 block: exercises
#
# Four exercises: where each parameter begins, a block put together in the wrong order, a prediction about a wider
# block, and from a blank page the first kernel of GPT-2, which goes straight into a model. `hint("block_offsets")` gives
# a hint, and a second call a better one.

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
# One flat buffer holds a block's twelve parameters, one after the other, in this order:
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
# C is `width`, I is `inner`. Return a list of 13 offsets: where each parameter begins, and finally where the buffer ends.
# For GPT-2 small the first are 0, 768 and 1,536, and the last is 7,087,872. Your function should work for any width.


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
# ## 2 · Find the bug: the order of things
#
# The second half of GPT-2's block, as three launches: $\text{out} = x + \text{mlp}(\text{layernorm}(x))$. The launcher
# below computes something plausible that could even be trained. But it is not GPT-2.
#
# This is a host function, not a kernel: it allocates what it needs, and calls launchers of the course.
# `fused_tiled(x, weights, bias, out, gelu=True)` is a linear layer followed by GELU; `residual=r` adds `r` at the end.


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
# ## 3 · Predict: a wider block
#
# GPT-2 medium is 1,024 wide, or 4,096 between the two layers of its MLP. Work out on paper:
#
# - `numbers`: how many elements does the flat buffer of one of its blocks hold?
# - `token_flops`: how many flops do the four linear layers cost for one token? Count a multiplication and an addition per
#   element of the four matrices, and nothing for the biases.
# - `tokens_equal`: a GPU reads 300 GB/s and computes 30 TFLOP/s in float32. At how many tokens do the flops of the four
#   matrices take as long as reading them? Count nothing else.
#
# Now run the block as ten launches, in the order of the lesson. LayerNorm, the product and the addition each have one
# kernel, which is launched wherever it is needed.
#
# - `wrong_steps`: the kernel of the addition is wrong, and all others are right. How many of the ten outputs are wrong?

# %%
numbers = None
token_flops = None
tokens_equal = None
wrong_steps = None
### BEGIN SOLUTION
numbers = 12 * 1024 * 1024 + 13 * 1024  # twelve squares, and thirteen rows: biases and two LayerNorms
token_flops = 2 * 12 * 1024 * 1024
tokens_equal = 200  # 2 S / 30e12 = 4 / 300e9, at any width
wrong_steps = 6  # from the fifth on
### END SOLUTION

# %%
check("predict_wider", numbers=numbers, token_flops=token_flops, tokens_equal=tokens_equal, wrong_steps=wrong_steps)

# %% [markdown]
# The width does not occur in the third answer. That depends only on the GPU, and on the bytes per element.
#
# ## 4 · From a blank page: tokens become rows
#
# This is the first kernel of GPT-2. A token is an index, `ids[t]`, into the rows of a table. Its position in the text
# matters, too, so the row of that position is added:
#
# $$\text{out}_{t,c} = \text{tokens}_{\text{ids}_t,\,c} + \text{positions}_{s + t,\,c}$$
#
# $s$ is the number of tokens that came before, in earlier calls. It is in device memory, as `start[0]`, so that a graph
# can be replayed for the next token. `ids` and `start` hold int32, everything else float32.
#
# Write `embed_tokens(ids, tokens, positions, start, out)` from the decorator down. There is one block of 128 threads per
# token; a row may have any number of columns. For example, with `ids = [7, 3]` and `start = [10]`, row 1 of `out` is row
# 3 of `tokens` plus row 11 of `positions`.

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
# Now put it into a model: a small GPT-2 that comes with the course, and that writes text in lesson 29. Your kernel
# computes its rows, and all activations are compared.

# %%
from labkit.models.load import load

tiny = load("tiny")
prompt = tiny.tokenizer.encode("kernel: n.")
yours.one_by_one(yours.answers(embed_tokens=embed_tokens), tiny.model, prompt)
