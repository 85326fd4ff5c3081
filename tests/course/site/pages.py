"""For tests of the site: lessons kept as `labkit run` or `labkit build` would have kept them, without executing any."""

from dataclasses import asdict, replace

import nbformat
import pytest

from labkit.course import notebooks, prose
from labkit.course.lessons import LessonResult, kept_path
from labkit.measure.roofline import Limits

COURSE_GPU = "NVIDIA H200"  # of made-up recordings, whose ladders a lesson shows
COURSE_LIMITS = Limits(COURSE_GPU, 4200.0, 65.0, "measured", 430.0, 860.0)

RESULT = LessonResult(
    name="00_first",
    kernels=("add_naive", "add_tiled"),
    max_error=2.5e-7,
    seconds=3.21,
    passed=True,
    problem="",
    device="labkit CPU device",
    device_kind="cpu",
    date="2026-11-20 12:00",
    source_sha256="",
    versions={"labkit": "0.1.0", "numba": "0.68.1"},
)


def executed(chapter, outputs=(), text=None):
    """The chapter's notebook with these outputs in its last cell. text: its source from now on."""
    if text is not None:
        chapter.source.write_text(text)
    notebook = prose.to_notebook(chapter)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if code:
        code[-1].outputs = list(outputs)
    return notebook


def keep(course, chapter, result=RESULT, outputs=(), text=None):
    """As a run on this machine."""
    notebook = executed(chapter, outputs, text)
    sha = notebooks.sha256(chapter.source_text())
    notebook.metadata["labkit_result"] = asdict(replace(result, name=chapter.name, source_sha256=sha))
    notebooks.write_notebook(notebook, kept_path(course, chapter))


def ship(chapter, outputs=(), text=None):
    """As the course's built notebook."""
    notebooks.write_notebook(executed(chapter, outputs, text), chapter.built)


def plotted(figure):
    """A figure as the output of a cell."""
    return nbformat.v4.new_output("display_data", data={"image/svg+xml": figure.svg(), "text/plain": figure.summary})


def add_term(course, name, means, lesson="first", **more):
    """An entry of the course's glossary."""
    path = course.root / "data" / "glossary.toml"
    path.parent.mkdir(exist_ok=True)
    entry = {"name": name, "means": means, "lesson": lesson, **more}
    lines = [f"{key} = {value!r}" for key, value in entry.items()]
    path.write_text("\n".join([path.read_text() if path.exists() else "", "[[term]]", *lines, ""]))


def strict(text: str) -> None:
    """Raises at the first error of the page's HTML."""
    html5lib = pytest.importorskip("html5lib")
    html5lib.HTMLParser(strict=True).parse(text)
