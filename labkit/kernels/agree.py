"""Correctness: an output, poisoned before the launch, element by element against the reference.

    agree(MATMUL)                          every rung, at awkward sizes; raises AssertionError if one is wrong
    Sample(op, inputs, shape=...).check(out)        one result at a large size

An output holds a NaN with bits of its own before a kernel runs, so that an element that was never written differs from
a computed NaN. On either side lies a guard zone that no kernel may touch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit import cuda, device
from labkit._common.chunks import in_chunks
from labkit._common.tables import ResultTable, size_text
from labkit.kernels.baselines import Baseline
from labkit.kernels.dtypes import float64_of
from labkit.kernels.op import Op, Rung

GUARD = 4096  # elements on either side of an array that no kernel may touch; 4 KB or more keep the alignment


# --- Poison: what an output holds before a kernel runs ---------------------------------------------------------------

# Quiet NaNs that no instruction makes. uint16 holds bfloat16, uint8 holds E4M3, which has no other NaN than this.
POISON_BITS = {"float16": 0x7E2A, "float32": 0x7FC0ABCD, "float64": 0x7FF80000ABCD1234, "uint16": 0x7FEA, "uint8": 0x7F}


def poison(shape: tuple, dtype=np.float32) -> np.ndarray:
    """An output before the launch: NaN, or an integer that is unlikely to be right."""
    dtype = np.dtype(dtype)
    if dtype.name in POISON_BITS:
        return np.full(shape, POISON_BITS[dtype.name], f"u{dtype.itemsize}").view(dtype)
    if dtype.kind == "c":
        return np.full(shape, np.nan, dtype)
    return np.full(shape, True if dtype.kind == "b" else np.iinfo(dtype).max // 3 * 2, dtype)


def poison_of(dtype) -> np.generic:
    """One element of poison."""
    return poison((), dtype)[()]


def is_poison(got: np.ndarray) -> np.ndarray:
    """Which elements were never written. A NaN that a kernel computed has other bits."""
    if got.dtype.name in POISON_BITS:
        return got.view(f"u{got.dtype.itemsize}") == POISON_BITS[got.dtype.name]
    return np.isnan(got) if got.dtype.kind == "c" else got == poison_of(got.dtype)


# --- Guard zones -----------------------------------------------------------------------------------------------------


def sentinel_of(dtype) -> np.generic:
    """The fill of the guard zones of an output: a value that no kernel here computes."""
    dtype = np.dtype(dtype)
    if dtype == np.uint16:
        return dtype.type(0xF197)  # -1.5e30 in bfloat16
    if dtype.kind in "fc":
        return dtype.type(-6.5e4 if dtype == np.float16 else -1.5e30)
    return dtype.type(True) if dtype.kind == "b" else dtype.type(np.iinfo(dtype).max // 3)


@dataclass(frozen=True, eq=False)
class Guarded:
    """A device array in the middle of a larger one, whose two ends are full of `fill`."""

    array: object
    whole: object
    fill: np.generic

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """(content, outside): the array on the host, and the flat indices of what was written beside it, of which those
        in front of it are negative."""
        host = self.whole.copy_to_host()
        size = host.size - 2 * GUARD
        ends = np.concatenate([host[:GUARD], host[GUARD + size :]])
        changed = np.flatnonzero(ends != self.fill)
        outside = np.where(changed < GUARD, changed - GUARD, changed - GUARD + size)
        return host[GUARD : GUARD + size].reshape(self.array.shape), outside


def guarded(content: np.ndarray, fill=None) -> Guarded:
    """Copy `content` to the device between guard zones: NaN around an input, so that reads there are noticed."""
    if fill is None:
        fill = content.dtype.type(np.nan) if content.dtype.kind in "fc" else poison_of(content.dtype)
    ends = np.full(GUARD, fill, content.dtype)
    buffer = cuda.to_device(np.concatenate([ends, content.reshape(-1), ends]))
    return Guarded(buffer[GUARD : GUARD + content.size].reshape(content.shape), buffer, fill)


def poisoned(shape: tuple, dtype=np.float32) -> Guarded:
    """An output before the launch, on the device, between guard zones full of a sentinel."""
    return guarded(poison(shape, dtype), sentinel_of(dtype))


def to_device(inputs: tuple) -> tuple:
    """Copy arrays to the device; numbers and None are passed through."""
    return tuple(cuda.to_device(value) if isinstance(value, np.ndarray) else value for value in inputs)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Compare bit for bit: NaNs and signed zeros, too."""
    return a.tobytes() == b.tobytes()


