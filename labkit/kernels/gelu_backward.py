"""The gradient of GELU in its tanh form: dx = dout * gelu'(x).

Shapes  x, dout, dx: any one shape; all float32, all float16, or all uint16, which holds bfloat16; C-contiguous.
        `dx` may be `dout` or `x`: in place
Work    some 20 flops an element; 3 elements of memory: x and dout read, dx written
Source  llm.c, `gelu_backward`, https://github.com/karpathy/llm.c; Hendrycks, Gimpel (2016), arXiv:1606.08415

With s = 1 / (1 + exp(-2u)) and u = sqrt(2/pi) * (x + 0.044715 * x^3), gelu(x) = x * s, and so
gelu'(x) = s + x * s * (1 - s) * 2u'. x is kept by the forward pass; nothing else is.
"""

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS
from labkit.kernels.elements import BFLOAT16, Element, element_of
from labkit.kernels.gelu import CUBE, CUBIC, CUBIC_2, INNER, INNER_2, ONE, ROOT
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung

BLOCK = 256
TWO, THREE = float32(2.0), float32(3.0)
MAX_SQUARE = float32(1e6)  # beyond |x| = 1,000 the slope is 0 or 1: no infinity times zero
MAX_EXPONENT = float32(126.0)  # 1 / 2^126 is still a normal number, and its square is 0


def gelu_backward_reference(x, dout):
    x, dout = float64_of(x), float64_of(dout)
    tanh, slope = np.tanh(ROOT * (x + CUBE * x**3)), ROOT * (1 + 3 * CUBE * x**2)
    return dout * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * slope)


def make_gelu_slope():
    """Make the device function of GELU's derivative."""
    @cuda.jit(device=True)
    def gelu_slope(x):
        square = min(x * x, MAX_SQUARE)
        power = ptx.exp2_approx(min(x * (INNER_2 + CUBIC_2 * square), MAX_EXPONENT))  # exp(-2u)
        s = ptx.rcp_approx(ONE + power)
        return s + x * s * s * power * TWO * (INNER + THREE * CUBIC * square)  # s * power is 1 - s: nothing cancels

    return gelu_slope


@kernel_factory
def make_gelu_backward_per_thread(element: Element):
    load, store, _, _, _ = ACCESS[element]
    gelu_slope = make_gelu_slope()

    @cuda.jit
    def gelu_backward_per_thread_kernel(x, dout, dx):  # all flat, here and below
        i = u32.grid(1)
        if i < dx.size:
            store(dx, i, load(dout, i) * gelu_slope(load(x, i)))

    return gelu_backward_per_thread_kernel


@rung(kernel=make_gelu_backward_per_thread(BFLOAT16), idea="one element a thread")
def gelu_backward_per_thread(x, dout, dx, stream=0):
    """One thread computes one element."""
    element = _check(x, dout, dx)
    kernel = make_gelu_backward_per_thread(element)
    kernel[-(-x.size // BLOCK), BLOCK, stream](flat(x), flat(dout), flat(dx))


@kernel_factory
def make_gelu_backward(element: Element):
    (load, store), (load_singles, store_singles) = ACCESS[element].eight, ACCESS[element].singles
    gelu_slope = make_gelu_slope()

    @cuda.jit
    def gelu_backward_vectorized_kernel(x, dout, dx):
        i, n = 8 * u32.grid(1), u32.size(dx)
        if i < n:
            v, d, remaining = cuda.local.array(8, float32), cuda.local.array(8, float32), int32(n - i)
            if remaining >= int32(8):
                load(v, 0, x, i, remaining)
                load(d, 0, dout, i, remaining)
            else:
                load_singles(v, 0, x, i, remaining)
                load_singles(d, 0, dout, i, remaining)
            for e in range(8):
                d[e] *= gelu_slope(v[e])
            if remaining >= int32(8):
                store(dx, i, remaining, d, 0)
            else:
                store_singles(dx, i, remaining, d, 0)

    return gelu_backward_vectorized_kernel


@rung(kernel=make_gelu_backward(BFLOAT16), idea="eight elements a thread, 128 bits at a time")
def gelu_backward_vectorized(x, dout, dx, stream=0):
    """As per_thread, but a thread loads, computes and stores eight neighbours. A view that does not begin at a multiple
    of 16 bytes takes per_thread's kernel."""
    gelu_backward(x, dout, dx, stream=stream)


def gelu_backward(x, dout, dx, stream=0):
    """The launcher to use: gelu_backward_vectorized."""
    element = _check(x, dout, dx)
    if not aligned(x, dout, dx):
        gelu_backward_per_thread(x, dout, dx, stream=stream)
        return
    make_gelu_backward(element)[-(-x.size // (8 * BLOCK)), BLOCK, stream](flat(x), flat(dout), flat(dx))


def _check(x, dout, dx) -> Element:
    element = element_of("x", x)
    check_array("x", x, dtype=element.dtype)
    check_array("dout", dout, shape=x.shape, dtype=element.dtype)
    check_array("dx", dx, shape=x.shape, dtype=element.dtype)
    return element
