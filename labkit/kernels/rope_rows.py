"""Rotary position embedding of contiguous rows, for training: queries and keys are rotated where QKV lies; and its
gradient, the rotation by the negative angle.

Shapes  qkv, out (T, H, D): the query heads of a token, its key heads, its value heads; both float32, both float16, or
        both uint16, which holds bfloat16; `out` may be `qkv`: in place. The first `rotated` heads are rotated, the
        others copied. table (P, D) float32 from rope_table; positions (T,) int32; C-contiguous, D even
Work    6 flops for each pair; each element is read once and written once; in place the values are not touched
Source  Su et al.: RoFormer (2021), https://arxiv.org/abs/2104.09864; Liger Kernel, `rope.py`

A rotation is orthogonal, so the gradient of its input is that of its output rotated back.
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import blocks_for, check_array, unsigned
from labkit.kernels.eights import ACCESS, in_eights
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung
from labkit.kernels.rope import check_head_dim, rotated_reference

BLOCK = 256
NAN = float32(np.nan)


def rope_rows_reference(qkv, table, positions, rotated: int, inverse: bool = False):
    """Return float64."""
    if inverse:
        half = table.shape[1] // 2
        table = np.concatenate([table[:, :half], -table[:, half:]], axis=1)
    whole = rotated_reference(qkv, table, positions)
    unrotated = rotated_reference(qkv, np.repeat([1.0, 0.0], qkv.shape[2] // 2)[None], 0 * positions)
    return np.concatenate([whole[:, :rotated], unrotated[:, rotated:]], axis=1)


@kernel_factory
def make_rope_rows_per_thread(element: Element, inverse: bool):
    load, store, _, _, _ = ACCESS[element]

    @cuda.jit
    def rope_rows_per_thread_kernel(qkv, table, positions, out, heads, half, rotated):  # qkv and out are flat
        i = u32.grid(1)  # a pair of a head of a token
        if i < (out.size >> 1):
            head, d = i // half, i % half
            first = head * 2 * half + d
            a, b, cos, sin = load(qkv, first), load(qkv, first + half), float32(1.0), float32(0.0)
            if head % heads < rotated:
                position = uint32(positions[head // heads])  # negatives become huge
                cos, sin = NAN, NAN
                if position < u32.shape(table)[0]:
                    cos, sin = table[position, d], table[position, half + d]
            if inverse:
                sin = -sin
            store(out, first, a * cos - b * sin)
            store(out, first + half, b * cos + a * sin)

    return rope_rows_per_thread_kernel


@kernel_factory
def make_rope_rows(element: Element, inverse: bool):
    (load, store), (load_table, _) = ACCESS[element].eight, ACCESS[FLOAT32].eight

    @cuda.jit
    def rope_rows_vectorized_kernel(qkv, table, positions, out, heads, half, rotated, moved):
        """moved: heads of a token to rotate or to copy. table is flat, too."""
        i, eights = u32.grid(1), half >> 3
        token, head, d = i // (eights * moved), i // eights % moved, 8 * (i % eights)
        if token < u32.size(positions):
            first, valid = (token * heads + head) * 2 * half + d, int32(8)
            a, b = cuda.local.array(8, float32), cuda.local.array(8, float32)
            cos, sin = cuda.local.array(8, float32), cuda.local.array(8, float32)
            load(a, 0, qkv, first, valid)
            load(b, 0, qkv, first + half, valid)
            if head < rotated:
                row = uint32(positions[token]) * 2 * half
                known = uint32(positions[token]) < u32.size(table) // (2 * half)
                load_table(cos, 0, table, row + d, int32(8) if known else int32(0))
                load_table(sin, 0, table, row + half + d, int32(8) if known else int32(0))
                for e in range(8):
                    c, s = (cos[e] if known else NAN), (-sin[e] if inverse else sin[e])
                    a[e], b[e] = a[e] * c - b[e] * s, b[e] * c + a[e] * s
            store(out, first, valid, a, 0)
            store(out, first + half, valid, b, 0)

    return rope_rows_vectorized_kernel


@rung(kernel=make_rope_rows_per_thread(BFLOAT16, False), idea="one pair a thread")
def rope_rows_per_thread(qkv, table, positions, out, rotated, inverse=False, stream=0):
    """One thread rotates one pair of elements."""
    element = _check(qkv, table, positions, out, rotated)
    _, heads, dim = qkv.shape
    make_rope_rows_per_thread(element, inverse)[blocks_for((qkv.size // 2,), (BLOCK,)), BLOCK, stream](
        flat(qkv), table, positions, flat(out), *unsigned(heads, dim // 2, rotated))


@rung(kernel=(make_rope_rows(BFLOAT16, False), make_rope_rows_per_thread(BFLOAT16, False)),
      idea="eight pairs a thread, 128 bits at a time")
def rope_rows_vectorized(qkv, table, positions, out, rotated, inverse=False, stream=0):
    """As per_thread, but a thread rotates eight neighbouring pairs, and in place the values are not touched. Heads that
    are no multiple of 16 wide, and views that are not aligned, take per_thread's kernel."""
    rope_rows(qkv, table, positions, out, rotated, inverse=inverse, stream=stream)


def rope_rows(qkv, table, positions, out, rotated, inverse=False, stream=0):
    """The launcher to use: rope_rows_vectorized. inverse: the gradient, by the negative angle."""
    element = _check(qkv, table, positions, out, rotated)
    tokens, heads, dim = qkv.shape
    if dim % 16 or not in_eights(dim, qkv, table, out):
        rope_rows_per_thread(qkv, table, positions, out, rotated, inverse=inverse, stream=stream)
        return
    moved = rotated if out is qkv else heads
    grid = blocks_for((tokens * moved * dim // 16,), (BLOCK,))
    make_rope_rows(element, inverse)[grid, BLOCK, stream](
        flat(qkv), flat(table), positions, flat(out), *unsigned(heads, dim // 2, rotated, moved))


def rope_rows_backward(dout, table, positions, dqkv, rotated, stream=0):
    """The gradient of rope_rows: `dqkv` may be `dout`."""
    rope_rows(dout, table, positions, dqkv, rotated, inverse=True, stream=stream)


def _check(qkv, table, positions, out, rotated) -> Element:
    element = element_of("qkv", qkv)
    check_array("qkv", qkv, ndim=3, dtype=element.dtype)
    tokens, heads, dim = qkv.shape
    check_head_dim(dim)
    check_array("table", table, ndim=2)
    if table.shape[1] != dim:
        raise ValueError(f"table has {table.shape[1]:,} columns; it must have {dim:,}, as the heads of qkv")
    check_array("positions", positions, shape=(tokens,), dtype=np.int32)
    check_array("out", out, shape=qkv.shape, dtype=element.dtype)
    if not 1 <= rotated <= heads:
        raise ValueError(f"rotated is {rotated}; it must be 1 to {heads}, the heads of qkv")
    return element
