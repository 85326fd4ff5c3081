"""Attention over sentences in tiles of keys: float16 on tensor cores, and float32.

Shapes  as in sentences.py: qkv (T, 3*H*D), out (T, H*D), begins and lengths (B,) int32; D a multiple of 16, float16 at
        most 128, float32 at most 256
Source  as flash.py and flash_mma.py, whose loops over tiles of keys these are

A block has a tile of queries of one sentence and one head; if it lies beyond the sentence, the block returns at once.
Nothing is read beyond a sentence's end: shared memory gets zeros, and their keys are masked. Tiles of keys begin at the
sentence's first row, and a masked key adds an exact zero: a sentence has the same bits alone, padded and packed.
"""

import numpy as np
from numba import float32

from labkit import cuda, u32
from labkit.device import gpus
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import launch_tiled, resident
from labkit.kernels.attention.flash import (
    THREADS,
    FlashTile,
    flash_form,
    make_contiguous_loop,
    make_copy_rows,
)
from labkit.kernels.attention.flash import scale_for_powers_of_two as scale_of
from labkit.kernels.attention.flash_mma import KEYS, MmaTile, make_contiguous_mma_loop, make_copy_elements, mma_form
from labkit.kernels.attention.heads import STEP, check_chunks, check_sentences, find_sentence, multiprocessors
from labkit.kernels.op import rung

WIDEST, WIDEST_HALF = 256, 128
SIZES = f"heads of a multiple of {STEP} numbers, at most {WIDEST}"
SIZES_HALF = f"heads of a multiple of {STEP} numbers, at most {WIDEST_HALF}"


def check_tiled(qkv, heads, begins, lengths, longest, out, dtype, widest: int) -> int:
    """As check_sentences, for rows that move 16 bytes at a time."""
    size = check_sentences(qkv, heads, begins, lengths, longest, out, dtype)
    check_chunks(size, widest, qkv=qkv, out=out)
    return size


# --- float16 ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_sentences_flash_half(size: int, warps: int, m_tiles: int, keys: int, stages: int, teams: int):
    """Attention for heads of `size` float16 values: a team of `warps` warps, with `m_tiles` tiles of 16 queries each,
    has a tile of queries of one head and takes tiles of `keys` keys, of which shared memory holds `stages`. A block has
    `teams` teams, with neighbouring heads; more than one only where a team is one warp, which needs no barrier of the
    block.

    The queries and the first two tiles of keys and values are in flight before the first product: up to 128 tokens, a
    block waits for memory once after it has read where its sentence lies. Longer sentences reuse the two stages.
    """
    TILE = MmaTile(size, warps, m_tiles, keys, first=stages, causal=False, stages=stages)
    SIZE, TEAMS, TEAM_THREADS, ROWS, WARP_ROWS = size, teams, TILE.threads, TILE.rows, 16 * m_tiles
    THREADS, TEAM_ELEMENTS = TEAM_THREADS * teams, TILE.elements
    ACCUMULATORS, LANE_ROWS = TILE.accumulators, TILE.lane_rows
    copy_queries = make_copy_elements(TILE, ROWS)
    attend, store_rows = make_contiguous_mma_loop(TILE)

    blocks = max(1, 65_536 // (TILE.registers * THREADS))

    @cuda.jit(launch_bounds=(THREADS, resident(blocks, THREADS, TEAMS * TILE.shared_bytes)))
    def attention_sentences_flash_half_kernel(qkv, begins, lengths, out, longest, scale):
        shared = cuda.shared.array(0, np.float16)
        acc = cuda.local.array(ACCUMULATORS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        row_max = cuda.local.array(LANE_ROWS, float32)
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
        attend(shared, team_offset, acc, row_sum, row_max, (qkv, begin, key_column, key_column + width),
               (tokens, tokens, max_visible, tokens, tokens), scale, thread)
        store_rows(shared, team_offset, acc, row_sum, out, (begin, row0, tokens), head_column, thread)

    kernel = attention_sentences_flash_half_kernel
    kernel.rows, kernel.threads, kernel.teams, kernel.shared_bytes = ROWS, THREADS, TEAMS, TEAMS * TILE.shared_bytes
    return kernel


def sentences_half_form(size: int, heads: int, sentences: int, longest: int) -> tuple[int, int, int, int, int]:
    """Return (warps, m_tiles, keys, stages, teams) of the kernel. Where a tile of queries belongs to one warp, the
    block takes up to four heads: a GPU starts blocks one after the other."""
    pairs = heads * sentences
    warps, m_tiles, keys = mma_form(size, pairs, longest)
    padded = 16 * -(-longest // 16)
    keys, stages = (keys, 2) if padded >= keys else (padded, 1)
    blocks = pairs * -(-longest // (16 * warps * m_tiles))
    team_bytes = MmaTile(size, warps, m_tiles, keys, stages=stages).shared_bytes
    teams = next(n for n in (4, 2, 1) if n == 1 or (
        warps == 1 and heads % n == 0 and blocks // n >= multiprocessors()
        and n * team_bytes <= gpus.target().shared_per_block))
    return warps, m_tiles, keys, stages, teams


@rung(kernel=make_sentences_flash_half(32, 4, 2, KEYS, 2, 1), sizes=SIZES_HALF,
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
    grid = (heads // kernel.teams, -(-longest // kernel.rows), lengths.size)
    launch_tiled(kernel, grid, stream, qkv, begins, lengths, out, np.uint32(longest), scale_of(size))


# --- float32 ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_sentences_flash(size: int, queries: int, keys_each: int = 8):
    """Attention for heads of `size` elements, with a FlashTile of `queries` queries of a thread."""
    TILE = FlashTile(size, queries, keys_each)
    SIZE, QUERIES, ROWS, ACCUMULATORS = size, queries, TILE.rows, queries * TILE.columns
    copy_queries = make_copy_rows(ROWS, SIZE, TILE.pitch, THREADS, 4)
    attend, store_rows = make_contiguous_loop(TILE)

    @cuda.jit(launch_bounds=(THREADS, resident(TILE.blocks, THREADS, TILE.shared_bytes)))
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


@rung(kernel=make_sentences_flash(32, 1, 8), sizes=SIZES,
      idea="tiles of keys, corrected accumulators: no score goes to memory")
def attention_sentences_flash(qkv, heads, begins, lengths, longest, out, *, stream=0):
    """As attention_flash, one launch for all sentences: a block takes 16 to 128 queries of a head of a sentence."""
    size = check_tiled(qkv, heads, begins, lengths, longest, out, np.float32, WIDEST)
    kernel = make_sentences_flash(size, *flash_form(size, heads * lengths.size, longest))
    launch_sentences(kernel, qkv, heads, begins, lengths, longest, out, stream)
