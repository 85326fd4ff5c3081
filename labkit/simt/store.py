"""Compiled kernels as files: bytes under keys, each with a checksum. For both devices.

A file appears only when it is whole, so several processes may write at once. One that was damaged is deleted, and its
kernel is recompiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
import warnings
from pathlib import Path

LIMIT = 1 << 30  # bytes
MAGIC = b"labkit kernel 1\n"
SUFFIX = ".kernel"
ABANDONED = 3600  # seconds after which a temporary file belongs to a process that is no more


class Store:
    """Bytes under keys, in a directory. Never raises OSError: what cannot be written is not kept.

    limit: bytes; when there are more, the least recently used files go. named_by: the environment variable that names
    the directory, for messages. The first failure and the first damaged file warn.
    """

    def __init__(self, where: Path, limit: int = LIMIT, named_by: str = "LABKIT_KERNEL_CACHE"):
        self.where, self.limit, self.named_by = where, limit, named_by
        self._warned: set[str] = set()

    def path(self, key: str) -> Path:
        return self.where / f"{key}{SUFFIX}"

    def load(self, key: str) -> bytes | None:
        """What was saved under this key; None if there is nothing, or nothing whole, which is deleted."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        start = len(MAGIC) + 32
        content = data[start:]
        if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : start] != hashlib.sha256(content).digest():
            self.forget(key)
            self._warn("damaged", f"a compiled kernel on disk was damaged and is being recompiled: {path}")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the least recently used go first
        return content

    def save(self, key: str, content: bytes) -> bool:
        """False if it could not be written."""
        try:
            self.where.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.where, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(MAGIC + hashlib.sha256(content).digest() + content)
                os.chmod(temporary, 0o644)  # mkstemp makes it private; whether others get here the directory says
                os.replace(temporary, self.path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            self._trim()
        except OSError as error:
            self._warn("failed", f"compiled kernels are not kept: {self.where} cannot be written ({error}). "
                                 f"{self.named_by} names another directory")
            return False
        return True

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def forget(self, key: str) -> None:
        with contextlib.suppress(OSError):
            self.path(key).unlink()

    def _trim(self) -> None:
        """Remove the least recently used files until the rest is well below the limit."""
        files, now = [], time.time()
        for entry in os.scandir(self.where):
            with contextlib.suppress(OSError):  # another process may have removed it
                state = entry.stat()
                if entry.name.endswith(SUFFIX):
                    files.append((state.st_mtime, state.st_size, entry.path))
                elif entry.name.endswith(".tmp") and now - state.st_mtime > ABANDONED:
                    os.unlink(entry.path)
        total = sum(size for _, size, _ in files)
        if total <= self.limit:
            return
        for _, size, path in sorted(files):
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
            if total <= 0.9 * self.limit:
                return
