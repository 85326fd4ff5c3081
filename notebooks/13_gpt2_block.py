# %% [markdown]
# # 13 · The GPT-2 block
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
# A GPT-2 in CUDA C++ that I studied does this in ten kernels, as an answer to a challenge: `solve(x, output, weights,
# seq_len)`, one flat array of weights, any number of tokens, no libraries. I took the challenge, too, in Python.
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
# For a single token the arithmetic is nothing and the weights are everything. With the H200's limits both take as long
# at some thirty tokens. From there on the time grows with the tokens, and at the end with their square: that is
# attention.
#
# ## One flat buffer
#
# The weights come as a single array. Twelve parameters lie in it, one behind the other, and each begins where the one
# before it ends.

# %%
from labkit._common.tables import PlainTable
from labkit.models.gpt2 import Config

rows = [(name, " x ".join(f"{n:,}" for n in shape), f"{GPT2_SMALL.offsets[name]:,}")
        for name, shape in GPT2_SMALL.parameters.items()]
PlainTable("The buffer of a block", ("parameter", "shape", "begins at"), tuple(rows),
           (f"{GPT2_SMALL.size:,} numbers; twelve blocks have {12 * GPT2_SMALL.size:,}.",
            f"With its tables of tokens and positions, GPT-2 small has {Config().parameters:,}."))

# %% [markdown]
# The names are those of the files in which GPT-2 is published, for lesson 14. `attn.c_attn` holds three linear layers
# side by side, for queries, keys and values, so that one product computes all three.
#
# I like the flat buffer. There is one allocation and one copy, and a parameter is a view: `GPT2_SMALL.split(flat)` cuts
# the array into twelve without copying a number. What it asks for is that nobody gets an offset wrong. That is the
# first exercise.
#
# ## Ten launches
#
# The source's way: a kernel for each step, and an array for what it writes. A step reads what an earlier one wrote, and
# since launches on a stream run in order, nothing else is needed to keep them apart. `Kernels` says which launcher does
# what. A linear layer is taken apart here, into a product, a GELU and an addition. Here is the block, with 16 tokens.

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
# That is the true block of GPT-2 small, with random weights. (A time of the CPU device says that the block can be
# worked with there, and nothing about a GPU.)
#
# What does each launch read and write? It reads its weights once, and a row for each token, and writes a row for each
# token.

# %%
from labkit.measure.plots import gpt2_block as block_pictures

block_pictures.ten_launches(tokens=1024)

# %% [markdown]
# The products carry weights. All other steps only carry the rows of tokens from one array to the next. With 16 tokens
# the picture is another one. Before you run the cell: which bars are left?

# %%
block_pictures.ten_launches(tokens=16)

# %% [markdown]
# ## Is it right?
#
# The usual test of such a block is an output within 0.001 of the truth. I wanted to know more than that: which step
# misses by how much? A block can be watched. After each launch, what it wrote is compared with the same step of a block
# in NumPy and float64.

# %%
from labkit.course import yours

yours.block_parity(each_step, shape=GPT2_SMALL, tokens=16, causal=False).check()

# %% [markdown]
# *Of the allowed* is what counts. A sum of 3,072 products in float32 misses its true value, every step adds its own
# rounding, and roundings that know nothing of each other grow like the square root of their number. The limit in the
# table grows in the same way, so it is tight at the first step and at the last. A fixed 0.001 would let a step pass
# that is wrong in its third digit.
#
# `causal=False`: in the source each token sees all others. GPT-2 itself wants the causal mask, and both work here. And
# any number of tokens, up to 4,096. On a narrow block, 128 wide:

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
# The transformer of 2017 had it *after* each addition, Post-LN. The kernels, the weights and the shapes are the same,
# only the order is another.

# %%
block_pictures.two_orders()

# %% [markdown]
# Look at the thick line. On the left it goes from x to out, and what happens to it are two additions. On the right it
# goes through both LayerNorms. Both orders are implemented, with the same seven launches:

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
# So which order a model was trained with is part of the model. Why did the field move from one to the other? One block
# does not tell. Here are 24 of them in a row, narrow ones with random weights, as at the beginning of a training. How
# much of the first input is still in the sum? If a row is $a \, x_0$ plus things that have nothing to do with $x_0$,
# then $a$ is the row times $x_0$, over $x_0$ times itself. Write down your guess for both orders after 24 blocks.

