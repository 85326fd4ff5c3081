"""Mutants of the real answers: each is rejected by check, or its exercise says why it is equivalent."""

import threading

import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import exercise_files, exercises
from labkit.course.mutants import ledger, trial
from labkit.course.mutants.operators import Mutant
from tests.course.expensive import marks_of

pytestmark = pytest.mark.cpu_device

EXERCISES = exercises.load()
LEDGER = ledger.read(REPOSITORY / "data" / ledger.NAME)
TRIED = LEDGER["tried"]
COUNT = 30  # as `labkit exercises mutate` tries
HERE = 5  # of them


def test_every_exercise_was_tried_with_25_mutants_at_least_and_2000_in_all():
    assert TRIED.keys() == EXERCISES.keys()
    few = {name: count for name, count in TRIED.items() if count < 25}
    # The answers of these are so short that there are no more.
    assert all(count == len(trial.mutants_of(EXERCISES[name])) for name, count in few.items()), few
    assert sum(TRIED.values()) >= 2000


@pytest.mark.sweep
def test_the_exercises_and_the_ledger_name_mutants_that_there_are():
    for name in EXERCISES:
        if known := {*exercises.equivalent(name), *LEDGER["holes"].get(name, ())}:
            assert known <= {one.name for one in trial.mutants_of(EXERCISES[name], COUNT)}, name


@pytest.mark.sampled(3, sweep=10)
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in EXERCISES])
def test_no_mutant_passes_that_is_not_known(name):
    for mutant in trial.mutants_of(EXERCISES[name], COUNT)[:HERE]:
        outcome = trial.try_mutant(EXERCISES[name], mutant)
        known = {*exercises.equivalent(name), *LEDGER["holes"].get(name, ())}
        assert not outcome.survived or mutant.name in known, mutant.source


def test_the_answer_itself_survives_and_so_would_an_equivalent_mutant():
    answer = Mutant("none", "none", exercise_files.solution("saxpy").answer)
    assert trial.try_mutant(EXERCISES["saxpy"], answer).survived


def test_a_process_that_dies_costs_one_mutant(monkeypatch):
    lines = iter([['{"exercise": "saxpy", "mutant": "first", "verdict": "race", "headline": ""}'],
                  ['{"exercise": "saxpy", "mutant": "third", "verdict": "passed", "headline": ""}']])
    started = []
    monkeypatch.setattr(trial, "_lines", lambda _, wanted, stop: started.append(wanted) or next(lines))
    wanted = [Mutant("o", text, "") for text in ("1", "2", "3")]
    outcomes = list(trial._try_one("saxpy", wanted, threading.Event()))
    assert [one.verdict for one in outcomes] == ["race", "process_ended", "passed"]
    assert started == [wanted, wanted[2:]]


@pytest.mark.sweep(every=True)
def test_the_process_gets_the_mutants_that_it_tries():
    wanted = [Mutant("none", "none", exercise_files.solution("saxpy").answer),
              Mutant("none", "no kernel", "saxpy = None")]
    first, second = trial.try_all({"saxpy": wanted}, workers=1)
    assert (first.mutant, first.survived) == ("none: none", True)
    assert (second.mutant, second.survived) == ("none: no kernel", False)
