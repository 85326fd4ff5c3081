"""Where the source of a kernel comes from, and what is refused without one."""

import sys

import numpy as np
import pytest

from labkit import cuda
from labkit.simt import sources
from labkit.simt.errors import UnsupportedError
from labkit.simt.sources import read_source

pytestmark = pytest.mark.cpu_device
TEXT = "import math\n\ndef first(x):\n    return x\n\ndef second(x):\n    return 2 * x\n"


@pytest.fixture
def no_texts(monkeypatch):
    """As for a text that was given to exec() before labkit.simt was imported."""
    monkeypatch.setattr(sources, "_MOST_TEXTS", 0)
    monkeypatch.setattr(sources, "_TEXTS", {})


def test_the_text_of_python_c_is_read(monkeypatch, no_texts):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", TEXT])
    names = {}
    exec(compile(TEXT, "<string>", "exec"), names)
    definition, filename = read_source(names["second"])
    assert (definition.name, definition.lineno, filename) == ("second", 6, "<string>")


@pytest.mark.parametrize("argv", [["python"], ["python", "-c"], ["python", "-c", "def first(x):\n    return 3\n"]])
def test_a_function_made_by_an_earlier_exec_has_no_source(argv, monkeypatch, no_texts):
    """Also where the text of `python -c` has another function on that line."""
    monkeypatch.setattr(sys, "orig_argv", argv)
    names = {}
    exec(compile(TEXT, "<string>", "exec"), names)
    with pytest.raises(UnsupportedError, match=r"source of second cannot be read \(<string>\).*define it in a file"):
        cuda.jit(names["second"])


@pytest.mark.parametrize("op, result", [("max", 31), ("min", 0)])
def test_a_text_given_to_exec_is_read(op, result):
    """Texts that differ in their code alone have the same names, lines and file name."""
    names = {"cuda": cuda}
    for each in ("max", "min"):
        exec(f"def kernel(x):\n    cuda.atomic.{each}(x, 0, cuda.grid(1))\n", made := dict(names))
        names[each] = made["kernel"]
    x = np.array([7])
    cuda.jit(names[op])[1, 32](x)
    assert x[0] == result


def test_a_lambda_within_a_lambda_is_read():
    inner = (lambda: lambda: 2 + 3)()
    definition, _ = read_source(inner)
    assert definition.body[0].value.right.value == 3
