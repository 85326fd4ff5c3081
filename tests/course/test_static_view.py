"""What a built notebook shows where nothing is run: counts, collapsed answers, and a picture in place of a player."""

import base64
import io

import nbformat
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import copies, notebooks, predictions, prose, static_view
from labkit.course import registry as courses
from labkit.course.predictions import RESULT
from tests import browser

v4 = nbformat.v4
LESSON = "# %% [markdown]\n# # One\n\n# %%\n1\n\n# %% [markdown]\n# Which?\n\n# %%\n2\n\n# %%\n3\n"
PLAYER = ("<iframe class='labkit-player' title='p' srcdoc='<p>&lt;b&gt; &#39;</p><input id=\"time\" max=\"4\">"
          "'></iframe>")


@pytest.fixture
def lesson(course_dir):
    chapter = courses.load(course_dir).chapters[0]
    chapter.source.write_text(LESSON)
    notebook = prose.to_notebook(chapter)
    first, second, _ = (cell for cell in notebook.cells if cell.cell_type == "code")
    first.outputs = [v4.new_output("execute_result", data={"text/plain": "1"}, execution_count=None)]
    second.outputs = [v4.new_output("execute_result", data={"text/html": PLAYER, "text/plain": "4 steps"})]
    return chapter, notebook


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.sweep(every=True)
def test_a_built_notebook_looks_executed(lesson):
    chapter, notebook = lesson
    static_view.prepare(notebook, chapter)
    assert [cell.execution_count for cell in code(notebook)] == [1, 2, 3]
    assert code(notebook)[0].outputs[0].execution_count == 1
    nbformat.validate(notebook)


@pytest.mark.sweep(every=True)
def test_the_outputs_behind_a_question_are_collapsed_and_their_first_line_tells_nothing(lesson):
    chapter, notebook = lesson
    static_view.prepare(notebook, chapter)
    open_, folded, empty = code(notebook)
    assert predictions.kind(folded) == predictions.kind(empty) == RESULT
    assert [("jupyter" in cell.metadata) for cell in (open_, folded, empty)] == [False, True, False]
    assert folded.metadata["jupyter"] == {"outputs_hidden": True}
    assert folded.outputs[0].data == {"text/plain": "The result:"} and static_view.is_caption(folded.outputs[0])
    before = nbformat.writes(notebook)
    static_view.prepare(notebook, chapter)  # as `labkit build --prose` does
    assert nbformat.writes(notebook) == before


@pytest.mark.parametrize(("repository", "where"), [
    ("", "`build/site/00_first.html`"), ("https://github.com/me/it", "(https://me.github.io/it/00_first.html)")])
def test_a_player_is_kept_for_the_site_and_the_notebook_says_how_to_play_it(lesson, monkeypatch, repository, where):
    monkeypatch.setattr(static_view.shutil, "which", lambda name: None)  # and no picture without a browser
    chapter, notebook = lesson
    static_view.prepare(notebook, chapter, repository)
    _, player, caption = code(notebook)[1].outputs
    assert player.data == {static_view.PLAYER: PLAYER, "text/plain": "4 steps"}
    assert static_view.is_caption(caption) and where in caption.data["text/markdown"]


@browser.needed_to("take the picture")
def test_the_picture_of_a_player_is_small(lesson):
    from PIL import Image

    chapter, notebook = lesson
    static_view.prepare(notebook, chapter)
    picture = base64.b64decode(code(notebook)[1].outputs[1].data["image/png"])
    image = Image.open(io.BytesIO(picture))
    assert image.width == 960 and image.height < 400 and len(picture) < 10_000


def test_what_a_lesson_is_shipped_with_is_no_work_of_a_learner(lesson):
    """Neither has it been run, nor does a copy begin with its outputs where somebody has changed a cell in it."""
    chapter, notebook = lesson
    course = courses.load(chapter.root)
    static_view.prepare(notebook, chapter)
    notebook.metadata["labkit"]["cells_sha256"] = notebooks.cells_sha256(notebook)
    notebooks.write_notebook(notebook, chapter.built)
    assert not static_view.was_run_since(chapter.built)
    notebook.cells[0].source += "\n\nmine"
    notebooks.write_notebook(notebook, chapter.built)
    copies.lesson(course, chapter)
    copy = nbformat.read(chapter.own_lesson, as_version=4)
    assert "mine" in copy.cells[0].source
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code(copy))


@pytest.mark.parametrize("chapter", courses.load(REPOSITORY).chapters, ids=lambda chapter: chapter.number)
def test_the_courses_notebooks_can_be_read_on_github(chapter):
    notebook = notebooks.read_notebook(chapter.built)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    for output in (output for cell in code(notebook) for output in cell.outputs if "data" in output):
        assert "<iframe" not in output.data.get("text/html", "") and "<script" not in output.data.get("text/html", "")
        assert static_view.PLAYER not in output.data or len(output.data["image/png"]) < 100_000
