# %% [markdown]
# # 24 · Attention
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - what attention computes, in four steps, and where the elements of a head are in memory
# - what 192 idle threads in a block cost, and how to find out where the time goes
# - what it costs to write every score to memory, and what it costs to avoid that
#
# ## The problem
#
# A language model has one row of values per token. Every layer so far treats each row by itself. Attention is the
# one place where rows of different tokens meet. A linear layer makes three vectors from each token's row: a *query*,
# for what the token looks for; a *key*, by which others find it; and a *value*, which it passes on to them. A token's
# own key and value count, too. A dot product compares a query with every key, softmax turns these scores into weights,
# and the weights average the values:
#
# $$\text{out}_t = \sum_j \text{softmax}_j\left(\frac{q_t \cdot k_j}{\sqrt{D}}\right) v_j$$
#
# D is the length of the vectors. The dot product of two random vectors grows with the root of D, so the score is
# divided by that root; otherwise softmax would give nearly all the weight to one key. All of this happens several times
# in parallel, in *heads* that share nothing with each other. The smallest GPT-2 has 12 heads with D = 64.
#
# ## Prediction
#
# A score is a dot product of 64 elements, and averaging the values takes just as many multiply-adds. Which limit binds
# for 1,024 tokens and 12 heads, arithmetic or memory? And how many megabytes are all the scores, which the table leaves
# out?

# %%
from labkit import roofline
from labkit.kernels.ops.attention import ATTENTION

roofline.predict(ATTENTION, S=1024, H=12, D=64)

# %% [markdown]
# There are 256 flops per byte, so on paper arithmetic sets the limit, as for a matrix product, and not memory, as for
# softmax. The scores are 12 × 1,024 × 1,024 values, {{ scores_mb:.0f }} MB, {{ words(scores_ratio) }} times as much as
# the inputs and the output together. A program that writes them, reads and writes them for softmax, and reads them
# again moves {{ round(4 * scores_mb, -1):.0f }} MB more than it has to. How much that matters, we will see.
#
# ## Four steps
#
# Here is one head with six tokens. The second step is the *causal mask*: a model that predicts the next token must not
# see it, so the scores of later keys become minus infinity, and their exponentials 0. Which keys does the first query
# see, and what is their weight?

# %%
from labkit.course.drawings import attention as pictures

pictures.four_steps()

# %% [markdown]
# It sees only its own, with the weight 1. The last row of the mask hides nothing, because no key comes after the last
# token. In NumPy the four steps are four lines, and the rest of this lesson and the next is about the order in which a
# GPU should do them.

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
# ## Where a head is in memory
#
# One product computes queries, keys and values, so each token has all three in one row: 3 × 768 = 2,304 elements, with
# one head after the other in each third.

# %%

pictures.qkv_rows()

# %% [markdown]
# The formula under the picture is all a kernel needs. In PyTorch the same is written as a reshape. Does the formula
# agree with the reshape everywhere?

# %%
S, H, D = 7, 12, 64
qkv = np.random.default_rng(0).random((S, 3 * H * D), dtype=np.float32)
flat, split = qkv.reshape(-1), qkv.reshape(S, 3, H, D)
for t in range(S):
    for part, offset in enumerate((0, 768, 1536)):
        for h in range(H):
            begin = t * 2304 + offset + h * 64
            assert np.array_equal(flat[begin : begin + 64], split[t, part, h])
print(f"all {S * 3 * H} pieces of 64 elements agree")

# %% [markdown]
# It does, so no kernel has to split the heads into separate arrays or merge them afterwards.
#
# ## Three passes over the keys
#
# In the first kernel a block of 256 threads has one query of one head, so the grid is S × 12. A block needs the largest
# score before the first exponential, and the sum of the exponentials before the first weight. Hence three passes.

# %%
from labkit import show_source
from labkit.kernels.attention import three_pass as at
from labkit.kernels.ops.attention import tolerance_of

show_source(at.weigh_keys)

# %%
show_source(at.attention_three_pass_kernel)

