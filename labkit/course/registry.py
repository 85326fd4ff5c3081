"""The course: reads course.toml, builds notebooks from their sources, finds the stale ones.

One way only: people write notebooks/NN_topic.py (jupytext py:percent), `build` executes it and writes
notebooks/NN_topic.ipynb with the sha256 of its source in the metadata. `check` compares, without executing.
README's chapter map and measured table are made the same way.
"""

import hashlib
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from labkit._common import paths
from labkit._common.errors import UserError
from labkit._common.version import __version__

NAME = re.compile(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*")
EXERCISE_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class CourseError(UserError):
    """course.toml or the files it names are not as they should be."""


@dataclass(frozen=True)
class Chapter:
    name: str  # "01_vector_add"
    title: str
    summary: str
    root: Path

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def source(self) -> Path:
        """notebooks/01_vector_add.py, written by people."""
        return self.root / "notebooks" / f"{self.name}.py"

    @property
    def built(self) -> Path:
        """notebooks/01_vector_add.ipynb, made by `labkit build`."""
        return self.root / "notebooks" / f"{self.name}.ipynb"

    @property
    def solutions(self) -> Path:
        """solutions/01_vector_add.py, the exercises with their answers, written by people."""
        return self.root / "solutions" / f"{self.name}.py"

    @property
    def workbook(self) -> Path:
        """exercises/01_vector_add.ipynb, the same without the answers, made by `labkit build`."""
        return self.root / "exercises" / f"{self.name}.ipynb"

    def source_text(self) -> str:
        if not self.source.is_file():
            raise CourseError(f"notebooks/{self.name}.py is missing: course.toml lists the chapter {self.name!r}")
        return self.source.read_text(encoding="utf-8")  # universal newlines: the hash is the same on Windows


@dataclass(frozen=True)
class Entry:
    """What course.toml says of an exercise. What check does with it is in labkit.course.exercises."""

    name: str  # "scale_vector"
    chapter: Chapter
    title: str
    points: int
    needs: tuple[str, ...]  # exercises to do first
    hints: tuple[str, str, str]  # each tells more than the one before; the third almost gives it away


@dataclass(frozen=True)
class Course:
    root: Path
    title: str
    tagline: str
    chapters: tuple[Chapter, ...]
    exercises: tuple[Entry, ...] = ()

    def exercise(self, name: str) -> Entry:
        """The exercise of this name."""
        for entry in self.exercises:
            if entry.name == name:
                return entry
        import difflib

        names = [entry.name for entry in self.exercises]
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        told = f"did you mean {' or '.join(near)}?" if near else f"the exercises are {', '.join(names) or 'none yet'}"
        raise CourseError(f"there is no exercise {name!r}; {told}")

    def exercises_of(self, chapter: Chapter) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.exercises if entry.chapter == chapter)

    def pick(self, numbers: Iterable[str]) -> tuple[Chapter, ...]:
        """The chapters asked for, in the course's order. "1", "01" and "01_vector_add" are the same; none means all."""
        wanted = []
        for asked in numbers:
            stem = Path(asked).stem
            found = [c for c in self.chapters if stem == c.name or (stem.isdigit() and int(stem) == int(c.number))]
            if not found:
                known = ", ".join(c.number for c in self.chapters)
                raise CourseError(f"there is no chapter {asked!r}; the chapters are {known}")
            wanted += found
        return tuple(c for c in self.chapters if not wanted or c in wanted)

    @cached_property
    def state_dir(self) -> Path:
        """Where labkit keeps what belongs to this learner: progress and saved copies. Git ignores it."""
        return self.root / ".labkit"


def load(root: Path | None = None) -> Course:
    """Read and check course.toml."""
    root = paths.find_root() if root is None else Path(root)
    path = root / "course.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CourseError(f"{path} is missing") from None
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"course.toml is not valid TOML: {error}") from None

    unknown = data.keys() - {"course", "chapter", "exercise"}
    if unknown:
        raise CourseError(f"course.toml: unknown table {sorted(unknown)[0]!r}; known are course, chapter, exercise")
    if not data.get("chapter"):
        raise CourseError("course.toml lists no [[chapter]]")
    chapters = tuple(_chapter(entry, position, root) for position, entry in enumerate(data["chapter"]))
    about = data.get("course", {})
    exercises = _exercises(data.get("exercise", []), chapters)
    return Course(root, about.get("title", "labkit"), about.get("tagline", ""), chapters, exercises)


