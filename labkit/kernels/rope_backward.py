"""The gradient of splitting QKV into heads and rotating queries and keys: rotated back, and side by side again.

Shapes  dq (T, H, D), dk, dv (T, K, D), out (T, (H + 2K) * D): all float32, all float16, or all uint16, which holds
        bfloat16; C-contiguous, D even. table (P, D) float32 from rope_table; positions (T,) int32. A token whose
        position is not in the table gets NaN
Work    3 flops for each element that is rotated; each element is read once and written once
Source  Su et al.: RoFormer (2021), https://arxiv.org/abs/2104.09864; Liger Kernel, `rope.py`

A rotation is orthogonal, so the gradient of its input is that of its output, rotated by the opposite angle.
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import check_array, unsigned
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS, in_eights
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung
from labkit.kernels.rope import NAN, check_head_dim, rotated_reference

BLOCK = 256
ZERO, ONE = float32(0.0), float32(1.0)


def rope_split_backward_reference(dq, dk, dv, table, positions):
    half = table.shape[1] // 2
    opposite = np.concatenate([table[:, :half], -table[:, half:]], axis=1)
    rotated = (rotated_reference(grad, opposite, positions) for grad in (dq, dk))
    return np.concatenate([*rotated, float64_of(dv)], axis=1).reshape(len(positions), -1)


def make_offset_of():
    """Make the device function that finds a head of QKV in its own array."""

    @cuda.jit(device=True)
    def offset_of(token, head, heads, kv_heads):
        """Return (which array: 0 of queries, 1 of keys, 2 of values; where the head begins there, in heads)."""
        if head < heads:
            return uint32(0), token * heads + head
        if head < heads + kv_heads:
            return uint32(1), token * kv_heads + head - heads
        return uint32(2), token * kv_heads + head - heads - kv_heads

    return offset_of


@kernel_factory
def make_rope_split_backward_per_thread(element: Element):
    (load, store, _, _, _), offset_of = ACCESS[element], make_offset_of()

    @cuda.jit
    def rope_split_backward_per_thread_kernel(dq, dk, dv, table, positions, out, heads, kv_heads, half):
        i, all_heads = u32.grid(1), heads + 2 * kv_heads  # a pair of a head of a token; arrays but the table are flat
        if i < (out.size >> 1):
            token, head, d = i // half // all_heads, i // half % all_heads, i % half
            which, row = offset_of(token, head, heads, kv_heads)
            first = row * 2 * half + d
            a, b, cos, sin = ZERO, ZERO, ONE, ZERO
            if which == 0:
                a, b = load(dq, first), load(dq, first + half)
            elif which == 1:
                a, b = load(dk, first), load(dk, first + half)
            else:
                a, b = load(dv, first), load(dv, first + half)
            if which != 2:
                position = uint32(positions[token])  # negatives become huge
                cos, sin = NAN, NAN
                if position < u32.shape(table)[0]:
                    cos, sin = table[position, d], table[position, half + d]
            first = (token * all_heads + head) * 2 * half + d
            store(out, first, a * cos + b * sin)
            store(out, first + half, b * cos - a * sin)

    return rope_split_backward_per_thread_kernel


@rung(kernel=make_rope_split_backward_per_thread(BFLOAT16), idea="one pair a thread")
def rope_split_backward_per_thread(dq, dk, dv, table, positions, out, stream=0):
    """One thread rotates one pair of elements back."""
    element = _check(dq, dk, dv, table, positions, out)
    (_, heads, dim), kv_heads = dq.shape, dk.shape[1]
    make_rope_split_backward_per_thread(element)[-(-out.size // 2 // BLOCK), BLOCK, stream](
        flat(dq), flat(dk), flat(dv), table, positions, flat(out), *unsigned(heads, kv_heads, dim // 2))


@kernel_factory
def make_rope_split_backward(element: Element):
    (load, store), (load_table, _), offset_of = ACCESS[element].eight, ACCESS[FLOAT32].eight, make_offset_of()
    EIGHT = int32(8)

    @cuda.jit
    def rope_split_backward_vectorized_kernel(dq, dk, dv, table, positions, out, heads, kv_heads, half):
        i, all_heads, eights = u32.grid(1), heads + 2 * kv_heads, half >> 3  # the table is flat, too
        if i < (out.size >> 4):
            token, head, d = i // eights // all_heads, i // eights % all_heads, 8 * (i % eights)
            which, row = offset_of(token, head, heads, kv_heads)
            first = row * 2 * half + d
            a, b = cuda.local.array(8, float32), cuda.local.array(8, float32)
            cos, sin = cuda.local.array(8, float32), cuda.local.array(8, float32)
            if which == 0:
                load(a, 0, dq, first, EIGHT)
                load(b, 0, dq, first + half, EIGHT)
            elif which == 1:
                load(a, 0, dk, first, EIGHT)
                load(b, 0, dk, first + half, EIGHT)
            else:
                load(a, 0, dv, first, EIGHT)
                load(b, 0, dv, first + half, EIGHT)
            if which != 2:
                position = uint32(positions[token])
                in_table = position < u32.size(table) // (2 * half)
                valid = EIGHT if in_table else int32(0)
                load_table(cos, 0, table, position * 2 * half + d, valid)
                load_table(sin, 0, table, position * 2 * half + half + d, valid)
                for e in range(8):
                    c = cos[e] if in_table else NAN
                    a[e], b[e] = a[e] * c + b[e] * sin[e], b[e] * c - a[e] * sin[e]
            first = (token * all_heads + head) * 2 * half + d
            store(out, first, EIGHT, a, 0)
            store(out, first + half, EIGHT, b, 0)

    return rope_split_backward_vectorized_kernel


@rung(kernel=(make_rope_split_backward(BFLOAT16), make_rope_split_backward_per_thread(BFLOAT16)),
      idea="eight pairs a thread, 128 bits at a time")
def rope_split_backward_vectorized(dq, dk, dv, table, positions, out, stream=0):
    """As per_thread, but a thread rotates eight neighbouring pairs. Heads that are no multiple of 16 wide, and views
    that are not aligned, take per_thread's kernel."""
    rope_split_backward(dq, dk, dv, table, positions, out, stream=stream)


