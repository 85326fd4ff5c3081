"""Notebooks that somebody has worked in are kept: every copy under a name of its own, also of what cannot be read."""

import json

import pytest

from labkit.course import build, copies, lessons, notebooks, progress, prose
from labkit.course import registry as courses
from labkit.course.registry import CourseError


@pytest.fixture
def course(course_dir):
    return courses.load(course_dir)


def test_copies_made_within_a_second_are_all_kept(course):
    path = course.chapters[0].built
    copies = []
    for number in range(3):
        path.write_text(f"copy {number}")
        copies.append(notebooks.back_up(course, path))
    assert len(set(copies)) == 3
    assert [copy.read_text() for copy in copies] == ["copy 0", "copy 1", "copy 2"]


def test_what_cannot_be_read_counts_as_edited(course):
    path = course.chapters[0].built
    assert not notebooks.edited(path)  # there is nothing to keep
    path.write_text("{ half a noteb")
    assert notebooks.edited(path)
    notebook = prose.to_notebook(course.chapters[0])
    notebooks.write_notebook(notebook, path)
    assert not notebooks.edited(path)
    notebook.cells[-1].source += "\n# mine"
    notebooks.write_notebook(notebook, path)
    assert notebooks.edited(path)


CELL = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "execution_count": 1, "id": "a"}
WHOLE = {"cells": [CELL], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
DAMAGED = {
    "not JSON": "{", "a list": [], "null": None, "nothing in it": {}, "no UTF-8": b"\xff", "nested": "[" * 100_000,
    "metadata null": WHOLE | {"metadata": None}, "metadata a list": WHOLE | {"metadata": [1]},
    "ours a text": WHOLE | {"metadata": {"labkit": "text"}},
    "kernels a list": WHOLE | {"metadata": {"labkit": {"kernels": [1]}}},
    "recordings a number": WHOLE | {"metadata": {"labkit": {"recordings": 3}}},
    "cells a dictionary": WHOLE | {"cells": {"a": CELL}}, "cells null": WHOLE | {"cells": None},
    "a cell is a text": WHOLE | {"cells": ["text"]}, "a cell of no type": WHOLE | {"cells": [{"source": "1"}]},
    **{f"{key} {value!r}": WHOLE | {"cells": [CELL | {key: value}]} for key, value in (
        ("source", 5), ("source", None), ("source", ["a", 1]), ("metadata", None), ("metadata", {"tags": None}),
        ("metadata", {"labkit": 3}), ("outputs", None), ("outputs", [5]), ("outputs", [{"text": "x"}]),
        ("cell_type", 3), ("id", 3))},
    "half a pair": json.dumps(WHOLE | {"cells": [CELL | {"source": "\ud800"}]}),
    "of another version": WHOLE | {"nbformat": 99}, "of no version": WHOLE | {"nbformat": "x"},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_notebook_is_kept_and_stops_nothing(course, damage):
    """Whatever reads notebooks goes on, and takes the damaged one for the learner's work."""
    content = DAMAGED[damage]
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    data = text if isinstance(text, bytes) else text.encode()
    chapter = course.chapters[0]
    for path in (chapter.built, chapter.own_lesson, chapter.own_workbook, lessons.kept_path(course, chapter)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert notebooks.read_notebook(chapter.built) is None and notebooks.edited(chapter.built)
    assert progress.finished(course) == {} and lessons.kept(course, chapter) is None
    assert any(f"notebooks/{chapter.name}.ipynb cannot be read" in problem for problem in build.check(course))
    with pytest.raises(CourseError, match=f"{chapter.workbook.name} cannot be read: labkit reset"):
        copies.learners(course, chapter)
    (sentence,) = copies.lesson(course, chapter)
    (backup,) = (course.state_dir / "backups" / "lessons").iterdir()
    assert "could not be read" in sentence and backup.name in sentence and backup.read_bytes() == data
    assert notebooks.read_notebook(chapter.own_lesson) is not None


@pytest.mark.parametrize("more", [{"colour": "red"}, {"id": "not an id!"}])
def test_what_only_the_schema_forbids_is_still_the_learners_work(course, more):
    path = course.chapters[0].built
    path.write_text(json.dumps(WHOLE | {"cells": [CELL | more]}))
    notebook = notebooks.read_notebook(path)
    assert progress.was_run(notebook)
    before = path.read_bytes()
    with pytest.raises(CourseError, match=f"{path.name} is no notebook that Jupyter would open: "):
        notebooks.write_notebook(notebook, path)
    assert path.read_bytes() == before


def test_a_tag_collapses_code_in_jupyter_and_no_kernel():
    plotted, other = notebooks.parse('# %% tags=["hide-input"]\nplot(1)\n\n# %%\nx = 1\n', "a.py").cells
    assert plotted.metadata["jupyter"] == {"source_hidden": True} and "jupyter" not in other.metadata
    with pytest.raises(CourseError, match="a.py: a cell tagged hide-input must not define a kernel"):
        notebooks.parse('# %% tags=["hide-input"]\n@cuda.jit\ndef k(x):\n    pass\n', "a.py")
