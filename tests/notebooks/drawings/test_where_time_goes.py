"""The figures of the lesson "Where the time goes": what they say, and what they refuse."""

import pytest
from matplotlib.text import Text

from labkit.course.drawings import where_time_goes as pictures


def texts(figure) -> str:
    return " | ".join(item.get_text() for item in figure.findobj(Text) if item.get_text())


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
