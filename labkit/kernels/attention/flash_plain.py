"""Flash attention at its plainest: a thread has one query, and tiles of keys and values come through shared memory.

Shapes  as in three_pass.py, without a cache: qkv (S, 3*H*D), out (S, H*D); float32
Sizes   D at most 64: a thread keeps a query and its accumulators, 2*D elements, in registers
Source  T. Dao et al., "FlashAttention" (2022), https://arxiv.org/abs/2205.14135

The rungs of flash.py, half.py and wgmma.py compute the same; this one is for reading.
"""

import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.heads import check_heads
from labkit.kernels.op import rung
from labkit.kernels.reduce import NEG_INF, ZERO

QUERIES, KEYS = 64, 32  # of a block, one for each thread; of a tile
MAX_SIZE = 64  # elements of a head


@kernel_factory
def make_flash_plain(size: int):
    """Make the kernel for heads of `size` elements: loops over arrays in registers need a constant length."""
    SIZE = size

    @cuda.jit
    def attention_flash_plain_kernel(qkv, out, scale, causal):
        keys = cuda.shared.array((KEYS, SIZE), float32, 16)
        values = cuda.shared.array((KEYS, SIZE), float32, 16)
        scores = cuda.shared.array((KEYS, QUERIES), float32)  # a column for each thread
        query, acc = cuda.local.array(SIZE, float32), cuda.local.array(SIZE, float32)
        tokens, width = out.shape
        thread, head_column = cuda.threadIdx.x, cuda.blockIdx.y * SIZE  # where this head begins
        t = cuda.blockIdx.x * QUERIES + thread
        end = min(cuda.blockIdx.x * QUERIES + QUERIES, tokens) if causal else tokens  # no query here sees more
        for i in range(SIZE):
            query[i] = qkv[min(t, tokens - 1), head_column + i] * scale
            acc[i] = ZERO
        row_max, row_sum = NEG_INF, ZERO

        for key0 in range(0, end, KEYS):
            for index in range(thread, min(KEYS, end - key0) * SIZE, QUERIES):  # the tile, coalesced
                j, i = index // SIZE, index % SIZE
                keys[j, i] = qkv[key0 + j, width + head_column + i]
                values[j, i] = qkv[key0 + j, 2 * width + head_column + i]
            cuda.syncthreads()  # the tile is complete

            num_visible = min(KEYS, min(end, t + 1 if causal else end) - key0)  # keys of the tile that this query sees
            new_max = row_max
            for j in range(num_visible):
                score = ZERO
                for i in range(SIZE):
                    score += query[i] * keys[j, i]
                scores[j, thread] = score
                new_max = max(new_max, score)
            correction = math.exp(row_max - new_max)  # 0 for the first tile
            row_max, row_sum = new_max, row_sum * correction
            for i in range(SIZE):
                acc[i] *= correction
            for j in range(num_visible):
                exponential = math.exp(scores[j, thread] - new_max)
                row_sum += exponential
                for i in range(SIZE):
                    acc[i] += exponential * values[j, i]
            cuda.syncthreads()  # the tile is free to overwrite

        if t < tokens:
            inv_row_sum = float32(1.0) / row_sum
            for i in range(SIZE):
                out[t, head_column + i] = acc[i] * inv_row_sum

    return attention_flash_plain_kernel


@rung(kernel=make_flash_plain(64), sizes=f"heads of at most {MAX_SIZE} numbers",
      idea="tiles of keys and values serve 64 queries; the softmax is corrected after each: no row of scores")
def attention_flash_plain(qkv, heads, out, *, causal=False, stream=0):
    """A thread takes one query, a block 64 of one head. Each tile of 32 keys and values is loaded once for all of
    them, and the softmax is corrected tile by tile, so that no row of scores is kept and rows may be of any length.
    Tiles that no query of the block sees are skipped."""
    size, _ = check_heads(qkv, heads, out, None, None)
    if size > MAX_SIZE:
        raise ValueError(f"heads of {size} numbers are too large for flash_plain; at most {MAX_SIZE} are allowed")
    grid = -(-out.shape[0] // QUERIES), heads
    make_flash_plain(size)[grid, QUERIES, stream](qkv, out, np.float32(1 / math.sqrt(size)), np.uint32(causal))
