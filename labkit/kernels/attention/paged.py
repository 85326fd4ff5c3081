"""Attention of one new token of each sequence over its pages, as decoding has it.

Shapes  q, out (B, H, D), R = H // K; keys, values, page_table as in pages.py; lengths (B,) int32 in device memory, the
        new token counted: its keys and values are in the cache. Length 0 is an empty slot, whose rows of out are zeros;
        a sequence whose page table is too short comes out as NaN. All float32, float16, or bfloat16 (uint16)
Work    4*H*D flop for each token of a sequence; its keys and values once, 4*K*D bytes a token in bfloat16. On an H200,
        64 sequences of 4,096 tokens, K = 8, D = 64, are 537 MB: 150 us at 85% of 4.2 TB/s. That is 27 KB a microsecond
        for each SM, whose 4 blocks of 4 warps have 8 KB each in flight: enough for a latency of 4.7 us
Source  T. Dao et al., "Flash-Decoding" (2023); W. Kwon et al., as pages.py
"""

import functools
from typing import NamedTuple

import numpy as np

from labkit import cuda, u32
from labkit.device import gpus
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, check_array, launch_tiled
from labkit.kernels.attention.paged_merge import MIN_SPLIT_PAGES, SPLITS, partial_stride
from labkit.kernels.attention.paged_split import (
    MOST,
    MOST_MMA,
    blocks_of_group,
    make_paged_decode,
    make_paged_decode_mma,
    stages_for,
)
from labkit.kernels.attention.pages import (
    LOG2_E,
    SIZES,
    as_matrix,
    attend_reference,
    check_paged,
    find_length,
    gather,
    make_attend,
)
from labkit.kernels.elements import FLOAT32, Element, element_of
from labkit.kernels.op import missing, rung
from labkit.kernels.pdl import uses_pdl

NAIVE_THREADS = 32


def paged_decode_reference(q, keys, values, page_table, lengths, scale, tolerance=None):
    """Apply attend_reference, with its `tolerance`, to each sequence; the row of an empty slot is zeros."""
    out = np.zeros(q.shape)
    for s, tokens in enumerate(lengths.astype(int)):
        if tokens:
            rows = (gather(cache, page_table[s], tokens) for cache in (keys, values))
            out[s] = attend_reference(q[s : s + 1], *rows, tokens - 1, scale, tolerance)[0]
    return out


# --- Scratch ----------------------------------------------------------------------------------------------------------


class DecodeParts(NamedTuple):
    """Device memory for the partial results of blocks, and for the counts of blocks that have arrived, one for each
    sequence and group of heads. Launches that run at the same time must not share it."""

    partial: object
    arrived: object


def decode_parts(sequences: int, heads: int, size: int, dtype=np.uint16) -> DecodeParts:
    """Allocate the workspace of paged_decode for up to so many sequences and query heads, of any lengths, and any
    number of heads of keys and values. dtype: that of q; all dtypes need the same."""
    num_partials = heads + heads // MOST  # in blocks_of_group the last block of a group may have unused space
    partial = cuda.device_array(sequences * SPLITS * num_partials * partial_stride(size), np.float32)
    return DecodeParts(partial, cuda.to_device(np.zeros(sequences * heads, np.uint32)))


@functools.cache
def _cached_parts(sequences: int, heads: int, size: int) -> DecodeParts:
    return decode_parts(sequences, heads, size)


