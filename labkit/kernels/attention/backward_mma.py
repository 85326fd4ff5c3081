"""The gradients of causal attention on tensor cores, through mma.sync: one kernel for those of keys and values, and for
those of queries.

Shapes  as in backward.py, elements of 16 bits; accumulators in float32
Needs   compute capability 8.0 (mma m16n8k16)
Source  as backward.py; flash_mma.py has the layout of fragments

A block keeps the rows whose gradients it adds up, and tiles of the other side's rows pass by. Of keys: scores.T =
k @ q.T and grad_weights.T = v @ grad_out.T; of queries: scores = q @ k.T and grad_weights = grad_out @ v.T. Either way
the accumulators of these products, packed two to a word, are the first factor of the products with the passing rows.
"""

from dataclasses import dataclass

from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import resident
from labkit.kernels.attention.flash import make_copy_strided_rows
from labkit.kernels.attention.flash_mma import make_mma_steps, rows_in_shared
from labkit.kernels.attention.training import LOG2_E, find_sequence
from labkit.kernels.elements import Element
from labkit.kernels.matmul.mma import CHUNK
from labkit.kernels.reduce import ZERO

WARPS = 4
STAGES = 2  # of the passing rows: one is multiplied while the next is copied


@dataclass(frozen=True)
class BackwardTile:
    """What a block of four warps has: `m_tiles` times 16 rows a warp, for heads of `size` elements, and `passing` rows
    of the other side at a time. blocks: on an SM, which bounds the registers of a thread."""

    size: int
    m_tiles: int
    passing: int
    blocks: int

    @property
    def rows(self) -> int:
        return 16 * self.m_tiles * WARPS

    @property
    def stats_offset(self) -> int:
        """Where, in float32, lse and delta of the passing rows are: behind the elements."""
        return (self.rows + STAGES * self.passing) * rows_in_shared(self.size)[1]

    @property
    def shared_bytes(self) -> int:
        return 4 * (self.stats_offset + 2 * STAGES * self.passing)


# By size, the largest that an SM of Hopper has twice, or three times, without a spill.
KEY_TILES = {tile.size: tile for tile in (BackwardTile(32, 2, 32, 3), BackwardTile(64, 2, 32, 2),
                                          BackwardTile(128, 1, 32, 2))}
QUERY_TILES = KEY_TILES


