"""Ladders: every rung of an operation and its baselines, checked and timed at one size.

    ladder(MATMUL)                     measured here
    recorded_ladder("matmul")          as recorded on a GPU

A row below 1 ms has two times on a GPU: `timing`, of single launches from Python with cold caches, and `graph`, of a
launch among many in a CUDA graph. Tables compare `ms`, which is the second where there is one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from labkit import cuda, device
from labkit._common.tables import PlainTable, ResultTable, number, size_text
from labkit.device import CPU_DEVICE, launches, where
from labkit.kernels.agree import Sample, Verdict, poison, poison_of, to_device
from labkit.kernels.baselines import COMPILED, Baseline, forms
from labkit.kernels.op import Op, Rung
from labkit.measure import roofline
from labkit.measure.machine import import_library, machine
from labkit.measure.recorded import recorded
from labkit.measure.timing import (
    GRAPH_LAUNCHES,
    HOST_CPU,
    SMALL_MS,
    Timing,
    graph_launches,
    on_torchs_stream,
    steps,
    time_graph,
    time_host,
    time_kernel,
    time_torch_graph,
)

SLOW_HOST_S = 1.0  # a run of NumPy that takes longer is its own warm-up
TORCH_TENSORS = ("torch", "triton")  # libraries that take PyTorch's tensors and run on its current stream
SMALL_MS_OF_MANY = 10.0  # an operation of many launches below this is, too: most of its time may be Python's


@dataclass(frozen=True)
class LadderRow:
    """One rung or baseline. Rates and the fraction of the limit, which are those of `timing`, are None where they would
    not be a GPU's. Of an operation of many launches `timing` is its time in a graph, and `called` that from Python."""

    name: str
    idea: str
    kind: str  # "rung", "baseline" (a library on the GPU) or "host" (NumPy)
    timing: Timing
    graph: Timing | None = None
    called: Timing | None = None
    gbs: float | None = None
    tflops: float | None = None
    fraction: float | None = None
    error: float = 0.0
    error_units: float = 0.0  # in tolerances
    failed: str = ""
    kernels: tuple[str, ...] = ()
    resources: tuple[dict, ...] = ()  # one for each kernel, as launches.resources gives them; empty without a GPU

    @property
    def ms(self) -> float:
        """Milliseconds as tables compare them: in a CUDA graph where it was timed in one, p50."""
        return (self.graph or self.timing).p50


