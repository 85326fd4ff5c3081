"""What the kernels must reach compared with the libraries, as data, and whether a run of `labkit bench` reaches it.

    evaluate(measurements)      a row for each target: baseline and ours as measured in one run, and whether it is met
    table(rows)                 the same to print

Of a Target, a baseline is the fastest row of the ladder whose name holds `baseline`; ours is the fastest rung that did
not fail, among those whose name holds `only` and nothing of `without`. Of a SeriesTarget, both are the fastest of what
a series holds. Both were timed in the same process on the same arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
        return _asked(self)

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

    def judge(self, measurements: dict) -> TargetRow:
        return _judge(self, _ladder(measurements, self))


TIMES = ("us", "ms", "s", "us a sentence")
Found = tuple[str, float] | None  # a name, and its value in the target's unit


@dataclass(frozen=True)
class SeriesTarget:
    """A target that a series answers. read: the series -> the fastest of ours and the fastest baseline. unit: those of
    TIMES are times; figure and ratio as a Target has them."""

    work: str
    series: str
    read: Callable[[dict], tuple[Found, Found]]
    unit: str
    baseline: str
    ratio: float | None = None
    figure: float | None = None
    why: str = ""

    @property
    def asked(self) -> str:
        return _asked(self)

    @property
    def is_time(self) -> bool:
        return self.unit in TIMES

    def judge(self, measurements: dict) -> TargetRow:
        series = measurements.get("series", {}).get(self.series)
        ours, theirs = (None, None) if series is None else self.read(series)
        value, baseline_value = (None if one is None else one[1] for one in (ours, theirs))
        ratio, met = _compared(self, value, baseline_value)
        return TargetRow(self.work, self.series, {}, self.unit, self.unit, self.baseline if theirs is None else
                         theirs[0], baseline_value, "" if ours is None else ours[0], value, ratio, self.asked, met,
                         self.why)


def _asked(target: Target | SeriesTarget) -> str:
    if target.figure is not None:
        return f"{'at most' if target.is_time else 'at least'} {number(target.figure)} {target.unit}"
    if target.ratio == 1:
        return "as fast"
    return f"{target.ratio:g} of its speed" if target.ratio < 1 else f"{target.ratio:g} times as fast"


def _compared(target: Target | SeriesTarget, value: float | None, baseline_value: float | None
              ) -> tuple[float | None, bool | None]:
    """(our speed over the baseline's, whether the target is met), each None where a value is missing."""
    ratio = met = None
    if value is not None and baseline_value is not None:
        ratio = baseline_value / value if target.is_time else value / baseline_value
    if target.figure is not None and value is not None:
        met = value <= target.figure if target.is_time else value >= target.figure
    elif target.ratio is not None and ratio is not None:
        met = ratio >= target.ratio
    return ratio, met


# --- What series say --------------------------------------------------------------------------------------------------


def _least(found: dict) -> Found:
    """The smallest of the times; what is None or a text was not measured."""
    times = [(name, value) for name, value in found.items() if isinstance(value, int | float)]
    return min(times, key=lambda one: one[1], default=None)


def _most(found: list[tuple[str, float | None]]) -> Found:
    return max((one for one in found if one[1] is not None), key=lambda one: one[1], default=None)


def of_a_batch(series: dict, sentences: int, tokens: int) -> tuple[Found, Found]:
    """From "minilm": microseconds a sentence, ours in a graph and PyTorch in its fastest way."""
    for row in series["rows"]:
        if (row["sentences"], row["tokens"]) == (sentences, tokens):
            return (_least({form: one["us_a_sentence"] for form, one in row["ours"].items()}),
                    _least({f"PyTorch, {way}": us for way, us in (row["torch"] or {}).items()}))
    return None, None


def of_a_corpus(series: dict, form: str) -> tuple[Found, Found]:
    """From "minilm_corpus": sentences a second at the best size of a batch, ours in graphs and PyTorch in its faster
    way."""
    ours = [(f"{form}, {row['batch']:,} a batch", row["sentences_per_second"]) for row in series["ours"]
            if row["form"] == form]
    theirs = [(f"PyTorch, {how}, {row['batch']:,} a batch", row[f"{key}_sentences_per_second"])
              for row in series["torch"] for how, key in (("called", "called"), ("in graphs", "graph"))]
    return _most(ours), _most(theirs)


def of_a_token(series: dict, form: str, position: int) -> tuple[Found, Found]:
    """From "token_times": microseconds a token, and beside it a launch for each operation, in float32."""
    def of(name: str) -> Found:
        return _least({row["form"]: row["us"] for row in series["rows"]
                       if (row["form"], row["position"]) == (name, position)})

    return of(form), of("a launch for each operation, float32")


def of_texts(series: dict) -> tuple[Found, Found]:
    """From "minilm_corpus": seconds from texts to embeddings, ours and sentence-transformers'."""
    def best(key: str, name: str) -> Found:
        return _least({f"{name}, {at.rsplit('_')[-1]} a batch": seconds for at, seconds in series["text"].items()
                       if at.startswith(f"{key}_seconds_")})

    return best("ours", "Encoder.encode"), best("library", "sentence-transformers")


# --- What the Llama engine's series say ------------------------------------------------------------------------------


def of_a_step(series: dict, key: str, count: int) -> tuple[Found, Found]:
    """From "llama_decode", key "sequences", and "llama_prefill", key "tokens": milliseconds in a graph, ours and the
    fastest of PyTorch's ways."""
    for row in series["rows"]:
        if row[key] == count:
            return ("in a graph", row["ms"]["p50"]), _least({f"PyTorch, {way}": ms for way, ms in
                                                             (row["torch"] or {}).items()})
    return None, None


def of_requests(series: dict) -> tuple[Found, Found]:
    """From "engine": tokens out a second with memory for all requests, in the better way to divide them into steps."""
    return _most([(row["name"], row["tokens_per_second"]) for row in series["rows"]
                  if row["name"].startswith("all at once")]), None


def of_batching(series: dict) -> tuple[Found, Found]:
    """From "engine": tokens out a second in the same memory, with pages continuously, and in static batches with a
    contiguous cache."""
    rates = {row["name"]: row["tokens_per_second"] for row in series["rows"]}
    return tuple((name, rates[name]) if name in rates else None for name in
                 ("pages, continuous", "contiguous, static"))


def of_a_start(series: dict) -> tuple[Found, Found]:
    """From "engine_start": seconds of the second run."""
    return ("LLM", series["seconds"]), None


# --- What the series of the engine behind its API says ---------------------------------------------------------------


def of_serving(series: dict) -> tuple[Found, Found]:
    """From "serve": tokens out a second over HTTP with as many clients as seats, and of the engine alone."""
    return (("over HTTP", series["closed"]["output_throughput"]),
            ("the engine alone", series["alone"]["tokens_per_second"]))


def of_first_tokens(series: dict) -> tuple[Found, Found]:
    """From "serve": milliseconds to the first token, p50, where requests arrive half as often as they can be served."""
    return ("half load", series["half_load"]["median_ttft_ms"]), None


def of_loop_lag(series: dict) -> tuple[Found, Found]:
    """From "serve": milliseconds by which the server's event loop was late, p99, with as many clients as seats."""
    lag = series["loop_lag"]["closed"]
    return (None if lag is None else ("as many clients as seats", lag["p99"])), None


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
    Target("product, 4096^3 bf16", "linear_bf16", _square(4096), "TFLOP/s", "PyTorch", ratio=0.98),
    *(Target(f"linear layer, bf16, {M:,} x {K} -> {N}", "linear_bf16", {"M": M, "N": N, "K": K}, "us in a graph",
             "PyTorch", ratio=1.0) for M in (1024, 4096)
      for K, N in ((2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048))),
    *(Target(f"linear layer with bias, f16, 8192 x {K} -> {N}", "linear", {"M": 8192, "N": N, "K": K}, "us in a graph",
             "PyTorch", ratio=1.0) for K, N in ((384, 1152), (384, 384), (384, 1536), (1536, 384))),
    Target("RMSNorm, 16384 x 2048 bf16", "rmsnorm_bf16", {"T": 16384, "C": 2048}, "GB/s", "PyTorch", figure=3700.0),
    Target("residual addition and RMSNorm, 32 x 2048 bf16", "add_rmsnorm_bf16", {"T": 32, "C": 2048}, "us in a graph",
           "PyTorch", ratio=1.5),
    *(Target(f"split, rotate and write the cache, {T:,} tokens of Llama 3.2 1B, bf16", "rope_split_cache_bf16",
             {"T": T, "H": 32, "KV": 8, "D": 64}, "us in a graph", "PyTorch", ratio=3.0) for T in (32, 4096)),
    Target("SwiGLU, 4096 x 8192 bf16", "swiglu_bf16", {"T": 4096, "F": 8192}, "GB/s", "PyTorch", figure=3700.0),
    *(Target(f"block of GPT-2, {S:,} tokens, {kind}", name, {"S": S}, "us in a graph", "PyTorch", figure=figure)
      for kind, name, figures in (("float32", "gpt2_block", (90.0, 180.0, 620.0, 2900.0)),
                                  ("f16", "gpt2_block_half", (30.0, 38.0, 76.0, 280.0)))
      for S, figure in zip((16, 128, 1024, 4096), figures, strict=True)),
    *(Target(f"two linear layers and SwiGLU, bf16, {M:,} x 2048 -> 8192", "linear_swiglu",
             {"M": M, "N": 8192, "K": 2048}, "us in a graph", "PyTorch", ratio=1.0) for M in (1024, 4096)),
    Target("attention over pages, 64 sequences of 4,096 tokens of Llama 3.2 1B, bf16", "paged_decode_bf16",
           {"B": 64, "S": 4096, "shortest": 4096, "H": 32, "KV": 8, "D": 64}, "GB/s", "PyTorch", figure=3570.0),
    Target("sampling, top-p, 32 x 128,256", "sample_top_p", {"R": 32, "V": 128_256}, "us in a graph", "PyTorch",
           figure=80.0),
)


