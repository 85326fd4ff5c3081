"""An operation: what is true (NumPy, float64), the rungs that compute it on the device, and how right is right.

    agree(MATMUL)          every rung, at awkward sizes, against the reference; raises if one is wrong
    MATMUL.flops(M=37, N=23, K=19)

A size is a dictionary of axis lengths, {"M": 37, "N": 23, "K": 19}: the same names that flops and bytes take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from labkit import cuda, device
from labkit.tables import ResultTable, size_text

GUARD = 4096  # elements on either side of an output that no kernel may touch; 16 KB keeps the alignment
SENTINEL = -1.5e30


@dataclass(frozen=True, repr=False)
class Op(ResultTable):
    """A reference and its rungs, slowest first. Prints as a table of its rungs' ideas.

    inputs(rng, **size) makes host arrays; shape(**size) is the shape of the output; reference(*inputs) the truth.
    tolerance(*inputs) gives the largest error allowed for each element, from inputs in float64.
    by_row names the inputs whose first axis is the output's first axis: a sample of rows is then checked on its own.
    rival(xp, *inputs, out) does the same with NumPy, CuPy or PyTorch in place of xp.
    """

    name: str
    title: str
    reference: Callable
    rungs: tuple[Callable, ...]
    inputs: Callable
    shape: Callable
    awkward: tuple[dict, ...]
    timed_gpu: dict
    timed_cpu: dict
    flops: Callable
    bytes: Callable
    tolerance: Callable
    by_row: tuple[int, ...]
    rival: Callable | None = None
    rival_note: str = ""
    formula: str = ""
    unit: str = "GB/s"
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))

    def __post_init__(self):
        if self.unit not in ("GB/s", "TFLOP/s"):
            raise ValueError(f"unit is {self.unit!r}; 'GB/s' and 'TFLOP/s' are allowed")
        for launcher in self.rungs:
            if not hasattr(launcher, "kernel"):
                raise ValueError(f"{launcher.__name__} names no kernel; decorate it with @rung(kernel=..., idea=...)")

    @property
    def timed(self) -> dict:
        """The size to time on the present device."""
        return device.pick(gpu=self.timed_gpu, cpu=self.timed_cpu)

    def rung(self, name: str) -> Callable:
        for launcher in self.rungs:
            if launcher.__name__ == name:
                return launcher
        raise ValueError(f"{self.name} has no rung {name!r}; it has {', '.join(r.__name__ for r in self.rungs)}")

    def agree(self, **options) -> Agreement:
        return agree(self, **options)

    def table(self) -> dict:
        return {
            "title": self.title, "columns": ["rung", "idea"],
            "rows": [[r.__name__, r.idea + (" (failed)" if r.failed else "")] for r in self.rungs],
            "notes": [self.formula, *(f"{r.__name__} failed: {r.failed}" for r in self.rungs if r.failed)],
        }

    def result(self) -> dict:
        return {"kind": "op", "op": self.name, "kernels": [name for r in self.rungs for name in kernel_names(r)]}

    def with_rungs(self, *rungs: Callable) -> Op:
        """The same operation with other rungs: your own kernel beside the ones here."""
        return type(self)(**{**self.__dict__, "rungs": rungs})


def rung(*, kernel, idea: str, failed: str = ""):
    """Marks a launcher as a rung: its kernel, its idea in a line and, if it failed, why, with a measurement."""

    def mark(launcher):
        launcher.kernel = kernel
        launcher.idea = idea
        launcher.failed = failed
        return launcher

    return mark


def uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """float32 in [-1.5, 1.5). The factor three fills all 24 bits, so that sums are rounded as they are in real use."""
    values = rng.random(shape, dtype=np.float32)
    values *= np.float32(3.0)
    values -= np.float32(1.5)
    return values


# --- Tolerances ----------------------------------------------------------------------------------------------------


def relative_to(scale: Callable, roundings: int, dtype=np.float32) -> Callable:
    """For a fixed number of roundings: each is at most eps/2 of a value no larger than `scale`; allowed is twice that.

    Zeros and a neighbour's value miss by about `scale`, some ten million times too much.
    """
    eps = float(np.finfo(dtype).eps)
    return lambda *inputs: roundings * eps * scale(*inputs)


def dot_products(scale: Callable, length: Callable, dtype=np.float32) -> Callable:
    """For sums of K products, added in any order: 2 * eps * sqrt(K) * (|a| @ |b|).

    In the worst case all K roundings, each at most eps/2, point the same way: K * eps/2 * (|a| @ |b|). They do not:
    independent roundings add up like a random walk, as sqrt(K) * eps/2 (Higham and Mary, 2019). Allowed is four times
    that, which for K up to 16 is the worst case itself. One product left out of the sum misses by 1/K of the scale on
    average, far outside for any K below 100,000.
    """
    eps = float(np.finfo(dtype).eps)
    return lambda *inputs: 2 * eps * np.sqrt(length(*inputs)) * scale(*inputs)


# --- One run of one rung, guarded ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What one rung did at one size. `error` is the largest absolute error, `units` the same in tolerances."""

    error: float
    units: float
    tolerance: float
    problem: str = ""


