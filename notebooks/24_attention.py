# %% [markdown]
# # 24 · Attention
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - what attention computes, in four steps, and where the numbers of a head lie in memory
# - why 192 idle threads of a block cost nothing here, and what costs so much instead
# - why a program that writes every score to memory can be many times faster than one that writes none
#
# ## The problem
#
# A language model has a row of numbers for each token. Every layer so far treats each row by itself. Attention is the
# one place where rows of different tokens meet. A linear layer makes three vectors out of each token's row: a *query*,
# for what the token looks for; a *key*, by which others find it; and a *value*, which it passes on to them. (A token's
# own key and value count, too.) A dot product compares a query with every key, softmax turns these scores into weights,
# and the weights average the values:
#
# $$\text{out}_t = \sum_j \text{softmax}_j\left(\frac{q_t \cdot k_j}{\sqrt{D}}\right) v_j$$
#
# D is the length of the vectors. The dot product of two random vectors grows with the root of D, so the score is
# divided by that root; otherwise softmax would give nearly all the weight to one key. All of this happens several times
# side by side, in *heads* that share nothing with each other. The smallest GPT-2 has 12 heads with D = 64.
#
# ## Prediction
#
# Before you run the next cell, write down for 1,024 tokens and 12 heads: the flops (a score is a dot product of 64
# numbers, and averaging the values takes as many again), the bytes that have to be read and written at least, and which
# of the two sets the limit. Then add a number that the table does not have: how large is the matrix of all scores?

# %%
from labkit import roofline
from labkit.kernels.ops.attention import ATTENTION

roofline.predict(ATTENTION, S=1024, H=12, D=64)

# %% [markdown]
# There are 256 flops to a byte. On paper the arithmetic sets the limit, as for a matrix product, and not the memory, as
# for softmax. The scores are 12 × 1,024 × 1,024 numbers, {{ scores_mb:.0f }} MB, {{ words(scores_ratio) }} times as
# much as goes in and comes out. A program that writes them, reads and writes them for softmax, and reads them again
# moves {{ round(4 * scores_mb, -1):.0f }} MB more than it has to. How much does that matter? Write down a guess; the
# answer comes further down.
#
# ## Four steps
#
# Here is one head with six tokens. The second step is the *causal mask*: a model that predicts the next token must not
# see it, so the scores of later keys become minus infinity, and their exponentials 0.

# %%
from labkit.course.drawings import attention as pictures

pictures.four_steps()

# %% [markdown]
# Which token does the first query see, and what must its weight be? Why does the last row of the mask hide nothing? In
# NumPy the four steps are four lines. The rest of this lesson and the next is about the order in which a GPU should do
# them.

# %%
import numpy as np


def one_head(q, k, v, causal=True):
    scores = q @ k.T / np.sqrt(q.shape[1])
    scores = np.where(np.tril(np.ones(scores.shape, bool)), scores, -np.inf) if causal else scores
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True) @ v


q, k, v = np.random.default_rng(0).standard_normal((3, 6, 64))
print("the first token sees itself alone:", np.allclose(one_head(q, k, v)[0], v[0]))

# %% [markdown]
# ## Where the numbers of a head lie
#
# One product makes queries, keys and values, so they lie side by side in one row for each token: 3 × 768 = 2,304
# numbers, and in each third the heads one after the other.

# %%

pictures.qkv_rows()

# %% [markdown]
# The formula under the picture is all a kernel needs. In PyTorch the same is written as a reshape. Do they agree?

# %%
S, H, D = 7, 12, 64
qkv = np.random.default_rng(0).random((S, 3 * H * D), dtype=np.float32)
flat, split = qkv.reshape(-1), qkv.reshape(S, 3, H, D)
for t in range(S):
    for part, offset in enumerate((0, 768, 1536)):
        for h in range(H):
            begin = t * 2304 + offset + h * 64
            assert np.array_equal(flat[begin : begin + 64], split[t, part, h])
print(f"{S * 3 * H} pieces of 64 numbers, each where t * 2304 + {{0, 768, 1536}} + h * 64 says")

# %% [markdown]
# So no kernel has to split the heads into arrays of their own, or to merge them afterwards.
#
# ## Three passes over the keys
#
# The first kernel gives one query of one head to a block of 256 threads, so the grid is S × 12. A block needs the
# largest score before the first exponential, and the sum of the exponentials before the first weight. Hence three
# passes.

