# %% [markdown]
# # 26 · Paged attention: exercises
#
# Six exercises: a prediction, keys written to their slots, the holders of pages counted, attention over pages with one
# warp for each head, parts of a softmax joined, and from a blank page attention split over blocks. Your attention has a
# place in the engine. `hint("predict_pages")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours

# %% [markdown]
# ## 1 · Predict: pages, slots, parts
#
# A model has 16 layers with 8 heads of keys and values, each of 64 numbers in bfloat16. It serves four sequences, of
# 1,000, 17, 512 and 3 tokens, in pages of 16 tokens, none of them shared. How many entries of the page table are in
# use? How many bytes of memory, in all layers, are empty places in last pages? In which slot is token 37 of a sequence
# whose table begins with 5, 12, 7, 9? Tokens are counted from 0.
#
# Attention cuts the pages of a sequence into parts. Each has a 16th of the pages, rounded up to a multiple of 4, but at
# least 8; the last one has the rest. How many parts does a sequence of 1,000 tokens have, and one of 2,600?

# %%
pages_used = None
empty_bytes = None
slot = None
parts_of_1000 = None
parts_of_2600 = None
### BEGIN SOLUTION
pages_used = 63 + 2 + 32 + 1
empty_bytes = (8 + 15 + 0 + 13) * 2 * 16 * 8 * 64 * 2  # keys and values, layers, heads, numbers, bytes
slot = 7 * 16 + 5
parts_of_1000 = -(-63 // 8)  # a 16th of 63 pages is 4
parts_of_2600 = -(-163 // 12)  # a 16th of 163 pages is 11, rounded up to 12
### END SOLUTION

# %%
check("predict_pages", pages_used=pages_used, empty_bytes=empty_bytes, slot=slot, parts_of_1000=parts_of_1000,
      parts_of_2600=parts_of_2600)

# %% [markdown]
# ## 2 · Keys to their slots
#
# `rows` (T, K, D) float32 holds the keys of T new tokens, of K heads with D numbers each. `slots` (T,) int32 says where
# they go: slot is page × 16 + place, and a row with slot -1 goes nowhere. The cache is `out` (pages, K, 16, D); what is
# not written keeps what it holds. The grid has a block of 32 threads for each row. Let neighbouring lanes store
# neighbouring numbers: both arrays hold the numbers of a head end to end.


# %%
@cuda.jit
def store_slots(rows, slots, out):
    t = cuda.blockIdx.x
    ### BEGIN SOLUTION
    slot = slots[t]
    if slot >= 0:
        page, place = slot // 16, slot % 16
        for head in range(rows.shape[1]):
            for i in range(cuda.threadIdx.x, rows.shape[2], 32):
                out[page, head, place, i] = rows[t, head, i]
    ### END SOLUTION


# %%
check("store_slots", store_slots)

# %% [markdown]
# ## 3 · Who holds which page
#
# Write the bookkeeping of a block manager. `pages` is how many pages of 16 tokens there are, at first all free.
# `events` (n, 3) is an array of whole numbers, and each row is one event:
#
# - `0, s, count`: sequence s gets `count` more tokens, 0 or more. If it does not exist it begins, with no tokens before
#   these. It takes as many new pages as it needs.
# - `1, s, child`: `child`, which does not exist, becomes a copy of sequence s, which exists. It has the same tokens and
#   holds the same pages: nothing is copied, and no page is taken.
# - `2, s, 0`: sequence s, which exists, ends. A page without another holder is free again.
#
# A page with several holders must not be written. So if the last page of a sequence has free places and other holders,
# the sequence first takes a new page in place of that one when it grows, and no longer holds the old one. If an event
# needs more pages than are free, it changes nothing: no tokens are added, no page is taken, and a sequence that would
# have begun does not exist. (Only another event 0 can then name it.) Return the number of free pages after each event,
# an array of n whole numbers.


# %%
def free_pages(events, pages):
    ### BEGIN SOLUTION
    free, holders = list(range(pages)), [0] * pages
    tokens, held = {}, {}
    counts = []
    for kind, s, number in events.tolist():
        if kind == 0:
            before, mine = tokens.get(s, 0), list(held.get(s, []))
            shared = number > 0 and before % 16 > 0 and holders[mine[-1]] > 1
            new = -(-(before + number) // 16) - len(mine)
            if new + shared <= len(free):
                if shared:
                    holders[mine.pop()] -= 1
                    new += 1
                for _ in range(new):
                    mine.append(free.pop())
                    holders[mine[-1]] = 1
                tokens[s], held[s] = before + number, mine
        elif kind == 1:
            tokens[number], held[number] = tokens[s], list(held[s])
            for page in held[s]:
                holders[page] += 1
        else:
            for page in held.pop(s):
                holders[page] -= 1
                if holders[page] == 0:
                    free.append(page)
            del tokens[s]
        counts.append(len(free))
    return np.array(counts)
    ### END SOLUTION


# %%
check("free_pages", free_pages)

# %% [markdown]
# ## 4 · Attention over pages, a warp for each head
#
# The arguments are those of the engine's own kernels, in float32. `q` and `out` are (B, H, D): the query of the newest
# token of each of B sequences, in H heads. `keys` and `values` are (pages, K, 16, D); query head h reads head
# h // (H // K) of them. Sequence b has `lengths[b]` tokens, and its token j is in page `page_table[b, j // 16]`, at
# place j % 16. A score is the dot product of query and key times `scale`; the weights are the softmax of the scores,
# and the result is the sum of the weighted values. A sequence of length 0 is an empty place in the batch: write zeros.
# After a sequence's last page the table may hold anything, and where there is no token, keys and values are NaN.
#
# The grid is `(H, B)` with 32 threads a block, and D is 32, 64, 96 or 128: each lane has the numbers lane, lane + 32
# and so on of its head, in `query` and `acc`. Go over the tokens once, with the online softmax, and load each number of
# the query, the keys and the values once. The lanes add up their parts of a score with shuffles.


# %%
@cuda.jit
def paged_attention(q, keys, values, page_table, lengths, out, scale):
    head, b, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    query, acc = cuda.local.array(4, float32), cuda.local.array(4, float32)
    ### BEGIN SOLUTION
    kv_head = head // (q.shape[1] // keys.shape[1])
    own = q.shape[2] // 32
    for i in range(own):
        query[i] = q[b, head, lane + 32 * i] * scale
        acc[i] = float32(0.0)
    row_max, row_sum = float32(-math.inf), float32(0.0)
    for j in range(lengths[b]):
        page, place = page_table[b, j // 16], j % 16
        score = float32(0.0)
        for i in range(own):
            score += query[i] * keys[page, kv_head, place, lane + 32 * i]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        new = max(row_max, score)
        factor, weight = math.exp(row_max - new), math.exp(score - new)
        row_sum = row_sum * factor + weight
        for i in range(own):
            acc[i] = acc[i] * factor + weight * values[page, kv_head, place, lane + 32 * i]
        row_max = new
    for i in range(own):
        out[b, head, lane + 32 * i] = acc[i] / row_sum if row_sum > 0 else float32(0.0)
    ### END SOLUTION


# %%
check("paged_attention", paged_attention)

# %% [markdown]
# Here it computes the attention of each new token of a small Llama in float32. Every launch is compared with NumPy in
# float64.

# %%
llama = yours.small_llama()
prompts = [[3, 1, 4, 1, 5], [9, 2]]
yours.one_by_one(yours.answers(paged_attention=paged_attention), llama, prompts)

# %% [markdown]
# ## 5 · Parts of a softmax, joined
#
# Attention was computed in parts. `parts` (R, P, D + 2) float32 has a record for each row and part: D numbers of `acc`,
# the sum of the weighted values; then `row_max`, the part's largest score $m$; then `row_sum`, the sum of its weights
# $e^{s - m}$. The values in `acc` have the same weights. Row r has `counts[r]` parts, and the records after them hold
# NaN. If a row has no part, its result is zeros. Join the parts of each row, and write the quotient of `acc` and
# `row_sum` of all its keys to `out` (R, D). The grid has a block of 32 threads for each row, D is any number, and no
# number of `acc` may be loaded twice.


# %%
@cuda.jit
def join_attention(parts, counts, out):
    r, lane = cuda.blockIdx.x, cuda.threadIdx.x
    ### BEGIN SOLUTION
    D = out.shape[1]
    row_max, row_sum = float32(-math.inf), float32(0.0)
    for p in range(counts[r]):
        row_max = max(row_max, parts[r, p, D])
    for p in range(counts[r]):
        row_sum += parts[r, p, D + 1] * math.exp(parts[r, p, D] - row_max)
    for i in range(lane, D, 32):
        acc = float32(0.0)
        for p in range(counts[r]):
            acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)
        out[r, i] = acc / row_sum if counts[r] > 0 else float32(0.0)
    ### END SOLUTION


# %%
check("join_attention", join_attention)

# %% [markdown]
# ## 6 · From a blank page: attention split over blocks
#
# The arguments are those of exercise 4, with heads of 32 numbers; q is (B, H, 32). Each block now takes `share` pages
# of one sequence, block p the pages p × share to (p + 1) × share - 1 of its table, as far as there are tokens. And a
# block has all H // K query heads, at most 4, that read the same head of keys and values: it loads each number of the
# keys and values once, for all of them. It writes a record to `out` (B, H, P, 34) for each of its query heads: 32
# numbers of `acc`, then `row_max`, then `row_sum`, as in exercise 5. A block whose pages hold no token writes nothing.
#
# The grid is `(P, K, B)` with 32 threads a block, and `share` is an int.
#
# Write `attend_split(q, keys, values, page_table, lengths, scale, share, out)` from the decorator down.

# %%
attend_split = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_split(q, keys, values, page_table, lengths, scale, share, out):
    part, kv_head, b, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z, cuda.threadIdx.x
    query, acc = cuda.local.array(4, float32), cuda.local.array(4, float32)
    row_max, row_sum = cuda.local.array(4, float32), cuda.local.array(4, float32)
    group = q.shape[1] // keys.shape[1]
    first, end = part * share * 16, min((part + 1) * share * 16, lengths[b])
    for n in range(group):
        query[n] = q[b, kv_head * group + n, lane] * scale
        acc[n], row_max[n], row_sum[n] = float32(0.0), float32(-math.inf), float32(0.0)
    for j in range(first, end):
        page = page_table[b, j // 16]
        key, value = keys[page, kv_head, j % 16, lane], values[page, kv_head, j % 16, lane]
        for n in range(group):
            score = query[n] * key
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
            new = max(row_max[n], score)
            factor, weight = math.exp(row_max[n] - new), math.exp(score - new)
            row_sum[n] = row_sum[n] * factor + weight
            acc[n] = acc[n] * factor + weight * value
            row_max[n] = new
    if first < end:
        for n in range(group):
            head = kv_head * group + n
            out[b, head, part, lane] = acc[n]
            if lane == 0:
                out[b, head, part, 32] = row_max[n]
                out[b, head, part, 33] = row_sum[n]


### END SOLUTION

# %%
check("attend_split", attend_split)

# %% [markdown]
# Your two kernels together compute attention with split sequences. Here they and the kernel of exercise 4 are compared
# with NumPy, for three sequences of which one is empty.

# %%
from labkit.kernels.attention import paged

size = {"B": 3, "S": 150, "shortest": 0, "H": 4, "KV": 2, "D": 32}
q, keys, values, page_table, lengths, scale = paged.PAGED_DECODE.inputs(np.random.default_rng(0), **size)
on_device = [cuda.to_device(each) for each in (q, keys, values, page_table, lengths)]
share, P = 4, -(-page_table.shape[1] // 4)
parts, joined, whole = (cuda.to_device(np.full(shape, np.nan, np.float32))
                        for shape in ((3, 4, P, 34), (12, 32), q.shape))
counts = np.repeat(-(-lengths // (16 * share)), 4).astype(np.int32)
attend_split[(P, 2, 3), 32](*on_device, np.float32(scale), share, parts)
join_attention[12, 32](parts.reshape(12, P, 34), cuda.to_device(counts), joined)
paged_attention[(4, 3), 32](*on_device, whole, np.float32(scale))
truth = paged.paged_decode_reference(q, keys, values, page_table, lengths, scale)
for name, found in (("split and joined", joined), ("a warp for each head", whole)):
    print(f"{name}: largest error {np.abs(found.copy_to_host().reshape(q.shape) - truth).max():.0e}")
