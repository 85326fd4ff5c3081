# %% [markdown]
# # 26 · The GPT-2 block
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how ten kernels become a layer of GPT-2, and where its 7,087,872 weights are in memory
# - how to test a block so that a wrong step is named, and why a small error at the end says little
# - what changes if LayerNorm comes before or after a layer, and how your own kernels get into a model
#
# ## The problem
#
# All the parts are there: LayerNorm, the product, attention, GELU, an addition. GPT-2 is made of *blocks*, and this is
# one of them, for a row $x$ of 768 values per token:
#
# $$y = x + \text{attention}(\text{layernorm}(x)), \qquad \text{out} = y + \text{mlp}(\text{layernorm}(y))$$
#
# The attention has 12 heads of 64 and a linear layer on either side. The MLP, short for *multilayer perceptron*, is a
# linear layer from 768 to 3,072, a GELU, and a linear layer back.
#
# The *letGPU* challenge asks for this block in CUDA C++, as a function `solve(x, output, weights, seq_len)`: one flat
# array of *weights*, the numbers that were learned in training, any number of tokens, no libraries. One published
# answer, described in an article, has ten kernels. This lesson follows its design in Python, with ten kernels just as
# plain. The next lesson makes them fast.
#
# ## Prediction
#
# Each token is multiplied with every weight once. How many bytes of weights does a block read in float32, how many
# flops does a token cost, and from how many tokens on does a GPU with {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s
# and {{ limits.fp32_tflops:.0f }} TFLOP/s wait for arithmetic rather than for the weights?

# %%
from labkit import roofline, table
from labkit.models import gpt2_block as block
from labkit.models.gpt2_block import GPT2_SMALL

limits = roofline.limits()
rows = []
for tokens in (1, 16, 32, 128, 1024, 4096):
    moved = sum(block.traffic(GPT2_SMALL, tokens).values())
    flops = 2 * tokens * sum(outputs * inputs for outputs, inputs in GPT2_SMALL.layers)
    flops += 4 * tokens**2 * GPT2_SMALL.width  # attention
    rows.append((tokens, moved / 1e6, flops / 1e9, moved / limits.bandwidth_gbs / 1e3,
                 flops / limits.fp32_tflops / 1e6))
table(rows, {"tokens": "", "MB": ".1f", "GFLOP": ".2f", "us for the bytes": ".1f", "us for the flops": ",.1f"},
      note=f"limits: {limits.source}")

# %% [markdown]
# A token costs 14 MFLOP, two flops per weight. For a single token, reading the weights takes nearly all the time. With
# the H200's limits, bytes and flops take equally long at about thirty tokens. From there on the time grows with the
# number of tokens, and eventually with its square, because of attention.
#
# ## One flat buffer
#
# The weights come as a single array, which holds twelve parameters one after another.

# %%
from labkit.models.gpt2 import Config

table([(name, " x ".join(f"{n:,}" for n in shape), GPT2_SMALL.offsets[name])
       for name, shape in GPT2_SMALL.parameters.items()], ["parameter", "shape", "begins at"],
      "The buffer of a block", f"{GPT2_SMALL.size:,} elements; twelve blocks have {12 * GPT2_SMALL.size:,}. With its "
      f"tables of tokens and positions, GPT-2 small has {Config().parameters:,}.")

# %% [markdown]
# The names are those of GPT-2's published files, which lesson 28 reads. `Config` describes a whole GPT-2.
# `attn.c_attn` holds three linear layers next to each other, for queries, keys and values, so that one product computes
# all three.
#
# A flat buffer means one allocation and one copy, and a parameter is a view: `GPT2_SMALL.split(flat)` cuts the array
# into twelve without copying an element. All that can go wrong is an offset, which is the first exercise.
#
# ## Ten launches
#
# Each step has its own kernel, and an array for its output. A step reads what an earlier one wrote. Launches on a
# stream run in order, so nothing else is needed to keep them apart.
#
# `Kernels` says which launcher does what. The arguments of its `linear` say what follows the product: `gelu=True`, or
# `residual=x` for an addition. `separately` makes such a launcher from three plain ones. A `Workspace` holds the arrays
# for the outputs of the steps, and `solve` runs the block. Here it runs with 16 tokens, at the real size of GPT-2
# small, with random weights.

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
# A launch reads its weights once, and reads and writes rows for every token. Which of the ten launches moves the most
# bytes with 1,024 tokens?

