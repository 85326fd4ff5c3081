"""The engine behind its API: what the API costs, and how quick the answers are at each load.

    serve()            the same requests by the engine alone, and over HTTP with as many clients as it has seats; then
                       at rates from a quarter of what those got to a quarter more: the engine in a thread of the
                       server; with as many clients once more, the engine in a process of its own, a GPU's default
    serve_overload()   what a server with its default options can serve while no seat is empty; then rates up to more
                       than that, and the wait for the first token in each second of arrivals
    serve_cold()       a server for which nothing is compiled yet: seconds until it is ready, and the longest gap
                       between two tokens of a stream afterwards, with options that no request had before

In the shape of Llama 3.2 1B with random weights on a GPU; without one a tiny model and a few requests, which show that
it works. The server is `labkit serve` in a process of its own, and so are the clients.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from labkit import device, measure
from labkit.engine.model_runner import ModelRunner
from labkit.kernels.attention.pages import pages_for
from labkit.measure.series import engine as alone
from labkit.measure.series.llama import config_here, random_model, say
from labkit.measure.serving import server
from labkit.measure.serving.command import IGNORE_END, of_run
from labkit.measure.serving.drive import Run, Target, drive
from labkit.measure.serving.load import Load, Slo, Work, random_work

REQUESTS, SHORTEST, LONGEST = 320, 100, 1024  # of the closed loop; prompts and outputs
SEATS = 128  # of the engine: sequences at a time
SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)  # of the rate at which the closed loop was served
ARRIVALS_S = 8.0  # how long requests arrive at each rate
SLO = Slo({"ttft": 200.0, "tpot": 25.0})
LAG = "labkit_event_loop_lag_seconds"
OVERLOAD = 640  # requests of its closed loop: five to a seat, so that all seats are taken for most of the time
OVERLOAD_SHARES = (0.5, 0.9, 1.1, 1.3)  # of what the server can serve
COLD = 64  # requests of each kind
# What a request may ask for; each is the first of its kind that the server sees.
FIRST_OPTIONS = {
    "drawn": {"temperature": 0.8, "top_p": 0.9, "seed": 1},
    "penalties": {"frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "logprobs": {"logprobs": 5},
    "biases": {"logit_bias": {"7": 2}, "temperature": 0},
    "at least two tokens": {"min_tokens": 2},
}
NEEDED = ("fastapi", "uvicorn", "httpx", "prometheus_client")
ANSWER_S = 60.0  # what takes longer is no measurement


def serve(requests: int | None = None, shortest: int | None = None, longest: int | None = None,
          seats: int | None = None, shares: Sequence[float] = SHARES,
          arrivals_s: float | None = None) -> dict | None:
    """Output tokens a second of the engine alone and of the server, as `labkit bench serve` measures it; latencies over
    the rate; how late the server's event loop was. None where what a server needs is not installed."""
    if not can_serve():
        return None
    requests, seats = requests or device.pick(gpu=REQUESTS, cpu=6), seats or device.pick(gpu=SEATS, cpu=4)
    shortest, longest = shortest or device.pick(gpu=SHORTEST, cpu=3), longest or device.pick(gpu=LONGEST, cpu=12)
    budget = device.pick(gpu=2048, cpu=128)  # tokens of a step, as the server takes them by itself
    arrivals_s = arrivals_s or device.pick(gpu=ARRIVALS_S, cpu=0.5)
    config, lengths = config_here(), (shortest, longest)
    work = random_work(requests, lengths, lengths, config.vocab_size, seed=11)
    offline = engine_alone(work, seats, budget, 2 * longest)
    with tempfile.TemporaryDirectory(prefix="labkit-checkpoint-") as name:
        alone.write_checkpoint(Path(name), config)
        say("serve: a checkpoint written")
        options = ["--model", name, "--max-num-seqs", str(seats), "--max-model-len", str(2 * longest)]
        began = time.perf_counter()
        with started_server([*options, "--no-engine-process"]) as (started, target):
            ready_s = time.perf_counter() - began
            say(f"serve: the server is ready after {ready_s:.1f} s")
            closed, metrics_0, loaded = closed_loop(work, seats, longest, config.vocab_size, started, target)
            fraction = closed["output_throughput"] / offline["tokens_per_second"]
            say(f"serve: {fraction:.1%} of the engine alone, {offline['tokens_per_second']:,.0f} tokens/s; "
                f"{in_words(closed)}; event loop late by {lag_ms(metrics_0, loaded)} ms")
            runs = []
            for i, part in enumerate(shares):
                rate = part * closed["request_throughput"]
                count = max(2, round(rate * arrivals_s))
                load = Load(random_work(count, lengths, lengths, config.vocab_size, seed=20 + i), rate, seed=i)
                runs.append(taken(load, target) | {"share_of_capacity": part})
                say(f"serve: at {part:.0%} of that, {in_words(runs[-1])}")
            after = server.metrics(started.url)
        with started_server([*options, "--engine-process"]) as (started, target):
            split_run, *_ = closed_loop(work, seats, longest, config.vocab_size, started, target)
            split_fraction = split_run["output_throughput"] / offline["tokens_per_second"]
            say(f"serve: with the engine in a process of its own, {split_fraction:.1%} of the engine alone; "
                f"{in_words(split_run)}")
    nearest = min(runs, key=lambda run: abs(run["share_of_capacity"] - 0.5))
    return measure.stamped({
        "weights": "random", "shape": config.size, "model_id": f"Llama of {config.size}, random weights",
        "requests": requests, "shortest": shortest, "longest": longest, "seats": seats, "budget": budget,
        "ready_s": ready_s, "alone": offline, "closed": closed, "share_of_alone": fraction,
        "engine_process": split_run, "engine_process_share_of_alone": split_fraction,
        "half_load": {"request_rate": nearest["request_rate"], "median_ttft_ms": nearest["median_ttft_ms"]},
        "slo_ms": SLO.limits_ms, "runs": runs,
        "loop_lag": {"closed": lag_ms(metrics_0, loaded), "rates": lag_ms(loaded, after)}})


