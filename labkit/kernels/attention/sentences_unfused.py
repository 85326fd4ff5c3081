"""Attention over sentences in three launches, with the scores in global memory between them. Heads are read with
strides: nothing is split into heads or merged.

Shapes  as in sentences.py; scores (B*H, L, L) of qkv's dtype, where L is `longest` rounded up to 16: a matrix for each
        sentence and head, of which a sentence of n tokens uses n rows and as many columns. A score in float16, times
        log2(e), must be less than 65,504; the tiled kernels keep it in float32
Work    beyond that of attention, for n tokens: n*n scores a head are written, read, written as weights and read again
Source  as sentences.py
"""

import functools

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, check_array
from labkit.kernels.attention.flash import make_copy_rows
from labkit.kernels.attention.flash import scale_for_powers_of_two as scale_of
from labkit.kernels.attention.flash_mma import make_mma_steps, rows_in_shared
from labkit.kernels.attention.heads import check_sentences, find_sentence
from labkit.kernels.attention.sentences_flash import SIZES_HALF, WIDEST_HALF, check_tiled
from labkit.kernels.attention.unfused import BLOCK, TILE, tile_product
from labkit.kernels.matmul.mma import CHUNK, add_product, make_copy
from labkit.kernels.op import rung
from labkit.kernels.reduce import NEG_INF, ZERO, warp_max, warp_sum

ROWS = 4  # per block of the softmax, one per warp
PAIRS_PER_LANE = (1, 2, 4, 8, 16)  # pairs of neighbouring scores
MAX_TOKENS = 64 * PAIRS_PER_LANE[-1]


