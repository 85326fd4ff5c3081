"""Attention over sentences in tiles of keys: float16 on tensor cores, and float32.

Shapes  as in sentences.py: qkv (T, 3*H*D), out (T, H*D), begins and lengths (B,) int32
Sizes   D a multiple of 16; float16 at most 128, float32 at most 256
Source  as flash.py and flash_mma.py, whose loops over tiles of keys these are

A block takes a tile of queries of one sentence and one head; sentence and head come from the grid, the sentence's rows
from begins and lengths. A tile that lies beyond its sentence returns at once. For rows beyond a sentence's end shared
memory gets zeros, nothing is read, and their keys are masked: what those rows hold, be it NaN, reaches no result.

The tiles of keys begin at the sentence's first row, 64 keys each, whatever the form; a form with smaller tiles is
chosen only where every sentence fits into one of them, and a masked key adds an exact zero. So a sentence has the same
result, bit for bit, alone, padded to any length, and packed, in every form.
"""

import numpy as np
from numba import float32

from labkit import cuda, device, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, dynamic_shared
from labkit.kernels.attention.flash import ASYNC, STEP, THREADS, FlashTile, make_contiguous_loop, make_copy_rows
from labkit.kernels.attention.flash import scale_for_powers_of_two as scale_of
from labkit.kernels.attention.flash_mma import KEYS, MmaTile, make_contiguous_mma_loop, make_copy_elements
from labkit.kernels.attention.heads import check_sentences, find_sentence
from labkit.kernels.matmul.mma import MMA
from labkit.kernels.op import rung

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
    TILE = MmaTile(size, warps, m_tiles, keys, first=1 if keys < KEYS else 2, causal=False)
    SIZE, TEAMS, TEAM_THREADS, ROWS, WARP_ROWS = size, teams, TILE.threads, TILE.rows, 16 * m_tiles
    THREADS, TEAM_ELEMENTS = TEAM_THREADS * teams, TILE.elements
    ACCUMULATORS, LANE_ROWS = TILE.accumulators, TILE.lane_rows
    copy_queries = make_copy_elements(TILE, ROWS)
    attend, store_rows = make_contiguous_mma_loop(TILE)

    @cuda.jit(launch_bounds=(THREADS, max(1, 65_536 // (TILE.registers * THREADS))))
    def attention_sentences_flash_half_kernel(qkv, begins, lengths, out, longest, scale):
        shared = cuda.shared.array(0, np.float16)
        acc = cuda.local.array(ACCUMULATORS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        thread, team = u32.threadIdx.x % TEAM_THREADS, u32.threadIdx.x // TEAM_THREADS
        rows, width = u32.shape(out)
        head_column, team_offset = (u32.blockIdx.x * TEAMS + team) * SIZE, team * TEAM_ELEMENTS
        key_column = width + head_column
        begin, tokens, scale = find_sentence(begins, lengths, u32.blockIdx.z, rows, longest, scale)
        row0 = u32.blockIdx.y * ROWS  # counted from the sentence's first row, as keys are
        if row0 >= tokens:
            return
        max_visible = tokens if row0 + thread // 32 * WARP_ROWS < tokens else 0  # a warp without rows only copies
        copy_queries(shared, team_offset, qkv, begin + row0, begin + tokens, head_column, thread)
        attend(shared, team_offset, acc, row_sum, (qkv, begin, key_column, key_column + width),
               (tokens, tokens, max_visible, tokens, tokens), scale, thread)
        store_rows(shared, team_offset, acc, row_sum, out, (begin, row0, tokens), head_column, thread)

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
