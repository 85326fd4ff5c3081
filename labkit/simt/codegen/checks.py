"""Plain indexing -> checked loads and stores that report the source line of a fault."""

import ast
import copy

from labkit.simt import ptx, unsigned
from labkit.simt.errors import UnsupportedError
from labkit.simt.ir import (
    ID_NAMES,
    AtomicCall,
    BinOp,
    DeviceCall,
    IntrinsicCall,
    Lowering,
    Subscript,
    integer_literal,
    shown,
)
from labkit.simt.runtime import fault_record

HIDDEN_IDS = ("_E", "_t", "_b", *ID_NAMES)  # hidden arguments of a device function, after its own
OPERATORS = {ast.Pow: "_power", ast.Div: "_divide", ast.LShift: "_shift_left", ast.RShift: "_shift_right",
             ast.Mod: "_modulo", ast.FloorDiv: "_floor_divide"}  # fmt: skip
_NATURAL = {"_power", "_shift_left", "_shift_right"}  # as on a GPU where the right operand is a constant from 0 to 63
TWO_ARRAYS = {"cp_async_16", "cp_async_4"}


def narrow_call(node):
    """The runtime call for an operator that follows the rule of unsigned.py."""
    return ast.Call(ast.Name(unsigned.runtime_name(node), ast.Load()), [node.left, node.right], [])


def touches_memory(call):
    """True for an intrinsic that checks addresses, and takes the source site for its errors."""
    if not isinstance(call, IntrinsicCall):
        return False
    return ptx.INTRINSICS[call.intrinsic].kind == "memory" or call.intrinsic.startswith("ldmatrix")


def names(*ids):
    return [ast.Name(name, ast.Load()) for name in ids]


