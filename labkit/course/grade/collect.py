"""Submissions, in whatever layout a learning platform exports them, as files of students. Nothing is unpacked to disk.

nbgrader            submitted/STUDENT/ASSIGNMENT/x.ipynb
Moodle              Name_12345_assignsubmission_file_/x.ipynb, or Name_12345_assignsubmission_file_x.ipynb
Canvas              lastfirst_123_456_x.ipynb
GitHub Classroom    ASSIGNMENT-USERNAME/.../exercises/x.ipynb, or .../work/exercises/x.ipynb
anything else       STUDENT/.../x.ipynb, or STUDENT.ipynb

Each may lie in a .zip, and a student's folder may hold one.

Students choose the file names inside their folders, and can set file times. So only the top-level name, which the
platform chose, decides whose a file is, and all top-level names together decide the layout, once for the archive.
"""

from __future__ import annotations

import csv
import io
import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path, PurePosixPath

from labkit._common.errors import UserError
from labkit.course.grade.answers import MAX_FILE
from labkit.course.grade.notes import Note

SUFFIXES = (".ipynb", ".py")
SKIPPED = {"solutions", "notebooks", "tests", "labkit", "scripts", "__MACOSX", "__pycache__", "node_modules", "build"}
MAX_FILES = 50_000
MAX_ZIP = 64 << 20  # of a zip within a zip, which is read into memory
MAX_UNPACKED = 2 << 30  # of all files of a zip together
MAX_RATIO = 200  # unpacked over packed: text reaches 20

# The first match counts: what follows it is the student's choice.
MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>[0-9]+)_assignsubmission_file_?(?P<file>.*)", re.DOTALL)
CANVAS = re.compile(r"(?P<name>[^_0-9][^_]*)(?:_LATE)?_(?P<id>[0-9]+)_(?P<number>[0-9]+)_(?P<file>.*)", re.DOTALL)
CHAPTER = re.compile(r"\d\d_[a-z0-9_]+")


@dataclass(frozen=True)
class SubmittedFile:
    """A file that was handed in. path: below the folder, with a zip as a folder. changed: seconds since 1970."""

    path: PurePosixPath  # as it is on disk until collect() returns, then as it can be shown
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
    """files: each student's submitted files, oldest first. notes: for the teacher, doubts and files left out."""

    students: dict[str, Student] = field(default_factory=dict)
    files: dict[str, list[SubmittedFile]] = field(default_factory=dict)
    missing: list[Student] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def collect(folder: Path, roster: Path | None = None) -> Collected:
    """Every submission below `folder`, a directory or a .zip. UserError where there is none, or the roster is wrong."""
    if not folder.exists():
        raise UserError(f"{folder} is not there; give the folder or the .zip with the submissions")
    left_out: list[LeftOut] = []
    if folder.is_dir():
        files = list(_of_directory(folder, left_out))
    elif zipfile.is_zipfile(folder):
        files = list(_of_zip(folder, PurePosixPath(), left_out))
    else:
        raise UserError(f"{folder} is neither a folder nor a .zip")
    files = [each for each in files if each.path.suffix.lower() in SUFFIXES]
    if not files:
        raise UserError(f"{folder} holds no submissions: no file ends in .ipynb or .py")
    collected = Collected()
    students = read_roster(roster) if roster is not None else []
    root = _shared_root(files, folder, students)
    if root and root[0] != "submitted":
        collected.notes.append(Note("root", f"{_clean(root[0])} was taken for the folder of all submissions; if it is "
                                            "one student's, what it holds is not that of others"))
    layout = _layout_of(files, root, _clean(folder.resolve().stem))
    for each in sorted(files, key=_order):
        parts = each.path.parts[len(root):]
        student = layout.student(parts)
        collected.students.setdefault(student.id, student)
        shown = PurePosixPath(layout.shown[parts[0]], *map(_clean, parts[1:]))
        collected.files.setdefault(student.id, []).append(replace(each, path=shown))
    owners = {name: name for name in collected.students}  # what a file's place says -> student
    if roster is not None:
        owners = _match(collected, students)
    _note_claims(collected, layout)
    for omitted in left_out:
        parts = omitted.path.parts
        owner = layout.student(parts[len(root):]).id if len(parts) > len(root) and parts[: len(root)] == root else ""
        owner = owners.get(owner, owner)
        student = collected.students.get(owner, Student(owner)).shown
        collected.notes.append(Note(omitted.kind, f"{_shown(omitted.path) if parts else folder.stem}{omitted.why}",
                                    student))
    return collected


