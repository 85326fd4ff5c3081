# %% [markdown]
# # 39 · A cache in pages
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how much of a KV cache stays empty if each sequence reserves one piece of it, and what pages change
# - how a page table and slots say where a token's keys and values lie, and how a kernel writes them there
# - how sequences share pages, and how a count of each page's holders shows when it is free
#
# ## The problem
#
# Each sequence of a batch needs a KV cache, and the simplest cache is one contiguous piece of memory. It has to be as
# long as the sequence may become, because the length of an answer is not known in advance. Most answers end early, and
# no other sequence can use the rest.
#
# Here are 128 requests at one moment, for a model of the shape of Llama 3.2 1B. The lengths of prompts and answers are
# uniform between 100 and 1,024 tokens, and each request has written some part of its answer.
#
# ## Prediction
#
# Write down two guesses before you run the cell. If every sequence has room for 8,192 tokens, what fraction of the
# memory holds tokens? And if memory is allocated in pages of 16 tokens, as each sequence grows?

# %%
import numpy as np

rng = np.random.default_rng(20)
prompts, answers = rng.integers(100, 1025, (2, 128))
now = prompts + (answers * rng.random(128)).astype(int)  # tokens in the cache at this moment
token_bytes = 2 * 16 * 8 * 64 * 2  # keys and values, layers, heads, numbers in a head, bytes of bfloat16