# %%
from labkit.course.drawings import gpt2_block as pictures

pictures.ten_launches(tokens=1024)

# %% [markdown]
# The two products of the MLP, which have the widest rows, and GELU moves just as many bytes. Only the products read
# many weights. In all other steps the bytes are the rows of the tokens. The hatched ones do next to no arithmetic, and
# the next lesson gets rid of them.
#
# With 16 tokens the picture is different. Which bars will still be long?

# %%
pictures.ten_launches(tokens=16)

# %% [markdown]
# Only those of the four products, and these are their weights. With so few tokens, what is done to the rows makes no
# difference.
#
# ## Is it right?
#
# The usual test of such a block is whether its output is within 0.001{{ example }} of the truth. But which step is off,
# and by how much? So compare the output of every launcher with the same step of a block in NumPy and float64.

# %%
from labkit.course import yours

yours.block_parity(each_step, shape=GPT2_SMALL, tokens=16, causal=False).check()

# %% [markdown]
# The column to look at is *of the allowed*. A sum of 3,072 products in float32 differs from its true value, every step
# adds its own rounding, and the sum of independent errors grows like the square root of their number. The limit in the
# table grows in the same way, so it is tight at the first step and at the last. A fixed 0.001{{ example }} would let a
# step pass that is wrong in its third digit.
#
# `causal=False`: in the challenge each token sees all others. GPT-2 itself needs the causal mask, and both work here,
# as does any number of tokens up to 4,096. On a narrow block, 128 wide:

# %%
rows = []
for tokens in (1, 33, 100):
    for causal in (False, True):
        steps = yours.block_parity(each_step, tokens=tokens, causal=causal).check()
        rows.append((tokens, str(causal), max(row.error / row.allowed for row in steps.rows)))
table(rows, {"tokens": "", "causal": "", "largest error, of the allowed": ".2f"})

# %% [markdown]
# All of them are right. And a wrong block? GPT-2's GELU uses a tanh. BERT's uses the error function, and lesson 23
# found the two half a thousandth apart. The next cell computes a block with the wrong one. Text generated with it would
# look fine. Would the usual test notice the wrong GELU, and which lines of the table will?

# %%
from labkit.kernels.gelu import gelu_erf_vectorized

yours.block_parity(yours.kernels({"gelu": gelu_erf_vectorized}))

# %% [markdown]
# The error at the end is below 0.001{{ example }}, so the usual test would have let it pass. The table does not, and it
# names the step. The steps before it agree, the ones after it do not. Lesson 28 uses the same table for a whole GPT-2,
# with seven lines per layer.
#
# ## Before or after
#
# Where does LayerNorm belong? In the block above it comes *before* attention and before the MLP. That is called Pre-LN.
# The transformer of 2017 had it *after* each addition, Post-LN. The kernels, the weights and the shapes are the same;
# only the order differs. In the picture GELU and the additions share a box with the product before them.

# %%
pictures.two_orders()

# %% [markdown]
# Look at the thick line. On the left it goes from x to out through two additions. On the right it also goes through
# both LayerNorms. The program can do both orders. This is Pre-LN, one call per launch:

# %%
from labkit import show_source

show_source(block.forward)

# %%
results = {}
for name, post_ln in (("Pre-LN", False), ("Post-LN", True)):
    solve(d_x, out, weights, 16, workspace=workspace, kernels=each_step, post_ln=post_ln)
    results[name] = out.copy_to_host()
print(f"the same weights, and outputs that differ by up to {abs(results['Pre-LN'] - results['Post-LN']).max():.1f}")
table([(name, result.std(axis=1).mean()) for name, result in results.items()], {"": "", "spread of a row": ".2f"})

