# %% [markdown]
# # 39 · A cache in pages
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how much of a KV cache stays empty if each sequence reserves one contiguous piece, and what pages change
# - how a page table and slots say where a token's keys and values are, and how a kernel writes them there
# - how sequences share pages, and how a count of each page's holders shows when the page is free
#
# ## The problem
#
# Each sequence of a batch needs a KV cache, and the simplest cache is one contiguous piece of memory. It has to be as
# long as the sequence may become, because the length of an answer is not known in advance. Most answers end early, and
# no other sequence can use the rest of their memory.
#
# Here are 128 requests at one moment, for a model of the shape of Llama 3.2 1B. The lengths of prompts and answers are
# uniform between 100 and 1,024 tokens, and each request has written some part of its answer.
#
# ## Prediction
#
# If every sequence has room for 8,192 tokens, what fraction of the memory holds tokens? And what fraction if memory is
# allocated in pages of 16 tokens, as each sequence grows?

# %%
import numpy as np

from labkit import table

rng = np.random.default_rng(20)
prompts, answers = rng.integers(100, 1025, (2, 128))
now = prompts + (answers * rng.random(128)).astype(int)  # tokens in the cache at this moment
token_bytes = 2 * 16 * 8 * 64 * 2  # keys and values, layers, heads, values in a head, bytes of bfloat16


