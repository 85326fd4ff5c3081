"""The figures of the lesson "bfloat16, bit by bit": what they say, and what they refuse."""

import numpy as np
import pytest

from labkit.course.drawings import bfloat16 as pictures
from labkit.kernels.dtypes import BFLOAT16, FLOAT16, decode


@pytest.mark.parametrize(("value", "bits"), [
    (12.34, ("414570A4", "4A2C", "4145")), (-0.1, ("BDCCCCCD", "AE66", "BDCD")), (1e-6, ("358637BD", "0011", "3586")),
    (70_000.0, ("4788B800", "7C00", "4789"))])
def test_the_bits_of_a_number_are_drawn_digit_by_digit(value, bits):
    figure = pictures.bits_of(value)
    assert all(f"0x{each}" in figure.summary for each in bits)
    digits = "".join(text.get_text() for text in figure.axes[0].texts if text.get_text() in ("0", "1"))
    assert digits == "".join(f"{int(each, 16):0{4 * len(each)}b}" for each in bits)
    assert figure.svg().startswith("<svg")


@pytest.mark.parametrize("format", [FLOAT16, BFLOAT16], ids=lambda format: format.name)
def test_spacings_are_the_distances_of_neighbours(format):
    numbers = decode(np.arange(format.infinity, dtype=np.uint16), format)
    distances = dict(zip(numbers, np.diff(numbers), strict=False))
    magnitudes, steps = pictures.spacings(format)
    assert magnitudes[-1] == numbers[-1] and magnitudes[0] == numbers[1]
    assert all(distances[x] == step for x, step in zip(magnitudes[:-1], steps[:-1], strict=True))


def test_spacing_names_both_ends_of_each_format():
    figure = pictures.spacing()
    assert f"{FLOAT16.name} from 6.0e-08 to 6.55e+04, 0.00098 apart at 1" in figure.summary
    assert figure.svg().startswith("<svg")
