# %% [markdown]
# # 25 · The KV cache and batches
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - why reading a prompt and writing an answer are two different kinds of work, and what bounds each
# - what a model has to keep from one token to the next, and which memory it can reuse
# - why decoding many sequences costs hardly more than decoding one, and how to keep a batch full
#
# ## The problem
#
# The model of the last lesson computes the next token. An answer takes many of them: the model reads the whole prompt
# at once, computes one token, appends it, computes the next. The first part is called *prefill*, the second *decode*.
# Both go through the same layers in the same order and differ only in the number of rows: as many as the prompt has
# tokens, and then one at a time.
#
# How much does that matter? Take the shape of Llama 3.2 1B in bfloat16, a prompt of 1,024 tokens, and an answer of 256.
# Each row costs two flops for each weight of a linear layer. A step reads all weights once, however many rows it has.
#
# ## Prediction
#
# Suppose that a step on an H200 took just as long as its flops or its bytes need, whichever is longer. Write down two
# numbers: what share of the flops is in the prompt, and what share of the time?

# %%
import time

import numpy as np

from labkit import agree, device, measure, show_source
from labkit.measure.plots import batches as pictures
from labkit.models.llama import LLAMA_3_2_1B as real

limits = measure.recorded(gpu="NVIDIA H200")["limits"]
bandwidth, peak = 1e9 * limits["bandwidth_gbs"], 1e12 * limits["f16_tflops"]  # bfloat16 is as fast as float16


def scores_of(rows, before):
    """How many scores a head computes for `rows` new tokens. Each attends to those before it and to itself."""
    return rows * before + rows * (rows + 1) // 2


def flops(config, rows, scores, sequences=1):
    """Of a step; the head computes only the last row of each sequence."""
    weights = sum(np.prod(shape) for shape in config.layer_parameters.values() if len(shape) == 2)
    attention = 4 * config.num_attention_heads * config.head_dim * scores
    head = 2 * config.vocab_size * config.hidden_size
    return config.num_hidden_layers * (2 * rows * weights + attention) + sequences * head


def kv_bytes(config, itemsize):
    """Keys and values of one token, in all layers."""
    return 2 * itemsize * config.num_key_value_heads * config.head_dim * config.num_hidden_layers


weight_bytes, kv_of_token = 2 * real.parameters, kv_bytes(real, 2)
before = np.arange(1024, 1024 + 255)  # in the cache when a step begins
prompt, answer = flops(real, 1024, scores_of(1024, 0)), flops(real, 1, before + 1).sum()
for name, work, moved in (("prefill", prompt, weight_bytes),
                          ("decode", answer, (weight_bytes + before * kv_of_token).sum())):
    print(f"{name:8}{work / (prompt + answer):.0%} of the flops; {1e3 * work / peak:5.1f} ms for its flops, "
          f"{1e3 * moved / bandwidth:5.1f} ms for its bytes")

# %% [markdown]
# Most of the work takes almost no time, and the rest takes nearly all of it. (The prompt's step also computes the first
# token of the answer, which leaves 255 steps.) Prefill is *bound by flops*, decode *by bytes*.
#
# ## A product of T rows
#
# Nearly all flops of a step are in products: T rows of inputs times a matrix of weights. Lesson 05 divided flops by
# bytes to get the *arithmetic intensity*. For T rows, K inputs and N outputs in bfloat16 it is
#
# $$\frac{2\,T K N}{2\,(K N + T K + T N)} \approx T \quad\text{as long as } T \text{ is small beside } K
# \text{ and } N$$
#
# Each weight is read once and used in T multiply-adds, so the intensity is T. From which T on do the flops decide, on a
# GPU that does about two hundred flops in the time it takes to move a byte?

# %%
inputs, outputs = real.hidden_size, 2 * real.intermediate_size  # gate and up, one product
work = {T: (2 * T * inputs * outputs, 2 * (inputs * outputs + T * inputs + T * outputs))
        for T in (1, 8, 64, 256, 1024, 4096)}
pictures.rows_on_roofline(work, bandwidth / 1e9, peak / 1e12, "an H200")

# %% [markdown]
# From just below T = 256. A single row gets less than a hundredth of what the tensor cores could do, and no kernel can
# change that, since every weight has to be read. The two phases therefore need different kernels: for few rows, one
# that streams the weights as fast as memory delivers them; for many, one that works in tiles, like those of lesson 07.
# On a GPU the launcher picks by the number of rows. The result has to be right for any T.

# %%
from labkit.kernels.linear.bf16 import LM_HEAD

agree(LM_HEAD, ["lm_head_streamed", "lm_head_picked"], sizes=({"M": 1, "N": 70, "K": 264}, {"M": 37, "N": 24, "K": 72}))

