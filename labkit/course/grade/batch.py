"""All answers of a class: one verdict for each answer.

The journal holds a small JSON file for each answer, written whole. A run that was interrupted, by whatever, finds them
and goes on; an answer, or a labkit, that has changed since is judged anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from labkit.course.grade.collect import Collected, Student
from labkit.course.grade.journal import Journal
from labkit.course.grade.judge import Settings, plain_result
from labkit.course.grade.notes import Note
from labkit.course.grade.tasks import Plan, Task
from labkit.course.registry import Entry

UNGRADED = ("refused", "not_graded", "unreadable")


@dataclass
class Row:
    """One line of the scores."""

    student: Student
    entry: Entry
    result: dict
    file: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.result["passed"])

    @property
    def why(self) -> str:
        """Why it could not be graded; "" where it was, or was not handed in."""
        return " ".join(self.result["details"]) if self.result["verdict"] in UNGRADED else ""

    @property
    def points(self) -> int:
        return self.entry.points if self.passed else 0


def run(settings: Settings, plan: Plan, judge_all: Callable[..., Iterator], on_verdict: Callable | None = None
        ) -> dict[tuple[str, str], dict]:
    """(student, exercise) -> verdict, for every task. What the journal holds is not judged again, of equal answers one
    is judged for all, and what passes passes under other names of variables, too.

    judge_all(settings, tasks) yields (task, verdict); on_verdict(task, verdict, from_journal) is called for each.
    """
    _remove_left_over(settings)
    journal = Journal(settings.folder / "journal")
    verdicts: dict[tuple[str, str], dict] = {}
    waiting: dict[str, list[Task]] = {}  # by Task.alike

    def record(task: Task, result: dict, from_journal: bool) -> None:
        if not from_journal and result["verdict"] != "not_graded":
            journal.keep(task, result)
        verdicts[task.student, task.exercise] = result
        if on_verdict:
            on_verdict(task, result, from_journal)

    def propagate(judged_task: Task, result: dict) -> None:
        """Give the verdict to all whose it is."""
        for task in waiting.pop(judged_task.alike, ()):
            record(task, result, False)
        if result["passed"]:
            for alike in [alike for alike, tasks in waiting.items() if tasks[0].program == judged_task.program]:
                for task in waiting.pop(alike):
                    record(task, result, False)

    journaled = [(task, journal.find(task)) for task in plan.tasks]
    for task, result in journaled:
        if result is None:
            waiting.setdefault(task.alike, []).append(task)
        else:
            record(task, result, True)
    for task, result in journaled:
        if result is not None:
            propagate(task, result)
    tried = {task.program for task, result in journaled if result is not None}
    # One of each program first; then those whose program has failed, for each fails in its own words.
    for first_of_a_program in (True, False):
        todo: dict[str, Task] = {}
        for alike, (task, *_) in waiting.items():
            if not first_of_a_program:
                todo[alike] = task
            elif task.program not in tried:
                todo.setdefault(task.program, task)
        if todo:
            with closing(judge_all(settings, list(todo.values()))) as results:
                for task, result in results:
                    propagate(task, result)
    _remove_left_over(settings)
    return verdicts


def _remove_left_over(settings: Settings) -> None:
    """Folders of workers that were killed."""
    for folder in settings.folder.glob("worker-*"):
        shutil.rmtree(folder, ignore_errors=True)


def rows(collected: Collected, plan: Plan, verdicts: dict[tuple[str, str], dict]) -> list[Row]:
    """Every student and every exercise that was set, those without an answer too."""
    table = []
    people = [*collected.students.items(), *((student.id, student) for student in collected.missing)]
    for name, student in sorted(people, key=lambda pair: (pair[1].name.casefold(), pair[0])):
        for entry in plan.entries:
            result = verdicts.get((name, entry.name))
            if result is None:
                reason = plan.unreadable.get(name)
                result = plain_result(entry.name, "unreadable" if reason else "missing",
                                      "No file with it could be read." if reason else "It was not handed in.",
                                      *(reason or ()))
            table.append(Row(student, entry, result, plan.files.get((name, entry.name), "")))
    return table


def notes_of(rows: list[Row]) -> list[Note]:
    """What could not be graded, and why. What could not be read has its notes already."""
    return [Note("not graded", f"{row.entry.name} cannot be graded: {row.why}", row.student.shown)
            for row in rows if row.why and row.result["verdict"] != "unreadable"]
