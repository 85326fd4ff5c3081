"""What other inputs show about a wrong answer: which elements its result is made from, and what it is as if.

The answer is run again on the case that failed with one thing changed in the inputs, and so is the reference:

    which elements of the inputs a wrong element depends on, and on which it should
    whether the result is what it would be if an input were 0, 1, exchanged, transposed, shifted, one more or less
    whether it is right where one input is 0 everywhere

Every sentence says what was observed. Runs are counted, not timed: a verdict does not depend on the machine.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from labkit._common.tables import size_text
from labkit.course.check.compare import compare_attempt
from labkit.course.check.diagnose.outputs import SHOWN, written_out
from labkit.course.check.draw import Case, arguments_of, threads_of
from labkit.course.check.run import run_answer
from labkit.course.check.words import counted, show_index
from labkit.course.exercises import Exercise
from labkit.kernels.agree import differences, is_poison

MOST_RUNS = 500  # of the answer
MOST_THREADS = 20_000  # in all those runs together, by the hundred
MOST_ELEMENTS = 2_500  # of all inputs whose elements are looked at one by one
ONE_BY_ONE = 100  # elements that the result should depend on
CLEAR = 1e-3  # a smaller change of the truth may be lost in rounding


@dataclass
class _Probe:
    """One case, and the answer's runs on it with other inputs."""

    exercise: Exercise
    answer: object
    case: Case
    names: list[str]
    shapes: list[tuple]  # as the answer is given them
    runs_left: int = MOST_RUNS
    got: np.ndarray | None = None
    wrong: np.ndarray | None = None
    truth: np.ndarray | None = None
    complete: bool = field(default=True)  # whether every element that matters was looked at

    def __post_init__(self):
        self.got = self.result(self.case.inputs)
        self.truth = np.asarray(self.case.expected)
        if self.got is not None and self.got.shape == self.truth.shape:
            self.wrong = differences(self.got, self.truth, self.case.allowed, is_poison(self.got)).wrong

    def result(self, inputs: tuple) -> np.ndarray | None:
        """What the answer gives for these inputs; None where it fails, or no runs are left."""
        if self.runs_left <= 0:
            return None
        self.runs_left -= 1
        attempt = run_answer(self.exercise, self.answer, self._with(inputs))
        if attempt.error is not None:
            self.runs_left -= 20  # a stopped run takes long
        return compare_attempt(self.exercise, attempt).got

    def _with(self, inputs: tuple) -> Case:
        start = self.case.start
        if self.exercise.start is not None:
            start = np.asarray(self.exercise.start(*inputs), self.exercise.dtype)
        return replace(self.case, inputs=inputs, start=start)

    def reference(self, inputs: tuple) -> np.ndarray | None:
        """The truth for these inputs."""
        try:
            with np.errstate(all="ignore"):
                return np.asarray(self.exercise.reference(*[v.copy() if isinstance(v, np.ndarray) else v
                                                            for v in inputs]))
        except Exception:
            return None

    def right(self, inputs: tuple) -> bool:
        """Whether the answer is right for these inputs."""
        got, truth = self.result(inputs), self.reference(inputs)
        return got is not None and truth is not None and self.agree(got, truth, inputs)

    def agree(self, got, truth, inputs: tuple) -> bool:
        wide = (v.astype(np.float64) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for v in inputs)
        try:
            with np.errstate(all="ignore"):
                allowed = 0.0 if self.exercise.tolerance is None else self.exercise.tolerance(*wide)
        except Exception:  # these inputs are outside of the exercise's domain
            return False
        return got.shape == truth.shape and not differences(
            got, truth, np.broadcast_to(allowed, truth.shape), is_poison(got)).wrong.any()

    def changed(self, which: int, value) -> tuple:
        inputs = list(self.case.inputs)
        inputs[which] = value
        return tuple(inputs)


def probed(exercise: Exercise, answer, case: Case, later: list[Case]) -> tuple[str, ...]:
    """What other inputs show, in sentences; () where nothing does. later: cases after the failing one."""
    try:
        return _probed(exercise, answer, case, later)
    except Exception:  # an input that was changed may be outside of the exercise's domain, and the verdict stands
        return ()