# %%
from labkit import show_source
from labkit.kernels.attention import three_pass as at
from labkit.kernels.ops.attention import tolerance_of

show_source(at.weigh_keys)

# %%
show_source(at.attention_three_pass_kernel)

# %% [markdown]
# In the first pass a thread takes every 256th key and computes a whole dot product. `block_max` and `block_sum` are the
# reductions of lesson 15. The row of scores lies in *dynamic* shared memory: `cuda.shared.array(0, float32)` has no
# length, and the launch gives it as the fourth number in its brackets, `kernel[grid, block, stream, nbytes]`. A block
# gets 48 KB without asking, enough for 12,256 keys, and up to 227 KB on an H200 if the launcher asks the driver first.
# (`keys_values`, `kv_offset` and `start` let the same kernel read keys from a cache, which lesson 29 needs. Here
# `keys_values` is `qkv` itself, `kv_offset` is 768 and `start` is 0.)

# %%
from labkit import agree

sizes = ({"S": 1, "H": 1, "D": 1}, {"S": 5, "H": 2, "D": 3},
         {"S": 33, "H": 2, "D": 64}, {"S": 300, "H": 1, "D": 64})
agree(ATTENTION, ["attention_three_pass"], sizes=sizes)

# %% [markdown]
# ## Idle threads
#
# Look at the third pass again. A thread takes a column of the values, and a head has 64 columns. So 192 of the 256
# threads do nothing. `attention_all_threads` puts them to work: four groups of 64 threads take {{ words(64 / 256) }} of
# the keys each, and their results are added up in shared memory.
#
# The passes over keys and values have the same number of multiply-adds. Write down what you expect: by which factor is
# `all_threads` faster?

# %%
from labkit import measure


def h200(op, S):
    """name -> microseconds, as recorded for S tokens and 12 heads of 64."""
    rows = measure.recorded_ladder(op, {"S": S, "H": 12, "D": 64}, gpu="NVIDIA H200").rows
    return {row.name.removeprefix(f"{op}_"): 1000 * (row.graph or row.timing).p50 for row in rows}


def h200_table(*names, sizes=(16, 128, 1024, 4096)):
    print(f"{'us on an H200':16}" + "".join(f"{f'{S:,} tokens':>15}" for S in sizes))
    for name in names:
        times = (h200("attention", S).get(name) for S in sizes)
        print(f"{name:16}" + "".join(f"{f'{us:,.1f}' if us else '-':>15}" for us in times))


h200_table("three_pass", "all_threads")

# %% [markdown]
# My own guess was 2.5{{ example }}: five units of time before, two after. (One unit for the keys, with all threads at
# work; four for the values with 64 of 256 threads, and one with all of them.) The result is no gain at all. With all
# threads at work the kernel is never faster{{ if never_faster }}, and at 4,096 tokens it takes more than half as long
# again{{ if half_as_long_again }}. If {{ words(256 / 64) }} times as many threads do not help, the third pass is not
# where the time goes. So I took the kernel apart: the first two passes alone, and the third alone with weights of 1.

# %%
passes = measure.recorded_series("attention_passes", gpu="NVIDIA H200")
for name, us in passes["us"].items() if passes else ():
    print(f"{name:36} {us:8,.0f} us")

# %% [markdown]
# The first two take as long alone as all three together. The third pass hides behind them: while one block reads
# values, other blocks on its SM compute scores. (By itself it is even slower with all threads. I suppose that four
# groups, which read at four places of the values at a time, find less of what they need in the first-level cache; the
# counters of Nsight Compute would tell.)
#
# ## Count the requests
#
# So what are the first two passes doing, with all threads busy? Before you run the cell, look at the line in
# `weigh_keys` that loads keys. Lane 0 reads number i of key j, lane 1 number i of key j + 1. How far apart do these two
# lie in memory? And how far apart do neighbours read in the third pass?

# %%
from labkit import plots

lanes = np.arange(32)
plots.warp_addresses({"a number of 32 keys": 768 + 2304 * lanes, "one value": 1536 + lanes},
                     "What a warp asks for: first pass, third pass")

# %% [markdown]
# Each lane of the first pass reads a sector in a row of its own. `observe` counts the requests line by line:

# %%
from labkit import observe

S = 32
qkv, heads = ATTENTION.inputs(np.random.default_rng(1), S=S, H=1, D=64)
arguments = (qkv, qkv, np.zeros(1, np.int32), np.zeros((S, 64), np.float32),
             np.uint32(64), np.uint32(64), np.float32(0.125), np.uint32(0))
