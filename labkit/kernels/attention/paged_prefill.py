"""Attention of the new tokens of several sequences over their pages, in one launch: a prompt, a part of one, the rest of
one whose beginning was in the cache, and single tokens beside them.

    out[t, h] = sum over the tokens j <= t of t's sequence of softmax_j(q[t, h] . k[j, h // (H // K)] * scale) * v[j, ...]

Shapes  q, out (T, H, D); keys, values, page_table as in pages.py; begins, lengths, contexts (B,) int32 in device
        memory: sequence s has the rows begins[s] to begins[s] + lengths[s] - 1, which are the last lengths[s] of its
        contexts[s] tokens; the keys and values of all of them are in the cache already. A length may be 0. longest: no
        length is larger; it sets the grid. float32, or uint16 that holds bfloat16
Work    4*H*D flop for each pair of a row and a token that it sees; the bytes of q, out and of the keys and values once
Source  as half.py and flash.py, of whose steps a tile is made; pages as in pages.py

Rows of no sequence may hold anything: none is read, and their rows of out are not written. What cannot be computed
whole comes out as NaN: a length above `longest` or beyond the last row, a context for which the page table has no
place or which is shorter than its length: the host does not see them.

Tiles of keys begin at the sequence's first token, 64 keys each (32 where D is no multiple of 32, in float32), whatever
tile of queries they are for. A key that a row does not see adds an exact zero. So a row has the same result, bit for
bit, in one launch for the whole prompt, in parts, and in any company.

What it should reach
    On an H200, one prompt of 4,096 tokens, H = 32, K = 8, D = 64, bfloat16: 68.7 GFLOP, causal. By count, not measured:
    a tile of 64 keys for a warp's 32 rows takes 128 mma.sync of 32 clocks of a quarter of an SM, 4,096 at half the peak
    of wgmma, and about 1,900 other instructions for exponentials, maxima, rounding and copies, which partly overlap. At
    60% of what mma.sync allows it is 0.23 ms a layer, 3.7 of the 17 ms that 4,096 tokens may take.
"""

import functools
import math
from dataclasses import replace

import numpy as np
from numba import float32, uint16, uint32

from labkit import cuda, device
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, check_array, dynamic_shared
from labkit.kernels.attention.flash import ASYNC, THREADS, make_copy_rows, make_flash_steps
from labkit.kernels.attention.half import KEYS, make_half_steps
from labkit.kernels.attention.heads import find_sentence
from labkit.kernels.attention.pages import (
    LOG2_E,
    PAGE,
    SIZES,
    as_matrix,
    attend_reference,
    check_paged,
    contiguous_by_torch,
    find_context,
    gather,
    make_attend,
    paged_inputs,
    rounding_errors,
)
from labkit.kernels.attention.sentences import begins_of
from labkit.kernels.attention.sentences_flash import multiprocessors, rows_in_shared
from labkit.kernels.baselines import Baseline
from labkit.kernels.dtypes import bfloat16_of
from labkit.kernels.matmul.mma import CHUNK, MMA
from labkit.kernels.op import Op, Work, rung, uniform
from labkit.kernels.reduce import ALL_LANES, NOTHING, ZERO

NAIVE_THREADS = 32


def paged_prefill_reference(q, keys, values, page_table, begins, lengths, contexts, scale, longest):
    return _of_each_sequence(attend_reference, q, keys, values, page_table, begins, lengths, contexts, scale)


def _of_each_sequence(attend, q, keys, values, page_table, begins, lengths, contexts, scale):
    """attend(rows, keys, values, first, scale) of each sequence, in its rows of the output; the others are NaN."""
    out = np.full(q.shape, np.nan)
    for s, (begin, length, tokens) in enumerate(zip(begins.astype(int), lengths.astype(int), contexts.astype(int),
                                                    strict=True)):
        if length:
            rows = slice(begin, begin + length)
            out[rows] = attend(q[rows], *(gather(cache, page_table[s], tokens) for cache in (keys, values)),
                               tokens - length, scale)
    return out


# --- One thread a row and head ----------------------------------------------------------------------------------------


