# %% [markdown]
# # 26 · The GPT-2 block
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how ten kernels become a layer of GPT-2, and where its 7,087,872 weights lie
# - how to test a block so that a wrong step is named, and why a small error at the end says little
# - what changes if LayerNorm stands before or after a layer, and how your own kernels get into a model
#
# ## The problem
#
# All the parts are there: LayerNorm, the product, attention, GELU, an addition. GPT-2 is made of *blocks*, and this is
# one of them, for a row $x$ of 768 numbers for each token:
#
# $$y = x + \text{attention}(\text{layernorm}(x)), \qquad \text{out} = y + \text{mlp}(\text{layernorm}(y))$$
#
# The attention has 12 heads of 64 and a linear layer on either side. The MLP, short for *multilayer perceptron*, is a
# linear layer from 768 to 3,072, a GELU, and a linear layer back.
#
# An article on the web writes this block in CUDA C++, with ten kernels, as an answer to a challenge: `solve(x, output,
# weights, seq_len)`, one flat array of weights, any number of tokens, no libraries. This lesson takes the same
# challenge in Python, with ten kernels as plain as the article's. The next lesson makes them fast.
#
# ## Prediction
#
# Each token is multiplied with every weight once. Before you run the next cell, write down: how many bytes of weights
# does a block read, in float32? How many flops does a token cost? And from how many tokens on does a GPU with
# {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s and {{ limits.fp32_tflops:.0f }} TFLOP/s spend its time on the
# arithmetic, and no longer on the weights?

# %%
from labkit import roofline
from labkit.models import gpt2_block as block
from labkit.models.gpt2_block import GPT2_SMALL

limits = roofline.limits()
print("tokens     MB   GFLOP   us for the bytes   us for the flops")
for tokens in (1, 16, 32, 128, 1024, 4096):
    moved = sum(block.traffic(GPT2_SMALL, tokens).values())
    flops = 2 * tokens * sum(rows * cols for rows, cols in GPT2_SMALL.layers)
    flops += 4 * tokens**2 * GPT2_SMALL.width  # attention
    print(f"{tokens:6} {moved / 1e6:6.1f} {flops / 1e9:7.2f} "
          f"{moved / limits.bandwidth_gbs / 1e3:18.1f} {flops / limits.fp32_tflops / 1e6:18.1f}")
print(f"limits: {limits.source}")

# %% [markdown]
# A token costs 14 MFLOP, two flops for each weight. For a single token the time is that of the weights, and arithmetic
# hardly counts. With the H200's limits both take the same time at some thirty tokens. From there on the time grows with
# the tokens, and in the end with their square, because of attention.
#
# ## One flat buffer
#
# The *weights*, the numbers that a model has learned, come as a single array. It holds twelve parameters, one after
# another. A `Config` has the sizes of a whole GPT-2.

# %%
from labkit import table
from labkit.models.gpt2 import Config

table([(name, " x ".join(f"{n:,}" for n in shape), GPT2_SMALL.offsets[name])
       for name, shape in GPT2_SMALL.parameters.items()],
      {"parameter": "", "shape": "", "begins at": ",d"}, "The buffer of a block",
      note=f"{GPT2_SMALL.size:,} numbers; twelve blocks have {12 * GPT2_SMALL.size:,}. With its tables of tokens and "
           f"positions, GPT-2 small has {Config().parameters:,}.")

# %% [markdown]
# The names are those of the files in which GPT-2 is published, which lesson 28 reads. `attn.c_attn` holds three linear
# layers side by side, for queries, keys and values, so that one product computes all three.
#
# A flat buffer means one allocation and one copy, and a parameter is a view: `GPT2_SMALL.split(flat)` cuts the array
# into twelve without copying a number. All that can go wrong is an offset. That is the first exercise.
#
# ## Ten launches
#
# The article has a kernel for each step, and an array for its output. A step reads what an earlier one wrote. Launches
# on a stream run in order, so nothing else is needed to keep them apart.
#
# `Kernels` says which launcher does what. Its `linear` is called with all that follows a product: `gelu=True`, or
# `residual=x` for an addition. `separately` makes such a launcher out of three plain ones. A `Workspace` holds the
# arrays for the steps' outputs. Here is the block with 16 tokens: the real size of GPT-2 small, with random weights.

# %%
import numpy as np

from labkit import cuda, measure
from labkit.kernels.attention.three_pass import attention_three_pass
from labkit.kernels.gelu import gelu_per_thread
from labkit.kernels.linear.fused import fused_tiled
from labkit.kernels.norm.layernorm import layernorm_block_tree
from labkit.kernels.residual_add import residual_add_per_thread
from labkit.models.gpt2_block import Kernels, Workspace, separately, solve

