"""check(name, kernel): whether an answer is correct, and if not, where it fails and why.

    draw      the cases: fresh inputs (the seed is shown) at awkward sizes, and the expected output
    run       one attempt: into NaN with guards around it; then in other orders of the threads, and under `observe`
    compare   the difference between the attempt and the expected output
    diagnose  its cause: known wrong answers, what other inputs show, ...
    verdict   the Verdict, in words

It raises for a wrong call of check alone, and CheckFailed under nbgrader (NBGRADER_EXECUTION is set there).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import warnings
from pathlib import Path

from labkit._common.errors import UserError
from labkit.course import exercises, progress, registry
from labkit.course.check.compare import compare_attempt
from labkit.course.check.diagnose import diagnose_differences
from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.diagnose.preflight import refused
from labkit.course.check.draw import draw_cases
from labkit.course.check.limits import announced_compiling, compile_clock
from labkit.course.check.numba_kernels import adopted, numba_on_cpu
from labkit.course.check.predict import diagnose_prediction, written
from labkit.course.check.run import played, run_answer, trials
from labkit.course.check.timing import NOT_TIMED, time_answer
from labkit.course.check.verdict import CheckFailed, Verdict, can_be_typed_to, can_play, in_ipython, verdict_of
from labkit.course.exercises import Exercise


def check(name: str, answer=None, /, *, seed: int | None = None, **numbers) -> Verdict:
    """Check the answer to the exercise `name`: a kernel, a function, or numbers (check(name, idle=24)).

    seed repeats the inputs of an earlier check; left out, they are fresh. Returns a Verdict, which displays itself.
    """
    try:
        exercise = exercises.find(name)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    tried = _Tried(name, answer, numbers) if exercise.kind == "predict" else None
    with warnings.catch_warnings(), announced_compiling():
        warnings.simplefilter("ignore")  # nbgrader gives no points to a cell that wrote to stderr
        verdict = examine(exercise, answer, seed=seed, numbers=numbers, tries=tried.previous if tried else 0,
                          play_in=os.environ.get("LABKIT_PLAY"))
    if tried and verdict.kind == "wrong_result":
        tried.remember()
    if verdict.passed:
        _record(name)
    if os.environ.get("NBGRADER_EXECUTION") and not verdict.passed:
        _show(verdict)
        raise CheckFailed(verdict)
    if not can_be_typed_to():
        print(verdict)
    return verdict


def examine(exercise: Exercise, answer, *, seed: int | None = None, numbers: dict | None = None,
            tries: int = 0, play_in: str | None = None) -> Verdict:
    """As check, for an Exercise at hand; shows and records nothing.

    tries: how many wrong predictions came before. play_in: the folder in which a page is written that plays the case in
    which a kernel failed.
    """
    seed = secrets.randbelow(2**31) if seed is None else seed
    begin = time.perf_counter()
    with compile_clock() as clock, numba_on_cpu():
        if exercise.kind == "predict":
            diagnosis = diagnose_prediction(exercise, answer, numbers or {}, tries)
        elif numbers:
            raise ValueError(f"check({exercise.name!r}, ...) takes only the answer and seed, not {', '.join(numbers)}")
        else:
            diagnosis = diagnose_answer(exercise, answer := adopted(answer), seed)
        player, timing = "", NOT_TIMED
        if play_in and can_play(exercise, diagnosis) and (page := played(exercise, answer, diagnosis.case)):
            player = str(page.save(Path(play_in) / f"{exercise.name}.html"))
        if diagnosis.kind == "passed":
            timing = time_answer(exercise, answer, seed)
    seconds = time.perf_counter() - begin
    return verdict_of(exercise, diagnosis, seed, timing, player, seconds, min(clock.seconds(), seconds))


def diagnose_answer(exercise: Exercise, answer, seed: int) -> Diagnosis:
    """Draw the cases, run the answer on them, compare until something differs, and say why."""
    if (diagnosis := refused(exercise, answer)) is not None:
        return diagnosis
    cases = draw_cases(exercise, seed)
    differences = []
    for case, how in trials(exercise, cases):
        attempt = run_answer(exercise, answer, case, how)
        differences.append(compare_attempt(exercise, attempt))
        if not differences[-1].good:
            break
    return diagnose_differences(exercise, answer, cases, differences)


_TRIED: dict[str, list[str]] = {}  # exercise: wrong predictions of this process


class _Tried:
    """The wrong predictions of an exercise up to now; the same numbers twice are one try."""

    def __init__(self, name: str, answer, numbers: dict):
        self.name, self.current = name, written(answer, numbers)
        self.known = list(_TRIED.get(name, ()))
        recorded = _with_progress(lambda progress, course: progress.read(course)["tried"].get(name)) or ()
        self.known += [one for one in recorded if one not in self.known]
        self.previous = len([one for one in self.known if one != self.current])

    def remember(self) -> None:
        _TRIED[self.name] = [*(one for one in self.known if one != self.current), self.current]
        _with_progress(lambda progress, course: progress.tried(course, self.name, _TRIED[self.name]))


def _record(name: str) -> None:
    """Remember that this exercise was passed."""
    _with_progress(lambda progress, course: progress.passed(course, name))


def _with_progress(action):
    """do(the module progress, the course) where there is a course to remember things in, and it is wanted; else
    None."""
    if os.environ.get("NBGRADER_EXECUTION") or os.environ.get("LABKIT_PROGRESS") == "0":
        return None
    with contextlib.suppress(UserError, OSError):
        return action(progress, registry.load())
    return None


def _show(verdict: Verdict) -> None:
    if in_ipython():
        from IPython.display import display

        display(verdict)
    else:
        print(verdict)


def hint(name: str, tier: int | None = None) -> str:
    """The next hint for an exercise; tier 1 to 3 gives that one."""
    text = progress.hint(registry.load(), name, tier)
    if not can_be_typed_to():
        print(text)
    return Hint(text)


class Hint(str):
    """Shows itself as text, without quotes."""

    def __repr__(self) -> str:
        return str(self)