@kernel_factory
def make_backward_mma(tile: BackwardTile, of_keys: bool, element: Element):
    """of_keys: the rows of a block are keys and values, and queries and grad_out pass by; out and second_out have their
    gradients. Otherwise the rows are queries and grad_out, keys and values pass by, and second_out is not used.

    first, second: the block's rows, and first_passing, second_passing those that pass by: flat arrays, each with its
    stride from row to row; out and second_out have that of first. group: query heads for each key-value head.
    """
    SIZE, M_TILES, PASSING, ROWS, WARP_ROWS = tile.size, tile.m_tiles, tile.passing, tile.rows, 16 * tile.m_tiles
    THREADS, LANE_ROWS = 32 * WARPS, 2 * tile.m_tiles
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(SIZE)
    SECOND, PASSING_OFFSET, SECOND_PASSING = ROWS * PITCH, 2 * ROWS * PITCH, PASSING * PITCH
    STAGE = 2 * SECOND_PASSING
    K_STEPS, CHUNKS, N_TILES, WORDS = SIZE // 16, SIZE // CHUNK, PASSING // 8, 4 * tile.m_tiles
    SCORES, ACCUMULATORS = M_TILES * N_TILES * 4, M_TILES * CHUNKS * 4
    SECOND_ACCUMULATORS = ACCUMULATORS if of_keys else 1
    IN_REGISTERS = M_TILES * K_STEPS <= 4  # of the block's rows; longer ones are read again for every tile
    ROW_WORDS, WORDS_STEP = (WORDS * K_STEPS, WORDS) if IN_REGISTERS else (WORDS, 0)
    STATS = tile.stats_offset
    ELEMENT, store_pair = element.dtype.type, element.store_pair
    copy_rows = make_copy_strided_rows(ROWS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_passing = make_copy_strided_rows(PASSING, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    read_rows, add_scores, _, _, add_rows = make_mma_steps(SIZE, M_TILES, PASSING, PITCH, element)

    @cuda.jit(device=True)
    def copy_stats(stats, dst, array, head, begin, row0, rows, thread):
        """Start the copies of a head's `PASSING` float32 from row0 on, zeros from row `rows` on."""
        if thread < PASSING:
            inside = row0 + thread < rows
            src = head * u32.shape(array)[1] + begin + row0 + thread
            ptx.cp_async_4(stats, dst + thread, array, src if inside else 0, 4 if inside else 0)

    @cuda.jit(device=True)
    def copy_stage(shared, stats, slot, sources, passing0, tokens, begin, head, column, thread):
        first, first_stride, second, second_stride, lse, delta = sources
        start = PASSING_OFFSET + slot * STAGE
        row0, rows = begin + passing0, begin + tokens
        copy_passing(shared, start, first, first_stride, row0, rows, column, thread)
        copy_passing(shared, start + SECOND_PASSING, second, second_stride, row0, rows, column, thread)
        if of_keys:
            stats_start = STATS + slot * 2 * PASSING
            copy_stats(stats, stats_start, lse, head, begin, passing0, tokens, thread)
            copy_stats(stats, stats_start + PASSING, delta, head, begin, passing0, tokens, thread)
        ptx.cp_async_commit()

    @cuda.jit(device=True)
    def weigh_of_keys(scores, products, stats, slot, row, passing0, scale, masked, lane):
        """Turn scores into weights and products into the gradients of scores. A column is a query."""
        for j in u32.range(N_TILES):
            for right in u32.range(2):
                col = 8 * j + lane % 4 * 2 + right
                shift = stats[STATS + slot * 2 * PASSING + col] * LOG2_E
                delta = stats[STATS + slot * 2 * PASSING + PASSING + col]
                for r in u32.range(LANE_ROWS):
                    n = (r // 2 * N_TILES + j) * 4 + r % 2 * 2 + right
                    weight = ptx.exp2_approx(scores[n] * scale - shift)
                    if masked and row + 8 * r > passing0 + col:
                        weight = ZERO
                    scores[n], products[n] = weight, weight * (products[n] - delta)

    @cuda.jit(device=True)
    def weigh_of_queries(products, scores, shifts, deltas, row, passing0, scale, masked, lane):
        """Turn products into the gradients of scores. A column is a key."""
        for r in u32.range(LANE_ROWS):
            for j in u32.range(N_TILES):
                for right in u32.range(2):
                    n = (r // 2 * N_TILES + j) * 4 + r % 2 * 2 + right
                    weight = ptx.exp2_approx(scores[n] * scale - shifts[r])
                    if masked and passing0 + (8 * j + lane % 4 * 2 + right) > row + 8 * r:
                        weight = ZERO
                    products[n] = weight * (products[n] - deltas[r])

    @cuda.jit(device=True)
    def store(out, stride, acc, factor, begin, row, tokens, column, lane):
        """Store this lane's elements of its rows; row: the lane's row 0."""
        for r in u32.range(LANE_ROWS):
            if row + 8 * r < tokens:
                offset = (begin + row + 8 * r) * stride + column + lane % 4 * 2
                for j in u32.range(CHUNKS):
                    n = (r // 2 * CHUNKS + j) * 4 + r % 2 * 2
                    store_pair(out, offset + 8 * j, acc[n] * factor, acc[n + 1] * factor)

    @cuda.jit(launch_bounds=(THREADS, resident(tile.blocks, THREADS, tile.shared_bytes)))
    def attention_backward_mma_kernel(first, second, first_passing, second_passing, lse, delta, cu_seqlens, out,
                                      second_out, longest, scale, grad_scale, group, first_stride, second_stride,
                                      first_passing_stride, second_passing_stride):
        shared = cuda.shared.array(0, ELEMENT)
        stats = cuda.shared.array(0, float32)  # the same memory
        acc = cuda.local.array(ACCUMULATORS, float32)
        second_acc = cuda.local.array(SECOND_ACCUMULATORS, float32)
        scores, products = cuda.local.array(SCORES, float32), cuda.local.array(SCORES, float32)
        first_words, second_words = cuda.local.array(ROW_WORDS, uint32), cuda.local.array(ROW_WORDS, uint32)
        words = cuda.local.array(WORDS, uint32)
        shifts, deltas = cuda.local.array(LANE_ROWS, float32), cuda.local.array(LANE_ROWS, float32)
        thread, head = u32.threadIdx.x, u32.blockIdx.x  # a key-value head, or one of queries
        lane = thread % 32
        begin, tokens, scale = find_sequence(cu_seqlens, u32.blockIdx.z, u32.shape(lse)[1], longest, scale)
        tile_row = u32.blockIdx.y if of_keys else u32.gridDim.y - 1 - u32.blockIdx.y  # the most work first
        row0 = tile_row * ROWS
        if row0 >= tokens:
            return
        warp_row0 = row0 + thread // 32 * WARP_ROWS
        row = warp_row0 + lane // 4  # the lane's row 0
        column = head * SIZE
        copy_rows(shared, 0, first, first_stride, begin + row0, begin + tokens, column, thread)
        copy_rows(shared, SECOND, second, second_stride, begin + row0, begin + tokens, column, thread)

        # The passing tiles: of keys, from the diagonal on, of each query head of the group; of queries, up to it.
        passing_begin = row0 // PASSING * PASSING if of_keys else 0
        passing_end = tokens if of_keys else min(row0 + ROWS, tokens)
        tiles = (passing_end - passing_begin + (PASSING - 1)) // PASSING
        steps = tiles * group if of_keys else tiles
        sources = first_passing, first_passing_stride, second_passing, second_passing_stride, lse, delta
        passing_head = head * group if of_keys else head // group
        passing0 = passing_begin
        copy_stage(shared, stats, 0, sources, passing0, passing_end, begin, passing_head, passing_head * SIZE, thread)

        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(SECOND_ACCUMULATORS):
            second_acc[i] = ZERO
        if not of_keys:
            for r in u32.range(LANE_ROWS):
                source = begin + min(row + 8 * r, tokens - 1)
                shifts[r], deltas[r] = lse[head, source] * LOG2_E, delta[head, source]
        swizzle = lane >> SHIFT & MASK
        row_offset = (thread // 32 * WARP_ROWS + lane % 16) * PITCH
        row_chunk = lane // 16 ^ swizzle  # of ldmatrix on the block's rows, and transposed on those that pass by
        scores_offset = PASSING_OFFSET + (lane % 8 + lane // 16 * 8) * PITCH
        scores_chunk = lane // 8 % 2 ^ swizzle
        add_offset = PASSING_OFFSET + lane % 16 * PITCH

        if IN_REGISTERS:
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # the block's rows have landed
            for k in range(K_STEPS):
                read_rows(first_words, shared, row_offset, row_chunk, k, k * WORDS)
                read_rows(second_words, shared, SECOND + row_offset, row_chunk, k, k * WORDS)
        slot = 0
        for step in u32.range(steps):
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # this tile has landed, and all warps are done with the other
            tile0 = passing0
            passing0 += PASSING
            if of_keys and passing0 >= passing_end:
                passing0, passing_head = passing_begin, passing_head + 1
            if step + 1 < steps:
                copy_stage(shared, stats, 1 - slot, sources, passing0, passing_end, begin, passing_head,
                           passing_head * SIZE, thread)
            stage = slot * STAGE
            # Some query of the pair of tiles sees some key of it; unless masked, each sees all.
            visible = tile0 + PASSING > warp_row0 if of_keys else tile0 < warp_row0 + WARP_ROWS
            masked = tile0 < warp_row0 + WARP_ROWS if of_keys else tile0 + PASSING > warp_row0
            if visible and warp_row0 < tokens:
                for i in u32.range(SCORES):
                    scores[i], products[i] = ZERO, ZERO
                for k in range(K_STEPS):
                    if not IN_REGISTERS:
                        read_rows(first_words, shared, row_offset, row_chunk, k, 0)
                        read_rows(second_words, shared, SECOND + row_offset, row_chunk, k, 0)
                    add_scores(scores, first_words, shared, stage + scores_offset, scores_chunk, k, k * WORDS_STEP)
                    add_scores(products, second_words, shared, stage + SECOND_PASSING + scores_offset, scores_chunk, k,
                               k * WORDS_STEP)
                if of_keys:
                    weigh_of_keys(scores, products, stats, slot, row, tile0, scale, masked, lane)
                    for k in range(PASSING // 16):
                        add_rows(scores, second_acc, words, shared, stage + SECOND_PASSING + add_offset, row_chunk, k)
                else:
                    weigh_of_queries(products, scores, shifts, deltas, row, tile0, scale, masked, lane)
                for k in range(PASSING // 16):
                    add_rows(products, acc, words, shared, stage + add_offset, row_chunk, k)
            slot = 1 - slot

        store(out, first_stride, acc, grad_scale, begin, row, tokens, column, lane)
        if of_keys:
            store(second_out, first_stride, second_acc, float32(1.0), begin, row, tokens, column, lane)

    kernel = attention_backward_mma_kernel
    kernel.rows, kernel.threads, kernel.shared_bytes = ROWS, THREADS, tile.shared_bytes
    return kernel
