"""The one next step: the lesson of a chapter, then its exercises, then the next chapter, and what was left out."""

import pytest

from labkit.course import copies, next_step, progress, workbooks
from tests.course.test_copies import ANSWERS, before, fill_in


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # from elsewhere, paths are shown absolute
    monkeypatch.setenv("LABKIT_EXERCISES", str(tmp_path / "own"))
    return before(tmp_path)  # 00_start with an exercise, 01_attention with three


def test_a_learners_way_through_the_course(course):
    first, second = course.chapters
    assert next_step.following(course) == "labkit learn 00 opens the lesson, T 00_start"
    progress.note_finished(course, [first])
    assert next_step.following(course) == "labkit learn zero opens the exercise, zero"
    copies.workbook(course, first)
    assert next_step.following(course).startswith("answer zero in work/exercises/00_start.ipynb (labkit learn zero ")
    assert next_step.following(course, second) == "labkit learn 01 opens the lesson, T 01_attention"
    progress.passed(course, "two")  # before the lesson was run to its end: the exercises go on
    assert next_step.following(course, second) == "labkit learn one opens the exercise, one"
    for name in ("one", "three"):
        progress.passed(course, name)
    assert "answer zero" in next_step.following(course, second)  # what was left out before
    progress.passed(course, "zero")
    assert next_step.following(course) == next_step.following(course, second) == "labkit learn 01 opens the lesson, " \
        "T 01_attention"
    progress.note_finished(course, [second])
    assert next_step.following(course) == next_step.ALL_DONE


def test_after_a_check_it_is_the_first_that_is_not_right(course):
    def result(name, kind):
        return workbooks.Result(name, {"passed": kind == "passed", "verdict": kind})

    copies.workbook(course, course.chapters[1])
    right, wrong = result("one", "passed"), result("two", "wrong_result")
    assert next_step.after_check(course, [right, wrong]).startswith("change your answer in work/exercises/01_attention")
    assert "labkit hint two" in next_step.after_check(course, [right, wrong])
    assert next_step.after_check(course, [result("three", "unchanged")]).startswith("answer three in ")
    assert "labkit check two" in next_step.after_check(course, [workbooks.Result("two", problem="SyntaxError")])
    progress.passed(course, "one")
    assert "answer two" in next_step.after_check(course, [right])


def test_after_jupyterlab_what_was_answered_is_checked(course):
    chapter = course.chapters[1]
    assert next_step.after_learning(course, chapter) == "labkit learn 01 opens the lesson, T 01_attention"
    copies.workbook(course, chapter)
    assert "then answer one in work/exercises/01_attention.ipynb" in next_step.in_lesson(course, chapter)
    fill_in(chapter.own_workbook, two=ANSWERS["two"])
    assert next_step.after_learning(course, chapter) == "labkit check two checks what you wrote"
    progress.passed(course, "two")
    assert next_step.after_learning(course, chapter).startswith("answer one")
