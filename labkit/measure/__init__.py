"""Timing: how long a launch takes, on what, and against whom.

    ladder(MATMUL)                     every rung and its baselines, checked and timed
    time_kernel(lambda: launch(...))   p5, p50, p95 in milliseconds, and where they were taken
    time_copy(nbytes)                  host to device and back

On a GPU a kernel is timed by one pair of CUDA events for each run. Before each run a buffer much larger than the L2
cache is written. That has two effects: no input is left in the cache, and the GPU is busy while Python enqueues the
events and the launch, so the events bracket the kernel and not Python (which takes about 50 us for a launch). Compile
time is left out. On the CPU device the time is the wall clock around launch and synchronise, and every result says so.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from labkit import cuda, device
from labkit._common import paths
from labkit._common.tables import PlainTable, ResultTable, number, size_text
from labkit.device import CPU_DEVICE, graphs, launches, where
from labkit.kernels.agree import Sample, poison, to_device
from labkit.kernels.baselines import Baseline
from labkit.kernels.op import Op

RECORDED = paths.MEASUREMENTS
FLUSH_BYTES = 512 * 2**20  # ten times the L2 of an H200; written in about 0.15 ms there
GRAPH_LAUNCHES = 20
SMALL_MS = 1.0  # a kernel below this is timed in a graph, too
SMALL_MS_OF_MANY = 10.0  # and an operation of many launches, most of whose time may be Python's


# --- Timings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Percentiles over `runs` runs, in milliseconds."""

    p5: float
    p50: float
    p95: float
    runs: int
    where: str

    @classmethod
    def of(cls, times_ms, where: str) -> Timing:
        p5, p50, p95 = (float(p) for p in np.percentile(times_ms, (5, 50, 95)))
        return cls(p5, p50, p95, len(times_ms), where)

    def __str__(self) -> str:
        return (f"{number(self.p50)} ms (p5 {number(self.p5)}, p95 {number(self.p95)}; {self.runs} runs; "
                f"{self.where})")


def time_kernel(launch: Callable[[], None], *, budget_s: float = 0.6, min_runs: int = 5, max_runs: int = 100,
                flush: bool = True) -> Timing:
    """Times `launch()`, which enqueues work on the default stream: for about `budget_s`, at least `min_runs` times."""
    if not device.on_gpu():
        return time_host(launch, where=CPU_DEVICE, after=cuda.synchronize, budget_s=budget_s, min_runs=min_runs,
                         max_runs=max_runs)
    launch()  # compiles
    cuda.synchronize()
    begin = time.perf_counter()
    launch()
    cuda.synchronize()
    once = time.perf_counter() - begin
    runs = int(np.clip(budget_s / once, min_runs, max_runs))
    pairs = [(cuda.event(), cuda.event()) for _ in range(runs)]
    for start, stop in pairs:
        if flush:
            flush_cache()
        start.record()
        launch()
        stop.record()
    cuda.synchronize()
    return Timing.of([cuda.event_elapsed_time(start, stop) for start, stop in pairs], device.name())


def time_host(call: Callable[[], object], *, where: str = "host CPU", after: Callable[[], object] | None = None,
              budget_s: float = 0.6, min_runs: int = 5, max_runs: int = 100, warm_up: bool = True) -> Timing:
    """Wall clock around `call()` and, if given, `after()`. One run before the clock starts, if it has not run yet."""
    def once() -> float:
        begin = time.perf_counter()
        call()
        if after is not None:
            after()
        return time.perf_counter() - begin

    if warm_up:
        once()
    times = []
    while len(times) < min_runs or (sum(times) < budget_s and len(times) < max_runs):
        times.append(once())
    return Timing.of([1000 * t for t in times], where)


@cuda.jit
def fill_kernel(buffer, value):
    i = cuda.grid(1)
    if i < buffer.size:
        buffer[i] = value


