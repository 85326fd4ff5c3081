# %% [markdown]
# # 41 · The scheduler
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how a scheduler decides which sequences are in a step, line by line, and what such a step is as data
# - what happens when the pages run out, and how sequences with the same beginning share them
# - how such bookkeeping is tested: random cases, and rules that must always hold
#
# ## The problem
#
# The last lessons built a Llama, pages for its keys and values, and attention over pages. Now requests arrive, at any
# time and of any length, and each should get its tokens soon. A step of the model reads all weights, whether it
# computes a token for one sequence or for a hundred, so a step should compute tokens of many requests. The *scheduler*
# decides which sequences run in a step and how many tokens of each are computed, and it gives them pages.
#
# Here five requests arrive together. The engine's `RecordingScheduler` records what it decides, and its `ModelRunner`
# runs the model on the device. Each request writes forty tokens, and there are 64 pages of 16 tokens. A step computes
# at most 32 tokens, so two prompts wait for the second step.

# %%
from labkit import agree, show_source, table
from labkit.course.drawings import the_scheduler as pictures
from labkit.engine import LLM, SamplingParams
from labkit.engine.model_runner import ModelRunner
from labkit.engine.recording import RecordingScheduler
from labkit.models.load import load

loaded = load("tiny-llama")


def engine(pages):
    runner = ModelRunner(loaded.model, num_pages=pages, max_num_seqs=8, max_num_batched_tokens=32)
    return LLM(runner, loaded.tokenizer, max_num_seqs=8, max_num_batched_tokens=32, scheduler=RecordingScheduler)


questions = ["What is a hacker?", "Define foo, and bar, and whatever else comes to mind.", "What is a kludge?",
             "Tell me about the first computer bug.", "What does grok mean?"]
prompts = [f"<|user|>{question}<|end|><|assistant|>" for question in questions]  # as the chat template writes them
forty = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
plenty = engine(pages=64)
output = plenty.generate(prompts, forty)[0]
print(questions[0], "->", repr(output.outputs[0].text))
pictures.requests_over_steps(plenty.engine.scheduler.history, pages=64, title="With 64 pages all five run to the end")

# %% [markdown]
# From the third step on, each of the five gets one token in every step, and they hold more and more pages.
#
# ## A step, line by line
#
# Some sequences are in the middle of their outputs when a request with a long prompt arrives. Should the prompt be
# computed first, or wait until there is less to do? This is the whole decision:

# %%
from labkit.engine.scheduler import Scheduler

show_source(Scheduler.schedule)

# %%
show_source(Scheduler._admit)

# %% [markdown]
# Neither. A step has a *token budget*. Running sequences are served first, from the oldest to the youngest. Each has
# `sequence.length - sequence.computed` tokens that are not computed yet: one if it is decoding, more if it is in the
# middle of its prompt. The rest of the budget goes to waiting requests. A prompt that does not fit is cut into
# *chunks*.
#
# Let us follow one step, with one `Request` per prompt. The budget is 8 tokens, and a page has room for 4. Requests a
# and b, with prompts of 3 and 10 tokens, were there in the first step: a got its 3 tokens and b the remaining 5. Then c
# arrives, with a prompt of 10. How many tokens does each of the three get in the second step?

# %%
from labkit.engine.block_manager import BlockManager
from labkit.engine.sequence import Request

trace = []


class Traced(Scheduler):
    def _run(self, sequence, length, step):
        budget = self.max_num_batched_tokens - step.tokens
        trace.append((sequence.request.request_id, sequence.length - sequence.computed, budget, length,
                      budget - length, self.blocks.missing(sequence, length)))
        super()._run(sequence, length, step)


greedy = SamplingParams(temperature=0, max_tokens=8)
scheduler = Traced(BlockManager(num_pages=12, page_size=4), max_num_seqs=4, max_num_batched_tokens=8)
for name, prompt in (("a", [11, 12, 13]), ("b", range(21, 31))):
    scheduler.add(Request(name, list(prompt), greedy, max_length=24))
