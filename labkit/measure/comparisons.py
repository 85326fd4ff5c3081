"""Our kernels beside the fastest that anything else was in the same run.

    compare(measurements)        a Comparison for each workload that was measured on a GPU
    table(comparisons)           those in which a library is faster first

A ladder is one Comparison: the fastest baseline, whichever it is, and the fastest rung that computes as exactly as the
operation asks, or as that baseline is asked to. Series of whole models have theirs. Where PyTorch was not measured
compiled, there is no ratio: what it makes of the same calls is the least that a kernel has to be compared with.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from labkit._common.tables import PlainTable, number, size_text
from labkit.kernels.agree import allowed_error
from labkit.kernels.baselines import COMPILED, forms, is_eager
from labkit.measure import Ladder, LadderRow
from labkit.measure.ops import op

Found = tuple[str, float] | None  # a name, and its value in the comparison's unit
EQUAL = 0.05  # ratios this near to 1 are called as fast
NOT_COMPILED = "PyTorch was not measured compiled"
NO_VLLM = "vLLM was not measured"
HIGHLIGHTS = (  # (source, what the size has): README's ten rows
    ("matmul_tf32", {"M": 4096}), ("histogram", {"S": 100}), ("matmul_bf16", {"M": 4096}),
    ("train_step", {"run": "GPT-2 small"}), ("minilm_corpus", {"texts": 2000}), ("paged_decode_bf16", {"B": 64}),
    ("softmax", {"C": 8192}), ("llama_decode", {"sequences": 1}), ("attention_half_causal", {"S": 4096}),
    ("token_times", {"dtype": "float16"}))


@dataclass(frozen=True)
class Comparison:
    """One workload. source: the operation or the series. unit: "ms", "us a sentence", "sentences/s", ...; `ours`,
    `baseline` and `eager` are a name and a value in it. eager: PyTorch as it is called, without torch.compile.
    why_not: why there is no baseline. rate: of ours, in GB/s or TFLOP/s, for a ladder."""

    work: str
    source: str
    size: dict
    unit: str
    ours: tuple[str, float]
    baseline: Found
    eager: Found = None
    why_not: str = ""
    rate: float | None = None

    @property
    def ratio(self) -> float | None:
        """Return our speed over the baseline's."""
        return self._over(self.baseline)

    @property
    def eager_ratio(self) -> float | None:
        """Our speed over eager PyTorch's."""
        return self._over(self.eager)

    def _over(self, other: Found) -> float | None:
        if other is None:
            return None
        return self.ours[1] / other[1] if self.unit.endswith("/s") else other[1] / self.ours[1]

    def text(self, result: Found) -> str:
        """A value with its unit."""
        if result is None:
            return "-"
        return time_text(result[1]) if self.unit == "ms" else f"{number(result[1])} {self.unit}"


def time_text(ms: float) -> str:
    """Milliseconds, or microseconds below one."""
    return f"{number(1000 * ms)} us" if ms < 1 else f"{number(ms)} ms"


def compare(measurements: Mapping) -> list[Comparison]:
    """A Comparison for each workload of the ladders and series in `measurements`, as `labkit bench` writes them.

    Operations that do the same work at the same size are one workload, in which each side has the fastest of all.
    """
    merged: dict[tuple, Comparison] = {}
    for entries in measurements.get("ops", {}).values():
        for ladder in map(Ladder.from_json, entries):
            one = of_ladder(ladder)
            if one is not None:
                key = (*workload(ladder.op), tuple(sorted(ladder.size.items())), ladder.bytes)
                merged[key] = _merged(merged[key], one) if key in merged else one
    series = measurements.get("series", {})
    return [*merged.values(), *(one for name, read in SERIES.items() if name in series for one in read(series[name]))]


@functools.cache
def workload(name: str) -> tuple:
    """Equal for operations that compute the same from inputs of the same types."""
    one = op(name)
    inputs = one.inputs(np.random.default_rng(0), **one.awkward[0])
    return one.formula, tuple(str(np.asarray(value).dtype) for value in inputs), str(one.dtype)


