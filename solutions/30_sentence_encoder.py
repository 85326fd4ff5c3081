# %% [markdown]
# # 30 · A sentence encoder: exercises
#
# Three exercises. Cut a word into pieces, work out what padding costs, and write BERT's first launch from a blank page;
# it then runs in an encoder. `hint("word_pieces")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours

# %% [markdown]
# ## 1 · A word in pieces
#
# `vocabulary` is a list of pieces, and the index of a piece in it is its id. A piece that continues a word begins with
# `##`, as in `##ing`. Cut `word` as WordPiece does: take the longest piece that fits at the beginning, then the longest
# that continues it there, and so on. Return the list of ids. WordPiece never takes a piece back. If nothing fits, however
# late in the word, the result is only the id of `[UNK]`. `word` has at least one letter.


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
# ## 2 · Predict: what padding costs
#
# A batch holds six sentences, of 4, 9, 12, 18, 25 and 44 tokens. How many rows go through the linear layers if each
# sentence is padded to 128 rows? If each is padded to the longest, rounded up to a multiple of 16? And if they are packed
# end to end? In attention each query of a sentence meets each of its keys. How many such pairs does a head have in the
# second layout, if padding is computed like everything else? And how many in the third?

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
# ## 3 · From a blank page: BERT's embedding
#
# Row t of `out` (T, C) begins as the sum of three rows: row `ids[t]` of `words`, row `types[t]` of `kinds` and row
# `positions[t]` of `places`. Then it is normalised: its mean is subtracted, the rest is divided by the root of its
# variance plus 1e-12, multiplied by `weight`, and `bias` is added; these two have C elements each. `ids`, `types` and
# `positions` are (T,) int32, everything else is float32. A block has `(32, 4)` threads and computes four rows, one per
# warp; `cuda.threadIdx.x` is the lane. The lanes of a row combine their sums with shuffles. The elements of a row may be
# large and close together: subtract the mean before you square.
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
# It is the first launch of an encoder. The next cell puts it into a small one with random weights, and compares what
# each launch writes with NumPy in float64. One of the sentences is empty.

# %%
encoder = yours.small_encoder()
sentences = [[3, 1, 4, 1, 5], [], [9, 2], [6]]
yours.one_by_one(yours.answers(embed_norm=embed_norm), encoder, sentences)
