# %% [markdown]
# # 24 · Attention: exercises
#
# Five exercises: the values of one head, the scores of one query, a prediction about bytes and threads, scores by a
# warp per key, and from a blank page attention within a window of keys.
# `hint("head_values")` gives a hint, and a second call a better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · The values of one head
#
# `flat` is the memory of qkv, one element after another. Each token has one row: the queries of all heads, then the keys
# of all heads, then the values of all heads. A head has as many elements as `out` has columns. Copy the values of `head`
# into `out`, one row per token. Blocks are 32 × 8, with the grid's x along the columns.
#
# For example, with 2 heads of 2 elements a row has 12. The values of head 1 are elements 10 and 11 of token 0, then 22
# and 23 of token 1, and so on.


# %%
@cuda.jit
def head_values(flat, heads, head, out):
    i, t = cuda.grid(2)
    size = out.shape[1]
    ### BEGIN SOLUTION
    if t < out.shape[0] and i < size:
        width = heads * size
        out[t, i] = flat[t * 3 * width + 2 * width + head * size + i]
    ### END SOLUTION


# %%
check("head_values", head_values)

# %% [markdown]
# ## 2 · The scores of one query
#
# One head: `queries` and `keys` have one row per token. Compute the scores of query `t` against all keys:
#
# $$\text{out}_j = \frac{q_t \cdot k_j}{\sqrt{D}}$$
#
# under a causal mask: query t sees the keys 0 to t. The score of any other key becomes `float32(-1e30)`, so low that its
# exponential is 0. Each thread has one key.


# %%
@cuda.jit
def query_scores(queries, keys, t, out):
    j = cuda.grid(1)
    if j < keys.shape[0]:
        score = float32(0.0)
        ### BEGIN SOLUTION
        for i in range(keys.shape[1]):
            score += queries[t, i] * keys[j, i]
        out[j] = score / math.sqrt(float32(keys.shape[1])) if j <= t else float32(-1e30)
        ### END SOLUTION


# %%
check("query_scores", query_scores)

# %% [markdown]
# ## 3 · Predict: flops, bytes and threads of attention
#
# 2,048 tokens, 16 heads of 96, float32, every query sees every key. A block of the three-pass kernel has 256 threads
# for one query of one head. A MB has 1,000,000 bytes.

# %%
gflop = None  # billions of flops of both products together
least_mb = None  # MB that have to be read and written at least
scores_mb = None  # MB of all scores
row_bytes = None  # bytes of shared memory that a block needs for its row of scores
idle = None  # threads of a block that have no work in the third pass
lines = None  # lines of 128 bytes that a warp touches in one request for elements of 32 keys
keys_mb = None  # MB of keys that all blocks together request in the first pass
### BEGIN SOLUTION
gflop = 4 * 2048**2 * 16 * 96 / 1e9
least_mb = 4 * 4 * 2048 * 16 * 96 / 1e6
scores_mb = 4 * 16 * 2048**2 / 1e6
row_bytes = 4 * 2048
idle = 256 - 96
lines = 32
keys_mb = 4 * 16 * 2048 * 2048 * 96 / 1e6  # 2,048 times what they take in memory
### END SOLUTION

# %%
check("predict_attention", gflop=gflop, least_mb=least_mb, scores_mb=scores_mb, row_bytes=row_bytes, idle=idle,
      lines=lines, keys_mb=keys_mb)


# %% [markdown]
# ## 4 · A warp per key
#
# In the first pass of the lesson's kernel each lane had a different key, and a request touched 32 lines. Here a warp
# shares one key: `query` has 64 elements, `keys` one row of 64 per key, and `out` gets the scores, `query . key / 8`. The
# launch has 32 threads per key, in blocks of 128. The result is right, but one lane does all the work. Let all lanes
# work, with neighbours reading neighbouring elements, and add up their products with shuffles.


# %%
@cuda.jit
def warp_scores(query, keys, out):
    key, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if key < keys.shape[0] and lane == 0:
        score = float32(0.0)
        for i in range(64):
            score += query[i] * keys[key, i]
        out[key] = score * float32(0.125)


### BEGIN SOLUTION
@cuda.jit
def warp_scores(query, keys, out):
    key, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if key < keys.shape[0]:  # the same for all lanes of a warp
        score = query[lane] * keys[key, lane] + query[lane + 32] * keys[key, lane + 32]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        if lane == 0:
            out[key] = score * float32(0.125)


### END SOLUTION

# %%
check("warp_scores", warp_scores)

# %% [markdown]
# ## 5 · From a blank page: a window of keys
#
# Some models let a query see only the most recent keys: its own and the `window - 1` before it. One head of 64 elements:
# `queries`, `keys`, `values` and `out` (N, 64), and `window`, at most 64.
#
# $$\text{out}_t = \sum_{j = t - window + 1}^{t} \text{softmax}_j\left(\frac{q_t \cdot k_j}{8}\right) v_j$$
#
# The first queries have fewer keys before them, and see only those. With a window of 3, query 1 sees the keys 0 and 1,
# and query 10 sees 8, 9 and 10. A block has 64 threads and one query: `blockIdx.x` is t.
#
# Write `attend_window(queries, keys, values, window, out)` from the decorator down.

# %%
attend_window = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_window(queries, keys, values, window, out):
    weights = cuda.shared.array(64, float32)
    t, thread = cuda.blockIdx.x, cuda.threadIdx.x
    begin = max(t - window + 1, 0)
    seen = t + 1 - begin
    if thread < seen:  # a thread takes one key
        score = float32(0.0)
        for i in range(64):
            score += queries[t, i] * keys[begin + thread, i]
        weights[thread] = score * float32(0.125)
    cuda.syncthreads()
    row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
    for j in range(seen):
        row_max = max(row_max, weights[j])
    for j in range(seen):  # a thread takes one column of the values
        weight = math.exp(weights[j] - row_max)
        row_sum += weight
        acc += weight * values[begin + j, thread]
    out[t, thread] = acc / row_sum


### END SOLUTION

# %%
check("attend_window", attend_window)