# %%
shape, rng = block.Shape(width=96, heads=4, inner=384), np.random.default_rng(0)
first = rng.standard_normal((16, 96), np.float32)
layers = [cuda.to_device(shape.random(rng)) for _ in range(24)]
narrow = Workspace(shape, 16)

print("blocks   Pre-LN: a   spread   Post-LN: a   spread")
streams = {False: cuda.to_device(first), True: cuda.to_device(first)}
for number, layer in enumerate(layers, 1):
    told = []
    for post_ln, stream in streams.items():
        solve(stream, stream, layer, 16, shape=shape, workspace=narrow, post_ln=post_ln)
        row = stream.copy_to_host()
        told += [(row * first).sum() / (first * first).sum(), row.std()]
    if number in (1, 4, 12, 24):
        print(f"{number:6} {told[0]:11.2f} {told[1]:8.2f} {told[2]:12.2f} {told[3]:8.2f}")

# %% [markdown]
# With Pre-LN the input arrives at the end as it was. With Post-LN every LayerNorm divides the sum by its spread, the
# old part with the new one, and after 24 blocks little of it is left. What holds for the input on its way forward holds
# for the gradient on its way back: on the left there is a line without any factor in it. Xiong and others (2020) worked
# it out: at the beginning of a training, the gradients of a Post-LN transformer are large near its output, and it needs
# a slow start with small steps. The Pre-LN one needs none. GPT-2 moved the norm, and most models since then have it
# there.
#
# The price is the spread. What runs past is never normalised, and grows. So GPT-2 has one more LayerNorm at its very
# end.
#
# ## Seven launches
#
# Back to the ten. Three of them do nothing but carry: both additions, and GELU. Each reads what the product before it
# has just written. In lesson 11 such a step moved into the *epilogue* of the product, where its input is still in a
# register. Here is that of a linear layer. It is called once for each element, between the last multiplication and the
# store.

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
# With 1,024 tokens a quarter of all bytes is gone. With 16 tokens nearly all bytes are weights, and there is nothing to
# save but three launches. (On a GPU a product of few rows may be split over its K, and its parts are added up in a
# second launch. Then the graph has some more.)
#
# And the seven, at other lengths, as the operation that `labkit bench` measures:

# %%
from labkit.models.gpt2_block_op import GPT2_BLOCK

agree(GPT2_BLOCK, ["block_fused"], sizes=({"S": 1}, {"S": 17}))

# %% [markdown]
# ## Memory that stays
#
# The source allocates eight arrays in each call, and frees them at the end. An allocation on a GPU is a conversation
# with the driver, a freeing waits until the GPU has finished, and neither can be recorded in a graph. A `Workspace` is
# allocated once, for up to so many tokens, and used for every call and every block.

# %%
from labkit.models.gpt2_block import eight_buffers

room, eight = Workspace(GPT2_SMALL, 1024), 4 * 1024 * (6 * 768 + 2304 + 3072)
print(f"the source's eight arrays, 1,024 tokens: {eight / 1e6:.1f} MB, in each call")
print(f"the workspace: {room.nbytes / 1e6:.1f} MB, once")

small = cuda.to_device(first), cuda.device_array((16, 96), np.float32), layers[0]
kept, fresh = {"workspace": narrow}, {"memory": eight_buffers}
for name, options in (("workspace", kept), ("eight arrays a call", fresh)):
    took = measure.time_kernel(lambda options=options: solve(*small, 16, shape=shape, **options),
                               budget_s=0.2)
    print(f"{name:20} {took.p50:6.2f} ms, a narrow block ({measure.where()})")

# %% [markdown]
# The workspace needs fewer arrays, too. LayerNorm writes into the same one both times, because nobody needs the first
# result any more, and what was added to a residual needs no array before it is added. On the CPU device an allocation
# is a call of NumPy, and costs next to nothing: what the two times differ by there is mostly chance. What it costs on
# an H200 comes below.
#
# ## One graph
#
# What is left is the launching. Lesson 06 measured it: on the H200 and its host

