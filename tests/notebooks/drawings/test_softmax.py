"""The figure of the lesson "Softmax": the two values of the whole row."""

import numpy as np
import pytest

from labkit.course.drawings import softmax as pictures
from tests.measure.plots.layout import drawn


@pytest.mark.parametrize(("left", "right"), [((1, 3, 2), (5, 4)), ((5, 4), (1, 3, 2)), ((2,), (2, 2))])
def test_the_joined_part_is_the_whole_row(left, right):
    row = np.array(left + right, float)
    expected = f"M = {row.max():.0f},  S = {np.exp(row - row.max()).sum():.2f}"
    assert expected in drawn(pictures.join(left, right))
