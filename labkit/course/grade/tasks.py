"""What there is to judge: every file read, as text, and of files that answer the same exercise the newest."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field

from labkit._common import paths
from labkit._common.errors import UserError
from labkit.course.grade.answers import Answer, Refused, Unreadable, answers_in, program_of, read_cells
from labkit.course.grade.collect import Collected
from labkit.course.grade.notes import Note
from labkit.course.registry import Course, Entry


@dataclass(frozen=True)
class Task:
    """One answer to be judged.

    key: of all that decides the verdict. alike: equal where the answers are, to the letter, and so the verdicts.
    program: equal for kernels that differ in comments and in the names of variables alone: if one passes, all do; if
    not, the verdicts quote different lines.
    """

    student: str
    answer: Answer
    key: str
    alike: str
    program: str

    @property
    def exercise(self) -> str:
        return self.answer.exercise


@dataclass
class Plan:
    """What there is to judge, what was found out by reading alone, and which exercises were set."""

    tasks: list[Task] = field(default_factory=list)
    entries: tuple[Entry, ...] = ()
    files: dict[tuple[str, str], str] = field(default_factory=dict)  # (student, exercise) -> file
    unreadable: dict[str, list[str]] = field(default_factory=dict)  # student -> why
    notes: list[Note] = field(default_factory=list)


def plan(course: Course, collected: Collected, secret: bytes, wanted: set[str] | None = None) -> Plan:
    """Read every file, as text. Of files that answer the same exercise the newest counts, and one in work/ before all
    others. wanted: names of chapters."""
    made = Plan(notes=list(collected.notes))
    known = {entry.name: entry for entry in course.exercises if wanted is None or entry.chapter.name in wanted}
    version = labkit_digest()
    chapters = set(wanted or ())
    for name, files in collected.files.items():
        chosen: dict[str, tuple[Answer, str]] = {}
        for found in files:  # oldest first
            where = str(found.path)
            try:
                answers = answers_in(read_cells(found.read(), found.path.suffix.lower()))
            except (Unreadable, UserError, OSError) as error:
                made.unreadable.setdefault(name, []).append(f"{found.path.name}: {error}")
                made.notes.append(Note("unreadable", f"{where}: {error}", collected.students[name].shown))
                continue
            for exercise, answer in answers.items():
                if exercise not in known:
                    continue
                if exercise in chosen:
                    text = f"{exercise}: {where} counts, not {chosen[exercise][1]}"
                    made.notes.append(Note("several answers", text, collected.students[name].shown))
                chosen[exercise] = (answer, where)
        for exercise, (answer, where) in chosen.items():
            chapters.add(known[exercise].chapter.name)
            made.files[name, exercise] = where
            key = digest(name, exercise, *answer.above, "\0check\0", answer.call, version,
                          hashlib.sha256(secret).hexdigest())
            made.tasks.append(Task(name, answer, key, *_equals(answer, key)))
    made.entries = tuple(entry for entry in known.values() if entry.chapter.name in chapters)
    return made


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _equals(answer: Answer, key: str) -> tuple[str, str]:
    """(alike, program) of a Task: its key where no other answer is equal."""
    from labkit.course import exercises

    kind = exercises.find(answer.exercise).kind
    try:
        program = program_of(answer) if kind != "predict" else None
    except Refused:
        program = None
    if program is None:
        return key, key
    text = "\n".join(line.rstrip() for line in program.answer.rstrip().split("\n"))
    alike = digest(answer.exercise, program.name, program.above, text)
    # A function may look up its own names and behave differently; a vetted kernel cannot.
    return alike, digest(answer.exercise, program.digest) if kind == "kernel" else alike


@functools.cache
def labkit_digest() -> str:
    """Of every source that can change a verdict."""
    found = hashlib.sha256()
    for path in sorted(paths.PACKAGE.rglob("*.py")):
        found.update(str(path.relative_to(paths.PACKAGE)).encode() + path.read_bytes())
    return found.hexdigest()
