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
    result = Plan(notes=list(collected.notes))
    known = {entry.name: entry for entry in course.exercises if wanted is None or entry.chapter.name in wanted}
    version = labkit_digest()
    chapters = set(wanted or ())
    for name, files in collected.files.items():
        chosen: dict[str, tuple[Answer, str]] = {}
        for submitted in files:  # oldest first
            path = str(submitted.path)
            try:
                answers = answers_in(read_cells(submitted.read(), submitted.path.suffix.lower()))
            except (Unreadable, UserError, OSError) as error:
                result.unreadable.setdefault(name, []).append(f"{submitted.path.name}: {error}")
                result.notes.append(Note("unreadable", f"{path}: {error}", collected.students[name].shown))
                continue
            for exercise, answer in answers.items():
                if exercise not in known:
                    continue
                if exercise in chosen:
                    text = f"{exercise}: {path} counts, not {chosen[exercise][1]}"
                    result.notes.append(Note("several answers", text, collected.students[name].shown))
                chosen[exercise] = (answer, path)
        for exercise, (answer, path) in chosen.items():
            chapters.add(known[exercise].chapter.name)
            result.files[name, exercise] = path
            key = digest(name, exercise, *answer.above, "\0check\0", answer.call, version,
                          hashlib.sha256(secret).hexdigest())
            result.tasks.append(Task(name, answer, key, *_equals(answer, key)))
    result.entries = tuple(entry for entry in known.values() if entry.chapter.name in chapters)
    return result


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
    digest_of_sources = hashlib.sha256()
    for path in sorted(paths.PACKAGE.rglob("*.py")):
        digest_of_sources.update(str(path.relative_to(paths.PACKAGE)).encode() + path.read_bytes())
    return digest_of_sources.hexdigest()
