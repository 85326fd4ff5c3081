"""Sanity checks of a recording: percentiles in order, rates that follow from times, nothing faster than the hardware.

    against(recording, taken)   which times just taken do not agree with the recording of the same GPU
    problems(recording)         the faults within a file of data/measurements: a list of sentences, empty if none
    differences(one, other)     which times of two recordings of the same GPU are further apart than the tolerance
    profile_differences(recording, profile)     the same for a recording and Nsight Compute's times of those launches
    check(recording, known)     raises ValueError for problems, prints differences: before a file is replaced
    shared_problems(recording)  the faults of a file that somebody shares, who may send anything

They work on the JSON as data/measurements/README.md describes it, and need no GPU.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import shorten

from labkit._common.tables import size_text
from labkit.device import gpus
from labkit.kernels.baselines import forms
from labkit.kernels.op import Op
from labkit.measure import ops, roofline
from labkit.measure.timing import HOST_CPU

SCHEMA = 1

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


# --- Files that others share -----------------------------------------------------------------------------------------

_TIMING = {"p5": float, "p50": float, "p95": float, "runs": int, "where": str}
_FACTS = {"device": str, "kind": str, "gpu": str, "compute_capability": str, "sms": int, "l2_mb": int, "driver": str,
          "cuda_driver": (str, None), "cuda_runtime": (str, None), "date": str, "python": str}
PACKAGES = ("labkit", "numba", "numba-cuda", "numpy", "torch", "cupy", "triton")
MACHINE = {**_FACTS, **dict.fromkeys(PACKAGES, (str, None))}
LIMITS = {"gpu": str, "bandwidth_gbs": float, "fp32_tflops": float, "source": str,
          **{f"{units}_tflops": (float, None) for units in ("tf32", "f16", "mma_tf32", "mma_f16")}}
ROW = {"name": str, "kind": str, "timing": _TIMING, "graph": (_TIMING, None), "called": (_TIMING, None), "gbs": float,
       "tflops": float, "fraction": (float, None), "error": float, "error_units": float}
LADDER = {"op": str, "title": str, "size": {str: int}, "unit": str, "where": str, "flops": int, "bytes": int,
          "bound_ms": float, "binds": str, "limit": float, "limit_label": str, "peak": str, "limits": LIMITS,
          "machine": MACHINE, "skipped": {str: str}, "rows": [ROW]}
SHARED = {"schema": int, "machine": MACHINE, "limits": LIMITS, "ops": {str: [LADDER]}, "series": {}}
"""What a shared file holds, and nothing else. A pair with None may be null; {str: ...} has any keys."""

LARGEST_SHARED = 1_500_000  # bytes
LARGEST_CACHE_MB = 512
LONGEST_MS = 3_600_000
NOT_TIMED = "it failed"  # in place of an error's text, which may hold anything
_OWN_REASONS = "needs .*|it allows .*"  # why labkit does not time a rung
ABOVE_SHEET = 1.25  # a data sheet's flops are those at its boost clock, which many cards exceed
_GPU_NAME = r"(?=.*\d|.*TITAN)(NVIDIA|Tesla|Quadro|GeForce|TITAN|GRID) [\w .+-]{1,60}"
_VERSION = r"[0-9][\w.+!-]{0,39}"
_PRIVATE = re.compile(r"(?P<path>(?<![\w.)])(?:~|\.{1,2})?/[\w.~-]+|\b[A-Za-z]:\\|\\\\\w|\w\.py\b|\w/\w+/)"
                      r"|(?P<address>\w@\w|://|\b\d{1,3}(?:\.\d{1,3}){3}\b)"
                      r"|(?P<host>\blocalhost\b|\b[\w-]+\.(?:local|lan|internal|corp|home|com|org|net|edu|io|ai)\b)")


def read_shared(path: Path) -> dict:
    """Read a file that somebody shares. Raises ValueError with all that is wrong in it, a line each."""
    try:
        if path.stat().st_size > LARGEST_SHARED:
            raise ValueError(f"it has {path.stat().st_size:,} bytes; at most {LARGEST_SHARED:,} are allowed")
        recording = json.loads(path.read_text(encoding="utf-8"))  # NaN, too, which is no time
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if errors := shared_problems(recording):
        raise ValueError("\n".join(errors))
    return recording


def shared_problems(recording: object) -> list[str]:
    """Return what is wrong with a file that somebody shares, each as a sentence: all of `problems`, and what cannot be
    a GPU's, is unknown to this version of labkit, or does not belong into a public file."""
    if not isinstance(recording, Mapping) or recording.get("schema") != SCHEMA:
        schema = recording.get("schema") if isinstance(recording, Mapping) else recording
        return [f"schema is {_short(schema)}; {SCHEMA} is allowed"]
    if errors := [*_of_form(recording, SHARED, "")]:
        return errors  # what follows reads all of it
    gpu = recording["machine"]["device"]
    found = [*_of_machine(recording["machine"], "machine"), *problems_of_limits(recording["limits"], gpu),
             *_private_texts(recording, ""), *_of_operations(recording), *problems(recording)]
    return list(dict.fromkeys(found))