def poisoned(shape: tuple, dtype=np.float32):
    """A device array full of NaN inside a larger one full of a sentinel: (whole, output). Unwritten elements show."""
    count = int(np.prod(shape))
    host = np.full(count + 2 * GUARD, SENTINEL, dtype)
    host[GUARD : GUARD + count] = np.nan
    whole = cuda.to_device(host)
    return whole, whole[GUARD : GUARD + count].reshape(shape)


def try_rung(op: Op, launcher: Callable, inputs: tuple, expected: np.ndarray, allowed: np.ndarray) -> Verdict:
    """Runs one rung on fresh copies and compares everything it could have touched."""
    whole, out = poisoned(expected.shape, op.dtype)
    on_device = tuple(cuda.to_device(array) for array in inputs)
    try:
        launcher(*on_device, out)
        cuda.synchronize()
    except Exception as error:  # whatever the kernel did wrong is the verdict
        return Verdict(np.inf, np.inf, float(allowed.max()), f"{type(error).__name__}: {error}")
    host = whole.copy_to_host()
    got = host[GUARD : host.size - GUARD].reshape(expected.shape)

    outside = np.flatnonzero(np.concatenate([host[:GUARD], host[host.size - GUARD :]]) != np.float32(SENTINEL))
    if outside.size:
        where = outside[0] - GUARD if outside[0] < GUARD else got.size + outside[0] - GUARD
        return Verdict(np.inf, np.inf, float(allowed.max()),
                       f"wrote outside the output: flat index {where} of {got.size} elements. Is the guard missing?")
    for number, (before, after) in enumerate(zip(inputs, on_device, strict=True)):
        if not np.array_equal(before, after.copy_to_host()):
            return Verdict(np.inf, np.inf, float(allowed.max()), f"changed its input number {number}")
    return compare(got, expected, allowed)


def compare(got: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> Verdict:
    """Element by element against a tolerance of each element's own; names the first that is wrong."""
    miss = np.abs(got.astype(np.float64) - expected)
    wrong = ~(miss <= allowed)  # NaN is wrong, too
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(miss == 0, 0.0, miss / allowed)
    error = float(np.nan_to_num(miss, nan=np.inf).max(initial=0.0))
    worst = float(np.nan_to_num(units, nan=np.inf).max(initial=0.0))
    tolerance = float(np.max(allowed, initial=0.0))
    if not wrong.any():
        return Verdict(error, worst, tolerance)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(wrong), wrong.shape))
    value = float(got[index])
    note = " (never written)" if np.isnan(value) else ""
    return Verdict(error, worst, tolerance,
                   f"{int(wrong.sum()):,} of {wrong.size:,} elements are wrong, the first at index "
                   f"{index if len(index) > 1 else index[0]}: expected {expected[index]:.9g}, got {value:.9g}{note}; "
                   f"allowed error {allowed[index]:.2g}")


