"""Every parameter of an exercise changes its result, and check varies it: an answer that ignores one does not pass."""

from dataclasses import replace

import numpy as np
import pytest

from labkit.course import exercises, registry, workbooks
from labkit.course.check import examine
from labkit.course.check.diagnose.unused import never_used
from labkit.course.check.draw import draw_cases
from labkit.course.exercises.domains import any_angles, parameter
from labkit.course.exercises.parameters import SEED, bound_floats, faults, first_inputs, inert, is_float

pytestmark = pytest.mark.cpu_device
COMPUTED = {name: each for name, each in exercises.load().items() if each.kind != "predict"}
WITH_A_FLOAT = [name for name, each in COMPUTED.items() if any(map(is_float, first_inputs(each)))]


@pytest.mark.parametrize("name", WITH_A_FLOAT)
def test_a_scalar_is_no_function_of_the_shapes(name):
    assert not bound_floats(COMPUTED[name])
    cases = draw_cases(COMPUTED[name], SEED)
    if name not in ("keep_likeliest", "choose_next"):  # a share has no neutral value that is of use
        for number, value in enumerate(cases[0].inputs):
            assert not is_float(value) or {0.0, 1.0} & {float(case.inputs[number]) for case in cases}


def test_the_lint_finds_a_scalar_that_is_bound():
    saxpy = COMPUTED["saxpy"]
    fixed = replace(saxpy, domain="There are none here.", random_size=None,
                    inputs=lambda rng, n: (np.float32(1.5), *saxpy.inputs(rng, n)[1:]))
    assert bound_floats(fixed) == [0]


@pytest.mark.sampled(12, sweep=200)
@pytest.mark.parametrize("name", [name for name, each in COMPUTED.items() if not getattr(each, "judge", None)])
def test_every_input_changes_the_result(name):
    assert faults(COMPUTED[name]) == []


def test_the_lint_finds_an_input_that_changes_nothing():
    ignoring = replace(COMPUTED["saxpy"], reference=lambda a, x, y: 2.0 * y, tolerance=None,
                       domain="There are none here.")
    assert inert(ignoring, [0, 1, 2]) == [0, 1]


TEACHERS = '''"""It ignores x"""

HINTS = ("a", "b", "c")
POINTS = 1

# %%
ignores_x = None
### BEGIN SOLUTION
ignores_x = 1
### END SOLUTION

# %% [check]
from dataclasses import replace

from labkit.course.exercises import find

EXERCISE = replace(find("saxpy"), name="ignores_x", reference=lambda a, x, y: 2.0 * y,
                   wrong={"one": print, "two": print})
'''


def test_build_check_refuses_it_in_a_teachers_own_registry_too(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text('FIRST_CELL = "from labkit import check"\n')
    (tmp_path / "mine" / "ignores_x.py").write_text(TEACHERS)
    monkeypatch.setenv("LABKIT_EXERCISES", str(tmp_path))
    course = registry.load()
    found = workbooks.faults(course, course.pick(["01"]))
    assert [sentence.split(", and")[0] for sentence in found] == [
        f"exercise 'ignores_x': input {number} never changes the result" for number in (0, 1)]


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


def never_reads_it(a, x, y):
    a = 1.0
    return a * x + y


def reads_it_in_a_branch(a, x, y):
    if len(x) > 100:
        a = 1.0
    return a * y


def writes_it_in_both_branches(a, x, y):
    if len(x) > 3:
        a = 1.0
        x = 2 * x
    else:
        a = 2.0
    return a * x


def adds_to_it(a, x, y):
    a += 1
    return x + y


@pytest.mark.parametrize(("answer", "unused"), [(never_reads_it, ["a"]), (reads_it_in_a_branch, []),
                                                (writes_it_in_both_branches, ["a", "y"]), (adds_to_it, [])])
def test_a_parameter_that_is_replaced_before_it_is_read_is_not_used(answer, unused):
    exercise = exercises.FunctionExercise(
        name="made_here", reference=lambda a, x, y: a * x + y, sizes=({"n": 4}, {"n": 9}),
        inputs=lambda rng, n: (np.float32(rng.uniform(2, 3)), rng.uniform(1, 2, n), rng.uniform(1, 2, n)),
        tolerance=lambda a, x, y: 1e-6, domain=parameter(0, "a", 1), wrong={"one": saxpy, "two": saxpy})
    found = never_used(exercise, answer, draw_cases(exercise, SEED)[0])
    assert [sentence.split("`")[1] for sentence in found] == unused
