"""Runs a kernel in plain Python and sees every access: what `observe` is made of.

Each thread is a Python generator over the kernel's normal form; it stops at barriers and collectives. Threads of a
block take turns from one to the next. Arrays are wrapped, so that each load and store is seen with its line, thread and
address. Two accesses to one address are a race if different threads make them, one of them stores, and nothing orders
them: no barrier between them for threads of a block (or syncwarp, within a warp), nothing at all for two blocks.

Work    about 2 us for each access: meant for launches of up to some ten thousand threads
Numbers integers are Python's, floats are NumPy scalars of their dtype, so float32 stays float32
"""

import ast
import bisect
import copy
import dis
import math
import operator
import sys
import time

import numpy as np
from numba.core import types
from numba.np import numpy_support

from labkit.simt import launch as launching
from labkit.simt import rewrite
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.errors import ArgumentError, KernelError, KernelTimeout
from labkit.simt.report import Finding, Report
from labkit.simt.stubs import SHUFFLES

SECTOR, LINE, BANKS = 32, 128, 32
_CONFLICTS = {"load": ("store", "atomic"), "store": ("store", "load", "atomic"), "atomic": ("store", "load")}


def observe(configured, *args):
    """Run a launch in plain Python and report what its threads did.

    Takes `kernel[grid, block]` (also with stream and shared_bytes) and the arguments of the launch; arrays are changed
    as the launch would change them. On a GPU the arrays are copied to the host and back.
    Returns a Report. Raises as a launch does for wrong arguments, and KernelTimeout for an endless loop.
    """
    function, grid, block, shared_bytes = _configuration(configured)
    return _Observation(function, grid, block, shared_bytes, args).run()


def _same_memory(one, other):
    keys = ("data", "shape", "strides", "typestr")
    return all(one.__cuda_array_interface__[k] == other.__cuda_array_interface__[k] for k in keys)


def _has_fences(function, depth=3):
    """True if a kernel, or a device function that it calls, has a cuda.threadfence()."""
    code = function.__code__
    if any(name.startswith("threadfence") for name in (*code.co_names, *code.co_freevars)):
        return True
    called = [function.__globals__.get(name) for name in code.co_names] if depth else []
    return any(_has_fences(f.py_func, depth - 1) for f in called if hasattr(f, "py_func"))


def _configuration(configured):
    if isinstance(configured, launching.Launch):
        return configured.kernel.py_func, configured.grid, configured.block, configured.sharedmem
    dispatcher = getattr(configured, "dispatcher", None)  # numba.cuda's launch configuration
    if dispatcher is not None and hasattr(dispatcher, "py_func"):
        full = [tuple((*np.atleast_1d(d).tolist(), 1, 1)[:3]) for d in (configured.griddim, configured.blockdim)]
        return dispatcher.py_func, *full, int(configured.sharedmem or 0)
    raise TypeError(f"observe takes kernel[grid, block] and the launch's arguments, not {type(configured).__name__}")


# ---------------------------------------------------------------- the kernel as a Python generator


class _ToPython(ast.NodeTransformer):
    """The normal form -> Python: a Sync is a yield, an Exit an exception or a return, divisions follow CUDA."""

    def __init__(self):
        self.labels = set()

    def visit(self, node):
        new = super().visit(node)
        if isinstance(new, ast.AST) and not hasattr(new, "lineno") and hasattr(node, "lineno"):
            new.lineno, new.col_offset = node.lineno, getattr(node, "col_offset", 0)
        return new

    def block(self, statements):
        out = []
        for s in statements:
            result = self.visit(s)
            out += result if isinstance(result, list) else [result]
        return out

    def visit_Sync(self, node):
        parts = [
            ast.Constant(node.op),
            ast.Constant(node.lineno),
            ast.Tuple([self.visit(a) for a in node.args], ast.Load()),
        ]
        request = ast.Yield(ast.Tuple(parts, ast.Load()))
        return ast.Expr(request) if node.target is None else ast.Assign([node.target], request)

    def visit_Inline(self, node):
        self.labels.add(node.label)
        handler = ast.ExceptHandler(ast.Name(f"_Leave{node.label}", ast.Load()), None, [ast.Pass()])
        return ast.Try(self.block(node.body) or [ast.Pass()], [handler], [], [])

    def visit_Exit(self, node):
        if node.label == "kernel":
            return ast.Return(None)
        return ast.Raise(ast.Call(ast.Name(f"_Leave{node.label}", ast.Load()), [], []), None)

    def visit_If(self, node):
        test = self._branch(self.visit(node.test))
        return ast.If(test, self.block(node.body) or [ast.Pass()], self.block(node.orelse))

    def visit_While(self, node):
        tick = ast.Expr(ast.Call(ast.Name("_tick", ast.Load()), [], []))
        return ast.While(self._branch(self.visit(node.test)), [tick, *self.block(node.body)], [])

    def visit_For(self, node):
        tick = ast.Expr(ast.Call(ast.Name("_tick", ast.Load()), [], []))
        return ast.For(self.visit(node.target), self.visit(node.iter), [tick, *self.block(node.body)], [])

    def _branch(self, test):
        if isinstance(test, ast.Constant):
            return test
        return ast.Call(ast.Name("_branch", ast.Load()), [test], [])

    def visit_IfExp(self, node):
        return ast.IfExp(self._branch(self.visit(node.test)), self.visit(node.body), self.visit(node.orelse))

    def visit_BinOp(self, node):
        self.generic_visit(node)
        name = {ast.Div: "_divide", ast.FloorDiv: "_floor_divide", ast.Mod: "_modulo"}.get(type(node.op))
        return ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], []) if name else node

    def visit_AugAssign(self, node):
        self.generic_visit(node)
        name = {ast.Div: "_divide", ast.FloorDiv: "_floor_divide", ast.Mod: "_modulo"}.get(type(node.op))
        if name is None:
            return node
        value = copy.deepcopy(node.target)
        value.ctx = ast.Load()
        return ast.Assign([node.target], ast.Call(ast.Name(name, ast.Load()), [value, node.value], []))