def described(recording: Mapping) -> str:
    """What a shared file holds, in a few words: "12 operations on NVIDIA GeForce RTX 4060, 2026-11-28"."""
    count, machine = len(recording["ops"]), recording["machine"]
    return f"{count} operation{'s' * (count != 1)} on {machine['device']}, {machine['date']}"


def may_be_shared(reason: str) -> bool:
    """Whether the reason why a rung was not timed is one of labkit's, and not the text of an error."""
    return re.fullmatch(_OWN_REASONS, reason) is not None and private(reason) is None


def private(text: str) -> str | None:
    """What of a text does not belong into a public file, such as "the path /home/me"; None if nothing."""
    found = _PRIVATE.search(text)
    return found and f"the {found.lastgroup} {found[0]!r}"


def _of_form(value: object, form: object, name: str) -> Iterator[str]:
    """Yield where `value` is not what SHARED says."""
    if isinstance(form, tuple):
        if value is not None:
            yield from _of_form(value, form[0], name)
    elif isinstance(form, Mapping) and isinstance(value, Mapping):
        inner = dict.fromkeys(value, form[str]) if str in form else form
        yield from (f"{_named(name, key)} is missing" for key in inner if key not in value)
        yield from (f"{_named(name, key)} is there, which a shared file does not hold" for key in value
                    if key not in inner)
        for key in inner.keys() & value.keys():
            yield from _of_form(value[key], inner[key], _named(name, key))
    elif isinstance(form, list) and isinstance(value, list):
        for i, each in enumerate(value):
            yield from _of_form(each, form[0], f"{name}[{i}]")
    elif isinstance(form, Mapping | list):
        yield f"{name} is {_short(value)}; a JSON {'object' if isinstance(form, Mapping) else 'array'} is needed"
    elif isinstance(value, bool) or not isinstance(value, (int, float) if form is float else form):
        yield f"{name} is {_short(value)}; {({str: 'a text', int: 'an integer', float: 'a number'})[form]} is needed"
    elif isinstance(value, int) and abs(value) >= 2**63:
        yield f"{name} is {_short(value)}; less than 2^63 is needed"


