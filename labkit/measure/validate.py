"""Sanity checks of a recording: percentiles in order, rates that follow from times, nothing faster than the hardware.

    against(recording, taken)   which times just taken do not agree with the recording of the same GPU
    problems(recording)         the faults within a file of data/measurements: a list of sentences, empty if none
    differences(one, other)     which times of two recordings of the same GPU are further apart than the tolerance
    profile_differences(recording, profile)     the same for a recording and Nsight Compute's times of those launches
    check(recording, known)     raises ValueError for problems, prints differences: before a file is replaced

They work on the JSON as data/measurements/README.md describes it, and need neither a GPU nor the kernels.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Iterator, Mapping

from labkit._common.tables import size_text

ABOVE_LIMIT = 1.05  # the limit is measured, by a copy; an operation that writes less than it reads is a little faster
TOLERANCE = 0.25  # two runs on the same GPU: the host's times vary most
NOISE = 0.1  # of kernels alone
EVENTS_MS = 0.005  # what a pair of events adds to a small kernel, which a profiler does not
UNITS = ("GB/s", "TFLOP/s")
SIGNED = ("max_difference", "max_error", "relative_error", "torch_max_difference", "start_us", "start_ms",
          "find_ms")  # 0 is fine


def problems(recording: Mapping) -> list[str]:
    """Return the inconsistencies of a recording, each as a sentence that names the row."""
    errors = [] if _is_date(recording["machine"].get("date")) else [f"the date is {recording['machine'].get('date')!r}"]
    errors += [f"limits: {name} is {value!r}" for name, value in recording["limits"].items()
               if value is not None and not isinstance(value, str) and not _positive(value)]  # None: not measured
    for ladders in recording["ops"].values():
        for ladder in ladders:
            errors += _of_ladder(ladder)
    for name, series in recording["series"].items():
        errors += [f"series {name}: {problem}" for problem in _of_series(series)]
    return errors


def differences(one: Mapping, other: Mapping, tolerance: float = TOLERANCE) -> list[str]:
    """Times that two recordings of the same GPU share and that differ by more than `tolerance`, relative to the
    smaller. Different GPUs are not compared."""
    if one["machine"]["device"] != other["machine"]["device"]:
        return []
    times_a, times_b = dict(_times(one)), dict(_times(other))
    return [_apart(name, ms, times_b[name]) for name, ms in times_a.items()
            if name in times_b and _far(ms, times_b[name], tolerance)]


def against(recording: Mapping, taken: Mapping, tolerance: float = NOISE) -> tuple[int, list[str]]:
    """How many of the times that were just `taken` have one in the recording, and those that do not agree with it:
    further apart than `tolerance`, and neither's p5 to p95 reaches the other's. A time that Python or NumPy takes is
    the host's, and left out. Of another GPU nothing is compared."""
    if recording["machine"]["device"] != taken["machine"]["device"]:
        return 0, []
    recorded, current = dict(_timings(recording)), dict(_timings(taken))
    shared = [name for name in current if name in recorded]
    return len(shared), [_apart(name, recorded[name]["p50"], current[name]["p50"]) for name in shared
                         if _far(recorded[name]["p50"], current[name]["p50"], tolerance)
                         and not _overlap(recorded[name], current[name])]


def profile_differences(recording: Mapping, profile: Mapping, tolerance: float = TOLERANCE) -> list[str]:
    """The same for the kernels of ncu/<gpu>-kernels.json: a row's launches together beside the time of its row."""
    differing = []
    for op, one in profile["ops"].items():
        profiled: dict[str, float] = {}
        for row in one["rows"]:
            profiled[row["name"]] = profiled.get(row["name"], 0.0) + row["time_us"] / 1000
        for ladder in recording["ops"].get(op, ()):
            if ladder["size"] == one["size"]:
                differing += [_apart(f"{row['name']} under ncu", row["timing"]["p50"], profiled[row["name"]])
                              for row in ladder["rows"] if row["name"] in profiled
                              and _far(row["timing"]["p50"], profiled[row["name"]], tolerance)
                              and abs(row["timing"]["p50"] - profiled[row["name"]]) > EVENTS_MS]
    return differing


def check(recording: Mapping, known: Mapping | None = None) -> None:
    """Raise ValueError for a recording that makes no sense; print to stderr what differs from the `known` one."""
    if errors := problems(recording):
        raise ValueError("the recording makes no sense:\n" + "\n".join(errors))
    for difference in differences(known, recording) if known else ():
        print(f"not as before: {difference}", file=sys.stderr)


# --- Ladders ---------------------------------------------------------------------------------------------------------


def _of_ladder(ladder: Mapping) -> Iterator[str]:
    label = f"{ladder['op']}, {size_text(ladder['size'])}"
    if ladder["unit"] not in UNITS:
        yield f"{label}: the unit is {ladder['unit']!r}"
    if not _is_date(ladder["machine"].get("date")):
        yield f"{label}: the date is {ladder['machine'].get('date')!r}"
    for row in ladder["rows"]:
        yield from (f"{label}: {row['name']}: {problem}" for problem in _of_row(ladder, row))


