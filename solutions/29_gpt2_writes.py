# %% [markdown]
# # 29 · GPT-2 writes: exercises
#
# Five exercises. Append rows to the cache, predict what the cache saves, repair a mask that counts positions wrongly,
# write a sampler's distribution from a blank page, and apply Amdahl's law. One kernel goes into the model.
# `hint("append_rows")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours

# %% [markdown]
# ## 1 · Into the cache
#
# A row of `qkv` holds the queries, the keys and the values of a token, `width` elements each. A row of `cache` holds keys
# and values, 2 × `width` elements. `start[0]` says how many tokens are in the cache already; it is in device memory, so
# that a graph can be replayed for the next token. Block t has 32 threads and copies the keys and values of row t of `qkv`
# to row `start[0] + t` of `cache`. A row for which the cache has no room left is not copied, nor are the queries.


# %%
@cuda.jit
def append_rows(qkv, start, cache):
    t = cuda.blockIdx.x
    width = cache.shape[1] // 2
    ### BEGIN SOLUTION
    row = start[0] + t
    if row < cache.shape[0]:
        for col in range(cuda.threadIdx.x, 2 * width, 32):
            cache[row, col] = qkv[t, width + col]
    ### END SOLUTION


# %%
check("append_rows", append_rows)

# %% [markdown]
# The next cell puts your kernel into the lesson's GPT-2 and compares every activation with NumPy in float64.

# %%
from labkit.models.load import load

loaded = load("tiny")
ids = loaded.tokenizer.encode("kernel: n. The essential part")
yours.one_by_one(yours.answers(append_rows=append_rows), loaded.model, ids)

# %% [markdown]
# ## 2 · Predict: what the cache saves
#
# A prompt has 10 tokens, and greedy decoding adds 50. Every pass of the model computes one row for each token that goes
# through its layers; the last of the new tokens is not fed back. How many rows is that in all, with the cache and without
# it? And how many bytes does each token add to the cache of GPT-2 small, with 12 layers of width 768, in float32?

# %%
rows_with = None  # rows through the layers, with the cache
rows_without = None
cache_bytes = None  # for each token
### BEGIN SOLUTION
rows_with = 10 + 49  # the prompt at once, then one row for each further token
rows_without = sum(range(10, 60))  # 10 rows for the first token, 59 for the last
cache_bytes = 12 * 2 * 768 * 4
### END SOLUTION

# %%
check("predict_rows", rows_with=rows_with, rows_without=rows_without, cache_bytes=cache_bytes)

# %% [markdown]
# ## 3 · Find the bug: where the row is
#
# This kernel computes the softmax of rows of scores under a causal mask, one warp per row. Row t belongs to the query at
# position `start[0] + t` of the text, since `start[0]` tokens came in earlier passes; column j belongs to the key at
# position j. A query sees the keys up to its own position; the weights of all other keys are 0. While the prompt is
# computed in one pass, the result is right. From the first token after it, the model writes nonsense.


# %%
@cuda.jit
def seen_from_start(scores, start, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    seen = t + 1

    largest = float32(-np.inf)
    for key in range(lane, seen, 32):
        largest = max(largest, scores[t, key])
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))

    total = float32(0.0)
    for key in range(lane, seen, 32):
        total += math.exp(scores[t, key] - largest)
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)

    for key in range(lane, scores.shape[1], 32):
        out[t, key] = math.exp(scores[t, key] - largest) / total if key < seen else float32(0.0)


### BEGIN SOLUTION
@cuda.jit
def seen_from_start(scores, start, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    seen = start[0] + t + 1  # the keys of earlier passes, and those of this one up to its own

    largest = float32(-np.inf)
    for key in range(lane, seen, 32):
        largest = max(largest, scores[t, key])
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))

    total = float32(0.0)
    for key in range(lane, seen, 32):
        total += math.exp(scores[t, key] - largest)
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)

    for key in range(lane, scores.shape[1], 32):
        out[t, key] = math.exp(scores[t, key] - largest) / total if key < seen else float32(0.0)


### END SOLUTION

# %%
check("seen_from_start", seen_from_start)

# %% [markdown]
# ## 4 · From a blank page: temperature and top-k
#
# A sampler's first half, in NumPy. Keep the `k` largest logits (if several are equal to the smallest of these, keep any
# of them), divide them by the temperature, and turn them into probabilities with a softmax. All other tokens get 0.
# Return an array as long as `logits` that adds up to 1. Logits can be large: `np.exp(1000)` is infinite. What can you
# subtract from all logits without changing the result?
#
# Write `keep_likeliest(logits, temperature, k)`.

# %%
keep_likeliest = None  # write the function


### BEGIN SOLUTION
def keep_likeliest(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    kept = np.argsort(-logits)[:k]
    exponentials = np.exp((logits[kept] - logits.max()) / temperature)
    shares = np.zeros(logits.size)
    shares[kept] = exponentials / exponentials.sum()
    return shares


### END SOLUTION

# %%
check("keep_likeliest", keep_likeliest)

# %% [markdown]
# ## 5 · Predict: Amdahl's law
#
# A step of generation takes 200 us, 20 of them for the softmax. A prompt takes 1,000 us, 400 of them for the softmax.
# Suppose that the softmax is made four times as fast. How long does a step take then, and how long the prompt? How long
# would a step take if the softmax took no time at all? And if a step is to be twice as fast, how long may everything else
# take at most, even if the softmax takes no time?

# %%
step_us = None  # a step with the faster softmax
least_us = None  # a step if the softmax took no time at all
prompt_us = None  # the prompt with the faster softmax
needed_us = None  # all the rest, in a step that is twice as fast and has no softmax
### BEGIN SOLUTION
step_us = 180 + 20 / 4
least_us = 180
prompt_us = 600 + 400 / 4
needed_us = 200 / 2
### END SOLUTION

# %%
check("predict_amdahl", step_us=step_us, least_us=least_us, prompt_us=prompt_us, needed_us=needed_us)
