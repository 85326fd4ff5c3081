"""Attention with its matrix of scores in global memory: the product of queries and keys, then scale, mask and softmax,
then the product with the values. The part in the middle is three launches, or one.

    attention = AttentionInSteps(fused=False)       # a launcher as Kernels of the block of GPT-2 takes it
    attention(qkv, heads, out, cache=cache, start=start, causal=True)
    attention.launches(...)                         # the same, one by one: (name, launch(stream)), ...

Shapes  as in three_pass.py; scores (H, T, N): T queries, and N keys at most, of which start + T are in use
Work    4*T*(start + T)*H*D flop for the two products. Of the scores, each H*T*(start + T) numbers, the three launches
        read five times as many and write four times as many; the fused one reads and writes them once

Attention with one launch for each step is what the fused kernels are compared with.
"""

import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, device, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.heads import check_heads, keys_and_values
from labkit.kernels.reduce import NEG_INF, ZERO, block_max, block_sum

BLOCK = 256
FEW = 4  # queries: more of them share tiles
TILE, DEPTH = 64, 16  # a tile of the products is TILE x TILE, in steps of DEPTH
STRIDE = TILE + 1
STEP = DEPTH * STRIDE  # numbers in a tile in shared memory
LONGEST = 4096  # keys: a block of 256 threads keeps 16 of them each

# --- Scores and values, one query at a time --------------------------------------------------------------------------
# Element i of a head's key j is keys_values[j, first + head*D + i], and of its value keys_values[j, first + width +
# head*D + i]. `in_use` is how many keys there are: start lies in device memory, so that a graph can be used again.


@cuda.jit
def scores_kernel(qkv, keys_values, start, scores, first, size):
    t, head = u32.blockIdx.y, u32.blockIdx.z
    j = u32.grid(1)
    in_use = uint32(start[0]) + u32.shape(scores)[1]
    if j < min(in_use, u32.shape(scores)[2]):
        column = head * size
        score = ZERO
        for i in u32.range(size):
            score += qkv[t, column + i] * keys_values[j, first + column + i]
        scores[head, t, j] = score


@cuda.jit
def values_kernel(weights, keys_values, start, out, first, size):
    sums = cuda.shared.array(BLOCK, float32)
    t, head, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
    in_use = min(uint32(start[0]) + u32.shape(weights)[1], u32.shape(weights)[2])
    groups = BLOCK // size  # each takes every groups-th key
    i, group = thread % size, thread // size
    column = first + u32.shape(out)[1] + head * size + i
    acc = ZERO
    if group < groups:
        j = group
        while j + 3 * groups < in_use:  # four loads in flight
            k, m, n = j + groups, j + 2 * groups, j + 3 * groups
            a, b = keys_values[j, column], keys_values[k, column]
            c, d = keys_values[m, column], keys_values[n, column]
            acc += weights[head, t, j] * a + weights[head, t, k] * b
            acc += weights[head, t, m] * c + weights[head, t, n] * d
            j = n + groups
        while j < in_use:
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
def tile_product(a, a_at, a_row, b, b_at, b_row, b_col, out, out_at, out_row, M, N, K):
    """out[m, n] = sum over k of a[m, k] * b[k, n] for one tile, where element (m, k) of a is a[a_at + m*a_row + k], and
    so on: flat arrays. A thread has 4 x 4 elements."""
    a_tile, b_tile = cuda.shared.array(STEP, float32), cuda.shared.array(STEP, float32)
    sums = cuda.local.array(16, float32)
    thread = u32.threadIdx.x
    left, top = u32.blockIdx.x * TILE, u32.blockIdx.y * TILE
    row, col = thread // 16, thread % 16
    for e in range(16):
        sums[e] = ZERO
    for step in u32.range(0, K, DEPTH):
        for r in u32.range(4):
            m, k = row + 16 * r, step + col
            inside = top + m < M and k < K
            a_tile[col * STRIDE + m] = a[a_at + (top + m) * a_row + k] if inside else ZERO
            if b_col == 1:  # neighbours along a row of b
                d, n = thread // 64 + 4 * r, thread % 64
            else:
                d, n = col, m
            k = step + d
            inside = left + n < N and k < K
            at = b_at + k * b_row + (left + n) * b_col
            b_tile[d * STRIDE + n] = b[at] if inside else ZERO
        cuda.syncthreads()
        for k in u32.range(DEPTH):
            for i in u32.range(4):
                x = a_tile[k * STRIDE + 16 * i + row]
                for j in u32.range(4):
                    sums[4 * i + j] += x * b_tile[k * STRIDE + 16 * j + col]
        cuda.syncthreads()
    for i in u32.range(4):
        for j in u32.range(4):
            m, n = top + row + 16 * i, left + col + 16 * j
            if m < M and n < N:
                out[out_at + m * out_row + n] = sums[4 * i + j]


@cuda.jit
def scores_tiled_kernel(qkv, keys_values, start, scores, first, size, columns, capacity, count):
    """All arrays flat: rows of qkv have 3*columns numbers. count: queries; capacity: keys that fit into scores."""
    in_use = min(uint32(start[0]) + count, capacity)
    if u32.blockIdx.x * TILE < in_use:
        head = u32.blockIdx.z
        line = u32.size(keys_values) // capacity
        tile_product(qkv, head * size, 3 * columns,
                     keys_values, first + head * size, 1, line,
                     scores, head * (count * capacity), capacity, count, in_use, size)


@cuda.jit
def values_tiled_kernel(weights, keys_values, start, out, first, size, columns, capacity, count):
    in_use = min(uint32(start[0]) + count, capacity)
    head = u32.blockIdx.z
    line = u32.size(keys_values) // capacity
    tile_product(weights, head * (count * capacity), capacity,
                 keys_values, first + columns + head * size, line, 1,
                 out, head * size, columns, count, size, in_use)


