"""What keeps a kernel from being compiled, as data beside the sentence."""

import numpy as np
import pytest

from labkit import cuda
from labkit.simt.errors import PROBLEMS, CompileError
from labkit.simt.numba_report import problem_of

pytestmark = pytest.mark.cpu_device


@pytest.mark.parametrize(("sentence", "problem", "facts"), [
    ("total is read before it is set", "unset", {"name": "total"}),
    ("x is float32 on one path and array of float32 (1D) on another", "several types",
     {"name": "x", "type": "float32", "other": "array of float32 (1D)"}),
    ("lt does not take the types (int64, UniTuple(int64 x 2))", "operands",
     {"name": "lt", "types": ("int64", "UniTuple(int64 x 2)")}),
    ("array of float32 (1D) has no attribute lenght", "unknown attribute",
     {"type": "array of float32 (1D)", "name": "lenght"}),
    ("cannot index array of float32 (1D) with 2 indices: int64, int64", "indices", {"axes": 1, "count": 2}),
    ("failed to unpack int64", "unpacked number", {}),
    ("wrong tuple length for $4: expected 2, got 1", "unpacked", {"count": 1}),
    ("something else", "", {}),
])
def test_a_sentence_of_numbas_is_read_once(sentence, problem, facts):
    assert problem_of(sentence) == (problem, facts)
    assert not problem or {name: type(value) for name, value in facts.items()} == PROBLEMS[problem]


@cuda.jit
def misspelled(out):
    out[0] = indx  # noqa: F821


@cuda.jit
def calls_grid(out):
    out[0] = cuda.grid(1, 2)


@cuda.jit
def lenght(out):
    out[0] = out.lenght


@pytest.mark.parametrize(("kernel", "problem", "facts"), [
    (misspelled, "unknown name", {"name": "indx"}),
    (calls_grid, "arguments", {"name": "cuda.grid", "parameters": ("ndim",), "count": 2}),
    (lenght, "unknown attribute", {"type": "array of float32 (1D)", "name": "lenght"}),
])
def test_the_error_has_the_kernel_the_line_and_the_problem(kernel, problem, facts):
    with pytest.raises(CompileError) as raised:
        kernel[1, 1](np.zeros(1, np.float32))
    error = raised.value
    assert (error.kernel, error.line) == (kernel.__name__, kernel.py_func.__code__.co_firstlineno + 2)
    assert (error.problem, error.facts) == (problem, facts)
    assert error.sentence in str(error) and facts.keys() == PROBLEMS[problem].keys()
