"""Shared by all tests: the markers `gpu` and `cpu_device`, a closed or full output, the line that says what was skipped
and why, and a small course in a temporary directory."""

import functools
import gc
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import textwrap
import types
from collections import Counter
from types import SimpleNamespace

import pytest

from tests import browser
from tests.sampling import mark_sweeps

os.environ.setdefault("NUMBA_OPT", "1")  # kernels of tests run for milliseconds: a tenth less time in the compiler
sys.modules.setdefault("rfc3987_syntax", None)  # a grammar that jsonschema builds in 2 s and no notebook's schema uses


def pytest_configure(config):
    refusing = [1] * (not takes_output()) + [2] * (sys.__stderr__ is None)
    if "PYTEST_XDIST_WORKER" not in os.environ and refusing:
        for number in refusing:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # pytest keeps hold of the stream it began with
    gc.set_threshold(100_000, 20, 100)  # a compile makes millions of objects that live until it ends
    if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None):
        leave_kernels_unoptimised()


def leave_kernels_unoptimised():
    """LLVM does little for the CPU device's kernels in this process: a quarter less time in the compiler. NUMBA_OPT=0
    would leave PTX unoptimised, too; and LLVM's -O0 leaves addresses in the code, which then cannot be kept on disk for
    the next process."""
    from numba.core import config
    from numba.core.registry import cpu_target

    before, config.OPT = config.OPT, type(config.OPT)(0)
    cpu_target.target_context.codegen()  # keeps the level that it is made with: labkit.simt makes it when imported
    config.OPT = before
    from labkit.simt import compiled_kernel

    compiled_kernel.HIGHEST_OPT = 1


def takes_output() -> bool:
    """Whether standard output can be written to: not where it is closed, or on a full disk. pytest stops there; started
    anew, it prints to the null device, and its exit code is the result."""
    try:
        return sys.stdout is not None and (os.isatty(1) or os.write(1, b"\n") == 1)
    except OSError:
        return False


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(items):
    mark_sweeps(items)
    marked = [item for item in items for name in ("gpu", "cpu_device") if item.get_closest_marker(name)]
    if not marked:
        return
    from labkit import device

    for item in marked:
        if device.on_gpu() != bool(item.get_closest_marker("gpu")):
            reason = "about the CPU device" if device.on_gpu() else "needs a GPU"
            item.add_marker(pytest.mark.skip(reason=reason))


# The reasons of tests/compiled.py and of tests that ask labkit.device.compiling themselves.
NO_COMPILER = r"toolkit's compiler is not installed|ptxas is not installed|no ptxas"

# What a skipped test is without, by the words of its reason. The first that fits counts.
SKIPPED = {
    "are about the CPU device": r"CPU device|machine has a GPU",
    "need PyTorch": r"torch",
    "need Triton": r"Triton (is not|was)",
    "need cuda-tile": r"cuda-tile|cuTile",
    "need MiniLM's weights (labkit weights minilm)": r"labkit weights minilm",
    "need a CUDA compiler": r"compiler|ptxas",
    "need numba-cuda-mlir": r"numba-cuda-mlir",
    "need numba-cuda": r"numba.cuda",
    "need a GPU": r"GPU|compute capability|tensor cores",
}


def skipped_by_reason(reasons: list[str]) -> str:
    """All reasons in one line, the most frequent first: "3 skipped: 2 need a GPU, 1 for another reason"."""
    counts = Counter(next((what for what, words in SKIPPED.items() if re.search(words, reason, re.IGNORECASE)), "")
                     for reason in reasons)
    others = counts.pop("", 0)
    parts = [f"{count} {what.replace('need', 'needs').replace('are', 'is') if count == 1 else what}"
             for what, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
    if others:
        parts.append(f"{others} for another reason" if others == 1 else f"{others} for other reasons")
    return f"{len(reasons)} skipped: {', '.join(parts)}"


@functools.cache
def has_compiler_wheels() -> bool:
    """Whether the wheels of the extra `fits`, which `test` contains, are installed on a system that they are for."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return False
    return all(importlib.util.find_spec("numba_cuda") and _installed(name)
               for name in ("nvidia-cuda-nvcc", "nvidia-cuda-nvrtc", "nvidia-nvjitlink"))


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that is skipped for want of a compiler which is installed has failed: nobody would notice."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and has_compiler_wheels():
        reason = report.longrepr[2]
        if re.search(NO_COMPILER, reason):
            report.outcome = "failed"
            report.longrepr = f"the compiler's wheels are installed, and the test was skipped: {reason}"
    return report


def pytest_terminal_summary(terminalreporter):
    reports = terminalreporter.stats.get("skipped", [])
    if reports:
        reasons = [report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
                   for report in reports]
        terminalreporter.write_line(f"{skipped_by_reason(reasons)} (pytest -rs lists them)")


@pytest.fixture(scope="module")
def chromium():
    with browser.started() as started:
        yield started


AGREEMENT = """\
class Agreement:
    def __init__(self, passed=True, max_error=2.5e-7):
        self.result = {"kind": "agreement", "op": "add", "kernels": ["add_naive", "add_tiled"],
                       "max_error": max_error, "tolerance": 1e-6, "passed": passed}

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "agrees", "text/html": "<table><tr><td>agrees</td></tr></table>",
                "application/vnd.labkit.result+json": self.result}
"""


def lesson(title: str, *cells: str) -> str:
    """A lesson's source: a title, the stand-in for an agreement, then these code cells."""
    parts = [f"# %% [markdown]\n# # {title}\n#\n# ## The problem", f"# %%\n{AGREEMENT}"]
    parts += [f"# %%\n{textwrap.dedent(cell).strip()}" for cell in cells]
    return "\n\n".join(parts) + "\n"


@pytest.fixture
def course_dir(tmp_path):
    """A checkout with two lessons, nothing built."""
    root = tmp_path / "checkout"
    (root / "notebooks").mkdir(parents=True)
    (root / "course.toml").write_text(
        textwrap.dedent("""\
        [course]
        title = "small"
        tagline = "Two lessons."

        [[chapter]]
        name = "00_first"
        title = "First"
        summary = "The first one."

        [[chapter]]
        name = "01_second"
        title = "Second"
        summary = "The second one."
        """)
    )
    (root / "notebooks" / "00_first.py").write_text(lesson("First", "print('hello')", "Agreement()"))
    (root / "notebooks" / "01_second.py").write_text(lesson("Second", "Agreement(max_error=0.0)"))
    (root / "README.md").write_text(
        "# small\n\n<!-- chapters: made by labkit build -->\n<!-- end of chapters -->\n\n"
        "<!-- highlights: made by labkit build -->\n<!-- end of highlights -->\n"
    )
    return root


@pytest.fixture
def cpu_device(monkeypatch):
    """labkit.device as it is on a machine without a GPU, without importing Numba."""
    fake = types.ModuleType("labkit.device")
    fake.kind = lambda: "cpu"
    fake.on_gpu = lambda: False
    fake.name = lambda: "labkit CPU device"
    fake.choice = lambda: SimpleNamespace(kind="cpu", requested="auto", reason="No NVIDIA driver was found.")
    import labkit

    monkeypatch.setitem(sys.modules, "labkit.device", fake)
    monkeypatch.setitem(labkit.__dict__, "device", fake)
    monkeypatch.setenv("LABKIT_DEVICE", "auto")  # --device sets it; this puts it back after the test
    return fake
