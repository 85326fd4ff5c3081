"""The gradients of causal attention for training, for queries, keys and values, from its output and the log-sum-exp of
its rows: the weights are computed again, so that no matrix of them is kept.

    weights = exp(scale * q @ k.T - lse)        grad_scores = weights * (grad_out @ v.T - delta)
    grad_v = weights.T @ grad_out               grad_q = scale * grad_scores @ k, grad_k = scale * grad_scores.T @ q

Shapes  as in training.py; grad_out, grad_q (T, H, D), grad_k, grad_v (T, KV, D), all of one type; grad_q, grad_k and
        grad_v may be views as q, k and v, of rows as far apart as theirs; delta (H, T) float32: the sum of grad_out *
        out over each row, written by the first launch
Work    five products, 10*H*D flop for each pair of a query and a key that it attends to. The kernels here compute two
        of them twice, because each block sums only the gradients of its own rows: without atomic additions, every run
        gives the same bits
Source  T. Dao, "FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691, algorithm 2
"""

import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import flat_rows, launch_tiled, row_stride, unsigned
from labkit.kernels.attention.backward_mma import KEY_TILES, QUERY_TILES, make_backward_mma
from labkit.kernels.attention.flash import scale_for_powers_of_two
from labkit.kernels.attention.heads import make_load_chunk
from labkit.kernels.attention.training import (
    EACH,
    LOG2_E,
    SIXTEEN_BITS,
    THREADS,
    TILE,
    by_head,
    causal_weights,
    check_training,
    find_sequence,
    in_rows,
    make_plain_steps,
    sequences_of,
)
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.op import rung
from labkit.kernels.reduce import ALL_LANES, ZERO