def _of_row(ladder: Mapping, row: Mapping) -> Iterator[str]:
    for kind in ("timing", "graph", "called"):
        if row.get(kind) is not None:
            yield from (f"{kind}: {problem}" for problem in _percentiles(row[kind]))
    ms = row["timing"]["p50"]
    if not _positive(ms):
        return
    if ladder["machine"].get("kind") != "gpu":  # the CPU device's rates would not be a GPU's: it has none
        yield from (f"{name} is {row[name]}, of no GPU" for name in ("gbs", "tflops", "fraction") if row[name])
        return
    expected = {"gbs": ladder["bytes"] / ms / 1e6, "tflops": ladder["flops"] / ms / 1e9}
    if row["kind"] != "host":
        expected["fraction"] = ladder["bound_ms"] / ms
    for name, value in expected.items():
        if row[name] is None or not math.isclose(row[name], value, rel_tol=1e-6):
            yield f"{name} is {row[name]}, and work over time is {value:.6g}"
    if row["kind"] != "host" and ladder["bound_ms"] / ms > ABOVE_LIMIT:
        yield f"{ladder['bound_ms'] / ms:.0%} of what the hardware can do"


def _percentiles(timing: Mapping) -> Iterator[str]:
    p5, p50, p95 = (timing[name] for name in ("p5", "p50", "p95"))
    if not (_positive(p5) and p5 <= p50 <= p95):
        yield f"p5, p50, p95 are {p5}, {p50}, {p95}: not in order"


# --- Series ----------------------------------------------------------------------------------------------------------


def _of_series(series: Mapping) -> Iterator[str]:
    if not _is_date(series.get("date")):
        yield f"the date is {series.get('date')!r}"
    if not series.get("where"):
        yield "it does not say where it was measured"
    yield from _values(series, "")
    lengths = {key: len(value) for key, value in series.items()
               if key.split("_")[-1] in ("ms", "us") and isinstance(value, list)}
    if len(set(lengths.values())) > 1:
        yield f"its lists differ in length: {lengths}"


def _values(value, name: str) -> Iterator[str]:
    """Yield percentiles out of order, and times and rates that are not positive, at any depth."""
    if isinstance(value, Mapping):
        if {"p5", "p50", "p95"} <= value.keys():
            yield from (f"{name}: {problem}" if name else problem for problem in _percentiles(value))
        for key, inner in value.items():
            yield from _values(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _values(inner, f"{name}[{i}]")
    elif isinstance(value, int | float) and not _positive(value):
        last = _last(name)
        if last not in SIGNED and last.split("_")[-1] in ("ms", "us", "ns", "gbs", "tflops", "rate"):
            yield f"{name} is {value}"


# --- Two recordings --------------------------------------------------------------------------------------------------


def _times(recording: Mapping) -> Iterator[tuple[str, float]]:
    """(what it is, its time) of every row's p50 and of every number in a series whose name says that it is a time."""
    for name, timing in _timings(recording, ("timing", "graph", "called"), host=True):
        yield name, timing["p50"]
    for name, series in recording["series"].items():
        yield from _times_within(series, f"series {name}")


def _timings(recording: Mapping, kinds=("timing", "graph"), host: bool = False) -> Iterator[tuple[str, Mapping]]:
    """(what it is, its percentiles) of every row: left out, what the GPU took, alone and in a graph."""
    for ladder in (ladder for ladders in recording["ops"].values() for ladder in ladders):
        for row in ladder["rows"]:
            for kind in kinds if host or row["kind"] != "host" else ():
                if row.get(kind) is not None:
                    yield f"{ladder['op']}, {size_text(ladder['size'])}: {row['name']}: {kind}", row[kind]


def _overlap(one: Mapping, other: Mapping) -> bool:
    return one["p5"] <= other["p95"] and other["p5"] <= one["p95"]


def _times_within(value, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _times_within(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _times_within(inner, f"{name}[{i}]")
    elif isinstance(value, float):
        last = _last(name)
        if last == "p50" or last.split("_")[-1] in ("ms", "us", "ns") and last not in SIGNED:
            yield name, value


def _last(name: str) -> str:
    """ "a.b_ms[3]" -> "b_ms"."""
    return name.split(".")[-1].split("[")[0]


def _far(one: float, other: float, tolerance: float) -> bool:
    return not (_positive(one) and _positive(other)) or max(one, other) / min(one, other) - 1 > tolerance


def _apart(name: str, one: float, other: float) -> str:
    return f"{name}: {one:.4g} and {other:.4g}, a factor of {other / one:.2f}" if one else f"{name}: {one} and {other}"


def _positive(value) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _is_date(text) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except (TypeError, ValueError):
        return False
    return True
