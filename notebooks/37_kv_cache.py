# %% [markdown]
# # 37 · The KV cache
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - why reading a prompt and writing an answer are two different kinds of work, and what bounds each
# - what a model has to keep from one token to the next, and what it costs to keep nothing
# - how the other buffers of a step share memory, and how to check such a plan
#
# ## The problem
#
# The model of the last lesson computes one token. An answer has many of them: the model reads the whole prompt in one
# step, computes one token, appends it, computes the next. As in lesson 29, the first part is called *prefill*, the
# second *decode*. Both go through the same layers in the same order, and differ only in their number of rows: one per
# token of the prompt, and then a single one per step.
#
# How much does that matter? Take Llama 3.2 1B in bfloat16, a prompt of 1,024 tokens and an answer of 256. A linear
# layer does two flops per weight and row. Attention pairs each token with every token up to it, and for each pair a
# head of D values does 2 D flops for the score and 2 D more to add the weighted value to its sum.

# %%
import time

import numpy as np

from labkit import agree, device, measure, show_source, table
from labkit.course.drawings import kv_cache as pictures
from labkit.models.configs import LLAMA_3_2_1B as real


def scores_of(rows, before):
    """How many scores a head computes for `rows` new tokens. Each attends to those before it and to itself."""
    return rows * before + rows * (rows + 1) // 2


def flops(config, rows, scores):
    """Of a step for one sequence; the head computes only the last row."""
    weights = sum(np.prod(shape) for shape in config.layer_parameters.values() if len(shape) == 2)
    attention = 4 * config.num_attention_heads * config.head_dim * scores
    head = 2 * config.vocab_size * config.hidden_size
    return config.num_hidden_layers * (2 * rows * weights + attention) + head


def kv_bytes(config, itemsize):
    """Keys and values of one token, in all layers."""
    return 2 * itemsize * config.num_key_value_heads * config.head_dim * config.num_hidden_layers


# %% [markdown]
# A step reads all weights once, however many rows it has, and in decode also the keys and values of all tokens so far.
#
# ## Prediction
#
# Suppose that a step on an H200 takes exactly as long as its flops or its bytes need, whichever is longer. What share
# of the flops belongs to the prompt, and what share of the time?

# %%
limits = measure.recorded(gpu="NVIDIA H200")["limits"]
bandwidth, peak = 1e9 * limits["bandwidth_gbs"], 1e12 * limits["f16_tflops"]  # bfloat16 is as fast as float16

weight_bytes, kv_of_token = 2 * real.parameters, kv_bytes(real, 2)
before = np.arange(1024, 1024 + 255)  # in the cache when a step begins
prompt, answer = flops(real, 1024, scores_of(1024, 0)), flops(real, 1, before + 1).sum()
phases = {"prefill": (prompt, weight_bytes), "decode": (answer, (weight_bytes + before * kv_of_token).sum())}
ms = {name: (1e3 * work / peak, 1e3 * moved / bandwidth) for name, (work, moved) in phases.items()}
total_ms = sum(map(max, ms.values()))
table([(name, *ms[name], work / (prompt + answer), max(ms[name]) / total_ms) for name, (work, _) in phases.items()],
      {"": "", "ms for its flops": ".1f", "ms for its bytes": ".1f", "share of the flops": ".0%",
       "share of the time": ".0%"})

# %% [markdown]
# The prompt is most of the work and almost none of the time; the answer is little work and nearly all of the time.
# Prefill is bound by arithmetic, decode by memory. There are 255 decode steps rather than 256, because the prompt's
# step already computes the first token of the answer.
#
# Is that what a GPU does? Such steps were recorded on an H200, whole and in CUDA graphs: a prompt of 1,024 tokens, and
# a decode step with 1,024 tokens in the cache. How long do you expect the answer's 255 steps to take?

# %%
measured = []
decode, prefill = (measure.recorded_series(name, gpu="NVIDIA H200") for name in ("llama_decode", "llama_prefill"))
if decode and prefill:
    first, step = prefill["rows"][0]["ms"]["p50"], decode["rows"][0]["ms"]["p50"]
    measured = [("prefill", 1, first, first, max(ms["prefill"])), ("decode", 255, step, 255 * step, max(ms["decode"]))]
table(measured, {"": "", "steps": "", "ms per step": ".2f", "ms in all": ".0f", "bound, ms": ".0f"})

