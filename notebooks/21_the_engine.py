# %% [markdown]
# # 21 · The engine
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how many requests share one model: what a step is, which sequences run in it, and what happens when memory runs out
# - how a prompt that has been computed once is found again, and how several outputs share it
# - how a token is sampled on the GPU without sorting the vocabulary, and why a seed gives the same text in any batch
# - how an engine is tested: by random simulation against rules that must always hold
# - what all of it is worth, measured: which ideas pay, and which one did not
#
# ## The problem
#
# The last lessons built the parts: a Llama, pages for its keys and values, and attention over pages. Now requests
# arrive, at any time and of any length, and each should have its tokens soon. A step of the model reads all of its
# weights, whether it computes a token for one sequence or for a hundred, so one step should compute tokens of many
# requests. The *engine* decides which sequences run in a step, gives them pages, and samples their tokens. Ours uses
# the names of vLLM: a simple script for vLLM runs here when its import line is changed.

# %%
from labkit.engine import LLM, SamplingParams

llm = LLM("tiny-llama", num_pages=64, max_num_seqs=8)
params = SamplingParams(temperature=0.7, seed=1, max_tokens=24)
for output in llm.generate(["A hacker is", "kludge:", "The first computer bug"], params):
    print(repr(output.prompt), "->", repr(output.outputs[0].text))

# %% [markdown]
# ## Prediction
#
# Five requests arrive at once. Each has a short prompt and is to write forty tokens. When all of them have finished,
# they would hold about twice as many pages as the memory has, and the engine lets all five begin. Write down what it
# should do when a sequence needs a page and none is free. Which sequence should give way? And will its text differ from
# the one that it would have written alone?
#
# ## One step as data
#
# A step of the model takes arrays: the ids of the tokens, the position of each in its sequence, and the place of its
# keys and values in the cache. Here are two requests, with pages of four tokens and at most eight tokens a step. This
# is their *second* step:

# %%
from labkit.engine.batch import BatchBuilder
from labkit.engine.block_manager import BlockManager
from labkit.engine.outputs import Sampled
from labkit.engine.scheduler import Scheduler
from labkit.engine.sequence import Request

greedy = SamplingParams(temperature=0, max_tokens=8)
scheduler = Scheduler(BlockManager(num_pages=12, page_size=4), max_num_seqs=4, max_num_batched_tokens=8)
builder = BatchBuilder(max_num_seqs=4, max_pages=6, page_size=4)
for name, prompt in (("a", [11, 12, 13]), ("b", range(21, 31))):
    scheduler.add(Request(name, list(prompt), greedy, max_length=24))
builder.build(scheduler.schedule())
batch = builder.build(scheduler.schedule())
for name in ("ids", "positions", "slots", "begins", "lengths", "contexts", "last", "seats"):
    print(f"{name:10}", *(f"{number:4}" for number in getattr(batch, name)))
print("page_table", *batch.page_table.tolist())
print(f"{batch.buffer.nbytes} bytes, in one copy")

# %% [markdown]
# The first step computed the prompt of a and as much of b's as the budget left. In the second, a has one row, its next
# token, and b has the rest of its prompt. The first three lines have a number for each token, the others one for each
# sequence: its first row, its number of rows, how many tokens its attention covers, the row whose logits are needed,
# and the *seat*, a number that a sequence keeps as long as it runs, under which its next token is stored.
#
# The id −1 looks like a mistake. The host has not seen the token that was sampled for a in the first step, since it
# plans this step without waiting for that one. The token is on the device, at seat 0, and is encoded as −1 − seat; a
# small kernel, `fill_ids`, replaces it. All arrays, page tables and sampling parameters included, lie in one buffer, so
# that a step needs a single copy to the device. Every copy has a fixed cost, whatever its size.
#
# ## Which sequences run
#
# Before you read on: three sequences are in the middle of their outputs, and a request with a long prompt arrives.
# Should the prompt be computed at once, or wait until there is less to do?

# %%
from labkit import show_source

show_source(Scheduler.schedule)

# %% [markdown]
# Neither. Running sequences come first, with one token for each that decodes. What is left of the token budget goes to
# prompts, and a prompt that does not fit is cut into *chunks*. Here is the same traffic with a budget so large that no
# prompt is ever cut, and with a small one. (`simulate` is the same scheduler without a model.)

# %%
from labkit.engine.simulation import Work, simulate
from labkit.measure.plots import schedules as pictures