# --- Files ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeftOut:
    """A file that is not read. kind: of its note. why: follows the path."""

    kind: str
    path: PurePosixPath
    why: str


def _of_directory(folder: Path, left_out: list[LeftOut]) -> Iterator[SubmittedFile]:
    count = 0
    for directory, folders, names in os.walk(folder):
        for name in list(folders):
            path = Path(directory, name)
            if path.is_symlink():
                relative = PurePosixPath(*path.relative_to(folder).parts)
                left_out.append(LeftOut("link", relative, ": a link, not followed"))
                folders.remove(name)
            elif name in SKIPPED or name.startswith("."):
                folders.remove(name)
        folders.sort()
        for name in sorted(names):
            path = Path(directory, name)
            relative = PurePosixPath(*path.relative_to(folder).parts)
            if name.startswith(".") or path.suffix.lower() not in (*SUFFIXES, ".zip"):
                continue
            try:
                status = path.lstat()
            except OSError as error:
                left_out.append(LeftOut("unreadable", relative, f": {error.strerror}"))
                continue
            if not stat.S_ISREG(status.st_mode):
                left_out.append(LeftOut("link", relative, ": a link or a device, not a file; left out"))
                continue
            count += 1
            if count > MAX_FILES:
                raise UserError(f"{folder} holds more than {MAX_FILES:,} files; is it the right folder?")
            if path.suffix.lower() == ".zip":
                yield from _of_zip(path, relative.with_suffix(""), left_out)
            elif status.st_size > MAX_FILE:
                why = f": {status.st_size >> 20} MiB, at most {MAX_FILE >> 20} are read"
                left_out.append(LeftOut("too large", relative, why))
            else:
                yield SubmittedFile(relative, status.st_mtime, status.st_size, _reader(path))


def _reader(path: Path) -> Callable[[], bytes]:
    def read() -> bytes:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(handle, "rb") as file:
            return file.read(MAX_FILE + 1)

    return read


def _of_zip(file, below: PurePosixPath, left_out: list[LeftOut], depth: int = 0) -> Iterator[SubmittedFile]:
    """The files of a zip, each read when it is asked for. What leads out of it, links and bombs are left out."""
    try:
        archive = zipfile.ZipFile(file)
        entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        left_out.append(LeftOut("archive", below, f".zip: cannot be read: {error}"))
        return
    if len(entries) > MAX_FILES:
        left_out.append(LeftOut("archive", below, f".zip: {len(entries):,} files; at most {MAX_FILES:,} are read"))
        return
    total = 0
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        location = below / PurePosixPath(*(part for part in path.parts if part != "/"))
        suffix = path.suffix.lower()
        if entry.is_dir() or (suffix not in SUFFIXES and suffix != ".zip"):
            continue
        if any(part in SKIPPED or part.startswith(".") and part != ".." for part in path.parts):
            continue
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
            left_out.append(LeftOut("archive", below, f".zip: {_shown(path)}: its name leads out of it; left out"))
            continue
        if stat.S_ISLNK(entry.external_attr >> 16):
            left_out.append(LeftOut("link", location, ": a link; left out"))
            continue
        limit = MAX_ZIP if suffix == ".zip" else MAX_FILE
        total += entry.file_size
        if entry.file_size > limit or total > MAX_UNPACKED or entry.file_size > 1 << 20 and (
                entry.file_size > MAX_RATIO * max(entry.compress_size, 1)):
            why = f": too large once unpacked ({entry.file_size:,} bytes); left out"
            left_out.append(LeftOut("too large", location, why))
            continue
        read = _zip_reader(archive, entry, limit)
        if suffix != ".zip":
            yield SubmittedFile(location, _zip_time(entry), entry.file_size, read)
        elif depth:
            left_out.append(LeftOut("archive", location, ": a zip in a zip in a zip; left out"))
        else:
            try:
                yield from _of_zip(io.BytesIO(read()), location.with_suffix(""), left_out, depth + 1)
            except UserError as error:
                left_out.append(LeftOut("archive", location, f": {error}"))


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


@dataclass(frozen=True)
class Layout:
    """Whose a file is, by its name at the top level. pattern: of an export's names, or None."""

    pattern: re.Pattern | None
    prefix: str  # "vectors-" of GitHub Classroom's vectors-USERNAME
    folder: str  # whose a chapter's notebook is that lies there alone
    shown: dict[str, str]  # name at the top level -> the same, as it can be shown; no two are equal

    def student(self, parts: tuple[str, ...]) -> Student:
        top = self.shown.get(parts[0], _clean(parts[0]))
        if self.pattern is MOODLE and len(ids_of(top)) > 1:
            return Student(top)
        if self.pattern and (match := self.pattern.fullmatch(top)):
            return Student(match["id"], match["name"].replace("_", " ").strip())
        if len(parts) == 1:
            stem = PurePosixPath(top).stem
            return Student(self.folder if CHAPTER.fullmatch(stem) else stem)
        return Student(top.removeprefix(self.prefix) or top)


