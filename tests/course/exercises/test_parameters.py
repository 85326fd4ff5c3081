"""Every parameter of an exercise changes its result, and check varies it: an answer that ignores one does not pass."""

from dataclasses import replace

import numpy as np
import pytest

from labkit.course import exercises
from labkit.course.check import examine
from labkit.course.check.cases import draw_cases
from labkit.course.exercises.domains import any_angles, parameter
from labkit.kernels.agree import differences

pytestmark = pytest.mark.cpu_device
SEED, OTHER = 5, 6
COMPUTED = {name: each for name, each in exercises.load().items() if each.kind != "predict"}


def is_float(value) -> bool:
    return isinstance(value, (float, np.floating))


def first_inputs(exercise) -> tuple:
    inputs = exercise.inputs(np.random.default_rng(SEED), **exercise.sizes[0])
    return inputs if isinstance(inputs, (tuple, list)) else (inputs,)


WITH_A_FLOAT = [name for name, each in COMPUTED.items() if any(map(is_float, first_inputs(each)))]


def bound_floats(cases) -> list[int]:
    """The numbers of the scalars that have one value wherever the arrays have the same shapes: an answer may compute
    them, or write them down, and never read the parameter."""
    found = []
    for number, value in enumerate(cases[0].inputs):
        if is_float(value):
            seen = {}
            for case in cases:
                shapes = tuple(np.shape(each) for each in case.inputs)
                seen.setdefault(shapes, set()).add(float(case.inputs[number]))
            found += [number] * all(len(values) == 1 for values in seen.values())
    return found


@pytest.mark.parametrize("name", WITH_A_FLOAT)
def test_a_scalar_is_no_function_of_the_shapes(name):
    cases = draw_cases(COMPUTED[name], SEED)
    assert not bound_floats(cases), f"{name}: add domain=(..., *parameter(number, name, 1, ...))"
    if name not in ("keep_likeliest", "choose_next"):  # a share has no neutral value that is of use
        for number, value in enumerate(cases[0].inputs):
            assert not is_float(value) or {0.0, 1.0} & {float(case.inputs[number]) for case in cases}


def test_the_lint_finds_a_scalar_that_is_bound():
    saxpy = COMPUTED["saxpy"]
    fixed = replace(saxpy, domain="There are none here.", random_size=None,
                    inputs=lambda rng, n: (np.float32(1.5), *saxpy.inputs(rng, n)[1:]))
    assert bound_floats(draw_cases(fixed, SEED)) == [0]


def inert(exercise, numbers) -> list[int]:
    """Of the inputs of these numbers those that never change the result: in each case they take what they have at
    another seed, and in the case after."""
    cases, others = draw_cases(exercise, SEED), draw_cases(exercise, OTHER)
    left = list(numbers)
    for case in sorted(cases, key=lambda case: case.expected.size):
        same = [other for other in others if other.size == case.size]
        for number in list(left):
            if any(_changes(exercise, case, number, other.inputs[number]) for other in same):
                left.remove(number)
        if not left:
            break
    return left


def _changes(exercise, case, number, value) -> bool:
    if np.shape(value) != np.shape(case.inputs[number]):
        return False
    inputs = tuple(value if at == number else given for at, given in enumerate(case.inputs))
    try:
        result = np.asarray(exercise.reference(*inputs))
    except Exception:  # what does not fit the other inputs changes more than the result
        return True
    if result.shape != case.expected.shape or result.dtype.kind not in "biufc":
        return True
    return bool(differences(result, case.expected, case.allowed, np.zeros(result.shape, bool)).wrong.any())


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [name for name, each in COMPUTED.items() if not getattr(each, "judge", None)])
def test_every_input_changes_the_result(name):
    exercise = COMPUTED[name]
    inputs = first_inputs(exercise)
    arrays = [number for number, value in enumerate(inputs) if np.ndim(value) or is_float(value)]
    assert not inert(exercise, arrays), f"{name}: these inputs never change the result"


def test_the_lint_finds_an_input_that_changes_nothing():
    ignoring = replace(COMPUTED["saxpy"], reference=lambda a, x, y: 2.0 * y, tolerance=None,
                       domain="There are none here.")
    assert inert(ignoring, [0, 1, 2]) == [0, 1]


def test_a_parameter_has_each_of_its_values_and_a_table_any_angles():
    rng = np.random.default_rng(1)
    values = [each.turn(rng, "x", np.float32(3)) for each in parameter(1, "scale", 1, 0.5)]
    assert [value for _, value in values] == [1, 0.5] and isinstance(values[0][1], np.float32)
    table, = any_angles(0).turn(rng, np.zeros((9, 8), np.float32))
    assert np.allclose(table[:, :4] ** 2 + table[:, 4:] ** 2, 1, atol=1e-6) and (table[:, :4] < 0).any()


def saxpy(a, x, y):
    return x + y


def test_a_parameter_that_is_never_read_is_named():
    exercise = exercises.FunctionExercise(
        name="made_here", reference=lambda a, x, y: a * x + y, sizes=({"n": 4}, {"n": 9}),
        inputs=lambda rng, n: (np.float32(rng.uniform(2, 3)), rng.uniform(1, 2, n), rng.uniform(1, 2, n)),
        tolerance=lambda a, x, y: 1e-6, domain=parameter(0, "a", 1), wrong={"one": saxpy, "two": saxpy})
    assert "`a` is never used" in " ".join(examine(exercise, saxpy, seed=1).details)