def blocks_of_sequence(groups: int, pages: int, blocks_per_sm: int = 2) -> int:
    """Return how many blocks share a sequence of so many pages, for each group of heads, if the batch has `groups`
    of them: blocks_per_sm for each SM in all, so that a few long sequences keep the GPU busy. It does not affect
    the bits of the result."""
    return max(1, min(blocks_per_sm * gpus.sm_count() // groups, SPLITS, -(-pages // MIN_SPLIT_PAGES)))


def _launch_decode(factory, max_heads: int, splits: int, arguments, parts, stream, grid_x: int | None = None):
    """Launch a kernel of `factory`. max_heads: query heads of a block, at most. arguments: (q, ..., scale), as
    check_decode takes them. grid_x: blocks of a sequence and a head of keys."""
    ratio = check_decode(*arguments)
    q, keys, values, page_table, lengths, out, scale = arguments
    sequences, heads, size = q.shape
    kv_heads = heads // ratio
    blocks, heads_per_block = blocks_of_group(ratio, max_heads)
    parts = parts or _cached_parts(sequences, heads, size)
    num_elements = sequences * SPLITS * kv_heads * blocks * heads_per_block * partial_stride(size)
    if parts.partial.size < num_elements or parts.arrived.size < sequences * kv_heads * blocks:
        raise ValueError(f"parts are too small for {sequences} sequences of {heads} heads of {size} numbers; make them "
                         f"with decode_parts({sequences}, {heads}, {size})")
    element = element_of("q", q)
    if factory is make_paged_decode_mma:
        kernel = factory(size, heads_per_block, uses_pdl(sequences), stages_for(size) or 2, element)
    else:
        kernel = factory(size, heads_per_block, element, splits)
    kernel_arguments = (as_matrix(q), as_matrix(keys), as_matrix(values), page_table, lengths, as_matrix(out),
                        np.float32(scale * LOG2_E), np.uint32(ratio), np.uint32(kv_heads), *parts)
    # The sequence's length is not known here: blocks beyond its pages exit at once.
    if grid_x is None:
        # On an H200, 16 sequences of 1,024 tokens take 13.6 us with two blocks an SM, and 9.7 us with four.
        blocks_per_sm = 4 if factory is make_paged_decode_mma else 2
        grid_x = 1 if splits == 1 else blocks_of_sequence(kv_heads * blocks * sequences, page_table.shape[1],
                                                          blocks_per_sm)
    grid = grid_x, kv_heads * blocks, sequences
    launch_tiled(kernel, grid, stream, *kernel_arguments)


# --- The ladder -------------------------------------------------------------------------------------------------------


@kernel_factory
def make_paged_decode_naive(size: int, element: Element):
    attend = make_attend(size, element)

    @cuda.jit
    def paged_decode_naive_kernel(q, keys, values, page_table, lengths, out, scale):
        heads, thread = u32.shape(q)[1], u32.grid(1)
        sequence, head = thread // heads, thread % heads
        if sequence < u32.shape(q)[0]:
            tokens, scale = find_length(lengths, sequence, u32.shape(page_table)[1], scale)
            attend(q, sequence, head, (keys, values, page_table), sequence, tokens, out, scale)

    return paged_decode_naive_kernel


def check_decode(q, keys, values, page_table, lengths, out, scale, *, whole_lines=True) -> int:
    """As check_paged, of one row for each sequence."""
    ratio = check_paged(q, keys, values, page_table, out, scale, whole_lines=whole_lines)
    sequences = q.shape[0]
    check_array("lengths", lengths, shape=(sequences,), dtype=np.int32)
    check_array("page_table", page_table, shape=(sequences, page_table.shape[1]), dtype=np.int32)
    if sequences > MAX_GRID_YZ:
        raise ValueError(f"q has {sequences:,} sequences; at most {MAX_GRID_YZ:,} are allowed")
    return ratio


@rung(kernel=make_paged_decode_naive(64, FLOAT32), idea="one thread a sequence and head: two passes over its pages")
def paged_decode_naive(q, keys, values, page_table, lengths, out, scale, parts=None, *, stream=0):
    """One thread has one query, computes each score twice, and reads keys and values element by element. The cost of
    paging is one more load for each token, of its entry in the page table."""
    check_decode(q, keys, values, page_table, lengths, out, scale, whole_lines=False)
    kernel = make_paged_decode_naive(q.shape[2], element_of("q", q))
    blocks = -(-q.shape[0] * q.shape[1] // NAIVE_THREADS)
    kernel[blocks, NAIVE_THREADS, stream](q, keys, values, page_table, lengths, out, np.float32(scale))


@rung(kernel=make_paged_decode(64, 4, FLOAT32, 1), sizes=SIZES,
      idea="a block for each head of keys: online softmax in registers, 16 bytes at a time")
def paged_decode_one_block(q, keys, values, page_table, lengths, out, scale, parts=None, *, stream=0):
    """A block has the query heads that share keys and values, and reads these once. Its four warps take pages in turn;
    each group of lanes takes one key at a time and has its own row_max: no group waits for another. A few long
    sequences leave most of the GPU idle."""
    _launch_decode(make_paged_decode, MOST, 1, (q, keys, values, page_table, lengths, out, scale), parts, stream)


@rung(kernel=make_paged_decode(64, 4, FLOAT32, SPLITS), sizes=SIZES,
      idea="pages in up to 16 parts, over as many blocks as keep the GPU busy; the last one folds what all found")
def paged_decode_split(q, keys, values, page_table, lengths, out, scale, parts=None, *, stream=0):
    """As one_block, but in splits of 8 pages or more, which several blocks share if there are few sequences. A counter
    in global memory identifies the last block of a sequence and a head: it merges all splits in order."""
    _launch_decode(make_paged_decode, MOST, SPLITS, (q, keys, values, page_table, lengths, out, scale), parts, stream)


@rung(kernel=make_paged_decode_mma(64, 4, False, 3), sizes=SIZES,
      idea="as split, on tensor cores: query heads are rows of a factor, and cp.async keeps pages in flight")
def paged_decode_mma(q, keys, values, page_table, lengths, out, scale, parts=None, *, stream=0):
    """For elements of 16 bits. A page of 16 keys is one operand of mma.sync, the query heads of a group are the other.
    Each warp has three pages in shared memory, two of them still in flight; the products take so few instructions that
    loads set the time, for any ratio of heads."""
    if element_of("q", q) is FLOAT32:
        raise ValueError("q has dtype float32; on tensor cores uint16, which holds bfloat16, and float16 are allowed")
    arguments = q, keys, values, page_table, lengths, out, scale
    _launch_decode(make_paged_decode_mma, MOST_MMA, SPLITS, arguments, parts, stream)


def _on_tensor_cores(element: Element, size: int) -> bool:
    """Return whether the target's tensor cores multiply such elements, and its shared memory holds pages of them."""
    return element is not FLOAT32 and bool(stages_for(size)) and not missing(
        make_paged_decode_mma(64, 4, False, 3, element))


def paged_decode(q, keys, values, page_table, lengths, out, scale, parts, stream=0):
    """The rung to use. On the CPU device, where threads run one after the other, the simple one is the quickest."""
    if not gpus.chosen_on_gpu():
        launch = paged_decode_naive
    else:
        launch = paged_decode_mma if _on_tensor_cores(element_of("q", q), q.shape[-1]) else paged_decode_split
    launch(q, keys, values, page_table, lengths, out, scale, parts, stream=stream)
