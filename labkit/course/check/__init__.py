"""check(name, kernel): whether an answer is correct, and if not, where it fails.

Each check draws fresh inputs (the seed is shown), takes awkward sizes, fills the output with NaN, lays guards around
output and inputs, compares with NumPy, repeats under other thread orders, and lets `observe` look at the small cases.
A wrong answer is compared with the exercise's known wrong kernels. Whatever the answer does, check reports it in words:
it raises only for a wrong call of check itself, and CheckFailed under nbgrader, where a wrong answer must fail its cell
(NBGRADER_EXECUTION is set there). `check(...).passed` tells scripts.

On a GPU small cases are observed first, on the CPU: an endless loop or a wild index is found before it runs on the GPU.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from labkit import device
from labkit._common.errors import UserError
from labkit._common.tables import size_text
from labkit.course import exercises
from labkit.course.check.diagnose.known import Known, can_play, run_stages
from labkit.course.check.diagnose.preflight import (
    AS_GIVEN,
    as_given,
    computes_in_float64,
    never_used,
    overflowing,
    refused,
)
from labkit.course.check.diagnose.probes import probed
from labkit.course.check.draw import draw_cases
from labkit.course.check.limits import announced_compiling, compile_clock
from labkit.course.check.numba_kernels import adopted, numba_on_cpu
from labkit.course.check.predict import check_prediction, written
from labkit.course.check.run import played
from labkit.course.check.timing import time_answer
from labkit.course.check.verdict import CheckFailed, Verdict, can_be_typed_to, in_ipython
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
    with compile_clock() as clock:
        verdict = _examined(exercise, answer, seed, numbers, tries, play_in)
    return replace(verdict, compiling=min(clock.seconds(), verdict.seconds))


def _examined(exercise: Exercise, answer, seed, numbers, tries: int, play_in: str | None) -> Verdict:
    seed = secrets.randbelow(2**31) if seed is None else seed
    begin = time.perf_counter()
    common = {"exercise": exercise.name, "title": _title(exercise.name), "where": _where(), "seed": seed}
    if exercise.kind == "predict":
        attempt, mistake, exact = check_prediction(exercise, answer, numbers or {}, tries)
        return Verdict(**{**common, "where": "", "seed": None}, passed=attempt.kind == "passed", kind=attempt.kind,
                       headline=attempt.headline, details=attempt.details, table=attempt.table, mistake=mistake,
                       mistake_is_exact=exact, seconds=time.perf_counter() - begin)
    if numbers:
        raise ValueError(f"check({exercise.name!r}, ...) takes the answer and seed, not {', '.join(numbers)}")

    with numba_on_cpu():
        answer = adopted(answer)
        attempt = refused(exercise, answer)
        case, known, notes = None, Known(), {}
        if attempt is None:
            cases = draw_cases(exercise, seed)
            attempt, case, known = run_stages(exercise, answer, cases, notes)
            remark = computes_in_float64(exercise, answer, cases[0]) if attempt is None else ()
            if attempt is not None and as_given(exercise, answer):
                attempt, known = replace(attempt, details=(*attempt.details, AS_GIVEN)), Known()
            elif attempt is not None and attempt.kind == "wrong_result" and not known.exact and not device.on_gpu():
                later = cases[cases.index(case) + 1 :]
                attempt = replace(attempt, details=(*attempt.details, *probed(exercise, answer, case, later)))
            if attempt is not None and attempt.kind in ("wrong_result", "out_of_bounds"):
                attempt = replace(attempt, details=(*attempt.details, *never_used(exercise, answer, case),
                                                    *overflowing(exercise, answer, case)))
    if attempt is not None:
        if case is None:
            common["seed"] = None  # nothing was drawn
        common["can_play"] = can_play(exercise, case, attempt.kind)
        if common["can_play"] and play_in and (player := played(exercise, answer, case)):
            common["player"] = str(player.save(Path(play_in) / f"{exercise.name}.html"))
        return Verdict(**common, passed=False, kind=attempt.kind, headline=attempt.headline, details=attempt.details,
                       table=attempt.table, mistake=known.mistake,
                       mistake_is_exact=known.exact,
                       size={k: int(v) if isinstance(v, np.integer) else v for k, v in case.size.items()} if case
                       else None,
                       seconds=time.perf_counter() - begin)
    sizes = [case.size for case in cases if not case.where]
    headline = f"Right at {len(sizes)} sizes, from {size_text(sizes[0])} to {size_text(sizes[-1])}."
    time_ms, ratio, note = time_answer(exercise, answer, seed)
    details = (*((note,) if note else ()), *list(notes)[:1], *(f"A remark. {text}" for text in remark))
    return Verdict(**common, passed=True, kind="passed", headline=headline, details=details, time_ms=time_ms,
                   ratio=ratio, seconds=time.perf_counter() - begin)


def _where() -> str:
    return f"measured on {device.name()}" if device.on_gpu() else "on the CPU device"


def _title(name: str) -> str:
    from labkit.course import registry as course

    with contextlib.suppress(UserError):
        return course.load().exercise(name).title
    return name


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
    from labkit.course import progress, registry

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
    from labkit.course import progress
    from labkit.course import registry as course

    text = progress.hint(course.load(), name, tier)
    if not can_be_typed_to():
        print(text)
    return Hint(text)


class Hint(str):
    """Shows itself as text, without quotes."""

    def __repr__(self) -> str:
        return str(self)