def in_pages(size):
    return -(-now // size) * size


plans = {"room for 8,192 tokens": np.full(128, 8192), "room for 2,048 tokens": np.full(128, 2048),
         "room for prompt and answer": prompts + answers, "pages of 16 tokens": in_pages(16)}
print(f"{now.sum():,} tokens, {token_bytes:,} bytes each: {now.sum() * token_bytes / 1e9:.1f} GB\n")
print(f"{'':28}{'GB':>8}{'in use':>10}{'empty places per sequence':>28}")
for name, tokens in plans.items():
    print(f"{name:28}{tokens.sum() * token_bytes / 1e9:8.1f}{now.sum() / tokens.sum():10.1%}"
          f"{(tokens - now).mean():28.1f}")

# %% [markdown]
# The third plan has to know the length of each answer before it is written. Pages need no such knowledge and waste
# less: the only empty places are in a sequence's last page, about half a page on average, however long the sequence is.
# Memory limits how many sequences fit into a batch, and the last lesson showed what a large batch is worth: all its
# sequences share one pass over the weights.
#
# ## Pages, a table, slots
#
# An operating system has the same problem with the memory of its programs, and solves it the same way. Memory is
# divided into *pages* of equal size, and a *page table* says which pages belong to each sequence, in order. Here a page
# has room for 16 tokens. Each layer has an array of keys and one of values, both of the shape (pages, K, 16, D), for K
# heads of D numbers. A sequence has the same pages in all layers, so one table serves them all.
#
# Below is a table for three sequences. In which page is token 38 of the first one, and at which place in it? Tokens,
# pages and places are counted from 0.

# %%
from labkit.kernels.attention.pages import PAGE, cache_shape, gather, page_table_of, place

K, D = 2, 4
table = page_table_of([[5, 2, 7], [0], [3, 6]])  # three sequences of up to 48, 16 and 32 tokens
print(table)
keys = np.zeros(cache_shape(8, K, D), np.float32)
rows = rng.random((41, K, D), dtype=np.float32)  # the keys of 41 tokens of sequence 0
place(keys, table[0], rows)

j = 38
slot = table[0, j // PAGE] * PAGE + j % PAGE
print(f"token {j}: page {table[0, j // PAGE]}, place {j % PAGE}, slot {slot}")
assert np.array_equal(keys[slot // PAGE, :, slot % PAGE], rows[j])
assert np.array_equal(gather(keys, table[0], 41), rows)

# %% [markdown]
# A *slot* is here a page and a place in one number, page × 16 + place. (The slots of the last lesson were places in a
# batch; from lesson 41 on those are called seats.) The entries of the table after a sequence's last page may hold
# anything, and so may the places after its last token: no kernel may read them.
#
# ## How large should a page be?
#
# Pages of a single token would leave no place empty. Before you run the next cell: what else changes with the size of a
# page? The last column is about two prompts that begin with the same 35 tokens. They can share pages that hold only
# such tokens. How many of the 35 are in shared pages?

# %%
print(f"{'tokens in':>9}{'empty places':>15}{'bytes in a row':>17}{'entries of the table':>23}{'shared, of':>13}")
print(f"{'a page':>9}{'per sequence':>15}{'of one head':>17}{'for 8,192 tokens':>23}{'35 tokens':>13}")
for size in (1, 4, 16, 64, 256):
    print(f"{size:9}{(in_pages(size) - now).mean():15.1f}{size * 64 * 2:17,}{8192 // size:23,}{35 // size * size:13}")

# %% [markdown]
# Small pages waste less and share more. Large pages have a shorter table, and more bytes in a row: within a page, the
# tokens of one head are contiguous. Do scattered pages cost bandwidth? In bfloat16 a token's key of 64 numbers has 128
# bytes. A warp can read 512 bytes at a time, four keys, and in pages of 16 tokens these are four neighbours: all its
# requests are for whole lines of memory, and one entry of the table serves four of them. A larger page would only save
# entries of the table. The authors of PagedAttention chose 16, too.
#
# ## A kernel that writes to slots
#
# New keys and values are written by a kernel that gets a slot for each row, and -1 for a row of padding. The simplest
# rung of lesson 35 took three launches to split and rotate `qkv`. This is the first of them: it splits each row into
# queries, keys and values, and a thread moves one number. Which line skips the rows of padding?

# %%
from labkit import agree, cuda, show_source
from labkit.kernels import rope
from labkit.kernels.ops.rope import ROPE_SPLIT_CACHE

show_source(rope.split_kernel)

# %% [markdown]
# The condition that compares `slot` with the number of slots: -1 as an unsigned number is 4,294,967,295, and no slot is
# as large. Here are five rows, one of them padding. Which places of which pages will be written?

# %%
slots = np.array([118, 119, -1, 0, 63], np.int32)
qkv = 1 + rng.random((5, (4 + 2 * K) * D), dtype=np.float32)  # four heads of queries
keys, values = (cuda.to_device(np.zeros(cache_shape(8, K, D), np.float32)) for _ in range(2))
q = cuda.to_device(np.zeros((5, 4, D), np.float32))
rope.split_kernel[(5, 1), rope.BLOCK](cuda.to_device(qkv), cuda.to_device(slots), q, keys, values)
written = keys.copy_to_host().any(axis=(1, 3))  # of each page, the places whose keys are not zeros
for page in np.flatnonzero(written.any(axis=1)):
    print(f"page {page}: places {np.flatnonzero(written[page]).tolist()}")

# %% [markdown]
# The other two launches rotate queries and keys. All three together, with slots in random order, against NumPy:

# %%
agree(ROPE_SPLIT_CACHE, ["rope_three_launches", "rope_one_launch"],
      sizes=({"T": 16, "H": 1, "KV": 1, "D": 2}, {"T": 48, "H": 3, "KV": 1, "D": 34}))

# %% [markdown]
# ## A page table from a running engine
#
# Here is the engine at work, with the small model of the last lessons and a cache of 32 pages. The first two prompts
# begin with the same instruction, as prompts of a chat program often do.

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
# How many pages do these prompts need, and how many of them can be shared? After nine steps a request with the same
# instruction arrives. Where will its first pages be?

# %%
from labkit.measure.plots import pages as pictures

for _ in range(9):
    engine.step()
ask(rules + "foo<|end|><|assistant|>", 20)
for _ in range(4):
    engine.step()
pictures.page_table(engine.blocks, served)

# %% [markdown]
# The prompts need 3, 3 and 1 pages. Two of them are shared, so five are enough. The third pages of these prompts begin
# with the same tokens, too, but only a whole page can be shared: all tokens up to its end must be equal. A shared page
# is read by all its holders and written by none of them. Request 0 has ended. Its third page, page 2, is free again but
# keeps its contents until it is needed for something else: a later prompt that begins with the same tokens finds them.
# This is the *prefix cache*; the lesson on the scheduler shows how pages are found.
#
# ## Who holds a page
#
# When a sequence ends, its pages must not simply become free: others may hold them. The *block manager* counts the
# holders of each page.

# %%
from labkit.engine.block_manager import BlockManager

show_source(BlockManager.release)

# %% [markdown]
# A page is free again when its last holder gives it up. If the count were one too low, a page would be given to a new
# sequence while an old one still reads it, and the old one's answer would go wrong without any error. If it were one
# too high, the page would never be free again: it has *leaked*. A server that leaks a page now and then is out of
# memory after days. When all these requests have ended, and 40 more of random length, how many pages should be held?

# %%
for _ in range(40):
    length, answer = rng.integers(1, (60, 20))
    ask(rng.integers(0, 1000, length).tolist(), int(answer))
while engine.has_unfinished_requests():
    engine.step()
stats = engine.stats()
held = sum(engine.blocks.references(page) for page in range(stats.pages))
print(f"after {len(served)} requests {stats.free_pages} of {stats.pages} pages are free, with {held} holders; "
      f"at most {stats.most_pages} were held at a time")
assert stats.free_pages == stats.pages and held == 0

# %% [markdown]
# ## A cache that does not grow
#
# All of this is needed because the exponential in a softmax needs every earlier key again. *Linear attention* does
# without it and keeps a state of fixed size, with no cache and no page. What it costs, and what it forgets, is in
# the appendix, lesson 45.
#
# ## What was implemented
#
# - pages of 16 tokens, a table and slots, and a kernel that writes new keys and values to their slots
# - a page table of a running engine, which shares pages between prompts, and a test that none of them leaks
#
# ## What I learned
#
# - What a contiguous cache wastes is the room for tokens that may never come. Pages waste half a page a sequence.
# - A page must be small enough to waste little and to be shared, and large enough that a warp reads neighbours.
# - Sharing needs a count of holders. A count too low spoils another sequence; one too many leaks a page.
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
# - In the prediction's cell, let the answers have up to 7,000 tokens. What becomes of each plan?
#
# In the exercises for this lesson you write keys to their slots and, from a blank page, the block manager's counts.
#
# Next: **paged attention**, the kernel that reads what was written here.