each_step = Kernels(layernorm_block_tree, separately(fused_tiled, gelu_per_thread, residual_add_per_thread),
                    attention_three_pass)
rng = np.random.default_rng(0)
x, flat = rng.standard_normal((16, 768), np.float32), GPT2_SMALL.random(rng)
d_x, weights, out = cuda.to_device(x), cuda.to_device(flat), cuda.device_array(x.shape, np.float32)
workspace = Workspace(GPT2_SMALL, 16)  # the arrays for the steps' outputs

timing = measure.time_kernel(lambda: solve(d_x, out, weights, 16, workspace=workspace, kernels=each_step),
                             budget_s=0.3)
print(f"the whole block, 768 wide, 16 tokens: {timing.p50:.1f} ms a call ({measure.where()})")

# %% [markdown]
# What does each launch read and write? It reads its weights once and a row for each token, and writes a row for each
# token.

# %%
from labkit.course.drawings import gpt2_block as pictures

pictures.ten_launches(tokens=1024)

# %% [markdown]
# The products read weights. All other steps only move the rows of tokens from one array to the next. The hatched ones
# do next to no arithmetic, and the next lesson gets rid of them.
#
# With 16 tokens the picture is different. Before you run the cell: which bars are left?

# %%
pictures.ten_launches(tokens=16)

# %% [markdown]
# ## Is it right?
#
# The usual test of such a block is an output within 0.001{{ example }} of the truth. But which step is off, and by how
# much? So compare the output of every launcher with the same step of a block in NumPy and float64.

# %%
from labkit.course import yours

yours.block_parity(each_step, shape=GPT2_SMALL, tokens=16, causal=False).check()

# %% [markdown]
# The column to look at is *of the allowed*. A sum of 3,072 products in float32 differs from its true value, every step
# adds its own rounding, and independent roundings grow like the square root of their number. The limit in the table
# grows in the same way, so it is tight at the first step and at the last. A fixed 0.001{{ example }} would let a step
# pass that is wrong in its third digit.
#
# `causal=False`: in the article each token sees all others. GPT-2 itself needs the causal mask, and both work here, as
# does any number of tokens up to 4,096. On a narrow block, 128 wide:

# %%
for tokens in (1, 33, 100):
    for causal in (False, True):
        steps = yours.block_parity(each_step, tokens=tokens, causal=causal).check()
        worst = max(row.error / row.allowed for row in steps.rows)
        print(f"{tokens:4} tokens, causal {causal!s:5}: largest error {worst:.2f} of the allowed")

# %% [markdown]
# And a wrong block? GPT-2's GELU has the tanh in it. BERT's has the error function, and lesson 23 found the two half a
# thousandth apart. The next cell computes a block with the wrong one. Text generated with it would look fine. Before
# you run it: would the usual test notice? Which lines of the table will?

# %%
from labkit.kernels.gelu import gelu_erf_vectorized

yours.block_parity(yours.kernels({"gelu": gelu_erf_vectorized}))

# %% [markdown]
# The error at the end is below 0.001{{ example }}, so the usual test would have let it pass. The table does not, and
# names the step. The steps before it agree, the ones after it do not. Lesson 28 uses the same table for a whole GPT-2,
# with seven lines for each layer.
#
# ## Before or after
#
# Where does LayerNorm stand? In the block above it comes *before* attention and before the MLP. That is called Pre-LN.
# The transformer of 2017 had it *after* each addition, Post-LN. The kernels, the weights and the shapes are the same;
# only the order differs. (In the picture GELU and the additions share a box with the product before them.)

# %%
pictures.two_orders()

# %% [markdown]
# Look at the thick line. On the left it goes from x to out through two additions. On the right it also goes through
# both LayerNorms. Both orders are implemented. This is Pre-LN:

# %%
from labkit import show_source

show_source(block.forward)

# %%
results = {}
for name, post_ln in (("Pre-LN", False), ("Post-LN", True)):
    solve(d_x, out, weights, 16, workspace=workspace, kernels=each_step, post_ln=post_ln)
    results[name] = out.copy_to_host()
    print(f"{name:7} spread {results[name].std(axis=1).mean():.2f}")
print(f"the same weights, and outputs that differ by up to {abs(results['Pre-LN'] - results['Post-LN']).max():.1f}")

# %% [markdown]
# So the order that a model was trained with is part of the model. Why did the field move from one to the other? One
# block does not show it. Here are 24 of them in a row, narrow ones with random weights, as at the beginning of
# training. How much of the first input is left in the sum? If a row is $a \, x_0$ plus things that have nothing to do
# with $x_0$, then $a$ is the row times $x_0$, over $x_0$ times itself. Write down your guess for both orders after 24
# blocks.

