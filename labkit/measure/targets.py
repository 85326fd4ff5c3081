"""Goals for the kernels and the engine, as data, and whether a recording reaches them.

    evaluate(measurements)      a Verdict for each goal
    table(verdicts)             the same to print

A goal is a figure, or a share of the fastest baseline's speed. Each says whether it was set before our kernels were
first measured at that work, or after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from labkit._common.tables import PlainTable, number
from labkit.kernels.linear.quantized import INT4
from labkit.measure import Ladder
from labkit.measure.comparisons import NO_VLLM, Comparison, compare

BEFORE, AFTER = "before", "after"
US, GBS, BASELINE = "us", "GB/s", "of the baseline's speed"
RATES = (GBS, BASELINE)


@dataclass(frozen=True)
class Goal:
    """At least `figure` for rates and ratios, at most for times. source and size name the workload as a Comparison
    does; rung: of one rung alone. read: finds the value in a series, where no Comparison has it."""

    work: str
    source: str
    size: dict
    figure: float
    unit: str
    rung: str = ""
    read: Callable[[Mapping], float | None] | None = None
    set: str = BEFORE

    @property
    def is_rate(self) -> bool:
        return self.unit in RATES or self.unit.endswith("/s")

    @property
    def text(self) -> str:
        if self.unit == BASELINE:
            return "as fast as the baseline" if self.figure == 1 else f"{self.figure:g} {self.unit}"
        return f"{'at least' if self.is_rate else 'at most'} {number(self.figure)} {self.unit}"


@dataclass(frozen=True)
class Verdict:
    """A goal with what was measured, in its unit; None where nothing was, and then `met` is None."""

    goal: Goal
    value: float | None
    met: bool | None


def evaluate(measurements: Mapping, goals: tuple[Goal, ...] | None = None) -> list[Verdict]:
    """Each goal against the ladders and series in `measurements`, as `labkit bench` writes them."""
    comparisons = {(one.source, _key(one.size)): one for one in compare(measurements)}
    return [_judge(goal, measurements, comparisons) for goal in (GOALS if goals is None else goals)]


def _key(size: Mapping) -> tuple:
    return tuple(sorted(size.items()))


def _judge(goal: Goal, measurements: Mapping, comparisons: Mapping[tuple, Comparison]) -> Verdict:
    if goal.read is not None:
        series = measurements.get("series", {}).get(goal.source)
        value = None if series is None else goal.read(series)
    elif goal.rung:
        value = _share_of_a_rung(goal, measurements, comparisons)
    else:
        one = comparisons.get((goal.source, _key(goal.size)))
        value = None if one is None else _in_unit(one, goal.unit)
    if value is None:
        return Verdict(goal, None, None)
    return Verdict(goal, value, value >= goal.figure if goal.is_rate else value <= goal.figure)


def _in_unit(one: Comparison, unit: str) -> float | None:
    if unit == BASELINE:
        return one.ratio
    if unit == GBS:
        return one.rate
    return 1000 * one.ours[1] if (unit, one.unit) == (US, "ms") else one.ours[1]


def _share_of_a_rung(goal: Goal, measurements: Mapping, comparisons: Mapping) -> float | None:
    """The baseline's time over that of one rung."""
    one = comparisons.get((goal.source, _key(goal.size)))
    for entry in measurements.get("ops", {}).get(goal.source, ()):
        if entry["size"] == goal.size and one is not None and one.baseline is not None:
            rows = [row for row in Ladder.from_json(entry).rungs if row.name == goal.rung]
            return one.baseline[1] / rows[0].ms if rows else None
    return None


# --- What series say -------------------------------------------------------------------------------------------------


def one_kernel_ms(sequences: int, series: Mapping) -> float | None:
    """From "llama_one_kernel": of a step of so many sequences, in a graph."""
    return next((row["one_kernel_ms"]["p50"] for row in series["rows"] if row["sequences"] == sequences), None)


def quantized_ms(format: str, sequences: int, series: Mapping) -> float | None:
    """From "llama_quantized": of a step of so many sequences with weights of this format."""
    return next((row["ms"]["p50"] for row in series["rows"]
                 if row["format"] == format and row["sequences"] == sequences), None)


def token_in_one_kernel_us(dtype: str, series: Mapping) -> float | None:
    """From "gpt2_one_kernel": after the most tokens, in a graph of that kernel."""
    found = [row["us"]["one_kernel"] for row in series["rows"] if row["dtype"] == dtype]
    return found[-1] if found else None


