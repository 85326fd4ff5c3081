"""A token of up to eight sequences, from its id to the logits and the greedy token after it, in one kernel.

Shapes  ids, positions, slots, contexts (T,), page_table (T, pages) int32; cache (2 * layers,
        elements of a layer): keys of a layer, its values, those of the next; weights a buffer of bfloat16 (uint16) or
        float16, and offsets (layers + 1, 6) uint32, in units of 16 bytes, where each begins: of a layer its norm, qkv,
        o, norm, gate_up and down; in the last row the norm, the embedding and the head
Needs   compute capability 9.0
Work    all weights, keys and values are read once; 5 joins for each layer (joins.py), and one before the greedy token
Source  B. Spector et al., "Look Ma, No Bubbles! Designing a Low-Latency Megakernel for Llama-1B" (2025)
"""

import numpy as np
from numba import float32, int32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array, launch_tiled
from labkit.kernels.attention.pages import PAGE
from labkit.kernels.elements import SWIGLU
from labkit.kernels.op import missing
from labkit.kernels.persistent.attention import make_attention
from labkit.kernels.persistent.decoder import JOINS, ROWS, Decoder
from labkit.kernels.persistent.joins import arrive, blocks_here, leave, make_phases, mark, wait
from labkit.kernels.persistent.product import TILE, fragment_size, make_product, make_sum_warps
from labkit.kernels.persistent.ring import make_load_matrix
from labkit.kernels.reduce import ALL_LANES, NEG_INF

KINDS = 6  # weights of a layer, in the order of `offsets`
NORM, QKV, OUT, POST_NORM, GATE_UP, DOWN = range(KINDS)
_, EMBEDDING, HEAD = range(3)  # of its last row, behind the norm
NO_TOKEN = int32(-1)  # where all logits are NaN


@cuda.jit(device=True)
def offset_of(offsets, row, kind):
    """Return where a weight begins, in elements."""
    return uint64(offsets[row, kind]) * uint64(8)


