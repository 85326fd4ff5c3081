"""One run of an answer on one case: launched or called on fresh copies, or watched while it runs.

An Attempt says what happened. Whether that is right, `compare` says.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, replace

import numpy as np

from labkit import device
from labkit.course.check.draw import Case, arguments_for, threads_of
from labkit.course.check.host_runs import HostRun, idle, recording
from labkit.course.check.limits import HostTimeout, host_limit, limited, wait
from labkit.course.exercises import Exercise
from labkit.kernels.agree import guarded, poison, same_bits, sentinel_of
from labkit.simt import step_limit

FUNCTION_LIMIT_S = 10.0  # for a host function
LAUNCHER_LIMIT_S = 20.0  # for a function that launches kernels, compiling left out; nbgrader gives a cell 30 s
PLAY_LIMIT_S = 45.0  # for a launch that is recorded, step by step
OBSERVED_STEPS = 1_500_000  # turns of loops of a launch under observe, which is known to end: a minute of work
OBSERVED_CPU_S = 300.0  # for the same, and never reached: where a thread makes a turn, steps are counted
ORDERS = ("reverse", "scattered")  # of the threads, after "forward"
OBSERVED = "observed"  # a kernel under observe
RECORDED = "recorded"  # a function of the host, with its launches and its calls of libraries
ORDERED_ELEMENTS = 20_000  # larger cases run forward only
OBSERVED_THREADS = 1_100  # observe is plain Python: small cases only


@dataclass(frozen=True, eq=False)
class Attempt:
    """What happened in one run. `how` is an order of the threads, OBSERVED or RECORDED."""

    case: Case
    how: str = "forward"
    value: object = None  # what a function of the host returned
    missed: str = ""  # what the exercise's judge misses
    got: np.ndarray | None = None  # what the output holds, or the value where it is numbers
    outside: tuple[int, ...] = ()  # elements beside the output that were written
    changed: tuple[int, bytes] | None = None  # the number of an input that was changed, and what it holds
    error: BaseException | None = None
    report: object = None  # of observe
    host_run: HostRun | None = None
    while_idle: Attempt | None = None  # the same where launches and calls of libraries do nothing


def trials(exercise: Exercise, cases: list[Case]) -> list[tuple[Case, str]]:
    """Each case and how it is run, in the order of the check."""
    found = [(case, "forward") for case in cases]
    if not device.on_gpu() and exercise.shape is not None:
        small = [case for case in cases if case.expected.size <= ORDERED_ELEMENTS and not case.where]
        found += [(case, order) for order in ORDERS for case in small]
    if exercise.kind == "kernel":
        watched = [(case, OBSERVED) for case in observed_cases(exercise, cases)]
        return watched + found if device.on_gpu() else found + watched
    if not device.on_gpu() and (exercise.demand is not None or exercise.shape is not None):
        found += [(case, RECORDED) for case in cases if not case.where]
    return found


def observed_cases(exercise: Exercise, cases: list[Case]) -> list[Case]:
    """The named sizes, or the two largest small enough to be run in plain Python."""
    cases = [case for case in cases if not case.where]
    if exercise.observe_sizes is not None:
        return [case for case in cases if case.size in exercise.observe_sizes]
    small = [case for case in cases if threads_of(exercise, case) <= OBSERVED_THREADS]
    return small[-2:]


def run_answer(exercise: Exercise, answer, case: Case, how: str = "forward") -> Attempt:
    """One run on fresh copies. What the answer raises is part of the attempt."""
    run = {OBSERVED: _watched, RECORDED: _recorded}.get(how, _called if exercise.shape is None else _launched)
    try:
        return run(exercise, answer, case, how)
    except (Exception, HostTimeout, SystemExit) as error:  # whatever the answer did wrong is the verdict
        return Attempt(case, how, error=error)


def _called(exercise: Exercise, answer, case: Case, how: str) -> Attempt:
    """A function of the host that returns its result."""
    with host_limit(FUNCTION_LIMIT_S):
        arguments = copy.deepcopy(case.inputs)
        if exercise.judge is not None:
            return Attempt(case, how, missed=exercise.judge(answer, case.expected, *arguments) or "")
        value = answer(*arguments)
    if hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    return Attempt(case, how, value=value, got=numbers_in(value), changed=changed_input(case, arguments))


def numbers_in(value) -> np.ndarray | None:
    """What was returned, as an array of numbers; None where it is none."""
    if contains_itself(value):  # NumPy would follow it for ever
        return None
    try:
        got = np.asarray(value)
    except ValueError:
        return None
    return got if got.dtype.kind in "biufc" else None


def contains_itself(value, enclosing: tuple = ()) -> bool:
    """Whether a list, through those that it holds, holds itself."""
    if not isinstance(value, (list, tuple)):
        return False
    path = (*enclosing, id(value))
    return any(id(each) in path or contains_itself(each, path) for each in value if isinstance(each, (list, tuple)))


def changed_input(case: Case, arguments: tuple) -> tuple[int, bytes] | None:
    """The number of the first input that is not what it was, and its bytes, of an array."""
    for number, (original, current) in enumerate(zip(case.inputs, arguments, strict=True), 1):
        if isinstance(original, np.ndarray):
            current = current.copy_to_host() if hasattr(current, "copy_to_host") else current
            if not same_bits(original, current):
                return number, np.asarray(current).tobytes()
        elif original is not current and original != current:
            return number, b""
    return None


def _launched(exercise: Exercise, answer, case: Case, how: str) -> Attempt:
    """A kernel, or a function that launches kernels."""
    dtype = np.dtype(exercise.dtype)
    start = poison(case.expected.shape, dtype) if case.start is None else case.start
    out = guarded(start, sentinel_of(dtype))
    on_device = tuple(guarded(v).array if isinstance(v, np.ndarray) else v for v in case.inputs)
    arguments = arguments_for(exercise, case, on_device, out.array)
    with limited(how):
        if exercise.kind == "kernel":
            answer[exercise.launch(**case.size)](*arguments)
        else:
            with host_limit(LAUNCHER_LIMIT_S):
                answer(*arguments)
        wait()
    got, outside = out.read()
    return Attempt(case, how, got=got, outside=tuple(outside.tolist()), changed=changed_input(case, on_device))


def _watched(exercise: Exercise, answer, case: Case, how: str) -> Attempt:
    report, inputs, out = observed(exercise, answer, case, steps=None if device.on_gpu() else OBSERVED_STEPS)
    return Attempt(case, how, got=out, changed=changed_input(case, inputs), report=report)


def observed(exercise: Exercise, answer, case: Case, steps: int | None = None) -> tuple:
    """(report, inputs, output) of a kernel run under observe on fresh copies. Raises whatever the answer raises, and
    KernelTimeout on the CPU device after limits.KERNEL_LIMIT_S of a block or, where they are given, after so many steps
    of all threads."""
    from labkit import observe  # looked up late, so that a test can put another in its place

    out = poison(case.expected.shape, np.dtype(exercise.dtype)) if case.start is None else case.start.copy()
    inputs = tuple(v.copy() if isinstance(v, np.ndarray) else v for v in case.inputs)
    counted = contextlib.nullcontext() if steps is None else step_limit(steps)
    with host_limit(LAUNCHER_LIMIT_S if steps is None else OBSERVED_CPU_S), limited("forward"), counted:
        report = observe(answer[exercise.launch(**case.size)], *arguments_for(exercise, case, inputs, out))
    return report, inputs, out


def played(exercise: Exercise, answer, case: Case):
    """The Player of a kernel on this case; None where it cannot be watched."""
    try:
        report, _, _ = observed(exercise, answer, case, steps=OBSERVED_STEPS)
        with host_limit(PLAY_LIMIT_S), limited("forward", PLAY_LIMIT_S):
            return report.play()
    except (Exception, HostTimeout):  # the verdict reports the error
        return None


def _recorded(exercise: Exercise, answer, case: Case, how: str) -> Attempt:
    """A function of the host, with what it does on the device; and once more where the device does nothing."""
    host_run = HostRun(case.size)

    def recorded(*arguments):
        with recording(host_run):
            host_run.returned = answer(*arguments)
        return host_run.returned

    attempt = run_answer(exercise, recorded, case)
    while_idle = None
    if exercise.demand is not None and attempt.error is None:
        with idle():
            while_idle = run_answer(exercise, answer, case)
    return replace(attempt, how=how, host_run=host_run, while_idle=while_idle)
