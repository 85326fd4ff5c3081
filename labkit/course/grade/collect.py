"""Submissions, in whatever layout a learning platform exports them, as files of students. Nothing is unpacked to disk.

nbgrader            submitted/STUDENT/ASSIGNMENT/x.ipynb
Moodle              Name_12345_assignsubmission_file_/x.ipynb, or Name_12345_assignsubmission_file_x.ipynb
Canvas              lastfirst_123_456_x.ipynb
GitHub Classroom    ASSIGNMENT-USERNAME/.../exercises/x.ipynb, or .../work/exercises/x.ipynb
anything else       STUDENT/.../x.ipynb, or STUDENT.ipynb

Each may lie in a .zip, and a student's folder may hold one.
"""

from __future__ import annotations

import csv
import io
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath

from labkit._common.errors import UserError
from labkit.course.grade.answers import MAX_FILE

SUFFIXES = (".ipynb", ".py")
SKIPPED = {"solutions", "notebooks", "tests", "labkit", "scripts", "__MACOSX", "__pycache__", "node_modules", "build"}
MAX_FILES = 50_000
MAX_ZIP = 64 << 20  # of a zip within a zip, which is read into memory
MAX_UNPACKED = 2 << 30  # of all files of a zip together
MAX_RATIO = 200  # unpacked over packed: text reaches 20

MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_file_?(?P<file>.*)")
CANVAS = re.compile(r"(?P<name>[^_\d][^_]*)(?:_LATE)?_(?P<id>\d+)_(?P<number>\d+)_(?P<file>.+)")
CHAPTER = re.compile(r"\d\d_[a-z0-9_]+")


@dataclass(frozen=True)
class Found:
    """A file that was handed in. path: below the folder, with a zip as a folder. changed: seconds since 1970."""

    path: PurePosixPath
    changed: float
    size: int
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Student:
    id: str
    name: str = ""
    email: str = ""

    @property
    def shown(self) -> str:
        return f"{self.name} ({self.id})" if self.name and self.name != self.id else self.id


@dataclass
class Collected:
    """files: student -> what that student handed in, oldest first. notes: what was left out, and why."""

    students: dict[str, Student] = field(default_factory=dict)
    files: dict[str, list[Found]] = field(default_factory=dict)
    missing: list[Student] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def collect(folder: Path, roster: Path | None = None) -> Collected:
    """Every submission below `folder`, a directory or a .zip. UserError where there is none, or the roster is wrong."""
    if not folder.exists():
        raise UserError(f"{folder} is not there; give the folder or the .zip with the submissions")
    collected = Collected()
    if folder.is_dir():
        found = list(_of_directory(folder, collected.notes))
    elif zipfile.is_zipfile(folder):
        found = list(_of_zip(folder, PurePosixPath(), collected.notes))
    else:
        raise UserError(f"{folder} is neither a folder nor a .zip")
    found = _without_shared_root([each for each in found if each.path.suffix.lower() in SUFFIXES])
    if not found:
        raise UserError(f"{folder} holds no submissions: no file ends in .ipynb or .py")
    prefix = _shared_prefix(found)
    for each in sorted(found, key=_order):
        student = _student_of(each.path, folder, prefix)
        collected.students.setdefault(student.id, student)
        collected.files.setdefault(student.id, []).append(each)
    if roster is not None:
        _match(collected, read_roster(roster))
    return collected


# --- Files ---------------------------------------------------------------------------------------------------------


