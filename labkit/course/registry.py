"""course.toml as objects: the chapters in their order and by parts, and the exercises of each."""

import itertools
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from labkit._common import paths
from labkit._common.errors import UserError, did_you_mean, names_like, short
from labkit._common.files import read_text
from labkit.course import exercise_files
from labkit.course.exercise_files import ExerciseFile

NAME = re.compile(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*")
REPOSITORY = re.compile(r"https://github\.com/[\w-]+/[\w.-]*\w")
EXERCISE_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


class CourseError(UserError):
    """course.toml or the files it names are not as they should be."""


@dataclass(frozen=True)
class Chapter:
    name: str  # "01_vector_add"
    title: str
    summary: str
    root: Path
    formerly: tuple[str, ...] = ()  # names of earlier versions of the course whose lesson is now this one, or in it
    part: str = ""  # "First kernels"; "" in a course without parts

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def topic(self) -> str:
        """The name without its number, "vector_add": what stays when chapters are numbered anew."""
        return self.name[3:]

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
        """solutions/01_vector_add.py, the exercises with their answers, made by `labkit build`."""
        return self.root / "solutions" / f"{self.name}.py"

    @property
    def workbook(self) -> Path:
        """exercises/01_vector_add.ipynb, the same without the answers, made by `labkit build`."""
        return self.root / "exercises" / f"{self.name}.ipynb"

    @property
    def own_lesson(self) -> Path:
        """work/lessons/01_vector_add.ipynb, the learner's copy: see labkit.course.copies."""
        return self.root / "work" / "lessons" / f"{self.name}.ipynb"

    @property
    def own_workbook(self) -> Path:
        """work/exercises/01_vector_add.ipynb, the learner's copy."""
        return self.root / "work" / "exercises" / f"{self.name}.ipynb"

    def source_text(self) -> str:
        if not self.source.is_file():
            raise CourseError(f"notebooks/{self.name}.py is missing: course.toml lists the chapter {self.name!r}")
        return read_text(self.source)  # universal newlines: the hash is the same on Windows


@dataclass(frozen=True)
class Part:
    """Chapters that belong together, in the course's order."""

    name: str
    chapters: tuple[Chapter, ...]


@dataclass(frozen=True)
class Entry:
    """An exercise and the chapter that lists it. What check does with it is in labkit.course.exercises."""

    name: str  # "scale_vector"
    chapter: Chapter
    file: ExerciseFile

    @property
    def title(self) -> str:
        return self.file.title

    @property
    def points(self) -> int:
        return self.file.points

    @property
    def needs(self) -> tuple[str, ...]:
        return self.file.needs

    @property
    def hints(self) -> tuple[str, str, str]:
        return self.file.hints


@dataclass(frozen=True)
class PathPart:
    """A part of a path, such as a week. exercises: those to do; hand_in: those of them that are graded."""

    title: str
    chapters: tuple[Chapter, ...]
    exercises: tuple[Entry, ...]
    hand_in: tuple[Entry, ...]

    @property
    def points(self) -> int:
        return sum(entry.points for entry in self.hand_in)


@dataclass(frozen=True)
class ClassPath:
    """A way through the course for a class."""

    name: str
    title: str
    summary: str
    parts: tuple[PathPart, ...]

    @property
    def points(self) -> int:
        return sum(part.points for part in self.parts)


@dataclass(frozen=True)
class Course:
    root: Path
    title: str
    tagline: str
    chapters: tuple[Chapter, ...]
    exercises: tuple[Entry, ...] = ()
    paths: tuple[ClassPath, ...] = ()

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The chapters by parts; a course without parts is one, of lessons."""
        return tuple(Part(name or "Lessons", tuple(chapters))
                     for name, chapters in itertools.groupby(self.chapters, lambda chapter: chapter.part))

    @cached_property
    def repository(self) -> str:
        """The address of the course's repository, such as https://github.com/owner/name, from pyproject.toml's
        [project.urls]; "" where it names none."""
        return _repository(self.root / "pyproject.toml")

    def exercise(self, name: str) -> Entry:
        """The exercise of this name."""
        for entry in self.exercises:
            if entry.name == name:
                return entry
        raise self._no_exercise(name, [entry.name for entry in self.exercises])

    def exercises_of(self, chapter: Chapter) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.exercises if entry.chapter == chapter)

    def called(self, name: str) -> tuple[Chapter, ...]:
        """The chapters of this name, "01_vector_add". For a name of before chapters were numbered anew or split: those
        of its topic, and those that say they were formerly called so."""
        exact = tuple(chapter for chapter in self.chapters if chapter.name == name)
        if exact or not NAME.fullmatch(name):
            return exact
        return tuple(chapter for chapter in self.chapters
                     if name[3:] in (chapter.topic, *(former[3:] for former in chapter.formerly)))

    def pick(self, numbers: Iterable[str], *, or_exercise: bool = False) -> tuple[Chapter, ...]:
        """The chapters asked for, in the course's order. "1", "01" and "01_vector_add" are the same; none means all.
        or_exercise: an exercise could have been asked for as well."""
        selected = []
        for query in numbers:
            stem = Path(query).stem
            matches = self.called(stem) or [c for c in self.chapters if stem.isdigit() and int(stem) == int(c.number)]
            if not matches:
                if or_exercise and self.exercises and not stem[:1].isdigit():
                    raise self._no_exercise(query, [each.name for each in (*self.exercises, *self.chapters)])
                raise CourseError(f"there is no chapter {query!r}; {self._chapters_like(stem)}")
            selected += matches
        return tuple(c for c in self.chapters if not selected or c in selected)

    @staticmethod
    def _no_exercise(name: str, names: list[str]) -> CourseError:
        """names: what could have been meant. An exercise that is new may be missing from course.toml, or from another
        labkit."""
        if path := exercise_files.by_name().get(name):
            return CourseError(not_listed(path))
        hint = did_you_mean(names_like(name, names)) or "there are none yet"
        return CourseError(f"there is no exercise {name!r}; {hint} (labkit imported from {paths.PACKAGE})")

    def _chapters_like(self, name: str) -> str:
        numbers = [chapter.number for chapter in self.chapters]
        listed = ", ".join(numbers) if len(numbers) < 4 else f"{numbers[0]} to {numbers[-1]}"
        if name.isdigit():
            return f"the chapters are {listed}"
        by_topic = {chapter.topic: chapter.name for chapter in self.chapters}  # the number may be another's
        return did_you_mean([by_topic[each] for each in names_like(name.lstrip("0123456789_") or name, by_topic)])

    @cached_property
    def state_dir(self) -> Path:
        """Where labkit keeps what belongs to this learner: progress and saved copies. Git ignores it."""
        return self.root / ".labkit"


def not_listed(path: Path) -> str:
    """What to do about the file of an exercise that no chapter lists."""
    return f"{paths.shown(path)}: course.toml does not list it; add {path.stem!r} to the `exercises` of its chapter"


def shown(owner: Course | Chapter, path: Path) -> str:
    """A path of the course as its learner reads it: from the course's folder on, "work/exercises/06_matmul.ipynb", and
    absolute outside of that."""
    return paths.shown(path, owner.root)


def load(root: Path | None = None) -> Course:
    """Read and check course.toml."""
    root = paths.find_root() if root is None else Path(root)
    path = root / "course.toml"
    try:
        data = tomllib.loads(read_text(path))
    except FileNotFoundError:
        hint = ", which LABKIT_COURSE names" if os.environ.get("LABKIT_COURSE") else ""
        raise CourseError(f"{path} is missing: there is no course in {root}{hint}") from None
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"course.toml is not valid TOML: {error}") from None
    except RecursionError:
        raise CourseError("course.toml is not valid TOML: it is nested too deeply") from None

    if "exercise" in data:
        raise CourseError("course.toml: an [[exercise]] table. An exercise is a file of its own now, such as "
                          "labkit/course/exercises/broadcast/add_row.py, and its chapter lists its name: "
                          'exercises = ["add_row"]')
    unknown = data.keys() - {"course", "chapter", "path"}
    if unknown:
        raise CourseError(f"course.toml: unknown table {sorted(unknown)[0]!r}; known are course, chapter and path")
    tables = _tables(data, "chapter")
    chapters = _in_parts(tables, root)
    if not chapters:
        raise CourseError("course.toml lists no [[chapter]]")
    about = data.get("course", {})
    if not isinstance(about, dict) or not all(isinstance(about.get(key, ""), str) for key in ("title", "tagline")):
        raise CourseError(f"course.toml: [course] must be a table with a title and a tagline, both texts, not "
                          f"{short(about)}")
    exercises = _exercises(tables, chapters)
    course = Course(root, about.get("title", "labkit"), about.get("tagline", ""), chapters, exercises)
    return replace(course, paths=tuple(_path(table, course) for table in _tables(data, "path")))


def _tables(data: dict, name: str) -> list[dict]:
    """The [[name]] tables; none if there are none."""
    tables = data.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise CourseError(f"course.toml: {name!r} must be tables, each beginning with [[{name}]], not {short(tables)}")
    return tables


def _in_parts(entries: list[dict], root: Path) -> tuple[Chapter, ...]:
    """The [[chapter]] tables. `part` stands with the first chapter of a part, and names it for those that follow."""
    chapters: list[Chapter] = []
    for position, entry in enumerate(entries):
        chapter = _chapter(entry, position, root)
        where = f"course.toml, chapter {position + 1}"
        if not chapter.part:
            chapter = replace(chapter, part=chapters[-1].part if chapters else "")
        elif chapters and not chapters[0].part:
            raise CourseError(f"{where}: part {chapter.part!r} begins here, and chapter 1 belongs to none; "
                              f"give chapter 1 a 'part', too")
        elif chapter.part in {earlier.part for earlier in chapters}:
            raise CourseError(f"{where}: part {chapter.part!r} has begun before; 'part' stands with the first of its "
                              f"chapters only, and they follow one another")
        chapters.append(chapter)
    return tuple(chapters)


def _chapter(entry: dict, position: int, root: Path) -> Chapter:
    where = f"course.toml, chapter {position + 1}"
    fields, optional = ("name", "title", "summary"), ("part", "formerly", "exercises")
    for key in (*fields, *(entry.keys() & {"part"})):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise CourseError(f"{where}: {key!r} must be a text that is not empty")
    unknown = entry.keys() - {*fields, *optional}
    if unknown:
        raise CourseError(f"{where}: unknown key {sorted(unknown)[0]!r}; allowed are {', '.join(fields + optional)}")
    formerly = entry.get("formerly", [])
    if not isinstance(formerly, list) or not all(isinstance(old, str) and NAME.fullmatch(old) for old in formerly):
        raise CourseError(f"{where}: 'formerly' must be a list of names such as 01_vector_add, not {short(formerly)}")
    name = entry["name"]
    if not NAME.fullmatch(name):
        raise CourseError(f"{where}: name {name!r} must look like 01_vector_add")
    if int(name[:2]) != position:
        raise CourseError(f"{where}: name {name!r} must begin with {position:02d}; chapters are listed in order")
    return Chapter(name, entry["title"], entry["summary"], root, formerly=tuple(formerly), part=entry.get("part", ""))


def _repository(pyproject: Path) -> str:
    try:
        urls = tomllib.loads(read_text(pyproject)).get("project", {}).get("urls", {})
    except FileNotFoundError:
        return ""
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"pyproject.toml is not valid TOML: {error}") from None
    address = urls.get("Repository", "") if isinstance(urls, dict) else urls
    if address:
        check_repository(address, "pyproject.toml, [project.urls]: Repository")
    return address


def check_repository(address: object, where: str) -> None:
    """Raises CourseError unless it is the address of a repository on GitHub, which Colab can open."""
    if not isinstance(address, str) or not REPOSITORY.fullmatch(address):
        raise CourseError(f"{where} must look like https://github.com/owner/name, not {short(address)}")


def _exercises(tables: list[dict], chapters: tuple[Chapter, ...]) -> tuple[Entry, ...]:
    """The exercises that the chapters list, each with what its file says."""
    files = exercise_files.by_name() if any("exercises" in table for table in tables) else {}
    result: list[Entry] = []
    known: set[str] = set()
    for table, chapter in zip(tables, chapters, strict=True):
        for name in _names(table, chapter):
            where = f"course.toml, chapter {chapter.name}: exercise {name!r}"
            if name in known:
                raise CourseError(f"{where} is listed twice")
            if name not in files:
                raise CourseError(f"{where} has no file: write labkit/course/exercises/{chapter.topic}/{name}.py, or "
                                  "let LABKIT_EXERCISES name the directory in which it lies")
            entry = Entry(name, chapter, exercise_files.read(files[name]))
            for need in entry.needs:
                if need not in known:
                    raise CourseError(f"{where} needs {need!r}, which is not the name of an exercise before it")
            known.add(name)
            result.append(entry)
    return tuple(result)


def _names(table: dict, chapter: Chapter) -> list[str]:
    names = table.get("exercises", [])
    if not isinstance(names, list) or not all(isinstance(each, str) and EXERCISE_NAME.fullmatch(each)
                                              for each in names):
        raise CourseError(f"course.toml, chapter {chapter.name}: 'exercises' must be a list of names such as "
                          f"scale_vector, not {short(names)}")
    return names


# --- Paths for classes -----------------------------------------------------------------------------------------------


def _path(table: dict, course: Course) -> ClassPath:
    where = f"course.toml, path {table.get('name', '')!r}"
    for key in ("name", "title", "summary"):
        if not isinstance(table.get(key), str) or not table[key].strip():
            raise CourseError(f"{where}: {key!r} must be a text that is not empty")
    if unknown := table.keys() - {"name", "title", "summary", "part"}:
        raise CourseError(f"{where}: unknown key {sorted(unknown)[0]!r}; allowed are name, title, summary and part")
    done: set[str] = set()
    parts = []
    for number, part in enumerate(_tables(table, "part"), 1):
        parts.append(_path_part(part, f"{where}, part {number}", course, done))
    if not parts:
        raise CourseError(f"{where} has no [[path.part]]")
    return ClassPath(table["name"], table["title"], table["summary"], tuple(parts))


def _path_part(table: dict, where: str, course: Course, done: set[str]) -> PathPart:
    """done: the exercises of the parts before; those of this one are added."""
    if unknown := table.keys() - {"title", "lessons", "exercises", "hand_in"}:
        raise CourseError(f"{where}: unknown key {sorted(unknown)[0]!r}; allowed are title, lessons, exercises and "
                          "hand_in")
    if not isinstance(table.get("title"), str) or not table["title"].strip():
        raise CourseError(f"{where}: 'title' must be a text that is not empty")
    by_topic = {chapter.topic: chapter for chapter in course.chapters}
    for key in ("lessons", "exercises", "hand_in"):
        if not isinstance(table.get(key, []), list):
            raise CourseError(f"{where}: {key!r} must be a list of names, not {short(table[key])}")
    for topic in table.get("lessons", []):
        if topic not in by_topic:
            raise CourseError(f"{where}: there is no lesson {topic!r}; a path names lessons without their numbers, and "
                              f"there are {', '.join(by_topic)}")
    chapters = tuple(by_topic[topic] for topic in table.get("lessons", []))
    own = [entry for chapter in chapters for entry in course.exercises_of(chapter)]
    names = table.get("exercises", [entry.name for entry in own])
    for name in (*names, *table.get("hand_in", [])):
        if name not in {entry.name for entry in own}:
            raise CourseError(f"{where}: no lesson of this part has the exercise {name!r}")
    for name in table.get("hand_in", []):
        if name not in names:
            raise CourseError(f"{where}: {name!r} is to be handed in, and is not among the exercises")
    for entry in own:
        if entry.name in names:
            if missing := [need for need in entry.needs if need not in done]:
                raise CourseError(f"{where}: {entry.name!r} needs {missing[0]!r}, which is in no part before it")
            done.add(entry.name)
    return PathPart(table["title"], chapters, tuple(entry for entry in own if entry.name in names),
                    tuple(entry for entry in own if entry.name in table.get("hand_in", [])))
