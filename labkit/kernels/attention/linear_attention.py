"""Causal linear attention: softmax attention with its exponential replaced by a product, phi(q) . phi(k).

Shapes  q, k, v, out (H, N, D): H heads, N tokens, D elements each, at most 128; float32, C-contiguous
        phi(x) = elu(x) + 1, elementwise; out[i] = sum_j w_ij v_j / sum_j w_ij, w_ij = phi(q_i) . phi(k_j), j <= i
Work    4*H*N*D*D flops in the running and the chunked form, 2*H*N*N*D in the quadratic one; 16*H*N*D bytes
State   of a head: S = sum_j phi(k_j)^T v_j and z = sum_j phi(k_j), D*(D + 1) elements for any N
Source  Katharopoulos et al.: Transformers are RNNs (2020), https://arxiv.org/abs/2006.16236; in chunks: Hua et al.:
        Transformer Quality in Linear Time (2022), https://arxiv.org/abs/2202.10447
"""

import math

import numpy as np
from numba import float32

from labkit import cuda, u32
from labkit.device import graphs
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, check_array
from labkit.kernels.op import rung

ZERO, ONE = float32(0.0), float32(1.0)
IN_FLIGHT = 8  # chunks' states that a thread loads before it stores the first
CHUNK = 32  # tokens: all pairs within a chunk, the state between chunks
PAIRS = CHUNK * CHUNK
MAX_SIZE = 128  # D: a thread keeps a column of the state in registers
SCAN_THREADS = 128


def phi_reference(x):
    x = np.asarray(x, np.float64)
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def _weights(q, k):
    """(H, N, N), zeros above the diagonal."""
    return np.tril(phi_reference(q) @ phi_reference(k).transpose(0, 2, 1))


def linear_attention_reference(q, k, v):
    weights = _weights(q, k)
    return weights @ np.asarray(v, np.float64) / weights.sum(axis=2, keepdims=True)


@cuda.jit(device=True)
def phi(x):
    return x + ONE if x > ZERO else math.exp(x)


# --- All pairs -------------------------------------------------------------------------------------------------------


@kernel_factory
def make_quadratic(D: int):
    THREADS = threads_for(D)

    @cuda.jit
    def linear_attention_quadratic_kernel(q, k, v, out):
        query = cuda.shared.array(D, float32)
        weights = cuda.shared.array(THREADS, float32)
        i, head, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        if thread < D:
            query[thread] = phi(q[head, i, thread])
        cuda.syncthreads()
        num, den = ZERO, ZERO
        key0 = 0
        while key0 <= i:
            j = key0 + thread
            weight = ZERO
            if j <= i:
                for n in u32.range(D):
                    weight += query[n] * phi(k[head, j, n])
            weights[thread] = weight
            cuda.syncthreads()
            count = min(THREADS, i + 1 - key0)
            if thread < D:
                for t in u32.range(count):
                    num += weights[t] * v[head, key0 + t, thread]
                    den += weights[t]
            cuda.syncthreads()  # before the weights are overwritten
            key0 += THREADS
        if thread < D:
            out[head, i, thread] = num / den

    return linear_attention_quadratic_kernel


# --- A running state -------------------------------------------------------------------------------------------------


@kernel_factory
def make_running(D: int):
    @cuda.jit
    def linear_attention_running_kernel(q, k, v, out):
        query = cuda.shared.array(D, float32)
        key = cuda.shared.array(D, float32)
        z = cuda.shared.array(D, float32)
        state = cuda.local.array(D, float32)  # column `thread` of S, in registers
        head, thread = u32.blockIdx.x, u32.threadIdx.x
        for n in range(D):
            state[n] = ZERO
        if thread < D:
            z[thread] = ZERO
        i = 0
        while i < u32.shape(q)[1]:
            if thread < D:
                query[thread] = phi(q[head, i, thread])
                key[thread] = phi(k[head, i, thread])
                z[thread] += key[thread]
            cuda.syncthreads()
            if thread < D:
                value = v[head, i, thread]
                num, den = ZERO, ZERO
                for n in range(D):
                    state[n] += key[n] * value
                    num += query[n] * state[n]
                    den += query[n] * z[n]
                out[head, i, thread] = num / den
            cuda.syncthreads()  # before the next token's query and key
            i += 1

    return linear_attention_running_kernel


