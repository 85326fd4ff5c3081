"""Places in the source of an answer, and its text with another node in one of them."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One node of the tree, inside a function: `parent`.`field`, or one of that list."""

    tree: ast.Module
    path: tuple  # of (field, index or None) from the module down to the node
    node: ast.AST
    names: tuple[str, ...]  # local names of the function that hold numbers, as far as can be seen
    call: str  # the innermost call around it, such as "cuda.shared.array"; "" outside of one

    @property
    def text(self) -> str:
        return self.node.name if isinstance(self.node, ast.FunctionDef) else short(self.node)

    def with_node(self, node: ast.AST | list) -> str:
        """The source with another node, or several statements, in this place."""
        nodes = (node or [ast.Pass()]) if isinstance(node, list) else [node]
        for new in nodes:
            ast.fix_missing_locations(new)
        return ast.unparse(_replaced(self.tree, self.path, nodes))


def _replaced(tree: ast.AST, path: tuple, nodes: list[ast.AST]) -> ast.AST:
    """The tree with these nodes at the end of the path: the nodes on the path are copied, all others are shared."""
    (field, index), *below = path
    child = getattr(tree, field)
    old = child if index is None else child[index]
    new = [_replaced(old, below, nodes)] if below else nodes
    result = copy.copy(tree)
    setattr(result, field, new[0] if index is None else [*child[:index], *new, *child[index + 1 :]])
    return result


def places_in(tree: ast.Module) -> Iterator[Place]:
    """Every node inside a function, decorators, docstrings and annotations left out."""
    for position, statement in enumerate(tree.body):
        if isinstance(statement, ast.FunctionDef):
            names = _local_names(statement)
            path = (("body", position),)
            yield Place(tree, path, statement, names, "")
            yield from _below(tree, path, statement, names, "")


def _below(tree, path, node, names, call) -> Iterator[Place]:
    if isinstance(node, ast.Call):
        call = ast.unparse(node.func)
    for field, value in ast.iter_fields(node):
        if field in ("decorator_list", "annotation", "returns", "ctx", "args") and isinstance(node, ast.FunctionDef):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(child, ast.AST) or _is_docstring(node, field, index, child):
                continue
            child_path = (*path, (field, index))
            yield Place(tree, child_path, child, names, call)
            yield from _below(tree, child_path, child, names, call)


def _is_docstring(parent, field, index, child) -> bool:
    return (isinstance(parent, ast.FunctionDef) and field == "body" and index == 0 and isinstance(child, ast.Expr)
            and isinstance(child.value, ast.Constant))


def _local_names(function: ast.FunctionDef) -> tuple[str, ...]:
    """Names that the function binds to an index or a number: targets of assignments of no array, and of loops."""
    arrays, scalars = set(), {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
                (arrays.update if "array" in ast.unparse(node.value) else scalars.update)(dict.fromkeys(names))
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            scalars[node.target.id] = None
    subscripted = {node.value.id for node in ast.walk(function)
                   if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)}
    return tuple(name for name in scalars if name not in arrays and name not in subscripted)


def short(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")
    line = text[0] + (" ..." if len(text) > 1 else "")
    return line if len(line) <= 90 else line[:87] + "..."


def compiles(source: str) -> bool:
    try:
        compile(source, "<mutant>", "exec")
    except SyntaxError:
        return False
    return True


def with_fields(node: ast.AST, **fields) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def plus(node: ast.AST, by: int) -> ast.AST:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + by)
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def is_launch(place: Place) -> bool:
    """kernel[grid, block](...): a subscript with two parts or more that is called."""
    node = place.node
    return (isinstance(node, ast.Subscript) and place.path[-1] == ("func", None)
            and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) >= 2)


def is_shape(node: ast.Subscript) -> bool:
    return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
