# %% [markdown]
# # 38 · Batches
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - why decoding many sequences costs little more than decoding one, and where that ends
# - how one step serves sequences of any lengths, prompts among them
# - how to keep a batch full although its sequences end at different times
#
# ## The problem
#
# A single text leaves most of a GPU idle: each decode step reads every weight of the model and uses it for one row
# (lesson 37). But a server has many users, and a product does not care whose rows it gets. If 32 users are waiting for
# their next token, one step can compute all 32 tokens and still read the weights only once. It cannot share the cache:
# every sequence has its own keys and values.
#
# ## Prediction
#
# Take Llama 3.2 1B in bfloat16 on an H200 again, with 1,024 tokens in the cache of each sequence, and suppose that a
# step takes as long as its bytes or its flops need, whichever is longer. By what factor does the rate in tokens per
# second grow when a step serves 32 sequences instead of one, and by what factor with 256?

# %%
from collections import deque
from dataclasses import dataclass

import numpy as np

from labkit import measure, show_source, table
from labkit.course.drawings import batches as pictures
from labkit.models.configs import LLAMA_3_2_1B as real

limits = measure.recorded(gpu="NVIDIA H200")["limits"]
bandwidth, peak = 1e9 * limits["bandwidth_gbs"], 1e12 * limits["f16_tflops"]  # bfloat16 is as fast as float16

weight_bytes = 2 * real.parameters
kv_of_token = 2 * 2 * real.num_key_value_heads * real.head_dim * real.num_hidden_layers  # keys and values, 2 bytes each
head = real.vocab_size * real.hidden_size  # weights of the last product, which is computed once per sequence


def least_ms(rows, sequences, kept):
    """A step with so many rows of so many sequences and `kept` tokens in all caches; attention's flops are few."""
    flops = 2 * (rows * (real.parameters - head) + sequences * head)
    return 1e3 * np.maximum(flops / peak, (weight_bytes + kept * kv_of_token) / bandwidth)


context, one = 1024, least_ms(1, 1, 1024)
rows = []
for sequences in (1, 8, 32, 128, 256, 512):
    kept = sequences * context
    ms = least_ms(sequences, sequences, kept)
    rows.append((sequences, weight_bytes / 1e6, kept * kv_of_token / 1e6, ms, 1e3 * sequences / ms,
                 sequences * one / ms))
table(rows, {"sequences": "", "weights, MB": ",.0f", "keys and values, MB": ",.0f", "ms per step": ".2f",
             "tokens/s": ",.0f", "factor": ".1f"}, "The weights are shared, the caches are not")

# %% [markdown]
# The first few sequences ride along almost for free, because their caches are small compared with the weights. At 128
# sequences the caches outweigh the weights, and from then on a larger batch mostly means a longer step: going from 32
# sequences to 256, {{ words(256 / 32) }} times as many, does not even triple the rate.
#
# ## Measured on an H200
#
# Those are bounds. The same steps were recorded on an H200, each as one CUDA graph. A real step takes longer than its
# bound; does that make the factor for 32 sequences much smaller than the table's?

# %% tags=["hide-input"]
from labkit.measure.plots.ladders import curves

series = measure.recorded_series("llama_decode", gpu="NVIDIA H200")
recorded = {row["sequences"]: (row["ms"]["p50"], row["bound_ms"]) for row in (series["rows"] if series else ())}
rates = {name: [1e3 * n / each[which] for n, each in recorded.items()]
         for which, name in enumerate(("recorded", "bound"))}
curves(list(recorded), rates, "The rate keeps pace with its bound as the batch grows", "sequences in a step",
       "tokens per second", log_x=True, log_y=True, marks=True, place="Llama 3.2 1B, NVIDIA H200")

# %%
table([(n, ms, bound, n * recorded[1][0] / ms, n * recorded[1][1] / bound) for n, (ms, bound) in recorded.items()],
      {"sequences": "", "ms per step": ".2f", "bound, ms": ".2f", "factor": ".1f", "factor of the bounds": ".1f"})

