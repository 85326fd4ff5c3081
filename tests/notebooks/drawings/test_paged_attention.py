"""The figures of the lesson "Paged attention": what they say, and what they refuse."""

import numpy as np
import pytest

from labkit.course.drawings import paged_attention as pictures
from tests.measure.plots.layout import drawn


@pytest.mark.parametrize(("size", "keys"), [(16, 16), (64, 4), (128, 2)])
def test_which_lane_reads_what(size, keys):
    figure = pictures.page_reads(size, pages=6)
    assert f"a warp reads {keys} keys at a time" in figure.summary
    texts = drawn(figure)
    numbers = [int(text) for text in texts if text.isdigit()]
    assert len(numbers) == 16 * size // 8 + 6 and numbers[-6:] == [0, 1, 2, 3, 0, 1]
    assert numbers[:32] == list(range(32))  # a warp's first request
    assert figure.svg().startswith("<svg")
    with pytest.raises(ValueError, match="size is 80"):
        pictures.page_reads(80)


def test_the_running_maximum_and_sum():
    figure = pictures.running_softmax([0.0, 1.0, 0.5, 3.0])
    whole = np.exp(np.array([0.0, 1.0, 0.5, 3.0]) - 3).sum()
    assert figure.summary == (f"The running maximum of 4 scores grows 3 times, from 0.00 to 3.00; the sum ends at "
                              f"{whole:.2f}.")
    sums = figure.axes[1].lines[-1].get_ydata()
    assert sums[-1] == pytest.approx(whole) and sums[1] == pytest.approx(1 + np.exp(-1))
    assert figure.svg().startswith("<svg")
    with pytest.raises(ValueError, match="scores has shape"):
        pictures.running_softmax([1.0])


def test_rows_and_the_keys_that_they_see():
    figure = pictures.rows_and_keys((4, 2), (4, 10))
    assert figure.summary == ("4 rows of a sequence of 4 tokens, 10 scores; "
                              "2 rows of a sequence of 10 tokens, 19 scores.")
    assert {"sequence 0", "4 of 4", "2 of 10"} <= set(drawn(figure))
    assert figure.svg().startswith("<svg")
    for lengths, contexts in (((0,), (3,)), ((4,), (3,)), ((1, 2), (3,)), ((1,) * 6, (3,) * 6)):
        with pytest.raises(ValueError, match="lengths and contexts"):
            pictures.rows_and_keys(lengths, contexts)