# %% [markdown]
# ## With a cache and without one
#
# Why is one row enough in decode? In a causal model, the keys and values of a token depend only on the tokens up to it,
# so they never change again. Everything else that was computed for it, from its query to its logits, is used once. So
# each layer stores keys and values in the *KV cache* and computes them for new tokens only.
#
# Here is a model that was trained for this course, small enough for the CPU device. It computes in float32, so that
# rounding hardly ever decides between two tokens of nearly the same probability. With a cache and without one, it
# should write the same text. How does the work for a token depend on its position in either case? Draw both curves
# before you run the cells.

# %%
from labkit.models.llama import Alone
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
    alone, ids, ms = Alone(model, context=len(prompt) + count), list(prompt), []
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

alone = Alone(model, context=64)
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
# hardly grows: only attention reads more. Without one it grows with the length of the text, so that of the whole text
# grows at least with its square. The CPU device's times follow the work. A GPU's need not: it waits for the weights
# anyway, and by the roofline above, forty rows of a large model in bfloat16 take about as long as one. There the cache
# pays off once a text is long or a batch is large.
#
# ## What has to be kept
#
# If everything but keys and values is used once, an interrupted text can be continued from very little: its keys, its
# values, and the last token, which has not been through the model yet. We stop after ten tokens, write these to a file,
# and continue with a new cache. Is anything missing? (The cache is saved whole, so the file also says how many tokens
# are in it.)

# %%
import tempfile

alone, ids = Alone(model, context=64), list(question)
for _ in range(10):
    ids.append(next_token(alone, ids[alone.length :]))
with tempfile.TemporaryDirectory() as folder:
    np.savez(f"{folder}/kept.npz", keys_and_values=alone.cache.memory.copy_to_host(), length=alone.length, last=ids[-1])
    with np.load(f"{folder}/kept.npz") as file:
        kept = dict(file)

again, rest = Alone(model, context=64), [int(kept["last"])]
again.cache.memory.copy_to_device(kept["keys_and_values"])
again.length = int(kept["length"])
for _ in range(22):
    rest.append(next_token(again, rest[-1:]))
print("the same tokens after the interruption:", rest[1:] == with_cache[10:])
print(f"kept for a token: {kv_bytes(model.config, 4):,} bytes; in Llama 3.2 1B, in bfloat16, {kv_of_token:,}")

# %% [markdown]
# Nothing is missing. (The course's tests do the same with a new process.) The state of a conversation is its cache and
# its last token. It can be saved, moved to another GPU, or dropped and computed again. Grouped-query attention makes it
# smaller: with as many heads of keys as of queries it would be four times as large in Llama 3.2 1B.
#
# ## Memory that is reused
#
# The other buffers of a step hold their contents for only a few launches. Two that are never needed at the same time
# can share memory. Compilers place variables in registers by the same rule: a buffer is *live* from the launch that
# writes it to the last one that reads what was written. One pass through the launches, from the last to the first,
# finds where each buffer is live. Here are the embedding, one layer, and the head; all layers are alike.

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
# (The head reads `last`, or `normed` itself where every row is the last one of its sequence.)
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
# The plan takes more than any one launch needs. No plan can avoid that, because a buffer keeps its address for the
# whole step. Any two of `gated`, `x`, `normed` and `projected` are live together somewhere, so the four need memory of
# their own, although no launch needs all of them.
#
# A wrong plan does not crash. It overwrites numbers that are still needed, and the output is wrong. So the plan is
# checked for overlaps, and the model has to compute the same bits with it. Below, a second plan puts the MLP's inner
# activations on top of the residual stream.

# %%
workspace = Workspace(model.config, tokens=64, sequences=1, dtype="float32")
small = buffers.sizes_of(workspace)
plan = buffers.first_fit(small, live)
alone = Alone(model, context=64)
apart = alone(question).copy_to_host()
for name, offsets in (("first fit", plan), ("wrong", plan | {"gated": plan["x"]})):
    alone.reset()
    alone.workspace = buffers.placed(workspace, offsets)
    print(f"{name:10} {buffers.extent(offsets, small):9,} bytes instead of {sum(small.values()):,}; the same logits: "
          f"{np.array_equal(alone(question).copy_to_host(), apart)}")
    for number, one, other in buffers.overlaps(offsets, small, live):
        print(f"{'':10} in launch {number}, {launches[number].name}: {one} and {other} overlap")

# %% [markdown]
# ## The weights are read once
#
# Back to the roofline. A single sequence decodes at an intensity of one flop per byte. The intensity is the number of
# rows, and rows of other sequences count as well: if 32 users wait for their next token, one step computes all 32 and
# reads the weights once. Only keys and values are read for each sequence. Going by the bytes, by what factor do the
# tokens per second grow with 32 sequences, compared with one? And with 256, eight times as many again?

