# %% [markdown]
# # 19 · The GPT-2 block
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - how ten kernels become a layer of GPT-2, and where its 7,087,872 weights lie
# - what can be saved without making a single kernel faster: launches, bytes, allocations
# - how to put your own kernels into a model, one by one, and find the one that is wrong
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
# challenge in Python.
#
# ## Prediction
#
# Each token is multiplied with every weight once. Before you run the next cell, write down: how many bytes of weights
# does a block read, in float32? How many flops does a token cost? And from how many tokens on does a GPU with 4,200
# GB/s and 65 TFLOP/s spend its time on the arithmetic, and no longer on the weights?

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
# For a single token the time is that of the weights, and arithmetic hardly counts. With the H200's limits both take the
# same time at some thirty tokens. From there on the time grows with the tokens, and in the end with their square,
# because of attention.
#
# ## One flat buffer
#
# The weights come as a single array. It holds twelve parameters, one after another.

# %%
from labkit._common.tables import PlainTable
from labkit.models.gpt2 import Config

rows = [(name, " x ".join(f"{n:,}" for n in shape), f"{GPT2_SMALL.offsets[name]:,}")
        for name, shape in GPT2_SMALL.parameters.items()]
PlainTable("The buffer of a block", ("parameter", "shape", "begins at"), tuple(rows),
           (f"{GPT2_SMALL.size:,} numbers; twelve blocks have {12 * GPT2_SMALL.size:,}.",
            f"With its tables of tokens and positions, GPT-2 small has {Config().parameters:,}."))

# %% [markdown]
# The names are those of the files in which GPT-2 is published, which lesson 20 reads. `attn.c_attn` holds three linear
# layers side by side, for queries, keys and values, so that one product computes all three.
#
# A flat buffer means one allocation and one copy, and a parameter is a view: `GPT2_SMALL.split(flat)` cuts the array
# into twelve without copying a number. All that can go wrong is an offset. That is the first exercise.
#
# ## Ten launches
#
# The article has a kernel for each step, and an array for its output. A step reads what an earlier one wrote, and since
# launches on a stream run in order, nothing else is needed to keep them apart. `Kernels` says which launcher does what.
# Here a linear layer is taken apart, into a product, a GELU and an addition. This is the block, with 16 tokens.

# %%
import numpy as np

from labkit import cuda, measure
from labkit.kernels.gelu import gelu_per_thread
from labkit.kernels.linear.fused import fused_tiled
from labkit.kernels.residual_add import residual_add_per_thread
from labkit.models.gpt2_block import Kernels, Workspace, separately, solve

each_step = Kernels(linear=separately(fused_tiled, gelu_per_thread, residual_add_per_thread))
rng = np.random.default_rng(0)
x, flat = rng.standard_normal((16, 768), np.float32), GPT2_SMALL.random(rng)
d_x, weights, out = cuda.to_device(x), cuda.to_device(flat), cuda.device_array(x.shape, np.float32)
workspace = Workspace(GPT2_SMALL, 16)

timing = measure.time_kernel(lambda: solve(d_x, out, weights, 16, workspace=workspace, kernels=each_step),
                             budget_s=0.3)
print(f"the whole block, 768 wide, 16 tokens: {timing.p50:.1f} ms a call ({measure.where()})")

# %% [markdown]
# That is the real block of GPT-2 small, with random weights.
#
# What does each launch read and write? It reads its weights once and a row for each token, and writes a row for each
# token.

# %%
from labkit.measure.plots import gpt2_block as block_pictures

block_pictures.ten_launches(tokens=1024)

# %% [markdown]
# The products read weights. All other steps only move the rows of tokens from one array to the next. With 16 tokens the
# picture is different. Before you run the cell: which bars are left?

# %%
block_pictures.ten_launches(tokens=16)

# %% [markdown]
# ## Is it right?
#
# The usual test of such a block is an output within 0.001 of the truth. But which step is off, and by how much? So
# compare the output of every launch with the same step of a block in NumPy and float64.

# %%
from labkit.course import yours

yours.block_parity(each_step, shape=GPT2_SMALL, tokens=16, causal=False).check()

