"""Types and blocks of a learner's kernel: what is assumed from its code, and what is refused."""

import pytest
from numba import float32, types

from labkit import cuda
from labkit._common.errors import UserError
from labkit.device import compiling
from labkit.measure.own_kernel import _guesses, form_of, type_text


def guessed(kernel) -> str:
    return ", ".join(map(type_text, _guesses(kernel)[0]))


@cuda.jit(device=True)
def at(matrix, row, col, factor):
    return factor * matrix[row, col]


def scale(x, factor, n, out):
    i = cuda.grid(1)
    if i < n:
        out[i] = factor * x[i]


def transposed(a, out):
    rows, cols = a.shape
    row, col = cuda.grid(2)
    if row < rows and col < cols:
        out[col, row] = a[row, col]


def by_function(matrix, k, factor, out):
    for i in range(out.size):
        out[i] = at(matrix, i, k, factor)


def counted(x, bins):
    cuda.atomic.add(bins, (0, x[cuda.grid(1)]), 1)


def of_lengths(a, b, n):
    for i in range(n):
        a[i] = len(b) + a.shape[2]


@pytest.mark.parametrize(("function", "expected"), [
    (scale, "float32[::1], float32, int32, float32[::1]"),
    (transposed, "float32[:, ::1], float32[:, ::1]"),
    (by_function, "float32[:, ::1], int32, float32, float32[::1]"),
    (counted, "float32[::1], float32[:, ::1]"),
    (of_lengths, "float32[:, :, ::1], float32[::1], int32"),
])
def test_types_are_guessed_from_the_code(function, expected):
    assert guessed(cuda.jit(function)) == expected


def test_other_types_are_tried_where_the_first_do_not_compile():
    @cuda.jit
    def shifted(x, k, out):
        out[0] = x[0] * float32(k << 2)

    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    try:
        form = form_of(shifted, None, 32, {})
    except UserError as error:
        assert compiling.ptxas() is None, error
        pytest.skip("ptxas is not installed")
    assert form.signature.args[1] == types.int32


def test_a_kernel_that_compiles_for_nothing_says_why_with_its_line():
    @cuda.jit
    def lost(x, out):
        out[0] = x[0] + nowhere  # noqa: F821

    line = lost.py_func.__code__.co_firstlineno + 2
    with pytest.raises(UserError, match=rf"lost does not compile.*line {line}.*'nowhere' is not defined"):
        form_of(lost, None, None, {})


@pytest.mark.parametrize(("given", "words"), [
    ("float32[::1]", "types: 1 are given, and scale has 4 parameters: x, factor, n, out"),
    ("float33", "types: 'float33' cannot be read .*for each of x, factor, n, out"),
    ("float32[::1", "types: 'float32.*cannot be read"),
])
def test_types_that_it_cannot_have(given, words):
    with pytest.raises(UserError, match=words):
        form_of(cuda.jit(scale), given, None, {})


@pytest.mark.parametrize("block", [0, 2048, (16, -1), ("a",), 2.5])
def test_blocks_that_no_gpu_has(block):
    with pytest.raises(UserError, match="block is .*; it must have 1 to 1,024 threads"):
        form_of(cuda.jit(scale), "float32[::1], float32, int32, float32[::1]", block, {})


def test_the_block_comes_from_launch_bounds():
    form = form_of(cuda.jit(launch_bounds=96)(scale),
                   "float32[::1], float32, int32, float32[::1]", None, {})
    assert (form.threads, form.shared_bytes, form.nbytes, form.assumed) == (96, 0, None, ())


def test_types_as_text():
    assert type_text(types.float32[:, ::1]) == "float32[:, ::1]" and type_text(types.int32) == "int32"
    assert type_text(types.float32[:]) == "float32[:]" and type_text(types.float32[::1, :]) == "float32[::1, :]"
