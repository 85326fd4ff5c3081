# %% [markdown]
# # 38 · Batches
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - why decoding many sequences costs hardly more than decoding one, and where that ends
# - how one step serves sequences of any lengths, prompts among them
# - how a batch is kept full although its sequences end at different times
#
# ## The problem
#
# A single text uses little of a GPU: a decode step reads all weights of the model for one row. But a server has many
# users. As long as rows are few, the arithmetic intensity of a product is their number, and it does not matter whose
# rows they are. If 32 users wait for their next token, one step computes all 32 and reads the weights once. Only keys
# and values are read for each sequence.
#
# ## Prediction
#
# Take the shape of Llama 3.2 1B in bfloat16 again, on an H200, with 1,024 tokens in the cache of each sequence. Suppose
# that a step takes as long as its bytes or its flops need, whichever is longer. By what factor do the tokens per second
# grow with 32 sequences, compared with one? And with 256, {{ words(256 / 32) }} times as many again?

# %%
import numpy as np

from labkit import measure
from labkit.course.drawings import batches as pictures
from labkit.models.configs import LLAMA_3_2_1B as real

limits = measure.recorded(gpu="NVIDIA H200")["limits"]
bandwidth, peak = 1e9 * limits["bandwidth_gbs"], 1e12 * limits["f16_tflops"]  # bfloat16 is as fast as float16

weight_bytes = 2 * real.parameters
# Keys and values of a token, two bytes for each number.
kv_of_token = 2 * 2 * real.num_key_value_heads * real.head_dim * real.num_hidden_layers
head = real.vocab_size * real.hidden_size  # weights of the last product, which is computed once for each sequence


def least_ms(rows, sequences, kept):
    """A step for so many rows of so many sequences, with `kept` tokens in their caches. Attention's flops are few."""
    flops = 2 * (rows * (real.parameters - head) + sequences * head)
    return 1e3 * np.maximum(flops / peak, (weight_bytes + kept * kv_of_token) / bandwidth)


context, one = 1024, least_ms(1, 1, 1024)
print(f"{'sequences':>9}{'weights, MB':>13}{'keys and values, MB':>21}{'ms a step':>11}{'tokens/s':>10}{'factor':>8}")
for sequences in (1, 8, 32, 128, 256, 512):
    kept = sequences * context
    ms = least_ms(sequences, sequences, kept)
    print(f"{sequences:9}{weight_bytes / 1e6:13,.0f}{kept * kv_of_token / 1e6:21,.0f}{ms:11.2f}"
          f"{1e3 * sequences / ms:10,.0f}{sequences * one / ms:8.1f}")

# %% [markdown]
# The first sequences to join are nearly free. Later the keys and values outweigh the weights, and each sequence has its
# own: from there on every further one lengthens the step, and the rate gains little.
#
# ## Measured on an H200
#
# Such steps were recorded on an H200, each as one CUDA graph. They take longer than the bound. Do you expect the
# factors to be smaller than those above?

# %%
series = measure.recorded_series("llama_decode", gpu="NVIDIA H200")
rows = series["rows"] if series else []
for row in rows:
    sequences, ms = row["sequences"], row["ms"]["p50"]
    print(f"recorded, {sequences:3} sequences: {ms:.2f} ms a step, {1e3 * sequences / ms:6,.0f} tokens/s, "
          f"{sequences * rows[0]['ms']['p50'] / ms:4.1f} times those of one")

# %% [markdown]
# The step of a single sequence takes longer than its bound as well, so the factors are close to those above: with 8
# sequences a little smaller, with 32 and more a little larger.
#
# ## One step for sequences of any length
#
# A batch needs no padding. Rows are packed end to end, as in lesson 30. Norms and products treat all rows alike,
# whichever sequence they belong to. Only three things differ: a row's position, by which its queries and keys are
# rotated; where its keys and values go in the cache; and which keys it attends to. A step has these as arrays of
# integers.
#
# Below, the prompts of two sequences are in the cache, 9 and 10 tokens, and each has one new token. A third sequence
# begins with its prompt of 9 tokens. How many rows does the step have, and for which of them are logits needed?

