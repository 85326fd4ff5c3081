# %% [markdown]
# # 42 · The engine
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a token is sampled on the GPU without sorting the vocabulary, and why a seed gives the same text in any batch
# - how text is shown while it is written, and how the host stays ahead of the device
# - what pages, continuous batching and larger steps are worth, measured

# %% [markdown]
# ## The problem
#
# The scheduler of the last lesson decides which rows a step computes, and the model turns them into logits: for each
# sequence, a number for each token of the vocabulary. The *engine* makes texts of them. It samples a token from each
# row of logits, shows the text while it is being written, and prepares the next step before this one has ended. Ours
# uses the names of vLLM: a simple script for vLLM runs here when its import line is changed.

# %%
from labkit.engine import LLM, SamplingParams

llm = LLM("tiny-llama", num_pages=64, max_num_seqs=8)
params = SamplingParams(temperature=0.7, seed=1, max_tokens=24)
for output in llm.generate(["A hacker is", "kludge:", "The first computer bug"], params):
    print(repr(output.prompt), "->", repr(output.outputs[0].text))

# %% [markdown]
# ## Prediction
#
# A request with a seed runs alone, then together with others, and then with so little memory that it is preempted. Its
# text should be the same each time. Write down why a generator of random numbers that all requests share cannot do
# that, and what could.
#
# Then think of 128 requests to a Llama of a billion parameters. With a contiguous cache, the memory is enough for 32 of
# them at a time. Which raises the number of tokens per second more: a cache in pages, or continuous batching, which
# fills a seat as soon as it is free?

# %% [markdown]
# ## Sampling a token
#
# The logits are on the GPU, one for each token of the vocabulary in each row. Sorting them there takes long, and so
# does copying them to the host. But only a prefix of the sorted order is needed: `top_k` keeps the first k tokens,
# `top_p` as many as it takes to reach the probability p, `min_p` those that are at least min_p times as likely as the
# first. Such a prefix is described by its last member, a *threshold*, and a sum over the row shows whether a threshold
# is too high. So the sort becomes a search. How many passes over a row of 128,256 logits do you expect it to take?

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
# The first kernel of the ladder does just that, one bit of the threshold in each pass. The second makes a histogram of
# the row and searches only one bin of it. The third spreads a row over several blocks. One more pass samples the token:
# laid end to end, the weights that are kept are intervals, and a random number below their sum falls into one of them.
#
# The weights are *whole numbers* for a reason: a sum of whole numbers is the same in any order, so a GPU, the CPU
# device and NumPy agree on the last token that is kept, and on the one that is sampled. The comparison allows no
# tolerance:

# %%
from labkit import agree
from labkit.kernels.ops.sampling import SAMPLE

agree(SAMPLE, ["sample_bisection", "sample_split"], sizes=({"R": 12, "V": 36}, {"R": 6, "V": 260}))

# %% [markdown]
# Before all that, *penalties* change the logits: they make tokens that are already in the text less likely.

# %%
from labkit.kernels.ops.penalties import PENALISE

agree(PENALISE, sizes=({"R": 3, "V": 33},))

# %% [markdown]
# ## The same text in any batch
#
# And the random numbers? From a generator whose state all requests share, a request would get different numbers as soon
# as another one joins its batch. *Philox* has no state. It scrambles a counter with a key in ten rounds; the engine
# takes the token's position as the counter and the request's seed as the key. So a sample depends on the seed, the
# position and the logits, and on nothing else. Below, one request runs alone, then with others, and then with so little
# memory that it is preempted, as the youngest. On the CPU device its logits are the same each time. (On a GPU their
# last bits may differ, as the last lesson said, and a random number close to the border of two intervals may then fall
# into the other one.) Will it write the same text three times?

# %%
from labkit.kernels.philox import philox_reference, seed_words

print("position 5, seed 1:", philox_reference((5, 0, 0, 0), seed_words(1)))
prompts = [f"<|user|>{question}<|end|><|assistant|>" for question in (
    "What is a hacker?", "Define foo, and bar, and whatever else comes to mind.", "What is a kludge?",
    "Tell me about the first computer bug.", "What does grok mean?")]
drawn = [SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=24, ignore_eos=True)
         for seed in range(len(prompts))]
small = LLM("tiny-llama", num_pages=10, max_num_seqs=8, max_model_len=128)
for where, served_by, several in (("alone", llm, prompts[-1:]), ("with others", llm, prompts),
                                  ("10 pages", small, prompts)):
    last = served_by.generate(several, drawn[-len(several) :])[-1].outputs[0]
    print(f"{where:12}{served_by.stats().preemptions} preemptions  {last.text!r}")

# %% [markdown]
# ## Text as it comes
#
# Text should be shown while it is written. That has two catches. A token stands for a few *bytes*, and a character of
# several bytes may be spread over several tokens. And a stop string may begin in one token and end in another, so
# nothing may be shown that could still become a part of it. Predict for which tokens nothing new is shown:

# %%
from labkit.engine.detokenizer import Detokenizer

tokenizer = llm.get_tokenizer()
detokenizer = Detokenizer(tokenizer.decode, stop=["STOP"])
shown, stopped = "", None
for token in tokenizer.encode("A naïve user → STOP and more", marks=False):
    stopped = stopped or detokenizer.push(token)
    now = detokenizer.text if stopped else detokenizer.safe
    print(f"token {token:5}  {tokenizer.decode([token])!r:12} shows {now[len(shown):]!r}")
    shown = now
    if stopped:
        break

