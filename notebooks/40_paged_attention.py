# %% [markdown]
# # 40 · Paged attention
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a softmax is computed in parts, and why the parts may be joined in any order
# - how one kernel serves sequences of all lengths, whose pages lie anywhere in memory
# - how long sequences are split over blocks so that a result has the same bits in any batch
#
# ## The problem
#
# The cache of the last lesson lies in pages. For the next token of each sequence, attention reads all keys and values
# of that sequence, and only the page table says where they are. The sequences have different lengths, and one launch
# has to serve them all. Here is the engine in the middle of three answers. `caught` stands in for the model's attention
# kernel for single tokens, and keeps the arguments of each launch.

# %%
import numpy as np

from labkit.course.drawings import paged_attention as pictures
from labkit.engine import LLM, SamplingParams
from labkit.engine.model_runner import ModelRunner
from labkit.kernels.attention import paged, pages
from labkit.kernels.ops.paged_decode import PAGED_DECODE, PAGED_DECODE_BF16
from labkit.measure.plots.pages import page_table
from labkit.models.llama import Kernels
from labkit.models.load import load

launches = []


def caught(*arguments, stream=0):
    launches.append(arguments)
    paged.paged_decode(*arguments, stream=stream)


loaded = load("tiny-llama", dtype="float32")
model = loaded.model.with_kernels(Kernels(paged_decode=caught))
runner = ModelRunner(model, num_pages=16, max_num_seqs=4, max_num_batched_tokens=64, enforce_eager=True)
engine, served = LLM(runner, loaded.tokenizer, max_num_seqs=4, max_num_batched_tokens=64).engine, {}
params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
for name, prompt in (("a", "A hacker is"), ("b", "Foo, bar, and whatever else comes to mind, are"), ("c", "GNU")):
    served[name] = engine.add_request(name, prompt, params).sequences[0]
for _ in range(25):
    engine.step()
page_table(engine.blocks, served)

# %% [markdown]
# ## Prediction
#
# Write down two guesses. A kernel for an H200 reads the keys and values of 1,024 tokens for each sequence. How near
# does it come to the rate of a copy with 256 sequences, and with one? And will a sequence's result have the same bits,
# whether it is alone or in a batch of 300?
#
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
# at a time is the *online softmax* of lessons 15 and 25, with its correction whenever the maximum grows. How often do
# you expect that to happen among these 40 scores?

# %%
pictures.running_softmax(1.5 * np.random.default_rng(26).standard_normal(40))

# %% [markdown]
# Rarely: the k-th score of a random row is the largest so far with probability 1/k. But keys need not come one at a
# time. Does it matter in which order, and in which groups, parts are joined? In exact arithmetic it does not: $m$, $l$
# and $a$ depend only on which keys are in a part. (The empty part is $m = -\infty$, $l = 0$, $a = 0$.) In float32 every
# join rounds. Here are random splits, joined in random order:


# %%
def part(scores, values):
    weights = np.exp(scores - scores.max())
    return scores.max(), weights.sum(), weights @ values


def join(P, Q):
    m = max(P[0], Q[0])
    p, q = np.exp(P[0] - m), np.exp(Q[0] - m)
    return m, P[1] * p + Q[1] * q, P[2] * p + Q[2] * q


rng, worst = np.random.default_rng(20), 0.0
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
from labkit import agree, cuda, show_source

show_source(pages.make_attend)

# %% [markdown]
# It is `page = page_table[sequence, j // PAGE]`, once in each pass: one more load for a token, of an entry that is the
# same for 16 tokens in a row. Here are the arguments of the engine's last launch, in the model's last layer, and this
# kernel computes it once more. The zeros after a sequence's last page mean nothing; page 0 is a's. The fourth sequence
# is an empty place: the engine rounds the size of a batch up, so that few CUDA graphs are enough.

# %%
def attend(launch, *arrays):
    out = cuda.to_device(np.full(arrays[0].shape, np.nan, np.float32))
    launch(*(cuda.to_device(np.ascontiguousarray(each)) for each in arrays), out, 32**-0.5)  # heads of 32 numbers
    return out.copy_to_host()