# %%
from labkit.models.llama import Cache, SingleSequence, Workspace
from labkit.models.load import load
from labkit.models.step import Inputs, Piece

loaded = load("tiny-llama", dtype="float32")
model, tokenizer = loaded.model, loaded.tokenizer


def prompt_of(thing):
    return tokenizer.encode(f"<|user|>What is a {thing}?<|end|><|assistant|>")


prompts = [prompt_of(thing) for thing in ("hacker", "kludge", "bug")]
pages = [[0, 1], [2, 3], [4, 5]]  # each sequence has two pieces of the cache, of 16 tokens: see the next lesson
cache, inputs = Cache(model.config, 6, model.dtype), Inputs(64, 3, pages=2)
workspace = Workspace(model.config, 64, 3, model.dtype)
begun = inputs.step([Piece(ids, 0, mine) for ids, mine in zip(prompts[:2], pages[:2], strict=True)])
tokens = [int(row.argmax()) for row in model.forward(begun, cache, workspace).copy_to_host()]
mixed = inputs.step([*(Piece([tokens[b]], len(prompts[b]), pages[b]) for b in (0, 1)), Piece(prompts[2], 0, pages[2])])
for name, meaning in (("positions", "of each row in its sequence"), ("lengths", "rows of each sequence"),
                      ("contexts", "tokens of each sequence, with those of the cache"),
                      ("last", "the rows whose logits are needed")):
    print(f"{name:10}{str(getattr(mixed, name).copy_to_host()):50}{meaning}")
logits = model.forward(mixed, cache, workspace).copy_to_host()

# %%
for b, ids in enumerate(prompts):
    alone = SingleSequence(model, context=32)
    expected = alone(ids)
    if b < 2:
        expected = alone([tokens[b]])
    same = np.array_equal(expected.copy_to_host()[0], logits[b])
    print(f"sequence {b}: the same logits as alone: {same}")

# %% [markdown]
# The logits are the same to the last bit. In float32 the kernels guarantee that: the order of additions in a row
# depends only on its own sequence. (In bfloat16 on a GPU, linear layers change kernels with the number of rows, and the
# last bits change with them.) So requests may run together in any combination.
#
# Two equal results can both be wrong. So here is the same step again, and what each launch wrote is compared
# with NumPy in float64. The table shows the last layer and the logits:

# %%
from labkit.models.llama_reference import Parity, parity

texts = [[*prompts[0], tokens[0]], [*prompts[1], tokens[1]], prompts[2]]
launches = parity(model, texts, before=[len(prompts[0]), len(prompts[1]), 0]).check()
print(f"{len(launches.rows)} activations agree with NumPy")
Parity(launches.rows[-14:])

# %% [markdown]
# ## Static batching
#
# Which requests should run together? The simplest way is *static batching*: take as many requests as there are slots,
# run them until all have ended, take the next ones. Prompts of different lengths are no problem, as we just saw.
# Answers of different lengths are. Which slots are empty in the last steps of a batch?
#
# Here are ten requests. To make runs comparable, each fixes the length of its answer.

# %%
from labkit.engine.block_manager import BlockManager
from labkit.engine.outputs import Sampled
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler
from labkit.engine.sequence import FinishReason, Request
from labkit.measure.simulation import Cell, Timeline, Work, simulate
from labkit.measure.static_batching import StaticScheduler

things = "hacker", "kludge", "bug", "virus", "daemon", "cookie", "hack", "nerd", "feature", "glitch"
counts = 24, 3, 9, 14, 4, 6, 20, 3, 10, 5  # tokens of each answer
requests = [(prompt_of(thing), count) for thing, count in zip(things, counts, strict=True)]


def write_alone(prompt, count):
    alone, ids = SingleSequence(model, context=len(prompt) + count), list(prompt)
    for _ in range(count):
        ids.append(int(alone(ids[alone.length :]).copy_to_host()[0].argmax()))
    return ids[len(prompt) :]