# --- Scale, mask, softmax: three launches ----------------------------------------------------------------------------
# The grid of the first two: x over keys, y over queries, z over heads. That of the softmax: x over queries, y heads.


@cuda.jit
def scale_scores_kernel(scores, start, scale):
    j, t, head = u32.grid(1), u32.blockIdx.y, u32.blockIdx.z
    in_use = min(uint32(start[0]) + u32.shape(scores)[1], u32.shape(scores)[2])
    if j < in_use:
        scores[head, t, j] *= scale


@cuda.jit
def mask_scores_kernel(scores, start):
    j, t, head = u32.grid(1), u32.blockIdx.y, u32.blockIdx.z
    before = uint32(start[0])
    in_use = min(before + u32.shape(scores)[1], u32.shape(scores)[2])
    if j < in_use and j > before + t:
        scores[head, t, j] = NEG_INF


@cuda.jit
def softmax_scores_kernel(scores, start):
    partial = cuda.shared.array(32, float32)
    t, head, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
    in_use = min(uint32(start[0]) + u32.shape(scores)[1], u32.shape(scores)[2])
    row_max = NEG_INF
    for j in u32.range(thread, in_use, BLOCK):
        row_max = max(row_max, scores[head, t, j])
    row_max = block_max(row_max, partial)
    row_sum = ZERO
    for j in u32.range(thread, in_use, BLOCK):
        exponential = math.exp(scores[head, t, j] - row_max)
        scores[head, t, j] = exponential
        row_sum += exponential
    row_sum = block_sum(row_sum, partial)
    for j in u32.range(thread, in_use, BLOCK):
        scores[head, t, j] /= row_sum


# --- And as one ------------------------------------------------------------------------------------------------------


@kernel_factory
def make_masked_softmax_from(held: int):
    """Scale, mask and softmax of rows of up to 256 * held keys, read once and kept in registers."""

    @cuda.jit
    def masked_softmax_from_kernel(scores, start, scale, causal):
        partial = cuda.shared.array(32, float32)
        values = cuda.local.array(held, float32)
        t, head, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        before = uint32(start[0])
        in_use = min(before + u32.shape(scores)[1], u32.shape(scores)[2])
        seen = min(before + t + 1, in_use) if causal else in_use

        row_max = NEG_INF
        for i in u32.range(held):
            j = BLOCK * i + thread
            values[i] = scores[head, t, j] * scale if j < seen else NEG_INF
            row_max = max(row_max, values[i])
        row_max = block_max(row_max, partial)
        row_sum = ZERO
        for i in u32.range(held):
            values[i] = math.exp(values[i] - row_max)
            row_sum += values[i]
        share = float32(1.0) / block_sum(row_sum, partial)
        for i in u32.range(held):
            j = BLOCK * i + thread
            if j < in_use:
                scores[head, t, j] = values[i] * share  # 0 where it is hidden

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
        """(name, launch(stream)) of each, in order: scores, scale, mask, softmax, values."""
        size, capacity = check_heads(qkv, heads, out, cache, start)
        if size > BLOCK:
            raise ValueError(f"heads of {size} numbers are too large for attention in steps; at most {BLOCK} are "
                             f"allowed")
        if capacity > LONGEST:
            raise ValueError(f"the capacity is {capacity:,} keys; attention in steps takes at most {LONGEST:,}")
        count, columns = out.shape
        keys_values, start, first = keys_and_values(qkv, out, cache, start)
        scores = self._scores_for(heads, count, capacity)
        tiled = count > FEW and device.on_gpu() if self.tiled is None else self.tiled
        scale, causal = np.float32(1 / math.sqrt(size)), np.uint32(causal)
        size = np.uint32(size)
        flat = (np.uint32(columns), np.uint32(capacity), np.uint32(count))
        over_keys = (-(-capacity // BLOCK), count, heads)

        def product(plain, in_tiles, a, out, grid, tiles):
            if not tiled:
                return lambda stream: plain[grid, BLOCK, stream](a, keys_values, start, out, first, size)
            arrays = [array.reshape(array.size) for array in (a, keys_values, out)]
            return lambda stream: in_tiles[tiles, BLOCK, stream](arrays[0], arrays[1], start, arrays[2], first, size,
                                                                 *flat)

        rows = -(-count // TILE)
        middle = [("softmax", lambda stream: make_masked_softmax_from(self._held(capacity))[
            (count, heads), BLOCK, stream](scores, start, scale, causal))]
        if not self.fused:
            middle = [("scale", lambda stream: scale_scores_kernel[over_keys, BLOCK, stream](scores, start, scale)),
                      ("mask", lambda stream: mask_scores_kernel[over_keys, BLOCK, stream](scores, start)),
                      ("softmax", lambda stream: softmax_scores_kernel[(count, heads), BLOCK, stream](scores, start))]
            if not causal:
                del middle[1]
        return [("scores", product(scores_kernel, scores_tiled_kernel, qkv, scores, over_keys,
                                   (-(-capacity // TILE), rows, heads))),
                *middle,
                ("values", product(values_kernel, values_tiled_kernel, scores, out, (count, heads),
                                   (-(-int(size) // TILE), rows, heads)))]

    def _scores_for(self, *shape):
        if shape not in self._scores:
            self._scores[shape] = cuda.device_array(shape, np.float32)
        return self._scores[shape]

    @staticmethod
    def _held(capacity: int) -> int:
        """Keys that a thread keeps."""
        return next(held for held in (1, 2, 4, 8, 16) if BLOCK * held >= capacity)


attention_unfused = AttentionInSteps(fused=False)
attention_fused_softmax = AttentionInSteps(fused=True)
