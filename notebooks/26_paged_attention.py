# %% [markdown]
# # 26 · Paged attention
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how much of a KV cache stays empty if each sequence reserves one piece of it, and what pages change
# - how a softmax is computed in parts, and why the parts may be joined in any order
# - how one kernel serves sequences of all lengths, whose pages lie anywhere in memory
# - what a model whose cache does not grow has to give up
#
# ## The problem
#
# Each sequence of a batch needs a KV cache, and so far that was one contiguous piece of memory. It has to be as long as
# the sequence may become, because the length of an answer is not known in advance. Most answers end early, and no other
# sequence can use the rest.
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
         "room for prompt and answer": prompts + answers, "pages of 256 tokens": in_pages(256),
         "pages of 16 tokens": in_pages(16), "pages of 1 token": now}
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
# divided into pages of equal size, and a *page table* says which pages belong to each sequence, in order. Here a page
# has room for 16 tokens. Each layer has an array of keys and one of values, both of the shape (pages, K, 16, D), for K
# heads of D numbers. A sequence has the same pages in all layers, so one table serves them all.

# %%
from labkit.kernels.attention.pages import PAGE, cache_shape, gather, page_table_of, place

K, D = 2, 4
table = page_table_of([[5, 2, 7], [0], [3, 6]])  # three sequences of up to 48, 16 and 32 tokens
print(table)
keys = np.zeros(cache_shape(8, K, D), np.float32)
rows = rng.random((41, K, D), dtype=np.float32)  # the keys of 41 tokens of sequence 0
place(keys, table[0], rows)