# %%
cost = measure.recorded_series("launch_overhead", gpu="NVIDIA H200")
print(f"a launch from Python {cost['launcher_us']:.0f} us, in a graph {cost['graph_us']:.1f} us "
      f"({cost['where']}, {cost['date']})")
print(f"seven: {7 * cost['launcher_us']:.0f} us and {7 * cost['graph_us']:.0f} us")

# %% [markdown]
# That is the least. These launches were of a kernel with three arguments. A launcher of the block also checks its
# arrays and picks a kernel for their shape. Here is a whole call with 16 tokens, by the host's clock:

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
# it or more. And in a graph all of this is gone. A block with 16 tokens has bytes for 7 us. Called from Python, the GPU
# sits idle nearly all the time, however fast its kernels are. Before you look at the next cell, think about what a
# block needs so that it can be recorded: which addresses may change from call to call?

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
# None of them: x, out, the weights and the workspace stay where they are, and only what is in them changes. That is a
# condition on the whole program, and it is the reason why the workspace comes before the graph.
#
# ## When something is wrong
#
# The source has a macro around its allocations. If one fails, `solve` returns. It says nothing, and the caller finds in
# `output` what was there before. The ten launches are not asked at all, and a launch that CUDA refuses does not stop
# the program: the other nine run, on whatever is in memory. I wanted an error that says which argument, and what is
# allowed.

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
# The last one is a bad launch: a block has at most 1,024 threads. All of these come before anything is launched. What
# no launcher can see beforehand, an index gone wild for instance, the CPU device reports with the line. A GPU does
# not, and that was lesson 01.
#
# The other condition of the challenge is: no library. The next cell reads the source of every file of kernels and
# models that is loaded by now, and lists what they import.

# %%
import ast
import sys
from pathlib import Path

