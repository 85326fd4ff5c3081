"""Reading files that users may have edited, with errors that name them; writing files and folders atomically."""

import contextlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from labkit._common.errors import UserError

LOCK_TIMEOUT_S = 10.0  # a lock is held for milliseconds: a longer hold means a hung process
OLD_S = 3600.0  # no file takes as long to write
# .NAME.labkit-xxxxxxxx, and .NAME.ipynb.xxxxxxxx of earlier versions.
MARK = "labkit-"
OLD = "labkit-old-"  # of folders that moved aside
LEFT_OVER = re.compile(rf"\..+\.({MARK}|(?<=\.ipynb\.))[a-z0-9_]{{8}}")
LEFT_OVER_FOLDER = re.compile(rf"\.(?P<name>.+)-(?P<mark>{OLD}|{MARK})[a-z0-9_]{{8}}")
JSON_NAMES = {dict: "an object, {...}", list: "a list, [...]", str: "a text", bool: "true or false", int: "a number",
              float: "a number", type(None): "null"}


class FileError(UserError, ValueError):
    """A file that cannot be read, or does not hold what it must. The message names it."""


def read_text(path: Path) -> str:
    """The text of a file in UTF-8. Raises FileNotFoundError, and FileError for everything else that can be wrong."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is no text in UTF-8: the byte at {error.start:,} is {error.object[error.start]:#04x}"
                        ) from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None


def read_json(path: Path, kind: type | None = dict):
    """The JSON in a file, which must be of this kind: an object unless another is given, None for any. Raises as
    read_text does."""
    return parse_json(read_text(path), path, kind)


def parse_json(text: str, path, kind: type | None = dict):
    """The same of a text that is, or was, in the file."""
    text = text.removeprefix("\ufeff")  # Windows' editors mark UTF-8
    try:
        value = json.loads(text)
    except RecursionError:
        raise FileError(f"{path} is no JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise FileError(f"{path} is no JSON: {error}") from None
    if kind is not None and not isinstance(value, kind):
        raise FileError(f"{path} must hold {JSON_NAMES[kind]}; it holds {JSON_NAMES[type(value)]}")
    if re.search(r"\\ud[89a-f]", text, re.IGNORECASE):  # as a pair it is a character, alone it is none
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise FileError(f"{path} holds half of a surrogate pair, which is no text") from None
    return value


def write_text(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write bytes to, beside `path`. It takes the place of `path` when the block ends; when an error or
    Ctrl-C ends it, what was there stays. Leftovers of killed writers in the folder are deleted."""
    with _errors_name(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _delete_leftovers(path.parent)
        file, temporary = _temporary(path)
        try:
            with file:
                yield file
                file.flush()
                if os.name != "nt":  # in the lock; Windows moves no file that is open
                    _put(temporary, path)
            if os.name == "nt":
                _put(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Name `path` in errors of the system that name no file, as a write's, or the temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno and (not error.filename or MARK in str(error.filename)):
            error.filename = str(path)
        raise


def _put(temporary: str, path: Path) -> None:
    os.chmod(temporary, 0o644)  # mkstemp makes it private
    os.replace(temporary, path)


def _temporary(path: Path) -> tuple[BinaryIO, str]:
    """A file beside `path`, locked while it is open."""
    while True:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{MARK}")
        _try_lock(handle)
        if os.name == "nt" or os.fstat(handle).st_nlink:  # else another deleted it before it was locked
            return os.fdopen(handle, "wb"), temporary


def _delete_leftovers(folder: Path) -> None:
    """Delete the files of _temporary whose writers are gone: their locks are free, and where there are no locks,
    they are old."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # it can be written and not be listed
        names = os.listdir(folder)
    for name in filter(LEFT_OVER.fullmatch, names):
        path = folder / name
        with contextlib.suppress(OSError):  # another process deletes it, too
            handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            try:
                is_free = _try_lock(handle)
                if is_free is None:
                    is_free = time.time() - os.fstat(handle).st_mtime > OLD_S
                if is_free and os.name != "nt":
                    path.unlink()
            finally:
                os.close(handle)
            if is_free and os.name == "nt":
                path.unlink()


def _try_lock(handle: int) -> bool | None:
    """Whether the lock was free, and is now held until the file is closed; None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, beside `path`. It takes the place of `path` when the block ends; when an error or Ctrl-C ends
    it, what was there stays. Leftovers of killed writers beside it are deleted, or put back."""
    with _errors_name(path), contextlib.ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        _delete_leftover_folders(path.parent)
        new = _locked_folder(path, MARK, stack)
        try:
            yield new
            os.chmod(new, 0o755)  # mkdtemp makes it private
            _swap(new, path, stack)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise


def recover_folder(path: Path) -> None:
    """Put a folder back whose writer, by whole_folder, was killed before the new one was in its place."""
    _delete_leftover_folders(path.parent)


def _swap(new: Path, folder: Path, stack: contextlib.ExitStack) -> None:
    """Put `fresh` in the place of `folder`. A directory cannot be replaced in one step, so the old one moves aside."""
    if not folder.exists():
        new.rename(folder)
        return
    old = _locked_folder(folder, OLD, stack)
    folder.rename(old / "old")
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _locked_folder(path: Path, mark: str, stack: contextlib.ExitStack) -> Path:
    """An empty folder beside `path`, locked until `stack` is closed."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-{mark}"))
        if os.name == "nt":  # it opens no folders
            return folder
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for left over before it was locked
            continue
        stack.callback(os.close, handle)
        _try_lock(handle)
        if folder.exists():
            return folder


def _delete_leftover_folders(parent: Path) -> None:
    """Delete the folders of _locked_folder whose writers are gone. What stood in a folder's place before is put
    back where nothing stands there now: its writer was killed between the two steps of _swap."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(parent)
    for match in filter(None, map(LEFT_OVER_FOLDER.fullmatch, names)):
        leftover = parent / match[0]
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(leftover.lstat().st_mode):
                continue
            handle = None if os.name == "nt" else os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                is_free = None if handle is None else _try_lock(handle)
                if is_free is None:
                    is_free = time.time() - leftover.lstat().st_mtime > OLD_S
                if not is_free:
                    continue
                target = parent / match["name"]
                if match["mark"] == OLD and (leftover / "old").is_dir() and not os.path.lexists(target):
                    (leftover / "old").rename(target)
                shutil.rmtree(leftover, ignore_errors=True)
            finally:
                if handle is not None:
                    os.close(handle)


def temporary_space() -> str:
    """A hint for messages where a process with temporary files ended without saying why."""
    folder = tempfile.gettempdir()
    return f"its temporary files are in {folder}, where {shutil.disk_usage(folder).free / 1e6:,.1f} MB are free"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Exclude other processes and threads from blocks locked with the same path. The lock is a file beside it, which
    stays. Where the file system has no locks, or another holds it for LOCK_TIMEOUT_S, proceed without it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "ab") as file:
        _lock(file)
        yield  # closing the file ends the lock


def _lock(file) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if os.name == "nt":
                import msvcrt

                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):  # held
            time.sleep(0.005)
        except OSError:  # there are no locks here
            return
