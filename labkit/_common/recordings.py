"""Recordings in data/measurements as they are read: which parts of which file a page quotes, and the hash of a part.

A part is an operation, a series, or another entry of the file: "nvidia-h200.json ops.matmul" or "nvidia-h200.json
limits". Where $LABKIT_QUOTES names a file, every part that is read is noted there, a line each: `labkit build` keeps
them with the notebook, and `labkit build --check` finds the pages whose recordings have changed.
"""

import functools
import hashlib
import json
import os
from pathlib import Path

from labkit._common import paths
from labkit._common.errors import UserError
from labkit._common.files import read_json

SECTIONS = ("ops", "series")  # whose entries are parts of their own
NOTES = "LABKIT_QUOTES"


class _Watched(dict):
    """A dictionary that notes which of its entries are read."""

    def __init__(self, entries: dict, prefix: str):
        is_top_level = prefix.endswith(" ")
        super().__init__({key: _Watched(value, f"{prefix}{key}.") if is_top_level and key in SECTIONS else value
                          for key, value in entries.items()})
        self._prefix = prefix

    def _note(self, *keys: str) -> None:
        notes = os.environ.get(NOTES)
        parts = [f"{self._prefix}{key}\n" for key in keys if not isinstance(super(_Watched, self).get(key), _Watched)]
        if notes and parts:
            try:
                with open(notes, "a", encoding="utf-8") as file:
                    file.writelines(parts)
            except OSError as error:
                raise UserError(f"{NOTES} is {notes!r}; it must name a file that can be written: {error.strerror}"
                                ) from None

    def __getitem__(self, key):
        self._note(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self._note(key)
        return super().get(key, default)

    def values(self):
        self._note(*self)
        return super().values()

    def items(self):
        self._note(*self)
        return super().items()


@functools.lru_cache(maxsize=8)
def _parsed(path: Path, modified: float) -> dict:
    return read_json(path)


@functools.lru_cache(maxsize=8)
def _watched(path: Path, modified: float) -> _Watched:
    name = path.relative_to(paths.MEASUREMENTS).as_posix() if path.is_relative_to(paths.MEASUREMENTS) else path.name
    return _Watched(_parsed(path, modified), f"{name} ")


def read(path: Path) -> dict:
    """Return the recording at `path`, with every access to it noted."""
    return _watched(path, path.stat().st_mtime)


def noted(path: Path) -> list[str]:
    """The parts that were noted in a file, each once."""
    return sorted(set(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []


def digest(part: str, folder: Path) -> str | None:
    """The hash of a part of a recording in `folder`; None where the file or the part is not there."""
    name, _, keys = part.partition(" ")
    value = _plain(folder / name)
    for key in keys.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _plain(path: Path) -> dict | None:
    try:
        return _parsed(path, path.stat().st_mtime)
    except (OSError, ValueError):
        return None


def changed(digests: dict[str, str | None], folder: Path) -> list[str]:
    """The parts whose recording has changed."""
    return [part for part, known in digests.items() if digest(part, folder) != known]