# %% [markdown]
# The last three characters are always held back, one fewer than the stop string has. A character of several bytes only
# joins them when its last byte has come.

# %% [markdown]
# ## The host
#
# A step has two parts: the host chooses the sequences and fills the buffer, the device computes. Two measures keep the
# device from waiting.
#
# *Graphs.* Launches that are captured once and replayed as a CUDA graph cost the host little, as in lesson 13. The
# launches of a step in which each sequence has one token depend only on the number of sequences. So that number is
# rounded up to a *bucket*, and each bucket has its graph. The page table, the ids and the parameters are read from the
# buffer, whose address stays the same. Steps with parts of prompts can have thousands of shapes. They are padded with
# empty rows and sequences to one of a few shapes, and each of these is captured when it is needed for the second time.
#
# *One step ahead.* The host plans step n + 1 while step n runs. It knows how many tokens step n will sample, and their
# ids are on the device. (If a sequence turns out to have ended with step n, its token of step n + 1 is discarded.) Here
# is what a step of 256 sequences costs the host, measured on this machine without a model, and what planning ahead
# would save beside a device that needs 2.5 ms{{ example }} for a step. Will the host or the device set the pace?

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
# ## What I learned
#
# - A prefix of the sorted order needs no sort. A threshold describes it, and sums over the row find the threshold.
# - State that depends on the batch makes outputs irreproducible. A counter instead of a generator, and whole numbers
#   instead of floats, remove it.
# - The host's work is hidden as long as it plans a step in less time than the device needs for one.
# - A better schedule pays only if its steps cost about the same. Launched one by one through Numba, the steps with
#   prompts cost more than the empty seats that they avoided; as graphs they do not.

# %% [markdown]
# ## Resources
#
# - [J. Salmon et al.: Parallel Random Numbers: As Easy as 1, 2, 3 (2011)](https://doi.org/10.1145/2063384.2063405),
#   Philox
# - [G. Yu et al.: Orca (2022)](https://www.usenix.org/conference/osdi22/presentation/yu), continuous batching
# - [vLLM's documentation](https://docs.vllm.ai/), for the names that this engine shares with it

# %% [markdown]
# ## Try it
#
# - Give a request of the small engine another seed. Do the texts of the others change?
# - Let `LLM.stream` print a text as it is written, with a stop string in it, and abort a request half way.
# - With a GPU: `labkit bench engine` takes these measurements. Let a scheduler wait until four seats are free before it
#   admits the next prompts. Is continuous batching faster then?
#
# In the exercises for this lesson you predict what is sampled from seven tokens, find a threshold without a sort and
# sample with it, and write Philox from a blank page.
#
# Next: **serving**, where the engine gets an API and strangers send it requests.

# %% [numbers]
# one = series.llama_decode.rows[0]
# some = series.llama_decode.rows[5]
# most = series.llama_decode.rows[8]
# compiled = 'compiled, in a graph'
# prefill = series.llama_prefill.rows
# runs = series.engine.rows
# larger = 'all at once, larger steps'
# admit = {run.name: len({begin for begin in run.spans.begin}) for run in runs}
# busy = {run.name: sum(run.spans.end) - sum(run.spans.begin) for run in runs}
# idle = {run.name: 1 - busy[run.name] / (run.seconds * run.seats) for run in runs}
# launch_us = 1000 * (one.ms.p50 - one.bound_ms) / one.launches
# eager_slowdown = one.torch['eager, in a graph'] / one.ms.p50
# faster_to_32 = one.ms.p50 < one.torch[compiled] and some.ms.p50 < some.torch[compiled]
# longer_at_256 = most.ms.p50 / most.torch[compiled] - 1
# prompts_within = all([abs(row.ms.p50 / row.torch[compiled] - 1) < 0.04 for row in prefill])
# called_alike = all([abs(row.called_ms / row.ms.p50 - 1) < 0.05 for row in prefill])
# least_cosine = min(each.cosine for each in (one, *prefill))
# cosines_equal = round(one.to_float32.ours, 4) == round(one.to_float32.torch, 4)
# pages_sequences = runs['pages, static'].most_sequences
# contiguous_sequences = runs['contiguous, static'].most_sequences
# static_gain = runs['pages, static'].tokens_per_second / runs['contiguous, static'].tokens_per_second
# continuous_gain = runs['pages, continuous'].tokens_per_second / runs['contiguous, continuous'].tokens_per_second
# steps_saved = 1 - runs['contiguous, continuous'].steps / runs['contiguous, static'].steps
# continuous_s = runs['contiguous, continuous'].seconds
# below_promise = (0.8 < runs['contiguous, static'].seconds / runs['contiguous, continuous'].seconds *
#                  runs['contiguous, continuous'].steps / runs['contiguous, static'].steps < 1)
# continuous_ms = runs['contiguous, continuous'].step_ms.p50
# static_ms = runs['contiguous, static'].step_ms.p50
# p99_ms = runs['contiguous, continuous'].step_ms.p99
# pages_gain = runs['pages, static'].seconds / runs['pages, continuous'].seconds
# pages_running = runs['pages, continuous'].most_sequences
# unlimited_rate = runs['all at once'].tokens_per_second
# larger_first_s = runs[larger].first_token_ms.p99 / 1000
# unlimited_first_s = runs['all at once'].first_token_ms.p99 / 1000
# bytes_ms = series.llama_decode.rows[6].bound_ms
# transformers_rate = series.engine.transformers.tokens_per_second
