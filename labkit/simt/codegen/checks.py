"""Plain indexing -> checked loads and stores that name the place of a fault."""

import ast
import copy

from labkit.simt.errors import UnsupportedError, place
from labkit.simt.ir import ID_NAMES

HIDDEN_IDS = ("_E", "_t", "_b", *ID_NAMES)  # what a device function is handed beside its own arguments
TWO_ARRAYS = {"cp_async_16", "cp_async_4"}


def touches_memory(node):
    """True for a call of an intrinsic that is handed its place in the source, to check addresses."""
    stub = getattr(node, "intrinsic", None)
    return stub is not None and (stub.kind == "memory" or stub.name.startswith("ldmatrix"))


class Checker(ast.NodeTransformer):
    """Plain indexing -> checked loads and stores, atomics and device functions with their hidden arguments."""

    def __init__(self, out, line):
        self.out, self.at = out, line
        self.before = []

    def statement(self, s):
        """The statements that stand for a simple statement (no control flow)."""
        s = copy.deepcopy(s)
        if self.out.pretty:
            return [s]
        if isinstance(s, ast.Assign) and self.out.checked:
            target = s.targets[0]
            if isinstance(target, ast.Subscript) and self._is_checked(target):
                return self._emit_store(target, self.visit(s.value))
            if isinstance(target, ast.Tuple) and any(isinstance(t, ast.Subscript) for t in target.elts):
                raise UnsupportedError(
                    f"{self.out.kernel}, line {s.lineno}: unpacking into array elements is not supported; "
                    f"unpack into names first ({place(self.out.filename)})"
                )
        is_update = isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Subscript)
        if is_update and self.out.checked and self._is_checked(s.target):
            loaded = ast.Subscript(copy.deepcopy(s.target.value), copy.deepcopy(s.target.slice), ast.Load())
            return self._emit_store(s.target, ast.BinOp(self.visit(loaded), s.op, self.visit(s.value)))
        return [self.visit(s)]

    def _is_checked(self, node):
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
            return False
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return False
        return not any(isinstance(n, ast.Slice) for n in ast.walk(node.slice))

    def _names(self, *names):
        return [ast.Name(n, ast.Load()) for n in names]

    def _site(self, node, intrinsic=None):
        """The number of this place in the source. Its text: the array, or `intrinsic|array`."""
        named = copy.deepcopy(node)
        for name in ast.walk(named):
            if isinstance(name, ast.Name):
                name.id = getattr(name, "shown", name.id)
        line, filename = getattr(node, "lineno", self.at), getattr(node, "filename", None)
        text = ast.unparse(named) if intrinsic is None else f"{intrinsic}|{ast.unparse(named)}"
        return ast.Constant(self.out.site(line, text, filename))

    def _emit_store(self, target, value):
        site = self._site(target.value)
        arguments = [self.visit(target.value), self.visit(target.slice), value, *self._names("_E", "_t", "_b"), site]
        return [ast.Expr(ast.Call(ast.Name("_store", ast.Load()), arguments, []))]

    def visit_Subscript(self, node):
        if self.out.pretty or not self.out.checked:
            return self.generic_visit(node)
        if not self._is_checked(node) and isinstance(node.slice, ast.Tuple):
            return self._check_axes(node)
        if not self._is_checked(node) or not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        site = self._site(node.value)
        arguments = [self.visit(node.value), self.visit(node.slice), *self._names("_E", "_t", "_b"), site]
        return ast.Call(ast.Name("_load", ast.Load()), arguments, [])

    def _check_axes(self, node):
        site = self._site(node.value)
        array = self.visit(node.value)
        parts = []
        for k, part in enumerate(node.slice.elts):
            if isinstance(part, ast.Slice):
                parts.append(self.generic_visit(part))
            else:
                arguments = [array, ast.Constant(k), self.visit(part), *self._names("_E", "_t", "_b"), site]
                parts.append(ast.Call(ast.Name("_axis", ast.Load()), arguments, []))
        return ast.Subscript(array, ast.Tuple(parts, ast.Load()), node.ctx)

    def visit_Call(self, node):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if self.out.pretty:
            return self.generic_visit(node)
        if name == "_assertion":
            numbers = [ast.Constant(0)] * 3
            where = [*self._names("_E", "_t", "_b"), ast.Constant(self.out.site(self.at, "assert"))]
            return ast.Call(ast.Name("_fail", ast.Load()), [ast.Constant(slot("ASSERTION")), *where, *numbers], [])
        sites = [self._site(node.args[0])] if name.startswith("_atomic") else []
        if touches_memory(node):
            stub = node.intrinsic
            arrays = [node.args[k] for k in (0, 2)] if stub.name in TWO_ARRAYS else node.args[:1]
            arrays = arrays if stub.params and stub.params[0] in ("array", "shared") else [ast.Name("", ast.Load())]
            sites = [self._site(array, stub.full_name) for array in arrays]
        device = getattr(node, "device", False)
        self.generic_visit(node)
        if sites:
            node.args += [*self._names("_E", "_t", "_b"), *sites]
        if device:
            node.args += self._names(*HIDDEN_IDS)
        return node


def slot(name):
    from labkit.simt import lowlevel

    return getattr(lowlevel, name)
