"""What a learner has done: lessons finished, exercises passed, hints seen. Kept in .labkit/progress.json.

A lesson is finished once all code cells of the learner's copy, work/lessons/NN_topic.ipynb, have been run, without an
error, and the copy was saved: it has no execution counts before. So it is where somebody ran notebooks/NN_topic.ipynb
itself, which labkit.course.static_view recognises. An exercise is passed once `check` has reported it. What was done
once stays done: a copy that is made anew takes nothing away, and a lesson that was finished under an earlier number or
name is finished.

Several notebooks may report at once, so every change is made to what the file says then, under a lock. A file that
cannot be read, or only in part, goes to .labkit/backups, and a warning says so.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable
from datetime import date

from labkit._common import paths
from labkit._common.errors import short
from labkit._common.files import FileError, locked, parse_json, read_json, read_text, write_text
from labkit.course import static_view
from labkit.course.notebooks import backup_path, read_notebook
from labkit.course.registry import Chapter, Course, CourseError

# name -> day, day, day, number of hints seen, wrong predictions
TABLES = ("finished", "passed", "shown", "hints", "tried")
KINDS = {  # what a value must be; where nothing is listed, a day
    "hints": ("a number, 1 or more", lambda value: type(value) is int and value >= 1),
    "tried": ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value)),
}


def read(course: Course) -> dict[str, dict]:
    """Every table; empty ones where nothing is recorded."""
    path = course.state_dir / "progress.json"
    try:
        if not os.path.lexists(path):
            return _validated({})[0]
        tables, problem = _loaded(path)
        if problem:
            with locked(path):
                tables = _repaired(course)
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror or error}") from None
    return {name: tables[name] for name in TABLES}


def _loaded(path) -> tuple[dict[str, dict], str]:
    """Return the readable tables of the file and a description of its faults, "" if none."""
    try:
        tables, problem = _validated(read_json(path))
        return tables, problem and f"{path}: {problem}"
    except FileNotFoundError:
        return _validated({})
    except FileError as error:
        return _validated(_without_extra_commas(path))[0], str(error)


def _without_extra_commas(path) -> dict:
    """What a file of invalid JSON says but for a comma before a closing bracket, the slip of whoever edits it by hand;
    nothing if that is not all."""
    try:
        return parse_json(re.sub(r",(\s*[}\]])", r"\1", read_text(path)), path)
    except FileError:
        return {}


def _validated(data: dict) -> tuple[dict[str, dict], str]:
    """Return the valid entries, in their tables, with the tables of later versions; and a description of the
    faults of the others."""
    tables, problem = {**data, **{name: {} for name in TABLES}}, ""
    for name in TABLES:
        table = data.get(name, {})
        if not isinstance(table, dict):
            problem = f"{name!r} must be a table, not {short(table)}"
            continue
        for entry, value in table.items():
            expected, is_valid = KINDS.get(name, ("a day", lambda value: isinstance(value, str)))
            if is_valid(value):
                tables[name][entry] = value
            else:
                problem = f"{entry!r} in {name!r} must be {expected}, not {short(value)}"
    return tables, problem


def _repaired(course: Course) -> dict[str, dict]:
    """What the file says. One with something wrong is put aside first, and what can be read of it is written anew. To
    be called under the lock."""
    path = course.state_dir / "progress.json"
    tables, problem = _loaded(path)
    if problem:
        backup = backup_path(course, path)
        if path.is_dir():
            os.replace(path, backup)
        else:
            shutil.copy2(path, backup)
        _write(course, tables)
        outcome = "What can be read of it is kept" if any(tables.values()) else "Progress begins anew"
        warnings.warn(f"{problem.replace(str(path), '.labkit/progress.json')}. {outcome}; the damaged one is now "
                      f"{paths.shown(backup, course.root)}", stacklevel=2)
    return tables


def _write(course: Course, tables: dict[str, dict]) -> None:
    nonempty = {name: table for name, table in tables.items() if table}
    write_text(course.state_dir / "progress.json", json.dumps(nonempty, indent=2) + "\n")


def _change(course: Course, table: str, entries: dict) -> None:
    """Add missing entries to a table. A number replaces a smaller one, a list another one."""
    path = course.state_dir / "progress.json"
    try:
        with locked(path):
            tables = _repaired(course)
            new = {name: value for name, value in entries.items()
                   if name not in tables[table] or (table == "hints" and tables[table][name] < value)
                   or (table == "tried" and tables[table][name] != value)}
            if new:
                tables[table].update(new)
                _write(course, tables)
    except OSError as error:
        raise CourseError(f"{path} cannot be written: {error.strerror or error}") from None


def was_run(notebook) -> bool:
    """Whether every code cell has an execution count and no cell shows an error."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    failed = any(
        output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", [])
        for cell in code
        for output in cell.outputs
    )
    return bool(code) and not failed and all(cell.execution_count is not None for cell in code)


