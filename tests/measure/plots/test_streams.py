"""The figures of lesson 09: what they say, and that they draw."""

import pytest

from labkit.measure.plots import streams as pictures
from labkit.measure.series.streams import schedule

PARTS = {"copy to the device": 4.0, "kernel": 6.0, "copy to the host": 4.0}


def test_a_bar_for_each_event():
    figure = pictures.engines({"title": "one", "events": schedule(PARTS, 4, 1)},
                              {"title": "three", "events": schedule(PARTS, 4, 3)})
    assert figure.summary == "one: 14 ms; three: 8 ms."
    assert [len(ax.patches) for ax in figure.axes] == [12, 12]
    assert figure.png().startswith(b"\x89PNG")


def test_a_time_line_of_nothing_is_named():
    with pytest.raises(ValueError, match="holds no events"):
        pictures.engines({"title": "none", "events": []})


def test_a_line_for_each_way():
    runs = [{"chunks": count, "streams": lanes, "memory": memory, "ms": {"p50": 14.0 / (1 + (lanes > 1))}}
            for memory in ("pinned", "pageable") for count in (1, 2, 4) for lanes in ((1,) if count == 1 else (1, 3))]
    figure = pictures.chunks({"n": 1_000_000, "parts": PARTS, "runs": runs, "where": "NVIDIA X", "date": "2026-01-02"})
    assert "4 MB there and back" in figure.summary and "the schedule 8 ms in 4 chunks" in figure.summary
    assert len(figure.axes[0].lines) == 5
    assert figure.png().startswith(b"\x89PNG")
