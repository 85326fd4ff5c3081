# %% [markdown]
# # 24 · Llama by hand: exercises
#
# Five exercises: an RMSNorm by a whole block, the rotation, a gated product in one pass, a prediction about a cache and
# llama3 scaling, and grouped-query attention from a blank page. Two of your kernels will run in a Llama.
# `hint("rmsnorm_block")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours

# %% [markdown]
# ## 1 · RMSNorm by a block
#
# Row t of `out` (T, C) is row t of `x`, divided by the root of the mean of its squares plus `epsilon`, times `weight`
# (C,). All numbers are float32, and C may be any size. In lesson 15 a warp had a row. When a model writes a single text
# there is only one row, and one warp would take long for it. So here a row has a block of 128 threads, four warps, and
# the grid is `(T,)`. Add up within a warp by `cuda.shfl_xor_sync`, and across the four warps through `partial`. One
# barrier is enough, two are allowed. `out` may be the same array as `x`.


# %%
@cuda.jit
def rmsnorm_block(x, weight, epsilon, out):
    partial = cuda.shared.array(4, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    ### BEGIN SOLUTION
    squares = float32(0.0)
    for col in range(thread, columns, 128):
        squares += x[row, col] * x[row, col]
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
    if thread % 32 == 0:
        partial[thread // 32] = squares
    cuda.syncthreads()
    total = partial[0] + partial[1] + partial[2] + partial[3]
    scale = cuda.rsqrt(total / float32(columns) + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = x[row, col] * scale * weight[col]
    ### END SOLUTION


# %%
check("rmsnorm_block", rmsnorm_block)

# %% [markdown]
# ## 2 · Rotated by position
#
# `x` (T, heads, D) float32 holds the heads of T tokens, and `positions` (T,) int32 says where each token stands. Row p
# of `table` (P, D) belongs to position p: first the cosines of the D / 2 angles, then their sines. Pair d of a head is
# (d, d + D / 2). Rotate (a, b) to (a cos − b sin, b cos + a sin), and write it to the same place in `out`. There is a
# thread for each pair of each head of each token, in a grid of one dimension with some threads to spare. Load every
# number of `x` once. `out` may be `x`.


# %%
@cuda.jit
def rope_heads(x, table, positions, out):
    tokens, heads, size = x.shape
    half = size // 2
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < tokens * heads * half:
        d, head, t = i % half, i // half % heads, i // half // heads
        p = positions[t]
        cos, sin = table[p, d], table[p, d + half]
        a, b = x[t, head, d], x[t, head, d + half]
        out[t, head, d] = a * cos - b * sin
        out[t, head, d + half] = b * cos + a * sin
    ### END SOLUTION


# %%
check("rope_heads", rope_heads)

# %% [markdown]
# Both can run in a Llama: your norm before attention and before the MLP, your rotation on queries and keys. The model
# below computes in float32, as your kernels do.

# %%
llama = yours.small_llama()
prompts = [[3, 1, 4, 1, 5], [9, 2]]
yours.one_by_one(yours.answers(rmsnorm_block=rmsnorm_block, rope_heads=rope_heads), llama, prompts)

# %% [markdown]
# ## 3 · A gated product
#
# SwiGLU begins with two products of the same rows: out = silu(x gateᵀ) · (x upᵀ), element by element, where silu(v) is
# v / (1 + exp(−v)). `x` is (T, K), `gate` and `up` are (N, K), and `out` is (T, N), all float32. There is a thread for
# each output, in blocks of `(32, 4)`: columns of `out` in x, rows in y. Compute both dot products in one loop, so that
# each number of `x` is loaded once for the two, and store nothing but the result. The dot products may be as large as
# several hundred, with either sign.


# %%
@cuda.jit
def gated_product(x, gate, up, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < out.shape[0] and col < out.shape[1]:
        g, u = float32(0.0), float32(0.0)
        for k in range(x.shape[1]):
            value = x[row, k]
            g += value * gate[col, k]
            u += value * up[col, k]
        out[row, col] = g / (float32(1.0) + math.exp(-g)) * u
    ### END SOLUTION


# %%
check("gated_product", gated_product)

# %% [markdown]
# ## 4 · Predict: a cache and its positions
#
# Llama 3.1 8B has 32 layers, 32 heads of queries, 8 heads of keys and values, heads of 128 numbers, and θ = 500,000.
# Its llama3 scaling starts from 8,192 positions: pairs that complete at least four turns in these are kept, pairs that
# complete less than one are slowed down by a factor of 8, and the rest lie between. Numbers are bfloat16. How many
# bytes does a token add to the cache? How many whole tokens fit into 16,000,000,000 bytes, and how many would fit if
# there were as many heads of keys and values as of queries? How many of the 64 pairs are kept, and how many are slowed
# down by the whole factor? And how many launches does this model make for a prompt, if it is computed as in the lesson?

# %%
token_bytes = None
tokens_grouped = None
tokens_ungrouped = None
pairs_kept = None
pairs_slowed = None  # by the whole factor
launches = None
### BEGIN SOLUTION
token_bytes = 2 * 32 * 8 * 128 * 2
tokens_grouped = 16_000_000_000 // token_bytes
tokens_ungrouped = 16_000_000_000 // (4 * token_bytes)
pairs_kept = 29  # those for which 8,192 / (2 * pi * 500,000**(pair / 64)) is 4 or more
pairs_slowed = 29  # and 1 or less
launches = 8 * 32 + 4
### END SOLUTION

# %%
check("predict_cache", token_bytes=token_bytes, tokens_grouped=tokens_grouped, tokens_ungrouped=tokens_ungrouped,
      pairs_kept=pairs_kept, pairs_slowed=pairs_slowed, launches=launches)

# %% [markdown]
# ## 5 · From a blank page: grouped-query attention
#
# One token attends to all N tokens of a text, itself the last of them. `q` is (H, 32), `keys` and `values` are
# (N, K, 32), and `out` is (H, 32), all float32. H is a multiple of K, at most eight times K: query head h reads head
# h // (H // K) of keys and values. The score of a key is its dot product with the query, divided by the root of 32; the
# weights are the softmax of the scores, and the result is the sum of the weighted values.
#
# The grid has K blocks of 32 threads, and a warp serves all query heads of its group. That is the point: a key and a
# value are loaded once for all of them, whatever H / K is. (Two passes over the keys are allowed.) A query is loaded
# once, too. Keep it in an array of the thread, such as `cuda.local.array(8, float32)`, with whatever else a query head
# needs during the loop over the keys. Scores may be thousands apart.
#
# Write `attend_grouped(q, keys, values, out)` from the decorator down.

# %%
attend_grouped = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_grouped(q, keys, values, out):
    head, lane = cuda.blockIdx.x, cuda.threadIdx.x
    group = q.shape[0] // keys.shape[1]
    first = head * group
    query, acc = cuda.local.array(8, float32), cuda.local.array(8, float32)
    row_max, row_sum = cuda.local.array(8, float32), cuda.local.array(8, float32)
    for r in range(group):
        query[r] = q[first + r, lane]
        row_max[r], row_sum[r], acc[r] = float32(-math.inf), float32(0.0), float32(0.0)
    for n in range(keys.shape[0]):
        key, value = keys[n, head, lane], values[n, head, lane]
        for r in range(group):
            score = query[r] * key
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
            score *= float32(0.17677669)  # 1 / sqrt(32)
            new = max(row_max[r], score)
            factor, weight = math.exp(row_max[r] - new), math.exp(score - new)
            row_sum[r] = row_sum[r] * factor + weight
            acc[r] = acc[r] * factor + weight * value
            row_max[r] = new
    for r in range(group):
        out[first + r, lane] = acc[r] / row_sum[r]


### END SOLUTION

# %%
check("attend_grouped", attend_grouped)

# %% [markdown]
# Last, the model of the lesson with your norm and your rotation, and the beginning of its answer. (The engine
# that later lessons build takes such a model, too.)

# %%
from labkit.models.llama import Alone
from labkit.models.load import load

loaded = load("tiny-llama", dtype="float32")
mine = yours.answers(rmsnorm_block=rmsnorm_block, rope_heads=rope_heads)
alone = Alone(yours.with_kernels(loaded.model, mine), context=64)
tokens, step = [], loaded.tokenizer.chat([{"role": "user", "content": "What is a hacker?"}])
for _ in range(20):
    tokens.append(int(alone(step).copy_to_host()[0].argmax()))
    step = tokens[-1:]
print(loaded.tokenizer.decode(tokens))