def rope_split_backward(dq, dk, dv, table, positions, out, stream=0):
    """The launcher to use: rope_split_backward_vectorized."""
    element = _check(dq, dk, dv, table, positions, out)
    (_, heads, dim), kv_heads = dq.shape, dk.shape[1]
    if dim % 16 or not in_eights(dim, dq, dk, dv, table, out):
        rope_split_backward_per_thread(dq, dk, dv, table, positions, out, stream=stream)
        return
    make_rope_split_backward(element)[-(-out.size // 16 // BLOCK), BLOCK, stream](
        flat(dq), flat(dk), flat(dv), flat(table), positions, flat(out), *unsigned(heads, kv_heads, dim // 2))


def _check(dq, dk, dv, table, positions, out) -> Element:
    element = element_of("dq", dq)
    check_array("dq", dq, ndim=3, dtype=element.dtype)
    check_array("dk", dk, ndim=3, dtype=element.dtype)
    (tokens, heads, dim), kv_heads = dq.shape, dk.shape[1]
    check_head_dim(dim)
    check_array("dk", dk, shape=(tokens, kv_heads, dim), dtype=element.dtype)
    check_array("dv", dv, shape=dk.shape, dtype=element.dtype)
    check_array("table", table, ndim=2)
    if table.shape[1] != dim:
        raise ValueError(f"table has {table.shape[1]:,} columns; it must have {dim:,}, as the heads of dq")
    check_array("positions", positions, shape=(tokens,), dtype=np.int32)
    check_array("out", out, shape=(tokens, (heads + 2 * kv_heads) * dim), dtype=element.dtype)
    return element
