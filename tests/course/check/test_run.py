"""One run of an answer: in place where that is promised, and results that are as good as the reference's."""

import numpy as np
import pytest

from labkit import cuda
from labkit.course.check import cases, run
from labkit.course.exercises import FunctionExercise, KernelExercise
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


def test_an_answer_that_reads_its_input_after_the_store_is_wrong_in_place_alone():
    drawn = cases.draw_cases(TRIPLED, 3)
    assert all(run.run_once(TRIPLED, once, case).good for case in drawn)
    failed = [case for case in drawn if not run.run_once(TRIPLED, reads_again, case).good]
    assert [case.where for case in failed] == ["the output is input number 1, in place"]
    report, _, out = run.observed(TRIPLED, reads_again, failed[0])
    assert not report.races
    assert not np.allclose(out, failed[0].expected)


ANY_ORDER = FunctionExercise(name="any_order", reference=np.sort, inputs=lambda rng, n: (rng.standard_normal(n),),
                             sizes=({"n": 2}, {"n": 9}), tolerance=lambda x: 1e-6,
                             alike=lambda result, x: np.sort(result), domain="It is made for a test, and small.",
                             wrong={"a": lambda x: x + 1, "b": lambda x: 2 * x})


def test_a_result_that_is_as_good_as_the_references_is_right():
    case = cases.draw_cases(ANY_ORDER, 3)[1]
    assert run.run_once(ANY_ORDER, lambda x: x[::-1], case).good
    assert not run.run_once(ANY_ORDER, lambda x: x + 1, case).good
