# %% [markdown]
# # 42 · The engine
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - what the engine does in a step, and how the host stays one step ahead of the device
# - how a token is sampled on the GPU without sorting the vocabulary
# - why a seed gives the same text in any batch, and how text is shown while it is written
#
# ## The problem
#
# The scheduler of the last lesson decides which rows a step computes, and the model turns them into logits, one per
# token of the vocabulary. The *engine* turns these into text. It samples a token from each row of logits, shows the
# text while it is being written, and prepares the next step before this one has ended. Our engine uses vLLM's names: a
# simple script for vLLM runs here when its import line is changed.

# %%
from labkit import agree, measure, show_source, table
from labkit.engine import LLM, SamplingParams

llm = LLM("tiny-llama", num_pages=64, max_num_seqs=8)
params = SamplingParams(temperature=0.7, seed=1, max_tokens=24)
outputs = llm.generate(["A hacker is", "kludge:", "The first computer bug"], params)
table([(output.prompt, output.outputs[0].text) for output in outputs], ["prompt", "text"])

# %% [markdown]
# ## The loop of a step
#
# `generate` adds its requests and then calls `engine.step()` until none is left. The heart of a step is this method of
# `LLMEngine`:

# %%
from labkit.engine.llm_engine import LLMEngine

show_source(LLMEngine._advance, "step = self", "received = self._receive")

# %% [markdown]
# Read it from top to bottom. `schedule` returns the chunks of the next step (lesson 41). `launch` copies them to the
# device and enqueues the kernels; it returns a *handle* without waiting. Only then is the *previous* step received:
# `_in_flight` holds its handle from the last call. So one step is running while the next one is planned.
#
# Receiving is where tokens come back. `handle.tokens()` waits for the device, `scheduler.receive` appends the tokens to
# their sequences, and a sequence that has ended gives back its seat and its pages:

# %%
show_source(LLMEngine._receive, "alive = ", "self.scheduler.finish")

# %% [markdown]
# Let us watch. A wrapper around the runner records what is launched and received in each call. The answer should stop
# at the first " en", which happens to be its fourth token: the scheduler cannot know that in advance. The prompt is
# launched in call 0. How many calls does it take until the engine knows that the answer has ended, and how many steps
# has it launched by then?


# %%
class Watched:
    """A runner that notes the steps that it launches and the ones that are waited for."""

    def __init__(self, runner):
        self.runner, self.launched, self.received = runner, 0, []

    def __getattr__(self, name):
        return getattr(self.runner, name)

    def launch(self, step):
        handle, number = self.runner.launch(step), self.launched
        self.launched += 1
        waited = handle.tokens
        handle.tokens = lambda: (self.received.append(number), waited())[1]
        return handle


watched = Watched(llm.engine.runner)
engine = LLM(watched, llm.get_tokenizer(), max_num_seqs=8).engine
engine.add_request("a", "<|user|>What is a hacker?<|end|><|assistant|>",
                   SamplingParams(temperature=0, max_tokens=20, stop=[" en"]))
rows, call = [], 0
while engine.has_unfinished_requests():
    before = watched.launched, len(watched.received)
    outputs = engine.step()
    rows.append((call, str(watched.launched - 1) if watched.launched > before[0] else None,
                 str(watched.received[-1]) if len(watched.received) > before[1] else None,
                 repr(outputs[0].outputs[0].text) if outputs else None))
    call += 1
print(f"{engine.stats().generated} tokens counted")
table(rows, ["call", "step launched", "step received", "text so far"])

# %% [markdown]
# Five calls, and five steps for four tokens. Step n is received in call n + 1, after step n + 1 has been launched. In
# the last call the engine learns that step 3 completed the stop string, but step 4 is already running. Its sample is
# *discarded*. That is the price of the overlap: one row of one step per answer whose end could not be foreseen. An
# answer that ends because of `max_tokens` costs nothing, since the scheduler can count.
#
# What does a step launch? The runner's method is short:

# %%
from labkit.engine.model_runner import ModelRunner

show_source(ModelRunner._run, "logits =", "self._sample")

# %%
show_source(ModelRunner._forward)

# %%
show_source(ModelRunner._sample, "sample(logits", "keep_tokens")

# %% [markdown]
# `fill_ids` is the small kernel of lesson 41 that fills in the tokens that only the device knows, `model.forward` is
# the Llama of lesson 36 over the pages of lesson 40, `_adjust_logits` makes tokens that are already in the text less
# likely (*penalties*), `sample` draws a token from each row, and `keep_tokens` stores it under the sequence's seat,
# where the next step's `fill_ids` finds it. Nothing in this chain waits for the host, so step n + 1 can be launched
# before the host has seen the tokens of step n.
#
# ## Sampling a token
#
# The logits are on the GPU: 128,256 per row, in Llama 3. `top_k` keeps the k likeliest tokens, `top_p` as many of the
# likeliest as are needed to reach the probability p, `min_p` those that are at least min_p times as likely as the
# likeliest. Each of them keeps a prefix of the sorted order, but sorting takes long. A prefix is described by its last
# element, a *threshold*, and a sum over the row shows whether a threshold is too high. So the sort becomes a search.
# How many passes over a row of 128,256 logits does the search need?