# %% [markdown]
# It does not. A step of one sequence misses its bound by about the same factor as a step of many, so the two factors
# stay close together: the measured one is a little smaller with up to 32 sequences, and larger with 64 or
# more{{ if larger_from_64 }}.
#
# ## One step for sequences of any length
#
# A batch needs no padding. Rows are packed end to end, as in lesson 30. Norms and products treat all rows alike,
# regardless of their sequence, and only three things depend on the sequence: a row's position, which its query and key
# are rotated by, the place in the cache where its key and value go, and the keys that it attends to.
#
# What a sequence contributes to a step is a `Piece` (lesson 37): its new tokens, how many of its tokens the cache
# already holds, and which parts of the cache they use. `Inputs` is the device memory that describes a step. Its method
# `step` takes a list of pieces, lays out what the kernels need in arrays of integers, and copies them to the device in
# one go. The `Cache` holds the keys and values of all sequences, and the `Workspace` every other buffer.
#
# In the next cell two sequences have finished their prompts of 9 and 10 tokens and contribute one new token each. A
# third sequence joins with its whole prompt of 9 tokens. How many rows does the step have, and for which of them do we
# need logits?

# %%
from labkit.models.llama import Cache, SingleSequence, Workspace
from labkit.models.load import load
from labkit.models.step import Inputs, Piece

loaded = load("tiny-llama", dtype="float32")
model, tokenizer = loaded.model, loaded.tokenizer


def prompt_of(thing):
    return tokenizer.encode(f"<|user|>What is a {thing}?<|end|><|assistant|>")


prompts = [prompt_of(thing) for thing in ("hacker", "kludge", "bug")]
pages = [[0, 1], [2, 3], [4, 5]]  # each sequence has two parts of the cache, of 16 tokens each: see lesson 39
cache, inputs = Cache(model.config, 6, model.dtype), Inputs(64, 3, pages=2)
workspace = Workspace(model.config, 64, 3, model.dtype)
begun = inputs.step([Piece(ids, 0, mine) for ids, mine in zip(prompts[:2], pages[:2], strict=True)])
tokens = [int(row.argmax()) for row in model.forward(begun, cache, workspace).copy_to_host()]

mixed = inputs.step([Piece([tokens[0]], len(prompts[0]), pages[0]),
                     Piece([tokens[1]], len(prompts[1]), pages[1]),
                     Piece(prompts[2], 0, pages[2])])
meanings = {"positions": "of each row in its sequence", "lengths": "rows of each sequence",
            "contexts": "tokens of each sequence, including those in the cache",
            "last": "the rows that need logits"}
table([(name, str(getattr(mixed, name).copy_to_host()), meaning) for name, meaning in meanings.items()],
      ["array", "contents", "meaning"])

# %% [markdown]
# There are 11 rows: one, one, and nine. Each sequence needs the logits after its last row and no others, so the head
# computes three rows instead of 11. Collecting these three is a gather, and the course has a kernel for that: the token
# embedding, with `last` for the ids and the normalised rows for the table.

# %%
from labkit.kernels import embedding

show_source(embedding.make_token_embedding)

# %% [markdown]
# Sequence 2 read its prompt while the others were writing. Does sharing a step change anyone's logits, compared with
# running each sequence alone?

# %%
logits = model.forward(mixed, cache, workspace).copy_to_host()
rows = []
for b, ids in enumerate(prompts):
    alone = SingleSequence(model, context=32)
    expected = alone(ids)
    if b < 2:
        expected = alone([tokens[b]])
    rows.append((b, "yes" if np.array_equal(expected.copy_to_host()[0], logits[b]) else "no"))
table(rows, ["sequence", "logits bitwise the same as alone"])

# %% [markdown]
# Not a single bit. In float32 the kernels guarantee this, because the order of the additions in a row depends only on
# the row's own sequence. In bfloat16 on a GPU a linear layer picks its kernel by the number of rows, so the last bits
# may depend on the rest of the batch. Either way, requests can run together in any combination.
#
# Two equal results can both be wrong, so here is the same step once more, with what each launch wrote compared with
# NumPy in float64. The table, a `Parity`, shows the last layer and the logits:

