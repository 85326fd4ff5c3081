"""The order in which the cases are tried, and the known wrong answer that does the same as this one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from labkit import device
from labkit._common.tables import size_text
from labkit.course.check.cases import Attempt, Case, threads_of
from labkit.course.check.run import observer, run_once
from labkit.course.exercises import Exercise

ORDERS = ("reverse", "scattered")  # after "forward"
ORDERED_ELEMENTS = 20_000  # larger cases run forward only
OBSERVED_THREADS = 1_100  # observe is plain Python: small cases only
TELLING_ELEMENTS = 8  # fewer wrong elements show no pattern


def run_stages(exercise: Exercise, answer, cases: list[Case]):
    """Every stage until one fails: (the attempt or None, its case, the known mistake it shows)."""
    forward = [(case, _runner(exercise, case, "forward")) for case in cases]
    stages = [forward]
    if not device.on_gpu() and exercise.shape is not None:
        small = [case for case in cases if case.expected.size <= ORDERED_ELEMENTS and not case.where]
        stages.append([(case, _runner(exercise, case, order)) for order in ORDERS for case in small])
    if exercise.kind == "kernel":
        observed = [(case, observer(exercise, case)) for case in _observed_cases(exercise, cases)]
        stages.insert(0 if device.on_gpu() else len(stages), observed)
    elif exercise.demand is not None and not device.on_gpu():
        from labkit.course.check.host_runs import host_observer

        stages.append([(case, host_observer(exercise, case)) for case in cases if not case.where])
    for stage in stages:
        for position, (case, run) in enumerate(stage):
            attempt = run(answer)
            if not attempt.good:
                more = stage[position + 1 :]
                mistake = _known_mistake(exercise, answer, attempt, run, more, case)
                return _with_larger(answer, attempt, case, more), case, mistake
    return None, None, ""


def _with_larger(answer, attempt: Attempt, case: Case, more: list) -> Attempt:
    """A very small case says little about which elements are wrong: what a larger one shows is added."""
    if attempt.kind != "wrong_result" or case.expected.size >= TELLING_ELEMENTS or case.expected.ndim == 0:
        return attempt
    for larger, run in more:
        if larger.expected.size >= TELLING_ELEMENTS and (theirs := run(answer)).seen:
            detail = f"At {size_text(larger.size)}, in the table: {theirs.seen}"
            return replace(attempt, details=(*attempt.details, detail), table=theirs.table)
    return attempt


def _runner(exercise: Exercise, case: Case, order: str):
    def run(answer) -> Attempt:
        attempt = run_once(exercise, answer, case, order)
        if attempt.good or order == "forward" or attempt.kind == "never_ends":
            return attempt
        note = ("In the order 0, 1, 2, ... of the threads the result was right; in another order it is not. A GPU "
                "promises no order: two threads depend on each other without a barrier (or an atomic) between them.")
        if attempt.kind == "wrong_result":
            head = "The result depends on the order in which threads run: a race."
            return replace(attempt, kind="race", headline=head, details=(note, attempt.headline, *attempt.details))
        return replace(attempt, details=(*attempt.details, note))

    return run


def _known_mistake(exercise: Exercise, answer, attempt: Attempt, run, more: list, case: Case) -> str:
    """The known wrong answer that does the same as this one, in the failing run and in the next ones; "" if none."""
    if device.on_gpu() and attempt.kind in ("never_ends", "gpu_fault"):
        return ""  # this GPU takes no more launches from this process
    best, found = -1, []
    theirs_more = None
    for mistake, wrong in exercise.wrong.items():
        theirs = run(wrong)
        score = _alike(attempt, theirs)
        if score < 0:
            continue
        if theirs_more is None:  # a few more cases, run once, only when there is something to compare with
            slow = attempt.kind in ("never_ends", "unsupported", "wrong_types", "wrong_arguments")
            theirs_more = [] if slow else [(next_run, next_run(answer)) for _, next_run in more[:4]]
        scores = [_alike(mine, next_run(wrong)) for next_run, mine in theirs_more]
        if min(scores, default=0) < 0:
            continue
        score += sum(scores)
        if score > best:
            best, found = score, []
        if score == best:
            found.append((mistake, wrong))
    if exercise.kind == "kernel" and not device.on_gpu():
        # The first fault alone may not tell them apart: the first in another order does, or all that observe finds.
        for look in (lambda a: run_once(exercise, a, case, "reverse"), observer(exercise, case, whole=True)):
            if len(found) > 1:
                mine = look(answer)
                found = [pair for pair in found if _alike(mine, look(pair[1])) > 0] or found
    return ", or: ".join(mistake for mistake, _ in found)


def _alike(a: Attempt, b: Attempt) -> int:
    """-1: different; 0: the same kind of fault; 1: the same in every number."""
    if a.kind != b.kind or a.trace != b.trace:
        return -1
    if (a.got is None) != (b.got is None) or (a.got is not None and a.got.shape != b.got.shape):
        return -1
    if a.got is not None and not np.allclose(a.got, b.got, rtol=1e-5, atol=1e-6, equal_nan=True):
        return -1
    return int(a.exact == b.exact)


def _observed_cases(exercise: Exercise, cases: list[Case]) -> list[Case]:
    """The named sizes, or the two largest small enough to be run in plain Python."""
    cases = [case for case in cases if not case.where]
    if exercise.observe_sizes is not None:
        return [case for case in cases if case.size in exercise.observe_sizes]
    small = [case for case in cases if threads_of(exercise, case) <= OBSERVED_THREADS]
    return small[-2:]