@dataclass(frozen=True, repr=False)
class Ladder(ResultTable):
    """Every rung and baseline of an operation, timed at one size on one machine."""

    op: str
    title: str
    size: dict
    unit: str
    where: str
    flops: int
    bytes: int
    bound_ms: float
    binds: str  # "bytes" or "flops"
    limit: float  # in `unit`: what the hardware would reach at the bound
    limit_label: str
    rows: tuple[LadderRow, ...]
    limits: dict = field(default_factory=dict)  # roofline.Limits
    machine: dict = field(default_factory=dict)
    peak: str = "fp32"  # the units that bound the flops, as Work.peak
    skipped: dict = field(default_factory=dict)  # name -> why it was not timed

    @property
    def on_gpu(self) -> bool:
        return self.where != CPU_DEVICE

    @property
    def rungs(self) -> tuple[LadderRow, ...]:
        return tuple(row for row in self.rows if row.kind == "rung")

    @property
    def baselines(self) -> tuple[LadderRow, ...]:
        return tuple(row for row in self.rows if row.kind != "rung")

    def row(self, name: str) -> LadderRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(f"the ladder has no row {name!r}; it has {', '.join(row.name for row in self.rows)}")

    def only(self, *rungs: str) -> Ladder:
        """The same measurement with these rungs alone, and every baseline."""
        for name in rungs:
            self.row(name)
        return replace(self, rows=tuple(row for row in self.rows if row.kind != "rung" or row.name in rungs))

    def rate_in(self, ms: float) -> float:
        """GB/s or TFLOP/s of so many milliseconds."""
        return self.bytes / ms / 1e6 if self.unit == "GB/s" else self.flops / ms / 1e9

    @property
    def fits_the_cache(self) -> bool:
        """Whether all that it reads and writes fits into the GPU's L2 cache, where a graph's launches find it."""
        return self.bytes <= self.machine.get("l2_mb", 0) * 2**20

    def rate(self, row: LadderRow) -> float | None:
        """GB/s or TFLOP/s, whichever this operation is measured in."""
        return row.gbs if self.unit == "GB/s" else row.tflops

    def table(self) -> dict:
        first_ms = self.rungs[0].timing.p50 if self.rungs else None
        called = any(row.called for row in self.rows)
        notes = [f"p50 of the runs, in ms. {_taken(self.where)}"]
        rows = []
        if self.on_gpu:
            columns = ["", "ms", "p5 to p95", "from Python" if called else "in a graph", self.unit, "of the limit",
                       "speed-up", "error"]
            notes.append(f"Limit: {number(self.limit)} {self.unit} ({self.limit_label}).")
            if called:
                notes.append("Where a time from Python is given as well, the first is one in a CUDA graph.")
            elif any(row.graph for row in self.rows):
                notes.append("In a graph no launch waits for Python, and the inputs stay in the cache.")
        else:
            columns = ["", "ms", "p5 to p95", "speed-up", "error"]
        notes.append("Speed-up is over the first rung. Error is the largest, in units of the allowed one.")
        for row in self.rows:
            t = row.timing
            cells = [row.name, number(t.p50), f"{number(t.p5)} to {number(t.p95)}"]
            if self.on_gpu:
                other = row.called if called else row.graph
                cells += [number(other.p50 if other else None), number(self.rate(row)),
                          "-" if row.fraction is None else f"{row.fraction:.0%}"]
            cells += ["-" if first_ms is None else number(first_ms / t.p50), f"{row.error_units:.2f}"]
            rows.append(cells)
            if row.failed:
                notes.append(f"{row.name} failed: {row.failed}")
        notes.extend(f"{name} was not timed: {why}" for name, why in self.skipped.items())
        return {"title": f"{self.title}, {size_text(self.size)}", "columns": columns, "rows": rows, "notes": notes}

    def resources_table(self) -> PlainTable:
        """Registers, spills, shared memory and occupancy of each rung's kernels, as compiled for the GPU."""
        rows = [[row.name, one["kernel"].removesuffix("_kernel"), " x ".join(str(n) for n in one["block"]),
                 str(one["registers"]), f"{one['local_bytes']:,}", f"{one['shared_bytes']:,}",
                 number(one["blocks_per_sm"]), "-" if one["occupancy"] is None else f"{one['occupancy']:.0%}"]
                for row in self.rungs for one in row.resources]
        notes = ["Local memory: bytes a thread keeps outside its registers, spills among them.",
                 "Occupancy: threads that a multiprocessor holds at once, of the most it can hold.", _taken(self.where)]
        if not rows:
            notes = ["Registers and occupancy are a GPU's; the CPU device has none. "
                     "measure.recorded_ladder(...).resources_table() shows a recorded GPU's."]
        return PlainTable(f"{self.title}: what each kernel takes",
                          ("rung", "kernel", "block", "registers", "local bytes", "shared bytes", "blocks per SM",
                           "occupancy"), tuple(tuple(row) for row in rows), tuple(notes), kind="resources")

    def result(self) -> dict:
        return {"kind": "ladder", "op": self.op, "kernels": [name for row in self.rungs for name in row.kernels],
                "size": self.size, "where": self.where, "passed": True,
                "rows": [{"name": row.name, "p50_ms": row.timing.p50, "fraction": row.fraction} for row in self.rows]}

    def to_json(self) -> dict:
        return json.loads(json.dumps(asdict(self)))  # tuples become lists now, not in the file

    @classmethod
    def from_json(cls, data: dict) -> Ladder:
        def timing(value):
            return None if value is None else Timing(**value)

        kinds = {"rival": "baseline"}  # recordings keep an earlier word
        rows = tuple(LadderRow(**{"idea": "", **row, "kind": kinds.get(row["kind"], row["kind"]),
                                  **{name: timing(row.get(name)) for name in ("timing", "graph", "called")},
                                  **{name: tuple(row.get(name, ())) for name in ("kernels", "resources")}})
                     for row in data["rows"])
        return cls(**{**data, "rows": rows})


def _taken(where: str) -> str:
    return f"{where}." if where == CPU_DEVICE else f"Measured on {where}."


def recorded_ladder(op: Op | str, size: dict | None = None, gpu: str | None = None) -> Ladder | None:
    """The ladder of an operation as recorded on a GPU, at `size` or else at the op's own; None if there is none."""
    name = op if isinstance(op, str) else op.name
    data = recorded(gpu, "ops", name)
    entries = [] if data is None else data.get("ops", {}).get(name, [])
    if size is not None:
        entries = [entry for entry in entries if entry["size"] == size]
    return Ladder.from_json(entries[0]) if entries else None


def days(ladders: Iterable[Ladder]) -> str:
    """Return the dates on which ladders were measured: "2026-11-20 and 2026-11-21". Empty where none is known."""
    return " and ".join(sorted({one.machine["date"] for one in ladders if one.machine.get("date")}))


