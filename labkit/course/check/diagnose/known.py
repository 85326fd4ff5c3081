"""The order in which the cases are tried, and the known wrong answer that does the same as this one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from labkit import device
from labkit._common.tables import size_text
from labkit.course.check.diagnose.compile_errors import mentions
from labkit.course.check.diagnose.preflight import computes_in_float64
from labkit.course.check.draw import Attempt, Case, threads_of
from labkit.course.check.run import ADVICE, BENIGN, ONE_WARP, depends_on_before, explained_by_before, observer, run_once
from labkit.course.exercises import Exercise

ORDERS = ("reverse", "scattered")  # after "forward"
ORDERED_ELEMENTS = 20_000  # larger cases run forward only
OBSERVED_THREADS = 1_100  # observe is plain Python: small cases only
TELLING_ELEMENTS = 8  # fewer wrong elements show no pattern
MORE = 4  # cases after the failing one in which a known mistake must do the same; all, where several do
PLAYABLE = ("wrong_result", "out_of_bounds", "race", "barrier", "uninitialized", "input_changed", "demand")
FAULTS = ("out_of_bounds", "barrier", "warp", "misaligned")  # of which a launch shows the first alone


@dataclass(frozen=True)
class Known:
    """The known wrong answer that does the same as this one. exact: in everything that was compared."""

    mistake: str = ""
    exact: bool = False


def run_stages(exercise: Exercise, answer, cases: list[Case], notes: dict | None = None):
    """Every stage until one fails: (the attempt or None, its case, the known mistake it shows).

    notes: takes, as its keys, what attempts that passed have to say all the same.
    """
    stages = stages_of(exercise, cases)
    for stage in stages:
        for position, (case, run) in enumerate(stage):
            attempt = run(answer)
            if attempt.good and notes is not None:
                notes.update(dict.fromkeys(attempt.details))
            if not attempt.good:
                later = stage[position + 1 :]
                earlier = [*(stages[0] if stage is not stages[0] else ()), *stage[:position]]
                before = depends_on_before(exercise, answer, case, attempt)
                known = _known_mistake(exercise, answer, attempt, run, earlier, later, case, before is not None)
                if before is not None:
                    return explained_by_before(exercise, answer, case, attempt, before), case, known
                attempt = _with_larger(answer, attempt, case, later)
                return (attempt if known.exact else _with_observed(exercise, answer, attempt, cases)), case, known
    if wide := _not_in_float32(exercise, answer, cases[0]):
        head = "The result is right, but one thing is asked for besides."
        return Attempt("demand", head, wide, trace=wide), cases[0], Known()
    return None, None, Known()


def _not_in_float32(exercise: Exercise, answer, case: Case) -> tuple[str, ...]:
    return computes_in_float64(exercise, answer, case) if getattr(exercise, "in_float32", False) else ()


def stages_of(exercise: Exercise, cases: list[Case]) -> list[list[tuple]]:
    """The stages in their order, each of (case, a function that runs an answer on it)."""
    forward = [(case, _runner(exercise, case, "forward")) for case in cases]
    stages = [forward]
    if not device.on_gpu() and exercise.shape is not None:
        small = [case for case in cases if case.expected.size <= ORDERED_ELEMENTS and not case.where]
        stages.append([(case, _runner(exercise, case, order)) for order in ORDERS for case in small])
    if exercise.kind == "kernel":
        observed = [(case, observer(exercise, case)) for case in observed_cases(exercise, cases)]
        stages.insert(0 if device.on_gpu() else len(stages), observed)
    elif not device.on_gpu() and (exercise.demand is not None or exercise.shape is not None):
        from labkit.course.check.host_runs import host_observer

        stages.append([(case, host_observer(exercise, case)) for case in cases if not case.where])
    return stages


def _with_larger(answer, attempt: Attempt, case: Case, later: list) -> Attempt:
    """Add the pattern of a larger case, since a very small one says little about which elements are wrong. Not of one
    with zeros or other special inputs, where a result may look like another mistake's."""
    if attempt.kind != "wrong_result" or case.expected.size >= TELLING_ELEMENTS or case.expected.ndim == 0:
        return attempt
    for larger, run in later:
        if larger.expected.size >= TELLING_ELEMENTS and not larger.where and (larger_attempt := run(answer)).summary:
            detail = f"At {size_text(larger.size)}, in the table: {larger_attempt.summary}"
            return replace(attempt, details=(*attempt.details, detail), table=larger_attempt.table)
    return attempt


def _with_observed(exercise: Exercise, answer, attempt: Attempt, cases: list[Case]) -> Attempt:
    """Add what observe finds: a race or a missing barrier gives wrong numbers, too."""
    if attempt.kind != "wrong_result" or exercise.kind != "kernel" or device.on_gpu():
        return attempt
    for case in observed_cases(exercise, cases):
        observed = observer(exercise, case)(answer)
        if observed.kind in ("race", "uninitialized", "barrier"):
            found = BENIGN.sub("", observed.details[0])
            found = found[:1].upper() + found[1:]
            if not mentions(answer, "shared", "shfl", "cp_async"):  # two threads have one index: no barrier helps
                found = ADVICE.sub("", ONE_WARP.sub("", found))
            return replace(attempt, details=(*attempt.details[:1], f"{observed.headline} {found}",
                                             *attempt.details[1:]))
    return attempt