# %% [markdown]
# The column to look at is *of the allowed*. A sum of 3,072 products in float32 differs from its true value, every step
# adds its own rounding, and independent roundings grow like the square root of their number. The limit in the table
# grows in the same way, so it is tight at the first step and at the last. A fixed 0.001 would let a step pass that is
# wrong in its third digit.
#
# `causal=False`: in the article each token sees all others. GPT-2 itself needs the causal mask, and both work here, as
# does any number of tokens up to 4,096. On a narrow block, 128 wide:

# %%
for tokens in (1, 33, 100):
    for causal in (False, True):
        steps = yours.block_parity(tokens=tokens, causal=causal).check()
        worst = max(row.error / row.allowed for row in steps.rows)
        print(f"{tokens:4} tokens, causal {causal!s:5}: largest error {worst:.2f} of the allowed")

# %% [markdown]
# ## Before or after
#
# Where does LayerNorm stand? In the block above it comes *before* attention and before the MLP. That is called Pre-LN.
# The transformer of 2017 had it *after* each addition, Post-LN. The kernels, the weights and the shapes are the same;
# only the order differs.

# %%
block_pictures.two_orders()

# %% [markdown]
# Look at the thick line. On the left it goes from x to out through two additions. On the right it also goes through
# both LayerNorms. Both orders are implemented, with the same seven launches:

# %%
from labkit import show_source

show_source(block.forward)

# %%
pre, post = cuda.device_array(x.shape, np.float32), cuda.device_array(x.shape, np.float32)
solve(d_x, pre, weights, 16, workspace=workspace)
solve(d_x, post, weights, 16, workspace=workspace, post_ln=True)
pre, post = pre.copy_to_host(), post.copy_to_host()
print(f"the same weights, and outputs that differ by up to {abs(pre - post).max():.1f}")
print(f"spread: {pre.std(axis=1).mean():.2f} with Pre-LN, {post.std(axis=1).mean():.2f} with Post-LN")

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

print("blocks   Pre-LN: a   spread   Post-LN: a   spread")
streams = {False: cuda.to_device(first), True: cuda.to_device(first)}
for number, layer in enumerate(layers, 1):
    per_order = []
    for post_ln, stream in streams.items():
        solve(stream, stream, layer, 16, shape=shape, workspace=narrow, post_ln=post_ln)
        row = stream.copy_to_host()
        per_order += [(row * first).sum() / (first * first).sum(), row.std()]
    if number in (1, 4, 12, 24):
        print(f"{number:6} {per_order[0]:11.2f} {per_order[1]:8.2f} {per_order[2]:12.2f} {per_order[3]:8.2f}")

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
# ## Seven launches
#
# Back to the ten. Three of them do next to no arithmetic: both additions, and GELU. Each reads what the product before
# it has just written. In lesson 16 such a step moved into the *epilogue* of the product, where its input is still in a
# register. Here is the epilogue of a linear layer. It is called once for each element, between the last multiplication
# and the store.

# %%
from labkit.kernels.linear.fused import FUSED_LINEAR_GELU, make_epilogue

show_source(make_epilogue)

# %%
from labkit import agree

sizes = {"M": 37, "N": 23, "K": 19}, {"M": 1, "N": 40, "K": 200}
agree(FUSED_LINEAR_GELU, FUSED_LINEAR_GELU.rungs[:2], sizes=sizes)

# %% [markdown]
# Write down what it saves, with 16 tokens and with 1,024: launches, and bytes.

# %%
from labkit import graphs
from labkit.models.gpt2_block import FUSED

print("                 MB with 16 tokens   with 1,024")
for kernels, fused in ((each_step, False), (FUSED, True)):
    graph = graphs.capture(lambda stream, kernels=kernels: solve(
        d_x, out, weights, 16, workspace=workspace, kernels=kernels, stream=stream))
    few, many = (sum(block.traffic(GPT2_SMALL, n, fused=fused).values()) for n in (16, 1024))
    print(f"{graph.nodes:3} launches {few / 1e6:20.1f} {many / 1e6:12.1f}")

# %% [markdown]
# With 1,024 tokens a quarter of all bytes is gone. With 16 tokens nearly all bytes are weights, and only three launches
# are saved. (On a GPU a product of few rows may be split over its K, and a second launch adds up the parts. Then the
# graph has some more.)
#
# And the seven, at other lengths, as the operation that `labkit bench` measures:

# %%
from labkit.models.gpt2_block_op import GPT2_BLOCK

