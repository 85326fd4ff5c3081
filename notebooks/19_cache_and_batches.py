# %% [markdown]
# # 19 · The KV cache and batches
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - why reading a prompt and writing an answer are two different kinds of work, and what bounds each
# - what a model has to keep from one token to the next, and which of its memory it may use again
# - why many texts at a time cost hardly more than one, and how a batch stays full
#
# ## The problem
#
# The model of the last lesson computes the right next token. To answer a question it has to do so again and again: it
# reads the question at once, writes one token, appends it, writes the next. The first part is called *prefill*, the
# second *decode*. Both go through the same layers in the same order. What differs is the number of rows: first as many
# as the prompt has tokens, and then one at a time.
#
# That difference decides everything that follows. To see why, take the shape of Llama 3.2 1B in bfloat16, a prompt of
# 1,024 tokens, and an answer of 256. A row costs two flops for each weight of a linear layer, and a step reads all
# weights once, however many rows it has.
#
# ## Prediction
#
# Suppose that an H200 needed only the time for its flops or for its bytes, whichever is longer. Write down two numbers:
# how much of the work, counted in flops, is in the prompt? And how much of the time?

# %%
import time

import numpy as np

from labkit import agree, device, measure, show_source
from labkit.measure.plots import batches as pictures
from labkit.models.llama import LLAMA_3_2_1B as real

limits = measure.recorded(gpu="NVIDIA H200")["limits"]
bandwidth, peak = 1e9 * limits["bandwidth_gbs"], 1e12 * limits["f16_tflops"]


def keys_seen(rows, before):
    """By so many new queries together; each sees the tokens before it, and itself."""
    return rows * before + rows * (rows + 1) // 2


def flops(config, rows, keys, texts=1):
    """Of a step; the head computes only the last row of each text."""
    weights = sum(np.prod(shape) for shape in config.layer_parameters.values() if len(shape) == 2)
    attention = 4 * config.num_attention_heads * config.head_dim * keys
    head = 2 * config.vocab_size * config.hidden_size
    return config.num_hidden_layers * (2 * rows * weights + attention) + texts * head


kept_of_token = 2 * 2 * real.num_key_value_heads * real.head_dim * real.num_hidden_layers
prompt = flops(real, 1024, keys_seen(1024, 0)), 2 * real.parameters
answer = [(flops(real, 1, before + 1), 2 * real.parameters + before * kept_of_token)
          for before in range(1024, 1024 + 255)]
shares = [step[0] / peak > step[1] / bandwidth for step in (prompt, *answer)]
ms = [1e3 * max(step[0] / peak, step[1] / bandwidth) for step in (prompt, *answer)]
total = prompt[0] + sum(step[0] for step in answer)
print(f"prefill: {prompt[0] / total:.0%} of the flops, {ms[0]:.1f} ms")
print(f"decode:  {1 - prompt[0] / total:.0%} of the flops, {sum(ms[1:]):.0f} ms in {len(answer)} steps")
print("steps that take longer for their flops than for their bytes:", sum(shares))

# %% [markdown]
# Most of the work takes next to no time, and the rest of it takes nearly all. (The prompt's step computes the first
# token of the answer, too, so 255 steps are left.) Prefill is *bound by flops*, decode *by bytes*.
#
# ## A product of T rows
#
# Nearly all flops of a step are in products: T rows of inputs times a matrix of weights. Lesson 4 divided flops by
# bytes to get the *arithmetic intensity*. For T rows, K inputs and N outputs in bfloat16 it is
#
# $$\frac{2\,T K N}{2\,(K N + T K + T N)} \approx T \quad\text{as long as } T \text{ is small beside } K
# \text{ and } N$$
#
# Each weight is read once and takes part in T multiply-adds. So T is the intensity, and it is ours to choose. From
# which T on do the flops decide, on a GPU that can do some two hundred flops in the time in which it moves a byte?

