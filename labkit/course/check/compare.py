"""A result compared with the expected one: errors in words. kernels/agree.py decides which elements are wrong."""

from __future__ import annotations

import numpy as np

from labkit._common.tables import size_text
from labkit.course.check.diagnose.patterns import pattern
from labkit.course.check.draw import Attempt, Case
from labkit.course.check.verdict import show_value, table_of
from labkit.course.exercises import Exercise
from labkit.kernels.agree import differences

SHOWN = 12  # elements of an array that is written out


def compared(exercise: Exercise | None, case: Case, got: np.ndarray, unwritten: np.ndarray) -> Attempt:
    expected = case.expected
    result = differences(got, expected, case.allowed, unwritten)
    wrong, unwritten, miss = result.wrong, result.unwritten, result.miss
    if not wrong.any():
        return Attempt("passed", got=got, wrong=wrong, unwritten=unwritten)
    block, blocks = (), 0
    if exercise is not None and exercise.kind == "kernel":
        grid, block = exercise.launch(**case.size)[:2]
        block, blocks = tuple(block) if isinstance(block, (tuple, list)) else (block,), int(np.prod(grid))
    summary = "" if wrong.size == 1 else pattern(expected, got, wrong, unwritten, case.inputs, block, case.size,
                                                   blocks)
    if case.start is not None and np.array_equal(got, case.start):
        summary = "It holds what it held before the launch."
    if wrong.size == 1:
        headline = "The output was not written." if unwritten.all() else "The value is wrong."
    elif unwritten.all():
        summary = ""
        headline = f"None of the {wrong.size:,} elements was written."
    else:
        how_many = "All" if wrong.all() else f"{int(wrong.sum()):,} of"
        verb = "was never written" if unwritten[wrong].all() else "is wrong" if wrong.sum() == 1 else "are wrong"
        verb = verb.replace("was", "were") if wrong.sum() > 1 else verb
        headline = f"{how_many} {wrong.size:,} elements {verb}."
    if wrong.size == 1 and not unwritten.all() and not summary:
        summary = f"Expected is {show_value(expected.flat[0])}, and it holds {show_value(got.flat[0])}."
    which = f"It fails where {case.where}: at" if case.where else "The smallest case that fails:"
    details = [f"{which} {size_text(case.size)}." + (f" {summary}" if summary else "")]
    if exercise is None:
        details.append(f"It was called with {called_with(case)}.")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.max(np.where(wrong, miss / np.abs(expected.astype(np.float64)), 0), initial=0)
    if 0 < relative < 1e-3 and expected.dtype.kind == "f" and np.isfinite(got).all():  # integers may be bits
        question = "; is something summed in another type?" if relative < 1e-5 else "."
        details.append(f"It is close: at most {relative:.1e} of the value. The allowed error is that of float32 used "
                       f"with care{question}")
    return Attempt("wrong_result", headline, tuple(details), table_of(expected, got, wrong, unwritten), got=got,
                   summary=summary, wrong=wrong,
                   unwritten=unwritten if case.start is None else wrong & (got == case.start))


def shaped(array: np.ndarray) -> str:
    if array.ndim == 0:
        return "one number"
    return f"{array.size} numbers" if array.ndim == 1 else f"an array of shape {array.shape}"


def called_with(case: Case) -> str:
    return ", ".join(map(_argument, case.inputs))


def _argument(value) -> str:
    """A small array in full."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    if value.size <= SHOWN and value.dtype.kind in "iufb":
        return f"an array {written_out(value)}"
    return f"an array of shape {value.shape}"


def written_out(value) -> str:
    """A number or an array, element by element."""
    if not isinstance(value, np.ndarray):
        return repr(value) if isinstance(value, (str, bytes, list, tuple, dict)) else show_value(value)
    if value.dtype.kind not in "iufb" or not value.size:
        return str(value.tolist())
    return str(np.vectorize(show_value, otypes=[object])(value).tolist()).replace("'", "")