@kernel_factory
def make_paged_prefill_naive(size: int, bf16: bool):
    attend = make_attend(size, bf16)

    @cuda.jit
    def paged_prefill_naive_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest):
        head, sequence = uint32(cuda.blockIdx.y), uint32(cuda.blockIdx.z)
        row = uint32(uint32(cuda.blockIdx.x) * uint32(NAIVE_THREADS) + uint32(cuda.threadIdx.x))
        begin, tokens, scale = find_sentence(begins, lengths, sequence, uint32(q.shape[0]), longest, scale)
        before, keys_seen, scale = find_context(contexts, sequence, tokens, uint32(page_table.shape[1]), scale)
        if row < tokens:
            attend(q, uint32(begin + row), head, keys, values, page_table, sequence,
                   min(uint32(before + row + uint32(1)), keys_seen), out, scale)

    return paged_prefill_naive_kernel


# --- Tiles of keys, float32 -------------------------------------------------------------------------------------------


def make_copy_tile(keys: int, size: int, pitch: int, threads: int, chunk: int, swizzled: bool = False):
    """A device function: starts the copies of the keys, or values, key0 to key0 + keys - 1 of one head of a sequence,
    which has `end` of them, from its pages to shared memory; zeros from `end` on. cache: (pages * K * PAGE, D)."""
    PAGES, ROWS = keys // PAGE, PAGE * pitch
    copy_page = make_copy_rows(PAGE, size, pitch, threads, chunk, swizzled)

    @cuda.jit(device=True)
    def copy_tile(shared, at, cache, page_table, sequence, key0, end, kv_heads, kv_head, thread):
        for n in range(PAGES):
            first = uint32(key0 + uint32(n * PAGE))
            # Behind the last page the table may hold anything: the last one stands in, and nothing of it is read.
            page = uint32(page_table[sequence, uint32(min(first, uint32(end - uint32(1))) // uint32(PAGE))])
            row = uint32(uint32(page * kv_heads + kv_head) * uint32(PAGE))
            rows = min(uint32(end - first), uint32(PAGE)) if first < end else uint32(0)
            copy_page(shared, uint32(at + uint32(n * ROWS)), cache, row, uint32(row + rows), uint32(0), thread)

    return copy_tile


@kernel_factory
def make_paged_prefill(size: int, down: int):
    """Attention for heads of `size` float32 numbers; a thread has `down` queries and eight keys of a tile, as in
    make_flash."""
    SIZE, DOWN = size, down
    PART = min(down, 4)
    ACROSS = 8 if size % 32 == 0 else 4
    GROUPS = THREADS // ACROSS
    ROWS, TILE = DOWN * GROUPS, 8 * ACROSS
    SCORES, QUADS = DOWN * 8, SIZE // (4 * ACROSS)
    COLUMNS = 4 * QUADS
    ACCUMULATORS, QUERY_PART = DOWN * COLUMNS, DOWN * 4
    PITCH, EXP_PITCH = SIZE + 4, TILE + 8  # neighbouring rows begin in different banks
    KEYS_AT = ROWS * PITCH
    VALUES_AT = KEYS_AT + TILE * PITCH
    EXP_AT = VALUES_AT + TILE * SIZE
    NUMBERS = EXP_AT + ROWS * EXP_PITCH
    DISTANCES = (4, 2, 1) if ACROSS == 8 else (2, 1)
    BLOCKS = max(1, min(4 if DOWN <= 2 else 3, 233_472 // (4 * NUMBERS + 1024)))
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, THREADS, 4)
    copy_keys = make_copy_tile(TILE, SIZE, PITCH, THREADS, 4)
    copy_values = make_copy_tile(TILE, SIZE, SIZE, THREADS, 4)
    read_four, add_scores, add_values, take_exponentials = make_flash_steps(SIZE, DOWN)

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def paged_prefill_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, kv_heads):
        shared = cuda.shared.array(0, float32)
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_part = cuda.local.array(QUERY_PART, float32)
        row_max = cuda.local.array(DOWN, float32)
        row_sum = cuda.local.array(DOWN, float32)
        thread = uint32(cuda.threadIdx.x)
        x, y = uint32(thread % uint32(ACROSS)), uint32(thread // uint32(ACROSS))
        rows, width = uint32(out.shape[0]), uint32(out.shape[1])
        head, sequence = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.z)
        head_column = uint32(head * uint32(SIZE))
        kv_head = uint32(head // uint32(uint32(cuda.gridDim.x) // kv_heads))
        begin, tokens, scale = find_sentence(begins, lengths, sequence, rows, longest, scale)
        before, seen, scale = find_context(contexts, sequence, tokens, uint32(page_table.shape[1]), scale)
        row0 = uint32(uint32(cuda.gridDim.y - cuda.blockIdx.y - 1) * uint32(ROWS))  # the most work comes first
        if row0 >= tokens:
            return
        seen_by_first = min(uint32(before + row0 + uint32(1)), seen)
        end = min(uint32(before + row0 + uint32(ROWS)), seen)  # no query here sees more
        for i in range(ACCUMULATORS):
            acc[i] = ZERO
        for i in range(DOWN):
            row_max[i], row_sum[i] = NOTHING, ZERO

        copy_queries(shared, uint32(0), q, uint32(begin + row0), uint32(begin + tokens), head_column, thread)
        if end > uint32(0):
            copy_keys(shared, uint32(KEYS_AT), keys, page_table, sequence, uint32(0), end, kv_heads, kv_head, thread)
        ptx.cp_async_commit()
        ptx.cp_async_wait(0)
        cuda.syncthreads()  # the queries and the first keys are there
        key0 = uint32(0)
        while key0 < end:
            # These values are on their way while the scores are computed, the next keys during the rest.
            copy_values(shared, uint32(VALUES_AT), values, page_table, sequence, key0, end, kv_heads, kv_head, thread)
            ptx.cp_async_commit()
            for i in range(SCORES):
                scores[i] = ZERO
            query_at, key_at = uint32(y * uint32(PITCH)), uint32(uint32(KEYS_AT) + x * uint32(PITCH))
            query_end = uint32(query_at + uint32(SIZE))
            while query_at < query_end:
                read_four(query_part, shared, query_at, PITCH)
                add_scores(scores, query_part, shared, key_at, 0)
                add_scores(scores, query_part, shared, key_at, 4)
                query_at, key_at = uint32(query_at + uint32(4)), uint32(key_at + uint32(4))
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # the values are there, and no thread reads these keys any more
            key1 = uint32(key0 + uint32(TILE))
            if key1 < end:
                copy_keys(shared, uint32(KEYS_AT), keys, page_table, sequence, key1, end, kv_heads, kv_head, thread)
            ptx.cp_async_commit()

            if key1 > seen_by_first:  # some query does not see some key of this tile
                for i in range(DOWN):
                    own = min(uint32(before + row0 + y + uint32(i * GROUPS + 1)), seen)
                    for j in range(8):
                        if uint32(key0 + x + uint32(j * ACROSS)) >= own:
                            scores[8 * i + j] = NOTHING
            exp_at = uint32(uint32(EXP_AT) + y * uint32(EXP_PITCH))
            take_exponentials(scores, acc, row_max, row_sum, shared, uint32(exp_at + x), scale, 0)
            if DOWN > PART:
                take_exponentials(scores, acc, row_max, row_sum, shared, uint32(exp_at + x), scale, PART)
            cuda.syncwarp()  # the exponentials of this warp's queries are complete; no other warp reads them

            value_at = uint32(uint32(VALUES_AT) + x * uint32(4))
            exp_end = uint32(exp_at + uint32(TILE))
            while exp_at < exp_end:
                read_four(query_part, shared, exp_at, EXP_PITCH)
                add_values(acc, query_part, shared, value_at, 0)
                add_values(acc, query_part, shared, value_at, 1)
                add_values(acc, query_part, shared, value_at, 2)
                add_values(acc, query_part, shared, value_at, 3)
                exp_at, value_at = uint32(exp_at + uint32(4)), uint32(value_at + uint32(4 * SIZE))
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # the next keys are there, and no thread reads these values any more
            key0 = key1

        for i in range(DOWN):
            whole = row_sum[i]
            for distance in DISTANCES:
                whole += cuda.shfl_xor_sync(ALL_LANES, whole, distance)
            share = float32(1.0) / whole
            t = uint32(row0 + y + uint32(i * GROUPS))
            if t < tokens:
                for quad in range(QUADS):
                    at = COLUMNS * i + 4 * quad
                    to = uint32((begin + t) * width + head_column + x * uint32(4) + uint32(quad * 4 * ACROSS))
                    ptx.store_global4(out, to, acc[at] * share, acc[at + 1] * share, acc[at + 2] * share,
                                      acc[at + 3] * share)

    paged_prefill_kernel.rows, paged_prefill_kernel.threads = ROWS, THREADS
    paged_prefill_kernel.shared_bytes = 4 * NUMBERS
    return paged_prefill_kernel


# --- Tiles of keys on tensor cores, bfloat16 --------------------------------------------------------------------------


@kernel_factory
def make_paged_prefill_mma(size: int, warps: int, down: int):
    """Attention for heads of `size` bfloat16 numbers; each of `warps` warps has `down` times 16 queries, as in
    make_flash_half. While a tile is multiplied, the next is on its way."""
    SIZE, DOWN = size, down
    THREADS, WARP_ROWS = 32 * warps, 16 * down
    ROWS = warps * WARP_ROWS
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(size)
    TILE = KEYS * PITCH
    STAGE, KEYS_AT = 2 * TILE, ROWS * PITCH
    STEPS, PIECES, ACROSS = SIZE // 16, SIZE // CHUNK, KEYS // 8
    SCORES, ACCUMULATORS, LANE_ROWS = DOWN * ACROSS * 4, DOWN * PIECES * 4, DOWN * 2
    WORDS = DOWN * 4
    KEPT = DOWN * STEPS <= 8  # the queries' words stay in registers; larger heads read them for every tile
    QUERY_WORDS = WORDS * STEPS if KEPT else WORDS
    MOVES = WARP_ROWS * PIECES // 32
    REGISTERS = 128 if size <= 64 and down == 1 else 256
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_rows = make_copy_tile(KEYS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    read_queries, add_scores, hide, take_exponentials, add_values = make_half_steps(SIZE, DOWN, KEYS, PITCH, True)

    @cuda.jit(device=True)
    def start_tile(shared, at, keys, values, page_table, sequence, key0, end, kv_heads, kv_head, thread):
        copy_rows(shared, at, keys, page_table, sequence, key0, end, kv_heads, kv_head, thread)
        copy_rows(shared, uint32(at + uint32(TILE)), values, page_table, sequence, key0, end, kv_heads, kv_head,
                  thread)

    @cuda.jit(launch_bounds=(THREADS, max(1, 65_536 // (REGISTERS * THREADS))))
    def paged_prefill_mma_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest,
                                 kv_heads):
        shared = cuda.shared.array(0, uint16)
        pairs = cuda.shared.array(0, uint32)  # the same memory, two bfloat16 numbers at a time
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_words = cuda.local.array(QUERY_WORDS, uint32)
        words = cuda.local.array(WORDS, uint32)
        row_max = cuda.local.array(LANE_ROWS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        thread = uint32(cuda.threadIdx.x)
        lane, warp = uint32(thread % uint32(32)), uint32(thread // uint32(32))
        rows, width = uint32(out.shape[0]), uint32(out.shape[1])
        head, sequence = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.z)
        head_column = uint32(head * uint32(SIZE))
        kv_head = uint32(head // uint32(uint32(cuda.gridDim.x) // kv_heads))
        begin, tokens, scale = find_sentence(begins, lengths, sequence, rows, longest, scale)
        before, seen, scale = find_context(contexts, sequence, tokens, uint32(page_table.shape[1]), scale)
        row0 = uint32(uint32(cuda.gridDim.y - cuda.blockIdx.y - 1) * uint32(ROWS))  # the most work comes first
        if row0 >= tokens:
            return
        mine = uint32(row0 + warp * uint32(WARP_ROWS))  # this warp's first row
        seen_by_first = min(uint32(before + mine + uint32(1)), seen)
        seen_by_last = min(uint32(before + mine + uint32(WARP_ROWS)), seen) if mine < tokens else uint32(0)
        end = min(uint32(before + row0 + uint32(ROWS)), seen)  # no query here sees more
        own = uint32(before + mine + lane // uint32(4) + uint32(1))  # what this lane's row 0 sees
        for i in range(ACCUMULATORS):
            acc[i] = ZERO
        for i in range(LANE_ROWS):
            row_max[i], row_sum[i] = NOTHING, ZERO

        swizzle = uint32(lane >> uint32(SHIFT) & uint32(MASK))
        query_at = uint32((warp * uint32(WARP_ROWS) + lane % uint32(16)) * uint32(PITCH))
        wide = uint32(lane // uint32(16) ^ swizzle)  # for queries and values: rows L % 16, right piece from lane 16 on
        key_at = uint32(KEYS_AT) + (lane % uint32(8) + lane // uint32(16) * uint32(8)) * uint32(PITCH)
        tall = uint32(lane // uint32(8) % uint32(2) ^ swizzle)  # for keys: the right piece before the next eight rows
        value_at = uint32(uint32(KEYS_AT + TILE) + lane % uint32(16) * uint32(PITCH))

        copy_queries(shared, uint32(0), q, uint32(begin + row0), uint32(begin + tokens), head_column, thread)
        ptx.cp_async_commit()
        if end > uint32(0):
            start_tile(shared, uint32(KEYS_AT), keys, values, page_table, sequence, uint32(0), end, kv_heads, kv_head,
                       thread)
        ptx.cp_async_commit()
        if KEPT:
            ptx.cp_async_wait(1)
            cuda.syncthreads()  # the queries are there
            for k in range(STEPS):
                read_queries(query_words, shared, query_at, wide, k, k * WORDS)
        key0, stage = uint32(0), uint32(0)
        while key0 < end:
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # this tile has landed, and the other has been read by every warp
            key1 = uint32(key0 + uint32(KEYS))
            if key1 < end:
                start_tile(shared, uint32(uint32(KEYS_AT + STAGE) - stage), keys, values, page_table, sequence, key1,
                           end, kv_heads, kv_head, thread)
                ptx.cp_async_commit()
            if key0 < seen_by_last:
                for i in range(SCORES):
                    scores[i] = ZERO
                for k in range(STEPS):
                    if KEPT:
                        add_scores(scores, query_words, shared, uint32(key_at + stage), tall, k, k * WORDS)
                    else:
                        read_queries(query_words, shared, query_at, wide, k, 0)
                        add_scores(scores, query_words, shared, uint32(key_at + stage), tall, k, 0)
                if key1 > seen_by_first:  # some query of this warp does not see some key of this tile
                    key = uint32(key0 + lane % uint32(4) * uint32(2))
                    for r in range(LANE_ROWS):
                        hide(scores, key, min(uint32(own + uint32(8 * r)), seen), r)
                for r in range(LANE_ROWS):
                    take_exponentials(scores, acc, row_max, row_sum, scale, r)
                for k in range(KEYS // 16):
                    add_values(scores, acc, words, shared, uint32(value_at + stage), wide, k)
            key0, stage = key1, uint32(uint32(STAGE) - stage)

        for r in range(LANE_ROWS):
            whole = row_sum[r]
            whole += cuda.shfl_xor_sync(ALL_LANES, whole, 1)
            whole += cuda.shfl_xor_sync(ALL_LANES, whole, 2)
            row_sum[r] = float32(1.0) / whole
        # Out through the place of this warp's queries, so that lanes store rows whole, 16 bytes each.
        ptx.cp_async_wait(0)
        cuda.syncwarp()  # all lanes have read the queries
        place0 = uint32(warp * uint32(WARP_ROWS * PITCH))
        for r in range(LANE_ROWS):
            row = uint32(lane // uint32(4) + uint32(8 * r))
            for j in range(PIECES):
                at = (r // 2 * PIECES + j) * 4 + r % 2 * 2
                piece = uint32(j) ^ row >> uint32(SHIFT) & uint32(MASK)
                to = uint32(place0 + row * uint32(PITCH) + piece * uint32(CHUNK))
                pairs[uint32(to // uint32(2) + lane % uint32(4))] = ptx.pack_bf162(acc[at] * row_sum[r],
                                                                                   acc[at + 1] * row_sum[r])
        cuda.syncwarp()
        for i in range(MOVES):
            move = uint32(lane + uint32(32 * i))
            row, piece = uint32(move // uint32(PIECES)), uint32(move % uint32(PIECES))
            swizzled = uint32(piece ^ row >> uint32(SHIFT) & uint32(MASK))
            a, b, c, d = ptx.load_shared4(shared, uint32(place0 + row * uint32(PITCH) + swizzled * uint32(CHUNK)))
            t = uint32(mine + row)
            if t < tokens:
                ptx.store_global4(out, uint32((begin + t) * width + head_column + piece * uint32(CHUNK)), a, b, c, d)

    paged_prefill_mma_kernel.rows, paged_prefill_mma_kernel.threads = ROWS, THREADS
    paged_prefill_mma_kernel.shared_bytes = 2 * (KEYS_AT + 2 * STAGE)
    return paged_prefill_mma_kernel


# --- The ladder -------------------------------------------------------------------------------------------------------


def check_prefill(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, *,
                  whole_lines=True) -> int:
    """As check_paged; what begins, lengths and contexts hold is checked by the kernels."""
    ratio = check_paged(q, keys, values, page_table, out, scale, whole_lines=whole_lines)
    check_array("lengths", lengths, ndim=1, dtype=np.int32)
    check_array("begins", begins, shape=lengths.shape, dtype=np.int32)
    check_array("contexts", contexts, shape=lengths.shape, dtype=np.int32)
    check_array("page_table", page_table, shape=(lengths.size, page_table.shape[1]), dtype=np.int32)
    if not isinstance(longest, (int, np.integer)) or not 1 <= longest <= q.shape[0]:
        raise ValueError(f"longest is {longest!r}; it must be a whole number from 1 to the {q.shape[0]:,} rows of q, "
                         f"and no length may be larger")
    if lengths.size > MAX_GRID_YZ or q.shape[1] > MAX_GRID_YZ:
        raise ValueError(f"{lengths.size:,} sequences of {q.shape[1]:,} heads are too many; at most {MAX_GRID_YZ:,} of "
                         f"each are allowed")
    return ratio


@rung(kernel=make_paged_prefill_naive(64, False), idea="one thread a row and head: two passes over the tokens it sees")
def paged_prefill_naive(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, *, stream=0):
    """One thread has one query, computes each score twice, and reads keys and values number by number, for itself
    alone."""
    check_prefill(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, whole_lines=False)
    kernel = make_paged_prefill_naive(q.shape[2], np.dtype(q.dtype) == np.uint16)
    grid = -(-longest // NAIVE_THREADS), q.shape[1], lengths.size
    kernel[grid, NAIVE_THREADS, stream](q, keys, values, page_table, begins, lengths, contexts, out, np.float32(scale),
                                        np.uint32(longest))


def rows_of_thread(size: int, heads: int, sequences: int, longest: int) -> int:
    """How many queries a thread of paged_prefill_flash has: as many as sequences need and as leave a block for each
    SM."""
    wanted, groups = multiprocessors(), THREADS // (8 if size % 32 == 0 else 4)
    down = 4 if device.on_gpu() else 1
    while down > 1 and (down * groups // 2 >= longest or heads * sequences * -(-longest // (down * groups)) < wanted):
        down //= 2
    return down


@rung(kernel=make_paged_prefill(64, 4), needs=ASYNC, sizes=f"float32, {SIZES}",
      idea="tiles of keys, corrected accumulators: no score goes to memory")
def paged_prefill_flash(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, *, stream=0):
    """As attention_flash, one launch for all sequences: a block takes 16 to 128 queries of one head of one sequence,
    and looks up the pages of each tile of keys. For float32."""
    check_prefill(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest)
    if np.dtype(q.dtype) != np.float32:
        raise ValueError(f"q has dtype {q.dtype}; without tensor cores only float32 is allowed")
    down = rows_of_thread(q.shape[2], q.shape[1], lengths.size, longest)
    _launch(make_paged_prefill(q.shape[2], down), q, keys, values, page_table, begins, lengths, contexts, out, scale,
            longest, stream)


FORMS = ((4, 2), (4, 1), (2, 1), (1, 1))  # warps of a block, and 16 queries so many times for each


def prefill_form(size: int, heads: int, sequences: int, longest: int) -> tuple[int, int]:
    """(warps, down): the most queries a block of which a smaller one would not do, and of which there is a block for
    each SM."""
    wanted = multiprocessors()
    # The widest takes a CPU twice as long to compile, and is no quicker there.
    for warps, down in FORMS if size <= 64 and wanted > 1 else FORMS[1:]:
        rows = 16 * warps * down
        if rows // 2 < longest and heads * sequences * -(-longest // rows) >= wanted:
            break
    return warps, down


@rung(kernel=make_paged_prefill_mma(64, 4, 2), needs=MMA, sizes=f"bfloat16, {SIZES}",
      idea="tiles of keys on tensor cores: scores and weights stay in registers")
def paged_prefill_mma(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, *, stream=0):
    """As attention_flash_half, in bfloat16: a block takes 16 to 128 queries of one head of one sequence, and cp.async
    brings the next tile from its pages while this one is multiplied. A warp leaves out tiles that none of its queries
    sees."""
    check_prefill(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest)
    if np.dtype(q.dtype) != np.uint16:
        raise ValueError(f"q has dtype {q.dtype}; on tensor cores only uint16, which holds bfloat16, is allowed")
    form = prefill_form(q.shape[2], q.shape[1], lengths.size, longest)
    _launch(make_paged_prefill_mma(q.shape[2], *form), q, keys, values, page_table, begins, lengths, contexts, out,
            scale, longest, stream)


def _launch(kernel, q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, stream):
    """Launches a kernel that one of the last two factories made. Arguments are checked before."""
    rows, heads, size = q.shape
    tiles = -(-longest // kernel.rows)
    if tiles > MAX_GRID_YZ:
        raise ValueError(f"longest is {longest:,}; at most {MAX_GRID_YZ * kernel.rows:,} are allowed")
    arguments = (q.reshape(rows, heads * size), as_matrix(keys), as_matrix(values), page_table, begins, lengths,
                 contexts, out.reshape(rows, heads * size), np.float32(scale * LOG2_E), np.uint32(longest),
                 np.uint32(keys.shape[1]))
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    kernel[(heads, tiles, lengths.size), kernel.threads, stream, kernel.shared_bytes](*arguments)


def paged_prefill(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, stream=0):
    """The rung to use. On the CPU device, where threads run one after the other, the simple one is the quickest."""
    if not device.on_gpu():
        launch = paged_prefill_naive
    else:
        launch = paged_prefill_mma if np.dtype(q.dtype) == np.uint16 else paged_prefill_flash
    launch(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, stream=stream)


# --- The operations --------------------------------------------------------------------------------------------------


def _lengths(B: int, S: int, shortest: int) -> np.ndarray:
    """From S down to `shortest`, in equal steps."""
    return np.linspace(S, shortest, B).round().astype(np.int32)


def _inputs(rng, B, S, shortest, before, H, KV, D, dtype=np.float32):
    lengths = _lengths(B, S, shortest)
    contexts = (lengths + before).astype(np.int32)
    keys, values, page_table = paged_inputs(rng, contexts, KV, D, dtype)
    q = 2 * uniform(rng, int(lengths.sum()), H, D)
    q = bfloat16_of(q) if dtype == np.uint16 else q
    return q, keys, values, page_table, begins_of(lengths), lengths, contexts, 1 / math.sqrt(D), S


def tolerance_prefill(q, keys, values, page_table, begins, lengths, contexts, scale, longest, *, bf16: bool):
    attend = functools.partial(attend_reference, tolerance=rounding_errors(bf16, q.shape[2]))
    return _of_each_sequence(attend, q, keys, values, page_table, begins, lengths, contexts, scale)


def sdpa_on_contiguous(torch, q, keys, values, page_table, begins, lengths, contexts, scale, longest, out):
    """SDPA, for prompts of one length and nothing before, whose keys and values lie end to end. Not timed: it pays for
    no gathering."""
    keys, values = contiguous_by_torch(keys, values, page_table, contexts)
    queries = q.view(len(keys), -1, *q.shape[1:]).transpose(1, 2)
    attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, scale=scale, is_causal=True,
                                                                enable_gqa=True)
    return attended.transpose(1, 2).reshape(q.shape)


def _bound(launch, op: str):
    """The launcher as an Op calls it: inputs, then out."""
    def bound(q, keys, values, page_table, begins, lengths, contexts, scale, longest, out, stream=0):
        launch(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, stream=stream)

    bound.__name__ = bound.__qualname__ = launch.__name__.replace("paged_prefill", op)
    bound.__doc__ = launch.__doc__
    return replace(launch, launcher=bound)


def _sizes(*sizes) -> tuple[dict, ...]:
    return tuple(dict(zip(("B", "S", "shortest", "before", "H", "KV", "D"), size, strict=True)) for size in sizes)


def _pairs(B: int, S: int, shortest: int, before: int) -> int:
    """Pairs of a row and a token that it sees."""
    lengths = _lengths(B, S, shortest).astype(np.int64)
    return int((lengths * before + lengths * (lengths + 1) // 2).sum())


def _op(name: str, title: str, launchers, awkward, dtype) -> Op:
    bf16 = dtype == np.uint16
    gpu = _sizes((1, 4096, 4096, 0, 32, 8, 64), (1, 1024, 1024, 0, 32, 8, 64), (16, 512, 512, 0, 32, 8, 64))
    return Op(
        name, title=title, reference=paged_prefill_reference, rungs=tuple(_bound(one, name) for one in launchers),
        formula="out[t, h] = sum over the tokens j <= t of t's sequence of softmax_j(q[t, h] . k[j, h // (H // K)] * "
                "scale) * v[j, h // (H // K)]",
        inputs=functools.partial(_inputs, dtype=dtype),
        shape=lambda B, S, shortest, before, H, KV, D: (int(_lengths(B, S, shortest).sum()), H, D),
        awkward=_sizes(*awkward),
        tolerance=functools.partial(tolerance_prefill, bf16=bf16),
        by_row=(), dtype=dtype,
        work=Work(
            flops=lambda B, S, shortest, before, H, KV, D: 4 * _pairs(B, S, shortest, before) * H * D,
            bytes=lambda B, S, shortest, before, H, KV, D: 2 * np.dtype(dtype).itemsize * D * (
                int(_lengths(B, S, shortest).sum()) * (H + KV) + B * before * KV),
            timed_gpu=gpu[0], also_gpu=gpu[1:], timed_cpu=_sizes((2, 17, 17, 0, 4, 2, 32))[0], unit="TFLOP/s",
            peak="f16" if bf16 else "fp32",
        ),
        baselines=(Baseline("PyTorch", "torch", sdpa_on_contiguous, "SDPA on contiguous keys and values"),),
    )


PAGED_PREFILL = _op("paged_prefill", "Causal attention over a paged cache", (paged_prefill_naive, paged_prefill_flash),
                    ((1, 1, 1, 0, 1, 1, 32), (3, 33, 0, 17, 6, 2, 80), (2, 70, 15, 40, 4, 4, 64)), np.float32)
PAGED_PREFILL_BF16 = _op("paged_prefill_bf16", "Causal attention over a paged cache, in bfloat16",
                         (paged_prefill_naive, paged_prefill_mma),
                         ((1, 1, 1, 0, 1, 1, 32), (3, 33, 0, 17, 6, 2, 80), (2, 70, 15, 40, 4, 4, 64)), np.uint16)
