"""What a learner has done: lessons finished, exercises passed, hints seen. Kept in .labkit/progress.json.

A lesson is finished once all code cells of notebooks/NN_topic.ipynb have been run, without an error, and the notebook
was saved. Built notebooks carry no execution counts, so the notebook itself shows it. An exercise is passed once
`check` has reported it. What was done once stays done: a rebuilt or reset notebook takes nothing away.
"""

import json
from datetime import date

from labkit._common.files import write_text
from labkit.course.notebooks import read_notebook
from labkit.course.registry import Chapter, Course, CourseError

# name -> day, day, day, number of hints seen, wrong predictions
TABLES = ("finished", "passed", "shown", "hints", "tried")


def read(course: Course) -> dict[str, dict]:
    """Every table; empty ones where nothing is recorded or the file cannot be read."""
    try:
        data = json.loads((course.state_dir / "progress.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        data = {}
    found = {name: data.get(name) if isinstance(data, dict) else None for name in TABLES}
    return {name: dict(table) if isinstance(table, dict) else {} for name, table in found.items()}


def _write(course: Course, tables: dict[str, dict]) -> None:
    kept = {name: table for name, table in tables.items() if table}
    write_text(course.state_dir / "progress.json", json.dumps(kept, indent=2) + "\n")


def was_run(notebook) -> bool:
    """Whether every code cell has an execution count and no cell shows an error."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    failed = any(
        output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", [])
        for cell in code
        for output in cell.outputs
    )
    return bool(code) and not failed and all(cell.execution_count is not None for cell in code)


def finished(course: Course) -> dict[str, str]:
    """Chapter name -> the day it was first seen finished. Remembers what the notebooks show now."""
    tables = read(course)
    now = dict(tables["finished"])
    for chapter in course.chapters:
        if chapter.name in now or not chapter.built.is_file():
            continue
        notebook = read_notebook(chapter.built)
        if notebook is not None and was_run(notebook):
            now[chapter.name] = date.today().isoformat()
    if now != tables["finished"]:
        _write(course, {**tables, "finished": now})
    return now


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
    tables = read(course)
    if course.exercise(name) and name not in tables[table]:
        tables[table][name] = date.today().isoformat()
        _write(course, tables)


def tried(course: Course, name: str, predictions: list[str]) -> None:
    """Remember the wrong predictions of an exercise, each as text."""
    tables = read(course)
    if course.exercise(name) and tables["tried"].get(name) != predictions:
        tables["tried"][name] = predictions
        _write(course, tables)


def hint(course: Course, name: str, tier: int | None = None) -> str:
    """The next hint that was not seen yet, or that of `tier`; after the last one, the last again."""
    entry = course.exercise(name)
    tables = read(course)
    if tier is None:
        seen = tables["hints"].get(name, 0)
        tier = min(seen if isinstance(seen, int) else 0, len(entry.hints) - 1) + 1
    if not isinstance(tier, int) or not 1 <= tier <= len(entry.hints):
        raise CourseError(f"tier is {tier!r}; the hints of {name} are 1 to {len(entry.hints)}")
    if tables["hints"].get(name) != tier:
        tables["hints"][name] = max(tier, tables["hints"].get(name, 0))
        _write(course, tables)
    more = "" if tier == len(entry.hints) else " Ask again for more."
    return f"Hint {tier} of {len(entry.hints)}: {entry.hints[tier - 1]}{more}"
