"""What the numbers in prose are worked out from: the names that an expression may use.

    row("softmax", "naive", R=8192, C=8192)   a row of a ladder: .ms .us .graph_us .gbs .tflops .fraction .registers ...
    row("matmul", "tiled", gpu=H100)          the same on another GPU; so rates_of, ncu and stall
    series.copies.h2d_pinned.gbs              a series, by attributes and indices
    series_of("index_types", GPU)             one that is recorded on another GPU
    ncu("matmul", "tiled")                    a profiled kernel: .dram_read .occupancy_percent ...
    stall("matmul", "tiled", "barrier")       how many of its warps waited for that
    report("L1/TEX Cache Throughput")         a line of the profiler's report on the tiled product
    limits.bandwidth_gbs, machine.sms         of the machine; limits_of(H100), machine_of(H100) of another
    training, llama_training                  training.json of data/tiny-gpt2 and data/tiny-llama, and more
    quantized["int4, GPTQ"].trained           a row of data/quantized.json, by its format
    words(7.06)                               "seven"; words(0.5) "half"
    near(value, 2 / 3)                        whether it is within a tenth of that
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from labkit import measure
from labkit._common import paths
from labkit.measure import ncu as counters
from labkit.train.settings import Settings

TINY = paths.REPOSITORY / "data" / "tiny-gpt2"
GPU = "NVIDIA H200"
H100 = "NVIDIA H100 80GB HBM3"

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
          "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
_TENS = {30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy", 80: "eighty", 90: "ninety",
         100: "a hundred"}
_PARTS = {1 / 2: "half", 1 / 3: "a third", 2 / 3: "two thirds", 1 / 4: "a quarter", 3 / 4: "three quarters",
          1 / 5: "a fifth", 4 / 5: "four fifths", 1 / 10: "a tenth", 9 / 10: "nine tenths"}


class Record:
    """A part of a recording, by attributes and indices; a list of named things also by name."""

    def __init__(self, value):
        self._value = value

    def __getattr__(self, name: str):
        if name.startswith("_") or not isinstance(self._value, Mapping) or name not in self._value:
            raise KeyError(name)
        if self._value[name] is None:  # there, and not measured
            raise KeyError(name)
        return _wrapped(self._value[name])

    def __getitem__(self, key):
        if isinstance(key, str) and isinstance(self._value, list):
            return _wrapped(next(one for one in self._value if key in (one["name"], one.get("kind"))))
        return _wrapped(self._value[key])

    def __len__(self) -> int:
        return len(self._value)

    def __iter__(self):
        return (_wrapped(one) for one in self._value)


def _wrapped(value):
    return Record(value) if isinstance(value, Mapping | list) else value


def row(op: str, name: str, gpu: str = GPU, **size: int) -> SimpleNamespace:
    """Return a recorded row. `name`: with or without the operation's prefix; of a library, a prefix is enough."""
    ladder = measure.recorded_ladder(op, size or None, gpu=gpu)
    if ladder is None:
        raise KeyError(f"{op} {size}")
    matches = [one for one in ladder.rows if one.name in (name, f"{op}_{name}")]
    matches = matches or [one for one in ladder.rows if one.name.startswith(name)]
    if not matches:
        raise KeyError(f"{op}: {name}")
    one = matches[0]
    resources = one.resources[0] if one.resources else {}
    return SimpleNamespace(ms=one.timing.p50, us=1000 * one.timing.p50, gbs=one.gbs, tflops=one.tflops,
                           graph_us=one.graph and 1000 * one.graph.p50, fraction=one.fraction, error=one.error,
                           bytes=ladder.bytes, bound_ms=ladder.bound_ms, **resources)


def series_of(name: str, gpu: str) -> Record:
    """Return a series recorded on a GPU of this name."""
    return Record(measure.recorded_series(name, gpu=gpu))


def rates_of(op: str, names: tuple[str, ...], gpu: str = GPU) -> dict[str, float]:
    """name -> TFLOP/s."""
    return {name: row(op, name, gpu).tflops for name in names}


def times_of(op: str, names: tuple[str, ...], prefix: str = "") -> dict[str, float]:
    """name -> ms of each row, which is called `prefix` + the name."""
    return {name: row(op, prefix + name).ms for name in names}


