"""An index outside an array: what it was made of, and which conditions let it through."""

from types import SimpleNamespace

import numpy as np
import pytest

from labkit import cuda
from labkit.course.check.diagnose.outside import let_through


@cuda.jit
def kernel(x, out, width):
    col, row = cuda.grid(2)
    pair = row * width + col
    if row < out.shape[1] and col < out.shape[0]:
        out[row, col] = x[pair]
    for k in range(3):
        col += k
        if col < width:
            out[row, col] = x[k + row]
    if row == 3:
        return
    out[row + 1, 0] = x[0]


FIRST = kernel.py_func.__code__.co_firstlineno


@pytest.mark.parametrize("line, array, index, shape, sentences", [
    (5, "x", (18,), (14,), ("`pair` is 18 there: line {3}", "`row < out.shape[1]` and `col < out.shape[0]` let it")),
    (5, "out", (2, 4), (2, 7), ("`row` is 2 there: line {2}", "`row < out.shape[1]` lets it through: `out.shape[1]`")),
    (9, "out", (2, 8), (3, 7), ("`col` is 8 there.", "`col < width` lets it through: `width` is 7.")),
    (12, "out", (3, 0), (3, 7), ("The index `row + 1` is 3 there, with row = 2.", "`row == 3` lets it through.")),
])
def test_conditions_are_named(line, array, index, shape, sentences):
    error = SimpleNamespace(line=FIRST + line, array=array, index=index, shape=shape, thread=(4, 2, 0), block=(0, 0, 0),
                            kernel="kernel", filename=__file__)
    arguments = (np.zeros(14), np.zeros(shape if array == "out" else (2, 7)), 7)
    found = let_through(kernel, arguments, (1, 1), (8, 8), error)
    assert len(found) == 2
    for text, sentence in zip(found, sentences, strict=True):
        assert text.startswith(sentence.format(*[FIRST + k for k in range(13)])), found


def test_an_index_that_no_condition_compares():
    @cuda.jit
    def bare(x, out):
        i = cuda.grid(1)
        out[i] = x[i]

    line = bare.py_func.__code__.co_firstlineno + 3
    error = SimpleNamespace(line=line, array="x", index=(9,), shape=(9,), thread=(9, 0, 0), block=(0, 0, 0),
                            kernel="bare", filename=__file__)
    assert let_through(bare, (np.zeros(9), np.zeros(9)), 1, 32, error)[1] == (
        f"No condition around line {line} checks `i`.")
