# %% [markdown]
# # 20 · Paged attention
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how much of a KV cache stays empty if each sequence has one piece of it, and what pages change
# - how a softmax is computed in parts, and why these may be joined in any order
# - how one kernel serves sequences of all lengths, whose pages lie anywhere in memory
# - what a model without a growing cache would have to give up
#
# ## The problem
#
# Each sequence of a batch needs a KV cache, and so far each had one piece of memory for it. The piece must be as long
# as the sequence may become, since it is not known beforehand when a model will end its answer. Most answers end early,
# and what is left of their pieces cannot be used by another sequence.
#
# Here are 128 requests in the middle of their work, for a model of the shape of Llama 3.2 1B. Prompts and answers have
# 100 to 1,024 tokens, evenly spread, and each request has written some part of its answer.
#
# ## Prediction
#
# Write down two guesses before you run the cell. If every sequence has room for 8,192 tokens, which part of the memory
# holds a token? And if memory is given out in pages of 16 tokens, as a sequence grows?

# %%
import numpy as np

rng = np.random.default_rng(20)
prompts, answers = rng.integers(100, 1025, (2, 128))
now = prompts + (answers * rng.random(128)).astype(int)  # tokens in the cache at this moment
token_bytes = 2 * 16 * 8 * 64 * 2  # keys and values, layers, their heads, numbers of a head, bytes of bfloat16


