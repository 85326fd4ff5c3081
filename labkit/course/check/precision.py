"""Where a kernel computes in float64 although its arrays are float32: what Numba's rules make of a literal.

A Python number with a point is a float64, an integer an int64, and float32 with either gives float64: `total = 0.0`,
`0.5 * x[i]`, `2 * x[i]`. On most GPUs float64 takes 32 or 64 times as long.
"""

from __future__ import annotations

import ast

CASTS = {"float32": "f4", "float64": "f8", "float": "f8", "float16": "f2", "int32": "i4", "int64": "i8", "int": "i8",
         "uint32": "u4", "uint64": "u8", "uint8": "u1", "int8": "i1", "len": "i8", "range": "i8"}  # fmt: skip
SAME = {"max", "min", "abs", "fma"}  # of the type of what they are given
SMALL = {"i1", "u1", "i2", "u2", "b1"}  # which float32 holds, so that it stays float32 beside them


def float64_at(function: ast.FunctionDef, arrays: dict[str, str]) -> tuple[int, str] | None:
    """(line, code) of the first operation whose operands are float32 and something wider, so that it is computed in
    float64; None if there is none. arrays: type ("f4") of the elements, or of a scalar, for each parameter."""
    kinds = dict(arrays)
    for _ in range(2):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name, kind = node.targets[0].id, _declared(node.value) or _kind(node.value, kinds)
                kinds[name] = _joined(kinds.get(name, kind), kind)
            elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                kinds[node.target.id] = "i8"
    nodes = (node for node in ast.walk(function) if isinstance(node, (ast.BinOp, ast.AugAssign)))
    found = [node for node in nodes if _widens(node, kinds)]
    if not found:
        return None
    first = min(found, key=lambda node: (node.lineno, node.col_offset))
    return first.lineno, ast.unparse(first)


def _widens(node, kinds: dict[str, str]) -> bool:
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.target, node.value]
    given = [_kind(side, kinds) for side in sides]
    return "f4" in given and _joined(*given) == "f8"


def _kind(node: ast.AST, kinds: dict[str, str]) -> str:
    """"f4", "i8" and so on; "" where it is not known, which is then no reason for a remark."""
    if isinstance(node, ast.Constant):
        return {float: "f8", int: "i8", bool: "b1"}.get(type(node.value), "")
    if isinstance(node, ast.Name):
        return kinds.get(node.id, "")
    if isinstance(node, ast.Subscript):
        shape = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
        return "i8" if shape else _kind(node.value, kinds)
    if isinstance(node, ast.UnaryOp):
        return _kind(node.operand, kinds)
    if isinstance(node, ast.IfExp):
        return _joined(_kind(node.body, kinds), _kind(node.orelse, kinds))
    if isinstance(node, ast.Attribute):
        return "i8" if node.attr in ("size", "x", "y", "z") else ""
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in CASTS:
            return CASTS[called]
        given = [_kind(each, kinds) for each in node.args]
        if called in SAME and given:
            return _joined(*given)
        of_math = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "math"
        return ("f4" if given[0] == "f4" else "f8" if given[0] else "") if of_math and given else ""
    if isinstance(node, ast.BinOp):
        left, right = _kind(node.left, kinds), _kind(node.right, kinds)
        if isinstance(node.op, ast.Div) and left[:1] in ("i", "u") and right[:1] in ("i", "u"):
            return "f8"
        return _joined(left, right)
    return ""


def _declared(node: ast.AST) -> str:
    """The type of the elements of cuda.shared.array(shape, float32)."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".shared.array", ".local.array")):
        types = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "dtype")]
        return CASTS.get(ast.unparse(types[0]).rpartition(".")[2], "") if types else ""
    return ""


def _joined(*kinds: str) -> str:
    """The type of an operation of these."""
    if "" in kinds:
        return ""
    if "f8" in kinds:
        return "f8"
    if "f4" in kinds:
        return "f4" if all(kind in SMALL or kind in ("f4", "f2") for kind in kinds) else "f8"
    return kinds[0] if len(set(kinds)) == 1 else "i8"