def _of_directory(folder: Path, notes: list[str]) -> Iterator[Found]:
    count = 0
    for where, folders, names in os.walk(folder):
        for name in list(folders):
            path = Path(where, name)
            if path.is_symlink():
                notes.append(f"{_shown(path.relative_to(folder))}: a link, not followed")
                folders.remove(name)
            elif name in SKIPPED or name.startswith("."):
                folders.remove(name)
        folders.sort()
        for name in sorted(names):
            path = Path(where, name)
            relative = PurePosixPath(*(_clean(part) for part in path.relative_to(folder).parts))
            if name.startswith(".") or path.suffix.lower() not in (*SUFFIXES, ".zip"):
                continue
            try:
                about = path.lstat()
            except OSError as error:
                notes.append(f"{_shown(relative)}: {error.strerror}")
                continue
            if not stat.S_ISREG(about.st_mode):
                notes.append(f"{_shown(relative)}: a link or a device, not a file; left out")
                continue
            count += 1
            if count > MAX_FILES:
                raise UserError(f"{folder} holds more than {MAX_FILES:,} files; is it the right folder?")
            if path.suffix.lower() == ".zip":
                yield from _of_zip(path, relative.with_suffix(""), notes)
            elif about.st_size > MAX_FILE:
                notes.append(f"{_shown(relative)}: {about.st_size >> 20} MiB, at most {MAX_FILE >> 20} are read")
            else:
                yield Found(relative, about.st_mtime, about.st_size, _reader(path))


def _reader(path: Path) -> Callable[[], bytes]:
    def read() -> bytes:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(handle, "rb") as file:
            return file.read(MAX_FILE + 1)

    return read


def _of_zip(file, below: PurePosixPath, notes: list[str], depth: int = 0) -> Iterator[Found]:
    """The files of a zip, each read when it is asked for. What leads out of it, links and bombs are left out."""
    try:
        archive = zipfile.ZipFile(file)
        entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        notes.append(f"{_shown(below)}.zip: cannot be read: {error}")
        return
    if len(entries) > MAX_FILES:
        notes.append(f"{_shown(below)}.zip: {len(entries):,} files; at most {MAX_FILES:,} are read")
        return
    total = 0
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        where = below / PurePosixPath(*(_clean(part) for part in path.parts if part != "/"))
        suffix = path.suffix.lower()
        if entry.is_dir() or (suffix not in SUFFIXES and suffix != ".zip"):
            continue
        if any(part in SKIPPED or part.startswith(".") and part != ".." for part in path.parts):
            continue
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
            notes.append(f"{_shown(where)}: its name leads out of the zip; left out")
            continue
        if stat.S_ISLNK(entry.external_attr >> 16):
            notes.append(f"{_shown(where)}: a link; left out")
            continue
        limit = MAX_ZIP if suffix == ".zip" else MAX_FILE
        total += entry.file_size
        if entry.file_size > limit or total > MAX_UNPACKED or entry.file_size > 1 << 20 and (
                entry.file_size > MAX_RATIO * max(entry.compress_size, 1)):
            notes.append(f"{_shown(where)}: too large once unpacked ({entry.file_size:,} bytes); left out")
            continue
        read = _zip_reader(archive, entry, limit)
        if suffix != ".zip":
            yield Found(where, _zip_time(entry), entry.file_size, read)
        elif depth:
            notes.append(f"{_shown(where)}: a zip in a zip in a zip; left out")
        else:
            try:
                yield from _of_zip(io.BytesIO(read()), where.with_suffix(""), notes, depth + 1)
            except UserError as error:
                notes.append(f"{_shown(where)}: {error}")


def _zip_reader(archive, entry, limit: int) -> Callable[[], bytes]:
    def read() -> bytes:
        try:
            with archive.open(entry) as file:
                data = file.read(limit + 1)  # what the zip says of its size may be wrong
        except (zipfile.BadZipFile, OSError, RuntimeError, ValueError, NotImplementedError, EOFError) as error:
            raise UserError(f"cannot be unpacked: {error}") from None
        except Exception as error:  # zlib's and lzma's own
            raise UserError(f"cannot be unpacked: {type(error).__name__}") from None
        if len(data) > limit:
            raise UserError("is larger than the zip says")
        return data

    return read