def serve_overload(requests: int | None = None, shortest: int | None = None, longest: int | None = None,
                   seats: int | None = None, shares: Sequence[float] = OVERLOAD_SHARES,
                   arrivals_s: float | None = None) -> dict | None:
    """Requests a second that the server answers while all of its seats are taken, and runs at shares of that rate: a
    run as in `serve`, with the median wait for the first token over the second in which a request arrived."""
    if not can_serve():
        return None
    requests, seats = requests or device.pick(gpu=OVERLOAD, cpu=12), seats or device.pick(gpu=SEATS, cpu=4)
    shortest, longest = shortest or device.pick(gpu=SHORTEST, cpu=3), longest or device.pick(gpu=LONGEST, cpu=12)
    arrivals_s = arrivals_s or device.pick(gpu=ARRIVALS_S, cpu=0.5)
    config, lengths = config_here(), (shortest, longest)
    with tempfile.TemporaryDirectory(prefix="labkit-checkpoint-") as name:
        alone.write_checkpoint(Path(name), config)
        options = ["--model", name, "--max-num-seqs", str(seats), "--max-model-len", str(2 * longest)]
        with started_server(options) as (_, target):
            warm_up(target, seats, longest, config.vocab_size)
            closed, run = taken_run(Load(random_work(requests, lengths, lengths, config.vocab_size, seed=31),
                                         concurrency=seats), target)
            capacity = rate_when_full(run, seats)
            say(f"serve: {capacity:.1f} requests/s while all seats are taken; {in_words(closed)}")
            runs = []
            for i, part in enumerate(shares):
                rate = part * capacity
                count = max(2, round(rate * arrivals_s))
                load = Load(random_work(count, lengths, lengths, config.vocab_size, seed=40 + i), rate, seed=i)
                result, run = taken_run(load, target)
                runs.append(result | {"share_of_capacity": part, "first_ms_by_second": first_ms_by_second(run)})
                say(f"serve: at {part:.0%} of that, {in_words(result)}")
    return measure.stamped({
        "weights": "random", "shape": config.size, "model_id": f"Llama of {config.size}, random weights",
        "requests": requests, "shortest": shortest, "longest": longest, "seats": seats, "arrivals_s": arrivals_s,
        "capacity": capacity, "closed": closed, "slo_ms": SLO.limits_ms, "runs": runs})