j = 38  # which slot has its token 38?
slot = table[0, j // PAGE] * PAGE + j % PAGE
print(f"token {j}: page {table[0, j // PAGE]}, place {j % PAGE}, slot {slot}")
assert np.array_equal(keys[slot // PAGE, :, slot % PAGE], rows[j])
assert np.array_equal(gather(keys, table[0], 41), rows)

# %% [markdown]
# A *slot* is a page and a place in one number, page × 16 + place. The kernel that writes new keys and values gets a
# slot for each row, and -1 for padding. The entries of the table after a sequence's last page may hold anything, and so
# may the places after its last token: no kernel may read them.
#
# Do scattered pages cost bandwidth? Within a page, the tokens of one head are contiguous. For D = 64 in bfloat16 these
# are 16 × 64 × 2 bytes, 2 KB. A warp reads 512 bytes at a time, so all its requests are for whole lines of memory.
#
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
# Two pages are shared. The third pages of these prompts begin with the same tokens, too, but only a whole page can be
# shared: all tokens up to its end must be equal. A shared page is read by all its holders and written by none of them.
# The *block manager* counts the holders of each page, and when the last one ends, the page is free again, as is page 2
# of request 0. It keeps its contents until it is needed for something else: a later prompt that begins with the same
# tokens finds them. This is the *prefix cache*, which the next lesson measures.
#
# Counts of holders can go wrong, and then pages leak. When all these requests have ended, and 40 more of random length,
# every page must be free:

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
# ## A softmax in parts
#
# A kernel goes over the keys of a sequence page by page. With the scores $s_j = q \cdot k_j / \sqrt{D}$ it computes
#
# $$\text{out} = \frac{\sum_j e^{s_j} v_j}{\sum_j e^{s_j}}$$
#
# For large scores $e^{s_j}$ overflows. So numerator and denominator are both divided by $e^m$, where $m$ is the largest
# score; the quotient stays the same. But the largest score of *all* keys is known only at the end. A part $P$ of the
# keys can be summarized by three quantities, relative to its own largest score:
#
# $$m_P = \max_{j \in P} s_j \qquad l_P = \sum_{j \in P} e^{s_j - m_P} \qquad a_P = \sum_{j \in P} e^{s_j - m_P} v_j$$
#
# Let $Q$ be another part. For both together $m = \max(m_P, m_Q)$. Multiplying by $e^{m_P - m}$ turns $e^{s_j - m_P}$
# into $e^{s_j - m}$. The factor is the same for every term, so it can be applied to the whole sum:
#
# $$l = l_P\, e^{m_P - m} + l_Q\, e^{m_Q - m} \qquad a = a_P\, e^{m_P - m} + a_Q\, e^{m_Q - m}$$
#
# At the end, out is $a / l$. A single key is a part, too, with $m = s_j$, $l = 1$ and $a = v_j$. Joining the keys one
# at a time is the *online softmax* of lessons 12 and 18, with its correction whenever the maximum grows. How often do
# you expect that to happen among these 40 scores?

# %%
pictures.running_softmax(1.5 * np.random.default_rng(26).standard_normal(40))

# %% [markdown]
# Rarely: the k-th score of a random row is the largest so far with probability 1/k. But keys need not come one at a
# time. Does the order of the joins matter, or the grouping? In exact arithmetic it does not: $m$, $l$ and $a$ depend
# only on which keys are in a part, and a union of sets can be formed in any order. The empty part is $m = -\infty$,
# $l = 0$, $a = 0$. In float32 every join rounds. Here are random splits, joined in random order:


# %%
def part(scores, values):
    m = scores.max()
    weights = np.exp(scores - m)
    return m, weights.sum(), weights @ values


def join(P, Q):
    m = max(P[0], Q[0])
    p, q = np.exp(P[0] - m), np.exp(Q[0] - m)
    return m, P[1] * p + Q[1] * q, P[2] * p + Q[2] * q


worst = 0.0
for _ in range(300):
    n, spread = int(rng.integers(2, 200)), 10.0 ** rng.integers(-2, 5)
    scores, values = (spread * rng.standard_normal(n)).astype(np.float32), rng.random((n, 4), dtype=np.float32)
    _, total, acc = part(scores.astype(np.float64), values.astype(np.float64))
    order, cuts = rng.permutation(n), np.sort(rng.integers(1, n, rng.integers(1, 9)))
    parts = [part(scores[one], values[one]) for one in np.split(order, cuts) if len(one)]
    while len(parts) > 1:  # join any two
        P, Q = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
        parts.append(join(P, Q))
    worst = max(worst, np.abs(parts[0][2] / parts[0][1] - acc / total).max())
print(f"300 rows, scores up to tens of thousands, any split and order: largest error {worst:.1e}")
assert worst < 1e-5

# %% [markdown]
# Correct to float32's last digits, but the last bit depends on the order. That will matter below.
#
# ## Through the table
#
# In the simplest kernel a thread has one query head of one sequence, and goes over its keys twice. Look for the line
# that paging adds:

# %%
from labkit import agree, show_source
from labkit.kernels.attention import paged, pages

show_source(pages.make_attend)

# %% [markdown]
# It is `page = page_table[sequence, j // PAGE]`, once in each pass: one more load for a token, of an entry that is the
# same for 16 tokens in a row.
#
# In the next kernel, `one_block`, a block has four warps, and each takes every fourth page. Neighbouring lanes read a
# key together, 16 bytes each. In bfloat16, heads of 64 numbers take 8 lanes, so that a warp reads four keys in one
# request:

# %%
pictures.page_reads(64)

# %% [markdown]
# The keys of a group of lanes are a part in the sense above, with a `row_max`, `row_sum` and `acc` of its own, and no
# group needs anything from another before the last page. The function below takes a group's next keys, with all their
# loads under way at once. `score_key` adds up the lanes' products by shuffles. The exponentials are powers of 2, which
# the hardware computes directly; the factor log2(e) is in the scale.

# %%
import inspect

from labkit.kernels.attention.paged_split import find_parts, make_paged_decode

kernel = make_paged_decode(32, 4, False, 1)
show_source(inspect.getclosurevars(kernel.py_func).nonlocals["add_round"])

# %% [markdown]
# After the last page, the groups of a warp are joined by shuffles and the four warps in shared memory, both by the
# formula above. The results have to agree with NumPy for several lengths at once, one of them 0: an empty place in the
# batch. In these inputs the pages are shuffled, and every place without a token is NaN.

# %%
agree(paged.PAGED_DECODE, ["paged_decode_naive", "paged_decode_one_block", "paged_decode_split"],
      sizes=({"B": 3, "S": 33, "shortest": 0, "H": 4, "KV": 1, "D": 32},
             {"B": 4, "S": 300, "shortest": 15, "H": 4, "KV": 1, "D": 32}))

# %% [markdown]
# ## Heads that share keys
#
# In the inputs above, 4 query heads share one head of keys and values, as in Llama 3.2 1B. The naive kernel has a
# thread for each query head; in `one_block` a block has all four. The keys and values of a sequence are so many sectors
# of 32 bytes. How many times that number do you expect the requests of each kernel to touch?

# %%
from labkit import observe

size = {"B": 1, "S": 48, "shortest": 48, "H": 4, "KV": 1, "D": 32}
inputs = paged.PAGED_DECODE.inputs(np.random.default_rng(4), **size)
q, keys, values, table, lengths, scale = inputs
out = np.zeros_like(q)
naive = paged.make_paged_decode_naive(32, False)[1, 32]
counts = observe(naive, q, keys, values, table, lengths, out, np.float32(scale)).counts
in_cache = 2 * 48 * 32 * 4 // 32  # sectors
print(f"naive:     {counts['sectors'] / in_cache:5.1f} times the sectors of the keys and values")
matrices = [pages.as_matrix(each) for each in (q, keys, values)]
parts = paged.decode_parts(1, 4, 32)
counts = observe(kernel[(1, 1, 1), 128], *matrices, table, lengths, pages.as_matrix(out),
                 np.float32(scale * pages.LOG2_E), np.uint32(4), np.uint32(1), *parts).counts
print(f"one block: {counts['sectors'] / in_cache:5.1f}")

# %% [markdown]
# The naive kernel computes each score twice, loads the query again for each of them, and loads one number at a time,
# where each load touches a whole sector. A block that has all four heads loads keys and values once, in whole sectors;
# the excess over 1 is the queries, which every warp loads, the table and the result.
#
# ## Long sequences, and the same bits in any batch
#
# One block for each head of keys is enough work for a GPU when there are many sequences. A single sequence with 8 heads
# of keys is 8 blocks, and an H200 has 132 SMs. So `split` cuts a long sequence into up to 16 parts, which several
# blocks may share. If they do, each block writes $m$, $l$ and $a$ of its parts to memory. An atomic counter in global
# memory shows which block is the last to arrive, and that block joins all the parts, so there is no second launch.
#
# Into how many parts should a sequence be cut? An obvious rule is: as many as fill the GPU. Then a sequence has 16
# parts when it is alone, and 1 in a batch of 64. What is wrong with that? This is the rule in use:

# %%
show_source(find_parts)

# %% [markdown]
# It depends on the length of the sequence, and on nothing else in the batch. (All parts but the last are a multiple of
# 4 pages, so that the four warps have equally many.) Only the number of *blocks* depends on the batch. Here is a
# sequence of 200 tokens, alone and then in a batch with 300 places, of which six are in use, and in different pages.
# Will its result have the same bits?

# %%
from labkit import cuda


def attend(launch, q, keys, values, table, lengths):
    out = cuda.to_device(np.full(q.shape, np.nan, np.float32))
    arrays = (cuda.to_device(np.ascontiguousarray(each)) for each in (q, keys, values, table, lengths))
    launch(*arrays, out, 32**-0.5)
    return out.copy_to_host()[0]


lengths = np.array([200, 31, 77, 150, 8, 200] + 294 * [0], np.int32)
q = rng.standard_normal((300, 4, 32), np.float32)
counts = -(-lengths // PAGE)
table = page_table_of(np.split(rng.permutation(60)[: counts.sum()], np.cumsum(counts)[:-1]))
keys, values = (rng.standard_normal(cache_shape(60, 1, 32), np.float32) for _ in range(2))
for batch in (1, 300):
    print(f"a batch of {batch:3}: {paged.blocks_of_sequence(batch, int(counts[0]))} blocks at most for the sequence")
where = rng.permutation(60)  # alone, its page p is at where[p]
moved = [np.empty_like(each) for each in (keys, values)]
for old, new in zip((keys, values), moved, strict=True):
    new[where] = old
alone = np.where(table[:1] >= 0, where[table[:1]], -1).astype(np.int32)
results = {}
for launch in (paged.paged_decode_split, paged.paged_decode_one_block):
    results[launch] = together = attend(launch, q, keys, values, table, lengths)
    same = np.array_equal(together, attend(launch, q[:1], *moved, alone, lengths[:1]))
    print(f"{launch.__name__:24} the same bits: {same}")
    assert same
split, whole = results.values()
print(f"{(split != whole).mean():.0%} of the numbers differ between two parts and one, "
      f"by {np.abs(split - whole).max():.0e} at most")

# %% [markdown]
# Alone, the sequence's two parts have a block each, and the last block joins them. In the large batch one block takes
# both parts, one after the other. Either way the same numbers are added in the same order, wherever their pages lie,
# and the bits are the same.
#
# The last line shows what the obvious rule would do: two parts and one part round differently. If the number of parts
# depended on the batch, an answer would depend on which other requests are being served. Now and then a difference in
# the last bit makes another token the likeliest, and from there on the text is a different one. With `find_parts`, the
# tests can require that each output equals that of the request run alone, bit for bit.
#
# ## How long should it take?
#
# Decoding reads the keys and values of all sequences once, and does little with them: each number of two bytes takes
# part in one multiplication and one addition for each query head of its group. So the time should be the bytes divided
# by the bandwidth. With few sequences expect more: a block has to wait for a length, then for a page's number, then for
# the page, and there is too little work to hide these latencies. How near to the rate of a copy do you expect the
# kernels to come, with one sequence and with 256?
#
# This was recorded on an H200, each kernel as it was on that day. The last one, `mma`, is `split` on tensor cores.
# PyTorch's SDPA had contiguous keys and values, and gathering them from pages is not in its time:

# %%
from labkit import measure

bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]  # what a copy reaches


def recorded(op, work, unit, divisor):
    for size in (op.work.timed_gpu, *op.work.also_gpu):
        print(f"{size['B']:4} x {size['S']:,} tokens:")
        for row in measure.recorded_ladder(op, size, gpu="NVIDIA H200").rows:
            us = 1000 * (row.graph or row.timing).p50
            print(f"      {row.name:60}{us:9.1f} us{work(**size) / us / divisor:9,.1f} {unit}")


print(f"a copy: {bandwidth:,.0f} GB/s")
recorded(paged.PAGED_DECODE_BF16, paged.PAGED_DECODE_BF16.work.bytes, "GB/s", 1e3)

# %% [markdown]
# For 64 and 256 sequences PyTorch is a little faster than the copy. So the rate of a copy is a yardstick here and not a
# bound: a copy writes as much as it reads, and decoding writes next to nothing.
#
# ## Prompts over pages
#
# A prompt has many new rows at once, and each sees the keys up to its own. With pages, three kinds of sequences can go
# into one launch: a whole prompt, the rest of a prompt whose beginning was found in the cache, and a single token of an
# answer. For each sequence the kernel needs to know where its new rows begin, how many there are, and how many tokens
# the sequence has with them.

# %%
lengths, contexts = (20, 7, 1), (20, 23, 30)
pictures.rows_and_keys(lengths, contexts)

# %%
from labkit.kernels.attention import paged_prefill

agree(paged_prefill.PAGED_PREFILL_BF16, ["paged_prefill_bf16_naive"],
      sizes=({"B": 3, "S": 20, "shortest": 1, "before": 17, "H": 4, "KV": 1, "D": 32},))

# %% [markdown]
# The faster kernels give a block a tile of queries, as flash attention does in lesson 18, and look up the pages of each
# tile of keys. These tiles begin at a sequence's first token, whichever rows are new. So a prompt has the same bits
# whether it is computed in one launch, in several, or with its beginning found in the cache; the tests compare them.
# Recorded on an H200, PyTorch again with contiguous keys and values:

# %%
recorded(paged_prefill.PAGED_PREFILL_BF16, paged_prefill.PAGED_PREFILL_BF16.work.flops, "TFLOP/s", 1e6)

# %% [markdown]
# ## Aside: an attention whose cache does not grow
#
# The cache grows because a token needs every key before it: n tokens cost $O(n^2 d)$ flops and a cache of $O(n d)$.
# *Linear attention* replaces the exponential of $q \cdot k$ by a product $\varphi(q) \cdot \varphi(k)$, where $\varphi$
# is applied to each number; here it is the square of the number if that is positive, else 0. Then the sums can be
# regrouped:
#
# $$\text{out} = \frac{\sum_j (\varphi(q) \cdot \varphi(k_j))\, v_j}{\sum_j \varphi(q) \cdot \varphi(k_j)}
# = \frac{\varphi(q)\, S}{\varphi(q) \cdot z} \qquad S = \sum_j \varphi(k_j)^T v_j \qquad z = \sum_j \varphi(k_j)$$
#
# $S$ has d × d numbers and $z$ has d, and a new token is added to both. So n tokens cost $O(n d^2)$, and there is no
# cache and no page. What is lost? Give both forms n random pairs of a key and a value, and look one of them up, with a
# query that is four times its key. How far is the result from the value?

# %%
def phi(x):
    return np.maximum(x, 0) ** 2


d = 64
print(f"{'n':>6}{'error: softmax':>18}{'linear':>12}{'numbers kept: softmax':>26}{'linear':>12}")
for n in (4, 16, 64, 256, 1024, 4096):
    k, v = rng.standard_normal((2, n, d))
    wanted = rng.integers(n, size=20)
    queries = 4 * k[wanted]
    scores = queries @ k.T / np.sqrt(d)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    S, z = phi(k).T @ v, phi(k).sum(axis=0)  # all that linear attention keeps of the pairs
    errors = [np.linalg.norm(out - v[wanted]) / np.linalg.norm(v[wanted])
              for out in (weights @ v / weights.sum(axis=1, keepdims=True),
                          phi(queries) @ S / (phi(queries) @ z)[:, None])]
    print(f"{n:6,}{errors[0]:18.1%}{errors[1]:12.1%}{2 * n * d:26,}{d * (d + 1):12,}")

# %% [markdown]
# The exponential makes one key stand out among thousands, and no earlier token is lost. A state of fixed size cannot
# hold arbitrarily many pairs: the more there are, the nearer the result comes to the mean of all values. Models with
# such a state have to learn what to keep, and some combine layers of both kinds. A model that was trained with a
# softmax, like ours, needs the softmax and the cache.
#
# ## What was implemented
#
# - pages of 16 tokens, a table and slots, in an engine that shares pages between prompts and leaks none
# - attention for decoding in four rungs over the same table, and attention for prompts of several sequences at once
# - the online softmax, derived and tried on random splits; the same bits for shuffled pages and in any batch
#
# ## What I learned
#
# - What a contiguous cache wastes is the room for tokens that may never come.
# - Three quantities summarize any part of a softmax. So lanes, warps and blocks can divide the keys in any way, and one
#   formula joins what they found.
# - If a result must not depend on the rest of the batch, neither may the order of its additions.
# - Paging costs one small load for each page, as long as a page's tokens fill whole lines of memory.
#
# ## Resources
#
# - [W. Kwon et al.: Efficient Memory Management for Large Language Model Serving with PagedAttention
#   (2023)](https://arxiv.org/abs/2309.06180), the article on pages
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
# - [T. Dao et al.: Flash-Decoding (2023)](https://pytorch.org/blog/flash-decoding/), a sequence split over blocks
# - [A. Katharopoulos et al.: Transformers are RNNs (2020)](https://arxiv.org/abs/2006.16236), linear attention
#
# ## Try it
#
# - Give the engine 12 pages instead of 32. What happens to the requests, and to their tokens?
# - Draw the page table with `enable_prefix_caching=False` in `LLM(...)`.
# - Find the shortest sequence with 16 parts. Do all longer ones have 16?
# - With a GPU: measure the kernels with `labkit bench paged_decode_bf16` and `labkit bench paged_prefill_bf16`.
#
# In the exercises for this lesson you write keys to their slots, count the holders of pages, write paged attention with
# a warp for each head and use it in the engine, and finally split it over blocks.
