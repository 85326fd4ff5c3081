# %% [markdown]
# # 21 · A sentence encoder: exercises
#
# Six exercises: a word in pieces, the mean of a sentence, what padding costs, an attention in which padding takes part,
# a search, and from a blank page BERT's first layer. Two of your kernels have a place in the encoder.
# `hint("word_pieces")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours

# %% [markdown]
# ## 1 · A word in pieces
#
# `vocabulary` is a list of pieces, and the place of a piece in it is its id. A piece that continues a word begins with
# `##`, as in `##ing`. Cut `word` as WordPiece does: take the longest piece that fits at the beginning, then the longest
# that continues it there, and so on. Return the list of ids. WordPiece never takes a piece back. Where nothing fits,
# however late in the word, the result is the id of `[UNK]` alone. `word` has at least one letter.


# %%
def word_pieces(word, vocabulary):
    ### BEGIN SOLUTION
    ids, begin = [], 0
    while begin < len(word):
        for end in range(len(word), begin, -1):  # the longest first
            piece = word[begin:end] if begin == 0 else "##" + word[begin:end]
            if piece in vocabulary:
                ids.append(vocabulary.index(piece))
                begin = end
                break
        else:
            return [vocabulary.index("[UNK]")]
    return ids
    ### END SOLUTION


# %%
check("word_pieces", word_pieces)

# %% [markdown]
# ## 2 · The mean of a sentence
#
# `x` (T, C) float32 holds a row for each token of a batch. Sentence b has the rows `begins[b]` to
# `begins[b] + lengths[b] - 1`; both arrays are int32. Row b of `out` (B, C) is the mean of these rows, and zeros for a
# sentence without tokens. Rows that belong to no sentence may hold anything, NaN too. Sentences need not lie in the
# order of their numbers. The grid is `(blocks, B)` with 64 threads a block: `cuda.blockIdx.y` is the sentence, and each
# thread has one column; both are computed for you.


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
# It has a place in an encoder. The next cell gives it to a small one with random weights, and compares what each launch
# writes with NumPy in float64. One of the sentences is empty.

# %%
encoder = yours.small_encoder()
sentences = [[3, 1, 4, 1, 5], [], [9, 2], [6]]
yours.one_by_one(yours.answers(mean_pool=mean_pool), encoder, sentences)

# %% [markdown]
# ## 3 · Predict: what padding costs
#
# A batch holds six sentences, of 4, 9, 12, 18, 25 and 44 tokens. How many rows go through the linear layers if each
# sentence is padded to 128 rows? If each is padded to the longest, rounded up to a multiple of 16? And if they are
# packed end to end? In attention each query of a sentence meets each key of it. How many such pairs has a head in the
# second form, if padding is computed like all else? And how many has it in the third?

# %%
rows_to_128 = None
rows_to_longest = None  # rounded up to a multiple of 16
rows_packed = None
pairs_to_longest = None  # of a query and a key, padding included
pairs_packed = None
### BEGIN SOLUTION
rows_to_128 = 6 * 128
rows_to_longest = 6 * 48
rows_packed = 4 + 9 + 12 + 18 + 25 + 44
pairs_to_longest = 6 * 48 * 48
pairs_packed = 4**2 + 9**2 + 12**2 + 18**2 + 25**2 + 44**2
### END SOLUTION

# %%
check("predict_padding", rows_to_128=rows_to_128, rows_to_longest=rows_to_longest, rows_packed=rows_packed,
      pairs_to_longest=pairs_to_longest, pairs_packed=pairs_packed)

# %% [markdown]
# ## 4 · Find the bug: padding that takes part
#
# Attention of one head with 32 numbers, over sentences that are padded to S rows. `queries`, `keys`, `values` and `out`
# are (B × S, 32) float32, and `lengths` (B,) int32 says how many tokens each sentence has. A warp computes a row: 32
# threads a block, a block for each row. A token sees all tokens of its sentence and no others, and a row of padding
# gets 0. Padding may hold anything, NaN too. Alone, a sentence comes out right; beside a longer one, it does not.


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
# ## 5 · A search
#
# `passages` (N, C) float32 holds a row for each of N passages, and `query` (C,) the row of a question. None of them is
# scaled to length 1. Return the places of the `k` passages whose cosine with the query is largest, the largest first,
# as k whole numbers. Of equal ones any may come first. A passage of zeros has the cosine 0: it comes after those that
# point the query's way and before those that point the other way. NumPy does it all.


# %%
def nearest(query, passages, k):
    ### BEGIN SOLUTION
    cosines = (passages @ query) / np.maximum(np.linalg.norm(passages, axis=1), 1e-12)  # times the query's length
    return np.argsort(-cosines, kind="stable")[:k]
    ### END SOLUTION


# %%
check("nearest", nearest)

# %% [markdown]
# ## 6 · From a blank page: BERT's embedding
#
# Row t of `out` (T, C) begins as the sum of three rows: row `ids[t]` of `words`, row `types[t]` of `kinds` and row
# `positions[t]` of `places`. Then it is normalised: its mean is subtracted, the rest is divided by the root of its
# variance plus 1e-12, multiplied by `weight`, and `bias` is added; these two have C numbers each. `ids`, `types` and
# `positions` are (T,) int32, all else is float32. The launch has `(32, 4)` threads a block and a block for every four
# rows: a warp takes a row, `cuda.threadIdx.x` is the lane. The lanes of a row join their sums with shuffles. The sums
# of a row may be large and close together: take the mean off before you square.
#
# Write `embed_norm(ids, types, positions, words, places, kinds, weight, bias, out)` from the decorator down.

# %%
embed_norm = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def embed_norm(ids, types, positions, words, places, kinds, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    columns = out.shape[1]
    if t < out.shape[0]:
        word, kind, place = ids[t], types[t], positions[t]
        total = float32(0.0)
        for col in range(lane, columns, 32):
            v = words[word, col] + kinds[kind, col] + places[place, col]
            out[t, col] = v  # only this lane reads it again
            total += v
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        mean = total / float32(columns)

        squares = float32(0.0)
        for col in range(lane, columns, 32):
            squares += (out[t, col] - mean) * (out[t, col] - mean)
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
        scale = cuda.rsqrt(squares / float32(columns) + float32(1e-12))

        for col in range(lane, columns, 32):
            out[t, col] = (out[t, col] - mean) * scale * weight[col] + bias[col]


### END SOLUTION

# %%
check("embed_norm", embed_norm)

# %% [markdown]
# It is the first launch of an encoder. Here both of your kernels go into one, each alone and then together.

# %%
yours.one_by_one(yours.answers(mean_pool=mean_pool, embed_norm=embed_norm), encoder, sentences)
