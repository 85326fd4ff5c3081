"""The figures of the lesson "Scan": what they say, and what they refuse."""

import numpy as np
import pytest

from labkit.course.drawings import scan as pictures
from tests.measure.plots.layout import drawn


@pytest.mark.parametrize("n", [4, 8, 16])
def test_the_last_row_of_each_picture_is_the_scan(n):
    values = np.random.default_rng(n).integers(0, 9, n)
    sums = np.cumsum(values)
    for figure, last in ((pictures.steps(values), sums), (pictures.tree(values), sums - values)):
        shown = drawn(figure)
        numbers = [int(text) for text in shown if text.isdigit()]
        assert numbers[-n:] == last.tolist() and numbers[:n] == values.tolist()
        assert figure.png()


def test_the_additions_of_a_picture_are_counted():
    assert [t for t in drawn(pictures.steps()) if "additions" in t] == [
        "1 before: 7 additions", "2 before: 6 additions", "4 before: 4 additions"]
    assert sum(int(t.split()[1]) for t in drawn(pictures.tree()) if t.startswith(("up", "down"))) == 2 * 7


def test_another_length_is_refused():
    with pytest.raises(ValueError, match="values has 6 elements"):
        pictures.tree((1, 2, 3, 4, 5, 6))


def test_a_late_block_and_a_compaction_are_drawn():
    assert "over 5 tiles" in drawn(pictures.look_back())
    assert pictures.look_back().png() and pictures.compaction().png()
    assert "8 elements, of which 4 are kept" in pictures.compaction().summary