def _locate(node, line):
    """Give every node the line it came from, or its parent's; the frame of an access then tells the kernel's line."""
    line = getattr(node, "lineno", line)
    if "lineno" in node._attributes:
        node.lineno = node.end_lineno = line
        node.col_offset = node.end_col_offset = 0
    for child in ast.iter_child_nodes(node):
        _locate(child, line)


def _define(name, arguments, body):
    return ast.FunctionDef(name=name, args=arguments, body=body, decorator_list=[], returns=None, type_params=[])


def _divide(a, b):
    try:
        return a / b
    except ZeroDivisionError:
        return np.float64(a) / np.float64(b)


def _floor_divide(a, b):
    return 0 if not isinstance(b, np.inexact | float) and b == 0 else a // b


def _modulo(a, b):
    return 0 if not isinstance(b, np.inexact | float) and b == 0 else a % b


class _Numpy:
    """NumPy as kernels see it here: integer types wrap Python's integers."""

    def __getattr__(self, name):
        dtype = (
            np.dtype(name) if name in ("bool_", "float16", "float32", "float64", "complex64", "complex128") else None
        )
        if dtype is None and name.lstrip("u").startswith("int") and name.lstrip("uint").isdigit():
            dtype = np.dtype(name)
        if dtype is None:
            return getattr(np, name)
        return _converter(dtype)


class _Math:
    """math as kernels see it: float32 stays float32, and what has no value is NaN or infinite instead of an error."""

    _NAMES = {
        "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
        "atan2": "arctan2", "atanh": "arctanh", "pow": "power",
    }  # fmt: skip

    def __getattr__(self, name):
        function = getattr(math, name)
        if isinstance(function, float):
            return function
        of_numpy = getattr(np, self._NAMES.get(name, name), None)
        if of_numpy is not None:
            return lambda *args: of_numpy(*(float(a) if isinstance(a, int) else a for a in args))

        def guarded(*args):
            try:
                return function(*args)
            except ValueError:
                return math.nan
            except OverflowError:
                return math.inf

        return guarded


def _integer(value=0):
    """int() as a kernel has it: NaN and infinity become some integer."""
    try:
        return int(value)
    except (ValueError, OverflowError):
        return -(1 << 63)


class _Unsigned(int):
    """An unsigned number. With another one it makes a uint64, as Numba's types have it: 0 - 1 is then 2**64 - 1."""

    def __add__(self, other):
        total = int.__add__(self, other)
        return _Unsigned(total & _UINT64) if isinstance(other, _Unsigned) else total

    def __sub__(self, other):
        difference = int.__sub__(self, other)
        return _Unsigned(difference & _UINT64) if isinstance(other, _Unsigned) else difference

    def __mul__(self, other):
        product = int.__mul__(self, other)
        return _Unsigned(product & _UINT64) if isinstance(other, _Unsigned) else product


_UINT64 = (1 << 64) - 1


def _converter(dtype):
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize

        def convert(value):
            value = _integer(value) & ((1 << bits) - 1)
            if dtype.kind == "u":
                return _Unsigned(value)
            return value - (1 << bits) if value >> (bits - 1) else value

        return convert
    return lambda value: dtype.type(value)


_HELPERS = {
    "_popc": lambda x: int(x & 0xFFFFFFFFFFFFFFFF).bit_count(),
    "_fma": lambda a, b, c: type(c)(float(a) * float(b) + float(c)) if isinstance(c, np.float32) else a * b + c,
    "_rsqrt": lambda x: type(x)(1) / np.sqrt(x),
    "_cbrt": np.cbrt,
    "_selp": lambda test, a, b: a if test else b,
    "_remainder": math.remainder,
    "_modf": math.modf,
    "_ffs": lambda x: (x & -x).bit_length(),
    "_clz": lambda x: 32 - x.bit_length() if 0 <= x < 2**32 else 64 - (x & (2**64 - 1)).bit_length(),
    "_brev": lambda x: int(f"{x & (2**32 - 1):032b}"[::-1], 2),
    "_divide": _divide,
    "_floor_divide": _floor_divide,
    "_modulo": _modulo,
    "_np": _Numpy(),
    "_math": _Math(),
    "int": _integer,
    "_operator": operator,
}


def _new_value(op, old, value, extra=None):
    """What an atomic leaves behind."""
    return {
        "add": lambda: old + value,
        "sub": lambda: old - value,
        "max": lambda: max(old, value),
        "min": lambda: min(old, value),
        "nanmax": lambda: np.fmax(old, value),
        "nanmin": lambda: np.fmin(old, value),
        "and_": lambda: old & value,
        "or_": lambda: old | value,
        "xor": lambda: old ^ value,
        "exch": lambda: value,
        "inc": lambda: 0 if old >= value else old + 1,
        "dec": lambda: value if old == 0 or old > value else old - 1,
        "cas": lambda: extra if old == value else old,
    }[op]()


