# %% [markdown]
# # 32 · Making the encoder fast: exercises
#
# Seven exercises. You work out what a score matrix in shared memory costs, write a residual and a LayerNorm in place
# and, from a blank page, attention over packed sentences. Then you say which comparison with PyTorch is fair, pack a
# padded batch, repair the sums that say where sentences begin, and round rows so that few graphs are enough. Two of your
# kernels go into the encoder. `hint("add_norm")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32, int32

from labkit import check, cuda, hint
from labkit.course import yours

# %% [markdown]
# ## 1 · Predict: a score matrix in shared memory
#
# A block computes attention for one head of one sentence: 128 tokens, a head of width 32, all in float16. It keeps the
# whole matrix of scores in shared memory, together with the head's queries, keys and values. An SM of an RTX 3090 has
# 102,400 bytes of shared memory and room for 48 warps and 16 blocks, an SM of an H200 has 233,472 bytes and room for 64
# warps and 32 blocks; every block occupies 1,024 bytes more than it requests. How many bytes are the scores? How many
# does the block request in all? How many such blocks of 256 threads does an SM of each GPU hold? And how many *warps*
# does an SM of the RTX 3090 hold if a block has 128 threads and keeps only 64 queries, 64 keys and 64 values? Registers
# are never the limit here.

# %%
score_bytes = None
block_bytes = None  # scores, queries, keys and values
blocks_3090 = None
blocks_h200 = None
tiled_warps_3090 = None
### BEGIN SOLUTION
score_bytes = 128 * 128 * 2
block_bytes = score_bytes + 3 * 128 * 32 * 2
blocks_3090 = 102_400 // (block_bytes + 1024)
blocks_h200 = 233_472 // (block_bytes + 1024)
tiled_warps_3090 = 4 * (102_400 // (3 * 64 * 32 * 2 + 1024))
### END SOLUTION

# %%
check("predict_whole_matrix", score_bytes=score_bytes, block_bytes=block_bytes, blocks_3090=blocks_3090,
      blocks_h200=blocks_h200, tiled_warps_3090=tiled_warps_3090)


# %% [markdown]
# ## 2 · A residual and a LayerNorm, in place
#
# Row t of `out` (T, C) is the LayerNorm of the sum of two rows, `x[t] + residual[t]`: its mean is subtracted, the rest is
# divided by the root of its variance plus 1e-12, multiplied by `weight`, and `bias` is added; these two are (C,).
# Everything is float32, and C is at most 384. `out` may be the same array as `residual`, as it is at the end of each
# layer. A block has `(32, 4)` threads, and each warp computes one row. A lane keeps its share of the row, at most 12
# elements, in `kept`. The elements may be large and close together, so subtract the mean before you square.


# %%
@cuda.jit
def add_norm(x, residual, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    kept = cuda.local.array(12, float32)
    ### BEGIN SOLUTION
    columns = x.shape[1]
    if t < x.shape[0]:
        total = float32(0.0)
        for k in range(12):
            col = lane + 32 * k
            if col < columns:
                kept[k] = x[t, col] + residual[t, col]
                total += kept[k]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        mean = total / float32(columns)

        squares = float32(0.0)
        for k in range(12):
            if lane + 32 * k < columns:
                kept[k] -= mean
                squares += kept[k] * kept[k]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
        scale = cuda.rsqrt(squares / float32(columns) + float32(1e-12))

        for k in range(12):
            col = lane + 32 * k
            if col < columns:
                out[t, col] = kept[k] * scale * weight[col] + bias[col]
    ### END SOLUTION


# %%
check("add_norm", add_norm)

# %% [markdown]
# Each layer of the encoder launches it twice. One of the sentences is empty.

# %%
encoder = yours.small_encoder()
sentences = [[3, 1, 4, 1, 5], [], [9, 2], [6]]
yours.one_by_one(yours.answers(add_norm=add_norm), encoder, sentences)

# %% [markdown]
# ## 3 · From a blank page: attention over packed sentences
#
# One product has computed queries, keys and values of all heads: `qkv` (T, 3 × heads × 32) float32. A row holds the
# queries of all heads, 32 elements each, then the keys of all heads, then the values of all heads. Sentence b has the
# `lengths[b]` rows from `begins[b]` on; both arrays are (B,) int32, a length may be 0, and sentences may be in any order.
# Rows of no sentence may hold anything, even NaN, and the same rows of `out` must not change.
#
# In each head, a token sees all tokens of its sentence: the weights are the softmax of the scores, a score is the dot
# product of query and key divided by the root of 32, and the result is the sum of the weighted values. Write it to `out`
# (T, heads × 32), one head after the other, with no copy before or after. For example, with two heads, `begins` (3, 0)
# and `lengths` (1, 2), row 3 sees only itself, so `out[3]` is its values, `qkv[3, 128:192]`; rows 0 and 1 see each other.
#
# The grid is `(longest, B, heads)`, and a block is one warp: it computes one query of one sentence in one head. No length
# is more than `longest`. The loop from exercise 3 of lesson 31 computes a softmax in one pass over the keys; here the
# work is in the addresses. `heads` is an int.
#
# Write `attend_packed(qkv, heads, begins, lengths, out)` from the decorator down.

# %%
attend_packed = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_packed(qkv, heads, begins, lengths, out):
    i, b, head, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z, cuda.threadIdx.x
    width, begin, seen = heads * 32, begins[b], lengths[b]
    col = head * 32 + lane
    if i < seen:
        query = qkv[begin + i, col]
        row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
        for row in range(begin, begin + seen):
            score = query * qkv[row, width + col]
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
            score *= float32(0.17677669)  # 1 / sqrt(32)
            new = max(row_max, score)
            factor, weight = math.exp(row_max - new), math.exp(score - new)
            row_sum = row_sum * factor + weight
            acc = acc * factor + weight * qkv[row, 2 * width + col]
            row_max = new
        out[begin + i, col] = acc / row_sum


### END SOLUTION

# %%
check("attend_packed", attend_packed)

# %% [markdown]
# Now an encoder runs on your kernels: attention and both LayerNorms of each layer, each kernel alone and then together,
# every launch compared with NumPy in float64. Your answers of lessons 30 and 31 can run with them: add `embed_norm=`
# and `mean_pool=`.

# %%
yours.one_by_one(yours.answers(add_norm=add_norm, attend_packed=attend_packed), encoder, sentences)

# %% [markdown]
# ## 4 · Predict: which PyTorch?
#
# A pass of your model has 12 layers of 6 launches each, and 3 more launches. All its products together have 40 million
# weights. With few rows, each launch takes 4 microseconds in a graph. A pass of PyTorch has 105 launches; with few rows,
# each takes 4 microseconds in a graph and 12 when called from Python. The tensor cores reach 800 TFLOP/s at best.
#
# How many microseconds does your pass take in a graph with few rows (`graph_us`)? How many times as fast as PyTorch is
# it, if yours runs in a graph and PyTorch is called from Python (`unlike`)? And if both run in graphs (`alike`)? With how
# many rows would your products take as long at the peak of the tensor cores as all your launches do with few rows
# (`even_rows`)? Suppose that a pass takes the longer of these two times. How many sentences of 20 tokens do you compute
# per second, with 90 of them in each pass (`sentences_per_second`)?

# %%
graph_us = None
unlike = None
alike = None
even_rows = None
sentences_per_second = None
### BEGIN SOLUTION
graph_us = (12 * 6 + 3) * 4
unlike = 105 * 12 / graph_us
alike = 105 * 4 / graph_us
even_rows = graph_us * 800_000_000 / (2 * 40_000_000)
sentences_per_second = 90 * 1_000_000 / graph_us  # 1,800 rows are fewer than even_rows
### END SOLUTION

# %%
check("predict_fair", graph_us=graph_us, unlike=unlike, alike=alike, even_rows=even_rows,
      sentences_per_second=sentences_per_second)


# %% [markdown]
# ## 5 · From padded to packed
#
# `ids` (B, S) int32 is a padded batch: sentence b has its tokens in the first `lengths[b]` columns of row b; the rest of
# the row is padding. Copy each sentence into the packed batch: `out` (T,) int32 holds the tokens of sentence b from
# `begins[b]` on. `begins` and `lengths` are (B,) int32. Elements of `out` that belong to no sentence keep what they hold.
# Sentences may be in any order, and a length may be 0. The grid has one block of 32 threads per sentence.


# %%
@cuda.jit
def pack_ids(ids, begins, lengths, out):
    b = cuda.blockIdx.x
    ### BEGIN SOLUTION
    for place in range(cuda.threadIdx.x, lengths[b], 32):
        out[begins[b] + place] = ids[b, place]
    ### END SOLUTION


# %%
check("pack_ids", pack_ids)

# %% [markdown]
# ## 6 · Find the bug: where each sentence begins
#
# In a packed batch, a sentence begins where the one before it ends: `begins[b]` is the sum of all lengths before
# `lengths[b]`. Such sums are called an *exclusive scan*. Here one block of 128 threads computes it for up to 128
# sentences; both arrays are (B,) int32. In each round, a thread adds to its sum that of the thread `distance` before it,
# and the distance doubles. After seven rounds every thread has the sum of all lengths up to its own. For three sentences
# the result is right; for a hundred it may be wrong.


# %%
@cuda.jit
def sentence_begins(lengths, begins):
    sums = cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    sums[i] = lengths[i] if i < lengths.size else 0
    cuda.syncthreads()
    distance = 1
    while distance < 128:
        before = sums[i - distance] if i >= distance else 0
        sums[i] += before
        cuda.syncthreads()
        distance *= 2
    if i < lengths.size:
        begins[i] = sums[i] - lengths[i]


### BEGIN SOLUTION
@cuda.jit
def sentence_begins(lengths, begins):
    sums = cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    sums[i] = lengths[i] if i < lengths.size else 0
    cuda.syncthreads()
    distance = 1
    while distance < 128:
        before = sums[i - distance] if i >= distance else 0
        cuda.syncthreads()  # everyone has read; only now may a sum change
        sums[i] += before
        cuda.syncthreads()
        distance *= 2
    if i < lengths.size:
        begins[i] = sums[i] - lengths[i]


### END SOLUTION

# %%
check("sentence_begins", sentence_begins)

# %% [markdown]
# ## 7 · From a blank page: few shapes, few graphs
#
# A CUDA graph is captured for one number of rows, and a packed batch may have any. So the rows are rounded up to one of a
# few allowed counts, and the extra rows stay empty. The rule: let p be the largest power of two that is not larger than
# the number of tokens. The allowed counts are the multiples of p / 16, or of 16 if p / 16 is less. A batch without tokens
# has 16 rows. With 1,000 tokens, for example, p is 512, the counts are multiples of 32, and the batch has 1,024 rows;
# with 1,030 they are multiples of 64, and it has 1,088.
#
# Write `graph_rows(counts)`, a function of the host. `counts` (n,) holds the token counts of n batches, integers up to a
# billion. Return an array with the rows of each: the smallest allowed count that is not less than its token count.

# %%
graph_rows = None  # write the function


### BEGIN SOLUTION
def graph_rows(counts):
    rows = []
    for count in counts.tolist():
        power = 1 << max(count.bit_length() - 1, 0)
        step = max(16, power // 16)
        rows.append(-(-max(count, 1) // step) * step)
    return np.array(rows)


### END SOLUTION

# %%
check("graph_rows", graph_rows)