# %%
import numpy as np

from labkit.kernels.sampling_reference import kept_reference, weights_reference

logits = (2.5 * np.random.default_rng(0).standard_normal(128_256)).astype(np.float32)
weights = weights_reference(logits, 1.0)  # exponentials as whole numbers: 2**43 for the most likely token
need, low, high = 0.9 * float(weights.sum()), 0, int(weights.max())
passes = 0
while low < high:  # the largest threshold whose tokens still reach 90%
    middle = (low + high + 1) // 2
    low, high = (middle, high) if weights[weights >= middle].sum() >= need else (low, middle - 1)
    passes += 1
kept = np.flatnonzero(kept_reference(logits, 1.0, 0, 0.9, 0.0))
print(f"{passes} passes, no sort: {np.count_nonzero(weights >= low):,} tokens are kept; "
      f"by sorting: {len(kept):,}")

# %% [markdown]
# About one per bit of the largest weight. The first kernel of the ladder does the same; `trial` is the threshold that
# it tries, and `kept_total` is a pass over the row:

# %%
from labkit.kernels import sampling_rows

show_source(sampling_rows.make_bisection, "while more", "by_count = False")

# %% [markdown]
# Then `draw` samples the token: laid end to end, the kept weights are intervals, and a random number below their sum
# falls into one of them.
#
# The weights are *whole numbers* for a reason: a sum of whole numbers is the same in any order, so a GPU, the CPU
# device and NumPy agree on the last token that is kept, and on the one that is sampled. The comparison allows no
# tolerance:

# %%
from labkit.kernels.ops.sampling import SAMPLE

agree(SAMPLE, ["sample_bisection", "sample_split"], sizes=({"R": 12, "V": 36}, {"R": 6, "V": 260}))

# %% [markdown]
# The second rung, `histogram`, decides nine bits per pass: it counts and weighs the tokens in 512 bins, after which
# only one bin has to be searched, and that fits into shared memory. The third, `split`, spreads a row over several
# blocks, because otherwise a single row keeps only one of 132 SMs busy. PyTorch sorts. How much faster does each rung
# sample one row, and how much faster 256 of them?

# %%
ladders = {rows: measure.recorded_ladder("sample_top_p", {"R": rows, "V": 128_256}, gpu="NVIDIA H200")
           for rows in (1, 32, 256)}
table([(row.name.removeprefix("sample_"), *(1000 * ladder.rows[i].ms for ladder in ladders.values()))
       for i, row in enumerate(ladders[1].rows)],
      {"us on an H200, top_p alone": "", **{f"rows: {rows}": ",.0f" for rows in ladders}})

# %% [markdown]
# For one row the histogram is {{ us('sample_bisection', 1) / us(histogram, 1):.0f }} times as fast as 64 passes (a
# threshold has 64 bits here), and splitting the row another {{ us(histogram, 1) / us(split, 1):.0f }} times. With 256
# rows every SM has a row anyway, and splitting brings only a factor of {{ us(histogram, 256) / us(split, 256):.1f }}.
# PyTorch's sort takes {{ us(sort, 1) / us(split, 1):.0f }} times as long for one row, and
# {{ us(sort, 256) / us(split, 256):.0f }} times for 256.
#
# ## The same text in any batch
#
# And the random numbers? From a generator whose state all requests share, a request would get different ones as soon as
# another joins its batch. *Philox* has no state. It scrambles a counter with a key in ten rounds. The engine uses the
# token's position as the counter and the request's seed as the key, so a sample depends only on the seed, the position
# and the logits.
#
# Below, one request runs alone, then with others, and then with so little memory that it, the youngest, is preempted.
# Will the request write the same text three times?

# %%
from labkit.kernels.philox import philox_reference, seed_words

print("position 5, seed 1:", philox_reference((5, 0, 0, 0), seed_words(1)))
prompts = [f"<|user|>{question}<|end|><|assistant|>" for question in (
    "What is a hacker?", "Define foo, and bar, and whatever else comes to mind.", "What is a kludge?",
    "Tell me about the first computer bug.", "What does grok mean?")]
drawn = [SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=24, ignore_eos=True)
         for seed in range(len(prompts))]
small = LLM("tiny-llama", num_pages=10, max_num_seqs=8, max_model_len=128)
rows = []
for where, served_by, several in (("alone", llm, prompts[-1:]), ("with others", llm, prompts),
                                  ("10 pages", small, prompts)):
    last = served_by.generate(several, drawn[-len(several) :])[-1].outputs[0]
    rows.append((where, served_by.stats().preemptions, last.text))
table(rows, ["", "preemptions", "text of the last request"])

