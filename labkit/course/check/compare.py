"""Is this right: poisoned outputs between guards, compared element by element, and what is wrong in words."""

from __future__ import annotations

import numpy as np

from labkit import cuda
from labkit._common.tables import size_text
from labkit.course.check.cases import Attempt, Case
from labkit.course.check.verdict import pattern, show_value, table_of
from labkit.course.exercises import Exercise

GUARD = 4096  # elements on either side of each array; a missed guard lands here on a GPU, which checks no index


def _poison(dtype: np.dtype):
    """What an output holds before the launch: NaN, or an integer that is unlikely to be right."""
    if dtype.kind in "fc":
        return dtype.type(np.nan)
    return dtype.type(True) if dtype.kind == "b" else dtype.type(np.iinfo(dtype).max // 3 * 2)


NAN_BITS = {"float16": 0x7E2A, "float32": 0x7FC0ABCD, "float64": 0x7FF80000ABCD1234}


def _unwritten(shape: tuple, dtype: np.dtype) -> np.ndarray:
    """An output before the launch. Its NaN has bits of its own: a NaN that a kernel computes is another one."""
    if dtype.name in NAN_BITS:
        return np.full(shape, NAN_BITS[dtype.name], f"u{dtype.itemsize}").view(dtype)
    return np.full(shape, _poison(dtype), dtype)


def _still_unwritten(got: np.ndarray) -> np.ndarray:
    if got.dtype.name in NAN_BITS:
        return got.view(f"u{got.dtype.itemsize}") == NAN_BITS[got.dtype.name]
    return np.isnan(got) if got.dtype.kind == "c" else got == _poison(got.dtype)


def _guarded(content: np.ndarray, fill):
    """A device array with `content` inside a larger one full of `fill`: (whole, the array)."""
    host = np.full(content.size + 2 * GUARD, fill, content.dtype)
    host[GUARD : GUARD + content.size] = content.reshape(-1)
    whole = cuda.to_device(host)
    return whole, whole[GUARD : GUARD + content.size].reshape(content.shape)


def _compared(exercise: Exercise | None, case: Case, got: np.ndarray, unwritten: np.ndarray) -> Attempt:
    expected = case.expected
    with np.errstate(invalid="ignore", over="ignore"):  # any bits may stand there, also a NaN that signals
        found, truth = got.astype(np.float64), expected.astype(np.float64)
        miss = np.abs(found - truth)
    wrong = ~(miss <= case.allowed)  # NaN is wrong, too
    both_nan = np.isnan(found) & np.isnan(truth) & ~unwritten
    wrong &= ~both_nan
    if not wrong.any():
        return Attempt("passed", got=got)
    unwritten = unwritten & wrong
    threads = 0
    if exercise is not None and exercise.kind == "kernel" and expected.ndim == 1:
        threads = int(np.prod(exercise.launch(**case.size)[1]))
    seen = "" if wrong.size == 1 else pattern(expected, got, wrong, unwritten, case.inputs, threads)
    if case.start is not None and np.array_equal(got, case.start):
        seen = "It holds what it held before the launch."
    if wrong.size == 1:
        head = "The output was not written." if unwritten.all() else "The value is wrong."
    elif unwritten.all():
        seen = ""
        head = f"None of the {wrong.size:,} elements was written."
    else:
        how_many = "All" if wrong.all() else f"{int(wrong.sum()):,} of"
        verb = "was never written" if unwritten[wrong].all() else "is wrong" if wrong.sum() == 1 else "are wrong"
        verb = verb.replace("was", "were") if wrong.sum() > 1 else verb
        head = f"{how_many} {wrong.size:,} elements {verb}."
    if wrong.size == 1 and not unwritten.all() and not seen:
        seen = f"Expected is {show_value(expected.flat[0])}, and it holds {show_value(got.flat[0])}."
    details = [f"The smallest case that fails: {size_text(case.size)}." + (f" {seen}" if seen else "")]
    if exercise is None:
        details.append(f"It was called with {_called(case)}.")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.max(np.where(wrong, miss / np.abs(expected.astype(np.float64)), 0), initial=0)
    if 0 < relative < 1e-3 and np.isfinite(got).all():
        details.append(f"It is close: at most {relative:.1e} of the value. The allowed error is that of float32 used "
                       "with care; is something summed in another type, or is a small term missing?")
    return Attempt("wrong_result", head, tuple(details), table_of(expected, got, wrong, unwritten), got=got,
                   seen=seen)


def _shaped(array: np.ndarray) -> str:
    if array.ndim == 0:
        return "one number"
    return f"{array.size} numbers" if array.ndim == 1 else f"an array of shape {array.shape}"


def _called(case: Case) -> str:
    return ", ".join(f"an array of shape {v.shape}" if isinstance(v, np.ndarray) else repr(v) for v in case.inputs)
