"""The figures of the lesson "Llama by hand": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import llama_by_hand as pictures
from labkit.kernels.rope import frequencies
from labkit.models.configs import LLAMA_3_2_1B


def test_dials_of_pairs():
    figure = pictures.rotations(frequencies(32, 10_000.0), (0, 8))
    assert "pair 0 turns once in 6.3 tokens; pair 8 turns once in 628.3 tokens" in figure.summary
    assert figure.svg().startswith("<svg")


@pytest.mark.parametrize(("pairs", "positions", "message"), [
    ((16,), 9, "pairs are \\[16\\]; each must be one of the 16 pairs, 0 to 15"), ((), 9, "pairs are \\[\\]"),
    ((0,), 13, "positions is 13; from 2 to 12 fit"),
])
def test_dials_that_cannot_be_drawn(pairs, positions, message):
    with pytest.raises(ValueError, match=message):
        pictures.rotations(frequencies(32, 10_000.0), pairs, positions)


def test_wavelengths_count_the_pairs():
    plain = frequencies(64, 500_000.0)
    figure = pictures.wavelengths(plain, frequencies(64, 500_000.0, LLAMA_3_2_1B.rope_scaling), 8192, 1, 4)
    assert "of 32 pairs: 15 are kept, 14 are stretched by the whole factor, 3 lie between" in figure.summary
    assert figure.svg().startswith("<svg")
    with pytest.raises(ValueError, match=r"plain has shape \(32,\) and scaled \(16,\)"):
        pictures.wavelengths(plain, plain[:16], 8192, 1, 4)
