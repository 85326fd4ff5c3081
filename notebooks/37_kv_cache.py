# %% [markdown]
# # 37 · The KV cache
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - why reading a prompt and writing an answer are two different kinds of work, and what bounds each
# - what a model has to keep from one token to the next, and what it costs to keep nothing
# - how the other buffers of a step share memory, and how to check such a plan
#
# ## The problem
#
# The model of the last lesson computes one token. An answer takes many of them: the model reads the whole prompt at
# once, computes one token, appends it, computes the next. As in lesson 29, the first part is called *prefill*, the
# second *decode*. Both go through the same layers in the same order and differ only in the number of rows: as many as
# the prompt has tokens, and then one at a time.
#
# How much does that matter? Take the shape of Llama 3.2 1B in bfloat16, a prompt of 1,024 tokens, and an answer of 256.
# A linear layer does two flops for each weight and row. Attention pairs each token with every token up to it. For each
# pair, a head of D numbers does 2 D flops for the score, and 2 D for its part of the weighted sum of the values.

# %%
import time

import numpy as np

from labkit import agree, device, measure, show_source
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
# A step reads all weights once, however many rows it has, and in decode the keys and values of all tokens so far.
#
# ## Prediction
#
# Suppose that a step on an H200 took just as long as its flops or its bytes need, whichever is longer. Write down two
# numbers: what share of the flops is in the prompt, and what share of the time?

# %%
limits = measure.recorded(gpu="NVIDIA H200")["limits"]
bandwidth, peak = 1e9 * limits["bandwidth_gbs"], 1e12 * limits["f16_tflops"]  # bfloat16 is as fast as float16

weight_bytes, kv_of_token = 2 * real.parameters, kv_bytes(real, 2)
before = np.arange(1024, 1024 + 255)  # in the cache when a step begins
prompt, answer = flops(real, 1024, scores_of(1024, 0)), flops(real, 1, before + 1).sum()
phases = {"prefill": (prompt, weight_bytes), "decode": (answer, (weight_bytes + before * kv_of_token).sum())}
ms = {name: (1e3 * work / peak, 1e3 * moved / bandwidth) for name, (work, moved) in phases.items()}
for name, (work, _) in phases.items():
    print(f"{name:8}{ms[name][0]:5.1f} ms for its flops, {ms[name][1]:5.1f} ms for its bytes: "
          f"{work / (prompt + answer):.0%} of the flops, {max(ms[name]) / sum(map(max, ms.values())):.0%} of the time")

# %% [markdown]
# Most of the work takes almost no time, and the rest takes nearly all of it. (The prompt's step also computes the first
# token of the answer, which leaves 255 steps.) Prefill is bound by arithmetic, decode by memory.
#
# ## A product of T rows
#
# Nearly all flops of a step are in products: T rows of inputs times a matrix of weights. Lesson 06 divided flops by
# bytes to get the *arithmetic intensity*. For T rows, K inputs and N outputs in bfloat16 it is
#
# $$\frac{2\,T K N}{2\,(K N + T K + T N)} \approx T \quad\text{as long as } T \text{ is small beside } K
# \text{ and } N$$
#
# Each weight is read once and used in T multiply-adds, so the intensity is T. From which T on do the flops decide, on a
# GPU that does about two hundred{{ if flops_a_byte_200 }} flops in the time it takes to move a byte?

# %%
inputs, outputs = real.hidden_size, 2 * real.intermediate_size  # gate and up, one product
work = {T: (2 * T * inputs * outputs, 2 * (inputs * outputs + T * inputs + T * outputs))
        for T in (1, 8, 64, 256, 1024, 4096)}
pictures.rows_on_roofline(work, bandwidth / 1e9, peak / 1e12, "an H200")

# %% [markdown]
# From just below T = 256{{ if from_256 }}. A single row gets less than a hundredth{{ if below_hundredth }} of what the
# tensor cores could do, and no kernel can change that, since every weight has to be read. So the two phases need
# different kernels: for few rows, one that streams the weights as fast as memory delivers them; for many, one that
# works in tiles, like those of lesson 08. On a GPU the launcher picks one by the number of rows. The result has to be
# right for any T.

