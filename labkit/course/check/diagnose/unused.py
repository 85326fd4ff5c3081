"""What the source of an answer shows beside a wrong result: what it never uses, and an int32 that is too small."""

from __future__ import annotations

import ast

import numpy as np

from labkit.course.check.draw import Case, arguments_of
from labkit.course.check.words import parsed
from labkit.course.exercises import Exercise


def never_used(exercise: Exercise, answer, case: Case) -> tuple[str, ...]:
    """A sentence for each parameter that the answer never reads, lengths left out that arrays have, too; and for each
    variable that it sets and never reads."""
    tree, _ = parsed(answer)
    nodes = ast.walk(tree or ast.Module([], []))
    definition = next((node for node in nodes if isinstance(node, ast.FunctionDef)), None)
    if definition is None:
        return ()
    values = case.inputs if exercise.shape is None else arguments_of(exercise, case.inputs, case.expected, case.size)
    lengths = {length for value in (*values, case.expected) for length in np.shape(value)}
    unused = {argument.arg: value for argument, value in zip(definition.args.args, values, strict=False)
              if _use(definition.body, argument.arg) != "read"
              and (np.ndim(value) or isinstance(value, (float, np.floating)) or value not in lengths)}
    sizes = set(case.size.values())
    needless = {name for name, value in unused.items() if np.ndim(value) == 0 and value in sizes}
    return (*(f"`{name}` is never used{'' if name in needless else ', but the result should depend on it'}."
              for name in unused), *_never_read(definition))


def _never_read(definition: ast.FunctionDef) -> list[str]:
    """A sentence for the variables that are set and never read."""
    names = [node for node in ast.walk(definition) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)} | {
        node.target.id for node in ast.walk(definition) if isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Name)}
    loops = {node.target.id for node in ast.walk(definition) if isinstance(node, ast.For)
             and isinstance(node.target, ast.Name)}
    unread = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Store)
                           and node.id not in read | loops and not node.id.startswith("_"))
    return [f"`{name}` is set but never read." for name in unread]


def overflowing(exercise: Exercise, answer, case: Case) -> tuple[str, ...]:
    """Where the answer makes an int32 of what it computes, and numbers of an input add up to more than that holds."""
    largest = np.iinfo(np.int32).max
    values = case.inputs if exercise.shape is None else arguments_of(exercise, case.inputs, case.expected, case.size)
    tree, first_line = parsed(answer)
    definition = next((node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.FunctionDef)),
                      None)
    if definition is None:
        return ()
    made = next((node for node in ast.walk(definition)
                 if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.BinOp)
                 and ast.unparse(node.func).rpartition(".")[2] == "int32"), None)
    for argument, value in zip(definition.args.args, values, strict=False):
        if made is not None and isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim and (
                total := int(value.astype(np.int64).sum(axis=-1).max(initial=0))) > largest:
            return (f"Line {first_line + made.lineno - 1}: `{ast.unparse(made)}` is an int32, which holds at most "
                    f"{largest:,}, but the elements of `{argument.arg}` add up to {total:,} here.",)
    return ()


def _use(statements: list, name: str) -> str:
    """What these statements do first to the value that a variable has before them: "read" it, or "replaced" it on every
    way; "" if neither."""
    for statement in statements:
        bodies = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
        bodies = [body for body in bodies if isinstance(body, list)]
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.With)):
            heads = [node for node in ast.iter_child_nodes(statement) if not isinstance(node, ast.stmt)]
            uses = [_use(body, name) for body in bodies if body]
            if any(_loads(head, name) for head in heads) or "read" in uses:
                return "read"
            if isinstance(statement, ast.If) and statement.orelse and set(uses) == {"replaced"}:
                return "replaced"
        elif _loads(statement, name):
            return "read"
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and any(
                isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
                for node in ast.walk(statement)):
            return "replaced"
    return ""


def _loads(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
               or isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name) and each.target.id == name
               for each in ast.walk(node))