agree(GPT2_BLOCK, ["block_fused"], sizes=({"S": 1}, {"S": 17}))

# %% [markdown]
# ## Memory that stays
#
# The article's code allocates eight arrays in each call, and frees them at the end. On a GPU an allocation goes through
# the driver, freeing waits until the GPU has finished, and neither can be recorded in a graph. A `Workspace` is
# allocated once, for up to so many tokens, and used for every call and every block.

# %%
room, eight = Workspace(GPT2_SMALL, 1024), 4 * 1024 * (6 * 768 + 2304 + 3072)
print(f"the article's eight arrays, 1,024 tokens: {eight / 1e6:.1f} MB, in each call")
print(f"the workspace: {room.nbytes / 1e6:.1f} MB, once")

small = cuda.to_device(first), cuda.device_array((16, 96), np.float32), layers[0]

# %% [markdown]
# The workspace also needs fewer arrays. LayerNorm writes into the same one both times, because its first result is no
# longer needed by then, and an addition that is fused needs no array for its input. What eight allocations cost on an
# H200 comes below.
#
# ## One graph
#
# What is left is the cost of launching. Lesson 09 measured it, on the H200 and its host:

# %%
cost = measure.recorded_series("launch_overhead", gpu="NVIDIA H200")
print(f"a launch from Python {cost['launcher_us']:.0f} us, in a graph {cost['graph_us']:.1f} us "
      f"({cost['where']}, {cost['date']})")
print(f"seven: {7 * cost['launcher_us']:.0f} us and {7 * cost['graph_us']:.0f} us")

# %% [markdown]
# That is the least. These launches were of a kernel with three arguments. A launcher of the block also checks its
# arrays and chooses a kernel for their shape. Here is a whole call with 16 tokens, by the host's clock. These times are
# older: they were recorded when every launch still went through Numba's own launcher, which is several times as
# expensive as labkit's (lesson 09).

# %%
calls = measure.recorded_series("block_calls", gpu="NVIDIA H200") or {}
ways = {"ten launches, eight allocations a call": "eight_allocations_us",
        "ten launches": "ten_kernels_us", "seven launches, a workspace a call": "allocating_us",
        "seven launches": "workspace_us", "one graph": "graph_us"}
for way, key in ways.items():
    print(f"{way:40} " + (f"{calls[key]:8,.0f} us" if key in calls else "not measured"))
print(f"recorded on {calls['where']}, {calls['date']}" if calls else "")

# %% [markdown]
# Seven launches cost Python about as much as ten: the seven launchers have more to decide. Allocating adds a third of
# it or more. And in a graph all of this is gone. A block with 16 tokens has bytes for 7 us, so when it was called from
# Python the GPU was idle nearly all the time, however fast its kernels were. What does a block need so that it can be
# recorded? Before you look at the next cell: which addresses may change from call to call?

# %%
def call(stream=0):
    solve(*small, 16, shape=shape, workspace=narrow, stream=stream)


graph = graphs.capture(call)
plain, replayed = (measure.time_kernel(what, budget_s=0.2) for what in (call, graph.launch))
print(f"{graph.nodes} launches, {measure.where()}")
print(f"called {plain.p50:.2f} ms, replayed {replayed.p50:.2f} ms")

other = np.random.default_rng(5).standard_normal((16, 96), np.float32)
small[0].copy_to_device(other)  # the graph reads what is there when it is launched
graph.launch()
truth = block.block_steps(other, shape.split(layers[0].copy_to_host()), shape.heads)["out"]
print(f"another x, the same graph: largest error {abs(small[1].copy_to_host() - truth).max():.1e}")

# %% [markdown]
# None. x, out, the weights and the workspace stay where they are, and only their contents change. That is a condition
# on the whole program, and the reason why the workspace comes before the graph.
#
# ## When something is wrong
#
# The article's code has a macro around its allocations. If one fails, `solve` returns without a message, and `output`
# holds what it held before. The ten launches are not checked at all. If CUDA refuses one, the other nine run on
# whatever is in memory. An error should say which argument is wrong and what is allowed:

# %%
from labkit.kernels.embedding import embedding_whole_row

