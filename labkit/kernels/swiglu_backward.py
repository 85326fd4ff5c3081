"""The gradient of SwiGLU, out = silu(gate) * up, for both halves of its input.

Shapes  gate_up, dgate_up (T, 2F): the gates of a token, then its ups; dout (T, F); all float32, all float16, or all
        uint16, which holds bfloat16; C-contiguous. `dgate_up` may be `gate_up`: in place
Work    some 10 flops and an exponential for each gate; 5*T*F elements of memory: three read, two written
Source  Liger Kernel, `swiglu.py`, https://github.com/linkedin/Liger-Kernel; Shazeer (2020), arXiv:2002.05202

With s = 1 / (1 + exp(-gate)): dup = dout * gate * s, and dgate = dout * up * s * (1 + gate * (1 - s)). s is computed
again from the gate, so that the forward pass keeps only gate_up.
"""

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import blocks_for, check_array, unsigned
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS, in_eights
from labkit.kernels.elements import BFLOAT16, MINUS_LOG2_E, ONE, Element, element_of
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung

BLOCK = 256


def swiglu_backward_reference(gate_up, dout):
    gate, up = np.split(float64_of(gate_up), 2, axis=1)
    dout, s = float64_of(dout), 0.5 * (1 + np.tanh(gate / 2))
    return np.concatenate([dout * up * s * (1 + gate * (1 - s)), dout * gate * s], axis=1)


@cuda.jit(device=True)
def gradients_of(gate, up, dout):
    """(dgate, dup)"""
    s = ptx.rcp_approx(ONE + ptx.exp2_approx(gate * MINUS_LOG2_E))
    return dout * up * s * (ONE + gate * (ONE - s)), dout * gate * s


@kernel_factory
def make_swiglu_backward_per_thread(element: Element):
    load, store, _, _, _ = ACCESS[element]

    @cuda.jit
    def swiglu_backward_per_thread_kernel(gate_up, dout, dgate_up, width):  # the arrays are flat, here and below
        i = u32.grid(1)
        if i < dout.size:
            gate_offset = i // width * 2 * width + i % width
            dgate, dup = gradients_of(load(gate_up, gate_offset), load(gate_up, gate_offset + width), load(dout, i))
            store(dgate_up, gate_offset, dgate)
            store(dgate_up, gate_offset + width, dup)

    return swiglu_backward_per_thread_kernel


@rung(kernel=make_swiglu_backward_per_thread(BFLOAT16), idea="one gate and its up a thread")
def swiglu_backward_per_thread(gate_up, dout, dgate_up, stream=0):
    """One thread computes the gradients of one gate and its up."""
    element = _check(gate_up, dout, dgate_up)
    grid = blocks_for((dout.size,), (BLOCK,))
    make_swiglu_backward_per_thread(element)[grid, BLOCK, stream](flat(gate_up), flat(dout), flat(dgate_up),
                                                                  *unsigned(dout.shape[1]))


@kernel_factory
def make_swiglu_backward(element: Element, vectorized: bool):
    """vectorized: rows are multiples of eight, aligned to 16 bytes."""
    load, store = ACCESS[element].neighbours(vectorized)

    @cuda.jit
    def swiglu_backward_vectorized_kernel(gate_up, dout, dgate_up, width, eights):  # eights of a row
        i = u32.grid(1)
        row, col = i // eights, 8 * (i % eights)
        if row * width < dout.size:
            valid, gate_offset = int32(width) - int32(col), row * 2 * width + col
            g, u, d = (cuda.local.array(8, float32), cuda.local.array(8, float32), cuda.local.array(8, float32))
            load(g, 0, gate_up, gate_offset, valid)
            load(u, 0, gate_up, gate_offset + width, valid)
            load(d, 0, dout, row * width + col, valid)
            for e in range(8):
                g[e], u[e] = gradients_of(g[e], u[e], d[e])
            store(dgate_up, gate_offset, valid, g, 0)
            store(dgate_up, gate_offset + width, valid, u, 0)

    return swiglu_backward_vectorized_kernel


@rung(kernel=make_swiglu_backward(BFLOAT16, True), idea="eight gates a thread, 128 bits at a time")
def swiglu_backward_vectorized(gate_up, dout, dgate_up, stream=0):
    """As per_thread, but a thread takes eight neighbours. Where a row is not a multiple of eight, or a view is not
    aligned, the same threads load one element after the other."""
    swiglu_backward(gate_up, dout, dgate_up, stream=stream)


def swiglu_backward(gate_up, dout, dgate_up, stream=0):
    """The launcher to use: swiglu_backward_vectorized."""
    element = _check(gate_up, dout, dgate_up)
    rows, width = dout.shape
    eights = -(-width // 8)
    kernel = make_swiglu_backward(element, in_eights(width, gate_up, dout, dgate_up))
    grid = blocks_for((rows * eights,), (BLOCK,))
    kernel[grid, BLOCK, stream](flat(gate_up), flat(dout), flat(dgate_up), *unsigned(width, eights))


def _check(gate_up, dout, dgate_up) -> Element:
    element = element_of("gate_up", gate_up)
    check_array("gate_up", gate_up, ndim=2, dtype=element.dtype)
    rows, columns = gate_up.shape
    if columns % 2:
        raise ValueError(f"gate_up has {columns:,} columns; gates and ups are as many, so it must be an even number")
    check_array("dout", dout, shape=(rows, columns // 2), dtype=element.dtype)
    check_array("dgate_up", dgate_up, shape=gate_up.shape, dtype=element.dtype)
    return element