# %% [markdown]
# About {{ answer_ms:.0f }} ms, after {{ prompt_ms:.1f }} ms for the prompt. Both are above their bounds, and the
# picture stays the same.
#
# ## A product of T rows
#
# Nearly all flops of a step are in products: T rows of inputs times a matrix of weights. Dividing its flops by its
# bytes gives the *arithmetic intensity* (lesson 06). For T rows, K inputs and N outputs in bfloat16 it is
#
# $$\frac{2\,T K N}{2\,(K N + T K + T N)} \approx T \quad\text{as long as } T \text{ is small compared with } K
# \text{ and } N$$
#
# Each weight is read once and used in T multiply-adds, so the intensity is T. How many rows does it take until the
# flops are the bound, on a GPU that does about two hundred{{ if flops_a_byte_200 }} flops in the time it takes to move
# a byte?

# %%
inputs, outputs = real.hidden_size, 2 * real.intermediate_size  # gate and up, one product
work = {T: (2 * T * inputs * outputs, 2 * (inputs * outputs + T * inputs + T * outputs))
        for T in (1, 8, 64, 256, 1024, 4096)}
pictures.rows_on_roofline(work, bandwidth / 1e9, peak / 1e12, "an H200")

# %% [markdown]
# Just under 256{{ if from_256 }}. A single row gets less than a hundredth{{ if below_hundredth }} of what the tensor
# cores could do, and no kernel can change that, since every weight has to be read. So the two phases need different
# kernels: for many rows one that works in tiles, like those of lesson 08, and for few rows one that streams the weights
# as fast as memory delivers them. The simplest of the latter gives each output to a warp, whose lanes read a row of
# weights side by side:

# %%
from labkit.kernels.linear import streamed

show_source(streamed.make_warp)

# %% [markdown]
# On an H200 the tensor cores do these multiplications, too: with up to eight rows, or 32 in a small layer, the launcher
# picks such a kernel, and with more rows one of two that work in tiles. The result has to be right for any T, no matter
# which kernel computes it:

# %%
from labkit.kernels.ops.linear_bf16 import LM_HEAD

agree(LM_HEAD, ["lm_head_streamed", "lm_head_picked"], sizes=({"M": 1, "N": 70, "K": 264}, {"M": 37, "N": 24, "K": 72}))

# %% [markdown]
# ## With a cache and without one
#
# Why is one row enough in decode? In a causal model the keys and values of a token depend only on the tokens up to it,
# so later tokens never change them. Everything else that is computed for a token, from its query to its logits, is used
# once. So each layer stores keys and values in the KV cache, as in lesson 29, and a step computes them for new tokens
# only.
#
# Here is the course's small model, which the CPU device can run. It computes in float32, so that rounding almost never
# decides between two tokens of nearly the same probability: with a cache and without one, it should write the same
# text. `SingleSequence` runs a model on one text and keeps its cache. Called with new tokens, it returns the logits
# after the last of them; after `reset()` it has forgotten everything.

# %%
from labkit.models.llama import SingleSequence
from labkit.models.load import load

loaded = load("tiny-llama", dtype="float32")
model, tokenizer = loaded.model, loaded.tokenizer
print(loaded.log)
clock = device.pick(gpu=time.perf_counter, cpu=time.process_time)  # CPU time: other programs may be running


def prompt_of(question):
    return tokenizer.encode(f"<|user|>{question}<|end|><|assistant|>")


def next_token(alone, ids):
    return int(alone(ids).copy_to_host()[0].argmax())


def write(prompt, count, cached):
    """(tokens, milliseconds of each). Without a cache every step computes the whole text again."""
    alone, ids, ms = SingleSequence(model, context=len(prompt) + count), list(prompt), []
    for _ in range(count):
        begin = clock()
        if not cached:
            alone.reset()
        ids.append(next_token(alone, ids[alone.length :]))
        ms.append(1e3 * (clock() - begin))
    return ids[len(prompt) :], ms


question = prompt_of("What is a hacker?")
write(question, 2, True), write(question, 2, False)  # compiles the kernels
(with_cache, quick), (without, slow) = (write(question, 32, cached) for cached in (True, False))
print("the same tokens:", with_cache == without)
print(tokenizer.decode(with_cache))

# %% [markdown]
# The texts are the same. How does the work per token depend on the token's position, with a cache and without one?
#
# To compare the two, the next cell describes two steps that end at token 40: one computes only the last row, the other
# all forty. What a sequence contributes to a step is a `Piece`: its new tokens, how many of its tokens the cache
# already holds, and the pages of the cache that it may use (lesson 39). `planned` runs a function without launching
# anything and lists the launches that it would have made. How many more launches does a step of forty rows need than a
# step of one, and how many times the flops?

# %%
from labkit.device.launches import planned
from labkit.models.step import Piece