cuda.synchronize()
q, keys, values, table, lengths = arrays = [each.copy_to_host() for each in launches[-1][:5]]
print(f"q {q.shape}, keys and values {keys.shape}, lengths {lengths}, table\n{table}")
truth = paged.paged_decode_reference(*arrays, 32**-0.5)
print(f"largest error {np.abs(attend(paged.paged_decode_naive, *arrays) - truth).max():.0e}")

# %% [markdown]
# ## Lanes that share a key
#
# In the next kernel, `one_block`, a block has four warps, and each takes every fourth page. Neighbouring lanes read a
# key together, 16 bytes each. In bfloat16, heads of 64 numbers take 8 lanes, so that a warp reads four keys in one
# request:

# %%
pictures.page_reads(64)

# %% [markdown]
# The keys of a group of lanes are a part in the sense above, with a `row_max`, `row_sum` and `acc` of its own, and no
# group needs anything from another before the last page. The function below takes a group's next keys, with all their
# loads in flight at once. `score_key` adds up the lanes' products by shuffles. The exponentials are powers of 2, which
# the hardware computes directly; the factor log2(e) is in the scale.

# %%
from labkit.kernels.attention.paged_split import find_parts, make_paged_decode

show_source(make_paged_decode, "def add_round", "add_value(acc, scores")

# %% [markdown]
# After the last page, the groups of a warp are joined by shuffles and the four warps in shared memory, both by the
# formula above. The results have to agree with NumPy for several lengths at once, 0 among them. In these inputs the
# pages are shuffled, and every place without a token is NaN. (`split` comes below.)

# %%
agree(PAGED_DECODE, ["paged_decode_naive", "paged_decode_one_block", "paged_decode_split"],
      sizes=({"B": 3, "S": 33, "shortest": 0, "H": 4, "KV": 1, "D": 32},
             {"B": 4, "S": 300, "shortest": 15, "H": 4, "KV": 1, "D": 32}))

# %% [markdown]
# ## Heads that share keys
#
# Here 4 query heads share one head of keys and values, as in Llama 3.2 1B. The naive kernel has a thread for each query
# head; in `one_block` a block has all four. How many times the sectors of a sequence's keys and values, 32 bytes each,
# do the requests of either kernel touch?

# %%
from labkit import observe

size = {"B": 1, "S": 48, "shortest": 48, "H": 4, "KV": 1, "D": 32}
*arrays, scale = PAGED_DECODE.inputs(np.random.default_rng(4), **size)
out = np.zeros_like(arrays[0])
naive = paged.make_paged_decode_naive(32, False)[1, 32]
counts = observe(naive, *arrays, out, np.float32(scale)).counts
in_cache = 2 * 48 * 32 * 4 // 32  # sectors
print(f"naive:     {counts['sectors'] / in_cache:5.1f} times the sectors of the keys and values")
matrices = [pages.as_matrix(each) for each in arrays[:3]]
one_block = make_paged_decode(32, 4, False, 1)[(1, 1, 1), 128]
counts = observe(one_block, *matrices, *arrays[3:], pages.as_matrix(out), np.float32(scale * pages.LOG2_E),
                 np.uint32(4), np.uint32(1), *paged.decode_parts(1, 4, 32)).counts
print(f"one block: {counts['sectors'] / in_cache:5.1f}")

# %% [markdown]
# The naive kernel computes each score twice, loads the query again for each of them, and loads one number at a time,
# where each load touches a whole sector. A block that has all four heads loads keys and values once, in whole sectors;
# the excess over 1 is the queries, which every warp loads, the table and the result.
#
# ## Long sequences, and the same bits in any batch
#
# One block for each head of keys is enough work for a GPU when there are many sequences. A single sequence with 8 heads
# of keys is 8 blocks, and an H200 has 132 SMs. So `split` cuts a long sequence into up to 16 parts (*splits* in the
# code), which several blocks may share. If they do, each block writes $m$, $l$ and $a$ of its parts to memory. An
# atomic counter in global memory shows which block is the last to arrive, and that block joins all the parts, so there
# is no second launch.
#
# Into how many parts should a sequence be cut? An obvious rule is: as many as fill the GPU. Then a sequence has 16
# parts when it is alone, and 1 in a batch of 64. What is wrong with that? This is the rule in use:

# %%
show_source(find_parts)

