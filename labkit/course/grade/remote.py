"""Proxies for an answer in another process, in the form in which labkit.course.check takes kernels and functions.

A launch or a call sends its arguments there and writes the reply back into them; an exception there is raised here, as
data: its type's name, its text and its line. Replies hold no code, and everything is checked.
"""

from __future__ import annotations

import ast
import functools
import linecache
import math
import re
import sys
import types

import numpy as np

from labkit._common import paths
from labkit.course.check.limits import HostTimeout
from labkit.course.grade import wire
from labkit.course.grade.answers import Program, parsed
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.errors import PROBLEMS
from labkit.simt.observer.report import KernelFinding, Report
from labkit.simt.settings import current_order, time_limit_s

KINDS = {"race", "out_of_bounds", "divergent_barrier", "uninitialized_read"}
TEXT = 1_000  # characters of an error that are shown


class ProcessEnded(Exception):
    """The answer's process ended, or sent an invalid message."""


class Connection:
    """The connection to the process of a remote kernel or function. `job` may be None: then every request fails.
    server: serves device requests of a function, if it may make any."""

    def __init__(self, job, file: str, server=None):
        self.job, self.file, self.server = job, file, server
        if server is not None:
            server.connection = self
        self.late = self.broken = False
        self.why = ""  # its process ended by itself

    def ask(self, head: dict, values: dict) -> tuple[dict, dict]:
        if self.job is None or self.broken:
            raise ProcessEnded("its process had ended before")
        try:
            reply, changed = self.answer_until(head, values)
        except wire.Late:
            self.broken = self.late = True
            raise HostTimeout from None
        except wire.WireError as error:
            self.broken = True
            self.why = self._exit_reason(error)
            raise ProcessEnded(self.why) from None
        except HostTimeout:
            self.broken = self.late = True
            raise
        if "error" in reply:
            self.raise_here(reply["error"])
        return reply, changed

    def answer_until(self, head: dict, values: dict, end: str | None = None) -> tuple[dict, dict]:
        """Send a message and answer device requests until `end` is requested or a reply arrives."""
        reply, changed = self.job.ask(head, values)
        while "ask" in reply and reply["ask"] != end:
            if self.server is None:
                raise wire.WireError("it asks for a device, and gets none")
            reply, changed = self.job.ask(*self.server.reply(reply, changed))
        if end is not None and reply.get("ask") != end:
            raise wire.WireError("its process does something else in a capture")
        return reply, changed

    def raise_here(self, described) -> None:
        """Raise the error that the other side describes; one of the grader's device as it was there."""
        name = described.get("type") if isinstance(described, dict) else None
        if self.server is not None and name == "DeviceFault" and self.server.fault is not None:
            raise self.server.fault
        if self.server is not None and name == "NotGraded":
            self.server.refused = text_of(described.get("text", ""))[:300]
        raise_here(described, self.file)

    def _exit_reason(self, error) -> str:
        report = self.job.end()
        code = report.get("exit")
        if code == -24:
            return "its process used up its time"
        if isinstance(code, int) and code < 0:
            return f"its process was killed (signal {-code}): too much memory or time, or a crash"
        if "closed" in str(error):
            return "its process ended before it gave a result"
        return "what it gave back cannot be read"


def text_of(value) -> str:
    """A text from the other side: without control characters, and not too long."""
    shown = re.sub(r"[^\S\n]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", " ", str(value))
    for prefix in (paths.REPOSITORY, sys.prefix, sys.base_prefix):
        shown = shown.replace(f"{prefix}/", "")
    return shown if len(shown) <= TEXT else f"{shown[:TEXT]} ..."


def raise_here(described, file: str):
    """Raise the exception that was described, from the line of the answer where it was raised."""
    described = described if isinstance(described, dict) else {}
    name = described.get("type")
    name = name if isinstance(name, str) and name.isidentifier() and len(name) < 60 else "Exception"
    facts = _facts(described.get("facts"), file)
    if name == "OutOfBoundsError" and not {"array", "index", "shape", "thread", "block", "line"} <= facts.keys():
        name = "Exception"
    if name == "KernelTimeout" and not {"thread", "block", "line"} <= facts.keys():
        name = "Exception"
    if name == "HostTimeout":
        raise HostTimeout
    error = type(name, (Exception,), {})(text_of(described.get("text", "")))
    for key, value in facts.items():
        setattr(error, key, value)
    frames = described.get("frames")
    line = 0
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, list) and len(frame) == 2 and frame[0] == file and type(frame[1]) is int:
            line = frame[1]
    if not 0 < line < 100_000:
        raise error
    tree = ast.parse("raise error")
    ast.increment_lineno(tree, line - 1)
    exec(compile(tree, file, "exec"), {"error": error})  # three tokens of our own, at the answer's line