traffic = [Work(6, 24), Work(9, 30), Work(4, 28, arrival=2), Work(120, 12, arrival=8), Work(5, 20, arrival=12)]
pictures.tokens_of_steps({f"a budget of {budget:,}": simulate(traffic, max_num_batched_tokens=budget)
                          for budget in (2048, 24)})

# %% [markdown]
# For a reader of one of the running texts, the time between two tokens is the length of a step. Without chunks, all of
# them wait while the long prompt is computed. With chunks no step has more than 24 tokens, and the long prompt's first
# token comes five steps later. On a GPU the budget is larger, so that a chunk has enough rows for the tensor cores.
#
# ## When the pages run out
#
# How many pages a request needs is not known when it arrives, since its output may end at any token. Reserving pages
# for the longest possible output would leave much of the memory empty. This engine admits a request when there are
# pages for its prompt, and a spare one for each running sequence. That can go wrong. Here it does, with the five
# requests from the prediction:

# %%
from labkit.engine.model_runner import ModelRunner
from labkit.engine.recording import RecordingScheduler
from labkit.models.load import load

loaded = load("tiny-llama")


def engine(pages, **options):
    runner = ModelRunner(loaded.model, num_pages=pages, max_num_seqs=8, max_num_batched_tokens=32)
    return LLM(runner, loaded.tokenizer, max_num_seqs=8, max_num_batched_tokens=32,
               scheduler=RecordingScheduler, **options)


questions = ["What is a hacker?", "Define foo, and bar, and whatever else comes to mind.", "What is a kludge?",
             "Tell me about the first computer bug.", "What does grok mean?"]
prompts = [f"<|user|>{question}<|end|><|assistant|>" for question in questions]  # as its chat template writes them
forty = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
small = engine(pages=10)
together = small.generate(prompts, forty)
stats = small.stats()
print(f"{stats.steps} steps, {stats.preemptions} preemptions, {stats.generated} tokens sampled; "
      f"{stats.pages - stats.free_pages} pages held at the end")
print(questions[0], "->", repr(together[0].outputs[0].text))
pictures.requests_over_steps(small.engine.scheduler.history, pages=10)

# %% [markdown]
# The *youngest* sequence gives way. It returns all of its pages and waits. When there are enough pages again, its
# prompt and the output so far are computed again, as if together they were a prompt. This is *preemption by
# recomputation*. A few large chunks need far fewer steps than these tokens took the first time, and often there is less
# to compute: pages that were not given to others in the meantime still hold their contents, and are used again.
#
# Requests are served in the order of their arrival, and the oldest one is never preempted. It finishes, the next one
# becomes the oldest, and so none waits for ever. And the texts?

# %%
plenty = engine(pages=64)
alone = [plenty.generate(prompt, forty)[0] for prompt in prompts]
for question, one, other in zip(questions, together, alone, strict=True):
    pairs = zip(one.outputs[0].token_ids, other.outputs[0].token_ids, strict=True)
    apart = next((place for place, (here, there) in enumerate(pairs) if here != there), None)
    print(f"{question!r:58} {'as alone' if apart is None else f'differs from token {apart} on'}")

# %% [markdown]
# The engine has to give the model the same tokens at the same positions as for each request alone. Whether the logits
# then have the same bits depends on the order in which the kernels add. On the CPU device that order never depends on
# what else is in a step. On a GPU the linear layers use a different kernel when a step has more than a few rows, and a
# prompt takes a different attention kernel than a single token. There the last bits of a logit may differ, and where
# two tokens are almost equally likely, a greedy text may go on with the other one.
#
# ## A prompt that was computed before
#
# Many requests begin with the same instructions, or with the same conversation so far, and their first pages would hold
# the same keys and values. To find such pages, each full page gets a *digest* of its tokens and of the digest of the
# page before it:

# %%
show_source(BlockManager._digest)

# %% [markdown]
# Why chain them? The keys and values of a token depend on all tokens before it. A page with the same sixteen tokens
# after a different beginning holds different numbers, and must not be found.
#
# Predict the last column: how many tokens of each prompt are found? The fourth request differs from the first in its
# first word.

# %%
instructions = ("You answer questions about words that hackers use, in one sentence, without any jokes. "
                "Never say where a word comes from, and do not repeat the question. ")
asked = [instructions + "What is a kludge?", instructions + "What is a kludge?",
         instructions + "What is a hack?", "Please: " + instructions + "What is a kludge?"]