@functools.cache
def _flush_buffer():
    return cuda.device_array(FLUSH_BYTES // 4, np.float32)


def flush_cache() -> None:
    """Pushes everything else out of the GPU's L2 cache by writing FLUSH_BYTES. Returns while the GPU still writes."""
    buffer = _flush_buffer()
    fill_kernel[-(-buffer.size // 256), 256](buffer, np.float32(1.0))


def time_graph(launch: Callable, *, launches: int = GRAPH_LAUNCHES, runs: int = 20) -> Timing | None:
    """Time of one launch inside a CUDA graph of `launches`, where Python takes no part. The inputs stay in the cache.

    `launch(stream)` must launch on that stream. None without a GPU, or where the launch cannot be captured: then it was
    not measured.
    """
    if not device.on_gpu():
        return None

    def many(stream):
        for _ in range(launches):
            launch(stream)

    try:
        graph = graphs.capture(many)
    except Exception as error:  # one rung that cannot be captured must not end the measurement of the others
        print(f"not measured in a graph: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return _time_replay(graph.launch, launches, runs)


def time_torch_graph(call: Callable[[], object], *, launches: int = GRAPH_LAUNCHES, runs: int = 20) -> Timing | None:
    """As time_graph, for a call into PyTorch (or Triton): captured by torch.cuda.CUDAGraph."""
    torch = import_library("torch") if device.on_gpu() else None
    if torch is None:
        return None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose their kernels and allocate their workspace before the capture
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            for _ in range(launches):
                call()
    except Exception as error:
        print(f"not measured in a graph: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return _time_replay(graph.replay, launches, runs)


def _time_replay(replay: Callable[[], object], launches: int, runs: int) -> Timing:
    """The replay before each timed one keeps the GPU busy while Python enqueues the events and the graph."""
    times = []
    for _ in range(runs + 2):
        start, stop = cuda.event(), cuda.event()
        replay()
        start.record()
        replay()
        stop.record()
        cuda.synchronize()
        times.append(cuda.event_elapsed_time(start, stop) / launches)
    return Timing.of(times[2:], f"{device.name()}, in a CUDA graph")


def _graph_launches(once_ms: float) -> int:
    """So many that one replay takes about 2 ms: long beside what it costs to start it."""
    return int(np.clip(2.0 / once_ms, 4, 100))


def time_launch(launch: Callable[[], None], *, launches: int = 200) -> Timing:
    """What the caller pays for one launch: wall clock of many launches in a row, over their number."""
    launch()
    cuda.synchronize()
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(launches):
            launch()
        cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin) / launches)
    return Timing.of(times, where())


def time_copy(nbytes: int = 2**28) -> dict[str, dict]:
    """Copies between host and device: {"h2d_pageable": {"p50": ms, ..., "gbs": GB/s}, "h2d_pinned", "d2h_...", ...}.

    Pageable is memory as NumPy allocates it; pinned memory stays where it is, so the GPU can read it by itself.
    """
    count = nbytes // 4
    on_device = cuda.device_array(count, np.float32)
    pageable = np.ones(count, np.float32)
    pinned = cuda.pinned_array(count, np.float32)
    pinned[:] = 1.0
    found = {}
    for kind, host in (("pageable", pageable), ("pinned", pinned)):
        for direction, copy in (("h2d", lambda host=host: on_device.copy_to_device(host)),
                                ("d2h", lambda host=host: on_device.copy_to_host(host))):
            timing = time_host(copy, where=where(), after=cuda.synchronize, budget_s=0.3, max_runs=20)
            found[f"{direction}_{kind}"] = {**asdict(timing), "gbs": 4 * count / timing.p50 / 1e6}
    return found


# --- The machine ---------------------------------------------------------------------------------------------------


def stamped(series: dict) -> dict:
    """A series with where and when it was taken."""
    return {**series, "where": where(), "date": datetime.date.today().isoformat()}


def machine() -> dict:
    """What a measurement depends on: GPU, driver, versions, date."""
    facts = {"device": device.name(), "kind": device.kind(), "date": datetime.date.today().isoformat(),
             "python": platform.python_version(), "host": f"{platform.machine()}, {os.cpu_count()} cores"}
    for package in ("labkit", "numba", "numba-cuda", "numpy", "torch", "cupy", "triton"):
        facts[package] = _version(package)
    if device.on_gpu():
        gpu = cuda.get_current_device()
        facts["gpu"] = device.name()
        facts["compute_capability"] = ".".join(str(part) for part in gpu.compute_capability)
        facts["sms"] = gpu.MULTIPROCESSOR_COUNT
        facts["l2_mb"] = round(getattr(gpu, "L2_CACHE_SIZE", 0) / 2**20)
        facts["cuda_driver"] = _dotted(cuda.cudadrv.driver.driver.get_version)
        facts["cuda_runtime"] = _dotted(cuda.runtime.get_version)
        facts["driver"] = _nvidia_smi("driver_version")
    return facts


def _version(package: str) -> str | None:
    names = [package, "cupy-cuda13x", "cupy-cuda12x"] if package == "cupy" else [package]
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    module = sys.modules.get(package)
    return getattr(module, "__version__", None)


def _dotted(get_version: Callable) -> str | None:
    try:
        return ".".join(str(part) for part in get_version())
    except Exception:  # a library that is not there: the fact is unknown, the measurement stands
        return None


def _nvidia_smi(query: str) -> str | None:
    try:
        run = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True,
                             text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.splitlines()[0].strip() if run.stdout.strip() else None


def slug(name: str) -> str:
    """"NVIDIA H200" -> "nvidia-h200": a file's name."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


@functools.cache
def import_library(name: str):
    """numpy, cupy or torch; None where it is not installed, or sees no GPU."""
    try:
        module = importlib.import_module(name)
        if name == "torch":
            if not module.cuda.is_available():
                return None
            module.backends.cuda.matmul.allow_tf32 = False  # float32 means float32 for everyone
        return module
    except Exception:  # a broken install of a baseline must not stop the measurement
        return None


# --- Recorded measurements -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def _read(path: Path, modified: float) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def recorded(gpu: str | None = None) -> dict | None:
    """The measurements recorded on a GPU, as bench wrote them; None if there are none.

    Of several files: the one named, else the present GPU's, else the H200's, else the newest.
    """
    files = {path.stem: path for path in sorted(RECORDED.glob("*.json"))}
    if not files:
        return None
    if gpu is not None:
        if slug(gpu) not in files:
            raise ValueError(f"no measurements of {gpu!r} are recorded; there are {', '.join(files)}")
        path = files[slug(gpu)]
    else:
        wanted = [slug(device.name()), "nvidia-h200"]
        path = next((files[w] for w in wanted if w in files), None)
        path = path or max(files.values(), key=lambda p: p.stat().st_mtime)
    return _read(path, path.stat().st_mtime)


def recorded_ladder(op: Op | str, size: dict | None = None, gpu: str | None = None) -> Ladder | None:
    """The ladder of an operation as recorded on a GPU, at `size` or else at the op's own; None if there is none."""
    data = recorded(gpu)
    name = op if isinstance(op, str) else op.name
    found = [] if data is None else data.get("ops", {}).get(name, [])
    if size is not None:
        found = [entry for entry in found if entry["size"] == size]
    return Ladder.from_json(found[0]) if found else None


def recorded_series(name: str, gpu: str | None = None) -> dict | None:
    """A series that bench recorded on a GPU, such as "vector_add_sizes"; None if there is none."""
    data = recorded(gpu)
    return None if data is None else data.get("series", {}).get(name)


def recorded_beside(series: dict, name: str, recorded: dict | None | str = "auto") -> dict | None:
    """What to show beside a series: `recorded`, or, if that is "auto", a GPU's recording of `name` where the series is
    the CPU device's."""
    if recorded != "auto":
        return recorded
    return recorded_series(name) if series["where"] == CPU_DEVICE else None


def days(ladders: Iterable[Ladder]) -> str:
    """The days on which ladders were measured: "2026-11-20 and 2026-11-21". Empty where none is known."""
    return " and ".join(sorted({one.machine["date"] for one in ladders if one.machine.get("date")}))


# --- Ladders -------------------------------------------------------------------------------------------------------


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

    def rate(self, row: LadderRow) -> float | None:
        """GB/s or TFLOP/s, whichever this operation is measured in."""
        return row.gbs if self.unit == "GB/s" else row.tflops

    def table(self) -> dict:
        first = self.rungs[0].timing.p50 if self.rungs else None
        called = any(row.called for row in self.rows)
        notes = [f"p50 of the runs, in ms. {_place(self.where)}"]
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
            cells += ["-" if first is None else number(first / t.p50), f"{row.error_units:.2f}"]
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
                 "Occupancy: threads that a multiprocessor holds at once, of the most it can hold.", _place(self.where)]
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
        rows = tuple(LadderRow(**{**row, "kind": kinds.get(row["kind"], row["kind"]),
                                  **{name: timing(row.get(name)) for name in ("timing", "graph", "called")},
                                  "kernels": tuple(row["kernels"]), "resources": tuple(row.get("resources", ()))})
                     for row in data["rows"])
        return cls(**{**data, "rows": rows})


def _place(where: str) -> str:
    return f"{where}." if where == CPU_DEVICE else f"Measured on {where}."


def steps(label: str, items: list) -> Iterator:
    """Goes through `items` and says on the terminal which one is running. Silent in a pipe or a notebook."""
    show = sys.stderr.isatty()
    for position, item in enumerate(items, 1):
        if show:
            name = item if isinstance(item, str) else getattr(item, "__name__", "")
            print(f"\r\033[K{label} {position}/{len(items)} {name}", end="", file=sys.stderr, flush=True)
        yield item
    if show:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def ladder(op: Op, size: dict | None = None, *, baselines: bool = True, rungs=None, seed: int = 0,
           budget_s: float = 0.6, limits=None) -> Ladder:
    """Times every rung of `op` and its baselines at one size, and checks each result at that size.

    size: axis lengths such as {"n": 10_000_000}; the op's own for the present device if left out.
    A rung whose result is wrong raises AssertionError: the time of a wrong answer means nothing. A rung that the device
    or the size does not allow is left out and named, and so is a baseline that fails.
    """
    from labkit.measure import roofline  # roofline times with this module

    size = dict(op.work.timed if size is None else size)
    launchers = [op.rung(r) if isinstance(r, str) else r for r in (op.rungs if rungs is None else rungs)]
    bound = roofline.bound(op, size, limits)
    inputs = op.inputs(np.random.default_rng(seed), **size)
    on_device = to_device(inputs)
    out = cuda.device_array(op.shape(**size), op.dtype)
    unwritten = poison(op.shape(**size), op.dtype)
    skipped: dict[str, str] = {}
    sample = Sample(op, inputs, seed=seed, shape=tuple(op.shape(**size)))
    small = SMALL_MS_OF_MANY if op.work.many_launches else SMALL_MS

    def graph_launches(timing: Timing) -> int:
        return GRAPH_LAUNCHES if op.work.many_launches else _graph_launches(timing.p50)

    def checked(name: str, run: Callable[[], object], fetch: Callable[[object], np.ndarray], launcher):
        out.copy_to_device(unwritten)
        result = run()
        cuda.synchronize()
        verdict = sample.check(fetch(result), launcher)
        if verdict.problem:
            raise AssertionError(f"{name} at {size_text(size)}: {verdict.problem}")
        return verdict

    def row(name, idea, kind, timing, verdict, graph=None, **more) -> LadderRow:
        called = None
        if op.work.many_launches and graph is not None:
            timing, called = graph, timing
        gbs = op.work.bytes(**size) / timing.p50 / 1e6
        tflops = op.work.flops(**size) / timing.p50 / 1e9
        is_gpu = device.on_gpu() and kind != "host"
        return LadderRow(name, idea, kind, timing, graph, called, gbs=gbs if device.on_gpu() else None,
                         tflops=tflops if device.on_gpu() else None,
                         fraction=bound.time_ms / timing.p50 if is_gpu else None,
                         error=verdict.error, error_units=verdict.units, **more)

    rows = []
    for launcher in steps(f"{op.name}: rung", launchers):
        name = launcher.__name__
        if launcher.missing:
            skipped[name] = launcher.missing
            continue

        def run(stream=0, launcher=launcher):
            launcher(*on_device, out, stream=stream)

        try:
            verdict = checked(name, run, lambda _: out.copy_to_host(), launcher)
        except ValueError as error:
            if not launcher.sizes:
                raise
            skipped[name] = f"it allows {launcher.sizes} only: {error}"
            continue
        timing = time_kernel(run, budget_s=budget_s)
        graph = time_graph(run, launches=graph_launches(timing)) if timing.p50 < small else None
        taken = [launches.resources(one) for one in launches.of(launcher, *on_device, out)] if device.on_gpu() else []
        rows.append(row(name, launcher.idea, "rung", timing, verdict, graph=graph, failed=launcher.failed,
                        kernels=launcher.kernel_names, resources=tuple(taken)))
    for baseline in steps(f"{op.name}: baseline", baselines_of(op) if baselines else []):
        xp = import_library(baseline.library)
        try:
            if baseline.library == "numpy":
                host_out = unwritten.copy()
                call = functools.partial(baseline.call, xp, *inputs, host_out)
                returned = call()
                verdict = sample.check(host_out if returned is None else np.asarray(returned), baseline)
                if verdict.problem:
                    raise AssertionError(verdict.problem)
                timing = time_host(call, budget_s=budget_s, min_runs=1 if device.on_gpu() else 5, warm_up=False)
                rows.append(row(baseline.title, "", "host", timing, verdict))
                continue
            theirs = hand_over(baseline.library, *on_device, out)
            call = functools.partial(baseline.call, xp, *theirs)
            verdict = checked(baseline.title, call, lambda result: _fetch(result, out), baseline)
            timing = time_kernel(call, budget_s=budget_s)
            graph = None
            if timing.p50 < small and baseline.library in TORCH_TENSORS:
                graph = time_torch_graph(call, launches=graph_launches(timing))
            rows.append(row(baseline.title, "", "baseline", timing, verdict, graph=graph))
        except Exception as error:  # a baseline that fails is left out, and named
            skipped[baseline.title] = f"{type(error).__name__}: {error}"
            print(f"{baseline.title} was not measured: {type(error).__name__}: {error}", file=sys.stderr)

    return Ladder(op.name, op.title, size, op.work.unit, where(), bound.flops, bound.bytes, bound.time_ms,
                  bound.binds, bound.rate(op.work.unit), bound.label, tuple(rows),
                  asdict(bound.limits), machine(), op.work.peak, skipped)


TORCH_TENSORS = ("torch", "triton")  # libraries that take PyTorch's tensors and run on its current stream


def baselines_of(op: Op) -> list[Baseline]:
    """The op's baselines whose libraries are installed; without a GPU NumPy's alone."""
    return [one for one in op.baselines if (one.library == "numpy" or device.on_gpu()) and import_library(one.library)]


def hand_over(library: str, *values) -> list:
    """Device arrays as CuPy's arrays or PyTorch's tensors on the same memory, uint16 as bfloat16; numbers stay."""
    return [_hand_over(library, value) for value in values]


def _hand_over(library: str, value):
    """A device array as CuPy's array or PyTorch's tensor, on the same memory; uint16 as bfloat16. Numbers stay."""
    if not hasattr(value, "__cuda_array_interface__"):
        return value
    if library not in TORCH_TENSORS:
        return import_library(library).asarray(value)
    torch = import_library("torch")
    if value.dtype == np.uint16:
        return torch.as_tensor(value.view(np.int16), device="cuda").view(torch.bfloat16)
    return torch.as_tensor(value, device="cuda")


def _fetch(result, out) -> np.ndarray:
    """What a baseline computed, on the host: what it returned, or what it wrote into out."""
    if result is None or result is out:
        return out.copy_to_host()
    if hasattr(result, "cpu"):  # a tensor
        result = result.contiguous()
        if str(result.dtype) == "torch.bfloat16":
            return result.view(import_library("torch").int16).cpu().numpy().view(np.uint16).reshape(out.shape)
        return result.cpu().numpy().reshape(out.shape)
    return np.asarray(result.get() if hasattr(result, "get") else result).reshape(out.shape)