# %%
def least_ms(work, moved):
    return 1e3 * np.maximum(work / peak, moved / bandwidth)


context = 1024
print(f"{'sequences':>9}{'weights, MB':>13}{'keys and values, MB':>21}{'ms a step':>11}{'tokens/s':>10}")
for sequences in (1, 8, 32, 128, 256, 512):
    kept = sequences * context * kv_of_token
    ms = least_ms(flops(real, sequences, sequences * context, sequences), weight_bytes + kept)
    print(f"{sequences:9}{weight_bytes / 1e6:13,.0f}{kept / 1e6:21,.0f}{ms:11.2f}{1e3 * sequences / ms:10,.0f}")

series = measure.recorded_series("llama_decode", gpu="NVIDIA H200")
for row in series["rows"] if series else ():
    sequences, ms = row["sequences"], row["ms"]["p50"]
    print(f"recorded, {sequences:3} sequences: {ms:.2f} ms a step, {1e3 * sequences / ms:,.0f} tokens/s")

# %% [markdown]
# The first sequences to join are nearly free. Later the keys and values outweigh the weights, and each sequence has its
# own: from there on every further one lengthens the step, and the rate gains little.
#
# ## Static batching
#
# So requests should run together. The simplest way is *static batching*: take as many as there are slots, run them
# until all have ended, take the next ones. Prompts of different lengths are no problem: they are packed end to end
# without padding, as in lesson 21. Answers of different lengths are. Which slots are empty in the last steps of a
# batch?
#
# The loop below is the core of an engine. The scheduler, labkit's own and the subject of lesson 27, decides which
# requests run in a step. The model computes the step, and each sequence gets its most likely token. To make runs
# comparable, each request fixes the length of its answer.

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
requests = [(prompt_of(f"What is a {thing}?"), count) for thing, count in zip(things, counts, strict=True)]


def serve(scheduler, slots=4, pages=64, budget=128):
    """(the tokens of each answer, which request had which slot in each step)"""
    plan = scheduler(BlockManager(pages, prefix_caching=False), max_num_seqs=slots, max_num_batched_tokens=budget)
    for number, (prompt, count) in enumerate(requests):
        plan.add(Request(str(number), prompt, SamplingParams(max_tokens=count), max_length=128))
    cache, inputs = Cache(model.config, pages, model.dtype), Inputs(budget, slots, pages=8)
    workspace = Workspace(model.config, budget, slots, model.dtype)
    answers, cells, held = {}, [], []
    while plan.has_unfinished():
        step = plan.schedule()
        chunks = sorted(step.chunks, key=lambda chunk: chunk.length > 1)  # the model takes single rows first
        pieces = [Piece(chunk.sequence.tokens[chunk.begin : chunk.begin + chunk.length], chunk.begin,
                        chunk.sequence.pages) for chunk in chunks]
        logits = model.forward(inputs.step(pieces), cache, workspace).copy_to_host()
        tokens = {chunk.sequence: int(row.argmax()) for chunk, row in zip(chunks, logits, strict=True)}
        cells += [Cell(len(held), chunk.sequence.seat, int(chunk.sequence.request.request_id), chunk.length,
                       "decode" if chunk.begin else "prefill") for chunk in chunks]
        held.append(sum(len(chunk.sequence.pages) for chunk in chunks))
        for sequence, _ in plan.receive(step, [Sampled(tokens[each]) for each in step.samples]):
            if sequence.ended_by_last():
                answers[int(sequence.request.request_id)] = sequence.output
                plan.finish(sequence, FinishReason.LENGTH)
    return [answers[number] for number in range(len(requests))], Timeline(tuple(cells), (), slots, tuple(held), 0)


solo = [write(prompt, count, True)[0] for prompt, count in requests]
outputs, static = serve(StaticScheduler)
print("each answer the same as alone:", outputs == solo)
print(f"the first one: {tokenizer.decode(outputs[0])} ...")
pictures.slots({"Static batching": static}, "Ten requests, four slots")

# %% [markdown]
# A batch takes as many steps as its longest answer, and the other slots are idle until it ends. On a GPU a step costs
# nearly the same with four sequences as with one, so each idle slot loses a token that would have been nearly free.
# And a request that arrives one step too late waits for the whole batch.
#
# ## Continuous batching
#
# The remedy needs no new kernel. Each sequence has a length and a place in the cache of its own, so nothing ties the
# members of a batch together. As soon as one ends, the next request in the queue gets its slot, and its prompt runs in
# the same step as the other sequences' tokens. This is *continuous batching*.
#
# There are four slots, and the answers have 98 tokens in all. What is the smallest number of steps that could suffice?
# How close will a scheduler come that takes requests in the order of their arrival?

