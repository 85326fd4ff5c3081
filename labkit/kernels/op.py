"""An operation: what is true (NumPy, float64), the rungs that compute it on the device, and how right is right.

    agree(MATMUL)          every rung, at awkward sizes, against the reference; raises if one is wrong
    MATMUL.flops(M=37, N=23, K=19)

A size is a dictionary of axis lengths, {"M": 37, "N": 23, "K": 19}: the same names that flops and bytes take. An array
of uint16 holds bfloat16 numbers: NumPy has no type for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from labkit import cuda, device
from labkit._common.tables import ResultTable, size_text

GUARD = 4096  # elements on either side of an output that no kernel may touch; 8 KB or more keep the alignment
PEAKS = ("fp32", "tf32", "f16")


@dataclass(frozen=True)
class Rival:
    """A library that does the same job. call(module, *inputs, out) does it on that library's own arrays.

    library: "torch", "cupy", "numpy", "triton" (which takes PyTorch's tensors). The result is what call returns, or, if
    it returns None, what it wrote into out. tolerance: the rival's own, when it computes less exactly than the rungs.
    """

    name: str
    library: str
    call: Callable
    note: str = ""
    tolerance: Callable | None = None

    @property
    def title(self) -> str:
        return f"{self.name} ({self.note})" if self.note else self.name


@dataclass(frozen=True, repr=False, eq=False)
class Op(ResultTable):
    """A reference and its rungs, slowest first. Prints as a table of its rungs' ideas.

    inputs(rng, **size) makes host arrays; shape(**size) is the shape of the output; reference(*inputs) the truth.
    tolerance(*inputs) gives the largest error allowed for each element, from inputs in float64.
    by_row names the inputs whose first axis is the output's first axis: a sample of rows is then checked on its own.
    rival(xp, *inputs, out) does the same with NumPy, CuPy or PyTorch in place of xp; rivals are further ones, on a GPU.
    peak says which units of the GPU bound the flops: "fp32", or the tensor cores in "tf32" or "f16".
    also_gpu holds sizes that `labkit bench` times beside timed_gpu. dtype is the output's. many_launches: a rung is a
    sequence of kernels, whose time from Python is Python's.
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
    peak: str = "fp32"
    rivals: tuple[Rival, ...] = ()
    also_gpu: tuple[dict, ...] = ()
    many_launches: bool = False

    def __post_init__(self):
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if self.peak not in PEAKS:
            raise ValueError(f"peak is {self.peak!r}; {', '.join(map(repr, PEAKS))} are allowed")
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


def rung(*, kernel, idea: str, failed: str = "", tolerance: Callable | None = None, needs: tuple | None = None,
         sizes: str = ""):
    """Marks a launcher as a rung: its kernel, its idea in a line and, if it failed, why, with a measurement.

    tolerance(*inputs): this rung's own, in place of the op's, when it computes less exactly on purpose.
    needs: the least compute capability, such as (9, 0); on an older GPU the rung is left out, and that is said.
        (9, 0, "a") for what exists on that one only, as wgmma does.
    sizes: which sizes the launcher allows, "N and K multiples of 8", if not all; it raises ValueError for others.
    """

    def mark(launcher):
        launcher.kernel = kernel
        launcher.idea = idea
        launcher.failed = failed
        launcher.tolerance = tolerance
        launcher.needs = needs
        launcher.sizes = sizes
        return launcher

    return mark


def missing(launcher: Callable) -> str:
    """Why the present device cannot run this rung; empty if it can. The CPU device runs them all."""
    needs = getattr(launcher, "needs", None)
    if needs is None or not device.on_gpu():
        return ""
    has, exactly = tuple(cuda.get_current_device().compute_capability)[:2], len(needs) > 2
    if has == tuple(needs[:2]) or (has > tuple(needs) and not exactly):
        return ""
    only = " exactly" if exactly else ""
    return f"needs compute capability {needs[0]}.{needs[1]}{only}; this GPU has {has[0]}.{has[1]}"


def uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """float32 in [-1.5, 1.5). The factor three fills all 24 bits, so that sums are rounded as they are in real use."""
    values = rng.random(shape, dtype=np.float32)
    values *= np.float32(3.0)
    values -= np.float32(1.5)
    return values


def float64_of(value):
    """An array as float64; uint16 holds bfloat16. Integers and what is no array stay as they are."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.uint16:
        return (value.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def bfloat16_of(values: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16, to nearest, ties to even; as the uint16 that hold it. For finite numbers."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


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
    """What one rung did at one size. `error` is the largest absolute error, `units` the same in tolerances.

    `refused` is set where a rung that allows some sizes only has refused this one.
    """

    error: float
    units: float
    tolerance: float
    problem: str = ""
    refused: str = ""


def poison_of(dtype) -> np.generic:
    """What an output holds before a kernel runs: NaN, or for integers their least value."""
    dtype = np.dtype(dtype)
    if dtype == np.uint16:
        return dtype.type(0x7FC0)  # the NaN of bfloat16
    return dtype.type(np.nan) if dtype.kind == "f" else dtype.type(np.iinfo(dtype).min)


def sentinel_of(dtype) -> np.generic:
    """What lies on either side of an output: a number that no kernel here computes."""
    dtype = np.dtype(dtype)
    if dtype == np.uint16:
        return dtype.type(0xF197)  # -1.5e30 in bfloat16
    if dtype.kind != "f":
        return dtype.type(np.iinfo(dtype).max - 12_345)
    return dtype.type(-6.5e4 if dtype == np.float16 else -1.5e30)


def poisoned(shape: tuple, dtype=np.float32):
    """A device array full of NaN inside a larger one full of a sentinel: (whole, output). Unwritten elements show."""
    count = int(np.prod(shape))
    host = np.full(count + 2 * GUARD, sentinel_of(dtype), dtype)
    host[GUARD : GUARD + count] = poison_of(dtype)
    whole = cuda.to_device(host)
    return whole, whole[GUARD : GUARD + count].reshape(shape)


def to_device(inputs: tuple) -> tuple:
    """Arrays go to the device; numbers and None stay as they are."""
    return tuple(cuda.to_device(value) if isinstance(value, np.ndarray) else value for value in inputs)


def allowed_error(op: Op, launcher: Callable | None, inputs: tuple) -> np.ndarray:
    """The largest error allowed for each element: the rung's own tolerance, or else the op's."""
    tolerance = getattr(launcher, "tolerance", None) or op.tolerance
    return np.asarray(tolerance(*(float64_of(value) for value in inputs)), np.float64)


def try_rung(op: Op, launcher: Callable, inputs: tuple, expected: np.ndarray, allowed: np.ndarray) -> Verdict:
    """Runs one rung on fresh copies and compares everything it could have touched."""
    whole, out = poisoned(expected.shape, op.dtype)
    on_device = to_device(inputs)
    bad = functools.partial(Verdict, np.inf, np.inf, float(np.max(allowed, initial=0.0)))
    try:
        launcher(*on_device, out)
        cuda.synchronize()
    except Exception as error:  # whatever the kernel did wrong is the verdict
        said = f"{type(error).__name__}: {error}"
        if not isinstance(error, ValueError):
            return bad(said)
        if getattr(launcher, "sizes", ""):
            return Verdict(0.0, 0.0, 0.0, refused=str(error))
        return bad(f"{said}. (A rung that allows some sizes only says which: @rung(..., sizes='...').)")
    host = whole.copy_to_host()
    got = host[GUARD : host.size - GUARD].reshape(expected.shape)

    outside = np.flatnonzero(np.concatenate([host[:GUARD], host[host.size - GUARD :]]) != sentinel_of(op.dtype))
    if outside.size:
        where = outside[0] - GUARD if outside[0] < GUARD else got.size + outside[0] - GUARD
        return bad(f"wrote outside the output: flat index {where} of {got.size} elements. Is the guard missing?")
    for number, (before, after) in enumerate(zip(inputs, on_device, strict=True)):
        if isinstance(before, np.ndarray) and not np.array_equal(before, after.copy_to_host()):
            return bad(f"changed its input number {number}")
    return compare(got, expected, allowed)


def compare(got: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> Verdict:
    """Element by element against a tolerance of each element's own; names the first that is wrong."""
    poison, got = got == poison_of(got.dtype), float64_of(got)
    allowed = np.broadcast_to(allowed, got.shape)
    with np.errstate(invalid="ignore"):
        miss = np.where(got == expected, 0.0, np.abs(got - expected))  # infinity minus itself is no number
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
    note = " (never written)" if np.isnan(value) or poison[index] else ""
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
        expected = np.asarray(op.reference(*inputs))
        if expected.shape != tuple(op.shape(**size)):
            raise ValueError(f"shape({size_text(size)}) is {op.shape(**size)}, the reference's is {expected.shape}")
        cases.append((size, inputs, expected))

    rows = []
    for launcher in launchers:
        names = kernel_names(launcher)
        if missing(launcher):
            rows.append(RungAgreement(launcher.__name__, names, len(cases), 0.0, 0.0, 0.0, {},
                                      skipped=missing(launcher)))
            continue
        verdicts = []
        for _, inputs, expected in cases:
            allowed = np.broadcast_to(allowed_error(op, launcher, inputs), expected.shape)
            verdicts.append(try_rung(op, launcher, inputs, expected, allowed))
            if verdicts[-1].problem:
                break
        refused = sum(bool(v.refused) for v in verdicts)
        at = len(verdicts) - 1 if verdicts[-1].problem else int(np.argmax([v.units for v in verdicts]))
        problem = verdicts[at].problem
        if refused == len(verdicts):
            problem = f"refuses every size: {verdicts[-1].refused}"
        rows.append(RungAgreement(
            launcher.__name__, names, len(cases), error=max(v.error for v in verdicts),
            units=max(v.units for v in verdicts), tolerance=max(v.tolerance for v in verdicts), size=cases[at][0],
            problem=problem, refused=refused, allows=getattr(launcher, "sizes", "")))
    agreement = Agreement(op.name, device.name(), tuple(rows))
    return agreement.check() if check else agreement


class Sample:
    """The truth about a sample of rows, for sizes at which the whole reference would take minutes. Computed once, it
    serves every rung. The sample is the first and the last row and random ones between, about `budget` elements."""

    def __init__(self, op: Op, inputs: tuple, *, seed: int = 0, budget: int = 2**20, shape: tuple):
        self._op = op
        rows, per_row = shape[0], max(1, int(np.prod(shape[1:])))
        count = min(rows, max(8, budget // per_row))
        self._chosen = np.arange(rows)
        if count < rows:
            self._chosen = np.concatenate([np.random.default_rng(seed).integers(rows, size=count), [0, rows - 1]])
            self._chosen.sort()  # a row drawn twice does no harm, and np.unique on a million takes too long
        # Where a row of the output needs all of the inputs, as in a transpose: the whole truth, then its sample.
        self._whole = not op.by_row and count < rows
        self._inputs = inputs if self._whole else tuple(
            array[self._chosen] if number in op.by_row else array for number, array in enumerate(inputs))
        self._expected = self._rows(op.reference(*self._inputs))
        self._allowed: dict = {}

    def _rows(self, whole) -> np.ndarray:
        whole = np.asarray(whole)
        return whole[self._chosen] if self._whole else whole

    def check(self, out: np.ndarray, launcher: Callable | Rival | None = None) -> Verdict:
        """Every element of out was written and the sample is right. `launcher` is the rung or the rival whose result it
        is: it may have a tolerance of its own."""
        flat = out.reshape(-1)
        unwritten = np.flatnonzero(np.isnan(flat) if out.dtype.kind == "f" else flat == poison_of(out.dtype))
        if unwritten.size:
            return Verdict(np.inf, np.inf, 0.0, f"{unwritten.size:,} elements were never written, the first at flat "
                                                f"index {unwritten[0]}")
        tolerance = getattr(launcher, "tolerance", None) or self._op.tolerance
        if tolerance not in self._allowed:
            self._allowed[tolerance] = np.broadcast_to(
                self._rows(allowed_error(self._op, launcher, self._inputs)), self._expected.shape)
        return compare(out[self._chosen], self._expected, self._allowed[tolerance])


def check_sample(op: Op, inputs: tuple, out: np.ndarray, *, seed: int = 0, budget: int = 2**20,
                 launcher: Callable | Rival | None = None) -> Verdict:
    """As compare, on a Sample that serves this one result."""
    return Sample(op, inputs, seed=seed, budget=budget, shape=out.shape).check(out, launcher)
