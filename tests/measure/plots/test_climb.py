"""What each rung gains, and the memories of a GPU."""

import pytest
from matplotlib.text import Text

from labkit._common import paths
from labkit.measure import plots
from tests import made_up
from tests.measure.plots import gallery


def texts(figure) -> list[str]:
    return [item.get_text() for item in figure.findobj(Text) if item.get_text()]


def test_a_bar_for_each_rung_over_the_one_before():
    figure = plots.speed_up(made_up.ladder())
    (bar,) = figure.axes[0].patches
    assert bar.get_x() + bar.get_width() == pytest.approx(2.0)  # 40 % and 80 % of the limit
    assert "2.00\u00d7" in texts(figure) and "vector_add_fast 2.00 times" in figure.summary


def test_a_slower_rung_points_the_other_way():
    measured = made_up.ladder()
    figure = plots.speed_up(measured, ["vector_add_fast", "vector_add_slow"])
    (bar,) = figure.axes[0].patches
    assert bar.get_width() == pytest.approx(-0.5) and "0.50\u00d7" in texts(figure)
    with pytest.raises(ValueError, match="rungs holds 1"):
        plots.speed_up(measured, ["vector_add_fast"])


def test_a_failed_rung_is_no_base():
    figure = plots.speed_up(gallery.ladder_of("matmul"))
    times = {row.name: row.timing.p50 for row in gallery.ladder_of("matmul").rungs}
    assert gallery.ladder_of("matmul").row("matmul_register_blocked_16").failed
    kept = times["matmul_register_blocked"] / times["matmul_vectorized"]
    assert f"matmul_vectorized {kept:.2f} times" in figure.summary


def test_what_no_gpu_recorded_is_not_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path)
    for figure in (plots.speed_up("matmul"), plots.speed_up(made_up.ladder(on_gpu=False)), plots.memories()):
        assert "No GPU has recorded this yet" in " ".join(texts(figure)) and not figure.axes[0].patches


def test_memories_have_their_size_latency_and_bandwidth():
    figure = gallery.FIGURES["memories"]()
    shown = texts(figure)
    for part in ("1020 bytes per thread", "228 KB per SM", "50 MB", "143 GB", "350 ns", "4.23 TB/s"):
        assert part in shown
    assert shown.count("not measured") == 2
    assert "registers, 1020 bytes per thread; shared, 228 KB per SM, 23 ns, 33 TB/s" in figure.summary


def test_rungs_of_another_ladder_are_refused():
    with pytest.raises(ValueError, match="the ladder has no row 'nothing'"):
        plots.speed_up(made_up.ladder(), ["nothing", "vector_add_fast"])
