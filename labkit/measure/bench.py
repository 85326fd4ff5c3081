"""`labkit bench`: times every rung of every operation and its baselines, prints the ladders, writes what it found.

    labkit bench matmul
    python3 -m labkit.measure.bench all --out DIR        the same without an install, from the repository's root

On a GPU the measurements are merged into data/measurements/<gpu>.json, which README, lessons and plots quote. Without
one they go to build/bench/<device>.json and never into data/measurements: a CPU device's time is not a GPU's. The plots
go to build/bench/. With --out everything goes there: a directory, or a file that ends in .json (then no plots).
A run ends with its measurements beside the libraries (labkit.measure.comparisons) and the goals (.targets).
data/measurements/README.md describes the JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from labkit import device, measure
from labkit._common import paths
from labkit._common.errors import did_you_mean, names_like
from labkit._common.files import read_json, write_text
from labkit._common.tables import number, size_text, to_markdown
from labkit.measure import Ladder, LadderRow, comparisons, roofline, targets, validate
from labkit.measure.ops import HOMES, op
from labkit.measure.series import SERIES, Series

SCHEMA = 1
BUILD = paths.REPOSITORY / "build" / "bench"


# --- Running ---------------------------------------------------------------------------------------------------------


def collect(*asked: str, quick: bool = False, show: Callable[[object], None] = print,
            keep: Callable[[dict], object] | None = None) -> dict:
    """Measure operations with their series, single series, or all, and return the measurements. `show` is given each
    ladder as it is done, `keep` all that is measured so far, so that a run that ends early loses only the rest."""
    for name in asked:
        if name not in ("all", *HOMES, *SERIES):
            near = names_like(name, ("all", *HOMES, *SERIES))
            raise ValueError(f"no operation is called {name!r}; {did_you_mean(near)}")
    names = list(HOMES) if "all" in asked or not asked else [name for name in asked if name in HOMES]
    limits = roofline.limits(anew=not quick)
    data = {"schema": SCHEMA, "machine": measure.machine(), "limits": asdict(limits), "ops": {}, "series": {},
            "seconds": {}, "problems": {}}
    for each in names:
        begin = time.perf_counter()
        ladders = []
        for size in _sizes(op(each), quick):
            try:
                ladders.append(measure.ladder(op(each), size, budget_s=0.02 if quick else 0.3))
                show(ladders[-1])
            except Exception as error:  # one wrong rung must not cost the measurements of the others
                location = f"{each} at {size_text(size or op(each).work.timed)}"
                data["problems"][location] = _problem(error)
                print(f"{location} was not measured: {data['problems'][location]}", file=sys.stderr)
        data["ops"][each] = [one.to_json() for one in ladders]
        data["seconds"][each] = time.perf_counter() - begin
        if keep is not None:
            keep(data)
    for key, one in SERIES.items():
        if (one.op in names or key in asked) and not (quick and one.quick is None):
            begin = time.perf_counter()
            try:
                series = one.take(quick)
                if series is not None and not _is_kept(one, series):
                    data["series"][key] = series
            except Exception as error:
                data["problems"][key] = _problem(error)
                print(f"{key} was not measured: {data['problems'][key]}", file=sys.stderr)
            data["seconds"][key] = time.perf_counter() - begin
            if keep is not None:
                keep(data)
    return data


def _is_kept(one: Series, series: dict) -> bool:
    """Whether the recorded series has what was missing now: it stays."""
    if not one.missing or not series[one.missing]:
        return False
    try:
        known = measure.recorded_series(one.name, device.name())
    except ValueError:  # nothing is recorded for this GPU
        return False
    kept = known is not None and not known[one.missing]
    if kept:
        print(f"{one.name}: the recorded one is kept. {series[one.missing]}", file=sys.stderr)
    return kept


def _problem(error: Exception) -> str:
    """Return the error with its file and line: a run of everything cannot be debugged afterwards."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "labkit" in Path(frame.filename).parts]
    location = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{location}"


def _sizes(one, quick: bool) -> list[dict | None]:
    """Return the sizes to time: on a GPU all of the op's, elsewhere its own. A quick run takes one: on a GPU the op's
    own, to compare with the recording, elsewhere a small one."""
    if not device.on_gpu():
        return [one.awkward[-1]] if quick else [None]
    if quick:
        return [one.work.timed_gpu]
    return [one.work.timed_gpu, *one.work.also_gpu]


