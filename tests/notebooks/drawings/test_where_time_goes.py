"""The figures of the lesson "Where the time goes": what they say, and what they refuse."""

import pytest

from labkit import measure
from labkit.course.drawings import where_time_goes as pictures
from tests.measure.plots.layout import texts


def test_timeline_has_a_row_for_each_kind_of_event():
    events = [{"row": "ranges 1", "name": "matrix product", "start_us": 0, "us": 100},
              {"row": "ranges 2", "name": "kernel", "start_us": 10, "us": 80},
              {"row": "driver", "name": "cuLaunchKernelEx", "start_us": 12, "us": 30},
              {"row": "GPU", "name": "Memcpy HtoD (Pageable -> Device)", "start_us": 20, "us": 1}]
    figure = pictures.timeline({"title": "made up", "events": events}, {"title": "again", "events": events[:2]})
    assert len(figure.axes) == 2
    shown = texts(figure)
    for part in ("made up", "again", "outer range", "driver calls", "on the GPU", "matrix product", "kernel"):
        assert part in shown
    assert "Memcpy" not in shown, "there is no room for its name in a bar this narrow"
    with pytest.raises(ValueError, match="no events"):
        pictures.timeline({"title": "empty", "events": []})


def test_the_h200s_series_fill_the_table_and_the_time_line():
    trip = [{"path": ["matrix product", part], "ms": 1.0, "count": 1} for part in pictures.SOURCE_US]
    table = pictures.trips_table(trip, trip).table()
    assert table["columns"][2:4] == ["H200, cold", "H200, warm"]
    assert not any("-" in row for row in table["rows"])
    series = measure.recorded_series("trace", gpu="NVIDIA H200")
    names = {event["name"] for event in pictures.trace_panel(series)["events"] if event["row"] == "ranges 2"}
    assert names == set(pictures.SOURCE_US) - {"matrix product"}
