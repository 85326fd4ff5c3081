# %% [markdown]
# # 31 · Sentences as vectors: exercises
#
# Four exercises. Compute the mean of a sentence, predict what reaches an embedding, repair an attention that reads
# padding, and write a search from a blank page. Your mean then runs in the encoder. `hint("mean_pool")` gives a hint, and
# a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours

# %% [markdown]
# ## 1 · The mean of a sentence
#
# `x` (T, C) float32 holds one row per token of a batch. Sentence b has the rows `begins[b]` to
# `begins[b] + lengths[b] - 1`; both arrays are int32. Row b of `out` (B, C) is the mean of these rows, and zeros for a
# sentence without tokens. Rows that belong to no sentence may hold anything, even NaN. Sentences need not follow one
# another in order. The grid is `(blocks, B)`, in blocks of 64 threads: `cuda.blockIdx.y` is the sentence, and each thread
# computes one column; `b` and `col` are given.


# %%
@cuda.jit
def mean_pool(x, begins, lengths, out):
    b = cuda.blockIdx.y
    col = cuda.blockIdx.x * 64 + cuda.threadIdx.x
    ### BEGIN SOLUTION
    if col < x.shape[1]:
        total = float32(0.0)
        for row in range(begins[b], begins[b] + lengths[b]):
            total += x[row, col]
        out[b, col] = total / float32(max(lengths[b], 1))
    ### END SOLUTION


# %%
check("mean_pool", mean_pool)

# %% [markdown]
# The next cell puts your kernel into a small encoder with random weights and compares what each launch writes with NumPy
# in float64. One of the sentences is empty. Your answer of lesson 30 can run with it: add `embed_norm=`.

# %%
encoder = yours.small_encoder()
sentences = [[3, 1, 4, 1, 5], [], [9, 2], [6]]
yours.one_by_one(yours.answers(mean_pool=mean_pool), encoder, sentences)

# %% [markdown]
# ## 2 · Predict: what reaches an embedding
#
# To keep it simple, the rows of this model have only two elements. After the last layer, a sentence has the rows (3, 0)
# and (0, 4). Its embedding is their mean, scaled to length 1. How long is the mean before it is scaled? What is the
# cosine between the embedding and the query (0, 1)?
#
# Two kernels are wrong. One of them divides the sum by 16, the rows of a padded sentence, instead of 2. The other reads
# one row too many, which holds (1, −1). What is the cosine between the wrong embedding and the right one in each case?
#
# Last, a batch of the real width, 384. Twelve sentences are padded to 16 rows each, and have 16, 9, 16, 4, 16, 16, 7, 11,
# 16, 2, 5 and 13 tokens. Each row of padding holds NaN in its first column and ordinary values in the rest. A kernel
# multiplies the rows by a mask, takes the mean and scales it to length 1. How many of the 12 × 384 elements are NaN?

# %%
length_of_mean = None
with_query = None
divided_by_16 = None
one_row_more = None
nan_numbers = None
### BEGIN SOLUTION
length_of_mean = 2.5
with_query = 0.8
divided_by_16 = 1
one_row_more = 24 / 25
nan_numbers = 7 * 384
### END SOLUTION

# %%
check("predict_pooled", length_of_mean=length_of_mean, with_query=with_query, divided_by_16=divided_by_16,
      one_row_more=one_row_more, nan_numbers=nan_numbers)


# %% [markdown]
# ## 3 · Find the bug: padding that takes part
#
# Attention of one head of width 32, over sentences that are padded to S rows. `queries`, `keys`, `values` and `out` are
# (B × S, 32) float32, and `lengths` (B,) int32 says how many tokens each sentence has. A block is one warp of 32 threads
# and computes one row. A token sees all tokens of its sentence and no others, and the result in a row of padding is 0.
# Padding may hold anything, even NaN. Alone, a sentence comes out right; in a batch with a longer one, it does not.


# %%
@cuda.jit
def attend_padded(queries, keys, values, lengths, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    S = queries.shape[0] // lengths.size
    first, seen = t - t % S, lengths[t // S]
    row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
    for j in range(S):
        score = queries[t, lane] * keys[first + j, lane]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        score *= float32(0.17677669)  # 1 / sqrt(32)
        if j >= seen:
            score = float32(0.0)
        new = max(row_max, score)
        factor, weight = math.exp(row_max - new), math.exp(score - new)
        row_sum = row_sum * factor + weight
        acc = acc * factor + weight * values[first + j, lane]
        row_max = new
    out[t, lane] = acc / row_sum if t - first < seen else float32(0.0)


### BEGIN SOLUTION
@cuda.jit
def attend_padded(queries, keys, values, lengths, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    S = queries.shape[0] // lengths.size
    first, seen = t - t % S, lengths[t // S]
    row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
    for j in range(seen):  # what is not read takes no part, whatever it holds
        score = queries[t, lane] * keys[first + j, lane]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        score *= float32(0.17677669)  # 1 / sqrt(32)
        new = max(row_max, score)
        factor, weight = math.exp(row_max - new), math.exp(score - new)
        row_sum = row_sum * factor + weight
        acc = acc * factor + weight * values[first + j, lane]
        row_max = new
    out[t, lane] = acc / row_sum if t - first < seen else float32(0.0)


### END SOLUTION

# %%
check("attend_padded", attend_padded)

# %% [markdown]
# ## 4 · From a blank page: a search
#
# `passages` (N, C) float32 holds one row per passage, and `query` (C,) is the vector of a question. None of them is
# scaled to length 1. Return the indices of the `k` passages whose cosines with the query are largest, the largest first,
# as k integers. If two are equal, either may come first. A passage of zeros has the cosine 0: it comes after those that
# point the query's way and before those that point the other way.
#
# Write the function `nearest(query, passages, k)`. NumPy is enough.

# %%
nearest = None  # write the function


### BEGIN SOLUTION
def nearest(query, passages, k):
    cosines = (passages @ query) / np.maximum(np.linalg.norm(passages, axis=1), 1e-12)  # times the query's length
    return np.argsort(-cosines, kind="stable")[:k]


### END SOLUTION

# %%
check("nearest", nearest)
