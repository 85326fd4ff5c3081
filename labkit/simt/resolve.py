"""Resolves the names of one function, and refuses what a GPU does not have, with the line."""

import ast
import builtins
import cmath
import copy
import dis
import enum
import inspect
import math
import operator
import types as python_types
import warnings

import numpy as np
from numba.core import types
from numba.core.errors import NumbaError
from numba.np import numpy_support

from labkit.simt import libraries, ptx, stubs, u32, unsigned
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.ir import (
    BUILTINS,
    FOLDABLE,
    ArrayDeclaration,
    AtomicCall,
    BinOp,
    DeviceCall,
    DtypeOf,
    InlineCall,
    IntrinsicCall,
    Name,
    OverloadCall,
    Subscript,
    SyncCall,
    assign,
    at_line,
    load,
    store,
    without_positions,
)
from labkit.simt.overloads import Member, is_intrinsic, is_typed, on_cpu, overloads_of
from labkit.simt.scope import as_type, bind, is_device_function, type_code, waits

# numba.cuda's functions of math and NumPy. Those with another home lack one on Numba's CPU target, or differ there.
MATH = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "degrees", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fmod", "frexp", "gamma", "hypot", "isfinite", "isinf", "isnan",
    "ldexp", "lgamma", "log", "log10", "log1p", "log2", "modf", "nextafter", "pow", "radians", "remainder", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
}  # fmt: skip
_MATH_ELSEWHERE = {"fmod": "_fmod", "exp2": "_np.exp2", "remainder": "_remainder", "modf": "_modf",
                   "ldexp": "_ldexp", "frexp": "_frexp",
                   "pow": "_math_pow", "floor": "_floor", "ceil": "_ceil", "trunc": "_trunc"}  # fmt: skip