def merge(path: Path, data: dict) -> dict:
    """Puts `data` into the file at `path`, operation by operation, and replaces the file in one step. The limits that
    the file has stay until all operations are measured anew: most of its ladders stand beside them."""
    path = Path(path)
    known = read_json(path) if path.is_file() else {}
    if known.get("schema", SCHEMA) != SCHEMA:
        known = {}  # another layout: nothing in it can be kept
    merged = {**data, "ops": {**known.get("ops", {}), **data["ops"]},
              "series": {**known.get("series", {}), **data["series"]}}
    if "limits" in known and not data["ops"].keys() >= set(HOMES):
        merged["limits"] = known["limits"]
    course = [*HOMES, *merged["ops"]]
    merged["ops"] = dict(sorted(merged["ops"].items(), key=lambda item: course.index(item[0])))
    for note in ("seconds", "problems"):
        merged.pop(note, None)  # of this run, not of the file
    validate.check(merged, known)
    write_text(path, json.dumps(merged, indent=1, allow_nan=False) + "\n")
    return merged


def draw(data: dict, folder: Path) -> list[Path]:
    """Write a PNG for each ladder at its op's own size and for each series that has a plot."""
    from labkit.measure import plots

    written = []
    for name, entries in data["ops"].items():
        if entries:
            written.append(plots.ladder(Ladder.from_json(entries[0])).save(folder / f"{name}.png"))
    ladders = [Ladder.from_json(entries[0]) for entries in data["ops"].values() if entries]
    if len(ladders) > 1 and all(one.on_gpu for one in ladders):
        written.append(plots.every_rung(ladders).save(folder / "roofline.png"))
    for key, series in data["series"].items():
        if (figure := SERIES[key].draw(series)) is not None:
            written.append(figure.save(folder / f"{key}.png"))
    return written


def places(out: str | Path | None) -> tuple[Path, Path | None]:
    """Return the paths of the JSON and the plots. Only a GPU's measurements reach data/measurements."""
    name = measure.slug(device.name()) + ".json"
    if out is None:
        return (paths.MEASUREMENTS if device.on_gpu() else BUILD) / name, BUILD
    out = Path(out)
    if paths.MEASUREMENTS in (out.resolve(), out.resolve().parent) and not device.on_gpu():
        raise ValueError("out lies in data/measurements, which holds GPU measurements only; this is the CPU device")
    return (out, None) if out.suffix == ".json" else (out / name, out)


def main(console=None, ops: Sequence[str] = (), out: str | None = None, quick: bool = False) -> int:
    """Measure, print and write. console: rich's; created if left out. ops: all if empty."""
    if console is None:
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else 140)  # a log has room for the whole table
    path, folder = places(out)
    begin = time.perf_counter()
    console.print(f"Timing on {measure.where()}", highlight=False)
    nothing_to_keep = quick and out is None
    data = collect(*ops, quick=quick, show=console.print,
                   keep=None if nothing_to_keep else lambda so_far: merge(path, so_far))
    if nothing_to_keep:
        beside_the_recording(console, data)
        console.print("A quick run shows that it works; nothing was written.", highlight=False)
        return 1 if data["problems"] else 0
    merged = merge(path, data)
    written = [path, *(draw(data, folder) if folder else [])]
    names = {*data["ops"], *data["series"]}
    if device.on_gpu():
        console.print(comparisons.table([one for one in comparisons.compare(merged) if one.source in names],
                                        where=measure.where()))
        console.print(targets.table([one for one in targets.evaluate(merged) if one.goal.source in names]))
    longest = sorted(data["seconds"].items(), key=lambda item: -item[1])[:6]
    console.print("Took longest: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in longest), highlight=False)
    for label, problem in data["problems"].items():
        console.print(f"Not measured: {label}: {problem}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{time.perf_counter() - begin:.0f} s. Wrote " + ", ".join(str(p) for p in written), highlight=False,
                  soft_wrap=True)
    return 1 if data["problems"] else 0


def beside_the_recording(console, data: dict) -> None:
    """Print which of the times in `data` do not agree with what was recorded on this GPU."""
    known = measure.recorded() if device.on_gpu() else None
    shared, differences = validate.against(known, data) if known else (0, [])
    if shared:
        console.print(f"{shared - len(differences)} of {shared} times agree with the recording of "
                      f"{known['machine']['date']}: within {validate.NOISE:.0%} of it, or within its spread.",
                      highlight=False)
    for each in differences:
        console.print(f"Recorded, and now: {each}", highlight=False, markup=False, soft_wrap=True)


# --- Tables for README and data/measured.md --------------------------------------------------------------------------


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python3 -m labkit.measure.bench", description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*",
                        help="operations such as matmul, series such as generation; all if none is named")
    parser.add_argument("--out", help="a directory for JSON and plots, or a file ending in .json")
    parser.add_argument("--quick", action="store_true", help="small sizes, few runs: shows that it works")
    options = parser.parse_args()
    sys.exit(main(ops=options.ops, out=options.out, quick=options.quick))