# %% [markdown]
# So the order that a model was trained with is part of the model. Why did the field move from one to the other? One
# block does not show it. Here are 24 of them in a row, narrow ones with random weights, as at the beginning of
# training. How much of the first input is left in the sum? If a row is $a \, x_0$ plus things that have nothing to do
# with $x_0$, then $a$ is the dot product of the row with $x_0$, divided by that of $x_0$ with itself. What will $a$ be
# after 24 blocks, in each of the two orders?

# %%
shape, rng = block.Shape(width=96, heads=4, inner=384), np.random.default_rng(0)
first = rng.standard_normal((16, 96), np.float32)
layers = [cuda.to_device(shape.random(rng)) for _ in range(24)]
narrow = Workspace(shape, 16)

rows = []
streams = {False: cuda.to_device(first), True: cuda.to_device(first)}
for number, layer in enumerate(layers, 1):
    per_order = []
    for post_ln, stream in streams.items():
        solve(stream, stream, layer, 16, shape=shape, workspace=narrow, kernels=each_step, post_ln=post_ln)
        now = stream.copy_to_host()
        per_order += [(now * first).sum() / (first * first).sum(), now.std()]
    if number in (1, 4, 12, 24):
        rows.append((number, *per_order))
table(rows, {"blocks": "", "Pre-LN: a": ".2f", "its spread": ".2f", "Post-LN: a": ".2f", "spread": ".2f"})

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
# A block gets its kernels as arguments, and they can be yours. Several exercises since lesson 01 fit into it: an
# addition, a vector added to every row, a product, a softmax, a LayerNorm. Your copies of the exercises are the
# notebooks in `work/exercises/`, where `labkit learn` puts them. The next cell reads them there, checks what you have
# written, and lists every exercise that has a role in a model of the course, including those of later lessons.

# %%
mine = yours.answers()
mine

# %% [markdown]
# Where an exercise is not done, the course's kernel is used, and the block still runs. Do one, save its notebook, and
# run the cell again. The next cell puts each of your kernels into a block by itself, then all of them, and compares
# every step with float64. Those for tokens, for the model's output and for the cache need a whole model (see lesson
# 29). If you have no kernel yet, the cell uses three of the course's own answers, to show what it looks like.

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
# - With few tokens a block is {{ 4 * 7_087_872 / 1e6:.0f }} MB of weights and nothing else.
# - Four of the ten launches multiply by weights. Both additions and GELU do next to nothing but move rows.
# - An output below 0.001{{ example }} hides a wrong GELU. I compare every step, with an allowed error that grows with
#   the steps before it.
# - Moving the norm takes a few lines, and it decides how hard a deep model is to train.
#
# ## Resources
#
# - the letGPU challenge, and the answer in CUDA C++ whose design this lesson follows
# - [A. Radford et al.: Language Models are Unsupervised Multitask Learners
#   (2019)](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
# - [R. Xiong et al.: On Layer Normalization in the Transformer Architecture (2020)](https://arxiv.org/abs/2002.04745)
# - [A. Vaswani et al.: Attention Is All You Need (2017)](https://arxiv.org/abs/1706.03762), with the norm at the end
#
# ## Try it
#
# - In the cell with 24 blocks, multiply the weights of `attn.c_proj` and `mlp.c_proj` by {{ (2 * 24) ** -0.5:.2f }},
#   one over the root of twice 24, as GPT-2 does before training. What happens to the spread, and why this number?
# - In the first table, which number of tokens makes both times equal if the GPU computes in float16, at
#   {{ round(limits.f16_tflops, -2):.0f }} TFLOP/s and two bytes per weight?
# - Write a LayerNorm that forgets the bias, and give it to `yours.kernels({"layernorm": no_bias})`. Which step is named
#   first? Would it be named if all of the model's biases were zero?
#
# Next: **a faster block**, with seven launches, memory that stays, and one graph.
