"""Run a kernel in plain Python: each thread is a generator over the kernel's tree, and yields where it waits.

Two runs are made of this: `observe` (observer/), which records every access, and launches whose threads wait for one
another in loops of their own: at mbarriers (with wgmma, TMA), or for a flag in memory (spins.py). Those cannot be
compiled into loops over the threads of a block; and what wgmma and TMA do in one instruction is a product or a copy of
a whole tile, which NumPy does at once. A thread that polls a flag yields to the others after each read; while all
threads of a block poll, the next blocks run.

Work    about 1 us for each operation of each thread
Numbers integers are Python's, floats are NumPy scalars of their dtype, so float32 stays float32
"""

import ast
import copy
import re
import sys
import time
import zlib

import numpy as np
from numba.np import numpy_support

from labkit.simt import faults, settings
from labkit.simt.arguments import tuple_like
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.errors import (
    ArgumentError,
    BarrierError,
    DeadlockError,
    KernelAssertionError,
    KernelError,
    KernelTimeout,
    KernelTypeError,
    KernelValueError,
    MisalignedError,
    OutOfBoundsError,
    WarpError,
    class_raised,
    coordinates,
    failure_sentence,
    file_label,
    raised_error,
    short_position,
)
from labkit.simt.interpreted_source import SPIN, ToPython, python_module
from labkit.simt.interpreted_values import FUNCTIONS, dtype_of, new_value
from labkit.simt.ir import ID_NAMES, DtypeOf
from labkit.simt.numba_report import problem_of
from labkit.simt.overloads import InterpretedIntrinsic, is_intrinsic
from labkit.simt.ptx_interpreted.intrinsics import Intrinsics
from labkit.simt.ptx_interpreted.under_way import WINDOW, Block, Pending
from labkit.simt.scheduler import Scheduler
from labkit.simt.typed_arrays import as_typed_array, typed_scalar
from labkit.simt.typed_numbers import UNDEFINED
from labkit.simt.typed_tree import type_of_value, with_types


