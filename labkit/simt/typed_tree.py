"""The types of an interpreted kernel's variables, by the rules that compiled code follows, made explicit in its tree.

A Python variable has the type of what was assigned last. In compiled code it has one type wherever paths meet, at the
end of an if, at the head of a loop, in `a if test else b` and where a function returns: that which holds the types of
all of them. `with_types` finds those types and puts a conversion where one is needed.

Work    one pass over the tree, a few for each loop; Numba is asked for each operation once in a process
Types   of Numba; None where one is not known, which is left alone
"""

import ast
import builtins
import cmath
import math
import operator
from dataclasses import replace

import numpy as np
from numba.core import registry, types
from numba.np import numpy_support

from labkit.simt.codegen.types import collective_type
from labkit.simt.ir import ID_NAMES, BinOp, DtypeOf, Exit, Inline, Sync, at_line, copied, with_fields
from labkit.simt.runtime.operators import narrows
from labkit.simt.runtime.signatures import signature_of, unified
from labkit.simt.typed_arrays import RecordValue
from labkit.simt.typed_numbers import numba_type

_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
_FUNCTIONS = {
    "_fmod": math.fmod, "_remainder": math.remainder, "_modf": math.modf, "_ldexp": math.ldexp,
    "_frexp": math.frexp, "_floor": math.floor, "_ceil": math.ceil,
    "_trunc": math.trunc, "_math_pow": math.pow, "_cbrt": math.sqrt, "_rsqrt": math.sqrt,
}  # fmt: skip
_MODULES = {"_np": np, "_math": math, "_cmath": cmath, "_operator": operator}
_SAME = {"_popc", "_clz", "_divisor"}  # the type of the argument
_NUMBERS = (types.Number, types.Boolean)


@with_fields
class Convert(ast.stmt):
    """name = the value of it as another type, if it has one; a variable that is unset stays so."""

    name: str
    to: types.Type


@with_fields
class Converted(ast.expr):
    """The value of an expression as another type."""

    value: ast.expr
    to: types.Type


def with_types(program, arguments, chosen=None):
    """The program with conversions, for arguments of these types (None: unknown), of its parameters by name.

    chosen: called with each OverloadCall and the types of its arguments.
    """
    inference = _Types(program, chosen)
    env = {**dict.fromkeys(ID_NAMES, types.int64), **arguments}
    for array in [*program.shared.values(), *program.local.values()]:
        env[array.name] = _array_type(array, arguments)
    body = copied(program.body)
    inference.body(body, env, None)
    return replace(program, body=body, devices={**program.devices, **inference.specialised})


def _array_type(array, arguments):
    dtype = array.dtype
    if isinstance(dtype, DtypeOf):
        param = arguments.get(dtype.param)
        return types.Array(param.dtype, len(array.shape), "C") if isinstance(param, types.Array) else None
    return types.Array(dtype, len(array.shape), "C")


def type_of_value(value):
    """The type of an argument as an interpreted kernel has it."""
    if isinstance(value, tuple):
        parts = [type_of_value(part) for part in value]
        return None if None in parts else types.Tuple(parts)
    dtype = getattr(value, "dtype", None)
    if isinstance(value, RecordValue):
        return numpy_support.from_dtype(dtype)
    if isinstance(dtype, np.dtype) and getattr(value, "ndim", 0):
        return types.Array(numpy_support.from_dtype(dtype), value.ndim, "A")
    return numba_type(type(value))


class _Types:
    """Follows types through a kernel and its device functions."""

    def __init__(self, program, chosen):
        self.program, self.chosen, self.specialised, self.known = program, chosen, {}, {}

    def body(self, statements, env, device):
        """Types of one function; conversions go into its statements. Returns the type of what it returns."""
        flow = _Flow(self, device)
        flow.block(statements, dict(env))
        flow.rewriting = True
        if device is not None and "_depth" in device.params:  # of its calls of itself nothing is known yet
            flow.returned = [ty for ty in flow.returned if ty is not None] or flow.returned
        flow.returned = flow.returned and [unified(*flow.returned)]
        flow.block(statements, dict(env))
        return flow.returned[0] if flow.returned else None

    def device(self, name, arguments):
        """(the name of a device function as it is for arguments of these types, the type of what it returns)."""
        if (name, arguments) not in self.known:
            source = self.program.devices[name]
            env = {**dict.fromkeys(ID_NAMES, types.int64), **dict(zip(source.params, arguments, strict=True))}
            env.update({a.name: _array_type(a, {}) for a in source.local})
            new = f"{name}_for{len(self.known)}"
            self.known[name, arguments] = new, None
            if any(p == "_depth" for p in source.params):  # it calls itself: what its other paths return is known then
                self.known[name, arguments] = new, self.body(copied(source.body), env, source)
            body = copied(source.body)
            self.known[name, arguments] = new, self.body(body, env, source)
            self.specialised[new] = replace(source, name=new, body=body)
        return self.known[name, arguments]


