# %% [markdown]
# # 40 · Paged attention
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how one kernel serves sequences of all lengths, whose pages are scattered over memory
# - how a softmax is computed in parts, and why the parts may be joined in any order
# - how long sequences are split over blocks so that a result has the same bits in any batch
#
# ## The problem
#
# In the last lesson the KV cache was cut into pages. For the next token of each sequence, attention reads all keys and
# values of that sequence, and only the page table says where they are. The sequences have different lengths, and one
# launch has to serve them all.
#
# Here is a page table with four sequences, one per row. Their keys and values are in nine pages of 16 tokens. The
# entries after a sequence's last page mean nothing, and wherever there is no token, keys and values are NaN, so that a
# kernel that reads too far gives itself away. The last sequence is empty: its row of the batch is not in use. Which
# page holds token 20 of sequence 1?

# %%
import numpy as np

from labkit import agree, cuda, measure, observe, show_source, table
from labkit.course.drawings import paged_attention as pictures
from labkit.kernels.attention import paged, pages
from labkit.kernels.attention.pages import PAGE
from labkit.kernels.elements import FLOAT32
from labkit.kernels.ops.paged_decode import PAGED_DECODE, PAGED_DECODE_BF16

rng = np.random.default_rng(26)
lengths = np.array([37, 50, 20, 0], np.int32)
page_table = pages.page_table_of([[5, 2, 7], [0, 3, 6, 1], [4, 8], []])
keys, values = (np.full(pages.cache_shape(9, 1, 32), np.nan, np.float32) for _ in range(2))
for row, length in zip(page_table, lengths, strict=True):
    for cache in (keys, values):
        pages.place(cache, row, rng.standard_normal((length, 1, 32), np.float32))
table(zip(range(4), lengths.tolist(), *page_table.T.tolist(), strict=True),
      ["sequence", "tokens", "tokens 0 to 15", "16 to 31", "32 to 47", "48 to 63"], "The page table")

# %% [markdown]
# Page 3: token 20 is in the sequence's second page, at offset 4.
#
# ## Through the table
#
# In the simplest kernel a thread computes one query head of one sequence and goes over the keys twice: first for the
# largest score, then for the weighted sum. Which line does paging add to plain attention?

# %%
show_source(pages.make_attend)

# %% [markdown]
# It is `page = page_table[sequence, j // PAGE]`, once in each pass: one more load per token, of an entry that is the
# same for 16 tokens in a row. Here are four query heads that share the keys above.


# %%
def attend(launch, *arrays):
    out = cuda.to_device(np.full(arrays[0].shape, np.nan, np.float32))
    launch(*(cuda.to_device(np.ascontiguousarray(each)) for each in arrays), out, 32**-0.5)  # heads of 32 elements
    return out.copy_to_host()


q = rng.standard_normal((4, 4, 32), np.float32)
arrays = q, keys, values, page_table, lengths
truth = paged.paged_decode_reference(*arrays, 32**-0.5)
print(f"largest error {np.abs(attend(paged.paged_decode_naive, *arrays) - truth).max():.0e}")

# %% [markdown]
# It is right, with no NaN anywhere. It is also slow: a few threads do all the work, one element at a time. The rest of
# this lesson gives the keys of a sequence to many threads, so it begins with the question of how to combine partial
# results.
#
# ## A softmax in parts
#
# With the scores $s_j = q \cdot k_j / \sqrt{D}$, attention is
#
# $$\text{out} = \frac{\sum_j e^{s_j} v_j}{\sum_j e^{s_j}}$$
#
# where numerator and denominator are both divided by $e^m$, $m$ being the largest score, so that no exponential
# overflows. A part $P$ of the keys can be summarized by three quantities, relative to its own largest score:
#
# $$m_P = \max_{j \in P} s_j \qquad l_P = \sum_{j \in P} e^{s_j - m_P} \qquad a_P = \sum_{j \in P} e^{s_j - m_P} v_j$$
#
# To join $P$ with another part $Q$, bring both to the same maximum $m = \max(m_P, m_Q)$. Every term of a part is
# multiplied by the same factor, so the sums can be multiplied instead:
#
# $$l = l_P\, e^{m_P - m} + l_Q\, e^{m_Q - m} \qquad a = a_P\, e^{m_P - m} + a_Q\, e^{m_Q - m}$$
#
# At the end, out is $a / l$. The online softmax of lesson 16 is the special case in which $Q$ is always a single key.
# The exact result depends only on which keys are in a part, not on how they got there. But in float32 every join
# rounds. Below, random rows are split at random and joined in random order. How large is the largest error in 300 such
# rows?


