"""Cells with answers, in files of exercises and in learners' notebooks: finding an answer, running it alone.

An answer stands between nbgrader's markers, ### BEGIN SOLUTION and ### END SOLUTION, in the last such cell above the
one that calls check("name", answer).
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import re
from collections.abc import Sequence

BEGIN, END = "BEGIN SOLUTION", "END SOLUTION"


def code_cells(text: str) -> list[str]:
    """The code cells of a py:percent source."""
    cells: list[list[str]] = []
    current: list[str] | None = None
    for line in text.split("\n"):
        if re.match(r"# ?%%(\s|$)", line):
            current = None
            if "[markdown]" not in line:
                cells.append(current := [])
        elif current is not None:
            current.append(line)
    return ["\n".join(cell).strip("\n") for cell in cells]


def without_markers(source: str) -> str:
    """An answer cell as it is shown: at column 0 the answer alone, which stands for the whole."""
    lines = source.split("\n")
    begins = [k for k, line in enumerate(lines) if BEGIN in line]
    if begins and not lines[begins[0]][:1].isspace():
        ends = [k for k, line in enumerate(lines) if END in line]
        lines = lines[begins[0] : ends[-1] + 1]
    return unmarked("\n".join(lines)).strip("\n")


def unmarked(source: str) -> str:
    """A cell without the lines of nbgrader's markers."""
    return "\n".join(line for line in source.split("\n") if BEGIN not in line and END not in line)


def checked_name(source: str) -> str | None:
    """The name in a cell's check("name", ...), or None."""
    if "check(" not in source:
        return None
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a learner's cell, or a magic
        match = re.search(r"""^check\(\s*['"](\w+)['"]""", source, re.MULTILINE)
        return match.group(1) if match else None
    for node in ast.walk(tree):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check"
        if called and node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            return node.args[0].value
    return None


def ended_after(error: str) -> str:
    """What a verdict adds where the answer's cell defined it, and then raised `error`."""
    return f"The cell above ended with an error, after what it defines: {error}"


def program(above: Sequence[str], answer: str) -> str:
    """The answer's cell, after those statements of the cells above it that define what it uses."""
    needed = _names_read(ast.parse(answer))
    definitions: list[str] = []
    for cell in reversed(above):
        try:
            statements = ast.parse(cell).body
        except SyntaxError:  # a magic, or half a thought
            continue
        for statement in reversed(statements):
            if names_bound(statement) & needed:
                needed |= _names_read(statement)
                definitions.append(ast.unparse(statement))
    return "\n".join([*reversed(definitions), answer, ""])


def _names_read(tree) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def names_bound(statement) -> set[str]:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
        return {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return set()


def run(program: str, name: str, filename: str):
    """What the program defines under this name. Kernels compiled from a string find their source in linecache."""
    linecache.cache[filename] = (len(program), None, program.splitlines(keepends=True), filename)
    namespace = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(program, filename, "exec"), namespace)
    return namespace.get(name)