print(f"{'prompt':44}{'tokens':>8}{'found':>8}")
for text in asked:
    (output,) = plenty.generate(text, SamplingParams(temperature=0, max_tokens=4))
    begin_and_end = f"{text[:14]} ... {text[-20:]}"
    print(f"{begin_and_end:44}{len(output.prompt_token_ids):8}{output.num_cached_tokens:8}")

# %% [markdown]
# Only full pages are found. Where a prompt ends with a full page, that page is computed all the same: the next token is
# sampled from the logits of the last token, and logits are not kept.
#
# Free pages keep their contents until they are needed for something else; the one that was released longest ago is
# reused first. A *reference count* says how many sequences hold a page. Here are two requests with the same beginning,
# and a third that needs all of the memory:

# %%
def show(blocks, sequences, note):
    for one in sequences:
        held = ", ".join(f"page {page} ({blocks.references(page)})" for page in one.pages)
        print(f"{note:26}{one.request.request_id}/{one.index}: {held}")
        note = ""


def advance(scheduler):
    """A step without a model: every sampled token is 7."""
    step = scheduler.schedule()
    for sequence, _ in scheduler.receive(step, [Sampled(7)] * len(step.samples)):
        if reason := sequence.ended_by_last():
            scheduler.finish(sequence, reason)
    return step


blocks = BlockManager(num_pages=8, page_size=4)
scheduler = Scheduler(blocks)
prompt = list(range(30, 40))
for name, begin in (("a", prompt), ("b", [*prompt, 50, 51])):
    scheduler.add(Request(name, begin, SamplingParams(max_tokens=3), max_length=32))
advance(scheduler)
show(blocks, scheduler.running, "a and b run (references)")
while scheduler.has_unfinished():
    advance(scheduler)
print(f"both have ended:          {blocks.num_free} pages are free, {blocks.num_cached} of them can be found")
scheduler.add(Request("c", list(range(60, 90)), SamplingParams(max_tokens=2), max_length=32))
advance(scheduler)
print(f"c has taken its pages:    {blocks.num_free} pages are free; of a's prompt, "
      f"{4 * len(blocks.cached_prefix(Request('d', prompt, greedy, max_length=32).sequences[0]))} tokens are found")

# %% [markdown]
# a and b were admitted in the same step, and b already shares a's first pages, though that very step writes them: in
# each layer, all keys and values of a step are written before its attention reads any.
#
# ## Several outputs of one prompt
#
# A request with n = 3 has three outputs. Their prompt is computed once, and all three hold its pages. Predict: how
# many pages do they hold in all, with a prompt of ten tokens and pages of four, before and after each has written a
# token?

# %%
blocks = BlockManager(num_pages=12, page_size=4)
scheduler = Scheduler(blocks)
scheduler.add(Request("a", prompt, SamplingParams(n=3, max_tokens=6), max_length=32))
advance(scheduler)
show(blocks, scheduler.running, "after the prompt")
step = advance(scheduler)
show(blocks, scheduler.running, "one token later")
print("copied first (from, to):", *step.copies)

# %% [markdown]
# Full pages are only read and stay shared. The last page of the prompt has places left, and each output has to write
# its own token into the first of them. So the page is copied for the first two that write (*copy on write*). By then
# the third is the only holder of the original, and keeps it.
#
# ## Sampling a token
#
# The logits are on the GPU, one for each token of the vocabulary in each row. Sorting them there takes long, and so
# does copying them to the host. But only a prefix of the sorted order is needed: `top_k` keeps the first k tokens,
# `top_p` as many as together reach the probability p, `min_p` those that are at least min_p times as likely as the
# first. Such a prefix is described by its last member, a *threshold*, and a sum over the row shows whether a threshold
# is too high. So the sort becomes a search:

# %%
import numpy as np

from labkit.kernels.sampling_reference import kept_reference, weights_reference

logits = (2.5 * np.random.default_rng(0).standard_normal(128_256)).astype(np.float32)
weights = weights_reference(logits, 1.0)  # whole numbers: 2**43 for the most likely token
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
# The first kernel of the ladder does just that, one bit of the threshold in each pass, and is slower than PyTorch's
# sort. The second makes a histogram of the row and searches only one bin of it. The third spreads a row over several
# blocks. The weights are *whole
# numbers* for a reason: a sum of whole numbers is the same in any order, so a GPU, the CPU device and NumPy agree on
# the last token that is kept, and on the one that is sampled. The comparison below allows no tolerance:

