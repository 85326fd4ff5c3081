"""Attention over sentences in tiles of keys: float16 on tensor cores, and float32.

Shapes  as in sentences.py: qkv (T, 3*H*D), out (T, H*D), begins and lengths (B,) int32
Sizes   D a multiple of 16; float16 at most 128, float32 at most 256
Source  as half.py and flash.py, whose device functions a tile uses

A block takes a tile of queries of one sentence and one head; sentence and head come from the grid, the sentence's rows
from begins and lengths. A tile that lies beyond its sentence returns at once. For rows beyond a sentence's end shared
memory gets zeros, nothing is read, and their keys are masked: what those rows hold, be it NaN, reaches no result.

The tiles of keys begin at the sentence's first row, 64 keys each, whatever the form; a form with smaller tiles is
chosen only where every sentence fits into one of them, and a masked key adds an exact zero. So a sentence has the same
result, bit for bit, alone, padded to any length, and packed, in every form.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, device, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, dynamic_shared
from labkit.kernels.attention.flash import ASYNC, STEP, THREADS, FlashTile, make_contiguous_loop, make_copy_rows
from labkit.kernels.attention.flash import scale_for_powers_of_two as scale_of
from labkit.kernels.attention.half import KEYS, make_half_steps
from labkit.kernels.attention.heads import check_sentences, find_sentence
from labkit.kernels.matmul.mma import CHUNK, MMA, swizzle_of
from labkit.kernels.op import rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

WIDEST, WIDEST_HALF = 256, 128
SIZES = f"heads of a multiple of {STEP} numbers, at most {WIDEST}"
SIZES_HALF = f"heads of a multiple of {STEP} numbers, at most {WIDEST_HALF}"


def check_tiled(qkv, heads, begins, lengths, longest, out, dtype, widest: int) -> int:
    """As check_sentences, for rows that move 16 bytes at a time."""
    size = check_sentences(qkv, heads, begins, lengths, longest, out, dtype)
    if size % STEP or size > widest:
        raise ValueError(f"a head has {size} numbers; it must be a multiple of {STEP}, at most {widest}")
    if not aligned(qkv, out):
        raise ValueError("qkv and out must begin at a multiple of 16 bytes; one is a view that does not")
    return size


def rows_in_shared(size: int) -> tuple[bool, int, int, int]:
    """Return (swizzled, pitch, shift, mask) for rows of `size` float16 values in shared memory, so that eight rows, as
    ldmatrix reads them, lie in different banks: swizzled where rows fill whole sets of banks, otherwise padded."""
    if size == 32 or size % 64 == 0:
        return True, size, *swizzle_of(size // CHUNK)
    return False, size + CHUNK, 0, 0


def multiprocessors() -> int:
    """Return how many blocks keep the whole GPU busy; on the CPU device, 1."""
    return device.sm_count() if device.on_gpu() else 1


# --- float16 ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_sentences_flash_half(size: int, warps: int, m_tiles: int, keys: int, teams: int):
    """Attention for heads of `size` float16 values: a team of `warps` warps, with `m_tiles` tiles of 16 queries each,
    has a tile of queries of one head and takes tiles of `keys` keys. A block has `teams` teams, with neighbouring
    heads; more than one only where a team is one warp, which needs no barrier of the block.

    The queries and the first two tiles of keys and values are in flight before the first product: up to 128 tokens, a
    block waits for memory once after it has read where its sentence lies. Longer sentences reuse the two stages.
    """
    SIZE, M_TILES, TEAMS = size, m_tiles, teams
    TEAM_THREADS, WARP_ROWS = 32 * warps, 16 * m_tiles
    THREADS, ROWS, ONE_WARP = TEAM_THREADS * teams, warps * WARP_ROWS, warps == 1
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(size)
    TILE = keys * PITCH
    STAGES = 1 if keys < KEYS else 2  # smaller tiles are for sentences that fit into one
    PENDING = STAGES - 1
    STAGE, KEYS_OFFSET = 2 * TILE, ROWS * PITCH
    TEAM_ELEMENTS = KEYS_OFFSET + STAGES * STAGE  # shared memory of a team
    K_STEPS, CHUNKS, N_TILES = SIZE // 16, SIZE // CHUNK, keys // 8
    SCORES, ACCUMULATORS, LANE_ROWS = M_TILES * N_TILES * 4, M_TILES * CHUNKS * 4, M_TILES * 2
    WORDS = M_TILES * 4
    Q_IN_REGISTERS = M_TILES * K_STEPS <= 8  # the queries' words stay in registers
    QUERY_WORDS = WORDS * K_STEPS if Q_IN_REGISTERS else WORDS
    STORES = WARP_ROWS * CHUNKS // 32
    REGISTERS = (128 if size <= 64 else 256) if m_tiles == 1 else 168 if size <= 32 else 256
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, TEAM_THREADS, CHUNK, SWIZZLED)
    copy_rows = make_copy_rows(keys, SIZE, PITCH, TEAM_THREADS, CHUNK, SWIZZLED)
    read_queries, add_scores, mask_scores, online_softmax_update, add_values = make_half_steps(SIZE, M_TILES, keys,
                                                                                               PITCH)

    @cuda.jit(device=True)
    def copy_tile(shared, offset, qkv, row, end, key_column, width, team_thread):
        copy_rows(shared, offset, qkv, row, end, key_column, team_thread)
        copy_rows(shared, offset + TILE, qkv, row, end, key_column + width, team_thread)

    @cuda.jit(device=True)
    def team_sync():
        """Make what each thread of the team has copied visible to all of it."""
        if ONE_WARP:
            cuda.syncwarp()
        else:
            cuda.syncthreads()

    @cuda.jit(launch_bounds=(THREADS, max(1, 65_536 // (REGISTERS * THREADS))))
    def attention_sentences_flash_half_kernel(qkv, begins, lengths, out, longest, scale):
        shared = cuda.shared.array(0, np.float16)
        pairs = cuda.shared.array(0, uint32)  # the same memory, two float16 values at a time
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_words = cuda.local.array(QUERY_WORDS, uint32)
        words = cuda.local.array(WORDS, uint32)
        row_max = cuda.local.array(LANE_ROWS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        thread = u32.threadIdx.x
        lane, team_thread, team = thread % 32, thread % TEAM_THREADS, thread // TEAM_THREADS
        rows, width = u32.shape(out)
        head_column = (u32.blockIdx.x * TEAMS + team) * SIZE
        key_column = width + head_column
        begin, tokens, scale = find_sentence(begins, lengths, u32.blockIdx.z, rows, longest, scale)
        row0 = u32.blockIdx.y * ROWS  # counted from the sentence's first row, as keys are
        if row0 >= tokens:
            return
        end = begin + tokens
        warp_row0 = team_thread // 32 * WARP_ROWS  # this warp's first row in the tile
        active = row0 + warp_row0 < tokens  # otherwise the warp only copies
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(LANE_ROWS):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        team_offset = team * TEAM_ELEMENTS
        swizzle = lane >> SHIFT & MASK
        query_offset = team_offset + (warp_row0 + lane % 16) * PITCH
        query_chunk = lane // 16 ^ swizzle  # for queries and values: rows L % 16, the right chunk from lane 16 on
        stage = team_offset + KEYS_OFFSET
        key_offset = (lane % 8 + lane // 16 * 8) * PITCH
        key_chunk = lane // 8 % 2 ^ swizzle  # for keys: the right chunk before the next eight rows
        value_offset = TILE + lane % 16 * PITCH

        copy_queries(shared, team_offset, qkv, begin + row0, end, head_column, team_thread)
        copy_tile(shared, stage, qkv, begin, end, key_column, width, team_thread)
        ptx.cp_async_commit()
        if STAGES == 2:
            if tokens > keys:
                copy_tile(shared, stage + STAGE, qkv, begin + keys, end, key_column, width, team_thread)
            ptx.cp_async_commit()
        ptx.cp_async_wait(PENDING)
        team_sync()  # the queries and the first tile have arrived
        if Q_IN_REGISTERS:
            for k in range(K_STEPS):
                read_queries(query_words, shared, query_offset, query_chunk, k, k * WORDS)
        key0, next_stage = 0, stage + STAGE
        while key0 < tokens:
            key1 = key0 + keys
            if active:
                for i in u32.range(SCORES):
                    scores[i] = ZERO
                for k in range(K_STEPS):
                    if Q_IN_REGISTERS:
                        add_scores(scores, query_words, shared, stage + key_offset, key_chunk, k, k * WORDS)
                    else:
                        read_queries(query_words, shared, query_offset, query_chunk, k, 0)
                        add_scores(scores, query_words, shared, stage + key_offset, key_chunk, k, 0)
                if key1 > tokens:
                    key = key0 + lane % 4 * 2
                    for r in u32.range(LANE_ROWS):
                        mask_scores(scores, key, tokens, r)
                for r in u32.range(LANE_ROWS):
                    online_softmax_update(scores, acc, row_max, row_sum, scale, r)
                for k in range(keys // 16):
                    add_values(scores, acc, words, shared, stage + value_offset, query_chunk, k)
            if STAGES == 2 and key1 < tokens:
                key2 = key1 + keys
                if key2 < tokens:
                    team_sync()  # all warps are done with this tile
                    copy_tile(shared, stage, qkv, begin + key2, end, key_column, width, team_thread)
                ptx.cp_async_commit()
                ptx.cp_async_wait(PENDING)
                team_sync()  # the next tile has arrived
                stage, next_stage = next_stage, stage
            key0 = key1

        if active:
            for r in u32.range(LANE_ROWS):
                denominator = row_sum[r]
                denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 1)
                denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 2)
                row_sum[r] = float32(1.0) / denominator
            # Stage the output where this warp's queries were, so that lanes store whole rows, 16 bytes each.
            cuda.syncwarp()  # all lanes are done with the queries
            warp_offset = team_offset + warp_row0 * PITCH
            for r in u32.range(LANE_ROWS):
                row = lane // 4 + 8 * r
                for j in u32.range(CHUNKS):
                    offset = (r // 2 * CHUNKS + j) * 4 + r % 2 * 2
                    chunk = j ^ row >> SHIFT & MASK
                    shared_offset = warp_offset + row * PITCH + chunk * CHUNK
                    pairs[shared_offset // 2 + lane % 4] = ptx.pack_half2(acc[offset] * row_sum[r],
                                                                          acc[offset + 1] * row_sum[r])
            cuda.syncwarp()
            for i in u32.range(STORES):
                index = lane + 32 * i
                row, chunk = index // CHUNKS, index % CHUNKS
                swizzled_chunk = chunk ^ row >> SHIFT & MASK
                x, y, z, w = ptx.load_shared4(shared, warp_offset + row * PITCH + swizzled_chunk * CHUNK)
                t = row0 + warp_row0 + row
                if t < tokens:
                    ptx.store_global4(out, (begin + t) * width + head_column + chunk * CHUNK, x, y, z, w)

    kernel = attention_sentences_flash_half_kernel
    kernel.rows, kernel.threads, kernel.teams, kernel.shared_bytes = ROWS, THREADS, TEAMS, 2 * TEAMS * TEAM_ELEMENTS
    return kernel


FORMS = ((4, 2), (4, 1), (2, 1), (1, 1))  # warps of a team, tiles of 16 queries of a warp


def sentences_half_form(size: int, heads: int, sentences: int, longest: int) -> tuple[int, int, int, int]:
    """Return (warps, m_tiles, keys, teams) of the kernel: the tallest tile of queries that a sentence needs and that
    leaves a block for each SM, so that keys and values are reused most. Where a tile belongs to one warp, the block
    takes up to four heads: a GPU starts blocks one after the other."""
    keys = min(KEYS, 16 * -(-longest // 16))
    min_blocks = multiprocessors()
    # The tallest takes a CPU twice as long to compile, and is no faster there.
    for warps, m_tiles in FORMS if size <= 64 and min_blocks > 1 else FORMS[1:]:
        rows = 16 * warps * m_tiles
        blocks = heads * sentences * -(-longest // rows)
        if rows // 2 < longest and blocks >= min_blocks:
            break
    teams = next(n for n in (4, 2, 1) if n == 1 or warps == 1 and heads % n == 0 and blocks // n >= min_blocks)
    return warps, m_tiles, keys, teams


@rung(kernel=make_sentences_flash_half(32, 4, 2, KEYS, 1), needs=MMA, sizes=SIZES_HALF,
      idea="tiles of keys on tensor cores: scores and weights stay in registers")
def attention_sentences_flash_half(qkv, heads, begins, lengths, longest, out, *, stream=0):
    """A block takes 16 to 128 queries of a head of a sentence. Where a sentence fits into a tile of queries, its keys
    and values are loaded once; no score goes to memory, and the padding of a padded batch is skipped."""
    size = check_tiled(qkv, heads, begins, lengths, longest, out, np.float16, WIDEST_HALF)
    form = sentences_half_form(size, heads, lengths.size, longest)
    launch_sentences(make_sentences_flash_half(size, *form), qkv, heads, begins, lengths, longest, out, stream)


def launch_sentences(kernel, qkv, heads, begins, lengths, longest, out, stream=0) -> None:
    """Launch a kernel that one of the factories here made. The arguments must have been checked."""
    size = out.shape[1] // heads
    arguments = (qkv, begins, lengths, out, np.uint32(longest), scale_of(size))
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    grid = (heads // kernel.teams, -(-longest // kernel.rows), lengths.size)
    kernel[grid, kernel.threads, stream, kernel.shared_bytes](*arguments)


# --- float32 ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_sentences_flash(size: int, queries: int):
    """Attention for heads of `size` elements, with a FlashTile of `queries` queries of a thread."""
    TILE = FlashTile(size, queries)
    SIZE, QUERIES, ROWS, ACCUMULATORS = size, queries, TILE.rows, queries * TILE.columns
    copy_queries = make_copy_rows(ROWS, SIZE, TILE.pitch, THREADS, 4)
    attend, store_rows = make_contiguous_loop(TILE)

    @cuda.jit(launch_bounds=(THREADS, TILE.blocks))
    def attention_sentences_flash_kernel(qkv, begins, lengths, out, longest, scale):
        shared = cuda.shared.array(0, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        row_sum = cuda.local.array(QUERIES, float32)
        thread = u32.threadIdx.x
        rows, width = u32.shape(out)
        head_column = u32.blockIdx.x * SIZE
        key_column = width + head_column
        begin, tokens, scale = find_sentence(begins, lengths, u32.blockIdx.z, rows, longest, scale)
        row0 = u32.blockIdx.y * ROWS  # counted from the sentence's first row, as keys are
        if row0 >= tokens:
            return
        copy_queries(shared, 0, qkv, begin + row0, begin + tokens, head_column, thread)
        attend(shared, acc, row_sum, (qkv, begin, key_column, key_column + width),
               (tokens, tokens, tokens, tokens), scale, thread)
        store_rows(out, begin, row0, tokens, head_column, acc, row_sum, thread)

    kernel = attention_sentences_flash_kernel
    kernel.rows, kernel.threads, kernel.teams, kernel.shared_bytes = ROWS, THREADS, 1, TILE.shared_bytes
    return kernel


def sentences_flash_rows(size: int, heads: int, sentences: int, longest: int) -> int:
    """Queries per thread: as many as sentences need and as leave a block for each SM."""
    min_blocks, groups = multiprocessors(), THREADS // (8 if size % 32 == 0 else 4)
    queries = 1 if not device.on_gpu() else 4 if size <= 128 else 2
    while queries > 1 and (queries * groups // 2 >= longest
                           or heads * sentences * -(-longest // (queries * groups)) < min_blocks):
        queries //= 2
    return queries


@rung(kernel=make_sentences_flash(32, 1), needs=ASYNC, sizes=SIZES,
      idea="tiles of keys, corrected accumulators: no score goes to memory")
def attention_sentences_flash(qkv, heads, begins, lengths, longest, out, *, stream=0):
    """As attention_flash, one launch for all sentences: a block takes 16 to 128 queries of a head of a sentence."""
    size = check_tiled(qkv, heads, begins, lengths, longest, out, np.float32, WIDEST)
    down = sentences_flash_rows(size, heads, lengths.size, longest)
    launch_sentences(make_sentences_flash(size, down), qkv, heads, begins, lengths, longest, out, stream)