SERIES_TARGETS = (
    *(SeriesTarget(f"MiniLM, f16, {sentences:,} {'sentence' if sentences == 1 else 'sentences'} of {tokens} tokens",
                   "minilm", functools.partial(of_a_batch, sentences=sentences, tokens=tokens), "us a sentence",
                   "PyTorch", figure=figure)
      for sentences, tokens, figure in ((64, 16, 2.0), (64, 128, 7.5), (512, 16, 1.2), (1, 16, 60.0), (1, 128, 75.0))),
    *(SeriesTarget(f"MiniLM, f16, 2,000 sentences by length, {form}", "minilm_corpus",
                   functools.partial(of_a_corpus, form=form), "sentences/s", "PyTorch", figure=figure)
      for form, figure in (("padded", 250_000.0), ("packed", 400_000.0))),
    SeriesTarget("MiniLM, f16, 2,000 texts to embeddings", "minilm_corpus", of_texts, "s", "sentence-transformers",
                 ratio=5.0),
    *(SeriesTarget(f"GPT-2 small, one token with 1,023 before it, {kind}", "token_times",
                   functools.partial(of_a_token, form=f"five a layer, {kind}", position=1023), "us",
                   "a launch for each operation", figure=figure)
      for kind, figure in (("float32", 300.0), ("float16", 200.0))),
    *(SeriesTarget(f"Llama 3.2 1B, bf16, a token of {count:,} {'sequence' if count == 1 else 'sequences'} with 1,024",
                   "llama_decode", functools.partial(of_a_step, key="sequences", count=count), "ms", "PyTorch",
                   figure=figure) for count, figure in ((1, 0.80), (32, 1.20), (256, 3.3))),
    *(SeriesTarget(f"Llama 3.2 1B, bf16, a prompt of {count:,} tokens", "llama_prefill",
                   functools.partial(of_a_step, key="tokens", count=count), "ms", "PyTorch", figure=figure)
      for count, figure in ((1024, 4.5), (4096, 17.0))),
    *(SeriesTarget(f"Llama 3.2 1B, 128 requests of 100 to 1,024 tokens, tokens out, {goal} goal", "engine", of_requests,
                   "tokens/s", "-", figure=figure) for goal, figure in (("first", 15_000.0), ("second", 25_000.0))),
    SeriesTarget("Llama 3.2 1B, the same in a quarter of the memory: pages, continuously", "engine", of_batching,
                 "tokens/s", "contiguous, static", ratio=1.0),
    SeriesTarget("Llama 3.2 1B, from the start of a process to the first token, second run", "engine_start", of_a_start,
                 "s", "-", figure=12.0),
    SeriesTarget("the 1B engine behind its API, 128 clients at a time, tokens out", "serve", of_serving, "tokens/s",
                 "the engine alone", ratio=0.85),
    SeriesTarget("the same at half its load, time to the first token, p50", "serve", of_first_tokens, "ms", "-",
                 figure=150.0),
    SeriesTarget("the same with 128 clients, lag of the event loop, p99", "serve", of_loop_lag, "ms", "-", figure=20.0),
)


