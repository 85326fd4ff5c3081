"""Ladders of a page for other GPUs: what they recorded, or a bound that says that it is one. The browser's part is in
test_browser.py."""

import json
import re

import pytest

from labkit._common import paths
from labkit.course import site
from labkit.course.site import ladders
from labkit.measure import Ladder, plots, share
from tests import made_up
from tests.course.site.pages import COURSE_GPU, COURSE_LIMITS, plotted, ship, strict


def page_of(course, *figures) -> str:
    ship(course.chapters[0], [plotted(figure) for figure in figures])
    text = (site.write(course).parent / "00_first.html").read_text()
    strict(text)
    return text


def panels(text) -> dict[str, str]:
    """What a page has for each GPU that may be chosen."""
    return dict(re.findall(r'data-gpu="([^"]*)"[^>]*>(.*?)(?=<p data-gpu|<div data-gpu|<div class="default")', text,
                           re.DOTALL))


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_ladder_that_a_figure_shows_is_found_in_its_summary(atlas, on_gpu):
    measured = made_up.ladder("matmul", "TFLOP/s", on_gpu=on_gpu, flops=10**12, nbytes=10**7)
    for figure in (plots.ladder(measured, atlas["matmul"]), plots.ladder(atlas["matmul"], None)):
        shown = ladders.shown_in(figure.summary)
        assert (shown.op, shown.gpu, shown.size) == ("matmul", COURSE_GPU, "M=4,096, N=4,096, K=4,096")
        assert shown.rungs == [row.name for row in atlas["matmul"].rungs]
    some = plots.ladder(atlas["matmul"].only("matmul_tiled", "matmul_naive"), None)
    assert ladders.shown_in(some.summary).rungs == ["matmul_naive", "matmul_tiled"]
    assert ladders.shown_in(plots.ladder(made_up.ladder(on_gpu=False), None).summary) is None
    assert ladders.shown_in("Time over size") is None


def test_a_recorded_gpu_has_its_own_ladder_and_the_others_a_bound(atlas, course):
    text = page_of(course, plots.ladder(atlas["matmul"].only("matmul_naive", "matmul_tiled"), None))
    assert text.count('class="ladder"') == 1
    assert f'<option value="">{COURSE_GPU}, as in the text</option>' in text
    recorded, bounds = (set(re.findall(r">([^<]+)</option>", group)) for group in
                        re.findall(r"<optgroup[^>]*>(.*?)</optgroup>", text))
    assert recorded == {COURSE_GPU, made_up.CARD} and "Tesla T4" in bounds and not recorded & bounds

    own = panels(text)["nvidia-geforce-rtx-4060"]
    assert "Measured on NVIDIA GeForce RTX 4060, 2026-01-02" in own and "at least" not in own
    assert "matmul_naive" in own and "matmul_tiled_32" not in own  # the rungs that the lesson shows
    assert f"The text quotes {COURSE_GPU}." in own
    picture = "00_first-1-nvidia-geforce-rtx-4060"
    images = course.root / "build" / "site" / "images"
    assert {f"{picture}.svg", f"{picture}-dark.svg", "00_first-1.svg"} <= {path.name for path in images.iterdir()}

    t4 = panels(text)["tesla-t4"]
    flops = 2 * 4096**3
    assert f"Tesla T4: at least {flops / 8.1e9:.3g} ms, at most 8.1 TFLOP/s." in t4
    assert "This is a bound from its data sheet, not a measurement: 137 GFLOP (M=4,096, N=4,096, K=4,096) at" in t4
    assert f"The plot below is of {COURSE_GPU}." in t4
    assert "Measured" not in t4


def test_what_a_recorded_gpu_has_not_recorded_is_a_bound_too(atlas, course):
    text = page_of(course, plots.ladder(atlas["vector_add"], None))
    bound = panels(text)["nvidia-geforce-rtx-4060"]
    ms = atlas["vector_add"].bytes / 272e6
    assert f"at least {ms:.3g} ms, at most 272 GB/s." in bound and "from its data sheet, not a measurement" in bound


def test_a_gpu_without_the_type_has_no_bound(atlas, course):
    tf32 = made_up.card("matmul_tf32", gpu=COURSE_GPU, limits=COURSE_LIMITS)
    (paths.MEASUREMENTS / "nvidia-h200.json").write_text(json.dumps(tf32))
    text = page_of(course, plots.ladder(Ladder.from_json(tf32["ops"]["matmul_tf32"][0]), None))
    assert "<strong>Tesla T4: no bound.</strong>" in panels(text)["tesla-t4"]


def test_a_gpu_without_a_data_sheet_is_bounded_by_its_own_limits(atlas, course):
    other = made_up.card("vector_add", gpu="NVIDIA GeForce RTX 3070 Ti")
    (paths.MEASUREMENTS / "shared" / "nvidia-geforce-rtx-3070-ti.json").write_text(
        share.as_text(share.shared(other, other["machine"])))
    bound = panels(page_of(course, plots.ladder(atlas["matmul"], None)))["nvidia-geforce-rtx-3070-ti"]
    assert "a bound from the limits that were measured on it, not a measurement" in bound and "14.5 TFLOP/s" in bound


def test_other_figures_and_ladders_without_a_recording_have_no_choice(atlas, course):
    unknown = made_up.ladder()  # of this machine's GPU
    text = page_of(course, plots.ladder(unknown, None), plots.crossover(made_up.crossover(), None))
    assert 'class="ladder"' not in text and text.count("<figure") == 2


def test_the_start_page_says_what_is_recorded(atlas, course):
    text = site.write(course).read_text()
    assert "Recorded so far: NVIDIA H200 (2 operations), NVIDIA GeForce RTX 4060 (1 operation)." in text