imported = set()
for name in [name for name in sys.modules if name.startswith(("labkit.kernels.", "labkit.models."))]:
    for node in ast.walk(ast.parse(Path(sys.modules[name].__file__).read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        imported |= {name.split(".")[0] for name in names}
print(", ".join(sorted(imported - sys.stdlib_module_names)))

# %% [markdown]
# NumPy for the references, Numba for the compiler, and `cuda`, NVIDIA's bindings of the driver, which a launcher asks
# for more shared memory. No cuBLAS, no CuPy, no PyTorch. (A test of the course starts a fresh Python, runs a block, and
# looks that none of them came in by a back door.)
#
# ## Your kernels
#
# A block takes its kernels as arguments. So it can take yours. Several exercises since lesson 01 have a place in it: an
# addition, a row added to every row, a product, a softmax, a LayerNorm. The next cell reads the notebooks in
# `exercises/`, checks what is there, and says who computes what.

# %%
mine = yours.answers()
mine

# %% [markdown]
# An exercise that is not done leaves its place to the course's kernel, and the block runs all the same. Do one, save
# its notebook, and run the cell again. The next one puts each of your kernels into a block alone, then all of them, and
# compares every step with float64. Tokens, logits and the cache have their places outside a block, and wait for lesson
# 14. (If you have no kernel yet, the cell takes three answers of the course, to show how it looks.)

# %%
three = ("saxpy", "add_row", "layernorm_two_sums")
ready = mine if mine.usable else yours.answers(*three, solutions=True)
yours.one_by_one(ready)

# %%
yours.block_parity(ready).check()

# %% [markdown]
# I would not put ten new kernels into a model at once. With one at a time, a step that differs names its kernel. And if
# you do have ten in it, the *first* step that differs is the one to look at: everything after it is computed from it.
#
# Does it notice? GPT-2's GELU has the tanh in it. BERT's has the error function, and lesson 11 found the two half a
# thousandth apart. Here is a block with the other one. Text generated with it would look fine.

# %%
from labkit.kernels.gelu import gelu_erf_vectorized

yours.block_parity(yours.kernels({"gelu": gelu_erf_vectorized}))

# %% [markdown]
# The error at the end is below 0.001, so the usual test would have let it pass. The table does not, and names the step.
# The steps before it agree, the ones after it do not. The same table exists for a whole GPT-2, with seven lines for
# each layer; the next lesson uses it.
#
# ## The clock
#
# Now the times on an H200, each in a graph. PyTorch runs `torch.nn`'s layers with the same weights. In float32 it
# computes its products in float32 as well, without TF32. The CUDA C++ is ten plain kernels of our own, written to the
# design of that article and compiled by nvcc, once with its memory at hand and once with eight allocations a call,
# which no graph can hold.

# %%
times = block_pictures.recorded_times()
rows = [("the article's own code, timed once", "239", "602", "6,899", "68,923")]
for name, microseconds in times.items():
    rows.append((name, *("not measured" if us is None else f"{us:,.1f}" for us in microseconds)))
heads = ("", *(f"{tokens:,} tokens" for tokens in block_pictures.LENGTHS))
PlainTable("One block: microseconds", heads, tuple(rows),
           ("Recorded on an NVIDIA H200. The article states no times: the first row is what we measured with its own "
            "code, once, on an H200 on another day. It is not part of the recording.",))

# %%
from labkit import plots

wanted = ("CUDA C++, ten kernels", "PyTorch, float32", "seven, float32", "PyTorch, float16",
          "seven, float16")
shown = {name: [us or np.nan for us in times[name]] for name in wanted if any(times[name])}
plots.curves(block_pictures.LENGTHS, shown, "One block, over the tokens", "tokens", "microseconds",
             log_x=True, log_y=True, marks=True, place="Recorded on NVIDIA H200") if shown else "Not recorded."

# %% [markdown]
# *Ten kernels* are ours of the same kind as the source's: a tree for each LayerNorm, tiles of 16 × 16, three passes of
# attention. The same ten in CUDA C++ stand beside them, so what lies between those two lines is the language and its
# compiler: a few percent. What lies between them and the seven is everything that this course has been about: patches
# in registers, attention in tiles, splitting a product that is too small for the GPU, and three kernels that are no
# longer there. The source says of itself that it is a skeleton, to be studied before the muscle. It is a good one.
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
# It is not the fastest at any size. With few tokens the launches, the waiting and the weights decide, and a program
# that is written for one model can fuse more of them, and split each product as its shape wants it. With many it is
# the products and attention. No product of ours is ahead of cuBLAS by that much (lesson 05). Attention is by
# something (lesson 12), and the three kernels that are no longer there do the rest, as far as I can see.
#
# ## In halves
#
# The same block with weights and rows in float16, and its sums in float32: the type of the weights picks the kernels.
# The products go to the tensor cores (lesson 05), as does attention (lesson 12), and half as many bytes move. What does
# it cost in digits?

# %%
from labkit import device

if device.on_gpu():
    half, halves = x.astype(np.float16), flat.astype(np.float16)
    got = cuda.device_array(half.shape, np.float16)
    solve(cuda.to_device(half), got, cuda.to_device(halves), 16)
    w = {name: part.astype(np.float64) for name, part in GPT2_SMALL.split(halves).items()}
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
# A float16 near 1 has a step of 0.001, and the sums that run past the block are larger than 1. So an error of a few
# thousandths is what halves have. An output within 0.001 is out of reach. Models are run in halves all the same. What
# counts there is which token is the likeliest, and that seldom hangs on the third digit.
#
# ## What was implemented
#
# - the block of GPT-2 in ten launches and in seven, of any width, for 1 to 4,096 tokens, causal and not, in float32 and
#   float16
# - Pre-LN and Post-LN from the same kernels
# - the flat buffer, a workspace, the source's eight allocations, a graph
# - a place for your kernels, and a table that names the first step that differs
#
# ## What I learned
#
# - With few tokens a block is 28 MB of weights and nothing else. No cleverness with the rows helps there.
# - Three of ten kernels only carried numbers. The cheapest way to make them faster was to have none.
# - Memory first, then the graph: what is allocated in a call cannot be recorded.
# - An output below 0.001 hides a wrong GELU. I compare every step, and let the allowed error know what came before.
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
# - In the first table, which number of tokens makes both times equal if the GPU computes in float16, at 900 TFLOP/s
#   and two bytes a weight?
# - Write a LayerNorm that forgets the bias, and give it to `yours.kernels({"layernorm": mine})`. Which step is named
#   first? With the weights of a model whose biases are zero, would it be?
#
# The exercises for this lesson put two kernels into the model at once: a GELU, and the embedding with which GPT-2
# begins.
#
# Next: **GPT-2 writes**, where twelve of these blocks get words to read.
