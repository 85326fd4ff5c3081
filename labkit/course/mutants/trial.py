"""Runs mutants through check: each exercise in a process of its own, which is replaced when a mutant hangs or kills it.

    for outcome in try_all({name: mutants_of(exercises.find(name), 30) for name in ("row_range", "saxpy")}): ...

    python -m labkit.course.mutants.trial row_range < mutants.json      the process: one line of JSON for each mutant
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from labkit._common.cores import cores
from labkit.course import exercise_files, exercises
from labkit.course.check import examine, limits, run
from labkit.course.check.compare import compare_attempt, first_finding
from labkit.course.check.diagnose.findings import HEADLINES
from labkit.course.check.diagnose.outputs import describe_output
from labkit.course.check.diagnose.preflight import refused
from labkit.course.check.draw import draw_cases, threads_of
from labkit.course.exercises import Exercise
from labkit.course.mutants.operators import Mutant, chosen, mutants

SEED = 11  # of the inputs: a mutant must not be caught by chance today and pass tomorrow
MUTANT_LIMIT_S = 60.0  # one mutant, compiling included
KERNEL_LIMIT_S = 1.0  # a loop that never ends ends sooner than for a learner
FUNCTION_LIMIT_S = 3.0
OBSERVED_THREADS, OBSERVED_CASES = 600, 4
TYPES = "from numba import float32, int32"  # an answer that uses one of them may not have imported the other


@dataclass(frozen=True)
class Outcome:
    """The verdict of check on one mutant. verdict: its kind; "passed" is a survivor."""

    exercise: str
    mutant: str
    verdict: str
    headline: str = ""

    @property
    def survived(self) -> bool:
        return self.verdict == "passed"

    @property
    def ran_out_of_time(self) -> bool:
        """Rejected for its time alone, which says little on a busy machine."""
        return (self.verdict in ("process_ended", "never_ends", "not_observed")
                or self.headline.startswith("KernelTimeout"))


# --- What there is to try --------------------------------------------------------------------------------------------


def mutants_of(exercise: Exercise, count: int | None = None) -> list[Mutant]:
    """The mutants of an exercise's answer, or `count` of them. Of a prediction: other numbers, as source."""
    if exercise.kind == "predict":
        result = _other_numbers(exercise.truth())
    else:
        solution = exercise_files.solution(exercise.name)
        if solution is None:
            raise ValueError(f"the answer to {exercise.name!r} is not at hand: it was cut from the exercise's file")
        result = mutants(solution.answer)
    return result if count is None else chosen(result, count)


def _other_numbers(truth: dict) -> list[Mutant]:
    """Off by one (a large number by a tenth: some are asked for roughly), doubled, halved, of another sign, none; one
    number in the place of the next."""
    result, names = [], list(truth)
    for index, (name, value) in enumerate(truth.items()):
        next_value = truth[names[(index + 1) % len(names)]]
        delta = max(1, round(abs(value) / 10)) if isinstance(value, int) else abs(value) / 10
        for operator, other in (("number", value + delta), ("number", value - delta), ("number", 2 * value),
                                ("number", value / 2), ("number", -value), ("number", 0), ("number", value + delta / 2),
                                ("number", float("nan")), ("number", 10 * value), ("number", float("inf")),
                                ("type", None), ("name", next_value)):
            if not (isinstance(other, int | float) and other == value):
                result.append(Mutant(operator, f"{name} = {value} -> {other}", repr({**truth, name: other})))
    return result


# --- One mutant ------------------------------------------------------------------------------------------------------


def try_mutant(exercise: Exercise, mutant: Mutant) -> Outcome:
    """What check says. The known mistakes are not compared with: only whether it passes counts."""
    if exercise.kind == "predict":
        numbers = eval(mutant.source, {"nan": float("nan"), "inf": float("inf")})  # our own repr, of six lines above
        try:
            verdict = examine(exercise, None, numbers=numbers)
        except ValueError as error:  # no numbers at all
            return Outcome(exercise.name, mutant.name, "refused", str(error))
        return Outcome(exercise.name, mutant.name, verdict.kind, verdict.headline)
    solution = exercise_files.solution(exercise.name)
    solution = dataclasses.replace(solution, above=(TYPES, *solution.above))
    try:
        answer = solution.run(mutant.source, f"<mutant of {exercise.name}: {mutant.name}>")
    except Exception as error:
        return Outcome(exercise.name, mutant.name, "does_not_run", f"{type(error).__name__}: {error}")
    if exercise.kind == "kernel" and (outcome := _observed(exercise, answer)) is not None:
        return Outcome(exercise.name, mutant.name, *outcome)
    verdict = examine(_without_known_mistakes(exercise), answer, seed=SEED)
    return Outcome(exercise.name, mutant.name, verdict.kind, verdict.headline)