class Checker(Lowering):
    """Plain indexing -> checked loads and stores, atomics and device functions with their hidden arguments."""

    def __init__(self, out, line):
        self.out, self.line = out, line

    def statement(self, s):
        """The checked form of a simple statement (no control flow), as a list of statements."""
        s = copy.deepcopy(s)
        if self.out.pretty:
            return [self.visit(s)]
        if isinstance(s, ast.AugAssign) and type(s.op) in OPERATORS:
            target = copy.deepcopy(s.target)
            target.ctx = ast.Load()
            value = ast.copy_location(ast.BinOp(target, s.op, s.value), s)
            return self.statement(ast.copy_location(ast.Assign([s.target], value), s))
        if isinstance(s, ast.Assign) and self.out.checked:
            target = s.targets[0]
            if isinstance(target, ast.Subscript) and self._is_checked(target):
                return self._emit_store(target, self.visit(s.value))
            if isinstance(target, ast.Tuple) and any(isinstance(t, ast.Subscript) for t in target.elts):
                raise UnsupportedError.at(
                    self.out.kernel, self.out.filename, s.lineno,
                    "unpacking into array elements is not supported; unpack into names first",
                )  # fmt: skip
        is_update = isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Subscript)
        if is_update and self.out.checked and self._is_checked(s.target):
            array, index = copy.deepcopy(s.target.value), copy.deepcopy(s.target.slice)
            loaded = Subscript(array, index, ast.Load(), s.target.filename)
            return self._emit_store(s.target, ast.BinOp(self.visit(loaded), s.op, self.visit(s.value)))
        return [self.visit(s)]

    def _is_checked(self, node):
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
            return integer_literal(node.slice) is None
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return False
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return not any(isinstance(part, ast.Slice) or _is_no_index(part) for part in parts)

    def _site(self, node, filename, text="@"):
        """Return the index of this source site. text: its source code, @ for the array."""
        line = getattr(node, "lineno", self.line)
        return ast.Constant(self.out.site(line, text.replace("@", _source(node)), filename))

    def _emit_store(self, target, value):
        site = self._site(target.value, target.filename)
        arguments = [self.visit(target.value), self.visit(target.slice), value, *names("_E", "_t", "_b"), site]
        return [ast.Expr(ast.Call(ast.Name("_store", ast.Load()), arguments, []))]

    def visit_Subscript(self, node):
        if self.out.pretty or not self.out.checked:
            return self.generic_visit(node)
        if not self._is_checked(node) and isinstance(node.slice, ast.Tuple):
            return self._check_axes(node)
        if not self._is_checked(node) or not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        site = self._site(node.value, node.filename)
        arguments = [self.visit(node.value), self.visit(node.slice), *names("_E", "_t", "_b"), site]
        return ast.Call(ast.Name("_load", ast.Load()), arguments, [])

    def _check_axes(self, node):
        """x[i, 2:5] and x[..., j]: each integer is checked against its axis, from the end after an ellipsis."""
        items = node.slice.elts
        array = self.visit(node.value)
        parts, axes, axis = [], [], 0
        for k, part in enumerate(items):
            if _is_no_index(part):  # a new axis, or an ellipsis, after which axes are counted from the end
                axes.append(None)
                axis = axis if part.value is None else -sum(not _is_no_index(p) for p in items[k:])
            else:
                axes.append(axis)
                axis += 1
        for k, part in zip(axes, items, strict=True):
            if isinstance(part, ast.Slice) or k is None:
                parts.append(self.generic_visit(part))
            else:
                form = ", ".join("#" if p is part else _source(p) for p in items)
                site = self._site(node.value, node.filename, f"@|{form}")
                arguments = [array, ast.Constant(k), self.visit(part), *names("_E", "_t", "_b"), site]
                parts.append(ast.Call(ast.Name("_axis", ast.Load()), arguments, []))
        return ast.Subscript(array, ast.Tuple(parts, ast.Load()), node.ctx)

    def hidden_arguments(self, call):
        if self.out.pretty:
            return []
        if isinstance(call, DeviceCall):
            return names(*HIDDEN_IDS)
        if isinstance(call, AtomicCall):
            return [*names("_E", "_t", "_b"), self._site(call.args[0], call.filename)]
        if not touches_memory(call):
            return []
        stub = ptx.INTRINSICS[call.intrinsic]
        arrays = [call.args[k] for k in (0, 2)] if stub.name in TWO_ARRAYS else call.args[:1]
        arrays = arrays if stub.params and stub.params[0] in ("array", "shared") else names("")
        sites = [self._site(array, call.filename, f"{stub.full_name}|@") for array in arrays]
        return [*names("_E", "_t", "_b"), *sites]

    def visit_BinOp(self, node):
        """The operators in which Numba's CPU target differs from a GPU."""
        self.generic_visit(node)
        if isinstance(node, BinOp):
            return node if self.out.pretty else narrow_call(node)
        name = OPERATORS.get(type(node.op))
        if self.out.pretty or name is None or (_is_natural(node.right) and name in _NATURAL):
            return node
        return ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], [])

    def visit_Call(self, node):
        if not self.out.pretty and isinstance(node.func, ast.Name) and node.func.id == "_assertion":
            zeros = [ast.Constant(0)] * 3
            text = "|".join(part.value for part in node.args)
            location = [*names("_E", "_t", "_b"), ast.Constant(self.out.site(self.line, text))]
            return ast.Call(ast.Name("_fail", ast.Load()), [ast.Constant(slot("ASSERTION")), *location, *zeros], [])
        if isinstance(node.func, ast.Name) and node.func.id == "_divisor":
            value = self.visit(node.args[0])
            if self.out.pretty:
                return value
            thread = ast.Constant(0) if self.out.per_block else names("_t")[0]
            site = ast.Constant(self.out.site(getattr(node, "lineno", self.line), "ZeroDivisionError|division by zero"))
            return ast.Call(ast.Name("_divisor", ast.Load()), [value, *names("_E"), thread, *names("_b"), site], [])
        if not self.out.pretty and isinstance(node.func, ast.Name) and node.func.id == "range" and len(node.args) == 3:
            new = self.generic_visit(node)
            new.args[2] = self.step(new.args[2])
            return new
        if not self.out.pretty and isinstance(node.func, ast.Attribute) and node.func.attr == "reshape":
            return self._reshape(node)
        return self.generic_visit(node)

    def step(self, node):
        """The step of a range, checked: it must not be 0."""
        if self.out.pretty or integer_literal(node):
            return node
        thread = ast.Constant(0) if self.out.per_block else names("_t")[0]
        site = ast.Constant(self.out.site(getattr(node, "lineno", self.line), "range"))
        return ast.Call(ast.Name("_step", ast.Load()), [node, *names("_E"), thread, *names("_b"), site], [])

    def _reshape(self, node):
        site = self._site(node.func.value, self.out.filename)
        array, items = self.visit(node.func.value), [self.visit(a) for a in node.args]
        shape = items[0] if len(items) == 1 and isinstance(items[0], ast.Tuple) else ast.Tuple(items, ast.Load())
        if len(items) == 1 and not isinstance(items[0], (ast.Tuple, ast.Constant)):
            shape = items[0]
        return ast.Call(ast.Name("_reshape", ast.Load()), [array, shape, *names("_E", "_t", "_b"), site], [])


def _source(node):
    """An expression with the names that the source has."""
    named = Lowering().visit(copy.deepcopy(node))
    for name in ast.walk(named):
        if isinstance(name, ast.Name):
            name.id = shown(name)
    return ast.unparse(named)


def _is_natural(node):
    """True for a constant from 0 to 63: as an exponent or a shift amount it needs no special case."""
    value = integer_literal(node)
    return value is not None and 0 <= value < 64


def _is_no_index(node):
    return isinstance(node, ast.Constant) and (node.value is Ellipsis or node.value is None)


def slot(name):
    return getattr(fault_record, name)