CMATH = {
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "isfinite", "isinf", "isnan", "log",
    "log10", "phase", "polar", "rect", "sin", "sinh", "sqrt", "tan", "tanh",
}  # fmt: skip
UFUNCS = {
    "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
    "arctan2", "hypot", "log", "log2", "log10", "deg2rad", "rad2deg", "degrees", "radians", "maximum", "minimum",
    "fmax", "fmin", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "logical_and",
    "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift",
    "right_shift", "isnan", "conjugate", "divide",
}  # fmt: skip
# What to write for a ufunc that numba.cuda lacks: its typing knows np.sqrt and its kind, but its lowering has none of
# them, so a kernel with one fails to compile on a GPU.
_INSTEAD_OF_UFUNCS = {
    "absolute": "abs()", "add": "+", "subtract": "-", "multiply": "*", "negative": "-", "positive": "+",
    "power": "**", "float_power": "**", "floor_divide": "//", "remainder": "%", "cbrt": "cuda.cbrt", "rint": "round()",
    "square": "x * x", "reciprocal": "1 / x", "bitwise_count": "cuda.popc",
}  # fmt: skip
_OPERATORS = {
    "pow": ast.Pow, "truediv": ast.Div, "lshift": ast.LShift, "rshift": ast.RShift, "add": ast.Add, "sub": ast.Sub,
    "mul": ast.Mult, "floordiv": ast.FloorDiv, "mod": ast.Mod, "and_": ast.BitAnd, "or_": ast.BitOr,
    "xor": ast.BitXor,
}  # fmt: skip
_OPERATORS_OF_ONE = {"neg": ast.USub, "pos": ast.UAdd, "invert": ast.Invert, "inv": ast.Invert, "not_": ast.Not}
_COMPARISONS = {"lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE, "eq": ast.Eq, "ne": ast.NotEq}
METHODS = {"bit_count", "conjugate", "conj", "reshape", "view", "fill", "sum", "transpose"}
_UNCHECKED_ATTRIBUTES = {"flat", "ctypes", "data", "base", "flags"}
REFUSED_EXPRESSIONS = {
    ast.List: "a list", ast.Dict: "a dictionary", ast.Set: "a set", ast.ListComp: "a list comprehension",
    ast.DictComp: "a dict comprehension", ast.SetComp: "a set comprehension", ast.GeneratorExp: "a generator",
    ast.JoinedStr: "an f-string", ast.Await: "await", ast.Yield: "yield",
    ast.YieldFrom: "yield", ast.Starred: "a starred expression", ast.NamedExpr: "an assignment expression (:=)",
}  # fmt: skip
REFUSED_STATEMENTS = {
    ast.With: "a with statement", ast.Try: "a try statement",
    ast.ClassDef: "a class", ast.Import: "an import", ast.ImportFrom: "an import",
    ast.Nonlocal: "nonlocal", ast.Delete: "del", ast.Match: "match", ast.AsyncFunctionDef: "async",
}  # fmt: skip


class Resolver:
    """Resolves the names of one function and checks that it stays within device code."""

    def __init__(self, rewriter, scope, names, device):
        self.rewriter, self.scope, self.names, self.device = rewriter, scope, names, device
        self.program = rewriter.result
        self.pending = []
        self.grid_groups = set()
        self.narrow = unsigned.follows(scope.function)

    # ---------------- statements

    def statement(self, s):
        """The resolved statements for one statement of the source."""
        for kind, construct in REFUSED_STATEMENTS.items():
            if isinstance(s, kind):
                self.scope.refuse(s, f"{construct} cannot be used in device code", problem="construct", name=construct)
        method = getattr(self, f"_{type(s).__name__.lower()}", None)
        if method is None:
            self.scope.refuse(s, f"{type(s).__name__} cannot be used in device code")
        result = method(s)
        result = result if isinstance(result, list) else [result]
        hoisted, self.pending = self.pending, []
        return hoisted + result

    def block(self, statements):
        outer, self.pending = self.pending, []
        body = [r for s in statements for r in self.statement(s)]
        self.pending = outer
        return body

    def _pass(self, s):
        return []

    def _global(self, s):
        for name in set(s.names) & self.scope.locals:
            self.scope.refuse(s, f"{name} is global, and device code cannot assign to it")
        return []

    def _break(self, s):
        return s

    _continue = _break

    def _expr(self, s):
        if self._grid_group(s.value):  # a launch is cooperative as soon as a kernel names its grid
            self.program.cooperative = True
            return []
        if isinstance(s.value, ast.Constant):
            return []  # a docstring
        stored = self._cached_store(s)
        if stored is not None:
            return stored
        if self._grid_group(s.value):
            self.program.cooperative = True
            return []
        value = self.expression(s.value)
        return at_line(ast.Expr(value), s) if value is not None else []

    def _cached_store(self, s):
        """cuda.stcg(a, i, v) and its kind -> a[i] = v; None for another statement."""
        if not isinstance(s.value, ast.Call) or not isinstance(s.value.func, (ast.Name, ast.Attribute)):
            return None
        known, stub = self.scope.static(s.value.func)
        if not known or stub not in stubs.CACHED_STORES:
            return None
        array, index, value = self._bind(stub, s.value)
        return self._assign(at_line(ast.Assign([ast.Subscript(array, index, ast.Store())], value), s))

    def _return(self, s):
        if isinstance(s.value, ast.Tuple):
            return at_line(
                ast.Return(at_line(ast.Tuple([self._merged(v) for v in s.value.elts], ast.Load()), s.value)), s
            )
        return at_line(ast.Return(None if s.value is None else self._merged(s.value)), s)

    def _assign(self, s):
        if len(s.targets) == 1 and isinstance(s.targets[0], ast.Name) and s.targets[0].id in self.scope.aliases:
            return []
        group = self._grid_group(s.value)
        if group and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
            self.grid_groups.add(s.targets[0].id)
            self.program.cooperative = True
            return []
        declared = self._declaration(s.value)
        if declared and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
            name = s.targets[0].id
            once = self.scope.assigned[name] == 1 and name not in self.scope.params
            return self._declare(*declared, s, self.names[name] if once else None, s.targets[0])
        if self.narrow and len(s.targets) > 1 and self.scope.integer(s.value) is not None:
            return self.block([at_line(ast.Assign([t], s.value), s) for t in s.targets])
        value = self._assigned(s.targets[0], s.value)
        targets = [self.expression(t) for t in s.targets]
        if len(targets) == 1 and isinstance(targets[0], ast.Tuple):
            if isinstance(value, ast.Tuple):
                return self._split_tuple(targets[0], value, s)
            if any(isinstance(t, ast.Subscript) for t in targets[0].elts):
                return self._unpack(targets[0], value, s)
        if len(targets) > 1:
            name = self.rewriter.fresh("c")
            return [assign(name, value, s)] + [
                at_line(ast.Assign([t], load(name)), s) for t in targets
            ]
        return at_line(ast.Assign(targets, value), s)

    def _assigned(self, target, node):
        """The value of an assignment: a constant is a uint32 for a variable that has other values as well."""
        if isinstance(target, ast.Tuple) and isinstance(node, ast.Tuple) and len(target.elts) == len(node.elts):
            pairs = zip(target.elts, node.elts, strict=True)
            return at_line(ast.Tuple([self._assigned(t, v) for t, v in pairs], ast.Load()), node)
        if isinstance(target, ast.Name) and (self.scope.assigned[target.id] > 1 or target.id in self.scope.params):
            return self._merged(node)
        return self.expression(node)

    def _argument(self, node):
        """An argument for a device function with the rule: constants are uint32, those in a tuple, too."""
        if isinstance(node, ast.Tuple):
            return at_line(ast.Tuple([self._argument(item) for item in node.elts], ast.Load()), node)
        return self._merged(node)

    def _merged(self, node):
        """One of several values: by the rule of unsigned.py, a constant is a uint32."""
        value = self.scope.integer(node) if self.narrow else None
        if not unsigned.is_constant(value):
            return self.expression(node)
        return at_line(ast.Call(self._code("_np.uint32", node), [ast.Constant(value)], []), node)

    def _split_tuple(self, target, value, s):
        """col, row = x, y -> two assignments, where no value depends on a target."""
        if len(target.elts) != len(value.elts):
            self.scope.refuse(s, f"{len(value.elts)} values for {len(target.elts)} names")
        written = {n.id for t in target.elts for n in ast.walk(t) if isinstance(n, ast.Name)}
        read = {n.id for v in value.elts for n in ast.walk(v) if isinstance(n, ast.Name)}
        if all(isinstance(t, ast.Name) for t in target.elts) and not written & read:
            return [at_line(ast.Assign([t], v), s) for t, v in zip(target.elts, value.elts, strict=True)]
        temps = [self.rewriter.fresh("c") for _ in value.elts]
        return [assign(k, v, s) for k, v in zip(temps, value.elts, strict=True)] + [
            at_line(ast.Assign([t], load(k)), s) for t, k in zip(target.elts, temps, strict=True)
        ]

    def _unpack(self, target, value, s):
        """a[0], a[1] = f() -> into names, then from the names into the elements."""
        names = [self.rewriter.fresh("c") for _ in target.elts]
        whole = ast.Tuple([store(name) for name in names], ast.Store())
        return [at_line(ast.Assign([whole], value), s)] + [
            at_line(ast.Assign([t], load(name)), s) for t, name in zip(target.elts, names, strict=True)
        ]

    def _annassign(self, s):
        if s.value is None:
            return []
        return self._assign(at_line(ast.Assign([s.target], s.value), s))

    def _augassign(self, s):
        if self.narrow and isinstance(s.target, ast.Name) and type(s.op).__name__ in unsigned.OPERATORS:
            read = ast.copy_location(ast.Name(s.target.id, ast.Load()), s.target)
            return self._assign(at_line(ast.Assign([s.target], ast.BinOp(read, s.op, s.value)), s))
        return at_line(ast.AugAssign(self.expression(s.target), s.op, self._divisor(s.op, self.expression(s.value))), s)

    def _if(self, s):
        test = self.expression(s.test)
        if all(isinstance(n, FOLDABLE) for n in ast.walk(test)):  # a setting of the surroundings, such as STAGES == 2
            chosen = eval(compile(ast.Expression(test), "<setting>", "eval"))
            return self.block(s.body if chosen else s.orelse)  # Numba leaves out the other branch as well
        return at_line(ast.If(test, self.block(s.body) or [at_line(ast.Pass(), s)], self.block(s.orelse)), s)

    def _while(self, s):
        test = self.expression(s.test)
        body, else_parts = self._loop_body(s)
        return [*else_parts[:1], at_line(ast.While(test, body, []), s), *else_parts[1:]]

    def _for(self, s):
        unsigned_range = self._unsigned_range(s.iter)
        iterable = self.expression(s.iter) if unsigned_range is None else unsigned_range
        target = self.expression(s.target)
        body, else_parts = self._loop_body(s)
        if unsigned_range is not None:  # it runs over int64, of which each pass makes a uint32
            counted = self.rewriter.fresh("c")
            body.insert(0, at_line(ast.Assign([target], ast.Call(self._code("_np.uint32", s), [load(counted)], [])), s))
            target = at_line(store(counted), s.target)
        return [*else_parts[:1], at_line(ast.For(target, iterable, body, [], None), s), *else_parts[1:]]

    def _unsigned_range(self, node):
        """range(...) for a call of u32.range; None for another."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
            return None
        known, stub = self.scope.static(node.func)
        if not known or stub is not u32.range:
            return None
        if node.keywords or not 1 <= len(node.args) <= 3:
            self.scope.refuse(node, f"u32.range takes 1 to 3 arguments, {len(node.args)} given")
        wide = [ast.Call(self._code("_np.int64", node), [self.expression(a)], []) for a in node.args]
        function = ast.Name("range", ast.Load())
        function.is_unsigned = True
        return at_line(ast.Call(function, wide, []), node)

    def _loop_body(self, s):
        """(body, []), or for a loop with an else, (body, [before the loop, after it])."""
        body = self.block(s.body) or [at_line(ast.Pass(), s)]
        if not s.orelse:
            return body, []
        finished = self.rewriter.fresh("c")
        _mark_breaks(body, finished)
        test = load(finished)
        return body, [assign(finished, ast.Constant(True), s), at_line(ast.If(test, self.block(s.orelse), []), s)]

    def _assert(self, s):
        test = self.expression(s.test)
        return at_line(ast.If(ast.UnaryOp(ast.Not(), test), [self._failure("", [s.msg] if s.msg else [])], []), s)

    def _raise(self, s):
        """Keep the class and the constants of the exception, in both runs, as a GPU does."""
        raised = s.exc.func if isinstance(s.exc, ast.Call) else s.exc
        known, kind = self.scope.static(raised) if isinstance(raised, (ast.Name, ast.Attribute)) else (False, None)
        is_class = known and isinstance(kind, type) and issubclass(kind, Exception)
        kind = kind if is_class else Exception
        name = kind.__name__
        while self.program.exceptions.setdefault(name, kind) is not kind:  # another class of this name
            name += "_"
        return at_line(self._failure(name, s.exc.args if isinstance(s.exc, ast.Call) else []), s)

    def _failure(self, kind, details):
        """The statement that stops the kernel. kind: the class of an exception, empty for an assert."""
        parts = []
        for node in details:
            known, value = self.scope.constant(node) if not isinstance(node, ast.Call) else (False, None)
            parts.append(str(value) if known else ast.unparse(node))
        arguments = [ast.Constant(kind), ast.Constant(", ".join(parts))]
        return ast.Expr(ast.Call(ast.Name("_assertion", ast.Load()), arguments, []))

    # ---------------- shared, local and constant arrays

    def _declaration(self, node):
        """("shared" | "local", shape, dtype) if the expression allocates an array of the device."""
        if not isinstance(node, ast.Call):
            return None
        known, target = self.scope.static(node.func)
        if not known or not isinstance(target, stubs.Function) or target.name not in ("shared.array", "local.array"):
            return None
        shape_node, dtype_node, *alignment_node = self._bind(target, node)
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
        dtype = as_type(dtype) if known and dtype not in (int, float, bool, complex) else None
        if not known and isinstance(dtype_node, ast.Attribute) and dtype_node.attr == "dtype":
            array = self.expression(dtype_node.value)
            if isinstance(array, ast.Name) and array.id in self.program.params:
                dtype = DtypeOf(array.id)
        if dtype is None or not isinstance(dtype, DtypeOf) and not _is_numpy_type(dtype):
            self.scope.refuse(node, f"{ast.unparse(dtype_node)} is not a dtype for cuda.{target.name}")
        parts = tuple(int(p) for p in parts)
        space = target.name.split(".")[0]
        if any(p < 0 for p in parts) or (0 in parts and (space == "local" or parts != (0,))):
            self.scope.refuse(node, f"the shape {parts} of cuda.{target.name} must be positive")
        return space, parts, dtype, self._alignment(alignment_node[0], node) if alignment_node else 16

    def _alignment(self, bound_nodes, node):
        known, alignment = self.scope.constant(bound_nodes)
        if alignment is None:
            return 16
        if not known or not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            text = ast.unparse(bound_nodes)
            self.scope.refuse(node, f"the alignment of an array must be a constant power of two from 8 on, not {text}")
        return max(alignment, 16)

    def _declare(self, space, shape, dtype, alignment, origin, name=None, target=None):
        """Register the array; return the statements for its allocation."""
        if space == "shared":
            if self.device is not None:
                raise AssertionError("a device function with shared memory is inlined")
            key = (self.scope.key, origin.lineno, origin.col_offset)
            known = self.rewriter.shared_keys.get(key)
            if known is None:
                known = name or self.rewriter.fresh("shared")
                self.rewriter.shared_keys[key] = known
                self.program.shared[known] = ArrayDeclaration(known, space, shape, dtype, origin.lineno, alignment)
            if known == name or target is None:
                return []
            return [assign(self.names[target.id], load(known), origin)]
        known = name or self.rewriter.fresh("local")
        declaration = ArrayDeclaration(known, space, shape, dtype, origin.lineno)
        if self.device is not None:
            self.device.local.append(declaration)
        else:
            self.program.local[known] = declaration
        fresh = at_line(ast.Expr(ast.Call(ast.Name("_poison", ast.Load()), [load(known)], [])), origin)
        if known == name or target is None:
            return [fresh]
        return [fresh, assign(self.names[target.id], load(known), origin)]

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
        for kind, construct in REFUSED_EXPRESSIONS.items():
            if isinstance(node, kind):
                self.scope.refuse(node, f"{construct} cannot be used in device code", problem="construct",
                                  name=construct)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            known, obj = self.scope.static(node)
            if known:
                return self.embed(obj, node)
        if isinstance(node, ast.BinOp) or _is_inversion(node):
            folded = _folded(node)
            if folded is not None:
                return at_line(folded, node)
            if self.narrow and type(node.op).__name__ in unsigned.OPERATORS:
                return self._narrow(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.IfExp):
            arms = self._merged(node.body), self._merged(node.orelse)
            return ast.copy_location(ast.IfExp(self.expression(node.test), *arms), node)
        if isinstance(node, ast.BoolOp):
            return ast.copy_location(ast.BoolOp(node.op, [self._merged(v) for v in node.values]), node)
        if isinstance(node, ast.Attribute) and overloads_of(Member(node.attr, False)):
            return self._overloaded(Member(node.attr, False), ast.copy_location(ast.Call(node, [node.value], []), node))
        if isinstance(node, ast.Attribute) and node.attr in _UNCHECKED_ATTRIBUTES:
            self.scope.refuse(node, f".{node.attr} cannot be used in device code")
        if isinstance(node, ast.Subscript):
            value, index = self.expression(node.value), self.expression(node.slice)
            return ast.copy_location(Subscript(value, index, node.ctx, self.scope.filename), node)
        if _is_inversion(node):
            inverted = self.expression(node.operand)
            if isinstance(inverted, ast.Constant) and isinstance(inverted.value, bool):
                return at_line(ast.Constant(not inverted.value), node)  # a global's: Numba inverts it, and not Python
        new = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(new, name, self.expression(value))
            elif isinstance(value, list):
                setattr(new, name, [self.expression(v) if isinstance(v, ast.expr) else v for v in value])
        if isinstance(new, ast.BinOp):
            new.right = self._divisor(new.op, new.right)
        return new

    def _divisor(self, op, value):
        """Return the divisor; with debug=True, check that it is not zero."""
        if not self.rewriter.checks_division or not isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod)):
            return value
        return at_line(ast.Call(ast.Name("_divisor", ast.Load()), [value], []), value)

    def _narrow(self, node):
        """An operator by the rule of unsigned.py."""
        of_left, of_right = self.scope.integer(node.left), self.scope.integer(node.right)
        value = unsigned.folded(type(node.op).__name__, of_left, of_right)
        if value is not None:
            return at_line(ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value)), node)
        left, right = self.expression(node.left), self.expression(node.right)
        if of_left is None and of_right is None:
            return at_line(BinOp(left, node.op, right, False), node)
        if unsigned.is_constant(of_right if of_left is None else of_left):
            return at_line(BinOp(left, node.op, right, True), node)
        return at_line(ast.BinOp(left, node.op, right), node)

    def _name(self, node):
        if node.id in self.names and node.id not in self.scope.aliases:
            replacement = self.names[node.id]
            if isinstance(replacement, ast.AST):
                return at_line(without_positions(copy.deepcopy(replacement)), node)
            return ast.copy_location(Name(replacement, node.ctx, node.id), node)
        known, obj = self.scope.static(node)
        return self.embed(obj, node)

    def embed(self, obj, node):
        """An expression for a Python object of the kernel's surroundings."""
        source = ast.unparse(node)
        if isinstance(obj, enum.Enum) and not isinstance(obj, int):
            return at_line(ast.Attribute(load(self._object(type(obj))), obj.name, ast.Load()), node)
        if isinstance(obj, enum.Enum):
            obj = obj.value
        if isinstance(obj, stubs.Value):
            return self._code(obj.code, node)
        if isinstance(obj, (bool, int, np.bool_, str)) or obj is None:  # a text can be compared, as in kind == "add"
            return at_line(ast.Constant(bool(obj) if isinstance(obj, np.bool_) else obj), node)
        if isinstance(obj, np.generic) and obj.dtype.kind in "iufc":
            return self._code(f"_np.{obj.dtype.name}({_number(obj.item())})", node)
        if isinstance(obj, (float, complex)):
            return self._code(_number(obj), node)
        if isinstance(obj, tuple):
            return at_line(ast.Tuple([self.embed(item, node) for item in obj], ast.Load()), node)
        if isinstance(obj, (np.ndarray, DeviceNDArray)):
            return at_line(Name(self._hidden(obj), ast.Load(), source), node)
        if isinstance(obj, types.Type) or (isinstance(obj, type) and issubclass(obj, np.generic)):
            ty = as_type(obj)
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
        return at_line(without_positions(ast.parse(text, mode="eval").body), node)

    def _bind(self, stub, node):
        """The arguments of a call of a stub, in the order of its parameters."""
        bound_nodes = dict(zip(stub.params, node.args, strict=False))
        if node.keywords and (stub.name.startswith("atomic.") or stub.name == "syncwarp"):
            self.scope.refuse(node, f"{stub.full_name} takes no keyword arguments")
        extra = node.args[len(stub.params) :]
        for keyword in node.keywords:
            if keyword.arg not in stub.params or keyword.arg in bound_nodes:
                self.scope.refuse(node, f"{stub.full_name} has no argument {keyword.arg!r}")
            bound_nodes[keyword.arg] = keyword.value
        missing = [p for p in stub.params if p not in bound_nodes and p not in stub.optional]
        if missing or extra:
            self.scope.refuse(node, f"{stub.full_name} takes ({', '.join(stub.params)}), {len(node.args)} given",
                              problem="arguments", name=stub.full_name, parameters=tuple(stub.params),
                              count=len(node.args))
        return [bound_nodes[p] for p in stub.params if p in bound_nodes]

    def _spread(self, function, node):
        """A call f(*t) of a device function with t's elements in its place: as many as parameters are left."""
        stars = [k for k, a in enumerate(node.args) if isinstance(a, ast.Starred)]
        if len(stars) != 1:
            self.scope.refuse(node, "a call takes one starred argument")
        value = node.args[stars[0]].value
        if isinstance(value, ast.Tuple):
            parts = value.elts
        elif any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values()):
            text = f"{function.__name__} takes *args, and the length of {ast.unparse(value)} is not known"
            self.scope.refuse(node, text)
        else:
            name = self.rewriter.fresh("c")
            self.names[name] = name
            self.scope.locals.add(name)
            self.pending.append(assign(name, self.expression(value), node))
            left = len(inspect.signature(function).parameters) - len(node.args) + 1 - len(node.keywords)
            parts = [at_line(ast.Subscript(ast.Name(name, ast.Load()), ast.Constant(k), ast.Load()), node)
                     for k in range(left)]  # fmt: skip
        arguments = [*node.args[: stars[0]], *parts, *node.args[stars[0] + 1 :]]
        return ast.copy_location(ast.Call(node.func, arguments, node.keywords), node)

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
                if func.attr == "bit_count":
                    return at_line(ast.Call(ast.Name("_popc", ast.Load()), [self.expression(func.value)], []), node)
                value = self.expression(func.value)
                if func.attr == "transpose":
                    if node.args:
                        self.scope.refuse(node, "the method .transpose() takes no arguments in device code")
                    return at_line(ast.Attribute(value, "T", ast.Load()), node)
                program, name = self.program, value.id if isinstance(value, ast.Name) else None
                is_array = name in program.params or name in program.shared or name in program.local
                if func.attr == "view" and not is_array:  # of a row, say, or of a number
                    parts = [value, *(self.expression(a) for a in node.args)]
                    return at_line(ast.Call(ast.Name("_view", ast.Load()), parts, []), node)
                method = ast.Attribute(value, func.attr, ast.Load())
                return at_line(ast.Call(method, [self.expression(a) for a in node.args], []), node)
            if isinstance(func, ast.Attribute) and overloads_of(Member(func.attr, True)):
                whole = ast.copy_location(ast.Call(func, [func.value, *node.args], node.keywords), node)
                return self._overloaded(Member(func.attr, True), whole)
            if isinstance(func, ast.Attribute):
                self.scope.refuse(node, f"the method .{func.attr}() cannot be used in device code",
                                  problem="unknown method", name=func.attr)
            self._refuse_call(node)
        if isinstance(target, stubs.Function):
            return self._call_stub(target, node)
        if is_device_function(target):
            if any(isinstance(a, ast.Starred) for a in node.args):
                node = self._spread(target.py_func, node)
            return self._call_device(target.py_func, getattr(target, "signature", None), node)
        if getattr(builtins, getattr(target, "__name__", ""), 0) is target and target.__name__ not in BUILTINS:
            self.scope.refuse(node, f"{target.__name__}() cannot be used in device code")
        resolve = self._merged if target in unsigned.CHOOSING else self.expression
        if target is print:
            resolve = self._printed
        arguments = [at_line(ast.Starred(resolve(a.value), ast.Load()), a) if isinstance(a, ast.Starred) else resolve(a)
                     for a in node.args]  # fmt: skip
        ty = as_type(target) if isinstance(target, (types.Type, np.dtype)) or _is_scalar_class(target) else None
        if isinstance(ty, (types.Number, types.Boolean)):
            return self._plain_call(type_code(ty), arguments, node)
        operation = _operation(target, arguments)
        if operation is not None:
            return at_line(operation, node)
        if target in (bool, int, float, complex) or getattr(builtins, getattr(target, "__name__", ""), 0) is target:
            if target is round and len(arguments) == 2:
                return self._plain_call("_round_digits", arguments, node)
            self.program.prints |= target is print
            return self._plain_call(target.__name__, arguments, node)
        if target in (np.ndindex, np.ndenumerate):
            return self._plain_call(f"_np.{target.__name__}", arguments, node)
        if isinstance(target, np.ufunc):
            if target.__name__ not in UFUNCS:
                name = target.__name__
                instead = f"math.{name}" if name in MATH - {"remainder"} else _INSTEAD_OF_UFUNCS.get(name)
                text = f"numba.cuda does not compile {ast.unparse(func)} in a kernel"
                self.scope.refuse(node, text, instead and f"use {instead}", problem="ufunc", name=ast.unparse(func),
                                  better=instead or "")
            return self._plain_call(f"_np.{target.__name__}", arguments, node)
        if getattr(math, getattr(target, "__name__", ""), None) is target:
            if target.__name__ not in MATH:
                better = "use cuda.cbrt" if target.__name__ == "cbrt" else None
                self.scope.refuse(node, f"numba.cuda has no math.{target.__name__}", better)
            if target.__name__ in _MATH_ELSEWHERE:
                return self._plain_call(_MATH_ELSEWHERE[target.__name__], arguments, node)
            return self._plain_call(f"_math.{target.__name__}", arguments, node)
        if getattr(cmath, getattr(target, "__name__", ""), None) is target:
            if target.__name__ not in CMATH:
                self.scope.refuse(node, f"numba.cuda has no cmath.{target.__name__}")
            return self._plain_call(f"_cmath.{target.__name__}", arguments, node)
        if getattr(operator, getattr(target, "__name__", ""), None) is target:
            return self._plain_call(f"_operator.{target.__name__}", arguments, node)
        if isinstance(target, type) and issubclass(target, tuple) and hasattr(target, "_fields"):
            name = self._object(target)
            given = {k.arg: self.expression(k.value) for k in node.keywords}
            if set(given) != set(target._fields[len(arguments) :]):
                self.scope.refuse(node, f"{ast.unparse(func)} takes ({', '.join(target._fields)})")
            arguments += [given[field] for field in target._fields[len(arguments) :]]
            return at_line(ast.Call(ast.Name(name, ast.Load()), arguments, []), node)
        if is_intrinsic(target):
            return self._plain_call(self._object(on_cpu(target)), arguments, node)
        if callable(target) and overloads_of(target):
            return self._overloaded(target, node)
        if callable(target) and is_typed(target):
            return self._plain_call(self._object(target), arguments, node)
        if isinstance(target, python_types.FunctionType):
            name = ast.unparse(func)
            self.scope.refuse(node, f"{name} is a host function", "decorate it with @cuda.jit(device=True)",
                              problem="host function", name=name)
        self._refuse_call(node)

    def _object(self, target):
        """The name of an object in the generated code."""
        name = next((n for n, known in self.program.objects.items() if known is target), None)
        name = name or f"_object{len(self.program.objects)}"
        self.program.objects[name] = target
        return name

    def _printed(self, node):
        """What print() is given: cuda.threadIdx and its kind as a tuple."""
        known, obj = self.scope.static(node) if isinstance(node, (ast.Name, ast.Attribute)) else (False, None)
        parts = [obj.x, obj.y, obj.z] if known and isinstance(obj, stubs.Dim3) else None
        return self.expression(node) if parts is None else self.embed(tuple(parts), node)

    def _overloaded(self, function, node):
        """The call of a function by its overload, once that is chosen for the types of the arguments."""
        site = self.scope.site(node)
        chosen = self.rewriter.choices.get(site)
        if chosen:
            return self._call_device(chosen, None, node)
        if site in self.rewriter.choices:
            attribute = at_line(ast.Attribute(self.expression(node.args[0]), function.name, ast.Load()), node)
            if not function.is_method:
                return attribute
            keywords = [ast.keyword(k.arg, self.expression(k.value)) for k in node.keywords]
            return at_line(ast.Call(attribute, [self.expression(a) for a in node.args[1:]], keywords), node)
        arguments = [self.expression(a) for a in (*node.args, *(k.value for k in node.keywords))]
        call = OverloadCall(function, site, arguments, [k.arg for k in node.keywords], self.scope.filename)
        self.program.overloads.append(at_line(call, node))
        return call

    def _refuse_call(self, node):
        name = ast.unparse(node.func)
        self.scope.refuse(node, f"{name} cannot be called in device code", problem="call", name=name)

    def _plain_call(self, name, arguments, node):
        if node.keywords:
            self.scope.refuse(node, f"keyword arguments of {ast.unparse(node.func)} are not supported in device code")
        return at_line(ast.Call(without_positions(ast.parse(name, mode="eval").body), arguments, []), node)

    def _sync(self, op, arguments, node):
        return at_line(SyncCall(op, arguments), node)

    def _call_stub(self, stub, node):
        if stub.name in ("shared.array", "local.array"):
            space, shape, dtype, alignment = self._declaration(node)
            name = self.rewriter.fresh(space)
            self.pending += self._declare(space, shape, dtype, alignment, node, name)
            key = (self.scope.key, node.lineno, node.col_offset)
            return at_line(load(self.rewriter.shared_keys.get(key, name)), node)
        if isinstance(stub, libraries.VectorType):
            return self._plain_call(stub.code, [self.expression(a) for a in node.args], node)
        if stub is u32.range:
            self.scope.refuse(node, "u32.range() is something to loop over", "write for i in u32.range(n)")
        bound = self._bind(stub, node)
        if stub.name == "const.array_like":
            known, array = self.scope.static(bound[0])
            if not known or not isinstance(array, np.ndarray):
                self.scope.refuse(node, "cuda.const.array_like takes a NumPy array that is a global of the kernel")
            return at_line(Name(self._hidden(array), ast.Load(), ast.unparse(bound[0])), node)
        if stub.name in ("grid", "gridsize"):
            known, ndim = self.scope.constant(bound[0])
            if not known or ndim not in (1, 2, 3):
                self.scope.refuse(node, f"{stub.full_name} takes 1, 2 or 3, not {ast.unparse(bound[0])}")
            form = "_b{0} * _bd{0} + _t{0}" if stub.name == "grid" else "_bd{0} * _gd{0}"
            form = f"_np.uint32({form})" if stub in (u32.grid, u32.gridsize) else form
            parts = [form.format(axis) for axis in "xyz"[:ndim]]
            return self._code(parts[0] if ndim == 1 else f"({', '.join(parts)})", node)
        if stub is u32.size:
            whole = at_line(ast.Attribute(self.expression(bound[0]), "size", ast.Load()), node)
            return at_line(ast.Call(self._code("_np.uint32", node), [whole], []), node)
        if stub is u32.shape:
            return at_line(ast.Call(ast.Name("_unsigned_shape", ast.Load()), [self.expression(bound[0])], []), node)
        if stub is stubs.this_grid:
            self.scope.refuse(node, "cg.this_grid() has one use here: cg.this_grid().sync()")
        if stub in stubs.CACHED_STORES:
            self.scope.refuse(node, f"{stub.full_name} has no value", "let it stand alone")
        arguments = [self.expression(a) for a in bound]
        if stub in stubs.CACHED_LOADS:
            return at_line(Subscript(*arguments, ast.Load(), self.scope.filename), node)
        if isinstance(stub, libraries.LibraryFunction):
            if stub.cast:
                arguments = [ast.Call(self._code(f"_np.{stub.cast}", node), [a], []) for a in arguments]
            return at_line(ast.Call(self._code(stub.code, node), arguments, []), node)
        if isinstance(stub, ptx.Intrinsic):
            return self._call_intrinsic(stub, bound, arguments, node)
        if stub.name in stubs.SYNC:
            return self._sync(stub.name, arguments, node)
        if stub.name.startswith("threadfence"):
            return at_line(ast.Call(ast.Name("_fence", ast.Load()), [ast.Constant(stub.name)], []), node)
        if stub.name == "nanosleep":
            return self._code("None", node)
        if stub.name == "lanemask_lt":
            return self._code("_np.uint32((1 << (_t & 31)) - 1)", node)
        if stub.name == "atomic.compare_and_swap":
            arguments.insert(1, ast.Constant(0))
            self.program.has_atomics = True
            return self._atomic("cas", arguments, node)
        if stub.name.startswith("atomic."):
            self.program.has_atomics = True
            return self._atomic(stub.name.removeprefix("atomic."), arguments, node)
        return at_line(ast.Call(ast.Name(f"_{stub.name}", ast.Load()), arguments, []), node)

    def _atomic(self, op, arguments, node):
        return at_line(AtomicCall(op, arguments, self.scope.filename), node)

    def _call_intrinsic(self, stub, bound_nodes, arguments, node):
        """Resolve a call of labkit.ptx. GPU immediates must be constants, and arrays in the right memory space."""
        for parameter, source, value in zip(stub.params, bound_nodes, arguments, strict=True):
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
        if waits(stub):
            return self._sync(stub.full_name, arguments, node)
        if stub.kind == "order":
            return self._code("None", node)
        return at_line(IntrinsicCall(stub.name, arguments, self.scope.filename), node)

    def _check_space(self, stub, parameter, space, value, source):
        name = value.id if isinstance(value, ast.Name) and self.device is None else None
        actual_space = (
            "shared" if name in self.program.shared
            else "local" if name in self.program.local
            else "global" if name in self.program.params or name in self.program.constants
            else space
        )  # fmt: skip
        if actual_space != space:
            kind = f"a {actual_space} array" if actual_space != "global" else "in global memory"
            self.scope.refuse(source, f"{parameter} of {stub.full_name} must be in {space} memory, and "
                              f"{ast.unparse(source)} is {kind}")  # fmt: skip

    def _call_device(self, function, signature, node):
        """A call of a device function: of one with a signature, arguments and result are converted to its types."""
        callee, bound_nodes = bind(self.scope, function, node)
        names = list(inspect.signature(function).parameters)
        argument_types, returned = signature or ([None] * len(names), None)
        if len(argument_types) != len(names):
            self.scope.refuse(
                node, f"{function.__name__} has {len(names)} parameters and its signature {len(argument_types)}"
            )
        parameter_types = dict(zip(names, argument_types, strict=True))
        resolve = self._argument if unsigned.follows(function) else self.expression
        arguments = [
            self._converted(resolve(value) if isinstance(value, ast.AST) else self.embed(value, node),
                            parameter_types[name], node)
            for name, value in bound_nodes.items()
        ]
        if self.rewriter.needs_inline(callee):
            call = InlineCall(callee, arguments)
        else:
            call = DeviceCall(self.rewriter.device_function(callee), arguments)
        return self._converted(at_line(call, node), returned, node)

    def _converted(self, value, ty, node):
        """Convert the value to this type; return it unchanged if that is None or not a number."""
        if not isinstance(ty, (types.Number, types.Boolean)):
            return value
        return at_line(ast.Call(self._code(type_code(ty), node), [value], []), node)