# %%
shape, rng = block.Shape(width=96, heads=4, inner=384), np.random.default_rng(0)
first = rng.standard_normal((16, 96), np.float32)
layers = [cuda.to_device(shape.random(rng)) for _ in range(24)]
narrow = Workspace(shape, 16)

lines = ["blocks   Pre-LN: a   spread   Post-LN: a   spread"]
streams = {False: cuda.to_device(first), True: cuda.to_device(first)}
for number, layer in enumerate(layers, 1):
    per_order = []
    for post_ln, stream in streams.items():
        solve(stream, stream, layer, 16, shape=shape, workspace=narrow, kernels=each_step, post_ln=post_ln)
        row = stream.copy_to_host()
        per_order += [(row * first).sum() / (first * first).sum(), row.std()]
    if number in (1, 4, 12, 24):
        lines.append(f"{number:6} {per_order[0]:11.2f} {per_order[1]:8.2f} {per_order[2]:12.2f} {per_order[3]:8.2f}")
print("\n".join(lines))

# %% [markdown]
# With Pre-LN all of the input is still in the sum at the end. With Post-LN every LayerNorm divides the sum by its
# spread, the old part together with the new one, and after 24 blocks little of it is left. The same holds for the
# gradient on its way back: on the left there is a path without any factor. Xiong and others (2020) worked out what
# follows: at the beginning of training, the gradients of a Post-LN transformer are large near its output, and it needs
# a slow start with small steps. A Pre-LN transformer needs none. GPT-2 moved the norm, and most models since then have
# kept it there.
#
# The price is the spread. The sum along the path is never normalised, and grows. So GPT-2 has one more LayerNorm at its
# very end, after the last block.
#
# ## Your kernels
#
# A block takes its kernels as arguments, so it can take yours. Several exercises since lesson 01 fit into it: an
# addition, a row added to every row, a product, a softmax, a LayerNorm. Your copies of the exercises are the notebooks
# in `work/exercises/`, where `labkit learn` puts them. The next cell reads them there, checks what you have written,
# and lists every exercise with a place in a model of the course, those of later lessons among them.

# %%
mine = yours.answers()
mine

# %% [markdown]
# Where an exercise is not done, the course's kernel is used, and the block runs all the same. Do one, save its
# notebook, and run the cell again. The next cell puts each of your kernels into a block alone, then all of them, and
# compares every step with float64. Those for tokens, for the model's output and for the cache need a whole model, as in
# lesson 29. (If you have no kernel yet, the cell takes three answers of the course, to show what it looks like.)

# %%
three = ("saxpy", "add_row", "layernorm_two_sums")
ready = mine if mine.usable else yours.answers(*three, solutions=True)
yours.one_by_one(ready)

# %%
yours.block_parity(ready).check()

# %% [markdown]
# Never put ten new kernels into a model at once. With one at a time, a step that differs names its kernel. And if you
# do have ten in it, look at the *first* step that differs: everything after it is computed from it.
#
# ## What I learned
#
# - With few tokens a block is {{ 4 * 7_087_872 / 1e6:.0f }} MB of weights and nothing else. Nothing that is done to the
#   rows helps there.
# - Four of the ten launches multiply by weights. Both additions and GELU do next to nothing but move rows.
# - An output below 0.001{{ example }} hides a wrong GELU. I compare every step, and the allowed error takes the steps
#   before it into account.
# - Where the norm stands is a matter of a few lines and decides how hard a deep model is to train.
#
# ## Resources
#
# - [A. Radford et al.: Language Models are Unsupervised Multitask Learners
#   (2019)](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
# - [R. Xiong et al.: On Layer Normalization in the Transformer Architecture (2020)](https://arxiv.org/abs/2002.04745)
# - [A. Vaswani et al.: Attention Is All You Need (2017)](https://arxiv.org/abs/1706.03762), with the norm at the end
#
# ## Try it
#
# - In the cell with 24 blocks, multiply the weights of `attn.c_proj` and `mlp.c_proj` by {{ (2 * 24) ** -0.5:.2f }},
#   one over the root of twice 24, as GPT-2 does before its training. What happens to the spread, and why by this
#   number?
# - In the first table, which number of tokens makes both times equal if the GPU computes in float16, at
#   {{ round(limits.f16_tflops, -2):.0f }} TFLOP/s and two bytes a weight?
# - Write a LayerNorm that forgets the bias, and give it to `yours.kernels({"layernorm": no_bias})`. Which step is named
#   first? With the weights of a model whose biases are zero, would it be?
#
# The exercises for this lesson end with the first kernel of GPT-2, the *embedding*, which looks up a row of numbers for
# each token and takes its place in a model that comes with the course.
#
# Next: **a faster block**, with seven launches, memory that stays, and one graph.