def one_sentence_us(tokens: int, series: Mapping) -> float | None:
    """From "minilm_one_kernel": of one sentence of so many tokens, in a graph of that kernel."""
    return next((row["us"]["one_kernel"]["p50"] for row in series["rows"] if row["tokens"] == tokens), None)


def start_seconds(series: Mapping) -> float:
    """From "engine_start": of the second run."""
    return series["seconds"]


def served_share(series: Mapping) -> float | None:
    """From "serve": tokens out a second over HTTP, with as many clients as seats, over those of the engine alone. The
    engine is in a process of its own, as it is on a GPU by default."""
    return series.get("engine_process_share_of_alone")


def logprobs_share(series: Mapping) -> float:
    """From "engine_logprobs": tokens out a second with five logprobs of each token, over those without."""
    return next(row["share_of_none"] for row in series["rows"] if row["name"] == "logprobs=5")


def first_token_ms(series: Mapping) -> float:
    """From "serve": p50, where requests arrive half as often as they can be served."""
    return series["half_load"]["median_ttft_ms"]


def loop_lag_ms(series: Mapping) -> float | None:
    """From "serve": by which the server's event loop was late, p99, with as many clients as seats."""
    lag = series["loop_lag"]["closed"]
    return None if lag is None else lag["p99"]


# --- The goals -------------------------------------------------------------------------------------------------------


def _product(M: int, N: int, K: int) -> dict:
    return {"M": M, "N": N, "K": K}


