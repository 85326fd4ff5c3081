"""Multi-head attention: the softmax of a query's scores weighs the values. No matrix of scores goes to global memory.

    out[t, h] = sum over j of softmax_j(q[t, h] . k[j, h] / sqrt(D)) * v[j, h], causal: over j <= t

Shapes  qkv (S, 3*H*D): in each row the queries of all heads, then their keys, then their values, as one linear layer
        leaves them; out (S, H*D); float32, C-contiguous
        With a cache: keys and values of earlier tokens too, cache (N, 2*H*D), and start (1,) int32 in device memory:
        how many tokens precede row 0 of qkv. The rows start to start + S - 1 of the cache are those of qkv
Work    4*S*S*H*D flop, causal half of it; 16*S*H*D bytes at least
Source  A. Vaswani et al., "Attention Is All You Need" (2017), https://arxiv.org/abs/1706.03762
"""

import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus
from labkit.kernels.arguments import check_array, dynamic_shared
from labkit.kernels.attention.decode import attention_decode
from labkit.kernels.attention.flash import attention_flash, takes_flash
from labkit.kernels.attention.heads import check_heads, keys_and_values
from labkit.kernels.op import rung
from labkit.kernels.reduce import NEG_INF, ZERO, block_max, block_sum

BLOCK = 256
DEFAULT_SHARED = 48 * 1024  # bytes of a block without opting in to more; block_max and block_sum take some of them
PARTIAL_BYTES = 4 * 32  # that these two take


def split_heads(rows, heads: int):
    """(S, H*D) -> (H, S, D), in float64."""
    return np.moveaxis(rows.astype(np.float64).reshape(len(rows), heads, -1), 1, 0)


def attention_weights(queries, keys, start: int, causal: bool):
    """(H, S, D), (H, N, D) -> weights (H, S, N) of the keys for each query, and the scores."""
    scores = queries @ np.swapaxes(keys, 1, 2) / math.sqrt(queries.shape[2])
    query, key = start + np.arange(queries.shape[1])[:, None], np.arange(keys.shape[1])
    visible = key <= query if causal else key < start + queries.shape[1]
    masked = np.where(visible, scores, -np.inf)
    exponentials = np.exp(masked - masked.max(axis=2, keepdims=True))
    return exponentials / exponentials.sum(axis=2, keepdims=True), scores


def attention_reference(qkv, heads, cache=None, start=None, *, causal=False):
    width = qkv.shape[1] // 3
    keys_values = qkv[:, width:] if cache is None else cache
    queries, keys, values = (split_heads(part, heads) for part in
                             (qkv[:, :width], keys_values[:, :width], keys_values[:, width:]))
    weights, _ = attention_weights(queries, keys, 0 if start is None else int(start[0]), causal)
    return np.moveaxis(weights @ values, 0, 1).reshape(len(qkv), width)


# --- Three passes over the keys --------------------------------------------------------------------------------------
# The grid: x over queries, y over heads. Element i of a head's key j is keys_values[j, kv_offset + head*D + i], and of
# its value keys_values[j, kv_offset + width + head*D + i]: kv_offset is width in qkv, 0 in a cache.


@cuda.jit(device=True)
def weigh_keys(qkv, keys_values, kv_offset, head_column, size, num_visible, scale, scores):
    """Passes 1 and 2: scores[j] = exp(score of key j - row_max); return their sum."""
    partial = cuda.shared.array(32, float32)
    t, thread = u32.blockIdx.x, u32.threadIdx.x
    row_max = NEG_INF
    for j in range(thread, num_visible, BLOCK):
        score = ZERO
        for i in u32.range(size):
            score += qkv[t, head_column + i] * keys_values[j, kv_offset + head_column + i]
        score *= scale
        scores[j] = score
        row_max = max(row_max, score)
    row_max = block_max(row_max, partial)

    row_sum = ZERO
    for j in range(thread, num_visible, BLOCK):
        exponential = math.exp(scores[j] - row_max)
        scores[j] = exponential
        row_sum += exponential
    return block_sum(row_sum, partial)  # its barriers also make the scores visible to all


@cuda.jit
def attention_three_pass_kernel(qkv, keys_values, start, out, kv_offset, size, scale, causal):
    scores = cuda.shared.array(0, float32)  # one for each key of the cache's capacity, which the launch passes
    t, thread = u32.blockIdx.x, u32.threadIdx.x
    head_column, width = u32.blockIdx.y * size, u32.shape(out)[1]
    num_visible = uint32(start[0]) + (t + 1 if causal else u32.shape(out)[0])
    num_visible = min(num_visible, u32.shape(keys_values)[0])  # never beyond the last key
    row_sum = weigh_keys(qkv, keys_values, kv_offset, head_column, size, num_visible, scale, scores)

    inv_row_sum = float32(1.0) / row_sum
    for i in u32.range(thread, size, BLOCK):  # 64 of the 256 threads, for heads of 64
        column = kv_offset + width + head_column + i
        acc = ZERO
        for j in u32.range(num_visible):
            acc += scores[j] * keys_values[j, column]
        out[t, head_column + i] = acc * inv_row_sum


