"""A launch in plain Python that records every access: what `observe` runs."""

import ast
import sys

import numba
import numpy as np

from labkit.simt.arguments import host_view, tuple_like
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.errors import shown_index
from labkit.simt.interpreted_source import SPIN
from labkit.simt.interpreter import Interpreter
from labkit.simt.ir import Sync, integer_literal
from labkit.simt.observer.async_races import AsyncRaceDetector
from labkit.simt.observer.kept_launch import KeptLaunch
from labkit.simt.observer.memory_requests import RequestCounter
from labkit.simt.observer.races import RaceDetector
from labkit.simt.observer.report import KernelFinding, Report
from labkit.simt.observer.seen_arrays import Allocation, SeenArray, SeenLocal, address_of, owner_of
from labkit.simt.rewrite import rewrite
from labkit.simt.stubs import SHUFFLES
from labkit.simt.typed_arrays import typed_scalar
from labkit.simt.typed_numbers import is_undefined, undefined_of
from labkit.simt.undefined import ToTracked


def _same_memory(a, b):
    keys = ("data", "shape", "strides", "typestr")
    return all(a.__cuda_array_interface__[k] == b.__cuda_array_interface__[k] for k in keys)


class Observation(RaceDetector, AsyncRaceDetector, RequestCounter, Interpreter):
    """An observed launch: the interpreter, recording every access."""

    counts_branches, doing = True, "observed"

    def __init__(self, function, grid, block, shared_bytes, args, checks_division=False):
        program = rewrite(function, None, checks_division)
        if program.overloads:
            program = rewrite(function, tuple(numba.typeof(host_view(a)) for a in args), checks_division)
        super().__init__(program, grid, block, shared_bytes, args)
        self.function = function
        self.report = Report(self.program.name, self.program.filename, grid, block)
        self.memories, self.copies = {}, []
        self.negative_literals = None
        nodes = (n for s in self.program.body for n in ast.walk(s))
        if any(isinstance(n, Sync) and n.op in SHUFFLES for n in nodes):
            self.lowering = ToTracked
        self.undefined = {}  # thread: (line, op, lane) of its last shuffle of a lane that the mask leaves out
        self.unwritten = []  # (memory, address, finding) of reads of memory that nothing wrote
        self.start_races()
        self.start_async_races()
        self.start_requests()

    # ---------------- running

    def run(self):
        copies = self.copies
        bound = {n: self._argument(n, value) for n, value in zip(self.program.params, self.args, strict=True)}
        bodies = [self.program.body, *(device.body for device in self.program.devices.values())]
        nodes = [n for body in bodies for s in body for n in ast.walk(s)]
        self.shown = {n.id: n.shown for n in nodes if isinstance(n, ast.Name) and getattr(n, "shown", None)}
        self.report.launch = self._snapshot(bound)
        self._run_blocks(bound)
        for memory, address, finding in self.unwritten:
            if (memory, address) not in self.raced:  # a race already reports these
                self.report.uninitialized(finding, finding.array, finding.lines[0])
        self._count_requests()
        for device_array, host in copies:
            device_array.copy_to_device(host)
        return self.report

    def _snapshot(self, bound):
        """What the launch begins with, for Report.play."""
        return KeptLaunch(self.function, self.grid, self.block, self.shared_bytes, bound)

    def _argument(self, name, value):
        if isinstance(value, DeviceNDArray):
            array = value._array
        elif isinstance(value, np.ndarray):
            array = value
        elif hasattr(value, "copy_to_host"):  # numba.cuda's device array, on a GPU
            twin = next((host for original, host in self.copies if _same_memory(original, value)), None)
            array = value.copy_to_host() if twin is None else twin
            if twin is None:
                self.copies.append((value, array))
        elif isinstance(value, tuple):
            return tuple_like(value, (self._argument(f"{name}[{k}]", part) for k, part in enumerate(value)))
        else:
            return typed_scalar(value)
        owner = owner_of(array)
        if address_of(owner) not in self.memories:  # two arguments may be views of one allocation
            # the CPU device aligns its arrays as a GPU does; a host array counts as if it were copied to one
            base = address_of(owner) if isinstance(value, DeviceNDArray) else 0
            self.memories[address_of(owner)] = Allocation("global", owner, self._is_known(array), base)
        return SeenArray(self, self.memories[address_of(owner)], array, name)

    @staticmethod
    def _is_known(array):
        """For floats: which elements the host has written. Fresh memory of the CPU device is all 0xFF bytes."""
        if array.dtype.kind != "f" or not array.size:
            return True
        width = np.dtype(f"u{array.itemsize}")
        fresh = np.ascontiguousarray(array).view(width) == np.iinfo(width).max
        return not fresh.all()

    def _constant(self, name, array):
        data = array._array if isinstance(array, DeviceNDArray) else np.array(array)
        return SeenArray(self, Allocation("global", data, True), data, self.shown.get(name, name))

    @staticmethod
    def _atomic(op):
        return lambda a, i, value, extra=None: a.atomic(op, i, value, extra, sys._getframe(1))

    def _shared(self, declaration):
        array, address = self._shared_array(declaration)
        memory = Allocation("shared", array, False, address)
        if declaration.shape == (0,):  # several declarations are one memory
            memory = self.__dict__.setdefault("dynamic_memory", memory)
        return SeenArray(self, memory, array, declaration.name)

    def _local(self, name):
        return self._local_array(self.program.local[name])

    def _local_of_device(self, device, name):
        return self._local_array(next(a for a in self.program.devices[device].local if a.name == name))

    def _local_array(self, declaration):
        array = self._new_local(declaration)
        return SeenLocal(self, Allocation("local", array, True), array, declaration.name)

    def _ended(self, shared):
        self.__dict__.pop("dynamic_memory", None)
        for known in (self.in_flight, self.unfenced, self.unfenced_by, self.in_products):
            known.clear()
        for observed in shared:
            observed.memory.cells.clear()

    def passed_barrier(self, line):
        self.report.count("barriers", line)

    def _advance(self, thread):
        super()._advance(thread)
        if thread.request is not None and thread.request[0] != SPIN:
            self.report.used(thread.request[0])

    def passes_without(self, *absent):
        return False

    def stuck(self, kind, line, thread, op, sentence, lines=(), others=(), index=None, block=None):
        threads = [t.where for t in others] or ([thread.where] if thread else [])
        self.report.divergent_barriers.append(KernelFinding(
            "divergent_barrier", self.program.name, list(lines) or [line], threads,
            thread.block if thread else block, op, index, f"line {line}: {sentence}"))
        return []

    # ---------------- what intrinsics ask

    @staticmethod
    def raw(array):
        return array.array if isinstance(array, SeenArray) else Interpreter.raw(array)

    def address(self, array):
        return array.origin

    _placed = address

    def _array_name(self, array, frame):
        return array.name

    def _found(self, kind, observed, index, line, sentence):
        """A finding about what this thread does to an array."""
        thread = self.current
        return KernelFinding(kind, self.program.name, [line], [thread.where], thread.block, observed.name, tuple(index),
                             f"line {line}: {self.who(thread)} {sentence}")

    def _beyond(self, kind, name, array, i, count, line, frame):
        sentence = (f"{'reads' if kind == 'load' else 'writes'} elements {i} to {i + count - 1} of {array.name} with "
                    f"ptx.{name}, but its shape {array.shape} has {array.size:,} elements.")
        finding = self._found("out_of_bounds", array, (i,), line, sentence)
        self.report.outside(finding, array.name, line, writes=kind != "load")

    def widely(self, kind, name, observed, i, count, line, frame):
        """One request of the warp, as wide as its elements together; each of them is an access for races."""
        if kind == "copy":
            self.report.used(f"ptx.{name}")
        memory, kind = observed.memory, "store" if kind == "copy" else kind
        if name == "load_nc4":
            self._promised(observed, i, count, line)
        start = observed.origin + i * observed.itemsize
        self._request(kind, observed, start, line, frame, count * observed.itemsize)
        for k in range(count):
            address, index = start + k * observed.itemsize, np.unravel_index(i + k, observed.shape)
            index = tuple(map(int, index))
            self._race(kind, observed, address, index, line)
            if kind == "load":
                self._check_written(observed, address, index, line)
            elif not memory.known:
                memory.written.update(range(address, address + observed.itemsize))

    def filled(self, observed):
        if isinstance(observed, SeenLocal):
            observed.written[...] = True
            return
        observed.memory.written.update(range(observed.origin, observed.origin + observed.size * observed.itemsize))

    def filled_range(self, observed, start, size):
        self.report.used("ptx.tma_load_2d")  # which alone fills a range
        observed.memory.written.update(range(start, start + size))

    # ---------------- accesses

    def undefined_lane(self, op, thread, source, own):
        self.undefined[thread] = thread.request[1], op, source
        return undefined_of(super().undefined_lane(op, thread, source, own))

    def stored(self, observed, index, value, frame, does="stores an undefined value in {}"):
        """Report a store of an undefined value; one that nothing uses is no finding."""
        if self.undefined and is_undefined(value):
            self._uses_undefined(
                does.format(f"{observed.shown}[{shown_index(index)}]"), observed.name, index, frame.f_lineno
            )

    def undefined_index(self, observed):
        """Report an undefined index of an element that is read or written."""
        self._uses_undefined(f"uses an undefined index of {observed.shown}", observed.name, None, self._kernel_line())

    def _decide(self, test):
        """Report an undefined test that decides what this thread does."""
        if is_undefined(test):
            self._uses_undefined("branches on an undefined value", "", None, sys._getframe(1).f_lineno)
        return test

    def _uses_undefined(self, does, array, index, line):
        if not self.undefined:  # of memory that nothing wrote, which was reported where it was read
            return
        origin, op, lane = next(self.undefined[t] for t in (self.current, *self.undefined) if t in self.undefined)
        thread = self.current
        self.report.uninitialized(
            KernelFinding(
                "uninitialized_read", self.program.name, [line], [thread.where], thread.block, array, index,
                f"line {line}: {self.who(thread)} {does}: at line {origin} cuda.{op}() read lane {lane}, which its "
                "mask leaves out.",
            ),
            array, line,
        )  # fmt: skip

    def _kernel_line(self):
        frame = sys._getframe(1)
        while frame.f_globals is not self.functions:
            frame = frame.f_back
        return frame.f_lineno

    def access(self, kind, observed, address, index, frame):
        memory = observed.memory
        line = frame.f_lineno
        if memory.space != "local":
            self._request(kind, observed, address, line, frame, observed.itemsize)
            self._race(kind, observed, address, index, line)
        if kind != "store":
            self._check_written(observed, address, index, line)
        if kind != "load" and not memory.known:
            memory.written.update(range(address, address + observed.itemsize))

    def out_of_bounds(self, observed, index, frame, verb):
        parts, line = index if isinstance(index, tuple) else (index,), frame.f_lineno
        why = ": an unsigned number went below zero" if any(isinstance(p, int) and p >= 1 << 63 for p in parts) else ""
        sentence = f"{verb} {observed.shown}[{shown_index(parts)}], outside its shape {observed.shape}{why}."
        finding = self._found("out_of_bounds", observed, parts, line, sentence)
        self.report.outside(finding, observed.name, line, writes=verb != "reads")

    def wrapped(self, observed, index):
        """A negative index counts from the end, as in Numba: what an i - 1 at 0 seldom means. -1 in the source is."""
        line = self._kernel_line()
        negative = {part for part in index if not isinstance(part, slice) and part is not Ellipsis and part < 0}
        if negative <= self._negative_literals().get(line, set()):
            return
        sentence = (f"uses {observed.shown}[{shown_index(index)}]: a negative index counts from the end of the array, "
                    f"whose shape is {observed.shape}.")
        self.report.wrapped_index(self._found("warning", observed, index, line, sentence), observed.name, line)

    def _negative_literals(self):
        """{line: negative literals used there as an index}."""
        if self.negative_literals is None:
            self.negative_literals = {}
            for node in ast.walk(self.module):
                if isinstance(node, ast.Subscript):
                    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                    literals = set(map(integer_literal, parts))
                    self.negative_literals.setdefault(node.lineno, set()).update(literals)
        return self.negative_literals

    def unwritten_local(self, observed, index, line):
        address = observed.memory.start, index
        self.unwritten.append((observed.memory, address, self._uninitialized(observed, index, line)))

    def _check_written(self, observed, address, index, line):
        memory = observed.memory
        if not memory.known and address not in memory.written:
            self.unwritten.append((memory, address, self._uninitialized(observed, index, line)))

    def _uninitialized(self, observed, index, line):
        kinds = {"shared": "shared memory", "local": "an element of its local array", "global": "fresh device memory"}
        sentence = (f"reads {observed.shown}[{shown_index(index)}], {kinds[observed.memory.space]} that nothing has "
                    "written yet.")
        return self._found("uninitialized_read", observed, index, line, sentence)
