"""What other inputs show about a wrong answer: only what is so, and enough to find the mistake."""

import numpy as np
import pytest

from labkit import cuda
from labkit.course import answer_cells
from labkit.course.check import examine
from labkit.course.check.diagnose import probes
from labkit.course.check.draw import draw_cases
from labkit.course.exercises import KernelExercise
from tests.course.check.written import function_exercise

pytestmark = pytest.mark.cpu_device


def uniform(rng, *shape):
    return rng.uniform(0.5, 1.5, shape).astype(np.float32)


@cuda.jit
def nothing(a, b, out):
    pass


SCALED = KernelExercise(
    name="scaled", reference=lambda a, b: a.astype(np.float64) * b + b, inputs=lambda rng, R, C: (
        uniform(rng, R, C), uniform(rng, C)), shape=lambda R, C: (R, C), sizes=({"R": 2, "C": 3}, {"R": 5, "C": 4}),
    launch=lambda R, C: ((1, 1), (8, 8)), tolerance=lambda *given: 1e-5, wrong={"a": nothing, "b": nothing},
    domain="Made up, for a test.", random_size=lambda rng: {"R": 5, "C": 4})
KERNEL = """
from numba import float32
from labkit import cuda
@cuda.jit
def scaled(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = {value}
"""


def details(value: str, exercise=SCALED):
    answer = answer_cells.run(KERNEL.format(value=value), "scaled", f"<{value}>")
    verdict = examine(exercise, answer, seed=5)
    assert not verdict.passed
    return " ".join(verdict.details)


@pytest.mark.parametrize("value, sentence", [
    ("a[row, col] * b[0] + b[col]", "depends on `b[0]`, but should not."),
    ("a[row, 0] * b[col] + b[col]", "depends on `a[0, 0]`, but should not. It should depend on `a[0, 1]`"),
    ("b[col]", "The result is what you would get if `a` were 0 everywhere."),
    ("-a[row, col] * b[col] + b[col]", "if `a` had the opposite sign."),
    ("a[row, col] * a[row, col] * b[col] + b[col]", "if `a` were replaced by its square."),
])
def test_what_the_result_is_made_from_and_what_it_is_as_if(value, sentence):
    assert sentence in details(value)


def test_a_constant_multiple_has_its_formula():
    text = details("a[row, col] * b[col] * float32(out.shape[1] - 1) / float32(out.shape[1]) + b[col]")
    assert "The contribution of `a` to the result is a multiple of what it should be: 0.6667 times at R=2, C=3" in text
    assert "which is (C - 1) / C" in text


def test_an_input_without_which_it_is_right_is_named_only_if_all_else_counts():
    def verdict_on(answer, reference):
        exercise = function_exercise("of_two", reference, lambda rng, n: (uniform(rng, n), uniform(rng, n)),
                                     ({"n": 5}, {"n": 9}), tolerance=lambda *given: 1e-6)
        return " ".join(examine(exercise, answer, seed=5).details)

    text = verdict_on(lambda x, y: np.tanh(x + y * y * 0.3 + y ** 3), lambda x, y: np.tanh(x + y))
    assert "the result is right if `y` is 0 everywhere: look at how `y` is used." in text
    text = verdict_on(lambda x, y: x * np.sin(y) + np.cos(x) * y, lambda x, y: x * np.tanh(y))
    assert "the result is right if" not in text  # 0 times anything is 0


def test_runs_are_limited():
    answer = answer_cells.run(KERNEL.format(value="a[row, 0]"), "scaled", "<few>")
    case = draw_cases(SCALED, 5)[0]
    probe = probes._Probe(SCALED, answer, case, *probes.inputs_as_given(SCALED, answer, case), runs_left=3)
    assert probe.wrong.any() and probes._made_from(probe) == ()
    assert probe.names == ["a", "b"] and probe.shapes == [(2, 3), (3,)]


def test_few_inputs_are_shown():
    exercise = function_exercise("shown", lambda x, k, s: x + k, lambda rng, n: (np.arange(n), 3, ("a", "b")),
                                 ({"n": 2},), shape=lambda n: (n,))
    case = draw_cases(exercise, 5)[0]
    text = "The inputs: `x` = [0, 1], `k` = 3, `s` = ('a', 'b')."
    assert probes._shown(exercise, case, ["x", "k", "s"]) == (text,)
    assert probes._shown(exercise, case, ["x", "k", ""]) == ()


def test_a_nan_that_should_not_count_is_found():
    def inputs(rng, n):
        x = uniform(rng, n, 6)
        x[:, 4:] = np.nan
        return (x,)

    exercise = function_exercise("part", lambda x: x[:, :4].sum(1), inputs, ({"n": 2}, {"n": 3}),
                                 tolerance=lambda *given: 1e-6)
    text = " ".join(examine(exercise, lambda x: x[:, :5].sum(1), seed=5).details)
    assert "Element 0 (at n=2) depends on `x[0, 4]`, which holds NaN, but should not." in text


def test_values_that_decide_are_named():
    def inputs(rng, n):
        x = uniform(rng, n, 3)
        x[0] -= 150
        return (x,)

    exercise = function_exercise("logs", lambda x: np.log(np.exp(x.astype(np.float64)).sum(1)), inputs,
                                 ({"n": 4}, {"n": 5}), tolerance=lambda *given: 1e-4)

    def logs(x):
        with np.errstate(divide="ignore"):
            return np.log(np.exp(x).astype(np.float32).sum(1))

    assert "the largest value in a row of `x` is -1" in " ".join(examine(exercise, logs, seed=5).details)


def test_what_is_set_and_never_read_is_named():
    text = details("a[row, 0]")
    assert "`b` is never used, but the result should depend on it." in text
