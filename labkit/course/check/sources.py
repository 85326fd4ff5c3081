"""The source of an answer and of the functions that it calls, as trees."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field

from labkit.course.check.words import parsed


@dataclass(frozen=True)
class Source:
    """One function of the learner's."""

    function: object
    filename: str
    tree: ast.AST  # with the lines of the file; an empty Module where the source is not at hand
    axes: dict[str, int] = field(default_factory=dict)  # how many a parameter has

    def nodes(self, kind, line: int = 0):
        """The nodes of this kind, on this line if it is known."""
        matches = [node for node in ast.walk(self.tree) if isinstance(node, kind)]
        return [node for node in matches if node.lineno <= line <= node.end_lineno] or matches if line else matches

    def names(self) -> set[str]:
        """What its code can name: its own variables, its surroundings, and Python's."""
        own = {node.id for node in self.nodes(ast.Name) if isinstance(node.ctx, ast.Store)}
        own |= {node.arg for node in self.nodes(ast.arg)}
        code = getattr(self.function, "__code__", None)
        return own | set(getattr(self.function, "__globals__", {})) | set(getattr(code, "co_freevars", ()))


def sources_of(answer, depth: int = 3) -> dict[str, Source]:
    """The answer, and the functions that it names, by name."""
    sources: dict[str, Source] = {}
    pending = [(getattr(answer, "py_func", answer), depth)]
    while pending:
        function, depth_left = pending.pop(0)
        if not inspect.isfunction(function) or function.__name__ in sources:
            continue
        if (function.__module__ or "").partition(".")[0] == "labkit":
            continue
        tree, first_line = parsed(function)
        if tree is not None:
            ast.increment_lineno(tree, first_line - 1)
        sources[function.__name__] = Source(function, function.__code__.co_filename, tree or ast.Module([], []))
        cells = (cell.cell_contents for cell in function.__closure__ or () if _is_set(cell))
        referenced = [*cells, *(function.__globals__.get(name) for name in function.__code__.co_names)]
        if depth_left:
            pending += [(getattr(value, "py_func", value), depth_left - 1) for value in referenced
                        if hasattr(value, "py_func") or inspect.isfunction(value)]
    return sources


def _is_set(cell) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def store_that_adds(answer) -> tuple[tuple[str, int], str]:
    """((file, line), code) of the first `array[...] += ...` or atomic in the answer or what it calls; (("", 0), "") if
    there is none. The output is the last parameter: it is looked for first."""
    sources = list(sources_of(answer).values())
    parameters = list(inspect.signature(getattr(answer, "py_func", answer)).parameters) if callable(
        getattr(answer, "py_func", answer)) else []
    updates = []
    for source in sources:
        for node in source.nodes((ast.AugAssign, ast.Call)):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
                updates.append((source, node, ast.unparse(node.target.value)))
            elif isinstance(node, ast.Call) and ".atomic." in ast.unparse(node.func) and node.args:
                updates.append((source, node, ast.unparse(node.args[0])))
    last = parameters[-1] if parameters else ""
    for source, node, _ in sorted(updates, key=lambda one: one[2] not in (last, "out")):
        return (source.filename, node.lineno), code_of(node)
    return ("", 0), ""


def mentions(answer, *words: str) -> bool:
    """Return whether one of the words is in the source of the answer or of a function that it calls."""
    return any(word in ast.unparse(source.tree) for source in sources_of(answer).values() for word in words)


def made_in_kernel(answer) -> set[str]:
    """The names of the shared and local arrays of a kernel, and of the functions that it calls."""
    arrays = set()
    for source in sources_of(answer).values():
        for node in source.nodes(ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(node.targets[0].elts, node.value.elts, strict=False)
            arrays |= {target.id for target, value in pairs
                       if isinstance(target, ast.Name) and isinstance(value, ast.Call)
                       and code_of(value.func).endswith(("shared.array", "local.array"))}
    return arrays


def code_of(node) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
