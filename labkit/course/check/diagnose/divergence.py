"""Divergent branches and loops of a kernel: not all threads of a block reach them, so they may hold no barrier."""

from __future__ import annotations

import ast

OF_A_THREAD = ("threadIdx", "laneid", "grid")


def divergent_blocks(function: ast.FunctionDef) -> list[ast.stmt]:
    """The `if`, `while` and `for` statements whose condition or range depends on the thread, and those inside them,
    outermost first."""
    tainted = _tainted(function)
    blocks: list[ast.stmt] = []

    def visit(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            condition_field = {ast.If: "test", ast.While: "test", ast.For: "iter"}.get(type(child))
            divergent = inside or (condition_field is not None and _depends(getattr(child, condition_field), tainted))
            if divergent and condition_field is not None:
                blocks.append(child)
            visit(child, divergent)

    visit(function, False)
    return blocks


def around(function: ast.FunctionDef, *lines: int) -> ast.stmt | None:
    """The outermost divergent statement inside which all of these lines stand."""
    return next((block for block in divergent_blocks(function)
                 if all(block.lineno < line <= (block.end_lineno or 0) for line in lines)), None)


def _tainted(function: ast.FunctionDef) -> set[str]:
    """The variables that depend on the thread."""
    tainted: set[str] = set()
    for _ in range(3):  # a loop may use a variable set further below
        for node in ast.walk(function):
            value = getattr(node, "iter", None) if isinstance(node, ast.For) else getattr(node, "value", None)
            if not isinstance(node, (ast.Assign, ast.AugAssign, ast.For)) or not _depends(value, tainted):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            tainted |= {each.id for target in targets for each in ast.walk(target)
                        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return tainted


def _depends(value: ast.AST, tainted: set[str]) -> bool:
    return any((isinstance(each, ast.Attribute) and each.attr in OF_A_THREAD)
               or (isinstance(each, ast.Name) and each.id in tainted) for each in ast.walk(value))