# %%
outputs, continuous = serve(Scheduler)
print("each answer the same as alone:", outputs == solo)
print(f"steps: {static.steps} static, {continuous.steps} continuous; at least {-(-sum(counts) // 4)}")
pictures.slots({"Static batching": static, "Continuous batching": continuous}, "Ten requests, four slots")

# %% [markdown]
# (25 steps are possible: 24, then 20 + 5, 14 + 10 and 3 + 9 + 4 + 6 + 3 tokens in the four slots. A scheduler would
# have to know the lengths in advance.)
#
# Each answer is the same as alone, whichever sequence had the slot before and whatever runs beside it. In float32 the
# kernels guarantee that: the order of additions in a row depends only on its own sequence. (In bfloat16 on a GPU,
# linear layers change kernels with the number of rows, and the last bits change with them.) So a scheduler may combine
# any requests.
#
# Ten requests are few. A scheduler also runs without a model, on placeholder tokens, which takes a moment for about two
# hundred requests. Their prompts and answers have 100 to 1,024 tokens, and the bytes and flops of every step say how
# long an H200 would need at least.

# %%
def least_seconds(timeline):
    """Of all steps, by their flops or their bytes."""
    length, of_step = {}, np.zeros((timeline.steps, 4))
    for cell in timeline.cells:
        before = length.get(cell.request, 0)
        length[cell.request] = before + cell.tokens
        of_step[cell.step] += cell.tokens, scores_of(cell.tokens, before), length[cell.request], 1
    rows, scored, kept, sequences = of_step.T
    return least_ms(flops(real, rows, scored, sequences), weight_bytes + kept * kv_of_token).sum() / 1e3


rng = np.random.default_rng(0)
many = [Work(prompt=int(p), output=int(o)) for p, o in rng.integers(100, 1025, (192, 2))]
tokens = sum(one.output for one in many)
print(f"{'slots':>6}{'':12}{'steps':>8}{'idle':>8}{'tokens/s, at most':>20}")
for slots in (16, 64):
    for name, scheduler in (("static", StaticScheduler), ("continuous", Scheduler)):
        timeline = simulate(many, scheduler, max_num_seqs=slots, num_pages=16_384, max_num_batched_tokens=1024 * slots)
        print(f"{slots:6} {name:11}{timeline.steps:8,}{timeline.idle:8.0%}{tokens / least_seconds(timeline):20,.0f}")

series = measure.recorded_series("engine", gpu="NVIDIA H200")
for row in series["rows"] if series else ():
    if row["name"].startswith("pages"):
        print(f"recorded, {series['requests']} requests, {row['name'].removeprefix('pages, ')}: "
              f"{row['steps']:,} steps, {row['tokens_per_second']:,.0f} tokens/s")

# %% [markdown]
# Continuous batching takes fewer steps, and the rate grows by nearly the same factor. (A full batch reads more keys and
# values, so its steps take a little longer.) The gain depends on how much the answers differ in length and on how many
# requests wait: once the queue is empty, slots stay empty with either scheduler.
#
# One question remains. Where does the cache of a new sequence go? If each slot had memory for the longest possible
# text, most of it would be empty most of the time. The scheduler here deals in pages instead, the subject of the next
# lesson.
#
# ## What was implemented
#
# - the work of prefill and decode in flops and bytes, and what bounds each on an H200
# - decoding with a cache, without one, and from a file after an interruption: the same tokens
# - liveness of a step's buffers, a plan by first fit, a check for overlaps, and a model that runs in that plan
# - static and continuous batching in one loop, each answer the same as alone
#
# ## What I learned
#
# - The number of rows is the intensity. While a step waits for its weights, more rows are nearly free.
# - The state of a sequence is its keys, its values and its last token. Everything else may be overwritten.
# - A memory plan should be checked by code that did not make it.
# - A batch is not a group of requests that begin and end together. It is whatever runs in a step.
# - If an output does not depend on the rest of the batch, a scheduler decides when a token comes, never which one.
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
# - Give `serve` a single slot, and then as many as there are requests. Predict the steps of both schedulers.
# - Sort `requests` by the length of the answers, the longest first. Which scheduler gains more, and why can a server
#   not do that?
# - Overwrite a value of the cache between two steps. After how many tokens does the text change?
# - Place the buffers in another order than by size. How large can the plan become?
#
# In the exercises for this lesson you write the cache's two kernels, a scheduler's queue and a plan for buffers, and
# predict what a batch is worth.
