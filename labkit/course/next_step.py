"""The one next step, which every command of a learner ends with: one sentence, decided here alone."""

from __future__ import annotations

from labkit.course import copies, progress
from labkit.course.notebooks import read_notebook
from labkit.course.registry import Chapter, Course, Entry, shown

ALL_DONE = "you have finished every lesson and passed every exercise. How fast do the kernels get here? labkit bench"


def following(course: Course, chapter: Chapter | None = None) -> str:
    """Return the next step: the rest of this chapter, then the later ones, then the skipped ones; from the start of the
    course where no chapter is given.

    A chapter begins with its lesson. Once that is finished, or an exercise of the chapter is passed, its exercises
    follow. Lessons skipped in this way come last.
    """
    passed, finished = progress.read(course)["passed"], progress.finished(course)
    start = course.chapters.index(chapter) if chapter else 0
    for each in (*course.chapters[start:], *course.chapters[:start]):
        entries = course.exercises_of(each)
        if each.name not in finished and not any(entry.name in passed for entry in entries):
            return open_lesson(each)
        for entry in entries:
            if entry.name not in passed:
                return to_do(entry)
    unread = [each for each in course.chapters if each.name not in finished]
    return open_lesson(unread[0]) if unread else ALL_DONE


def open_lesson(chapter: Chapter) -> str:
    return f"labkit learn {chapter.number} opens the lesson, {chapter.title}"


def to_do(entry: Entry) -> str:
    """How an exercise is done."""
    path = entry.chapter.own_workbook
    if not path.is_file():
        return f"labkit learn {entry.name} opens the exercise, {entry.title}"
    return (f"answer {entry.name} in {shown(entry.chapter, path)} (labkit learn {entry.name} opens it), save it, then: "
            f"labkit check {entry.name}")


def again(entry: Entry) -> str:
    """After an answer that is not right yet."""
    return (f"change your answer in {shown(entry.chapter, entry.chapter.own_workbook)}, save it, then: labkit check "
            f"{entry.name} (stuck? labkit hint {entry.name})")


def after_check(course: Course, results) -> str:
    """After these results, each of an exercise: the first that is not passed, else what follows the last."""
    for result in results:
        if not result.passed:
            untouched = result.verdict and result.verdict.get("verdict") == "unchanged"
            return (to_do if untouched else again)(course.exercise(result.exercise))
    return following(course, course.exercise(results[-1].exercise).chapter if results else None)


def after_learning(course: Course, chapter: Chapter) -> str:
    """After JupyterLab: what was answered and is not passed yet is checked; else what follows."""
    notebook, passed = read_notebook(chapter.own_workbook), progress.read(course)["passed"]
    answered = copies.written(notebook) if notebook is not None else {}
    for entry in course.exercises_of(chapter):
        if entry.name in answered and entry.name not in passed:
            return f"labkit check {entry.name} checks what you wrote"
    return following(course, chapter)


def in_lesson(course: Course, chapter: Chapter) -> str:
    """While a lesson is open in JupyterLab."""
    entries = course.exercises_of(chapter)
    unpassed = [entry for entry in entries if entry.name not in progress.read(course)["passed"]]
    suffix = ""
    if unpassed:
        suffix = (f", then answer {unpassed[0].name} in {shown(chapter, chapter.own_workbook)} and run the check below "
                  "it")
    return f"read and run the lesson, each prediction before its result, and save it{suffix}"