def _named(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _short(value: object) -> str:
    return shorten(repr(value), 60)


def _of_machine(machine: Mapping, label: str) -> Iterator[str]:
    name = machine["device"]
    if machine["kind"] != "gpu":
        yield f"{label}: kind is {machine['kind']!r}: only times of a GPU are shared, not those of the CPU device"
    if not re.fullmatch(_GPU_NAME, name) or machine["gpu"] != name:
        yield f"{label}: {name!r} is no name of a GPU as the driver gives it, such as 'NVIDIA GeForce RTX 4060'"
    if _is_date(machine["date"]) and machine["date"] > (datetime.date.today() + datetime.timedelta(1)).isoformat():
        yield f"{label}: the date {machine['date']} is in the future"
    for key in ("compute_capability", "driver", "cuda_driver", "cuda_runtime", "python", *PACKAGES):
        if machine[key] is not None and not re.fullmatch(_VERSION, machine[key]):
            yield f"{label}: {key} is {_short(machine[key])}; a version is needed"
    if not 0 <= machine["l2_mb"] <= LARGEST_CACHE_MB:
        yield f"{label}: l2_mb is {machine['l2_mb']}; 0 to {LARGEST_CACHE_MB} is allowed"
    sheet = gpus.sheet_of(name)
    if sheet is not None:
        capability = ".".join(map(str, sheet.capability))
        for key, expected in (("compute_capability", capability), ("sms", sheet.multiprocessors)):
            if machine[key] != expected:
                yield f"{label}: {key} is {machine[key]}; {name} has {expected}"


def problems_of_limits(limits: Mapping, gpu: str) -> Iterator[str]:
    """Yield what no GPU of this name reaches by its data sheet; without one, by the highest of all data sheets."""
    yield from (f"limits: {key} is {value!r}" for key, value in limits.items()
                if isinstance(value, int | float) and not _positive(value))
    if limits["gpu"] != gpu or limits["source"] != "measured":
        yield f"limits: they must be measured on {gpu}, not {limits['source']} on {_short(limits['gpu'])}"
    sheet = gpus.sheet_of(gpu)
    sheets, whose = ([sheet], f"the data sheet of {gpu} says") if sheet else (
        list(gpus.GPUS.values()), "the fastest GPU known here has")
    for key in ("bandwidth_gbs", "fp32_tflops", "tf32_tflops", "f16_tflops", "mma_tf32_tflops", "mma_f16_tflops"):
        most = max(getattr(each, key.removeprefix("mma_")) or 0.0 for each in sheets)
        allowed = most if key == "bandwidth_gbs" else ABOVE_SHEET * most
        if (limits.get(key) or 0.0) > allowed:
            yield f"limits: {key} is {limits[key]:,.4g}; {whose} {most:,.4g}"


def _private_texts(value: object, name: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if found := private(key):
                yield f"{name or 'a key'} contains {found}"
            yield from _private_texts(inner, _named(name, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _private_texts(inner, f"{name}[{i}]")
    elif isinstance(value, str) and not re.fullmatch(_VERSION, value) and (found := private(value)):
        yield f"{name} contains {found}"


def _of_operations(recording: Mapping) -> Iterator[str]:
    if not recording["ops"]:
        yield "it holds no operation"
    for name, ladders in recording["ops"].items():
        if name not in ops.HOMES:
            yield f"no operation is called {name!r}"
            continue
        operation = ops.op(name)
        if not ladders or not all(ladder["rows"] for ladder in ladders):
            yield f"{name}: nothing was measured"
        for ladder in ladders:
            label = f"{name}, {size_text(ladder['size'])}"
            yield from (f"{label}: {problem}" for problem in _of_operation(ladder, operation, recording))


def kinds_of(operation: Op) -> dict[str, str]:
    """{the name of a rung or baseline: the kind of its rows}."""
    kinds = {each.__name__: "rung" for each in operation.rungs}
    return kinds | {form.title: "host" if each.library == "numpy" else "baseline" for each in operation.baselines
                    for form in forms(each)}


def _of_operation(ladder: Mapping, operation: Op, recording: Mapping) -> Iterator[str]:
    """Yield what is not so in this version of labkit, and times that no GPU can take."""
    gpu = recording["machine"]["device"]
    if ladder["op"] != operation.name or ladder["where"] != gpu or ladder["machine"]["device"] != gpu:
        yield f"it is of {ladder['op']} on {_short(ladder['where'])}, not of {operation.name} on {gpu}"
    yield from _of_machine(ladder["machine"], "machine")
    wrong_limits = list(problems_of_limits(ladder["limits"], gpu))
    yield from wrong_limits
    try:
        work = (operation.work.bytes(**ladder["size"]), operation.work.flops(**ladder["size"]))
        bound = roofline.bound_of(*work, operation.work.peak, roofline.Limits(**ladder["limits"]))
    except (TypeError, KeyError):  # other axes
        yield f"{operation.name} has no such size"
        return
    except (ValueError, ArithmeticError) as error:
        if not wrong_limits:
            yield f"limits: {error}"
        return
    if not (bound.bytes > 0 and bound.flops > 0):
        yield f"{operation.name} has no such size"
        return
    expected = {"title": operation.title, "bytes": bound.bytes, "flops": bound.flops, "peak": bound.peak,
                "unit": operation.work.unit, "binds": bound.binds, "bound_ms": bound.time_ms,
                "limit": bound.rate(operation.work.unit), "limit_label": bound.label}
    for key, value in expected.items():
        if ladder[key] != value and not (isinstance(value, float) and math.isclose(ladder[key], value, rel_tol=1e-6)):
            yield f"{key} is {_short(ladder[key])}, and by this version of labkit {value}"
    known = kinds_of(operation)
    for name, why in ladder["skipped"].items():
        if name not in known:
            yield f"no rung or baseline is called {_short(name)}"
        if why != NOT_TIMED and not may_be_shared(why):
            yield f"{_short(name)} was not timed because {_short(why)}; {NOT_TIMED!r} and labkit's reasons are allowed"
    for row in ladder["rows"]:
        yield from (f"{_short(row['name'])}: {problem}" for problem in _of_shared_row(row, known, bound, ladder))


def _of_shared_row(row: Mapping, known: Mapping[str, str], bound: roofline.Bound, ladder: Mapping) -> Iterator[str]:
    if known.get(row["name"]) != row["kind"]:
        yield f"no {row['kind']} is called so"
    if not 0 <= row["error_units"] <= 1 or not 0 <= row["error"] < math.inf:  # NaN is neither
        yield f"its error is {row['error_units']} of the allowed one"
    allowed = (HOST_CPU,) if row["kind"] == "host" else (ladder["where"], f"{ladder['where']}, in a CUDA graph")
    if row["kind"] == "host" and row["fraction"] is not None:
        yield f"fraction is {row['fraction']}, of no GPU"
    timings = {kind: row[kind] for kind in ("timing", "graph", "called") if row[kind] is not None}
    yield from (f"{kind}: {one['runs']} runs up to {one['p95']:.4g} ms" for kind, one in timings.items()
                if one["runs"] < 1 or one["p95"] > LONGEST_MS)
    yield from (f"{kind}: taken on {_short(one['where'])}" for kind, one in timings.items()
                if one["where"] not in allowed)
    cached = min(1.0, ladder["machine"]["l2_mb"] * 2**20 / bound.bytes)  # of what a graph's launches find in the cache
    least = max((1 - cached) * bound.bytes / bound.limits.bandwidth_gbs / 1e6,
                bound.flops / bound.limits.peak(bound.peak) / 1e9)
    for kind in ("graph", "called") if row["kind"] != "host" else ():
        if kind in timings and least > ABOVE_LIMIT * timings[kind]["p50"]:
            yield f"{kind}: {timings[kind]['p50']:.4g} ms, and the hardware needs {least:.4g} ms"
