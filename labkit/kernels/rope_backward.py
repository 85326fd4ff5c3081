"""The gradient of splitting QKV into heads and rotating queries and keys: rotated back, and side by side again.

Shapes  grad_q (T, H, D), grad_k, grad_v (T, K, D), grad_qkv (T, (H + 2K) * D): all float32, float16 or bfloat16
        (uint16); D even. table (P, D) float32 from rope_table; positions (T,) int32, all below P
Work    3 flops for each element that is rotated; each element is read once and written once
Source  Su et al.: RoFormer (2021): a rotation's transpose is the rotation by the opposite angle
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import blocks_for, check_array, unsigned
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS
from labkit.kernels.elements import Element, element_of
from labkit.kernels.norm.rows import flat
from labkit.kernels.rope import check_head_dim

BLOCK = 256


def rope_split_backward_reference(grad_q, grad_k, grad_v, table, positions):
    half = grad_q.shape[2] // 2
    cos, sin = np.split(float64_of(table)[positions][:, None], 2, axis=2)

    def turned_back(grad):
        first, second = float64_of(grad)[..., :half], float64_of(grad)[..., half:]
        return np.concatenate([first * cos + second * sin, second * cos - first * sin], axis=2)

    parts = turned_back(grad_q), turned_back(grad_k), float64_of(grad_v)
    return np.concatenate(parts, axis=1).reshape(len(positions), -1)


@kernel_factory
def make_rope_split_backward(element: Element):
    load, store = ACCESS[element].load, ACCESS[element].store

    @cuda.jit
    def rope_split_backward_kernel(grad_q, grad_k, grad_v, table, positions, grad_qkv, heads, kv_heads, dim):
        """A thread has one pair (d, d + D/2) of a head; blocks along x are tokens."""
        half, t, i = dim // 2, u32.blockIdx.x, u32.blockIdx.y * BLOCK + u32.threadIdx.x
        head, d = i // half, i % half
        if head < heads + 2 * kv_heads:
            cos, sin = float32(1.0), float32(0.0)
            if head < heads + kv_heads:
                angle = uint32(positions[t]) * dim + d
                cos, sin = table[angle], table[angle + half]
            if head < heads:
                offset = (t * heads + head) * dim + d
                first, second = load(grad_q, offset), load(grad_q, offset + half)
            elif head < heads + kv_heads:
                offset = (t * kv_heads + head - heads) * dim + d
                first, second = load(grad_k, offset), load(grad_k, offset + half)
            else:
                offset = (t * kv_heads + head - heads - kv_heads) * dim + d
                first, second = load(grad_v, offset), load(grad_v, offset + half)
            offset = (t * (heads + 2 * kv_heads) + head) * dim + d
            store(grad_qkv, offset, first * cos + second * sin)
            store(grad_qkv, offset + half, second * cos - first * sin)

    return rope_split_backward_kernel


def rope_split_backward(grad_q, grad_k, grad_v, table, positions, grad_qkv, stream=0):
    """One thread turns one pair of elements back."""
    element = element_of("grad_q", grad_q)
    check_array("grad_q", grad_q, ndim=3, dtype=element.dtype)
    check_array("grad_k", grad_k, ndim=3, dtype=element.dtype)
    (tokens, heads, dim), kv_heads = grad_q.shape, grad_k.shape[1]
    check_head_dim(dim)
    check_array("grad_k", grad_k, shape=(tokens, kv_heads, dim), dtype=element.dtype)
    check_array("grad_v", grad_v, shape=grad_k.shape, dtype=element.dtype)
    check_array("table", table, ndim=2)
    if table.shape[1] != dim:
        raise ValueError(f"table has shape {tuple(table.shape)}; a row must have {dim} numbers, as a head has")
    check_array("positions", positions, shape=(tokens,), dtype=np.int32)
    check_array("grad_qkv", grad_qkv, shape=(tokens, (heads + 2 * kv_heads) * dim), dtype=element.dtype)
    grid = blocks_for((tokens, (heads + 2 * kv_heads) * dim // 2), (1, BLOCK))
    make_rope_split_backward(element)[grid, BLOCK, stream](
        flat(grad_q), flat(grad_k), flat(grad_v), flat(table), positions, flat(grad_qkv),
        *unsigned(heads, kv_heads, dim))
