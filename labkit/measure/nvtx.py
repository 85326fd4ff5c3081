"""Named ranges: how long each part of a program takes.

    ranges = Ranges()
    with ranges("copy there"):
        on_device.copy_to_device(host)
    ranges                                  # a table: share, time, how often, name

Ranges nest, and the table shows an inner one below the one around it. Where the package `nvtx` is installed each range
is an NVTX range as well, so that Nsight Systems (nsys) and Nsight Compute (ncu) show the same names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from dataclasses import dataclass

from labkit import cuda
from labkit._common.tables import ResultTable, number
from labkit.device import where

MOST_EVENTS = 1000  # that are kept with their times; all of them are added up


@functools.cache
def nvtx():
    """The package nvtx, or None where it is not installed."""
    try:
        return importlib.import_module("nvtx")
    except ImportError:
        return None


@dataclass
class _Range:
    path: tuple[str, ...]
    total_ms: float = 0.0
    count: int = 0


class Ranges(ResultTable):
    """Times named parts of a program by the host's clock. Prints as a table.

    wait: at the end of each range wait for the device, so that a range includes the work it launched. With wait=False a
    range ends when Python gets there, as an NVTX range does: a launch only puts work into a queue, and its time shows
    in whatever waits next.
    """

    def __init__(self, title: str = "Ranges", *, wait: bool = True):
        self.title, self.wait = title, wait
        self._entries: dict[tuple[str, ...], _Range] = {}
        self._open: list[tuple[str, float]] = []
        self._events: list[dict] = []
        self._began: float | None = None

    @contextlib.contextmanager
    def __call__(self, name: str):
        self.push(name)
        try:
            yield self
        finally:
            self.pop()

    def push(self, name: str) -> None:
        """Begin a range inside the one that is open."""
        if nvtx() is not None:
            nvtx().push_range(name)
        path = (*(name for name, _ in self._open), name)
        self._entries.setdefault(path, _Range(path))  # in the order in which they begin
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        self._open.append((name, now))

    def pop(self) -> float:
        """End the innermost range; its milliseconds."""
        if not self._open:
            raise RuntimeError("there is no open range to end: pop() came more often than push()")
        if self.wait:
            cuda.synchronize()
        start = self._open[-1][1]
        ms = 1000 * (time.perf_counter() - start)
        path = tuple(name for name, _ in self._open)
        entry = self._entries[path]
        if len(self._events) < MOST_EVENTS:
            self._events.append({"row": f"ranges {len(path)}", "name": path[-1], "us": 1000 * ms,
                                 "start_us": 1e6 * (start - self._began)})
        entry.total_ms += ms
        entry.count += 1
        self._open.pop()
        if nvtx() is not None:
            nvtx().pop_range()
        return ms

    def ms(self, *path: str) -> float:
        """Total milliseconds of the range at this path: ms("trip", "kernel"), or of the one with this name."""
        fitting = [r for r in self._entries.values() if r.path == path or (len(path) == 1 and r.path[-1] == path[0])]
        if len(fitting) != 1:
            raise ValueError(f"{len(fitting)} ranges are called {' / '.join(path)!r}; there are "
                             f"{', '.join(' / '.join(entry) for entry in self._entries)}")
        return fitting[0].total_ms

    def events(self) -> list[dict]:
        """Return the ranges by start, for a time line: row, name, start_us (from the first range on) and us."""
        return sorted(self._events, key=lambda event: (event["start_us"], event["row"]))

    def to_json(self) -> list[dict]:
        return [{"path": list(one.path), "ms": one.total_ms, "count": one.count} for one in self._entries.values()]

    def table(self) -> dict:
        spec = table_of(self.to_json(), self.title, where())
        if not self.wait:
            spec["notes"].append("No range waits for the device.")
        return spec

    def result(self) -> dict:
        return {"kind": "ranges", "title": self.title}


def table_of(ranges: list[dict], title: str, where: str) -> dict:
    """Ranges as they were recorded, as a table, with their fractions of the total."""
    total_ms = sum(one["ms"] for one in ranges if len(one["path"]) == 1)
    rows = [[f"{one['ms'] / total_ms:.1%}" if total_ms else "-", number(one["ms"]), str(one["count"]),
             number(one["ms"] / max(one["count"], 1)), "\u2007\u2007" * (len(one["path"]) - 1) + one["path"][-1]]
            for one in ranges]
    return {"title": title, "columns": ["share", "ms", "times", "ms each", "range"], "rows": rows,
            "notes": [f"By the host's clock. {where}." if where else "By the host's clock."]}


class RecordedRanges(ResultTable):
    """Ranges that were recorded elsewhere, shown in the same way."""

    def __init__(self, ranges: list[dict], title: str, where: str = ""):
        self._ranges, self._title, self._where = ranges, title, where

    def table(self) -> dict:
        return table_of(self._ranges, self._title, self._where)

    def result(self) -> dict:
        return {"kind": "ranges", "title": self._title}