CUBE = _product(4096, 4096, 4096)
GOALS = (
    Goal("vector addition, 2^28 float32", "vector_add", {"n": 2**28}, 0.97, BASELINE, set=AFTER),
    Goal("softmax, 8192 x 8192 float32", "softmax", {"R": 8192, "C": 8192}, 150.0, US),
    Goal("LayerNorm, 65536 x 4096 float32", "layernorm", {"R": 65536, "C": 4096}, 3900.0, GBS),
    Goal("LayerNorm, 8192 x 768 float32", "layernorm", {"R": 8192, "C": 768}, 15.0, US),
    Goal("masked softmax, 64 x 1024 x 1024 float32, causal", "masked_softmax_causal", {"B": 64, "S": 1024}, 110.0, US),
    Goal("masked softmax, 64 x 1024 x 1024 float32, no mask", "masked_softmax_none", {"B": 64, "S": 1024}, 140.0, US),
    Goal("product, 4096^3 float32", "matmul", CUBE, 0.92, BASELINE, set=AFTER),
    Goal("product, 4096^3 float16", "matmul_half", CUBE, 0.95, BASELINE),
    Goal("product, 4096^3 float16, by mma.sync", "matmul_half", CUBE, 0.55, BASELINE, rung="matmul_half_pipelined"),
    Goal("product, 4096^3 bfloat16", "linear_bf16", CUBE, 0.98, BASELINE),
    *(Goal(f"linear layer, bfloat16, {M:,} x {K} -> {N}", "linear_bf16", _product(M, N, K), 1.0, BASELINE)
      for M in (1024, 4096) for K, N in ((2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048))),
    *(Goal(f"linear layer with bias, float16, 8192 x {K} -> {N}", "linear", _product(8192, N, K), 1.0, BASELINE)
      for K, N in ((384, 1152), (384, 384), (384, 1536), (1536, 384))),
    Goal("RMSNorm, 16384 x 2048 bfloat16", "rmsnorm_bf16", {"T": 16384, "C": 2048}, 3700.0, GBS),
    Goal("SwiGLU, 4096 x 8192 bfloat16", "swiglu_bf16", {"T": 4096, "F": 8192}, 3700.0, GBS),
    *(Goal(f"block of GPT-2, {S:,} tokens, {kind}", name, {"S": S}, figure, US)
      for kind, name, figures in (("float32", "gpt2_block", (90.0, 180.0, 620.0, 2900.0)),
                                  ("float16", "gpt2_block_half", (30.0, 38.0, 76.0, 280.0)))
      for S, figure in zip((16, 128, 1024, 4096), figures, strict=True)),
    Goal("attention over pages, 64 sequences of 4,096 tokens of Llama 3.2 1B, bfloat16", "paged_decode_bf16",
         {"B": 64, "S": 4096, "shortest": 4096, "H": 32, "KV": 8, "D": 64}, 3570.0, GBS),
    Goal("sampling, top-p, 32 x 128,256", "sample_top_p", {"R": 32, "V": 128_256}, 80.0, US),
    *(Goal(f"MiniLM, float16, {sentences} x {tokens} tokens", "minilm", {"sentences": sentences, "tokens": tokens},
           figure, "us a sentence")
      for sentences, tokens, figure in ((64, 16, 2.0), (64, 128, 7.5), (512, 16, 1.2))),
    *(Goal(f"MiniLM, float16, 1 x {tokens} tokens, in one kernel", "minilm_one_kernel", {"tokens": tokens}, figure,
           "us a sentence", read=functools.partial(one_sentence_us, tokens)) for tokens, figure in ((16, 60.0),
                                                                                                  (128, 75.0))),
    Goal("MiniLM, float16, 2,000 sentences by length", "minilm_corpus", {}, 400_000.0, "sentences/s"),
    *(Goal(f"GPT-2 small, a token with 1,023 before it, {dtype}", "token_times", {"position": 1023, "dtype": dtype},
           figure, US) for dtype, figure in (("float32", 300.0), ("float16", 200.0))),
    *(Goal(f"GPT-2 small, a token with 1,023 before it, {dtype}, in one kernel", "gpt2_one_kernel", {"dtype": dtype},
           figure, US, read=functools.partial(token_in_one_kernel_us, dtype))
      for dtype, figure in (("float32", 150.0), ("float16", 100.0))),
    *(Goal(f"Llama 3.2 1B, bfloat16, a token of {count} with 1,024", "llama_decode", {"sequences": count}, figure, "ms")
      for count, figure in ((1, 0.80), (32, 1.20), (256, 3.3))),
    *(Goal(f"Llama 3.2 1B, bfloat16, a token of {count} with 1,024, in one kernel", "llama_one_kernel",
           {"sequences": count}, figure, "ms", read=functools.partial(one_kernel_ms, count))
      for count, figure in ((1, 0.70), (8, 0.80))),
    Goal("Llama 3.2 1B, INT4, a token of 1 with 1,024", "llama_quantized", {"format": INT4, "sequences": 1}, 0.35, "ms",
         read=functools.partial(quantized_ms, INT4, 1)),
    *(Goal(f"Llama 3.2 1B, bfloat16, a prompt of {count:,} tokens", "llama_prefill", {"tokens": count}, figure, "ms")
      for count, figure in ((1024, 4.5), (4096, 17.0))),
    *(Goal(f"a training step of {run}, bfloat16, {shape} tokens", "train_step", {"run": run}, figure, "ms")
      for run, shape, figure in (("GPT-2 small", "16 x 1,024", 30.0), ("tiny GPT-2", "32 x 256", 2.0))),
    Goal(f"Llama 3.2 1B, 128 requests of 100 to 1,024 tokens, tokens out ({NO_VLLM})", "engine", {}, 25_000.0,
         "tokens/s"),
    Goal("Llama 3.2 1B, from the start of a process to the first token, second run", "engine_start", {}, 2.0, "s",
         read=start_seconds),
    Goal("the 1B engine with logprobs=5, 128 requests of 128 tokens, share of the engine without", "engine_logprobs",
         {}, 0.90, "of its tokens/s", read=logprobs_share),
    Goal("the 1B engine behind its API, in a process of its own, 128 clients, share of the engine alone", "serve", {},
         0.85, "of its tokens/s", read=served_share),
    Goal("the same in the server's process, at half its load, time to the first token, p50", "serve", {}, 150.0, "ms",
         read=first_token_ms),
    Goal("the same in the server's process, with 128 clients, lag of the event loop, p99", "serve", {}, 20.0, "ms",
         read=loop_lag_ms),
)


def table(verdicts: list[Verdict]) -> PlainTable:
    """Return the goals as a table, missed ones first."""
    def cell(verdict: Verdict) -> str:
        if verdict.value is None:
            return "-"
        goal = verdict.goal
        if goal.unit in (BASELINE, "of its tokens/s"):
            return f"{verdict.value:.2f}"
        return f"{number(verdict.value)} {goal.unit}"

    ordered = sorted(verdicts, key=lambda one: {False: 0, None: 1, True: 2}[one.met])
    lines = tuple((one.goal.work, one.goal.text, one.goal.set, cell(one),
                   {True: "yes", False: "no", None: "not measured yet"}[one.met]) for one in ordered)
    measured = [one for one in verdicts if one.met is not None]
    return PlainTable("Goals", ("work", "goal", "set", "measured", "met"), lines,
                      (f"{sum(one.met for one in measured)} of {len(measured)} met. Set: before or after our kernels "
                       "were first measured at this work.",), kind="targets")
