"""Would it run there? What a kernel takes of each GPU that learners have, without one.

    fits(kernel, gpu="t4, rtx3060", types="float32[::1], float32[::1]", block=256)    # a table, a row for each GPU
    fits("softmax_online", gpu="t4", size={"R": 4096, "C": 1000})                     # a rung, as its launcher calls it
    launches_for(op, rung, size, GPUS["t4"])                                          # what a rung launches there

Registers, spills and refused instructions are those of ptxas, for each GPU's own machine code. Times are the least that
the data sheet allows.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from labkit._common.cores import cores
from labkit._common.errors import UserError, did_you_mean, names_like
from labkit._common.tables import ResultTable, number, size_text, table
from labkit.device import compiling, gpus, launches, needs, occupancy
from labkit.device.gpus import GPU, GPUS
from labkit.kernels.op import Op, Rung
from labkit.measure import ops, own_kernel, unfilled
from labkit.simt.errors import file_label
from labkit.simt.ptx import INTRINSICS

USUAL = ("t4", "rtx3060", "rtx4090", "rtx5090", "l4", "a100", "h100", "b200")


class NotInstalled(UserError):
    """NVIDIA's compiler is missing; the message has the command that installs it."""


# --- Which launches ---------------------------------------------------------------------------------------------------


def launches_for(op: Op, rung: Rung, size: dict, gpu: GPU) -> list[launches.Launch]:
    """What a rung launches at a size on this GPU, each kernel, shape and type once: nothing is compiled, filled or run.

    Raises ValueError where the launcher refuses the size, or the GPU.
    """
    arguments = _arguments(op, tuple(size.items()))
    with gpus.plan_for(gpu):
        if rung.missing:
            raise ValueError(f"{rung.__name__} {rung.missing}")
        planned = launches.planned(functools.partial(rung, *arguments))
    return list({(id(one.kernel), one.block, one.shared_bytes, str(one.signature)): one for one in planned}.values())


@functools.lru_cache(maxsize=1)
def _arguments(op: Op, size: tuple) -> tuple:
    return unfilled.arguments(op, dict(size))


def gpus_named(text: str | Iterable[str] | None) -> dict[str, GPU]:
    """The GPUs of "t4, h100", by the names given; None gives the usual ones. Raises UserError for an unknown one."""
    if text is None:
        return {name: GPUS[name] for name in USUAL}
    names = text.split(",") if isinstance(text, str) else list(text)
    try:
        return {name.strip().lower(): gpus.named(name) for name in names}
    except ValueError as error:
        raise UserError(f"gpu: {error}") from None