def _merged(one: Comparison, other: Comparison) -> Comparison:
    faster = min(one, other, key=lambda each: each.ours[1])
    if one.baseline is None or other.baseline is None:
        return faster
    return replace(faster, baseline=min(one.baseline, other.baseline, key=lambda each: each[1]),
                   eager=_least(each for each in (one.eager, other.eager) if each))


def of_ladder(ladder: Ladder) -> Comparison | None:
    """A ladder's fastest rung beside its fastest baseline; None without a rung."""
    others = [row for row in ladder.rows if row.kind == "baseline"]
    why_not = _why_not(ladder, others)
    baseline = None if why_not else _least((row.name, row.ms) for row in others)
    rungs = [row for row in ladder.rungs
             if not row.failed and _is_as_exact(ladder.op, row.name, baseline and baseline[0])]
    if not rungs:
        return None
    best = min(rungs, key=lambda row: row.ms)
    eager = _least((row.name, row.ms) for row in others
                   if is_eager(row.name) and _is_as_exact(ladder.op, best.name, row.name))
    return Comparison(f"{ladder.title}, {size_text(ladder.size)}", ladder.op, ladder.size, "ms", (best.name, best.ms),
                      baseline, eager, why_not, ladder.rate_in(best.ms))


def _is_as_exact(name: str, rung: str, baseline: str | None) -> bool:
    """Whether a rung has the operation's tolerance or, at an awkward size, none wider than the baseline's."""
    one = op(name)
    rough = next((each for each in one.rungs if each.__name__ == rung and each.tolerance is not None), None)
    other = next((form for each in one.baselines for form in forms(each) if form.title == baseline), None)
    if rough is None or other is None:
        return rough is None
    inputs = one.inputs(np.random.default_rng(0), **one.awkward[-1])
    return bool(np.all(allowed_error(one, rough, inputs) <= allowed_error(one, other, inputs)))


def _why_not(ladder: Ladder, others: list[LadderRow]) -> str:
    """Why the fastest of these is not the baseline; empty if it is. What was tried and failed is not missing."""
    if not others:
        return "no library was measured"
    tried = {row.name for row in others} | ladder.skipped.keys()
    expected = {form.title for each in op(ladder.op).baselines if each.library == "torch" for form in forms(each)}
    missing = sorted(expected - tried)
    if any(COMPILED in name for name in missing) and not any(COMPILED in row.name for row in others):
        return NOT_COMPILED
    return f"not measured yet: {'; '.join(missing)}" if missing else ""


def _least(candidates: Iterable) -> Found:
    """Return the smallest of (name, value); a value that is not a number was not measured."""
    return min((one for one in candidates if isinstance(one[1], int | float)), key=lambda one: one[1], default=None)


def _most(candidates: Iterable) -> Found:
    return max((one for one in candidates if isinstance(one[1], int | float)), key=lambda one: one[1], default=None)


# --- What series say --------------------------------------------------------------------------------------------------


