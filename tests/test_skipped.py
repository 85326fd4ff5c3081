"""The last lines of a test run say in one line what was skipped and why, with one worker and with several."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sweep(every=True)  # about the repository: .ci/run runs it

TESTS = """\
import pytest

@pytest.mark.parametrize("reason", ["needs a GPU", "needs compute capability 9.0; this GPU has 7.5",
                                    "PyTorch is not installed", "could not import 'torch': No module named 'torch'",
                                    "a CUDA compiler is needed", "about the CPU device",
                                    "this machine has a GPU: its rates are real", "the chapter has no exercises"])
def test_skips(reason):
    pytest.skip(reason)

@pytest.mark.skip(reason="needs a GPU")
def test_is_marked():
    raise AssertionError

def test_runs():
    pass
"""


def run(folder: Path, workers: str) -> subprocess.CompletedProcess:
    """pytest in this folder, whatever options this run was started with."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run([sys.executable, "-m", "pytest", "-n", workers, "-p", "no:cacheprovider"], cwd=folder,
                          env=environment, capture_output=True, text=True)


def small_suite(folder: Path, tests: str) -> None:
    """A folder with these tests and this suite's conftest.py, with what that imports."""
    here = Path(__file__).parent
    (folder / "tests").mkdir()
    shutil.copy(here / "conftest.py", folder)
    for imported in ("browser.py", "sampling.py"):
        shutil.copy(here / imported, folder / "tests")
    (folder / "test_tiny.py").write_text(tests)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_one_line_says_why_tests_were_skipped(tmp_path, workers):
    small_suite(tmp_path, TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nconsole_output_style = count\n")
    done = run(tmp_path, workers)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, summary, last = done.stdout.splitlines()
    assert summary == ("9 skipped: 3 need a GPU, 2 are about the CPU device, 2 need PyTorch, "
                       "1 needs a CUDA compiler, 1 for another reason (pytest -rs lists them)")
    assert re.search("1 passed, 9 skipped", last)
    assert "[10/10]" in done.stdout


def test_nothing_is_printed_when_nothing_is_skipped(tmp_path):
    small_suite(tmp_path, "def test_runs():\n    pass\n")
    done = run(tmp_path, "0")
    assert done.returncode == 0 and "skipped" not in done.stdout


@pytest.mark.parametrize("installed", [True, False])
def test_a_compiler_that_is_installed_is_used(tmp_path, installed):
    small_suite(tmp_path, "import pytest\n\ndef test_assembles():\n    pytest.skip('ptxas is not installed')\n")
    with open(tmp_path / "conftest.py", "a") as conftest:
        conftest.write(f"\n\ndef has_compiler_wheels():\n    return {installed}\n")
    done = run(tmp_path, "0")
    assert done.returncode == int(installed), done.stdout
    assert ("the test was skipped: Skipped: ptxas is not installed" in done.stdout) is installed