# --- What one launch takes of one GPU ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A kernel on a GPU. problems: why it does not run there, or not well, in sentences; empty if it fits.

    shared_bytes: static and dynamic. limiter: the resource that allows the fewest blocks. refused: why ptxas makes no
    code of it, with the lines of Python; registers is None then. short: the table's word for it.
    """

    gpu: str
    kernel: str
    threads: int
    dynamic_bytes: int
    registers: int | None = None
    spill_bytes: int = 0
    static_bytes: int = 0
    blocks: int = 0
    occupancy: float = 0.0
    limiter: str = ""
    problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    short: str = "fits"

    @property
    def shared_bytes(self) -> int:
        return self.static_bytes + self.dynamic_bytes

    @property
    def runs(self) -> bool:
        return self.short == "fits" or self.short.startswith("spills")


def inspect(launch, targets: dict[str, GPU]) -> list[Fit]:
    """A launch (its kernel, signature, threads and shared_bytes) on each of these GPUs, compiled once for those of one
    compute capability. Raises UserError where no compiler is installed, or the kernel is not one for any GPU."""
    by_arch: dict[tuple, GPU] = {gpu.arch: gpu for gpu in targets.values()}
    if compiling.ptxas() is None:
        raise NotInstalled(no_compiler("ptxas was not found"))
    try:
        texts = compiling.ptx_for(launch.kernel, launch.signature, list(by_arch), lineinfo=True)
    except compiling.NoCompiler as error:
        raise NotInstalled(no_compiler(str(error))) from None
    options = getattr(launch.kernel, "options", None) or getattr(launch.kernel, "targetoptions", {})
    with ThreadPoolExecutor(cores()) as pool:
        taken = dict(zip(texts, pool.map(functools.partial(_assembled, limit=options.get("max_registers")),
                                         texts.values()), strict=True))
    return [_fit(name, gpu, launch, taken[gpu.arch], texts[gpu.arch]) for name, gpu in targets.items()]


def no_compiler(problem: str) -> str:
    if sys.platform == "darwin":
        return "NVIDIA's compiler does not exist for macOS; labkit fits needs it, on Linux or Windows"
    return f"labkit fits needs NVIDIA's compiler, without a GPU, too ({problem}). Install it: {compiling.INSTALL}"


def _assembled(text: str, limit: int | None):
    try:
        return compiling.resources(text, limit)
    except compiling.Refused as error:
        return error


def _fit(name: str, gpu: GPU, launch, taken, text: str) -> Fit:
    one = Fit(name, launch.kernel.__name__, launch.threads, launch.shared_bytes)
    if taken is None:
        raise UserError("ptxas is older than the rest of the compiler and cannot read its PTX. "
                        f"Install them together: {compiling.INSTALL}")
    if isinstance(taken, compiling.Refused):
        return _refused(one, gpu, launch.kernel, taken, text)
    shared = taken["shared_bytes"] + launch.shared_bytes
    limits = occupancy.limits(gpu, launch.threads, taken["registers"], shared)
    least = min(limits.values())
    problems, short = [], "fits"
    if taken["spill_bytes"]:
        short = f"spills {taken['spill_bytes']} B"
        problems.append("spills: values that do not fit into a thread's registers are stored in local memory")
    if shared > gpu.shared_per_block:
        short = "shared memory"
        problems.append(f"a block wants {shared:,} bytes of shared memory, and can have {gpu.shared_per_block:,}")
    elif least == 0:
        scarce = min(limits, key=limits.get)
        short = f"no room: {scarce}"
        problems.append(f"not one block of {launch.threads:,} threads fits into an SM, for want of {scarce}")
    return Fit(**vars(one) | {
        "registers": taken["registers"], "spill_bytes": taken["spill_bytes"], "static_bytes": taken["shared_bytes"],
        "blocks": least, "occupancy": least * -(-launch.threads // 32) / gpu.warps,
        "limiter": ", ".join(resource for resource, count in limits.items() if count == least),
        "problems": tuple(problems), "short": short})


def _refused(one: Fit, gpu: GPU, kernel, error: compiling.Refused, text: str) -> Fit:
    lacking = sorted(f"ptx.{name}" for name in needs.instructions(kernel)
                     if needs.lacks(gpu.capability, INTRINSICS[name].needs))
    lines = list(dict.fromkeys(_sentence(text, line, what, kernel) for line, what in error.problems))
    if lacking:
        least = needs.of(kernel)
        lines.append(f"{', '.join(lacking)} {'needs' if len(lacking) == 1 else 'need'} compute capability "
                     f"{least[0]}.{least[1]}{' exactly' if len(least) > 2 else ''}")
    if not lines:
        lines = [str(error)]
    needed = needs.of(kernel)
    short = f"refused: needs {needed[0]}.{needed[1]}" if lacking else "refused"
    return Fit(**vars(one) | {"refused": tuple(lines), "short": short,
                              "problems": ("ptxas refuses instructions that this GPU does not have",)})


# --- A line of PTX as a line of Python --------------------------------------------------------------------------------


def _sentence(text: str, line: int, what: str, kernel) -> str:
    """What ptxas says about a line of PTX, with the line of Python that it was made from."""
    what = re.sub(r"Feature '(.+?)' requires \.target (\w+) or higher", r"\1 requires \2", what).strip()
    place = python_line(text, line)
    if place is None:
        return what
    file, number_ = place
    code = linecache.getline(file, number_).strip()
    return f"line {number_} of {file_label(file)}{f', `{code}`' if code else ''}: {what}"


def python_line(text: str, line: int) -> tuple[str, int] | None:
    """(file, line of Python) of a line of PTX, both counted from 1, by the .loc before it; None where there is none."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"(.*?)"', text, re.MULTILINE))
    for before in reversed(text.splitlines()[:line]):
        if found := re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", before):
            return (files[found[1]], int(found[2])) if found[1] in files else None
    return None


# --- The bound --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """The least time by the data sheet: bytes over bandwidth, or flops over the peak of these units."""

    bytes: int
    flops: int = 0
    peak: str = "fp32"

    @classmethod
    def of(cls, op: Op, size: dict) -> Bound:
        try:
            return cls(int(op.work.bytes(**size)), int(op.work.flops(**size)), op.work.peak)
        except TypeError:
            raise UserError(f"size: {op.name} takes {size_text(op.work.timed_gpu)}, not {size_text(size)}") from None

    def text(self, gpu: GPU) -> str:
        """Milliseconds and what sets them, "0.067 (bytes)"; a dash where the data sheet has no such rate."""
        peak = getattr(gpu, f"{self.peak}_tflops")
        if gpu.bandwidth_gbs is None or (self.flops and peak is None):
            return "-"
        by_bytes = self.bytes / gpu.bandwidth_gbs / 1e6
        by_flops = self.flops / peak / 1e9 if self.flops else 0.0
        return f"{number(max(by_bytes, by_flops))} ({'bytes' if by_bytes >= by_flops else 'flops'})"