# %% [markdown]
# In the first pass a thread computes the whole dot product of every 256th key. `block_max` and `block_sum` are the
# reductions of lesson 15. The row of scores is in *dynamic* shared memory: `cuda.shared.array(0, float32)` has no
# length, and the launch passes the size as the fourth value in its brackets, `kernel[grid, block, stream, nbytes]`. A
# block gets up to 48 KB this way, enough for 12,256 keys, and up to 227 KB on an H200 if the launcher requests it from
# the driver. With `keys_values`, `kv_offset` and `start` the same kernel can read keys from a cache, which lesson 29
# needs. Here `keys_values` is `qkv` itself, `kv_offset` is 768 and `start` is 0.

# %%
from labkit import agree

sizes = ({"S": 1, "H": 1, "D": 1}, {"S": 5, "H": 2, "D": 3},
         {"S": 33, "H": 2, "D": 64}, {"S": 300, "H": 1, "D": 64})
agree(ATTENTION, ["attention_three_pass"], sizes=sizes)

# %% [markdown]
# It is right. Now look for what makes it slow.
#
# ## Idle threads
#
# Look at the third pass again. A thread has one column of the values, and a head has 64 columns. So 192 of the 256
# threads do nothing. `attention_all_threads` puts them to work: four groups of 64 threads process
# {{ words(64 / 256) }} of the keys each, and their results are added up in shared memory.
#
# The passes over the keys and over the values have the same number of multiply-adds. How many times as fast is
# `all_threads`?

# %%
from labkit import measure, table


def h200(op, S):
    """name -> microseconds, as recorded for S tokens and 12 heads of 64."""
    rows = measure.recorded_ladder(op, {"S": S, "H": 12, "D": 64}, gpu="NVIDIA H200").rows
    return {row.name.removeprefix(f"{op}_"): 1000 * (row.graph or row.timing).p50 for row in rows}


def h200_table(*names, sizes=(16, 128, 1024, 4096)):
    return table([(name, *(h200("attention", S).get(name) for S in sizes)) for name in names],
                 {"us": ""} | {f"{S:,} tokens": ",.1f" for S in sizes}, note="NVIDIA H200")


h200_table("three_pass", "all_threads")

# %% [markdown]
# I had predicted 2.5{{ example }}: five units of time before (one for the keys with all threads at work, four for the
# values with 64 of 256 threads) and two after. The actual gain is nothing at all. `all_threads` is never
# faster{{ if never_faster }}, and at 4,096 tokens it takes more than half as long again{{ if half_as_long_again }}. If
# {{ words(256 / 64) }} times as many threads do not help, the third pass is not where the time goes. So take the kernel
# apart: time the first two passes alone, and the third alone, with all weights 1. Which passes take the time?

# %%
passes = measure.recorded_series("attention_passes", gpu="NVIDIA H200")
table(passes["us"].items(), {"1,024 tokens": "", "us": ",.0f"}, note="NVIDIA H200")

# %% [markdown]
# The first two passes alone take as long as all three together. The third hides behind them: while one block reads
# values, other blocks on its SM compute scores. Run by itself, it even gets slower with all threads,
# {{ values_all:.0f }} us instead of {{ values_64:.0f }}.
#
# ## Count the requests
#
# So what are the first two passes doing, with all threads busy? Look at the line in `weigh_keys` that loads keys. In
# each step lane 0 reads an element of key j, and lane 1 the same element of key j + 1. How many sectors does a warp
# need for that, and how many in the third pass, where neighbouring lanes have neighbouring columns?

# %%
from labkit import plots

lanes = np.arange(32)
plots.warp_addresses({"an element of 32 keys": 768 + 2304 * lanes, "one value": 1536 + lanes},
                     "A warp's load in the first pass, and in the third")

# %% [markdown]
# In the first pass every lane reads a sector in a different row. `observe` counts the requests line by line:

# %%
from labkit import observe

S = 32
qkv, heads = ATTENTION.inputs(np.random.default_rng(1), S=S, H=1, D=64)
arguments = (qkv, qkv, np.zeros(1, np.int32), np.zeros((S, 64), np.float32),
             np.uint32(64), np.uint32(64), np.float32(0.125), np.uint32(0))