first = scheduler.schedule()
trace.clear()
scheduler.add(Request("c", list(range(31, 41)), greedy, max_length=24))
second = scheduler.schedule()
table(trace, ["sequence", "tokens not computed", "budget before", "tokens in the step", "budget after", "new pages"])

# %% [markdown]
# Line by line:
#
# 1. `budget` is 8. The loop over `self.running` starts with a, the oldest. Its first output token was sampled in step 1
#    and is not computed yet, so `length` is `min(1, 8)`. `_make_pages` finds that a's page still has room, `_run` puts
#    a chunk of one token into the step, and `budget` becomes 7.
# 2. b has 5 tokens of its prompt left: `length` is `min(5, 7)`, and `budget` becomes 2. Its 10 tokens need three pages,
#    and it holds two. `_make_pages` makes sure that one more is free.
# 3. The loop ends, and `_admit` gets the 2 tokens that are left. c is the next waiting request. `required` is the pages
#    for *all* of its 10 tokens, 3, plus one per running sequence, 2; 8 are free. So c leaves the queue and gets a
#    *seat*, and `length` is `min(10, 2)`: the first two tokens of its prompt.
# 4. `budget` is 0, and `_admit` returns. Any other request has to wait for the next step.
#
# ## Why chunks
#
# Here the same requests are scheduled twice, without a model: once with a budget that cuts no prompt, and once with a
# small one. A prompt of 120 tokens arrives in step 8. What do the readers of the other texts notice?

# %%
from labkit.measure.simulation import Work, simulate

traffic = [Work(6, 24), Work(9, 30), Work(4, 28, arrival=2), Work(120, 12, arrival=8), Work(5, 20, arrival=12)]
pictures.tokens_of_steps({f"a budget of {budget:,}": simulate(traffic, max_num_batched_tokens=budget)
                          for budget in (2048, 24)}, "Chunks keep every step short")

# %% [markdown]
# For a reader the time between two tokens is the length of a step. Without chunks, all of them wait while the long
# prompt is computed. With chunks no step has more than 24 tokens, and the long prompt's first token comes five steps
# later. On a GPU the budget is larger, because a chunk needs enough rows for the tensor cores.
#
# ## One step as data
#
# What does the model get? A few arrays: the ids of the tokens, the position of each in its sequence, the *slot* in the
# cache for its keys and values, and a few more. A `BatchBuilder` fills them. This is the step that we have just
# followed. One of the ids is negative. Which sequence's token has a negative id, and why?

# %%
from labkit.engine.batch import BatchBuilder

builder = BatchBuilder(max_num_seqs=4, max_pages=6, page_size=4)
builder.build(first)
batch = builder.build(second)
arrays = ("ids", "positions", "slots", "begins", "lengths", "contexts", "last", "seats", "page_table")
table([(name, " ".join(f"{value:3}" for value in getattr(batch, name).ravel())) for name in arrays],
      ["array", "elements"], f"{batch.buffer.nbytes} bytes, in one copy")

# %% [markdown]
# The first three arrays have one element per token, the next five one per sequence: its first row, its number of rows,
# how many tokens its attention covers, the row whose logits are needed, and its seat, which it keeps as long as it
# runs. (c samples nothing yet, so its entry is 4; the seats are 0 to 3.) All arrays are in one buffer, because every
# copy to the device, however small, has a fixed cost.
#
# The −1 is a's. The scheduler plans this step without waiting for the previous one, so the host has not seen the token
# that a sampled. The token is on the device, stored under a's seat, 0, and the id −1 − seat stands for it. A small
# kernel, launched before all others, replaces such ids with the tokens:

# %%
from labkit.kernels.ops.paged_prefill import PAGED_PREFILL
from labkit.kernels.steps import fill_ids_kernel

show_source(fill_ids_kernel)

# %% [markdown]
# Then the layers run. Only attention distinguishes between the rows of different sequences: it gets `begins`,
# `lengths`, `contexts` and the page table. Here it is compared with NumPy for four sequences with 20, 14, 7 and 1 rows
# in one launch, each with 17 tokens from earlier steps.

