"""Device functions for kernels in float32, bfloat16 and float16: convert an element to float32 and back.

A bfloat16 is the upper half of a float32, in arrays of uint16 (dtypes.py has the host's side). Kernels compute in
float32 and round where a module of PyTorch of the element's type would.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import float32, uint16, uint32
from numba.types import float16

from labkit import cuda
from labkit.device import ptx
from labkit.kernels.dtypes import of_dtype
from labkit.kernels.tolerance import EPS16, EPS_BF16, SMALLEST16

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
def float16_number(x):
    return float32(x)


@cuda.jit(device=True)
def float16_element(x):
    """x rounded to the nearest float16, ties to even; beyond the largest, 65,504, infinity."""
    return float16(x)


@cuda.jit(device=True)
def float16_rounded(x):
    return float32(float16(x))


@cuda.jit(device=True)
def unchanged(x):
    return x


@dataclass(frozen=True, eq=False)
class Element:
    """number(element) and element(number) convert; rounded(number) is the nearest float32 that an element can hold.
    `per_load` elements are 16 bytes. eps, smallest: what rounding_error uses. pack(a, b) makes a word of two
    elements of 16 bits, unpack(word) two float32, and store_pair(array, i, a, b) stores them at an even i; None where
    elements have 32 bits."""

    name: str
    dtype: np.dtype
    eps: float
    smallest: float
    number: Callable
    element: Callable
    rounded: Callable
    pack: Callable | None = None
    unpack: Callable | None = None
    store_pair: Callable | None = None

    @property
    def per_load(self) -> int:
        return 16 // self.dtype.itemsize

    def array_of(self, values) -> np.ndarray:
        """Return the values, on the host, rounded to elements."""
        return of_dtype(values, self.dtype)

    def rounding_error(self, values):
        """Return twice the largest error of rounding such float32 to an element: 0 for float32, where nothing is."""
        return self.eps * np.abs(values) + self.smallest


FLOAT32 = Element("float32", np.dtype(np.float32), 0.0, 0.0, unchanged, unchanged, unchanged)
BFLOAT16 = Element("bfloat16", np.dtype(np.uint16), EPS_BF16, 0.0, bfloat16_number, bfloat16_bits, bfloat16_rounded,
                   ptx.pack_bf162, ptx.unpack_bf162, ptx.store_global_bf162)
FLOAT16 = Element("float16", np.dtype(np.float16), EPS16, SMALLEST16, float16_number, float16_element, float16_rounded,
                  ptx.pack_half2, ptx.unpack_half2, ptx.store_global_half2)
ELEMENTS = {one.dtype: one for one in (FLOAT32, BFLOAT16, FLOAT16)}


def element_of(name: str, array) -> Element:
    """The Element of an array of float32, float16, or uint16, which holds bfloat16; a TypeError that names any
    other."""
    if not hasattr(array, "dtype") or np.dtype(array.dtype) not in ELEMENTS:
        raise TypeError(f"{name} has dtype {getattr(array, 'dtype', type(array).__name__)}; float32, float16, and "
                        f"uint16, which holds bfloat16, are allowed")
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


SWIGLU = {element: make_swiglu(element) for element in ELEMENTS.values()}
