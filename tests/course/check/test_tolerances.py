"""How much of the allowed error a right answer needs. Inputs are drawn anew at each check: an answer that only just
passes one day is refused on another."""

import numpy as np
import pytest

from labkit.course import exercise_files, exercises
from labkit.course.check import compare, run
from labkit.course.check.draw import draw_cases
from labkit.course.check.numba_kernels import adopted, numba_on_cpu

EXERCISES = exercises.load()
WITH_TOLERANCE = [name for name, one in EXERCISES.items()
                  if getattr(one, "tolerance", None) and not getattr(one, "alike", None)]  # those may differ by choice
SEEDS = 10
MOST = 0.75  # of the allowed error


@pytest.mark.sampled(0, sweep=16)
@pytest.mark.parametrize("name", WITH_TOLERANCE)
def test_a_right_answer_stays_far_below_the_allowed_error(name, monkeypatch):
    exercise, found, needed = EXERCISES[name], compare.differences, []

    def differences(got, expected, allowed, unwritten):
        result = found(got, expected, allowed, unwritten)
        assert not result.wrong.any()
        allowed = np.broadcast_to(allowed, result.miss.shape)
        needed.append(float(np.max(result.miss[allowed > 0] / allowed[allowed > 0], initial=0.0)))
        return result

    monkeypatch.setattr(compare, "differences", differences)
    with numba_on_cpu():
        solution = exercise_files.solution(name)
        answer = adopted(solution.run(solution.answer, f"<{name}>"))
        for seed in range(SEEDS):
            for case in draw_cases(exercise, seed):
                assert compare.compare_attempt(exercise, run.run_answer(exercise, answer, case)).good, (
                    f"seed {seed}, {case.size}, {case.where}")
    assert max(needed) <= MOST
