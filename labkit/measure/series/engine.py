"""The engine under load, and how long it takes to begin.

    engine()            128 requests at once, prompts and outputs of 100 to 1,024 tokens; then the same in a quarter of
                        the memory, with a contiguous cache and with pages, in static batches and continuously
    nano_vllm_bench()   the requests of nano-vllm's bench.py, which others have measured with other engines
    engine_logprobs()   what logprobs cost: 128 requests without them, with 5, with 20, and with those of prompts
    engine_start()      from the start of a process to the first token of a checkpoint on disk

In the shape of Llama 3.2 1B with random weights on a GPU; without one a tiny model and a few requests, which show that
it works.
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labkit import device, measure
from labkit.device import compile_ahead, launches
from labkit.engine import LLM, SamplingParams
from labkit.engine.block_manager import BlockManager
from labkit.engine.model_runner import ModelRunner
from labkit.engine.runner import Handle, Runner, buckets
from labkit.engine.scheduler import Scheduler, Step
from labkit.engine.sequence import Request
from labkit.kernels import logprobs
from labkit.kernels.attention.pages import PAGE, pages_for
from labkit.measure.series.llama import RandomTensors, config_here, random_model, say
from labkit.measure.series.transformers_batching import served_by_transformers
from labkit.measure.static_batching import ContiguousBlocks, StaticScheduler
from labkit.models.llama import Config

REQUESTS, SHORTEST, LONGEST = 128, 100, 1024
SEATS, TOKENS = 128, 8192  # of the runner: sequences at a time, and rows of a step
FIRST_RUN_S, RUN_S = 400, 90  # a process that takes longer is stopped
BASELINE_S = 25.0  # for transformers' continuous batching, which would take minutes
POINTS = 60  # of a curve over the time of a run


class Work(NamedTuple):
    prompt: np.ndarray
    output: int  # tokens


def random_requests(count: int, shortest: int, longest: int, vocabulary: int, seed: int = 7) -> list[Work]:
    """Prompts and outputs of lengths drawn uniformly from `shortest` to `longest`."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, (count, 2))
    return [Work(rng.integers(0, vocabulary, prompt), int(output)) for prompt, output in lengths]


# --- A runner that is watched ----------------------------------------------------------------------------------------


class Watched:
    """A runner that notes when each step was launched, what was in it, and how long the host waited for its tokens.

    num_pages: fewer than it has."""

    def __init__(self, runner: Runner, num_pages: int | None = None):
        self.runner, self.num_pages = runner, num_pages or runner.num_pages
        self.page_size, self.max_model_len = runner.page_size, runner.max_model_len
        self.vocab_size = runner.vocab_size
        self.waited = 0.0
        self.steps: list[tuple[float, int, int, int, int]] = []  # time, sequences, rows, tokens in the cache, pages
        self.spans: dict[int, list] = {}  # admission -> seat, number of the request, begin, end
        self.pages_held: Callable[[], int] = lambda: 0

    def launch(self, step: Step) -> Handle:
        now = time.perf_counter()
        for sequence in (chunk.sequence for chunk in step.chunks):
            span = self.spans.get(sequence.admission)
            if span is None:
                self.spans[sequence.admission] = [sequence.seat, int(sequence.request.request_id), now, now]
            else:
                span[3] = now
        self.steps.append((now, len(step.chunks), step.tokens, sum(chunk.sequence.computed for chunk in step.chunks),
                           self.pages_held()))
        return _Waiting(self, self.runner.launch(step))


class _Waiting:
    def __init__(self, watched: Watched, handle: Handle):
        self._watched, self._handle = watched, handle

    def tokens(self):
        began = time.perf_counter()
        result = self._handle.tokens()
        self._watched.waited += time.perf_counter() - began
        return result

    def prompt_tokens(self):
        return self._handle.prompt_tokens()


# --- Requests --------------------------------------------------------------------------------------------------------


