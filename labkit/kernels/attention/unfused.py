"""Attention with its matrix of scores in global memory: the product of queries and keys, then scale, mask and softmax,
then the product with the values. The middle step is three launches, or one. Fused kernels are compared with it.

    attention = AttentionInSteps(fused=False)       # a launcher as Kernels of the block of GPT-2 takes it
    attention.launches(...)                         # the same, one by one: (name, launch(stream)), ...

Shapes  as in three_pass.py; scores (H, T, N): T queries, and N keys at most, of which start + T are in use
Work    4*T*(start + T)*H*D flop for the two products. Of the scores, each H*T*(start + T) elements, the three launches
        read five times as many and write four times as many; the fused one reads and writes them once
"""

import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.heads import check_heads, keys_and_values
from labkit.kernels.reduce import NEG_INF, ZERO, block_max, block_sum

BLOCK = 256
FEW = 4  # queries: more of them share tiles
TILE, DEPTH = 64, 16  # a tile of the products is TILE x TILE, in steps of DEPTH
STRIDE = TILE + 1
TILE_ELEMENTS = DEPTH * STRIDE  # of a tile in shared memory
LONGEST = 4096  # keys: 16 for each of 256 threads

# --- Scores and values, one query at a time --------------------------------------------------------------------------
# Element i of a head's key j is keys_values[j, kv_offset + head*D + i], and of its value keys_values[j,
# kv_offset + width + head*D + i]. start lies in device memory, so that a graph can be replayed.


@cuda.jit
def scores_kernel(qkv, keys_values, start, scores, kv_offset, size):
    t, head = u32.blockIdx.y, u32.blockIdx.z
    j = u32.grid(1)
    num_keys = uint32(start[0]) + u32.shape(scores)[1]
    if j < min(num_keys, u32.shape(scores)[2]):
        column = head * size
        score = ZERO
        for i in u32.range(size):
            score += qkv[t, column + i] * keys_values[j, kv_offset + column + i]
        scores[head, t, j] = score


@cuda.jit
def values_kernel(weights, keys_values, start, out, kv_offset, size):
    sums = cuda.shared.array(BLOCK, float32)
    t, head, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
    num_keys = min(uint32(start[0]) + u32.shape(weights)[1], u32.shape(weights)[2])
    groups = BLOCK // size  # each takes every groups-th key
    i, group = thread % size, thread // size
    column = kv_offset + u32.shape(out)[1] + head * size + i
    acc = ZERO
    if group < groups:
        j = group
        while j + 3 * groups < num_keys:  # four loads in flight
            k, m, n = j + groups, j + 2 * groups, j + 3 * groups
            a, b = keys_values[j, column], keys_values[k, column]
            c, d = keys_values[m, column], keys_values[n, column]
            acc += weights[head, t, j] * a + weights[head, t, k] * b
            acc += weights[head, t, m] * c + weights[head, t, n] * d
            j = n + groups
        while j < num_keys:
            acc += weights[head, t, j] * keys_values[j, column]
            j += groups
    sums[thread] = acc
    cuda.syncthreads()
    if group == 0:
        for other in u32.range(1, groups):
            acc += sums[other * size + i]
        out[t, head * size + i] = acc


# --- Scores and values of many queries, in tiles ----------------------------------------------------------------------


@cuda.jit(device=True)
def tile_product(a, b, out, M, N, K):
    """out[m, n] = sum over k of a[m, k] * b[k, n] for one tile; a thread has 4 x 4 elements. A matrix is (flat array,
    offset, row stride, column stride); those of a and out have no column stride, which is 1."""
    a, a_offset, a_stride = a
    b, b_offset, b_row_stride, b_col_stride = b
    out, out_offset, out_stride = out
    a_tile, b_tile = cuda.shared.array(TILE_ELEMENTS, float32), cuda.shared.array(TILE_ELEMENTS, float32)
    acc = cuda.local.array(16, float32)
    thread = u32.threadIdx.x
    col0, row0 = u32.blockIdx.x * TILE, u32.blockIdx.y * TILE
    row, col = thread // 16, thread % 16
    for e in range(16):
        acc[e] = ZERO
    for step in u32.range(0, K, DEPTH):
        for r in u32.range(4):
            m, k = row + 16 * r, step + col
            in_bounds = row0 + m < M and k < K
            a_tile[col * STRIDE + m] = a[a_offset + (row0 + m) * a_stride + k] if in_bounds else ZERO
            if b_col_stride == 1:  # neighbours along a row of b
                kk, n = thread // 64 + 4 * r, thread % 64
            else:
                kk, n = col, m
            k = step + kk
            in_bounds = col0 + n < N and k < K
            offset = b_offset + k * b_row_stride + (col0 + n) * b_col_stride
            b_tile[kk * STRIDE + n] = b[offset] if in_bounds else ZERO
        cuda.syncthreads()
        for k in u32.range(DEPTH):
            for i in u32.range(4):
                x = a_tile[k * STRIDE + 16 * i + row]
                for j in u32.range(4):
                    acc[4 * i + j] += x * b_tile[k * STRIDE + 16 * j + col]
        cuda.syncthreads()
    for i in u32.range(4):
        for j in u32.range(4):
            m, n = row0 + row + 16 * i, col0 + col + 16 * j
            if m < M and n < N:
                out[out_offset + m * out_stride + n] = acc[4 * i + j]


