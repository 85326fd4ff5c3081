# %% [markdown]
# # 27 · The engine
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how many requests share one model: what a step is, which sequences run in it, and what happens when memory runs out
# - how a prompt that has been computed once is found again, and how several outputs share it
# - how a token is sampled on the GPU without sorting the vocabulary, and why a seed gives the same text in any batch
# - how an engine is tested: by random simulation against rules that must always hold
# - what all of it is worth, measured
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
# The id −1 looks like a mistake. The host plans this step without waiting for the one before, so it has not seen a's
# sampled token. The token is on the device, at seat 0, and is encoded as −1 − seat; a small kernel, `fill_ids`,
# replaces it. All arrays lie in one buffer, because every copy to the device has a fixed cost, whatever its size.
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


def engine(pages):
    runner = ModelRunner(loaded.model, num_pages=pages, max_num_seqs=8, max_num_batched_tokens=32)
    return LLM(runner, loaded.tokenizer, max_num_seqs=8, max_num_batched_tokens=32,
               scheduler=RecordingScheduler)


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
# recomputation*. A few large chunks need far fewer steps than these tokens took the first time, and pages that were not
# given to others in the meantime are used again.
#
# The oldest request is never preempted. It finishes, the next one becomes the oldest, and so no request waits forever.
# And the texts?

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
# The digests are chained because the keys and values of a token depend on all tokens before it. A page with the same
# sixteen tokens after a different beginning holds different numbers, and must not be found.
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
# reused first.
#
# ## Several outputs of one prompt
#
# A *reference count* says how many sequences hold a page. A request with n = 3 has three outputs; their prompt is
# computed once, and all three hold its pages. Predict: how many pages do they hold in all, with a prompt of ten tokens
# and pages of four, before and after each has written a token?

# %%
def advance(scheduler):
    """A step without a model: every sampled token is 7."""
    step = scheduler.schedule()
    for sequence, _ in scheduler.receive(step, [Sampled(7)] * len(step.samples)):
        if reason := sequence.ended_by_last():
            scheduler.finish(sequence, reason)
    return step


blocks = BlockManager(num_pages=12, page_size=4)
scheduler = Scheduler(blocks)
scheduler.add(Request("a", list(range(30, 40)), SamplingParams(n=3, max_tokens=6), max_length=32))
for note in ("after the prompt", "one token later"):
    step = advance(scheduler)
    print(f"{note} (references):")
    for one in scheduler.running:
        print(f"    output {one.index}:", ", ".join(f"page {page} ({blocks.references(page)})" for page in one.pages))
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
# is too high. So the sort becomes a search. How many passes over a row of 128,256 logits do you expect it to take?

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
# The first kernel of the ladder does just that, one bit of the threshold in each pass. The second makes a histogram of
# the row and searches only one bin of it. The third spreads a row over several blocks. The weights are *whole numbers*
# for a reason: a sum of whole numbers is the same in any order, so a GPU, the CPU device and NumPy agree on the last
# token that is kept, and on the one that is sampled. The comparison allows no tolerance. (The second table is of
# *penalties*, which make a token less likely that is already in the text. They change the logits before anything else.)

# %%
from labkit import agree
from labkit.kernels.penalties import PENALISE
from labkit.kernels.sampling import SAMPLE

agree(SAMPLE, ["sample_bisection", "sample_split"], sizes=({"R": 12, "V": 36}, {"R": 6, "V": 260}))

# %%
agree(PENALISE, sizes=({"R": 3, "V": 33},))

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
# ## Text as it comes
#
# Text should be shown while it is written. That has two catches. A token is a piece of *bytes*, and a character may be
# spread over several tokens. And a stop string may begin in one token and end in another, so nothing may be shown that
# could still become a part of it. Predict for which tokens nothing new is shown:

# %%
from labkit.engine.detokenizer import Detokenizer

tokenizer = plenty.get_tokenizer()
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
#
# ## The host
#
# A step has two parts: the host chooses the sequences and fills the buffer, the device computes. Two measures keep the
# device from waiting.
#
# *Graphs.* The launches of a step in which each sequence has one token depend only on the number of sequences. So that
# number is rounded up to a *bucket*, and for each bucket the launches are captured once as a CUDA graph. The page
# table, the ids and the parameters are read from the buffer, whose address stays the same. With parts of prompts a step
# can have thousands of shapes. It is padded to one of few, by rows and sequences that are empty, and each of these is
# captured when it is needed for the second time.
#
# *One step ahead.* The host plans step n + 1 while step n runs. It knows how many tokens step n will sample, and their
# ids are on the device. (If a sequence turns out to have ended with step n, its token of step n + 1 is discarded.) Here
# is what a step of 256 sequences costs the host, measured on this machine without a model, and what planning ahead
# would save beside a device that needs 2.5 ms for a step. Which of the two will set the pace?

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
# and reduces a failing case to a small one. And a model whose "keys and values" are hashes of all tokens so far takes
# the place of the Llama, so that one wrong page, slot or copy changes everything after it, and each output must equal
# that of the request alone.
#
# ## The whole, measured
#
# How fast can it be? A decode step reads all weights once and, for each sequence, its keys and values. Below are such
# steps as measured for Llama 3.2 1B, with random weights, in a CUDA graph; the bound is the time for the bytes. PyTorch
# runs the same model on the same numbers, in a graph as well, as it is and through `torch.compile`. Guess: how near to
# the bound is a step for one sequence, and how near for 256?

