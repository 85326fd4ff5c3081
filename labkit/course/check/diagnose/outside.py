"""What the index of an access outside an array was made of, and which conditions let it through.

The statements before the access are evaluated for the thread that made it, as far as they are plain arithmetic: a value
that depends on a loop or on what an array holds stays unknown, and no sentence names it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from labkit.course.check.sources import sources_of
from labkit.course.check.words import source_line

CONVERSIONS = dict.fromkeys(("int32", "int64", "uint32", "uint64", "int"), int) | {"min": min, "max": max}
UNKNOWN = object()


def let_through(answer, arguments: tuple, grid, block, error) -> tuple[str, ...]:
    """Where the index comes from, and the conditions around the access; () where that is not known. error: the
    OutOfBoundsError, which names line, array, index, block and thread."""
    source = sources_of(answer).get(getattr(answer, "__name__", getattr(error, "kernel", "")))
    if source is None or not error.thread or not error.block or source.filename != error.filename:
        return ()
    definition = next((node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef)), None)
    if definition is None:
        return ()
    parameters = [argument.arg for argument in definition.args.args]
    names = {name: SimpleNamespace(shape=value.shape, size=value.size) if isinstance(value, np.ndarray) else value
             for name, value in zip(parameters, arguments, strict=False)}
    state = _State(names, _cuda(grid, block, error.block, error.thread))
    conditions = _reach(definition.body, error.line, state)
    if conditions is None:
        return ()
    access = _access(definition, error, state)
    if access is None:
        return ()
    axis = next((k for k, (i, n) in enumerate(zip(error.index, error.shape, strict=True)) if not 0 <= i < n), None)
    if axis is None:
        return ()
    return _sentences(access[axis], error.index[axis], state, conditions, error.line, source.filename)


def _sentences(index: ast.expr, value: int, state: _State, conditions: list, line: int, filename: str) -> tuple:
    code = ast.unparse(index)
    found = {name: state.names.get(name, UNKNOWN) for name in _names(index)}
    known = {name: one for name, one in found.items() if isinstance(one, (int, np.integer))}
    if isinstance(index, ast.Name):
        made = state.lines.get(code)
        text = f"`{code}` is {value} there"
        text += f": line {made}, `{source_line(filename, made)}`." if made and made != line else "."
    elif known and len(known) == len(found):
        values = _listed([f"{name} = {one}" for name, one in known.items()])
        text = f"The index `{code}` is {value} there, with {values}."
    else:
        text = f"The index `{code}` is {value} there."
    used = _sources_of_index(index, state) - set(state.parameters)
    parts = [part for test in conditions for part in (
        test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test])]
    about = [test for test in parts if used & set(_names(test))]
    if not about:
        names = _listed([f"`{name}`" for name in _names(index)]) or "it"
        return (text, f"No condition around line {line} checks {names}.")
    shown = _listed([f"`{ast.unparse(test)}`" for test in about])
    bounds = dict.fromkeys(ast.unparse(each) for test in about for each in _bounds(test, used))
    values = [f"`{bound}` is {one}" for bound in bounds if (one := state.value_of(bound)) is not UNKNOWN]
    verb = "lets" if len(about) == 1 else "let"
    return (text, f"{shown} {verb} it through{': ' if values else ''}{_listed(values)}.")


class _State:
    """Hold the thread's variables as far as they can be evaluated. lines, made: the line that last set a variable, and
    the expression it was set to."""

    def __init__(self, names: dict, cuda):
        self.names, self.cuda, self.lines, self.made, self.parameters = names, cuda, {}, {}, tuple(names)

    def value(self, node: ast.expr):
        try:
            found = eval(compile(ast.Expression(node), "<index>", "eval"), {"__builtins__": {}}, {
                **CONVERSIONS, **self.names, "cuda": self.cuda})
        except Exception:  # it depends on a value that cannot be evaluated here
            return UNKNOWN
        return found if isinstance(found, (int, float, bool, tuple, np.number)) else UNKNOWN

    def value_of(self, code: str):
        return self.value(ast.parse(code, mode="eval").body)

    def assign(self, target: ast.expr, value, node: ast.expr, line: int) -> None:
        if isinstance(target, ast.Tuple):
            several = value if isinstance(value, tuple) and len(value) == len(target.elts) else (
                [UNKNOWN] * len(target.elts))
            nodes = node.elts if isinstance(node, ast.Tuple) and len(node.elts) == len(several) else (
                [node] * len(several))
            for one, part, made in zip(target.elts, several, nodes, strict=True):
                self.assign(one, part, made, line)
        elif isinstance(target, ast.Name):
            self.names.pop(target.id, None)
            if value is not UNKNOWN:
                self.names[target.id] = value
            self.lines[target.id], self.made[target.id] = line, node

    def forget(self, statements: list) -> None:
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    for known in (self.names, self.lines, self.made):
                        known.pop(node.id, None)


def _reach(statements: list, line: int, state: _State) -> list[ast.expr] | None:
    """Go to the statement of this line; the conditions on the way that are known to be true. None if it is not there,
    or not where these conditions lead."""
    passed: list[ast.expr] = []
    for statement in statements:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            rest = _inside(statement, line, state)
            return None if rest is None else [*passed, *rest]
        if isinstance(statement, ast.Assign):
            value = state.value(statement.value)
            for target in statement.targets:
                state.assign(target, value, statement.value, statement.lineno)
        elif isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return) and not statement.orelse:
            if state.value(statement.test) is not UNKNOWN:
                passed.append(statement.test)
        elif not isinstance(statement, ast.Expr):
            state.forget([statement])
    return None


def _inside(statement: ast.stmt, line: int, state: _State) -> list[ast.expr] | None:
    body = getattr(statement, "body", None)
    if not isinstance(body, list) or line < body[0].lineno:
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            return None  # the access is in the condition itself
        tests = [node.test for node in ast.walk(statement) if isinstance(node, ast.IfExp)]
        return tests if all(state.value(test) is not UNKNOWN for test in tests) else None
    if isinstance(statement, (ast.For, ast.While)):
        state.forget([statement])
    tests = [statement.test] if isinstance(statement, (ast.If, ast.While)) else (
        [statement.iter] if isinstance(statement, ast.For) else [])
    for branch in (body, getattr(statement, "orelse", [])):
        if branch and branch[0].lineno <= line <= (branch[-1].end_lineno or 0):
            rest = _reach(branch, line, state)
            return None if rest is None else [*tests, *rest]
    return None


def _access(definition: ast.FunctionDef, error, state: _State) -> list[ast.expr] | None:
    """The indices of the access."""
    found = []
    for node in ast.walk(definition):
        if isinstance(node, ast.Subscript) and node.lineno <= error.line <= node.end_lineno and (
                ast.unparse(node.value) == error.array):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            values = [state.value(index) for index in indices]
            if len(indices) == len(error.index) and all(
                    value is UNKNOWN or value == true for value, true in zip(values, error.index, strict=True)):
                found.append(indices)
    return found[0] if len({ast.unparse(ast.Tuple(one, ast.Load())) for one in found}) == 1 else None


def _sources_of_index(index: ast.expr, state: _State) -> set[str]:
    """The variables in an index, and those that they were made of."""
    found, pending = set(), list(_names(index))
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            made = state.made.get(name)
            pending += _names(made) if made is not None else []
    return found


def _bounds(test: ast.expr, used: set[str]) -> Iterator[ast.expr]:
    """What variables of the index are compared with."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                if not isinstance(side, ast.Constant) and not used & set(_names(side)):
                    yield side


