"""Causal attention of the new tokens of several sequences over their pages, in one launch: a prompt, a part of one, the
rest of one whose prefix is cached, and single tokens beside them. A row has the same bits in any company.

Shapes  q, out (T, H, D), R = H // K; keys, values, page_table as in pages.py; begins, lengths, contexts (B,) int32 in
        device memory: rows begins[s] to begins[s] + lengths[s] - 1 are the last of sequence s's contexts[s] tokens, all
        in the cache. longest: no length is larger; it sets the grid. All float32, float16, or bfloat16 (uint16). The
        host does not see the lengths: a sequence beyond `longest`, the last row or its page table comes out as NaN
Work    4*H*D flop for each pair of a row and a token that it sees; the bytes of q, out, keys and values once. By count,
        one prompt of 4,096 tokens, H = 32, D = 64, takes 0.17 to 0.25 ms on an H200's tensor cores in bfloat16
Source  as flash_mma.py, flash.py and pages.py; the kernels with tiles are in paged_tiles.py
"""

import numpy as np

from labkit import cuda, u32
from labkit.device import gpus
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, check_array, launch_tiled
from labkit.kernels.attention.flash import flash_form
from labkit.kernels.attention.flash_mma import KEYS, mma_form
from labkit.kernels.attention.heads import check_longest, find_sentence
from labkit.kernels.attention.paged_tiles import make_paged_prefill, make_paged_prefill_mma
from labkit.kernels.attention.pages import (
    LOG2_E,
    SIZES,
    as_matrix,
    attend_reference,
    check_paged,
    find_context,
    gather,
    make_attend,
)
from labkit.kernels.elements import FLOAT32, Element, element_of
from labkit.kernels.op import missing, rung

NAIVE_THREADS = 32


def paged_prefill_reference(q, keys, values, page_table, begins, lengths, contexts, scale, longest, tolerance=None):
    """Apply attend_reference, with its `tolerance`, to each sequence; rows of no sequence are NaN."""
    out = np.full(q.shape, np.nan)
    for s, (begin, length, tokens) in enumerate(zip(begins.astype(int), lengths.astype(int), contexts.astype(int),
                                                    strict=True)):
        if length:
            rows = slice(begin, begin + length)
            out[rows] = attend_reference(q[rows], *(gather(cache, page_table[s], tokens) for cache in (keys, values)),
                                         tokens - length, scale, tolerance)
    return out


# --- One thread per row and head --------------------------------------------------------------------------------------


@kernel_factory
def make_paged_prefill_naive(size: int, element: Element):
    attend = make_attend(size, element)

    @cuda.jit
    def paged_prefill_naive_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest):
        head, sequence = u32.blockIdx.y, u32.blockIdx.z
        row = u32.blockIdx.x * NAIVE_THREADS + u32.threadIdx.x
        begin, tokens, scale = find_sentence(begins, lengths, sequence, u32.shape(q)[0], longest, scale)
        context_len, num_keys, scale = find_context(contexts, sequence, tokens, u32.shape(page_table)[1], scale)
        if row < tokens:
            attend(q, begin + row, head, (keys, values, page_table), sequence,
                   min(context_len + row + 1, num_keys), out, scale)

    return paged_prefill_naive_kernel


# --- The ladder -------------------------------------------------------------------------------------------------------


def check_prefill(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, *,
                  whole_lines=True) -> int:
    """As check_paged; what begins, lengths and contexts hold is checked by the kernels."""
    ratio = check_paged(q, keys, values, page_table, out, scale, whole_lines=whole_lines)
    check_array("lengths", lengths, ndim=1, dtype=np.int32)
    check_array("begins", begins, shape=lengths.shape, dtype=np.int32)
    check_array("contexts", contexts, shape=lengths.shape, dtype=np.int32)
    check_array("page_table", page_table, shape=(lengths.size, page_table.shape[1]), dtype=np.int32)
    check_longest(longest, "q", q, lengths)
    if q.shape[1] > MAX_GRID_YZ:
        raise ValueError(f"q has {q.shape[1]:,} heads; at most {MAX_GRID_YZ:,} are allowed")
    return ratio


