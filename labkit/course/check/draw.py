"""The cases of an exercise: its sizes, each with inputs and truth, and the properties that its domain names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit._common.tables import size_text
from labkit.course.exercises import Exercise, Reach


@dataclass(frozen=True, eq=False)
class Case:
    """One size with its inputs and the truth."""

    size: dict
    inputs: tuple
    expected: np.ndarray
    allowed: np.ndarray
    start: np.ndarray | None  # what the output holds before the launch; None is poison
    where: str = ""  # the property of the exercise's domain that these inputs reach
    in_place: int | None = None  # the number of the input that is the output as well; `start` holds it, too


def draw_cases(exercise: Exercise, seed: int) -> list[Case]:
    """The exercise's sizes and a random one, smallest output first; then one for each property of its domain."""
    rng = np.random.default_rng([seed, 0])
    extra = exercise.random_size(rng) if exercise.random_size else _near(rng, exercise.sizes)
    sizes = list(exercise.sizes) + [extra] * (extra not in exercise.sizes)
    cases = [_case(exercise, size, np.random.default_rng([seed, k])) for k, size in enumerate(sizes, 1)]
    return sorted(cases, key=lambda case: (case.expected.size, _extent(case.size))) + _reached(exercise, seed)


def _reached(exercise: Exercise, seed: int) -> list[Case]:
    """A small case for each property of the domain."""
    reaches = () if isinstance(exercise.domain, str) else exercise.domain
    return [_case(exercise, dict(reach.at or _small(exercise)), np.random.default_rng([seed, 1000 + k]), reach)
            for k, reach in enumerate(reaches)]


def _small(exercise: Exercise) -> dict:
    """A size from the middle of the exercise's, with no axis of length 1 if there is one."""
    wide = [size for size in exercise.sizes if all(v > 1 for v in size.values() if isinstance(v, int))]
    ranked = sorted(wide or exercise.sizes, key=_extent)
    return ranked[(len(ranked) - 1) // 2]


def _extent(size: dict) -> int:
    return sum(value for value in size.values() if isinstance(value, int))


def _near(rng, sizes) -> dict:
    """One of the sizes, a little longer on each axis that is longer than 1."""
    longer = [size for size in sizes if _extent(size) > len(size)] or sizes
    base = longer[int(rng.integers(len(longer)))]
    return {k: v + int(rng.integers(1, 8)) if isinstance(v, int) and v > 1 else v for k, v in base.items()}


def _case(exercise: Exercise, size: dict, rng, reach: Reach | None = None) -> Case:
    inputs = exercise.inputs(rng, **size)
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if reach is not None:
        inputs = tuple(reach.turn(rng, *inputs))
    expected = np.asarray(exercise.reference(*inputs))
    if exercise.shape is not None and expected.shape != tuple(exercise.shape(**size)):
        raise ValueError(f"exercise {exercise.name!r} at {size_text(size)}: shape gives {exercise.shape(**size)}, "
                         f"and the reference has {expected.shape}")
    allowed = 0.0
    if exercise.tolerance is not None:
        wide = (v.astype(np.float64) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for v in inputs)
        allowed = exercise.tolerance(*wide)
    start = None if exercise.start is None else np.asarray(exercise.start(*inputs), exercise.dtype)
    input_index = reach.in_place if reach else None
    if input_index is not None:
        start = inputs[input_index]
    return Case(size, inputs, expected, np.broadcast_to(allowed, expected.shape), start, reach.words if reach else "",
                input_index)


def threads_of(exercise: Exercise, case: Case) -> int:
    grid, block = exercise.launch(**case.size)[:2]
    return int(np.prod(grid) * np.prod(block))


def arguments_for(exercise: Exercise, case: Case, inputs: tuple, out) -> tuple:
    """What the answer is given in this case: copies of its inputs, one of which the output may be."""
    values = tuple(out if index == case.in_place else value for index, value in enumerate(inputs))
    return arguments_of(exercise, values, out, case.size)


def arguments_of(exercise: Exercise, inputs: tuple, out, size: dict) -> tuple:
    return (*inputs, out) if exercise.arguments is None else tuple(exercise.arguments(inputs, out, size))
