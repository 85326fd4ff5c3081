"""Kernels of all three elements from one source: loads and stores of one, or of eight neighbours of a row at once.

A factory takes an Element and gets its device functions: `access = ACCESS[element]`, then access.load(array, i) is a
float32 whatever the array holds. Eight neighbours are 128 bits of 16-bit elements, in one access, or 256 bits of
float32, in two. bfloat16 lies in arrays of uint16.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import aligned
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32, Element

ZERO = float32(0.0)


# --- float32 ----------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def load_f32(array, i):
    return array[i]


@cuda.jit(device=True)
def store_f32(array, i, value):
    array[i] = value


@cuda.jit(device=True)
def load_eight_f32(local, offset, array, i, valid):
    a, b, c, d = ZERO, ZERO, ZERO, ZERO
    e, f, g, h = ZERO, ZERO, ZERO, ZERO
    if valid > 0:  # all eight or none
        a, b, c, d = ptx.load_global4(array, i)
        e, f, g, h = ptx.load_global4(array, i + 4)
    local[offset], local[offset + 1], local[offset + 2], local[offset + 3] = a, b, c, d
    local[offset + 4], local[offset + 5], local[offset + 6], local[offset + 7] = e, f, g, h


@cuda.jit(device=True)
def store_eight_f32(array, i, valid, local, offset):
    if valid > 0:
        ptx.store_global4(array, i, local[offset], local[offset + 1], local[offset + 2], local[offset + 3])
        ptx.store_global4(array, i + 4, local[offset + 4], local[offset + 5], local[offset + 6], local[offset + 7])


@cuda.jit(device=True)
def load_singles_f32(local, offset, array, i, valid):
    for e in u32.range(8):
        local[offset + e] = array[i + e] if valid > int32(e) else ZERO


@cuda.jit(device=True)
def store_singles_f32(array, i, valid, local, offset):
    for e in u32.range(8):
        if valid > int32(e):
            array[i + e] = local[offset + e]


# --- By the element ---------------------------------------------------------------------------------------------------


class Access(NamedTuple):
    """load(array, i) and store(array, i, value): one element. rounded: the Element's. eight and singles: pairs of
    load(local, offset, array, i, valid) and store(array, i, valid, local, offset), between eight neighbours of the
    array and local[offset] to local[offset + 7], float32 in registers. `valid` of the neighbours are inside the row:
    the others load as zero and are not stored. eight: all are valid or none, and begin at a multiple of 16 bytes."""

    load: Callable
    store: Callable
    rounded: Callable
    eight: tuple[Callable, Callable]
    singles: tuple[Callable, Callable]

    def neighbours(self, vectorized: bool) -> tuple[Callable, Callable]:
        return self.eight if vectorized else self.singles


# --- 16 bits ----------------------------------------------------------------------------------------------------------


def make_access(element: Element):
    """The Access of elements of 16 bits."""
    number, to_element, pack, unpack = element.number, element.element, element.pack, element.unpack

    @cuda.jit(device=True)
    def load(array, i):
        return number(array[i])

    @cuda.jit(device=True)
    def store(array, i, value):
        array[i] = to_element(value)

    @cuda.jit(device=True)
    def load_eight(local, offset, array, i, valid):
        a, b, c, d = 0, 0, 0, 0
        if valid > 0:  # all eight or none
            a, b, c, d = ptx.load_global4(array, i)
        local[offset], local[offset + 1] = unpack(a)
        local[offset + 2], local[offset + 3] = unpack(b)
        local[offset + 4], local[offset + 5] = unpack(c)
        local[offset + 6], local[offset + 7] = unpack(d)

    @cuda.jit(device=True)
    def store_eight(array, i, valid, local, offset):
        if valid > 0:
            ptx.store_global4(array, i, pack(local[offset], local[offset + 1]),
                              pack(local[offset + 2], local[offset + 3]),
                              pack(local[offset + 4], local[offset + 5]),
                              pack(local[offset + 6], local[offset + 7]))

    @cuda.jit(device=True)
    def load_singles(local, offset, array, i, valid):
        for e in u32.range(8):
            local[offset + e] = load(array, i + e) if valid > int32(e) else ZERO

    @cuda.jit(device=True)
    def store_singles(array, i, valid, local, offset):
        for e in u32.range(8):
            if valid > int32(e):
                store(array, i + e, local[offset + e])

    return Access(load, store, element.rounded, (load_eight, store_eight), (load_singles, store_singles))


ACCESS = {
    FLOAT32: Access(load_f32, store_f32, FLOAT32.rounded, (load_eight_f32, store_eight_f32),
                    (load_singles_f32, store_singles_f32)),
    BFLOAT16: make_access(BFLOAT16), FLOAT16: make_access(FLOAT16),
}


def in_eights(columns: int, *arrays) -> bool:
    """Whether rows of this many columns are multiples of eight, aligned to 16 bytes."""
    return columns % 8 == 0 and aligned(*arrays)


def rounded_as(array: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """For references: a function that rounds float64 values as `array` does, to bfloat16 or float16; the identity for
    float32."""
    if array.dtype == np.float16:
        return lambda values: values.astype(np.float16).astype(np.float64)
    if array.dtype == np.uint16:
        return lambda values: float32_of(bfloat16_of(values)).astype(np.float64)
    return lambda values: values