def serve_cold(requests: int | None = None, shortest: int | None = None, longest: int | None = None,
               seats: int | None = None) -> dict | None:
    """Seconds until a server is ready that finds no compiled kernel on disk, and again with those that it left; then
    the longest gap between two tokens and the longest wait for the first one, by what the requests ask for."""
    if not can_serve():
        return None
    requests, seats = requests or device.pick(gpu=COLD, cpu=6), seats or device.pick(gpu=SEATS, cpu=4)
    shortest, longest = shortest or device.pick(gpu=SHORTEST, cpu=3), longest or device.pick(gpu=LONGEST, cpu=12)
    config, lengths, kinds = config_here(), (shortest, longest), []
    with tempfile.TemporaryDirectory(prefix="labkit-checkpoint-") as name:
        alone.write_checkpoint(Path(name), config)
        options = ["--model", name, "--max-num-seqs", str(seats), "--max-model-len", str(2 * longest)]
        cache, began = str(Path(name) / "cache"), time.perf_counter()
        with started_server(options, LABKIT_CACHE_DIR=cache) as (_, target):
            ready_s = time.perf_counter() - began
            say(f"serve_cold: ready after {ready_s:.1f} s")
            for i, (kind, fields) in enumerate({"plain": {}, **FIRST_OPTIONS}.items()):
                work = random_work(requests, lengths, lengths, config.vocab_size, seed=50 + i)
                _, run = taken_run(Load(work, concurrency=seats), replace(target, body=target.body | fields))
                kinds.append({"kind": kind, **longest_waits(run)})
                say(f"serve_cold: {kinds[-1]}")
        began = time.perf_counter()
        with started_server(options, LABKIT_CACHE_DIR=cache):
            ready_again_s = time.perf_counter() - began
            say(f"serve_cold: with the kernels on disk, ready after {ready_again_s:.1f} s")
    return measure.stamped({
        "weights": "random", "shape": config.size, "requests": requests, "seats": seats, "ready_s": ready_s,
        "ready_again_s": ready_again_s, "kinds": kinds, "longest_gap_ms": max(kind["gap_ms"] for kind in kinds)})


def longest_waits(run: Run) -> dict:
    return {"gap_ms": 1000 * max((gap for one in run.records for gap in one["gaps"]), default=0.0),
            "first_ms": 1000 * max(one["first"] for one in run.records)}


def can_serve() -> bool:
    """Whether what a server needs is installed; says what is missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        say(f"serve: {' and '.join(missing)} not installed: pip install -e '.[serve]'")
    return not missing


def engine_alone(work: Sequence[Work], seats: int, budget: int, longest: int) -> dict:
    """The same requests, all at once, without a server: the engine's own steps. Tokens, and no text."""
    config = config_here()
    runner = ModelRunner(random_model(), num_pages=seats * (pages_for(longest) + 1), max_num_seqs=seats,
                         max_num_batched_tokens=budget, max_model_len=longest)
    say(f"serve: {alone.ready(runner, budget)} kernels compiled")
    rng = np.random.default_rng(8)  # every size of batch once, so that its graph is captured
    alone.serve(runner, [alone.Work(rng.integers(0, config.vocab_size, 2), 2 + i)
                         for i in range(min(seats, longest - 4))], seats=seats, budget=budget)
    row = alone.serve(runner, [alone.Work(np.array(one.prompt), one.output) for one in work], seats=seats,
                      budget=budget)
    return {key: row[key] for key in ("seconds", "tokens_per_second", "steps", "mean_sequences", "preemptions",
                                      "first_token_ms", "between_tokens_ms")}


@contextlib.contextmanager
def started_server(options: Sequence[str], **environment: str) -> Iterator[tuple[server.Server, Target]]:
    with server.running(options, ready_s=device.pick(gpu=120.0, cpu=600.0),
                        environment={"LABKIT_DEVICE": device.kind(), **environment}) as started:
        yield started, Target(started.url, server.first_model(started.url), None, IGNORE_END)