report = observe(at.attention_three_pass_kernel[(1, 1), 256, 0, 4 * S], *arguments)
table([(line, counts["global_requests"], counts["lines_128"]) for line, counts in sorted(report.lines.items())
       if counts.get("global_loads", 0) > 1000], ["line of source", "requests of warps", "lines of 128 bytes"])

# %% [markdown]
# The first of these two source lines computes scores, the second reads values. {{ words(64 / 128).capitalize() }} of
# the scores' requests are for the query: one element for all lanes, one line of memory. The other 64 are for the keys,
# and each needs 32 lines.
#
# The lines come from a cache, because the next seven rounds of the loop read from the same 32 bytes. But a cache, too,
# needs 32 steps to answer a request for 32 lines. Suppose that each step takes one clock. How long do the requests of
# the whole kernel then take, for 1,024 tokens?

# %%
tflops = measure.recorded("NVIDIA H200")["limits"]["fp32_tflops"]
clock_ghz = 1000 * tflops / (132 * 128 * 2)  # SMs, multiply-adds a clock, flops of one
requests = 1024 * 12 * (1024 // 32) * 64  # queries, heads, warps of keys, elements of a key
us = requests * 32 / 132 / clock_ghz / 1000
table([("predicted", us), ("recorded", h200("attention", 1024)["three_pass"])], {"": "", "us": ",.0f"},
      f"{requests / 1e6:.1f} million requests of 32 lines at {clock_ghz:.2f} GHz", note="NVIDIA H200")

# %% [markdown]
# The requests explain most of it. I had been looking at the threads that do nothing, but the time goes into those that
# work.
#
# ## A batched product
#
# Scores are a matrix product, queries times keys transposed, and lesson 06 showed how to compute one: in tiles, so that
# an element loaded once serves many multiply-adds. There is one such product per head, all of the same shape. That is a
# *batched* product, and a kernel for it needs only one more axis of the grid. From head to head, only the offset at
# which each matrix begins changes. Its layout is given by two *strides*: the distances in memory from one row to the
# next, and from one column to the next.

# %%
pictures.strides()

# %% [markdown]
# To read the keys transposed, just swap their two strides. `tile_product` computes one tile of a product. Its arguments
# are the two inputs and the output, each as an array, the offset where the matrix begins, and its strides:

# %%
from labkit.kernels.attention import unfused

show_source(unfused.scores_tiled_kernel)

# %% [markdown]
# Softmax over the rows of scores follows, and then a second batched product, with the values. Each step is a launch,
# and between launches the scores are in global memory. For 1,024 tokens, how many megabytes do these launches request
# from memory and caches, and how many do the three passes?

# %%
from labkit import cuda

steps = unfused.AttentionInSteps(fused=True, tiled=True)
out = cuda.to_device(np.full((S, 64), np.nan, np.float32))
names = [name for name, _ in steps.launches(cuda.to_device(qkv), 1, out)]
steps(cuda.to_device(qkv), 1, out)
error = abs(out.copy_to_host() - at.attention_reference(qkv, 1)) / tolerance_of(qkv.astype(float), 1)
print(f"{', '.join(names)}: largest error {error.max():.2f} of the allowed")

matrix, row, tiles = 12 * 1024**2, 12 * 1024 * 64, 1024 // 64  # elements: all scores; queries, keys or values; tiles
asked = {"three passes": 1024 * 2 * row, "scores, in 64 x 64 tiles": 2 * tiles * row + matrix,
         "softmax, row in registers": 2 * matrix, "values, in 64 x 64 tiles": matrix + tiles * row + row}
table([(name, 4 * elements / 1e6) for name, elements in asked.items()], {"": "", "MB": ",.0f"},
      "Requested from memory and caches, 1,024 tokens and 12 heads")

# %% [markdown]
# The second program writes all scores, reads and writes them for softmax, and reads them once more. Still it requests
# {{ words(6442 / (151 + 101 + 104)) }} times less than the three passes. PyTorch offers the same form: a batched
# product by cuBLAS, a softmax, a batched product. How many times as fast as the three passes will PyTorch's launches
# be?

# %%
rows = []
for S in (1024, 4096):
    us = h200("attention", S)
    pytorch = next(us[name] for name in us if name.startswith("PyTorch (two"))
    rows.append((S, us["three_pass"], pytorch, us["three_pass"] / pytorch))
table(rows, {"tokens": "", "three passes, us": ",.0f", "PyTorch's three launches, us": ",.0f", "times as fast": ".0f"},
      note="NVIDIA H200")

# %%
own = measure.recorded_series("attention_steps", gpu="NVIDIA H200")["rows"][-3:]
table([(row["step"], row["us"]) for row in own], {"labkit's launches, 1,024 tokens": "", "us": ".0f"},
      note="NVIDIA H200")

# %% [markdown]
# About twenty times{{ if near(steps_faster, 20) }}. Writing all scores to global memory is affordable at this length:
# at the speed of a copy, the {{ round(4 * scores_mb, -1):.0f }} MB of the prediction take {{ predicted_us:.0f }} us of
# PyTorch's {{ torch_us:.0f }}. Loading every key again for every query is not. The course's own three launches take
# {{ sum(steps):.0f }} us. Its two products alone take longer{{ if products_longer }} than all three of PyTorch's
# launches; PyTorch's products are cuBLAS's.
#
# ## The whole matrix in one block
#
# Can we have both, tiles and no scores in global memory? A first idea is one block per head, with the whole matrix of
# scores in shared memory. An H200 has 132 SMs. With 128 tokens and 12 heads, is that faster than the three passes?

# %%
h200_table("three_pass", "whole_matrix")

# %% [markdown]
# It takes ten{{ if near(whole_matrix_slowdown, 10) }} times as long as the three passes. Twelve heads mean twelve
# blocks, so 120 SMs are idle. And from 242 tokens on, the matrix does not even fit into a block's shared memory. The
# aim is right: tiles, and no score in global memory. But a block must not need the whole matrix, nor a whole row of it.
#
# ## What I learned
#
# - Idle threads are easy to see and can cost nothing. Count the requests of the threads that work.
# - A request for 32 lines keeps a cache busy for 32 steps. That alone predicted most of the
#   time{{ if predicted_most }}.
# - Heads need no separate arrays: an offset and two strides are enough.
# - At these lengths, tiles save more than keeping the scores out of memory. The next lesson has both.
# - A kernel that leaves 120 of 132 SMs without a block is slow, however few bytes it moves.
#
# ## Resources
#
# - [A. Vaswani et al.: Attention Is All You Need (2017)](https://arxiv.org/abs/1706.03762)
# - [J. Alammar: The Illustrated GPT-2 (2019)](https://jalammar.github.io/illustrated-gpt2/)
# - [NVIDIA: batched matrix products in
#   cuBLAS](https://developer.nvidia.com/blog/cublas-strided-batched-matrix-multiply/)
#
# ## Try it
#
# - `pictures.four_steps(seed=7)`: in which rows does one token get nearly all the weight? What happens to the weights
#   if the queries are multiplied by 10? Say so before you try it in `one_head`.
# - In `pictures.strides(head=0)`, which of the three matrices begins somewhere else, and by how much?
# - In `observe`, launch four blocks, `[(4, 1), 256, ...]`. Does the count of lines for the keys grow with the blocks?
# - In the table of megabytes, make the tiles 128 × 128. Which rows change, and which never will?
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
# steps_faster = three_pass[1024] / torch_us
# values_all = series.attention_passes.us['values, all threads']
# values_64 = series.attention_passes.us["values, a head's width of threads"]
# whole_matrix_slowdown = row('attention', 'whole_matrix', S=128, H=12, D=64).graph_us / three_pass[128]
# predicted_most = (0.8 < 1024 * 12 * 32 * 64 * 32 / 132 / (1000 * limits.fp32_tflops / (132 * 128 * 2)) / 1000 /
#                   three_pass[1024] < 1)