def _chapter(entry: dict, position: int, root: Path) -> Chapter:
    where = f"course.toml, chapter {position + 1}"
    fields = ("name", "title", "summary")
    for key in fields:
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise CourseError(f"{where}: {key!r} must be a text that is not empty")
    unknown = entry.keys() - set(fields)
    if unknown:
        raise CourseError(f"{where}: unknown key {sorted(unknown)[0]!r}; allowed are {', '.join(fields)}")
    name = entry["name"]
    if not NAME.fullmatch(name):
        raise CourseError(f"{where}: name {name!r} must look like 01_vector_add")
    if int(name[:2]) != position:
        raise CourseError(f"{where}: name {name!r} must begin with {position:02d}; chapters are listed in order")
    return Chapter(name, entry["title"], entry["summary"], root)


def _exercises(entries: list[dict], chapters: tuple[Chapter, ...]) -> tuple[Entry, ...]:
    """The [[exercise]] tables in the order of their chapters; within a chapter as they are listed."""
    by_name = {chapter.name: chapter for chapter in chapters}
    found = [_exercise(entry, position, by_name) for position, entry in enumerate(entries)]
    found.sort(key=lambda entry: entry.chapter.number)
    known: set[str] = set()
    for entry in found:
        where = f"course.toml, exercise {entry.name!r}"
        if entry.name in known:
            raise CourseError(f"{where} is listed twice")
        for need in entry.needs:
            if need not in known:
                raise CourseError(f"{where} needs {need!r}, which is not the name of an exercise before it")
        known.add(entry.name)
    return tuple(found)


