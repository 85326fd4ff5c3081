"""The names of one function: its local names, and the meaning of the others."""

import ast
import builtins
import contextlib
import enum
import inspect
import types as python_types
from typing import NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.core.dispatcher import Dispatcher
from numba.np import numpy_support

from labkit.simt import libraries, stubs, unsigned
from labkit.simt.arrays import DeviceNDArray, as_cuda_array, is_cuda_array
from labkit.simt.errors import UnsupportedError
from labkit.simt.ir import BUILTINS
from labkit.simt.sources import keep_source, read_source

_ATTRIBUTES_OF_ARRAYS = {"shape", "size", "ndim", "strides", "itemsize", "nbytes"}
_LITERAL_NODES = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)


def _cells(function):
    """What a function closes over; cells that are still empty are left out."""
    contents = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            contents.append(cell.cell_contents)
    return contents


class Callee(NamedTuple):
    """A device function as one call has it: fixed are the (parameter, object) pairs that are no values at run time.

    Those are functions and types, and what its arrays take their shape or dtype from.
    """

    function: object  # the Python function
    fixed: tuple = ()


class LocalFunction(NamedTuple):
    """A function that a kernel or a device function defines: py_func takes what it uses of its surroundings as well."""

    py_func: object


def lift_functions(scope):
    """Take the functions and lambdas out of a definition: {name: LocalFunction}. Their calls pass what they use of its
    locals, and a lambda that is an argument becomes a name."""
    lifter = _Lifter(scope)
    scope.definition.body = [s for s in map(lifter.visit, scope.definition.body) if s is not None]
    for node in ast.walk(scope.definition):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in lifter.uses:
            node.keywords = [*node.keywords, *(ast.copy_location(
                ast.keyword(name, ast.copy_location(ast.Name(name, ast.Load()), node)), node)
                for name in lifter.uses[node.func.id])]  # fmt: skip
    return lifter.functions


