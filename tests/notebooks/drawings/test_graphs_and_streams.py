"""The figures of the lesson "Graphs and streams": what they say, and what they refuse."""

import pytest

from labkit import measure
from labkit._common import paths
from labkit.course.drawings import graphs_and_streams as pictures
from labkit.course.drawings import where_time_goes
from labkit.measure.series.streams import schedule
from tests import made_up
from tests.measure.plots.layout import texts


@pytest.fixture
def nothing_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path)


CPU_LINE = "On this machine: the CPU device, which shows work, not speed."


def test_costs_over_sizes_say_where_and_leave_out_what_was_not_measured(nothing_recorded):
    ns = [2**8, 2**16, 2**24]
    here = {"n": ns, "python_us": [30.0, 31.0, 90.0], "where": measure.CPU_DEVICE, "date": "2026-01-02"}
    gpu = {**here, "torch_us": [5.0, 6.0, 60.0], "graph_us": [1.0, 1.5, 50.0], "where": made_up.GPU}
    shown = texts(pictures.launch_cost(here, gpu))
    for part in (CPU_LINE, "Measured on NVIDIA Imaginary", "ours, in a graph", "PyTorch"):
        assert part in shown
    assert "PyTorch, in a graph" not in shown
    assert "No GPU has recorded this yet" in texts(pictures.launch_cost(here))
    copies = {"bytes": ns, "h2d_pinned_us": [9.0, 10.0, 400.0], "where": made_up.GPU, "date": "2026-01-02"}
    assert "there, pinned" in texts(where_time_goes.copy_cost(copies))


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


def test_the_h200s_series_fills_the_table():
    table = pictures.baseline_table(recorded=measure.recorded_series("fair_baseline", gpu="NVIDIA H200")).table()
    assert {row[-1] for row in table["rows"]} == {"NVIDIA H200"}


def test_the_graph_keeps_its_array_when_the_name_moves_on():
    figure = pictures.remembered()
    shown = texts(figure)
    assert "kept" in shown and "10 \u00d7 add this to y" in shown
    assert figure.summary.endswith("the graph adds the array with 100s, which Python calls kept.")