def _round_up(n, unit):
    return -(-n // unit) * unit


class Thread:
    """The state of one thread. `epoch` counts its block's barriers, `warp_epoch` its warp's, `grid_epoch` all."""

    __slots__ = ("block", "commits", "copies", "done", "epoch", "generator", "grid_epoch", "linear", "occurrence",
                 "reply", "request", "step", "stores", "visited", "warp", "warp_epoch", "where")  # fmt: skip

    def __init__(self, linear, block, where):
        self.linear, self.block, self.where = linear, block, where
        self.warp = (block, linear // 32)
        self.epoch = self.warp_epoch = self.grid_epoch = 0
        self.occurrence, self.request, self.reply, self.done = {}, None, None, False
        self.step, self.visited = 0, {}  # its last access; line: (epochs, step, again)
        self.copies, self.stores, self.commits = Pending(), Pending(), 0  # cp.async; TMA stores; groups of wgmma


def shared_bytes(program):
    """Bytes of a program's shared arrays but dynamic ones; 8 an element where an argument gives the dtype."""
    arrays = [a for a in program.shared.values() if a.shape != (0,)]
    sizes = [8 if isinstance(a.dtype, DtypeOf) else dtype_of(a.dtype).itemsize for a in arrays]
    return sum(int(np.prod(a.shape)) * size for a, size in zip(arrays, sizes, strict=True))


class Interpreter:
    """A launch in plain Python. Faults are raised."""

    counts_branches = marks_statements = False
    lowering = ToPython

    def __init__(self, program, grid, block, shared_bytes, args):
        self.program, self.args = program, args
        self.grid, self.block = grid, block
        self.threads = block[0] * block[1] * block[2]
        self.blocks = grid[0] * grid[1] * grid[2]
        self.shared_bytes = shared_bytes
        params = self.program.params
        if len(args) != len(params):
            raise ArgumentError(
                f"{self.program.name} takes {len(params)} arguments ({', '.join(params)}), {len(args)} given"
            )
        self.current, self.state, self.deadline, self.ticks, self.max_ticks = None, None, None, 0, None
        self.intrinsics, self.scheduler = Intrinsics(self), Scheduler(self)
        self.warning = ""  # of the first barrier that was passed without threads that have returned
        self.windows = []  # shared memory of the blocks in flight
        self._lay_out_shared()

    def _lay_out_shared(self):
        """Assign each shared array its offset in the window; dynamic ones share one offset, after the others."""
        offset, self.offsets, dynamic = 0, {}, 16
        for array in self.program.shared.values():
            if array.shape == (0,):
                dynamic = max(dynamic, array.alignment)
                continue
            offset = self.offsets[array.name] = _round_up(offset, array.alignment)
            offset += int(np.prod(array.shape)) * self._dtype(array).itemsize
        self.dynamic_offset = _round_up(offset, dynamic)
        self.window_bytes = self.dynamic_offset + self.shared_bytes

    # ---------------- running

    def run(self):
        self._run_blocks({n: self._argument(n, v) for n, v in zip(self.program.params, self.args, strict=True)})

    def _run_blocks(self, bound):
        for name, array in self.program.constants.items():
            bound[name] = self._constant(name, array)
        self.make_thread, self.functions = self._compile(bound)
        self.bound, self.max_ticks = bound, settings.step_limit_now()
        self._start_clock()
        with np.errstate(all="ignore"):
            if self.program.cooperative:
                self._run_together([self._block(b) for b in range(self.blocks)])
            else:
                self._run_in_turn(self._block(b) for b in self._in_order(range(self.blocks)))

    def _start_clock(self):
        self.limit = settings.time_limit_s() if self.max_ticks is None else 0
        self.deadline = time.thread_time() + self.limit if self.limit else None

    def _argument(self, name, value):
        if isinstance(value, DeviceNDArray):
            value = value._array
        if isinstance(value, np.ndarray):
            return as_typed_array(value)
        if isinstance(value, tuple):
            return tuple_like(value, (self._argument(f"{name}[{k}]", part) for k, part in enumerate(value)))
        return typed_scalar(value)

    def _constant(self, name, array):
        return as_typed_array(array._array if isinstance(array, DeviceNDArray) else np.array(array))

    @staticmethod
    def _in_order(items):
        """Order items by `thread_order`; reports do not depend on it, results of a wrong kernel may."""
        order = settings.current_order()
        if order == "scattered":
            return sorted(items, key=lambda x: (x if isinstance(x, int) else x.linear) * 40503 % 65521)
        return reversed(items) if order == "reverse" else items

    def _run_in_turn(self, blocks):
        """One block after the other. While all threads of a block wait for a change of memory, the next ones run."""
        waiting = []
        for block in blocks:
            waiting = [b for b in (*waiting, block) if next(b, None) is not None]
            self._start_clock()
        while waiting:
            waiting = [b for b in waiting if next(b, None) is not None]

    def memory_digest(self):
        """What the launch's arrays hold: global memory, and shared memory of the blocks in flight."""
        arrays = [self.raw(part) for value in self.bound.values() for part in _parts(value)]
        digest = 0
        for array in (*arrays, *self.windows):
            digest = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), digest)
        return digest

    @property
    def blocks_in_flight(self):
        return len(self.windows)

    def _run_together(self, blocks):
        """A cooperative launch: every block up to the grid barrier, then every block again."""
        waiting = list(enumerate(blocks))
        while waiting:
            arrived = self._next_barriers(waiting)
            lines = sorted({line for _, line in arrived if line is not None})
            ended = [b for b, line in arrived if line is None]
            if lines and ended:
                b = ended[0]
                self.stuck(
                    "grid", lines[0], None, "grid_sync",
                    f"cg.this_grid().sync() was reached by {len(waiting) - len(ended)} of the {len(waiting)} blocks; "
                    f"{self.block_name(b)} has ended without it. Every thread of the grid must reach it.",
                    lines, [], block=b,
                )  # fmt: skip
                return
            if not lines:
                return

    @staticmethod
    def _next_barriers(waiting):
        """[(block, the line of the grid barrier that it has reached, or None at its end)]."""
        arrived, going = {}, waiting
        while going:
            arrived.update((b, next(block, None)) for b, block in going)
            going = [(b, block) for b, block in going if arrived[b] == SPIN]
        return list(arrived.items())

    def _compile(self, bound):
        """A function that starts a thread's generator, given the thread's indices and the block's shared arrays."""
        inputs = {name: type_of_value(value) for name, value in bound.items()}
        self.program = p = with_types(self.program, inputs)
        self.module, labels = python_module(p, self.counts_branches, self.marks_statements, self.lowering)
        namespace = {
            **FUNCTIONS,
            **bound,
            **{n: InterpretedIntrinsic(o) if is_intrinsic(o) else o for n, o in p.objects.items()},
            "_tick": self._tick,
            "_local": self._local,
            "_local_of_device": self._local_of_device,
            "_poison": lambda array: None,
            "_fence": self.fence,
            "_assertion": self._assertion,
            "_divisor": self._divisor,
            "_id": self._id,
            **self.intrinsics.namespace(),
        }
        for op in ("add", "sub", "max", "min", "nanmax", "nanmin", "and_", "or_", "xor", "exch", "inc", "dec", "cas"):
            namespace[f"_atomic_{op}"] = self._atomic(op)
        if self.counts_branches:
            namespace.update(_branch=self._branch, _decide=self._decide)
        for label in labels:
            namespace[f"_Leave{label}"] = type(f"_Leave{label}", (Exception,), {})
        exec(compile(self.module, p.filename, "exec"), namespace)
        make = namespace[p.name]
        inputs = [bound[name] for name in p.params]
        return (lambda ids, t, b, shared: make(*ids, t, b, *shared, *inputs)), namespace

    def _atomic(self, op):
        def operation(array, index, value, extra=None):
            old = array[index]
            array[index] = new_value(op, old, value, extra)
            return old

        return operation

    def _id(self, name):
        return self.ids[self.current.linear][name]

    def _assertion(self, kind, text):
        line = sys._getframe(1).f_lineno
        raised = raised_error(class_raised(kind, self.program.exceptions))
        self._raise(raised, line, failure_sentence(self._spot(), kind, text))

    def _divisor(self, value):
        if isinstance(value, (int, float, np.floating)) and value == 0:
            line, kind = sys._getframe(1).f_lineno, "ZeroDivisionError"
            self._raise(raised_error(ZeroDivisionError), line, failure_sentence(self._spot(), kind, "division by zero"))
        return value

    def _tick(self):
        self.ticks += 1
        late = self.deadline and self.ticks % 4096 == 0 and time.thread_time() > self.deadline
        if late or (self.max_ticks is not None and self.ticks > self.max_ticks):
            line = sys._getframe(1).f_lineno
            spent = f"{self.limit:g} s in which no block ended" if late else f"{self.ticks:,} loop iterations"
            hint = " LABKIT_TIME_LIMIT sets the limit in seconds" if late else ""
            raise KernelTimeout(
                f"{self.program.name}, line {line}: stopped while {self.doing}, after {spent}: a loop that never ends?"
                f"{hint}",
                kernel=self.program.name,
                filename=self.program.filename,
                line=line,
                block=None,
                thread=self.current.where,
            )

    doing = "interpreted"

    # ---------------- memory

    def _dtype(self, declaration):
        dtype = declaration.dtype
        if isinstance(dtype, DtypeOf):
            position = self.program.params.index(dtype.param)
            dtype = numpy_support.from_dtype(np.dtype(self.args[position].dtype))
        return dtype_of(dtype)

    def _shared_array(self, declaration):
        """(array, its address in the block's window)."""
        dtype = self._dtype(declaration)
        if declaration.shape == (0,):
            shape, offset = (self.shared_bytes // dtype.itemsize,), self.dynamic_offset
        else:
            shape, offset = declaration.shape, self.offsets[declaration.name]
        size = int(np.prod(shape)) * dtype.itemsize
        array = self.state.window[offset : offset + size].view(dtype).reshape(shape)
        self.state.arrays.append((WINDOW + offset, WINDOW + offset + size, declaration.name))
        return array, WINDOW + offset

    def _new_local(self, declaration):
        dtype = self._dtype(declaration)
        return np.full(int(np.prod(declaration.shape)) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(
            declaration.shape
        )

    def _shared(self, declaration):
        return as_typed_array(self._shared_array(declaration)[0])

    def _local(self, name):
        return as_typed_array(self._new_local(self.program.local[name]))

    def _local_of_device(self, device, name):
        declaration = next(a for a in self.program.devices[device].local if a.name == name)
        return as_typed_array(self._new_local(declaration))

    # ---------------- what intrinsics ask

    @staticmethod
    def raw(array):
        """The plain NumPy array behind what a kernel has, or a device array."""
        return array._array if isinstance(array, DeviceNDArray) else np.asarray(array)

    def address(self, array):
        """Of the first element: in the window for shared arrays, else the host's."""
        return array.__array_interface__["data"][0] - self.state.address

    def _placed(self, array):
        """The address that alignment is counted from."""
        return array.__array_interface__["data"][0]

    def wide(self, kind, name, array, i, nbytes, alignment, line, frame):
        """The elements of an access of nbytes from flat index i on, as a plain array; None if it was refused."""
        raw = self.raw(array)
        count = -(-nbytes // raw.itemsize)
        if not raw.flags.c_contiguous:
            self.fault("assertion", line, f"uses an array that is not C-contiguous with ptx.{name}")
        if i < 0 or i + count > raw.size:
            return self._beyond(kind, name, array, i, count, line, frame)
        if (self._placed(array) + i * raw.itemsize) % alignment:
            self._raise_with(faults.misaligned, line, f"ptx.{name}", self._array_name(array, frame), i, alignment)
        self.widely(kind, name, array, i, count, line, frame)
        return raw.reshape(-1)[i : i + count]

    def _beyond(self, kind, name, array, i, count, line, frame):
        shown = self._array_name(array, frame)
        self._raise_with(faults.out_of_row, line, f"ptx.{name}", shown, i, count, array.shape)

    def _array_name(self, array, frame):
        """What the kernel calls an array: the name in its frame that holds it."""
        result = [n for n, v in frame.f_locals.items() if v is array] or [
            n for n, v in frame.f_globals.items() if v is array
        ]
        return result[0] if result else "an array"

    def widely(self, kind, name, array, i, count, line, frame):
        """A wide access is made."""

    def started(self, array, work):
        """Asynchronous work on these elements has begun."""

    def arrived(self, copy, line):
        """A cp.async was waited for, at this line."""

    def filled(self, array):
        """All elements of the array will have been written."""

    def filled_range(self, array, start, size):
        """Bytes of shared memory, from address `first` on, will have been written."""

    def fenced_for_async(self):
        """This thread has called fence_proxy_async."""

    sees_tiles = False  # True where reads_tile and has_read_tiles track what wgmma and TMA read

    def passed_barrier(self, line):
        """A block passes a barrier."""

    def fence(self, scope):
        """A thread calls cuda.threadfence(), or one of another scope."""

    def released(self, counters, i):
        """A thread has called add_release of counters[i]."""

    def acquired(self, counters, i):
        """A thread has called load_acquire of counters[i]."""

    def undefined_lane(self, op, thread, source, own):
        """What a shuffle gives of a lane that its mask leaves out, beside a value of the thread's own: NaN, or -1."""
        return UNDEFINED.get(type(own), type(own)(-1))

    # ---------------- faults

    def _spot(self, thread=None):
        thread = thread or self.current
        return f"{self.block_name(thread.block)}, thread {short_position(thread.where, self.block)}"

    def _location(self, line, thread=None):
        thread = thread or self.current
        return {"kernel": self.program.name, "filename": self.program.filename, "line": line,
                "block": coordinates(thread.block, self.grid), "thread": thread.where}  # fmt: skip

    def _raise(self, kind, line, text, thread=None):
        tail = f" ({file_label(self.program.filename)})"
        raise kind(f"{self.program.name}, line {line}: {text}{tail}", sentence=text, **self._location(line, thread))

    def _raise_with(self, make, line, *details):
        prefix, tail = f"{self.program.name}, line {line}", f" ({file_label(self.program.filename)})"
        raise make(prefix, self._spot(), *details, tail, self._location(line))

    def fault(self, kind, line, text, thread=None):
        """Stop: an intrinsic was used in a way that a GPU would not survive."""
        kinds = {"assertion": KernelAssertionError, "misaligned": MisalignedError, "bounds": OutOfBoundsError}
        self._raise(kinds[kind], line, f"{self._spot(thread)} {text}", thread)

    # ---------------- a block

    def _block(self, b):
        """Runs block b; yields at each grid barrier."""
        block_index = coordinates(b, self.grid)
        self.state = state = Block(self.window_bytes)
        self.windows.append(state.window)
        shared = [self._shared(a) for a in self.program.shared.values()]
        threads, self.ids = [], []
        for linear in range(self.threads):
            thread_index = coordinates(linear, self.block)
            thread = Thread(linear, b, thread_index)
            ids = (*thread_index, *block_index, *self.block, *self.grid)
            self.ids.append(dict(zip(ID_NAMES, ids, strict=True)))
            thread.generator = self.make_thread(ids, linear, b, shared)
            threads.append(thread)
        ids_of_block = self.ids
        runnable = threads
        while runnable:
            self.ids, self.state = ids_of_block, state
            self._run_to_waits(runnable, threads)
            runnable = self.scheduler.resolve(threads)
            if runnable == "grid":
                yield threads[0].request[1]
                for thread in threads:
                    thread.grid_epoch += 1
                runnable = threads
            elif self.scheduler.only_spins:
                yield SPIN
        self.state = state
        self.windows = [window for window in self.windows if window is not state.window]
        self.intrinsics.check_finished(threads)
        self._ended(shared)

    def _run_to_waits(self, runnable, threads):
        """Runs these threads of a block, each up to where it waits or ends."""
        for thread in self._in_order(runnable):
            self._advance(thread)

    def _ended(self, shared):
        """A block is over."""

    def _advance(self, thread):
        self.current = thread
        try:
            thread.request = thread.generator.send(thread.reply)
            thread.reply = None
        except StopIteration:
            thread.done, thread.request = True, None
        except KernelError:
            raise
        except Exception as error:  # Python's complaint about what the kernel does, as the kernel's error
            if isinstance(error, IndexError) and "scalar variable" not in str(error):
                raise self._index_error(error) from None
            raise self._python_error(error) from error

    def _kernel_frame(self, error):
        """(frame, line) of the kernel's own code where an exception came from; (None, the kernel's line) if nowhere."""
        result, trace = (None, self.program.line), error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals is self.functions:
                result = trace.tb_frame, trace.tb_lineno
            trace = trace.tb_next
        return result

    def _python_error(self, error):
        frame, line = self._kernel_frame(error)
        if frame is None:
            return error
        if isinstance(error, ValueError):
            no_step = "range() arg 3" in str(error)
            sentence = "loops over a range whose step is 0" if no_step else f"is stopped: {error}"
            self._raise(KernelValueError, line, f"{self._spot()} {sentence}")
        unset = re.search(r"local variable '(\w+)'", str(error)) if isinstance(error, UnboundLocalError) else None
        text = f"{unset[1]} is read before it is set" if unset else str(error).replace("'SeenArray' object", "an array")
        if isinstance(error, IndexError):
            text = "a number has no elements to index: are the parameters in the right order"
        problem, facts = problem_of(text)
        sentence = f"{self._spot()}: {text}"
        return KernelTypeError.at(self.program.name, self.program.filename, line, sentence, problem, **facts)

    def _index_error(self, error):
        """NumPy's complaint about an index, as the kernel's error: the subscript of that line that does not fit."""
        frame, line = self._kernel_frame(error)
        if frame is None:
            return error
        location = self._location(line)
        prefix, tail = f"{self.program.name}, line {line}: {self._spot()}", f" ({file_label(self.program.filename)})"
        for node in ast.walk(self.module):
            if not isinstance(node, ast.Subscript) or node.lineno != line or _has_effects(node):
                continue
            try:
                array, index = (eval(compile(_as_expression(n), "<index>", "eval"), frame.f_globals, frame.f_locals)
                                for n in (node.value, node.slice))  # fmt: skip
            except (NameError, IndexError):
                continue
            parts = index if isinstance(index, tuple) else (index,)
            if not isinstance(array, (np.ndarray, tuple)) or any(isinstance(p, slice) for p in parts):
                continue
            shape = (len(array),) if isinstance(array, tuple) else array.shape
            if all(-n <= p < n for p, n in zip(parts, shape, strict=False)):
                continue
            shown = ", ".join(map(str, parts))
            name = re.sub(r"_(?:float64|complex128)\((.*?)\)", r"\1", ast.unparse(node.value))
            result = OutOfBoundsError(f"{prefix} uses {name}[{shown}], outside its shape {shape}{tail}", **location)
            result.array, result.index, result.shape = name, tuple(map(int, parts)), shape
            return result
        result = OutOfBoundsError(f"{prefix} uses an element that its array does not have: {error}{tail}", **location)
        result.array, result.index, result.shape = "", (), ()
        return result

    def passes_without(self, absent, line, name, arrived, threads):
        """True if a block's barrier may be passed without threads that have returned; the launch warns of it."""
        if settings.barrier_rule() >= 0:
            return False
        if not self.warning:
            block, thread = coordinates(absent.block, self.grid), absent.where
            sentence = faults.passed_without_returned(f"{name}()", arrived, threads, short_position(block, self.grid),
                                                      short_position(thread, self.block))
            self.warning = f"{self.program.name}, line {line}: {sentence} ({file_label(self.program.filename)})"
        return True

    def stuck(self, kind, line, thread, op, sentence, lines=(), others=(), index=None, block=None):
        """Raise for threads that can never go on. kind: "warp", "block", "grid" or "deadlock"."""
        kinds = {"deadlock": DeadlockError, "warp": WarpError}
        self._raise(kinds.get(kind, BarrierError), line, sentence, thread)

    # ---------------- words

    def block_name(self, b):
        return f"block {short_position(coordinates(b, self.grid), self.grid)}"

    def who(self, thread):
        name = f"thread {short_position(thread.where, self.block)}"
        return name if self.blocks == 1 else f"{name} of {self.block_name(thread.block)}"


def _parts(value):
    """The arrays in an argument."""
    if isinstance(value, tuple):
        return [array for part in value for array in _parts(part)]
    return [value] if hasattr(value, "shape") and hasattr(value, "strides") and value.shape else []


def _has_effects(node):
    """True if evaluating it again could change something, or wait."""
    def is_free(call):
        root = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        return isinstance(root, ast.Name) and root.id in FUNCTIONS

    return any(isinstance(n, ast.Yield) or (isinstance(n, ast.Call) and not is_free(n)) for n in ast.walk(node))


def _as_expression(node):
    node = copy.deepcopy(node)
    for child in ast.walk(node):
        if hasattr(child, "ctx"):
            child.ctx = ast.Load()
    return ast.fix_missing_locations(ast.Expression(node))
