"""Where the source of a kernel comes from, and what is refused without one; recursion."""

import math
import sys

import numpy as np
import pytest

from labkit import cuda
from labkit.simt import sources
from labkit.simt.errors import UnsupportedError
from labkit.simt.scope import Callee, Scope
from labkit.simt.sources import read_source
from tests.simt.helpers import kernel_of

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


def staged(count, op):
    tile = cuda.shared.array(count, "float32")
    return op(tile)


def test_each_way_to_call_a_device_function_has_a_key_of_its_own():
    keys = [Scope(Callee(staged, (("count", n), ("op", op)))).key
            for n in (8, np.int64(9), np.dtype("i4")) for op in (abs, cuda.atomic.add)]  # fmt: skip
    assert len(set(keys)) == 6
    again = Scope(Callee(staged, (("count", np.int64(9)), ("op", abs))))
    assert again.key == keys[2] and again.params == []


@pytest.mark.parametrize("source, words", [
    ("x[0] = math.sqroot(x[0])", r"math\.sqroot does not exist"),
    ("x[0] = cuda.gird(1)", r"cuda\.gird is not supported by the CPU device"),  # a later numba.cuda may have it
    ("cuda.atomic.plus(x, 0, 1)", r"cuda\.atomic\.plus is not supported by the CPU device"),
])
def test_a_name_that_a_module_lacks(source, words):
    with pytest.raises(UnsupportedError, match=rf"kernel, line 3: {words}"):
        kernel_of(source, "x", math=math)[1, 1](np.ones(1))


@cuda.jit(device=True)
def countdown_with_barrier(n):
    cuda.syncthreads()
    return 0 if n == 0 else countdown_with_barrier(n - 1)


def test_recursion_with_a_barrier_is_refused_with_the_line():
    @cuda.jit
    def kernel(out):
        out[0] = countdown_with_barrier(3)

    with pytest.raises(UnsupportedError, match=r"countdown_with_barrier, line \d+: .* calls itself and holds"):
        kernel[1, 1](np.zeros(1))