# %%
from labkit.models.llama_reference import Parity, parity

texts = [[*prompts[0], tokens[0]], [*prompts[1], tokens[1]], prompts[2]]
launches = parity(model, texts, before=[len(prompts[0]), len(prompts[1]), 0]).check()
print(f"{len(launches.rows)} activations agree with NumPy")
Parity(launches.rows[-14:])

# %% [markdown]
# ## A server in three steps
#
# One step for any mix of sequences is all the model has to offer. The rest is bookkeeping, and it takes three functions
# to write a small server. Here is its work: ten requests, and four *slots*, so that at most four requests run together.
# To make runs comparable, each request fixes the length of its answer, and `solo` holds the answers that the model
# writes when each request is alone.

# %%
things = "hacker", "kludge", "bug", "virus", "daemon", "cookie", "hack", "nerd", "feature", "glitch"
counts = 24, 3, 9, 14, 4, 6, 20, 3, 10, 5  # tokens in each answer
requests = [(prompt_of(thing), count) for thing, count in zip(things, counts, strict=True)]


def write_alone(prompt, count):
    alone, ids = SingleSequence(model, context=len(prompt) + count), list(prompt)
    for _ in range(count):
        ids.append(int(alone(ids[alone.length :]).copy_to_host()[0].argmax()))
    return ids[len(prompt) :]


solo = [write_alone(prompt, count) for prompt, count in requests]

# %% [markdown]
# **First, a step.** A request in a slot is its tokens so far, prompt and answer, and the number of them that the cache
# holds. The tokens not yet in the cache are its piece of the next step: the whole prompt at first, and a single token
# from then on. Each slot has its own part of the cache, with room for 128 tokens.

# %%
slots, room = 4, 8  # pages of a slot: 8 of 16 tokens
cache, inputs = Cache(model.config, slots * room, model.dtype), Inputs(64, slots, pages=room)
workspace = Workspace(model.config, 64, slots, model.dtype)


@dataclass
class Running:
    """A request in a slot."""

    number: int
    slot: int
    tokens: list
    cached: int = 0

    @property
    def piece(self):
        pages = range(self.slot * room, (self.slot + 1) * room)
        return Piece(self.tokens[self.cached :], self.cached, list(pages))


def next_tokens(running):
    """One step of the model, in which every running request gets its most likely next token."""
    order = sorted(running, key=lambda one: len(one.piece.ids) > 1)  # single rows first: they have their own kernel
    logits = model.forward(inputs.step([one.piece for one in order]), cache, workspace).copy_to_host()
    for one, row in zip(order, logits, strict=True):
        one.cached = len(one.tokens)
        one.tokens.append(int(row.argmax()))


# %% [markdown]
# **Second, the loop.** Requests wait in a queue. Before each step, `admit` may move some of them to free slots; after
# it, requests whose answers are complete leave. The `Timeline` records it all for the figures, with one `Cell` per busy
# slot and step.

# %%
from labkit.measure.simulation import Cell, Timeline


def serve(admit):
    """(the tokens of each answer, the timeline)"""
    waiting, running, answers, cells, now = deque(range(len(requests))), [], {}, [], 0
    while waiting or running:
        admit(waiting, running)
        cells += [Cell(now, one.slot, one.number, len(one.piece.ids), "decode" if one.cached else "prefill")
                  for one in running]
        next_tokens(running)
        for one in list(running):
            prompt, count = requests[one.number]
            if len(one.tokens) == len(prompt) + count:
                answers[one.number] = one.tokens[len(prompt) :]
                running.remove(one)
        now += 1
    ends = tuple(max(cell.step for cell in cells if cell.request == number) for number in range(len(requests)))
    return [answers[number] for number in range(len(requests))], Timeline(tuple(cells), ends, slots, (0,) * now, 0)


# %% [markdown]
# **Third, a policy.** Which requests should run together? The simplest answer is *static batching*: fill all slots, run
# until every request of the batch has ended, then fill them again.