alone = SingleSequence(model, context=64)
steps = []
for rows in (1, 40):
    step = alone.inputs.step([Piece(range(rows), 40 - rows, alone.pages)])
    launched = planned(lambda step=step: model.forward(step, alone.cache, alone.workspace))
    steps.append((rows, len(launched), flops(model.config, rows, scores_of(rows, 40 - rows)) / 1e6))
table(steps, {"rows": "", "launches": "", "MFLOP": ".1f"})

# %% tags=["hide-input"]
before = np.arange(len(question), len(question) + 31)
mflop, ms = "MFLOP for a token", f"{device.pick(gpu='ms', cpu='ms of CPU time')} for a token, {device.name()}"
pictures.over_positions(
    before, {mflop: flops(model.config, 1, before + 1) / 1e6, ms: quick[1:]},
    {mflop: flops(model.config, before + 1, scores_of(before + 1, 0)) / 1e6, ms: slow[1:]}, f"on {device.name()}")

# %% [markdown]
# On the CPU device, forty rows need one more launch, which gathers the last row for the head, and thirty-two times the
# flops. On a GPU a single row has fewer launches, because its norms are part of the products after them. With a cache
# the work per token barely grows: only attention reads more. Without one it grows with the length of the text, so the
# work for a whole text grows with the square of its length or faster.
#
# The CPU device's times follow the work. A GPU's need not: each step has to read all weights anyway, and by the
# roofline above, forty rows of a large model in bfloat16 take about as long as one. There the cache pays off when a
# text is long, or when many texts are computed together.
#
# ## What has to be kept
#
# If everything but keys and values is used once, an interrupted text can be continued from very little: its keys, its
# values, and the last token, which has not been through the model yet. We stop after ten tokens, write these to a file
# (the whole cache, and how many tokens are in it), and continue with a new cache. Is anything missing?

# %%
import tempfile

alone, ids = SingleSequence(model, context=64), list(question)
for _ in range(10):
    ids.append(next_token(alone, ids[alone.length :]))
with tempfile.TemporaryDirectory() as folder:
    np.savez(f"{folder}/kept.npz", keys_and_values=alone.cache.memory.copy_to_host(), length=alone.length, last=ids[-1])
    with np.load(f"{folder}/kept.npz") as file:
        kept = dict(file)

again, rest = SingleSequence(model, context=64), [int(kept["last"])]
again.cache.memory.copy_to_device(kept["keys_and_values"])
again.length = int(kept["length"])
for _ in range(22):
    rest.append(next_token(again, rest[-1:]))
print("the same tokens after the interruption:", rest[1:] == with_cache[10:])
longest = real.max_position_embeddings
table([("tiny-llama, float32", kv_bytes(model.config, 4), "-", "-"),
       ("Llama 3.2 1B, bfloat16", kv_of_token, f"{weight_bytes / 1e9:.1f}", f"{longest * kv_of_token / 1e9:.1f}")],
      ["model", "bytes kept per token", "weights, GB", f"a text of {longest:,} tokens, GB"])

# %% [markdown]
# Nothing is missing, and the course's tests find the same with a new process. The state of a conversation is its cache
# and its last token. It can be saved, moved to another GPU, or dropped and computed again.
#
# The cache is not small: that of the longest text is larger than the weights. Grouped-query attention helps. With as
# many key heads as query heads, the cache of Llama 3.2 1B would be {{ words(32 / 8) }} times as large.
#
# ## Buffers that are needed for a moment
#
# All other buffers of a step hold their contents for only a few launches, and two that are never needed at the same
# time can share memory. Compilers assign variables to registers by the same rule: a buffer is *live* from the launch
# that writes it to the last one that reads what was written. A single pass through the launches, from the last to the
# first, finds where each buffer is live.

# %%
from labkit.models import buffers
from labkit.models.llama import Workspace

show_source(buffers.liveness)

# %% [markdown]
# The next cell lists the launches of the embedding, one layer and the head, with the buffers that each reads and
# writes. The other layers differ only in their first norm, which also adds `projected` to `x`. How many buffers are
# live in one launch at most?

# %%
launches = buffers.llama_launches(layers=1)
live = buffers.liveness(launches)
table([(launch.name, ", ".join(launch.reads) or "-", ", ".join(launch.writes),
        ", ".join(name for name in buffers.BUFFERS if name in these))
       for launch, these in zip(launches, live, strict=True)], ["launch", "reads", "writes", "live"])