# --- The tables -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Fits(ResultTable):
    """What the launches of one kernel or rung take of each GPU, a row for each GPU and kernel."""

    title: str
    rows: tuple[Fit, ...]
    targets: dict[str, GPU]
    bound: Bound | None = None
    assumed: tuple[str, ...] = ()  # what was not known and is assumed, in sentences

    def on(self, gpu: str) -> Fit:
        """The row of a GPU; of several kernels the first that does not fit."""
        rows = [row for row in self.rows if row.gpu == gpu]
        if not self.rows:
            raise ValueError(" ".join(self.assumed))
        if not rows:
            raise ValueError(f"gpu is {gpu!r}; the table has {', '.join(self.targets)}")
        return next((row for row in rows if row.short != "fits"), rows[0])

    def verdict(self, gpu: str) -> str:
        """ "fits", "spills 48 B", "refused: needs 8.0": of several kernels the worst."""
        return self.on(gpu).short

    def table(self) -> dict:
        several = len({row.kernel for row in self.rows}) > 1
        blocks = len({row.threads for row in self.rows}) > 1
        columns = ["GPU", *["kernel"] * several, *["threads"] * blocks, "registers", "spilled", "shared", "blocks",
                   "occupancy", "limited by", "", *["bound, ms"] * (self.bound is not None)]
        rows, notes = [], list(self.assumed)
        for row in self.rows:
            taken = ("-",) * 6 if row.registers is None else (
                str(row.registers), f"{row.spill_bytes:,}", f"{row.shared_bytes:,}", str(row.blocks),
                f"{row.occupancy:.0%}", row.limiter)
            rows.append([row.gpu, *[row.kernel] * several, *[str(row.threads)] * blocks, *taken, row.short,
                         *([self.bound.text(self.targets[row.gpu])] if self.bound else [])])
        for sentence, names in _alike((sentence, row.gpu) for row in self.rows
                                      for sentence in row.refused or row.problems):
            everywhere = "every GPU" if len(names) == len(self.targets) > 1 else ", ".join(names)
            notes.append(f"{everywhere}: {sentence}.")
        if not self.rows:
            return {"title": self.title, "columns": columns, "rows": rows, "notes": notes}
        notes.append("Spilled: bytes of a thread. Shared: bytes of a block. Blocks: how many an SM holds."
                     + (" Bound: the least time by the data sheet." if self.bound else ""))
        return {"title": self.title, "columns": columns, "rows": rows, "notes": notes}

    def result(self) -> dict:
        verdicts = {name: self.verdict(name) for name in self.targets} if self.rows else {}
        return {"kind": "fits", "title": self.title, "gpus": verdicts}


def _alike(pairs) -> list[tuple[str, list[str]]]:
    """The sentences in order, each with the names that it holds for."""
    found: dict[str, dict] = {}
    for sentence, name in pairs:
        found.setdefault(sentence, {})[name] = None
    return [(sentence, list(names)) for sentence, names in found.items()]


@dataclass(frozen=True, repr=False)
class Matrix(ResultTable):
    """A rung in each row, a GPU in each column."""

    title: str
    rungs: dict[str, Fits]
    targets: dict[str, GPU]
    notes: tuple[str, ...] = field(default=("Details of a rung: labkit fits NAME, or --verbose.",))

    def table(self) -> dict:
        columns = ["rung", *(f"{name} ({gpu.capability[0]}.{gpu.capability[1]})"
                             for name, gpu in self.targets.items())]
        return {"title": self.title, "columns": columns, "notes": list(self.notes),
                "rows": [[name, *(one.verdict(gpu) for gpu in self.targets)] for name, one in self.rungs.items()]}

    def result(self) -> dict:
        return {"kind": "fits", "title": self.title,
                "gpus": {name: {rung: one.verdict(name) for rung, one in self.rungs.items()}
                         for name in self.targets}}


def of_rung(op: Op, rung: Rung, targets: dict[str, GPU], size: dict | None = None, kernel: str | None = None) -> Fits:
    """A rung at a size, or at the one that is timed on a GPU. kernel: the name of the only kernel to look at."""
    size = size or op.work.timed_gpu
    bound = Bound.of(op, size)
    forms: dict[tuple, tuple] = {}  # what is compiled -> (launch, the GPUs that launch it)
    without: list[Fit] = []
    for name, gpu in targets.items():
        try:
            planned = launches_for(op, rung, size, gpu)
        except ValueError as error:
            lacking = needs.lacks(gpu.capability, rung.needs)
            short = f"refused: needs {rung.needs[0]}.{rung.needs[1]}" if lacking else "not this size"
            without.append(Fit(name, rung.__name__, 0, 0, problems=(str(error),), short=short))
            continue
        for one in planned:
            if kernel in (None, one.kernel.__name__):
                key = id(one.kernel), str(one.signature), one.block, one.shared_bytes
                forms.setdefault(key, (one, {}))[1][name] = gpu
    rows = without + [row for one, where in forms.values() for row in inspect(one, where)]
    order = list(targets)
    return Fits(f"{rung.__name__}, {size_text(size)}", tuple(sorted(rows, key=lambda row: order.index(row.gpu))),
                targets, bound)