def ids_of(name: str) -> set[str]:
    """The ids in a name of Moodle's. Two: one part was chosen, as the name that Moodle shows or as the file's, and
    nothing says which."""
    return set(re.findall(r"(?<=_)([0-9]+)_assignsubmission_file_", name))


def _shared_root(files: list[SubmittedFile], folder: Path, roster: list[Student]) -> tuple[str, ...]:
    """Find the folders that wrap all submissions: "submitted", an assignment's, or both. Below "submitted" at the top,
    every folder is a student's. An only folder of another name is a student's unless something outside it says
    otherwise, whatever it holds: where it looks like a class, the roster decides, or its name, that of the archive;
    else UserError."""
    top = _names(files, 0)
    if len(top) != 1 or any(len(each.path.parts) == 1 for each in files):
        return ()
    (only_folder,) = top
    if only_folder == "submitted":
        return (only_folder,)
    if MOODLE.fullmatch(only_folder) or CANVAS.fullmatch(only_folder):
        return ()
    root, inner = (only_folder,), _names(files, 1)
    if inner == {"submitted"} and all(len(each.path.parts) > 2 for each in files):
        root, inner = (only_folder, "submitted"), _names(files, 2)
    exports = len(inner) > 1 and any(all(map(pattern.fullmatch, inner)) for pattern in (MOODLE, CANVAS))
    folders = len(inner) > 1 and all(len(each.path.parts) > 2 for each in files) and not any(
        name == "exercises" or CHAPTER.fullmatch(name) for name in inner)
    looks_like_a_class = len(root) > 1 or exports or folders
    return root if looks_like_a_class and _holds_a_class(only_folder, inner, folder, roster) else ()


def _holds_a_class(top: str, inner: set[str], folder: Path, roster: list[Student]) -> bool:
    """Whether the only folder at the top, in which `inner` look like students, is the class's and not a student's."""
    keys = {key for student in roster for key in _keys(student)}

    def listed(name: str) -> bool:
        if match := MOODLE.fullmatch(name) or CANVAS.fullmatch(name):
            return not keys.isdisjoint(_keys(Student(match["id"], match["name"].replace("_", " "))))
        words = name.casefold().split("-")  # vectors-USERNAME
        return any("-".join(words[k:]) in keys for k in range(len(words)))

    if listed(top):
        return False
    if any(map(listed, inner)) or _clean(folder.resolve().stem) == _clean(top):
        return True
    examples = ", ".join(sorted(map(_clean, inner))[:3])
    advice = f"give {folder / _clean(top)}" if folder.is_dir() else f"name the archive {_clean(top)}.zip"
    raise UserError(f"{folder} holds one folder, {_clean(top)}, and that holds {examples}{', ...' * (len(inner) > 3)}: "
                    f"are these students, or one student's folders? If they are students, {advice}; if "
                    f"{_clean(top)} is the student, put it in a folder named `submitted`. A --roster with their ids "
                    "decides it, too")


def _names(files: list[SubmittedFile], depth: int) -> set[str]:
    return {each.path.parts[depth] for each in files if len(each.path.parts) > depth}


def _layout_of(files: list[SubmittedFile], root: tuple[str, ...], folder: str) -> Layout:
    """The layout of all submissions: an export's if most names at the top level are such as that platform gives."""
    relative_parts = [each.path.parts[len(root):] for each in files]
    names = sorted({parts[0] for parts in relative_parts})
    shown: dict[str, str] = {}
    used_names: set[str] = set()
    for name in names:
        clean, suffix = _clean(name), 2
        while clean in used_names:  # two names that differ only in what cannot be shown
            clean, suffix = f"{_clean(name)} [{suffix}]", suffix + 1
        used_names.add(clean)
        shown[name] = clean
    matches = {pattern: sum(bool(pattern.fullmatch(name)) for name in names) for pattern in (CANVAS, MOODLE)}
    pattern = max(matches, key=matches.__getitem__)  # of as many Canvas: its files can be named as Moodle's are
    if 2 * matches[pattern] > len(names):
        return Layout(pattern, "", folder, shown)
    prefix = "" if "submitted" in root else _classroom_prefix(relative_parts)
    return Layout(None, prefix, folder, shown)


