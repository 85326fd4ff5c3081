"""Does check vary every parameter of an exercise? One that never changes the result may be ignored by a wrong answer.

`labkit build --check` asks this of every exercise, those that LABKIT_EXERCISES names included; importing an exercise
does not, since it takes a few runs of the reference.
"""

from __future__ import annotations

import numpy as np

from labkit.course.check.draw import draw_cases
from labkit.course.exercises.kinds import ComputedExercise, Exercise
from labkit.kernels.agree import differences

SEED, OTHER = 5, 6


def faults(exercise: Exercise) -> list[str]:
    """Return the faults of the exercise's parameters, a sentence each."""
    if not isinstance(exercise, ComputedExercise) or getattr(exercise, "judge", None) is not None:
        return []
    inputs = first_inputs(exercise)
    looked_at = [number for number, value in enumerate(inputs) if np.ndim(value) or is_float(value)]
    bound = bound_floats(exercise)
    never = [number for number in inert(exercise, looked_at) if number not in bound]
    at = f"exercise {exercise.name!r}: input {{}}"
    return [*(f"{at.format(number)} is a scalar that has one value wherever the arrays have the same shapes, and an "
              f"answer may leave it out: add domain=(..., *parameter({number}, name, 1, ...))" for number in bound),
            *(f"{at.format(number)} never changes the result, and an answer may leave it out" for number in never)]


def is_float(value) -> bool:
    return isinstance(value, (float, np.floating))


def first_inputs(exercise: ComputedExercise) -> tuple:
    inputs = exercise.inputs(np.random.default_rng(SEED), **exercise.sizes[0])
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def bound_floats(exercise: ComputedExercise) -> list[int]:
    """The numbers of the scalars that have one value wherever the arrays have the same shapes: an answer may compute
    them, or write them down, and never read the parameter."""
    found, cases = [], draw_cases(exercise, SEED)
    for number, value in enumerate(cases[0].inputs):
        if is_float(value):
            seen: dict[tuple, set] = {}
            for case in cases:
                shapes = tuple(np.shape(each) for each in case.inputs)
                seen.setdefault(shapes, set()).add(float(case.inputs[number]))
            found += [number] * all(len(values) == 1 for values in seen.values())
    return found


def inert(exercise: ComputedExercise, numbers) -> list[int]:
    """Of the inputs of these numbers those that never change the result: in each case they take what they have at
    another seed."""
    cases, others = draw_cases(exercise, SEED), draw_cases(exercise, OTHER)
    left = list(numbers)
    for case in sorted(cases, key=lambda case: case.expected.size):
        same = [other for other in others if other.size == case.size]
        left = [number for number in left
                if not any(_changes(exercise, case, number, other.inputs[number]) for other in same)]
        if not left:
            break
    return left


def _changes(exercise: ComputedExercise, case, number: int, value) -> bool:
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
