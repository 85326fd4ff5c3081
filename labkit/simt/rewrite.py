"""A kernel's source -> a normal form that the compiled and the observed run share.

In the normal form
- every name that is not a local of the kernel is resolved: constants are literals, special registers are `_tx`, `_bx`,
  `_bdx`, `_gdx` (threadIdx.x, blockIdx.x, blockDim.x, gridDim.x) and so on, global arrays are hidden arguments;
- shared and local arrays are declarations, apart from the code;
- a barrier or warp collective stands alone, as a `Sync` statement, never inside an expression;
- a device function that contains one (or a shared array) is inlined: an `Inline` statement that `Exit` leaves;
- other device functions stay functions.
What a GPU does not have is refused here, with the line.
"""

import ast
import builtins
import contextlib
import copy
import enum
import inspect
import itertools
import linecache
import math
import operator
import types as python_types
import weakref
from dataclasses import dataclass, field

import numba
import numpy as np
from numba.core import types
from numba.core.dispatcher import Dispatcher

from labkit.simt import ptx, stubs, webs
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.errors import UnsupportedError, place
from labkit.simt.nodes import Exit, Inline, Sync

BUILTINS = {"range", "len", "min", "max", "abs", "int", "float", "bool", "round", "pow", "divmod", "complex", "print",
            "enumerate", "zip", "slice", "sum", "tuple", "reversed"}  # fmt: skip
# numba.cuda's functions of math and NumPy. Those with another home lack one on Numba's CPU target, or differ there.
MATH = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "degrees", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fmod", "frexp", "gamma", "hypot", "isfinite", "isinf", "isnan",
    "ldexp", "lgamma", "log", "log10", "log1p", "log2", "modf", "nextafter", "pow", "radians", "remainder", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
}  # fmt: skip
_MATH_ELSEWHERE = {"fmod": "_np.fmod", "exp2": "_np.exp2", "remainder": "_remainder", "modf": "_modf",
                   "floor": "_np.floor", "ceil": "_np.ceil", "trunc": "_np.trunc"}  # fmt: skip
UFUNCS = {
    "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
    "arctan2", "hypot", "log", "log2", "log10", "deg2rad", "rad2deg", "degrees", "radians", "maximum", "minimum",
    "fmax", "fmin", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "logical_and",
    "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift",
    "right_shift", "isnan", "conjugate", "divide",
}  # fmt: skip
METHODS = {"conjugate", "conj", "reshape", "view", "fill", "sum"}
ID_NAMES = tuple(f"_{prefix}{axis}" for prefix in ("t", "b", "bd", "gd") for axis in "xyz")
_UNCHECKED_ATTRIBUTES = {"flat", "ctypes", "data", "base", "flags"}
_ATTRIBUTES_OF_ARRAYS = {"shape", "size", "ndim", "strides", "itemsize", "nbytes"}


@dataclass(frozen=True)
class DtypeOf:
    """The dtype of a parameter, known when the kernel is compiled for its arguments."""

    param: str


@dataclass
class ArrayDeclaration:
    """A shared or local array. shape is a tuple of ints, (0,) is dynamic shared memory; dtype a type, or a DtypeOf."""

    name: str
    space: str
    shape: tuple
    dtype: types.Type
    line: int
    alignment: int = 16


@dataclass
class DeviceSource:
    """A device function that stays a function."""

    name: str
    params: list
    body: list
    local: list
    filename: str


@dataclass
class Program:
    """A kernel in normal form."""

    name: str
    filename: str
    line: int
    params: list
    body: list = field(default_factory=list)
    shared: dict = field(default_factory=dict)
    local: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)
    devices: dict = field(default_factory=dict)
    cooperative: bool = False
    has_atomics: bool = False
    has_copies: bool = False  # cp.async
    interpreted: str = ""  # the intrinsic that keeps the kernel from being compiled, if there is one


def sync_kind(op):
    """Who waits for whom: "grid", "block", "warp"; for intrinsics also "warpgroup", and "wait" for what suspends."""
    if op == "grid_sync":
        return "grid"
    if op.startswith("ptx."):
        return ptx.INTRINSICS[op[4:]].kind
    return "block" if op.startswith("syncthreads") else "warp"


def contains(nodes, *kinds):
    """True if any of these statements is, or holds, a node of one of these kinds."""
    nodes = nodes if isinstance(nodes, list) else [nodes]
    return any(isinstance(node, kinds) for top in nodes for node in ast.walk(top))


def rewrite(function):
    """The normal form of a kernel, as a Program.

    Takes the Python function. Raises UnsupportedError, naming the line, for what a kernel may not contain.
    """
    return _Rewriter(function).program()


_SOURCES = weakref.WeakKeyDictionary()


def read_source(function):
    """(FunctionDef with the line numbers of the file, filename) of a Python function.

    Read once, when the function is decorated: the file may be edited before the first launch.
    """
    known = _SOURCES.get(function) if isinstance(function, python_types.FunctionType) else None
    if known is None:
        known = _SOURCES[function] = _read_source(function)
    return copy.deepcopy(known[0]), known[1]


def _read_source(function):
    if not isinstance(function, python_types.FunctionType):
        raise UnsupportedError(f"a kernel must be a Python function, not {type(function).__name__} {function!r}")
    if function.__name__ == "<lambda>":
        raise UnsupportedError("a lambda cannot be a kernel: write it with def")
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise UnsupportedError(
            f"the source of {function.__name__} cannot be read ({filename}): define it in a file or a notebook cell"
        ) from None
    if lines[0][:1].isspace():  # a nested function; its text may also have lines at the margin
        definition = ast.parse("if True:\n" + "".join(lines)).body[0].body[0]
        ast.increment_lineno(definition, first - 2)
    else:
        definition = ast.parse("".join(lines)).body[0]
        ast.increment_lineno(definition, first - 1)
    if not isinstance(definition, ast.FunctionDef):
        raise UnsupportedError(f"{function.__name__}: expected a def statement at {filename}:{first}")
    return definition, filename


def _cells(function):
    """What a function closes over; cells that are still empty are left out."""
    found = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            found.append(cell.cell_contents)
    return found


