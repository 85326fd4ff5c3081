"""What inputs may be like: the properties that an exercise's text promises, and inputs that reach them.

    domain=of(0, EQUAL, ONE_FAR_ABOVE, FAR_BELOW_ZERO)       # of argument 0
    domain=(*of((0, 1), ZEROS), Reach("a single key is seen", lambda rng, x, lengths: (x, np.ones_like(lengths))))
    domain="Its only input is a length, and `sizes` has the awkward ones."

check adds a small case for each, to those of `sizes`. What a property says of a row is meant of the last axis.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from labkit.kernels.dtypes import bfloat16_of

FAR = 10_000.0  # exp of it is beyond float64, too; and float16 still holds it


@dataclass(frozen=True)
class Reach:
    """Inputs that reach a property of the domain. `words` follow "where" in a verdict."""

    words: str
    turn: Callable  # (rng, *inputs) -> inputs of the same shapes
    at: Mapping | None = None  # the size; left out, a small one of the exercise's
    in_place: int | None = None  # the number of the input that is the output as well


@dataclass(frozen=True)
class Property:
    """What one array may be like."""

    words: str
    values: Callable  # (rng, array) -> an array of this shape

    def applied_to(self, array: np.ndarray, rng) -> np.ndarray:
        return np.asarray(self.values(rng, array)).astype(array.dtype)


def of(arguments, *properties: Property, at: Mapping | None = None) -> tuple[Reach, ...]:
    """A Reach for each property, of the arguments of these numbers: of(0, ...), or of((0, 2), ...) for both at once."""
    numbers = (arguments,) if isinstance(arguments, int) else tuple(arguments)
    return tuple(Reach(each.words, functools.partial(_applied, each, numbers), at) for each in properties)


def of_bfloat16(arguments: tuple, *properties: Property) -> tuple[Reach, ...]:
    """As `of`, for arguments that are arrays of uint16 and hold bfloat16."""
    return tuple(Reach(each.words, functools.partial(_rounded, each, arguments)) for each in properties)


def at(words: str, **size) -> Reach:
    """Ordinary inputs at a size that has the property itself."""
    return Reach(words, lambda rng, *inputs: inputs, size)


def parameter(number: int, name: str, *values: float) -> tuple[Reach, ...]:
    """Ordinary inputs, and a scalar, input `number`, has each of these values. Its neutral one is among them, with
    which an answer that leaves it out would be right."""

    def replaced(value, rng, *inputs):
        return tuple(type(given)(value) if at == number else given for at, given in enumerate(inputs))

    return tuple(Reach(f"`{name}` is {value:g}", functools.partial(replaced, value)) for value in values)


def any_angles(number: int, at: Mapping | None = None) -> Reach:
    """Give input `number`, a table of cosines and then sines in each row, angles of any size. Those of a real table
    are small for most pairs: cosines are near 1, and swapped values hardly show."""
    def replaced(rng, *inputs):
        rows, columns = inputs[number].shape
        angles = rng.uniform(-np.pi, np.pi, (rows, columns // 2))
        table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(inputs[number].dtype)
        return tuple(table if place == number else given for place, given in enumerate(inputs))

    return Reach("the table holds angles of any size", replaced, at)


def in_place(number: int) -> Reach:
    """Ordinary inputs, and input `number` is the output as well."""
    return Reach(f"the output is input number {number + 1}, in place", lambda rng, *inputs: inputs, in_place=number)


def _applied(each: Property, numbers, rng, *inputs) -> tuple:
    return tuple(each.applied_to(value, rng) if number in numbers else value for number, value in enumerate(inputs))


def _rounded(each: Property, numbers, rng, *inputs) -> tuple:
    return tuple(bfloat16_of(each.values(rng, value)) if number in numbers else value
                 for number, value in enumerate(inputs))


# --- The properties --------------------------------------------------------------------------------------------------


def _rows(shape: tuple) -> tuple:
    return (*shape[:-1], 1)


def _one_far(distance):
    def values(rng, x):
        place = np.arange(x.shape[-1]) == rng.integers(0, x.shape[-1], _rows(x.shape))
        return np.where(place, distance, rng.uniform(-1, 1, x.shape))

    return values


def _equal(rng, x):
    """One number for each row; among them, or as the only one, a number far from 0."""
    numbers = rng.permutation([FAR, -FAR, 1.5, -0.25])
    if np.prod(_rows(x.shape)) == 1:
        numbers = rng.permutation([FAR, -FAR])
    return np.broadcast_to(np.resize(numbers, _rows(x.shape)), x.shape)


def _huge_and_tiny(rng, x):
    return np.copysign(10.0 ** rng.uniform(-4, 4, x.shape), rng.uniform(-1, 1, x.shape))


def _near(center):
    """Within 4 of it, no two equal."""
    return lambda rng, x: center - 4 + 8 * rng.permutation(x.size).reshape(x.shape) / x.size


def _odd_beyond(base: int):
    """Odd integers beyond it, with the signs that they had."""
    return lambda rng, x: np.where(x < 0, -1, 1) * (base + 1 + 2 * rng.integers(0, 1000, x.shape))


def _moved(rng, x):
    """Numbers that arithmetic would change or lose, and that a copy keeps."""
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-45, 3.4e38, -3.4e38, 1.0]
    return np.resize(rng.permutation(special), x.size).reshape(x.shape)


EQUAL = Property("all elements of a row are equal", _equal)
ONE_FAR_ABOVE = Property("one element of each row is far above the others", _one_far(FAR))
ONE_FAR_BELOW = Property("one element of each row is far below the others", _one_far(-FAR))
FAR_ABOVE_ZERO = Property("all elements are near 10,000", _near(FAR))
ABOVE_EXP = Property("all elements are near 200, whose exp fits in float64 but not in float32", _near(200.0))
FAR_BELOW_ZERO = Property("all elements are near -10,000", _near(-FAR))
NEGATIVE = Property("all elements are negative", lambda rng, x: -rng.uniform(0.5, 1.5, x.shape))
POSITIVE = Property("all elements are positive", lambda rng, x: rng.uniform(0.5, 1.5, x.shape))
HUGE_AND_TINY = Property("some elements are large and others are small", _huge_and_tiny)
ZEROS = Property("all elements are 0 or -0", lambda rng, x: np.copysign(0.0, rng.uniform(-1, 1, x.shape)))
LOWEST = Property("all elements are near the lowest float32", lambda rng, x: -3.4e38 * rng.uniform(0.9, 1, x.shape))
TIES = Property("many elements are equal", lambda rng, x: rng.integers(-2, 1, x.shape))
ODD_SUMS = Property("sums are odd and beyond 2**24, where float32 holds only even numbers", _odd_beyond(2**22))
ODD_INTEGERS = Property("elements are odd and beyond 2**24, where float32 holds only even numbers", _odd_beyond(2**25))
MOVED = Property("some elements are NaN, infinite, -0 or subnormal", _moved)

SUMMED = (HUGE_AND_TINY, ZEROS, NEGATIVE)  # of sums and products
EXPONENTIALS = (FAR_ABOVE_ZERO, ABOVE_EXP, FAR_BELOW_ZERO, ONE_FAR_ABOVE, ONE_FAR_BELOW, EQUAL)  # of softmax


def largest_at(column: int) -> Property:
    """A row whose largest element is number `column` of it, by far: a loop that steps over that one shows."""
    def values(rng, array):
        array = array.copy()
        array[..., column] = FAR
        return array

    return Property(f"the largest element of a row is number {column}, counted from 0", values)


def _largest_apart(rng, array):
    rows = array.copy().reshape(-1, array.shape[-1])
    for row in range(len(rows)):
        rows[row, (rows.shape[1] // 2 + 11 * row) % rows.shape[1]] = FAR
    return rows.reshape(array.shape)


LARGEST_APART = Property("the largest element of each row is in a different column", _largest_apart)
