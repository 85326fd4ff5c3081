"""Queries, keys and values of a layer split into heads, and the outputs of attention merged again: copies that kernels
which read heads with strides do not need.

Shapes  part (T, H*D), T rows of sentences padded to S each; apart (T*H, 3*D): row (b*H + h)*S + s has the query, key
        and value of head h of token s of sentence b. merged (T, H*D). lengths (B,) int32, and for each sentence and
        head of it begins and lengths of its rows in `apart`, (B*H,) int32: to attention those are sentences of one head
Work    nothing is computed; 2*T*H*D elements a launch, read once and written once
"""

import numpy as np
from numba import uint32

from labkit import cuda, u32
from labkit.kernels.arguments import check_array

BLOCK = 256


@cuda.jit
def split_heads_kernel(part, seq, heads, col_offset, lengths, apart, head_begins, head_lengths):
    i = u32.grid(1)
    if col_offset == 0 and i < u32.size(head_begins):  # once a layer, with the queries
        head_begins[i], head_lengths[i] = i * seq, lengths[i // heads]
    if i < u32.size(part):
        width = u32.shape(part)[1]
        t, col = i // width, i % width
        size = width // heads
        row = (t // seq * heads + col // size) * seq + t % seq
        apart[row, col_offset + col % size] = part[t, col]


@cuda.jit
def merge_heads_kernel(apart, seq, heads, merged):
    i = u32.grid(1)
    if i < u32.size(merged):
        width = u32.shape(merged)[1]
        t, col = i // width, i % width
        size = width // heads
        row = (t // seq * heads + col // size) * seq + t % seq
        merged[t, col] = apart[row, col % size]


def split_heads(part, which: int, lengths, heads: int, apart, head_begins, head_lengths, stream=0):
    """Copy the queries (which = 0), keys (1) or values (2) to their columns of `apart`; with the queries, begins and
    lengths are written as well."""
    if which not in (0, 1, 2):
        raise ValueError(f"which is {which!r}; 0 for queries, 1 for keys and 2 for values are allowed")
    check_array("lengths", lengths, ndim=1, dtype=np.int32)
    rows, size = _check(part, lengths.size, heads)
    check_array("apart", apart, shape=(rows * heads, 3 * size), dtype=part.dtype)
    for name, array in (("head_begins", head_begins), ("head_lengths", head_lengths)):
        check_array(name, array, shape=(lengths.size * heads,), dtype=np.int32)
    seq = rows // lengths.size
    split_heads_kernel[-(-part.size // BLOCK), BLOCK, stream](
        part, uint32(seq), uint32(heads), uint32(which * size), lengths, apart, head_begins, head_lengths)


def merge_heads(apart, sentences: int, heads: int, merged, stream=0):
    """Merge the heads' outputs, (T*H, D), into rows (T, H*D)."""
    rows, size = _check(merged, sentences, heads)
    check_array("apart", apart, shape=(rows * heads, size), dtype=merged.dtype)
    merge_heads_kernel[-(-merged.size // BLOCK), BLOCK, stream](apart, uint32(rows // sentences), uint32(heads), merged)


def _check(array, sentences: int, heads: int) -> tuple[int, int]:
    """Return (rows, size of a head), or raise an error that says what does not fit."""
    check_array("part", array, ndim=2, dtype=array.dtype)
    rows, width = array.shape
    if sentences < 1 or rows % sentences:
        raise ValueError(f"{rows} rows are no whole number for each of {sentences} sentences; every sentence must be "
                         f"padded to the same")
    if heads < 1 or width % heads:
        raise ValueError(f"heads is {heads}; it must divide the width, {width}")
    return rows, width // heads