# %%
from labkit import measure
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
# *Called from Python*, in the figure, is what the engine sees of such a step: filling the buffer and the copies there
# and back come on top. For one sequence a step takes 0.93 ms, and its bytes need 0.59. It has 106 launches, so the
# difference is 3 us for each of them. Some of that is in the nature of a launch: the memory is idle until its first
# loads arrive and after the last ones have. So in a graph most kernels begin before the previous one has ended, and
# fetch their weights meanwhile. With 256 sequences the step reaches 72% of the bound.
#
# PyTorch without compiling takes 2.2 times as long for one sequence. The compiled step is the one to beat: ours is
# faster for one sequence and for 32, and takes 4% longer for 256. Prompts are within 4% of it, at 525 and 534 TFLOP/s.
# The last column shows them launched one by one from Python, which makes no difference: the GPU takes longer for each
# kernel than the host for its launch.
#
# Do the two compute the same? For one sequence and for the prompts the cosine between their logits is at least 0.9993.
# And which of them is less exact? Neither: compared with the same step in float32, both have a cosine of 0.9996 for one
# sequence. What is left is the rounding of bfloat16.
#
# Now the whole engine: 128 requests at once, with prompts and outputs of 100 to 1,024 tokens. Two of the runs have
# memory for all of them, 16,384 pages; the other four have 4,096. With a contiguous cache, where each sequence owns
# memory for 2,048 tokens, that is enough for 32 at a time. Predict which gains more there: pages, or continuous
# batching?

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
# *Pages* gain most. In the same memory up to 102 sequences run instead of 32, and the engine writes 1.6 times as many
# tokens a second in static batches, 1.3 times as many continuously. Some sequences are preempted for it, and what they
# had is computed again.
#
# *Continuous batching* saves a third of the steps: seats are empty for 15% of the time instead of 43%. The run takes
# 3.9 s instead of 5.3, which is a little less than the steps promise. With more sequences a step takes longer, 1.36 ms
# instead of 1.27 in the median. And while a static batch admits its prompts together, in 39 steps for all four batches,
# here 106 steps admit a prompt; the 99th percentile of a step is 5 ms. Such steps once decided the matter: when the
# engine launched them one by one through Numba, the static run was the faster one. With pages the gain is smaller, 1.1
# times. Up to 102 of the 128 requests run at once, and few are left to fill the seats that become free.
#
# *Larger steps* pay as well. With a budget of 8,192 tokens instead of 2,048, the engine admits all prompts in 10 steps
# instead of 39, and writes 32,793 tokens a second instead of 29,878. Nearly all requests have their first token within
# 0.3 s instead of 0.4.
#
# For comparison, the continuous batching of transformers 5.17.0 was given the same requests for 25 s, and wrote 977
# tokens a second.
#
# The column *host* is the part of the time in which the host did not wait for the device. In decode steps it stays
# hidden: with larger steps, half of the steps take less than 2.04 ms, for 70 sequences on average, and the graph alone
# needs 1.70 ms for 64 and 2.32 for 128. So what comes next are the kernels again: with 64 sequences the bytes would
# take 1.09 ms.
#
# An engine in production has more around this: models spread over several GPUs, weights of fewer bits, outputs that
# follow a grammar. The core is the same, and little of it depends on Llama: Qwen3, with its norms of queries and keys,
# runs through the same engine without a line of it changed.
#
# ## What was implemented
#
# - a scheduler with a token budget, chunked prefill, admission, and preemption by recomputation
# - pages with reference counts, a prefix cache with chained digests, copy on write
# - sampling on the device with a seed for each request; penalties, stop strings, streaming
# - CUDA graphs for steps of few shapes, and a host that plans one step ahead
#
# ## What I learned
#
# - An engine is bookkeeping, and its mistakes are silent. The rules that must hold are worth more than any single test.
# - State that depends on the batch makes outputs irreproducible. A counter instead of a generator, and whole numbers
#   instead of floats, remove it.
# - Memory is not wasted if it is not promised early: pages are given when they are needed, and taken back if need be.
# - A better schedule pays only if its steps cost about the same. Launched one by one through Numba, the steps with
#   prompts cost more than the empty seats that they avoided; as graphs they do not.
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
#   admits the next prompts. Is continuous batching faster then?
#
# In the exercises for this lesson you write the search of the prefix cache and the scheduler's step, follow a
# preemption by hand, find a threshold without a sort and sample with it, and write Philox from a blank page.
