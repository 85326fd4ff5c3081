"""A kernel that does not compile: the line, what was meant, and what is allowed, in words of the learner's source."""

import re

import pytest

from labkit import cuda
from labkit.course.check.diagnose.compile_errors import meant, meant_name
from tests.course.check import written
from tests.course.check.written import RIGHT

pytestmark = pytest.mark.cpu_device
kind = "scale"
GRID, SIZE, STORE = "cuda.grid(1)", "out.size", "out[i] = a[i] * s"


# The lines of the kernel; of these, the one that is named; and what is said.
@pytest.mark.parametrize(("body", "line", "words"), [
    (RIGHT.replace("size", "lenght"), "if i < out.lenght:", "`out` has no `.lenght` in a kernel. Did you mean `.size`"),
    (RIGHT.replace(GRID, "cuda.grid(2)"), "i = cuda.grid(2)", "`cuda.grid(2)` returns 2 numbers, but there is 1 name "
     "on the left. Write `x, y = cuda.grid(2)`, or call `cuda.grid(1)` for one."),
    ("x, y = cuda.grid(1)\nif x < out.size:\n    out[x] = a[x] * s", "x, y = cuda.grid(1)",
     "Write `x = cuda.grid(1)`, or call `cuda.grid(2)` for 2."),
    ("index = cuda.grid(1)\nif indx < out.size:\n    out[index] = a[index] * s", "if indx < out.size:",
     "There is no `indx` here. Did you mean `index`"),
    (RIGHT.replace("grid", "gird"), "i = cuda.gird(1)", "There is no `cuda.gird`. Did you mean `cuda.grid`?"),
    (RIGHT.replace("a[i] * s", "float32(a[i] * s)"), "out[i] = float32(a[i] * s)",
     "There is no `float32` here. Import it: `from numba import float"),
    (RIGHT.replace(STORE, "out[i] = a @ a"), "out[i] = a @ a",
     "`a @ a`: kernels do not support `@`, which works on whole arrays."),
    (RIGHT.replace(STORE, "out[i] = a"), "out[i] = a",
     "This stores a whole array, but an element holds one number"),
    (RIGHT.replace(STORE, "out[i] = s * a[i, 0]"), "out[i] = s * a[i, 0]", "`a` has 1 axis, but gets 2 indices."),
    ("half = out.size / 2\n" + RIGHT.replace("out[i]", "out[half]"), "out[half] = a[i] * s",
     "`out.size / 2` has a `/`, which always gives a float. Use `//`."),
    (RIGHT.replace(SIZE, "out.shape"), "if i < out.shape:",
     "Compare with one length, `out.shape[0]`, or with the number of"),
    (RIGHT.replace("a[i]", "np.sum(a)"), "out[i] = np.sum(a) * s", "`np.sum` works on whole arrays, on the CPU."),
    (RIGHT.replace("a[i]", "np.exp(a[i])"), "out[i] = np.exp(a[i]) * s",
     "Kernels do not support `np.exp`. Use `math.exp`, which works on one number."),
    (RIGHT.replace("a[i] * s", "np.add(a[i], s)"), "out[i] = np.add(a[i], s)",
     "Kernels do not support `np.add`. Use `+`."),
    ("values = [0.0]\n" + RIGHT.replace("a[i]", "values[0]"), "values = [0.0]",
     "A kernel cannot create a list: it cannot allocate memory"),
    (RIGHT.replace("a[i]", "math.sqroot(a[i])"), "out[i] = math.sqroot(a[i]) * s",
     "There is no `math.sqroot`. Did you mean `math.sqrt`?"),
    (RIGHT.replace("a[i]", "math.wizardry(a[i])"), "out[i] = math.wizardry(a[i]) * s", "There is no `math.wizardry`."),
    ("cuda.wizardry(a, s, out)", "cuda.wizardry(a, s, out)", "`cuda.wizardry` is not supported by the CPU device."),
    ("another[1, 32](a, s, out)", "another[1, 32](a, s, out)",
     "only the host launches kernels."),
    ("cuda.synchronize()", "cuda.synchronize()", "The block barrier is `cuda.syncthreads()`."),
    (RIGHT.replace(STORE, "total += a[i]\n    out[i] = total * s"), "total += a[i]",
     "Set it first on every path, as in `total = float32(0.0)`."),
    ("rows, cols = out.shape\n" + RIGHT.replace(SIZE, "rows"), "rows, cols = out.shape",
     "`out` has 1 axis, but there are 2 names on the left."),
])
def test_what_was_meant_and_where(examined, body, line, words):
    verdict = examined(written.kernel("answer", body, above="@cuda.jit\ndef another(a, s, out):\n    pass\n\n\n"))
    assert verdict.kind in ("unsupported", "wrong_types")
    text = " ".join(verdict.details)
    assert words in text and re.search(rf"Line \d+: `{re.escape(line)}", text)
    assert not any(raw in text for raw in ("UniTuple", "argument types", "Seen", "scipy", "Traceback"))


def test_names_stay_as_they_were_written(examined):
    def elsewhere(a, s, out):
        helper(a, s, out)

    assert examined(cuda.jit(elsewhere)).details[0].startswith("`helper` is a host function.")


def helper(a, s, out):
    out[0] = a[0] * s


def test_a_text_and_a_lambda_of_the_surroundings_are_understood(examined):
    twice = cuda.jit(device=True)(lambda x: x + x)

    @cuda.jit
    def answer(a, s, out):
        i = cuda.grid(1)
        if i < out.size:
            if kind == "scale":
                out[i] = a[i] * s
            else:
                out[i] = twice(a[i])

    assert examined(answer).passed


@pytest.mark.parametrize(("name", "known", "words"), [
    ("thread", {"threads", "blocks"}, " Did you mean `threads`?"),
    ("X", {"x", "y"}, " Did you mean `x`?"),
    ("total", {"a", "b"}, ""),
])
def test_near_names(name, known, words):
    assert meant(name, known) == words


def test_an_import_is_named_before_a_near_name():
    assert meant_name("np", {"npy"}) == " Import it: `import numpy as np`."