# %%
inputs, outputs = real.hidden_size, 2 * real.intermediate_size  # gate and up, one product
work = {T: (2 * T * inputs * outputs, 2 * (inputs * outputs + T * inputs + T * outputs))
        for T in (1, 8, 64, 256, 1024, 4096)}
pictures.rows_on_roofline(work, bandwidth / 1e9, peak / 1e12, "an H200")

# %% [markdown]
# A single row gets less than a hundredth of what the tensor cores could do, and no kernel can change that: the weights
# have to come. The two phases therefore want two kernels. The one for few rows streams the weights as fast as memory
# delivers them; the one for many works in tiles, like those of lesson 5. The launcher picks by the number of rows, and
# the result has to be right at any T.

# %%
from labkit.kernels.linear.bf16 import LM_HEAD

sizes = {"M": 1, "N": 70, "K": 264}, {"M": 37, "N": 24, "K": 72}
agree(LM_HEAD, ["lm_head_streamed", "lm_head_picked"], sizes=sizes)

# %% [markdown]
# ## With a cache and without one
#
# Why may decode get by with one row? In a causal model, a token's keys and values depend on the tokens up to it and
# never change again. All else that was computed for it, from its query to its logits, is used once. So each layer keeps
# keys and values, in the *KV cache*, and computes them for new tokens only. Here is a model that was trained for this
# course, small enough for the CPU device. It computes in float32, so that roundings hardly ever decide between two
# tokens that are nearly equally likely.
#
# With a cache and without one it should write the same text. How does the work of a token depend on its position in
# either case? Draw both curves before you run the cells.

# %%
from labkit.models.llama import Alone
from labkit.models.load import load

loaded = load("tiny-llama", dtype="float32")
model, tokenizer = loaded.model, loaded.tokenizer
print(loaded.log)


def asked(question):
    return tokenizer.encode(f"<|user|>{question}<|end|><|assistant|>")


clock = device.pick(gpu=time.perf_counter, cpu=time.process_time)  # CPU time: others may use the CPU, too


def write(prompt, count, cached):
    """(tokens, milliseconds of each). Without a cache every step computes all of the text."""
    alone, ids, ms = Alone(model, context=len(prompt) + count), list(prompt), []
    for _ in range(count):
        begin = clock()
        if not cached:
            alone.reset()
        logits = alone(ids[alone.length :]).copy_to_host()
        ms.append(1e3 * (clock() - begin))
        ids.append(int(logits[0].argmax()))
    return ids[len(prompt) :], ms


question = asked("What is a hacker?")
write(question, 2, True), write(question, 2, False)  # compiles the kernels
(with_cache, quick), (without, slow) = (write(question, 32, cached) for cached in (True, False))
print("the same tokens:", with_cache == without)
print(tokenizer.decode(with_cache))

# %%
from labkit.device.launches import planned
from labkit.models.step import Piece

alone = Alone(model, context=64)
for rows in (1, 40):
    pieces = [Piece(range(rows), 40 - rows, alone.pages)]
    step = alone.inputs.step(pieces)
    count = len(planned(lambda step=step: model.forward(step, alone.cache, alone.workspace)))
    work = flops(model.config, rows, keys_seen(rows, 40 - rows))
    print(f"{rows:2} rows: {count} launches, {work / 1e6:.0f} MFLOP")

before, mflop = range(len(question), len(question) + 31), "MFLOP"
here = f"{device.pick(gpu='ms', cpu='ms of CPU time')}, {device.name()}"
pictures.over_positions(
    before,
    {mflop: [flops(model.config, 1, n + 1) / 1e6 for n in before], here: quick[1:]},
    {mflop: [flops(model.config, n + 1, keys_seen(n + 1, 0)) / 1e6 for n in before], here: slow[1:]},
    f"on {device.name()}")

