"""Without the compiler the check says what to install, and the answer does not pass."""

import pytest

from labkit.course import exercise_files, exercises
from labkit.course.check import examine
from labkit.device import compiling


@pytest.mark.sweep(every=True)
def test_without_the_compiler_the_check_does_not_pass(monkeypatch):
    exercise = exercises.find("room_for_two")
    answer = exercise_files.solution("room_for_two").run("from numba import float32\n" + exercise_files.solution(
        "room_for_two").answer, "<answer>")
    monkeypatch.setattr(compiling, "ptxas", lambda: None)
    monkeypatch.setattr("sys.platform", "linux")
    verdict = examine(exercise, answer)
    assert verdict.kind == "demand" and "pip install -e '.[fits]'" in " ".join(str(verdict).split())