def _compile_facts(described: dict) -> dict:
    """The problem of a CompileError and its facts; {} where they are not those that PROBLEMS names."""
    problem, facts = described.get("problem"), described.get("facts")
    kinds = PROBLEMS.get(problem) if isinstance(problem, str) else None
    if kinds is None or not isinstance(facts, dict) or facts.keys() != kinds.keys():
        return {}
    found = {}
    for name, kind in kinds.items():
        value = facts[name]
        if kind is tuple and isinstance(value, list) and all(isinstance(one, str) for one in value[:20]):
            found[name] = tuple(text_of(one)[:200] for one in value[:20])
        elif kind is not tuple and type(value) is kind:
            found[name] = text_of(value)[:200] if kind is str else value
    return {"problem": problem, "facts": found} if found.keys() == kinds.keys() else {}


def _facts(described, file: str) -> dict:
    """Attributes of a kernel's fault, each of its type. A verdict quotes a line of the file that a fault names, so only
    the answer may be named, or a kernel of the library."""
    facts = {}
    for key, value in described.items() if isinstance(described, dict) else ():
        if key == "line" and type(value) is int and 0 <= value < 100_000:
            facts[key] = value
        elif key in ("array", "kernel") and isinstance(value, str):
            facts[key] = text_of(value)[:200]
        elif key == "sentence" and isinstance(value, str):
            facts[key] = text_of(value)[:400]
        elif key == "filename" and isinstance(value, str) and (
                value in (file, f"<above {file[1:]}") or value in _library_files()):
            facts[key] = value
        elif key in ("thread", "block", "index", "shape") and _whole_numbers(value):
            facts[key] = tuple(value)
    if isinstance(described, dict) and "problem" in described:
        unknown = {"kernel": "", "line": 0, "sentence": "", "problem": "", "facts": {}}
        facts = unknown | facts | _compile_facts(described)
    for key in ("thread", "block"):
        if key in facts and len(facts[key]) != 3:
            del facts[key]
    if not facts.get("index", (0,)):
        del facts["index"]
    return facts


@functools.cache
def _library_files() -> frozenset[str]:
    return frozenset(map(str, (paths.PACKAGE / "kernels").rglob("*.py")))


def _whole_numbers(value) -> bool:
    return isinstance(value, list) and len(value) <= 8 and all(
        type(each) is int and abs(each) < 1 << 63 for each in value)


# --- Answers -------------------------------------------------------------------------------------------------------


def answer_from(reply, program: Program, connection: Connection):
    """Return the proxy of the answer that the other side has defined, as check expects it."""
    defined, name = reply.get("defined"), text_of(reply.get("name", ""))[:80] or program.name
    if defined == "none" or not isinstance(defined, str):
        return None
    function = code_of(reply, program, connection.file)
    if defined == "kernel":
        return RemoteKernel(name, function, connection)
    if defined == "device":
        return _named("DeviceFunction", name=name, function=function)
    if defined == "configured":
        return _named("ConfiguredKernel", name=name)
    if defined == "function":
        return remote_function(name, function, connection)
    return _named(text_of(defined.removeprefix("a "))[:40] or "object", name=name)


def _named(type_name: str, *, name: str, function=None):
    instance = type(type_name, (), {"__repr__": lambda self: f"<{name}>"})()
    instance.__name__ = name
    if function is not None:
        instance.py_func = function
        type(instance).__getitem__ = lambda self, key: None
    return instance


def show_source(program: Program, file: str) -> None:
    """Let verdicts quote this answer's lines, and those of no answer before it."""
    for filename, text in ((file, program.answer), (f"<above {file[1:]}", program.above)):
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


def code_of(reply, program: Program, file: str):
    """The function of the answer, to be read and not to be called: its text compiled, without decorators or defaults.
    None of the student's statements runs."""
    line, name = reply.get("line"), reply.get("function")
    for filename, text in ((file, program.answer), (f"<above {file[1:]}", program.above)):
        tree = parsed(text)
        for node in ast.walk(tree) if tree else ():
            begin = min([node.lineno, *(d.lineno for d in node.decorator_list)]) if isinstance(
                node, ast.FunctionDef) else None
            if begin is None or node.name != name or begin != line or reply.get("file") != filename:
                continue
            arguments = node.args
            arguments.defaults, arguments.kw_defaults = [], [None] * len(arguments.kwonlyargs)
            node.decorator_list, node.returns = [], None
            for argument in ast.walk(arguments):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            code = compile(ast.Module([node], []), filename, "exec", dont_inherit=True)
            code_object = next(each for each in code.co_consts if isinstance(each, types.CodeType))
            if code_object.co_freevars:
                break
            return types.FunctionType(code_object.replace(co_firstlineno=begin), {}, node.name)
    return _unread(file)