def profiled(op: str) -> list[dict]:
    """Every kernel of an operation that Nsight Compute counted."""
    return counters.recorded()["ops"][op]["rows"]


def ncu(op: str, name: str, gpu: str = GPU) -> Record:
    """What Nsight Compute counted for a row's first kernel."""
    rows = counters.recorded(measure.slug(gpu))["ops"][op]["rows"]
    matches = [one for one in rows if one["name"] in (name, f"{op}_{name}") or one["name"].startswith(name)]
    if not matches:
        raise KeyError(f"ncu.{op}.{name}")
    return Record(matches[0])


def stall(op: str, name: str, reason: str, gpu: str = GPU) -> float:
    """How many warps of a scheduler waited for this when one of them issued an instruction; what ncu left out is 0."""
    return ncu(op, name, gpu).stalls._value.get(reason, 0.0)


def limits_of(gpu: str) -> Record:
    """What was measured of a GPU of this name as its limits."""
    return Record(measure.recorded(gpu=gpu)["limits"])


def machine_of(gpu: str) -> Record:
    """A GPU of this name and the software on it."""
    return Record(measure.recorded(gpu=gpu)["machine"])


def report(metric: str) -> float:
    """A number from Nsight Compute's own report on the tiled product."""
    text = counters.recorded()["report"]
    return float(re.search(rf"{re.escape(metric)} +[^ ]+ +([\d,.]+)", text)[1].replace(",", ""))


def block_bytes(tokens: int, fused: bool = True) -> int:
    """Return what the launches of a GPT-2 block read and write, as lesson 26 counts it."""
    from labkit.models.gpt2_block import GPT2_SMALL, traffic

    return sum(traffic(GPT2_SMALL, tokens, fused=fused).values())


def mean_rate(model: Record, how: str, attention: str = "unfused") -> float:
    """Tokens a second of a recorded model, over its prompts; by default with softmax in three launches."""
    rates = [one["tokens_per_second"] for prompt in model._value["prompts"] for one in prompt["rows"]
             if (one["attention"], one["how"]) == (attention, how)]
    return sum(rates) / len(rates)


def file_mb(name: str) -> float:
    """The size of a file of data/tiny-gpt2."""
    return (TINY / name).stat().st_size / 1e6


def words(value: float) -> str:
    """7.06 -> "seven", 0.5 -> "half"; a number without a word of its own stays a number."""
    for part, name in _PARTS.items():
        if abs(value / part - 1) < 0.1 and value < 0.95:
            return name
    rounded = round(value)
    if rounded > 20:
        rounded = round(value, -1)
        return _TENS.get(int(rounded), f"{value:.3g}")
    return _WORDS[rounded - 1] if 0 < rounded <= len(_WORDS) else f"{value:.3g}"


def near(value: float, expected: float, within: float = 0.1) -> bool:
    """Whether the value is what a word means, to a tenth or to `within`."""
    return abs(value / expected - 1) <= within


def _training(model: Path) -> Record:
    """training.json, with the number of parameters, the last step, and the one with the lowest held-out loss."""
    training = json.loads((model / "training.json").read_text(encoding="utf-8"))
    held_out = [step for step in training["log"] if "held_out" in step]
    return Record(training | {"parameters": Settings.of(training["settings"]).model.parameters, "last": held_out[-1],
                              "best": min(held_out, key=lambda step: step["held_out"])})


def _quantized() -> dict[str, Record]:
    rows = json.loads(TINY.with_name("quantized.json").read_text(encoding="utf-8"))["rows"]
    return {row["format"]: Record(row) for row in rows}


def namespace() -> dict:
    """Return every name that an expression may use."""
    data = measure.recorded(gpu=GPU)
    functions = (row, series_of, limits_of, machine_of, rates_of, times_of, ncu, profiled, stall, report, block_bytes,
                 mean_rate, file_mb, words, near, min, max, abs, all, sum, round, len, sorted)
    names = {function.__name__: function for function in functions}
    return names | {"H100": H100, "series": Record(data["series"]), "limits": Record(data["limits"]),
                    "machine": Record(data["machine"]), "training": _training(TINY),
                    "llama_training": _training(TINY.with_name("tiny-llama")), "quantized": _quantized(),
                    "__builtins__": {}}
