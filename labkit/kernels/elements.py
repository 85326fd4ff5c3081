"""Device functions for kernels in float32 and in bfloat16: convert an element to float32 and back.

A bfloat16 is the upper half of a float32, in arrays of uint16 (dtypes.py has the host's side). Kernels compute in
float32 and round where a bfloat16 module of PyTorch would.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import float32, uint16, uint32

from labkit import cuda
from labkit.device import ptx

ONE, ZERO = float32(1.0), float32(0.0)
MINUS_LOG2_E = float32(-1.4426950408889634)


@cuda.jit(device=True)
def bfloat16_number(bits):
    return ptx.bits_float(uint32(bits) << 16)


@cuda.jit(device=True)
def bfloat16_bits(x):
    """x rounded to the nearest bfloat16, ties to even: an element of an array of uint16."""
    return uint16(ptx.pack_bf162(x, ZERO))


@cuda.jit(device=True)
def bfloat16_rounded(x):
    low, _ = ptx.unpack_bf162(ptx.pack_bf162(x, ZERO))
    return low


@cuda.jit(device=True)
def unchanged(x):
    return x


@dataclass(frozen=True)
class Element:
    """number(element) and element(number) convert; rounded(number) is the nearest float32 that an element can hold.
    `per_load` elements are 16 bytes."""

    dtype: np.dtype
    number: Callable
    element: Callable
    rounded: Callable

    @property
    def per_load(self) -> int:
        return 16 // self.dtype.itemsize


FLOAT32 = Element(np.dtype(np.float32), unchanged, unchanged, unchanged)
BFLOAT16 = Element(np.dtype(np.uint16), bfloat16_number, bfloat16_bits, bfloat16_rounded)
ELEMENTS = {one.dtype: one for one in (FLOAT32, BFLOAT16)}


def element_of(name: str, array) -> Element:
    """The Element of an array of float32, or of uint16, which holds bfloat16; a TypeError that names any other."""
    if not hasattr(array, "dtype") or np.dtype(array.dtype) not in ELEMENTS:
        raise TypeError(f"{name} has dtype {getattr(array, 'dtype', type(array).__name__)}; float32 and uint16, which "
                        f"holds bfloat16, are allowed")
    return ELEMENTS[np.dtype(array.dtype)]


# --- SwiGLU of two values ---------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def silu_fast(x):
    """x / (1 + exp(-x)) in a few units of float32: an exponential and a reciprocal of one instruction each."""
    return x * ptx.rcp_approx(ONE + ptx.exp2_approx(x * MINUS_LOG2_E))


def make_swiglu(element: Element):
    """A device function: silu(gate) * up of two accumulators, rounded where a module of this element type rounds: both
    linear layers, and SiLU. The product is left for the caller to round."""
    rounded = element.rounded

    @cuda.jit(device=True)
    def swiglu(gate, up):
        return rounded(silu_fast(rounded(gate))) * rounded(up)

    return swiglu


swiglu_bfloat16, swiglu_float32 = make_swiglu(BFLOAT16), make_swiglu(FLOAT32)
SWIGLU = {BFLOAT16: swiglu_bfloat16, FLOAT32: swiglu_float32}
