"""The figures of the lesson "Tensor cores": what they say, and what they refuse."""


import pytest

from labkit.course.drawings import tensor_cores as pictures
from tests.measure.plots.layout import texts


def test_the_elements_of_a_lane():
    shown = texts(pictures.mma_lanes(lane=31))
    assert "g = 31 // 4 = 7, q = 31 % 4 = 3" in shown
    with pytest.raises(ValueError, match="lane is 32"):
        pictures.mma_lanes(32)


PNG = b"\x89PNG"


def test_ldmatrix_points_and_receives():
    figure = pictures.ldmatrix(13)
    assert figure.summary == ("Lane 13 points to row 5 of block 1, and receives columns 2 and 3 of row 3 of each "
                              "block, one register for each.")
    assert figure.png().startswith(PNG)


@pytest.mark.sweep(every=True)
def test_a_swizzle_spreads_a_column_over_the_banks():
    for piece in range(8):
        assert pictures.swizzle(piece).summary == ("Reading it takes as it is: 8 steps; a piece of padding: 1 step; "
                                                   "swizzled: p ^ r: 1 step.")
    assert pictures.swizzle().png().startswith(PNG)


@pytest.mark.parametrize("draw", [lambda: pictures.ldmatrix(32), lambda: pictures.swizzle(8)])
def test_what_does_not_fit_is_refused(draw):
    with pytest.raises(ValueError):
        draw()