# %%
def part(scores, values):
    weights = np.exp(scores - scores.max())
    return scores.max(), weights.sum(), weights @ values


def join(P, Q):
    m = max(P[0], Q[0])
    p, q = np.exp(P[0] - m), np.exp(Q[0] - m)
    return m, P[1] * p + Q[1] * q, P[2] * p + Q[2] * q


worst = 0.0
for _ in range(300):
    n, spread = int(rng.integers(2, 200)), 10.0 ** rng.integers(-2, 5)
    scores, some = (spread * rng.standard_normal(n)).astype(np.float32), rng.random((n, 4), dtype=np.float32)
    _, total, acc = part(scores.astype(np.float64), some.astype(np.float64))
    order, cuts = rng.permutation(n), np.sort(rng.integers(1, n, rng.integers(1, 9)))
    parts = [part(scores[one], some[one]) for one in np.split(order, cuts) if len(one)]
    while len(parts) > 1:  # join any two
        P, Q = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
        parts.append(join(P, Q))
    worst = max(worst, np.abs(parts[0][2] / parts[0][1] - acc / total).max())
print(f"300 rows, scores up to tens of thousands: largest error {worst:.1e}")
assert worst < 1e-5

# %% [markdown]
# Correct to the last digits of float32. The last *bit*, however, depends on the order, and that will matter below.
#
# ## Lanes that share a key
#
# In the next kernel, `one_block`, a block has four warps, and each processes every fourth page. Neighbouring lanes read
# a key together, 16 bytes each. In bfloat16 a head of 64 elements needs 8 lanes, so a warp reads four keys in one
# request:

# %% tags=["hide-input"]
pictures.page_reads(64)

# %% [markdown]
# The keys of a group of lanes are a part in the sense above, with its own `row_max`, `row_sum` and `acc`. Until the
# last page no group needs anything from another. `add_round` processes a group's next keys, with all their loads in
# flight together; `score_key` sums the lanes' products by shuffles. The exponentials are powers of 2, which the
# hardware computes directly; the factor log2(e) is in the scale.

# %%
from labkit.kernels.attention.paged_split import find_parts, make_paged_decode

show_source(make_paged_decode, "def add_round", "add_value(acc, scores")

# %% [markdown]
# `correction` is the factor $e^{m_P - m}$ from above, and `exponential` the weight of a new key. After the last page
# the groups of a warp are joined by shuffles and the four warps in shared memory, by the same formula. The results have
# to agree with NumPy for several lengths in one batch, 0 among them. (`split` comes below.)

# %%
agree(PAGED_DECODE, ["paged_decode_naive", "paged_decode_one_block", "paged_decode_split"],
      sizes=({"B": 3, "S": 33, "shortest": 0, "H": 4, "KV": 1, "D": 32},
             {"B": 4, "S": 300, "shortest": 15, "H": 4, "KV": 1, "D": 32}))

# %% [markdown]
# ## Heads that share keys
#
# As in Llama 3.2 1B, four query heads share one head of keys and values. The naive kernel has one thread per query
# head; in `one_block` a block computes all four. The requests of a perfect kernel would touch each 32-byte sector of
# keys and values once. How many times does each of the two kernels touch a sector of keys and values?

# %%
size = {"B": 1, "S": 48, "shortest": 48, "H": 4, "KV": 1, "D": 32}
*inputs, scale = PAGED_DECODE.inputs(np.random.default_rng(4), **size)
out = np.zeros_like(inputs[0])
matrices = [pages.as_matrix(each) for each in inputs[:3]]
launches = {
    "naive": (paged.make_paged_decode_naive(32, FLOAT32)[1, 32], (*inputs, out, np.float32(scale))),
    "one block": (make_paged_decode(32, 4, FLOAT32, 1)[(1, 1, 1), 128],
                  (*matrices, *inputs[3:], pages.as_matrix(out), np.float32(scale * pages.LOG2_E), np.uint32(4),
                   np.uint32(1), *paged.decode_parts(1, 4, 32)))}
