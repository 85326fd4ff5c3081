"""Why an answer is wrong, in words.

preflight       answers refused before anything runs
outputs         which elements are wrong and their pattern (patterns); findings: what observe found
faults          what an exception says; compile_errors, python_errors, outside: its cause
before          a result that includes the output's previous contents
known           the known wrong answer that does the same
probes          what other inputs show
unused          what the source never uses; precision: where a kernel computes in float64
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from labkit import device
from labkit._common.tables import size_text
from labkit.course.check.compare import Difference, compare_attempt
from labkit.course.check.diagnose.before import depends_on_before, describe_before
from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.diagnose.faults import describe_error
from labkit.course.check.diagnose.findings import about_benign, beside_a_wrong_result, describe_report
from labkit.course.check.diagnose.known import Known, before_and_after, known_mistake
from labkit.course.check.diagnose.outputs import describe_output, describe_unwatched, in_another_order
from labkit.course.check.diagnose.precision import computes_in_float64
from labkit.course.check.diagnose.preflight import AS_GIVEN, as_given
from labkit.course.check.diagnose.probes import probed
from labkit.course.check.diagnose.unused import never_used, overflowing
from labkit.course.check.draw import Case
from labkit.course.check.run import OBSERVED, ORDERS, observed_cases, run_answer
from labkit.course.check.sources import mentions
from labkit.course.exercises import Exercise

TELLING_ELEMENTS = 8  # fewer wrong elements show no pattern
ONE_THING_MISSING = "The result is right, but one requirement is not met."


def diagnose_differences(exercise: Exercise, answer, cases: list[Case], differences: list[Difference]) -> Diagnosis:
    """differences: of all trials up to the first that does not pass."""
    diagnose = _right if differences[-1].good else _wrong
    return diagnose(exercise, answer, cases, differences)


def _right(exercise: Exercise, answer, cases: list[Case], differences: list[Difference]) -> Diagnosis:
    wide = computes_in_float64(exercise, answer, cases[0])
    if wide and getattr(exercise, "in_float32", False):
        return Diagnosis("demand", ONE_THING_MISSING, wide, case=cases[0])
    reports = [one.attempt.report for one in differences if one.attempt.report is not None]
    benign = [text for report in reports for text in about_benign(report)][:1]
    sizes = [case.size for case in cases if not case.where]
    return Diagnosis("passed", f"Correct at {len(sizes)} sizes, from {size_text(sizes[0])} to {size_text(sizes[-1])}.",
                     (*benign, *(f"Note: {text}" for text in wide)))


def _wrong(exercise: Exercise, answer, cases: list[Case], differences: list[Difference]) -> Diagnosis:
    difference = differences[-1]
    kind, case, is_given = difference.kind, difference.attempt.case, as_given(exercise, answer)
    before = depends_on_before(exercise, answer, difference)
    known = Known() if is_given else known_mistake(exercise, answer, cases, difference, before is not None)
    if before is not None:
        diagnosis = describe_before(exercise, answer, difference, before)
    else:
        diagnosis = described(exercise, answer, difference)
        diagnosis = _with_larger(diagnosis, case, _later(exercise, answer, cases, difference))
        if not known.exact and not is_given:
            diagnosis = _with_observed(exercise, answer, diagnosis, cases)
    details = list(diagnosis.details)
    if is_given:
        details.append(AS_GIVEN)
    elif kind == "wrong_result" and not known.exact and not device.on_gpu():
        details += probed(exercise, answer, case, cases[cases.index(case) + 1 :])
    if kind in ("wrong_result", "out_of_bounds"):
        details += (*never_used(exercise, answer, case), *overflowing(exercise, answer, case))
    return replace(diagnosis, details=tuple(details), mistake=known.mistake, mistake_is_exact=known.exact, case=case)


def described(exercise: Exercise, answer, difference: Difference) -> Diagnosis:
    """What happened in one run, and nothing of its causes."""
    attempt = difference.attempt
    if difference.kind == "not_observed":
        return describe_unwatched(attempt.case)
    if attempt.error is not None:
        diagnosis = describe_error(exercise, answer, difference)
    elif attempt.report is not None:
        diagnosis = describe_report(exercise, answer, difference)
    elif attempt.host_run is not None and difference.kind == "race":
        return Diagnosis("race", "The result is right this time, but the work on two streams is not ordered: a race.",
                         tuple(attempt.host_run.streams.unordered[:2]))
    elif attempt.host_run is not None and difference.kind == "demand":
        return Diagnosis("demand", ONE_THING_MISSING, difference.trace)
    else:
        diagnosis = describe_output(exercise, difference)
    if attempt.how in ORDERS and difference.kind != "never_ends":
        return in_another_order(diagnosis, difference.kind, mentions(answer, "atomic"))
    return diagnosis


def _later(exercise: Exercise, answer, cases: list[Case], difference: Difference) -> Iterable[tuple[Case, Diagnosis]]:
    """The trials after the failing one, as far as they are asked for."""
    for case, how in before_and_after(exercise, cases, difference)[1]:
        if case.expected.size >= TELLING_ELEMENTS and not case.where:
            later = compare_attempt(exercise, run_answer(exercise, answer, case, how))
            if later.kind == "wrong_result":
                yield case, described(exercise, answer, later)


def _with_larger(diagnosis: Diagnosis, case: Case, later: Iterable[tuple[Case, Diagnosis]]) -> Diagnosis:
    """Add the pattern of a larger case, since a very small one says little about which elements are wrong. Not of one
    with zeros or other special inputs, where a result may look like another mistake's."""
    if diagnosis.kind != "wrong_result" or case.expected.size >= TELLING_ELEMENTS or case.expected.ndim == 0:
        return diagnosis
    for larger, found in later:
        if found.summary:
            detail = f"At {size_text(larger.size)} (see the table): {found.summary}"
            return replace(diagnosis, details=(*diagnosis.details, detail), table=found.table)
    return diagnosis


def _with_observed(exercise: Exercise, answer, diagnosis: Diagnosis, cases: list[Case]) -> Diagnosis:
    """Add what observe finds: a race or a missing barrier gives wrong numbers, too."""
    if diagnosis.kind != "wrong_result" or exercise.kind != "kernel" or device.on_gpu():
        return diagnosis
    exchanges = mentions(answer, "shared", "shfl", "cp_async")
    for case in observed_cases(exercise, cases):
        attempt = run_answer(exercise, answer, case, OBSERVED)
        if attempt.report is not None:
            found = beside_a_wrong_result(exercise, answer, attempt.report, exchanges)
        else:
            difference = compare_attempt(exercise, attempt)
            stopped = difference.kind == "barrier" and described(exercise, answer, difference)
            found = (f"{stopped.headline} {stopped.details[0]}",) if stopped else ()
        if found:
            return replace(diagnosis, details=(*diagnosis.details[:1], *found, *diagnosis.details[1:]))
    return diagnosis
