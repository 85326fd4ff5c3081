"""Which compiler makes GPU code."""

import os
import subprocess
import sys

import pytest

from labkit.device import compiler


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these compilers are installed, and no other."""
    found = set()
    monkeypatch.setattr(compiler, "installed", lambda name: name in found)
    monkeypatch.delenv("LABKIT_COMPILER", raising=False)
    compiler.name.cache_clear()
    yield found
    compiler.name.cache_clear()


@pytest.mark.parametrize("there, requested, chosen", [
    ({"numba-cuda", "mlir"}, "", "numba-cuda"), ({"mlir"}, "", "mlir"), (set(), "", "numba-cuda"),
    ({"numba-cuda", "mlir"}, "mlir", "mlir"), ({"numba-cuda", "mlir"}, " MLIR ", "mlir"),
    ({"numba-cuda", "mlir"}, "numba-cuda", "numba-cuda")])
def test_the_one_that_is_asked_for_or_else_installed(installed, monkeypatch, there, requested, chosen):
    installed |= there
    monkeypatch.setenv("LABKIT_COMPILER", requested)
    assert compiler.name() == chosen and compiler.is_mlir() == (chosen == "mlir")


def test_an_unknown_one_and_one_that_is_not_installed_are_refused(installed, monkeypatch):
    installed.add("numba-cuda")
    monkeypatch.setenv("LABKIT_COMPILER", "nvcc")
    with pytest.raises(ValueError, match="LABKIT_COMPILER is 'nvcc'; it must be one of numba-cuda, mlir"):
        compiler.name()
    monkeypatch.setenv("LABKIT_COMPILER", "mlir")
    with pytest.raises(ImportError, match=r"numba-cuda-mlir is not installed: pip install 'labkit\[mlir\]'"):
        compiler.name()


def test_the_device_says_what_is_missing():
    code = ("from labkit import device\nfrom labkit.device import compiler\n"
            "compiler.installed = lambda name: False\nprint(device.choice().reason)\n")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={
        **os.environ, "LABKIT_COMPILER": "mlir", "LABKIT_DEVICE": "auto"})
    assert run.stdout.startswith("LABKIT_COMPILER is mlir, but numba-cuda-mlir is not installed"), run.stderr