def _probed(exercise: Exercise, answer, case: Case, later: list[Case]) -> tuple[str, ...]:
    if getattr(exercise, "judge", None) is not None or case.in_place is not None:
        return ()
    candidates = [case, *(one for one in later if not one.where and one.in_place is None)]
    small = [one for one in candidates if _cost(exercise, one) <= 1][:6]
    probes = (_Probe(exercise, answer, one, *inputs_as_given(exercise, answer, one)) for one in small)
    probes = [probe for probe in probes if probe.wrong is not None and probe.wrong.any()][:3]
    if not probes:
        return ()
    found = (*_as_if(probes), *_made_from(max(probes, key=_telling)))
    for look in (_off_by_one, _takes_nan, _factors, _right_without, _by_values):
        found = found or look(probes)
    return found or _shown(exercise, case, probes[0].names)


def _cost(exercise: Exercise, case: Case) -> float:
    """Over 1: too large to be run many times."""
    threads = threads_of(exercise, case) if exercise.kind == "kernel" else case.expected.size
    elements = sum(np.size(v) for v in case.inputs if isinstance(v, np.ndarray))
    return max(threads / MOST_THREADS, elements / MOST_ELEMENTS)


def _telling(probe: _Probe) -> tuple:
    """Rather a case with several elements, and a finite wrong one among them."""
    finite = probe.wrong & np.isfinite(probe.got.astype(np.float64)) & ~is_poison(probe.got)
    return bool(finite.any()), probe.truth.size > 1, -probe.truth.size


def inputs_as_given(exercise: Exercise, answer, case: Case) -> tuple[list[str], list[tuple]]:
    """What the answer calls its inputs, "" where it has no name for one, and the shapes that it gets them in."""
    try:
        parameters = list(inspect.signature(getattr(answer, "py_func", answer)).parameters)
    except (TypeError, ValueError):
        parameters = []
    values = case.inputs if exercise.shape is None else arguments_of(exercise, case.inputs, case.expected, case.size)
    names, shapes = [], []
    for value in case.inputs:
        places = [k for k, given in enumerate(values[: len(parameters)]) if _is_same(given, value)]
        names.append(parameters[places[0]] if len(places) == 1 else "")
        shapes.append(np.shape(values[places[0]]) if places else np.shape(value))
    return names, shapes


def _is_same(given, value) -> bool:
    return given is value or (isinstance(given, np.ndarray) and isinstance(value, np.ndarray) and given.size > 0
                              and given.size == value.size and np.shares_memory(given, value))


# --- Which elements a result is made from ----------------------------------------------------------------------------


def _made_from(probe: _Probe) -> tuple[str, ...]:
    """Of the first wrong element that is a number: the inputs' elements that it depends on, and should."""
    finite = probe.wrong & np.isfinite(probe.got.astype(np.float64)) & ~is_poison(probe.got)
    finite &= np.isfinite(probe.truth.astype(np.float64))
    if not finite.any() or probe.truth.dtype.kind not in "fiu":
        return ()
    element = _telling_element(probe, finite)
    sentences = []
    for which, value in enumerate(probe.case.inputs):
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size and probe.names[which]:
            sentences += _of_input(probe, which, element)
    return tuple(sorted(sentences, key=lambda text: ("It should depend" not in text, "does not" not in text))[:3])


def _telling_element(probe: _Probe, finite: np.ndarray) -> tuple:
    """The first of these whose truth depends on the inputs, which one that is hidden does not."""
    elements = [tuple(int(n) for n in index) for index in np.argwhere(finite)[:8]]
    elements.sort(key=lambda element: (probe.truth[element] == 0) + (probe.got[element] == 0))  # cut off at 0
    arrays = [k for k, value in enumerate(probe.case.inputs) if isinstance(value, np.ndarray) and value.size
              and value.dtype.kind == "f"]
    for element in elements:
        if any(_influence(probe, probe.reference, k, list(range(probe.case.inputs[k].size)), element, sign) > 0
               for k in arrays for sign in (1, -1)):
            return element
    return elements[0]


