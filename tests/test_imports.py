"""The chain of rooms: each may use those to its left, never one to its right. Imports inside functions count, and so
do names of modules in strings (a registry, a program for another process) and in docstrings."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit._common.paths import PACKAGE

pytestmark = pytest.mark.sweep(every=True)  # about the repository: .ci/run runs it

# cuda.py, the facade, chooses between device and simt: the three are one step for what stands to their right.
CHAIN = ("_common", "simt", "device", "kernels", "models", "train", "engine", "serve", "measure", "course", "cli")
DOORS = ("labkit", "labkit.__main__", "labkit.cuda")  # `import labkit`, `python -m labkit`, `from labkit import cuda`
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
           for path in FILES}
NAMED = re.compile(r"(?<![\w./-])labkit(?:\.[A-Za-z_]\w*)+")
IN_A_PROGRAM = re.compile(r"^\s*from (labkit[\w.]*) import ([\w, ]+)", re.MULTILINE)


def imported(path: Path, text: str | None = None, late: bool = True) -> set[str]:
    """Every dotted name that the file imports, relative imports resolved; `from a import b` gives a and a.b. Late ones
    are those inside functions and in strings."""
    package = next(name for name, at in MODULES.items() if at == path).split(".") if path in FILES else []
    if path.name != "__init__.py":
        package = package[:-1]
    tree = ast.parse(text if text is not None else path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree) if late else top_level(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
        elif late and isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(NAMED.findall(node.value))
            for origin, taken in IN_A_PROGRAM.findall(node.value):
                names |= {f"{origin}.{name.split(' as ')[0].strip()}" for name in taken.split(",")}
    return names


def top_level(tree: ast.AST):
    """The nodes that run when the module is imported: no function's body."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from top_level(node)


def module_of(name: str) -> str | None:
    """The longest part of a dotted name that is a module: labkit.measure.bench.collect is in labkit.measure.bench.
    None for the door itself, which imports what is asked of it."""
    parts = name.split(".")
    for count in range(len(parts), 1, -1):
        if ".".join(parts[:count]) in MODULES:
            return ".".join(parts[:count])
    return None


def room(module: str) -> str:
    return module.split(".")[1]


def breaks() -> list[str]:
    found = []
    for module, path in MODULES.items():
        if module in DOORS:
            continue
        for name in sorted(imported(path)):
            target = module_of(name)
            if target is None or target == "labkit.cuda":
                continue
            if CHAIN.index(room(target)) > CHAIN.index(room(module)):
                found.append(f"{path.relative_to(PACKAGE.parent)} uses {MODULES[target].relative_to(PACKAGE.parent)}")
    return sorted(set(found))


def circles() -> list[str]:
    """Files that import one another, directly or through others, when they are imported or later."""
    graph = {module: {module_of(name) for name in code_imports(path)} - {None, module}
             for module, path in MODULES.items() if module != "labkit"}
    found, done = [], set()

    def visit(module, way):
        if module in way:
            found.append(" -> ".join([*way[way.index(module) :], module]))
        elif module not in done:
            for target in sorted(graph.get(module, ())):
                visit(target, [*way, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def code_imports(path: Path) -> set[str]:
    """The imports that code makes, without the names that stand in strings."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_reader_of_imports_sees_each_form():
    path = PACKAGE / "kernels" / "op.py"
    text = ("import a.b\nfrom c import d\nfrom . import e\nfrom ..f import g\ndef late():\n    import h\n"
            "HOMES = {'x': 'labkit.i'}\nPROGRAM = '''\nfrom labkit.j import k\n'''\n")
    found = {"a.b", "c", "c.d", "labkit.kernels", "labkit.kernels.e", "labkit.f", "labkit.f.g", "h", "labkit.i",
             "labkit.j", "labkit.j.k"}
    assert imported(path, text) == found


def test_every_room_is_in_the_chain():
    assert {room(module) for module in MODULES if module not in DOORS} == set(CHAIN)
    there = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*")
             if path.is_file() and "__pycache__" not in path.parts}
    assert there == {*CHAIN, "__init__.py", "__main__.py", "cuda.py"}


def test_each_room_uses_only_those_to_its_left():
    assert breaks() == []


def test_no_files_import_one_another():
    assert circles() == []


def test_simt_is_a_library_of_its_own():
    paths = [path for module, path in MODULES.items() if module.startswith("labkit.simt")]
    taken = {name for path in paths for name in code_imports(path) if module_of(name)}
    assert {name for name in taken if room(module_of(name)) != "simt"} == set()


def test_the_facade_is_the_only_way_to_cuda():
    # These choose the device or talk to a compiler of GPU code, on a machine without a GPU as well; the series on the
    # CPU device times Numba's simulator, in a process of its own.
    allowed = {"labkit.device", *(f"labkit.device.{name}" for name in (
        "doctor", "ptx_gpu", "ptx_mlir", "compile_target", "compiling", "kernel_key", "kernel_cache", "compile_ahead",
        "gpu_kernels", "quick_launch", "u32_gpu", "u32_mlir", "unsigned", "unsigned_mlir", "mlir")),
        "labkit.measure.series.simt", "labkit.measure.series.simt_speed"}
    assert [module for module, path in MODULES.items() if module not in allowed
            and any(f"{name}.".startswith(("numba.cuda.", "numba_cuda_mlir.")) for name in code_imports(path))] == []


@pytest.mark.parametrize("module", ["labkit", "labkit.cli", "labkit.course.registry"])
def test_heavy_modules_are_not_imported_at_the_start(module):
    heavy = ["numba", "numpy", "matplotlib", "jupytext", "nbclient", "nbconvert", "nbformat", "transformers", "torch"]
    code = f"import sys, {module}; print(*[name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_door_opens_every_name_it_lists_and_refuses_the_others():
    import labkit

    for name in labkit.__all__:
        assert getattr(labkit, name) is not None
    assert set(labkit.__all__) <= set(dir(labkit))
    with pytest.raises(AttributeError, match="labkit has no 'cupy'"):
        labkit.cupy  # noqa: B018


def test_every_name_of_the_library_that_is_written_down_leads_somewhere():
    """In code, docstrings, lessons and answers: `labkit.measure.bench` must be there."""
    import importlib

    import labkit

    root = PACKAGE.parent
    paths = [path for folder in ("labkit", "notebooks", "solutions", "scripts")
             for path in sorted((root / folder).rglob("*.py"))]
    wrong = []
    for path in paths:
        for name in sorted(set(NAMED.findall(path.read_text(encoding="utf-8")))):
            module = module_of(name) or "labkit"
            rest = name.split(".")[len(module.split(".")) :]
            if rest and not (module == "labkit" and rest[0] in labkit.__all__):
                try:
                    found = hasattr(importlib.import_module(module), rest[0])
                except ModuleNotFoundError:  # a library that is not installed
                    found = True
                if not found:
                    wrong.append(f"{path.relative_to(root)}: {name}")
    assert wrong == []