def _exercise(entry: dict, position: int, chapters: dict[str, Chapter]) -> Entry:
    name = entry.get("name")
    where = f"course.toml, exercise {name!r}" if isinstance(name, str) else f"course.toml, exercise {position + 1}"
    fields = ("name", "chapter", "title", "points", "needs", "hints")
    for key in ("name", "chapter", "title"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise CourseError(f"{where}: {key!r} must be a text that is not empty")
    unknown = entry.keys() - set(fields)
    if unknown:
        raise CourseError(f"{where}: unknown key {sorted(unknown)[0]!r}; allowed are {', '.join(fields)}")
    if not EXERCISE_NAME.fullmatch(name):
        raise CourseError(f"{where}: the name must look like scale_vector")
    if entry["chapter"] not in chapters:
        raise CourseError(f"{where}: chapter {entry['chapter']!r} is not listed; listed are {', '.join(chapters)}")
    points = entry.get("points")
    if not isinstance(points, int) or isinstance(points, bool) or points < 1:
        raise CourseError(f"{where}: 'points' must be a whole number, 1 or more, not {points!r}")
    needs, hints = entry.get("needs", []), entry.get("hints")
    if not isinstance(needs, list) or not all(isinstance(need, str) for need in needs):
        raise CourseError(f"{where}: 'needs' must be a list of names of exercises")
    if not isinstance(hints, list) or len(hints) != 3 or not all(isinstance(h, str) and h.strip() for h in hints):
        raise CourseError(f"{where}: 'hints' must be a list of three texts, none empty, each telling more")
    return Entry(name, chapters[entry["chapter"]], entry["title"], points, tuple(needs), tuple(hints))


# ---------------------------------------------------------------------------------------------------------------
# A source and its notebook


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def cells_sha256(notebook) -> str:
    """The hash of what a person can edit: the cells' types and sources, not their outputs."""
    return sha256("\0".join(f"{cell.cell_type}\0{cell.source}" for cell in notebook.cells))


def to_notebook(chapter: Chapter):
    """The chapter's source as a notebook without outputs, with stable cell ids and its hashes in the metadata."""
    text = chapter.source_text()
    notebook = parse(text, f"notebooks/{chapter.name}.py")
    label(notebook, f"notebooks/{chapter.name}.py", sha256(text))
    return notebook


def parse(text: str, name: str):
    """A py:percent source as a notebook, with stable cell ids and no metadata of its own."""
    import jupytext

    try:
        notebook = jupytext.reads(text, fmt="py:percent")
    except Exception as error:  # jupytext and nbformat raise what they like
        reason = str(error).splitlines()[0]
        raise CourseError(f"{name} cannot be read as a py:percent source: {reason}") from None
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    name_cells(notebook)
    return notebook


def name_cells(notebook) -> None:
    """Ids made from the cells' content, so that a cell inserted above changes no other cell's id."""
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = sha256(f"{cell.cell_type}\0{cell.source}")[:12]
        seen[digest] = seen.get(digest, 0) + 1
        cell["id"] = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def label(notebook, source: str, digest: str) -> None:
    """Write into the metadata what the notebook was built from."""
    notebook.metadata.clear()
    notebook.metadata.update(
        NOTEBOOK_METADATA,
        labkit={
            "source": source,
            "source_sha256": digest,
            "cells_sha256": cells_sha256(notebook),
            "labkit_version": __version__,
        },
    )


def cell_lines(source_text: str) -> list[int]:
    """The line numbers (from 1) of the `# %%` markers: cell n of the notebook starts below the n-th."""
    return [number for number, line in enumerate(source_text.splitlines(), 1) if re.match(r"# ?%%(\s|$)", line)]


def read_notebook(path: Path):
    """The notebook at `path`, or None where there is none that can be read."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        return None
    except Exception:  # nbformat raises whatever its JSON and schema layers raise
        return None


def write_notebook(notebook, path: Path) -> None:
    """Write atomically: a reader sees the old file or the new one, never half of one."""
    import nbformat

    nbformat.validate(notebook)
    write_text(path, nbformat.writes(notebook) + "\n")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp makes it private
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def scrub(notebook, root: Path) -> None:
    """Take out of the outputs what belongs to this machine and this run: paths, addresses, execution counts.

    A built notebook has no execution counts: they appear when a learner runs it (labkit.course.progress reads them).
    """
    places = sorted({f"{root}{os.sep}", f"{sys.prefix}{os.sep}", f"{Path.home()}{os.sep}"}, key=len, reverse=True)

    def clean(text: str) -> str:
        for place in places:
            text = text.replace(place, "")
        text = re.sub(r"(/[^\s'\"<>]*)?/ipykernel_\d+/\d+\.py", "cell.py", text)
        return re.sub(r"\bat 0x[0-9a-fA-F]+", "at 0x...", text)

    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell["execution_count"] = None
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output["execution_count"] = None
            if output.output_type == "stream":
                output["text"] = clean(output["text"])
            if output.output_type == "error":
                output["traceback"] = [clean(line) for line in output["traceback"]]
                output["evalue"] = clean(output["evalue"])
            for mime, value in output.get("data", {}).items():
                if isinstance(value, str) and (mime.startswith("text/") or mime == "image/svg+xml"):
                    output["data"][mime] = clean(value)


def edited(path: Path) -> bool:
    """Whether the notebook's cells are not the ones `labkit build` wrote: a learner has worked in it."""
    notebook = read_notebook(path)
    if notebook is None:
        return path.is_file()  # there, but unreadable: keep it
    return notebook.metadata.get("labkit", {}).get("cells_sha256") != cells_sha256(notebook)


def back_up(course: Course, path: Path) -> Path:
    """Copy the notebook to .labkit/backups, under a name that no earlier copy has."""
    folder = course.state_dir / "backups"
    if path.parent.name != "notebooks":
        folder /= path.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    copy, number = folder / f"{path.stem}-{stamp}.ipynb", 1
    while copy.exists():
        number += 1
        copy = folder / f"{path.stem}-{stamp}-{number}.ipynb"
    shutil.copy2(path, copy)
    return copy


def build_chapter(course: Course, chapter: Chapter, device: str | None = None, on_cell: Callable | None = None):
    """Execute the chapter and write its notebook. Returns the execution's outcome and the backup made, if any.

    Nothing is written when a cell fails.
    """
    from labkit.course import notebooks as execute

    notebook = to_notebook(chapter)
    outcome = execute.run(notebook, chapter, device=device, on_cell=on_cell)
    if outcome.problem:
        return outcome, None
    scrub(notebook, course.root)
    backup = back_up(course, chapter.built) if chapter.built.exists() and edited(chapter.built) else None
    write_notebook(notebook, chapter.built)
    return outcome, backup


# ---------------------------------------------------------------------------------------------------------------
# Staleness


def check(course: Course) -> list[str]:
    """What `labkit build` would have to mend, one sentence each; empty when everything is fresh. Executes nothing."""
    problems = []
    for chapter in course.chapters:
        if not chapter.source.is_file():
            problems.append(f"notebooks/{chapter.name}.py is missing: course.toml lists it")
            continue
        if not chapter.built.is_file():
            problems.append(f"notebooks/{chapter.name}.ipynb is missing: run labkit build {chapter.number}")
            continue
        notebook = read_notebook(chapter.built)
        if notebook is None:
            problems.append(f"notebooks/{chapter.name}.ipynb cannot be read: run labkit build {chapter.number}")
            continue
        about = notebook.metadata.get("labkit", {})
        if about.get("source_sha256") != sha256(chapter.source_text()):
            problems.append(
                f"notebooks/{chapter.name}.ipynb is stale: its source has changed; run labkit build {chapter.number}"
            )
        elif about.get("cells_sha256") != cells_sha256(notebook):
            problems.append(
                f"notebooks/{chapter.name}.ipynb was edited by hand: labkit build {chapter.number} makes it afresh "
                "and keeps the edited one in .labkit/backups"
            )
    listed = {chapter.name for chapter in course.chapters}
    for path in sorted((course.root / "notebooks").glob("*")):
        if path.suffix in {".py", ".ipynb"} and path.stem not in listed:
            problems.append(f"notebooks/{path.name} is not listed in course.toml")
    from labkit.course import readme
    from labkit.course import workbooks as workbook

    problems += workbook.stale(course)
    problems += readme.stale(course)
    return problems