def _unread(file: str):
    """A function of which no source is known, such as a lambda."""
    def unread(*arguments):
        raise ProcessEnded

    return types.FunctionType(unread.__code__.replace(co_filename=file, co_firstlineno=0), {}, "unread")


class RemoteKernel:
    """A kernel that is launched elsewhere."""

    def __init__(self, name: str, py_func, connection: Connection):
        self.__name__, self.py_func, self.connection = name, py_func, connection

    options = {}  # as a Kernel has: launch_bounds are checked there

    def __getitem__(self, configuration):
        return RemoteLaunch(self, tuple(configuration))

    def run_on(self, configuration: tuple, arguments) -> None:
        """Run it on arrays of the device of this process, which may overlap."""
        _run_on(self.connection, {"do": "launch on", **_settings()}, {"configuration": configuration}, arguments)

    def __repr__(self):
        return f"<kernel {self.__name__}>"


class RemoteTiles:
    """A tile program that is launched elsewhere."""

    def __init__(self, name: str, connection: Connection):
        self.__name__, self.connection = name, connection

    def run_on(self, grid: tuple, arguments) -> None:
        _run_on(self.connection, {"do": "tiles on", **_settings()}, {"grid": grid}, arguments)


def _run_on(connection: Connection, head: dict, values: dict, arguments) -> None:
    from numba.core import event

    described, buffers, begins = with_memory(arguments)
    # Not the function's own time: the kernel is compiled there, and has a limit there.
    with event.trigger_event("numba:compile"):
        _, changed = connection.ask(head, {**values, "arguments": tuple(described), "buffers": tuple(buffers),
                                           "begins": tuple(begins)})
    for key, value in changed.items():
        kind, _, index = key.partition(" ")
        targets = {"buffer": buffers, "argument": described}.get(kind, ())
        target = targets[int(index)] if index.isdigit() and int(index) < len(targets) else None
        if not isinstance(target, np.ndarray) or not isinstance(value, np.ndarray) or (
                value.shape != target.shape or value.dtype != target.dtype):
            raise ProcessEnded("it gave back another array than it got")
        target[...] = value


class RemoteLaunch:
    """kernel[grid, block], launched or observed elsewhere."""

    def __init__(self, kernel: RemoteKernel, configuration: tuple):
        self.kernel, self.configuration = kernel, _plain(configuration)

    def __call__(self, *arguments) -> None:
        sent, device = _sent(arguments)
        _, changed = self.kernel.connection.ask({"do": "launch", "device": device, **_settings()},
                                                {"configuration": self.configuration, "arguments": sent})
        _put_back(arguments, sent, changed)

    def observe(self, *arguments) -> Report:
        sent, _ = _sent(arguments)
        reply, changed = self.kernel.connection.ask({"do": "observe", **_settings()},
                                                    {"configuration": self.configuration, "arguments": sent})
        _put_back(arguments, sent, changed)
        return report_from(reply.get("report"), self.kernel)


def with_memory(arguments) -> tuple[list, list, list]:
    """(the arguments, each array of the device as [buffer, offset, shape, strides, dtype]; the buffers' bytes; where
    each buffer begins, modulo 256). Arrays that overlap here overlap there."""
    roots: dict[int, int] = {}
    buffers: list[np.ndarray] = []

    def describe(value):
        if isinstance(value, tuple):
            return tuple(map(describe, value))
        if not isinstance(value, DeviceNDArray):
            return value
        array = value._array
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        begin = root.__array_interface__["data"][0]
        if begin not in roots:
            roots[begin] = len(buffers)
            flat = root if root.flags.c_contiguous else root.T
            buffers.append(np.ndarray(root.nbytes, np.uint8, flat))
        offset = array.__array_interface__["data"][0] - begin if array.size else 0
        return ["array", roots[begin], offset, list(array.shape), list(array.strides), array.dtype.str]

    described = [describe(value) for value in arguments]
    return described, buffers, [begin % 256 for begin in roots]


