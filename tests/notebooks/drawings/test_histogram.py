"""The figure of the lesson "Histogram": what it counts, and what it refuses."""

import pytest

from labkit.course.drawings import histogram as pictures
from tests.measure.plots.layout import drawn


def test_atomics_on_global_memory_are_counted():
    assert "12 atomics on global memory, with a private histogram for each block 6" in pictures.private_bins().summary
    shown = [int(text) for text in drawn(pictures.private_bins(((0, 0), (1, 0)), bins=2)) if text.isdigit()]
    assert shown[-2:] == [3, 1]


def test_a_value_outside_the_bins_is_refused():
    with pytest.raises(ValueError, match="outside the bins 0 to 1"):
        pictures.private_bins(((0, 2), (1, 1)), bins=2)