def in_pages(size):
    return -(-now // size) * size


plans = {"room for 8,192 tokens": np.full(128, 8192), "room for 2,048 tokens": np.full(128, 2048),
         "room for prompt and answer": prompts + answers, "pages of 256 tokens": in_pages(256),
         "pages of 16 tokens": in_pages(16), "pages of 1 token": now}
print(f"{now.sum():,} tokens, {token_bytes:,} bytes each: {now.sum() * token_bytes / 1e9:.1f} GB\n")
print(f"{'':28}{'GB':>8}{'holds tokens':>14}{'empty places a sequence':>26}")
for name, tokens in plans.items():
    print(f"{name:28}{tokens.sum() * token_bytes / 1e9:8.1f}{now.sum() / tokens.sum():14.1%}"
          f"{(tokens - now).mean():26.1f}")

# %% [markdown]
# The third line is what a server could do that knew the length of each answer before it is written. Pages need no such
# knowledge and waste less: the only empty places are in a sequence's last page, half a page on average, however long
# the sequence is. The article that introduced pages, by Kwon and others, measured the servers of its time: only 20.4%
# to 38.2% of their cache held tokens.
#
# Memory decides how many sequences fit into a batch, and you saw in the last lesson what that is worth: all of them
# share one pass over the weights.
#
# ## Pages, a table, slots
#
# An operating system has the same problem with the memory of its programs, and the same answer. Memory is cut into
# pages of equal size, and a *page table* says where the pages of each sequence lie. Here a page has the keys, or the
# values, of 16 tokens of one layer: an array `keys` has the shape (pages, K, 16, D), with K heads of D numbers. Page 7
# means the same in all layers. So one table serves them all.

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
# slot for each row, and -1 for rows that only fill up a batch. Behind a sequence's last page the table may hold
# anything, and so may places that no token has: no kernel may read them.
#
# Does it cost bandwidth that pages lie anywhere? In a page, the tokens of one head lie end to end. For D = 64 in
# bfloat16 these are 16 × 64 × 2 bytes, 2 KB in a row. A warp that reads 512 bytes at a time finds no difference.
#
# ## A page table from a running engine
#
# Here is the engine at work with the small model of the last lessons, and a memory of 32 pages. Three of the five
# prompts begin with the same instruction, as those of a chat program do.

# %%
from labkit.engine import LLM, SamplingParams

llm = LLM("tiny-llama", dtype="float32", num_pages=32, max_model_len=128, max_num_seqs=8,
          max_num_batched_tokens=64)
engine, served = llm.engine, {}


def ask(prompt, answer):
    """Adds a request for so many tokens, and returns its sequence."""
    name = f"request {len(served)}"
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    served[name] = engine.add_request(name, prompt, params).sequences[0]
    return served[name]


def chat(question):
    return f"<|user|>{question}<|end|><|assistant|>"


rules = ("You are the Jargon File, a dictionary of the words that hackers use. "
         "Explain this word to a newcomer in a few sentences: ")
first = [ask(chat(rules + word), answer)
         for word, answer in (("hacker", 12), ("kluge, which some spell kludge", 30), ("a bug", 14))]
ask(chat("What is a hacker?"), 40)
ask(chat("What is the difference between a bug and a feature, and why do people who write "
         "programs like to take one for the other?"), 16)
alike = next(k for k, column in enumerate(zip(*(one.tokens for one in first), strict=False))
             if len(set(column)) > 1)
print("prompts of", ", ".join(str(len(one.tokens)) for one in served.values()), "tokens")
print(f"the first three begin with the same {alike}")

# %% [markdown]
# How many pages do these prompts need, and how many of them can be shared? Nine steps later:

# %%
for _ in range(9):
    engine.step()

# %%
from labkit.measure.plots import pages as pictures

pictures.page_table(engine.blocks, served)

# %% [markdown]
# Two pages are shared. The third pages of the three prompts begin alike, too, but a page is shared only as a whole: all
# tokens up to its end must be the same. A shared page is read by all its holders and written by none of them. The
# *block manager* counts the holders of each page, and the page is free again when the last of them has ended.
#
# Some steps later, several answers are complete, and two more requests have come. One of them has the same beginning.
# Where will its first pages be?

# %%
for _ in range(8):
    engine.step()
ask(chat(rules + "foo"), 20)
ask(chat("Who wrote the Jargon File, and when?"), 20)
for _ in range(4):
    engine.step()
pictures.page_table(engine.blocks, served)

# %% [markdown]
# They are the old ones: the new request became a holder of pages 0 and 1. It would have found them without another
# holder, too, because a page that is free keeps its contents until it is needed. As long as it is grey, a prompt that
# begins with the same tokens does not compute them again. This is the *prefix cache*; the next lesson measures it.
#
# What is counted can also leak. When all these requests have ended, and many more of random length, every page must be
# free:

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
# The course's tests do the same with random requests that arrive at any time, fork, are preempted and are aborted.
#
# ## A softmax in parts
#
# A kernel meets the keys of a sequence page by page. With the scores $s_j = q \cdot k_j / \sqrt{D}$ it has to compute
#
# $$\text{out} = \frac{\sum_j e^{s_j} v_j}{\sum_j e^{s_j}}$$
#
# In this form $e^{s_j}$ overflows. So numerator and denominator are both divided by $e^m$, where $m$ is the largest
# score, which changes nothing in the quotient. But the largest score of *all* keys is known only at the end. What can
# be said of a part $P$ of the keys, by itself? Three things, with its own largest score:
#
# $$m_P = \max_{j \in P} s_j \qquad l_P = \sum_{j \in P} e^{s_j - m_P} \qquad a_P = \sum_{j \in P} e^{s_j - m_P} v_j$$
#
# Let $Q$ be another part. For both together $m = \max(m_P, m_Q)$. The factor $e^{m_P - m}$ turns $e^{s_j - m_P}$ into
# $e^{s_j - m}$, the same for every term of a sum. So it can be applied to the sum as a whole:
#
# $$l = l_P\, e^{m_P - m} + l_Q\, e^{m_Q - m} \qquad a = a_P\, e^{m_P - m} + a_Q\, e^{m_Q - m}$$
#
# At the end, out is $a / l$. A single key is a part, too, with $m = s_j$, $l = 1$ and $a = v_j$. Join the keys to what
# you have one at a time, and you have the *online softmax* of lessons 09 and 12, with its correction whenever the
# maximum grows. How often do you expect that to happen among these 40 scores?

# %%
pictures.running_softmax(1.5 * np.random.default_rng(26).standard_normal(40))

# %% [markdown]
# Rarely: the k-th score of a random row is the largest so far with probability 1/k. But nothing says that keys have to
# come one at a time. Does the order matter, or the grouping? On paper it does not. A part holds the set of its keys,
# described relative to $m_P$, and a union of sets can be formed in any order. The empty part is $m = -\infty$, $l = 0$,
# $a = 0$. In float32 every join rounds. So here is the property, tried on random splits that are joined in random
# order:


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
# Right to float32's last digits, but not the same to the last bit. We shall come back to that.
#
# ## Through the table
#
# The simplest kernel has a thread for each sequence and query head, which goes over the keys twice. Look for the line
# that paging adds:

# %%
from labkit import agree, show_source
from labkit.kernels.attention import paged, pages

show_source(pages.make_attend)

# %% [markdown]
# It is `page = page_table[sequence, j // PAGE]`: one more load a token, and the same number for 16 tokens in a row. The
# rungs above it differ in who takes which keys:

# %%
for launcher in paged.PAGED_DECODE_BF16.rungs:
    print(f"{launcher.__name__.removeprefix('paged_decode_bf16_'):10} {launcher.idea}")

# %% [markdown]
# In the second one a block has four warps, and each takes every fourth page. Neighbouring lanes read a key together, 16
# bytes each. For heads of 64 numbers these are 8 lanes, and a warp reads four keys in one request:

# %%
pictures.page_reads(64)

# %% [markdown]
# Each group of lanes has a part of its own, with `row_max`, `row_sum` and `acc`, and no group waits for another before
# the end. The loads of several keys are under way at once. This is how a group takes its next keys; `score_key` adds up
# the lanes' products by shuffles, and `exp2` is used in place of `exp`, with scores scaled accordingly.

# %%
import inspect

from labkit.kernels.attention.paged_split import find_parts, make_paged_decode

kernel = make_paged_decode(32, 4, False, 1)
show_source(inspect.getclosurevars(kernel.py_func).nonlocals["add_round"])

# %% [markdown]
# After the last page the lanes join their parts by shuffles and the four warps theirs in shared memory, with the
# formula from above. All of it has to agree with NumPy, for several lengths at once, among them an empty place in the
# batch. In these inputs pages are shuffled, and whatever no token owns is NaN.

# %%
agree(paged.PAGED_DECODE, ["paged_decode_naive", "paged_decode_one_block", "paged_decode_split"],
      sizes=({"B": 3, "S": 33, "shortest": 0, "H": 4, "KV": 1, "D": 32},
             {"B": 4, "S": 300, "shortest": 15, "H": 4, "KV": 1, "D": 32}))

# %% [markdown]
# ## Heads that share keys
#
# In the inputs above 4 query heads share one head of keys and values, as in Llama 3.2 1B. The naive kernel has a thread
# for each query head. How many sectors of 32 bytes do its requests touch for each sector that the keys and values take
# in the cache? And those of the second kernel, where a block has all query heads of a group?

# %%
from labkit import observe

size = {"B": 1, "S": 48, "shortest": 48, "H": 4, "KV": 1, "D": 32}
inputs = paged.PAGED_DECODE.inputs(np.random.default_rng(4), **size)
q, keys, values, table, lengths, scale = inputs
out = np.zeros_like(q)
naive = paged.make_paged_decode_naive(32, False)[1, 32]
counts = observe(naive, q, keys, values, table, lengths, out, np.float32(scale)).counts
in_cache = 2 * 48 * 32 * 4 // 32  # sectors
print(f"naive:     {counts['sectors'] / in_cache:5.1f} sectors for each one in the cache")
matrices = [pages.as_matrix(each) for each in (q, keys, values)]
parts = paged.decode_parts(1, 4, 32)
counts = observe(kernel[(1, 1, 1), 128], *matrices, table, lengths, pages.as_matrix(out),
                 np.float32(scale * pages.LOG2_E), np.uint32(4), np.uint32(1), *parts).counts
print(f"one block: {counts['sectors'] / in_cache:5.1f}")

# %% [markdown]
# A thread of the naive kernel computes each score twice, loads its query anew for each of them, and asks for one number
# at a time, which takes a sector each time. L1 answers most of these requests, but it has to answer them one by one. A
# block that has all four heads asks for keys and values once, in whole sectors; what is above 1 are the queries, the
# table and the result.
#
# ## Pages in any order
#
# The result must not depend on where the pages lie, not even in its last bit: the same numbers are added in the same
# order. Here are sequences whose pages are in order, and then the same tokens in shuffled pages.

# %%
from labkit import cuda


def attend(launch, q, keys, values, table, lengths):
    out = cuda.to_device(np.full(q.shape, np.nan, np.float32))
    arrays = (cuda.to_device(np.ascontiguousarray(each)) for each in (q, keys, values, table, lengths))
    launch(*arrays, out, 32**-0.5)
    return out.copy_to_host()


lengths = np.array([300, 45, 16, 0, 129], np.int32)
q = rng.standard_normal((5, 4, 32), np.float32)
keys, values = (rng.standard_normal(cache_shape(40, 1, 32), np.float32) for _ in range(2))
ends = np.cumsum(-(-lengths // PAGE))
ordered = page_table_of([range(end - -(-n // PAGE), end) for n, end in zip(lengths, ends, strict=True)])
where = rng.permutation(40)  # page p moves to where[p]
moved = [np.empty_like(each) for each in (keys, values)]
for old, new in zip((keys, values), moved, strict=True):
    new[where] = old
shuffled = np.where(ordered >= 0, where[ordered], -1).astype(np.int32)
for launch in (paged.paged_decode_naive, paged.paged_decode_one_block, paged.paged_decode_split):
    first = attend(launch, q, keys, values, ordered, lengths)
    assert np.array_equal(first, attend(launch, q, *moved, shuffled, lengths))
contiguous = np.concatenate(keys[:, 0])[:300], np.concatenate(values[:, 0])[:300]  # sequence 0, one piece
weights = np.exp(q[0] @ contiguous[0].T / np.sqrt(32))
error = np.abs(first[0] - weights / weights.sum(axis=1, keepdims=True) @ contiguous[1]).max()
print(f"the same bits; from attention over one piece of memory they differ by {error:.0e}")

# %% [markdown]
# ## Long sequences, and the same bits in any company
#
# One block for each head of keys is enough work for a GPU where there are many sequences. A single one, with 8 heads of
# keys, is 8 blocks, on an H200 with 132 SMs. So a long sequence is cut into up to 16 parts, which several blocks may
# share. Each writes what it found of its parts, $m$, $l$ and $a$, to memory, and the block that ends last joins them.
# Which blocks have ended is counted with an atomic in global memory, so there is no second launch.
#
# Into how many parts should a sequence be cut? The obvious rule is: as many as fill the GPU. Then a sequence has 16
# parts if it is alone, and 1 in a batch of 64. What is wrong with that?

# %%
show_source(find_parts)

# %%
alone, company = 200, [200, 31, 77, 150, 8, 200]
keys, values = (rng.standard_normal(cache_shape(60, 1, 32), np.float32) for _ in range(2))
lists = np.split(rng.permutation(60), np.cumsum([-(-n // PAGE) for n in company])[:-1])
table = page_table_of([each[: -(-n // PAGE)] for each, n in zip(lists, company, strict=True)])
q = rng.standard_normal((6, 4, 32), np.float32)
lengths = np.array(company, np.int32)
for launch in (paged.paged_decode_split, paged.paged_decode_one_block):
    together = attend(launch, q, keys, values, table, lengths)[0]
    print(f"{launch.__name__:24} alone and in company the same bits:",
          np.array_equal(together, attend(launch, q[:1], keys, values, table[:1], lengths[:1])[0]))
split, whole = (attend(launch, q, keys, values, table, lengths)[0]
                for launch in (paged.paged_decode_split, paged.paged_decode_one_block))
print(f"{(split != whole).mean():.0%} of the numbers differ between two parts and one, "
      f"by {np.abs(split - whole).max():.0e} at most")

# %% [markdown]
# Two parts and one part round differently. If the number of parts depended on the batch, an answer would depend on who
# else is being served: now and then a difference in the last bit makes another token the likeliest one, and from there
# on the text is a different one. `find_parts` looks at the sequence's own length and at nothing else. Only the number
# of *blocks* depends on the batch: in a large one a block takes all parts of a sequence, one after the other, and joins
# each to those before it; a lone sequence has a block for every part. Whoever joins them does it in the same order, by
# the same operations. So the tests can demand that each output equals that of the request run alone, bit for bit.
#
# ## How long should it take?
#
# Decoding reads the keys and values of all sequences once, and does little with them: each number of two bytes takes
# part in a multiplication and an addition for each query head of its group. So the time should be the bytes, divided by
# the bandwidth. In which of these lines does the
# cache outweigh the weights, which are read once a step for all sequences together?

# %%
from labkit import measure
from labkit.models.llama import LLAMA_3_2_1B

bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]  # what a copy reaches
op = paged.PAGED_DECODE_BF16
print(f"weights: {2 * LLAMA_3_2_1B.parameters / 1e9:.2f} GB. A layer of the cache, and its time at "
      f"{bandwidth:,.0f} GB/s:")
for gpu_size in (op.work.timed_gpu, *op.work.also_gpu):
    B, S = gpu_size["B"], gpu_size["S"]
    nbytes = op.work.bytes(**gpu_size)
    print(f"{B:4} x {S:,} tokens: {nbytes / 1e6:7.1f} MB, {nbytes / bandwidth / 1e3:6.1f} us; "
          f"cache of all layers {B * S * token_bytes / 1e9:5.2f} GB")

# %% [markdown]
# With many or long sequences, the cache is most of what a step reads. The times are lower limits. For few sequences
# expect more: the time is then a chain of waits, for a length, for a page's number, for the page itself. The last two
# rungs move no fewer bytes than the second. What would you expect them to gain with one sequence, and with 256? This is
# what was recorded; PyTorch's SDPA had keys and values that lie end to end, and paid nothing for gathering them:


# %%
def recorded_rows(op):
    for size in (op.work.timed_gpu, *op.work.also_gpu):
        found = measure.recorded_ladder(op, size, gpu="NVIDIA H200")
        print(f"{size['B']:4} x {size['S']:,} tokens:", "" if found else "not recorded yet")
        for row in found.rows if found else ():
            us = 1000 * (row.graph or row.timing).p50
            print(f"      {row.name:32}{us:9.1f} us{op.work.bytes(**size) / us / 1e3:9,.0f} GB/s"
                  f"{op.work.flops(**size) / us / 1e6:9.1f} TFLOP/s")


recorded_rows(op)

# %% [markdown]
# The split gains most for a single sequence, where one block for each head of keys left most SMs without work. With
# hundreds of sequences there was enough of it, and more parts cannot help.
#
# ## Prompts over pages
#
# A prompt has many new rows at once, of which each sees the keys up to its own. With pages, three kinds of sequences
# can go into one launch: a whole prompt, the rest of one whose beginning was found in the cache, and a single token of
# an answer. All that a kernel needs to know of a sequence is where its new rows begin, how many they are, and how many
# tokens the sequence has with them.

# %%
lengths, contexts = (20, 7, 1), (20, 23, 30)
pictures.rows_and_keys(lengths, contexts)

# %%
from labkit.kernels.attention import paged_prefill

agree(paged_prefill.PAGED_PREFILL_BF16, ["paged_prefill_bf16_naive"],
      sizes=({"B": 3, "S": 20, "shortest": 1, "before": 17, "H": 4, "KV": 1, "D": 32},))

# %% [markdown]
# On a GPU a block takes tiles of queries, as flash attention in lesson 12, and looks up the pages of each tile of keys.
# These tiles begin at a sequence's first token, whichever rows are new. So a prompt has the same bits whether it comes
# in one piece, in parts, or with its beginning in the cache. What was recorded:

# %%
recorded_rows(paged_prefill.PAGED_PREFILL_BF16)

# %% [markdown]
# ## Aside: an attention whose cache does not grow
#
# All of this exists because a token needs every key before it: n tokens cost $O(n^2 d)$ flops and a cache of $O(n d)$.
# *Linear attention* replaces the exponential of $q \cdot k$ by a product $\varphi(q) \cdot \varphi(k)$, with a simple
# function of each number, here the square of what is above 0. Then the sums can be regrouped:
#
# $$\text{out} = \frac{\sum_j (\varphi(q) \cdot \varphi(k_j))\, v_j}{\sum_j \varphi(q) \cdot \varphi(k_j)}
# = \frac{\varphi(q)\, S}{\varphi(q) \cdot z} \qquad S = \sum_j \varphi(k_j)^T v_j \qquad z = \sum_j \varphi(k_j)$$
#
# $S$ has d × d numbers and $z$ has d, and a new token is added to both. So n tokens cost $O(n d^2)$, and there is no
# cache and no page. What is lost? Give both forms n random pairs of a key and a value, and ask for one of them, with a
# query that is four times its key. How far from the right value is the answer?


# %%
def phi(x):
    return np.maximum(x, 0) ** 2


d = 64
print(f"{'error of the value asked for':>34}{'numbers kept for a head':>30}")
print(f"{'n':>6}{'softmax':>14}{'linear':>14}{'softmax':>18}{'linear':>12}")
for n in (4, 16, 64, 256, 1024, 4096):
    k, v = rng.standard_normal((2, n, d))
    asked = rng.integers(n, size=20)
    queries = 4 * k[asked]
    scores = queries @ k.T / np.sqrt(d)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    S, z = phi(k).T @ v, phi(k).sum(axis=0)  # all that linear attention knows of the pairs
    linear = phi(queries) @ S / (phi(queries) @ z)[:, None]
    shares = phi(queries) @ phi(k).T  # the same with the sums as they were
    assert np.allclose(linear, shares @ v / shares.sum(axis=1, keepdims=True))
    errors = [np.linalg.norm(out - v[asked]) / np.linalg.norm(v[asked])
              for out in (weights @ v / weights.sum(axis=1, keepdims=True), linear)]
    print(f"{n:6,}{errors[0]:14.1%}{errors[1]:14.1%}{2 * n * d:18,}{d * (d + 1):12,}")

# %% [markdown]
# The exponential makes one key stand out among thousands, and no earlier token is lost. A sum of fixed size cannot hold
# any number of pairs: the more there are, the nearer the answer comes to the mean of all values. Models with such a
# state learn what is worth keeping, and many mix layers of both kinds. But a model that was trained with a softmax
# needs one, and so does ours.
#
# ## What was implemented
#
# - pages of 16 tokens, a table and slots, in an engine that shares pages between prompts and leaks none
# - attention for decoding in four rungs over the same table, and attention for prompts of several sequences at once
# - online softmax, derived, and tried on random splits; the same bits for shuffled pages and in any company
#
# ## What I learned
#
# - The waste was never in the tokens. It was in the room for tokens that might come.
# - A part of a softmax is three things, whatever keys are in it. So lanes, warps and blocks may share the keys as they
#   like, and what they found is joined by one formula.
# - Where a result must not depend on the company, neither may the order of its additions.
# - The price of paging is a small load for each page, as long as a page's tokens fill whole lines of memory.
#
# ## Resources
#
# - [W. Kwon et al.: Efficient Memory Management for Large Language Model Serving with PagedAttention
#   (2023)](https://arxiv.org/abs/2309.06180), the article on pages
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
# - [T. Dao et al.: Flash-Decoding (2023)](https://pytorch.org/blog/flash-decoding/), sequences split over blocks
# - [A. Katharopoulos et al.: Transformers are RNNs (2020)](https://arxiv.org/abs/2006.16236), linear attention
#
# ## Try it
#
# - Give the engine 12 pages instead of 32. What happens to the requests, and to their tokens?
# - Draw the page table with `enable_prefix_caching=False` in `LLM(...)`.
# - Find the length from which a sequence has all of its 16 parts.
# - With a GPU: `labkit bench paged_decode_bf16` and `labkit bench paged_prefill_bf16` record the missing rows.
#
# In the exercises for this lesson you write keys to their slots, count the holders of pages, and write paged attention
# with a warp for each head, which can take its place in the engine. At last you split it over blocks.