# %%
def fill(waiting, running):
    """Each free slot gets the next request of the queue."""
    taken = {one.slot for one in running}
    for slot in range(slots):
        if waiting and slot not in taken:
            number = waiting.popleft()
            running.append(Running(number, slot, list(requests[number][0])))


def when_all_have_ended(waiting, running):
    if not running:
        fill(waiting, running)


# %% [markdown]
# Prompts of different lengths are no problem, as we just saw. Answers of different lengths are. The first batch has
# answers of 24, 3, 9 and 14 tokens. What share of all slots, over all steps, do you expect to be idle?

# %%
outputs, static = serve(when_all_have_ended)
print("each answer the same as alone:", outputs == solo)
print(f"the first one: {tokenizer.decode(outputs[0])} ...")
pictures.slots({"Static batching": static}, "The longest answer of a batch keeps the other slots idle")

# %% [markdown]
# More than half. A batch takes as many steps as its longest answer, and the other slots sit idle until it ends. On a
# GPU a step costs nearly the same with four sequences as with one, so every idle slot loses a token that would have
# been nearly free. And a request that arrives one step too late waits for the whole batch.
#
# ## Continuous batching
#
# The remedy needs no new kernel. Each sequence has its own length and its own part of the cache, so nothing ties the
# members of a batch together. As soon as one ends, its slot can go to the next request in the queue, whose prompt runs
# in the same step as the others' tokens, like the third sequence above. This is *continuous batching*, and in our
# server it is the policy without its `if`: `fill` itself.
#
# The answers have 98 tokens in all. What is the smallest number of steps in which four slots could write them, and how
# close will `fill` come, which serves requests in order of arrival?

# %%
outputs, continuous = serve(fill)
print("each answer the same as alone:", outputs == solo)
print(f"steps: {static.steps} static, {continuous.steps} continuous; at least {-(-sum(counts) // 4)}")
pictures.slots({"Static batching": static, "Continuous batching": continuous},
               "Refilling slots as they become free nearly halves the steps")

# %% [markdown]
# 98 tokens in four slots need at least 25 steps, and 25 are possible: 24, then 20 + 5, 14 + 10 and 3 + 9 + 4 + 6 + 3
# tokens. But a scheduler would have to know the lengths in advance. Without knowing them, `fill` needs 29. And each
# answer is the same as alone, no matter who had the slot before or who shares the step.
#
# ## When does an answer begin?
#
# Users notice something else: how long they wait for the first token. All ten requests arrived at the same time. Look
# at the figure again: in which step does an answer begin on average, with each policy?

# %%
rows = []
for name, timeline in (("static", static), ("continuous", continuous)):
    first = [min(cell.step for cell in timeline.cells if cell.request == number) for number in range(len(requests))]
    rows.append((name, ", ".join(map(str, first)), np.mean(first)))
table(rows, {"batching": "", "first step of each request": "", "mean": ".1f"})

# %% [markdown]
# The last request in the queue waits less than half{{ if 16 / 44 < 0.5 }} as long. A free slot is used in the very next
# step, so every short answer moves the queue forward, even while a long one is running. Lesson 44 shows what waiting
# does to a server under load.
#
# ## Many requests
#
# Ten requests are few. To try almost two hundred we need no model: lengths alone decide which request runs when.
# `simulate` drives labkit's own `Scheduler` (lesson 41), which batches continuously, and a `StaticScheduler`, which
# does not, with placeholder tokens. Each `Work` is a request with the lengths of its prompt and its answer, here 100 to
# 1,024 tokens, and the bytes and flops of each step give the least time that an H200 would need.
#
# With ten requests, static batching took nearly twice{{ if near(54 / 29, 2) }} as many steps. Will the difference here
# be larger or smaller, and will it depend on the number of slots?

# %%
from labkit.engine.scheduler import Scheduler
from labkit.measure.simulation import Work, simulate
from labkit.measure.static_batching import StaticScheduler