# %%
from labkit import agree
from labkit.kernels.penalties import PENALISE
from labkit.kernels.sampling import SAMPLE

agree(SAMPLE, ["sample_bisection", "sample_split"], sizes=({"R": 12, "V": 36}, {"R": 6, "V": 260}))

# %%
from labkit import measure

series = measure.recorded_ladder("sample_top_p", gpu="NVIDIA H200")
print("top-p on the H200:", "" if series else "not recorded yet")
for row in series.rows if series else ():
    print(f"    {row.name:40}{row.timing.p50:8.3f} ms for {series.size['R']} rows of {series.size['V']:,} logits")

# %% [markdown]
# And the random numbers? From one generator with a state, a request would get different numbers as soon as another one
# joins its batch. *Philox* has no state. It scrambles a counter with a key in ten rounds; the engine takes the token's
# position as the counter and the request's seed as the key. So a sample depends on the seed, the position and the
# logits, and on nothing else. Below, the same request runs alone, then with others, and then with so little memory that
# it is preempted, as the youngest:

# %%
from labkit.kernels.philox import philox_reference, seed_words

print("position 5, seed 1:", philox_reference((5, 0, 0, 0), seed_words(1)))
drawn = [SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=24, ignore_eos=True)
         for seed in range(len(prompts))]
for where, llm, several in (("alone", plenty, prompts[-1:]), ("with others", plenty, prompts),
                            ("10 pages", engine(pages=10), prompts)):
    last = llm.generate(several, drawn[-len(several) :])[-1].outputs[0]
    print(f"{where:12}{llm.stats().preemptions} preemptions  {last.text!r}")

# %% [markdown]
# *Penalties* change the logits before anything else. `presence_penalty` is subtracted from the logit of each token that
# is already in the output, `frequency_penalty` once for each time that it occurs there; `repetition_penalty` is a
# factor that makes tokens of the prompt and of the output less likely. The counts are kept on the device, a row for
# each seat.

# %%
agree(PENALISE, sizes=({"R": 3, "V": 33},))

# %% [markdown]
# ## Text as it comes
#
# Text should be shown while it is written. That has two catches. A token is a piece of *bytes*, and a character may be
# spread over several tokens. And a stop string may begin in one token and end in another, so nothing may be shown that
# could still become a part of it. Predict for which tokens nothing new is shown:

# %%
from labkit.engine.detokenizer import Detokenizer

tokenizer = plenty.get_tokenizer()
text = "A naïve user → STOP and more"
detokenizer = Detokenizer(tokenizer.decode, stop=["STOP"])
shown = ""
for token in tokenizer.encode(text, marks=False):
    stopped = detokenizer.push(token)
    now = detokenizer.text if stopped else detokenizer.safe
    print(f"token {token:5}  {tokenizer.decode([token])!r:12} shows {now[len(shown):]!r}")
    shown = now
    if stopped:
        print(f"ended by {stopped!r}: {now!r}")
        break

# %% [markdown]
# The last three characters are always held back, one fewer than the stop string has. A character of several bytes only
# joins them when its last byte has come.
#
# ## The host
#
# A step has two parts: the host chooses the sequences and fills the buffer, the device computes. Two measures keep the
# device from waiting.
#
# *Graphs.* The launches of a step in which each sequence has one token depend only on the number of sequences. So that
# number is rounded up to a *bucket*, and for each bucket the launches are captured once as a CUDA graph. The page
# table, the ids and the parameters are read from the buffer, whose address stays the same. A step that has part of a
# prompt is launched kernel by kernel.

# %%
from labkit.engine.runner import bucket, buckets

print(f"{len(buckets(256))} graphs for up to 256 sequences:", *buckets(256))
print("rows of padding:", {count: bucket(count, 256) - count for count in (1, 5, 32, 33, 100)})

# %% [markdown]
# *One step ahead.* The host plans step n + 1 while step n runs. It knows how many tokens step n will sample, and their
# ids are on the device. Here is what a step of 256 sequences costs the host, measured on this machine without a model,
# and what planning ahead would save beside a device that needs 2.5 ms for a step. The longer of the two sets the pace:

# %%
import time