def in_pages(size):
    return -(-now // size) * size


plans = {"room for 8,192 tokens": np.full(128, 8192), "room for 2,048 tokens": np.full(128, 2048),
         "room for prompt and answer": prompts + answers, "pages of 16 tokens": in_pages(16)}
table([(name, tokens.sum() * token_bytes / 1e9, now.sum() / tokens.sum(), (tokens - now).mean())
       for name, tokens in plans.items()],
      {"memory": "", "GB": ".1f", "holding tokens": ".1%", "unused per sequence, tokens": ".1f"},
      f"{now.sum():,} tokens, {now.sum() * token_bytes / 1e9:.1f} GB of keys and values")

# %% [markdown]
# A tenth with the large reservation, and nearly all of it with pages. Room for exactly the prompt and the answer does
# worse than pages, and to reserve it one would have to know the length of each answer in advance. Pages need no such
# knowledge: the only unused memory is in a sequence's last page, about half a page on average, however long the
# sequence is. Since memory limits how many sequences fit into a batch, the memory saved allows a larger batch (lesson
# 38).
#
# ## Pages, a table, slots
#
# An operating system has the same problem with the memory of its programs, and solves it the same way. Memory is
# divided into *pages* of equal size, and a *page table* lists the pages of each sequence, in order. Here a page has
# room for 16 tokens. Each layer has an array of keys and one of values, both of shape (pages, K, 16, D), for K heads of
# D values. A sequence has the same pages in all layers, so one table serves them all.
#
# Below is a table for three sequences. Counting tokens, pages and offsets in a page from 0, where is token 38 of the
# first sequence?

# %%
from labkit.kernels.attention.pages import PAGE, cache_shape, gather, page_table_of, place

K, D = 2, 4
page_table = page_table_of([[5, 2, 7], [0], [3, 6]])  # three sequences of up to 48, 16 and 32 tokens
print(page_table)
keys = np.zeros(cache_shape(8, K, D), np.float32)
rows = rng.random((41, K, D), dtype=np.float32)  # the keys of 41 tokens of sequence 0
place(keys, page_table[0], rows)

j = 38
page, offset = page_table[0, j // PAGE], j % PAGE
slot = page * PAGE + offset
print(f"token {j}: page {page}, offset {offset}, slot {slot}")
assert np.array_equal(keys[slot // PAGE, :, slot % PAGE], rows[j])
assert np.array_equal(gather(keys, page_table[0], 41), rows)

# %% [markdown]
# In its third page, which is page 7, at offset 6. A *slot* is a page and an offset in one integer, page × 16 + offset.
# It has nothing to do with the slots of a batch in the last lesson; from lesson 41 on, those are called seats. A
# sequence's row of the table may hold anything after its last page, and so may the page after its last token: no kernel
# may read either.
#
# ## How large should a page be?
#
# Pages of a single token would leave no memory unused. What else changes with the size of a page? The last column is
# about two prompts that begin with the same 35 tokens: they can share pages that hold only these tokens. How many of
# the 35 can be shared with pages of 16, and how many with pages of 64?

# %%
table([(size, (in_pages(size) - now).mean(), size * 64 * 2, 8192 // size, 35 // size * size)
       for size in (1, 4, 16, 64, 256)],
      {"tokens in a page": "", "unused per sequence, tokens": ".1f", "contiguous bytes of a head": "",
       "table entries for 8,192 tokens": "", "shared of 35 tokens": ""})

# %% [markdown]
# 32 with pages of 16, and none with pages of 64. Small pages waste less and share more. Large pages have a shorter
# table and longer runs of contiguous memory: within a page, the tokens of one head follow each other.
#
# Do scattered pages cost bandwidth, then? In bfloat16 a token's key of 64 values has 128 bytes. A warp can read 512
# bytes at a time, four keys, and in pages of 16 tokens these are four neighbours. So each of its requests reads whole
# lines of memory, and one entry of the table serves four of them. A larger page would only save entries of the table.
# The authors of [PagedAttention](https://arxiv.org/abs/2309.06180), W. Kwon and others (2023), chose 16, too.
#
# ## A kernel that writes to slots
#
# The kernel that writes new keys and values gets a slot for each row, and -1 for a row of padding, which must not be
# written. The simplest rung of lesson 35 needed three launches to split and rotate `qkv`. This is the first of them: it
# splits each row into queries, keys and values, and each thread moves one value. Which line skips the rows of padding?

# %%
from labkit import agree, cuda, show_source
from labkit.kernels import rope
from labkit.kernels.ops.rope import ROPE_SPLIT_CACHE

show_source(rope.split_kernel)

# %% [markdown]
# The `if` that compares `slot` with the number of slots: -1 as an unsigned integer is 4,294,967,295, and no slot is
# that large.
#
# Here are five rows, one of them padding, with the slots 118, 119, -1, 0 and 63. To which offsets of which pages will
# they be written?

# %%
slots = np.array([118, 119, -1, 0, 63], np.int32)
qkv = 1 + rng.random((5, (4 + 2 * K) * D), dtype=np.float32)  # four heads of queries
keys, values = (cuda.to_device(np.zeros(cache_shape(8, K, D), np.float32)) for _ in range(2))
q = cuda.to_device(np.zeros((5, 4, D), np.float32))
rope.split_kernel[(5, 1), rope.BLOCK](cuda.to_device(qkv), cuda.to_device(slots), q, keys, values)
written = keys.copy_to_host().any(axis=(1, 3))  # of each page, the offsets whose keys are not zeros
table([(page, str(np.flatnonzero(written[page]).tolist())) for page in np.flatnonzero(written.any(axis=1))],
      {"page": "d", "offsets": ""})

# %% [markdown]
# The other two launches rotate queries and keys. Here are all three together, and then the rung that does everything in
# one launch, with slots in random order, against NumPy:

# %%
agree(ROPE_SPLIT_CACHE, ["rope_three_launches", "rope_one_launch"],
      sizes=({"T": 16, "H": 1, "KV": 1, "D": 2}, {"T": 48, "H": 3, "KV": 1, "D": 34}))

# %% [markdown]
# How fast are they on a GPU? These are all rungs of this step, recorded on an H200 for 4,096 tokens. How close to the
# bandwidth of a copy do you expect the fastest to come, and how far behind will three launches be?

# %% tags=["hide-input"]
from labkit import measure, plots

plots.ladder(measure.recorded_ladder("rope_split_cache_bf16", gpu="NVIDIA H200"), None)

# %% [markdown]
# The fastest rung needs {{ over_bound:.2f }} times the time of a copy of the same bytes, slots and all. Three launches
# need {{ words(three_launches) }} times as long. Two changes lead from there to the fastest. The first puts everything
# into one launch, which is {{ words(one_launch) }} times as fast: queries and keys no longer pass through memory twice,
# and no thread walks along a whole head any more, which made the 32 lanes of a warp read from 32 different lines. The
# second changes only the loads, from one value to eight neighbours, and gives a factor of {{ words(wider) }}.
#
# ## A page table from a running engine
#
# Here is labkit's engine at work, with the small model of the last lessons and a cache of 32 pages. `LLM` holds a model
# and its engine (lesson 42), `SamplingParams` says how a request's tokens are chosen and when it ends, and
# `engine.step()` computes one step for all current requests. The first two prompts begin with the same instruction, as
# prompts of a chat program often do.

# %%
from labkit.engine import LLM, SamplingParams

llm = LLM("tiny-llama", dtype="float32", num_pages=32, max_model_len=128, max_num_seqs=8,
          max_num_batched_tokens=64)
engine, served = llm.engine, {}


def ask(prompt, answer):
    """Adds a request for an answer of so many tokens."""
    name = f"request {len(served)}"
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    served[name] = engine.add_request(name, prompt, params).sequences[0]


rules = ("<|user|>You are the Jargon File, a dictionary of the words that hackers use. "
         "Explain this word to a newcomer in a few sentences: ")
ask(rules + "hacker<|end|><|assistant|>", 12)
ask(rules + "kluge, which some spell kludge<|end|><|assistant|>", 30)
ask("<|user|>What is a hacker?<|end|><|assistant|>", 40)
print("prompts of", ", ".join(str(len(one.tokens)) for one in served.values()), "tokens")
pairs = zip(*(one.tokens for one in list(served.values())[:2]), strict=False)
print(f"the first two begin with the same {next(k for k, (a, b) in enumerate(pairs) if a != b)}")

# %% [markdown]
# After nine steps, a fourth request with the same instruction arrives. How many pages do the first three prompts need,
# how many of them are shared, and where will the first pages of the fourth request be?

# %%
from labkit.measure.plots import pages as pictures

for _ in range(9):
    engine.step()
ask(rules + "foo<|end|><|assistant|>", 20)
for _ in range(4):
    engine.step()
pictures.page_table(engine.blocks, served)

# %% [markdown]
# The prompts need 3, 3 and 1 pages. The first two share two of theirs, so five are enough, and the fourth request uses
# the same two. The third pages of these prompts begin with the same tokens, too, but only a whole page can be shared:
# all tokens up to its end must be equal. A shared page is read by all its holders and written by none of them.
#
# Request 0 has ended. Its third page, page 2, is free again but keeps its contents until the page is needed for
# something else: a later prompt that begins with the same tokens finds them. This is the *prefix cache*; lesson 41
# shows how pages are found.
#
# ## Who holds a page
#
# When a sequence ends, its pages must not simply become free: others may hold them. The *block manager*, a
# `BlockManager`, counts the holders of each page.

# %%
from labkit.engine.block_manager import BlockManager

show_source(BlockManager.release)

# %% [markdown]
# A page is free again when its last holder gives it up. If the count were one too low, a page would be given to a new
# sequence while an old one is still reading it, and the old one's answer would go wrong without any error. If it were
# one too high, the page would never be free again: it has *leaked*, and a server that leaks a page now and then is out
# of memory after days.
#
# When all these requests and 40 more of random length have ended, how many pages should still be held?

# %%
for _ in range(40):
    length, answer = rng.integers(1, (60, 20))
    ask(rng.integers(0, 1000, length).tolist(), int(answer))
while engine.has_unfinished_requests():
    engine.step()
stats = engine.stats()
held = sum(engine.blocks.references(page) for page in range(stats.pages))
print(f"after {len(served)} requests {stats.free_pages} of {stats.pages} pages are free, with {held} holders; "
      f"the most held at any time were {stats.most_pages}")
assert stats.free_pages == stats.pages and held == 0

# %% [markdown]
# None: every page has been given back.
#
# ## What was implemented
#
# - pages of 16 tokens, a table and slots, and a kernel that writes new keys and values to their slots
# - a page table of a running engine, which shares pages between prompts, and a test that none of them leaks
#
# ## What I learned
#
# - A contiguous cache wastes space reserved for tokens that may never come. Pages waste half a page per sequence.
# - A page must be small enough to waste little and to be shared, and large enough that a warp reads neighbours.
# - Sharing needs a count of holders. One too few spoils another sequence; one too many leaks a page.
#
# ## Resources
#
# - [W. Kwon et al.: Efficient Memory Management for Large Language Model Serving with PagedAttention
#   (2023)](https://arxiv.org/abs/2309.06180), the article on pages
#
# ## Try it
#
# - Give the engine 12 pages instead of 32. What happens to the requests, and to their tokens?
# - Draw the page table with `enable_prefix_caching=False` in `LLM(...)`.
# - In the prediction's cell, let the answers have up to 7,000 tokens. How does each plan change?
#
# In the exercises for this lesson you predict how many pages a batch needs, write keys to their slots and, from a blank
# page, the block manager's counts.
#
# Next: **paged attention**, the kernel that reads what was written here.

# %% [numbers]
# rope = {name: row('rope_split_cache_bf16', name) for name in ('rope_three_launches', 'rope_one_launch',
#         'rope_vectorized')}
# over_bound = rope['rope_vectorized'].graph_us / rope['rope_vectorized'].bound_ms / 1000
# three_launches = rope['rope_three_launches'].graph_us / rope['rope_vectorized'].graph_us
# one_launch = rope['rope_three_launches'].graph_us / rope['rope_one_launch'].graph_us
# wider = rope['rope_one_launch'].graph_us / rope['rope_vectorized'].graph_us
