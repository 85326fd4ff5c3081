"""course.toml as objects: the chapters in their order, and the exercises of each."""

import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from labkit._common import paths
from labkit._common.errors import UserError, short
from labkit._common.files import read_text

NAME = re.compile(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*")
EXERCISE_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


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
        return read_text(self.source)  # universal newlines: the hash is the same on Windows


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
        hint = f"did you mean {' or '.join(near)}?" if near else f"the exercises are {', '.join(names) or 'none yet'}"
        raise CourseError(f"there is no exercise {name!r}; {hint}")

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
        data = tomllib.loads(read_text(path))
    except FileNotFoundError:
        named = ", which LABKIT_COURSE names" if os.environ.get("LABKIT_COURSE") else ""
        raise CourseError(f"{path} is missing: there is no course in {root}{named}") from None
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"course.toml is not valid TOML: {error}") from None
    except RecursionError:
        raise CourseError("course.toml is not valid TOML: it is nested too deeply") from None

    unknown = data.keys() - {"course", "chapter", "exercise"}
    if unknown:
        raise CourseError(f"course.toml: unknown table {sorted(unknown)[0]!r}; known are course, chapter, exercise")
    chapters = tuple(_chapter(entry, position, root) for position, entry in enumerate(_tables(data, "chapter")))
    if not chapters:
        raise CourseError("course.toml lists no [[chapter]]")
    about = data.get("course", {})
    if not isinstance(about, dict) or not all(isinstance(about.get(key, ""), str) for key in ("title", "tagline")):
        raise CourseError(f"course.toml: [course] must be a table with a title and a tagline, both texts, not "
                          f"{short(about)}")
    exercises = _exercises(_tables(data, "exercise"), chapters)
    return Course(root, about.get("title", "labkit"), about.get("tagline", ""), chapters, exercises)


def _tables(data: dict, name: str) -> list[dict]:
    """The [[name]] tables; none if there are none."""
    tables = data.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise CourseError(f"course.toml: {name!r} must be tables, each beginning with [[{name}]], not {short(tables)}")
    return tables


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
        raise CourseError(f"{where}: 'points' must be a whole number, 1 or more, not {short(points)}")
    needs, hints = entry.get("needs", []), entry.get("hints")
    if not isinstance(needs, list) or not all(isinstance(need, str) for need in needs):
        raise CourseError(f"{where}: 'needs' must be a list of names of exercises")
    if not isinstance(hints, list) or len(hints) != 3 or not all(isinstance(h, str) and h.strip() for h in hints):
        raise CourseError(f"{where}: 'hints' must be a list of three texts, none empty, each telling more")
    return Entry(name, chapters[entry["chapter"]], entry["title"], points, tuple(needs), tuple(hints))
