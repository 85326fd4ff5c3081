# %% [markdown]
# # 40 · Paged attention: exercises
#
# Four exercises: a prediction, attention over pages with one warp per head, parts of a softmax joined, and from a
# blank page attention split over blocks. Your attention then runs in a small Llama. `hint("predict_parts")` gives a
# hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours

# %% [markdown]
# ## 1 · Predict: parts and their sums
#
# Two parts of a row's keys are to be joined. The exponentials have the base 2, as in the kernels, and sums are relative
# to the largest score of their part. For example, with `row_max` 1 and 2, and `row_sum` 4 and 3, the two joined have
# `row_max` 2 and `row_sum` 4 / 2 + 3 = 5.
#
# Here the first part has `row_max` 3, `row_sum` 6, and `acc`, the sum of the weighted values in one column, 12. The
# second has 5, 2.5 and 10. What is the `row_sum` of the two joined? And what is the result in that column?
#
# The kernels cut the pages of a sequence into parts. Each has a 16th of the pages, rounded up to a multiple of 4, but at
# least 8; the last one has the rest. A page has 16 tokens. How many parts does a sequence of 1,000 tokens have, and one
# of 2,600?

# %%
row_sum = None
result = None
parts_of_1000 = None
parts_of_2600 = None
### BEGIN SOLUTION
row_sum = 6 / 4 + 2.5  # 2 ** (3 - 5) is a quarter
result = (12 / 4 + 10) / (6 / 4 + 2.5)
parts_of_1000 = -(-63 // 8)  # a 16th of 63 pages is 4
parts_of_2600 = -(-163 // 12)  # a 16th of 163 pages is 11, rounded up to 12
### END SOLUTION

# %%
check("predict_parts", row_sum=row_sum, result=result, parts_of_1000=parts_of_1000, parts_of_2600=parts_of_2600)

# %% [markdown]
# ## 2 · Attention over pages, a warp for each head
#
# Let the newest token of each sequence attend to all of the sequence's tokens. The arrays are those of the engine's own
# kernels, in float32:
#
# - `q` and `out` (B, H, D): the query of each of B sequences in H heads, and the result.
# - `keys` and `values` (pages, K, 16, D). Query head h reads their head h // (H // K).
# - `lengths` (B,): how many tokens each sequence has. Token j of sequence b is in page `page_table[b, j // 16]`, at
#   offset `j % 16`.
#
# The scores are dot products times `scale`, their softmax gives the weights, and the result is the weighted sum of the
# values. For a sequence of length 0 write zeros. After a sequence's last page the table may hold anything, and where
# there is no token, keys and values are NaN.
#
# An example: with H = 4, K = 2 and `page_table[0]` = [5, 2], query head 3 of sequence 0 reads head 1, and token 20 is in
# page 2 at offset 4: its key is `keys[2, 1, 4]`.
#
# The grid is `(H, B)` with 32 threads per block, and D is 32, 64, 96 or 128: a lane holds elements lane, lane + 32 and so
# on of its head, in `query` and `acc`. Go over the tokens once, with the online softmax.


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
# ## 3 · Parts of a softmax, joined
#
# Attention was computed in parts, and row r has `counts[r]` of them. Each has a record in `parts` (R, P, D + 2) float32:
# first the D elements of `acc`, the sum of the weighted values, then `row_max`, the part's largest score $m$, then
# `row_sum`, the sum of its weights $e^{s - m}$. The weights in `acc` are the same. Records after the last part hold NaN.
#
# Join the parts of each row, and write `acc` / `row_sum` of all its keys to `out` (R, D); zeros for a row without parts.
#
# An example with D = 1: the records [4, 0, 1] and [6, 0, 2] have the same `row_max`, so the result is (4 + 6) / (1 + 2).
# If the second had a `row_max` of $\ln 2$ instead, the first would be halved, and the result would be
# (2 + 6) / (0.5 + 2).
#
# The grid has one block of 32 threads per row, and D may be any size.


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
# ## 4 · From a blank page: attention split over blocks
#
# The arguments are those of exercise 2, with heads of 32 elements, and an int `share`. A block now attends to `share`
# pages of one sequence: block p to entries p × share to (p + 1) × share - 1 of its row of the table, as far as there are
# tokens. And it computes all H // K query heads, at most 4, that read the same head of keys and values.
#
# For each of its query heads it writes a record to `out` (B, H, P, 34): 32 elements of `acc`, then `row_max`, then
# `row_sum`, as in exercise 3. A block whose pages hold no token writes nothing.
#
# An example: a sequence of 70 tokens has 5 pages. With `share` 2, block 0 has tokens 0 to 31, block 1 tokens 32 to 63,
# block 2 tokens 64 to 69, and block 3, if there is one, has none.
#
# The grid is `(P, K, B)` with 32 threads per block. Write
# `attend_split(q, keys, values, page_table, lengths, scale, share, out)` from the decorator down.

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
# Together your two kernels compute attention with split sequences. Here they and the kernel of exercise 2 are compared
# with NumPy, for three sequences, one of them empty.

# %%
from labkit.kernels.attention import paged
from labkit.kernels.ops.paged_decode import PAGED_DECODE

size = {"B": 3, "S": 150, "shortest": 0, "H": 4, "KV": 2, "D": 32}
q, keys, values, page_table, lengths, scale = PAGED_DECODE.inputs(np.random.default_rng(0), **size)
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