@kernel_factory
def make_persistent_decode(decoder: Decoder):
    """A block has decoder.warps warps that compute and one that copies weights, keys and values; a phase ends with a
    join. The blocks take tiles of eight weights in turn."""
    WARPS, THREADS, STAGES, SCRATCH = decoder.warps, 32 * decoder.warps, decoder.stages, decoder.scratch
    C, A, M, V = decoder.hidden, decoder.attended, decoder.mlp, decoder.vocab
    QKV_ROWS, GATE_UP_ROWS, TIMED = decoder.qkv_rows, decoder.gate_up_rows, decoder.timed
    C_FRAGMENT, A_FRAGMENT = fragment_size(decoder, C), fragment_size(decoder, A)
    ROTATION, QUERIES = 2 * decoder.pairs, decoder.group_heads * decoder.head_dim
    element, ELEMENT = decoder.element, decoder.element.dtype.type
    load_hidden, normalise, multiply_hidden, _ = make_product(decoder, C)
    load_attended, _, multiply_attended, _ = make_product(decoder, A)
    *_, multiply_gated = make_product(decoder, M)
    load_matrix, sum_warps = make_load_matrix(decoder), make_sum_warps(decoder)
    items_of_block, load_items, find_item, load_rotation, attend = make_attention(decoder)
    begin_phase, end_phase, resume = make_phases(THREADS, TIMED)
    to_float, to_element, rounded, swiglu = element.number, element.element, element.rounded, SWIGLU[element]

    @cuda.jit(device=True)
    def load_ring(ring, weights, offsets, step, number, end, cache, lane):
        """All that the copying warp does."""
        layers, count = u32.shape(offsets)[0] - 1, uint32(0)
        for layer in u32.range(layers):
            count = load_matrix(ring, weights, offset_of(offsets, layer, QKV), QKV_ROWS, C, 1, count, lane)
            count = load_items(ring, step, number, end, cache, layer, count, lane)
            count = load_matrix(ring, weights, offset_of(offsets, layer, OUT), C, A, 1, count, lane)
            count = load_matrix(ring, weights, offset_of(offsets, layer, GATE_UP), GATE_UP_ROWS, C, 2, count, lane)
            count = load_matrix(ring, weights, offset_of(offsets, layer, DOWN), C, M, 2, count, lane)
        load_matrix(ring, weights, offset_of(offsets, layers, HEAD), V, C, 1, count, lane)

    @cuda.jit(device=True)
    def better(value, index, other_value, other_index):
        """Return the larger value with its index; of equal ones the first."""
        if other_value > value or (other_value == value and other_index < index):
            return other_value, other_index
        return value, index

    @cuda.jit(device=True)
    def best_of_lanes(value, index, shuffles):
        """Return the best of 2 ** shuffles neighbouring lanes."""
        for n in range(shuffles):
            value, index = better(value, index, cuda.shfl_xor_sync(ALL_LANES, value, 1 << n),
                                  cuda.shfl_xor_sync(ALL_LANES, index, 1 << n))
        return value, index

    @cuda.jit(launch_bounds=(decoder.threads, 1))
    def persistent_decode_kernel(weights, offsets, table, ids, positions, slots, contexts, page_table, cache, x, qkv,
                                 attended, gated, partial, arrived, logits, best_values, best_tokens, tokens, counters,
                                 timers):
        tiles = cuda.shared.array(0, ELEMENT)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        scratch = cuda.shared.array(SCRATCH, np.float32)
        queries = cuda.shared.array(QUERIES, ELEMENT, alignment=16)
        is_last = cuda.shared.array(1, uint32)
        at_join = cuda.shared.array(1, uint32)
        hidden_frag = cuda.local.array(C_FRAGMENT, uint32)
        norm_frag = cuda.local.array(C_FRAGMENT, uint32)
        attended_frag = cuda.local.array(A_FRAGMENT, uint32)
        cos_sin = cuda.local.array(ROTATION, float32)
        thread = u32.threadIdx.x
        warp, lane = thread // 32, thread % 32
        block, blocks = u32.blockIdx.x, u32.gridDim.x
        rows, layers = u32.shape(ids)[0], u32.shape(offsets)[0] - 1
        marks = 2 * (JOINS * layers + 1)
        ring = tiles, full, empty, at_join
        step = table, positions, slots, contexts, page_table, rows
        if thread == 0:
            for stage in range(STAGES):
                ptx.mbarrier_init(full, stage, 1)
                ptx.mbarrier_init(empty, stage, WARPS)
            at_join[0] = 0
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        number, end = items_of_block(step)  # of attention, in every layer
        if warp == WARPS:
            load_ring(ring, weights, offsets, step, number, end, cache, lane)
        else:
            # Of fragments: this lane's row; the last one again where there are fewer than eight, which costs no reads
            # from L2. Of tiles: thread 8 * token + i has weights i, for 64 threads.
            row = min(lane // 4, rows - 1)
            token, weight = thread // ROWS, thread % ROWS
            has_output = thread < TILE and token < rows
            count = uint32(0)
            if TIMED and thread == 0:
                mark(timers, 0, marks)
            load_hidden(norm_frag, weights, offset_of(offsets, 0, NORM), warp, lane)

            for layer in u32.range(layers):
                if layer == 0:
                    embedding = offset_of(offsets, layers, EMBEDDING)
                    embedding += uint64(min(uint32(ids[row]), V - 1)) * uint64(C)
                    if lane < 4 * rows and lane % 4 == 0:  # for the first residual sum, two joins away
                        for col in u32.range(block * WARPS + warp, C, blocks * WARPS):
                            x[row, col] = weights[embedding + uint64(col)]
                    load_hidden(hidden_frag, weights, embedding, warp, lane)
                else:
                    load_hidden(hidden_frag, x, uint64(row * C), warp, lane)
                normalise(hidden_frag, norm_frag, scratch, warp, lane)
                resume(at_join, thread)
                buffer = uint32(0)
                for first in u32.range(block * ROWS, QKV_ROWS, blocks * ROWS):
                    count = multiply_hidden(hidden_frag, 1, ring, scratch, buffer, count, warp, lane)
                    ptx.named_barrier_sync(1, THREADS)
                    if has_output:
                        qkv[token, first + weight] = to_element(sum_warps(scratch, buffer, thread))
                    buffer ^= 1
                end_phase(at_join, counters, timers, JOINS * layer, marks, thread)
                item = find_item(step, number)
                load_rotation(step, item, cos_sin, lane)
                begin_phase(counters, timers, JOINS * layer + 1, marks, thread)
                resume(at_join, thread)

                count = attend(step, number, end, item, ring, count, qkv, cache, layer, cos_sin, attended, queries,
                               scratch, partial, arrived, is_last, warp, lane)
                end_phase(at_join, counters, timers, JOINS * layer + 1, marks, thread)
                load_hidden(norm_frag, weights, offset_of(offsets, layer, POST_NORM), warp, lane)
                begin_phase(counters, timers, JOINS * layer + 2, marks, thread)

                load_attended(attended_frag, attended, uint64(row * A), warp, lane)
                resume(at_join, thread)
                buffer = uint32(0)
                for first in u32.range(block * ROWS, C, blocks * ROWS):
                    residual = x[token % ROWS, first + weight]  # in flight during the product
                    count = multiply_attended(attended_frag, 1, ring, scratch, buffer, count, warp, lane)
                    ptx.named_barrier_sync(1, THREADS)
                    if has_output:
                        total = rounded(sum_warps(scratch, buffer, thread))
                        x[token, first + weight] = to_element(to_float(residual) + total)
                    buffer ^= 1
                end_phase(at_join, counters, timers, JOINS * layer + 2, marks, thread)
                begin_phase(counters, timers, JOINS * layer + 3, marks, thread)

                load_hidden(hidden_frag, x, uint64(row * C), warp, lane)
                normalise(hidden_frag, norm_frag, scratch, warp, lane)
                resume(at_join, thread)
                buffer = uint32(0)
                for first in u32.range(block * ROWS, GATE_UP_ROWS // 2, blocks * ROWS):  # eight gates, their eight ups
                    count = multiply_hidden(hidden_frag, 2, ring, scratch, buffer, count, warp, lane)
                    ptx.named_barrier_sync(1, THREADS)
                    if has_output:
                        gate, up = sum_warps(scratch, buffer, thread), sum_warps(scratch, buffer + 1, thread)
                        gated[token, first + weight] = to_element(swiglu(gate, up))
                    buffer ^= 2
                end_phase(at_join, counters, timers, JOINS * layer + 3, marks, thread)
                load_hidden(norm_frag, weights, offset_of(offsets, layer + 1, NORM), warp, lane)
                begin_phase(counters, timers, JOINS * layer + 4, marks, thread)
                resume(at_join, thread)

                buffer = uint32(0)
                for first in u32.range(block * 2 * ROWS, C, blocks * 2 * ROWS):
                    residuals = x[token % ROWS, first + weight], x[token % ROWS, first + ROWS + weight]
                    count = multiply_gated(gated, uint64(row * M), ring, scratch, buffer, count, warp, lane)
                    ptx.named_barrier_sync(1, THREADS)
                    if has_output:
                        for t in range(2):
                            total = rounded(sum_warps(scratch, buffer + t, thread))
                            x[token, first + t * ROWS + weight] = to_element(to_float(residuals[t]) + total)
                    buffer ^= 2
                end_phase(at_join, counters, timers, JOINS * layer + 4, marks, thread)
                begin_phase(counters, timers, JOINS * layer + 5, marks, thread)

            load_hidden(hidden_frag, x, uint64(row * C), warp, lane)
            normalise(hidden_frag, norm_frag, scratch, warp, lane)
            resume(at_join, thread)
            best, best_token, buffer = NEG_INF, NO_TOKEN, uint32(0)
            for first in u32.range(block * ROWS, V, blocks * ROWS):
                count = multiply_hidden(hidden_frag, 1, ring, scratch, buffer, count, warp, lane)
                ptx.named_barrier_sync(1, THREADS)
                if has_output and first + weight < V:
                    total = sum_warps(scratch, buffer, thread)
                    logits[token, first + weight] = total
                    best, best_token = better(best, best_token, total, int32(first + weight))
                buffer ^= 1
            best, best_token = best_of_lanes(best, best_token, 3)  # the eight threads of a token
            if has_output and weight == 0:
                best_values[block, token], best_tokens[block, token] = best, best_token
            if TIMED and thread == 0:
                mark(timers, marks - 1, marks)
            arrive(counters, thread, THREADS)
            if block == 0:
                wait(counters, (JOINS * layers + 1) * blocks, thread, THREADS)
                for token in u32.range(warp, rows, WARPS):
                    best, best_token = NEG_INF, NO_TOKEN
                    for other in u32.range(lane, blocks, 32):
                        best, best_token = better(best, best_token, best_values[other, token],
                                                  best_tokens[other, token])
                    best, best_token = best_of_lanes(best, best_token, 5)
                    if lane == 0:
                        tokens[token] = best_token
            if thread == 0:
                leave(counters)

    persistent_decode_kernel.threads = decoder.threads
    persistent_decode_kernel.shared_bytes = decoder.ring_bytes
    return persistent_decode_kernel


class Buffers:
    """What a launch needs between its phases; tokens (ROWS,) int32, the greedy ones; and times, in nanoseconds, of each
    block the marks, if the decoder is timed. pages: of a sequence, at most."""

    def __init__(self, decoder: Decoder, layers: int, pages: int):
        dtype = decoder.element.dtype
        self.decoder, self.layers, self.pages, self.blocks = decoder, layers, pages, blocks_here()
        self.x, self.qkv, self.attended, self.gated = (
            cuda.to_device(np.zeros((ROWS, columns), dtype))
            for columns in (decoder.hidden, decoder.qkv_rows, decoder.attended, decoder.mlp))
        self.partial = cuda.device_array(decoder.partial_size(pages), np.float32)
        self.arrived = cuda.to_device(np.zeros(ROWS * decoder.kv_heads, np.uint32))
        self.best_values = cuda.device_array((self.blocks, ROWS), np.float32)
        self.best_tokens = cuda.device_array((self.blocks, ROWS), np.int32)
        self.tokens = cuda.to_device(np.zeros(ROWS, np.int32))
        self.counters = cuda.to_device(np.zeros(2, np.uint32))
        self.times = cuda.to_device(np.zeros(self.blocks * decoder.marks(layers) if decoder.timed else 1, np.uint64))


def persistent_decode(buffers: Buffers, weights, offsets, table, ids, positions, slots, contexts, page_table, cache,
                      logits, stream=0) -> None:
    """Write logits (T, V) float32 and buffers.tokens, and the ids' keys and values to the cache."""
    decoder, layers = buffers.decoder, buffers.layers
    dtype, rows = decoder.element.dtype, len(ids)
    if problem := decoder.problem():
        raise ValueError(f"decoder: {problem}")
    if not 1 <= rows <= ROWS:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; 1 to {ROWS} are allowed")
    check_array("weights", weights, ndim=1, dtype=dtype, most=1 << 35)
    check_array("offsets", offsets, shape=(layers + 1, KINDS), dtype=np.uint32)
    check_array("table", table, shape=(table.shape[0], decoder.head_dim))
    for name, array in (("ids", ids), ("positions", positions), ("slots", slots), ("contexts", contexts)):
        check_array(name, array, shape=(rows,), dtype=np.int32)
    check_array("page_table", page_table, ndim=2, dtype=np.int32)
    if page_table.shape[0] != rows or page_table.shape[1] > buffers.pages:
        raise ValueError(f"page_table has shape {tuple(page_table.shape)}; {rows} rows are needed, of at most "
                         f"{buffers.pages} pages, for which the buffers were made")
    check_array("cache", cache, ndim=2, dtype=dtype, most=1 << 40)
    page = decoder.kv_heads * PAGE * decoder.head_dim
    if cache.shape[0] != 2 * layers or cache.shape[1] % page:
        raise ValueError(f"cache has shape {tuple(cache.shape)}; it must be ({2 * layers}, a multiple of {page})")
    check_array("logits", logits, shape=(rows, decoder.vocab))
    if not aligned(weights, cache):
        raise ValueError("weights and cache must begin at multiples of 16 bytes")
    kernel = make_persistent_decode(decoder)
    if reason := missing(kernel):
        raise ValueError(f"persistent_decode {reason}")
    launch_tiled(kernel, buffers.blocks, stream, weights, offsets, table, ids, positions, slots, contexts, page_table,
                 cache, buffers.x, buffers.qkv, buffers.attended, buffers.gated, buffers.partial, buffers.arrived,
                 logits, buffers.best_values, buffers.best_tokens, buffers.tokens, buffers.counters,
                 buffers.times)