# %% [markdown]
# Three, of the nine buffers that a step has. The head reads `last`, or `normed` itself where every row is the last one
# of its sequence.
#
# ## Where each buffer goes
#
# At which address should each buffer begin? *First fit* goes through the buffers, the largest first, and puts each at
# the lowest address where it overlaps no buffer that is live at the same time. For a step of 2,048 tokens and 64
# sequences in Llama 3.2 1B, does that save a tenth of the memory, a third, or half?

# %%
sizes = buffers.sizes_of(Workspace(real, tokens=2048, sequences=64))
offsets = buffers.first_fit(sizes, live)
print(f"live in one launch: at most {buffers.least(sizes, live) / 1e6:.1f} MB; "
      f"overlaps: {buffers.overlaps(offsets, sizes, live)}")
pictures.buffer_plan([launch.name for launch in launches], offsets, sizes, live,
                     "Sharing memory halves the buffers of a step")

# %% [markdown]
# It saves about half{{ if near(1 - 58720256 / 121176064, 0.5) }}. The plan is still larger than any one launch needs,
# and no plan can avoid that, because a buffer keeps its address for the whole step. Any two of `gated`, `x`, `normed`
# and `projected` are live together in some launch, so each of the four needs its own memory, although no launch needs
# all of them.
#
# ## A plan that is wrong
#
# A wrong plan does not crash. It overwrites values that are still needed, and the output is wrong. So the plan is
# checked for overlaps, and the model has to compute the same bits with it. Below, a second plan puts `gated`, the MLP's
# inner activations, on top of `x`, the residual stream. In which launches do you expect an overlap?

# %%
workspace = Workspace(model.config, tokens=64, sequences=1, dtype="float32")
small = buffers.sizes_of(workspace)
plan = buffers.first_fit(small, live)
alone = SingleSequence(model, context=64)
apart = alone(question).copy_to_host()
plans, wrong = [], plan | {"gated": plan["x"]}
for name, offsets in (("first fit", plan), ("gated on top of x", wrong)):
    alone.reset()
    alone.workspace = buffers.placed(workspace, offsets)
    same = np.array_equal(alone(question).copy_to_host(), apart)
    plans.append((name, buffers.extent(offsets, small), sum(small.values()), "yes" if same else "no"))
table(plans, ["plan", "bytes", "bytes without sharing", "same logits"])

# %%
table([(launches[number].name, one, other) for number, one, other in buffers.overlaps(wrong, small, live)],
      ["launch", "overlaps:", "with:"])

# %% [markdown]
# In the two launches where `gated` is live: the one that writes it and the one that reads it. It is larger than `x`,
# so it also covers the buffers after `x`.
#
# ## What was implemented
#
# - the work of prefill and decode in flops and bytes, and what bounds each on an H200
# - decoding with a cache, without one, and from a file after an interruption: the same tokens
# - liveness of a step's buffers, a plan by first fit, a check for overlaps, and a model that runs in that plan
#
# ## What I learned
#
# - A product's intensity is its row count. While a step waits for its weights, more rows are nearly free.
# - The state of a sequence is its keys, its values and its last token. Everything else may be overwritten.
# - A memory plan should be checked by code that did not make it.
#
# Decoding a single text leaves most of a GPU idle. The next lesson fills it with other users' texts.
#
# ## Resources
#
# - [R. Pope et al.: Efficiently Scaling Transformer Inference (2022)](https://arxiv.org/abs/2211.05102), prefill and
#   decode
# - [Y. Pisarchyk, J. Lee: Efficient Memory Management for Deep Neural Net Inference
#   (2020)](https://arxiv.org/abs/2001.03288)
# - [J. Ainslie et al.: GQA (2023)](https://arxiv.org/abs/2305.13245), fewer heads of keys and values
#
# ## Try it
#
# - Compute the prompt in two steps: `alone = SingleSequence(model, context=64)`, `alone(question[:5])`, then
#   `alone(question[5:])`. Is the first token the same?
# - Overwrite a value of the cache between two steps. After how many tokens does the text change?
# - Set `again.length` to one less before you continue from the file. Which keys are overwritten, and what comes out?
# - Let first fit go through the buffers in another order. How large can the plan become?
#
# In the exercises for this lesson you predict what a cache saves, write the cache's two kernels, one of them from a
# blank page, and plan memory by first fit.

# %% [numbers]
# flops_a_byte_200 = 180 < 1e3 * limits.f16_tflops / limits.bandwidth_gbs < 220
# from_256 = 180 < 1e3 * limits.f16_tflops / limits.bandwidth_gbs < 224
# below_hundredth = limits.bandwidth_gbs / 1e3 / limits.f16_tflops < 0.01
# prompt_ms = series.llama_prefill.rows[0].ms.p50
# answer_ms = 255 * series.llama_decode.rows[0].ms.p50