def serve(runner: Runner, work: Sequence[Work], *, seats: int, budget: int, num_pages: int | None = None,
          scheduler: type[Scheduler] = Scheduler, blocks: Callable[..., BlockManager] = BlockManager) -> dict:
    """All requests at once, greedily, each to the end of its output: rates, times, and what happened over the run."""
    watched = Watched(runner, num_pages)
    llm = LLM(watched, max_num_seqs=seats, max_num_batched_tokens=budget, enable_prefix_caching=False,
              scheduler=scheduler, blocks=blocks)
    engine = llm.engine
    watched.pages_held = lambda: engine.blocks.num_pages - engine.blocks.num_free
    began = time.perf_counter()
    requests = [engine.add_request(str(i), one.prompt, SamplingParams(temperature=0, ignore_eos=True,
                                                                          max_tokens=one.output))
                for i, one in enumerate(work)]
    ttfts, gaps = _run(engine, requests, began)
    seconds = time.perf_counter() - began
    stats, steps = llm.stats(), np.array(watched.steps)
    generated = sum(one.output for one in work)
    if stats.generated != generated:
        raise RuntimeError(f"{stats.generated:,} tokens came out; {generated:,} were asked for")
    ends = [*steps[1:, 0], began + seconds]
    per_step = 1000 * np.diff([*steps[:, 0], began + seconds])
    computed, slots = steps[:, 3].sum(), steps[:, 4].sum() * runner.page_size
    result = {
        "seats": seats, "budget": budget, "pages": watched.num_pages, "seconds": seconds,
        "tokens_per_second": generated / seconds, "steps": stats.steps, "rows": stats.tokens,
        "mean_sequences": float(steps[:, 1].mean()), "most_sequences": int(steps[:, 1].max()),
        "idle_seats": 1 - float(steps[:, 1].sum() / (len(steps) * seats)),
        "preemptions": stats.preemptions, "most_pages": stats.most_pages,
        "page_use": stats.most_pages / watched.num_pages, "filled": float(computed / slots),
        "host_share": 1 - watched.waited / seconds,
        "first_token_ms": _percentiles([1000 * each for each in ttfts]),
        "between_tokens_ms": _percentiles([1000 * each for each in gaps]),
        "step_ms": _percentiles(per_step),
    }
    sampled = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    result["over_time"] = {"seconds": [round(float(ends[k]) - began, 4) for k in sampled],
                           "sequences": [int(steps[k, 1]) for k in sampled],
                           "held_pages": [int(steps[k, 4]) for k in sampled]}
    spans = sorted(watched.spans.values(), key=lambda span: (span[0], span[2]))
    result["spans"] = {"seat": [span[0] for span in spans], "request": [span[1] for span in spans],
                       "begin": [round(span[2] - began, 4) for span in spans],
                       "end": [round(span[3] - began, 4) for span in spans]}
    return result


def _run(engine, requests: list[Request], began: float) -> tuple[list[float], list[float]]:
    """(seconds to each request's first token, seconds between its tokens): until all have ended."""
    ttfts, gaps = [], []
    open_requests = [[request.sequences[0], 0, began] for request in requests]  # tokens so far, time of the last one
    while engine.has_unfinished_requests():
        engine.step(final_only=True)
        now, ended = time.perf_counter(), False
        for one in open_requests:
            sequence, count, last = one
            if sequence.output_length > count:
                (gaps if count else ttfts).append(now - last)
                one[1], one[2] = count + 1, now
                ended = ended or sequence.finish_reason is not None
        if ended:
            open_requests = [one for one in open_requests if one[0].finish_reason is None]
    return ttfts, gaps


def _percentiles(values) -> dict:
    p50, p90, p99 = (float(each) for each in np.percentile(values, (50, 90, 99)))
    return {"p50": p50, "p90": p90, "p99": p99}


# --- The series ------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """A run: with the memory of so many pages, and in the scheduler's and the cache's way."""

    name: str
    seats: int
    budget: int
    pages: int
    scheduler: type[Scheduler] = Scheduler
    contiguous: bool = False