def _has_counts(path) -> bool:
    """Whether a cell of the notebook was run. Most were not, and to look at the bytes takes a hundredth of the time."""
    try:
        return re.search(rb'"execution_count":\s*\d', path.read_bytes()) is not None
    except OSError:
        return False


def finished(course: Course) -> dict[str, str]:
    """Chapter name -> the day it was first seen finished. Remembers what the notebooks show now."""
    days: dict[str, str] = {}
    for name, day in read(course)["finished"].items():
        for chapter in course.called(name):
            days[chapter.name] = min(day, days.get(chapter.name, day))
    new = [chapter for chapter in course.chapters if chapter.name not in days
           and any(may_have_been_run(path) and (notebook := read_notebook(path)) is not None and was_run(notebook)
                   for path, may_have_been_run in ((chapter.own_lesson, _has_counts),
                                                   (chapter.built, static_view.was_run_since)))]
    note_finished(course, new)
    return {**days, **{chapter.name: date.today().isoformat() for chapter in new}}


def note_finished(course: Course, chapters: Iterable[Chapter]) -> None:
    """Remember that these lessons are finished, today unless it was noted before."""
    if entries := {chapter.name: date.today().isoformat() for chapter in chapters}:
        _change(course, "finished", entries)


def next_lesson(course: Course) -> Chapter | None:
    """The first unfinished lesson, or None when all are finished."""
    done = finished(course)
    return next((chapter for chapter in course.chapters if chapter.name not in done), None)


# ---------------------------------------------------------------------------------------------------------------
# Exercises


def passed(course: Course, name: str) -> None:
    """Remember that the exercise was passed, and the day on which it first was."""
    _note(course, "passed", name)


def shown(course: Course, name: str) -> None:
    """Remember that the solution was asked for before the exercise was passed."""
    _note(course, "shown", name)


def _note(course: Course, table: str, name: str) -> None:
    _change(course, table, {course.exercise(name).name: date.today().isoformat()})


def tried(course: Course, name: str, predictions: list[str]) -> None:
    """Remember the wrong predictions of an exercise, each as text."""
    _change(course, "tried", {course.exercise(name).name: predictions})


def hint(course: Course, name: str, tier: int | None = None) -> str:
    """The next hint that was not seen yet, or that of `tier`; after the last one, the last again."""
    entry = course.exercise(name)
    if tier is None:
        tier = min(read(course)["hints"].get(name, 0), len(entry.hints) - 1) + 1
    if type(tier) is not int or not 1 <= tier <= len(entry.hints):
        raise CourseError(f"tier is {tier!r}; the hints of {name} are 1 to {len(entry.hints)}")
    _change(course, "hints", {name: tier})
    more = "" if tier == len(entry.hints) else " Ask again for more."
    return f"Hint {tier} of {len(entry.hints)}: {entry.hints[tier - 1]}{more}"