# %%
from labkit.kernels.ops.linear_bf16 import LM_HEAD

agree(LM_HEAD, ["lm_head_streamed", "lm_head_picked"], sizes=({"M": 1, "N": 70, "K": 264}, {"M": 37, "N": 24, "K": 72}))

# %% [markdown]
# ## With a cache and without one
#
# Why is one row enough in decode? In a causal model, the keys and values of a token depend only on the tokens up to it,
# so they never change again. Everything else that was computed for it, from its query to its logits, is used once. So
# each layer stores keys and values in the KV cache, as in lesson 29, and a step computes them for new tokens only.
#
# Here is the course's own small model, which the CPU device can run. It computes in float32, so that rounding hardly
# ever decides between two tokens of nearly the same probability. With a cache and without one, it should write the same
# text. How does the work for a token depend on its position in either case? Draw both curves before you run the cells.

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

# %%
from labkit.device.launches import planned
from labkit.models.step import Piece

alone = SingleSequence(model, context=64)
for rows in (1, 40):
    step = alone.inputs.step([Piece(range(rows), 40 - rows, alone.pages)])
    count = len(planned(lambda step=step: model.forward(step, alone.cache, alone.workspace)))
    print(f"{rows:2} rows: {count} launches, {flops(model.config, rows, scores_of(rows, 40 - rows)) / 1e6:.0f} MFLOP")

before = np.arange(len(question), len(question) + 31)
mflop, ms = "MFLOP for a token", f"{device.pick(gpu='ms', cpu='ms of CPU time')} for a token, {device.name()}"
pictures.over_positions(
    before, {mflop: flops(model.config, 1, before + 1) / 1e6, ms: quick[1:]},
    {mflop: flops(model.config, before + 1, scores_of(before + 1, 0)) / 1e6, ms: slow[1:]}, f"on {device.name()}")

# %% [markdown]
# On the CPU device the launches are the same but for one, which gathers the last rows. (A GPU has fewer for a single
# row, whose norms are part of the products after them.) The work is not the same. With a cache, the work for a token
# hardly grows: only attention reads more. Without one it grows with the length of the text, so the work for a whole
# text grows at least with the square of its length.
#
# The CPU device's times follow the work. A GPU's need not: each step has to read all weights anyway, and by the
# roofline above, forty rows of a large model in bfloat16 take about as long as one. There the cache pays off once a
# text is long or many are computed at once.
#
# ## What has to be kept
#
# If everything but keys and values is used once, an interrupted text can be continued from very little: its keys, its
# values, and the last token, which has not been through the model yet. We stop after ten tokens, write these to a file,
# and continue with a new cache. Is anything missing? (The cache is saved whole, so the file also says how many tokens
# are in it.)

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
print(f"kept for a token: {kv_bytes(model.config, 4):,} bytes; in Llama 3.2 1B, in bfloat16, {kv_of_token:,}")
longest = real.max_position_embeddings
print(f"its weights take {weight_bytes / 1e9:.1f} GB, its longest text of {longest:,} tokens "
      f"{longest * kv_of_token / 1e9:.1f} GB")

# %% [markdown]
# Nothing is missing. (The course's tests do the same with a new process.) The state of a conversation is its cache and
# its last token. It can be saved, moved to another GPU, or dropped and computed again.
#
# The cache is not small: that of the longest text takes more memory than the weights. Grouped-query attention helps.
# With as many heads of keys as of queries it would be {{ words(32 / 8) }} times as large in Llama 3.2 1B.
#
# ## Buffers that are needed for a moment
#
# The other buffers of a step hold their contents for only a few launches. Two that are never needed at the same time
# can share memory. Compilers place variables in registers by the same rule: a buffer is *live* from the launch that
# writes it to the last one that reads what was written. One pass through the launches, from the last to the first,
# finds where each buffer is live.

# %%
from labkit.models import buffers
from labkit.models.llama import Workspace

show_source(buffers.liveness)

# %% [markdown]
# Here are the embedding, one layer, and the head; the other layers differ only in their first norm, which also adds
# `projected` to `x`. Before you run the next cell: how many buffers are live in one launch at most?

