"""A wrong output in words: how many elements, which, by how much; and what else a run may leave behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from labkit._common.tables import size_text
from labkit.course.check.compare import Difference
from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.diagnose.faults import guard_question
from labkit.course.check.diagnose.patterns import pattern
from labkit.course.check.draw import Case
from labkit.course.check.run import OBSERVED_STEPS, contains_itself
from labkit.course.check.words import show_value, table_of
from labkit.course.exercises import Exercise

SHOWN = 12  # elements of an array that is written out


def describe_output(exercise: Exercise, difference: Difference) -> Diagnosis:
    """What a run left behind."""
    attempt, kind = difference.attempt, difference.kind
    case, is_launched = attempt.case, exercise.shape is not None
    if difference.wrong is not None:
        return describe_elements(exercise, case, difference)
    if kind == "demand":
        details = (attempt.missed, f"In this case {case.where}.") if case.where else (attempt.missed,)
        return Diagnosis(kind, "It runs, but does not meet a requirement.", details)
    if kind == "no_value":
        return Diagnosis(kind, "The function returns nothing.", ("Is `return` missing?",))
    if kind == "wrong_types" and contains_itself(attempt.value):
        return Diagnosis(kind, "The function returns a list that contains itself.",
                         ("Is the list appended to itself?",))
    if kind == "wrong_types":
        return Diagnosis(kind, f"The function returns {type(attempt.value).__name__}, not numbers.")
    if kind == "wrong_shape":
        return Diagnosis(kind, f"The function returns {shaped(difference.got)}; it should return "
                         f"{shaped(case.expected)}.", (f"It was called with {called_with(case)}.",))
    if kind == "input_changed" and is_launched:
        return Diagnosis(kind, f"Input number {attempt.changed[0]} was written to.",
                         ("Inputs are read-only here; write to the output.",))
    if kind == "input_changed":
        return Diagnosis(kind, f"Input number {attempt.changed[0]} was changed.",
                         ("It belongs to the caller: work on a copy, such as `x.copy()` for an array.",))
    return Diagnosis("out_of_bounds", "A thread writes outside the output.",
                     (f"At {size_text(case.size)}, element {attempt.outside[0]} (in memory order) was written, but the "
                      f"output has only {attempt.got.size:,}.", *guard_question(exercise, case)))


def describe_unwatched(case: Case) -> Diagnosis:
    """The kernel ended when it was launched, in every order: only watching all its steps is too much. The count of
    steps is the same on every machine."""
    return Diagnosis("not_observed", "The result is right, but the threads do far more work than needed.",
                     (f"At {size_text(case.size)}, the loops of all threads together ran for more than "
                      f"{OBSERVED_STEPS:,} iterations, so they are no longer watched. Does a thread go through much "
                      "more of the input than it needs?",))


def describe_elements(exercise: Exercise | None, case: Case, difference: Difference) -> Diagnosis:
    """The elements of an output that are wrong."""
    expected, got, wrong = case.expected, difference.got, difference.wrong
    unwritten = difference.unwritten if case.start is None else np.zeros(got.shape, bool)
    block, blocks = (), 0
    if exercise is not None and exercise.kind == "kernel":
        grid, block = exercise.launch(**case.size)[:2]
        block, blocks = tuple(block) if isinstance(block, (tuple, list)) else (block,), int(np.prod(grid))
    summary = "" if wrong.size == 1 else pattern(expected, got, wrong, unwritten, case.inputs, block, case.size,
                                                   blocks)
    if case.start is not None and np.array_equal(got, case.start):
        summary = "It still holds what it held before the launch."
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
        summary = f"It should be {show_value(expected.flat[0])}, but it is {show_value(got.flat[0])}."
    which = f"It fails where {case.where}: at" if case.where else "The smallest case that fails:"
    details = [f"{which} {size_text(case.size)}." + (f" {summary}" if summary else "")]
    if exercise is not None and exercise.shape is None:
        details.append(f"It was called with {called_with(case)}.")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.max(np.where(wrong, difference.miss / np.abs(expected.astype(np.float64)), 0), initial=0)
    if 0 < relative < 1e-3 and expected.dtype.kind == "f" and np.isfinite(got).all():  # integers may be bits
        question = "; is something summed in another type?" if relative < 1e-5 else "."
        details.append(f"It is close: the relative error is at most {relative:.1e}. Allowed is the error of careful "
                       f"float32 arithmetic{question}")
    return Diagnosis("wrong_result", headline, tuple(details), table_of(expected, got, wrong, unwritten), summary)


def in_another_order(diagnosis: Diagnosis, kind: str, has_atomics: bool) -> Diagnosis:
    """What an answer that was right in the order 0, 1, 2, ... does in another."""
    cause = ("threads and their atomics can run in any order, and what an atomic returns depends on it."
             if has_atomics else "two threads depend on each other without a barrier (or an atomic) between them.")
    note = ("With the threads in the order 0, 1, 2, ... the result was right; in another order it is not. A GPU "
            f"guarantees no order: {cause}")
    if kind == "race":
        return replace(diagnosis, kind=kind, headline="The result depends on the order in which threads run: a race.",
                       details=(note, diagnosis.headline, *diagnosis.details))
    return replace(diagnosis, details=(*diagnosis.details, note))


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