def plans(seats: int, budget: int, longest: int) -> list[Plan]:
    """Memory for all sequences; then a quarter of it, of which a contiguous cache makes a quarter of the seats."""
    piece = pages_for(longest)
    few = max(2, seats // 4)
    part = piece * few
    return [Plan("all at once", seats, budget // 4, piece * seats),
            Plan("all at once, larger steps", seats, budget, piece * seats),
            Plan("contiguous, static", few, budget // 4, part, StaticScheduler, True),
            Plan("contiguous, continuous", few, budget // 4, part, Scheduler, True),
            Plan("pages, static", seats, budget // 4, part, StaticScheduler),
            Plan("pages, continuous", seats, budget // 4, part)]


def engine(count: int | None = None, shortest: int | None = None, longest: int | None = None,
           seats: int | None = None, budget: int | None = None) -> dict:
    """`count` requests at once: tokens out a second, times to the first and between tokens, steps, memory."""
    count, seats = count or device.pick(gpu=REQUESTS, cpu=6), seats or device.pick(gpu=SEATS, cpu=8)
    shortest, longest = shortest or device.pick(gpu=SHORTEST, cpu=3), longest or device.pick(gpu=LONGEST, cpu=16)
    budget = budget or device.pick(gpu=TOKENS, cpu=64)
    config, model = config_here(), random_model()
    work = random_requests(count, shortest, longest, config.vocab_size)
    runner = ModelRunner(model, num_pages=seats * pages_for(2 * longest), max_num_seqs=seats,
                         max_num_batched_tokens=budget, max_model_len=2 * longest)
    say(f"engine: {ready(runner, budget)} kernels compiled")
    rng = np.random.default_rng(8)  # every size of batch once, so that its graph is captured
    serve(runner, [Work(rng.integers(0, config.vocab_size, 2), 2 + i) for i in range(
        min(seats, 2 * longest - 4))], seats=seats, budget=budget)
    say("engine: graphs captured")
    rows = []
    for plan in plans(seats, budget, 2 * longest):
        blocks = functools.partial(ContiguousBlocks, longest=2 * longest) if plan.contiguous else BlockManager
        row = serve(runner, work, seats=plan.seats, budget=plan.budget, num_pages=plan.pages,
                    scheduler=plan.scheduler, blocks=blocks)
        rows.append({"name": plan.name, **row})
        say(f"engine: {plan.name}: {row['tokens_per_second']:,.0f} tokens/s in {row['seconds']:.1f} s, "
            f"{row['steps']:,} steps, {row['mean_sequences']:.1f} sequences a step, host {row['host_share']:.0%}, "
            f"first token p50 {row['first_token_ms']['p50']:.0f} ms, between tokens p50 "
            f"{row['between_tokens_ms']['p50']:.2f} p99 {row['between_tokens_ms']['p99']:.2f} ms")
    baseline = served_by_transformers(config, work, BASELINE_S) if device.on_gpu() else None
    say(f"engine: transformers' continuous batching: {baseline}")
    return measure.stamped({
        "weights": "random", "shape": config.size, "requests": count, "shortest": shortest, "longest": longest,
        "prompt_tokens": sum(len(one.prompt) for one in work), "output_tokens": sum(one.output for one in work),
        "page_tokens": PAGE, "rows": rows, "transformers": baseline})


def ready(runner: ModelRunner, budget: int) -> int:
    """Compiles, side by side, what steps of all sizes launch; how many kernels that were."""
    needed: dict[tuple, None] = {}
    max_seqs = runner.max_num_seqs
    rows = [2, 8, 16, 17, 32, 33, *range(64, budget + 1, 64)]
    shapes = [[1] * size for size in buckets(max_seqs)] + [_pieces(size, runner.max_model_len // 2) for size in rows]
    for lengths in (*shapes, [1] * min(max_seqs - 1, budget - 2) + [2]):
        if len(lengths) <= max_seqs:
            step = _step_of(runner, lengths)
            needed |= dict.fromkeys(launches.needed(lambda step=step: runner.launch(step)))
    return compile_ahead.prepare(needed)


def _pieces(rows: int, longest: int) -> list[int]:
    """So many rows as prompts of at most `longest` tokens."""
    return [longest] * (rows // longest) + ([rows % longest] if rows % longest else [])


def _step_of(runner: ModelRunner, lengths: Sequence[int]) -> Step:
    """A step in which new sequences compute so many tokens each."""
    scheduler = Scheduler(BlockManager(runner.num_pages, runner.page_size, False), max_num_seqs=len(lengths),
                          max_num_batched_tokens=sum(lengths))
    for i, length in enumerate(lengths):
        scheduler.add(Request(str(i), [0] * length, SamplingParams(temperature=0, max_tokens=1),
                              max_length=length + 1))
    return scheduler.schedule()


# --- The requests of another engine's benchmark ----------------------------------------------------------------------


def nano_vllm_bench(count: int = 256, shortest: int | None = None, longest: int | None = None) -> dict:
    """Tokens out a second for the requests of nano-vllm's bench.py, all at once: its lengths, its tokens, its
    temperature. The second of two runs counts: the first captures graphs."""
    if not device.on_gpu():
        count = min(count, 6)
    shortest, longest = shortest or device.pick(gpu=SHORTEST, cpu=3), longest or device.pick(gpu=LONGEST, cpu=16)
    budget = device.pick(gpu=TOKENS, cpu=64)
    config = config_here()
    work = bench_requests(count, shortest, longest, config.vocab_size)
    params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=one.output) for one in work]
    runner = ModelRunner(random_model(), num_pages=count * pages_for(2 * longest), max_num_seqs=count,
                         max_num_batched_tokens=budget, max_model_len=2 * longest)
    say(f"nano_vllm_bench: {ready(runner, budget)} kernels compiled")
    llm = LLM(runner, max_num_seqs=count, max_num_batched_tokens=budget, enable_prefix_caching=False)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        llm.generate([one.prompt for one in work], params, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
    output = sum(one.output for one in work)
    say(f"nano_vllm_bench: {output:,} tokens in {seconds[-1]:.2f} s, {output / seconds[-1]:,.0f} a second")
    return measure.stamped({"weights": "random", "shape": config.size, "requests": count, "shortest": shortest,
                            "longest": longest, "budget": budget, "prompt_tokens": sum(len(one.prompt) for one in work),
                            "output_tokens": output, "seconds": seconds[-1], "first_seconds": seconds[0],
                            "tokens_per_second": output / seconds[-1]})


def bench_requests(count: int, shortest: int, longest: int, vocabulary: int) -> list[Work]:
    """Drawn as bench.py draws them, with its seed: all prompts, then all lengths of outputs."""
    draw = random.Random(0).randint
    prompts = [[draw(0, min(10_000, vocabulary - 1)) for _ in range(draw(shortest, longest))] for _ in range(count)]
    return [Work(np.array(prompt), draw(shortest, longest)) for prompt in prompts]


# --- Logprobs ---------------------------------------------------------------------------------------------------------


def engine_logprobs(seats: int | None = None, prompt: int | None = None, output: int | None = None) -> dict:
    """`seats` requests at once: tokens out a second without logprobs, with 5 and 20 of each token, with 5 that are all
    read at the end, with 5 for every eighth request alone, and with those of prompts; and how far the last step's are
    from float64."""
    seats, prompt = seats or device.pick(gpu=SEATS, cpu=4), prompt or device.pick(gpu=128, cpu=5)
    output = output or device.pick(gpu=256, cpu=3)
    config, model = config_here(), random_model()
    length, budget = prompt + output, max(seats, device.pick(gpu=TOKENS // 4, cpu=16))
    runner = ModelRunner(model, num_pages=seats * (1 + pages_for(length)), max_num_seqs=seats,
                         max_num_batched_tokens=budget, max_model_len=length)
    prompts = np.random.default_rng(11).integers(0, config.vocab_size, (seats, prompt)).tolist()
    variants = {"none": {}, "logprobs=5": {"logprobs": 5}, "logprobs=20": {"logprobs": 20},
                "logprobs=5, all read": {"logprobs": 5}, "logprobs=5, every eighth request": {"logprobs": 5},
                "prompt_logprobs=5": {"prompt_logprobs": 5}}
    rows, largest = [], 0.0
    for name, more in variants.items():
        params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=output,
                                 **(more if "eighth" not in name or i % 8 == 0 else {}))
                  for i in range(seats)]
        seconds = []
        for _ in range(3):  # the first captures graphs
            llm = LLM(runner, max_num_seqs=seats, max_num_batched_tokens=budget,
                      enable_prefix_caching=False)
            began = time.perf_counter()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            if "read" in name:  # only then they become Python objects
                for each in outputs:
                    list(each.outputs[0].logprobs)
            seconds.append(time.perf_counter() - began)
        if name in ("logprobs=5", "logprobs=20"):  # of all requests, whichever the last step has
            largest = max(largest, _logprob_error(runner, params[0].logprobs))
        if "prompt" in name and not all(len(each.prompt_logprobs) == prompt for each in outputs):
            raise RuntimeError("logprobs of a prompt's tokens are missing")
        rows.append({"name": name, "seconds": min(seconds), "tokens_per_second": seats * output / min(seconds)})
        rows[-1]["share_of_none"] = rows[-1]["tokens_per_second"] / rows[0]["tokens_per_second"]
        say(f"engine_logprobs: {name}: {rows[-1]['tokens_per_second']:,.0f} tokens/s, {rows[-1]['share_of_none']:.1%}")
    return measure.stamped({"weights": "random", "shape": config.size, "requests": seats, "prompt": prompt,
                            "output": output, "rows": rows, "largest_error": largest})


def _logprob_error(runner: ModelRunner, count: int, rows: int = 8) -> float:
    """Of some rows of the last step: the largest error of a logprob. Raises RuntimeError for a wrong token or rank, or
    an error beyond float32's roundings."""
    logits, tokens, result = (each[:rows] for each in runner.last_listed())
    requested = np.where(result[:, logprobs.RANK] > 0, count, -1)  # no rank: not asked for
    expected = logprobs.logprobs_reference(logits, tokens, requested)
    exact = [logprobs.RANK, *range(logprobs.TOKENS, logprobs.COLUMNS)]
    finite = np.isfinite(expected)
    error = float(np.abs(result[finite] - expected[finite]).max())
    if (requested < 0).all() or (result[:, exact] != expected[:, exact]).any() or error > 1e-4:
        raise RuntimeError(f"logprobs differ from float64 by {error:.2g}, or a token or a rank is wrong")
    return error


# --- From the start of a process to the first token ------------------------------------------------------------------

CHILD = """
import json, sys, time
began = time.perf_counter()
from labkit.engine import LLM, SamplingParams
imported = time.perf_counter()
llm = LLM(sys.argv[1])
loaded = time.perf_counter()
output = next(llm.stream(sys.argv[2], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)))
print(json.dumps({"tokens": len(output.outputs[0].token_ids), "prompt_tokens": len(output.prompt_token_ids),
                  "pages": llm.stats().pages, "import_s": imported - began, "load_s": loaded - imported,
                  "first_token_s": time.perf_counter() - loaded}), flush=True)
"""
# The same with nothing in threads: the seconds of each part alone. "cache" is part of "runner". "load" covers weights,
# table of angles, tokenizer, runner and engine; "first_token" covers kernels and graph.
PARTS = """
import functools, json, sys, time
seconds = {}

def timed(name, work):
    @functools.wraps(work)
    def wrapper(*args, **options):
        began = time.perf_counter()
        try:
            return work(*args, **options)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
    return wrapper

def imports():
    import tokenizers
    from labkit.engine import llm, load_runner

from labkit import device
timed("driver", device.init_driver)()
timed("compiler", device.on_gpu)()
timed("imports", imports)()
from labkit import cuda
timed("context", cuda.current_context)()

from labkit.engine import LLM, SamplingParams, llm_engine, model_runner
from labkit.models import blob, llama, load, tokenizer
for name, owner, work in (
        ("tokenizer", tokenizer.Tokenizer, "of"), ("tokenizer", load, "check_vocabulary"),
        ("weights", blob.Blob, "__init__"), ("rope_table", llama, "rope_table"), ("cache", llama.Cache, "__init__"),
        ("runner", model_runner.ModelRunner, "__init__"), ("engine", llm_engine.LLMEngine, "__init__"),
        ("kernels", model_runner.ModelRunner, "_compile_ahead"), ("graph", model_runner.ModelRunner, "_keep_graph")):
    setattr(owner, work, timed(name, getattr(owner, work)))
llm = timed("load", LLM)(sys.argv[1])
params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
timed("first_token", next)(llm.stream(sys.argv[2], params))
print(json.dumps(seconds), flush=True)
"""


def write_checkpoint(folder: Path, config: Config) -> int:
    """config.json, model.safetensors in bfloat16, and a tokenizer of the words w0, w1, ...; the weights' bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    entries = asdict(config) | {"model_type": "llama", "hidden_act": "silu", "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(entries), encoding="utf-8")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(config.vocab_size)}, "w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    tensors = RandomTensors(config)
    header = json.dumps({name: {"dtype": one.dtype, "shape": one.shape, "data_offsets": [one.begin, one.end]}
                         for name, one in tensors.entries.items()}).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in tensors:
            tensors[name].tofile(file)
    return max(one.end for one in tensors.entries.values())


def engine_start(runs: int = 2) -> dict:
    """Seconds from the start of a process to the first token: `first_run` compiles what no cache has kept, `seconds` is
    the second. The file was just written, so it is in the host's memory. alone: the seconds of each part when nothing
    overlaps."""
    config, started_runs = config_here(), []
    prompt = " ".join(f"w{i}" for i in np.random.default_rng(9).integers(0, config.vocab_size, 12))
    with tempfile.TemporaryDirectory(prefix="labkit-checkpoint-") as name:
        nbytes = write_checkpoint(Path(name), config)
        say(f"engine_start: a checkpoint of {nbytes / 1e9:.2f} GB written")
        for run in range(runs):
            started_runs.append(_started(CHILD, [name, prompt], RUN_S if run else FIRST_RUN_S))
            say(f"engine_start: run {run + 1}: {started_runs[-1]}")
        alone = _started(PARTS, [name, prompt], RUN_S)
        say(f"engine_start: {alone}")
    last = started_runs[-1]
    return measure.stamped({"weights": "random", "shape": config.size, "bytes": nbytes, "prompt": len(prompt.split()),
                            "seconds": last.pop("seconds"), "parts": last, "alone": alone,
                            "first_run_seconds": started_runs[0].get("seconds")})


def _started(program: str, arguments: list[str], limit_s: float) -> dict:
    """The program's own times, and from the start of its process until its line came."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                   "LABKIT_DEVICE": device.kind(),
                   "PYTHONDONTWRITEBYTECODE": ""}  # a second start finds the bytecode of the first
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        began = time.perf_counter()
        child = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=errors,
                                 text=True, env=environment)
        limit = threading.Timer(limit_s, child.kill)
        limit.start()
        try:
            line = child.stdout.readline()
            seconds = time.perf_counter() - began
            status = child.wait()
        finally:
            limit.cancel()
            child.stdout.close()
        if not line.strip():
            errors.seek(0)
            raise RuntimeError(f"no first token; the process ended with {status} after {seconds:.0f} s: "
                               f"{errors.read()[-800:]}")
    return {"seconds": seconds, **json.loads(line)}
