"""The kernels of a file, a lesson, an exercise or a notebook, for `labkit fits`: its definitions without its launches.

    kernel("work/exercises/01_vector_add.ipynb", "every_second")
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import sys
import types
from pathlib import Path

from labkit._common.errors import UserError, did_you_mean, names_like
from labkit._common.files import read_text

DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


def kernel(path: Path, name: str):
    """The kernel of this name in a .py or .ipynb file; of "" the only one. Raises UserError where there is none."""
    namespace, failed = _defined(path)
    found = {key: value for key, value in namespace.items()
             if hasattr(value, "py_func") and hasattr(value, "configure") and not key.startswith("__")}
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if name in found:
        return found[name]
    listed = f"its kernels are {', '.join(found)}" if found else "it defines no kernel"
    if not name:
        raise UserError(f"{path} needs the name of a kernel, such as {path}:{next(iter(found), 'my_kernel')}; {listed}")
    if name in failed:
        raise UserError(f"{name} in {path} cannot be made: {failed[name]}")
    if name in namespace:
        value = namespace[name]
        kind = ("a function without @cuda.jit" if isinstance(value, types.FunctionType) else "a device function"
                if hasattr(value, "py_func") else f"of type {type(value).__name__}")
        raise UserError(f"{name} in {path} is {kind} and no kernel; {listed}")
    raise UserError(f"{path} has no kernel {name!r}; {listed}" if len(found) < 6 else
                    f"{path} has no kernel {name!r}; {did_you_mean(names_like(name, found))}")


def _defined(path: Path) -> tuple[dict, dict[str, str]]:
    """(what the file defines, name -> why it could not be): its imports, functions, classes and assignments are run, in
    order, and nothing else, so that no kernel is launched."""
    namespace = {"__name__": "labkit_fits_file", "__file__": str(path)}
    failed: dict[str, str] = {}
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        for filename, source in _sources(path):
            try:
                tree = ast.parse(source, filename)
            except SyntaxError as error:
                raise UserError(f"{path}: line {error.lineno} is no Python: {error.msg}") from None
            for node in tree.body:
                if isinstance(node, DEFINITIONS):
                    _run(node, filename, namespace, failed)
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
    return namespace, failed


def _run(node: ast.stmt, filename: str, namespace: dict, failed: dict[str, str]) -> None:
    try:
        exec(compile(ast.Module([node], []), filename, "exec"), namespace)
    except Exception as error:
        reason = f"line {node.lineno}: {' '.join(str(error).split()) or type(error).__name__}"
        failed.update(dict.fromkeys(_names(node), reason))


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _sources(path: Path) -> list[tuple[str, str]]:
    """(file name as errors give it, source): of a notebook each cell of code, without its magics."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    if path.suffix != ".ipynb":
        return [(str(path), text)]
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no notebook") from None
    found = []
    for position, source in enumerate(sources, 1):
        lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
        filename, source = f"<cell {position} of {path.name}>", "\n".join(lines) + "\n"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        found.append((filename, source))
    return found