# --- Element by element ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Differences:
    """The error of each element, in arrays of the output's shape.

    miss: |got - expected| in float64; NaN where only one of the two is. wrong: where it is more than allowed.
    unwritten: which of the wrong ones were never written.
    """

    miss: np.ndarray
    allowed: np.ndarray
    wrong: np.ndarray
    unwritten: np.ndarray

    @property
    def first(self) -> tuple[int, ...] | None:
        """The index of the first wrong element, in memory order; None if all are right."""
        if not self.wrong.any():
            return None
        return tuple(int(i) for i in np.unravel_index(np.argmax(self.wrong), self.wrong.shape))

    @property
    def error(self) -> float:
        """The largest absolute error; infinity if one is NaN."""
        return _largest(self.miss)

    @property
    def units(self) -> float:
        """The largest error in units of the allowed one."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            units = np.where(self.miss == 0, 0.0, self.miss / self.allowed)
        return _largest(units)


def _largest(values: np.ndarray) -> float:
    largest = float(values.max(initial=0.0))  # NaN if one of them is
    return np.inf if np.isnan(largest) else largest


def differences(got: np.ndarray, expected: np.ndarray, allowed, unwritten: np.ndarray | None = None) -> Differences:
    """Element by element against a tolerance of each element's own.

    Two infinities of one sign agree, and two NaNs do unless one is poison; anything else that is not a number is wrong.
    `unwritten` says which elements were never written, where poison cannot: in an output that held something else.
    """
    unwritten = is_poison(got) if unwritten is None else unwritten
    with np.errstate(invalid="ignore", over="ignore"):  # it may hold any bits, a signaling NaN too
        actual, desired = _widen(got, expected), _widen(expected, expected)
        same = (actual == desired) | (np.isnan(actual) & np.isnan(desired) & ~unwritten)
        miss = np.where(same, 0.0, np.abs(actual - desired))  # inf - inf is NaN
    allowed = np.broadcast_to(allowed, miss.shape)
    wrong = ~(same | (miss <= allowed))  # NaN is wrong, too
    return Differences(miss, allowed, wrong, unwritten & wrong)


def _widen(array: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Convert to float64, so that differences of integers cannot wrap. uint16 against floats holds bfloat16."""
    if array.dtype == np.uint16 and expected.dtype.kind == "f":
        return float64_of(array)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


@dataclass(frozen=True)
class Verdict:
    """What one rung did at one size. `error` is the largest absolute error, `units` the same in tolerances.

    `refused` is set where a rung that allows some sizes only has refused this one.
    """

    error: float
    units: float
    tolerance: float
    problem: str = ""
    refused: str = ""