@cuda.jit
def scores_tiled_kernel(qkv, keys_values, start, scores, kv_offset, size, columns, capacity, num_queries):
    """All arrays flat: rows of qkv have 3*columns elements. capacity: keys that fit into scores."""
    num_keys = min(uint32(start[0]) + num_queries, capacity)
    if u32.blockIdx.x * TILE < num_keys:
        head = u32.blockIdx.z
        kv_stride = u32.size(keys_values) // capacity
        tile_product((qkv, head * size, 3 * columns),
                     (keys_values, kv_offset + head * size, 1, kv_stride),
                     (scores, head * (num_queries * capacity), capacity), num_queries, num_keys, size)


@cuda.jit
def values_tiled_kernel(weights, keys_values, start, out, kv_offset, size, columns, capacity, num_queries):
    num_keys = min(uint32(start[0]) + num_queries, capacity)
    head = u32.blockIdx.z
    kv_stride = u32.size(keys_values) // capacity
    tile_product((weights, head * (num_queries * capacity), capacity),
                 (keys_values, kv_offset + columns + head * size, kv_stride, 1),
                 (out, head * size, columns), num_queries, size, num_keys)


# --- Scale, mask, softmax: three launches ----------------------------------------------------------------------------
# The grid of the first two: x over keys, y over queries, z over heads. Of the softmax: x over queries, y over heads.


@cuda.jit
def scale_scores_kernel(scores, start, scale):
    j, t, head = u32.grid(1), u32.blockIdx.y, u32.blockIdx.z
    num_keys = min(uint32(start[0]) + u32.shape(scores)[1], u32.shape(scores)[2])
    if j < num_keys:
        scores[head, t, j] *= scale


@cuda.jit
def mask_scores_kernel(scores, start):
    j, t, head = u32.grid(1), u32.blockIdx.y, u32.blockIdx.z
    context_len = uint32(start[0])
    num_keys = min(context_len + u32.shape(scores)[1], u32.shape(scores)[2])
    if j < num_keys and j > context_len + t:
        scores[head, t, j] = NEG_INF


@cuda.jit
def softmax_scores_kernel(scores, start):
    partial = cuda.shared.array(32, float32)
    t, head, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
    num_keys = min(uint32(start[0]) + u32.shape(scores)[1], u32.shape(scores)[2])
    row_max = NEG_INF
    for j in u32.range(thread, num_keys, BLOCK):
        row_max = max(row_max, scores[head, t, j])
    row_max = block_max(row_max, partial)
    row_sum = ZERO
    for j in u32.range(thread, num_keys, BLOCK):
        exponential = math.exp(scores[head, t, j] - row_max)
        scores[head, t, j] = exponential
        row_sum += exponential
    row_sum = block_sum(row_sum, partial)
    for j in u32.range(thread, num_keys, BLOCK):
        scores[head, t, j] /= row_sum


# --- The same in one launch -------------------------------------------------------------------------------------------


@kernel_factory
def make_masked_softmax_from(keys_per_thread: int):
    """Scale, mask and softmax of rows of up to 256 * keys_per_thread keys, read once and kept in registers."""

    @cuda.jit
    def masked_softmax_from_kernel(scores, start, scale, causal):
        partial = cuda.shared.array(32, float32)
        thread_scores = cuda.local.array(keys_per_thread, float32)
        t, head, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        context_len = uint32(start[0])
        num_keys = min(context_len + u32.shape(scores)[1], u32.shape(scores)[2])
        num_visible = min(context_len + t + 1, num_keys) if causal else num_keys

        row_max = NEG_INF
        for i in u32.range(keys_per_thread):
            j = BLOCK * i + thread
            thread_scores[i] = scores[head, t, j] * scale if j < num_visible else NEG_INF
            row_max = max(row_max, thread_scores[i])
        row_max = block_max(row_max, partial)
        row_sum = ZERO
        for i in u32.range(keys_per_thread):
            thread_scores[i] = math.exp(thread_scores[i] - row_max)
            row_sum += thread_scores[i]
        inv_row_sum = float32(1.0) / block_sum(row_sum, partial)
        for i in u32.range(keys_per_thread):
            j = BLOCK * i + thread
            if j < num_keys:
                scores[head, t, j] = thread_scores[i] * inv_row_sum  # 0 where masked

    return masked_softmax_from_kernel