scheduler = Scheduler(BlockManager(num_pages=4_000), max_num_seqs=256, max_num_batched_tokens=8_192)
builder = BatchBuilder(max_num_seqs=256, max_pages=16)
for number in range(256):
    scheduler.add(Request(str(number), [number] * 20, SamplingParams(max_tokens=100), max_length=200))
times = []
for _ in range(30):
    began = time.perf_counter()
    step = scheduler.schedule()
    builder.build(step, 256, 256)
    scheduler.receive(step, [Sampled(7)] * len(step.samples))
    times.append(time.perf_counter() - began)
host_us = 1e6 * float(np.median(times[1:]))
print(f"{host_us:,.0f} us a step for {len(step.samples)} sequences")
pictures.host_and_device(host_us, 2_500.0)

# %% [markdown]
# There is a small price. If a sequence turns out to have ended with step n, its token of step n + 1 is discarded:

# %%
for overlap in (True, False):
    llm = engine(pages=64, overlap=overlap)
    whole = llm.generate("A hacker is", forty)[0].outputs[0].text
    stopped = SamplingParams(temperature=0, max_tokens=40, stop=whole[20:24])
    output, _ = llm.generate(["A hacker is", "kludge:"], [stopped, forty])
    print(f"overlap {overlap!s:6} {output.outputs[0].text!r} before {stopped.stop[0]!r}; "
          f"{llm.stats().discarded} discarded")

# %% [markdown]
# ## Rules that must always hold
#
# An engine fails in combinations: a request is aborted in the very step in which its prompt becomes shared, while
# another one is preempted. Tests written by hand cover few of them. So the cases are random, and what is written down
# are the rules: each page's reference count is the number of its holders, a page that is being filled has one holder,
# and every request ends. To see whether the rules catch anything, the same cases also run with a mistake in the engine.

# %%
import random
from collections import Counter


def broken_rule(seed, block_manager=BlockManager):
    """The first rule that a random case breaks; None if all hold."""
    rng = random.Random(seed)
    blocks = block_manager(rng.randint(6, 16), page_size=4)
    scheduler = Scheduler(blocks, max_num_seqs=rng.randint(1, 5), max_num_batched_tokens=rng.randint(1, 12))
    requests = [Request(str(number), list(range(rng.randint(1, 10))),
                        SamplingParams(n=rng.randint(1, 3), max_tokens=rng.randint(1, 10)), max_length=20)
                for number in range(rng.randint(1, 8))]
    for request in requests:
        scheduler.add(request)
    for _ in range(1_000):
        if not scheduler.has_unfinished():
            return None
        for chunk in advance(scheduler).chunks:
            last, places = divmod(chunk.begin + chunk.length, 4)
            written = chunk.sequence.pages[last : last + 1] if places else []  # a page that is not full yet
            if len(chunk.samples) < 2 and any(blocks.references(page) > 1 for page in written):
                return "a page that is being filled has two holders"
        if rng.random() < 0.1:
            scheduler.abort(rng.choice(requests))
        held = Counter(page for sequence in scheduler.running for page in sequence.pages)
        if any(blocks.references(page) != held[page] for page in range(blocks.num_pages)):
            return "a page is not held as often as it is counted"
        if blocks.num_free != blocks.num_pages - len(held):
            return "a page is lost"
    return "a request never ends"


class NeverCopies(BlockManager):
    def _writes_shared(self, sequence):
        return False


class LosesPages(BlockManager):
    def release(self, sequence):
        if len(sequence.pages) == 3:  # mistakes hide in special cases
            sequence.pages.pop()
        super().release(sequence)


for kind in (BlockManager, NeverCopies, LosesPages):
    found = Counter(broken_rule(seed, kind) for seed in range(200))
    print(f"{kind.__name__:14}", *(f"{count:4} x {rule or 'all rules hold'};" for rule, count in found.items()))

# %% [markdown]
# Both mistakes are found, each by a different rule. Neither raises an error of its own: a text would be wrong, or the
# memory would slowly fill. The course's tests go further. The library *hypothesis* chooses what happens in each step,
# and reduces a failing case to a small one. A model of whole numbers takes the place of the Llama: the "keys and
# values" of a token are a hash of all tokens before it, written into pages, so that one wrong page, slot or copy
# changes everything after it. With it the tests check that each output equals that of the request alone, for random
# arrivals, lengths, stops, aborts and sizes of memory.
#
# ## The whole, measured
#
# How fast can it be? A decode step reads all weights once and, for each sequence, its keys and values. Before you run
# the cell, guess for Llama 3.2 1B in bfloat16 with 1,024 tokens in each sequence: how many sequences does it take until
# keys and values are half of the bytes?