class _Scope:
    """The names of one function: what is local, what the rest means."""

    def __init__(self, function):
        self.function = function
        self.definition, self.filename = read_source(function)
        arguments = self.definition.args
        if arguments.vararg or arguments.kwarg:
            raise UnsupportedError(f"{function.__name__}: *args and **kwargs are not supported in device code")
        # functions from one factory share their code and differ in what they close over
        self.key = function.__code__, tuple(map(id, _cells(function)))
        self.params = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        self.environment = dict(function.__globals__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                self.environment[name] = cell.cell_contents
            except ValueError:
                self.environment.pop(name, None)
        stores = [n for n in ast.walk(self.definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.locals = set(self.params) | {n.id for n in stores}
        self.assigned = {}
        for name in stores:
            self.assigned[name.id] = self.assigned.get(name.id, 0) + 1
        self.local_constants, self.aliases = {}, {}
        self._find_constant_locals()

    def _find_constant_locals(self):
        """Locals set once: to an integer literal (they may be array shapes), or to cuda.threadIdx and its kind."""
        for node in ast.walk(self.definition):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if self.assigned[name] != 1 or name in self.params:
                    continue
                if isinstance(node.value, ast.Constant) and type(node.value.value) is int:
                    self.local_constants[name] = node.value.value
                elif isinstance(node.value, (ast.Name, ast.Attribute)):
                    known, obj = self.static(node.value)
                    if known and isinstance(obj, (stubs.Dim3, stubs.Module)):
                        self.aliases[name] = obj

    def refuse(self, node, what, instead=None):
        advice = f"; {instead}" if instead else ""
        raise UnsupportedError(f"{self.function.__name__}, line {node.lineno}: {what}{advice} ({place(self.filename)})")

    def static(self, node):
        """(True, object) if the expression is a constant of the kernel's surroundings."""
        if isinstance(node, ast.Name):
            if node.id in self.aliases:
                return True, self.aliases[node.id]
            if node.id in self.locals:
                return False, None
            if node.id in self.environment:
                return True, _on_cpu(self.environment[node.id])
            if hasattr(builtins, node.id):
                return True, getattr(builtins, node.id)
            self.refuse(node, f"the name {node.id!r} is not defined")
        if isinstance(node, ast.Attribute):
            known, base = self.static(node.value)
            if not known:
                return False, None
            if isinstance(base, (np.ndarray, DeviceNDArray)) and node.attr not in _ATTRIBUTES_OF_ARRAYS:
                return False, None
            if isinstance(base, np.generic) and node.attr in ("real", "imag"):
                return True, getattr(base, node.attr)
            ours = _counterpart(base, node.attr)
            if ours is not None:
                return True, ours
            name = ast.unparse(node.value)
            if not _may_hold_constants(base):
                self.refuse(node, f"{name} is a host object ({type(base).__name__})",
                            f"bind {name}.{node.attr} to a name outside the kernel, and use that")  # fmt: skip
            if not hasattr(base, node.attr):
                self.refuse(node, f"{name}.{node.attr} does not exist on the CPU device")
            return True, _on_cpu(getattr(base, node.attr))
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            known, base = self.static(node.value)
            if known and isinstance(base, tuple):
                index_known, index = self.constant(node.slice)
                if index_known:
                    return True, base[index]
        return False, None

    def constant(self, node):
        """(True, value) for literals and static objects."""
        if isinstance(node, ast.Constant):
            return True, node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return True, -node.operand.value
        if isinstance(node, ast.BinOp) and all(isinstance(n, _LITERAL_NODES) for n in ast.walk(node)):
            return True, eval(compile(ast.Expression(node), "<literal>", "eval"))  # Python folds 4 * 8 as well
        if isinstance(node, ast.Name) and node.id in self.local_constants:
            return True, self.local_constants[node.id]
        if isinstance(node, ast.Tuple):
            parts = [self.constant(part) for part in node.elts]
            return all(known for known, _ in parts), tuple(value for _, value in parts)
        return self.static(node)


FOLDABLE = (ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.cmpop, ast.boolop, ast.unaryop,
            ast.operator)  # fmt: skip
_LITERAL_NODES = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)


def _may_hold_constants(obj):
    """Modules, classes, arrays and numbers: what device code may take an attribute of."""
    kinds = (python_types.ModuleType, type, np.ndarray, np.generic, np.dtype, DeviceNDArray, tuple, enum.Enum,
             types.Type, stubs.Module, stubs.Dim3, stubs.Function, stubs.Value, int, float, complex)  # fmt: skip
    return isinstance(obj, kinds)


def _counterpart(base, attribute):
    """The stub for a name of numba.cuda: on a GPU a kernel's `cuda` is that module, and `observe` reads it here."""
    if isinstance(base, python_types.ModuleType) and base.__name__ in ("numba.cuda", "numba.cuda.cg"):
        return getattr(stubs, attribute, None)
    return None


def _on_cpu(obj):
    """An intrinsic of labkit.ptx as it is on a GPU -> the CPU device's; anything else as it is."""
    if isinstance(obj, (stubs.Function, python_types.ModuleType, np.ndarray, int, float)):
        return obj
    ours = getattr(obj, "cpu_device", None)
    return ours if isinstance(ours, stubs.Function) else obj


def _waits(stub):
    """True if threads wait for one another in a call of this function."""
    return stub.name in stubs.SYNC or getattr(stub, "kind", "") in ("warp", "warpgroup", "wait")


def _is_device_function(obj):
    return isinstance(obj, Dispatcher) or hasattr(obj, "py_func")


def _as_type(obj):
    """The Numba type of a dtype-like object, or None."""
    if isinstance(obj, types.Type):
        return obj
    if isinstance(obj, str) or obj in (int, float, bool, complex) or isinstance(obj, (np.dtype, type)):
        try:
            return numba.from_dtype(np.dtype(obj))
        except (TypeError, numba.core.errors.NumbaError):
            return None
    return None


def type_code(ty):
    """Python source for a scalar Numba type."""
    if isinstance(ty, types.Record):
        raise UnsupportedError("shared and local arrays of records are not supported on the CPU device")
    return "_np.bool_" if ty == types.boolean else f"_np.{ty.name}"


def _own_names(scope):
    """Each local's name in the normal form: range and its kind, and names that begin with _, are taken."""
    names = {}
    for name in sorted(scope.locals):
        new = name
        while new.startswith("_") or new in BUILTINS or (new != name and new in scope.locals):
            new = f"u{new}"
        names[name] = new
    return names


class _Rewriter:
    def __init__(self, function):
        self.function = function
        self.counter = itertools.count(1)
        self.needs_inline_cache = {}
        self.shared_keys = {}
        self.device_names = {}
        self.inlining = []

    def program(self):
        scope = _Scope(self.function)
        arguments = scope.definition.args
        if arguments.defaults or any(arguments.kw_defaults):
            scope.refuse(scope.definition, "default values of a kernel's parameters are not supported")
        self.result = Program(self.function.__name__, scope.filename, scope.definition.lineno, scope.params)
        names = _own_names(scope)
        self.result.params = [names[p] for p in scope.params]
        body = self._resolve(scope, names)
        self.result.body = self._finish_returns(self._flatten(body, scope), "kernel", None, scope)
        names_in_use = {n.id for s in self.result.body for n in ast.walk(s) if isinstance(n, ast.Name)}
        webs.split(self.result.body, self.result.params, names_in_use)
        return self.result

    # ------------------------------------------------ names

    def _resolve(self, scope, names, device=None):
        resolver = _Resolver(self, scope, names, device)
        body = [statement for node in scope.definition.body for statement in resolver.statement(node)]
        for node in (n for statement in body for n in ast.walk(statement)):
            node.filename = scope.filename  # an inlined function may stand in another file than the kernel
        return body

    def fresh(self, stem):
        return f"_{stem}{next(self.counter)}"

    def needs_inline(self, function):
        """True for device functions that hold a barrier, a collective or a shared array, also through others."""
        scope = _Scope(function)
        key = scope.key
        if key in self.needs_inline_cache:
            return self.needs_inline_cache[key]
        self.needs_inline_cache[key] = False  # a recursive call does not make it so
        found = False
        for node in ast.walk(scope.definition):
            if not isinstance(node, ast.Call):
                continue
            known, target = scope.static(node.func)
            if not known:
                found |= isinstance(node.func, ast.Attribute) and node.func.attr == "sync"
            elif isinstance(target, stubs.Function):
                found |= _waits(target) or target.name == "shared.array"
            elif _is_device_function(target):
                found |= self.needs_inline(target.py_func)
        self.needs_inline_cache[key] = found
        return found

    def device_function(self, function):
        """Register a device function that stays a function; returns its name in the generated module."""
        scope = _Scope(function)
        if scope.key in self.inlining:
            raise UnsupportedError(f"device function {function.__name__} calls itself: recursion is not supported")
        if scope.key in self.device_names:
            return self.device_names[scope.key]
        name = f"{function.__name__}_d{next(self.counter)}"
        self.device_names[scope.key] = name
        names = _own_names(scope)
        source = DeviceSource(name, [names[p] for p in scope.params], [], [], scope.filename)
        self.result.devices[name] = source
        self.inlining.append(scope.key)
        source.body = self._resolve(scope, names, device=source)
        self.inlining.pop()
        return name

    # ------------------------------------------------ barriers out of expressions, device functions inlined

    def _is_sync(self, node):
        return isinstance(node, ast.Call) and (getattr(node, "sync_op", None) or getattr(node, "inline", None))

    def _has_sync(self, node):
        return node is not None and any(self._is_sync(n) for n in ast.walk(node))

    def _flatten(self, statements, scope):
        return [flat for statement in statements for flat in self._flatten_one(statement, scope)]

    def _flatten_one(self, s, scope):
        if not self._has_sync(s):
            return [s]
        if isinstance(s, ast.If):
            before, s.test = self._hoist(s.test, scope)
            s.body, s.orelse = self._flatten(s.body, scope), self._flatten(s.orelse, scope)
            return [*before, s]
        if isinstance(s, ast.While):
            if self._has_sync(s.test):
                before, test = self._hoist(s.test, scope)
                leave = ast.If(ast.UnaryOp(ast.Not(), test), [_at(ast.Break(), s)], [])
                s.body = [*before, _at(leave, s), *self._flatten(s.body, scope)]
                s.test = _at(ast.Constant(True), s)
            else:
                s.body = self._flatten(s.body, scope)
            return [s]
        if isinstance(s, ast.For):
            before, s.iter = self._hoist(s.iter, scope)
            s.body = self._flatten(s.body, scope)
            if isinstance(s.iter, (ast.Tuple, ast.Name)):  # of a tuple or an array: by position
                position = self.fresh("c")
                item = ast.Subscript(s.iter, ast.Name(position, ast.Load()), ast.Load())
                s.body.insert(0, _at(ast.Assign([s.target], item), s))
                length = ast.Call(ast.Name("len", ast.Load()), [copy.deepcopy(s.iter)], [])
                s.target = ast.Name(position, ast.Store())
                s.iter = _at(ast.Call(ast.Name("range", ast.Load()), [length], []), s)
                _at(s, s)
            return [*before, s]
        if isinstance(s, ast.Expr) and self._is_sync(s.value):
            before = self._hoist_children(s.value, scope)
            return [*before, *self._place(s.value, None, scope)]
        if isinstance(s, ast.Assign) and self._is_sync(s.value) and len(s.targets) == 1:
            target = s.targets[0]
            if isinstance(target, ast.Name):
                before = self._hoist_children(s.value, scope)
                return [*before, *self._place(s.value, target, scope)]
        if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Subscript) and self._has_sync(s.value):
            return self._flatten_update(s, scope)
        before = self._hoist_children(s, scope)
        return [*before, s]

    def _flatten_update(self, s, scope):
        """a[i] += f(), where f waits: a[i] is read before."""
        before, index = self._hoist(s.target.slice, scope)
        position, old = self.fresh("c"), self.fresh("c")
        place = _at(ast.Subscript(s.target.value, ast.Name(position, ast.Load()), ast.Store()), s)
        read = _at(ast.Subscript(copy.deepcopy(s.target.value), ast.Name(position, ast.Load()), ast.Load()), s)
        inner, value = self._hoist(s.value, scope)
        result = _at(ast.BinOp(ast.Name(old, ast.Load()), s.op, value), s)
        update = _at(ast.Assign([place], result), s)
        return [*before, _assign(position, index, s), _assign(old, read, s), *inner, update]

    def _hoist(self, node, scope):
        """(statements, expression): the expression without barriers, after the statements."""
        if not self._has_sync(node):
            return [], node
        if self._is_sync(node):
            before = self._hoist_children(node, scope)
            target = _at(ast.Name(self.fresh("c"), ast.Store()), node)
            return [*before, *self._place(node, target, scope)], _at(ast.Name(target.id, ast.Load()), node)
        if isinstance(node, ast.BoolOp) and any(self._has_sync(v) for v in node.values[1:]):
            name = self.fresh("c")
            before, first = self._hoist(node.values[0], scope)
            statements = [*before, _assign(name, first, node)]
            for value in node.values[1:]:
                inner, last = self._hoist(value, scope)
                test = ast.Name(name, ast.Load())
                if isinstance(node.op, ast.Or):
                    test = ast.UnaryOp(ast.Not(), test)
                statements.append(_at(ast.If(test, [*inner, _assign(name, last, node)], []), node))
            return statements, _at(ast.Name(name, ast.Load()), node)
        if isinstance(node, ast.Compare) and len(node.ops) > 1 and any(self._has_sync(c) for c in node.comparators[1:]):
            return self._hoist_chain(node, scope)
        if isinstance(node, ast.IfExp) and (self._has_sync(node.body) or self._has_sync(node.orelse)):
            name = self.fresh("c")
            before, test = self._hoist(node.test, scope)
            yes_before, yes = self._hoist(node.body, scope)
            no_before, no = self._hoist(node.orelse, scope)
            branch = ast.If(test, [*yes_before, _assign(name, yes, node)], [*no_before, _assign(name, no, node)])
            return [*before, _at(branch, node)], _at(ast.Name(name, ast.Load()), node)
        return self._hoist_children(node, scope), node

    def _hoist_chain(self, node, scope):
        """a < b < f(), where f waits: b is evaluated once, f only where a < b."""
        result, kept = self.fresh("c"), self.fresh("c")
        statements, left = self._hoist(node.left, scope)
        for k, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            step, right = self._hoist(right, scope)
            next_kept = self.fresh("c")
            step = [_assign(kept, left, node)] * (k == 0) + [
                *step,
                _assign(next_kept, right, node),
                _assign(result, ast.Compare(ast.Name(kept, ast.Load()), [op], [ast.Name(next_kept, ast.Load())]), node),
            ]
            kept = next_kept
            statements += step if k == 0 else [_at(ast.If(ast.Name(result, ast.Load()), step, []), node)]
        return statements, _at(ast.Name(result, ast.Load()), node)

    def _hoist_children(self, node, scope):
        """Hoist from the expressions below node, left to right; what comes before a barrier is kept in a name."""
        slots = []
        fields = list(ast.iter_fields(node))
        if isinstance(node, ast.Assign):  # the value is evaluated before the targets
            fields.sort(key=lambda item: item[0] != "value")
        for name, value in fields:
            if isinstance(node, ast.Call) and name == "func":
                continue
            if isinstance(value, ast.expr):
                slots.append((node, name, None, value))
            elif isinstance(value, list):
                items = ((k, item) for k, item in enumerate(value) if isinstance(item, (ast.expr, ast.keyword)))
                slots += [(value, None, k, item) for k, item in items]
        last = max((k for k, slot in enumerate(slots) if self._has_sync(slot[3])), default=-1)
        statements = []
        for k, (holder, name, position, value) in enumerate(slots[: last + 1]):
            if isinstance(getattr(value, "ctx", None), ast.Store):
                statements += self._hoist_children(value, scope)
                continue
            before, new = self._hoist(value, scope)
            statements += before
            if k < last and _reads_memory(new):
                kept = self.fresh("c")
                statements.append(_assign(kept, new, value))
                new = _at(ast.Name(kept, ast.Load()), value)
            if name is not None:
                setattr(holder, name, new)
            else:
                holder[position] = new
        return statements

    def _place(self, call, target, scope):
        """The statements for a barrier, a collective, or an inlined device function whose arguments are plain."""
        op = getattr(call, "sync_op", None)
        if op:
            sync = _at(Sync(target=target, args=call.args), call)
            sync.op, sync.kind, sync.filename = op, sync_kind(op), getattr(call, "filename", None)
            return [sync]
        return self._inline(call, target)

    def _inline(self, call, target):
        function = call.inline
        scope = _Scope(function)
        if scope.key in self.inlining:
            raise UnsupportedError(f"device function {function.__name__} calls itself: recursion is not supported")
        stem = f"_{function.__name__}{next(self.counter)}"
        names = {name: f"{stem}_{name}" for name in scope.locals}
        statements = []
        for param, argument in zip(scope.params, call.args, strict=True):
            # the callee cannot assign the caller's names, so a plain argument may stand for the parameter
            if isinstance(argument, (ast.Name, ast.Constant)) and param not in scope.assigned:
                names[param] = argument
            else:
                statements.append(_assign(names[param], argument, call))
        self.inlining.append(scope.key)
        body = self._flatten(self._resolve(scope, names), scope)
        self.inlining.pop()
        label = self.fresh("inline")
        result = f"{stem}_result"
        body = self._finish_returns(body, label, result, scope)
        if contains(body, Exit):
            inline = _at(Inline(body=body), call)
            inline.label = label
            inline.function = function.__name__
            statements.append(inline)
        else:
            statements += body
        if target is not None:
            statements.append(_at(ast.Assign([target], ast.Name(result, ast.Load())), call))
        return statements

    def _finish_returns(self, body, label, result, scope):
        """Return -> Exit, dropped where it is the last thing that happens."""

        def replace(statements, tail):
            out = []
            for k, s in enumerate(statements):
                is_tail = tail and k == len(statements) - 1
                if isinstance(s, ast.Return):
                    if s.value is not None and result is None and not _is_none(s.value):
                        scope.refuse(s, "a kernel cannot return a value", "write it into an array")
                    if result is not None and s.value is not None:
                        out.append(_assign(result, s.value, s))
                    if not is_tail:
                        leave = _at(Exit(), s)
                        leave.label = label
                        out.append(leave)
                    return out  # what follows a return in one block never runs
                if isinstance(s, ast.If):
                    s.body, s.orelse = replace(s.body, is_tail), replace(s.orelse, is_tail)
                    s.body = s.body or [_at(ast.Pass(), s)]
                elif isinstance(s, (ast.For, ast.While)):
                    s.body = replace(s.body, False) or [_at(ast.Pass(), s)]
                out.append(s)
            return out

        return replace(body, True)


def _at(node, where):
    """Give a new node, and the new nodes below it, the line of `where`."""
    for child in ast.walk(node):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            ast.copy_location(child, where)
        elif isinstance(child, (Sync, Inline, Exit)) and not hasattr(child, "lineno"):
            child.lineno = where.lineno
    return node


def _assign(name, value, where):
    return _at(ast.Assign([ast.Name(name, ast.Store())], value), where)


def _mark_breaks(statements, name):
    """Before each break of the loop around these statements, set `name` to False."""
    for k in reversed(range(len(statements))):
        s = statements[k]
        if isinstance(s, ast.Break):
            statements.insert(k, _assign(name, ast.Constant(False), s))
        elif isinstance(s, ast.If):
            _mark_breaks(s.body, name)
            _mark_breaks(s.orelse, name)


def _is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def _reads_memory(node):
    """True if evaluating it later could give something else: it loads, calls, or names a variable."""
    if isinstance(node, ast.Constant):
        return False
    return not (isinstance(node, ast.Name) and node.id in ID_NAMES)


_REFUSED_EXPRESSIONS = {
    ast.List: "a list", ast.Dict: "a dictionary", ast.Set: "a set", ast.ListComp: "a list comprehension",
    ast.DictComp: "a dict comprehension", ast.SetComp: "a set comprehension", ast.GeneratorExp: "a generator",
    ast.Lambda: "a lambda", ast.JoinedStr: "an f-string", ast.Await: "await", ast.Yield: "yield",
    ast.YieldFrom: "yield", ast.Starred: "a starred expression", ast.NamedExpr: "an assignment expression (:=)",
}  # fmt: skip
_REFUSED_STATEMENTS = {
    ast.With: "a with statement", ast.Try: "a try statement", ast.FunctionDef: "a function inside a kernel",
    ast.ClassDef: "a class", ast.Import: "an import", ast.ImportFrom: "an import", ast.Global: "global",
    ast.Nonlocal: "nonlocal", ast.Delete: "del", ast.Match: "match", ast.AsyncFunctionDef: "async",
}  # fmt: skip


class _Resolver:
    """Resolves the names of one function and checks that it stays within device code."""

    def __init__(self, rewriter, scope, names, device):
        self.rewriter, self.scope, self.names, self.device = rewriter, scope, names, device
        self.program = rewriter.result
        self.pending = []
        self.grid_groups = set()

    # ---------------- statements

    def statement(self, s):
        """The resolved statements for one statement of the source."""
        for kind, what in _REFUSED_STATEMENTS.items():
            if isinstance(s, kind):
                self.scope.refuse(s, f"{what} cannot be used in device code")
        method = getattr(self, f"_{type(s).__name__.lower()}", None)
        if method is None:
            self.scope.refuse(s, f"{type(s).__name__} cannot be used in device code")
        result = method(s)
        result = result if isinstance(result, list) else [result]
        before, self.pending = self.pending, []
        return before + result

    def block(self, statements):
        outer, self.pending = self.pending, []
        body = [r for s in statements for r in self.statement(s)]
        self.pending = outer
        return body

    def _pass(self, s):
        return []

    def _break(self, s):
        return s

    _continue = _break

    def _expr(self, s):
        if isinstance(s.value, ast.Constant):
            return []  # a docstring
        value = self.expression(s.value)
        return _at(ast.Expr(value), s) if value is not None else []

    def _return(self, s):
        return _at(ast.Return(None if s.value is None else self.expression(s.value)), s)

    def _assign(self, s):
        if len(s.targets) == 1 and isinstance(s.targets[0], ast.Name) and s.targets[0].id in self.scope.aliases:
            return []
        group = self._grid_group(s.value)
        if group and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
            self.grid_groups.add(s.targets[0].id)
            return []
        declared = self._declaration(s.value)
        if declared and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
            name = s.targets[0].id
            once = self.scope.assigned[name] == 1 and name not in self.scope.params
            return self._declare(*declared, s, self.names[name] if once else None, s.targets[0])
        value = self.expression(s.value)
        targets = [self.expression(t) for t in s.targets]
        if len(targets) == 1 and isinstance(targets[0], ast.Tuple):
            if isinstance(value, ast.Tuple):
                return self._split_tuple(targets[0], value, s)
            if any(isinstance(t, ast.Subscript) for t in targets[0].elts):
                return self._unpack(targets[0], value, s)
        if len(targets) > 1:
            name = self.rewriter.fresh("c")
            return [_assign(name, value, s)] + [
                _at(ast.Assign([t], ast.Name(name, ast.Load())), s) for t in targets
            ]
        return _at(ast.Assign(targets, value), s)

    def _split_tuple(self, target, value, s):
        """col, row = x, y -> two assignments, where no value depends on a target."""
        if len(target.elts) != len(value.elts):
            self.scope.refuse(s, f"{len(value.elts)} values for {len(target.elts)} names")
        written = {n.id for t in target.elts for n in ast.walk(t) if isinstance(n, ast.Name)}
        read = {n.id for v in value.elts for n in ast.walk(v) if isinstance(n, ast.Name)}
        if all(isinstance(t, ast.Name) for t in target.elts) and not written & read:
            return [_at(ast.Assign([t], v), s) for t, v in zip(target.elts, value.elts, strict=True)]
        kept = [self.rewriter.fresh("c") for _ in value.elts]
        return [_assign(k, v, s) for k, v in zip(kept, value.elts, strict=True)] + [
            _at(ast.Assign([t], ast.Name(k, ast.Load())), s) for t, k in zip(target.elts, kept, strict=True)
        ]

    def _unpack(self, target, value, s):
        """a[0], a[1] = f() -> into names, then from the names into the elements."""
        names = [self.rewriter.fresh("c") for _ in target.elts]
        whole = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        return [_at(ast.Assign([whole], value), s)] + [
            _at(ast.Assign([t], ast.Name(name, ast.Load())), s) for t, name in zip(target.elts, names, strict=True)
        ]

    def _annassign(self, s):
        if s.value is None:
            return []
        return self._assign(_at(ast.Assign([s.target], s.value), s))

    def _augassign(self, s):
        return _at(ast.AugAssign(self.expression(s.target), s.op, self.expression(s.value)), s)

    def _if(self, s):
        test = self.expression(s.test)
        if all(isinstance(n, FOLDABLE) for n in ast.walk(test)):  # a setting of the surroundings, such as STAGES == 2
            chosen = eval(compile(ast.Expression(test), "<setting>", "eval"))
            return self.block(s.body if chosen else s.orelse)  # Numba leaves out the other branch as well
        return _at(ast.If(test, self.block(s.body) or [_at(ast.Pass(), s)], self.block(s.orelse)), s)

    def _while(self, s):
        test = self.expression(s.test)
        body, after = self._loop_body(s)
        return [*after[:1], _at(ast.While(test, body, []), s), *after[1:]]

    def _for(self, s):
        iterable = self.expression(s.iter)
        target = self.expression(s.target)
        body, after = self._loop_body(s)
        return [*after[:1], _at(ast.For(target, iterable, body, [], None), s), *after[1:]]

    def _loop_body(self, s):
        """(body, []), or for a loop with an else, (body, [before the loop, after it])."""
        body = self.block(s.body) or [_at(ast.Pass(), s)]
        if not s.orelse:
            return body, []
        finished = self.rewriter.fresh("c")
        _mark_breaks(body, finished)
        test = ast.Name(finished, ast.Load())
        return body, [_assign(finished, ast.Constant(True), s), _at(ast.If(test, self.block(s.orelse), []), s)]

    def _assert(self, s):
        test = self.expression(s.test)
        call = ast.Expr(ast.Call(ast.Name("_assertion", ast.Load()), [], []))
        return _at(ast.If(ast.UnaryOp(ast.Not(), test), [call], []), s)

    def _raise(self, s):
        return _at(ast.Expr(ast.Call(ast.Name("_assertion", ast.Load()), [], [])), s)

    # ---------------- shared, local and constant arrays

    def _declaration(self, node):
        """("shared" | "local", shape, dtype) if the expression allocates an array of the device."""
        if not isinstance(node, ast.Call):
            return None
        known, target = self.scope.static(node.func)
        if not known or not isinstance(target, stubs.Function) or target.name not in ("shared.array", "local.array"):
            return None
        shape_node, dtype_node, *rest = self._bind(target, node)
        known, shape = self.scope.constant(shape_node)
        whole = (int, np.integer)
        parts = shape if isinstance(shape, tuple) else (shape,)
        if not known or not all(isinstance(p, whole) and not isinstance(p, bool) for p in parts):
            text = ast.unparse(shape_node)
            self.scope.refuse(
                node, f"the shape of cuda.{target.name} must be constant, and {text} is computed",
                "bind the value to a name outside the kernel, and use that name",
            )  # fmt: skip
        known, dtype = self.scope.constant(dtype_node)
        dtype = _as_type(dtype) if known and dtype not in (int, float, bool, complex) else None
        if not known and isinstance(dtype_node, ast.Attribute) and dtype_node.attr == "dtype":
            array = self.expression(dtype_node.value)
            if isinstance(array, ast.Name) and array.id in self.program.params:
                dtype = DtypeOf(array.id)
        if dtype is None:
            self.scope.refuse(node, f"{ast.unparse(dtype_node)} is not a dtype for cuda.{target.name}")
        parts = tuple(int(p) for p in parts)
        space = target.name.split(".")[0]
        if any(p < 0 for p in parts) or (0 in parts and (space == "local" or parts != (0,))):
            self.scope.refuse(node, f"the shape {parts} of cuda.{target.name} must be positive")
        return space, parts, dtype, self._alignment(rest[0], node) if rest else 16

    def _alignment(self, given, node):
        known, alignment = self.scope.constant(given)
        if alignment is None:
            return 16
        if not known or not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            text = ast.unparse(given)
            self.scope.refuse(node, f"the alignment of an array must be a constant power of two from 8 on, not {text}")
        return max(alignment, 16)

    def _declare(self, space, shape, dtype, alignment, where, name=None, target=None):
        """Register the array; the statements that stand for its allocation."""
        if space == "shared":
            if self.device is not None:
                raise AssertionError("a device function with shared memory is inlined")
            key = (self.scope.key, where.lineno, where.col_offset)
            known = self.rewriter.shared_keys.get(key)
            if known is None:
                known = name or self.rewriter.fresh("shared")
                self.rewriter.shared_keys[key] = known
                self.program.shared[known] = ArrayDeclaration(known, space, shape, dtype, where.lineno, alignment)
            if known == name or target is None:
                return []
            return [_assign(self.names[target.id], ast.Name(known, ast.Load()), where)]
        known = name or self.rewriter.fresh("local")
        declaration = ArrayDeclaration(known, space, shape, dtype, where.lineno)
        if self.device is not None:
            self.device.local.append(declaration)
        else:
            self.program.local[known] = declaration
        fresh = _at(ast.Expr(ast.Call(ast.Name("_poison", ast.Load()), [ast.Name(known, ast.Load())], [])), where)
        if known == name or target is None:
            return [fresh]
        return [fresh, _assign(self.names[target.id], ast.Name(known, ast.Load()), where)]

    def _hidden(self, array):
        """The name of a hidden argument that carries a constant array."""
        for name, known in self.program.constants.items():
            if known is array:
                return name
        name = f"_g{len(self.program.constants)}"
        self.program.constants[name] = array
        return name

    def _grid_group(self, node):
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
            return False
        known, target = self.scope.static(node.func)
        return known and target is stubs.this_grid

    # ---------------- expressions

    def expression(self, node):
        for kind, what in _REFUSED_EXPRESSIONS.items():
            if isinstance(node, kind):
                self.scope.refuse(node, f"{what} cannot be used in device code")
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            known, obj = self.scope.static(node)
            if known:
                return self.embed(obj, node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Attribute) and node.attr in _UNCHECKED_ATTRIBUTES:
            self.scope.refuse(node, f".{node.attr} cannot be used in device code")
        new = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(new, name, self.expression(value))
            elif isinstance(value, list):
                setattr(new, name, [self.expression(v) if isinstance(v, ast.expr) else v for v in value])
        return new

    def _name(self, node):
        if node.id in self.names:
            replacement = self.names[node.id]
            if isinstance(replacement, ast.AST):
                return _at(_strip(copy.deepcopy(replacement)), node)
            new = ast.copy_location(ast.Name(replacement, node.ctx), node)
            new.shown = node.id  # what an error calls it
            return new
        known, obj = self.scope.static(node)
        return self.embed(obj, node)

    def embed(self, obj, node):
        """An expression for a Python object of the kernel's surroundings."""
        source = ast.unparse(node)
        if isinstance(obj, enum.Enum):
            obj = obj.value
        if isinstance(obj, stubs.Value):
            return self._code(obj.code, node)
        if isinstance(obj, (bool, int, np.bool_)) or obj is None:
            return _at(ast.Constant(bool(obj) if isinstance(obj, np.bool_) else obj), node)
        if isinstance(obj, np.generic) and obj.dtype.kind in "iufc":
            return self._code(f"_np.{obj.dtype.name}({_number(obj.item())})", node)
        if isinstance(obj, (float, complex)):
            return self._code(_number(obj), node)
        if isinstance(obj, tuple):
            return _at(ast.Tuple([self.embed(item, node) for item in obj], ast.Load()), node)
        if isinstance(obj, (np.ndarray, DeviceNDArray)):
            new = self._code(self._hidden(obj), node)
            new.shown = source  # what an error calls it
            return new
        if isinstance(obj, types.Type) or (isinstance(obj, type) and issubclass(obj, np.generic)):
            ty = _as_type(obj)
            if isinstance(ty, (types.Number, types.Boolean)):
                return self._code(type_code(ty), node)
        if isinstance(obj, (stubs.Dim3, stubs.Module)):
            self.scope.refuse(node, f"{source} cannot be used whole", f"use one of its parts, such as {source}.x")
        if isinstance(obj, (stubs.Function, python_types.FunctionType, python_types.BuiltinFunctionType)):
            self.scope.refuse(node, f"the function {source} can be called here, but not passed around")
        self.scope.refuse(
            node, f"{source} is a host object ({type(obj).__name__}); device code takes numbers, tuples and arrays"
        )

    def _code(self, text, node):
        return _at(_strip(ast.parse(text, mode="eval").body), node)

    def _bind(self, stub, node):
        """The arguments of a call of a stub, in the order of its parameters."""
        given = dict(zip(stub.params, node.args, strict=False))
        if node.keywords and (stub.name.startswith("atomic.") or stub.name == "syncwarp"):
            self.scope.refuse(node, f"{stub.full_name} takes no keyword arguments")
        extra = node.args[len(stub.params) :]
        for keyword in node.keywords:
            if keyword.arg not in stub.params or keyword.arg in given:
                self.scope.refuse(node, f"{stub.full_name} has no argument {keyword.arg!r}")
            given[keyword.arg] = keyword.value
        missing = [p for p in stub.params if p not in given and p not in stub.optional]
        if missing or extra:
            self.scope.refuse(node, f"{stub.full_name} takes ({', '.join(stub.params)}), {len(node.args)} given")
        return [given[p] for p in stub.params if p in given]

    def _call(self, node):
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr == "sync" and not self.scope.static(func)[0]:
            is_group = self._grid_group(func.value) or (
                isinstance(func.value, ast.Name) and func.value.id in self.grid_groups
            )
            if is_group:
                self.program.cooperative = True
                return self._sync("grid_sync", [], node)
        known, target = self.scope.static(func)
        if not known:
            if isinstance(func, ast.Attribute) and func.attr in METHODS and not node.keywords:
                method = ast.Attribute(self.expression(func.value), func.attr, ast.Load())
                return _at(ast.Call(method, [self.expression(a) for a in node.args], []), node)
            if isinstance(func, ast.Attribute):
                self.scope.refuse(node, f"the method .{func.attr}() cannot be used in device code")
            self.scope.refuse(node, f"{ast.unparse(func)} cannot be called in device code")
        if isinstance(target, stubs.Function):
            return self._call_stub(target, node)
        if _is_device_function(target):
            return self._call_device(target.py_func, node)
        arguments = [self.expression(a) for a in node.args]
        ty = _as_type(target) if isinstance(target, (types.Type, np.dtype)) or _is_scalar_class(target) else None
        if isinstance(ty, (types.Number, types.Boolean)):
            return self._plain_call(type_code(ty), arguments, node)
        if target in (bool, int, float, complex) or getattr(builtins, getattr(target, "__name__", ""), 0) is target:
            if target.__name__ in BUILTINS:
                return self._plain_call(target.__name__, arguments, node)
            self.scope.refuse(node, f"{target.__name__}() cannot be used in device code")
        if isinstance(target, np.ufunc):
            if target.__name__ not in UFUNCS:
                better = f"use math.{target.__name__}" if target.__name__ in MATH else None
                self.scope.refuse(node, f"numba.cuda has no np.{target.__name__}", better)
            return self._plain_call(f"_np.{target.__name__}", arguments, node)
        if getattr(math, getattr(target, "__name__", ""), None) is target:
            if target.__name__ not in MATH:
                better = "use cuda.cbrt" if target.__name__ == "cbrt" else None
                self.scope.refuse(node, f"numba.cuda has no math.{target.__name__}", better)
            if target.__name__ in _MATH_ELSEWHERE:
                return self._plain_call(_MATH_ELSEWHERE[target.__name__], arguments, node)
            return self._plain_call(f"_math.{target.__name__}", arguments, node)
        if getattr(operator, getattr(target, "__name__", ""), None) is target:
            return self._plain_call(f"_operator.{target.__name__}", arguments, node)
        name = ast.unparse(func)
        if isinstance(target, python_types.FunctionType):
            self.scope.refuse(node, f"{name} is a host function", "decorate it with @cuda.jit(device=True)")
        self.scope.refuse(node, f"{name} cannot be called in device code")

    def _plain_call(self, name, arguments, node):
        if node.keywords:
            self.scope.refuse(node, f"keyword arguments of {ast.unparse(node.func)} are not supported in device code")
        return _at(ast.Call(_strip(ast.parse(name, mode="eval").body), arguments, []), node)

    def _sync(self, op, arguments, node):
        call = _at(ast.Call(ast.Name(f"_{op}", ast.Load()), arguments, []), node)
        call.sync_op = op
        return call

    def _call_stub(self, stub, node):
        if stub.name in ("shared.array", "local.array"):
            space, shape, dtype, alignment = self._declaration(node)
            name = self.rewriter.fresh(space)
            self.pending += self._declare(space, shape, dtype, alignment, node, name)
            return self._code(self.rewriter.shared_keys.get(
                (self.scope.key, node.lineno, node.col_offset), name), node)  # fmt: skip
        bound = self._bind(stub, node)
        if stub.name == "const.array_like":
            known, array = self.scope.static(bound[0])
            if not known or not isinstance(array, np.ndarray):
                self.scope.refuse(node, "cuda.const.array_like takes a NumPy array that is a global of the kernel")
            return self._code(self._hidden(array), node)
        if stub.name in ("grid", "gridsize"):
            known, ndim = self.scope.constant(bound[0])
            if not known or ndim not in (1, 2, 3):
                self.scope.refuse(node, f"cuda.{stub.name} takes 1, 2 or 3, not {ast.unparse(bound[0])}")
            form = "_b{0} * _bd{0} + _t{0}" if stub.name == "grid" else "_bd{0} * _gd{0}"
            parts = [form.format(axis) for axis in "xyz"[:ndim]]
            return self._code(parts[0] if ndim == 1 else f"({', '.join(parts)})", node)
        if stub is stubs.this_grid:
            self.scope.refuse(node, "cg.this_grid() has one use here: cg.this_grid().sync()")
        arguments = [self.expression(a) for a in bound]
        if isinstance(stub, ptx.Intrinsic):
            return self._call_intrinsic(stub, bound, arguments, node)
        if stub.name in stubs.SYNC:
            return self._sync(stub.name, arguments, node)
        if stub.name.startswith("threadfence") or stub.name == "nanosleep":
            return self._code("None", node)  # the CPU device runs one thread of a block at a time: always in order
        if stub.name == "lanemask_lt":
            return self._code("_np.uint32((1 << (_t & 31)) - 1)", node)
        if stub.name == "atomic.compare_and_swap":
            arguments.insert(1, ast.Constant(0))
            self.program.has_atomics = True
            return self._plain_bound("_atomic_cas", arguments, node)
        if stub.name.startswith("atomic."):
            self.program.has_atomics = True
            return self._plain_bound(f"_atomic_{stub.name[7:]}", arguments, node)
        return self._plain_bound(f"_{stub.name}", arguments, node)

    def _call_intrinsic(self, stub, given, arguments, node):
        """A call of labkit.ptx. What is constant on a GPU must be constant, and arrays must be where they belong."""
        for parameter, source, value in zip(stub.params, given, arguments, strict=True):
            if parameter in stub.constants:
                known, constant = self.scope.constant(source)
                allowed = stub.constants[parameter]
                if not known or isinstance(constant, bool) or constant not in allowed:
                    self.scope.refuse(
                        node, f"{parameter} of {stub.full_name} is {ast.unparse(source)}; it must be a constant, "
                        f"{ptx.words(allowed)}"
                    )  # fmt: skip
            elif parameter in ("shared", "bars", "array"):
                space = "global" if parameter == "array" else "shared"
                self._check_space(stub, parameter, space, value, source)
        if stub.interpreted and not self.program.interpreted:
            self.program.interpreted = stub.full_name
        self.program.has_copies |= stub.name.startswith("cp_async")
        if _waits(stub):
            return self._sync(stub.full_name, arguments, node)
        if stub.kind == "order":
            return self._code("None", node)
        call = self._plain_bound(f"_ptx_{stub.name}", arguments, node)
        call.intrinsic = stub
        return call

    def _check_space(self, stub, parameter, space, value, source):
        name = value.id if isinstance(value, ast.Name) and self.device is None else None
        held = (
            "shared" if name in self.program.shared
            else "local" if name in self.program.local
            else "global" if name in self.program.params or name in self.program.constants
            else space
        )  # fmt: skip
        if held != space:
            kind = f"a {held} array" if held != "global" else "in global memory"
            self.scope.refuse(source, f"{parameter} of {stub.full_name} must be in {space} memory, and "
                              f"{ast.unparse(source)} is {kind}")  # fmt: skip

    def _plain_bound(self, name, arguments, node):
        return _at(ast.Call(ast.Name(name, ast.Load()), arguments, []), node)

    def _call_device(self, function, node):
        try:
            bound = inspect.signature(function).bind(*node.args, **{k.arg: k.value for k in node.keywords})
        except TypeError as error:
            self.scope.refuse(node, f"call of device function {function.__name__}: {error}")
        arguments = []
        for name, parameter in inspect.signature(function).parameters.items():
            given = bound.arguments.get(name)
            arguments.append(self.expression(given) if given is not None else self.embed(parameter.default, node))
        if self.rewriter.needs_inline(function):
            call = _at(ast.Call(ast.Name(f"_{function.__name__}", ast.Load()), arguments, []), node)
            call.inline = function
            return call
        call = self._plain_bound(self.rewriter.device_function(function), arguments, node)
        call.device = True
        return call


def _is_scalar_class(obj):
    return isinstance(obj, type) and issubclass(obj, np.generic)


def _strip(node):
    """Forget the positions of parsed helper code, so that `_at` gives it the kernel's."""
    for child in ast.walk(node):
        for attribute in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            if hasattr(child, attribute):
                delattr(child, attribute)
    return node


def _number(value):
    """Source of a number that evaluates to it exactly."""
    if isinstance(value, complex):
        return f"complex({_number(value.real)}, {_number(value.imag)})"
    if isinstance(value, float):
        if math.isnan(value):
            return "_np.nan"
        if math.isinf(value):
            return "_np.inf" if value > 0 else "(-_np.inf)"
    return repr(value)