# %%
launches = buffers.llama_launches(layers=1)
live = buffers.liveness(launches)
for launch, these in zip(launches, live, strict=True):
    print(f"{launch.name:18} {', '.join(launch.reads) or '-':18} -> {', '.join(launch.writes):12} "
          f"live: {', '.join(name for name in buffers.BUFFERS if name in these)}")

# %% [markdown]
# Three. (The head reads `last`, or `normed` itself where every row is the last one of its sequence.)
#
# ## A place for each buffer
#
# Where should each buffer go? *First fit* takes the buffers one by one, the largest first, and puts each at the lowest
# address where it overlaps no other that is live at the same time. How much memory will that save for a step of 2,048
# tokens and 64 sequences in Llama 3.2 1B: a tenth, a third, or half?

# %%
sizes = buffers.sizes_of(Workspace(real, tokens=2048, sequences=64))
offsets = buffers.first_fit(sizes, live)
print(f"live in one launch: at most {buffers.least(sizes, live) / 1e6:.1f} MB; "
      f"overlaps: {buffers.overlaps(offsets, sizes, live)}")
pictures.buffer_plan([launch.name for launch in launches], offsets, sizes, live, "Buffers that share memory")

# %% [markdown]
# The plan saves about half{{ if near(1 - 58720256 / 121176064, 0.5) }}. It still takes more than any one launch needs.
# No plan can avoid that, because a buffer keeps its address for the whole step. Any two of `gated`, `x`, `normed` and
# `projected` are live together somewhere, so the four need memory of their own, although no launch needs all of them.
#
# ## A plan that is wrong
#
# A wrong plan does not crash. It overwrites numbers that are still needed, and the output is wrong. So the plan is
# checked for overlaps, and the model has to compute the same bits with it. Below, a second plan puts `gated`, the MLP's
# inner activations, on top of `x`, the residual stream. In which launches do you expect an overlap?

# %%
workspace = Workspace(model.config, tokens=64, sequences=1, dtype="float32")
small = buffers.sizes_of(workspace)
plan = buffers.first_fit(small, live)
alone = SingleSequence(model, context=64)
apart = alone(question).copy_to_host()
for name, offsets in (("first fit", plan), ("wrong", plan | {"gated": plan["x"]})):
    alone.reset()
    alone.workspace = buffers.placed(workspace, offsets)
    print(f"{name:10} {buffers.extent(offsets, small):9,} bytes instead of {sum(small.values()):,}; the same logits: "
          f"{np.array_equal(alone(question).copy_to_host(), apart)}")
    for number, one, other in buffers.overlaps(offsets, small, live):
        print(f"{'':10} in launch {number}, {launches[number].name}: {one} and {other} overlap")

# %% [markdown]
# In the two launches in which `gated` is live: the one that writes it and the one that reads it. It is larger than `x`,
# so it also covers the buffers that were placed behind `x`.
#
# ## What was implemented
#
# - the work of prefill and decode in flops and bytes, and what bounds each on an H200
# - decoding with a cache, without one, and from a file after an interruption: the same tokens
# - liveness of a step's buffers, a plan by first fit, a check for overlaps, and a model that runs in that plan
#
# ## What I learned
#
# - The number of rows is the intensity. While a step waits for its weights, more rows are nearly free.
# - The state of a sequence is its keys, its values and its last token. Everything else may be overwritten.
# - A memory plan should be checked by code that did not make it.
#
# A decode step of a single text uses little of a GPU. The next lesson fills it with the texts of other users.
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
# - Place the buffers in an order other than by size. How large can the plan become?
#
# In the exercises for this lesson you predict what a cache saves, write the cache's two kernels, one of them from a
# blank page, and place buffers.

# %% [numbers]
# flops_a_byte_200 = 180 < 1e3 * limits.f16_tflops / limits.bandwidth_gbs < 220
# from_256 = 180 < 1e3 * limits.f16_tflops / limits.bandwidth_gbs < 224
# below_hundredth = limits.bandwidth_gbs / 1e3 / limits.f16_tflops < 0.01