# %% [markdown]
# The number of launches does not say how much they do. With a cache, the work of a token hardly grows: only attention
# reads more. Without one it grows with the length of the text, so the work of the whole text grows at least with its
# square. (On the CPU device the times show work and nothing about a GPU. A GPU waits for its weights anyway, and forty
# rows cost it about as much as one: there the cache pays off once a text is long, or the batch is large.)
#
# ## What has to be kept
#
# If everything but keys and values is used once, then a text that is interrupted can go on from very little: its keys,
# its values, and the last token, which has not been through the model yet. Let us see whether that is true. We stop
# after ten tokens, write these three to a file, and go on with memory that knows nothing. Is anything missing?

# %%
import tempfile

alone, ids = Alone(model, context=64), list(question)
for _ in range(10):
    ids.append(int(alone(ids[alone.length :]).copy_to_host()[0].argmax()))
with tempfile.TemporaryDirectory() as folder:
    np.savez(f"{folder}/kept.npz", keys_and_values=alone.cache.memory.copy_to_host(),
             length=alone.length, last=ids[-1])
    del alone, ids
    with np.load(f"{folder}/kept.npz") as file:
        kept = dict(file)

again, last = Alone(model, context=64), int(kept["last"])
again.cache.memory.copy_to_device(kept["keys_and_values"])
again.length = int(kept["length"])
rest = []
for _ in range(22):
    last = int(again([last]).copy_to_host()[0].argmax())
    rest.append(last)
print("the same tokens after the interruption:", rest == with_cache[10:])

bytes_of_token = 2 * 4 * model.config.num_key_value_heads * model.config.head_dim \
    * model.config.num_hidden_layers
print(f"kept for a token: {bytes_of_token:,} bytes; in Llama 3.2 1B, in bfloat16, {kept_of_token:,}")

# %% [markdown]
# Nothing is missing. (The number of tokens is the length of what was kept. The course's tests do the same with a new
# process.) The state of a conversation is its cache and its last token. It can be saved, moved to another GPU, or given
# up and computed again. Grouped queries make it smaller: with as many heads of keys as of queries it would be four
# times as large in Llama 3.2 1B.
#
# ## Memory that is used again
#
# The other buffers of a step hold something only for a few launches. If two of them are never needed at the same time,
# they may lie in the same memory. Compilers ask the same of variables: a buffer is *live* from the launch that writes
# it to the last one that reads what was written. Going through the launches backwards finds out. Here are the buffers
# of one layer, of the embedding before it and of the head after it.

# %%
from labkit.models import buffers
from labkit.models.llama import Cache, Workspace

show_source(buffers.liveness)

# %%
launches = buffers.llama_launches(layers=1)
live = buffers.liveness(launches)
for launch, these in zip(launches, live, strict=True):
    print(f"{launch.name:18} {', '.join(launch.reads) or '-':18} -> {', '.join(launch.writes):12} "
          f"live: {', '.join(name for name in buffers.BUFFERS if name in these)}")

# %% [markdown]
# Where should each buffer go? *First fit* takes them one by one, the largest first, and puts each at the lowest address
# where it meets no other that is live at the same time. It is quick and not always the best. For a step of 2,048 tokens
# and 64 texts in Llama 3.2 1B: how much memory will be saved, a tenth, a third, or half?

# %%
sizes = buffers.sizes_of(Workspace(real, tokens=2048, sequences=64))
offsets = buffers.first_fit(sizes, live)
print(f"no plan takes less than {buffers.least(sizes, live) / 1e6:.1f} MB; "
      f"overlaps: {buffers.overlaps(offsets, sizes, live)}")
pictures.buffer_plan([launch.name for launch in launches], offsets, sizes, live, "Buffers that share memory")

# %% [markdown]
# A plan that is wrong does not crash. It overwrites a number that is still needed, and the text becomes strange. So the
# plan is checked for overlaps, and the model has to compute the same bits with it. Below, a second plan puts the MLP's
# inner activations on top of the residual stream.