# %% [markdown]
# The same. On the CPU device its logits have the same bits each time. On a GPU their last bits may differ, as lesson 41
# said, and a random number close to the boundary between two intervals may then fall into the other one.
#
# ## Text as it comes
#
# Text should be shown while it is written. There are two catches. A token stands for a few *bytes*, and a character of
# several bytes may be spread over several tokens. And a stop string may begin in one token and end in another, so text
# that could still become part of it must be held back. A `Detokenizer` handles both. With the stop string `STOP`, for
# which of these tokens is nothing new shown?

# %%
from labkit.engine.detokenizer import Detokenizer

tokenizer = llm.get_tokenizer()
detokenizer = Detokenizer(tokenizer.decode, stop=["STOP"])
rows, shown, stopped = [], "", None
for token in tokenizer.encode("A naïve user → STOP and more", marks=False):
    stopped = stopped or detokenizer.push(token)
    now = detokenizer.text if stopped else detokenizer.safe
    rows.append((str(token), repr(tokenizer.decode([token])), repr(now[len(shown) :])))
    shown = now
    if stopped:
        break
table(rows, ["token", "its text", "new text shown"])

# %% [markdown]
# For the first one, and for those that end within a character. The last three characters are always held back, one
# fewer than the stop string has. A character of several bytes is only added when its last byte has come.
#
# ## The host
#
# A step has two halves: the host chooses the sequences and fills the buffer, and the device computes. Two techniques
# keep the device from waiting.
#
# *Graphs.* Launches that are captured once and replayed as a CUDA graph cost the host little (lesson 13). If each
# sequence of a step has one token, its launches depend on little more than the number of sequences. So that number is
# rounded up to a *bucket*, and each bucket has its graph. The page table, the ids and the parameters are read from the
# buffer, whose address stays the same. Steps with parts of prompts can have thousands of shapes. They are padded with
# empty rows and sequences to one of a few shapes, and each of these is captured when it occurs for the second time.
#
# *One step ahead*, as above. The next cell measures on this machine, without a model, what a step of 256 sequences
# costs the host, and draws it next to a device that needs 2.5 ms{{ example }} for a step. Will the host or the device
# set the pace?

# %%
import time

from labkit.course.drawings import the_engine as pictures
from labkit.engine.batch import BatchBuilder
from labkit.engine.block_manager import BlockManager
from labkit.engine.outputs import Sampled
from labkit.engine.scheduler import Scheduler
from labkit.engine.sequence import Request

scheduler = Scheduler(BlockManager(num_pages=4_000), max_num_seqs=256, max_num_batched_tokens=8_192)
builder = BatchBuilder(max_num_seqs=256, max_pages=16)
for number in range(256):
    scheduler.add(Request(str(number), [number] * 20, SamplingParams(max_tokens=100), max_length=200))
times = []
for _ in range(90):
    began = time.perf_counter()
    step = scheduler.schedule()
    builder.build(step, 256, 256)
    scheduler.receive(step, [Sampled(7)] * len(step.samples))
    times.append(time.perf_counter() - began)
host_us = 1e6 * min(times[1:])  # the quickest: other programs may be running
print(f"{host_us:,.0f} us a step for {len(step.samples)} sequences")
pictures.host_and_device(host_us, 2_500.0)

# %% [markdown]
# One after the other, each step takes the sum of both. Overlapped, it takes the longer of the two: if the host plans a
# step in less time than the device computes one, the host costs nothing.
#
# ## What I learned
#
# - A step is: schedule, launch, receive the previous step. The order of these three lines is what hides the host's
#   work.
# - A prefix of the sorted order needs no sort. A threshold describes it, and sums over the row find the threshold.
# - State that depends on the batch makes outputs irreproducible. Counters instead of a generator's state, and integers
#   instead of floats, make them reproducible.
#
# ## Resources
#
# - [J. Salmon et al.: Parallel Random Numbers: As Easy as 1, 2, 3 (2011)](https://doi.org/10.1145/2063384.2063405),
#   Philox
# - [G. Yu et al.: Orca (2022)](https://www.usenix.org/conference/osdi22/presentation/yu), continuous batching
# - [vLLM's documentation](https://docs.vllm.ai/), for the names that this engine shares with it
#
# ## Try it
#
# - Watch two requests, and add the second after the third call. When does it get its first token?
# - Give a request of the small engine another seed. Do the texts of the others change?
# - Let `LLM.stream` print a text as it is written, with a stop string in it, and abort a request half way.
#
# In the exercises for this lesson you predict what is sampled from seven tokens, find a threshold without a sort and
# sample with it, and write Philox from a blank page.
#
# Next: **the engine, measured**: what pages, continuous batching and larger steps are worth.

# %% [numbers]
# rung = lambda name, R: row('sample_top_p', name, R=R, V=128256)
# us = lambda name, R: rung(name, R).graph_us or rung(name, R).us
# histogram = 'sample_histogram'
# split = 'sample_split'
# sort = 'PyTorch (sort, softmax, cumulative sum)'