def _of_input(probe: _Probe, which: int, element: tuple) -> list[str]:
    value, name = probe.case.inputs[which], probe.names[which]
    needed, others = [], []
    for flat in range(value.size):
        amount = max(_influence(probe, probe.reference, which, [flat], element, sign) for sign in (1, -1))
        if amount > CLEAR * (abs(float(probe.truth[element])) + 1e-6):
            needed.append(flat)
        elif amount == 0.0:
            others.append(flat)
    sample = needed if len(needed) <= ONE_BY_ONE else needed[:: -(-len(needed) // ONE_BY_ONE)]
    missing = [flat for flat in sample if not _depends(probe, which, [flat], element)]
    extra = _one_of(probe, which, others, element)
    if probe.runs_left <= 0:
        return []
    place = show_index(element) if element else "the value"
    what = f"Element {place}" if element else "The value"
    where = f" (at {size_text(probe.case.size)})"
    shape = probe.shapes[which]
    if missing and extra is not None:
        return [f"{what}{where} depends on {_elements(name, [extra], shape)}, but should not. It should depend on "
                f"{_elements(name, missing, shape)}, but does not."]
    texts = []
    if missing and len(missing) == len(needed) and len(needed) > 1:
        texts.append(f"{what}{where} does not depend on `{name}` at all, but should depend on "
                     f"{_elements(name, needed, shape)}.")
    elif missing:
        sampled = "" if len(sample) == len(needed) else f" ({len(sample)} elements were tried)"
        texts.append(f"{what}{where} does not depend on {_elements(name, missing, shape)}, but should{sampled}.")
    if extra is not None and needed:  # else this case alone may make the input idle, as softmax over one key does
        texts.append(f"{what}{where} depends on {_elements(name, [extra], shape)}, but should not.")
    return texts


def _elements(name: str, flats: list[int], shape: tuple) -> str:
    def shown(flat: int) -> str:
        index = ", ".join(str(int(n)) for n in np.unravel_index(flat, shape))
        return f"`{name}[{index}]`"

    if len(flats) <= 3:
        return ", ".join(map(shown, flats))
    steps = set(np.diff(flats).tolist())
    if len(steps) == 1:
        step = steps.pop()
        every = "" if step == 1 else f", every {({2: 'second', 3: 'third', 4: 'fourth'}).get(step, f'{step}th')}"
        return f"{shown(flats[0])} to {shown(flats[-1])}{every}"
    return f"{', '.join(map(shown, flats[:3]))} and {counted(len(flats) - 3, 'more element')} of it"


def _moved(probe: _Probe, which: int, flats: list[int], sign: int) -> tuple:
    value = probe.case.inputs[which].copy()
    steps = 0.4 + 0.1 * (np.asarray(flats) % 7)
    value.reshape(-1)[flats] += (sign * steps * (1 + np.abs(value.reshape(-1)[flats]))).astype(value.dtype)
    return probe.changed(which, value)


def _influence(probe: _Probe, function: Callable, which: int, flats: list[int], element: tuple, sign: int) -> float:
    """How much the element changes with these elements of an input; NaN changes count as infinite."""
    result = function(_moved(probe, which, flats, sign))
    before = probe.truth if function == probe.reference else probe.got
    if result is None or result.shape != before.shape:
        return 0.0
    change = abs(float(result[element]) - float(before[element]))
    return change if change == change else math.inf


def _depends(probe: _Probe, which: int, flats: list[int], element: tuple) -> bool:
    return any(_influence(probe, probe.result, which, flats, element, sign) > 0 for sign in (1, -1))


def _one_of(probe: _Probe, which: int, flats: list[int], element: tuple) -> int | None:
    """One of these elements on which the answer's depends, found by halving; None if it depends on none."""
    if not flats or not _depends(probe, which, flats, element):
        return None
    while len(flats) > 1:
        half = len(flats) // 2
        flats = flats[:half] if _depends(probe, which, flats[:half], element) else flats[half:]
    return flats[0] if _depends(probe, which, flats, element) else None


def _takes_nan(probes: list[_Probe]) -> tuple[str, ...]:
    """An element of an input that holds NaN and counts, where none should."""
    for probe in probes:
        held = np.argwhere(probe.wrong & np.isnan(probe.got.astype(np.float64)) & np.isfinite(
            probe.truth.astype(np.float64)) & ~is_poison(probe.got))
        if not len(held):
            continue
        element = tuple(int(n) for n in held[0])
        for which, value in enumerate(probe.case.inputs):
            if not probe.names[which] or not isinstance(value, np.ndarray) or value.dtype.kind != "f":
                continue
            flats = np.flatnonzero(np.isnan(value)).tolist()
            if not flats or _is_nan(probe, which, [], element):
                continue
            while len(flats) > 1:
                half = len(flats) // 2
                flats = flats[:half] if _is_nan(probe, which, flats[:half], element) else flats[half:]
            if _is_nan(probe, which, flats, element):
                what = f"Element {show_index(element)}" if element else "The value"
                held = _elements(probe.names[which], flats, probe.shapes[which])
                return (f"{what} (at {size_text(probe.case.size)}) depends on {held}, which holds NaN, but "
                        "should not.",)
    return ()


def _is_nan(probe: _Probe, which: int, flats: list[int], element: tuple) -> bool:
    """Whether the element is NaN where these elements of one input are, and no others of any."""
    inputs = [np.where(np.isnan(value), np.zeros((), value.dtype), value)
              if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value for value in probe.case.inputs]
    inputs[which].reshape(-1)[flats] = np.nan
    got = probe.result(tuple(inputs))
    return got is None or bool(np.isnan(got[element]))


# --- As if -----------------------------------------------------------------------------------------------------------


def _as_if(probes: list[_Probe]) -> tuple[str, ...]:
    """What the inputs would have to be for this result to be right, where it is one thing."""
    held = np.concatenate([probe.got[probe.wrong].astype(np.float64).reshape(-1) for probe in probes])
    if held.size < 3 or np.unique(held).size < 2 or any(map(_is_unwritten, probes)):
        return ()
    first = probes[-1]
    for words, change in _changes(first):
        if all(_is_as_if(probe, change) for probe in probes):
            return (f"The result is what you would get if {words}.",)
    return ()


def _is_unwritten(probe: _Probe) -> bool:
    """Whether a wrong element holds what it held before the launch."""
    if is_poison(probe.got).any():
        return True
    start = probe.case.start
    return start is not None and bool((probe.got == start)[probe.wrong].all())


def _is_as_if(probe: _Probe, change: Callable) -> bool:
    try:
        inputs = change(probe.case.inputs)
    except (ValueError, IndexError, ZeroDivisionError):
        return False
    truth = None if inputs is None else probe.reference(inputs)
    if truth is None or truth.shape != probe.got.shape or truth.dtype.kind not in "fiub":
        return False
    got, truth = probe.got.astype(np.float64), truth.astype(np.float64)
    if not np.isfinite(truth).all():
        return False
    near = 1e-4 if probe.truth.dtype.kind == "f" else 0.0
    return bool(np.allclose(got, truth, rtol=near, atol=near * np.abs(truth).max(initial=0)))


def _changes(probe: _Probe) -> Iterator[tuple[str, Callable]]:
    """(words, what changes a tuple of inputs so)."""
    inputs, names = probe.case.inputs, probe.names
    named = [k for k, name in enumerate(names) if name]
    for k in named:
        value, name = inputs[k], names[k]
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
            if value.dtype.kind == "f":
                yield f"`{name}` were 0 everywhere", _each(k, np.zeros_like)
                yield f"`{name}` were 1 everywhere", _each(k, np.ones_like)
                yield f"`{name}` had the opposite sign", _each(k, np.negative)
                yield f"`{name}` were replaced by its absolute value", _each(k, np.abs)
                yield f"`{name}` were replaced by its square", _each(k, np.square)
            for axis in range(value.ndim):
                of_axis = "" if value.ndim == 1 else f" along axis {axis}"
                yield f"`{name}` were reversed{of_axis}", _each(k, lambda v, a=axis: np.flip(v, a).copy())
                for by, words in ((-1, "the next one"), (1, "the previous one")):
                    yield (f"each element of `{name}` were replaced by {words}{of_axis}",
                           _each(k, lambda v, a=axis, by=by: np.roll(v, by, a)))
                yield (f"`{name}` had the value at index 0 everywhere{of_axis}", _each(
                    k, lambda v, a=axis: np.broadcast_to(np.take(v, [0], a), v.shape).copy()))
                yield f"the last elements of `{name}`{of_axis} were 0", _each(k, _zeroed(axis, -1))
                yield f"the first elements of `{name}`{of_axis} were 0", _each(k, _zeroed(axis, 0))
            if value.ndim >= 2:
                yield (f"the last two axes of `{name}` were swapped", _each(
                    k, lambda v: np.ascontiguousarray(np.swapaxes(v, -1, -2)).reshape(v.shape)))
            if value.dtype.kind in "iu":
                yield f"each element of `{name}` were one more", _each(k, lambda v: v + v.dtype.type(1))
                yield f"each element of `{name}` were one less", _each(k, lambda v: v - v.dtype.type(1))
        elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            yield f"`{name}` were one more", _each(k, lambda v: v + 1)
            yield f"`{name}` were one less", _each(k, lambda v: v - 1)
        elif isinstance(value, (float, np.floating)):
            yield f"`{name}` were 1", _each(k, lambda v: type(v)(1))
            yield f"`{name}` were 0", _each(k, lambda v: type(v)(0))
            yield f"`{name}` were 1 / `{name}`: divided by instead of multiplied, or the other way round", _each(
                k, lambda v: type(v)(1) / v)
    for a, b in itertools.combinations(named, 2):
        if np.ndim(inputs[a]) == np.ndim(inputs[b]) == 1:
            yield f"`{names[a]}` and `{names[b]}` were reversed", lambda given, a=a, b=b: tuple(
                np.flip(value).copy() if k in (a, b) else value for k, value in enumerate(given))
        if np.shape(inputs[a]) == np.shape(inputs[b]) and type(inputs[a]) is type(inputs[b]):
            yield f"`{names[a]}` and `{names[b]}` were swapped", lambda given, a=a, b=b: _exchanged(given, a, b)


def _each(which: int, change: Callable) -> Callable:
    return lambda inputs: (*inputs[:which], change(inputs[which]), *inputs[which + 1 :])


def _zeroed(axis: int, at: int) -> Callable:
    def zeroed(value):
        result = value.copy()
        np.moveaxis(result, axis, 0)[at] = 0
        return result

    return zeroed


def _exchanged(inputs: tuple, a: int, b: int) -> tuple | None:
    if np.shape(inputs[a]) != np.shape(inputs[b]):
        return None
    result = list(inputs)
    result[a], result[b] = inputs[b], inputs[a]
    return tuple(result)


def _off_by_one(probes: list[_Probe]) -> tuple[str, ...]:
    """A single whole number that is 1 too small, or 1 too large, at every size that fails."""
    if len(probes) < 2 or any(probe.truth.size != 1 for probe in probes):
        return ()
    offsets = {float(probe.got.reshape(-1)[0]) - float(probe.truth.reshape(-1)[0]) for probe in probes}
    if offsets not in ({1.0}, {-1.0}):
        return ()
    which = ("large: is something rounded up, or is one too many counted at an end?" if offsets == {1.0} else
             "small: is something rounded down, or is one end left out?")
    return (f"At {len(probes)} failing sizes it is 1 too {which}",)


def _factors(probes: list[_Probe]) -> tuple[str, ...]:
    """An input whose part of the result is a constant multiple of what it should be, in every element."""
    for which, value in enumerate(probes[0].case.inputs):
        name = probes[0].names[which]
        if not name or not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            continue
        factors = [(probe.case.size, _factor(probe, which)) for probe in probes]
        factors = [(size, factor) for size, factor in factors if factor is not None]
        if len(factors) < 2 or all(abs(factor - 1) < 1e-3 for _, factor in factors):
            continue
        sizes = " and ".join(f"{factor:.4g} times at {size_text(size)}" for size, factor in factors[:2])
        as_formula = _formula(factors)
        return (f"The contribution of `{name}` to the result is a multiple of what it should be: {sizes}"
                f"{f', which is {as_formula}' if as_formula else ''}.",)
    return ()


def _factor(probe: _Probe, which: int) -> float | None:
    value = probe.case.inputs[which]
    inputs = probe.changed(which, (value + 0.5 * np.sign(value) + 0.25).astype(value.dtype))
    got, truth = probe.result(inputs), probe.reference(inputs)
    if got is None or truth is None or truth.shape != probe.truth.shape or truth.dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        should = truth.astype(np.float64) - probe.truth
        ratio = (got.astype(np.float64) - probe.got) / should
    clear = np.abs(should) > 1e-2 * (1e-6 + np.abs(should).max(initial=0))
    if clear.sum() < 2 or not np.isfinite(ratio[clear]).all():
        return None
    middle = float(np.median(ratio[clear]))
    return middle if np.allclose(ratio[clear], middle, rtol=2e-3, atol=1e-6) else None


def _formula(factors: list[tuple[dict, float]]) -> str:
    """The factor by lengths of the case, where one formula fits all cases and they differ."""
    names = [name for name, value in factors[0][0].items() if isinstance(value, int)]
    if len({round(factor, 6) for _, factor in factors}) < 2:
        return ""
    terms = [("1", lambda size: 1.0), *((name, lambda size, n=name: float(size[n])) for name in names),
             *((f"({name} - 1)", lambda size, n=name: float(size[n] - 1)) for name in names)]
    for (above, over), (below, under) in itertools.permutations(terms, 2):
        for words, power in ((f"{above} / {below}", 1.0), (f"the square root of {above} / {below}", 0.5)):
            try:
                if all(math.isclose((over(size) / under(size)) ** power, factor, rel_tol=3e-3)
                       for size, factor in factors):
                    return words
            except (ZeroDivisionError, KeyError):
                continue
    return ""


def _right_without(probes: list[_Probe]) -> tuple[str, ...]:
    """An input that makes the result right where it is 0 or the same number everywhere, and all else still counts."""
    probe, sentences = max(probes, key=_telling), []
    for which, value in enumerate(probe.case.inputs):
        name = probe.names[which]
        if not name or not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.size < 2:
            continue
        for words, other in (("is 0 everywhere", np.zeros_like(value)),
                             ("holds one value everywhere", np.full_like(value, value.reshape(-1)[0]))):
            inputs = probe.changed(which, other)
            if _all_else_counts(probe, which, inputs) and probe.right(inputs):
                sentences.append(f"At {size_text(probe.case.size)} the result is right if `{name}` {words}: look at "
                                 f"how `{name}` is used.")
                break
    return tuple(sentences) if len(sentences) == 1 else ()


def _all_else_counts(probe: _Probe, which: int, inputs: tuple) -> bool:
    """Whether the truth still depends on every other array of numbers, and differs from element to element."""
    truth = probe.reference(inputs)
    if truth is None or truth.size < 2 or not np.isfinite(truth.astype(np.float64)).all() or (
            np.ptp(truth.astype(np.float64)) < 1e-6):
        return False
    others = [k for k, value in enumerate(inputs) if k != which and isinstance(value, np.ndarray)
              and value.dtype.kind == "f"]
    for k in others:
        changed = probe.reference((*inputs[:k], inputs[k] * np.asarray(1.5, inputs[k].dtype), *inputs[k + 1 :]))
        if changed is None or np.allclose(changed, truth, rtol=1e-6, atol=1e-9):
            return False
    return True


def _by_values(probes: list[_Probe]) -> tuple[str, ...]:
    """Where the numbers in a row of an input decide whether the result of that row is right."""
    for probe in probes:
        lines = probe.wrong.reshape(len(probe.wrong), -1).any(axis=1) if probe.wrong.ndim else np.zeros(0, bool)
        if not lines.any() or lines.all():
            continue
        for name, value in zip(probe.names, probe.case.inputs, strict=True):
            if not name or not isinstance(value, np.ndarray) or value.dtype.kind != "f" or (
                    value.ndim < 2 or len(value) != len(lines)):
                continue
            rows = value.astype(np.float64).reshape(len(value), -1)
            for words, of_rows in (("largest", rows.max(axis=1)), ("smallest", rows.min(axis=1))):
                wrong, right = of_rows[lines], of_rows[~lines]
                if wrong.max() < right.min() - 10 or wrong.min() > right.max() + 10:
                    return (f"At {size_text(probe.case.size)} the {words} value in a row of `{name}` is "
                            f"{_range(wrong)} in the wrong rows, and {_range(right)} in the right ones.",)
    return ()


def _range(values) -> str:
    low, high = values.min(), values.max()
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _shown(exercise: Exercise, case: Case, names: list[str]) -> tuple[str, ...]:
    """The inputs, where they are few; those of a function that returns its result are shown already."""
    if exercise.shape is None or not all(names) or sum(np.size(value) for value in case.inputs) > SHOWN:
        return ()
    inputs = ", ".join(f"`{name}` = {written_out(value)}" for name, value in zip(names, case.inputs, strict=True))
    return (f"The inputs: {inputs}.",)