def _is_numpy_type(ty):
    try:
        return numpy_support.as_dtype(ty) is not None
    except NumbaError:
        return False


def _is_scalar_class(obj):
    return isinstance(obj, type) and issubclass(obj, np.generic)


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


def _mark_breaks(statements, name):
    """Before each break of the loop around these statements, set `name` to False."""
    for k in reversed(range(len(statements))):
        s = statements[k]
        if isinstance(s, ast.Break):
            statements.insert(k, assign(name, ast.Constant(False), s))
        elif isinstance(s, ast.If):
            _mark_breaks(s.body, name)
            _mark_breaks(s.orelse, name)


def _operation(function, arguments):
    """The expression for a call of an operator function or pow(); None for another function."""
    name = getattr(function, "__name__", "")
    if function is not pow and getattr(operator, name, None) is not function:
        return None
    if len(arguments) == 2 and name in _OPERATORS:
        return ast.BinOp(arguments[0], _OPERATORS[name](), arguments[1])
    if len(arguments) == 2 and name in _COMPARISONS:
        return ast.Compare(arguments[0], [_COMPARISONS[name]()], [arguments[1]])
    if len(arguments) == 1 and name in _OPERATORS_OF_ONE:
        return ast.UnaryOp(_OPERATORS_OF_ONE[name](), arguments[0])
    return None


def _is_inversion(node):
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)


def _folded(node):
    """The number that Python's compiler makes of an expression of numbers before any kernel has it: 1 << 63 is no int64
    that has overflowed, but 9223372036854775808, a uint64. None where it makes none."""
    parts = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    if not all(isinstance(n, parts) and type(getattr(n, "value", 0)) in (int, float, bool) for n in ast.walk(node)):
        return None
    plain = without_positions(copy.deepcopy(node))
    with warnings.catch_warnings():  # ~True is -2, and Python warns of it
        warnings.simplefilter("ignore")
        code = compile(ast.fix_missing_locations(ast.Expression(plain)), "<constant>", "eval")
    steps = [step for step in dis.get_instructions(code) if step.opname != "RESUME"]
    value = steps[0].argval
    if steps[-1].opname not in ("RETURN_VALUE", "RETURN_CONST") or len(steps) > 2 or type(value) not in (int, float):
        return None
    if value != value or not -(1 << 63) <= value < 1 << 64 and type(value) is int:
        return None
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))