def _runner(exercise: Exercise, case: Case, order: str):
    def run(answer) -> Attempt:
        attempt = run_once(exercise, answer, case, order)
        if attempt.good or order == "forward" or attempt.kind == "never_ends":
            return attempt
        note = ("In the order 0, 1, 2, ... of the threads the result was right; in another order it is not. A GPU "
                "promises no order: " + (
                    "neither of threads nor of their atomics, and what an atomic returns depends on it."
                    if mentions(answer, "atomic") else
                    "two threads depend on each other without a barrier (or an atomic) between them."))
        if attempt.kind == "wrong_result":
            head = "The result depends on the order in which threads run: a race."
            return replace(attempt, kind="race", headline=head, details=(note, attempt.headline, *attempt.details))
        return replace(attempt, details=(*attempt.details, note))

    return run


def _known_mistake(exercise: Exercise, answer, attempt: Attempt, run, passed: list, later: list, case: Case,
                   adds: bool) -> Known:
    """The known wrong answer that does the same as this one: in the failing run, in the next ones, and in the ones
    before, which this answer passed.

    adds: the answer's result has in it what the output held before. It is then unlike one that writes nothing.
    """
    if attempt.kind == "not_observed" or (device.on_gpu() and attempt.kind in ("never_ends", "gpu_fault")):
        return Known()  # after a fault the GPU takes no more launches from this process
    if exercise.kind == "kernel" and attempt.kind in ("unsupported", "wrong_types"):
        # It does not compile, and known mistakes do as a rule: each would be compiled for nothing.
        same = [mistake for mistake, wrong in exercise.wrong.items() if _same_code(answer, wrong)]
        return Known(", or: ".join(same), len(same) == 1)
    if attempt.kind in ("never_ends", "wrong_arguments"):
        later = []
    best, matches = -1, []
    own_later = None
    for mistake, wrong in exercise.wrong.items():
        other = run(wrong)
        score = _alike(attempt, other)
        if score < 0 or not _same_code(answer, wrong) and (
                depends_on_before(exercise, wrong, case, other) is not None) != adds:
            continue
        if own_later is None:  # a few more cases, run once, only when there is something to compare with
            own_later = [(next_run, next_run(answer)) for _, next_run in later[:MORE]]
        pairs = [(attempt, other), *((own_attempt, next_run(wrong)) for next_run, own_attempt in own_later)]
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
               if _same_code(answer, one[1]) or all(passed_run(one[1]).good for _, passed_run in passed)]
    for _, next_run in later[MORE:]:
        if len(matches) < 2:
            break
        own_attempt = next_run(answer)
        matches = [one for one in matches if _alike(own_attempt, next_run(one[1])) >= 0] or matches
    if exercise.kind == "kernel" and not device.on_gpu():
        # The first fault alone may not tell them apart: the first in another order does, or all that observe finds.
        for observe_answer in (lambda a: run_once(exercise, a, case, "reverse"), observer(exercise, case, whole=True)):
            if len(matches) > 1 or (matches and attempt.kind in FAULTS):
                own_attempt = observe_answer(answer)
                extended = [(mistake, wrong, [*pairs, (own_attempt, observe_answer(wrong))])
                            for mistake, wrong, pairs in matches]
                matches = [one for one in extended if _alike(*one[2][-1]) > 0] or extended
    exact = len(matches) == 1 and all(_the_same(*pair) for pair in matches[0][2]) and _tells(matches[0][2])
    return Known(", or: ".join(mistake for mistake, *_ in matches), exact)


def _same_code(answer, wrong) -> bool:
    """Whether they are one function, word for word but for names of variables and comments: what memory held before
    may make two runs of it differ."""
    codes = [getattr(getattr(each, "py_func", each), "__code__", None) for each in (answer, wrong)]
    return None not in codes and (codes[0].co_code, codes[0].co_consts) == (codes[1].co_code, codes[1].co_consts) and (
        codes[0].co_names == codes[1].co_names)


def _the_same(a: Attempt, b: Attempt) -> bool:
    """Everything that can be compared is equal: a fault with its thread, array, index and line, or the output."""
    counted = a.kind != "demand" or bool(a.whole)  # one thing that is missing has many causes
    return a.kind == b.kind and a.whole is not None and a.whole == b.whole and counted and _alike(a, b) >= 0


def _tells(pairs: list) -> bool:
    """Whether the outputs that are equal say anything. That nothing was written, or that all wrong elements are 0 or
    NaN, has many causes; which elements of several were not written, and two different wrong numbers, have few."""
    outputs = [attempt for attempt, _ in pairs
               if attempt.got is not None and attempt.wrong is not None and attempt.wrong.any()]
    values = set()
    for attempt in outputs:
        if 0 < np.count_nonzero(attempt.unwritten) < attempt.got.size:
            return True
        values.update(attempt.got[attempt.wrong & ~attempt.unwritten].tolist()[:100])
    return not outputs or len([value for value in values if value == value]) > 1


def _alike(a: Attempt, b: Attempt) -> int:
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


def can_play(exercise: Exercise, case: Case | None, kind: str) -> bool:
    """Whether the threads of a kernel can be watched in the case in which it failed in this way."""
    if exercise.kind != "kernel" or case is None or kind not in PLAYABLE:
        return False
    return case.size in (exercise.observe_sizes or ()) or threads_of(exercise, case) <= OBSERVED_THREADS


def observed_cases(exercise: Exercise, cases: list[Case]) -> list[Case]:
    """The named sizes, or the two largest small enough to be run in plain Python."""
    cases = [case for case in cases if not case.where]
    if exercise.observe_sizes is not None:
        return [case for case in cases if case.size in exercise.observe_sizes]
    small = [case for case in cases if threads_of(exercise, case) <= OBSERVED_THREADS]
    return small[-2:]
