"""`labkit build`: executes a lesson's source and writes its notebook; finds stale outputs and wrong prose, without
executing.

One way only: from notebooks/NN_topic.py, labkit/course/exercises, course.toml and data/measurements to the notebooks,
to solutions/NN_topic.py, and to the chapter map and the tables of README.
"""

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from labkit._common import recordings
from labkit.course import colab, execution, prose, readme, static_view, workbooks
from labkit.course.notebooks import (
    back_up,
    cells_sha256,
    edited,
    read_notebook,
    scrub,
    sha256,
    write_notebook,
)
from labkit.course.registry import Chapter, Course, CourseError, shown
from labkit.course.sources import kernels_sha256


def build_chapter(course: Course, chapter: Chapter, device: str | None = None, on_cell: Callable | None = None):
    """Execute the chapter and write its notebook. Returns the execution's outcome and the backup made, if any.

    Nothing is written when a cell fails. Raises CourseError for prose that no recording supports.
    """
    if wrong := prose.problems_of_lesson(chapter):
        raise CourseError("\n".join(wrong))
    notebook = prose.to_notebook(chapter)
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        notes = Path(folder) / "quotes"
        outcome = execution.run(notebook, chapter, device=device, on_cell=on_cell, env={recordings.NOTES: str(notes)})
        quoted = recordings.noted(notes)
    if outcome.problem:
        return outcome, None
    measurements = course.root / "data" / "measurements"
    notebook.metadata["labkit"]["kernels"] = kernels_sha256(chapter.source)
    notebook.metadata["labkit"]["recordings"] = {part: recordings.digest(part, measurements) for part in quoted}
    scrub(notebook, course.root)
    backup = back_up(course, chapter.built) if chapter.built.exists() and edited(chapter.built) else None
    _write(notebook, course, chapter)
    return outcome, backup


def rebuild_prose(course: Course, chapter: Chapter) -> bool:
    """Write the chapter's notebook with the prose of its source and the outputs that it has. False if they are not of
    this code, or if somebody has edited the notebook: nothing is written then."""
    if wrong := prose.problems_of_lesson(chapter):
        raise CourseError("\n".join(wrong))
    notebook, built = prose.to_notebook(chapter), read_notebook(chapter.built)
    if built is None or edited(chapter.built):
        return False
    cells, executed = _code(notebook), _code(built)
    if [cell.source for cell in cells] != [cell.source for cell in executed]:
        return False
    for cell, done in zip(cells, executed, strict=True):
        cell["outputs"] = done.outputs
    notebook.metadata["labkit"] |= {part: built.metadata["labkit"].get(part, {}) for part in ("kernels", "recordings")}
    _write(notebook, course, chapter)
    return True


def _code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.get("id") != colab.SETUP]


def _write(notebook, course: Course, chapter: Chapter) -> None:
    static_view.prepare(notebook, chapter, course.repository)
    colab.add_setup(notebook, course.repository)
    notebook.metadata["labkit"]["cells_sha256"] = cells_sha256(notebook)
    write_notebook(notebook, chapter.built)


def check(course: Course, chapters: Collection[Chapter] | None = None) -> list[str]:
    """What `labkit build` would have to rebuild of these chapters, or of all, and of README; and what prose says and no
    recording does. One sentence each; empty when everything is fresh. Executes nothing."""
    measurements = course.root / "data" / "measurements"
    problems = prose.problems(course, chapters)
    for chapter in course.chapters if chapters is None else chapters:
        source, built = shown(course, chapter.source), shown(course, chapter.built)
        if not chapter.source.is_file():
            problems.append(f"{source} is missing: course.toml lists it")
            continue
        if not chapter.built.is_file():
            problems.append(f"{built} is missing: run labkit build {chapter.number}")
            continue
        notebook = read_notebook(chapter.built)
        if notebook is None:
            problems.append(f"{built} cannot be read: run labkit build {chapter.number}")
            continue
        about = notebook.metadata.get("labkit", {})
        if about.get("source_sha256") != sha256(chapter.source_text()):
            problems.append(
                f"{built} is stale: its source has changed; run labkit build {chapter.number}"
            )
        elif about.get("cells_sha256") != cells_sha256(notebook):
            problems.append(
                f"{built} was edited by hand: labkit build {chapter.number} makes it afresh "
                "and keeps the edited one in .labkit/backups"
            )
        elif other := sorted(about.get("kernels", {}).items() ^ kernels_sha256(chapter.source).items()):
            problems.append(
                f"{built} is stale: it shows {other[0][0]}, which has changed; run labkit build "
                f"{chapter.number}"
            )
        elif changed := recordings.changed(about.get("recordings", {}), measurements):
            problems.append(
                f"{built} is stale: it quotes a recording that has changed, "
                f"{shown(course, measurements / changed[0])}; run labkit build {chapter.number}"
            )
        elif _has_other_numbers(about, chapter):
            problems.append(
                f"{built} is stale: a number in its prose has changed; run labkit build --prose {chapter.number}"
            )
    listed = {chapter.name for chapter in course.chapters}
    for path in sorted((course.root / "notebooks").glob("*")):
        if path.suffix in {".py", ".ipynb"} and path.stem not in listed:
            problems.append(f"{shown(course, path)} is not listed in course.toml")
    problems += workbooks.stale(course, chapters)
    problems += readme.stale(course)
    return problems


def _has_other_numbers(about: dict, chapter: Chapter) -> bool:
    """Whether the prose of a notebook's source now comes out differently."""
    try:
        return about.get("prose_sha256") != sha256(prose.rendered(chapter))
    except CourseError:  # prose.problems says so
        return False