# %% [markdown]
# It depends on the length of the sequence, and on nothing else in the batch. (All parts but the last are a multiple of
# 4 pages, so that the four warps have equally many.) Only the number of *blocks* depends on the batch. Here is a
# sequence of 200 tokens in a batch with 300 places, of which six are in use, and then alone, in other pages. Is your
# second guess still the same?

# %%
lengths = np.array([200, 31, 77, 150, 8, 200] + 294 * [0], np.int32)
q = rng.standard_normal((300, 4, 32), np.float32)
counts = -(-lengths // pages.PAGE)
table = pages.page_table_of(np.split(rng.permutation(60)[: counts.sum()], np.cumsum(counts)[:-1]))
keys, values = (rng.standard_normal(pages.cache_shape(60, 1, 32), np.float32) for _ in range(2))
blocks = [paged.blocks_of_sequence(batch, int(counts[0])) for batch in (1, 300)]
print(f"blocks for the sequence, at most: {blocks[0]} alone, {blocks[1]} in a batch of 300")
where = rng.permutation(60)  # the sequence is alone in other pages: page p is what page where[p] was
alone = np.argsort(where)[table[:1, : counts[0]]].astype(np.int32)
split, whole = (attend(launch, q, keys, values, table, lengths)[0]
                for launch in (paged.paged_decode_split, paged.paged_decode_one_block))
moved = attend(paged.paged_decode_split, q[:1], keys[where], values[where], alone, lengths[:1])[0]
print(f"alone and in the batch the same bits: {np.array_equal(split, moved)}")
print(f"{(split != whole).mean():.0%} of the numbers differ between two parts and one, "
      f"by {np.abs(split - whole).max():.0e} at most")
assert np.array_equal(split, moved)

# %% [markdown]
# Alone, the sequence's two parts have a block each, and the last block joins them. In the large batch one block takes
# both parts, one after the other. Either way the same numbers are added in the same order.
#
# The last line shows what the obvious rule would do: two parts and one part round differently. If the number of parts
# depended on the batch, an answer would depend on which other requests are being served. Now and then a difference in
# the last bit makes another token the likeliest, and from there on the text is a different one. With `find_parts`, the
# tests can require that each output equals that of the request run alone, bit for bit.
#
# ## How long should it take?
#
# Decoding reads the keys and values of all sequences once, and does little with them: one multiply-add with each number
# for each query head of its group. So the time should be the bytes divided by the bandwidth. With few sequences expect
# more: a block waits for a length, then for a page's number, then for the page, and there is too little work to hide
# these latencies. Would you change your first guess? This was recorded on an H200, each kernel as it was on that day.
# The last one, `mma`, is `split` on tensor cores. PyTorch's SDPA had contiguous keys and values, and gathering them
# from pages is not in its time:

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
recorded(PAGED_DECODE_BF16, PAGED_DECODE_BF16.work.bytes, "GB/s", 1e3)

# %% [markdown]
# With one sequence no kernel comes near the rate of a copy, and splitting helps most. With many sequences `split` is
# slower than `one_block`, until its products run on tensor cores. For 64 and 256 sequences PyTorch is a little faster
# than the copy{{ if near_copy }}, and {{ 100 * (mma['many'] - 1):.0f }} to {{ 100 * (mma['long'] - 1):.0f }}% faster
# than `mma`; for 32 it is {{ faster_at_32:.0% }} faster. So the rate of a copy is a yardstick here and not a bound: a
# copy writes as much as it reads, and decoding writes next to nothing.
#
# ## Prompts over pages
#
# A prompt has many new rows at once, and each sees the keys up to its own. With pages, one launch can serve whole
# prompts, the rest of a prompt whose beginning was found in the cache, and single tokens of answers. For each sequence
# the kernel needs to know where its new rows begin, how many there are, and how many tokens it has with them.

# %%
pictures.rows_and_keys(lengths=(20, 7, 1), contexts=(20, 23, 30))

# %%
from labkit.kernels.ops.paged_prefill import PAGED_PREFILL_BF16

agree(PAGED_PREFILL_BF16, ["paged_prefill_bf16_naive"],
      sizes=({"B": 3, "S": 20, "shortest": 1, "before": 17, "H": 4, "KV": 1, "D": 32},))

# %% [markdown]
# The faster kernels give a block a tile of queries, as flash attention does in lesson 25, and look up the pages of each
# tile of keys. These tiles begin at a sequence's first token, whichever rows are new. So a prompt has the same bits
# whether it is computed in one launch, in several, or with its beginning found in the cache; the tests compare them.
# Recorded on an H200, PyTorch again with contiguous keys and values:

# %%
recorded(PAGED_PREFILL_BF16, PAGED_PREFILL_BF16.work.flops, "TFLOP/s", 1e6)

# %% [markdown]
# PyTorch is faster at all three sizes{{ if min(longer) > 1 }}: ours takes {{ 100 * (min(longer) - 1):.0f }} to
# {{ max(longer) - 1:.0% }} longer than SDPA with cuDNN's kernel{{ if runs_cudnn }}. Are the pages to blame? PyTorch's
# flash kernel has none. Like ours it multiplies with `mma.sync`, and it takes longer than ours at all three
# sizes{{ if flash_slower }}. So it is rather the products: cuDNN's are in `wgmma`, which lesson 25 needed, too, before
# its kernel was ahead from 1,024 tokens on. Attention over pages with `wgmma` is yet to be written.
#
# ## What I learned
#
# - Three quantities summarize any part of a softmax. So lanes, warps and blocks can divide the keys in any way, and one
#   formula joins what they found.
# - If a result must not depend on the rest of the batch, neither may the order of its additions.
# - Paging costs one small load for each page, as long as a page's tokens fill whole lines of memory. Prompts lose to
#   the library for another reason, their products.
#
# ## Resources
#
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
# - [T. Dao et al.: Flash-Decoding (2023)](https://pytorch.org/blog/flash-decoding/), a sequence split over blocks
#
# ## Try it
#
# - Find the shortest sequence with 16 parts. Do all longer ones have 16?
# - Let the engine of the first cell run 12 steps. Which entries of its table do you expect?
# - With a GPU: measure the kernels with `labkit bench paged_decode_bf16` and `labkit bench paged_prefill_bf16`.
#
# In the exercises for this lesson you predict parts, write paged attention with a warp for each head and put it into a
# small Llama, join parts, and finally split attention over blocks.
#
# Next: **the scheduler**, which decides whose tokens are in a launch, and what happens when the pages run out.

# %% [numbers]
# prompts = [{name: row('paged_prefill_bf16', name, B=B, S=S, shortest=S, before=0, H=32, KV=8, D=64).graph_us for name
#            in ('mma', 'PyTorch, contiguous (SDPA)', 'PyTorch, contiguous (SDPA, cuDNN)',
#            'PyTorch, contiguous (SDPA, flash)')} for B, S in ((1, 4096), (1, 1024), (16, 512))]
# longer = [one['mma'] / one['PyTorch, contiguous (SDPA, cuDNN)'] for one in prompts]
# copy_us = 537.4e6 / limits.bandwidth_gbs / 1e3
# long = row('paged_decode_bf16', 'PyTorch', B=64, S=4096, shortest=4096, H=32, KV=8, D=64).graph_us / copy_us
# many = row('paged_decode_bf16', 'PyTorch', B=256, S=1024, shortest=1024, H=32, KV=8, D=64).graph_us / copy_us
# mma = {'long': row('paged_decode_bf16', 'mma', B=64, S=4096, shortest=4096, H=32, KV=8, D=64).graph_us / copy_us /
#        long, 'many': row('paged_decode_bf16', 'mma', B=256, S=1024, shortest=1024, H=32, KV=8, D=64).graph_us /
#        copy_us / many}
# near_copy = max(long, many) < 1 < 1.1 * min(long, many)
# faster_at_32 = (row('paged_decode_bf16', 'mma', B=32, S=1024, shortest=1024, H=32, KV=8, D=64).graph_us /
#                 row('paged_decode_bf16', 'PyTorch', B=32, S=1024, shortest=1024, H=32, KV=8, D=64).graph_us - 1)
# runs_cudnn = all([abs(one['PyTorch, contiguous (SDPA)'] / one['PyTorch, contiguous (SDPA, cuDNN)'] - 1) < 0.02 for one
#                  in prompts])
# flash_slower = all([one['PyTorch, contiguous (SDPA, flash)'] > one['mma'] for one in prompts])
