"""What kernels make of an element, and back: all 65,536 of 16 bits, and float32 numbers between them."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.dtypes import bfloat16_of, float32_of, float64_of
from labkit.kernels.elements import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    bfloat16_bits,
    bfloat16_number,
    bfloat16_rounded,
    element_of,
    float16_element,
    float16_number,
    float16_rounded,
)


@cuda.jit
def convert(bits, numbers, values, rounded_bits, rounded):
    i = cuda.grid(1)
    if i < bits.size:
        numbers[i] = bfloat16_number(bits[i])
        rounded_bits[i] = bfloat16_bits(values[i])
        rounded[i] = bfloat16_rounded(values[i])


def test_every_bfloat16_and_what_lies_between():
    bits = np.arange(2**16, dtype=np.uint16)
    between = bits.astype(np.uint32) << np.uint32(16) | np.random.default_rng(0).choice(
        np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]), 2**16)
    values = between.view(np.float32)
    numbers, rounded_bits, rounded = (cuda.device_array(2**16, dtype) for dtype in (np.float32, np.uint16, np.float32))
    convert[256, 256](cuda.to_device(bits), numbers, cuda.to_device(values), rounded_bits, rounded)
    np.testing.assert_array_equal(numbers.copy_to_host(), float32_of(bits))
    number = ~np.isnan(values)
    np.testing.assert_array_equal(rounded_bits.copy_to_host()[number], bfloat16_of(values)[number])
    np.testing.assert_array_equal(rounded.copy_to_host()[number], float32_of(bfloat16_of(values))[number])
    assert np.isnan(rounded.copy_to_host()[~number]).all()


@cuda.jit
def convert_float16(halves, numbers, values, nearest, rounded):
    i = cuda.grid(1)
    if i < halves.size:
        numbers[i] = float16_number(halves[i])
        nearest[i] = float16_element(values[i])
        rounded[i] = float16_rounded(values[i])


def test_every_float16_and_what_lies_between():
    """Between two neighbours 0, 1 and 2 units in the last place of float32, the middle, and what is next to it; beyond
    the largest, 65,504, infinity from the middle of it and 65,536 on."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    bits = halves.astype(np.float32).view(np.uint32)
    values = (bits + np.random.default_rng(0).choice(np.uint32([0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF]), 2**16)).view(
        np.float32)
    values[:3] = 65519.996, 65520.0, -1e30
    numbers, nearest, rounded = (cuda.device_array(2**16, dtype) for dtype in (np.float32, np.float16, np.float32))
    convert_float16[256, 256](cuda.to_device(halves), numbers, cuda.to_device(values), nearest, rounded)
    np.testing.assert_array_equal(numbers.copy_to_host(), halves.astype(np.float32))
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    assert list(expected[:3]) == [65504.0, np.inf, -np.inf]
    np.testing.assert_array_equal(nearest.copy_to_host(), expected)
    np.testing.assert_array_equal(rounded.copy_to_host(), expected.astype(np.float32))


@pytest.mark.parametrize("element", [BFLOAT16, FLOAT16, FLOAT32], ids=lambda element: element.name)
def test_twice_the_largest_error_of_rounding(element):
    values = np.float32(np.random.default_rng(1).uniform(-1, 1, 5000) * 10.0 ** np.linspace(-9, 4, 5000))
    error = np.abs(float64_of(element.array_of(values)) - values)
    assert (error <= element.rounding_error(values) / 2).all()
    assert element is FLOAT32 or (error > 0.4 * element.rounding_error(values)).any(), "no tighter bound would hold"


def test_an_array_says_what_its_elements_are():
    assert element_of("x", cuda.device_array(1, np.uint16)) is BFLOAT16 and BFLOAT16.per_load == 8
    assert element_of("x", cuda.device_array(1, np.float32)) is FLOAT32 and FLOAT32.per_load == 4
    assert element_of("x", cuda.device_array(1, np.float16)) is FLOAT16 and FLOAT16.per_load == 8
    for wrong in (cuda.device_array(1, np.float64), [1.0]):
        with pytest.raises(TypeError, match="x has dtype (float64|list); float32, float16, and uint16"):
            element_of("x", wrong)
