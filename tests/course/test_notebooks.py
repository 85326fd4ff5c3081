"""Notebooks that somebody has worked in are kept: every copy under a name of its own, also of what cannot be read."""

import pytest

from labkit.course import notebooks
from labkit.course import registry as courses


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
    notebook = notebooks.to_notebook(course.chapters[0])
    notebooks.write_notebook(notebook, path)
    assert not notebooks.edited(path)
    notebook.cells[-1].source += "\n# mine"
    notebooks.write_notebook(notebook, path)
    assert notebooks.edited(path)
