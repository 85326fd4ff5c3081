"""Answers as learners write them, in wrong_answers.toml: what check says to each.

The known wrong answers beside each exercise were written by those who wrote its check. These were written by readers
of the lessons alone, with the true cause of each mistake.
"""

import ast
import tomllib
from pathlib import Path

import pytest

from labkit.course import answer_cells, exercises
from labkit.course.check import examine

EXERCISES = exercises.load()
ANSWERS = tomllib.loads(Path(__file__).with_name("wrong_answers.toml").read_text(encoding="utf-8"))["answer"]
BY_ID = {answer["id"]: answer for answer in ANSWERS}


def examined(answer: dict):
    """What check says to the answer, run below the cells that stand above it."""
    exercise = EXERCISES[answer["exercise"]]
    if "numbers" in answer:
        return examine(exercise, None, numbers={**exercise.truth(), **answer["numbers"]})
    solution = answer_cells.solution(exercise.name)
    return examine(exercise, solution.run(answer["source"], f"<{answer['id']}>"))


def refused_by_python(answer: dict) -> bool:
    """Whether the cell itself fails when it is run, so that the learner never comes to check."""
    if "numbers" in answer:
        return False
    try:
        answer_cells.solution(answer["exercise"]).run(answer["source"], f"<{answer['id']}>")
    except Exception:
        return True
    return False


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
        assert set(answer) - {"held_out"} in (common | {"source"}, common | {"numbers"}), answer["id"]
        assert len(answer["cause"]) > 15, answer["id"]
        assert ("numbers" in answer) == (EXERCISES[answer["exercise"]].kind == "predict"), answer["id"]
        lines = [line.strip() for line in answer.get("source", "").splitlines()]
        assert answer["line"] in ("", *lines), answer["id"]
        assert not (answer["right"] and answer["line"]), answer["id"]


def test_predicted_numbers_have_the_names_asked_for_and_wrong_ones_differ_from_the_truth():
    for answer in ANSWERS:
        if "numbers" in answer:
            truth = EXERCISES[answer["exercise"]].truth()
            differs = any(truth[name] != number for name, number in answer["numbers"].items())
            assert differs != answer["right"], answer["id"]


def test_every_answer_is_python_and_none_is_there_twice():
    seen = {(name, ast.dump(ast.parse(answer_cells.solution(name).answer))): "the solution"
            for name, exercise in EXERCISES.items() if exercise.kind != "predict"}
    for answer in ANSWERS:
        if "source" in answer:
            key = answer["exercise"], ast.dump(ast.parse(answer["source"]))
            assert key not in seen, f"{answer['id']} is {seen[key]}"
            seen[key] = answer["id"]


@pytest.mark.cpu_device
@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", BY_ID)
def test_a_wrong_answer_does_not_pass_and_a_right_one_does(name):
    answer = BY_ID[name]
    if not answer["right"] and refused_by_python(answer):
        return
    verdict = examined(answer)
    assert verdict.passed == answer["right"], f"{answer['cause']}\n{verdict}"
