"""Every figure of the course: its text is large enough for a phone, stays on the figure and covers no other text."""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable

import pytest

from labkit.course import drawings
from labkit.measure import plots
from labkit.measure.plots import style
from tests.measure.plots import gallery, layout

PARTS = {  # public functions that no notebook calls, since they are parts of other figures
    ("style", "unrecorded"): "what ladders.ladder and others return where nothing is recorded",
    ("lines", "lines_over"): "draws what launches, copies and tokens cost",
    ("lines", "attention_over"): "draws over_lengths, over_caches and over_linear",
}


@pytest.mark.sampled(12, sweep=24)
@pytest.mark.parametrize("name", gallery.FIGURES)
def test_every_figure_is_readable(name):
    assert layout.faults(gallery.FIGURES[name]()) == []


def figures_of_the_course() -> dict[tuple[str, str], Callable]:
    """The public functions that are annotated to return a CourseFigure, by module and name."""
    found = {}
    for entry in [entry for package in (plots, drawings)
                  for entry in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]:
        module = importlib.import_module(entry.name)
        for name, one in vars(module).items():
            if (inspect.isfunction(one) and one.__module__ == module.__name__ and not name.startswith("_")
                    and "CourseFigure" in str(one.__annotations__.get("return"))):
                found[entry.name.rpartition(".")[2], name] = one
    return found


def named_in_the_gallery() -> set[Callable]:
    """What the gallery's source names as module.name, for any module that it imports."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(gallery))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            one = getattr(vars(gallery).get(node.value.id), node.attr, None)
            found |= {one} if inspect.isfunction(one) else set()
    return found


def test_the_gallery_holds_every_figure():
    figures, drawn = figures_of_the_course(), named_in_the_gallery()
    assert len(figures) > 80
    assert {key for key, one in figures.items() if one not in drawn} == set(PARTS)


def test_faults_are_found():
    figure, ax = style.canvas(2.0, "Title", "summary")
    ax.text(1, 1, "one")
    ax.text(1.1, 1.02, "other")
    ax.text(6.2, 1.5, "too far to the right")
    ax.text(3, 1.5, "small", fontsize=7)
    ax.text(3, 1.8, "12", fontsize=8)
    assert layout.faults(figure) == [
        "'too far to the right' leaves the figure", "'small' has 7 points", "'other' covers 'one'"]


def test_labels_of_the_roofline_stand_beside_their_points():
    """Of points close to each other each has a line to its own name."""
    figure = plots.roofline([gallery.ladder_of("matmul").only("matmul_naive", "matmul_coalesced", "matmul_tiled",
                                                              "matmul_tiled_32")])
    figure.draw_without_rendering()
    (ax,) = figure.axes
    names = {text.get_text(): text for text in ax.texts if text.get_text().startswith("matmul")}
    rates = {row.name: row.tflops for row in gallery.ladder_of("matmul").rungs}
    assert len(names) == 4
    for name, text in names.items():
        height = ax.transData.transform((1, rates[name]))[1]
        middle = text.get_window_extent(figure._get_renderer())
        aside = abs((middle.y0 + middle.y1) / 2 - height) > 6
        assert text.arrow_patch is not None or not aside, f"{name} is moved, and no line leads to its point"
        assert text.xy[1] == rates[name]