# %%
from labkit.models import llama

shape = llama.Config(vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                     num_attention_heads=32, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True)
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
of_token = 2 * 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim  # bytes of K and V
print(f"{'sequences':>10}{'weights, MB':>13}{'K and V, MB':>13}{'ms':>8}{'tokens/s':>11}   at {bandwidth:,.0f} GB/s")
for count in (1, 8, 32, 64, 128, 256):
    weights, cached = 2 * shape.parameters, count * 1_024 * of_token
    ms = (weights + cached) / bandwidth / 1e6
    print(f"{count:10}{weights / 1e6:13,.0f}{cached / 1e6:13,.0f}{ms:8.2f}{1e3 * count / ms:11,.0f}")

# %% [markdown]
# The first column of bytes is the reason for batches, the second one the reason for pages: what limits the batch is the
# memory for keys and values. Below, the same steps as measured, in a CUDA graph, with random weights. PyTorch runs the
# same model on the same numbers, in a graph as well, as it is and through `torch.compile`:

# %%
from labkit.measure.plots import engine as runs

decode, prefill = (measure.recorded_series(name, gpu="NVIDIA H200") for name in ("llama_decode", "llama_prefill"))
print(f"{'ms':>16}{'bytes':>9}{'here':>9}{'PyTorch':>9}{'compiled':>9}{'launch by launch':>19}")
for row in (*decode["rows"], *prefill["rows"]):
    what = f"batch of {row['sequences']}" if "sequences" in row else f"prompt of {row['tokens']:,}"
    bound = f"{row['bound_ms']:9.2f}" if "bound_ms" in row else " " * 9
    theirs = [*(row["torch"] or {}).values()] or ["", ""]
    called = f"{row['called_ms']:18.2f}" if "tflops" in row else ""
    print(f"{what:>16}{bound}{row['ms']['p50']:9.2f}", *(f"{ms:8.2f}" if ms else " " * 8 for ms in theirs), called)
runs.decode_steps(decode, None)

# %% [markdown]
# *Called from Python* is what the engine sees of such a step: filling the buffer and the copies there and back come on
# top. For one sequence a step takes 1.01 ms, and its bytes need 0.59. It has 136 launches, so the difference is 3 us
# for each of them. Some of that is in the nature of a launch: the memory is idle until its first loads arrive and after
# the last ones have. With 256 sequences the step reaches 68% of the bound.
#
# PyTorch without compiling takes about twice as long for one sequence. The compiled step is the one to beat: ours is
# faster for one sequence, takes 6% longer for 32 and 12% longer for 256. Prompts come out even, at 526 and 545 TFLOP/s.
# The smallest cosine between the logits of the two is 0.98. Look at the last column, too: launched one by one from
# Python, as the engine does with a step that has part of a prompt, both prompts take 32 ms longer.
#
# Now the whole engine: 128 requests at once, with prompts and outputs of 100 to 1,024 tokens. Two runs have memory for
# all of them, the other four 4,096 pages and not 16,384. With a contiguous cache, where each sequence owns memory for
# 2,048 tokens, that is enough for 32 at a time. Predict which gains more there: pages, or continuous batching?

# %%
served = measure.recorded_series("engine", gpu="NVIDIA H200")
print(f"{served['prompt_tokens']:,} tokens of prompts, {served['output_tokens']:,} of outputs")
print(f"{'':26}{'tokens/s':>9}{'steps':>7}{'admit':>7}{'ms: p50':>9}{'p99':>7}{'sequences':>11}{'preempted':>11}"
      f"{'host':>6}")
for row in served["rows"]:
    admit = len(set(row["spans"]["begin"]))  # steps in which a sequence begins
    print(f"{row['name']:26}{row['tokens_per_second']:9,.0f}{row['steps']:7,}{admit:7}{row['step_ms']['p50']:9.2f}"
          f"{row['step_ms']['p99']:7.1f}{row['mean_sequences']:11.0f}{row['preemptions']:11}{row['host_share']:6.0%}")
runs.seats(served)

