"""Candidate replacements from a function's own text: names by kind, expressions, conditions, numbers.

A kind is "int", "float", "array" or "" where it cannot be seen. Arrays of one and of
two axes are different kinds.
"""

from __future__ import annotations

import ast

from labkit.course.check.divergence import divergent_blocks

DIMENSIONS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
INTEGERS = {"len", "int", "int32", "int64", "uint32", "range", "grid", "gridsize", "ord"}
MOST_EXPRESSIONS = 24


class Vocabulary:
    """Of one function. given: kind and number of axes of each parameter, as far as they are known."""

    def __init__(self, function: ast.FunctionDef, given: dict[str, tuple[str, int]], in_kernel: bool):
        self.function, self.in_kernel = function, in_kernel
        self.kinds: dict[str, tuple[str, int]] = dict(given)
        text = ast.unparse(function)
        self.uses_math, self.shares = "math." in text, "shared.array" in text
        self.divergent = divergent_blocks(function) if self.shares else []
        self._find_names()
        self.numbers = self._numbers()
        self.ranges = [node.iter for node in ast.walk(function) if isinstance(node, ast.For)]
        self.more_conditions = self._conditions()
        self.conditions = self.more_conditions[:MOST_EXPRESSIONS]
        self._pools: dict[str, list] = {}

    # --- Names

    def _find_names(self) -> None:
        nodes = list(ast.walk(self.function))
        for argument in self.function.args.args:
            self.kinds.setdefault(argument.arg, ("", 0))
        for node in nodes:
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(
                    self.kinds.get(node.value.id, ("", 0)), tuple) and self.kinds.get(node.value.id, ("", 0))[0] == "":
                width = len(node.slice.elts) if isinstance(node.slice, ast.Tuple) else 1
                self.kinds[node.value.id] = ("array", width)
        self.set_often: dict[str, int] = {}
        for _ in range(2):  # a name may be used above the line that shows what it is
            for node in nodes:
                if isinstance(node, (ast.For, ast.comprehension)):
                    self._bind(node.target, node.iter)
                elif isinstance(node, ast.Assign):
                    for target in node.targets:
                        self._bind(target, node.value)
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.set_often[node.id] = self.set_often.get(node.id, 0) + 1

    def _bind(self, target, value) -> None:
        if isinstance(target, ast.Name):
            if self.kinds.get(target.id, ("", 0))[0] == "":
                self.kinds[target.id] = (self.kind(value), 0)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value] * len(target.elts)
            for each, part in zip(target.elts, parts, strict=False):
                self._bind(each, part)

    def is_set_again(self, name: str) -> bool:
        return self.set_often.get(name, 0) > 1

    def like(self, name: str) -> list[str]:
        """The other names of this one's kind."""
        if name not in self.kinds:
            return []
        return [other for other, kind in self.kinds.items() if kind == self.kinds[name] and other != name]

    def of_kind(self, kind: str) -> list[str]:
        return [name for name, (other_kind, _) in self.kinds.items() if other_kind == kind]

    # --- Expressions

    def kind(self, node) -> str:
        """ "int", "float" or "array"; "" where it cannot be seen."""
        match node:
            case ast.Constant(value=bool()):
                return ""
            case ast.Constant(value=int()):
                return "int"
            case ast.Constant(value=float()):
                return "float"
            case ast.Name():
                return self.kinds.get(node.id, ("", 0))[0]
            case ast.Attribute(value=ast.Attribute(attr=word)) if word in DIMENSIONS:
                return "int"
            case ast.Attribute(attr="size" | "ndim" | "itemsize" | "shape" | "x" | "y" | "z"):
                return "int"
            case ast.Attribute(attr="inf" | "pi"):
                return "float"
            case ast.Attribute(attr="T"):
                return "array"
            case ast.Subscript():
                if self.kind(node.value) == "int":
                    return "int"  # of a shape
                is_slice = any(isinstance(part, ast.Slice) for part in ast.walk(node.slice))
                return "array" if is_slice else "float"
            case ast.UnaryOp():
                return self.kind(node.operand)
            case ast.IfExp():
                return self.kind(node.body)
            case ast.BinOp():
                sides = {self.kind(node.left), self.kind(node.right)}
                if isinstance(node.op, ast.Div) and sides == {"int"}:
                    return "float"
                return next((kind for kind in ("array", "float", "int") if kind in sides), "")
            case ast.Call():
                return self._kind_of_call(node)
        return ""

    def _kind_of_call(self, node: ast.Call) -> str:
        called = ast.unparse(node.func)
        last = called.rpartition(".")[2]
        if last in INTEGERS:
            return "int"
        if called.endswith(".array") or last in ("zeros", "empty", "ones", "asarray", "array", "arange", "copy",
                                                 "reshape", "astype", "to_device", "device_array"):
            return "array"
        if last in ("max", "min", "abs") and node.args:
            return self.kind(node.args[0])
        if called.startswith("math.") or last in ("float32", "float64", "float16", "float") or "shfl" in last:
            return "float"
        if called.startswith("np.") and node.args and not self.in_kernel:
            return self.kind(node.args[0])
        return ""

    def pool(self, kind: str, short_ones: bool = False) -> list[ast.expr]:
        """The expressions of this kind that the function has, the short ones first."""
        if kind not in self._pools:
            self._pools[kind] = self._pool(kind)
        return [one for one in self._pools[kind] if not short_ones or _weight(one) <= 4]

    def _pool(self, kind: str) -> list[ast.expr]:
        if kind not in ("int", "float", "array"):
            return [ast.Name(name, ast.Load()) for name in self.of_kind(kind)]
        distinct: dict[str, ast.expr] = {name: ast.Name(name, ast.Load()) for name in self.of_kind(kind)}
        for node in ast.walk(self.function):
            if not isinstance(node, (ast.Subscript, ast.Attribute, ast.BinOp, ast.Call, ast.Name)):
                continue
            if isinstance(getattr(node, "ctx", None), ast.Store):
                if not isinstance(node, ast.Subscript):
                    continue
                node = ast.Subscript(node.value, node.slice, ast.Load())
            code = ast.unparse(node)
            is_part = code.rpartition(".")[2] in (*DIMENSIONS, "shape") or (
                isinstance(node, ast.Call) and code.startswith(("range", "cuda.shared", "cuda.local")))
            if self.kind(node) == kind and not is_part and _weight(node) < 12:
                distinct.setdefault(code, node)
        return sorted(distinct.values(), key=_weight)[:MOST_EXPRESSIONS]

    def _numbers(self) -> list:
        distinct = {node.value for node in ast.walk(self.function)
                    if isinstance(node, ast.Constant) and type(node.value) in (int, float)}
        return sorted({0, 1, *(n for n in distinct if type(n) is int)}) + sorted(
            {0.0, 1.0, 0.5, 2.0, *(n for n in distinct if type(n) is float)})

    def _conditions(self) -> list[ast.expr]:
        """Those that the function has, their parts and opposites; an index compared with the length of an axis; the
        first thread."""
        distinct: dict[str, ast.expr] = {}
        for node in ast.walk(self.function):
            if isinstance(node, (ast.If, ast.While, ast.IfExp)):
                parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
                for part in parts:
                    distinct.setdefault(ast.unparse(part), part)
                    opposite = ast.UnaryOp(ast.Not(), part)
                    distinct.setdefault(ast.unparse(opposite), opposite)
        if self.in_kernel:
            indices = self.of_kind("int")[:5]
            arrays = [(name, axes) for name, (kind, axes) in self.kinds.items() if kind == "array" and axes]
            texts = [f"{name} == 0" for name in indices]
            for index in indices:
                for array, axes in arrays[:4]:
                    texts += [f"{index} < {array}.shape[{axis}]" for axis in range(axes)]
                texts += [f"{index} {sign} {other}" for other in indices if other != index for sign in ("<", "<=")]
            for text in texts:
                distinct.setdefault(text, ast.parse(text, mode="eval").body)
        return list(distinct.values())[: 3 * MOST_EXPRESSIONS]


def _weight(node: ast.AST) -> int:
    return sum(isinstance(each, (ast.expr, ast.operator)) for each in ast.walk(node))
