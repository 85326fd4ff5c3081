"""The figures of the lesson "Broadcasting": what they say, and what they refuse."""

import pytest
from matplotlib.text import Text

from labkit.course.drawings import broadcast as pictures
from tests.measure.plots.layout import texts


def test_broadcast_reads_shows_the_index_of_each_element():
    figure = pictures.broadcast_reads((2, 3, 4), (1, 2, 3))
    shown = texts(figure)
    for part in ("b[:, :, None]", "(2, 1, 1)", "x\u00b712 + y\u00b74 + z", "x\u00b73 + y + z\u00b70", "out[1, 2, 3]"):
        assert part in shown
    numbers = [item.get_text() for item in figure.findobj(Text) if item.get_text().isdigit()]
    assert numbers.count("23") == 2, "the last element of out and of a"
    assert numbers.count("5") == 2 + 4, "b[1, 2] once for each z"
    with pytest.raises(ValueError, match="mark is"):
        pictures.broadcast_reads((2, 3, 4), (2, 0, 0))