ids, start = cuda.to_device(np.zeros(1, np.int32)), cuda.to_device(np.zeros(1, np.int32))
wide = cuda.device_array((1, 2048), np.float32)
for attempt in (lambda: solve(d_x, out, weights, 5000),
                lambda: solve(d_x, out, weights, 17),
                lambda: solve(d_x, out, weights[:-1], 16),
                lambda: solve(x, out, weights, 16),
                lambda: embedding_whole_row(ids, wide, wide, start, wide)):  # 2,048 threads
    try:
        attempt()
    except (ValueError, TypeError) as error:
        print(f"{type(error).__name__}: {error}")

# %% [markdown]
# The last one is a bad launch: a block has at most 1,024 threads. All of these errors come before anything is launched.
# An index out of bounds cannot be seen before the launch. The CPU device reports it with its line, and a GPU does not,
# as in lesson 01.
#
# The challenge also rules out libraries. The block uses NumPy for the references, Numba for the compiler, and `cuda`,
# NVIDIA's bindings of the driver, with which a launcher may ask for more shared memory: no cuBLAS, no CuPy, no PyTorch.
# (A test of the course starts a fresh Python, runs a block, and checks that none of them was imported on the way.)
#
# ## Your kernels
#
# A block takes its kernels as arguments, so it can take yours. Several exercises since lesson 01 fit into it: an
# addition, a row added to every row, a product, a softmax, a LayerNorm. Your copies of the exercises are the notebooks
# in `work/exercises/`, where `labkit learn` puts them. The next cell reads them there, checks what you have written,
# and lists what computes each step.

# %%
mine = yours.answers()
mine

# %% [markdown]
# Where an exercise is not done, the course's kernel is used, and the block runs all the same. Do one, save its
# notebook, and run the cell again. The next cell puts each of your kernels into a block alone, then all of them, and
# compares every step with float64. Kernels for tokens, logits and the cache belong outside a block, in lesson 34. (If
# you have no kernel yet, the cell takes three answers of the course, to show what it looks like.)

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
# How sensitive is this test? GPT-2's GELU has the tanh in it. BERT's has the error function, and lesson 16 found the
# two half a thousandth apart. Here is a block with the wrong one. Text generated with it would look fine.

# %%
from labkit.kernels.gelu import gelu_erf_vectorized

yours.block_parity(yours.kernels({"gelu": gelu_erf_vectorized}))

# %% [markdown]
# The error at the end is below 0.001, so the usual test would have let it pass. The table does not, and names the step.
# The steps before it agree, the ones after it do not. The next lesson uses the same table for a whole GPT-2, with seven
# lines for each layer.
#
# ## The clock
#
# Now the times on an H200, each in a graph. PyTorch runs `torch.nn`'s layers with the same weights. In float32 its
# products are computed in float32 as well, without TF32. The CUDA C++ is ten plain kernels written for this course to
# the article's design and compiled by nvcc, once with its memory allocated before and once with eight allocations a
# call, which no graph can hold.

# %%
times = block_pictures.recorded_times()
rows = []
for name, microseconds in times.items():
    rows.append((name, *("not measured" if us is None else f"{us:,.1f}" for us in microseconds)))
heads = ("", *(f"{tokens:,} tokens" for tokens in block_pictures.LENGTHS))
PlainTable("One block: microseconds", heads, tuple(rows),
           ("Recorded on an NVIDIA H200.",))

# %%
from labkit import plots

wanted = ("CUDA C++, ten kernels", "PyTorch, float32", "seven, float32", "PyTorch, float16",
          "seven, float16")
shown = {name: [us or np.nan for us in times[name]] for name in wanted if any(times[name])}
plots.curves(block_pictures.LENGTHS, shown, "One block, over the tokens", "tokens", "microseconds",
             log_x=True, log_y=True, marks=True, place="Recorded on NVIDIA H200") if shown else "Not recorded."

# %% [markdown]
# *Ten kernels* are labkit's own of the same kind as the article's: a tree for each LayerNorm, tiles of 16 × 16, three
# passes of attention. The same ten in CUDA C++ stand beside them, so the difference between those two lines is the
# language and its compiler: a few percent. The difference between them and the seven is everything that this course has
# been about: thread tiles in registers, attention in tiles, splitting a product that is too small for the GPU, and
# three kernels that are no longer there. The article calls its code a skeleton, and as one it is clear and correct but
# for the barrier of lesson 12.
#
# And PyTorch, whose products are those of cuBLAS? One would expect it to lead at least where products decide, with many
# tokens.

