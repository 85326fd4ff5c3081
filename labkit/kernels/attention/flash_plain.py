"""Flash attention at its plainest: a thread has one query, and tiles of keys and values come through shared memory.

Shapes  as in three_pass.py, without a cache: qkv (S, 3*H*D), out (S, H*D); float32
Sizes   D at most 64: a thread keeps a query and its accumulators, 2*D numbers, in registers
Source  T. Dao et al., "FlashAttention" (2022), https://arxiv.org/abs/2205.14135

The rungs of flash.py, half.py and wgmma.py compute the same; this one is there to be read.
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
WIDEST = 64  # numbers of a head


@kernel_factory
def make_flash_plain(size: int):
    """The kernel for heads of `size` numbers: loops that are as long as an array in registers need a constant."""
    SIZE = size

    @cuda.jit
    def attention_flash_plain_kernel(qkv, out, scale, causal):
        keys = cuda.shared.array((KEYS, SIZE), float32, 16)
        values = cuda.shared.array((KEYS, SIZE), float32, 16)
        scores = cuda.shared.array((KEYS, QUERIES), float32)  # a column for each thread
        query, acc = cuda.local.array(SIZE, float32), cuda.local.array(SIZE, float32)
        tokens, width = out.shape
        thread, column = cuda.threadIdx.x, cuda.blockIdx.y * SIZE  # where this head begins
        t = cuda.blockIdx.x * QUERIES + thread
        end = min(cuda.blockIdx.x * QUERIES + QUERIES, tokens) if causal else tokens  # no query here sees more
        for i in range(SIZE):
            query[i] = qkv[min(t, tokens - 1), column + i] * scale
            acc[i] = ZERO
        row_max, row_sum = NEG_INF, ZERO

        for first in range(0, end, KEYS):
            for place in range(thread, min(KEYS, end - first) * SIZE, QUERIES):  # the tile, neighbours side by side
                j, i = place // SIZE, place % SIZE
                keys[j, i] = qkv[first + j, width + column + i]
                values[j, i] = qkv[first + j, 2 * width + column + i]
            cuda.syncthreads()  # the tile is complete

            seen = min(KEYS, min(end, t + 1 if causal else end) - first)  # so many keys of it count for this query
            new = row_max
            for j in range(seen):
                score = ZERO
                for i in range(SIZE):
                    score += query[i] * keys[j, i]
                scores[j, thread] = score
                new = max(new, score)
            factor = math.exp(row_max - new)  # 0 for the first tile
            row_max, row_sum = new, row_sum * factor
            for i in range(SIZE):
                acc[i] *= factor
            for j in range(seen):
                exponential = math.exp(scores[j, thread] - new)
                row_sum += exponential
                for i in range(SIZE):
                    acc[i] += exponential * values[j, i]
            cuda.syncthreads()  # the tile is free to overwrite

        if t < tokens:
            share = float32(1.0) / row_sum
            for i in range(SIZE):
                out[t, column + i] = acc[i] * share

    return attention_flash_plain_kernel


@rung(kernel=make_flash_plain(64), sizes=f"heads of at most {WIDEST} numbers",
      idea="tiles of keys and values serve 64 queries; the softmax is corrected after each: no row of scores")
def attention_flash_plain(qkv, heads, out, *, causal=False, stream=0):
    """A thread takes one query, a block 64 of one head. Each tile of 32 keys and values is loaded once for all of
    them, and the softmax is corrected tile by tile, so that no row of scores is kept and rows may be of any length.
    Tiles that no query of the block sees are left out."""
    size, _ = check_heads(qkv, heads, out, None, None)
    if size > WIDEST:
        raise ValueError(f"heads of {size} numbers are too large for flash_plain; at most {WIDEST} are allowed")
    grid = -(-out.shape[0] // QUERIES), heads
    make_flash_plain(size)[grid, QUERIES, stream](qkv, out, np.float32(1 / math.sqrt(size)), np.uint32(causal))
