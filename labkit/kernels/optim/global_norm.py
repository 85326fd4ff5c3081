"""The norm of all gradients, and the factor that clips it: the square root of the sum of all squares.

Shapes  gradients (n,): float32, float16, or uint16, which holds bfloat16; result (2,) float32: the norm, and
        min(1, max_norm / norm)
Work    2*n flops; the gradients are read once
Source  Pascanu, Mikolov, Bengio: On the difficulty of training recurrent neural networks (2013), arXiv:1211.5063

Two launches, for any n: a fixed number of blocks add up squares, and one block adds up their sums. No atomics, and
neither the GPU nor the run has a part in the order of additions. The factor stays on the device, where adamw reads it:
a captured graph needs no copy to the host. A norm that is not finite makes the factor 0 or NaN.
"""

import math

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS
from labkit.kernels.elements import BFLOAT16, Element, element_of
from labkit.kernels.op import rung
from labkit.kernels.reduce import block_sum
from labkit.kernels.scan_blocks import scratch_for

BLOCK, BLOCKS = 256, 1024
UNROLL = 4  # octets of a thread in flight
ZERO, ONE, SMALL = float32(0.0), float32(1.0), float32(1e-6)


def global_norm_reference(gradients, max_norm):
    norm = np.sqrt((float64_of(gradients) ** 2).sum())
    return np.array([norm, min(1.0, max_norm / (norm + 1e-6))])


@kernel_factory
def make_square_sums(element: Element):
    load = ACCESS[element].load

    @cuda.jit(launch_bounds=BLOCK)
    def square_sums_kernel(gradients, sums):
        partial = cuda.shared.array(32, float32)
        total = ZERO
        for i in u32.range(u32.grid(1), u32.size(gradients), u32.gridsize(1)):
            value = load(gradients, i)
            total += value * value
        total = block_sum(total, partial)
        if u32.threadIdx.x == 0:
            sums[u32.blockIdx.x] = total

    return square_sums_kernel


@kernel_factory
def make_square_sums_vectorized(element: Element):
    load_eight, load_singles = ACCESS[element].eight[0], ACCESS[element].singles[0]
    elements = 8 * UNROLL

    @cuda.jit(launch_bounds=BLOCK)
    def square_sums_vectorized_kernel(gradients, sums):
        partial, v = cuda.shared.array(32, float32), cuda.local.array(elements, float32)
        n, total = u32.size(gradients), ZERO
        octets, step = n >> 3, u32.gridsize(1)
        for base in u32.range(u32.grid(1), octets, UNROLL * step):
            for u in u32.range(UNROLL):  # all loads are issued before the first use
                octet = base + u * step
                load_eight(v, 8 * u, gradients, 8 * octet, int32(8) if octet < octets else int32(0))
            for e in range(elements):
                total += v[e] * v[e]
        if u32.grid(1) == 0:
            load_singles(v, 0, gradients, 8 * octets, int32(n & 7))
            for e in range(8):
                total += v[e] * v[e]
        total = block_sum(total, partial)
        if u32.threadIdx.x == 0:
            sums[u32.blockIdx.x] = total

    return square_sums_vectorized_kernel


@kernel_factory
def make_clip_factor():
    @cuda.jit
    def clip_factor_kernel(sums, max_norm, result):
        partial = cuda.shared.array(32, float32)
        total = ZERO
        for i in u32.range(u32.threadIdx.x, u32.size(sums), BLOCK):
            total += sums[i]
        norm = math.sqrt(block_sum(total, partial))
        if u32.threadIdx.x == 0:
            result[0], result[1] = norm, min(ONE, max_norm / (norm + SMALL))

    return clip_factor_kernel


@rung(kernel=(make_square_sums(BFLOAT16), make_clip_factor()), idea="one element at a time; two launches")
def global_norm_per_thread(gradients, max_norm, result, stream=0):
    """1,024 blocks go through the gradients in steps of the whole grid; one block adds up their sums."""
    _launch(make_square_sums, gradients, max_norm, result, stream)


@rung(kernel=(make_square_sums_vectorized(BFLOAT16), make_clip_factor()), idea="four times eight neighbours in flight")
def global_norm_vectorized(gradients, max_norm, result, stream=0):
    """As per_thread, but a thread loads four times eight neighbours before it uses them. A view that does not begin at
    a multiple of 16 bytes takes per_thread's kernel."""
    global_norm(gradients, max_norm, result, stream=stream)


def global_norm(gradients, max_norm, result, stream=0):
    """The launcher to use: global_norm_vectorized. max_norm: a number above 0; infinity never clips."""
    vectorized = hasattr(gradients, "is_c_contiguous") and aligned(gradients)
    _launch(make_square_sums_vectorized if vectorized else make_square_sums, gradients, max_norm, result, stream)


def _launch(make, gradients, max_norm, result, stream) -> None:
    element = element_of("gradients", gradients)
    check_array("gradients", gradients, ndim=1, dtype=element.dtype)
    check_array("result", result, shape=(2,))
    if not max_norm > 0:
        raise ValueError(f"max_norm is {max_norm}; it must be above 0")
    sums = scratch_for(None, BLOCKS, np.float32)
    make(element)[BLOCKS, BLOCK, stream](gradients, sums)
    make_clip_factor()[1, BLOCK, stream](sums, np.float32(max_norm), result)
