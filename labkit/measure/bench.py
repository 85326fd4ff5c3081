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
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from labkit import device, measure
from labkit._common import paths
from labkit._common.files import read_json, write_text
from labkit._common.tables import size_text
from labkit.measure import Ladder, comparisons, roofline, targets, validate
from labkit.measure.ops import HOMES, hint, op
from labkit.measure.series import SERIES, Series
from labkit.measure.validate import SCHEMA

BUILD = paths.REPOSITORY / "build" / "bench"


# --- Running ---------------------------------------------------------------------------------------------------------


def collect(*asked: str, quick: bool = False, show: Callable[[object], None] = print,
            keep: Callable[[dict], object] | None = None) -> dict:
    """Measure operations with their series, single series, or all, and return the measurements. `show` is given each
    ladder as it is done, `keep` all that is measured so far, so that a run that ends early loses only the rest."""
    for name in asked:
        if name not in ("all", *HOMES, *SERIES):
            raise ValueError(f"no operation is called {name!r}; {hint(name, ('all', *HOMES, *SERIES))}")
    names = list(HOMES) if "all" in asked or not asked else [name for name in asked if name in HOMES]
    limits = roofline.limits(anew=not quick)
    data = {"schema": SCHEMA, "machine": measure.machine(), "limits": asdict(limits), "ops": {}, "series": {},
            "seconds": {}, "problems": {}}
    for each in names:
        begin = time.perf_counter()
        ladders = []
        for size in _sizes(op(each), quick):
            try:
                ladders.append(measure.ladder(op(each), size, compiled=True, budget_s=0.02 if quick else 0.3))
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python3 -m labkit.measure.bench", description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*",
                        help="operations such as matmul, series such as generation; all if none is named")
    parser.add_argument("--out", help="a directory for JSON and plots, or a file ending in .json")
    parser.add_argument("--quick", action="store_true", help="small sizes, few runs: shows that it works")
    options = parser.parse_args()
    sys.exit(main(ops=options.ops, out=options.out, quick=options.quick))
