"""The known wrong answer that does the same as this one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit import device
from labkit.course.check.compare import Difference, compare_attempt
from labkit.course.check.diagnose.before import depends_on_before
from labkit.course.check.draw import Case
from labkit.course.check.run import OBSERVED, ORDERS, run_answer, trials
from labkit.course.exercises import Exercise

MORE = 4  # cases after the failing one in which a known mistake must do the same; all, where several do
FAULTS = ("out_of_bounds", "barrier", "warp", "misaligned")  # of which a launch shows the first alone


@dataclass(frozen=True)
class Known:
    """The known wrong answer that does the same as this one. exact: in everything that was compared."""

    mistake: str = ""
    exact: bool = False


def known_mistake(exercise: Exercise, answer, cases: list[Case], difference: Difference, adds: bool) -> Known:
    """The known wrong answer that does the same as this one: in the failing run, in the next ones, and in the ones
    before, which this answer passed.

    adds: the answer's result has in it what the output held before. It is then unlike one that writes nothing.
    """
    kind, case, how = difference.kind, difference.attempt.case, difference.attempt.how
    if kind == "not_observed" or (device.on_gpu() and kind in ("never_ends", "gpu_fault")):
        return Known()  # after a fault the GPU takes no more launches from this process
    if exercise.kind == "kernel" and kind in ("unsupported", "wrong_types"):
        # It does not compile, and known mistakes do as a rule: each would be compiled for nothing.
        same = [mistake for mistake, wrong in exercise.wrong.items() if _same_code(answer, wrong)]
        return Known(", or: ".join(same), len(same) == 1)

    def found(answer, trial, every: bool = False) -> Difference:
        return compare_attempt(exercise, run_answer(exercise, answer, *trial), every)

    failing, (earlier, later) = (case, how), before_and_after(exercise, cases, difference)
    if kind in ("never_ends", "wrong_arguments"):
        later = []
    best, matches = -1, []
    own_later = None
    for mistake, wrong in exercise.wrong.items():
        other = found(wrong, failing)
        score = _alike(difference, other)
        if score < 0 or not _same_code(answer, wrong) and (
                depends_on_before(exercise, wrong, other) is not None) != adds:
            continue
        if own_later is None:  # a few more cases, run once, only when there is something to compare with
            own_later = [(trial, found(answer, trial)) for trial in later[:MORE]]
        pairs = [(difference, other), *((own, found(wrong, trial)) for trial, own in own_later)]
        scores = [_alike(*pair) for pair in pairs]
        if min(scores) < 0:
            continue
        if sum(scores) > best:
            best, matches = sum(scores), []
        if sum(scores) == best:
            matches.append((mistake, wrong, pairs))
    matches = [one for one in matches if _same_code(answer, one[1])] or matches
    # One that fails where this answer is right is another mistake.
    matches = [one for one in matches
               if _same_code(answer, one[1]) or all(found(one[1], trial).good for trial in earlier)]
    for trial in later[MORE:]:
        if len(matches) < 2:
            break
        own = found(answer, trial)
        matches = [one for one in matches if _alike(own, found(one[1], trial)) >= 0] or matches
    if exercise.kind == "kernel" and not device.on_gpu():
        # The first fault alone may not tell them apart: the first in another order does, or all that observe finds.
        for look in ((case, "reverse"), (case, OBSERVED)):
            if len(matches) > 1 or (matches and kind in FAULTS):
                own = found(answer, look, every=True)
                extended = [(mistake, wrong, [*pairs, (own, found(wrong, look, every=True))])
                            for mistake, wrong, pairs in matches]
                matches = [one for one in extended if _alike(*one[2][-1]) > 0] or extended
    exact = len(matches) == 1 and all(_the_same(*pair) for pair in matches[0][2]) and _tells(matches[0][2])
    return Known(", or: ".join(mistake for mistake, *_ in matches), exact)


def before_and_after(exercise: Exercise, cases: list[Case], difference: Difference) -> tuple[list, list]:
    """The trials before the failing one, of those that run forward or as it does; and those after it that run so."""
    def way(trial) -> str:
        return "ordered" if trial[1] in ORDERS else trial[1]

    everything, failed = trials(exercise, cases), difference.attempt
    at = everything.index((failed.case, failed.how))
    ways = {way(everything[0]), way(everything[at])}
    return ([trial for trial in everything[:at] if way(trial) in ways],
            [trial for trial in everything[at + 1 :] if way(trial) == way(everything[at])])


def _same_code(answer, wrong) -> bool:
    """Whether they are one function, word for word but for names of variables and comments: what memory held before
    may make two runs of it differ."""
    codes = [getattr(getattr(each, "py_func", each), "__code__", None) for each in (answer, wrong)]
    return None not in codes and (codes[0].co_code, codes[0].co_consts) == (codes[1].co_code, codes[1].co_consts) and (
        codes[0].co_names == codes[1].co_names)


def _the_same(a: Difference, b: Difference) -> bool:
    """Everything that can be compared is equal: a fault with its thread, array, index and line, or the output."""
    counted = a.kind != "demand" or bool(a.whole)  # one thing that is missing has many causes
    return a.kind == b.kind and a.whole is not None and a.whole == b.whole and counted and _alike(a, b) >= 0


def _tells(pairs: list) -> bool:
    """Whether the outputs that are equal say anything. That nothing was written, or that all wrong elements are 0 or
    NaN, has many causes; which elements of several were not written, and two different wrong numbers, have few."""
    outputs = [one for one, _ in pairs if one.wrong is not None and one.wrong.any()]
    values = set()
    for one in outputs:
        if 0 < np.count_nonzero(one.unwritten) < one.got.size:
            return True
        values.update(one.got[one.wrong & ~one.unwritten].tolist()[:100])
    return not outputs or len([value for value in values if value == value]) > 1


def _alike(a: Difference, b: Difference) -> int:
    """-1: different; 0: the same kind of fault; 1: the same in every number."""
    if a.kind != b.kind or a.trace != b.trace:
        return -1
    if (a.got is None) != (b.got is None) or (a.got is not None and a.got.shape != b.got.shape):
        return -1
    if a.got is not None:
        tolerance = 1e-5 if a.got.dtype.kind in "fc" else 0.0  # integers may be bits
        if not np.allclose(a.got, b.got, rtol=tolerance, atol=tolerance / 10, equal_nan=True):
            return -1
    return int(a.exact == b.exact)
