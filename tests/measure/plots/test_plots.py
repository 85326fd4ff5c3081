"""Figures are made, carry the labels a reader needs, and say where their times were taken."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

from labkit._common import paths
from labkit.measure import plots
from labkit.measure.plots import style
from tests import made_up
from tests.measure.plots.layout import texts


@pytest.fixture(autouse=True)
def nothing_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path)


def test_ladder_on_a_gpu():
    shown = texts(plots.ladder(made_up.ladder()))
    for part in ("vector_add_slow", "vector_add_fast", "PyTorch", "NumPy, on the host", "(80%)", "GB/s",
                 "limit: copy bandwidth, 1,000", "Measured on NVIDIA Imaginary, 2026-01-02"):
        assert part in shown


def test_long_names_beside_the_bars_stay_on_the_figure():
    measured = made_up.ladder()
    rows = [replace(row, name=name) for row, name in
            zip(measured.rows, ("matmul_half_wgmma_specialised", "PyTorch (unfused: cuBLAS with the bias, then GELU)"),
                strict=False)]
    figure = plots.ladder(replace(measured, rows=tuple(rows)))
    figure.canvas.draw()
    names = [text for text in figure.findobj(Text) if text.get_text().startswith(("matmul_half", "PyTorch"))]
    assert len(names) == 2
    assert all(text.get_window_extent().x0 >= 0 for text in names)


CPU_LINE = "On this machine: the CPU device, which shows work, not speed."


def test_times_of_the_cpu_device_are_a_table_where_nothing_is_recorded():
    figure = plots.ladder(made_up.ladder(on_gpu=False))
    shown = texts(figure)
    assert not [bar for ax in figure.axes for bar in ax.patches], "the CPU device's times have no bars"
    assert f"No GPU has recorded this yet. {CPU_LINE}" in shown
    assert "vector_add_slow" in shown and " ms" in shown
    assert "GB/s" not in shown


def test_ladder_on_the_cpu_device_shows_what_a_gpu_recorded():
    alone = plots.ladder(made_up.ladder())
    figure = plots.ladder(made_up.ladder(on_gpu=False), recorded=made_up.ladder())
    assert [bar.get_width() for bar in figure.axes[0].patches] == [bar.get_width() for bar in alone.axes[0].patches]
    shown = texts(figure)
    assert CPU_LINE in shown and CPU_LINE not in texts(alone)
    assert "Measured on NVIDIA Imaginary" in shown and "milliseconds" not in shown


def test_a_gpu_stands_beside_the_recorded_one_bar_by_bar():
    recorded = made_up.ladder()
    here = replace(recorded, where="NVIDIA L4", limit=recorded.limit / 10, rows=tuple(
        replace(row, gbs=row.gbs and row.gbs / 10) for row in recorded.rows if row.name != "PyTorch"))
    figure = plots.ladder(here, recorded)
    (ax,) = figure.axes
    rates = [recorded.rate(row) for name in ("slow", "fast", "NumPy", "PyTorch") for row in recorded.rows
             if name in row.name]
    widths = [bar.get_width() for bar in ax.patches]
    assert widths[:6:2] == pytest.approx(rates[:3])
    assert widths[1:4:2] == pytest.approx([rate / 10 for rate in rates[:2]])
    assert widths[-1] == pytest.approx(rates[3]), "PyTorch was not measured here"
    shown = texts(figure)
    for part in ("Dark: this machine, NVIDIA L4", "Pale: recorded on NVIDIA Imaginary",
                 "limit, here: copy bandwidth, 100", "limit, recorded: copy bandwidth, 1,000"):
        assert part in shown
    assert len({line.get_xdata()[0] for line in ax.lines}) == 2, "both limits are marked"


def test_recorded_ladder_is_found_by_itself(tmp_path):
    (tmp_path / "nvidia-imaginary.json").write_text(json.dumps(made_up.measurements()))
    assert "Measured on NVIDIA Imaginary" in texts(plots.ladder(made_up.ladder(on_gpu=False)))
    assert "not recorded" not in texts(plots.ladder(made_up.ladder(on_gpu=False)))
    assert "No GPU has recorded this yet" in texts(plots.ladder(made_up.ladder(on_gpu=False), recorded=None))
    for plot, series in ((plots.crossover, made_up.crossover), (plots.sizes, made_up.matmul_sizes),
                         (plots.block_shapes, made_up.block_shapes)):
        shown = texts(plot(series(on_gpu=False)))
        assert "Measured on NVIDIA Imaginary" in shown and CPU_LINE in shown
        assert len(plot(series()).axes) == 1, "the recording itself does not stand beside itself"
        both = plot({**series(), "where": "NVIDIA L4"})
        assert len(both.axes) == 2
        assert "Recorded: NVIDIA Imaginary" in texts(both) and "This machine: NVIDIA L4" in texts(both)


def test_crossover_marks_where_the_gpu_wins():
    shown = texts(plots.crossover(made_up.crossover()))
    for part in ("kernel alone", "copies and kernel", "call from Python", "NumPy, on the host", "Circled"):
        assert part in shown


def test_crossing_is_interpolated():
    n, ms = plots.crossing([1, 10, 100], [4.0, 4.0, 4.0], [1.0, 2.0, 8.0])
    assert 10 < n < 100
    assert ms == pytest.approx(4.0)
    assert plots.crossing([1, 10], [5.0, 5.0], [1.0, 2.0]) == (None, None), "never faster"
    assert plots.crossing([1, 10], [1.0, 1.0], [2.0, 2.0]) == (None, None), "always faster"
    assert plots.crossing([1, 10], None, [2.0, 2.0]) == (None, None)


def test_sizes():
    shown = texts(plots.sizes(made_up.matmul_sizes()))
    for part in ("matmul_naive", "PyTorch (cuBLAS)", "limit: float32 peak, 10 TFLOP/s", "M = N = K", "512"):
        assert part in shown
    assert "NumPy" not in shown, "NumPy on the host has no place among a GPU's rates"
    assert "No GPU has recorded this yet" in texts(plots.sizes(made_up.matmul_sizes(on_gpu=False)))


def test_block_shapes():
    shown = texts(plots.block_shapes(made_up.block_shapes()))
    for part in ("16 × 8 × 8", "4 × 4 × 4", "GB/s", "limit: copy bandwidth", "32-byte sector"):
        assert part in shown
    assert "sector" not in texts(plots.block_shapes(made_up.block_shapes(on_gpu=False)))


def test_roofline():
    add = made_up.ladder()
    product = made_up.ladder("matmul", "TFLOP/s", flops=10**12, nbytes=10**7)
    shown = texts(plots.roofline([add, product]))
    for part in ("10 TFLOP/s, float32 peak", "1,000 GB/s, copy bandwidth", "matmul_fast", "vector_add_slow"):
        assert part in shown


def test_roofline_refuses_cpu_times():
    with pytest.raises(ValueError, match="vector_add was timed on the CPU device"):
        plots.roofline(made_up.ladder(on_gpu=False))
    with pytest.raises(ValueError, match="measured is empty"):
        plots.roofline([])


def test_tensor_cores_bring_their_roofs_and_numbers_for_names():
    limits = {**made_up.LIMITS, "tf32_tflops": 40.0, "f16_tflops": 80.0}
    half = replace(made_up.ladder("matmul", "TFLOP/s", flops=10**12, nbytes=10**7), op="matmul_half", peak="f16",
                   title="Half product", limits=limits)
    assert "80 TFLOP/s, f16, tensor cores" in texts(plots.roofline(half))
    alone = plots.roofline([made_up.ladder()])
    assert "tensor cores" not in texts(alone)
    single = replace(made_up.ladder(), limits=limits)
    figure = plots.roofline([single, half])
    shown = texts(figure)
    for part in ("40 TFLOP/s, TF32, tensor cores", "matmul half", "vector add", "n=1,000,000,000", "slow", "80%"):
        assert part in shown


def test_every_rung_has_a_number_of_its_own_on_the_plot():
    ladders = [replace(made_up.ladder(), op=f"op{k}", title=f"Operation {k}") for k in range(9)]
    nothing = replace(made_up.ladder(), op="transpose", flops=0)
    figure = plots.every_rung([*ladders, nothing])
    shown = [item.get_text() for item in figure.findobj(Text)]
    for number in range(1, 10):
        assert shown.count(str(number)) == 2, "once on the plot and once in the list"
    assert "Not on it, since they have no arithmetic: transpose" in texts(figure).replace("\n", " ")
    assert shown.count("2 rungs: vector_add_slow 40% to vector_add_fast 80% of the limit; PyTorch 90%") == 9
    (ax,) = figure.axes
    figure.draw_without_rendering()
    discs = [line.get_xydata()[0] for line in ax.lines if len(line.get_xdata()) == 1 and line.get_markersize() > 10]
    places = ax.transData.transform(discs)
    gaps = np.abs(places[:, None] - places[None]).max(axis=2) + 1e9 * np.eye(len(places))
    assert len(discs) == 9
    assert gaps.min() > 0.9 * 0.2 * figure.dpi, "no disc hides another"
    assert sum(len(line.get_xdata()) == 1 for line in ax.lines) == 9 + 3 * 9, "and a dot for each row"


def test_a_figure_shows_itself_as_svg_with_its_text_as_text(tmp_path):
    figure = plots.ladder(made_up.ladder())
    data, metadata = figure._repr_mimebundle_()
    assert set(data) == {"image/svg+xml", "text/plain"}
    assert metadata["image/svg+xml"]["width"] == 704
    assert "Measured on NVIDIA Imaginary" in data["text/plain"]
    assert data["image/svg+xml"] == plots.ladder(made_up.ladder()).svg(), "the same figure gives the same bytes"
    content = figure.save(tmp_path / "deep" / "ladder.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[16:20], "big") == 1408, "twice 704, for sharp screens"
    assert content == figure.png()
    assert figure.save(tmp_path / "ladder.svg").read_text() == figure.svg()


def test_a_figure_whose_svg_is_large_shows_itself_as_png(monkeypatch):
    monkeypatch.setattr(style, "LARGEST_SVG", 100)
    data, metadata = plots.ladder(made_up.ladder())._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"} and metadata["image/png"]["width"] == 704


def test_labels_are_spread_within_the_axes():
    heights = style.spread_apart([0.5, 0.5, 0.51, 0.99], 0.075)
    assert np.all(np.diff(heights) > 0.074)
    assert max(heights) <= 1.0
    low = style.spread_apart([0.0, 0.01, 0.02], 0.075)
    assert min(low) >= 0.029


def test_warp_addresses_name_the_lanes_that_share_an_element():
    lane = np.arange(32)
    touched = {"row": lane, "pairs": lane // 2, "half_warps": 4096 * (lane // 16), "one": 0 * lane}
    shown = texts(plots.warp_addresses(touched, "A warp"))
    for part in ("4 sectors, 100% used", "2 sectors, 12% used", "1 sector, 12% used", "16,384"):
        assert part in shown
    numbers = [item.get_text() for item in plots.warp_addresses(touched).findobj(Text) if item.get_text().isdigit()]
    assert numbers.count("2") == 1 + 16, "lane 2, and sixteen elements that two lanes want"
    assert numbers.count("16") == 1 + 2 and numbers.count("32") == 1 + 1 + 1  # byte 32 in "row" and in "pairs"
    assert [plots.sectors(indices) for indices in touched.values()] == [4, 2, 2, 1]
    with pytest.raises(ValueError, match="touched is empty"):
        plots.warp_addresses({})


def test_a_tie_is_no_crossing():
    assert plots.crossing([1, 10, 100], [4.0, 10.0, 99.0], [1.0, 10.1, 100.0]) == (None, None)


def test_block_shapes_stand_together_by_their_threads():
    figure = plots.block_shapes(made_up.block_shapes())
    labels = [item.get_text() for item in figure.findobj(Text)]
    for heading in ("1,024 threads", "256 threads", "64 threads"):
        assert labels.count(heading) == 1
    order = ["1,024 threads", "16 \u00d7 8 \u00d7 8", "256 threads", "256 \u00d7 1 \u00d7 1", "64 threads",
             "4 \u00d7 4 \u00d7 4"]
    assert [label for label in labels if label in order] == order
