"""What kernels make of an element, and back: all 65,536 bfloat16, and float32 numbers between them."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.elements import BFLOAT16, FLOAT32, bfloat16_bits, bfloat16_number, bfloat16_rounded, element_of


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


def test_an_array_says_what_its_elements_are():
    assert element_of("x", cuda.device_array(1, np.uint16)) is BFLOAT16 and BFLOAT16.per_load == 8
    assert element_of("x", cuda.device_array(1, np.float32)) is FLOAT32 and FLOAT32.per_load == 4
    for wrong in (cuda.device_array(1, np.float16), [1.0]):
        with pytest.raises(TypeError, match="x has dtype (float16|list); float32 and uint16"):
            element_of("x", wrong)
