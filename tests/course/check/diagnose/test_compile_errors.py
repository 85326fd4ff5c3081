"""A kernel that does not compile: the line, what was meant, and what is allowed, in words of the learner's source."""

import math
import re

import numpy as np
import pytest

from labkit import cuda
from labkit.course.check.diagnose.compile_errors import meant, meant_name

pytestmark = pytest.mark.cpu_device
kind = "scale"


@cuda.jit
def no_such_attribute(a, s, out):
    i = cuda.grid(1)
    if i < out.lenght:
        out[i] = a[i] * s


@cuda.jit
def two_axes_in_one_name(a, s, out):
    i = cuda.grid(2)
    if i < out.size:
        out[i] = a[i] * s


@cuda.jit
def one_axis_in_two_names(a, s, out):
    x, y = cuda.grid(1)
    if x < out.size:
        out[x] = a[x] * s


@cuda.jit
def misspelled(a, s, out):
    index = cuda.grid(1)
    if indx < out.size:  # noqa: F821
        out[index] = a[index] * s


@cuda.jit
def misspelled_function(a, s, out):
    i = cuda.gird(1)
    if i < out.size:
        out[i] = a[i] * s


@cuda.jit
def not_imported(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = float32(a[i] * s)  # noqa: F821


@cuda.jit
def product_of_rows(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a @ a


@cuda.jit
def whole_array(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a


@cuda.jit
def two_indices(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = s * a[i, 0]


@cuda.jit
def float_index(a, s, out):
    i = cuda.grid(1)
    half = out.size / 2
    if i < out.size:
        out[half] = a[i] * s


@cuda.jit
def compares_a_shape(a, s, out):
    i = cuda.grid(1)
    if i < out.shape:
        out[i] = a[i] * s


@cuda.jit
def numpys_sum(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.sum(a) * s


@cuda.jit
def numpys_exp(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.exp(a[i]) * s


@cuda.jit
def numpys_add(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.add(a[i], s)


@cuda.jit
def a_list(a, s, out):
    i = cuda.grid(1)
    values = [0.0]
    if i < out.size:
        out[i] = values[0] * s


@cuda.jit
def mathematics(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = math.sqroot(a[i]) * s


@cuda.jit
def beyond_mathematics(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = math.wizardry(a[i]) * s


@cuda.jit
def beyond_cuda(a, s, out):
    cuda.wizardry(a, s, out)


@cuda.jit
def launches(a, s, out):
    a_list[1, 32](a, s, out)


@cuda.jit
def synchronises(a, s, out):
    cuda.synchronize()


@cuda.jit
def unset(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        total += a[i]  # noqa: F821
        out[i] = total * s


@cuda.jit
def unpacks_a_shape(a, s, out):
    i = cuda.grid(1)
    rows, cols = out.shape
    if i < rows:
        out[i] = a[i] * s * cols


@pytest.mark.parametrize(
    ("answer", "line", "words"),
    [
        (no_such_attribute, "if i < out.lenght:", "`out` has no `.lenght` in a kernel. Did you mean `.size`"),
        (two_axes_in_one_name, "i = cuda.grid(2)", "`cuda.grid(2)` gives 2 numbers, and 1 name stands on the left. "
         "Write `x, y = cuda.grid(2)`, or `cuda.grid(1)` for one."),
        (one_axis_in_two_names, "x, y = cuda.grid(1)", "Write `x = cuda.grid(1)`, or `cuda.grid(2)` for 2."),
        (misspelled, "if indx < out.size:", "There is no `indx` here. Did you mean `index`"),
        (misspelled_function, "i = cuda.gird(1)", "There is no `cuda.gird`. Did you mean `cuda.grid`?"),
        (not_imported, "out[i] = float32(a[i] * s)", "There is no `float32` here. Import it: `from numba import float"),
        (product_of_rows, "out[i] = a @ a", "`a @ a`: a kernel has no `@`, which works on whole arrays."),
        (whole_array, "out[i] = a", "What is stored here is a whole array, and an element holds one number"),
        (two_indices, "out[i] = s * a[i, 0]", "`a` has 1 axis, and gets 2 indices."),
        (float_index, "out[half] = a[i] * s", "`out.size / 2` has a `/`, which always gives a float. Use `//`."),
        (compares_a_shape, "if i < out.shape:", "Compare with one of them, `out.shape[0]`, or with the number of"),
        (numpys_sum, "out[i] = np.sum(a) * s", "`np.sum` works on whole arrays, on the CPU."),
        (numpys_exp, "out[i] = np.exp(a[i]) * s", "A kernel has no `np.exp`. Use `math.exp`, which takes one number."),
        (numpys_add, "out[i] = np.add(a[i], s)", "A kernel has no `np.add`. Use `+`."),
        (a_list, "values = [0.0]", "A kernel cannot make a list: a thread can ask for no memory"),
        (mathematics, "out[i] = math.sqroot(a[i]) * s", "There is no `math.sqroot`. Did you mean `math.sqrt`?"),
        (beyond_mathematics, "out[i] = math.wizardry(a[i]) * s", "There is no `math.wizardry`."),
        (beyond_cuda, "cuda.wizardry(a, s, out)", "`cuda.wizardry` is not supported by the CPU device."),
        (launches, "a_list[1, 32](a, s, out)", "a kernel is launched by the host, not in a kernel."),
        (synchronises, "cuda.synchronize()", "The barrier of a block is `cuda.syncthreads()`."),
        (unset, "total += a[i]", "Set it before, as in `total = float32(0.0)`."),
        (unpacks_a_shape, "rows, cols = out.shape", "`out` has 1 axis, and 2 names stand on the left."),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_was_meant_and_where(examined, answer, line, words):
    verdict = examined(answer)
    assert verdict.kind in ("unsupported", "wrong_types")
    text = " ".join(verdict.details)
    assert words in text and re.search(rf"Line \d+: `{re.escape(line)}", text)
    assert not any(raw in text for raw in ("UniTuple", "argument types", "Seen", "scipy", "Traceback"))


def test_names_stay_as_they_were_written(examined):
    def elsewhere(a, s, out):
        helper(a, s, out)

    assert examined(cuda.jit(elsewhere)).details[0].startswith("`helper` is a function of the host.")


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