def closed_loop(work: Sequence[Work], seats: int, longest: int, vocabulary: int, started: server.Server,
                target: Target) -> tuple[dict, server.Metrics, server.Metrics]:
    """The run of a server that is warm, with the engine's steps in it, and the server's metrics before and after."""
    warm_up(target, seats, longest, vocabulary)
    before = server.metrics(started.url)
    result = taken(Load(work, concurrency=seats), target)
    after = server.metrics(started.url)
    return result | {"steps": steps_between(before, after)}, before, after


def warm_up(target: Target, seats: int, longest: int, vocabulary: int) -> None:
    """As the engine alone was warmed up: every size of batch, and a step of prompts."""
    few = random_work(min(seats, 2 * longest - 4), (2, 2), (1, 1), vocabulary, seed=9)
    rising = [Work(one.prompt, 2 + i) for i, one in enumerate(few)]
    for load in (Load(rising, float("inf")), Load(random_work(seats, (longest, longest), (2, 2), vocabulary, seed=10),
                                                  concurrency=seats)):
        run = drive(load, target, timeout_s=2 * ANSWER_S)
        failed = [one for one in run.records if one["error"]]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(run.records)} requests failed while the server was warmed up: "
                               f"{failed[0]['error']}: {failed[0]['detail']}")
    say("serve: warmed up")


def taken(load: Load, target: Target) -> dict:
    return taken_run(load, target)[0]


def taken_run(load: Load, target: Target) -> tuple[dict, Run]:
    """A run, summarized and whole. Raises RuntimeError where a request failed: the others had an easier time."""
    run = drive(load, target, timeout_s=ANSWER_S)
    result = of_run(run, SLO)
    if result["failed"] or result["stopped"]:
        raise RuntimeError(f"{load.name}: {result['failed']} of {len(load.work)} requests failed: "
                           f"{result['errors_by_kind']}")
    requested = sum(one.output for one in load.work)
    if result["total_output_tokens"] != requested:
        raise RuntimeError(f"{load.name}: {result['total_output_tokens']:,} tokens came out; {requested:,} were "
                           "asked for")
    return result, run


def rate_when_full(run: Run, seats: int) -> float:
    """Requests a second of a closed loop while all seats are taken: as many requests as there are seats have ended, and
    the last one has not been sent yet."""
    ends = sorted(one["sent"] + one["took"] for one in run.records)
    first, last = seats - 1, len(ends) - seats - 1
    if last <= first:
        raise ValueError(f"a closed loop of {len(ends)} requests says nothing about {seats} taken seats; it needs more "
                         f"than {2 * seats}")
    return (last - first) / (ends[last] - ends[first])


def first_ms_by_second(run: Run) -> list[float | None]:
    """The median time to the first token of the requests sent in each second of a run; None where none was sent."""
    by_second: dict[int, list[float]] = {}
    for one in run.records:
        by_second.setdefault(int(one["sent"]), []).append(1000 * one["first"])
    return [float(np.median(by_second[second])) if second in by_second else None
            for second in range(max(by_second) + 1)]


def lag_ms(before: server.Metrics, after: server.Metrics) -> dict | None:
    """How late the server's event loop woke what was due, between two looks at its metrics."""
    p50, p99 = (server.percentile(before, after, LAG, of) for of in (50, 99))
    return None if p99 is None else {"p50": 1000 * p50, "p99": 1000 * p99}


def steps_between(before: server.Metrics, after: server.Metrics) -> int | None:
    """Of the engine."""
    first, last = (server.value(each, "labkit_steps_total") for each in (before, after))
    return None if last is None else int(last - (first or 0))


def in_words(run: dict) -> str:
    itl = "-" if run["median_itl_ms"] is None else f"p50 {run['median_itl_ms']:.1f} p99 {run['p99_itl_ms']:.1f} ms"
    return (f"{run['name']}: {run['output_throughput']:,.0f} tokens/s, {run['request_throughput']:.2f} requests/s, "
            f"TTFT p50 {run['median_ttft_ms']:.0f} p99 {run['p99_ttft_ms']:.0f} ms, TPOT p50 "
            f"{run['median_tpot_ms']:.2f} ms, ITL {itl}, {run['tokens_per_piece']:.1f} tokens a piece, most at once "
            f"{run['max_concurrent_requests']}, client late by {run['client_lag_ms']['p99']:.1f} ms")