# ---------------------------------------------------------------- arrays that see


class _Memory:
    """One allocation: what was written, who touched what last."""

    def __init__(self, space, array, known, base=0):
        self.space, self.base = space, base
        self.start = _address(array)
        self.known = known  # True: the host wrote it; False: only what this launch writes is there
        self.written, self.cells = set(), {}


def _address(array):
    return array.__array_interface__["data"][0]


def _owner(array):
    """The array whose memory this one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Seen:
    """An array, or a view of one, whose loads and stores are recorded. `name` is what the kernel calls it."""

    def __init__(self, observation, memory, array, name):
        self.observation, self.memory, self.array, self.name = observation, memory, array, name
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype
        self.size, self.strides, self.itemsize = array.size, array.strides, array.itemsize
        self.origin = memory.base - memory.start + _address(array)  # of the first element, as a GPU would place it
        if memory.space != "local" and name not in observation.report.arrays:
            observation.report.arrays[name] = (self.origin, array.shape, array.itemsize)

    def __len__(self):
        return len(self.array)

    @property
    def T(self):
        return Seen(self.observation, self.memory, self.array.T, self.name)

    def reshape(self, *shape):
        return Seen(self.observation, self.memory, self.array.reshape(*shape), self.name)

    def view(self, dtype):
        return Seen(self.observation, self.memory, self.array.view(getattr(dtype, "dtype", dtype)), self.name)

    def _place(self, index):
        """(byte address, index) of an element; None and a view for fewer indices; OutOfBounds is recorded."""
        parts = index if type(index) is tuple else (index,)
        if len(parts) < self.ndim:
            return None, None
        address, plain = self.origin, []
        for part, length, stride in zip(parts, self.shape, self.strides, strict=True):
            if type(part) is not int:
                if isinstance(part, slice):
                    return None, None
                part = int(part)
            if not -length <= part < length:
                return -1, parts
            if part < 0:
                part += length
            plain.append(part)
            address += part * stride
        return address, tuple(plain)

    def __getitem__(self, index):
        return self._load(index, sys._getframe(1))

    def __iter__(self):
        frame = sys._getframe(1)  # the kernel's
        for k in range(len(self)):
            yield self._load(k, frame)

    def _load(self, index, frame):
        address, plain = self._place(index)
        if address is None:
            try:
                return Seen(self.observation, self.memory, self.array[index], self.name)
            except IndexError:
                self.observation.out_of_bounds(self, index, frame, "reads")
                return self
        if address < 0:
            self.observation.out_of_bounds(self, plain, frame, "reads")
            if self.dtype.names:
                return _Record(self, (0,) * self.ndim)
            return self._number(self.dtype.type(0))
        if self.dtype.names:
            return _Record(self, plain)
        self.observation.access("load", self, address, plain, frame)
        return self._number(self.array[plain])

    def __setitem__(self, index, value):
        address, plain = self._place(index)
        if address is None:
            part = self.array[index]
            for position in np.ndindex(part.shape):
                Seen(self.observation, self.memory, part, self.name)._store(position, value, sys._getframe(1))
            return
        if address < 0:
            self.observation.out_of_bounds(self, plain, sys._getframe(1), "writes")
            return
        self._store(plain, value, sys._getframe(1))

    def _store(self, plain, value, frame):
        address, plain = self._place(plain)
        self.observation.access("store", self, address, plain, frame)
        self._write(plain, value)

    def _write(self, plain, value):
        try:
            self.array[plain] = value
        except (OverflowError, ValueError):
            self.array[plain] = _converter(self.dtype)(value)

    def _number(self, value):
        kind = self.dtype.kind
        if kind == "u":
            return _Unsigned(value)
        return int(value) if kind == "i" else bool(value) if kind == "b" else value

    def atomic(self, op, index, value, extra, frame):
        address, plain = self._place(index)
        if address is None or address < 0:
            self.observation.out_of_bounds(self, index, frame, "updates")
            return self._number(self.dtype.type(0))
        self.observation.access("atomic", self, address, plain, frame)
        old = self._number(self.array[plain])
        self._write(plain, _new_value(op, old, value, extra))
        return old


class _Record:
    """An element of an array of records: its fields are loaded and stored as elements of an array of that field."""

    __slots__ = ("_index", "_seen")

    def __init__(self, seen, index):
        object.__setattr__(self, "_seen", seen)
        object.__setattr__(self, "_index", index)

    def _field(self, name):
        seen = self._seen
        return Seen(seen.observation, seen.memory, seen.array[name], seen.name)

    def __getitem__(self, name):
        return self._field(name)._load(self._index, sys._getframe(1))

    def __getattr__(self, name):
        return self._field(name)._load(self._index, sys._getframe(1))

    def __setitem__(self, name, value):
        self._field(name)._store(self._index, value, sys._getframe(1))

    def __setattr__(self, name, value):
        self._field(name)._store(self._index, value, sys._getframe(1))


class _Thread:
    """Where one thread stands. `epoch` counts its block's barriers, `warp_epoch` its warp's, `grid_epoch` all."""

    __slots__ = (
        "block",
        "done",
        "epoch",
        "generator",
        "grid_epoch",
        "linear",
        "occurrence",
        "reply",
        "request",
        "step",
        "visited",
        "warp",
        "warp_epoch",
        "where",
    )

    def __init__(self, linear, block, where):
        self.linear, self.block, self.where = linear, block, where
        self.warp = (block, linear // 32)
        self.epoch = self.warp_epoch = self.grid_epoch = 0
        self.occurrence, self.request, self.reply, self.done = {}, None, None, False
        self.step, self.visited = 0, {}  # its last access; line: (epochs, step, again)


class _Observation:
    def __init__(self, function, grid, block, shared_bytes, args):
        self.program = rewrite.rewrite(function)
        self.grid, self.block = grid, block
        self.threads = block[0] * block[1] * block[2]
        self.blocks = grid[0] * grid[1] * grid[2]
        self.shared_bytes = shared_bytes
        params = self.program.params
        if len(args) != len(params):
            raise ArgumentError(
                f"{self.program.name} takes {len(params)} arguments ({', '.join(params)}), {len(args)} given"
            )
        self.args = args
        self.report = Report(self.program.name, self.program.filename, grid, block)
        self.requests, self.branches, self.starts, self.memories = {}, {}, {}, {}
        # With fences, an atomic shows a block what the blocks saw that updated the same element before it.
        self.fenced, self.known, self.released = _has_fences(function), {}, {}
        self.time = 0
        self.raced, self.unwritten = set(), []  # (memory, address) of races; reads of memory that nothing wrote
        self.current = None
        self.deadline = None
        self.ticks = 0

    # ---------------- running

    def run(self):
        copies = []
        bound = {
            name: self._argument(name, value, copies)
            for name, value in zip(self.program.params, self.args, strict=True)
        }
        nodes = [n for s in self.program.body for n in ast.walk(s)]
        updates = [n for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Subscript)]
        self.updating = {n.lineno for n in updates}
        shown = {n.id: n.shown for n in nodes if isinstance(n, ast.Name) and getattr(n, "shown", None)}
        for name, array in self.program.constants.items():
            data = array._array if isinstance(array, DeviceNDArray) else np.array(array)
            bound[name] = Seen(self, _Memory("global", data, True), data, shown.get(name, name))
        self.make_thread, self.functions = self._compile(bound)
        limit = launching.time_limit_s()
        self.deadline = time.monotonic() + limit if limit else None
        with np.errstate(all="ignore"):
            if self.program.cooperative:
                self._run_together([self._block(b) for b in range(self.blocks)])
            else:
                for b in self._in_order(range(self.blocks)):
                    for _ in self._block(b):
                        pass
        for memory, address, finding in self.unwritten:
            if (memory, address) not in self.raced:  # what a race explains is not said twice
                self.report.uninitialized(finding, finding.array, finding.lines[0])
        self._count_requests()
        for device_array, host in copies:
            device_array.copy_to_device(host)
        return self.report

    def _argument(self, name, value, copies):
        if isinstance(value, DeviceNDArray):
            array = value._array
        elif isinstance(value, np.ndarray):
            array = value
        elif hasattr(value, "copy_to_host"):  # numba.cuda's device array, on a GPU
            twin = next((host for original, host in copies if _same_memory(original, value)), None)
            array = value.copy_to_host() if twin is None else twin
            if twin is None:
                copies.append((value, array))
        elif isinstance(value, tuple):
            return tuple(self._argument(f"{name}[{k}]", part, copies) for k, part in enumerate(value))
        elif isinstance(value, np.integer):
            return _converter(value.dtype)(value)
        else:
            return value
        owner = _owner(array)
        if _address(owner) not in self.memories:  # two arguments may be views of one allocation
            # the CPU device aligns its arrays as a GPU does; a host array counts as if it were copied to one
            base = _address(owner) if isinstance(value, DeviceNDArray) else 0
            self.memories[_address(owner)] = _Memory("global", owner, self._is_known(array), base)
        return Seen(self, self.memories[_address(owner)], array, name)

    @staticmethod
    def _is_known(array):
        """For floats: which elements the host has written. Fresh memory of the CPU device is all 0xFF bytes."""
        if array.dtype.kind != "f" or not array.size:
            return True
        width = np.dtype(f"u{array.itemsize}")
        fresh = np.ascontiguousarray(array).view(width) == np.iinfo(width).max
        return not fresh.all()

    @staticmethod
    def _in_order(items):
        """As `thread_order` asks; what is reported does not depend on it, what a wrong kernel computes may."""
        order = launching._ORDER.get()
        if order == "scattered":
            return sorted(items, key=lambda x: (x if isinstance(x, int) else x.linear) * 40503 % 65521)
        return reversed(items) if order == "reverse" else items

    def _run_together(self, blocks):
        """A cooperative launch: every block up to the grid barrier, then every block again."""
        waiting = list(enumerate(blocks))
        while waiting:
            arrived = [(b, next(block, None)) for b, block in waiting]
            lines = sorted({line for _, line in arrived if line is not None})
            ended = [b for b, line in arrived if line is None]
            if lines and ended:
                gx, gy, _ = self.grid
                b = ended[0]
                name = self._short((b % gx, b // gx % gy, b // (gx * gy)), self.grid)
                self._found(
                    Finding(
                        "divergent_barrier", self.program.name, lines, [], b, "grid_sync", None,
                        f"line {lines[0]}: cg.this_grid().sync() was reached by {len(waiting) - len(ended)} of the "
                        f"{len(waiting)} blocks; block {name} has ended without it. "
                        "Every thread of the grid must reach it.",
                    )
                )  # fmt: skip
                return
            if not lines:
                return

    def _compile(self, bound):
        """A function that starts a thread's generator, given the thread's indices and the block's shared arrays."""
        p = self.program
        converter = _ToPython()
        body = converter.block(copy.deepcopy(p.body)) or [ast.Pass()]
        body = [s for s in body if s is not None]
        locals_ = [
            ast.Assign(
                [ast.Name(a.name, ast.Store())], ast.Call(ast.Name("_local", ast.Load()), [ast.Constant(a.name)], [])
            )
            for a in p.local.values()
        ]
        # the unreachable yield makes a generator of a kernel without barriers
        unreachable = ast.If(ast.Constant(False), [ast.Expr(ast.Yield(ast.Constant(None)))], [])
        params = [*rewrite.ID_NAMES, "_t", "_b", *p.shared, *p.params]
        arguments = ast.arguments([], [ast.arg(n) for n in params], None, [], [], None, [])
        definition = _define(p.name, arguments, [unreachable, *locals_, *body])
        functions = [definition]
        for device in p.devices.values():
            inner = _ToPython()
            inner_body = []
            for a in device.local:
                call = ast.Call(
                    ast.Name("_local_of_device", ast.Load()), [ast.Constant(device.name), ast.Constant(a.name)], []
                )
                inner_body.append(ast.Assign([ast.Name(a.name, ast.Store())], call))
            inner_body += inner.block(copy.deepcopy(device.body)) or [ast.Pass()]
            inner_params = ast.arguments([], [ast.arg(n) for n in device.params], None, [], [], None, [])
            functions.append(_DeviceIds().visit(_define(device.name, inner_params, inner_body)))
        module = ast.Module(functions, [])
        _locate(module, p.line)
        namespace = {
            **_HELPERS,
            **bound,
            "_tick": self._tick,
            "_branch": self._branch,
            "_local": self._local,
            "_local_of_device": self._local_of_device,
            "_poison": lambda array: None,
            "_assertion": self._assertion,
            "_id": self._id,
        }
        for op in ("add", "sub", "max", "min", "nanmax", "nanmin", "and_", "or_", "xor", "exch", "inc", "dec"):
            namespace[f"_atomic_{op}"] = self._atomic(op)
        namespace["_atomic_cas"] = lambda a, i, old, new: a.atomic("cas", i, old, new, sys._getframe(1))
        for label in converter.labels:
            namespace[f"_Leave{label}"] = type(f"_Leave{label}", (Exception,), {})
        exec(compile(module, p.filename, "exec"), namespace)
        make = namespace[p.name]
        given = [bound[name] for name in p.params]
        return (lambda ids, t, b, shared: make(*ids, t, b, *shared, *given)), namespace

    @staticmethod
    def _atomic(op):
        return lambda a, i, value: a.atomic(op, i, value, None, sys._getframe(1))

    def _id(self, name):
        return self.ids[self.current.linear][name]

    def _assertion(self):
        raise KernelError(f"{self.program.name}: an assertion failed in {self._who(self.current)}")

    def _tick(self):
        self.ticks += 1
        if self.deadline and self.ticks % 4096 == 0 and time.monotonic() > self.deadline:
            line = sys._getframe(1).f_lineno
            raise KernelTimeout(
                f"{self.program.name}, line {line}: stopped while observed: a loop that never ends?",
                kernel=self.program.name,
                filename=self.program.filename,
                line=line,
                block=None,
                thread=self.current.where,
            )

    def _branch(self, test):
        thread, frame = self.current, sys._getframe(1)
        site = ("branch", frame.f_lineno, self._instruction(frame))
        count = thread.occurrence[site] = thread.occurrence.get(site, 0) + 1
        key = (thread.warp, site, count)
        outcome = bool(test)
        self.branches[key] = self.branches.get(key, 0) | (2 if outcome else 1)
        return outcome

    def _new_array(self, declaration, space):
        dtype = declaration.dtype
        if isinstance(dtype, rewrite.DtypeOf):
            position = self.program.params.index(dtype.param)
            dtype = numpy_support.from_dtype(np.dtype(self.args[position].dtype))
        dtype = np.dtype(bool) if dtype == types.boolean else numpy_support.as_dtype(dtype)
        if declaration.shape == (0,):
            array = self.dynamic[: self.shared_bytes // dtype.itemsize * dtype.itemsize].view(dtype)
            return Seen(self, self.dynamic_memory, array, declaration.name)
        array = np.empty(declaration.shape, dtype)
        array.view(np.uint8).fill(0xFF)
        base = self.shared_base
        if space == "shared":
            self.shared_base += -(-array.nbytes // 16) * 16
        return Seen(self, _Memory(space, array, False, base), array, declaration.name)

    def _local(self, name):
        return self._new_array(self.program.local[name], "local")

    def _local_of_device(self, device, name):
        declaration = next(a for a in self.program.devices[device].local if a.name == name)
        return self._new_array(declaration, "local")

    def _block(self, b):
        """Runs block b; yields at each grid barrier."""
        gx, gy, _ = self.grid
        block_index = (b % gx, b // gx % gy, b // (gx * gy))
        self.shared_base = 0
        self.dynamic = np.full(max(self.shared_bytes, 1), 0xFF, np.uint8)
        self.dynamic_memory = _Memory("shared", self.dynamic, False, 1 << 20)
        shared = [self._new_array(a, "shared") for a in self.program.shared.values()]
        threads, self.ids = [], []
        bx, by, bz = self.block
        for linear in range(self.threads):
            thread_index = (linear % bx, linear // bx % by, linear // (bx * by))
            thread = _Thread(linear, b, thread_index)
            ids = (*thread_index, *block_index, *self.block, *self.grid)
            self.ids.append(dict(zip(rewrite.ID_NAMES, ids, strict=True)))
            thread.generator = self.make_thread(ids, linear, b, shared)
            threads.append(thread)
        ids_of_block = self.ids
        runnable = threads
        while runnable:
            self.ids = ids_of_block
            for thread in self._in_order(runnable):
                self._advance(thread)
            runnable = self._resolve(threads)
            if runnable == "grid":
                yield threads[0].request[1]
                for thread in threads:
                    thread.grid_epoch += 1
                runnable = threads
        for seen in shared:
            seen.memory.cells.clear()

    def _advance(self, thread):
        self.current = thread
        try:
            thread.request = thread.generator.send(thread.reply)
            thread.reply = None
        except StopIteration:
            thread.done, thread.request = True, None

    # ---------------- barriers and collectives

    def _resolve(self, threads):
        """The threads that can go on, "grid" at a grid barrier, or none; records a barrier that cannot be passed."""
        going = []
        warps = {}
        for thread in threads:
            warps.setdefault(thread.warp, []).append(thread)
        for warp in warps.values():
            going += self._resolve_warp(warp)
        if going:
            return going
        waiting = [t for t in threads if not t.done]
        if not waiting:
            return []
        stuck = [t for t in waiting if not t.request[0].startswith("syncthreads") and t.request[0] != "grid_sync"]
        lines = {(t.request[0], t.request[1]) for t in waiting}
        if stuck:
            self._diverged(stuck, threads, warp=True)
            return []
        if len(lines) > 1 or len(waiting) < len(threads):
            self._diverged(waiting, threads, warp=False)
            return []
        op = waiting[0].request[0]
        self.report.count("barriers", waiting[0].request[1])
        if op == "grid_sync":
            return "grid"
        if op != "syncthreads":
            values = [bool(t.request[2][0]) for t in threads]
            result = {"count": sum(values), "and": int(all(values)), "or": int(any(values))}[op.split("_")[1]]
            for t in threads:
                t.reply = result
        for t in threads:
            t.epoch += 1
        return threads

    def _resolve_warp(self, warp):
        """Lanes of a warp whose collective is complete go on, with its result."""
        groups = {}
        for t in warp:
            if not t.done and rewrite.sync_kind(t.request[0]) == "warp":
                groups.setdefault(t.request[:2], []).append(t)
        going = []
        for (op, _), lanes in groups.items():
            present = {t.linear % 32: t for t in lanes}
            if op == "activemask":
                bits = sum(1 << lane for lane in present)
                for t in lanes:
                    t.reply = bits
                going += lanes
                continue
            alive = {t.linear % 32 for t in warp if not t.done}
            for t in lanes:
                mask = (int(t.request[2][0]) if t.request[2] else 0xFFFFFFFF) & 0xFFFFFFFF
                named = {lane for lane in alive if mask >> lane & 1}
                if named <= set(present) and mask >> (t.linear % 32) & 1:
                    t.reply = self._collective(op, t, {lane: present[lane] for lane in named})
                    going.append(t)
        for t in going:
            if t.request[0] == "syncwarp":
                t.warp_epoch += 1
        return going

    def _collective(self, op, thread, lanes):
        lane, args = thread.linear % 32, thread.request[2]
        if op == "syncwarp":
            return None
        if op in SHUFFLES:
            delta = int(args[2])
            source = {
                "shfl_sync": delta & 31,
                "shfl_up_sync": lane - delta,
                "shfl_down_sync": lane + delta,
                "shfl_xor_sync": lane ^ delta,
            }[op]
            if not 0 <= source <= 31:
                return args[1]
            if source not in lanes:
                self._found(
                    Finding(
                        "divergent_barrier",
                        self.program.name,
                        [thread.request[1]],
                        [thread.where],
                        thread.block,
                        op,
                        source,
                        f"line {thread.request[1]}: {self._who(thread)} reads lane {source} with cuda.{op}, and that "
                        "lane takes no part in it: it has returned, does not exist, or is not in the mask.",
                    )
                )
                return args[1]
            return lanes[source].request[2][1]
        values = {k: t.request[2][1] for k, t in lanes.items()}
        bits = sum(1 << k for k, v in values.items() if v)
        everyone = sum(1 << k for k in values)
        if op == "match_any_sync":
            return sum(1 << k for k, v in values.items() if v == args[1])
        if op == "match_all_sync":
            same = all(v == args[1] for v in values.values())
            return (everyone, True) if same else (0, False)
        ballot = bits - (1 << 32) if bits >> 31 else bits
        return {
            "all_sync": bits == everyone,
            "any_sync": bits != 0,
            "eq_sync": bits in (0, everyone),
            "ballot_sync": ballot,
        }[op]

    def _diverged(self, waiting, threads, warp):
        """Records a barrier, or a collective of a warp, that its threads can never pass together."""
        first = waiting[0]
        op, line, _ = first.request
        name = "cg.this_grid().sync" if op == "grid_sync" else f"cuda.{op}"
        if warp:
            threads = [t for t in threads if t.warp == first.warp]
            group = f"lanes of warp {first.warp[1]}" + ("" if self.blocks == 1 else f" of {self._block_name(first)}")
            rule = "Every lane that the mask names must make the same call."
        else:
            group = f"threads of {self._block_name(first)}"
            rule = "Every thread of the block must reach the same barrier, or none of them."
        here = [t for t in threads if not t.done and t.request[:2] == first.request[:2]]
        others = [t for t in threads if t not in here] or here
        other = others[0]
        if other.done:
            where = "has ended without it"
        elif other not in here:
            where = f"waits at line {other.request[1]}"
        else:
            where = "is not named by its mask"
        lines = sorted({line, *(t.request[1] for t in others if not t.done)})
        self._found(
            Finding(
                "divergent_barrier", self.program.name, lines, [t.where for t in others], first.block, op, None,
                f"line {line}: {name}() was reached by {len(here)} of the {len(threads)} {group}; "
                f"thread {self._short(other.where, self.block)} {where}. {rule}",
            )
        )  # fmt: skip

    # ---------------- accesses

    def access(self, kind, seen, address, index, frame):
        memory, thread = seen.memory, self.current
        line = frame.f_lineno
        if memory.space != "local":
            site = (line, self._instruction(frame), seen.name, kind)
            count = thread.occurrence[site] = thread.occurrence.get(site, 0) + 1
            key = (thread.warp, site, count)
            self.requests.setdefault(key, (memory.space, kind, line, seen.itemsize, [], seen.name))[4].append(
                (thread.linear, address)
            )
            self._race(kind, seen, address, index, line)
        if kind != "store" and not memory.known and address not in memory.written:
            self.unwritten.append((memory, address, self._uninitialized(seen, index, line)))
        if kind != "load" and not memory.known:
            memory.written.update(range(address, address + seen.itemsize))

    def _instruction(self, frame):
        """The instruction that a frame is at: f_lasti, less what Python's specialised instructions add to it."""
        place = (id(frame.f_code), frame.f_lasti)
        found = self.starts.get(place)
        if found is None:
            starts = [i.offset for i in dis.get_instructions(frame.f_code)]
            found = self.starts[place] = bisect.bisect_right(starts, frame.f_lasti)
        return found

    def _uninitialized(self, seen, index, line):
        thread = self.current
        place = f"{seen.name}[{', '.join(map(str, index))}]"
        kinds = {"shared": "shared memory", "local": "an element of its local array", "global": "fresh device memory"}
        kind = kinds[seen.memory.space]
        return Finding(
            "uninitialized_read",
            self.program.name,
            [line],
            [thread.where],
            thread.block,
            seen.name,
            index,
            f"line {line}: {self._who(thread)} reads {place}, {kind} that nothing has written yet.",
        )

    def out_of_bounds(self, seen, index, frame, verb):
        parts = index if isinstance(index, tuple) else (index,)
        thread, line = self.current, frame.f_lineno
        shown = ", ".join(map(str, parts))
        why = ": an unsigned number went below zero" if any(isinstance(p, int) and p >= 1 << 63 for p in parts) else ""
        self.report.outside(
            Finding(
                "out_of_bounds",
                self.program.name,
                [line],
                [thread.where],
                thread.block,
                seen.name,
                tuple(parts),
                f"line {line}: {self._who(thread)} {verb} {seen.name}[{shown}], outside its shape {seen.shape}{why}.",
            ),
            seen.name,
            line,
        )

    def _race(self, kind, seen, address, index, line):
        """Compare with the last accesses of others to this address that nothing has ordered before this one."""
        thread = self.current
        epochs = (thread.epoch, thread.warp_epoch, thread.grid_epoch)
        self.time += 1
        thread.step = self.time
        if self.fenced and kind == "atomic" and seen.memory.space == "global":
            released = self.released.setdefault((seen.memory, address), {})
            known = self.known.setdefault(thread.block, {})
            for block, until in released.items():
                known[block] = max(known.get(block, 0), until)
            released.update(known)
            released[thread.block] = self.time
        visited = thread.visited.get(line)
        if visited is None or visited[0] != epochs:
            thread.visited[line] = (epochs, thread.step, visited is not None)
        mine = (thread, epochs, kind, line, thread.step)
        cell = seen.memory.cells.get(address)
        if cell is None:
            cell = seen.memory.cells[address] = {"load": [], "store": [], "atomic": []}
        for entry in [e for k in _CONFLICTS[kind] for e in cell[k]]:
            other = entry[0]
            if other is not thread and not self._ordered(entry, thread):
                self.raced.add((seen.memory, address))
                self._report_race(seen, index, entry, mine)
                break
        before = cell[kind]
        if not before or (len(before) == 1 and before[0][0] is thread):
            cell[kind] = [mine]
            return
        # the last two of this warp, of other warps and of other blocks are enough to find any later conflict
        warp, block, blocks = [], [], []
        for entry in before:
            other = entry[0]
            if other is not thread:
                (warp if other.warp == thread.warp else block if other.block == thread.block else blocks).append(entry)
        cell[kind] = [*blocks[-2:], *block[-2:], *warp[-1:], mine]

    def _ordered(self, entry, thread):
        """True if something makes this earlier access come before what the thread does now."""
        other, epochs, _, _, step = entry
        if other.block != thread.block:
            seen_until = self.known.get(thread.block, {}).get(other.block, 0) if self.fenced else 0
            return epochs[2] != thread.grid_epoch or step < seen_until
        if epochs[0] != thread.epoch or epochs[2] != thread.grid_epoch:
            return True
        return other.warp == thread.warp and epochs[1] != thread.warp_epoch

    @staticmethod
    def _came_before(line, entry):
        """True if the thread of this access had been at that line since the last barrier."""
        thread, epochs, _, _, step = entry
        visited = thread.visited.get(line)
        return visited is not None and visited[0] == epochs and visited[1] < step

    def _report_race(self, seen, index, first, second):
        # in the program's order, which in a loop need not be that of the lines
        forth, back = self._came_before(first[3], second), self._came_before(second[3], first)
        if (back and not forth) or (forth == back and first[3] > second[3]):
            first, second = second, first
        (a, _, a_kind, a_line, _), (b, _, b_kind, b_line, _) = first, second
        place = f"{seen.name}[{', '.join(map(str, index))}]"
        verb = {"load": "reads", "store": "writes", "atomic": "updates"}
        reach = 2 if a.block != b.block else 1 if a.warp != b.warp else 0
        updates = a_line == b_line and a_line in self.updating
        if a_kind == b_kind == "store" and a_line == b_line:
            advice = "Two threads must not store to one element: give each its own, or use an atomic."
        elif "atomic" in (a_kind, b_kind) and reach == 2:
            advice = "An atomic and a plain access do not see each other: use atomics for both, or a second launch."
        elif reach == 2 and self.program.cooperative:
            advice = "Put a barrier of the whole grid, cg.this_grid().sync(), between them."
        elif reach == 2 and self.program.has_atomics and b_kind == "load" and not self.fenced:
            advice = "An atomic after the write orders the two only if cuda.threadfence() stands before it."
        elif reach == 2:
            advice = "Blocks cannot wait for one another within a launch: use an atomic, or a second launch."
        elif updates:
            advice = "If both mean to add to it, use cuda.atomic.add; else put cuda.syncthreads() between them."
        elif a_line == b_line:
            advice = "Read into a variable, put cuda.syncthreads(), then write."
        elif a_line > b_line:
            again = " again" if b.visited[b_line][2] else ""
            advice = f"Put cuda.syncthreads() after line {a_line}, before line {b_line} is reached{again}."
        else:
            advice = f"Put cuda.syncthreads() between line {a_line} and line {b_line}."
        if reach == 0 and "Put cuda.syncthreads()" in advice:
            advice += " These threads are of one warp: for them cuda.syncwarp() is enough."
        rest = "and blocks run in any order" if reach == 2 else "with no barrier between them"
        line = f"it at line {b_line}" if a_line != b_line else "it at the same line"
        self.report.race(
            Finding(
                "race", self.program.name, sorted({a_line, b_line}), [a.where, b.where], b.block, seen.name, index,
                f"race: {self._who(a)} {verb[a_kind]} {place} at line {a_line}, and {self._who(b)} {verb[b_kind]} "
                f"{line}, {rest}. {advice}",
            ),
            (seen.name, frozenset([(a_line, a_kind), (b_line, b_kind)])),
            reach,
        )  # fmt: skip

    def _found(self, finding):
        self.report.divergent_barriers.append(finding)

    # ---------------- words

    @staticmethod
    def _short(position, shape):
        if shape[1] == shape[2] == 1:
            return str(position[0])
        return str(tuple(position[:2] if shape[2] == 1 else position))

    def _block_name(self, thread):
        gx, gy, _ = self.grid
        position = (thread.block % gx, thread.block // gx % gy, thread.block // (gx * gy))
        return f"block {self._short(position, self.grid)}"

    def _who(self, thread):
        name = f"thread {self._short(thread.where, self.block)}"
        return name if self.blocks == 1 else f"{name} of {self._block_name(thread)}"

    # ---------------- counting

    def _count_requests(self):
        """Sectors, lines and bank conflicts of each warp's requests: the lanes that make one access together."""
        report = self.report
        for (warp, *_), (space, kind, line, itemsize, accesses, name) in self.requests.items():
            addresses = [address for _, address in accesses]
            what = "stores" if kind == "store" else "loads" if kind == "load" else "atomics"
            report.count(f"{space}_{what}", line, len(addresses))
            report.count("bytes_stored" if kind == "store" else "bytes_loaded", line, len(addresses) * itemsize, space)
            report.count(f"{space}_requests", line)
            if space == "global":
                first, last = zip(*((a // SECTOR, (a + itemsize - 1) // SECTOR) for a in addresses), strict=True)
                sectors = {*first, *last}
                report.count("sectors", line, len(sectors))
                report.count("lines_128", line, len({s * SECTOR // LINE for s in sectors}))
                report.count("bytes_wanted", line, len(set(addresses)) * itemsize)
            else:
                report.count("bank_conflicts", line, _conflicts(addresses, itemsize))
            for linear, address in accesses:
                report.touch(name, space, kind, warp[0] * self.threads + linear, address)
        for (_, (_, line, _), _), outcome in self.branches.items():
            report.count("branches", line)
            if outcome == 3:
                report.count("divergent_branches", line)


def _conflicts(addresses, itemsize):
    """How often a shared-memory request has to be repeated: the most distinct words in one bank, less one."""
    words = {}
    for address in addresses:
        for part in range(max(1, itemsize // 4)):
            word = address // 4 + part
            words.setdefault(word % BANKS, set()).add(word)
    phases = max(1, itemsize // 4)  # 8-byte accesses take two rounds by themselves
    return max(0, max(len(w) for w in words.values()) - phases)


class _DeviceIds(ast.NodeTransformer):
    """Device functions are called without hidden arguments here; they ask for the current thread's indices."""

    def visit_Name(self, node):
        if node.id in rewrite.ID_NAMES and isinstance(node.ctx, ast.Load):
            return ast.Call(ast.Name("_id", ast.Load()), [ast.Constant(node.id)], [])
        return node