class _Lifter(ast.NodeTransformer):
    def __init__(self, scope):
        self.scope, self.functions, self.uses = scope, {}, {}
        stores = [n for n in ast.walk(scope.definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.outer = {*scope.params, *(n.id for n in stores)}

    def visit_FunctionDef(self, node):
        self._lift(node.name, node.args, node.body, node)

    def visit_Assign(self, node):
        target = node.targets[0]
        if not isinstance(node.value, ast.Lambda) or len(node.targets) > 1 or not isinstance(target, ast.Name):
            return self.generic_visit(node)
        self._lift(target.id, node.value.args, [ast.copy_location(ast.Return(node.value.body), node)], node)
        return None

    def visit_Lambda(self, node):
        name = f"lambda_{node.lineno}_{node.col_offset}"
        self._lift(name, node.args, [ast.copy_location(ast.Return(node.body), node)], node)
        if self.uses[name]:
            self.scope.refuse(node, f"a lambda that is an argument cannot use the variable {self.uses[name][0]}")
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _lift(self, name, arguments, body, node):
        if name in self.functions:
            self.scope.refuse(node, f"the function {name} is defined twice")
        names = [n for s in body for n in ast.walk(s) if isinstance(n, ast.Name)]
        own = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        own |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
        self.uses[name] = sorted({n.id for n in names} & self.outer - own - {name})
        arguments.kwonlyargs = [*arguments.kwonlyargs, *(ast.arg(n) for n in self.uses[name])]
        arguments.kw_defaults = [*arguments.kw_defaults, *(None for _ in self.uses[name])]
        definition = ast.copy_location(ast.FunctionDef(name, arguments, body, []), node)
        if hasattr(ast, "TypeVar"):  # Python 3.12
            definition.type_params = []
        module = ast.fix_missing_locations(ast.Module([definition], []))
        namespace = dict(self.scope.environment)
        exec(compile(module, self.scope.filename, "exec"), namespace)
        namespace.update(self.functions)
        keep_source(namespace[name], definition, self.scope.filename)
        self.functions[name] = LocalFunction(namespace[name])


class Scope:
    """The names of one function: local names, the meaning of the rest. Takes a Python function, or a Callee."""

    def __init__(self, function):
        function, fixed = function if isinstance(function, Callee) else (function, ())
        self.function = function
        self.definition, self.filename = read_source(function)
        self.functions = {}  # those that it defines: name -> LocalFunction
        arguments = self.definition.args
        if arguments.kwarg:
            raise UnsupportedError(f"{function.__name__}: **kwargs are not supported in device code")
        # functions from one factory share their code and differ in what they close over
        self.key = function.__code__, tuple(map(id, _cells(function))), tuple((n, _identity(v)) for n, v in fixed)
        rest = [arguments.vararg] if arguments.vararg else []  # a tuple
        self.params = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *rest, *arguments.kwonlyargs)]
        self.params = [name for name in self.params if name not in dict(fixed)]
        self.environment = dict(function.__globals__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                self.environment[name] = cell.cell_contents
            except ValueError:
                self.environment.pop(name, None)
        self.environment.update(fixed)
        if any(isinstance(n, (ast.FunctionDef, ast.Lambda)) for s in self.definition.body for n in ast.walk(s)):
            self.functions = lift_functions(self)
        stores = [n for n in ast.walk(self.definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.locals = set(self.params) | {n.id for n in stores}
        self.assigned = {}
        for name in stores:
            self.assigned[name.id] = self.assigned.get(name.id, 0) + 1
        self.local_constants, self.aliases, self.set_once = {}, {}, {}
        self._find_constant_locals()

    def _find_constant_locals(self):
        """Locals set once: to an integer literal (they may be array shapes), to a text (it may name a record's field),
        or to cuda.threadIdx and its kind."""
        for node in ast.walk(self.definition):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._find_set_once(target, node.value)
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name not in self.set_once:
                    continue
                if isinstance(node.value, ast.Constant) and type(node.value.value) is int:
                    self.local_constants[name] = node.value.value
                elif isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                    self.aliases[name] = node.value.value
                elif isinstance(node.value, (ast.Name, ast.Attribute)):
                    known, obj = self.static(node.value)
                    if known and isinstance(obj, (stubs.Dim3, stubs.Module)):
                        self.aliases[name] = obj

    def _find_set_once(self, target, value):
        """Record the names of a target that are assigned once, with their values."""
        if isinstance(target, ast.Name) and self.assigned[target.id] == 1 and target.id not in self.params:
            self.set_once[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for name_node, value_node in zip(target.elts, value.elts, strict=True):
                self._find_set_once(name_node, value_node)

    def refuse(self, node, message, instead=None, problem="", **facts):
        """problem, facts: what the message says, as data (errors.CompileError)."""
        sentence = f"{message}; {instead}" if instead else message
        raise UnsupportedError.at(self.function.__name__, self.filename, node.lineno, sentence, problem, **facts)

    def site(self, node):
        """What tells one call from the others."""
        return self.key, node.lineno, node.col_offset

    def static(self, node):
        """(True, object) if the expression is a constant of the kernel's surroundings."""
        if isinstance(node, ast.Name):
            if node.id in self.functions:
                return True, self.functions[node.id]
            if node.id in self.aliases:
                return True, self.aliases[node.id]
            if node.id in self.locals:
                return False, None
            if node.id in self.environment:
                value = self.environment[node.id] = _on_cpu(self.environment[node.id])
                return True, value
            if hasattr(builtins, node.id):
                return True, getattr(builtins, node.id)
            self.refuse(node, f"the name {node.id!r} is not defined", problem="unknown name", name=node.id)
        if isinstance(node, ast.Attribute):
            known, base = self.static(node.value)
            if not known:
                return False, None
            if isinstance(base, (np.ndarray, DeviceNDArray)) and node.attr not in _ATTRIBUTES_OF_ARRAYS:
                return False, None
            if isinstance(base, np.generic) and node.attr in ("real", "imag"):
                return True, getattr(base, node.attr)
            stub = _counterpart(base, node.attr)
            if stub is not None:
                return True, stub
            name = ast.unparse(node.value)
            if not _may_hold_constants(base):
                self.refuse(node, f"{name} is a host object ({type(base).__name__})",
                            f"bind {name}.{node.attr} to a name outside the kernel, and use that")  # fmt: skip
            if not hasattr(base, node.attr):
                elsewhere = _is_of_numba_cuda(base)  # it may exist on a GPU
                message = "is not supported by the CPU device" if elsewhere else "does not exist"
                self.refuse(node, f"{name}.{node.attr} {message}", problem="unknown member", base=name, name=node.attr,
                            elsewhere=elsewhere)
            return True, _on_cpu(getattr(base, node.attr))
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            known, base = self.static(node.value)
            if known and isinstance(base, (tuple, enum.EnumMeta)):
                index_known, index = self.constant(node.slice)
                if index_known:
                    return True, base[index]
        if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.func, (ast.Name, ast.Attribute)):
            known, function = self.static(node.func)
            if known and function in (np.finfo, np.iinfo):
                is_constant, of = self.constant(node.args[0])
                if is_constant and as_type(of) is not None:
                    return True, function(numpy_support.as_dtype(as_type(of)))
        return False, None

    def integer(self, node):
        """The integer that an expression is known to be, by the rule of unsigned.py; None for another."""
        if isinstance(node, ast.Name) and node.id in self.set_once:
            return self.integer(self.set_once[node.id])
        if isinstance(node, ast.BinOp) and type(node.op).__name__ in unsigned.OPERATORS:
            return unsigned.folded(type(node.op).__name__, self.integer(node.left), self.integer(node.right))
        if isinstance(node, (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp)):
            known, value = self.constant(node)
            return value if known and type(value) is int else None
        return None

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


def _may_hold_constants(obj):
    """Modules, classes, arrays and numbers: what device code may take an attribute of."""
    kinds = (python_types.ModuleType, type, np.ndarray, np.generic, np.dtype, np.finfo, np.iinfo, DeviceNDArray,
             tuple, enum.Enum, types.Type, stubs.Module, stubs.Dim3, stubs.Function, stubs.Value, int, float,
             complex)  # fmt: skip
    return isinstance(obj, kinds)


def _is_of_numba_cuda(base):
    """Whether a name that it lacks here may exist on a GPU."""
    if isinstance(base, python_types.ModuleType):
        return libraries.as_numba_cuda(base.__name__).startswith(("numba.cuda", "labkit.cuda", "labkit.simt"))
    return isinstance(base, (stubs.Module, stubs.Dim3, stubs.Function, stubs.Value))


def _counterpart(base, attribute):
    """The stub for a name of numba.cuda: on a GPU a kernel's `cuda` is that module, and `observe` reads it here."""
    if not isinstance(base, python_types.ModuleType):
        return None
    stub = libraries.counterpart(base.__name__, attribute)
    if stub is None and libraries.as_numba_cuda(base.__name__) in ("numba.cuda", "numba.cuda.cg"):
        stub = getattr(stubs, attribute, None)
    return stub


def _on_cpu(obj):
    """What labkit.ptx or labkit.u32 has on a GPU -> the CPU device's; a type of numba-cuda-mlir -> Numba's; another
    library's array in device memory -> a device array; all else as it is."""
    if type(obj).__module__.startswith("numba_cuda_mlir.numba_cuda.types"):
        return getattr(types, str(obj), obj)
    if isinstance(obj, (stubs.Function, python_types.ModuleType, np.ndarray, int, float)):
        return obj
    if is_cuda_array(obj) and not isinstance(obj, (type, DeviceNDArray)):
        return as_cuda_array(obj)
    stub = getattr(obj, "cpu_device", None) or libraries.counterpart(
        getattr(obj, "__module__", None), getattr(obj, "__name__", None)
    )
    return stub if isinstance(stub, (stubs.Function, stubs.Dim3)) else obj


def waits(stub):
    """True if threads wait for one another in a call of this function."""
    return stub.name in stubs.SYNC or getattr(stub, "kind", "") in ("warp", "warpgroup", "wait")


def bind(scope, function, node):
    """(Callee, {parameter: its node, or its default}) for the call of a device function within `scope`."""
    try:
        bound = inspect.signature(function).bind(*node.args, **{k.arg: k.value for k in node.keywords})
    except TypeError as error:
        scope.refuse(node, f"call of device function {function.__name__}: {error}")
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            scope.refuse(node, f"{function.__name__} takes **kwargs, which device code cannot have")
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = ast.Tuple(list(bound.arguments.get(name, ())), ast.Load())
            bound.arguments[name] = ast.copy_location(rest, node)
    definition, _ = read_source(function)
    assigned = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    in_arrays = _names_in_declarations(definition)
    fixed, arguments = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        value = bound.arguments.get(name)
        known, obj = (True, parameter.default) if value is None else scope.constant(value)
        stays = _is_no_value(obj) or (name in in_arrays and isinstance(obj, (int, tuple, np.integer, str, np.dtype)))
        if known and name not in assigned and stays:
            fixed.append((name, obj))
        else:
            arguments[name] = parameter.default if value is None else value
    return Callee(function, tuple(fixed)), arguments


def _is_no_value(obj):
    kinds = (stubs.Function, types.Type, np.ufunc, type, python_types.BuiltinFunctionType, python_types.FunctionType)
    return isinstance(obj, kinds) or is_device_function(obj)


def _names_in_declarations(definition):
    """The names in calls of cuda.shared.array and cuda.local.array."""
    calls = [
        n for n in ast.walk(definition)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "array"
    ]  # fmt: skip
    return {n.id for call in calls for n in ast.walk(call) if isinstance(n, ast.Name)}


def _identity(obj):
    """Compare by value where possible: a new object may reuse the id of a deleted one."""
    by_value = isinstance(obj, (int, str, tuple, np.integer, np.dtype, types.Type))
    return (type(obj), obj) if by_value else id(obj)


def is_device_function(obj):
    return isinstance(obj, Dispatcher) or hasattr(obj, "py_func")


def as_type(obj):
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
    return "_np.bool_" if ty == types.boolean else f"_np.{ty.name}"


def own_names(scope):
    """Each local's name in the tree: range and its kind, and names that begin with _, are taken."""
    names = {}
    for name in sorted(scope.locals):
        new = name
        while new.startswith("_") or new in BUILTINS or (new != name and new in scope.locals):
            new = f"u{new}"
        names[name] = new
    return names