# %%
workspace = Workspace(model.config, tokens=64, sequences=1, dtype="float32")
small = buffers.sizes_of(workspace)
plan = buffers.first_fit(small, live)
wrong = plan | {"gated": plan["x"]}
alone = Alone(model, context=64)
apart = alone(question).copy_to_host()
for name, offsets in (("first fit", plan), ("wrong", wrong)):
    alone.reset()
    alone.workspace = buffers.placed(workspace, offsets)
    found = buffers.overlaps(offsets, small, live)
    print(f"{name:10} {buffers.extent(offsets, small):9,} bytes instead of {sum(small.values()):,}; the same logits: "
          f"{np.array_equal(alone(question).copy_to_host(), apart)}")
    for number, one, other in found:
        print(f"{'':10} in launch {number}, {launches[number].name}: {one} and {other} overlap")

# %% [markdown]
# ## The weights are read once
#
# Back to the roofline. A single text decodes at an intensity of one flop per byte. The intensity is the number of rows,
# and rows of other texts count as well: if 32 people wait for their next token, one step computes all 32, and reads the
# weights once. Only keys and values are read for each text. Before you run the cell: how many times as many tokens a
# second do the bytes allow with 32 texts, compared with one? And with 256, which is eight times as many again?

# %%
context = 1024
print(f"{'texts':>6}{'weights, MB':>13}{'keys and values, MB':>21}{'ms a step':>11}{'tokens/s':>10}")
for texts in (1, 8, 32, 128, 256, 512):
    moved = 2 * real.parameters, texts * context * kept_of_token
    ms = 1e3 * max(sum(moved) / bandwidth, flops(real, texts, texts * context, texts) / peak)
    print(f"{texts:6}{moved[0] / 1e6:13,.0f}{moved[1] / 1e6:21,.0f}{ms:11.2f}{1e3 * texts / ms:10,.0f}")

series = measure.recorded_series("llama_decode", gpu="NVIDIA H200")
if series is None:
    print("\nllama_decode has not been recorded on the H200 yet; these are bounds.")
for row in series["rows"] if series else ():
    texts, ms = row["sequences"], row["ms"]["p50"]
    print(f"recorded, {texts:3} texts: {ms:.2f} ms a step, {1e3 * texts / ms:,.0f} tokens/s")

# %% [markdown]
# The first texts that join are nearly free. Later the keys and values outweigh the weights, and no two texts share
# those: from there on a step grows with each text, and more of them gain little.
#
# ## Static batching
#
# So requests should run together. The simplest way is *static batching*: take as many as there are slots, run them
# until all have ended, take the next ones. Requests differ in two lengths. Prompts of different lengths are the problem
# of lesson 15, and it has the same solution: end to end in one array, with no padding. Answers of different lengths are
# new. Which slots are empty in the last steps of a batch?
#
# The loop below is the core of an engine. A scheduler says which requests run in a step; it is labkit's own, and the
# subject of lesson 21. The model computes the step, and every text gets the most likely token. So that you can compare,
# each request says how many tokens its answer shall have.

# %%
from labkit.engine.block_manager import BlockManager
from labkit.engine.outputs import Sampled
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler, StaticScheduler
from labkit.engine.sequence import FinishReason, Request
from labkit.engine.simulation import Cell, Timeline, Work, simulate
from labkit.models.step import Inputs

things = "hacker", "kludge", "bug", "virus", "daemon", "cookie", "hack", "nerd", "feature", "glitch"
counts = 24, 3, 9, 14, 4, 6, 20, 3, 10, 5  # tokens of each answer
requests = [(asked(f"What is a {thing}?"), count) for thing, count in zip(things, counts, strict=True)]


