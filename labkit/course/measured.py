"""The tables of README and data/measured.md, from what a GPU recorded.

    highlights_table(measurements)    ten workloads beside the fastest library
    targets_table(measurements)       all of them, and the goals
    readme_table(measurements)        every rung of every operation
"""

from __future__ import annotations

from collections.abc import Collection

from labkit import measure
from labkit._common.tables import number, size_text, to_markdown
from labkit.measure import Ladder, LadderRow, comparisons, targets
from labkit.measure.ops import HOMES


def highlights_table(measurements: dict) -> str:
    """Return ten rows of targets_table in Markdown, with what it says of all of them. Empty without any of the ten."""
    compared = comparisons.compare(measurements)
    chosen = comparisons.highlights(compared)
    if not chosen:
        return ""
    spec = _as_code(comparisons.table(chosen))
    spec = {"columns": spec["columns"][:6], "rows": [row[:6] for row in spec["rows"]]}
    return (f"{comparisons.summary(compared)} Measured on {measurements['machine']['device']}, "
            f"{_days(measurements, comparisons.SERIES)}.\n\n{to_markdown(spec)}")


def targets_table(measurements: dict) -> str:
    """Markdown: our kernels beside the fastest baseline of each workload, those that lose first, and the goals. Empty
    without any comparison."""
    compared = comparisons.compare(measurements)
    if not compared:
        return ""
    slower, equal, faster = comparisons.parted(compared)
    days = _days(measurements, comparisons.SERIES)
    parts = [f"{comparisons.summary(compared)} Measured on {measurements['machine']['device']}, {days}. "
             + " ".join(comparisons.table(compared).notes)]
    if slower:
        parts.append(f"**Where a library is faster: {len(slower)}**\n\n{_markdown(comparisons.table(slower))}")
    for title, group in ((f"Within {comparisons.EQUAL:.0%} of each other", equal), ("Where ours is faster", faster),
                         ("Without a ratio", [one for one in compared if one.ratio is None])):
        if group:
            parts.append(_folded(f"{title}: {len(group)}", _markdown(comparisons.table(group))))
    goals = targets.evaluate(measurements)
    if len(measurements["ops"]) < len(HOMES) / 2:  # the recording of a few operations says nothing of the other goals
        goals = [goal for goal in goals if goal.met is not None]
    table = targets.table(goals)
    return "\n\n".join([*parts, _folded("Goals", f"{_markdown(table)}\n\n{' '.join(table.notes)}")])


def _markdown(table) -> str:
    return to_markdown(_as_code(table))


def _as_code(table) -> dict:
    """Return a table's columns and rows, with kernels as code."""
    spec = table.table()
    for row in spec["rows"]:
        row[1] = f"`{row[1]}`" if row[1].isidentifier() else row[1]
    return spec


def _folded(title: str, text: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def _is_called(row: LadderRow) -> bool:
    """Whether the time of a library is one from Python, because it could not be captured in a graph."""
    return row.kind == "baseline" and row.graph is None and row.ms < measure.SMALL_MS


def _days(measurements: dict, series: Collection[str] = ()) -> str:
    """Return the dates of all ladders and of these series."""
    days = {entry["machine"]["date"] for entries in measurements["ops"].values() for entry in entries}
    days |= {measurements["series"][name]["date"] for name in series if name in measurements["series"]}
    return ", ".join(sorted(days))


def readme_table(measurements: dict) -> str:
    """Markdown: every operation's rungs, slowest idea first, beside the libraries, with the date and the versions."""
    ladders = [Ladder.from_json(entries[0]) for entries in measurements["ops"].values() if entries]
    rows = []
    for ladder in ladders:
        for row in ladder.rows:
            first = row is ladder.rows[0]
            cached = ladder.fits_the_cache and ladder.binds == "bytes"
            fraction = "-" if row.fraction is None else "in L2" if cached else f"{ladder.bound_ms / row.ms:.0%}"
            rows.append([f"**{ladder.title}**, {size_text(ladder.size)}" if first else "",
                         f"`{row.name}`" if row.kind == "rung" else row.name,
                         comparisons.time_text(row.ms) + (" (called)" if _is_called(row) else ""),
                         f"{number(ladder.rate_in(row.ms))} {ladder.unit}", fraction])
    table = to_markdown({"columns": ["Operation", "Kernel", "time", "rate", "of the limit"], "rows": rows})
    m, limits = measurements["machine"], measurements["limits"]
    versions = ", ".join(f"{label} {m[key]}" for label, key in (("driver", "driver"), ("CUDA", "cuda_runtime"),
                         ("numba-cuda", "numba-cuda"), ("NumPy", "numpy"), ("PyTorch", "torch"), ("CuPy", "cupy"))
                         if m.get(key))
    tensor = ""
    if limits.get("f16_tflops"):
        tensor = (f", {limits['f16_tflops']:,.0f} TFLOP/s (f16 tensor cores, on tiles that stay in shared memory); for "
                  f"TF32 half of that is taken")
    return (f"Measured on {m['device']}, {_days(measurements)} ({versions}). p50: in a CUDA graph below "
            f"1 ms, where what fits into the L2 cache stays there, otherwise single launches with cold caches. Limits: "
            f"{limits['bandwidth_gbs']:,.0f} GB/s (a copy, read and write), {limits['fp32_tflops']:.1f} TFLOP/s "
            f"(float32 multiply-adds in registers){tensor}.\n\n{table}")
