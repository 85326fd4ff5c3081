"""The paged KV cache: keys and values lie in pages of 16 tokens, and a table says which pages are a sequence's.

    token j of sequence s:  page = page_table[s, j // PAGE],  keys[page, head, j % PAGE],  values[page, head, j % PAGE]

Shapes  keys, values (pages, K, PAGE, D), float32, float16, or uint16 that holds bfloat16: the tokens of one head in one
        page are contiguous, 2 KB in 16 bits for D = 64, so memory is read in whole cache lines wherever the pages lie.
        page_table (B, max_pages) int32: entries after those of a sequence's pages may hold anything. H query heads, K
        heads of keys and values, H a multiple of K: query head h reads head h // (H // K)
Source  W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (2023)
"""

import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.kernels.arguments import check_array
from labkit.kernels.attention.heads import NOT_A_NUMBER, STEP, check_chunks
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import Element, element_of

PAGE = 16  # tokens
WIDEST = 128  # heads of the kernels that move 16 bytes at a time
SIZES = f"heads of a multiple of {STEP} numbers, at most {WIDEST}"
LOG2_E = math.log2(math.e)


# --- On the host ------------------------------------------------------------------------------------------------------


def pages_for(tokens: int) -> int:
    """Return how many pages the tokens fill, the last one perhaps in part."""
    return -(-tokens // PAGE)


def cache_shape(pages: int, kv_heads: int, size: int) -> tuple[int, int, int, int]:
    """Return the shape of a layer's keys, and of its values."""
    return pages, kv_heads, PAGE, size


def page_table_of(pages, max_pages: int | None = None, fill: int = -1) -> np.ndarray:
    """Make a table (B, max_pages) int32 of each sequence's list of pages, padded with `fill`."""
    pages = [list(each) for each in pages]
    longest = max((len(each) for each in pages), default=0)
    width = max(1, longest) if max_pages is None else max_pages
    if longest > width:
        raise ValueError(f"max_pages is {width}; a sequence has {longest} pages")
    table = np.full((len(pages), width), fill, np.int32)
    for row, each in zip(table, pages, strict=True):
        row[: len(each)] = each
    return table


def gather(cache: np.ndarray, page_row: np.ndarray, tokens: int) -> np.ndarray:
    """Gather the pages of one sequence into contiguous rows (tokens, K, D)."""
    chosen = cache[page_row[: pages_for(tokens)]]  # (pages, K, PAGE, D)
    return np.moveaxis(chosen, 1, 2).reshape(-1, *cache.shape[1::2])[:tokens]


def place(cache: np.ndarray, page_row: np.ndarray, rows: np.ndarray) -> None:
    """Scatter rows (tokens, K, D) of one sequence to its pages: the inverse of gather."""
    for j in range(0, len(rows), PAGE):
        part = rows[j : j + PAGE]
        cache[page_row[j // PAGE], :, : len(part)] = np.moveaxis(part, 0, 1)


# --- The reference ----------------------------------------------------------------------------------------------------


def attend_reference(queries, keys, values, context_len: int, scale: float, tolerance=None) -> np.ndarray:
    """Causal attention in float64 of rows (n, H, D), the tokens from context_len on of a sequence whose keys and values
    are (tokens, K, D). With `tolerance`, return not the result but tolerance(weights, scores, |q| . |k|, values) of
    each head."""
    queries, keys, values = (float64_of(np.ascontiguousarray(array)) for array in (queries, keys, values))
    out = np.empty(queries.shape)
    ratio = queries.shape[1] // keys.shape[1]
    visible = np.arange(len(keys)) <= context_len + np.arange(len(queries))[:, None]
    for head in range(queries.shape[1]):
        q, k, v = queries[:, head], keys[:, head // ratio], values[:, head // ratio]
        scores = q @ k.T * scale
        masked = np.where(visible, scores, -np.inf)
        weights = np.exp(masked - masked.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        if tolerance is None:
            out[:, head] = weights @ v
        else:
            magnitudes = np.where(visible, np.abs(q) @ np.abs(k).T * abs(scale), 0.0)
            out[:, head] = tolerance(weights, np.where(visible, scores, 0.0), magnitudes, v)
    return out


# --- What the launchers share -----------------------------------------------------------------------------------------


def check_paged(q, keys, values, page_table, out, scale, *, whole_lines: bool = True) -> int:
    """Return how many query heads share a head of keys and values, or raise an error that names the argument.
    whole_lines: the kernel moves 16 bytes at a time."""
    dtype = element_of("q", q).dtype
    check_array("q", q, ndim=3, dtype=dtype)
    check_array("keys", keys, ndim=4, dtype=dtype)
    _, heads, size = q.shape
    pages, kv_heads = keys.shape[:2]
    if keys.shape[2:] != (PAGE, size):
        raise ValueError(f"keys has shape {tuple(keys.shape)}; it must be (pages, K, {PAGE}, {size}): pages of {PAGE} "
                         f"tokens, and heads as large as those of q")
    check_array("values", values, shape=(pages, kv_heads, PAGE, size), dtype=dtype)
    check_array("page_table", page_table, ndim=2, dtype=np.int32)
    check_array("out", out, shape=q.shape, dtype=dtype)
    if heads % kv_heads:
        raise ValueError(f"q has {heads} heads and keys {kv_heads}; the first must be a multiple of the second")
    if not 0 < scale < math.inf:
        raise ValueError(f"scale is {scale}; it must be above 0, usually 1 / sqrt({size})")
    if whole_lines:
        check_chunks(size, WIDEST, q=q, keys=keys, values=values, out=out)
    return heads // kv_heads


def as_matrix(array):
    """Reshape to a matrix: all axes but the last become one."""
    return array.reshape(array.size // array.shape[-1], array.shape[-1])


# --- Device functions -------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def find_length(lengths, sequence, max_pages, scale):
    """Return (tokens of the sequence, the scale of its scores). If the page table is too short, the scale is NaN."""
    tokens, capacity = uint32(lengths[sequence]), max_pages * PAGE
    if tokens > capacity:
        tokens, scale = capacity, NOT_A_NUMBER
    return tokens, scale


@cuda.jit(device=True)
def find_context(contexts, sequence, tokens, max_pages, scale):
    """Return (tokens before the sequence's first row, its number of keys, the scale of its scores). If the
    table is too short for the keys, or there are fewer keys than rows, the scale is NaN, and so is the output."""
    seq_len = uint32(contexts[sequence])
    num_keys = min(seq_len, max_pages * PAGE)
    context_len = num_keys - uint32(tokens)
    if num_keys < seq_len or num_keys < tokens:
        context_len, scale = 0, NOT_A_NUMBER
    return context_len, num_keys, scale


def make_attend(size: int, element: Element):
    """Make a device function: one query against its keys in two passes, by one thread. First the maximum of the scores,
    then each score again, its exponential and the weighted value. Paging is the one line that finds the page."""
    SIZE, to_float, to_element = size, element.number, element.element

    @cuda.jit(device=True)
    def score_of(q, row, head, keys, page, kv_head, j):
        score = float32(0.0)
        for i in u32.range(SIZE):
            score += to_float(q[row, head, i]) * to_float(keys[page, kv_head, j % PAGE, i])
        return score

    @cuda.jit(device=True)
    def attend(q, row, head, cache, sequence, num_visible, out, scale):
        keys, values, page_table = cache
        acc = cuda.local.array(SIZE, float32)
        kv_head = head // (u32.shape(q)[1] // u32.shape(keys)[1])
        for i in range(SIZE):
            acc[i] = float32(0.0)
        row_max = float32(-np.inf)
        for j in u32.range(num_visible):
            page = uint32(page_table[sequence, j // PAGE])
            row_max = max(row_max, score_of(q, row, head, keys, page, kv_head, j) * scale)
        row_sum = float32(0.0)
        for j in u32.range(num_visible):
            page = uint32(page_table[sequence, j // PAGE])
            exponential = math.exp(score_of(q, row, head, keys, page, kv_head, j) * scale - row_max)
            row_sum += exponential
            for i in range(SIZE):
                acc[i] += exponential * to_float(values[page, kv_head, j % PAGE, i])
        inv_row_sum = float32(0.0) if num_visible == 0 else float32(1.0) / row_sum
        for i in range(SIZE):
            out[row, head, i] = to_element(acc[i] * inv_row_sum)

    return attend