report = observe(at.attention_three_pass_kernel[(1, 1), 256, 0, 4 * S], *arguments)
for line, counts in sorted(report.lines.items()):
    if counts.get("global_loads", 0) > 1000:
        print(f"line {line}: {counts['global_requests']} requests of warps, "
              f"{counts['lines_128']:,} lines of 128 bytes")

# %% [markdown]
# The first of the two lines computes scores, the second reads values. {{ words(64 / 128).capitalize() }} of the scores'
# requests are for the query: one number for all lanes, one line of memory. The other 64 are for keys, and take 32 lines
# each.
#
# The lines come from a cache, because the next seven rounds of the loop read from the same 32 bytes. But a cache, too,
# needs 32 steps to answer a request for 32 lines. Suppose that each takes one clock. Then the time of the whole kernel
# follows from that number alone:

# %%
tflops = measure.recorded("NVIDIA H200")["limits"]["fp32_tflops"]
clock_ghz = 1000 * tflops / (132 * 128 * 2)  # SMs, multiply-adds a clock, flops of one
requests = 1024 * 12 * (1024 // 32) * 64  # queries, heads, warps of keys, numbers of a key
us = requests * 32 / 132 / clock_ghz / 1000
print(f"{requests / 1e6:.1f} million requests of 32 lines, {clock_ghz:.2f} GHz: {us:,.0f} us")
print(f"recorded on the H200: {h200('attention', 1024)['three_pass']:,.0f} us")

# %% [markdown]
# That is most of it. I had been looking at the threads that do nothing, and the time went into those that work.
#
# ## A batched product
#
# Scores are a product of matrices, queries times keys transposed, and lesson 06 showed how to compute one: in tiles, so
# that a number loaded once serves many multiply-adds. There is one such product for each head, all of the same shape.
# That is a *batched* product, and a kernel for it needs only one more axis of the grid. `tile_product` takes the place
# where a head's matrix begins, and the distances between its rows and between its columns. Swap the two distances, and
# the matrix is read transposed.

# %%
from labkit.kernels.attention import unfused

show_source(unfused.scores_tiled_kernel)

# %% [markdown]
# Softmax over the rows of scores follows, and a second batched product with the values. Each step is a launch of its
# own, and between two launches the scores lie in global memory. Predict for 1,024 tokens: how many megabytes do these
# launches ask of memory and caches, and how many do the three passes ask for?

# %%
from labkit import cuda, table

steps = unfused.AttentionInSteps(fused=True, tiled=True)
out = cuda.to_device(np.full((S, 64), np.nan, np.float32))
names = [name for name, _ in steps.launches(cuda.to_device(qkv), 1, out)]
steps(cuda.to_device(qkv), 1, out)
error = abs(out.copy_to_host() - at.attention_reference(qkv, 1)) / tolerance_of(qkv.astype(float), 1)
print(f"{', '.join(names)}: largest error {error.max():.2f} of the allowed")

matrix, row, tiles = 12 * 1024**2, 12 * 1024 * 64, 1024 // 64  # numbers: all scores; queries, keys or values; tiles
asked = {"three passes": 1024 * 2 * row, "scores, in 64 x 64 tiles": 2 * tiles * row + matrix,
         "softmax, row in registers": 2 * matrix, "values, in 64 x 64 tiles": matrix + tiles * row + row}
table([(name, 4 * numbers / 1e6) for name, numbers in asked.items()], {"": "", "MB": ",.0f"},
      "Asked of memory and caches, 1,024 tokens and 12 heads")

# %% [markdown]
# The second program writes all scores, reads and writes them for softmax, and reads them once more. Still it asks for
# {{ words(6442 / (151 + 101 + 104)) }} times less than the three passes. Which program do you expect to be faster, and
# by how much? The recording has PyTorch's form of it: a batched product by cuBLAS, a softmax, a batched product.

# %%
for S in (1024, 4096):
    us = h200("attention", S)
    pytorch = next(us[name] for name in us if name.startswith("PyTorch (two"))
    print(f"{S:5,} tokens: three passes {us['three_pass']:9,.0f} us, in steps {pytorch:7,.0f} us, "
          f"{us['three_pass'] / pytorch:.0f} times as fast")
own = measure.recorded_series("attention_steps", gpu="NVIDIA H200")["rows"][-3:]
print("labkit's own launches, 1,024 tokens:", ", ".join(f"{row['step']} {row['us']:.0f} us" for row in own))

# %% [markdown]
# Writing all scores to global memory is affordable at this length: at the speed of a copy, the
# {{ round(4 * scores_mb, -1):.0f }} MB of the prediction take {{ predicted_us:.0f }} us, of
# PyTorch's {{ torch_us:.0f }}. (labkit's three launches take {{ sum(steps):.0f }}. Its two products alone take
# longer{{ if products_longer }} than all of PyTorch's, which are cuBLAS's.) What costs is asking for every key again
# for every query.
#
# ## The whole matrix in one block
#
# Can one have both, tiles and no scores in memory? The first idea is one block for each head, with the whole matrix of
# scores in shared memory. Predict how it does with 128 tokens and 12 heads, and think of the 132 SMs.

# %%
h200_table("three_pass", "whole_matrix")

# %% [markdown]
# On the H200 it takes ten{{ if near(whole_matrix_slowdown, 10) }} times as long as three passes, at 128 tokens. Twelve
# heads are twelve blocks, so 120 SMs are idle. And from 242 tokens on, the matrix does not fit into a block's shared
# memory. The aim is right: tiles, and no score in global memory. But a block must not need the whole matrix, nor even a
# whole row of it.
#
# ## What I learned
#
# - Idle threads are easy to see and may cost nothing. Count the requests of those that work.
# - A request for 32 lines keeps a cache busy for 32 steps. That alone predicted most of the
#   time{{ if predicted_most }}.
# - Heads need no arrays of their own: it is enough to know where a matrix begins and how far apart its rows lie.
# - At these lengths tiles are worth more than keeping scores out of memory. The next lesson has both.
# - A kernel that leaves 120 of 132 SMs without a block is slow, however few bytes it moves.
#
# ## Resources
#
# - [A. Vaswani et al.: Attention Is All You Need (2017)](https://arxiv.org/abs/1706.03762)
# - [J. Alammar: The Illustrated GPT-2 (2019)](https://jalammar.github.io/illustrated-gpt2/)
# - [NVIDIA: batched matrix products in cuBLAS](https://developer.nvidia.com/blog/cublas-strided-batched-matrix-multiply/)
#
# ## Try it
#
# - `pictures.four_steps(seed=7)`: in which rows does one token get nearly all the weight? Multiply the queries by 10
#   and say what happens to the weights before you try it in `one_head`.
# - In `observe`, launch four blocks, `[(4, 1), 256, ...]`. Do the lines of keys grow with the blocks?
# - In the table of megabytes, make the tiles 128 × 128. Which rows change, and which never will?
#
# The exercises for this lesson end with attention from a blank page, in which each query sees a window of keys.
#
# Next: **flash attention**, which corrects a softmax as tiles come in, so that no row of scores is kept.

# %% [numbers]
# steps = [row.us for row in series.attention_steps.rows][-3:]
# three_pass = {S: (row('attention', 'three_pass', S=S, H=12, D=64).graph_us or row('attention', 'three_pass', S=S,
#               H=12, D=64).us) for S in (16, 128, 1024, 4096)}
# all_threads = {S: (row('attention', 'all_threads', S=S, H=12, D=64).graph_us or row('attention', 'all_threads', S=S,
#                H=12, D=64).us) for S in (16, 128, 1024, 4096)}
# scores_mb = 4 * 12 * 1024 * 1024 / 1e6
# scores_ratio = scores_mb / (4 * 4 * 1024 * 768 / 1e6)
# never_faster = all(all_threads[S] >= three_pass[S] for S in (16, 128, 1024, 4096))
# half_as_long_again = all_threads[4096] / three_pass[4096] > 1.5
# predicted_us = 1000 * 4 * scores_mb / limits.bandwidth_gbs
# torch_us = row('attention', 'PyTorch (two', S=1024, H=12, D=64).graph_us
# products_longer = steps[0] + steps[2] > row('attention', 'PyTorch (two', S=1024, H=12, D=64).graph_us
# whole_matrix_slowdown = row('attention', 'whole_matrix', S=128, H=12, D=64).graph_us / three_pass[128]
# predicted_most = (0.8 < 1024 * 12 * 32 * 64 * 32 / 132 / (1000 * limits.fp32_tflops / (132 * 128 * 2)) / 1000 /
#                   three_pass[1024] < 1)
