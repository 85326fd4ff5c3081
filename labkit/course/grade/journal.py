"""The verdicts that have been reached, kept so that a run that was interrupted loses none; and the lock."""

from __future__ import annotations

import json
from pathlib import Path

from labkit._common.errors import UserError
from labkit._common.files import write_text
from labkit.course.grade.tasks import Task, digest


class Journal:
    """The verdicts that have been reached, one file each."""

    def __init__(self, folder: Path):
        self.folder = folder

    def _path(self, student: str, exercise: str) -> Path:
        return self.folder / f"{digest(student, exercise)[:40]}.json"

    def find(self, task: Task) -> dict | None:
        """The verdict on this very answer; None if there is none, or it cannot be read."""
        try:
            entry = json.loads(self._path(task.student, task.exercise).read_text(encoding="utf-8"))
            return entry["result"] if entry["key"] == task.key and isinstance(entry["result"]["passed"], bool) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, task: Task, result: dict) -> None:
        entry = {"student": task.student, "exercise": task.exercise, "key": task.key, "result": result}
        try:
            write_text(self._path(task.student, task.exercise), json.dumps(entry) + "\n")
        except OSError as error:
            raise UserError(f"the verdict on {task.exercise} could not be kept in {self.folder}: {error.strerror}. "
                            "No earlier verdict is lost: free some space and run the same command again") from None


class Lock:
    """One grader at a time in a folder of results. The system takes it back when the process ends, however it ends."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "w")  # noqa: SIM115, held until the process ends
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass
        except OSError:
            self._file.close()
            raise UserError(f"another labkit grade writes to {path.parent.parent}; wait for it, or give another --out"
                            ) from None

    def release(self) -> None:
        self._file.close()