# --- The launcher ----------------------------------------------------------------------------------------------------


class AttentionInSteps:
    """attention(qkv, heads, out, cache=, start=, causal=, stream=) in separate launches.

    fused: scale, mask and softmax as one launch; otherwise as three. Scores are kept in memory that is allocated at the
    first call with a shape, and stays. tiled: whether the products go by tiles; left out, for more than FEW queries on
    a GPU.
    """

    def __init__(self, fused: bool, tiled: bool | None = None):
        self.fused, self.tiled = fused, tiled
        self._scores = {}

    def __call__(self, qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
        for _, launch in self.launches(qkv, heads, out, cache=cache, start=start, causal=causal):
            launch(stream)

    def launches(self, qkv, heads, out, *, cache=None, start=None, causal=False) -> list[tuple]:
        """List (name, launch(stream)) in order: scores, scale, mask, softmax, values."""
        size, capacity = check_heads(qkv, heads, out, cache, start)
        if size > BLOCK:
            raise ValueError(f"heads of {size} numbers are too large for attention in steps; at most {BLOCK} are "
                             f"allowed")
        if capacity > LONGEST:
            raise ValueError(f"the capacity is {capacity:,} keys; attention in steps takes at most {LONGEST:,}")
        num_queries, columns = out.shape
        keys_values, start, kv_offset = keys_and_values(qkv, out, cache, start)
        scores = self._scores_for(heads, num_queries, capacity)
        tiled = num_queries > FEW and gpus.chosen_on_gpu() if self.tiled is None else self.tiled
        scale, causal = np.float32(1 / math.sqrt(size)), np.uint32(causal)
        size = np.uint32(size)
        flat = (np.uint32(columns), np.uint32(capacity), np.uint32(num_queries))
        keys_grid = (-(-capacity // BLOCK), num_queries, heads)

        def product(kernel, tiled_kernel, a, out, grid, tiles):
            if not tiled:
                return lambda stream: kernel[grid, BLOCK, stream](a, keys_values, start, out, kv_offset, size)
            arrays = [array.reshape(array.size) for array in (a, keys_values, out)]
            return lambda stream: tiled_kernel[tiles, BLOCK, stream](arrays[0], arrays[1], start, arrays[2], kv_offset,
                                                                     size, *flat)

        rows = -(-num_queries // TILE)
        middle = [("softmax", lambda stream: make_masked_softmax_from(self._keys_per_thread(capacity))[
            (num_queries, heads), BLOCK, stream](scores, start, scale, causal))]
        if not self.fused:
            middle = [
                ("scale", lambda stream: scale_scores_kernel[keys_grid, BLOCK, stream](scores, start, scale)),
                ("mask", lambda stream: mask_scores_kernel[keys_grid, BLOCK, stream](scores, start)),
                ("softmax", lambda stream: softmax_scores_kernel[(num_queries, heads), BLOCK, stream](scores, start)),
            ]
            if not causal:
                del middle[1]
        return [("scores", product(scores_kernel, scores_tiled_kernel, qkv, scores, keys_grid,
                                   (-(-capacity // TILE), rows, heads))),
                *middle,
                ("values", product(values_kernel, values_tiled_kernel, scores, out, (num_queries, heads),
                                   (-(-int(size) // TILE), rows, heads)))]

    def _scores_for(self, *shape):
        if shape not in self._scores:
            self._scores[shape] = cuda.device_array(shape, np.float32)
        return self._scores[shape]

    @staticmethod
    def _keys_per_thread(capacity: int) -> int:
        """Return how many keys a thread keeps in registers."""
        return next(keys_per_thread for keys_per_thread in (1, 2, 4, 8, 16) if BLOCK * keys_per_thread >= capacity)


attention_unfused = AttentionInSteps(fused=False)
attention_fused_softmax = AttentionInSteps(fused=True)
