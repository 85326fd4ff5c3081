"""Small changes to a wrong answer, the likeliest first: one of them may make it right.

A change knows its line and names the mistake there, in words that do not give away the correction.
Most of what labkit.course.mutants does to a right answer is undone by the same operators; the others here are for what
learners write.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from labkit.course.check import expression_changes, statement_changes
from labkit.course.check.vocabulary import Vocabulary
from labkit.course.mutants import operators
from labkit.course.syntax import Place, RankedChanges, places_in, quoted, short


@dataclass(frozen=True, eq=False)
class Change:
    """One change of a function. rank: the lower the likelier; words: the mistake at that line, as a clause."""

    rank: float
    line: int
    words: str
    place: Place
    node: ast.AST | list

    def tree(self) -> ast.Module:
        return ast.fix_missing_locations(self.place.tree_with(self.node))


def changes(tree: ast.Module, vocabulary: Vocabulary) -> list[Change]:
    """Every change of the function in `tree`, likeliest first. Lines are those that the tree's nodes have."""
    result = []
    for place in places_in(tree):
        for operator in (*REUSED, *expression_changes.OPERATORS, *statement_changes.OPERATORS):
            for rank, words, node in operator(place, vocabulary):
                if not _does_all_alone(place, node):
                    result.append(Change(rank, _line(place.node, node), words, place, node))
    return sorted(result, key=lambda change: change.rank)


def _does_all_alone(place: Place, node) -> bool:
    """Whether a strided loop now has step 1: each thread does all of the work, which hides the mistake."""
    step = node.iter.args[2:3] if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) else (
        [node] if place.path[-1] == ("args", 2) and place.call == "range" else [])
    return bool(step) and isinstance(step[0], ast.Constant) and step[0].value == 1


GROWING = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}


def grows_itself(tree: ast.AST) -> bool:
    """Whether a statement makes a container larger by itself (`x.append(x)`, `x += x`, `x = [x]`), or grows the one
    that its loop goes through. Such a container may contain itself, and code in C then follows it for ever."""
    for node in ast.walk(tree):
        if _is_growing(node) and any(_holds(each, node.func.value) for each in node.args):
            return True
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and _holds(node.value, node.target):
            return True
        if isinstance(node, ast.Assign):
            containers = [one.value if isinstance(one, ast.Subscript) else one for one in node.targets]
            wraps = isinstance(node.value, (ast.List, ast.Tuple, ast.Set, ast.Dict))
            stored = any(isinstance(one, ast.Subscript) for one in node.targets) and isinstance(node.value, ast.Name)
            if (wraps or stored) and any(_holds(node.value, one) for one in containers
                                         if not isinstance(one, ast.Tuple)):
                return True
        if isinstance(node, ast.For):
            nested = [each for statement in node.body for each in ast.walk(statement)]
            if any(_same(each.func.value, node.iter) for each in nested if _is_growing(each)) or any(
                    _same(each.target, node.iter) for each in nested if isinstance(each, ast.AugAssign)):
                return True
    return False


def _is_growing(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GROWING


def _same(a: ast.AST, b: ast.AST) -> bool:
    return ast.unparse(a) == ast.unparse(b)


def _holds(value: ast.AST, name: ast.AST) -> bool:
    """Whether the value is the whole of `name`, or a list or tuple that holds it; an element of it is another thing."""
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return any(_holds(each, name) for each in value.elts)
    if isinstance(value, ast.Dict):
        return any(_holds(each, name) for each in value.values)
    return _holds(value.value, name) if isinstance(value, ast.Starred) else _same(value, name)


def _line(old: ast.AST, new) -> int:
    """The line to show; for a rearranged block, that of the first statement that moves."""
    moved = getattr(new, "moved", None)
    return getattr(moved if moved is not None else old, "lineno", 0)


# --- The operators of mutants, the other way round -------------------------------------------------------------------


def _reused(rank: float, operator: Callable, words: Callable) -> Callable:
    def change(place: Place, vocabulary: Vocabulary) -> RankedChanges:
        if not isinstance(place.node, ast.FunctionDef):
            for new_code, node in operator(place):
                yield rank, words(place.node, new_code), node

    return change


def _of_index(node, new_code: str) -> str:
    return f"the index of `{short(node.value)}` is wrong"


def _of_omission(node, new_code: str) -> str:
    if new_code == "left out":
        return "this statement is not needed"
    target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
    if isinstance(node, ast.AugAssign):
        return f"{quoted(target)} is added to where it should be overwritten"
    return f"{quoted(target)} is overwritten where it should be added to"


def _of_arithmetic(node, new_code: str) -> str:
    if isinstance(node, ast.UnaryOp):
        return f"the sign of {quoted(node.operand)} is wrong"
    if new_code in (short(node.left), short(node.right)):
        return f"{quoted(node)} has a factor or a term too many"
    return f"the operator of {quoted(node)}, or the order of its operands, is wrong"


def _of_call(node, new_code: str) -> str:
    if node.args and new_code == short(node.args[0]) and len(node.args) == 1:
        return f"{quoted(node.func)} is one call too many"
    if new_code.split("(")[0] == short(node.func):
        return f"the arguments of {quoted(node.func)} are in the wrong order"
    return f"{quoted(node.func)} is the wrong function here"


REUSED = (
    _reused(1.0, operators.guards, lambda node, new_code: f"the condition of {quoted(node)} is wrong" if isinstance(
        node, ast.If) else f"the condition {quoted(node)} is true once too often or too seldom"),
    _reused(3.0, operators.indices, _of_index),
    _reused(2.5, operators.numbers, lambda node, new_code: f"the number `{node.value}` is wrong"),
    _reused(2.0, operators.arithmetic, _of_arithmetic),
    _reused(1.0, operators.identities, lambda node, new_code: f"{quoted(node.targets[0])} begins with the wrong value"),
    _reused(1.0, operators.omissions, _of_omission),
    _reused(1.3, operators.loops, lambda node, new_code: "this loop begins, ends or steps where it should not"),
    _reused(1.2, operators.shapes, lambda node, new_code: f"{quoted(node)} is the length of another axis"),
    _reused(1.5, operators.launches, lambda node, new_code: "the grid and the block of this launch are wrong"),
    _reused(1.5, operators.calls, _of_call),
    _reused(2.0, operators.coordinates, lambda node, new_code: f"{quoted(node)} is the wrong coordinate"),
    _reused(2.0, operators.host_code, lambda node, new_code: f"{quoted(node)} is wrong"),
)