def least_seconds(timeline):
    """Of all steps, by their flops or their bytes."""
    length, of_step = {}, np.zeros((timeline.steps, 3))
    for cell in timeline.cells:
        length[cell.request] = length.get(cell.request, 0) + cell.tokens
        of_step[cell.step] += cell.tokens, 1, length[cell.request]
    return least_ms(*of_step.T).sum() / 1e3


rng = np.random.default_rng(0)
many = [Work(prompt=int(p), output=int(o)) for p, o in rng.integers(100, 1025, (192, 2))]
written = sum(one.output for one in many)
rows = []
for size in (16, 64):
    for name, scheduler in (("static", StaticScheduler), ("continuous", Scheduler)):
        timeline = simulate(many, scheduler, max_num_seqs=size, num_pages=16_384, max_num_batched_tokens=1024 * size)
        rows.append((size, name, timeline.steps, timeline.idle, written / least_seconds(timeline)))
table(rows, {"slots": "", "batching": "", "steps": "", "idle": ".0%", "tokens/s, at most": ",.0f"},
      "With slots for a third of the requests, refilling them matters less")

# %% [markdown]
# The difference is smaller than with the ten requests, and smaller with 64 slots than with 16. Two things decide it:
# how much the lengths of the answers differ, and how many requests are waiting: once the queue is empty, free slots
# stay empty under either policy. Throughput rises a little less than the step count falls, because a full batch reads
# more keys and values, so its steps take longer.
#
# These are bounds again. Here is the whole engine (lesson 42) with 128 requests of this kind, recorded on an H200:

# %%
series = measure.recorded_series("engine", gpu="NVIDIA H200")
table([(row["name"].removeprefix("pages, "), row["steps"], row["tokens_per_second"], row["most_sequences"])
       for row in (series["rows"] if series else ()) if row["name"].startswith("pages")],
      {"batching": "", "steps": "", "tokens/s": ",.0f", "most requests in a step": ""})

# %% [markdown]
# With most of the requests running from the start, little is left to refill, and continuous batching writes only about
# a tenth{{ if tenth }} more tokens per second. With fewer slots than this it is worth more.
#
# One question remains. Our server reserves room for 128 tokens in each slot, although most of its sequences are much
# shorter. On a real GPU, memory decides how many sequences fit into a batch. The next lesson stops wasting it.
#
# ## What was implemented
#
# - the bound of a decode step for any number of sequences, compared with steps measured on an H200
# - a step with rows of three sequences, a prompt among them, and the same logits as with each alone
# - a server of three functions, with static and with continuous batching
# - both policies without a model, on many requests
#
# ## What I learned
#
# - A batch shares the weights, so more rows raise the intensity. Keys and values are not shared.
# - A batch is not a group of requests that begin and end together. It is the set of rows that happen to share a step.
# - If an output does not depend on the rest of the batch, a scheduler decides when a token comes, never which one.
#
# ## Resources
#
# - [G. Yu et al.: Orca (OSDI 2022)](https://www.usenix.org/conference/osdi22/presentation/yu), scheduling step by
#   step
# - [R. Pope et al.: Efficiently Scaling Transformer Inference (2022)](https://arxiv.org/abs/2211.05102), batches and
#   what bounds them
#
# ## Try it
#
# - Give all answers the same length. How do the two policies differ now?
# - Set `slots` to one, and then to as many as there are requests. Predict the steps of both policies.
# - Sort `requests` by the length of the answers, the longest first. Which policy saves more steps, and why can a server
#   not do that?
# - Double `context` in the first table. How many sequences does it take now for the caches to outweigh the weights?
#
# In the exercises for this lesson you predict what a batch is worth, write a scheduler's queue and, from a blank page,
# the rows of a step.

# %% [numbers]
# runs = series.engine.rows
# tenth = near(runs['pages, continuous'].tokens_per_second / runs['pages, static'].tokens_per_second, 1.1)
# steps = series.llama_decode.rows
# larger_from_64 = [64, 128, 256] == [row.sequences for row in steps
#                                     if steps[0].ms.p50 / row.ms.p50 > steps[0].bound_ms / row.bound_ms]
