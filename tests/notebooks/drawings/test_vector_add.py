"""The figures of the lesson "Vector addition": what they say, and what they refuse."""

import pytest

from labkit import measure
from labkit._common import paths
from labkit.course.drawings import vector_add as pictures
from tests import made_up
from tests.measure.plots.layout import texts


@pytest.fixture(autouse=True)
def nothing_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path)


def test_owners_give_every_element_one_thread():
    figure = pictures.owners(n=29, block=4, rungs=("per_thread", "grid_stride", "four_loads"), grid=2)
    threads = [[int(item.get_text()) for item in ax.texts] for ax in figure.axes]
    assert threads[0] == list(range(32))
    assert threads[1] == [i % 8 for i in range(32)]
    assert [i for i, thread in enumerate(threads[2]) if thread == 0] == [0, 4, 8, 12]
    assert "3 threads beyond the end" in texts(figure)
    with pytest.raises(ValueError, match="rungs holds 'naive'"):
        pictures.owners(rungs=("naive",))


def test_round_trip_lays_the_steps_end_to_end():
    trip = {"steps": {"a to the device": 4.0, "kernel": 0.5, "sum to the host": 2.0}, "numpy_ms": 9.0,
            "title": "made up", "where": made_up.GPU}
    figure = pictures.round_trip(trip)
    starts = [bar.get_x() for bar in figure.axes[0].patches]
    assert starts == [0.0, 4.0, 4.5, 0.0]
    for part in ("made up", "kernel", "0.5 ms", "NumPy, on the host"):
        assert part in texts(figure)
    assert len(pictures.round_trip(trip, trip).axes) == 2
    assert len(pictures.round_trip({**trip, "where": measure.CPU_DEVICE}, trip).axes) == 1
    assert "No GPU has recorded this yet" in texts(pictures.round_trip({**trip, "where": measure.CPU_DEVICE}))