# %%
print("PyTorch's time over that of the seven, on the H200:")
for kind in ("float32", "float16"):
    theirs, ours = times[f"PyTorch, {kind}"], times[f"seven, {kind}"]
    for tokens, a, b in zip(block_pictures.LENGTHS, theirs, ours, strict=True):
        print(f"{kind} {tokens:6,} tokens {f'{a / b:.2f}' if a and b else 'not measured'}")

# %% [markdown]
# It is not the fastest at any size. With few tokens the launches, the latencies and the weights decide, and a program
# written for one model can fuse more of them and split each product as its shape requires. With many tokens it is the
# products and attention. No product of ours is ahead of cuBLAS by that much (lesson 07). Attention is ahead by
# something (lesson 18), and the three kernels that are no longer there account for the rest.
#
# ## In float16
#
# The same block with weights and rows in float16 and accumulators in float32: the type of the weights picks the
# kernels. The products go to the tensor cores (lesson 07), as does attention (lesson 18), and half as many bytes move.
# What does it cost in digits?

# %%
from labkit import device

if device.on_gpu():
    half, half_flat = x.astype(np.float16), flat.astype(np.float16)
    got = cuda.device_array(half.shape, np.float16)
    solve(cuda.to_device(half), got, cuda.to_device(half_flat), 16)
    w = {name: part.astype(np.float64) for name, part in GPT2_SMALL.split(half_flat).items()}
    truth = block.block_steps(half, w, 12)["out"]
    print(f"largest error {abs(got.copy_to_host() - truth).max():.1e}, "
          f"allowed {block.allowed_error(GPT2_SMALL, truth, 7, np.float16):.1e}")
else:
    print("On the CPU device a tensor core is played lane by lane, and its kernels take as long to\n"
          "compile as the rest of this page. The cell works there, too: take the `if` away.")
for operation, name in (("gpt2_block", "block_fused"), ("gpt2_block_half", "block_half")):
    for tokens in block_pictures.LENGTHS:
        if found := measure.recorded_ladder(operation, {"S": tokens}, gpu="NVIDIA H200"):
            row = found.row(name)
            print(f"{name:12} {tokens:5} tokens: misses by {row.error:.1e}, {row.error_units:.2f} of the allowed")

# %% [markdown]
# A float16 near 1 has a step of 0.001, and the sums along the block are larger than 1. So an error of a few thousandths
# is what float16 allows. An output within 0.001 is out of reach. Models are run in float16 all the same. What counts is
# which token is the most likely, and that seldom depends on the third digit.
#
# ## What I learned
#
# - With few tokens a block is 28 MB of weights and nothing else. Nothing that is done to the rows helps there.
# - Three of ten kernels only moved numbers. Fusing them into the products made them nearly free.
# - Memory first, then the graph: what is allocated in a call cannot be recorded.
# - An output below 0.001 hides a wrong GELU. I compare every step, and the allowed error takes the steps before it into
#   account.
# - Where the norm stands is one line of code and decides how hard a deep model is to train.
#
# ## Resources
#
# - [A. Radford et al.: Language Models are Unsupervised Multitask Learners
#   (2019)](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
# - [R. Xiong et al.: On Layer Normalization in the Transformer Architecture (2020)](https://arxiv.org/abs/2002.04745)
# - [A. Vaswani et al.: Attention Is All You Need (2017)](https://arxiv.org/abs/1706.03762), with the norm at the end
# - [CUDA C++ Programming Guide: CUDA
#   Graphs](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-graphs)
#
# ## Try it
#
# - In the cell with 24 blocks, multiply the weights of `attn.c_proj` and `mlp.c_proj` by 0.14, one over the root of
#   twice 24, as GPT-2 does before its training. What happens to the spread, and why by this number?
# - In the first table, which number of tokens makes both times equal if the GPU computes in float16, at 900 TFLOP/s and
#   two bytes a weight?
# - Write a LayerNorm that forgets the bias, and give it to `yours.kernels({"layernorm": mine})`. Which step is named
#   first? With the weights of a model whose biases are zero, would it be?
#
# The exercises for this lesson put two kernels into the model at once: a GELU, and the embedding with which GPT-2
# begins.
#
# Next: **from a file to a token**, where such blocks get their weights from a file, and words to read.