@dataclass(frozen=True)
class TargetRow:
    """A target as measured; op is a series' name, and size empty, where a series answers it.

    Values are in `unit`; ratio: our speed over the baseline's; met is None if not measured."""

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


def evaluate(measurements: dict, targets: tuple[Target | SeriesTarget, ...] = (*TARGETS, *SERIES_TARGETS)
             ) -> list[TargetRow]:
    """Each target against the ladders and series in `measurements`, as `labkit bench` writes them."""
    return [target.judge(measurements) for target in targets]


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
    ratio, met = _compared(target, value, baseline_value)
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
                   {True: "yes", False: "no", None: "not measured yet"}[row.met]) for row in rows)
    met, measured = sum(row.met is True for row in rows), sum(row.met is not None for row in rows)
    notes = [f"{met} of {measured} met." + (f" Measured on {where}." if where else ""),
             *([f"{len(rows) - measured} of {len(rows)} not measured yet."] if measured < len(rows) else []),
             "Ratio: our speed over the baseline's, both p50 of one run. us: in a CUDA graph.",
             *(f"{row.work}: {row.why}" for row in rows if row.met is False and row.why)]
    columns = ("work", "baseline", "theirs", "ours", "measured", "ratio", "goal", "met")
    return PlainTable("Beside the libraries", columns, lines, tuple(notes), kind="targets")


def to_json(rows: list[TargetRow]) -> list[dict]:
    return [asdict(row) for row in rows]
