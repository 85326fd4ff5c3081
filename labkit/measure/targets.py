"""What the kernels must reach compared with the libraries, as data, and whether a run of `labkit bench` reaches it.

    evaluate(measurements)      a row for each target: baseline and ours as measured in one run, and whether it is met
    table(rows)                 the same to print

A baseline is the fastest row of the ladder whose name holds `baseline`; ours is the fastest rung that did not fail,
among those whose name holds `only` and nothing of `without`. Both were timed in the same process on the same arrays.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from labkit._common.tables import PlainTable, number
from labkit.measure import Ladder, LadderRow


@dataclass(frozen=True)
class Target:
    """metric: "GB/s", "TFLOP/s", "ms", "us in a graph". ratio: our speed over the baseline's, at least. figure: in the
    metric, at least for rates and at most for times. why: what bounds a kernel that misses it, and what was tried."""

    work: str
    op: str
    size: dict
    metric: str
    baseline: str
    ratio: float | None = None
    figure: float | None = None
    only: str = ""
    without: tuple[str, ...] = ()
    why: str = ""

    @property
    def asked(self) -> str:
        if self.figure is not None:
            return f"{'at most' if self.is_time else 'at least'} {number(self.figure)} {self.unit}"
        if self.ratio == 1:
            return "as fast"
        return f"{self.ratio:g} of its speed" if self.ratio < 1 else f"{self.ratio:g} times as fast"

    @property
    def is_time(self) -> bool:
        return self.metric in ("ms", "us in a graph")

    @property
    def unit(self) -> str:
        return "us" if self.metric == "us in a graph" else self.metric

    def value(self, row: LadderRow) -> float | None:
        """The row in this metric; None where it was not measured so."""
        if self.metric == "us in a graph":
            return None if row.graph is None else 1000 * row.graph.p50
        return {"ms": row.timing.p50, "GB/s": row.gbs, "TFLOP/s": row.tflops}[self.metric]


def _square(n: int) -> dict:
    return {"M": n, "N": n, "K": n}


TARGETS = (
    Target("vector addition, 2^28 float32", "vector_add", {"n": 2**28}, "GB/s", "PyTorch", ratio=0.97),
    Target("softmax, 8192 x 8192 float32", "softmax", {"R": 8192, "C": 8192}, "ms", "PyTorch", figure=0.15),
    Target("LayerNorm, 65536 x 4096 float32", "layernorm", {"R": 65536, "C": 4096}, "GB/s", "PyTorch", figure=3900.0),
    Target("LayerNorm, 8192 x 768 float32", "layernorm", {"R": 8192, "C": 768}, "us in a graph", "PyTorch",
           figure=15.0),
    Target("masked softmax, 64 x 1024 x 1024 float32, causal", "masked_softmax_causal", {"B": 64, "S": 1024},
           "us in a graph", "PyTorch", figure=110.0),
    Target("masked softmax, 64 x 1024 x 1024 float32, no mask", "masked_softmax_none", {"B": 64, "S": 1024},
           "us in a graph", "PyTorch", figure=140.0),
    Target("masked softmax, 1 x 512 x 512 float32, causal", "masked_softmax_causal", {"B": 1, "S": 512},
           "us in a graph", "PyTorch", ratio=3.0),
    Target("masked softmax, 1 x 1024 x 1024 float32, causal", "masked_softmax_causal", {"B": 1, "S": 1024},
           "us in a graph", "PyTorch", ratio=3.0),
    Target("product, 4096^3 float32", "matmul", _square(4096), "TFLOP/s", "cuBLAS", ratio=0.92),
    Target("product, 4096^3 f16, with wgmma", "matmul_half", _square(4096), "TFLOP/s", "cuBLAS", ratio=0.95,
           only="wgmma"),
    Target("product, 4096^3 f16, with mma.sync", "matmul_half", _square(4096), "TFLOP/s", "cuBLAS", ratio=0.55,
           without=("wgmma", "f16_accumulators")),
    *(Target(f"linear layer with bias, f16, 8192 x {K} -> {N}", "linear", {"M": 8192, "N": N, "K": K}, "us in a graph",
             "PyTorch", ratio=1.0) for K, N in ((384, 1152), (384, 384), (384, 1536), (1536, 384))),
    *(Target(f"block of GPT-2, {S:,} tokens, {kind}", name, {"S": S}, "us in a graph", "PyTorch", figure=figure)
      for kind, name, figures in (("float32", "gpt2_block", (90.0, 180.0, 620.0, 2900.0)),
                                  ("f16", "gpt2_block_half", (30.0, 38.0, 76.0, 280.0)))
      for S, figure in zip((16, 128, 1024, 4096), figures, strict=True)),
    Target("sampling, top-p, 32 x 128,256", "sample_top_p", {"R": 32, "V": 128_256}, "us in a graph", "PyTorch",
           figure=80.0),
)


@dataclass(frozen=True)
class TargetRow:
    """A target as measured. Values are in `unit`; ratio: our speed over the baseline's; met is None if not measured."""

    work: str
    op: str
    size: dict
    metric: str
    unit: str
    baseline: str
    baseline_value: float | None
    rung: str
    value: float | None
    ratio: float | None
    asked: str
    met: bool | None
    why: str = ""


