"""Add a residual, out = x + residual: the sum that bypasses each layer of a transformer.

Shapes  x, residual, out: any one shape; float32, C-contiguous.  `out` may be `x`: in place
Work    n additions; 12*n bytes. The result is exact: the sum that IEEE 754 prescribes, to the last bit. Its gradient
        needs no kernel: that of both summands is the gradient of out
Source  He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (2015), https://arxiv.org/abs/1512.03385
"""

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.op import rung

BLOCK = 256


def residual_add_reference(x, residual):
    return x + residual  # in float32: one rounding, the same everywhere


@cuda.jit
def residual_add_per_thread_kernel(x, residual, out):
    i = u32.grid(1)
    if i < out.size:
        out[i] = x[i] + residual[i]


@cuda.jit
def residual_add_vectorized_kernel(x, residual, out):
    i = 4 * u32.grid(1)
    n = u32.size(out)
    if i + 3 < n:
        a, b, c, d = ptx.load_global4(x, i)  # not load_nc4: in place, x is written in this kernel
        e, f, g, h = ptx.load_global4(residual, i)
        ptx.store_global4(out, i, a + e, b + f, c + g, d + h)
    else:
        while i < n:
            out[i] = x[i] + residual[i]
            i += 1


@rung(kernel=residual_add_per_thread_kernel, idea="one element a thread")
def residual_add_per_thread(x, residual, out, stream=0):
    """One thread adds one element."""
    _launch(residual_add_per_thread_kernel, 1, x, residual, out, stream)


@rung(kernel=residual_add_vectorized_kernel, idea="four elements a thread in one load")
def residual_add_vectorized(x, residual, out, stream=0):
    """As per_thread, but a thread loads, adds and stores four neighbours, 128 bits at a time. A view that does not
    begin at a multiple of 16 bytes takes per_thread's kernel."""
    if aligned(x, residual, out):
        _launch(residual_add_vectorized_kernel, 4, x, residual, out, stream)
    else:
        residual_add_per_thread(x, residual, out, stream=stream)


def _launch(kernel, per_thread, x, residual, out, stream):
    check_array("x", x)
    check_array("residual", residual, shape=x.shape)
    check_array("out", out, shape=x.shape)
    flat = (array.reshape(array.size) for array in (x, residual, out))
    kernel[-(-out.size // (per_thread * BLOCK)), BLOCK, stream](*flat)