def padded(longest: int) -> int:
    """Return the rows and columns of a matrix of scores: a multiple of the tensor cores' step."""
    return 16 * -(-longest // 16)


def scores_shape(heads: int, sentences: int, longest: int) -> tuple[int, int, int]:
    """Return the shape of `scores` that attention_sentences_three_launches takes."""
    return heads * sentences, padded(longest), padded(longest)


# --- Scores and context in float32: tiles of 64 x 64 ------------------------------------------------------------------
# The grid: x and y over tiles, z over sentences and their heads. All arrays are flat; a row of qkv is 3*width elements.


@cuda.jit
def sentence_scores_kernel(qkv, begins, lengths, scores, longest, heads, size, rows, length):
    pair = u32.blockIdx.z
    sentence, head, width = pair // heads, pair % heads, heads * size
    begin, tokens, _ = find_sentence(begins, lengths, sentence, rows, longest, ZERO)
    if u32.blockIdx.x * TILE < tokens and u32.blockIdx.y * TILE < tokens:
        row_stride = 3 * width
        q_offset = begin * row_stride + head * size
        tile_product((qkv, q_offset, row_stride), (qkv, q_offset + width, 1, row_stride),
                     (scores, pair * length * length, length), tokens, tokens, size)


@cuda.jit
def sentence_context_kernel(qkv, begins, lengths, weights, out, longest, heads, size, rows, length):
    pair = u32.blockIdx.z
    sentence, head, width = pair // heads, pair % heads, heads * size
    begin, tokens, _ = find_sentence(begins, lengths, sentence, rows, longest, ZERO)
    if u32.blockIdx.y * TILE < tokens:
        row_stride = 3 * width
        tile_product((weights, pair * length * length, length),
                     (qkv, begin * row_stride + 2 * width + head * size, row_stride, 1),
                     (out, begin * width + head * size, width), tokens, size, tokens)


# --- The masked softmax, one warp per row -----------------------------------------------------------------------------


@kernel_factory
def make_sentence_softmax(pairs_per_lane: int, half: bool):
    """Turn rows of up to 64 * pairs_per_lane scores into weights, in place; a lane has `pairs_per_lane` pairs of
    neighbours. Columns from the sentence's end on are not read, and get zeros up to the next multiple of 16."""
    ELEMENTS = 2 * pairs_per_lane

    @cuda.jit(device=True)
    def store_pair(scores, offset, left, right):
        if half:
            ptx.store_global_half2(scores, offset, left, right)
        else:
            scores[offset], scores[offset + 1] = left, right

    @cuda.jit
    def sentence_softmax_kernel(scores, begins, lengths, longest, heads, rows, length, scale):
        values = cuda.local.array(ELEMENTS, float32)
        thread, pair = u32.threadIdx.x, u32.blockIdx.y
        row = u32.blockIdx.x * ROWS + (thread >> 5)
        _, tokens, scale = find_sentence(begins, lengths, pair // heads, rows, longest, scale)
        if row < tokens:  # the same for all lanes of a warp
            row_offset = (pair * length + row) * length
            lane_col = 2 * (thread & 31)
            row_max = NEG_INF
            for i in u32.range(ELEMENTS):
                col = 64 * (i // 2) + i % 2 + lane_col
                values[i] = float32(scores[row_offset + col]) * scale if col < tokens else NEG_INF
                row_max = max(row_max, values[i])
            row_max = warp_max(row_max)
            row_sum = ZERO
            for i in u32.range(ELEMENTS):
                values[i] = ptx.exp2_approx(values[i] - row_max)
                row_sum += values[i]
            inv_row_sum = float32(1.0) / warp_sum(row_sum)
            padded_end = (tokens + 15) // 16 * 16
            for n in u32.range(pairs_per_lane):
                col = 64 * n + lane_col
                if col < padded_end:
                    store_pair(scores, row_offset + col, values[2 * n] * inv_row_sum, values[2 * n + 1] * inv_row_sum)

    return sentence_softmax_kernel


# --- Scores and context in float16, on tensor cores -------------------------------------------------------------------


@kernel_factory
def make_sentence_products(size: int, tile: int):
    """Make (scores, context) for heads of `size` float16 values, in tiles of `tile` queries and keys; a warp has 16
    queries. The grid: x over tiles of keys, 1 for the context; y over tiles of queries; z over sentences and their
    heads."""
    SIZE, TILE_SIZE = size, tile
    THREADS = 2 * tile
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(size)
    K_STEPS, SCORES, ACCUMULATORS = size // 16, tile // 2, size // 2
    SECOND_OFFSET = tile * PITCH  # of the keys, or of the weights, in shared memory
    WEIGHTS_PITCH = tile + CHUNK
    copy_rows = make_copy_rows(tile, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_weights = make_copy(tile, tile, THREADS, WEIGHTS_PITCH, swizzled=False)
    read_queries, add_scores, _, _, _ = make_mma_steps(SIZE, 1, tile, PITCH)

    @cuda.jit(launch_bounds=THREADS)
    def sentence_scores_half_kernel(qkv, begins, lengths, scores, longest, heads, scale):
        shared = cuda.shared.array(0, np.float16)
        acc = cuda.local.array(SCORES, float32)
        words = cuda.local.array(4, uint32)
        thread, pair = u32.threadIdx.x, u32.blockIdx.z
        lane, warp = thread % 32, thread // 32
        rows, width, length = u32.shape(qkv)[0], u32.shape(qkv)[1] // 3, u32.shape(scores)[1]
        sentence, head_column = pair // heads, pair % heads * SIZE
        begin, tokens, scale = find_sentence(begins, lengths, sentence, rows, longest, scale)
        row0, key0 = u32.blockIdx.y * TILE_SIZE, u32.blockIdx.x * TILE_SIZE
        if row0 >= tokens or key0 >= tokens:
            return
        end = begin + tokens
        copy_rows(shared, 0, qkv, begin + row0, end, head_column, thread)
        copy_rows(shared, SECOND_OFFSET, qkv, begin + key0, end, width + head_column, thread)
        ptx.cp_async_commit()
        for i in range(SCORES):
            acc[i] = ZERO
        swizzle = lane >> SHIFT & MASK
        query_offset = (warp * 16 + lane % 16) * PITCH
        row_chunk = lane // 16 ^ swizzle
        key_offset = SECOND_OFFSET + (lane % 8 + lane // 16 * 8) * PITCH
        key_chunk = lane // 8 % 2 ^ swizzle
        ptx.cp_async_wait(0)
        cuda.syncthreads()  # queries and keys have arrived
        for k in range(K_STEPS):
            read_queries(words, shared, query_offset, row_chunk, k, 0)
            add_scores(acc, words, shared, key_offset, key_chunk, k, 0)
        for r in u32.range(2):
            row = row0 + warp * 16 + lane // 4 + 8 * r
            if row < tokens:
                for j in u32.range(TILE_SIZE // 8):
                    col = key0 + 8 * j + lane % 4 * 2
                    if col < length:
                        ptx.store_global_half2(scores, (pair * length + row) * length + col,
                                               acc[4 * j + 2 * r] * scale, acc[4 * j + 2 * r + 1] * scale)

    @cuda.jit(launch_bounds=THREADS)
    def sentence_context_half_kernel(qkv, begins, lengths, weights, out, longest, heads):
        shared = cuda.shared.array(0, np.float16)
        acc = cuda.local.array(ACCUMULATORS, float32)
        thread, pair = u32.threadIdx.x, u32.blockIdx.z
        lane, warp = thread % 32, thread // 32
        rows, width = u32.shape(out)
        length = u32.shape(weights)[1]  # weights: (B*H*L, L)
        sentence, head_column = pair // heads, pair % heads * SIZE
        begin, tokens, _ = find_sentence(begins, lengths, sentence, rows, longest, ZERO)
        row0 = u32.blockIdx.y * TILE_SIZE
        if row0 >= tokens:
            return
        end = begin + tokens
        for i in range(ACCUMULATORS):
            acc[i] = ZERO
        swizzle = lane >> SHIFT & MASK
        value_offset = lane % 16 * PITCH
        row_chunk = lane // 16 ^ swizzle
        weight_offset = SECOND_OFFSET + (warp * 16 + lane % 16) * WEIGHTS_PITCH + lane // 16 * CHUNK
        for key0 in u32.range(0, tokens, TILE_SIZE):
            copy_rows(shared, 0, qkv, begin + key0, end, 2 * width + head_column, thread)
            copy_weights(shared, SECOND_OFFSET, weights, pair * length + row0, key0, thread)
            ptx.cp_async_commit()
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # values and weights have arrived
            for k in u32.range(TILE_SIZE // 16):
                if key0 + 16 * k < tokens:  # no weights were written beyond
                    a0, a1, a2, a3 = ptx.ldmatrix_x4(shared, weight_offset + 16 * k)
                    for step in u32.range(K_STEPS):
                        src = value_offset + (row_chunk ^ 2 * step) * CHUNK
                        b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(shared, src + 16 * k * PITCH)
                        add_product(acc, 8 * step, a0, a1, a2, a3, b0, b1)
                        add_product(acc, 8 * step + 4, a0, a1, a2, a3, b2, b3)
            cuda.syncthreads()  # all warps are done with them
        for r in u32.range(2):
            t = row0 + warp * 16 + lane // 4 + 8 * r
            if t < tokens:
                for j in u32.range(SIZE // 8):
                    col = head_column + 8 * j + lane % 4 * 2
                    ptx.store_global_half2(out, (begin + t) * width + col, acc[4 * j + 2 * r], acc[4 * j + 2 * r + 1])

    scores, context = sentence_scores_half_kernel, sentence_context_half_kernel
    scores.tile = context.tile = tile
    scores.shared_bytes, context.shared_bytes = 4 * SECOND_OFFSET, 2 * (SECOND_OFFSET + tile * WEIGHTS_PITCH)
    return scores, context


# --- The three launches -----------------------------------------------------------------------------------------------


@functools.cache
def _scores(shape: tuple, dtype: str):
    return cuda.device_array(shape, dtype)


def _check_scores(scores, heads, lengths, longest, dtype):
    """Return the workspace: `scores` if given, or one that is cached for launches of this shape."""
    shape = scores_shape(heads, lengths.size, longest)
    if longest > MAX_TOKENS:
        raise ValueError(f"longest is {longest:,}; in three launches at most {MAX_TOKENS:,} tokens are allowed")
    if shape[0] > MAX_GRID_YZ:
        raise ValueError(f"{lengths.size:,} sentences of {heads} heads are too many; at most {MAX_GRID_YZ:,} pairs of "
                         f"a sentence and a head are allowed")
    if scores is None:
        return _scores(shape, np.dtype(dtype).name)
    check_array("scores", scores, shape=shape, dtype=dtype)
    return scores


@rung(kernel=(sentence_scores_kernel, make_sentence_softmax(2, False), sentence_context_kernel),
      idea="three launches: scores, masked softmax, context", sizes=f"at most {MAX_TOKENS:,} tokens")
def attention_sentences_three_launches(qkv, heads, begins, lengths, longest, out, *, scores=None, stream=0):
    """Each step reads what the previous one wrote to global memory. Products go by tiles of 64 x 64; the softmax has a
    warp for each row.

    scores: device memory of scores_shape(heads, sentences, longest) and qkv's dtype; if left out, it is made for each
    shape and kept, and launches in two streams at the same time must not share it.
    """
    size = check_sentences(qkv, heads, begins, lengths, longest, out)
    scores = _check_scores(scores, heads, lengths, longest, np.float32)
    pairs, length, _ = scores.shape
    flat = [array.reshape(array.size) for array in (qkv, scores, out)]
    sizes = (np.uint32(longest), np.uint32(heads), np.uint32(size), np.uint32(qkv.shape[0]), np.uint32(length))
    tiles = -(-longest // TILE)
    sentence_scores_kernel[(tiles, tiles, pairs), BLOCK, stream](flat[0], begins, lengths, flat[1], *sizes)
    _softmax(scores, heads, begins, lengths, longest, qkv.shape[0], scale_of(size), stream)
    sentence_context_kernel[(-(-size // TILE), tiles, pairs), BLOCK, stream](flat[0], begins, lengths, flat[1], flat[2],
                                                                             *sizes)


def _softmax(scores, heads, begins, lengths, longest, rows, scale, stream) -> None:
    pairs, length, _ = scores.shape
    pairs_per_lane = next(n for n in PAIRS_PER_LANE if 64 * n >= length)
    kernel = make_sentence_softmax(pairs_per_lane, scores.dtype == np.float16)
    kernel[(-(-longest // ROWS), pairs), 32 * ROWS, stream](
        scores.reshape(scores.size), begins, lengths, np.uint32(longest), np.uint32(heads), np.uint32(rows),
        np.uint32(length), scale)


@rung(kernel=(*make_sentence_products(32, 64), make_sentence_softmax(2, True)),
      idea="three launches: scores and context on tensor cores", sizes=f"{SIZES_HALF}; at most {MAX_TOKENS:,} tokens")
def attention_sentences_three_launches_half(qkv, heads, begins, lengths, longest, out, *, scores=None, scores_tile=None,
                                            stream=0):
    """As attention_sentences_three_launches, which also explains scores: products on tensor cores, in tiles of 16, 32
    or 64 queries and keys, the smallest that the longest sentence fits. scores_tile: another tile for the scores."""
    size = check_tiled(qkv, heads, begins, lengths, longest, out, np.float16, WIDEST_HALF)
    scores = _check_scores(scores, heads, lengths, longest, np.float16)
    pairs, length, _ = scores.shape
    tile = next((n for n in (16, 32) if n >= longest), 64)
    qk_tile = scores_tile or tile
    scores_kernel, context_kernel = make_sentence_products(size, qk_tile)[0], make_sentence_products(size, tile)[1]
    tiles = -(-longest // qk_tile)
    arguments = (qkv, begins, lengths, scores, np.uint32(longest), np.uint32(heads), scale_of(size))
    scores_kernel[(tiles, tiles, pairs), 2 * qk_tile, stream, scores_kernel.shared_bytes](*arguments)
    _softmax(scores, heads, begins, lengths, longest, qkv.shape[0], np.float32(1), stream)
    weights = scores.reshape((pairs * length, length))
    context_kernel[(1, -(-longest // tile), pairs), 2 * tile, stream, context_kernel.shared_bytes](
        qkv, begins, lengths, weights, out, np.uint32(longest), np.uint32(heads))
