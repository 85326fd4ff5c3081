"""Wrong answers stated as edits of the right one."""

import inspect

import pytest

from labkit.course import exercise_files, exercises
from labkit.course.check import examine
from labkit.course.exercises import Edit
from labkit.course.exercises.edits import WrongAnswers
from tests import made_up_exercises

ANSWER = """\
@cuda.jit
def add(a, out):
    # The guard.
    i = cuda.grid(1)
    if i < out.size:  # not beyond the end
        for k in range(3):
            out[i] += a[i, k]
    cuda.syncthreads()
    out[i] *= 2
    cuda.syncthreads()
"""


def edited(*texts):
    """The lines that an edit changes, new ones only."""
    before = Edit("i = cuda.grid(1)", "i = cuda.grid(1)").apply(ANSWER).split("\n")
    return [line for line in Edit(*texts).apply(ANSWER).split("\n") if line not in before]


def test_part_of_a_line_or_whole_lines_are_replaced_and_keep_their_indentation():
    assert edited("range(3)", "range(2)") == ["        for k in range(2):"]
    assert edited("out[i] += a[i, k]", "out[i] = a[i, k]\nout[i] += 0") == [
        "            out[i] = a[i, k]", "            out[i] += 0"]
    assert edited("if i < out.size:\n    for k in range(3):\n        out[i] += a[i, k]", "out[i] = a[i, 0]") == [
        "    out[i] = a[i, 0]"]
    assert edited("range(3)", "range(2)", "*= 2", "*= 3") == ["        for k in range(2):", "    out[i] *= 3"]


def test_nothing_deletes():
    lines = Edit("out[i] *= 2", "").apply(ANSWER).split("\n")
    assert lines[-2:] == ["    cuda.syncthreads()"] * 2
    assert Edit("cuda.syncthreads()\nout[i] *= 2", "out[i] *= 2").apply(ANSWER).count("syncthreads") == 1


@pytest.mark.parametrize(("old", "times"), [("cuda.syncthreads()", 2), ("out[i] *= 3", 0), ("not beyond the end", 0),
                                            ("if i < out.size:\n    out[i] *= 2", 0),
                                            ("    out[i] += a[i, k]\ncuda.syncthreads()", 0)])
def test_an_edit_applies_exactly_once(old, times):
    with pytest.raises(ValueError, match=f"must stand in the answer exactly once, and stands there {times} times"):
        Edit(old, "").apply(ANSWER)


@pytest.mark.parametrize("texts", [(), ("old",), ("", "new"), ("a", "b", "c")])
def test_an_edit_takes_pairs(texts):
    with pytest.raises(ValueError, match="takes pairs"):
        Edit(*texts)


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """The folder of the made-up exercises."""
    return made_up_exercises.copy_to(tmp_path, monkeypatch)


def test_the_answer_is_found_by_the_exercises_name(made_up):
    solution = exercise_files.solution("scale_vector")
    assert solution.path == made_up / "scale_vector.py" and "SOLUTION" not in solution.answer
    assert solution.above == ("from labkit import check, cuda", "from labkit import cuda")
    assert solution.run(solution.answer, "<right>").__name__ == "scale_vector"
    with pytest.raises(KeyError, match="scale_vektor"):
        exercise_files.solution("scale_vektor")


@pytest.mark.cpu_device
def test_an_edited_kernel_is_rejected_by_name_and_its_lines_are_found(made_up):
    from dataclasses import replace

    wrong = {"it adds": Edit("a[i] * s", "a[i] + s"), "no guard": Edit("if i < out.size:", "if True:")}
    exercise = replace(exercises.find("scale_vector"), wrong=wrong)
    kernel = exercise.wrong["it adds"]
    assert kernel is exercise.wrong["it adds"] and "out[i] = a[i] + s" in inspect.getsource(kernel.py_func)
    verdict = examine(exercise, kernel)
    assert verdict.kind == "wrong_result" and verdict.mistake == "it adds"
    verdict = examine(exercise, exercise.wrong["no guard"])
    assert verdict.mistake == "no guard" and any("`out[i] = a[i] * s`" in text for text in verdict.details)


def test_an_edit_that_does_not_apply_names_its_exercise_mistake_and_file(made_up):
    wrong = WrongAnswers("scale_vector", {"it adds": Edit("a[i] / s", "a[i] + s")})
    with pytest.raises(ValueError, match="exercise 'scale_vector', 'it adds', .*/scale_vector.py: 'a.i. / s' must"):
        wrong["it adds"]
    (fault,) = WrongAnswers("scale_vector", {**wrong.declared, "twice": Edit("a[i] * s", "a[i] * s * s")}).faults()
    assert fault.startswith("exercise 'scale_vector', 'it adds', ")


@pytest.mark.parametrize(("name", "answer", "left"), [
    ("scale_vector", "    if i < out.size:\n        out[i] = a[i] * s\n", "    # Your code here\n    pass\n"),
    ("idle_threads", "idle, blocks = 24, 8\n", ""),
])
def test_without_the_answer_the_other_wrong_answers_remain(made_up, name, answer, left):
    path = made_up / f"{name}.py"
    text = path.read_text()
    assert f"SOLUTION\n{answer}" in text
    path.write_text(text.replace(answer, left, 1))
    assert exercise_files.solution(name) is None
    wrong = WrongAnswers(name, {"it adds": Edit("a[i] / s", "a[i] + s"), "nothing": print})
    assert dict(wrong) == {"nothing": print} and len(wrong) == 1


@pytest.mark.sweep(every=True)
def test_every_edit_applies():
    for exercise in exercises.load().values():
        for mistake in exercise.wrong:
            assert exercise.wrong[mistake] is not None
