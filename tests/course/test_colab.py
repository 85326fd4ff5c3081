"""Colab: no address, no badge and no cell."""

import shutil

import nbformat
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import build, colab, notebooks, passages, site, workbooks
from labkit.course import registry as courses
from tests.course.site.pages import ship

ADDRESS = "https://github.com/owner/name"


@pytest.fixture
def known(course_dir, monkeypatch):
    monkeypatch.setattr(passages, "of_kernels", lambda path: [])  # they take time
    (course_dir / "pyproject.toml").write_text(f'[project.urls]\nRepository = "{ADDRESS}"\n')
    return courses.load(course_dir)


def test_a_built_notebook_begins_with_the_cell_that_installs(known):
    chapter = known.chapters[0]
    outcome, _ = build.build_chapter(known, chapter)
    assert outcome.problem is None
    notebook = notebooks.read_notebook(chapter.built)
    first, second = notebook.cells[:2]
    assert f'"{ADDRESS}"' in first.source and first.outputs == [] and second.cell_type == "markdown"
    assert not notebooks.edited(chapter.built)
    exec(compile(first.source, "cell", "exec"), {})  # anywhere but on Colab it does nothing
    page = (site.write(known, from_here=False).parent / "00_first.html").read_text()
    assert "git clone" not in page and "google.colab" not in page and "hello" in page  # it is no part of the lesson


def test_without_an_address_there_is_neither_cell_nor_badge(course_dir):
    course = courses.load(course_dir)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    colab.add_setup(notebook, course.repository)
    assert [cell.source for cell in notebook.cells] == ["1 + 1"]
    ship(course.chapters[0])
    folder = site.write(course).parent
    assert "colab" not in (folder / "00_first.html").read_text()
    assert "github" not in (folder / "index.html").read_text()


def test_the_badge_opens_the_notebook_of_the_repository(known):
    text = (site.write(known).parent / "01_second.html").read_text()
    assert ('href="https://colab.research.google.com/github/owner/name/blob/main/notebooks/01_second.ipynb"') in text
    other = (site.write(known, repository="https://github.com/a/b").parent / "01_second.html").read_text()
    assert "/github/a/b/blob/" in other and "owner" not in other


def test_the_address_is_set_by_two_lines_of_pyproject(tmp_path):
    text = (REPOSITORY / "pyproject.toml").read_text()
    assert "\n# [project.urls]\n# Repository = " in text
    text = text.replace("\n# [project.urls]\n# Repository = ", "\n[project.urls]\nRepository = ")
    shutil.copy(REPOSITORY / "course.toml", tmp_path)
    (tmp_path / "pyproject.toml").write_text(text)
    course = courses.load(tmp_path)
    assert course.repository == ADDRESS
    for chapter in course.chapters:  # what each badge opens is a notebook of this repository
        url = colab.notebook_url(course.repository, f"notebooks/{chapter.name}.ipynb")
        start = f"https://colab.research.google.com/github/owner/name/blob/{colab.BRANCH}/"
        assert url.startswith(start) and (REPOSITORY / url.removeprefix(start)).is_file()


def test_once_the_address_is_set_the_cell_is_added_without_executing_anything(course_dir):
    course = courses.load(course_dir)
    chapter = course.chapters[0]
    assert build.build_chapter(course, chapter)[0].problem is None
    assert notebooks.read_notebook(chapter.built).cells[0].cell_type == "markdown"
    (course_dir / "pyproject.toml").write_text(f'[project.urls]\nRepository = "{ADDRESS}"\n')
    course = courses.load(course_dir)
    assert build.rebuild_prose(course, course.chapters[0])
    assert notebooks.read_notebook(chapter.built).cells[0].source == colab.setup_source(ADDRESS)


def test_exercises_begin_with_it_too(monkeypatch):
    course = courses.load(REPOSITORY)
    chapter = course.chapters[0]
    without = workbooks.to_notebook(course, chapter)
    monkeypatch.setitem(course.__dict__, "repository", ADDRESS)
    with_it = workbooks.to_notebook(course, chapter)
    assert [cell.source for cell in with_it.cells[1:]] == [cell.source for cell in without.cells]
    assert with_it.cells[0].source == colab.setup_source(ADDRESS)
