"""SwiGLU: the activation between the two products of a Llama layer's MLP, out = silu(gate) * up.

Shapes  gate_up (T, 2F): the gates of a token, then its ups; out (T, F); both float32, both float16, or both uint16,
        which holds bfloat16; C-contiguous
Work    5 flops and an exponential for each output; 3*T*F elements: two read, one written
Source  Shazeer: GLU Variants Improve Transformer (2020), https://arxiv.org/abs/2002.05202

silu(x) = x / (1 + exp(-x)), in float32. In 16 bits it is rounded before it is multiplied, and the product is rounded
again, as the modules of transformers do. The fused product, which keeps the gates and ups out of memory, is
linear_swiglu in kernels/linear/.
"""

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import blocks_for, check_array, unsigned
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS, in_eights, rounded_as
from labkit.kernels.elements import BFLOAT16, Element, element_of, silu_fast
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung

BLOCK = 256


def silu(x):
    with np.errstate(over="ignore"):  # exp(1000) is infinite, and the quotient 0, as it should be
        return x / (1 + np.exp(-x))


def swiglu_reference(gate_up):
    rounded, width = rounded_as(gate_up), gate_up.shape[1] // 2
    gate, up = float64_of(gate_up[:, :width]), float64_of(gate_up[:, width:])
    return rounded(rounded(silu(gate)) * up)


@kernel_factory
def make_swiglu_per_thread(element: Element):
    load, store, rounded, _, _ = ACCESS[element]

    @cuda.jit
    def swiglu_per_thread_kernel(gate_up, out, width):  # both arrays flat, here and below
        i = u32.grid(1)
        if i < out.size:
            gate_offset = i // width * 2 * width + i % width
            store(out, i, rounded(silu_fast(load(gate_up, gate_offset))) * load(gate_up, gate_offset + width))

    return swiglu_per_thread_kernel


@rung(kernel=make_swiglu_per_thread(BFLOAT16), idea="one output a thread")
def swiglu_per_thread(gate_up, out, stream=0):
    """One thread computes one output."""
    element = _check(gate_up, out)
    grid = blocks_for((out.size,), (BLOCK,))
    make_swiglu_per_thread(element)[grid, BLOCK, stream](flat(gate_up), flat(out), *unsigned(out.shape[1]))


@kernel_factory
def make_swiglu(element: Element, vectorized: bool):
    """vectorized: rows are multiples of eight, aligned to 16 bytes."""
    (load, store), rounded = ACCESS[element].neighbours(vectorized), ACCESS[element].rounded

    @cuda.jit
    def swiglu_vectorized_kernel(gate_up, out, width, eights):  # eights of a row: the last may be partial
        i = u32.grid(1)
        row, col = i // eights, 8 * (i % eights)
        if (row * width) < out.size:
            valid, gate_offset = int32(width) - int32(col), row * 2 * width + col
            g, u = cuda.local.array(8, float32), cuda.local.array(8, float32)
            load(g, 0, gate_up, gate_offset, valid)
            load(u, 0, gate_up, gate_offset + width, valid)
            for e in range(8):
                g[e] = rounded(silu_fast(g[e])) * u[e]
            store(out, row * width + col, valid, g, 0)

    return swiglu_vectorized_kernel


@rung(kernel=make_swiglu(BFLOAT16, True), idea="eight outputs a thread, 128 bits at a time")
def swiglu_vectorized(gate_up, out, stream=0):
    """As per_thread, but a thread computes eight neighbours: one access of 128 bits each for the gates, the ups and
    the outputs, in float32 two. Where a row is not a multiple of eight, or a view is not aligned, the same
    threads load one element after the other."""
    swiglu(gate_up, out, stream=stream)


def swiglu(gate_up, out, stream=0):
    """The launcher to use: swiglu_vectorized."""
    element = _check(gate_up, out)
    rows, width = out.shape
    eights = -(-width // 8)
    kernel = make_swiglu(element, in_eights(width, gate_up, out))
    grid = blocks_for((rows * eights,), (BLOCK,))
    kernel[grid, min(BLOCK, -(-rows * eights // 32) * 32), stream](
        flat(gate_up), flat(out), *unsigned(width, eights))


def _check(gate_up, out) -> Element:
    element = element_of("gate_up", gate_up)
    check_array("gate_up", gate_up, ndim=2, dtype=element.dtype)
    rows, columns = gate_up.shape
    if columns % 2:
        raise ValueError(f"gate_up has {columns:,} columns; gates and ups are as many, so it must be an even number")
    check_array("out", out, shape=(rows, columns // 2), dtype=element.dtype)
    return element