def ladder(op: Op, size: dict | None = None, *, baselines: bool = True, compiled: bool = False, rungs=None,
           seed: int = 0, budget_s: float = 0.15, limits=None) -> Ladder:
    """Times every rung of `op` and its baselines at one size, and checks each result at that size.

    size: axis lengths such as {"n": 10_000_000}; the op's own for the present device if left out. compiled: also what
    torch.compile makes of PyTorch's baselines, at up to a minute each; `labkit bench` does so, and lessons quote it.
    A rung whose result is wrong raises AssertionError: the time of a wrong result means nothing. A rung that the device
    or the size does not allow is left out and named, and so is a baseline that fails.
    """
    size = dict(op.work.timed if size is None else size)
    launchers = [op.rung(r) if isinstance(r, str) else r for r in (op.rungs if rungs is None else rungs)]
    contest = _Contest(op, size, seed, budget_s, limits)
    rows: list[LadderRow] = []
    skipped: dict[str, str] = {}
    for launcher in steps(f"{op.name}: rung", launchers):
        if launcher.missing:
            skipped[launcher.__name__] = launcher.missing
            continue
        try:
            verdict = contest.check_rung(launcher)
        except ValueError as error:
            if not launcher.sizes:
                raise
            skipped[launcher.__name__] = f"it allows {launcher.sizes} only: {error}"
            continue
        rows.append(contest.time_rung(launcher, verdict))
    for baseline in steps(f"{op.name}: baseline", baselines_of(op, compiled=compiled) if baselines else []):
        try:
            rows.append((contest.time_on_host if baseline.library == "numpy" else contest.time_library)(baseline))
        except Exception as error:  # a baseline that fails is left out, and named
            skipped[baseline.title] = f"{type(error).__name__}: {error}"
            print(f"{baseline.title} was not measured: {type(error).__name__}: {error}", file=sys.stderr)

    bound = contest.bound
    return Ladder(op.name, op.title, size, op.work.unit, where(), bound.flops, bound.bytes, bound.time_ms,
                  bound.binds, bound.rate(op.work.unit), bound.label, tuple(rows),
                  asdict(bound.limits), machine(), op.work.peak, skipped)


class _Contest:
    """One operation at one size: the inputs that every rung and baseline reads, the output that they write, and how
    each of them is checked and timed."""

    def __init__(self, op: Op, size: dict, seed: int, budget_s: float, limits):
        self.op, self.size, self.budget_s = op, size, budget_s
        self.bound = roofline.bound(op, size, limits)
        self.inputs = op.inputs(np.random.default_rng(seed), **size)
        self.on_device = to_device(self.inputs)
        self.out = cuda.device_array(op.shape(**size), op.dtype)
        self.host = cuda.pinned_array(op.shape(**size), op.dtype)  # what the device computed: copied in at full speed
        self.host[...] = poison_of(op.dtype)
        self.poison = cuda.to_device(self.host)
        self.sample = Sample(op, self.inputs, seed=seed, shape=tuple(op.shape(**size)))

    def check_rung(self, launcher: Rung) -> Verdict:
        """Run a rung once. Raises AssertionError if its result is wrong, ValueError if it refuses the size."""
        self.out.copy_to_device(self.poison)
        launcher(*self.on_device, self.out, stream=0)
        cuda.synchronize()
        return self._judged(launcher.__name__, self.out.copy_to_host(self.host), launcher)

    def time_rung(self, launcher: Rung, verdict: Verdict) -> LadderRow:
        def run(stream=0):
            launcher(*self.on_device, self.out, stream=stream)

        timing = time_kernel(run, budget_s=self.budget_s)
        graph = time_graph(run, launches=self._launches_in_graph(timing)) if self._is_small(timing) else None
        launched = launches.of(launcher, *self.on_device, self.out) if device.on_gpu() else []
        return self._row(launcher.__name__, launcher.idea, "rung", timing, verdict, graph, failed=launcher.failed,
                         kernels=launcher.kernel_names, resources=tuple(launches.resources(one) for one in launched))

    def time_on_host(self, baseline: Baseline) -> LadderRow:
        """NumPy, which runs once before it is timed, to be checked."""
        out, library = poison(self.host.shape, self.op.dtype), import_library(baseline.library)
        call = baseline.bound(library, *self.inputs, out)
        begin = time.perf_counter()
        returned = call()
        first_s = time.perf_counter() - begin
        verdict = self.sample.check(out if returned is None else np.asarray(returned), baseline)
        if verdict.problem:
            raise AssertionError(verdict.problem)
        if device.on_gpu() and first_s > SLOW_HOST_S:  # a second run would give the same result
            timing = Timing.of([1000 * first_s], HOST_CPU)
        else:
            timing = time_host(call, budget_s=self.budget_s, min_runs=1 if device.on_gpu() else 5, warm_up=False)
        return self._row(baseline.title, "", "host", timing, verdict)

    def time_library(self, baseline: Baseline) -> LadderRow:
        """A library on the GPU, on the same memory."""
        library, arguments = import_library(baseline.library), hand_over(baseline.library, *self.on_device, self.out)
        self.out.copy_to_device(self.poison)
        call = baseline.bound(library, *arguments)
        with baseline.within(library):
            result = call()
            cuda.synchronize()
            verdict = self._judged(baseline.title, _fetch(result, self.out, self.host), baseline)
            timing = time_kernel(call, budget_s=self.budget_s)
            graph = None
            if self._is_small(timing):
                call = on_torchs_stream(call) if baseline.library == "cupy" else call
                graph = time_torch_graph(call, launches=self._launches_in_graph(timing))
        return self._row(baseline.title, "", "baseline", timing, verdict, graph)

    def _judged(self, name: str, result: np.ndarray, one: Rung | Baseline) -> Verdict:
        verdict = self.sample.check(result, one)
        if verdict.problem:
            raise AssertionError(f"{name} at {size_text(self.size)}: {verdict.problem}")
        return verdict

    def _is_small(self, timing: Timing) -> bool:
        """Whether it should be timed in a graph as well."""
        return timing.p50 < (SMALL_MS_OF_MANY if self.op.work.many_launches else SMALL_MS)

    def _launches_in_graph(self, timing: Timing) -> int:
        return GRAPH_LAUNCHES if self.op.work.many_launches else graph_launches(timing.p50)

    def _row(self, name: str, idea: str, kind: str, timing: Timing, verdict: Verdict, graph: Timing | None = None,
             **more) -> LadderRow:
        called = None
        if self.op.work.many_launches and graph is not None:
            timing, called = graph, timing
        rates = {}
        if device.on_gpu():
            rates = {"gbs": self.op.work.bytes(**self.size) / timing.p50 / 1e6,
                     "tflops": self.op.work.flops(**self.size) / timing.p50 / 1e9}
            if kind != "host":
                rates["fraction"] = self.bound.time_ms / timing.p50
        return LadderRow(name, idea, kind, timing, graph, called, **rates, error=verdict.error,
                         error_units=verdict.units, **more)


