"""Who may import whom. Read from the sources, so that an import inside a function counts as well."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "labkit"
FILES = sorted(PACKAGE.rglob("*.py"))

# What learners and the command use; kernels and what measures them do not know it.
CONSUMERS = {"cli", "generate", "course", "run", "execute", "site", "readme", "progress", "doctor", "bench", "checking",
             "verdict", "workbook", "runcells", "yours"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, text: str | None = None) -> set[str]:
    """Every dotted name that the file imports, relative imports resolved; `from a import b` gives a and a.b."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    names = set()
    for node in ast.walk(ast.parse(text if text is not None else path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
    return names


def under(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def files(*parts: str) -> list[Path]:
    return [path for path in FILES if path.relative_to(PACKAGE).parts[: len(parts)] == parts]


def offenders(paths: list[Path], forbidden) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE.parent)} imports {name}"
        for path in paths
        for name in sorted(imported(path))
        if forbidden(name)
    ]


def test_the_reader_of_imports_sees_each_form():
    path = PACKAGE / "kernels" / "x.py"
    text = "import a.b\nfrom c import d\nfrom . import e\nfrom ..f import g\ndef late():\n    import h\n"
    found = {"a.b", "c", "c.d", "labkit.kernels", "labkit.kernels.e", "labkit.f", "labkit.f.g", "h"}
    assert imported(path, text) == found


def test_simt_imports_nothing_of_labkit_but_itself():
    assert files("simt"), "labkit/simt has no files"
    assert (
        offenders(files("simt"), lambda n: under(n, "labkit") and n != "labkit" and not under(n, "labkit.simt")) == []
    )


def test_kernels_and_measuring_know_nothing_of_the_command_and_the_course():
    paths = files("kernels") + [PACKAGE / f"{n}.py" for n in ("op", "measure", "roofline", "plots", "device", "cuda")]
    paths = [path for path in paths if path.exists()]
    assert offenders(paths, lambda n: under(n, *(f"labkit.{c}" for c in CONSUMERS))) == []


def test_measuring_knows_no_particular_kernel():
    paths = [PACKAGE / f"{name}.py" for name in ("op", "measure", "roofline", "plots", "show", "checking", "verdict")]
    allowed = {"labkit.kernels.launching"}
    forbidden = lambda n: under(n, "labkit.kernels") and n != "labkit.kernels" and not under(n, *allowed)  # noqa: E731
    assert offenders([path for path in paths if path.exists()], forbidden) == []


def test_the_facade_is_the_only_way_to_cuda():
    # simt/bench.py times Numba's simulator against the CPU device, in a process of its own; ptx_gpu.py and compiling.py
    # talk to Numba's compiler, on a machine without a GPU as well.
    allowed = {PACKAGE / name for name in ("cuda.py", "device.py", "doctor.py", "simt/bench.py", "ptx_gpu.py",
                                           "compiling.py")}
    paths = [path for path in FILES if path not in allowed]
    assert offenders(paths, lambda n: under(n, "numba.cuda")) == []


def test_what_kernels_stand_on_knows_no_kernel():
    paths = [PACKAGE / f"{name}.py" for name in ("ptx", "ptx_gpu", "graphs", "compiling")]
    assert offenders(paths, lambda n: under(n, "labkit.kernels", "labkit.op", "labkit.measure")) == []


def test_nothing_imports_a_notebook():
    assert offenders(FILES, lambda n: under(n, "notebooks")) == []


def test_only_the_command_sees_everything():
    paths = [path for path in FILES if path.name != "cli.py"]
    assert offenders(paths, lambda n: under(n, "labkit.cli")) == []


@pytest.mark.parametrize("module", ["labkit", "labkit.cli", "labkit.course"])
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