in_cache = 2 * 48 * 32 * 4 // 32  # sectors
table([(name, observe(kernel, *arguments).counts["sectors"] / in_cache)
       for name, (kernel, arguments) in launches.items()],
      {"kernel": "", "sectors touched, over those of keys and values": ".1f"})

# %% [markdown]
# The naive kernel computes each score twice, reloads the query for each of them, and loads four bytes at a time, though
# each load touches a whole sector. A block that computes all four heads loads keys and values once, in whole sectors;
# the excess over 1 is the queries, which every warp loads, the table and the result.
#
# ## Long sequences, and the same bits in any batch
#
# One block per key head is enough work for a GPU when there are many sequences. A single sequence with 8 key heads is
# only 8 blocks, and an H200 has 132 SMs. So `split` cuts a long sequence into up to 16 parts (*splits* in the code),
# which several blocks may share. Each of these blocks writes $m$, $l$ and $a$ of its parts to memory. An atomic counter
# shows which block is the last to arrive, and that one joins all the parts, so there is no second launch.
#
# Into how many parts should a sequence be cut? An obvious rule is: as many as fill the GPU. A sequence would then have
# 16 parts when it is alone, and 1 in a batch of 64. But parts round differently from a whole, so an answer would depend
# on which other requests are being served. Now and then a difference in the last bit makes another token the most
# likely, and from there on the text is a different one. Here is the rule in use. What does the number of parts depend
# on?

# %%
show_source(find_parts)

# %% [markdown]
# On the length of the sequence, and on nothing else in the batch. All parts but the last are a multiple of 4 pages, so
# that each of the four warps gets the same number. Only the number of *blocks* depends on the batch.
#
# Here is a sequence of 200 tokens, in a batch of 300 sequences, of which all but six are empty, and then alone, in
# other pages. Does the sequence have the same result, bit for bit, alone and in the batch?