def serve(scheduler, slots=4, pages=64, budget=128):
    """(the tokens of each answer, who had which slot in each step)"""
    plan = scheduler(BlockManager(pages, prefix_caching=False), max_num_seqs=slots,
                     max_num_batched_tokens=budget)
    for number, (prompt, count) in enumerate(requests):
        plan.add(Request(str(number), prompt, SamplingParams(max_tokens=count), max_length=128))
    cache, inputs = Cache(model.config, pages, model.dtype), Inputs(budget, slots, pages=8)
    workspace = Workspace(model.config, budget, slots, model.dtype)
    answers, cells, held = {}, [], []
    while plan.has_unfinished():
        step = plan.schedule()
        chunks = sorted(step.chunks, key=lambda chunk: chunk.length > 1)  # those of one row first
        pieces = [Piece(chunk.sequence.tokens[chunk.begin : chunk.begin + chunk.length], chunk.begin,
                        chunk.sequence.pages) for chunk in chunks]
        logits = model.forward(inputs.step(pieces), cache, workspace).copy_to_host()
        tokens = {chunk.sequence: int(row.argmax()) for chunk, row in zip(chunks, logits, strict=True)}
        for chunk in chunks:
            cells.append(Cell(len(held), chunk.sequence.seat, int(chunk.sequence.request.request_id),
                              chunk.length, "decode" if chunk.begin else "prefill"))
        held.append(sum(len(chunk.sequence.pages) for chunk in chunks))
        for sequence, _ in plan.receive(step, [Sampled(tokens[each]) for each in step.samples]):
            if sequence.ended_by_last():
                answers[int(sequence.request.request_id)] = sequence.output
                plan.finish(sequence, FinishReason.LENGTH)
    return [answers[number] for number in range(len(requests))], Timeline(
        tuple(cells), (), slots, tuple(held), 0)


solo = [write(prompt, count, True)[0] for prompt, count in requests]
outputs, static = serve(StaticScheduler)
longest = max(len(prompt) for prompt, _ in requests)
print(f"prompts: {sum(len(prompt) for prompt, _ in requests)} tokens, {len(requests) * longest} if padded")
print("each answer the same as alone:", outputs == solo)
print(f"the first one: {tokenizer.decode(outputs[0])} ...")
pictures.slots({"Static batching": static}, "Ten requests, four slots")

# %% [markdown]
# A batch takes as many steps as its longest answer, and the slots of the others stand idle until then. On a GPU a step
# costs nearly the same with one text as with four, so each idle slot is a token that could have been had for nearly
# nothing. And a request that comes one step too late waits for the whole batch.
#
# ## Continuous batching
#
# The remedy needs no new kernel. Each text has a length and places in the cache of its own, so nothing ties the texts
# of a batch together. As soon as one ends, the next in the queue gets its slot, and its prompt runs in the same step as
# the other texts' tokens. This is *continuous batching*.
#
# Four slots, and the answers have 98 tokens in all. What is the smallest number of steps in which they could be
# written? How close to it will the scheduler come, which takes requests in the order of their arrival?

# %%
outputs, continuous = serve(Scheduler)
print("each answer the same as alone:", outputs == solo)
print(f"steps: {static.steps} static, {continuous.steps} continuous; "
      f"at least {-(-sum(counts) // 4)}, if no slot were ever idle")
pictures.slots({"Static batching": static, "Continuous batching": continuous}, "Ten requests, four slots")

# %% [markdown]
# Each answer is the same as alone, whichever text had the slot before and whatever runs beside it. In float32 that is a
# property of the kernels, as in lesson 15: the order of a row's additions depends on its own text only. (In bfloat16 on
# a GPU, linear layers change kernels with the number of rows, and the last bits change with them.) It leaves a
# scheduler free to put together whatever it likes.
#
# Ten requests are few. The scheduler can be watched without a model: with tokens that mean nothing, a few hundred
# requests take a moment. Here prompts and answers have 100 to 1,024 tokens, and the bytes and flops of every step say
# how long an H200 would need at least.

