"""The figures of the lesson "Serving": what they say, and what they refuse."""

import base64

import pytest

from labkit.course.drawings import serving as pictures
from tests.measure.plots.layout import drawn


def test_lines_over_what_was_varied():
    panels = {"time, ms": {"p50": [1.5, 2], "p99": [30, 4000]}, "inside": {"mean": [3, 9]}}
    figure = pictures.curves([64, 128], panels, "Budgets", "tokens of a step", doubling=True, mark=100)
    assert figure.summary == "time, ms: p50 from 1.5 to 2, p99 from 30 to 4,000; inside: mean from 3 to 9."
    assert {"p50", "p99", "mean"} <= set(drawn(figure)) and len(figure.axes) == 2
    assert {ax.get_yscale() for ax in figure.axes} == {"log"}
    assert {ax.get_yscale() for ax in pictures.curves([64, 128], panels, "Budgets", "tokens").axes} == {"linear"}
    assert figure.svg().startswith("<svg")


def test_a_line_of_another_length_is_named():
    with pytest.raises(ValueError, match="'p99' has 1 values, and there are 2 of load"):
        pictures.curves([1, 2], {"ms": {"p99": [1]}}, "T", "load")


def test_a_point_for_each_request():
    figure = pictures.waits({"FIFO": ([0, 5, 9], [1, 2, 9], [False, True, False])})
    assert figure.summary == "FIFO: 3 requests, mean 4 ms, longest 9 ms."
    assert sum(len(points.get_offsets()) for points in figure.axes[0].collections) == 3
    assert figure.svg().startswith("<svg")


def test_the_window_is_a_picture_with_words_for_it():
    bundle, metadata = pictures.window()._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG") and len(bundle["image/png"]) < 200_000
    assert "pages" in bundle["text/plain"] and metadata["image/png"]["width"] <= 830