# %%
agree(PAGED_PREFILL, ["paged_prefill_naive"],
      sizes=({"B": 4, "S": 20, "shortest": 1, "before": 17, "H": 4, "KV": 1, "D": 32},))

# %% [markdown]
# ## When the pages run out
#
# Nobody knows how many pages a request will need when it arrives, since its output may end at any token. Reserving
# pages for the longest possible output would leave much of the memory empty. So this scheduler admits a request when
# there are enough pages for its prompt and one spare page per running sequence. That can go wrong.
#
# Now the same five requests have 10 pages. With room for all of them, they would hold about
# twice{{ if near(5 * -(-(10 + 40) // 16) / 10, 2) }} as many at the end. Which sequence gives way when one needs a page
# and none is free?

# %%
small = engine(pages=10)
together = small.generate(prompts, forty)
stats = small.stats()
print(f"{stats.steps} steps, {stats.preemptions} preemptions, {stats.generated} tokens sampled; "
      f"{stats.pages - stats.free_pages} pages held at the end")
pictures.requests_over_steps(small.engine.scheduler.history, pages=10, title="With 10 pages the youngest gives way")

# %% [markdown]
# The *youngest*. It returns all of its pages and waits. When there are enough pages again, its prompt and the output so
# far are computed again, as if they were one prompt. This is *preemption* by recomputation. A few large chunks need far
# fewer steps than these tokens took the first time, and pages that nobody else has taken in the meantime are found
# again. In the source this is `_make_pages`:

# %%
show_source(Scheduler._make_pages)

# %% [markdown]
# The oldest request is never preempted. It finishes, the next one becomes the oldest, and so on: no request waits
# forever.
#
# Which of the five texts differ from what each request writes when it is served alone?

# %%
alone = [plenty.generate(prompt, forty)[0] for prompt in prompts]
rows = []
for question, one, other in zip(questions, together, alone, strict=True):
    pairs = zip(one.outputs[0].token_ids, other.outputs[0].token_ids, strict=True)
    apart = next((place for place, (here, there) in enumerate(pairs) if here != there), None)
    rows.append((question, "as alone" if apart is None else f"differs from token {apart} on"))
table(rows, ["question", "text"])

# %% [markdown]
# None. The engine gives the model the same tokens at the same positions as when each request runs alone. Whether the
# logits then have the same bits depends on the order in which the kernels add. On the CPU device that order never
# depends on what else is in a step. On a GPU the linear layers use a different kernel when a step has more than a few
# rows, and attention has different kernels for prompts and for single tokens. There the last bits of a logit may
# differ, and where two tokens are almost equally likely, the text may continue with the other one.
#
# ## A prompt that was computed before
#
# Many requests begin with the same instructions, or with the same conversation so far, and their first pages would hold
# the same keys and values. To find such pages, each full page gets a *digest*, a hash of its tokens and of the previous
# page's digest:

# %%
show_source(BlockManager._digest)

# %% [markdown]
# The digests are chained because the keys and values of a token depend on all tokens before it. A page with the same
# sixteen tokens after a different beginning holds different keys and values, and must not be found.
#
# In the next cell the second request repeats the first, the third ends differently, and the fourth begins with another
# word. Predict how many tokens of each prompt are found in this *prefix cache*.

# %%
instructions = ("You answer questions about words that hackers use, in one sentence, without any jokes. "
                "Never say where a word comes from, and do not repeat the question. ")
asked = [instructions + "What is a kludge?", instructions + "What is a kludge?",
         instructions + "What is a hack?", "Please: " + instructions + "What is a kludge?"]
rows = []
for text in asked:
    (output,) = plenty.generate(text, SamplingParams(temperature=0, max_tokens=4))
    rows.append((f"{text[:14]} ... {text[-20:]}", len(output.prompt_token_ids), output.num_cached_tokens))
table(rows, ["prompt", "tokens", "found"])

