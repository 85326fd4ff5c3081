# %% [markdown]
# # 26 · Matching PyTorch: exercises
#
# Four exercises: a comparison that is fair and one that is not, a padded batch packed, the offsets of its sentences,
# and from a blank page the shapes of its graphs. `hint("pack_ids")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32, int32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: which PyTorch?
#
# A pass of your model has 12 layers of 6 launches each, and 3 launches more. The weights of all its products are 40
# million numbers. With few rows, each launch takes 4 microseconds in a graph. A pass of PyTorch has 105 launches; with
# few rows, each takes 4 microseconds in a graph and 12 if it is called from Python. The tensor cores reach 800 TFLOP/s
# at best.
#
# How many microseconds does your pass take in a graph with few rows (`graph_us`)? How many times as fast as PyTorch is
# it, if yours runs in a graph and PyTorch is called (`unlike`)? And if both run in graphs (`alike`)? With how many rows
# would your products take as long at the peak of the tensor cores as all your launches do with few rows (`even_rows`)?
# Suppose that a pass takes the longer of these two times. How many sentences of 20 tokens do you compute in a second,
# with 90 of them in each pass (`sentences_per_second`)?

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
# ## 2 · From padded to packed
#
# `ids` (B, S) int32 is a padded batch: sentence b has its tokens in the first `lengths[b]` columns of row b, and behind
# them stands anything. Copy each sentence to its place in the packed batch: `out` (T,) int32 holds the tokens of
# sentence b from `begins[b]` on. `begins` and `lengths` are (B,) int32. Elements of `out` that belong to no sentence
# keep what they hold. Sentences need not lie in the order of their numbers, and a length may be 0. The grid has a block
# of 32 threads for each sentence.


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
# ## 3 · Find the bug: where each sentence begins
#
# In a packed batch, a sentence begins where the one before it ends: `begins[b]` is the sum of all lengths before
# `lengths[b]`. Such sums are called an *exclusive scan*. Here one block of 128 threads computes it for up to 128
# sentences; both arrays are (B,) int32. In each round a thread adds to its sum the sum of the thread `distance` places
# before it, and the distance doubles. After seven rounds every thread has the sum of all lengths up to its own. For
# three sentences the result is right; it is not safe for a hundred.


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
# ## 4 · From a blank page: few shapes, few graphs
#
# A CUDA graph is captured for one number of rows, and a packed batch may have any. So the number of rows is rounded up
# to one of a few allowed numbers, and the rows at the end stay empty. The rule: let p be the largest power of two that
# is not larger than the number of tokens. The allowed numbers are the multiples of p / 16, but of 16 where p / 16 is
# less. A batch without tokens has 16 rows.
#
# Write `graph_rows(counts)`, a function of the host. `counts` (n,) is an array with the tokens of n batches, whole
# numbers up to a billion. Return an array with the rows of each: the smallest allowed number that is not less than its
# tokens.

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