def _classroom_prefix(relative_parts: list[tuple[str, ...]]) -> str:
    """ "vectors-" where every folder is named vectors-USERNAME, and most hold exercises, as with GitHub Classroom."""
    folders = {parts[0] for parts in relative_parts if len(parts) > 1}
    checkouts = {parts[0] for parts in relative_parts if "exercises" in parts[1:-1]}
    shared = os.path.commonprefix(sorted(folders))
    return shared[: shared.rfind("-") + 1] if len(folders) > 1 and 2 * len(checkouts) > len(folders) else ""


def _note_claims(collected: Collected, layout: Layout) -> None:
    """Note each file whose name below the top level is that of another student."""
    owners: dict[str, set[str]] = {}
    everyone = {student.id: student for student in collected.missing} | collected.students
    for name, student in everyone.items():
        for key in _keys(student):
            owners.setdefault(key, set()).add(name)
    for name, files in collected.files.items():
        student = collected.students[name]
        for each in files:
            parts = each.path.parts
            if layout.pattern and not layout.pattern.fullmatch(parts[0]):
                collected.notes.append(Note("layout", f"{_shown(each.path)} is not named as the platform names the "
                                                      "others", student.shown))
            if layout.pattern is MOODLE and len(ids := ids_of(parts[0])) > 1:
                collected.notes.append(Note("another student", f"holds the ids {' and '.join(sorted(ids))}, of which "
                                            "one was chosen; graded apart, for a teacher to say whose it is",
                                            student.shown))
            elif any(_claims_another(part, name, student, owners) for part in _chosen(parts, layout)):
                collected.notes.append(Note("another student", f"{_shown(each.path)} is named as another student's "
                                                               "file; only its place counts", student.shown))


def _chosen(parts: tuple[str, ...], layout: Layout) -> tuple[str, ...]:
    """The names that the student chose: all below the top level, and there what an export's name ends with."""
    match = layout.pattern.fullmatch(parts[0]) if layout.pattern else None
    return (match["file"], *parts[1:]) if match else parts[1:]


def _claims_another(part: str, name: str, student: Student, owners: dict[str, set[str]]) -> bool:
    """Whether a name within a student's folder is one that a platform, or the class, gives to another student."""
    match = MOODLE.fullmatch(part) or CANVAS.fullmatch(part)
    if match:
        keys = _keys(Student(match["id"], match["name"].replace("_", " ")))
        if owners.get(match["id"], set()) - {name}:  # whatever its name
            return True
    else:
        words = PurePosixPath(part).stem.casefold().split("-")  # vectors-USERNAME, and a name may hold a - itself
        keys = {key for k in range(len(words)) if not (key := "-".join(words[k:])).isdigit()}
    if keys & _keys(student):
        return False
    return bool(match and match.re is MOODLE) or any(owners.get(key, set()) - {name} for key in keys)


def _order(file: SubmittedFile) -> tuple:
    """Oldest first. A learner's copies in work/ come after all else: whoever hands in a whole checkout hands in the
    exercises as they were given, too."""
    return "work" in file.path.parts[:-1], file.changed, str(file.path)


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


def _match(collected: Collected, roster: list[Student]) -> dict[str, str]:
    """Map submissions to the ids of the roster, and find missing students. Return that mapping."""
    by_key: dict[str, set[str]] = {}
    listed = {student.id: student for student in roster}
    for student in roster:
        for key in _keys(student):
            by_key.setdefault(key, set()).add(student.id)
    matched_ids: dict[str, str] = {}
    for name, student in collected.students.items():
        keys = _keys(student) | {"".join(sorted(re.findall(r"\w+", student.name.casefold())))}
        ids = {one for key in keys for one in by_key.get(key, ()) if len(by_key[key]) == 1}
        if student.id in listed:
            ids = {student.id}
        if len(ids) == 1:
            (matched_ids[name],) = ids
    claims = Counter(matched_ids.values())
    students, files, owners = {}, {}, {}
    for name, student in collected.students.items():
        known = matched_ids.get(name, name)
        if known not in listed:
            collected.notes.append(Note("roster", "not in the roster", student.shown))
        elif known != name and claims[known] > 1:  # a name can be chosen; an id is the platform's
            collected.notes.append(Note("same name", f"has the name of {listed[known].shown} in the roster, and is not "
                                                     "the only one; graded apart", student.shown))
            known = name
        owners[name] = known
        students[known] = listed.get(known, student)
        files[known] = collected.files[name]
    collected.students, collected.files = students, files
    collected.missing = [student for student in roster if student.id not in files]
    return owners