class _Flow:
    """The types of one function's variables: env, a name -> its type here. None for env: unreachable."""

    def __init__(self, owner, device):
        self.owner, self.device, self.rewriting = owner, device, False
        self.jumps, self.returned, self.assigned = [], [], {}

    # ---------------- statements

    def block(self, statements, env):
        """The types after statements, which get their conversions."""
        out = []
        for s in statements:
            if env is None:
                env = {}
            before, after, env = self.statement(s, env)
            out += [*before, s, *after]
        if self.rewriting:
            statements[:] = out
        return env

    def statement(self, s, env):
        """(conversions before it, conversions after it, types after it)."""
        if isinstance(s, ast.Assign):
            ty = self.type(s.value, env)
            for target in s.targets:
                s.value = self.assign(target, ty, env, s.value)
            if any(isinstance(target, ast.Tuple) for target in s.targets):
                parts = self.parts(s.targets, ty)
                return [], self.conversions(s, {name: env[name] for name in parts}, parts), env
        elif isinstance(s, ast.AugAssign):
            ty = self.operation(s.op, [self.type(s.target, env), self.type(s.value, env)])
            if isinstance(s.target, ast.Name):
                name = s.target.id
                env[name] = self.version(s.target, ty)
                return [], self.conversions(s, {name: env[name]}, {name: ty}), env
        elif isinstance(s, Sync):
            arg_types = [self.type(a, env) for a in s.args]
            if s.target is not None:
                env[s.target.id] = collective_type(s.op, arg_types)
        elif isinstance(s, ast.If):
            self.type(s.test, env)
            yes, no = self.block(s.body, dict(env)), self.block(s.orelse, dict(env))
            out = _joined(yes, no)
            return [], self.conversions(s, out, yes, no), out
        elif isinstance(s, (ast.While, ast.For)):
            return self.loop(s, env)
        elif isinstance(s, Inline):
            self.jumps.append({"label": s.label, "out": []})
            end = self.block(s.body, dict(env))
            paths = [end, *self.jumps.pop()["out"]]
            out = None
            for path in paths:
                out = _joined(out, path)
            return [], self.conversions(s, out, *paths), out
        elif isinstance(s, (ast.Break, ast.Continue, Exit)):
            return self.jump(s, env), [], None
        elif isinstance(s, ast.Return):
            if s.value is not None:
                ty = self.type(s.value, env)
                if self.rewriting:
                    s.value = _converted(s.value, ty, self.returned[0])
                else:
                    self.returned.append(ty)
            return [], [], None
        elif isinstance(s, ast.Expr):
            self.type(s.value, env)
        return [], [], env

    def assign(self, target, ty, env, value):
        """Set the types of a target's names; returns the value, converted to the type of that variable."""
        if isinstance(target, ast.Name):
            env[target.id] = version = self.version(target, ty)
            return _converted(value, ty, version) if self.rewriting else value
        if isinstance(target, ast.Tuple):
            parts = list(ty.types) if isinstance(ty, types.BaseTuple) else [None] * len(target.elts)
            for part, part_type in zip(target.elts, parts, strict=False):
                self.assign(part, part_type, env, None)
        else:
            self.type(target, env)
        return value

    @staticmethod
    def parts(targets, ty):
        """Return the types assigned to the names in tuple targets."""
        pairs = [zip(target.elts, ty.types, strict=False) for target in targets if isinstance(ty, types.BaseTuple)]
        return {part.id: part_type for pair in pairs for part, part_type in pair if isinstance(part, ast.Name)}

    def version(self, node, ty):
        """Return the type assigned here, unified over all iterations of a loop."""
        before = self.assigned.get(id(node), ty)
        resolved = self.assigned[id(node)] = unified(before, ty) if before is not None else None
        return resolved

    def conversions(self, source, out, *paths):
        """The conversions of the variables of these paths to their types where the paths meet."""
        if not self.rewriting or out is None:
            return []
        needed = [name for name, ty in out.items() if isinstance(ty, _NUMBERS)
                  and any(path is not None and path.get(name, ty) not in (ty, None) for path in paths)]  # fmt: skip
        return [at_line(Convert(name, out[name]), source) for name in needed]

    def loop(self, s, env):
        item = self.item(s.iter, env) if isinstance(s, ast.For) else None
        rewriting, self.rewriting = self.rewriting, False
        head, new = None, env
        while new != head:
            head = new
            new, jumps, _ = self.round(s, item, head)
        self.rewriting = rewriting
        if rewriting:  # the types are known: once more, with conversions
            _, jumps, end = self.round(s, item, head)
            s.body.extend(self.conversions(s, head, end))
        out = head
        for path in jumps["out"]:
            out = _joined(out, path)
        if isinstance(s, ast.While):
            return self.conversions(s, head, env), self.conversions(s, out, head, *jumps["out"]), out
        # What a for loop runs over is computed before paths meet at its head, and what it assigns itself after that.
        own = {name.id for name in ast.walk(s.target) if isinstance(name, ast.Name)}
        s.body[:0] = [each for each in self.conversions(s, head, env) if each.name not in own]
        return [], self.conversions(s, out, head, env, *jumps["out"]), out

    def round(self, s, item, head):
        """(the types at the head after one round, the jumps out of it, the types at its end)."""
        self.jumps.append({"label": "loop", "out": [], "again": [], "head": head})
        inner = dict(head)
        if isinstance(s, ast.While):
            self.type(s.test, inner)
        else:
            self.assign(s.target, item, inner, None)
        end = self.block(s.body, inner)
        jumps, new = self.jumps.pop(), head
        for path in (end, *jumps["again"]):
            new = _joined(new, path)
        return new, jumps, end

    def jump(self, s, env):
        """Conversions before a jump."""
        if isinstance(s, Exit) and s.label == "kernel":
            return []
        label = s.label if isinstance(s, Exit) else "loop"
        target = next(j for j in reversed(self.jumps) if j["label"] == label)
        if isinstance(s, ast.Continue):
            target["again"].append(env)
            return self.conversions(s, target["head"], env)
        target["out"].append(env)
        return []

    # ---------------- expressions

    def type(self, e, env):
        """The type of an expression, which gets its conversions."""
        resolved = getattr(self, f"_{type(e).__name__.lower()}", None)
        if resolved is not None:
            return resolved(e, env)
        for child in ast.iter_child_nodes(e):
            if isinstance(child, ast.expr):
                self.type(child, env)
        return None

    def operation(self, op, arg_types):
        if not all(isinstance(ty, _NUMBERS) for ty in arg_types):
            return None
        resolved = signature_of(_OPERATORS[type(op)], *arg_types)
        return None if resolved is None else resolved.return_type

    def item(self, e, env):
        """The type of what a for loop runs over."""
        ty = self.type(e, env)
        if isinstance(ty, types.RangeType):
            return ty.dtype
        if isinstance(ty, types.Array) and ty.ndim == 1 or isinstance(ty, types.UniTuple):
            return ty.dtype
        return None

    def _constant(self, e, env):
        kind = type(e.value)
        if kind is int:
            return types.uint64 if e.value >= 1 << 63 else types.int64
        return {bool: types.boolean, float: types.float64, complex: types.complex128}.get(kind)

    def _name(self, e, env):
        return types.int64 if e.id in ("_t", "_b") else env.get(e.id)

    def _binop(self, e, env):
        left, right = self.type(e.left, env), self.type(e.right, env)
        if isinstance(e, BinOp) and narrows(left == types.uint32, right == types.uint32, e.with_constant):
            return types.uint32
        is_literal = isinstance(e.right, ast.Constant) or isinstance(e.right, ast.UnaryOp) and isinstance(
            e.right.operand, ast.Constant)  # fmt: skip
        if isinstance(e.op, ast.Pow) and is_literal and right == types.int64 and not isinstance(left, types.Integer):
            return left  # a constant exponent keeps the type of the base
        return self.operation(e.op, [left, right])

    def _unaryop(self, e, env):
        ty = self.type(e.operand, env)
        return types.boolean if isinstance(e.op, ast.Not) else self.operation(e.op, [ty])

    def _boolop(self, e, env):
        arg_types = [self.type(value, env) for value in e.values]
        ty = unified(*arg_types)
        if self.rewriting:
            e.values = [_converted(value, old_type, ty) for value, old_type in zip(e.values, arg_types, strict=True)]
        return ty

    def _ifexp(self, e, env):
        self.type(e.test, env)
        yes, no = self.type(e.body, env), self.type(e.orelse, env)
        ty = unified(yes, no)
        if self.rewriting:
            e.body, e.orelse = _converted(e.body, yes, ty), _converted(e.orelse, no, ty)
        return ty

    def _compare(self, e, env):
        """Python compares a float with its own integers in the float's type; compiled code in one that holds both."""
        operands = [e.left, *e.comparators]
        arg_types = [self.type(operand, env) for operand in operands]
        if all(isinstance(ty, _NUMBERS) for ty in arg_types) and self.rewriting:
            kinds = {isinstance(ty, types.Float) for ty in arg_types}
            if len(kinds) == 2 and not any(isinstance(ty, types.Complex) for ty in arg_types):
                wide = [_converted(x, ty, types.float64) for x, ty in zip(operands, arg_types, strict=True)]
                e.left, e.comparators = wide[0], wide[1:]
        return types.boolean

    def _tuple(self, e, env):
        parts = [self.type(part, env) for part in e.elts]
        return None if None in parts else types.Tuple(parts)

    def _attribute(self, e, env):
        if isinstance(e.value, ast.Name) and e.value.id in _MODULES:
            return types.float64
        ty = self.type(e.value, env)
        if isinstance(ty, types.Array):
            if e.attr in ("shape", "strides"):
                return types.UniTuple(types.int64, ty.ndim)
            if isinstance(ty.dtype, types.Record) and e.attr in ty.dtype.fields:
                return _field_of_all(ty, e.attr)
            return types.int64 if e.attr in ("size", "ndim", "itemsize", "nbytes") else ty if e.attr == "T" else None
        if isinstance(ty, types.Record) and e.attr in ty.fields:
            return ty.typeof(e.attr)
        if isinstance(ty, types.Complex) and e.attr in ("real", "imag"):
            return ty.underlying_float
        if isinstance(ty, types.BaseNamedTuple):
            return ty[ty.fields.index(e.attr)] if e.attr in ty.fields else None
        return None if ty is None else registry.cpu_target.typing_context.resolve_getattr(ty, e.attr)

    def _subscript(self, e, env):
        ty, index = self.type(e.value, env), self.type(e.slice, env)
        constant = e.slice.value if isinstance(e.slice, ast.Constant) else None
        if isinstance(ty, types.Record) and isinstance(constant, str) and constant in ty.fields:
            return ty.typeof(constant)
        if isinstance(ty, types.BaseTuple):
            if isinstance(constant, int) and -len(ty) <= constant < len(ty):
                return ty[constant]
            return ty.dtype if isinstance(ty, types.UniTuple) else None
        if not isinstance(ty, types.Array):
            return None
        if isinstance(constant, str):
            return _field_of_all(ty, constant)
        parts = e.slice.elts if isinstance(e.slice, ast.Tuple) else [e.slice]
        if isinstance(e.slice, ast.Name) and isinstance(index, types.BaseTuple):
            parts = [ast.Constant(0)] * len(index)
        views = sum(isinstance(part, ast.Slice) for part in parts)
        if any(isinstance(part, ast.Constant) and part.value in (Ellipsis, None) for part in parts):
            return None
        left = ty.ndim - len(parts) + views
        return ty.dtype if left == 0 else types.Array(ty.dtype, left, "A") if left > 0 else None

    def _call(self, e, env):
        arg_types = [self.type(a, env) for a in e.args]
        function = e.func
        if isinstance(function, ast.Attribute):
            if not isinstance(function.value, ast.Name) or function.value.id not in _MODULES:
                ty = self.type(function.value, env)
                if function.attr == "sum" and isinstance(ty, types.Array):
                    return ty.dtype
                return ty if function.attr in ("conjugate", "conj") else None
            if function.value.id == "_np" and function.attr in _SCALARS:
                return _SCALARS[function.attr]
            return _result(getattr(_MODULES[function.value.id], function.attr, None), arg_types)
        name = function.id if isinstance(function, ast.Name) else ""
        made = self.owner.program.objects.get(name)
        if made is not None and None not in arg_types:
            if hasattr(made, "_fields"):
                return types.NamedTuple(arg_types, made)
            signature = signature_of(made, *arg_types)
            return signature and signature.return_type
        if name == "_view" and isinstance(e.args[1], ast.Attribute) and e.args[1].attr in _SCALARS:
            to = _SCALARS[e.args[1].attr]
            return types.Array(to, arg_types[0].ndim, "A") if isinstance(arg_types[0], types.Array) else (
                to if isinstance(arg_types[0], types.Number) else None)
        if name in _SAME:
            return arg_types[0]
        if name == "_unsigned_shape":
            return types.UniTuple(types.uint32, arg_types[0].ndim) if isinstance(arg_types[0], types.Array) else None
        if name in ("_ffs", "_brev"):
            return types.uint64 if name == "_brev" and arg_types[0] in (types.int64, types.uint64) else types.uint32
        if name == "_selp":
            return arg_types[1]
        if name == "_fma":
            return types.float32 if set(arg_types) == {types.float32} else types.float64
        if name == "_round_digits":
            return arg_types[0]
        if name in ("float", "int", "bool", "abs", "min", "max", "round", "range", "divmod", "complex"):
            return _result(getattr(builtins, name), arg_types)
        if name == "len":
            return types.int64
        return _result(_FUNCTIONS[name], arg_types) if name in _FUNCTIONS else None

    def _atomiccall(self, e, env):
        arg_types = [self.type(a, env) for a in e.args]
        return arg_types[0].dtype if isinstance(arg_types[0], types.Array) else None

    def _overloadcall(self, e, env):
        constants = [getattr(a, "value", None) if isinstance(a, ast.Constant) else None for a in e.args]
        arg_types = tuple(types.literal(value) if isinstance(value, (int, str)) else self.type(a, env)
                          for a, value in zip(e.args, constants, strict=True))  # fmt: skip
        if self.rewriting and None not in arg_types:
            self.owner.chosen(e, arg_types)

    def _devicecall(self, e, env):
        arg_types = tuple(self.type(a, env) for a in e.args)
        name = getattr(e, "generic", e.function)
        new, returned = self.owner.device(name, arg_types)
        if self.rewriting:
            e.generic, e.function = name, new
        return returned


def _field_of_all(ty, name):
    """The type of a field of all records of an array."""
    if not isinstance(ty.dtype, types.Record) or name not in ty.dtype.fields:
        return None
    field = ty.dtype.typeof(name)
    is_array = isinstance(field, types.NestedArray)
    return types.Array(field.dtype if is_array else field, ty.ndim + (field.ndim if is_array else 0), "A")


_SCALARS = {name: getattr(types, name) for name in (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128")} | {"bool_": types.boolean}  # fmt: skip


def _result(function, argument_types):
    if function is None or not all(isinstance(ty, (*_NUMBERS, types.BaseTuple)) for ty in argument_types):
        return None
    signature = signature_of(function, *argument_types)
    return None if signature is None else signature.return_type


def _joined(a, b):
    """The types where two paths meet."""
    if a is None or b is None:
        return dict(b) if a is None and b is not None else a
    return {name: unified(a[name], b[name]) if name in a and name in b else a.get(name, b.get(name))
            for name in {**a, **b}}  # fmt: skip


def _converted(e, ty, target):
    """The expression, as a value of type `target`."""
    if ty == target or ty is None or not isinstance(target, _NUMBERS):
        return e
    return at_line(Converted(e, target), e)