def attention_backward_reference(q, k, v, grad_out, cu_seqlens):
    """Return grad_q, grad_k and grad_v in float64; NaN in tokens of no sequence."""
    heads, size = q.shape[1:]
    group, grads = heads // k.shape[1], [np.full(array.shape, np.nan) for array in (q, k, v)]
    for tokens in sequences_of(cu_seqlens):
        for grad in grads:
            grad[tokens] = 0
        rows = [by_head(array[tokens], heads) for array in (q, k, v, grad_out)]
        for head, (queries, keys, values, grad) in enumerate(zip(*rows, strict=True)):
            weights, _ = causal_weights(queries, keys)
            grad_weights = grad @ values.T
            delta = (weights * grad_weights).sum(axis=1, keepdims=True)
            grad_scores = weights * (grad_weights - delta) / math.sqrt(size)
            grads[0][tokens, head] = grad_scores @ keys
            grads[1][tokens, head // group] += grad_scores.T @ queries
            grads[2][tokens, head // group] += weights.T @ grad
    return grads


# --- Delta ------------------------------------------------------------------------------------------------------------


@kernel_factory
def make_delta(size: int, element: Element):
    """delta[h, t] = the sum of grad_out[t, h] * out[t, h]: threads of a row load 16 bytes each."""
    PER_LOAD = element.per_load
    LANES = size // PER_LOAD
    load_chunk = make_load_chunk(element is not FLOAT32, element.unpack or ptx.unpack_half2)

    @cuda.jit
    def attention_backward_delta_kernel(out, grad_out, delta):
        values, grads = cuda.local.array(PER_LOAD, float32), cuda.local.array(PER_LOAD, float32)
        heads, tokens = u32.shape(delta)
        i = u32.grid(1)
        row = min(i // LANES, heads * tokens - 1)
        offset = (row * LANES + i % LANES) * PER_LOAD
        load_chunk(values, 0, out, offset)
        load_chunk(grads, 0, grad_out, offset)
        total = ZERO
        for n in u32.range(PER_LOAD):
            total += values[n] * grads[n]
        for distance in (16, 8, 4, 2, 1):
            if distance < LANES:
                total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
        if i < heads * tokens * LANES and i % LANES == 0:
            delta[row % heads, row // heads] = total

    attention_backward_delta_kernel.lanes = LANES
    return attention_backward_delta_kernel


def compute_delta(out, grad_out, delta, element: Element, stream) -> None:
    kernel = make_delta(out.shape[2], element)
    kernel[-(-delta.size * kernel.lanes // THREADS), THREADS, stream](*in_rows(out, grad_out), delta)


# --- A thread or a few for each row -----------------------------------------------------------------------------------


@kernel_factory
def make_backward_queries_plain(size: int, element: Element):
    SIZE, LANES, ROWS, to_element = size, size // EACH, THREADS * EACH // size, element.element
    load_tile, load_part, dot = make_plain_steps(size, element)

    @cuda.jit
    def attention_backward_queries_plain_kernel(q, k, v, grad_out, lse, delta, cu_seqlens, grad_q, longest, scale,
                                                grad_scale, group, q_stride, kv_stride, out_stride):
        keys, values = cuda.shared.array((TILE, SIZE), float32), cuda.shared.array((TILE, SIZE), float32)
        query, grad = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        acc = cuda.local.array(EACH, float32)
        thread, head = u32.threadIdx.x, u32.blockIdx.x
        lane, row0 = thread % LANES, u32.blockIdx.y * ROWS
        head_column, kv_column = head * SIZE, head // group * SIZE
        begin, tokens, scale = find_sequence(cu_seqlens, u32.blockIdx.z, u32.shape(lse)[1], longest, scale)
        if row0 >= tokens:
            return
        row = row0 + thread // LANES
        source = begin + min(row, tokens - 1)
        load_part(query, q, source * q_stride + head_column, lane)
        load_part(grad, grad_out, source * out_stride + head_column, lane)
        shift, row_delta = lse[head, source] * LOG2_E, delta[head, source]
        for i in u32.range(EACH):
            acc[i] = ZERO
        end = min(row0 + ROWS, tokens)
        for key0 in u32.range(0, end, TILE):
            load_tile(keys, k, kv_stride, begin, key0, end, kv_column, thread)
            load_tile(values, v, kv_stride, begin, key0, end, kv_column, thread)
            cuda.syncthreads()  # the tile is complete
            for j in u32.range(TILE):
                weight = ptx.exp2_approx(dot(query, keys, j, lane) * scale - shift)
                grad_score = weight * (dot(grad, values, j, lane) - row_delta)
                if key0 + j > row:
                    grad_score = ZERO
                for i in u32.range(EACH):
                    acc[i] += grad_score * keys[j, i * LANES + lane]
            cuda.syncthreads()  # the tile is free to overwrite
        if row < tokens:
            offset = (begin + row) * q_stride + head_column + lane
            for i in u32.range(EACH):
                grad_q[offset + i * LANES] = to_element(acc[i] * grad_scale)

    attention_backward_queries_plain_kernel.rows = ROWS
    return attention_backward_queries_plain_kernel


@kernel_factory
def make_backward_keys_plain(size: int, element: Element):
    SIZE, LANES, ROWS, to_element = size, size // EACH, THREADS * EACH // size, element.element
    load_tile, load_part, dot = make_plain_steps(size, element)

    @cuda.jit
    def attention_backward_keys_plain_kernel(q, k, v, grad_out, lse, delta, cu_seqlens, grad_k, grad_v, longest, scale,
                                             grad_scale, group, q_stride, kv_stride, out_stride):
        queries, grads = cuda.shared.array((TILE, SIZE), float32), cuda.shared.array((TILE, SIZE), float32)
        shifts, deltas = cuda.shared.array(TILE, float32), cuda.shared.array(TILE, float32)
        key, value = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        acc_k, acc_v = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        thread, kv_head = u32.threadIdx.x, u32.blockIdx.x
        lane, row0, kv_column = thread % LANES, u32.blockIdx.y * ROWS, kv_head * SIZE
        begin, tokens, scale = find_sequence(cu_seqlens, u32.blockIdx.z, u32.shape(lse)[1], longest, scale)
        if row0 >= tokens:
            return
        row = row0 + thread // LANES
        source = begin + min(row, tokens - 1)
        load_part(key, k, source * kv_stride + kv_column, lane)
        load_part(value, v, source * kv_stride + kv_column, lane)
        for i in u32.range(EACH):
            acc_k[i], acc_v[i] = ZERO, ZERO
        for member in u32.range(group):
            head = kv_head * group + member
            for query0 in u32.range(row0, tokens, TILE):  # no earlier query sees these keys
                load_tile(queries, q, q_stride, begin, query0, tokens, head * SIZE, thread)
                load_tile(grads, grad_out, out_stride, begin, query0, tokens, head * SIZE, thread)
                if thread < TILE:
                    query = begin + min(uint32(query0 + thread), tokens - 1)
                    shifts[thread], deltas[thread] = lse[head, query] * LOG2_E, delta[head, query]
                cuda.syncthreads()  # the tile is complete
                for j in u32.range(TILE):
                    weight = ptx.exp2_approx(dot(key, queries, j, lane) * scale - shifts[j])
                    if row > query0 + j or query0 + j >= tokens:
                        weight = ZERO
                    grad_score = weight * (dot(value, grads, j, lane) - deltas[j])
                    for i in u32.range(EACH):
                        acc_v[i] += weight * grads[j, i * LANES + lane]
                        acc_k[i] += grad_score * queries[j, i * LANES + lane]
                cuda.syncthreads()  # the tile is free to overwrite
        if row < tokens:
            offset = (begin + row) * kv_stride + kv_column + lane
            for i in u32.range(EACH):
                grad_k[offset + i * LANES] = to_element(acc_k[i] * grad_scale)
                grad_v[offset + i * LANES] = to_element(acc_v[i])

    attention_backward_keys_plain_kernel.rows = ROWS
    return attention_backward_keys_plain_kernel


def check_backward(q, k, v, out, lse, grad_out, cu_seqlens, longest, grad_q, grad_k, grad_v, delta,
                   allowed=()) -> Element:
    return check_training(q, k, v, cu_seqlens, longest,
                          by_row={"out": out, "grad_out": grad_out, "grad_q": grad_q},
                          by_key={"grad_k": grad_k, "grad_v": grad_v}, by_stat={"lse": lse, "delta": delta},
                          allowed=allowed)


@rung(kernel=(make_delta(64, FLOAT32), make_backward_keys_plain(64, FLOAT32), make_backward_queries_plain(64, FLOAT32)),
      idea="a launch adds up over the queries for each key, another over the keys for each query")
def attention_backward_plain(q, k, v, out, lse, grad_out, cu_seqlens, longest, grad_q, grad_k, grad_v, *, delta,
                             stream=0):
    """A thread has a key, or a query, of 32 elements; two or four share a longer one. Any element, any GPU."""
    element = check_backward(q, k, v, out, lse, grad_out, cu_seqlens, longest, grad_q, grad_k, grad_v, delta)
    _, heads, size = q.shape
    kv_heads, sequences = k.shape[1], cu_seqlens.size - 1
    compute_delta(out, grad_out, delta, element, stream)
    arguments = *map(flat_rows, (q, k, v, grad_out)), lse, delta, cu_seqlens
    sizes = (*unsigned(longest), scale_for_powers_of_two(size), np.float32(1 / math.sqrt(size)),
             *unsigned(heads // kv_heads, *map(row_stride, (q, k, out))))
    of_keys, of_queries = make_backward_keys_plain(size, element), make_backward_queries_plain(size, element)
    tiles = -(-longest // of_keys.rows)
    of_keys[(kv_heads, tiles, sequences), THREADS, stream](*arguments, *map(flat_rows, (grad_k, grad_v)), *sizes)
    of_queries[(heads, tiles, sequences), THREADS, stream](*arguments, flat_rows(grad_q), *sizes)


# --- Tensor cores -----------------------------------------------------------------------------------------------------


@rung(kernel=(make_delta(64, BFLOAT16), make_backward_mma(KEY_TILES[64], True, BFLOAT16),
              make_backward_mma(QUERY_TILES[64], False, BFLOAT16)),
      idea="tensor cores: weights and the gradients of scores stay in registers")
def attention_backward_mma(q, k, v, out, lse, grad_out, cu_seqlens, longest, grad_q, grad_k, grad_v, *, delta,
                           stream=0):
    """As plain, but a warp has 16 or 32 keys, or queries, and multiplies them with tiles of the other side, which
    cp.async copies ahead. Elements of 16 bits."""
    element = check_backward(q, k, v, out, lse, grad_out, cu_seqlens, longest, grad_q, grad_k, grad_v, delta,
                             SIXTEEN_BITS)
    compute_delta(out, grad_out, delta, element, stream)
    (_, heads, size), kv_heads = q.shape, k.shape[1]
    sizes = (*unsigned(longest), scale_for_powers_of_two(size), np.float32(1 / math.sqrt(size)),
             *unsigned(heads // kv_heads))
    sequences = cu_seqlens.size - 1
    for of_keys, tile, blocks, rows, passing, gradients in (
            (True, KEY_TILES[size], kv_heads, (k, v), (q, grad_out), (grad_k, grad_v)),
            (False, QUERY_TILES[size], heads, (q, grad_out), (k, v), (grad_q, grad_q))):
        kernel = make_backward_mma(tile, of_keys, element)
        launch_tiled(kernel, (blocks, -(-longest // kernel.rows), sequences), stream,
                     *map(flat_rows, rows + passing), lse, delta, cu_seqlens, *map(flat_rows, gradients), *sizes,
                     *unsigned(*map(row_stride, rows + passing)))


def attention_backward(q, k, v, out, lse, grad_out, cu_seqlens, longest, grad_q, grad_k, grad_v, *, delta, stream=0):
    """The rung to use: on a GPU with tensor cores for 16 bits the second."""
    tensor_cores = element_of("q", q) is not FLOAT32 and gpus.chosen_on_gpu() and not attention_backward_mma.missing
    pick = attention_backward_mma if tensor_cores else attention_backward_plain
    pick(q, k, v, out, lse, grad_out, cu_seqlens, longest, grad_q, grad_k, grad_v, delta=delta, stream=stream)