# --- Chunks ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_chunked(D: int):
    SHARED = CHUNK * D

    @cuda.jit
    def linear_attention_states_kernel(k, v, states):
        """states[head, chunk] = S, and z below it, of this chunk's tokens alone: (D + 1, D)."""
        keys = cuda.shared.array(SHARED, float32)
        state = cuda.local.array(D, float32)
        chunk, head, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        token0 = chunk * CHUNK
        count = min(CHUNK, u32.shape(k)[1] - token0)
        z = ZERO
        if thread < D:
            for t in u32.range(count):
                keys[t * D + thread] = phi(k[head, token0 + t, thread])
        cuda.syncthreads()
        if thread < D:
            for n in u32.range(D):
                state[n] = ZERO
            for t in u32.range(count):
                value = v[head, token0 + t, thread]
                z += keys[t * D + thread]
                for n in u32.range(D):
                    state[n] += keys[t * D + n] * value
            for n in u32.range(D):
                states[head, chunk, n, thread] = state[n]
            states[head, chunk, D, thread] = z

    @cuda.jit
    def linear_attention_scan_kernel(states):
        """The state before each chunk: an exclusive prefix sum over the chunks, in place; a thread for each element."""
        loaded = cuda.local.array(IN_FLIGHT, float32)
        index, head = u32.grid(1), u32.blockIdx.y
        if index < (D + 1) * D:
            row, col = index // D, index % D
            chunks, prefix = u32.shape(states)[1], ZERO
            for chunk0 in u32.range(0, chunks, IN_FLIGHT):
                for i in range(IN_FLIGHT):
                    loaded[i] = states[head, chunk0 + i, row, col] if chunk0 + i < chunks else ZERO
                for i in range(IN_FLIGHT):
                    if chunk0 + i < chunks:
                        states[head, chunk0 + i, row, col] = prefix
                    prefix += loaded[i]

    @cuda.jit
    def linear_attention_chunk_kernel(q, k, v, states, out):
        """Add the contribution of the state before the chunk and that of the pairs within it."""
        queries = cuda.shared.array(SHARED, float32)
        keys = cuda.shared.array(SHARED, float32)
        den = cuda.shared.array(CHUNK, float32)
        z = cuda.shared.array(D, float32)
        weights = cuda.shared.array(PAIRS, float32)
        state = cuda.local.array(D, float32)
        values = cuda.local.array(CHUNK, float32)
        chunk, head, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        token0 = chunk * CHUNK
        count = min(CHUNK, u32.shape(q)[1] - token0)
        if thread < D:
            for t in u32.range(CHUNK):
                valid = t < count
                row = token0 + min(t, count - 1)
                offset = t * D + thread
                queries[offset] = phi(q[head, row, thread]) if valid else ZERO
                keys[offset] = phi(k[head, row, thread]) if valid else ZERO
                values[t] = v[head, row, thread] if valid else ZERO
            for n in u32.range(D):
                state[n] = states[head, chunk, n, thread]
            z[thread] = states[head, chunk, D, thread]
        cuda.syncthreads()
        for pair in u32.range(thread, PAIRS, u32.blockDim.x):
            i, j = pair // CHUNK, pair % CHUNK
            weight = ZERO
            if j <= i:
                for n in u32.range(D):
                    weight += queries[i * D + n] * keys[j * D + n]
            weights[pair] = weight
        cuda.syncthreads()
        if thread < CHUNK:
            row_sum = ZERO
            for n in u32.range(D):
                row_sum += queries[thread * D + n] * z[n]
            for j in u32.range(CHUNK):
                row_sum += weights[thread * CHUNK + j]
            den[thread] = row_sum
        cuda.syncthreads()
        if thread < D:
            for t in u32.range(count):
                num = ZERO
                for n in u32.range(D):
                    num += queries[t * D + n] * state[n]
                for j in u32.range(CHUNK):
                    num += weights[t * CHUNK + j] * values[j]
                out[head, token0 + t, thread] = num / den[t]

    return linear_attention_states_kernel, linear_attention_scan_kernel, linear_attention_chunk_kernel


def threads_for(D: int) -> int:
    """Return the threads of a block: one for each of D elements, rounded up to whole warps."""
    return -(-D // 32) * 32


def state_shape(heads: int, tokens: int, size: int) -> tuple[int, int, int, int]:
    """Return the shape of the chunked form's states: S, and z below it, for each chunk of each head."""
    return heads, -(-tokens // CHUNK), size + 1, size


def _check(q, k, v, out) -> tuple[int, int, int]:
    check_array("q", q, ndim=3)
    for name, array in (("k", k), ("v", v), ("out", out)):
        check_array(name, array, shape=q.shape)
    heads, tokens, size = q.shape
    if size > MAX_SIZE:
        raise ValueError(f"q has heads of {size} numbers; at most {MAX_SIZE} are allowed")
    if heads > MAX_GRID_YZ:
        raise ValueError(f"q has {heads:,} heads; at most {MAX_GRID_YZ:,} are allowed")
    return heads, tokens, size


@rung(kernel=make_quadratic(64), idea="all pairs: a block weighs every token up to its own")
def linear_attention_quadratic(q, k, v, out, stream=0):
    """A block for each token computes its weights with all tokens up to itself, as softmax attention does: 2*N*N*D
    flops a head."""
    heads, tokens, size = _check(q, k, v, out)
    make_quadratic(size)[(tokens, heads), threads_for(size), stream](q, k, v, out)


@rung(kernel=make_running(64), idea="a running state: a block a head, token after token")
def linear_attention_running(q, k, v, out, stream=0):
    """A block for each head adds one token after the other to the state and multiplies by it: 4*N*D*D flops, but N
    steps in a row."""
    heads, _, size = _check(q, k, v, out)
    make_running(size)[heads, threads_for(size), stream](q, k, v, out)


@rung(kernel=make_chunked(64), idea="chunks of 32 tokens side by side: their states, a scan, their pairs")
def linear_attention_chunked(q, k, v, out, states=None, stream=0):
    """As running, but only the sum over chunks is serial: each chunk's state by a block of its own, an exclusive scan
    over them, and then for each chunk the state before it and all pairs within it.

    states: memory to work in, of state_shape(H, N, D) float32; left out, it is allocated.
    """
    heads, tokens, size = _check(q, k, v, out)
    shape = state_shape(heads, tokens, size)
    if states is None:
        states = graphs.keep(cuda.device_array(shape, np.float32))
    check_array("states", states, shape=shape)
    sum_up, scan, combine = make_chunked(size)
    grid, block = (shape[1], heads), threads_for(size)
    sum_up[grid, block, stream](k, v, states)
    scan[(-(-size * (size + 1) // SCAN_THREADS), heads), SCAN_THREADS, stream](states)
    combine[grid, block, stream](q, k, v, states, out)
