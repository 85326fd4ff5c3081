# %% [markdown]
# # 25 · Flash attention: exercises
#
# Four exercises: a prediction about shared memory and tiles, a bug in a sum that is corrected, the tiles that a causal
# mask saves, and from a blank page attention by a warp. `hint("predict_rooms")` gives a hint, and a second call a
# better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: shared memory and tiles
#
# 500 tokens, 12 heads of 64, float32. The three-pass kernel keeps a row of scores in shared memory. `whole_matrix` of
# lesson 24 keeps a head's whole matrix. Flash attention has blocks of 64 queries and tiles of 64 keys.

# %%
row_bytes = None  # bytes of shared memory that a block of the three-pass kernel needs for its scores
matrix_kb = None  # KB, of 1,000 bytes, that a head's whole matrix of scores needs
blocks = None  # blocks that flash attention launches
tiles_causal = None  # tiles that the blocks of one head go through under a causal mask, in total
fewer = None  # how many times fewer keys and values flash attention loads than one query per block, without a mask
### BEGIN SOLUTION
row_bytes = 4 * 500
matrix_kb = 4 * 500 * 500 / 1000
blocks = 12 * 8  # 500 queries are eight groups of 64, the last with 52
tiles_causal = 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8
fewer = 500 / 8  # a head has 8 blocks instead of 500, and each goes through all keys and values once
### END SOLUTION

# %%
check("predict_rooms", row_bytes=row_bytes, matrix_kb=matrix_kb, blocks=blocks, tiles_causal=tiles_causal, fewer=fewer)

# %% [markdown]
# ## 2 · Find the bug: corrected, but not all of it
#
# The last step of attention, with the scores already computed: a row of `out` is the average of all values, weighted by
# the softmax of a row of scores. One thread computes one element of `out` and goes through the row once, with three
# variables, `row_max`, `row_sum` and `acc`. For rows that begin with their largest score the result is right; for others
# it is not.


# %%
@cuda.jit
def weighted_values(scores, values, out):
    i, row = cuda.grid(2)
    if row < out.shape[0] and i < out.shape[1]:
        row_max, row_sum, acc = scores[row, 0], float32(1.0), values[0, i]
        for j in range(1, scores.shape[1]):
            new = max(row_max, scores[row, j])
            weight = math.exp(scores[row, j] - new)
            row_sum = row_sum * math.exp(row_max - new) + weight
            acc = acc + weight * values[j, i]
            row_max = new
        out[row, i] = acc / row_sum


### BEGIN SOLUTION
@cuda.jit
def weighted_values(scores, values, out):
    i, row = cuda.grid(2)
    if row < out.shape[0] and i < out.shape[1]:
        row_max, row_sum, acc = scores[row, 0], float32(1.0), values[0, i]
        for j in range(1, scores.shape[1]):
            new = max(row_max, scores[row, j])
            factor, weight = math.exp(row_max - new), math.exp(scores[row, j] - new)
            row_sum = row_sum * factor + weight
            acc = acc * factor + weight * values[j, i]  # a sum of the same exponentials
            row_max = new
        out[row, i] = acc / row_sum


### END SOLUTION

# %%
check("weighted_values", weighted_values)

# %% [markdown]
# Why does the bug not show when the largest score comes first?
#
# ## 3 · Tiles above the diagonal
#
# A block has 32 threads, one for each of 32 queries of 8 elements. The keys come in tiles of 32 through shared memory.
# Each thread looks for the largest score, an unscaled `q . k`, among the keys that its query sees: query t sees the keys
# 0 to t. The result is right. But every block goes through all tiles, even those in which none of its queries sees a key.
# Skip those.
#
# Every thread of a block must reach both barriers in every round.


# %%
@cuda.jit
def best_scores(queries, keys, out):
    tile = cuda.shared.array((32, 8), float32)
    t, thread = cuda.grid(1), cuda.threadIdx.x
    tokens = keys.shape[0]
    best = float32(-math.inf)
    for first in range(0, tokens, 32):
        for i in range(8):
            tile[thread, i] = keys[first + thread, i] if first + thread < tokens else float32(0.0)
        cuda.syncthreads()
        for j in range(32):
            if first + j <= t and t < tokens:
                score = float32(0.0)
                for i in range(8):
                    score += queries[t, i] * tile[j, i]
                best = max(best, score)
        cuda.syncthreads()
    if t < tokens:
        out[t] = best


### BEGIN SOLUTION
@cuda.jit
def best_scores(queries, keys, out):
    tile = cuda.shared.array((32, 8), float32)
    t, thread = cuda.grid(1), cuda.threadIdx.x
    tokens = keys.shape[0]
    best = float32(-math.inf)
    for first in range(0, min(cuda.blockIdx.x * 32 + 32, tokens), 32):  # the last query of the block sees no more
        for i in range(8):
            tile[thread, i] = keys[first + thread, i] if first + thread < tokens else float32(0.0)
        cuda.syncthreads()
        for j in range(32):
            if first + j <= t and t < tokens:
                score = float32(0.0)
                for i in range(8):
                    score += queries[t, i] * tile[j, i]
                best = max(best, score)
        cuda.syncthreads()
    if t < tokens:
        out[t] = best


### END SOLUTION

# %%
check("best_scores", best_scores)

# %% [markdown]
# ## 4 · From a blank page: attention by a warp
#
# One head of 64 elements: `queries` (Q, 64), `keys` and `values` (N, 64), `out` (Q, 64). Every query sees every key.
#
# $$\text{out}_q = \sum_j \text{softmax}_j\left(\frac{q \cdot k_j}{8}\right) v_j$$
#
# A block has 64 threads, two warps, and each warp has one query. A lane has the columns `lane` and `lane + 32`: of the
# query, which stays in registers, of each key, of each value, and of the result. The scores are not kept: the softmax
# is corrected as it goes along.
#
# Write `attend_warp(queries, keys, values, out)` from the decorator down.

# %%
attend_warp = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_warp(queries, keys, values, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < queries.shape[0]:
        left, right = queries[row, lane], queries[row, lane + 32]
        row_max, row_sum = float32(-math.inf), float32(0.0)
        acc_left, acc_right = float32(0.0), float32(0.0)
        for j in range(keys.shape[0]):
            score = left * keys[j, lane] + right * keys[j, lane + 32]
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
            score *= float32(0.125)
            new = max(row_max, score)
            factor, weight = math.exp(row_max - new), math.exp(score - new)  # the first factor is 0
            row_sum = row_sum * factor + weight
            acc_left = acc_left * factor + weight * values[j, lane]
            acc_right = acc_right * factor + weight * values[j, lane + 32]
            row_max = new
        out[row, lane], out[row, lane + 32] = acc_left / row_sum, acc_right / row_sum


### END SOLUTION

# %%
check("attend_warp", attend_warp)