def remote_function(name: str, code, connection: Connection):
    """A function that is called elsewhere."""
    def call(*arguments):
        server = connection.server
        if server is None:
            sent, device = _sent(arguments)
        else:  # it gets its device arrays by their numbers: what they hold stays here
            known: dict[int, dict] = {}
            device = [known.setdefault(id(value), server.describe(value)) if hasattr(value, "copy_to_host") else None
                      for value in arguments]
            sent = tuple(value if number is None else None for value, number in zip(arguments, device, strict=True))
        reply, changed = connection.ask({"do": "call", "device": device, **_settings()}, {"arguments": sent})
        if server is not None and "returned" in reply:
            return server.array(reply["returned"])
        value = changed.pop("value", None)
        _put_back(arguments, sent, changed)
        return _of_type(reply) if "opaque" in reply else value

    return RemoteFunction(name, code, call)


def _of_type(reply: dict):
    """Something of the type that the function returned, which cannot be sent."""
    shown = text_of(reply["opaque"])
    return type(shown if shown.isidentifier() else "object", (), {})()


class RemoteFunction:
    """Callable, with the source of the answer where check looks for it."""

    def __init__(self, name: str, code, call):
        self.__name__, self.__wrapped__, self._call = name, code, call
        self.__code__ = code.__code__

    def __call__(self, *arguments):
        return self._call(*arguments)


def _settings() -> dict:
    return {"order": current_order(), "limit": time_limit_s()}


def _plain(value):
    if isinstance(value, tuple | list):
        return tuple(_plain(each) for each in value)
    return value.item() if isinstance(value, np.generic) else value


def _sent(arguments) -> tuple[tuple, list[bool]]:
    """(the arguments as they are sent, which of them are arrays on the device)."""
    device = [hasattr(value, "copy_to_host") for value in arguments]
    return tuple(value.copy_to_host() if on_device else value
                 for value, on_device in zip(arguments, device, strict=True)), device


def _put_back(arguments, sent, changed: dict) -> None:
    for key, value in changed.items():
        index = int(key) if key.isdigit() and len(key) < 4 else len(arguments)
        if index >= len(arguments) or not isinstance(sent[index], np.ndarray):
            raise ProcessEnded("it gave back an argument that there is not")
        original = sent[index]
        if not isinstance(value, np.ndarray) or value.shape != original.shape or value.dtype != original.dtype:
            raise ProcessEnded("it gave back an array of another shape or type")
        target = arguments[index]
        if hasattr(target, "copy_to_device"):
            target.copy_to_device(np.asarray(value, order="F" if not original.flags.c_contiguous else "C"))
        else:
            target[...] = value


def report_from(described, kernel: RemoteKernel) -> Report:
    """An observation, rebuilt from what its process sent. ProcessEnded where it is none."""
    try:
        report = Report(kernel.__name__, kernel.connection.file, tuple(described["grid"]), tuple(described["block"]))
        for name in wire.FINDINGS:
            for finding in described[name]:
                if finding["kind"] not in KINDS:
                    raise ValueError
                index = finding["index"]
                getattr(report, name).append(KernelFinding(
                    finding["kind"], kernel.__name__, [int(line) for line in finding["lines"]],
                    [tuple(thread) for thread in finding["threads"]], finding["block"], text_of(finding["array"]),
                    tuple(index) if isinstance(index, list) else index, text_of(finding["sentence"]),
                    int(finding["times"]), tuple(map(text_of, finding["accesses"])), text_of(finding["advice"]),
                    bool(finding["barrier"]), text_of(finding["one_warp"])))
        counts = described["counts"]
        lines = dict(described["lines"])
        for table in (counts, *lines.values()):
            if not all(isinstance(value, int | float) and math.isfinite(value) for value in table.values()):
                raise ValueError
        report.counts, report.lines = dict(counts), lines
        report.instructions = {text_of(name): int(times) for name, times in described["instructions"].items()}
        report.arrays = {text_of(name): (int(start), tuple(map(int, shape)), int(itemsize))
                         for name, (start, shape, itemsize) in described["arrays"]}
        for name, space, thread, address, kinds in described["touched"]:
            cells = report.touched.setdefault((text_of(name), text_of(space)), {})
            cells[int(thread), int(address)] = set(map(text_of, kinds))
        return report
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ProcessEnded("what was observed of it cannot be read") from None


def observe(launch, *arguments):
    """labkit.observe, for launches here and elsewhere."""
    if isinstance(launch, RemoteLaunch):
        return launch.observe(*arguments)
    from labkit.simt import observe as observe_here

    return observe_here(launch, *arguments)