def sizes(op_name: str) -> list[dict]:
    """The sizes at which an operation has targets."""
    found = []
    for target in TARGETS:
        if target.op == op_name and target.size not in found:
            found.append(target.size)
    return found


def evaluate(measurements: dict, targets: tuple[Target, ...] = TARGETS) -> list[TargetRow]:
    """Each target against the ladders in `measurements`, as `labkit bench` writes them."""
    return [_judge(target, _ladder(measurements, target)) for target in targets]


def _ladder(measurements: dict, target: Target) -> Ladder | None:
    for entry in measurements.get("ops", {}).get(target.op, []):
        if entry["size"] == target.size:
            return Ladder.from_json(entry)
    return None


def _judge(target: Target, ladder: Ladder | None) -> TargetRow:
    rungs = [] if ladder is None else [
        row for row in ladder.rungs if not row.failed and target.only in row.name
        and not any(part in row.name for part in target.without)]
    baselines = [] if ladder is None else [row for row in ladder.baselines if row.kind == "baseline"
                                           and target.baseline in row.name and "compile" not in row.name]
    ours, theirs = _fastest(target, rungs), _fastest(target, baselines)
    value = None if ours is None else target.value(ours)
    baseline_value = None if theirs is None else target.value(theirs)
    ratio = None
    if value is not None and baseline_value is not None:
        ratio = baseline_value / value if target.is_time else value / baseline_value
    met = None
    if target.figure is not None and value is not None:
        met = value <= target.figure if target.is_time else value >= target.figure
    elif target.ratio is not None and ratio is not None:
        met = ratio >= target.ratio
    return TargetRow(target.work, target.op, target.size, target.metric, target.unit,
                     target.baseline if theirs is None else theirs.name, baseline_value,
                     "" if ours is None else ours.name, value, ratio, target.asked, met, target.why)


def _fastest(target: Target, rows: list[LadderRow]) -> LadderRow | None:
    measured = [row for row in rows if target.value(row) is not None]
    if not measured:
        return None
    return (min if target.is_time else max)(measured, key=target.value)


def table(rows: list[TargetRow], where: str = "") -> PlainTable:
    """The targets as a table, with an explanation of each that is missed below it."""
    def cell(value, unit):
        return "-" if value is None else f"{number(value)} {unit}"

    lines = tuple((row.work, row.baseline, cell(row.baseline_value, row.unit), row.rung or "-",
                   cell(row.value, row.unit), "-" if row.ratio is None else f"{row.ratio:.2f}", row.asked,
                   {True: "yes", False: "no", None: "not measured"}[row.met]) for row in rows)
    met, measured = sum(row.met is True for row in rows), sum(row.met is not None for row in rows)
    notes = [f"{met} of {measured} met." + (f" Measured on {where}." if where else ""),
             *([f"{len(rows) - measured} of {len(rows)} not measured yet."] if measured < len(rows) else []),
             "Ratio: our speed over the baseline's, both p50 of one run. us: in a CUDA graph.",
             *(f"{row.work}: {row.why}" for row in rows if row.met is False and row.why)]
    columns = ("work", "baseline", "theirs", "ours", "measured", "ratio", "goal", "met")
    return PlainTable("Beside the libraries", columns, lines, tuple(notes), kind="targets")


def to_json(rows: list[TargetRow]) -> list[dict]:
    return [asdict(row) for row in rows]
