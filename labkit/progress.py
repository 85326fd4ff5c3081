"""Which lessons a learner has finished.

A lesson is finished once all code cells of notebooks/NN_topic.ipynb have been run, without an error, and the notebook
was saved. Built notebooks carry no execution counts, so the notebook itself tells. What was finished once stays
finished, in .labkit/progress.json: a rebuilt notebook takes nothing away.
"""

import json
from datetime import date

from labkit.course import Chapter, Course, read_notebook, write_text


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
    path = course.state_dir / "progress.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))["finished"]
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    now = dict(known)
    for chapter in course.chapters:
        if chapter.name in now or not chapter.built.is_file():
            continue
        notebook = read_notebook(chapter.built)
        if notebook is not None and was_run(notebook):
            now[chapter.name] = date.today().isoformat()
    if now != known:
        write_text(path, json.dumps({"finished": now}, indent=2) + "\n")
    return now


def next_lesson(course: Course) -> Chapter | None:
    """The first unfinished lesson, or None when all are finished."""
    done = finished(course)
    return next((chapter for chapter in course.chapters if chapter.name not in done), None)