def _zip_time(entry) -> float:
    try:
        return datetime(*entry.date_time).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _clean(part: str) -> str:
    """A part of a path that can be shown and written: no control characters, no lone surrogates."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", "?", part)


def _shown(path) -> str:
    return _clean(str(path))[-200:]


# --- Students ------------------------------------------------------------------------------------------------------


def _without_shared_root(found: list[Found]) -> list[Found]:
    """A zip often holds one folder with everything in it: "submitted", or that of the assignment. A folder is taken for
    such a one if it holds exports by name, or several folders, none of which a student's own would be called."""
    while found and all(len(each.path.parts) > 1 for each in found):
        first = {each.path.parts[0] for each in found}
        inner = {each.path.parts[1] for each in found}
        if len(first) > 1 or MOODLE.fullmatch(*first):
            return found
        exports = all(MOODLE.fullmatch(name) or CANVAS.fullmatch(name) for name in inner)
        folders = len(inner) > 1 and all(len(each.path.parts) > 2 for each in found) and not any(
            name == "exercises" or CHAPTER.fullmatch(name) for name in inner)
        if not (first == {"submitted"} or "submitted" in inner or exports or folders):
            return found
        found = [Found(PurePosixPath(*each.path.parts[1:]), each.changed, each.size, each.read) for each in found]
    return found


def _shared_prefix(found: list[Found]) -> str:
    """ "vectors-" where every folder is named vectors-USERNAME, as GitHub Classroom does."""
    folders = {each.path.parts[0] for each in found if len(each.path.parts) > 1}
    classroom = any("exercises" in each.path.parts[1:] for each in found)
    shared = os.path.commonprefix(sorted(folders))
    return shared[: shared.rfind("-") + 1] if classroom and len(folders) > 1 else ""


def _order(found: Found) -> tuple:
    """Oldest first. A learner's copies in work/ come after all else: whoever hands in a whole checkout hands in the
    exercises as they were given, too."""
    return "work" in found.path.parts[:-1], found.changed, str(found.path)


def _student_of(path: PurePosixPath, folder: Path, prefix: str) -> Student:
    for part in path.parts:
        if (match := MOODLE.fullmatch(part)) or (match := CANVAS.fullmatch(part)):
            return Student(match["id"], match["name"].replace("_", " ").strip())
    if len(path.parts) == 1:
        alone = CHAPTER.fullmatch(path.stem)  # a chapter's notebook: the folder is the student's
        return Student(_clean(folder.resolve().stem) if alone else path.stem)
    first = path.parts[0]
    return Student(first.removeprefix(prefix) or first)


def read_roster(path: Path) -> list[Student]:
    """A CSV with the columns id, name, email, of which id is needed."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"--roster {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"--roster {path} is not UTF-8 text") from None
    rows = csv.DictReader(io.StringIO(text))
    columns = {(name or "").strip().lower(): name for name in rows.fieldnames or ()}
    if "id" not in columns:
        raise UserError(f"--roster {path} has no column 'id'; its first line must name the columns: id,name,email")
    students = []
    try:
        for row in rows:
            values = {key: _clean((row.get(columns[key]) or "").strip()) for key in ("id", "name", "email")
                      if key in columns}
            if values["id"]:
                students.append(Student(**values))
    except csv.Error as error:
        raise UserError(f"--roster {path} is no CSV: {error}") from None
    if len({student.id for student in students}) != len(students):
        raise UserError(f"--roster {path} lists an id twice")
    return students


def _keys(student: Student) -> set[str]:
    words = re.findall(r"\w+", student.name.casefold())
    keys = {student.id.casefold(), student.email.casefold(), student.email.casefold().partition("@")[0]}
    keys |= {"".join(words), "".join(sorted(words)), "".join([*words[-1:], *words[:-1]])}
    return keys - {""}


def _match(collected: Collected, roster: list[Student]) -> None:
    """Give submissions the ids of the roster; find who is missing."""
    by_key: dict[str, set[str]] = {}
    listed = {student.id: student for student in roster}
    for student in roster:
        for key in _keys(student):
            by_key.setdefault(key, set()).add(student.id)
    students, files = {}, {}
    for name, student in collected.students.items():
        wanted = _keys(student) | {"".join(sorted(re.findall(r"\w+", student.name.casefold())))}
        ids = {one for key in wanted for one in by_key.get(key, ()) if len(by_key[key]) == 1}
        if student.id in listed:
            ids = {student.id}
        if len(ids) == 1:
            (known,) = ids
        else:
            known = name
            collected.notes.append(f"{student.shown}: not in the roster")
        students[known] = listed.get(known, student)
        files.setdefault(known, []).extend(collected.files[name])
    for each in files.values():
        each.sort(key=_order)
    collected.students, collected.files = students, files
    collected.missing = [student for student in roster if student.id not in files]