# --- Agreement -----------------------------------------------------------------------------------------------------


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
        return max(row.error for row in self.rows)

    def check(self) -> Agreement:
        wrong = [f"{row.name} at {size_text(row.size)}: {row.problem}" for row in self.rows if row.problem]
        if wrong:
            raise AssertionError("\n".join(wrong))
        return self

    def table(self) -> dict:
        return {
            "title": f"{self.op}: every rung against NumPy in float64",
            "columns": ["rung", "sizes", "largest error", "of the allowed", "closest at", "agrees"],
            "rows": [[row.name, str(row.sizes), f"{row.error:.1e}", f"{row.units:.2f}", size_text(row.size),
                      "no" if row.problem else "yes"] for row in self.rows],
            "notes": [f"Outputs were filled with NaN first and inputs compared afterwards. Ran on {self.where}.",
                      *(f"{row.name}: {row.problem}" for row in self.rows if row.problem)],
        }

    def result(self) -> dict:
        return {"kind": "agreement", "op": self.op, "kernels": [name for row in self.rows for name in row.kernels],
                "max_error": _finite(self.max_error), "tolerance": max(row.tolerance for row in self.rows),
                "units": _finite(max(row.units for row in self.rows)), "passed": self.passed, "where": self.where}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None  # JSON has no infinity


def kernel_names(launcher: Callable) -> tuple[str, ...]:
    kernels = launcher.kernel if isinstance(launcher.kernel, tuple) else (launcher.kernel,)
    return tuple(k.__name__ for k in kernels)


def agree(op: Op, rungs=None, *, sizes: tuple[dict, ...] | None = None, seed: int = 0, check: bool = True) -> Agreement:
    """Runs each rung at each awkward size against the float64 reference. Raises AssertionError unless all agree.

    rungs: launchers or their names; all of the op's if left out. check=False returns the table even if one is wrong.
    """
    launchers = [op.rung(r) if isinstance(r, str) else r for r in (op.rungs if rungs is None else rungs)]
    if not launchers:
        raise ValueError("rungs is empty; pass at least one launcher or its name")
    rng = np.random.default_rng(seed)
    cases = []
    for size in op.awkward if sizes is None else sizes:
        inputs = op.inputs(rng, **size)
        expected = op.reference(*inputs)
        if expected.shape != tuple(op.shape(**size)):
            raise ValueError(f"shape({size_text(size)}) is {op.shape(**size)}, the reference's is {expected.shape}")
        allowed = op.tolerance(*(array.astype(np.float64) for array in inputs))
        cases.append((size, inputs, expected, allowed))

    rows = []
    for launcher in launchers:
        verdicts = []
        for _, inputs, expected, allowed in cases:
            verdicts.append(try_rung(op, launcher, inputs, expected, allowed))
            if verdicts[-1].problem:
                break
        at = len(verdicts) - 1 if verdicts[-1].problem else int(np.argmax([v.units for v in verdicts]))
        rows.append(RungAgreement(
            launcher.__name__, kernel_names(launcher), len(cases), error=max(v.error for v in verdicts),
            units=max(v.units for v in verdicts), tolerance=max(v.tolerance for v in verdicts), size=cases[at][0],
            problem=verdicts[at].problem))
    agreement = Agreement(op.name, device.name(), tuple(rows))
    return agreement.check() if check else agreement


def check_sample(op: Op, inputs: tuple, out: np.ndarray, *, seed: int = 0, budget: int = 2**20) -> Verdict:
    """As compare, at sizes for which the whole reference would take minutes: every element was written, a sample is
    right. The sample is the first and the last row and random ones between, about `budget` elements of them."""
    unwritten = np.flatnonzero(np.isnan(out.reshape(-1)))
    if unwritten.size:
        return Verdict(np.inf, np.inf, 0.0, f"{unwritten.size:,} elements were never written, the first at flat index "
                                            f"{unwritten[0]}")
    rows = out.shape[0]
    per_row = max(1, out.size // rows)
    count = min(rows, max(8, budget // per_row))
    chosen = np.arange(rows)
    if count < rows:
        chosen = np.concatenate([np.random.default_rng(seed).integers(rows, size=count), [0, rows - 1]])
        chosen.sort()  # a row drawn twice does no harm, and np.unique on a million takes longer than the kernel
    some = tuple(array[chosen] if number in op.by_row else array for number, array in enumerate(inputs))
    allowed = op.tolerance(*(array.astype(np.float64) for array in some))
    return compare(out[chosen], op.reference(*some), allowed)