# %% [markdown]
# *Pages* gain most. In the same memory up to 102 sequences run in place of 32, and the engine writes 1.5 times as many
# tokens a second in static batches, 1.6 times as many continuously. Some sequences are preempted for it, and what they
# had is computed again.
#
# *Continuous batching* does what it should: seats are empty for 10% of the time and not for 42%, and a third of the
# steps are saved. Yet the run took longer, 7.8 s and not 7.0. The reason is in the columns. A static batch admits its
# prompts together, in 39 steps for all four batches. When each seat is filled as it becomes free, 106 steps admit a
# prompt. Such a step is launched kernel by kernel, and where a decode step takes 1.5 ms, the 99th percentile is 37. If
# every step took the median, this run would end after 4.1 s, and the static one after 5.9. With pages the two ways are
# about even. Continuous batching had fewer steps, but more of the expensive kind.
#
# *Larger steps* show the same. A budget of 8,192 tokens, not 2,048, admits all prompts in 10 steps, not 39, and writes
# 28,793 tokens a second, not 16,159. Nearly all requests have their first token within 0.4 s, not 2.0: 41 ms for each
# of those steps, and 52 ms for each of the smaller ones. By the rate of prompts in a graph, 2,048 tokens are 8 ms of
# work.
#
# The column *host* is the part of the time in which the host did not wait for the device. In decode steps it stays
# hidden: with larger steps, half of the steps take less than 2.26 ms, for 70 sequences on average, and the graph alone
# needs 1.88 ms for 64 and 2.59 for 128. Where a prompt is admitted it does not. Making such steps cheaper, by graphs
# for chunks or by cheaper launches, would be the next thing to do.
#
# And before any of that a process has to start. With compiled kernels in the cache, its first token comes after 2.8 s:
# 0.8 s of imports, 1.8 s for a model of 2.5 GB from a file that the host still has in memory, and 0.1 s for the step.
#
# An engine in production has more of everything around this: models that are spread over several GPUs, weights of fewer
# bits, drafts by a small model that the large one checks several tokens at a time, prefill and decode on different
# machines, priorities, outputs that follow a grammar, and a server with metrics. The core is the same: a scheduler over
# pages, a step as data, and rules that always hold.
#
# How much of it depends on Llama? The runner calls `model.forward(step, cache, workspace)` and reads the number of
# layers and heads from the configuration. Qwen3, with its norms of queries and keys, runs through the same engine
# without a line of it changed. An engine for a single model could fuse more.
#
# ## What was implemented
#
# - a scheduler with a token budget, chunked prefill, admission, and preemption by recomputation
# - pages with reference counts, a prefix cache with chained digests, copy on write
# - sampling on the device with a seed for each request; penalties, stop strings, streaming
# - CUDA graphs by bucket, and a host that plans one step ahead
#
# ## What I learned
#
# - An engine is bookkeeping, and its mistakes are silent. The rules that must hold are worth more than any single test.
# - State that depends on the batch makes outputs irreproducible. A counter instead of a generator, and whole numbers
#   instead of floats, remove it.
# - Memory is not wasted if it is not promised early: pages are given when they are needed, and taken back if need be.
# - A better schedule pays only if its steps cost the same. The steps that were not in a graph cost more than the empty
#   seats that they avoided.
#
# ## Resources
#
# - [W. Kwon et al.: PagedAttention (2023)](https://arxiv.org/abs/2309.06180), pages and preemption
# - [A. Agrawal et al.: Sarathi-Serve (2024)](https://arxiv.org/abs/2403.02310), chunked prefill
# - [G. Yu et al.: Orca (2022)](https://www.usenix.org/conference/osdi22/presentation/yu), continuous batching
# - [J. Salmon et al.: Parallel Random Numbers: As Easy as 1, 2, 3 (2011)](https://doi.org/10.1145/2063384.2063405),
#   Philox
# - [vLLM's documentation](https://docs.vllm.ai/), and [nano-vllm](https://github.com/GeeeekExplorer/nano-vllm), an
#   engine that can be read in an evening
#
# ## Try it
#
# - Give the small engine two pages fewer, and then more, and look at the figure. How few pages can it work with?
# - Let `LLM.stream` print a text as it is written, with a stop string in it, and abort a request half way.
# - Write a scheduler that preempts the *oldest* sequence (override `_make_pages`), and a rule that it breaks.
# - With a GPU: `labkit bench engine` takes these measurements. Let a scheduler wait until four seats are free before it
#   admits the next prompts. Does continuous batching pay then?
#
# In the exercises for this lesson you write the search of the prefix cache and the scheduler's step, follow a
# preemption by hand, find a threshold without a sort and sample with it, and write Philox from a blank page.