# %%
lengths = np.array([200, 31, 77, 150, 8, 200] + 294 * [0], np.int32)
q = rng.standard_normal((300, 4, 32), np.float32)
counts = -(-lengths // PAGE)
page_table = pages.page_table_of(np.split(rng.permutation(60)[: counts.sum()], np.cumsum(counts)[:-1]))
keys, values = (rng.standard_normal(pages.cache_shape(60, 1, 32), np.float32) for _ in range(2))
blocks = [paged.blocks_of_sequence(batch, int(counts[0])) for batch in (1, 300)]
print(f"blocks for the sequence, at most: {blocks[0]} alone, {blocks[1]} in a batch of 300")
where = rng.permutation(60)  # the sequence is alone in other pages: page p is what page where[p] was
alone = np.argsort(where)[page_table[:1, : counts[0]]].astype(np.int32)
split, whole = (attend(launch, q, keys, values, page_table, lengths)[0]
                for launch in (paged.paged_decode_split, paged.paged_decode_one_block))
moved = attend(paged.paged_decode_split, q[:1], keys[where], values[where], alone, lengths[:1])[0]
print(f"alone and in the batch the same bits: {np.array_equal(split, moved)}")
print(f"two parts and one part: {(split != whole).mean():.0%} of the elements differ, "
      f"by {np.abs(split - whole).max():.0e} at most")
assert np.array_equal(split, moved)

# %% [markdown]
# It does. Alone, the sequence's two parts get a block each, and the last block to arrive joins them. In the large batch
# one block processes both parts, one after the other. Either way the same values are added in the same order. The last
# line shows what the obvious rule would do: two parts and one part round differently. With `find_parts`, the tests can
# require that each output equals that of the request run alone, bit for bit.
#
# ## How long does it take?
#
# Decoding reads the keys and values of all sequences once and does little with them: one multiply-add per element and
# query head of its group. So a good yardstick is a kernel that only reads: the sum of lesson 15 goes through memory at
# {{ sum_gbs:,.0f }} GB/s on an H200. A copy, which writes half of its bytes, reaches {{ limits.bandwidth_gbs:,.0f }}.
# All times below were recorded there in a CUDA graph, the sum's too; only the naive kernel, which takes milliseconds,
# was timed alone. `mma` is `split` with its products on tensor cores. PyTorch's SDPA was given contiguous keys and
# values, and gathering them from pages is not in its time. Which kernel gets closest to the yardstick with 256
# sequences, and which with one?

# %%
sizes = {f"{size['B']} x {size['S']:,}": size
         for size in (PAGED_DECODE_BF16.work.timed_gpu, *PAGED_DECODE_BF16.work.also_gpu)}


def recorded(op, sizes):
    """{name: microseconds at each size}, in a graph where there is one."""
    ladders = [measure.recorded_ladder(op, size, gpu="NVIDIA H200") for size in sizes.values()]
    return {row.name.removeprefix(f"{op.name}_"): [1000 * ladder.rows[i].ms for ladder in ladders]
            for i, row in enumerate(ladders[0].rows)}


us = recorded(PAGED_DECODE_BF16, sizes)
table([(name, *times) for name, times in us.items()], {"us, sequences x tokens": "", **dict.fromkeys(sizes, ",.1f")})

# %% tags=["hide-input"]
total = measure.recorded_ladder("reduce_sum", gpu="NVIDIA H200")
fastest = next(row for row in total.rows if row.name == "reduce_sum_vectorized")
batches = {size["B"]: [PAGED_DECODE_BF16.work.bytes(**size) / 1e3, name]
           for name, size in sorted(sizes.items(), key=lambda one: one[1]["B"]) if size["S"] == 1024}
pictures.rates(list(batches), {name: [nbytes / us[key][list(sizes).index(at)] for nbytes, at in batches.values()]
                               for name, key in (("one_block", "one_block"), ("split", "split"), ("mma", "mma"),
                                                 ("SDPA", "PyTorch, contiguous (SDPA)"))},
               total.bytes / fastest.ms / 1e6)

# %% [markdown]
# With 256 sequences PyTorch reads at {{ rate(sdpa, 256) / sum_gbs:.0% }} of the yardstick and `mma` at
# {{ rate('mma', 256) / sum_gbs:.0% }}; with 64 of 4,096 tokens it is {{ rate(sdpa, 64) / sum_gbs:.0% }} and
# {{ rate('mma', 64) / sum_gbs:.0% }}. With 32 sequences PyTorch is {{ us('mma', 32) / us(sdpa, 32) - 1:.0% }} faster.
#
# One sequence is another matter. Its {{ nbytes(1) / 1e6:.0f }} MB would take half a
# microsecond{{ if near(us_of_bytes(1), 0.5) }}, but the fastest kernel takes {{ us('mma', 1):.1f }} us, as does
# PyTorch{{ if near(us('mma', 1) / us(sdpa, 1), 1) }}. A launch of next to nothing takes
# {{ series.launch_overhead.graph_us:.1f }} us in a graph. After that comes a chain of loads that wait for one another,
# the length, then a page's entry in the table, then the page, with too little work to hide the waiting. Splitting helps
# most here: `split` is {{ us('one_block', 1) / us('split', 1):.1f }} times as fast as `one_block`.
#
# `one_block` is the same kernel as `split`, with a single part per sequence. With 256 sequences the parts are not
# needed, and they cost {{ us('split', 256) / us('one_block', 256) - 1:.0% }}: at the end of each, four warps join their
# results in shared memory. That is the price of the same bits in any batch. `mma` also pays it, and is still the
# fastest of ours at every size{{ if all([us('mma', B) < min(us('split', B), us('one_block', B)) for B in S]) }}.
#
# ## Prompts over pages
#
# A prompt has many new rows, and each sees the keys up to its own. With pages, one launch can serve whole prompts, the
# rest of a prompt whose beginning was found in the cache, and single tokens of answers. For each sequence the kernel
# needs to know where its new rows begin, how many there are, and how many tokens it has in all:

# %% tags=["hide-input"]
pictures.rows_and_keys(lengths=(20, 7, 1), contexts=(20, 23, 30))

# %%
from labkit.kernels.ops.paged_prefill import PAGED_PREFILL_BF16

agree(PAGED_PREFILL_BF16, ["paged_prefill_bf16_naive"],
      sizes=({"B": 3, "S": 20, "shortest": 1, "before": 17, "H": 4, "KV": 1, "D": 32},))

# %% [markdown]
# The faster kernel gives a block a tile of queries, as flash attention does in lesson 25, and looks up the pages of
# each tile of keys. These tiles always begin at a sequence's first token. So a prompt has the same
# bits whether it is computed in one launch, in several, or with its beginning found in the cache; the tests compare
# them. PyTorch again gets contiguous keys and values. Will the pages cost more than they did in decoding?

# %%
prompts = {f"{size['B']} x {size['S']:,}": size
           for size in (PAGED_PREFILL_BF16.work.timed_gpu, *PAGED_PREFILL_BF16.work.also_gpu)}
table([(name, *times, PAGED_PREFILL_BF16.work.flops(**PAGED_PREFILL_BF16.work.timed_gpu) / times[0] / 1e6)
       for name, times in recorded(PAGED_PREFILL_BF16, prompts).items()],
      {"us, sequences x tokens": "", **dict.fromkeys(prompts, ",.1f"), f"TFLOP/s, {next(iter(prompts))}": ",.1f"})

# %% [markdown]
# PyTorch is faster at all three sizes{{ if min(longer) > 1 }}: ours takes {{ 100 * (min(longer) - 1):.0f }} to
# {{ max(longer) - 1:.0% }} longer than SDPA with cuDNN's kernel{{ if runs_cudnn }}. The pages are not to blame.
# PyTorch's flash kernel reads contiguous keys, multiplies with `mma.sync` as ours does, and takes longer than ours at
# all three sizes{{ if flash_slower }}. The difference is in the products: cuDNN's are `wgmma`, which lesson 25 also
# needed before its kernel was ahead from 1,024 tokens on.
#
# ## What I learned
#
# - Three quantities summarize any part of a softmax. So lanes, warps and blocks can divide the keys in any way, and one
#   formula joins their results.
# - If a result must not depend on the rest of the batch, neither may the order of its additions.
# - Paging costs one small load per page, as long as a page's tokens fill whole lines of memory. Prompts lose to the
#   library for another reason, their products.
# - Compare times only if they were measured in the same way, and choose a yardstick that does the same: reading, not
#   copying.
#
# ## Resources
#
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
# - [T. Dao et al.: Flash-Decoding (2023)](https://pytorch.org/blog/flash-decoding/), a sequence split over blocks
# - [W. Kwon et al.: PagedAttention (2023)](https://arxiv.org/abs/2309.06180)
#
# ## Try it
#
# - Find the shortest sequence with 16 parts. Do all longer ones have 16?
# - Let two sequences of the first cell share page 5, and give them the same first 16 keys. Which results change?
# - With a GPU: measure the kernels with `labkit bench paged_decode_bf16` and `labkit bench paged_prefill_bf16`.
#
# In the exercises for this lesson you predict parts, write paged attention with one warp per head and put it into a
# small Llama, join parts, and finally split attention over blocks.
#
# Next: **the scheduler**, which decides whose tokens are in a launch, and what happens when the pages run out.

# %% [numbers]
# sdpa = 'PyTorch, contiguous (SDPA)'
# S = {1: 1024, 32: 1024, 64: 4096, 256: 1024}
# us = lambda name, B: row('paged_decode_bf16', name, B=B, S=S[B], shortest=S[B], H=32, KV=8, D=64).graph_us
# nbytes = lambda B: row('paged_decode_bf16', 'mma', B=B, S=S[B], shortest=S[B], H=32, KV=8, D=64).bytes
# rate = lambda name, B: nbytes(B) / us(name, B) / 1e3
# sum_gbs = row('reduce_sum', 'vectorized').bytes / row('reduce_sum', 'vectorized').graph_us / 1e3
# us_of_bytes = lambda B: nbytes(B) / sum_gbs / 1e3
# prompts = [{name: row('paged_prefill_bf16', name, B=B, S=S, shortest=S, before=0, H=32, KV=8, D=64).graph_us for name
#            in ('mma', 'PyTorch, contiguous (SDPA)', 'PyTorch, contiguous (SDPA, cuDNN)',
#            'PyTorch, contiguous (SDPA, flash)')} for B, S in ((1, 4096), (1, 1024), (16, 512))]
# longer = [one['mma'] / one['PyTorch, contiguous (SDPA, cuDNN)'] for one in prompts]
# runs_cudnn = all([abs(one['PyTorch, contiguous (SDPA)'] / one['PyTorch, contiguous (SDPA, cuDNN)'] - 1) < 0.02 for one
#                  in prompts])
# flash_slower = all([one['PyTorch, contiguous (SDPA, flash)'] > one['mma'] for one in prompts])
