"""One run of an answer on one case: launched or called on fresh copies, or run under observe."""

from __future__ import annotations

import copy

import numpy as np

from labkit._common.tables import size_text
from labkit.course.check.cases import Attempt, Case, arguments_of
from labkit.course.check.compare import called_with, compared, shaped
from labkit.course.check.exceptions import explained, guard_question
from labkit.course.check.limits import host_limit, limited, wait
from labkit.course.exercises import Exercise
from labkit.kernels.agree import guarded, is_poison, poison, same_bits, sentinel_of

FUNCTION_LIMIT_S = 10.0  # for a host function
LAUNCHER_LIMIT_S = 20.0  # for a function that launches kernels, compiling included; nbgrader gives a cell 30 s


def run_once(exercise: Exercise, answer, case: Case, order: str = "forward") -> Attempt:
    """One launch (or call) on fresh copies; everything that it could have touched is checked."""
    try:
        if exercise.kind == "function" and exercise.shape is None:
            with host_limit(FUNCTION_LIMIT_S):
                given = copy.deepcopy(case.inputs)
                value = answer(*given)
            attempt = _returned(case, value)
            return _inputs_changed(case, given) or attempt if attempt.good else attempt
        return _launched(exercise, answer, case, order)
    except Exception as error:  # whatever the answer did wrong is the verdict
        return explained(exercise, answer, case, error)


def _inputs_changed(case: Case, given: tuple) -> Attempt | None:
    """A function of the host may not change what belongs to its caller."""
    for number, (before, after) in enumerate(zip(case.inputs, given, strict=True), 1):
        same = same_bits(before, after) if isinstance(before, np.ndarray) else before == after
        if not same:
            head = f"Input number {number} was changed."
            cure = "It belongs to the caller: work on a copy, such as `x.copy()` of an array."
            return Attempt("input_changed", head, (cure,), trace=(number,))
    return None


def _launched(exercise: Exercise, answer, case: Case, order: str) -> Attempt:
    dtype = np.dtype(exercise.dtype)
    start = poison(case.expected.shape, dtype) if case.start is None else case.start
    out = guarded(start, sentinel_of(dtype))
    on_device = [guarded(v).array if isinstance(v, np.ndarray) else v for v in case.inputs]
    arguments = arguments_of(exercise, tuple(on_device), out.array, case.size)
    with limited(order):
        if exercise.kind == "kernel":
            answer[exercise.launch(**case.size)](*arguments)
        else:
            with host_limit(LAUNCHER_LIMIT_S):
                answer(*arguments)
        wait()
    got, outside = out.read()
    if outside.size:
        flat = int(outside[0])
        return Attempt("out_of_bounds", "A thread writes outside the output.",
                       (f"At {size_text(case.size)} element {flat} was written (counted in memory order), and the "
                        f"output has {got.size:,}.", *guard_question(exercise, case)),
                       trace=(got.shape,), exact=(outside.size, flat))
    for number, (before, after) in enumerate(zip(case.inputs, on_device, strict=True), 1):
        if isinstance(before, np.ndarray) and not same_bits(before, after.copy_to_host()):
            return Attempt("input_changed", f"Input number {number} was written to.",
                           ("Inputs are only read here; write to the output.",), trace=(number,))
    unwritten = is_poison(got) if case.start is None else np.zeros(got.shape, bool)
    return compared(exercise, case, got, unwritten)


def _returned(case: Case, value) -> Attempt:
    """The verdict on what a host function returned."""
    if value is None:
        return Attempt("no_value", "The function returns nothing.", ("Is `return` missing?",))
    if hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    try:
        got = np.asarray(value)
        comparable = got.dtype.kind in "biufc"
    except ValueError:
        comparable = False
    if not comparable:
        return Attempt("wrong_types", f"The function returns {type(value).__name__}, not numbers.")
    if got.shape != case.expected.shape:
        return Attempt("wrong_shape", f"The function returns {shaped(got)}; expected is {shaped(case.expected)}.",
                       (f"It was called with {called_with(case)}.",), trace=(got.shape,))
    return compared(None, case, got, np.zeros(got.shape, bool))


FINDINGS = (
    # attribute of the report, kind, headline
    ("out_of_bounds", "out_of_bounds", "A thread reaches outside an array."),
    ("divergent_barriers", "barrier", "Some threads of a block never reach a barrier that others wait at."),
    ("races", "race", "Two threads race for the same element."),
    ("uninitialized_reads", "uninitialized", "A thread reads memory that nothing has written."),
)


def observer(exercise: Exercise, case: Case, whole: bool = False):
    """A run under observe. whole: compare every finding, not only their kinds."""

    def run(answer) -> Attempt:
        from labkit import observe  # looked up late, so that a test can put another in its place

        dtype = np.dtype(exercise.dtype)
        out = poison(case.expected.shape, dtype) if case.start is None else case.start.copy()
        inputs = tuple(v.copy() if isinstance(v, np.ndarray) else v for v in case.inputs)
        try:
            with host_limit(LAUNCHER_LIMIT_S), limited("forward"):
                report = observe(answer[exercise.launch(**case.size)], *arguments_of(exercise, inputs, out, case.size))
        except Exception as error:  # as in run_once
            return explained(exercise, answer, case, error)
        kinds = tuple((kind, len(getattr(report, name))) for name, kind, _ in FINDINGS)
        for name, kind, headline in FINDINGS:
            if found := getattr(report, name):
                details = [str(finding) for finding in found[:2]]
                if len(found) > 2:
                    details.append(f"There are {len(found)} such findings at {size_text(case.size)}; these are the "
                                   "first two.")
                if kind == "out_of_bounds":
                    details += guard_question(exercise, case)
                every = tuple(sorted((f.kind, str(f.index)) for f in found)) if whole else kinds
                return Attempt(kind, headline, tuple(details), trace=(), exact=every)
        if missing := exercise.missing(report):
            return Attempt("demand", "The result is right, but one thing is asked for besides.", (missing,),
                           trace=(missing,))
        return Attempt("passed")

    return run