def baselines_of(op: Op, *, compiled: bool = True) -> list[Baseline]:
    """The op's baselines where their libraries are installed, with what torch.compile makes of them if asked for;
    without a GPU NumPy's alone."""
    return [form for one in op.baselines if (one.library == "numpy" or device.on_gpu()) and import_library(one.library)
            for form in forms(one) if compiled or COMPILED not in form.title]


def hand_over(library: str, *values) -> list:
    """Device arrays as CuPy's arrays or PyTorch's tensors on the same memory, uint16 as bfloat16; numbers stay."""
    return [_on_same_memory(library, value) for value in values]


def _on_same_memory(library: str, value):
    """A device array as CuPy's array or PyTorch's tensor, on the same memory; uint16 as bfloat16. Numbers stay."""
    if not device.on_gpu() or not hasattr(value, "__cuda_array_interface__"):
        return value
    if library not in TORCH_TENSORS:
        return import_library(library).asarray(value)
    torch = import_library("torch")
    if value.dtype == np.uint16:
        return torch.as_tensor(value.view(np.int16), device="cuda").view(torch.bfloat16)
    return torch.as_tensor(value, device="cuda")


def _fetch(result, out, host: np.ndarray) -> np.ndarray:
    """What a baseline computed, on the host: what it returned, parts one after the other, or what it wrote into out,
    which goes to `host`."""
    if result is None or result is out:
        return out.copy_to_host(host)
    if isinstance(result, tuple):
        result = import_library("torch").cat([part.reshape(-1) for part in result])
    if hasattr(result, "cpu"):  # a tensor
        torch = import_library("torch")
        if result.dtype == torch.bfloat16:
            return result.contiguous().view(torch.int16).cpu().numpy().view(np.uint16).reshape(out.shape)
        if result.numel() == host.size and str(result.dtype) == f"torch.{host.dtype}":
            torch.from_numpy(host).copy_(result.reshape(host.shape))
            return host
        return result.cpu().numpy().reshape(out.shape)
    if hasattr(result, "get"):  # CuPy's
        fits = result.shape == host.shape and result.dtype == host.dtype and result.flags.c_contiguous
        result = result.get(out=host) if fits else result.get()
    return np.asarray(result).reshape(out.shape)
