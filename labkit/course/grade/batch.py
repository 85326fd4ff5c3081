"""All answers of a class: one verdict for each answer.

The journal holds a small JSON file for each answer, written whole. A run that was interrupted, by whatever, finds them
and goes on; an answer, or a labkit, that has changed since is judged anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit.course.grade.collect import Collected, Student
from labkit.course.grade.journal import Journal
from labkit.course.grade.judge import Settings, plain_result
from labkit.course.grade.tasks import Plan
from labkit.course.registry import Entry


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
    def points(self) -> int:
        return self.entry.points if self.passed else 0


def run(settings: Settings, made: Plan, judged: Callable[..., Iterator], on_verdict: Callable | None = None
        ) -> dict[tuple[str, str], dict]:
    """(student, exercise) -> verdict, for every task. What the journal holds is not judged again.

    judged(settings, tasks) gives (task, verdict) as they come; on_verdict(task, verdict, was it in the journal).
    """
    for left in settings.folder.glob("worker-*"):  # of a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    journal = Journal(settings.folder / "journal")
    verdicts, open_tasks = {}, []
    for task in made.tasks:
        result = journal.find(task)
        if result is None:
            open_tasks.append(task)
            continue
        verdicts[task.student, task.exercise] = result
        if on_verdict:
            on_verdict(task, result, True)
    for task, result in judged(settings, open_tasks) if open_tasks else ():
        if result["verdict"] != "not_graded":
            journal.keep(task, result)
        verdicts[task.student, task.exercise] = result
        if on_verdict:
            on_verdict(task, result, False)
    return verdicts


def rows(collected: Collected, made: Plan, verdicts: dict[tuple[str, str], dict]) -> list[Row]:
    """Every student and every exercise that was set, those without an answer too."""
    found = []
    people = [*collected.students.items(), *((student.id, student) for student in collected.missing)]
    for name, student in sorted(people, key=lambda pair: (pair[1].name.casefold(), pair[0])):
        for entry in made.entries:
            result = verdicts.get((name, entry.name))
            if result is None:
                why = made.unreadable.get(name)
                result = plain_result(entry.name, "unreadable" if why else "missing",
                                      "No file with it could be read." if why else "It was not handed in.",
                                      *(why or ()))
            found.append(Row(student, entry, result, made.files.get((name, entry.name), "")))
    return found
