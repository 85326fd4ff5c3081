# %% [markdown]
# # 37 · The KV cache: exercises
#
# Four exercises: predict what a cache saves, write keys and values of new tokens to the cache, plan memory by first
# fit, and from a blank page write attention of one query over a slot. `hint("append_rotated")` gives a hint, and a second
# call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: an answer with a cache and without one
#
# A model has 10⁹ weights in bfloat16, 25 layers, and 4 heads of keys and values of 100 values each, also in bfloat16. It
# gets a prompt of 400 tokens and writes an answer of 100. The prompt's step gives the first of these.
#
# How many rows go through the model in all steps together, with a cache and without one? How many bytes of keys and
# values does the cache hold at the end?
#
# A GPU moves 4,000 GB/s and does 800 · 10¹² flops per second. Suppose that a step takes as long as the weights' bytes,
# which it reads once, or its flops, two per weight and row, whichever is longer. Leave out attention, keys and values.
# How many microseconds do all steps after the prompt's need with a cache, and how many do all 100 steps need without one?

# %%
rows_with = None
rows_without = None
kept_bytes = None
decode_us_with = None
all_us_without = None
### BEGIN SOLUTION
rows_with = 400 + 99  # the last token is not computed with
rows_without = sum(400 + done for done in range(100))
kept_bytes = rows_with * 2 * 25 * 4 * 100 * 2
decode_us_with = 99 * 2 * 10**9 / (4000 * 10**3)
all_us_without = rows_without * 2 * 10**9 / (800 * 10**6)  # 400 rows take 1,000 microseconds, longer than the bytes
### END SOLUTION

# %%
check("predict_answer", rows_with=rows_with, rows_without=rows_without, kept_bytes=kept_bytes,
      decode_us_with=decode_us_with, all_us_without=all_us_without)


# %% [markdown]
# ## 2 · Into the cache
#
# B sequences decode together, and each has its own part of the cache, its *slot*, with room for N tokens. `cache`
# (2, B, K, N, 64) float32 holds all keys, then all values, for K heads. Each sequence has one new token with the key and
# value `k` and `v` (B, K, 64), and `lengths` (B,) int32 says how many of its tokens are already in its slot; this is also
# the position of the new one.
#
# Copy the value. Rotate the key, then store it: values d and d + 32 form a pair, and (low, high) becomes
# (low · cos − high · sin, high · cos + low · sin). Row p of `table` (N, 64) holds the 32 cosines of position p, then its
# 32 sines. A slot without a sequence has length −1; write nothing to it, or to a full one.
#
# For example, with `lengths = [2, -1]` the first key of sequence 0 goes, rotated by row 2 of `table`, to
# `cache[0, 0, 0, 2]`, its value to `cache[1, 0, 0, 2]`, and slot 1 stays as it is. The grid is `(K, B)` with 32 threads
# per block.


# %%
@cuda.jit
def append_rotated(k, v, table, lengths, cache):
    head, b, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    ### BEGIN SOLUTION
    place = lengths[b]
    if 0 <= place < cache.shape[3]:
        low, high = k[b, head, lane], k[b, head, 32 + lane]
        cos, sin = table[place, lane], table[place, 32 + lane]
        cache[0, b, head, place, lane] = low * cos - high * sin
        cache[0, b, head, place, 32 + lane] = high * cos + low * sin
        cache[1, b, head, place, lane] = v[b, head, lane]
        cache[1, b, head, place, 32 + lane] = v[b, head, 32 + lane]
    ### END SOLUTION


# %%
check("append_rotated", append_rotated)

# %% [markdown]
# ## 3 · Buffers by first fit
#
# Buffer i has `sizes[i]` bytes and is live from launch `first[i]`, which writes it, to launch `last[i]`, which reads it
# for the last time, both included. All three are arrays (n,) of integers. Go through the buffers in order, and put each
# at the lowest address, from 0 up, where it shares no byte with an earlier buffer that is live in one of the same
# launches. Return the addresses, an array (n,). No alignment is needed.
#
# For example, buffers of 8, 4 and 6 bytes that are live in launches 0 to 1, 1 to 2, and 2 to 3 get the addresses 0, 8 and
# 0: the third shares a launch only with the second, and fits below it.


# %%
def place_buffers(sizes, first, last):
    ### BEGIN SOLUTION
    offsets = np.zeros(len(sizes), np.int64)
    for i in range(len(sizes)):
        others = [j for j in range(i) if first[j] <= last[i] and first[i] <= last[j]]
        at = 0
        for j in sorted(others, key=lambda j: offsets[j]):  # from low addresses to high ones
            if offsets[j] < at + sizes[i] and at < offsets[j] + sizes[j]:
                at = offsets[j] + sizes[j]
        offsets[i] = at
    return offsets
    ### END SOLUTION


# %%
check("place_buffers", place_buffers)

# %% [markdown]
# ## 4 · From a blank page: one query over a slot
#
# Now the other kernel of the cache. `q` (B, H, 64) float32 has one query per sequence and head, and `cache`
# (2, B, K, N, 64) the keys and values as in exercise 2. H is a multiple of K: the first H / K query heads share the first
# head of keys and values, the next ones the second, and so on. With 8 query heads and 2 key heads, query head 5 reads
# head 1.
#
# `lengths` (B,) int32 counts the tokens in each slot, including the new one. The rest of a slot may hold anything, even
# NaN. A score is the dot product of query and key divided by the square root of 64, the weights are the softmax of the
# scores, and row (b, head) of `out` (B, H, 64) is the weighted sum of the values. Where the length is 0, store 0.
#
# The grid is `(H, B)` with 32 threads per block: a warp computes one query, and a lane holds elements lane and lane + 32.
# The loop is that of the exercise `attend_packed`, with two elements per lane.
#
# Write `attend_slots(q, cache, lengths, out)` from the decorator down.

# %%
attend_slots = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_slots(q, cache, lengths, out):
    head, b, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    kv, seen = head // (q.shape[1] // cache.shape[2]), lengths[b]
    low, high = q[b, head, lane], q[b, head, 32 + lane]
    row_max, row_sum = float32(-math.inf), float32(0.0)
    acc_low, acc_high = float32(0.0), float32(0.0)
    for place in range(seen):
        score = low * cache[0, b, kv, place, lane] + high * cache[0, b, kv, place, 32 + lane]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        score *= float32(0.125)  # 1 / sqrt(64)
        new = max(row_max, score)
        factor, weight = math.exp(row_max - new), math.exp(score - new)
        row_sum = row_sum * factor + weight
        acc_low = acc_low * factor + weight * cache[1, b, kv, place, lane]
        acc_high = acc_high * factor + weight * cache[1, b, kv, place, 32 + lane]
        row_max = new
    out[b, head, lane] = acc_low / row_sum if seen > 0 else float32(0.0)
    out[b, head, 32 + lane] = acc_high / row_sum if seen > 0 else float32(0.0)


### END SOLUTION

# %%
check("attend_slots", attend_slots)