def _plural(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def _in_torch(ways: Mapping | None, eager: bool | None = None) -> Found:
    """The fastest of PyTorch's ways, of which those with "compiled" in their name, and transformers' three lines, are
    compiled."""
    def fits(way: str) -> bool:
        return eager is None or eager == ("compiled" not in way and "three lines" not in way)

    return _least((f"PyTorch, {way}", value) for way, value in (ways or {}).items() if fits(way))


def _beside_torch(work: str, source: str, size: dict, unit: str, best: tuple[str, float], ways: Mapping | None
                  ) -> Comparison:
    """Compare our time with PyTorch's fastest way; without a compiled one there is no baseline."""
    compiled = _in_torch(ways, eager=False) is not None
    return Comparison(work, source, size, unit, best, _in_torch(ways) if compiled else None,
                      _in_torch(ways, eager=True), "" if compiled else NOT_COMPILED)


def of_minilm(series: Mapping) -> Iterator[Comparison]:
    """Microseconds a sentence, in graphs."""
    for row in series["rows"]:
        size = {"sentences": row["sentences"], "tokens": row["tokens"]}
        yield _beside_torch(f"MiniLM in float16, {_plural(row['sentences'], 'sentence')} of {row['tokens']} tokens",
                            "minilm", size, "us a sentence",
                            _least((form, one["us_a_sentence"]) for form, one in row["ours"].items()), row["torch"])


def of_corpus(series: Mapping) -> Iterator[Comparison]:
    """Sentences a second over a corpus, in the fastest form and batch of each side; and from texts to embeddings, for
    which PyTorch was not measured eager: sentence-transformers is another library."""
    best = _most((f"{row['form']}, {row['batch']:,} a batch", row["sentences_per_second"]) for row in series["ours"])
    eager, compiled = [], []
    for row in series["torch"]:
        name = f"{row.get('form', 'padded')}, {row['batch']:,} a batch"
        eager += [(f"PyTorch, {name}", row[f"{how}_sentences_per_second"]) for how in ("called", "graph")]
        compiled += [(f"PyTorch{COMPILED}, {way}, {name}".replace(", compiled, compiled", COMPILED), rate)
                     for way, rate in row.get("compiled_ways", {}).items()]
    known = _most(compiled) is not None
    yield Comparison(f"MiniLM in float16, {series['sentences']:,} sentences by length", "minilm_corpus", {},
                     "sentences/s", best, _most([*eager, *compiled]) if known else None, _most(eager),
                     "" if known else NOT_COMPILED)
    seconds = _seconds(series["text"], "ours", "Encoder.encode")
    if seconds is not None:
        torch_text = _seconds(series["text"], "torch", "PyTorch, fast tokenizer")
        library = _seconds(series["text"], "library", "sentence-transformers")
        yield Comparison(f"MiniLM in float16, {series['sentences']:,} texts to embeddings", "minilm_corpus",
                         {"texts": series["sentences"]}, "s", seconds,
                         torch_text and _least(one for one in (torch_text, library) if one),
                         why_not="" if torch_text else NOT_COMPILED)


def _seconds(text: Mapping, key: str, name: str) -> Found:
    return _least((f"{name}, {column.rsplit('_')[-1]} a batch", value) for column, value in text.items()
                  if column.startswith(f"{key}_seconds_"))


def of_tokens(series: Mapping) -> Iterator[Comparison]:
    """Milliseconds of a token of GPT-2 small, in graphs, in each type."""
    for dtype in ("float32", "float16"):
        rows = [row for row in series["rows"] if row["form"].endswith(dtype)]
        position = max(row["position"] for row in rows)
        best = _least((row["form"], row["us"] / 1000) for row in rows if row["position"] == position)
        ways = {row["way"]: row["us"] and row["us"] / 1000 for row in series.get("torch") or ()
                if (row["dtype"], row["position"]) == (dtype, position)}
        yield _beside_torch(f"GPT-2 small, a token with {position:,} before it, {dtype}", "token_times",
                            {"position": position, "dtype": dtype}, "ms", best, ways)


def _of_steps(source: str, key: str, work: Callable[[int], str]) -> Callable[[Mapping], Iterator[Comparison]]:
    """Milliseconds of a step of a Llama, in graphs."""
    def read(series: Mapping) -> Iterator[Comparison]:
        compared = [row for row in series["rows"] if row["torch"]]  # PyTorch runs at some sizes alone
        for row in compared or series["rows"]:
            yield _beside_torch(f"Llama 3.2 1B in bfloat16, {work(row[key])}", source, {key: row[key]}, "ms",
                                ("in a graph", row["ms"]["p50"]), row["torch"])

    return read


def of_engine(series: Mapping) -> Iterator[Comparison]:
    """Tokens out a second of many requests. transformers' batching, measured in the same run, is no engine to compare
    one with, so there is no ratio."""
    best = _most((row["name"], row["tokens_per_second"]) for row in series["rows"]
                 if row["name"].startswith("all at once"))
    transformers = series.get("transformers")
    if best is not None:
        why_not = NO_VLLM
        if transformers:
            why_not += f"; transformers' batching: {number(transformers['tokens_per_second'])} tokens/s"
        yield Comparison(f"Llama 3.2 1B, {series.get('requests', 128)} requests of 100 to 1,024 tokens, tokens out",
                         "engine", {}, "tokens/s", best, None, why_not=why_not)


def of_training(series: Mapping) -> Iterator[Comparison]:
    """Milliseconds of a training step, the host's part included."""
    for row in series["rows"]:
        yield _beside_torch(f"A training step of {row['run']} in bfloat16, {row['batch']} x {row['length']:,} tokens",
                            "train_step", {"run": row["run"]}, "ms", ("labkit train", row["ms"]["p50"]), row["torch"])


SERIES: dict[str, Callable[[Mapping], Iterator[Comparison]]] = {
    "minilm": of_minilm,
    "minilm_corpus": of_corpus,
    "token_times": of_tokens,
    "llama_decode": _of_steps("llama_decode", "sequences",
                              lambda count: f"a token of {_plural(count, 'sequence')} with 1,024"),
    "llama_prefill": _of_steps("llama_prefill", "tokens", lambda count: f"a prompt of {count:,} tokens"),
    "engine": of_engine,
    "train_step": of_training,
}

# --- Tables ----------------------------------------------------------------------------------------------------------


def parted(comparisons: list[Comparison]) -> tuple[list[Comparison], ...]:
    """Split those with a ratio into: the library is faster, equal, ours is faster."""
    rated = [one for one in comparisons if one.ratio is not None]
    return ([one for one in rated if one.ratio < 1 - EQUAL], [one for one in rated if abs(one.ratio - 1) <= EQUAL],
            [one for one in rated if one.ratio > 1 + EQUAL])


def highlights(comparisons: list[Comparison]) -> list[Comparison]:
    """Return those that README shows."""
    return [one for source, size in HIGHLIGHTS for one in comparisons
            if one.source == source and size.items() <= one.size.items()]


def summary(comparisons: list[Comparison]) -> str:
    """Return in a sentence how many are faster, as fast and slower."""
    slower, equal, faster = parted(comparisons)
    ratios = [one.ratio for one in (*slower, *equal, *faster)]
    if not ratios:
        return "Nothing was measured beside a library yet."
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    without = len(comparisons) - len(ratios)
    left = f" {_plural(without, 'more workload')} {'has' if without == 1 else 'have'} no ratio." if without else ""
    return (f"Of {len(ratios)} workloads a library is faster in {len(slower)}, within {EQUAL:.0%} of us in "
            f"{len(equal)}, and slower in {len(faster)}; the geometric mean of the ratios is {mean:.2f}." + left)


def table(comparisons: list[Comparison], title: str = "Beside the libraries", where: str = "") -> PlainTable:
    """A row for each, smallest ratio first; those without a ratio last, with the reason."""
    ordered = sorted(comparisons, key=lambda one: math.inf if one.ratio is None else one.ratio)
    lines = tuple((one.work, one.ours[0], one.text(one.ours), one.baseline[0] if one.baseline else one.why_not or "-",
                   one.text(one.baseline), _ratio(one.ratio), one.text(one.eager), _ratio(one.eager_ratio))
                  for one in ordered)
    notes = (([f"Measured on {where}."] if where else [])
             + ["Ratio: our speed over the baseline's, p50 of one run: in a CUDA graph below 1 ms, and for whole "
                "blocks and models; otherwise single launches with cold caches.",
                "Baseline: the fastest of everything that was measured for the same work in the same run."])
    return PlainTable(title, ("work", "ours", "time", "baseline", "time", "ratio", "eager PyTorch", "ratio to it"),
                      lines, tuple(notes), kind="comparisons")


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