@rung(kernel=make_paged_prefill_naive(64, FLOAT32),
      idea="one thread a row and head: two passes over the tokens it sees")
def paged_prefill_naive(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, *, stream=0):
    """One thread has one query, computes each score twice, and reads keys and values element by element; threads
    share nothing."""
    check_prefill(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, whole_lines=False)
    kernel = make_paged_prefill_naive(q.shape[2], element_of("q", q))
    grid = -(-longest // NAIVE_THREADS), q.shape[1], lengths.size
    kernel[grid, NAIVE_THREADS, stream](q, keys, values, page_table, begins, lengths, contexts, out, np.float32(scale),
                                        np.uint32(longest))


@rung(kernel=tuple(make_paged_prefill(64, queries, 8) for queries in (4, 2, 1)), sizes=f"float32, {SIZES}",
      idea="tiles of keys, corrected accumulators: no score goes to memory")
def paged_prefill_flash(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, *, stream=0):
    """As attention_flash, one launch for all sequences: a block takes 16 to 128 queries of one head of one sequence,
    and looks up the pages of each tile of keys. For float32."""
    arguments = q, keys, values, page_table, begins, lengths, contexts, out, scale, longest
    check_prefill(*arguments)
    if np.dtype(q.dtype) != np.float32:
        raise ValueError(f"q has dtype {q.dtype}; without tensor cores only float32 is allowed")
    _, heads, size = q.shape
    _launch(make_paged_prefill(size, *flash_form(size, heads * lengths.size, longest)), arguments, stream)


@rung(kernel=make_paged_prefill_mma(64, 4, 2, KEYS), sizes=f"bfloat16 or float16, {SIZES}",
      idea="tiles of keys on tensor cores: scores and weights stay in registers")
def paged_prefill_mma(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, *, stream=0):
    """As attention_flash_half, also in bfloat16: a block takes 16 to 128 queries of one head of one sequence, and
    cp.async brings the next tile from its pages while this one is multiplied. A warp skips tiles that none of its
    queries sees."""
    arguments = q, keys, values, page_table, begins, lengths, contexts, out, scale, longest
    check_prefill(*arguments)
    element = element_of("q", q)
    if element is FLOAT32:
        raise ValueError("q has dtype float32; on tensor cores uint16, which holds bfloat16, and float16 are allowed")
    _, heads, size = q.shape
    _launch(make_paged_prefill_mma(size, *mma_form(size, heads * lengths.size, longest), element), arguments, stream)


def _launch(kernel, arguments, stream):
    """Launch a kernel of make_paged_prefill or make_paged_prefill_mma. arguments: (q, ..., longest), as check_prefill
    takes them; the caller has checked them."""
    q, keys, values, page_table, begins, lengths, contexts, out, scale, longest = arguments
    rows, heads, size = q.shape
    tiles = -(-longest // kernel.rows)
    if tiles > MAX_GRID_YZ:
        raise ValueError(f"longest is {longest:,}; at most {MAX_GRID_YZ * kernel.rows:,} are allowed")
    kernel_arguments = (q.reshape(rows, heads * size), as_matrix(keys), as_matrix(values), page_table, begins, lengths,
                        contexts, out.reshape(rows, heads * size), np.float32(scale * LOG2_E), np.uint32(longest),
                        np.uint32(keys.shape[1]))
    launch_tiled(kernel, (heads, tiles, lengths.size), stream, *kernel_arguments)


def paged_prefill(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, stream=0):
    """The rung to use. On the CPU device, where threads run one after the other, the simple one is the quickest."""
    if not gpus.chosen_on_gpu():
        launch = paged_prefill_naive
    else:
        element = element_of("q", q)
        launch = paged_prefill_flash if element is FLOAT32 else (
            paged_prefill_naive if missing(make_paged_prefill_mma(64, 4, 2, KEYS, element)) else paged_prefill_mma)
    launch(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, stream=stream)