solo = [write_alone(prompt, count) for prompt, count in requests]

# %% [markdown]
# The loop below is the core of an engine. The scheduler, labkit's own and the subject of a later lesson, decides which
# requests run in a step, and with how many rows. The model computes the step, and each sequence gets its most likely
# token.

# %%
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
# the same step as the other sequences' tokens, like the third sequence above. This is *continuous batching*.
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
# Each answer is the same as alone, whichever request had the slot before and whatever runs beside it.
#
# ## When does an answer begin?
#
# Users notice something else: how long they wait for the first token. All ten requests came at the same moment.
# Estimate from the picture in which step an answer begins on average, with either scheduler.

# %%
for name, timeline in (("static", static), ("continuous", continuous)):
    first = [min(cell.step for cell in timeline.cells if cell.request == number) for number in range(len(requests))]
    print(f"{name:11} {first}, {np.mean(first):.1f} on average")

# %% [markdown]
# The last request of the queue waits less than half{{ if 16 / 44 < 0.5 }} as long. A slot that becomes free is used in
# the next step, so after each short answer the queue moves on, whatever runs beside it. What waiting does to a server
# under load is the subject of the last lesson of the course.
#
# ## Many requests
#
# Ten requests are few. A scheduler also runs without a model, on placeholder tokens, which takes a moment for about two
# hundred requests. Their prompts and answers have 100 to 1,024 tokens, and the bytes and flops of every step say how
# long an H200 would need at least. Static batches took nearly twice{{ if near(54 / 29, 2) }} as many steps above. Will
# the difference be larger or smaller here, and does the number of slots matter?

# %%
def least_seconds(timeline):
    """Of all steps, by their flops or their bytes."""
    length, of_step = {}, np.zeros((timeline.steps, 3))
    for cell in timeline.cells:
        length[cell.request] = length.get(cell.request, 0) + cell.tokens
        of_step[cell.step] += cell.tokens, 1, length[cell.request]
    return least_ms(*of_step.T).sum() / 1e3


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
# The gain is smaller than with the ten requests, and smaller with 64 slots than with 16. It depends on how much the
# answers differ in length and on how many requests wait: once the queue is empty, slots stay empty with either
# scheduler. The rate grows by a little less than the steps become fewer, because a full batch reads more keys and
# values, so its steps take longer. (The recorded runs are of the whole engine, with 128 requests of this kind.)
#
# One question remains. Where does the cache of a new sequence go? If each slot had memory for the longest possible
# text, most of it would be empty most of the time. The scheduler here deals in pages instead, the subject of the next
# lesson.
#
# ## What was implemented
#
# - the bound of a decode step for any number of sequences, beside what was measured on an H200
# - a step with rows of three sequences, a prompt among them: the same logits as for each alone
# - static and continuous batching in one loop, each answer the same as alone
# - both schedulers without a model, on many requests
#
# ## What I learned
#
# - Rows raise the intensity, whichever sequence they belong to. Keys and values do not: each sequence reads its own.
# - A batch is not a group of requests that begin and end together. It is whatever runs in a step.
# - If an output does not depend on the rest of the batch, a scheduler decides when a token comes, never which one.
#
# ## Resources
#
# - [G.-I. Yu et al.: Orca (OSDI 2022)](https://www.usenix.org/conference/osdi22/presentation/yu), scheduling step by
#   step
# - [R. Pope et al.: Efficiently Scaling Transformer Inference (2022)](https://arxiv.org/abs/2211.05102), batches and
#   what bounds them
#
# ## Try it
#
# - Give all answers the same length. What do the two schedulers differ in now?
# - Give `serve` a single slot, and then as many as there are requests. Predict the steps of both schedulers.
# - Sort `requests` by the length of the answers, the longest first. Which scheduler gains more, and why can a server
#   not do that?
# - Double `context` in the first table. With how many sequences do keys and values outweigh the weights now?
#
# In the exercises for this lesson you predict what a batch is worth, write a scheduler's queue, and from a blank page
# the rows of a step.
