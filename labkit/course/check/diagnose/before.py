"""A result that includes the output's previous contents."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from labkit._common.tables import size_text
from labkit.course.check.compare import Difference, compare_attempt
from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.diagnose.outputs import describe_elements
from labkit.course.check.run import run_answer
from labkit.course.check.sources import store_that_adds
from labkit.course.check.words import quote_line
from labkit.course.exercises import Exercise
from labkit.kernels.agree import is_poison


@dataclass(frozen=True, eq=False)
class Before:
    """mask: the elements that depend on what the output held before; right_from_zero: whether the result would be right
    if the output held zeros."""

    mask: np.ndarray
    right_from_zero: bool


def depends_on_before(exercise: Exercise, answer, difference: Difference) -> Before | None:
    """Whether this wrong result has in it what the output held before: found by running again from other values. None
    if it has not, or if it cannot be known."""
    case, got = difference.attempt.case, difference.got
    if exercise.shape is None or case.start is not None or difference.kind != "wrong_result" or got is None:
        return None
    dtype = np.dtype(exercise.dtype)
    if got.dtype.kind == "f" and not np.isnan(got).any():
        return None  # NaN plus anything is NaN

    def from_values(values: np.ndarray) -> Difference:
        return compare_attempt(exercise, run_answer(exercise, answer, replace(case, start=values)))

    ones = from_values(np.ones(got.shape, dtype))
    if ones.got is None or ones.got.shape != got.shape:
        return None
    left_alone = is_poison(got) & (ones.got == np.ones((), dtype))
    mask = ~left_alone & ~_same(got, ones.got)
    if not mask.any():
        return None
    return Before(mask, from_values(np.zeros(got.shape, dtype)).good)


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | ((a != a) & (b != b))


def describe_before(exercise: Exercise, answer, difference: Difference, before: Before) -> Diagnosis:
    """A result that has in it what the output held before."""
    case = difference.attempt.case
    count, total = int(before.mask.sum()), before.mask.size
    line, code = store_that_adds(answer)
    if code:
        why = f"`{code}` uses the value already in the output, but nothing has set it to 0 first."
        line_text = (quote_line(line[0], line[1]),)
    else:
        why = ("The value already in the output is used, by an update such as `+=` or an option such as beta in a "
               "library call, but nothing has set it to 0 first.")
        line_text = ()
    if before.right_from_zero:
        cure = "With an output full of zeros, the result would be right. Store with `=`, or start from a total of 0."
    else:
        cure = "Even with an output full of zeros, the result would be wrong."
    head = "The result is added to an output that was never set to 0." if before.right_from_zero else (
        "The result depends on what was in the output, which was never set.")
    how_many = "" if count == total else f" This affects {count:,} of {total:,} elements."
    written = replace(difference, unwritten=difference.unwritten & ~before.mask)
    return replace(describe_elements(exercise, case, written), headline=head, summary="",
                   details=(f"The smallest case that fails: {size_text(case.size)}. {why}{how_many}", *line_text, cure))