def of_kernel(kernel, targets: dict[str, GPU], *, types=None, block=None, sizes: dict | None = None) -> Fits:
    """A kernel of one's own. types, block: as `fits` takes them. sizes: shapes of its array arguments by name."""
    form = own_kernel.form_of(kernel, types, block, sizes or {})
    rows = tuple(inspect(form, targets))
    bound = Bound(form.nbytes) if form.nbytes is not None else None
    return Fits(f"{kernel.__name__}({', '.join(map(own_kernel.type_text, form.signature.args))}), "
                f"{form.threads} threads a block", rows, targets, bound, form.assumed)


def of_op(op: Op, targets: dict[str, GPU], size: dict | None = None, progress: Callable | None = None) -> dict:
    """{rung's name: Fits} of every rung. progress(name) is called before each."""
    found = {}
    for rung in op.rungs:
        if progress is not None:
            progress(rung.__name__)
        found[rung.__name__] = of_rung(op, rung, targets, size)
    return found


def fits(kernel, gpu: str | Iterable[str] | None = None, types=None, block=None, size: dict | None = None):
    """Would it run there? Return a table with a row for each GPU, without needing one.

    kernel: what @cuda.jit made, or the name of an operation, a rung or one of the course's kernels. gpu: "t4, rtx3060",
    by default those that learners have. For a kernel of your own: types, "float32[::1], int32", where it has no
    signature and was not launched yet; block, its threads; size, {"a": (4096, 4096)}, the shapes of its arrays. For the
    course's: size, {"M": 512, "N": 512, "K": 512}. Without NVIDIA's compiler the table has no rows, and says how to
    install it.
    """
    targets = gpus_named(gpu)
    try:
        return _fits(kernel, targets, types, block, size)
    except NotInstalled as error:
        return Fits(kernel if isinstance(kernel, str) else kernel.__name__, (), targets, assumed=(f"{error}.",))


def _fits(kernel, targets: dict[str, GPU], types, block, size):
    if not isinstance(kernel, str):
        return of_kernel(kernel, targets, types=types, block=block, sizes=size)
    if types is not None or block is not None:
        raise UserError(f"{'types' if types is not None else 'block'}: {kernel} is the course's, and its launcher "
                        "chooses; leave it out")
    found = Named.of(kernel)
    if found.rung is not None:
        return of_rung(found.op, found.rung, targets, size, found.kernel)
    return Matrix(found.op.title, of_op(found.op, targets, size), targets)


@dataclass(frozen=True)
class Named:
    """What a name stands for: an operation, one of its rungs, or one kernel of it."""

    op: Op
    rung: Rung | None = None
    kernel: str | None = None

    @classmethod
    def of(cls, name: str) -> Named:
        """Raises UserError for a name of nothing."""
        if name in ops.HOMES:
            return cls(ops.op(name))
        every = [(op, rung) for op in ops.all_ops() for rung in op.rungs]
        for op, rung in every:
            if rung.__name__ == name:
                return cls(op, rung)
        for op, rung in every:
            if name in rung.kernel_names:
                return cls(op, rung, name)
        names = [*ops.HOMES, *(rung.__name__ for _, rung in every),
                 *(kernel for _, rung in every for kernel in rung.kernel_names)]
        raise UserError(f"no operation, rung or kernel is called {name!r}; {did_you_mean(names_like(name, names))}")


def known_gpus() -> ResultTable:
    """The GPUs that can be asked for, with what their data sheets say."""
    rows = [(name, re.sub(r"NVIDIA |GeForce ", "", gpu.name), f"{gpu.capability[0]}.{gpu.capability[1]}",
             gpu.multiprocessors, gpu.shared_per_block, gpu.memory_gb, gpu.bandwidth_gbs, gpu.fp32_tflops,
             gpu.f16_tflops) for name, gpu in GPUS.items()]
    return table(rows, ["--gpu", "", "CC", "SMs", "shared", "GB", "GB/s", "float32", "float16"],
                 "The GPUs that labkit fits knows", note="CC: compute capability. Shared: bytes that a block can have. "
                 "float32, float16: TFLOP/s by the data sheet, float16 on tensor cores.")