# %%
def least_seconds(timeline):
    """Of all steps, by their flops or their bytes."""
    seen, of_step = {}, np.zeros((timeline.steps, 4))
    for cell in timeline.cells:
        before = seen.get(cell.request, 0)
        seen[cell.request] = before + cell.tokens
        of_step[cell.step] += cell.tokens, keys_seen(cell.tokens, before), seen[cell.request], 1
    rows, keys, kept, texts = of_step.T
    moved = 2 * real.parameters + kept * kept_of_token
    return np.maximum(flops(real, rows, keys, texts) / peak, moved / bandwidth).sum()


rng = np.random.default_rng(0)
many = [Work(prompt=int(p), output=int(o)) for p, o in rng.integers(100, 1025, (192, 2))]
tokens = sum(one.output for one in many)
print(f"{'slots':>6}{'':12}{'steps':>8}{'idle':>8}{'tokens/s, at most':>20}")
for slots in (16, 64):
    for scheduler in (StaticScheduler, Scheduler):
        timeline = simulate(many, scheduler, max_num_seqs=slots, num_pages=16_384,
                            max_num_batched_tokens=1024 * slots)
        name = "static" if scheduler is StaticScheduler else "continuous"
        print(f"{slots:6} {name:11}{timeline.steps:8,}{timeline.idle:8.0%}"
              f"{tokens / least_seconds(timeline):20,.0f}")

series = measure.recorded_series("engine", gpu="NVIDIA H200")
if series is None:
    print("\nengine has not been recorded on the H200 yet; these are bounds.")
for row in series["rows"] if series else ():
    print(f"recorded, {row['name']}: {row['steps']:,} steps, {row['tokens_per_second']:,.0f} tokens/s")

# %% [markdown]
# There are fewer steps, and the rate grows by nearly as much. (Steps of a full batch take a little longer, since more
# keys and values are read.) The gain depends on how different the answers' lengths are, and on how many requests wait:
# at the end of the queue slots stay empty in either case.
#
# One question remains open. Where does the new text's cache go? If each slot had a stretch of memory for the longest
# possible text, most of it would be empty most of the time. The pages that the scheduler dealt with here are the
# subject of the next lesson.
#
# ## What was implemented
#
# - the work of prefill and of decode in flops and bytes, and what bounds each on an H200
# - decoding with a cache and without one, and from a file after an interruption: the same tokens
# - liveness of the buffers of a step, a plan by first fit, a check for overlaps, and a model that runs in it
# - static and continuous batching around one loop, each answer the same as alone
#
# ## What I learned
#
# - Rows are intensity. A step that waits for its weights may as well compute more rows with them.
# - The state of a text is its keys, its values and its last token. All else may be forgotten, and overwritten.
# - A memory plan should be checked by code that did not make it.
# - A batch is not a group of requests that begin and end together. It is what happens to be there in a step.
# - If an output does not depend on the rest of the batch, a scheduler decides when a token comes, and never which.
#
# ## Resources
#
# - [R. Pope et al.: Efficiently Scaling Transformer Inference (2022)](https://arxiv.org/abs/2211.05102), prefill and
#   decode
# - [G.-I. Yu et al.: Orca (OSDI 2022)](https://www.usenix.org/conference/osdi22/presentation/yu), scheduling step by
#   step
# - [Y. Pisarchyk, J. Lee: Efficient Memory Management for Deep Neural Net Inference
#   (2020)](https://arxiv.org/abs/2001.03288)
# - [J. Ainslie et al.: GQA (2023)](https://arxiv.org/abs/2305.13245), fewer heads of keys and values
#
# ## Try it
#
# - Give all answers the same length. What do the two schedulers differ in now?
# - Sort `requests` by the length of the answers. Which of the two gains, and why can a server not do that?
# - Give `serve` a single slot, and then as many as there are requests. Predict the steps of both schedulers first.
# - Overwrite a value of the cache between two steps. After how many tokens does the text change?
# - Place the buffers in another order than by size. Can you find a plan that takes no more than the least?
#
# In the exercises for this lesson you write the cache's two kernels, a scheduler's queue and a plan for buffers, and
# predict what a batch is worth.
