"""Answers as learners write them, in wrong_answers.toml: what check says to each.

The known wrong answers beside each exercise were written by those who wrote its check. These were written by readers
of the lessons alone, with the true cause of each mistake. `open` says why check still takes a wrong one.
"""

import ast
import functools
import tomllib
from pathlib import Path

import pytest

from labkit.course import exercise_files, exercises
from labkit.course.check import examine
from tests.course.expensive import marks_of

EXERCISES = exercises.load()
ANSWERS = tomllib.loads(Path(__file__).with_name("wrong_answers.toml").read_text(encoding="utf-8"))["answer"]
BY_ID = {answer["id"]: answer for answer in ANSWERS}


@functools.cache
def truth_of(name: str) -> dict:
    return EXERCISES[name].truth()


def passed(answer: dict) -> tuple[bool, str]:
    """Whether check takes the answer, and what it says, where the answer stands below the cells above it."""
    exercise = EXERCISES[answer["exercise"]]
    if "numbers" in answer:
        verdict = examine(exercise, None, numbers={**truth_of(exercise.name), **answer["numbers"]})
        return verdict.passed, str(verdict)
    try:
        given = exercise_files.solution(exercise.name).run(answer["source"], f"<{answer['id']}>")
    except Exception as error:  # the cell itself fails, and the learner never comes to check
        return False, f"{type(error).__name__}: {error}"
    verdict = examine(exercise, given)
    return verdict.passed, str(verdict)


def test_ids_are_unique_and_exercises_known():
    assert len(BY_ID) == len(ANSWERS)
    assert {answer["exercise"] for answer in ANSWERS} == set(EXERCISES)


def test_there_are_enough_of_each_kind():
    wrong = [answer["exercise"] for answer in ANSWERS if not answer["right"]]
    assert len(wrong) >= 300
    assert len(ANSWERS) - len(wrong) >= 25
    assert all(wrong.count(name) >= 2 for name in EXERCISES)
    held_out = [answer for answer in ANSWERS if answer.get("held_out")]
    assert len(held_out) == len(ANSWERS) // 10


def test_every_entry_is_well_formed():
    common = {"exercise", "id", "cause", "line", "right"}
    for answer in ANSWERS:
        assert set(answer) - {"held_out", "open"} in (common | {"source"}, common | {"numbers"}), answer["id"]
        assert len(answer["cause"]) > 15, answer["id"]
        assert ("numbers" in answer) == (EXERCISES[answer["exercise"]].kind == "predict"), answer["id"]
        lines = [line.strip() for line in answer.get("source", "").splitlines()]
        assert answer["line"] in ("", *lines), answer["id"]
        assert not (answer["right"] and answer["line"]), answer["id"]


@pytest.mark.sweep(every=True)
def test_predicted_numbers_have_the_names_asked_for_and_wrong_ones_differ_from_the_truth():
    for answer in ANSWERS:
        if "numbers" in answer:
            truth = truth_of(answer["exercise"])
            differs = any(truth[name] != number for name, number in answer["numbers"].items())
            assert differs != answer["right"], answer["id"]


def test_every_answer_is_python_and_none_is_there_twice():
    seen = {(name, ast.dump(ast.parse(exercise_files.solution(name).answer))): "the solution"
            for name, exercise in EXERCISES.items() if exercise.kind != "predict"}
    for answer in ANSWERS:
        if "source" in answer:
            key = answer["exercise"], ast.dump(ast.parse(answer["source"]))
            assert key not in seen, f"{answer['id']} is {seen[key]}"
            seen[key] = answer["id"]


@pytest.mark.cpu_device
@pytest.mark.sampled(1, sweep=44)
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(answer["exercise"]))
                                  for name, answer in BY_ID.items()])
def test_a_wrong_answer_does_not_pass_and_a_right_one_does(name):
    answer = BY_ID[name]
    taken, verdict = passed(answer)
    if taken and "open" in answer:
        pytest.xfail(answer["open"])
    assert taken == answer["right"], f"{answer['cause']}\n{verdict}"