def _observed(exercise: Exercise, answer) -> tuple[str, str] | None:
    """(verdict, headline) of a kernel that is already wrong where check would only observe it, which needs no compiling
    and so takes a tenth of the time; None if that shows nothing. Everything else goes through the whole of check."""
    if (diagnosis := refused(exercise, answer)) is not None:
        return diagnosis.kind, diagnosis.headline
    small = [case for case in draw_cases(exercise, SEED) if threads_of(exercise, case) <= OBSERVED_THREADS]
    for case in small[:OBSERVED_CASES]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                report, inputs, out = run.observed(exercise, answer, case)
        except Exception as error:
            return "stopped", f"{type(error).__name__}: {error}".split("\n")[0]
        if (finding := first_finding(report)) is not None:
            return finding[0], HEADLINES[finding[0]]
        attempt = run.Attempt(case, got=out, changed=run.changed_input(case, inputs))
        difference = compare_attempt(exercise, attempt)
        if not difference.good:
            return difference.kind, describe_output(exercise, difference).headline
    return None


def _without_known_mistakes(exercise: Exercise) -> Exercise:
    stripped = copy.copy(exercise)
    object.__setattr__(stripped, "wrong", {})
    return stripped


# --- Processes -------------------------------------------------------------------------------------------------------


def try_all(mutants_by_exercise: dict[str, list[Mutant]], workers: int | None = None) -> Iterator[Outcome]:
    """Outcomes of the mutants of each exercise as they come, exercises side by side. When the caller stops, the
    processes are ended."""
    pending: queue.SimpleQueue = queue.SimpleQueue()
    done: queue.SimpleQueue = queue.SimpleQueue()
    for item in mutants_by_exercise.items():
        pending.put(item)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            try:
                name, exercise_mutants = pending.get_nowait()
            except queue.Empty:
                break
            try:
                for outcome in _try_one(name, exercise_mutants, stop):
                    done.put(outcome)
            except Exception as error:  # raised in the caller's thread, where it belongs
                done.put(error)
        done.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers or cores())]
    for thread in threads:
        thread.start()
    try:
        ended = 0
        while ended < len(threads):
            outcome = done.get()
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is None:
                ended += 1
            else:
                yield outcome
    finally:
        stop.set()


def _try_one(name: str, todo: list[Mutant], stop: threading.Event) -> Iterator[Outcome]:
    """These mutants of one exercise. A process that hangs or dies is replaced, and its mutant counts as rejected: a
    learner's would have been stopped, too."""
    index = 0
    while index < len(todo) and not stop.is_set():
        for line in _lines([sys.executable, "-m", __name__, name], todo[index:], stop):
            yield Outcome(**json.loads(line))
            index += 1
        if index < len(todo) and not stop.is_set():
            yield Outcome(name, todo[index].name, "process_ended", "The process died, or took too long.")
            index += 1


def _lines(command: list[str], todo: list[Mutant], stop: threading.Event) -> Iterator[str]:
    """The lines of a process's output that are JSON, until it ends or MUTANT_LIMIT_S pass without one. It gets the
    mutants as its input."""
    env = {**os.environ, "LABKIT_DEVICE": "cpu", "LABKIT_PROGRESS": "0"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True, env=env)
    lines: queue.SimpleQueue = queue.SimpleQueue()

    def read():
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it may have died already
            json.dump([asdict(one) for one in todo], process.stdin)
        while not stop.is_set():
            try:
                line = lines.get(timeout=MUTANT_LIMIT_S)
            except queue.Empty:
                return
            if line is None:
                return
            if line.startswith("{"):
                yield line
    finally:
        process.kill()
        process.wait()


def main(name: str) -> None:
    limits.KERNEL_LIMIT_S, run.FUNCTION_LIMIT_S = KERNEL_LIMIT_S, FUNCTION_LIMIT_S
    exercise = exercises.find(name)
    out = sys.stdout
    sys.stdout = sys.stderr  # what an answer prints is not ours
    for mutant in json.load(sys.stdin):
        print(json.dumps(asdict(try_mutant(exercise, Mutant(**mutant)))), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