# %% [markdown]
# Only full pages are found. If a prompt ends with a full page, even that page is computed again: the next token is
# sampled from the logits of the last token, and logits are not kept. Free pages keep their contents until they are
# needed for something else. Pages that no prompt could find are reused first, then the one that was released longest
# ago.
#
# ## Several outputs of one prompt
#
# A *reference count* says how many sequences hold a page. A request with n = 3 has three outputs; their prompt is
# computed once, and all three hold its pages. In this cell no model runs: every token is made up, `Sampled(7)`. With a
# prompt of ten tokens and pages of four, how many different pages do the three outputs hold, before and after each has
# written a token?

# %%
from labkit.engine.outputs import Sampled


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
rows = []
for note in ("after the prompt", "one token later"):
    step = advance(scheduler)
    rows += [(note, one.index, ", ".join(f"{page} ({blocks.references(page)})" for page in one.pages))
             for one in scheduler.running]
print("copied before the second step (from, to):", *step.copies)
table(rows, ["", "output", "its pages (references)"])

# %% [markdown]
# Three, then five. Full pages are only read and stay shared. The last page of the prompt has free slots, and each
# output has to write its own token into the first of them. So the page is copied for the first two that write (*copy on
# write*). By then the third is the only holder of the original, and keeps it.
#
# ## Rules that must always hold
#
# Schedulers fail when events coincide: a request is aborted in the very step that shares its prompt, while another one
# is preempted. Tests written by hand cover few such combinations. So we draw cases at random, and write down only the
# rules: each page's reference count is the number of its holders, a page that is being filled has one holder, and every
# request ends.

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


# %% [markdown]
# Do the rules catch anything? Here the same cases also run with one of two bugs in the block manager: it never copies a
# shared page, or it loses pages. In how many of 200 cases is each bug found?

# %%
class NeverCopies(BlockManager):
    def _writes_shared(self, sequence):
        return False


class LosesPages(BlockManager):
    def release(self, sequence):
        if len(sequence.pages) == 3:  # mistakes hide in special cases
            sequence.pages.pop()
        super().release(sequence)


table([(kind.__name__, rule or "all rules hold", count) for kind in (BlockManager, NeverCopies, LosesPages)
       for rule, count in Counter(broken_rule(seed, kind) for seed in range(200)).most_common()],
      ["block manager", "rule", "cases"])

# %% [markdown]
# Both are found in many cases, each by a different rule. Neither raises an error: a text would be wrong, or the memory
# would slowly fill. The course's tests go further. The library *hypothesis* chooses what happens in each step, and
# shrinks a failing case to a small one. In these tests the model's "keys and values" are hashes of all tokens so far,
# so that one wrong page, slot or copy changes everything after it, and each output must equal that of the request
# alone.
#
# ## What I learned
#
# - A step is a few small arrays. Prompts, chunks of prompts and single tokens run in it together.
# - Reserving memory early wastes it: pages are given when they are needed, and taken back if need be.
# - A page may be shared if all tokens up to its end are the same, and written to if it has one holder.
# - A scheduler's bugs are silent. Rules that must always hold find what no single test does.
#
# ## Resources
#
# - [W. Kwon et al.: PagedAttention (2023)](https://arxiv.org/abs/2309.06180), pages and preemption
# - [A. Agrawal et al.: Sarathi-Serve (2024)](https://arxiv.org/abs/2403.02310), chunked prefill
# - [nano-vllm](https://github.com/GeeeekExplorer/nano-vllm), an engine that can be read in an evening
#
# ## Try it
#
# - Call `schedule()` of the traced scheduler a third time, before anything is received. What is in the step?
# - Give the small engine two pages fewer, and then two more, and look at the figure. How few pages can it work with?
# - Write a scheduler that preempts the *oldest* sequence (override `_make_pages`), and a rule that it breaks.
#
# In the exercises for this lesson you write the scheduler's step, follow a preemption by hand, and write the prefix
# cache's lookup from a blank page.
#
# Next: **the engine**, which samples the tokens and turns them into text, with the host one step ahead.
