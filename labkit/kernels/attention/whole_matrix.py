"""Attention of a head in one block, with its whole matrix of scores in shared memory.

Shapes  float32: as in three_pass.py, qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), start (1,); 4*S*N bytes of scores.
        float16, over sentences: as in sentences.py
Source  none: the obvious fusion, on which tiles of keys improve (flash.py, flash_mma.py)
"""

import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import dynamic_shared
from labkit.kernels.attention.flash import make_copy_rows, scale_for_powers_of_two
from labkit.kernels.attention.flash_mma import make_mma_steps, rows_in_shared
from labkit.kernels.attention.heads import check_heads, find_sentence, keys_and_values
from labkit.kernels.attention.sentences_flash import SIZES_HALF, WIDEST_HALF, check_tiled
from labkit.kernels.attention.sentences_unfused import padded
from labkit.kernels.matmul.mma import CHUNK, add_product
from labkit.kernels.op import rung
from labkit.kernels.reduce import NEG_INF, ZERO, warp_max, warp_sum

WHOLE_THREADS = 256


@cuda.jit
def attention_whole_matrix_kernel(qkv, keys_values, start, out, kv_offset, size, scale, causal):
    scores = cuda.shared.array(0, float32)  # rows * capacity
    thread = u32.threadIdx.x
    lane, warp = thread % 32, thread // 32
    rows, width, capacity = u32.shape(out)[0], u32.shape(out)[1], u32.shape(keys_values)[0]
    head_column = u32.blockIdx.x * size
    context_len = uint32(start[0])
    num_keys = min(context_len + rows, capacity)

    for index in u32.range(thread, rows * num_keys, WHOLE_THREADS):  # the scores
        t, j = index // num_keys, index % num_keys
        score = ZERO
        for i in u32.range(size):
            score += qkv[t, head_column + i] * keys_values[j, kv_offset + head_column + i]
        masked = causal != 0 and j > context_len + t
        scores[index] = NEG_INF if masked else score * scale
    cuda.syncthreads()  # the matrix is complete

    for t in u32.range(warp, rows, WHOLE_THREADS // 32):  # softmax, one warp per row
        row_max = NEG_INF
        for j in u32.range(lane, num_keys, 32):
            row_max = max(row_max, scores[t * num_keys + j])
        row_max = warp_max(row_max)
        row_sum = ZERO
        for j in u32.range(lane, num_keys, 32):
            exponential = ptx.exp2_approx(scores[t * num_keys + j] - row_max)
            scores[t * num_keys + j] = exponential
            row_sum += exponential
        inv_row_sum = float32(1.0) / warp_sum(row_sum)
        for j in u32.range(lane, num_keys, 32):
            scores[t * num_keys + j] *= inv_row_sum
    cuda.syncthreads()  # the weights are complete

    for index in u32.range(thread, rows * size, WHOLE_THREADS):  # the weighted values
        t, i = index // size, index % size
        column = kv_offset + width + head_column + i
        acc = ZERO
        for j in u32.range(num_keys):
            acc += scores[t * num_keys + j] * keys_values[j, column]
        out[t, head_column + i] = acc


@rung(kernel=attention_whole_matrix_kernel, idea="one block a head: its whole matrix of scores in shared memory",
      sizes="as many scores a head as there is shared memory for: 241 x 241 on an H200",
      failed="a block for each head: 12 heads keep 12 of an H200's 132 multiprocessors busy, one after the other with "
             "scores, softmax and values. With 12 heads and 128 tokens it takes 0.66 ms there, and three_pass takes "
             "0.07. The scores then fill 64 KB, at 241 tokens all that a block can have, so that no second block "
             "would fit beside it; longer it cannot be at all")
def attention_whole_matrix(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """The obvious fusion: one block computes a head's S x S scores, its softmax and the weighted values, and nothing
    between them goes to global memory. This saves only what the caches would have held anyway."""
    size, capacity = check_heads(qkv, heads, out, cache, start)
    nbytes, allowed = 4 * out.shape[0] * capacity, gpus.target().shared_per_block
    if nbytes > allowed:
        most = math.isqrt(allowed // 4)
        raise ValueError(f"the scores of {out.shape[0]:,} queries and {capacity:,} keys take {nbytes:,} bytes of "
                         f"shared memory; a block can have {allowed:,}: {most} x {most} scores. Tiled attention has no "
                         f"such limit")
    keys_values, start, kv_offset = keys_and_values(qkv, out, cache, start)
    arguments = (qkv, keys_values, start, out, kv_offset, np.uint32(size), scale_for_powers_of_two(size),
                 np.uint32(causal))
    dynamic_shared(attention_whole_matrix_kernel, nbytes, *arguments)
    attention_whole_matrix_kernel[heads, WHOLE_THREADS, stream, nbytes](*arguments)


# --- Sentences, on tensor cores ---------------------------------------------------------------------------------------

WARPS = 8


@kernel_factory
def make_sentences_whole_matrix(size: int):
    """Attention for heads of `size` float16 values. Shared memory has queries, keys, values and scores, in this order.
    A warp takes every eighth strip of 16 queries and computes its scores, its softmax and its context one after the
    other; no other warp needs them."""
    SIZE = size
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(size)
    K_STEPS, ACCUMULATORS = size // 16, size // 2
    copy_strip = make_copy_rows(16, SIZE, PITCH, 32, CHUNK, SWIZZLED)
    read_queries, add_scores, _, _, _ = make_mma_steps(SIZE, 1, 16, PITCH)

    @cuda.jit(device=True)
    def softmax_of_strip(pairs, strip_offset, pitch, tokens, lane):
        """Turn the scores of 16 rows into weights, a row at a time; a word has two float16 values."""
        words, num_words = pitch // 2, (tokens + 15) // 16 * 8
        for row in u32.range(16):
            row_offset = strip_offset // 2 + row * words
            row_max = NEG_INF
            for word in u32.range(lane, num_words, 32):
                left, right = ptx.unpack_half2(pairs[row_offset + word])
                if 2 * word < tokens:
                    row_max = max(row_max, left)
                if 2 * word + 1 < tokens:
                    row_max = max(row_max, right)
            row_max = warp_max(row_max)
            row_sum = ZERO
            for word in u32.range(lane, num_words, 32):
                left, right = ptx.unpack_half2(pairs[row_offset + word])
                left = ptx.exp2_approx(left - row_max) if 2 * word < tokens else ZERO
                right = ptx.exp2_approx(right - row_max) if 2 * word + 1 < tokens else ZERO
                row_sum += left + right
                pairs[row_offset + word] = ptx.pack_half2(left, right)
            inv_row_sum = float32(1.0) / warp_sum(row_sum)
            for word in u32.range(lane, num_words, 32):
                left, right = ptx.unpack_half2(pairs[row_offset + word])
                pairs[row_offset + word] = ptx.pack_half2(left * inv_row_sum, right * inv_row_sum)

    @cuda.jit(launch_bounds=32 * WARPS)
    def attention_sentences_whole_matrix_kernel(qkv, begins, lengths, out, longest, length, scale):
        shared = cuda.shared.array(0, np.float16)
        pairs = cuda.shared.array(0, uint32)  # the same memory, two float16 values at a time
        scores = cuda.local.array(8, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        words = cuda.local.array(4, uint32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        rows, width = u32.shape(out)
        head_column = u32.blockIdx.x * SIZE
        begin, tokens, scale = find_sentence(begins, lengths, u32.blockIdx.y, rows, longest, scale)
        end = begin + tokens
        operand_size, pitch = length * PITCH, length + CHUNK
        for row0 in u32.range(warp * 16, tokens, 16 * WARPS):
            offset, row = row0 * PITCH, begin + row0
            copy_strip(shared, offset, qkv, row, end, head_column, lane)
            copy_strip(shared, operand_size + offset, qkv, row, end, width + head_column, lane)
            copy_strip(shared, 2 * operand_size + offset, qkv, row, end, 2 * width + head_column, lane)
        ptx.cp_async_commit()
        ptx.cp_async_wait(0)
        cuda.syncthreads()  # queries, keys and values have arrived

        swizzle = lane >> SHIFT & MASK
        row_chunk = lane // 16 ^ swizzle
        key_chunk = lane // 8 % 2 ^ swizzle
        lane_offset = lane % 16 * PITCH
        key_offset = operand_size + (lane % 8 + lane // 16 * 8) * PITCH
        for row0 in u32.range(warp * 16, tokens, 16 * WARPS):
            strip_offset = 3 * operand_size + row0 * pitch
            score_offset = strip_offset + lane // 4 * pitch + lane % 4 * 2
            query_offset = row0 * PITCH + lane_offset
            for key0 in u32.range(0, tokens, 16):
                for i in range(8):
                    scores[i] = ZERO
                for k in range(K_STEPS):
                    read_queries(words, shared, query_offset, row_chunk, k, 0)
                    add_scores(scores, words, shared, key_offset + key0 * PITCH, key_chunk, k, 0)
                for n in u32.range(4):  # rows L // 4 and L // 4 + 8, of the left 8 columns, then of the right
                    pair_offset = score_offset + n % 2 * 8 * pitch + n // 2 * 8 + key0
                    pairs[pair_offset // 2] = ptx.pack_half2(scores[n // 2 * 4 + n % 2 * 2] * scale,
                                                             scores[n // 2 * 4 + n % 2 * 2 + 1] * scale)
            cuda.syncwarp()  # the strip's scores are complete
            softmax_of_strip(pairs, strip_offset, pitch, tokens, lane)
            cuda.syncwarp()  # its weights are complete
            for i in range(ACCUMULATORS):
                acc[i] = ZERO
            weight_offset = strip_offset + lane % 16 * pitch + lane // 16 * CHUNK
            for key0 in u32.range(0, tokens, 16):
                a0, a1, a2, a3 = ptx.ldmatrix_x4(shared, weight_offset + key0)
                value_offset = 2 * operand_size + lane_offset + key0 * PITCH
                for step in u32.range(K_STEPS):
                    b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(shared, value_offset + (row_chunk ^ 2 * step) * CHUNK)
                    add_product(acc, 8 * step, a0, a1, a2, a3, b0, b1)
                    add_product(acc, 8 * step + 4, a0, a1, a2, a3, b2, b3)
            for r in u32.range(2):
                t = row0 + lane // 4 + 8 * r
                if t < tokens:
                    for j in u32.range(SIZE // 8):
                        col = head_column + 8 * j + lane % 4 * 2
                        ptx.store_global_half2(out, (begin + t) * width + col, acc[4 * j + 2 * r],
                                               acc[4 * j + 2 * r + 1])

    attention_sentences_whole_matrix_kernel.pitch = PITCH
    return attention_sentences_whole_matrix_kernel


def whole_matrix_bytes(pitch: int, longest: int) -> int:
    """Return the bytes of shared memory of a block: queries, keys and values in rows of `pitch`, and the scores."""
    length = padded(longest)
    return 2 * length * (3 * pitch + length + CHUNK)


@rung(kernel=make_sentences_whole_matrix(32),
      idea="one block a sentence and head: its whole matrix of scores in shared memory",
      sizes=f"{SIZES_HALF}; as many tokens as there is shared memory for: 288, in heads of 32")
def attention_sentences_whole_matrix(qkv, heads, begins, lengths, longest, out, *, stream=0):
    """The obvious fusion, on tensor cores: scores, softmax and context in one launch. For 128 tokens in heads of 32 a
    block takes 59,392 bytes of shared memory, and an SM of an H200 holds three of them; tiles of keys need less than
    half of that, and registers alone for the scores."""
    size = check_tiled(qkv, heads, begins, lengths, longest, out, np.float16, WIDEST_HALF)
    kernel = make_sentences_whole_matrix(size)
    nbytes, allowed = whole_matrix_bytes(kernel.pitch, longest), gpus.target().shared_per_block
    if nbytes > allowed:
        max_tokens = max(n for n in range(16, longest, 16) if whole_matrix_bytes(kernel.pitch, n) <= allowed)
        raise ValueError(f"longest is {longest:,}: a head's scores, queries, keys and values take {nbytes:,} bytes of "
                         f"shared memory, and a block can have {allowed:,}, {max_tokens} tokens. Tiled attention "
                         f"has no such limit")
    length, scale = np.uint32(padded(longest)), scale_for_powers_of_two(size)
    arguments = (qkv, begins, lengths, out, np.uint32(longest), length, scale)
    dynamic_shared(kernel, nbytes, *arguments)
    kernel[(heads, lengths.size), 32 * WARPS, stream, nbytes](*arguments)