def _names(node: ast.AST) -> list[str]:
    return list(dict.fromkeys(each.id for each in ast.walk(node) if isinstance(each, ast.Name)
                              and each.id not in ("cuda", "range", *CONVERSIONS)))


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""


def _cuda(grid, block, block_index, thread) -> SimpleNamespace:
    def xyz(values, fill: int = 1):
        parts = tuple(int(v) for v in values) if isinstance(values, (tuple, list)) else (int(values),)
        return SimpleNamespace(**dict(zip("xyz", (*parts, fill, fill)[:3], strict=True)))

    dims, blocks, at, of = xyz(block), xyz(grid), xyz(block_index, 0), xyz(thread, 0)
    along = {axis: getattr(at, axis) * getattr(dims, axis) + getattr(of, axis) for axis in "xyz"}

    def grid_position(axes: int):
        return along["x"] if axes == 1 else tuple(along.values())[:axes]

    def grid_size(axes: int):
        sizes = tuple(getattr(blocks, axis) * getattr(dims, axis) for axis in "xyz")
        return sizes[0] if axes == 1 else sizes[:axes]

    return SimpleNamespace(threadIdx=of, blockIdx=at, blockDim=dims, gridDim=blocks, grid=grid_position,
                           gridsize=grid_size, laneid=(of.x + of.y * dims.x + of.z * dims.x * dims.y) % 32)
