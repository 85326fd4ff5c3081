# %% [markdown]
# # 25 · The KV cache and batches: exercises
#
# Five exercises: keys and values of new tokens put into their slots, slots that are refilled, buffers placed by first
# fit, what a batch is worth, and from a blank page attention of one query over a slot. `hint("append_rotated")` gives a
# hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Into the slots
#
# B sequences decode together, each in a slot of its own. `cache` (2, B, K, N, 64) float32 holds the keys of all slots,
# then their values: K heads, and N places for tokens. Each sequence has one new token, with the key and value `k` and
# `v` (B, K, 64). `lengths` (B,) int32 says how many tokens of a sequence are in its slot already, which is also the
# position of the new one. The value is copied. The key is rotated first: numbers d and d + 32 form a pair, and
# (low, high) becomes (low · cos − high · sin, high · cos + low · sin). Row p of `table` (N, 64) holds the 32 cosines of
# position p, then its 32 sines. Nothing is written to a slot without a sequence, which has length −1, or to a full one.
# The grid is `(K, B)` with 32 threads a block. Each block loads a number of key, value and table only once.


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
# ## 2 · Slots that are refilled
#
# Requests wait in a queue, and request i will have `lengths[i]` tokens, one in each step; `lengths` is an array (n,) of
# positive integers. There are `slots` slots. Before each step, every free slot takes the next request of the queue, the
# lowest slot first. A slot becomes free in the step after its request's last token. Return an array (n, 2): for each
# request its slot and the step of its first token. Slots and steps are counted from 0.


# %%
def refill_slots(lengths, slots):
    ### BEGIN SOLUTION
    free, found = [0] * slots, []  # the first step in which each slot is free
    for length in lengths.tolist():
        slot = free.index(min(free))
        found.append((slot, free[slot]))
        free[slot] += length
    return np.array(found)
    ### END SOLUTION


# %%
check("refill_slots", refill_slots)

# %% [markdown]
# The requests of the lesson, with four slots: the steps of continuous batching until the last request ends, and those
# of static batching, the sum over its batches of the longest answer.

# %%
counts = np.array([24, 3, 9, 14, 4, 6, 20, 3, 10, 5])
found = refill_slots(counts, 4)
if found is not None:
    print("continuous:", (found[:, 1] + counts).max(), "static:", sum(counts[i : i + 4].max() for i in (0, 4, 8)))

# %% [markdown]
# ## 3 · Buffers by first fit
#
# Buffer i has `sizes[i]` bytes. It is live from launch `first[i]`, which writes it, to launch `last[i]`, which reads it
# for the last time, both included. All three are arrays (n,) of integers. Place the buffers in the order of their
# numbers, each at the lowest address from 0 at which it shares no byte with any buffer that was placed before and is
# live in one of the same launches. Return the addresses (n,). No alignment is needed.


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
# ## 4 · Predict: what a batch is worth
#
# A model has 10⁹ weights in bfloat16, 25 layers, and 8 heads of keys and values with 80 numbers each, also in bfloat16.
# A GPU moves 4,000 GB a second and does 800 · 10¹² flops a second. Every sequence has 1,000 tokens in its cache. A step
# reads all weights once, and all keys and values of each sequence; suppose that it takes as long as these bytes take.
# How many MB do the keys and values of one sequence take (1 MB = 10⁶ bytes)? How many microseconds does a step take
# with 1 sequence, and with 125? How many tokens a second does the GPU compute with 125? And for how many rows of a
# prompt do the flops, two for each weight and row, take as long as the weights' bytes?

# %%
kept_mb = None
step_us_1 = None
step_us_125 = None
tokens_per_second_125 = None
rows_at_ridge = None
### BEGIN SOLUTION
kept_mb = 2 * 25 * 8 * 80 * 2 * 1000 // 10**6
step_us_1 = (2000 + kept_mb) // 4
step_us_125 = (2000 + 125 * kept_mb) // 4
tokens_per_second_125 = 125 * 10**6 // step_us_125
rows_at_ridge = 500 * 800 * 10**6 // (2 * 10**9)  # flops in 500 microseconds, by those of a row
### END SOLUTION

# %%
check("predict_batch", kept_mb=kept_mb, step_us_1=step_us_1, step_us_125=step_us_125,
      tokens_per_second_125=tokens_per_second_125, rows_at_ridge=rows_at_ridge)

# %% [markdown]
# ## 5 · From a blank page: one query over a slot
#
# Now the other kernel of the cache. `q` (B, H, 64) float32 has one query for each sequence and head, and `cache` (2, B,
# K, N, 64) the keys and values as in exercise 1. H is a multiple of K: the first H / K heads of queries share the first
# head of keys and values, the next ones the second, and so on. `lengths` (B,) int32 counts the tokens in each slot, the
# new one included; the places after them may hold anything, even NaN. A score is the dot product of query and key
# divided by the square root of 64. The weights are the softmax of the scores, and row (b, head) of `out` (B, H, 64) is
# the weighted sum of the values. A slot without a sequence has length 0, and its rows of `out` are 0.
#
# The grid is `(H, B)` with 32 threads a block: a warp computes one query, and each lane has the numbers lane and
# lane + 32 of the head. Each warp reads its keys and values once. The loop is that of exercise 3 in lesson 22, with two
# numbers in each lane.
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
