"""The exercises in the real nbgrader: released, filled in by students, graded, the points read back.

    pip install -e '.[classroom,test]' && pytest -m slow tests/test_classroom.py
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import copies
from labkit.course import registry as course
from labkit.course import workbooks as workbook
from tests import made_up_exercises

ROOT = REPOSITORY

pytestmark = pytest.mark.slow


@pytest.fixture
def nbgrader(tmp_path, monkeypatch):
    """Runs `nbgrader ...` in an empty course folder."""
    pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -e '.[classroom]'")
    folder = tmp_path / "classroom"
    folder.mkdir()
    shutil.copy(REPOSITORY / "scripts" / "nbgrader_config.py", folder)
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))

    # nbgrader starts alembic by its name
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def run(*arguments):
        command = [sys.executable, "-m", "nbgrader", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    run.folder = folder
    return run


def release(nbgrader, chapter):
    """The built exercises, as they are, through generate_assignment. Returns what students get."""
    source = nbgrader.folder / "source" / "ps1" / chapter.workbook.name
    source.parent.mkdir(parents=True)
    shutil.copy(chapter.workbook, source)
    nbgrader("generate_assignment", "ps1")
    return nbgrader.folder / "release" / "ps1" / chapter.workbook.name


def hand_in(nbgrader, released, student: str, answers: dict[str, str]):
    """A student's copy with these answer cells filled in."""
    notebook = nbformat.read(released, as_version=4)
    for cell in notebook.cells:
        about = cell.metadata.get("labkit", {})
        if about.get("role") == "answer" and about["exercise"] in answers:
            cell.source = answers[about["exercise"]]
    path = nbgrader.folder / "submitted" / student / "ps1" / released.name
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    return path


def warnings_in(shown: str) -> list[str]:
    """The lines of stderr that warn."""
    return [line for line in shown.splitlines() if "WARN" in line.upper()]


def points(nbgrader, chapter, student: str) -> dict[str, float]:
    """Exercise -> points in nbgrader's gradebook."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{nbgrader.folder / 'gradebook.db'}") as gradebook:
        submission = gradebook.find_submission_notebook(chapter.name, "ps1", student)
        assert submission.score == sum(grade.score for grade in submission.grades)
        return {grade.name: grade.score for grade in submission.grades}


@pytest.fixture
def small(tmp_path, monkeypatch):
    root = tmp_path / "small"
    made_up_exercises.copy_to(root, monkeypatch)
    monkeypatch.setenv("LABKIT_COURSE", str(root))
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    found = course.load(root)
    workbook.build(found, found.chapters[0])
    return found


RIGHT = """\
@cuda.jit
def scale_vector(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * s
"""
ENDLESS = RIGHT.replace("    if i <", "    while i <")
UNGUARDED = RIGHT.replace("    if i < out.size:\n        ", "    ")


def test_points_of_three_students(nbgrader, small):
    chapter = small.chapters[0]
    released = release(nbgrader, chapter)
    text = "\n".join(cell.source for cell in nbformat.read(released, as_version=4).cells)
    assert "SOLUTION" not in text and "def scale_vector(a, s, out):\n    i = cuda.grid(1)\n    # YOUR CODE" in text

    all_right = {entry.name: entry.file.solution.answer for entry in small.exercises}
    hand_in(nbgrader, released, "ada", all_right)
    hand_in(nbgrader, released, "ben", {"scale_vector": UNGUARDED, "idle_threads": "idle, blocks = 24, 8",
                                        "scale_again": "this is not Python"})
    path = hand_in(nbgrader, released, "cy", {"scale_vector": ENDLESS,
                                              "count_blocks": "def count_blocks(n, threads):\n    while True:\n"
                                                              "        pass\n"})
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # a test cell that was tampered with is put back by nbgrader
        if 'check("idle_threads"' in cell.source:
            cell.source = "print('all well')"
    nbformat.write(notebook, path)
    shown = nbgrader("autograde", "ps1", "--create")
    warned = warnings_in(shown)
    # Of the test cell that was tampered with, and of nothing else.
    assert warned and all("idle_threads" in line for line in warned), shown

    got = {student: points(nbgrader, chapter, student) for student in ("ada", "ben", "cy")}
    print(got)
    assert got["ada"] == {"scale_vector": 2, "count_blocks": 1, "idle_threads": 1, "scale_again": 3}
    assert got["ben"] == {"scale_vector": 0, "count_blocks": 0, "idle_threads": 1, "scale_again": 0}
    assert got["cy"] == {"scale_vector": 0, "count_blocks": 0, "idle_threads": 0, "scale_again": 0}
    graded = nbformat.read(nbgrader.folder / "autograded" / "ben" / "ps1" / released.name, as_version=4)
    shown = [o for cell in graded.cells if cell.source.startswith('check("scale_vector"') for o in cell.outputs]
    assert "A thread reaches outside `a`." in shown[0].data["text/plain"]  # the verdict stays in the feedback
    assert shown[1].output_type == "error" and shown[1].ename == "CheckFailed"


def test_a_learners_own_copy_can_be_handed_in(nbgrader, small):
    """It has no markers, unlike what was released."""
    chapter = small.chapters[0]
    released = release(nbgrader, chapter)
    copies.workbook(small, chapter)
    hand_in(nbgrader, released, "ada", {entry.name: entry.file.solution.answer for entry in small.exercises})
    path = hand_in(nbgrader, released, "ben", {})
    shutil.copy(chapter.own_workbook, path)
    hand_in(nbgrader, path, "cy", {"scale_vector": RIGHT})
    assert not warnings_in(shown := nbgrader("autograde", "ps1", "--create")), shown
    assert [sum(points(nbgrader, chapter, student).values()) for student in ("ada", "ben", "cy")] == [7, 0, 2]


@pytest.mark.parametrize("number", [chapter.number for chapter in course.load(ROOT).chapters])
def test_points_of_the_course(nbgrader, number):
    """Every solution of a chapter earns all points, every skeleton none."""
    found = course.load(ROOT)
    (chapter,) = found.pick([number])
    if not found.exercises_of(chapter):
        pytest.skip("the chapter has no exercises")
    released = release(nbgrader, chapter)
    entries = found.exercises_of(chapter)
    hand_in(nbgrader, released, "ada", {entry.name: entry.file.solution.answer for entry in entries})
    hand_in(nbgrader, released, "nobody", {})
    assert not warnings_in(shown := nbgrader("autograde", "ps1", "--create")), shown
    assert points(nbgrader, chapter, "ada") == {entry.name: entry.points for entry in entries}
    assert points(nbgrader, chapter, "nobody") == {entry.name: 0 for entry in entries}
