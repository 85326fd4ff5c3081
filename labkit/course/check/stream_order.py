"""Which launches and copies of a run are ordered: by their stream, by an event, or since the host waited.

The CPU device does everything in the order of the calls, so a race between streams never shows in a result. Here each
piece of work gets a vector clock: what it may rely on having happened. Two that touch the same bytes, one of them
writing, and that are not ordered are a race.

CUDA's rules: work of one stream is in order. Work on the default stream (legacy) waits for all work of other streams
that was enqueued earlier, and work enqueued on them later waits for it. event.record and event.wait carry the order
from one stream to another; work the host waited for (synchronize, a copy without a stream) precedes all that it
enqueues from then on.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field

import numpy as np

from labkit.course.check.sources import sources_of

DEFAULT = (0, 1)  # handles of the legacy default stream
MOST = 4_000  # pieces of work that are compared; a run with more of them says enough with these


@dataclass(frozen=True)
class Touched:
    """An array that is read or written. part: what decides which of its elements, such as an offset that a launch is
    given; () where all of them are."""

    array: np.ndarray
    written: bool
    part: tuple = ()


@dataclass(frozen=True)
class Work:
    """A launch or a copy. stamp: its number on its stream."""

    label: str
    stream: int
    stamp: int
    touched: tuple[Touched, ...]


@dataclass
class StreamOrder:
    """Everything that a run gave to streams, in the order of its calls."""

    host: dict[int, int] = field(default_factory=dict)  # stream: what of it the host has waited for
    streams: dict[int, dict[int, int]] = field(default_factory=dict)  # stream: what its next work may rely on
    events: dict[int, tuple] = field(default_factory=dict)  # id: (the event, its clock)
    work: list[Work] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)  # sentences
    conflicts: list[tuple] = field(default_factory=list)  # of each: what the first work is, the second, what they do
    known: dict[tuple, tuple] = field(default_factory=dict)  # what _stored_to and _in_parts say of a kernel

    def launch(self, kernel, args, stream: int, grid: tuple = (), in_graph: bool = False) -> None:
        params = list(inspect.signature(kernel.py_func).parameters)
        integers = {name: int(value) for name, value in zip(params, args, strict=False)
                    if isinstance(value, (int, np.integer)) and not isinstance(value, bool)}
        if (kernel, *integers) not in self.known:
            self.known[kernel, *integers] = _stored_to(kernel), _in_parts(kernel, set(integers))
        written, parts = self.known[kernel, *integers]
        part = (kernel.__name__, grid, *integers.items())
        touched = [Touched(memory, name in written, part if name in parts else ())
                   for name, value in zip(params, args, strict=False) if (memory := _memory(value)) is not None]
        self._add(f"the launch of `{kernel.__name__}`" + " in a graph" * in_graph, stream, touched)

    def copy(self, label: str, stream: int, reads, writes) -> None:
        accesses = [Touched(memory, written) for value, written in ((reads, False), (writes, True))
                    if (memory := _memory(value)) is not None]
        self._add(label, stream, accesses)
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

    def _add(self, label: str, stream: int, touched: list) -> None:
        clock, stream = self._begin(stream), 0 if stream in DEFAULT else stream
        stamp = clock.get(stream, 0) + 1
        for earlier in self.work[-MOST:] if self.streams.keys() - {stream} else ():
            if earlier.stream != stream and clock.get(earlier.stream, 0) < earlier.stamp and (
                    verbs := _conflict(earlier.touched, touched)):
                conflict = f"the first {verbs[0]} them and the second {verbs[1]} them"
                self.unordered.append(self._sentence(earlier, label, stream, conflict))
                self.conflicts.append((earlier.label.partition(" of ")[0], label.partition(" of ")[0], *verbs))
                break
        clock[stream] = stamp
        self.work.append(Work(label, stream, stamp, tuple(touched)))

    def _sentence(self, earlier: Work, label: str, stream: int, conflict: str) -> str:
        first, second = self._stream_name(earlier.stream), self._stream_name(stream)
        opening = f"{earlier.label[:1].upper()}{earlier.label[1:]} on {first} and {label} on {second}"
        return (f"{opening} touch the same bytes: {conflict}. Nothing orders the two, so on a GPU they may run at "
                f"the same time, or the second may run first. Put both on one stream; or record an event on {first} "
                f"after the first, and make {second} wait for it; or give each stream separate memory.")

    def _stream_name(self, stream: int) -> str:
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


def _conflict(earlier: tuple, later: list) -> tuple[str, ...]:
    """What each of the two does to bytes of both, a verb for each; () where no byte is shared, or both only read."""
    for first in earlier:
        for second in later:
            if (first.written or second.written) and np.may_share_memory(first.array, second.array) and (
                    _share(first, second)):
                return tuple("writes" if each.written else "reads" for each in (first, second))
    return ()


def _share(first: Touched, second: Touched) -> bool:
    if first.part and second.part:  # the same part surely, and another one perhaps not
        return first.part == second.part and _bounds(first.array) == _bounds(second.array)
    if first.part or second.part:
        part, full = (first, second) if first.part else (second, first)
        (low, high), (begin, end) = _bounds(part.array), _bounds(full.array)
        return begin <= low and high <= end and full.array.nbytes == end - begin
    try:
        return bool(np.shares_memory(first.array, second.array, max_work=10_000))
    except np.exceptions.TooHardError:
        return False


def _bounds(array: np.ndarray) -> tuple[int, int]:
    return np.lib.array_utils.byte_bounds(array)


# --- What a kernel does to its arrays, from its source ---------------------------------------------------------------


def _stored_to(kernel) -> set[str]:
    """The parameters of a kernel that it, or what it calls, may store to, under whatever name."""
    sources = sources_of(kernel)
    stored: dict[str, set[str]] = {name: set() for name in sources}
    for _ in sources:
        for name, source in sources.items():
            names_of = _aliases(source.tree)
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                    stored[name] |= _bases(node, names_of)
                elif isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    argument_bases = [_bases(argument, names_of) for argument in node.args]
                    if ".atomic." in called:
                        stored[name].update(*argument_bases[:1])
                    elif called in sources:
                        parameters = (parameter.arg for parameter in _definition(sources[called].tree).args.args)
                        stored[name].update(*(
                            bases for bases, parameter in zip(argument_bases, parameters, strict=False)
                            if parameter in stored[called]))
    return stored.get(kernel.__name__, set())


def _in_parts(kernel, integer_parameters: set[str]) -> set[str]:
    """Return the arrays for which these integer parameters may select the part a kernel touches: they are in an index,
    or are passed to a function together with the array. If they only bound a loop or a guard, as a length does,
    the kernel still starts at the first element."""
    source = sources_of(kernel).get(kernel.__name__)
    if source is None or not integer_parameters:
        return set()
    names_of, offsets = _aliases(source.tree), set(integer_parameters)
    for _ in range(3):  # an offset of an offset of an offset
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.Assign, ast.AugAssign)) and _names(node.value) & offsets:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                offsets |= {each.id for target in targets for each in ast.walk(target)
                            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
            elif isinstance(node, ast.For) and isinstance(node.target, ast.Name) and _begins_with(node.iter, offsets):
                offsets.add(node.target.id)
    arrays: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Subscript) and _names(node.slice) & offsets:
            arrays |= _bases(node, names_of)
        elif isinstance(node, ast.Call) and any(_names(argument) & offsets for argument in node.args):
            arrays.update(*(_bases(argument, names_of) for argument in node.args))
    return arrays


def _begins_with(loop: ast.AST, offsets: set[str]) -> bool:
    """Whether a range begins at, or steps by, one of these; where it ends says nothing of where it begins."""
    if not (isinstance(loop, ast.Call) and ast.unparse(loop.func) == "range"):
        return bool(_names(loop) & offsets)
    return len(loop.args) > 1 and any(_names(argument) & offsets for argument in (loop.args[0], *loop.args[2:]))


def _aliases(tree: ast.AST) -> dict[str, set[str]]:
    """For each variable the names of the arrays that it may be, or may be a row of: `row = out[b]`."""
    aliases: dict[str, set[str]] = {}
    for _ in range(3):
        for node in ast.walk(tree):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = zip(target.elts, node.value.elts, strict=False) if both else [(target, node.value)]
                for name, value in pairs:
                    if isinstance(name, ast.Name):
                        aliases.setdefault(name.id, {name.id}).update(_bases(value, aliases))
    return aliases


def _bases(node: ast.AST, names_of: dict[str, set[str]]) -> set[str]:
    """The names of the arrays of which this is a part, a view, or the whole."""
    if isinstance(node, ast.IfExp):
        return _bases(node.body, names_of) | _bases(node.orelse, names_of)
    while isinstance(node, (ast.Subscript, ast.Attribute)) or (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):  # x.reshape(...)
        node = node.func if isinstance(node, ast.Call) else node.value
    return names_of.get(node.id, {node.id}) if isinstance(node, ast.Name) else set()


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _definition(tree: ast.AST) -> ast.FunctionDef:
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
