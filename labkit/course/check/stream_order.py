"""Which launches and copies of a run are ordered: by their stream, by an event, or since the host waited.

The CPU device does everything in the order of the calls, so a race between streams never shows in a result. Here each
piece of work gets a vector clock: what it may rely on having happened. Two that touch the same bytes, one of them
writing, and that are not ordered are a race.

CUDA's rules: work of one stream is in order. Work on the default stream (legacy) waits for all work of other streams
that was given before, and what is given to them afterwards waits for it. event.record and event.wait carry the order
from one stream to another; what the host waited for (synchronize, a copy without a stream) comes before all it gives
out from then on.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field

import numpy as np

from labkit.course.check.complaints import sources_of

DEFAULT = (0, 1)  # handles of the legacy default stream
MOST = 4_000  # pieces of work that are compared; a run with more of them says enough with these


@dataclass(frozen=True)
class Work:
    """A launch or a copy. stamp: its number on its stream; touched: of (array, written)."""

    what: str
    stream: int
    stamp: int
    touched: tuple


@dataclass
class StreamOrder:
    """Everything that a run gave to streams, in the order of its calls."""

    host: dict[int, int] = field(default_factory=dict)  # stream: what of it the host has waited for
    streams: dict[int, dict[int, int]] = field(default_factory=dict)  # stream: what its next work may rely on
    events: dict[int, tuple] = field(default_factory=dict)  # id: (the event, its clock)
    work: list[Work] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)  # sentences

    def launch(self, kernel, args, stream: int) -> None:
        written = _written(kernel)
        params = inspect.signature(kernel.py_func).parameters
        touched = [(memory, name in written) for name, value in zip(params, args, strict=False)
                   if (memory := _memory(value)) is not None]
        if any(isinstance(value, (int, np.integer)) for value in args):  # which may say what part is touched
            touched = []
        self._add(f"the launch of `{kernel.__name__}`", stream, touched)

    def copy(self, what: str, stream: int, reads, writes) -> None:
        found = [(memory, written) for value, written in ((reads, False), (writes, True))
                 if (memory := _memory(value)) is not None]
        self._add(what, stream, found)
        if stream in DEFAULT:  # such a copy returns when it is done
            self.wait(stream)

    def wait(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for all of them."""
        for each in list(self.streams) if stream is None or stream in DEFAULT else [stream]:
            _merge(self.host, self._clock(each))

    def record(self, event, stream: int) -> None:
        self.events[id(event)] = event, dict(self._begin(stream))

    def wait_for(self, event, stream: int | None = None) -> None:
        """A stream waits for an event, or the host (None)."""
        _, clock = self.events.get(id(event), (event, {}))
        _merge(self.host if stream is None else self._clock(stream), clock)

    def _clock(self, stream: int) -> dict[int, int]:
        return self.streams.setdefault(0 if stream in DEFAULT else stream, {})

    def _begin(self, stream: int) -> dict[int, int]:
        """What work that is given to this stream now may rely on."""
        clock = self._clock(stream)
        _merge(clock, self.host)
        for other in list(self.streams.values()) if stream in DEFAULT else [self._clock(0)]:
            _merge(clock, other)
        return clock

    def _add(self, what: str, stream: int, touched: list) -> None:
        clock, stream = self._begin(stream), 0 if stream in DEFAULT else stream
        stamp = clock.get(stream, 0) + 1
        for before in self.work[-MOST:]:
            if before.stream != stream and clock.get(before.stream, 0) < before.stamp and (
                    shared := _conflict(before.touched, touched)):
                self.unordered.append(self._sentence(before, what, stream, shared))
                break
        clock[stream] = stamp
        self.work.append(Work(what, stream, stamp, tuple(touched)))

    def _sentence(self, before: Work, what: str, stream: int, shared: str) -> str:
        first, second = self._named(before.stream), self._named(stream)
        same = f"{before.what[:1].upper()}{before.what[1:]} on {first} and {what} on {second}"
        return (f"{same} touch the same bytes: {shared}. Nothing orders the two, and on a GPU they may run at the same "
                f"time, or the second first. Put both on one stream, or record an event on {first} after the first, "
                f"and let {second} wait for it; or give each stream memory of its own.")

    def _named(self, stream: int) -> str:
        if stream in DEFAULT:
            return "the default stream"
        order = list(dict.fromkeys(each.stream for each in self.work if each.stream not in DEFAULT))
        return f"stream {(order.index(stream) if stream in order else len(order)) + 1}"


def _merge(clock: dict[int, int], other: dict[int, int]) -> None:
    for stream, stamp in list(other.items()):
        clock[stream] = max(clock.get(stream, 0), stamp)


def _memory(value) -> np.ndarray | None:
    """The memory of an array of the device, or of a host array; both are memory of this process."""
    array = getattr(value, "_array", value)
    return array if isinstance(array, np.ndarray) and array.size else None


def _conflict(before: tuple, after: list) -> str:
    """What both do to the same bytes, in words; "" where no byte is shared, or both only read."""
    for first, first_writes in before:
        for second, second_writes in after:
            if (first_writes or second_writes) and np.may_share_memory(first, second) and _share(first, second):
                verbs = [("writes" if writes else "reads") for writes in (first_writes, second_writes)]
                return f"the first {verbs[0]} them and the second {verbs[1]} them"
    return ""


def _share(first: np.ndarray, second: np.ndarray) -> bool:
    try:
        return bool(np.shares_memory(first, second, max_work=10_000))
    except np.exceptions.TooHardError:
        return False


def _written(kernel) -> set[str]:
    """The parameters of a kernel that it, or what it calls, may store to."""
    sources = sources_of(kernel)
    found: dict[str, set[str]] = {name: set() for name in sources}
    for _ in sources:
        for name, source in sources.items():
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                    found[name].add(_base(node))
                elif isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    names = [_base(argument) for argument in node.args]
                    if ".atomic." in called:
                        found[name].update(names[:1])
                    elif called in sources:
                        definition = next(each for each in ast.walk(sources[called].tree)
                                          if isinstance(each, ast.FunctionDef))
                        found[name].update(given for given, parameter in
                                           zip(names, definition.args.args, strict=False)
                                           if parameter.arg in found[called])
    return found.get(kernel.__name__, set())


def _base(node: ast.AST) -> str:
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
