# %% [markdown]
# # 36 · The first right token: exercises
#
# Three exercises: write a gated product in one pass, predict the size of a cache, and from a blank page write
# grouped-query attention. `hint("gated_product")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · A gated product
#
# SwiGLU begins with two products of the same rows: out = silu(x gateᵀ) · (x upᵀ), element by element, where silu(v) is v
# / (1 + exp(−v)). `x` is (T, K), `gate` and `up` are (N, K), and `out` is (T, N), all float32. For a row x = (1, 2), a
# gate row (1, 0) and an up row (0, 3), the dot products are 1 and 6, and the output is silu(1) · 6, about 4.39.
#
# There is one thread per output, in blocks of `(32, 4)`: columns of `out` in x, rows in y. Compute both dot products
# in one loop. They may be as large as several hundred, with either sign.


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
# ## 2 · Predict: a cache and a wide row
#
# Llama 3.1 8B has 32 layers, 32 query heads, 8 heads of keys and values, heads of 128 values, and an MLP with 14,336
# values in gate and as many in up, all in bfloat16. How many bytes does a token add to the cache? How many whole tokens
# fit into 16,000,000,000 bytes, and how many would fit with as many heads of keys and values as query heads?
#
# Last, suppose that one launch wrote gate and up to memory, and a second one read both and wrote their gated product. How
# many bytes per token and layer are saved by a single launch that writes the gated product directly?

# %%
token_bytes = None
tokens_grouped = None
tokens_ungrouped = None
saved_bytes = None
### BEGIN SOLUTION
token_bytes = 2 * 32 * 8 * 128 * 2
tokens_grouped = 16_000_000_000 // token_bytes
tokens_ungrouped = 16_000_000_000 // (4 * token_bytes)
saved_bytes = (1 + 1) * 2 * 14_336 * 2  # both rows, written and read
### END SOLUTION

# %%
check("predict_cache", token_bytes=token_bytes, tokens_grouped=tokens_grouped, tokens_ungrouped=tokens_ungrouped,
      saved_bytes=saved_bytes)


# %% [markdown]
# ## 3 · From a blank page: grouped-query attention
#
# The last token of a text attends to all N of its tokens. `q` is (H, 32), `keys` and `values` are (N, K, 32), and `out`
# is (H, 32), all float32. H is a multiple of K, at most eight times K, and query head h reads head h // (H // K) of keys
# and values: with H = 6 and K = 2, heads 0 to 2 read head 0, and heads 3 to 5 read head 1. A score is the dot product of
# query and key divided by the root of 32, the weights are the softmax of the scores, and the result is the weighted sum
# of the values. Scores may be thousands apart.
#
# The grid has K blocks of 32 threads, so that a warp serves all query heads of its group and loads each key and value
# only once. Keep the queries in an array of the thread, such as `cuda.local.array(8, float32)`, with everything else
# that a query head needs during the loop over the keys.
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
