"""GELU, the activation of GPT-2 and BERT: exact with erf, and in the tanh form. One rung for each idea.

Shapes  x, out: any one shape; float32, the last rung float16 or uint16, which holds bfloat16; C-contiguous. `out` may
        be `x`: in place
Work    some 10 to 40 flops an element, 8 bytes: read x, write out; 4 bytes in 16 bits
Source  Hendrycks, Gimpel: Gaussian Error Linear Units (2016), https://arxiv.org/abs/1606.08415

    gelu_erf(x)  = x/2 * (1 + erf(x / sqrt(2)))                             BERT, MiniLM
    gelu_tanh(x) = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3)))      GPT-2

They differ by less than 0.0005 everywhere. As (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), the second needs no tanh.
"""

import math

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung

BLOCK = 256
CUBE = 0.044715
ROOT = math.sqrt(2 / math.pi)

ONE, HALF = float32(1.0), float32(0.5)
ROOT_HALF = float32(math.sqrt(0.5))
INNER, CUBIC = float32(ROOT), float32(ROOT * CUBE)
INNER_2, CUBIC_2 = float32(-2 * ROOT / math.log(2)), float32(-2 * ROOT * CUBE / math.log(2))  # for a power of 2


def gelu_tanh_reference(x):
    x = float64_of(x)
    return 0.5 * x * (1 + np.tanh(ROOT * (x + CUBE * x**3)))


def gelu_erf_reference(x):
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x * math.sqrt(0.5)))


# --- One element ---------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def gelu_tanh(x):
    return HALF * x * (ONE + math.tanh(x * (INNER + CUBIC * x * x)))


@cuda.jit(device=True)
def gelu_erf(x):
    return HALF * x * (ONE + math.erf(x * ROOT_HALF))


@cuda.jit(device=True)
def gelu_sigmoid(x):
    """The tanh form as x / (1 + exp(-2u)): one power of two and one reciprocal, both approximate to about 1e-7."""
    return x * ptx.rcp_approx(ONE + ptx.exp2_approx(x * (INNER_2 + CUBIC_2 * x * x)))


@cuda.jit(device=True)
def gelu_tanh_approx(x):
    return HALF * x * (ONE + ptx.tanh_approx(x * (INNER + CUBIC * x * x)))


# --- One element a thread; four ------------------------------------------------------------------------------------


def make_gelu_per_thread(gelu):
    @cuda.jit
    def gelu_per_thread_kernel(x, out):
        i = u32.grid(1)
        if i < x.size:
            out[i] = gelu(x[i])

    return gelu_per_thread_kernel


def make_gelu_vectorized(gelu):
    @cuda.jit
    def gelu_vectorized_kernel(x, out):
        i = 4 * u32.grid(1)
        n = u32.size(x)
        if i + 3 < n:
            a, b, c, d = ptx.load_global4(x, i)  # not load_nc4: in place, x is written in this kernel
            ptx.store_global4(out, i, gelu(a), gelu(b), gelu(c), gelu(d))
        else:
            while i < n:
                out[i] = gelu(x[i])
                i += 1

    return gelu_vectorized_kernel


gelu_per_thread_kernel = make_gelu_per_thread(gelu_tanh)
gelu_vectorized_kernel = make_gelu_vectorized(gelu_tanh)
gelu_sigmoid_kernel = make_gelu_vectorized(gelu_sigmoid)
gelu_erf_per_thread_kernel = make_gelu_per_thread(gelu_erf)
gelu_erf_vectorized_kernel = make_gelu_vectorized(gelu_erf)


@rung(kernel=gelu_per_thread_kernel, idea="one element a thread, tanh of the library")
def gelu_per_thread(x, out, stream=0):
    """One thread computes one element."""
    _launch(gelu_per_thread_kernel, x, out, stream)


@rung(kernel=gelu_vectorized_kernel, idea="four elements a thread in one load")
def gelu_vectorized(x, out, stream=0):
    """As per_thread, but a thread loads, computes and stores four neighbours, 128 bits at a time."""
    _launch_four(gelu_vectorized_kernel, gelu_per_thread_kernel, x, out, stream)


@rung(kernel=gelu_sigmoid_kernel, idea="x / (1 + exp(-2u)) in place of the tanh")
def gelu_sigmoid_form(x, out, stream=0):
    """As vectorized, but without the tanh: one power of two and one reciprocal. Nothing cancels for negative x."""
    _launch_four(gelu_sigmoid_kernel, gelu_per_thread_kernel, x, out, stream)


@rung(kernel=gelu_erf_per_thread_kernel, idea="one element a thread, erf of the library")
def gelu_erf_per_thread(x, out, stream=0):
    """One thread computes one element."""
    _launch(gelu_erf_per_thread_kernel, x, out, stream)


@rung(kernel=gelu_erf_vectorized_kernel, idea="four elements a thread in one load")
def gelu_erf_vectorized(x, out, stream=0):
    """As per_thread, but a thread loads, computes and stores four neighbours, 128 bits at a time."""
    _launch_four(gelu_erf_vectorized_kernel, gelu_erf_per_thread_kernel, x, out, stream)


@kernel_factory
def make_gelu_eights(element: Element):
    (load, store), (load_singles, store_singles) = ACCESS[element].eight, ACCESS[element].singles

    @cuda.jit
    def gelu_eights_kernel(x, out):
        i, n = 8 * u32.grid(1), u32.size(x)
        if i < n:
            v, remaining = cuda.local.array(8, float32), int32(n - i)
            if remaining >= int32(8):
                load(v, 0, x, i, remaining)
            else:
                load_singles(v, 0, x, i, remaining)
            for e in range(8):
                v[e] = gelu_sigmoid(v[e])
            if remaining >= int32(8):
                store(out, i, remaining, v, 0)
            else:
                store_singles(out, i, remaining, v, 0)

    return gelu_eights_kernel


@rung(kernel=make_gelu_eights(BFLOAT16), idea="eight elements of 16 bits a thread in one load")
def gelu_eights(x, out, stream=0):
    """As sigmoid_form, for elements of 16 bits: a thread loads, computes and stores eight neighbours."""
    element = element_of("x", x)
    check_array("x", x, dtype=element.dtype)
    check_array("out", out, shape=x.shape, dtype=element.dtype)
    if not aligned(x, out):
        raise ValueError("x and out must begin at multiples of 16 bytes")
    make_gelu_eights(element)[-(-x.size // (8 * BLOCK)), BLOCK, stream](flat(x), flat(out))


def gelu(x, out, stream=0):
    """The launcher to use for the tanh form: gelu_sigmoid_form in float32, gelu_eights in 16 bits."""
    pick = gelu_sigmoid_form if element_of("x", x) is FLOAT32 else gelu_eights
    pick(x, out, stream=stream)


def _launch(kernel, x, out, stream, per_thread=1):
    check_array("x", x)
    check_array("out", out, shape=x.shape)
    kernel[-(-x.size // (per_thread * BLOCK)), BLOCK, stream](x.reshape(x.size), out.reshape(out.size))


def _launch_four(kernel, scalar, x, out, stream):
    """`kernel` takes four elements a thread; a view that does not begin at a multiple of 16 bytes goes to `scalar`."""
    if aligned(x, out):
        _launch(kernel, x, out, stream, per_thread=4)
    else:
        _launch(scalar, x, out, stream)