@cuda.jit
def attention_all_threads_kernel(qkv, keys_values, start, out, kv_offset, size, scale, causal):
    scores = cuda.shared.array(0, float32)
    sums = cuda.shared.array(BLOCK, float32)
    t, thread = u32.blockIdx.x, u32.threadIdx.x
    head_column, width = u32.blockIdx.y * size, u32.shape(out)[1]
    num_visible = uint32(start[0]) + (t + 1 if causal else u32.shape(out)[0])
    num_visible = min(num_visible, u32.shape(keys_values)[0])
    row_sum = weigh_keys(qkv, keys_values, kv_offset, head_column, size, num_visible, scale, scores)

    inv_row_sum = float32(1.0) / row_sum
    groups = BLOCK // size  # each takes every groups-th key
    i, group = thread % size, thread // size
    column = kv_offset + width + head_column + i
    acc = ZERO
    if group < groups:  # where size does not divide 256, some threads are idle
        for j in range(group, num_visible, groups):
            acc += scores[j] * keys_values[j, column]
    sums[thread] = acc
    cuda.syncthreads()
    if group == 0:
        for other in u32.range(1, groups):
            acc += sums[other * size + i]
        out[t, head_column + i] = acc * inv_row_sum


@rung(kernel=attention_three_pass_kernel, idea="one block a query and head: scores, exponentials, weighted values",
      sizes="as many keys as there is shared memory for: 58,080 on an H200")
def attention_three_pass(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """One block takes one query of one head, and keeps its scores in shared memory. First pass: a thread takes every
    256th key, a whole dot product each. Second: the exponentials and their sum. Third: a thread takes a column of the
    values, so that only D of the 256 threads have work; neighbours read neighbours."""
    _launch(attention_three_pass_kernel, qkv, heads, out, cache, start, causal, stream)


@rung(kernel=attention_all_threads_kernel, idea="the third pass with all threads: groups share the keys",
      sizes="heads of at most 256 numbers, and as many keys as there is shared memory for")
def attention_all_threads(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """As three_pass, but in the third pass 256 / D groups of threads share the keys, and their sums are added up in
    shared memory."""
    size, _ = check_heads(qkv, heads, out, cache, start)
    if size > BLOCK:
        raise ValueError(f"heads of {size} numbers are too large for all_threads; at most {BLOCK} are allowed")
    _launch(attention_all_threads_kernel, qkv, heads, out, cache, start, causal, stream)


def _launch(kernel, qkv, heads, out, cache, start, causal, stream):
    size, capacity = check_heads(qkv, heads, out, cache, start)
    fixed = PARTIAL_BYTES + (4 * BLOCK if kernel is attention_all_threads_kernel else 0)
    nbytes = 16 * -(-capacity // 4)  # the compiler reads four scores at a time, past the last one, too
    allowed = gpus.target().shared_per_block - fixed
    if nbytes > allowed:
        raise ValueError(f"the scores of {capacity:,} keys take {nbytes:,} bytes of shared memory; a block can have "
                         f"{allowed:,} bytes for them, {allowed // 4:,} keys. Tiled attention has no such limit")
    keys_values, start, kv_offset = keys_and_values(qkv, out, cache, start)
    arguments = (qkv, keys_values, start, out, kv_offset, np.uint32(size), np.float32(1 / math.sqrt(size)),
                 np.uint32(causal))
    if fixed + nbytes > DEFAULT_SHARED:
        dynamic_shared(kernel, nbytes, *arguments)
    kernel[(out.shape[0], heads), BLOCK, stream, nbytes](*arguments)


# --- The cache -------------------------------------------------------------------------------------------------------


@cuda.jit
def append_to_cache_kernel(qkv, start, cache):
    t = u32.blockIdx.x
    row = uint32(start[0]) + t
    columns = u32.shape(cache)[1]
    if row < u32.shape(cache)[0]:  # a full cache is left unchanged
        for col in u32.range(u32.threadIdx.x, columns, BLOCK):
            cache[row, col] = qkv[t, (columns >> 1) + col]


def append_to_cache(qkv, start, cache, stream=0):
    """cache[start + t] = the keys and values of qkv[t]."""
    check_array("qkv", qkv, ndim=2)
    check_array("cache", cache, ndim=2)
    check_array("start", start, shape=(1,), dtype=np.int32)
    if 2 * qkv.shape[1] != 3 * cache.shape[1]:
        raise ValueError(f"qkv has {qkv.shape[1]} columns and cache {cache.shape[1]}; they must be as 3 to 2")
    append_to_cache_kernel[qkv.shape[0], BLOCK, stream](qkv, start, cache)


FEW = 4  # queries: with more, tiles of keys pay


def attention(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """The rung to use. On the CPU device, where threads run one after the other, the simple ones are the quickest."""
    size, _ = check_heads(qkv, heads, out, cache, start)
    if gpus.chosen_on_gpu() and takes_flash(size, qkv, out, cache):
        pick = attention_decode if cache is not None and out.shape[0] <= FEW else attention_flash
    else:
        pick = attention_all_threads if size <= BLOCK else attention_three_pass
    pick(qkv, heads, out, cache=cache, start=start, causal=causal, stream=stream)
