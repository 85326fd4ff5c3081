"""One run of an answer: in place where that is promised, and results that are as good as the reference's."""

import numpy as np
import pytest

from labkit import cuda
from labkit.course.check import draw, run
from labkit.course.check.compare import compare_attempt
from labkit.course.check.diagnose.outputs import describe_output
from labkit.course.exercises import FunctionExercise, KernelExercise, Reach
from labkit.course.exercises.domains import in_place

pytestmark = pytest.mark.cpu_device


@cuda.jit
def once(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * 3


@cuda.jit
def reads_again(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]
        out[i] += x[i]


TRIPLED = KernelExercise(name="tripled", reference=lambda x: x * 3, shape=lambda n: (n,), sizes=({"n": 3}, {"n": 40}),
                         launch=lambda n: (2, 32), inputs=lambda rng, n: (rng.standard_normal(n, np.float32),),
                         tolerance=lambda x: 1e-5, domain=(in_place(0),), wrong={"a": once, "b": reads_again})


def tried(exercise, answer, case):
    return compare_attempt(exercise, run.run_answer(exercise, answer, case))


def test_an_answer_that_reads_its_input_after_the_store_is_wrong_in_place_alone():
    drawn = draw.draw_cases(TRIPLED, 3)
    assert all(tried(TRIPLED, once, case).good for case in drawn)
    failed = [case for case in drawn if not tried(TRIPLED, reads_again, case).good]
    assert [case.where for case in failed] == ["the output is input number 1, in place"]
    report, _, out = run.observed(TRIPLED, reads_again, failed[0])
    assert not report.races
    assert not np.allclose(out, failed[0].expected)


ANY_ORDER = FunctionExercise(name="any_order", reference=np.sort, inputs=lambda rng, n: (rng.standard_normal(n),),
                             sizes=({"n": 2}, {"n": 9}), tolerance=lambda x: 1e-6,
                             alike=lambda result, x: np.sort(result), domain="It is made for a test, and small.",
                             wrong={"a": lambda x: x + 1, "b": lambda x: 2 * x})


def test_a_result_that_is_as_good_as_the_references_is_right():
    case = draw.draw_cases(ANY_ORDER, 3)[1]
    assert tried(ANY_ORDER, lambda x: x[::-1], case).good
    assert not tried(ANY_ORDER, lambda x: x + 1, case).good


def _called_until_enough(answer, expected, x):
    """A judge: the answer is called again and again, and its numbers must reach the expected sum."""
    total = sum(answer(each) for each in x)
    return None if total >= expected[0] else f"It reaches {total:.0f} of {expected[0]:.0f}."


REACHES = FunctionExercise(name="reaches", reference=lambda x: np.array([x.sum()]), judge=_called_until_enough,
                           inputs=lambda rng, n: (np.arange(n) + 1.0,), sizes=({"n": 2}, {"n": 4}),
                           domain=(Reach("all are 1", lambda rng, x: (np.ones_like(x),), {"n": 3}),),
                           wrong={"a": lambda each: 0.0, "b": lambda each: each / 2})


def test_an_answer_that_is_called_by_something_larger_is_judged_by_what_comes_of_it():
    drawn = draw.draw_cases(REACHES, 3)
    assert all(tried(REACHES, lambda each: 2 * each, case).good for case in drawn)
    seen = [tried(REACHES, lambda each: each / 2, case) for case in drawn]
    assert [attempt.kind for attempt in seen] == ["demand"] * len(drawn)
    assert describe_output(REACHES, seen[0]).details == ("It reaches 2 of 3.",)
    assert describe_output(REACHES, seen[-1]).details == ("It reaches 2 of 3.", "In this case all are 1.")
    raised = tried(REACHES, lambda each: 1 / 0, drawn[0])
    assert raised.kind == "raised"


def test_a_judge_is_for_a_function_that_is_no_launcher():
    with pytest.raises(ValueError, match="judge is for a function that returns its result"):
        FunctionExercise(name="both", reference=np.sort, judge=_called_until_enough, shape=lambda n: (n,),
                         inputs=lambda rng, n: (np.ones(n),), sizes=({"n": 2},), domain="It is made for a test.",
                         wrong={"a": np.sort, "b": np.sum})
