"""Which of labkit's files, and which drawings, a Python source such as a lesson depends on through all its imports."""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

import labkit
from labkit._common import paths


def sources_of(source: Path | str) -> list[Path]:
    """The files of labkit that a .py file, or a source text, imports, directly or through others; sorted.

    Imports inside functions count, names in strings do not. A package's __init__.py counts where a module in it is
    imported. A name taken from the door, `from labkit import cuda` or `labkit.cuda`, leads to its home. The source
    itself is among the files if it is labkit's and they import it. What a lesson draws (labkit.course.drawings) is
    among them.
    """
    modules = _modules(paths.PACKAGE)
    path = source if isinstance(source, Path) else None
    text = source if path is None else path.read_text(encoding="utf-8")
    pending = _files(_imported(text, _package_of(path, modules)), modules)
    files: set[Path] = set()
    while pending:
        file = pending.pop()
        if file not in files:
            files.add(file)
            if file != modules["labkit"]:  # the door imports lazily
                pending |= _files(_imported_by(file, file.stat().st_mtime_ns, _package_of(file, modules)), modules)
    return sorted(files)


DRAWINGS = paths.REPOSITORY / "notebooks" / "drawings"
SHOWN = (*(paths.PACKAGE / room for room in ("kernels", "models", "engine")), DRAWINGS)  # what a lesson shows and runs


def kernels_sha256(source: Path) -> dict[str, str]:
    """File -> the first 16 digits of its hash, for each file with kernels, models or drawings that a lesson's source
    imports."""
    files = [file for file in sources_of(source) if any(file.is_relative_to(folder) for folder in SHOWN)]
    return {file.relative_to(paths.REPOSITORY).as_posix():
            hashlib.sha256(file.read_text(encoding="utf-8").encode()).hexdigest()[:16] for file in files}


def _modules(package: Path) -> dict[str, Path]:
    """Dotted name -> file."""
    modules = {".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
               for path in package.rglob("*.py")}
    return modules | {f"labkit.course.drawings.{path.stem}": path for path in DRAWINGS.glob("*.py")}


def _package_of(path: Path | None, modules: dict[str, Path]) -> str:
    """The package that a file's relative imports start from; "" for a file outside labkit."""
    name = next((name for name, file in modules.items() if file == path), "")
    return name if path is not None and path.name == "__init__.py" else name.rpartition(".")[0]


@functools.lru_cache(maxsize=1024)
def _imported_by(file: Path, changed_ns: int, package: str) -> frozenset[str]:
    """_imported, remembered until the file changes."""
    return _imported(file.read_text(encoding="utf-8"), package)


def _imported(text: str, package: str) -> frozenset[str]:
    """Every dotted name that the source imports; `from a import b` gives a and a.b, an attribute of labkit its name.
    None from a source that is not Python yet, or has a notebook's magics in it."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "labkit":
            names.add(f"labkit.{node.attr}")
    return frozenset(names)


def _files(names: frozenset[str], modules: dict[str, Path]) -> set[Path]:
    """The files that importing these names runs: each module, and the packages that it lies in."""
    files = set()
    for name in names:
        root, *parts = name.split(".")
        if root != "labkit":
            continue
        if parts and parts[0] in labkit._HOMES:
            parts = [*labkit._HOMES[parts[0]].partition(":")[0].split(".")[1:], *parts[1:]]
        for count in range(len(parts) + 1):
            if file := modules.get(".".join(["labkit", *parts[:count]])):
                files.add(file)
    return files