def compare(got: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> Verdict:
    """Element by element against a tolerance of each element's own; names the first that is wrong."""
    diff = differences(got, expected, allowed)
    verdict = functools.partial(Verdict, diff.error, diff.units, float(np.max(diff.allowed, initial=0.0)))
    index = diff.first
    if index is None:
        return verdict()
    note = " (never written)" if diff.unwritten[index] else ""
    return verdict(f"{int(diff.wrong.sum()):,} of {diff.wrong.size:,} elements are wrong, the first at index "
                   f"{index if len(index) > 1 else index[0]}: expected {expected[index]:.9g}, "
                   f"got {float64_of(got)[index]:.9g}{note}; allowed error {diff.allowed[index]:.2g}")


# --- One run of one rung ---------------------------------------------------------------------------------------------


def allowed_error(op: Op, by: Rung | Baseline | None, inputs: tuple) -> np.ndarray:
    """The largest error allowed for each element: the rung's or the baseline's own tolerance, or else the op's."""
    return np.asarray(_tolerance(op, by)(*(float64_of(value) for value in inputs)), np.float64)


def _tolerance(op: Op, by: Rung | Baseline | None) -> Callable:
    return op.tolerance if by is None or by.tolerance is None else by.tolerance


def try_rung(op: Op, rung: Rung, inputs: tuple, expected: np.ndarray, allowed: np.ndarray) -> Verdict:
    """Run one rung on fresh copies and compare everything it could have touched."""
    output = poisoned(expected.shape, op.dtype)
    on_device = [guarded(value).array if isinstance(value, np.ndarray) else value for value in inputs]
    bad = functools.partial(Verdict, np.inf, np.inf, float(np.max(allowed, initial=0.0)))
    try:
        rung(*on_device, output.array)
        cuda.synchronize()
    except Exception as error:  # whatever the kernel did wrong is the verdict
        message = f"{type(error).__name__}: {error}"
        if not isinstance(error, ValueError):
            return bad(message)
        if rung.sizes:
            return Verdict(0.0, 0.0, 0.0, refused=str(error))
        return bad(f"{message}. (A rung that allows some sizes only says which: @rung(..., sizes='...').)")
    got, outside = output.read()
    if outside.size:
        return bad(f"wrote outside the output: flat index {outside[0]} of {got.size} elements. Is the guard missing?")
    for index, (original, array) in enumerate(zip(inputs, on_device, strict=True)):
        if isinstance(original, np.ndarray) and not same_bits(original, array.copy_to_host()):
            return bad(f"changed its input number {index}")
    return compare(got, expected, allowed)


class Sample:
    """The reference for a sample of rows, for sizes at which all of it would take minutes. Computed once for all
    rungs. The sample is the first and the last row and random ones between, about `budget` elements."""

    def __init__(self, op: Op, inputs: tuple, *, seed: int = 0, budget: int = 2**20, shape: tuple):
        self._op = op
        rows, per_row = shape[0], max(1, int(np.prod(shape[1:])))
        count = min(rows, max(1, budget // per_row))
        if count == rows:
            self._chosen = np.arange(rows)
        else:
            self._chosen = np.concatenate([np.random.default_rng(seed).integers(rows, size=count), [0, rows - 1]])
            self._chosen.sort()  # duplicate rows are harmless, and np.unique on a million takes too long
        # Where a row of the output needs all of the inputs, as in a transpose: compute it all, then sample.
        self._subsample = not op.by_row and count < rows
        self._inputs = inputs if self._subsample else tuple(
            array[self._chosen] if index in op.by_row else array for index, array in enumerate(inputs))
        self._expected = self._rows(op.reference(*self._inputs))
        self._allowed: dict = {}

    def _rows(self, values) -> np.ndarray:
        values = np.asarray(values)
        return values[self._chosen] if self._subsample else values

    def check(self, out: np.ndarray, by: Rung | Baseline | None = None) -> Verdict:
        """Every element of out was written and is a number, and the sample is right. `by` is the rung or the baseline
        whose result it is: it may have a tolerance of its own."""
        flat = out.reshape(-1)
        for predicate, problem in ((is_poison, "were never written"), (_is_nan, "are NaN")):
            match = _find(flat, predicate)
            if match is not None:
                return Verdict(np.inf, np.inf, 0.0,
                               f"{match[0]:,} elements {problem}, the first at flat index {match[1]}")
        tolerance = _tolerance(self._op, by)
        if tolerance not in self._allowed:
            self._allowed[tolerance] = np.broadcast_to(
                self._rows(allowed_error(self._op, by, self._inputs)), self._expected.shape)
        return compare(out[self._chosen], self._expected, self._allowed[tolerance])


def _find(flat: np.ndarray, predicate: Callable[[np.ndarray], np.ndarray]) -> tuple[int, int] | None:
    """Count the elements that satisfy the predicate, and return the index of the first; None if none does."""
    def chunk(begin: int, end: int) -> tuple[int, int]:
        passed = predicate(flat[begin:end])
        return np.count_nonzero(passed), begin + int(np.argmax(passed)) if passed.size else begin

    matches = [match for match in in_chunks(flat.size, chunk) if match[0]]
    return (sum(count for count, _ in matches), matches[0][1]) if matches else None


def _is_nan(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint16:  # bfloat16: beyond infinity
        return values & np.uint16(0x7FFF) > np.uint16(0x7F80)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)


# --- Agreement -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RungAgreement:
    name: str
    kernels: tuple[str, ...]
    sizes: int
    error: float  # the largest, absolute, over all sizes
    units: float  # the largest in units of the allowed one
    tolerance: float
    size: dict  # where `units` was reached, or where the rung failed
    problem: str = ""
    refused: int = 0  # of `sizes`, those that the launcher does not allow
    allows: str = ""  # which sizes it allows
    skipped: str = ""  # why the present device cannot run it


@dataclass(frozen=True, repr=False)
class Agreement(ResultTable):
    """The verdict on every rung. Prints as a table; `check` raises AssertionError if a rung is wrong."""

    op: str
    where: str
    rows: tuple[RungAgreement, ...]

    @property
    def passed(self) -> bool:
        return all(not row.problem for row in self.rows)

    @property
    def max_error(self) -> float:
        return max((row.error for row in self.rows if not row.skipped), default=0.0)

    def check(self) -> Agreement:
        wrong = [f"{row.name} at {size_text(row.size)}: {row.problem}" for row in self.rows if row.problem]
        if wrong:
            raise AssertionError("\n".join(wrong))
        return self

    def table(self) -> dict:
        return {
            "title": f"{self.op}: every rung against NumPy in float64",
            "columns": ["rung", "sizes", "largest error", "of the allowed", "closest at", "agrees"],
            "rows": [[row.name, "-", "-", "-", "-", "not run"] if row.skipped else
                     [row.name, str(row.sizes - row.refused), f"{row.error:.1e}", f"{row.units:.2f}",
                      size_text(row.size), "no" if row.problem else "yes"] for row in self.rows],
            "notes": [f"Outputs were filled with NaN first and inputs compared afterwards. Ran on {self.where}.",
                      *(f"{row.name}: {row.problem}" for row in self.rows if row.problem),
                      *(f"{row.name} was not run: it {row.skipped}." for row in self.rows if row.skipped),
                      *(f"{row.name} allows {row.allows}; it refused {row.refused} of {row.sizes} sizes."
                        for row in self.rows if row.refused)],
        }

    def result(self) -> dict:
        return {"kind": "agreement", "op": self.op, "kernels": [name for row in self.rows for name in row.kernels],
                "max_error": _finite(self.max_error), "tolerance": max(row.tolerance for row in self.rows),
                "units": _finite(max(row.units for row in self.rows)), "passed": self.passed, "where": self.where}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None  # JSON has no infinity


def agree(op: Op, rungs=None, *, sizes: tuple[dict, ...] | None = None, seed: int = 0, check: bool = True) -> Agreement:
    """Run each rung at each awkward size against the float64 reference. Raise AssertionError unless all agree.

    rungs: rungs or their names; all of the op's if left out. check=False returns the table even if one is wrong.
    """
    if rungs is not None:
        op = op.with_rungs(*(op.rung(rung) if isinstance(rung, str) else rung for rung in rungs))
    if not op.rungs:
        raise ValueError("rungs is empty; pass at least one rung or its name")
    rng = np.random.default_rng(seed)
    cases = []
    for size in op.awkward if sizes is None else sizes:
        inputs = op.inputs(rng, **size)
        expected = np.asarray(op.reference(*inputs))
        if expected.shape != tuple(op.shape(**size)):
            raise ValueError(f"shape({size_text(size)}) is {op.shape(**size)}, the reference's is {expected.shape}")
        cases.append((size, inputs, expected))
    agreement = Agreement(op.name, device.name(), tuple(_agreement_of(op, rung, cases) for rung in op.rungs))
    return agreement.check() if check else agreement


def _agreement_of(op: Op, rung: Rung, cases: list[tuple]) -> RungAgreement:
    """One rung at each size, up to the first at which it is wrong."""
    name, kernels = rung.__name__, rung.kernel_names
    if rung.missing:
        return RungAgreement(name, kernels, len(cases), 0.0, 0.0, 0.0, {}, skipped=rung.missing)
    verdicts = []
    for _, inputs, expected in cases:
        allowed = np.broadcast_to(allowed_error(op, rung, inputs), expected.shape)
        verdicts.append(try_rung(op, rung, inputs, expected, allowed))
        if verdicts[-1].problem:
            break
    refused = sum(bool(v.refused) for v in verdicts)
    worst = len(verdicts) - 1 if verdicts[-1].problem else int(np.argmax([v.units for v in verdicts]))
    problem = verdicts[worst].problem
    if refused == len(verdicts):
        problem = f"refuses every size: {verdicts[-1].refused}"
    return RungAgreement(
        name, kernels, len(cases), error=max(v.error for v in verdicts), units=max(v.units for v in verdicts),
        tolerance=max(v.tolerance for v in verdicts), size=cases[worst][0], problem=problem, refused=refused,
        allows=rung.sizes)
