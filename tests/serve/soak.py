"""Hundreds of clients at once for minutes, of whom a tenth vanish in the middle of an answer and a tenth send garbage.

    python -m tests.serve.soak --clients 200 --seconds 300 --out soak.json

The others are well behaved: they ask one thing after the other, each in its own way (a completion or a chat, streamed
or not, greedy or drawn, several outputs, stop strings), and every answer must be the one that the same server gave when
the request was alone. Afterwards no request may be lost, no page held, no memory grown; the event loop's lag is
reported. The exit code is 1 where something of this does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labkit import measure
from labkit._common.files import write_text
from labkit.measure.serving import server
from labkit.measure.serving.client import Events
from tests.serve.garbage import GARBAGE, Peer, read_slowly

PROMPTS = ("A hacker is", "The moon", "Once upon a time", "A kernel", "My computer", "The king spoke", "Numbers",
           "What is a shell?", "An editor", "In the beginning", "The network", "Why do programs fail?")
TOKENS = (2, 12)  # of an output, the fewest and the most
PATIENCE_S = 300.0  # for one answer, of all the others at once
SETTLE_S = 60.0  # for the server to be idle afterwards
SAMPLE_S = 1.0  # between two samples of the server's memory
GROWTH = 0.05  # the part of its memory by which it may grow in JUDGED_S, by the slope over the run
GROWTH_MB = 24.0  # or so much, whichever is more
JUDGED_S = 300.0  # a shorter run may grow by as much: the heap grows in steps of some MB, and few of them are no slope
FILES = 8  # open files more than before that are no leak: the log's, and connections that close
LAG = "labkit_event_loop_lag_seconds"
HELD = {"pages_held": "labkit_kv_pages_held", "waiting": "labkit_waiting", "running": "labkit_running",
        "answering": "labkit_requests_active"}  # what must be 0 when the server is idle, by its metrics


class Question(NamedTuple):
    """A request: where it goes, and its body but for `stream`."""

    path: str
    body: dict


class Reply(NamedTuple):
    """What must be the same each time: of each choice its text and why it ended, and the tokens that were counted."""

    choices: tuple[tuple[str, str], ...]
    tokens: int


def questions(model: str, count: int, seed: int = 0) -> list[Question]:
    """Return requests of every kind; random sampling has a seed, so that each has one right answer."""
    rng, result = np.random.default_rng(seed), []
    for i in range(count):
        prompt = f"{PROMPTS[i % len(PROMPTS)]} {i}"
        body = {"model": model, "max_tokens": int(rng.integers(TOKENS[0], TOKENS[1] + 1)), "temperature": 0}
        if i % 2:
            body |= {"temperature": 0.9, "seed": 1000 + i, "top_p": 0.95}
        if i % 8 == 3:
            body |= {"n": 2}
        if i % 8 == 5:
            body |= {"stop": ["e", " th"]}
        if i % 4 == 2:
            result.append(Question("/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}))
        else:
            result.append(Question("/v1/completions", body | {"prompt": prompt}))
    return result


@dataclass
class Tally:
    """What the clients found. lost: requests without a whole answer, and why; wrong: answers of something else."""

    answered: int = 0
    deferred: int = 0  # by 429 or 503: the client retries
    tokens: int = 0
    vanished: int = 0
    garbage: Counter = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each whole answer


# --- Clients ---------------------------------------------------------------------------------------------------------


async def ask(http, question: Question, stream: bool) -> Reply | int:
    """The answer, or a status that says to come again. Raises for everything else."""
    body = question.body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
    async with http.stream("POST", question.path, json=body) as response:
        if response.status_code in (429, 503):
            return response.status_code
        if response.status_code != 200:
            raise RuntimeError(f"HTTP {response.status_code}: {(await response.aread())[:200]!r}")
        if not stream:
            return reply_of([json.loads(await response.aread())])
        events, chunks, ended = Events(), [], False
        async for piece in response.aiter_bytes():
            for data in events.feed(piece):
                if data == b"[DONE]":
                    ended = True
                else:
                    chunks.append(json.loads(data))
        if not ended:
            raise RuntimeError("the stream ended without [DONE]")
        return reply_of(chunks)


def reply_of(parts: Sequence[dict]) -> Reply:
    """Of one whole answer, or of a stream's chunks put together. Raises RuntimeError for an error among them, and where
    an output has no end."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    tokens = None
    for part in parts:
        if "error" in part:
            raise RuntimeError(f"an error in the answer: {part['error']}")
        tokens = part["usage"]["completion_tokens"] if part.get("usage") else tokens
        for choice in part["choices"]:
            index = choice["index"]
            message = choice.get("message") or choice.get("delta") or {}
            texts[index] = texts.get(index, "") + (choice.get("text") or message.get("content") or "")
            reasons[index] = choice.get("finish_reason") or reasons.get(index)
    if tokens is None or not reasons or None in reasons.values():
        raise RuntimeError(f"the answer is not whole: it ended with {reasons}, {tokens} tokens")
    return Reply(tuple((texts[index], reasons[index]) for index in sorted(texts)), tokens)


async def alone(http, questions: Sequence[Question]) -> list[Reply]:
    """The answer to each, one after the other, with nothing else on the server."""
    replies = []
    for question in questions:
        reply = await ask(http, question, stream=False)
        if not isinstance(reply, Reply):
            raise RuntimeError(f"the server answers {reply} although it has nothing to do")
        replies.append(reply)
    return replies


async def behave(http, client: int, questions: Sequence[Question], right: Sequence[Reply], tally: Tally,
                 until: float) -> None:
    """A good client: one question after the other until the time is over; the last answer is waited for."""
    rng = np.random.default_rng([7, client])
    while time.monotonic() < until:
        which, stream = int(rng.integers(len(questions))), bool(rng.integers(2))
        began = time.monotonic()
        try:
            reply = await asyncio.wait_for(ask(http, questions[which], stream), PATIENCE_S)
        except Exception as error:  # of any kind: this request is lost
            tally.lost.append(f"client {client}, question {which}: {type(error).__name__}: {error}")
            continue
        _judge(tally, client, which, reply, right, time.monotonic() - began)
        if not isinstance(reply, Reply):
            await asyncio.sleep(1.0)


def _judge(tally: Tally, client: int, which: int, reply, right: Sequence[Reply], seconds: float) -> None:
    if not isinstance(reply, Reply):
        tally.deferred += 1
    elif reply == right[which]:
        tally.answered += 1
        tally.tokens += reply.tokens
        tally.seconds.append(seconds)
    else:
        mixed = [i for i, other in enumerate(right) if other == reply]
        tally.wrong.append(f"client {client}, question {which}: {reply}; alone it was {right[which]}" + (
            f"; it is the answer to question {mixed[0]}" if mixed else ""))


async def vanish(http, client: int, questions: Sequence[Question], tally: Tally, until: float) -> None:
    """A client that goes away: before the first text, or after some pieces of it."""
    rng = np.random.default_rng([8, client])
    while time.monotonic() < until:
        question = questions[int(rng.integers(len(questions)))]
        body = question.body | {"stream": True, "max_tokens": 100}
        body.pop("stop", None)
        pieces, wait_s = int(rng.integers(0, 4)), float(rng.uniform(0.0, 2.0))
        with contextlib.suppress(Exception):  # the client ignores every error
            async with asyncio.timeout(wait_s if pieces == 0 else 60.0):
                async with http.stream("POST", question.path, json=body) as response:
                    async for _ in response.aiter_bytes():
                        pieces -= 1
                        if pieces < 0:
                            break
        tally.vanished += 1


async def disturb(peer: Peer, client: int, questions: Sequence[Question], right: Sequence[Reply], tally: Tally,
                  until: float) -> None:
    """A client that sends what no server should be sent, one kind after the other, and now and then reads a right
    answer slowly."""
    rng, turn = np.random.default_rng([9, client]), client
    while time.monotonic() < until:
        turn += 1
        if turn % (len(GARBAGE) + 1) == len(GARBAGE):
            which = int(rng.integers(len(questions)))
            began = time.monotonic()
            try:
                chunks = await asyncio.wait_for(read_slowly(peer, *questions[which]), PATIENCE_S)
                _judge(tally, client, which, reply_of(chunks), right, time.monotonic() - began)
                tally.garbage["reads slowly"] += 1
            except Exception as error:
                tally.lost.append(f"slow reader {client}, question {which}: {type(error).__name__}: {error}")
            continue
        send = GARBAGE[turn % (len(GARBAGE) + 1)]
        try:
            complaint = await asyncio.wait_for(send(peer, rng), 60.0)
        except Exception as error:
            complaint = f"{type(error).__name__}: {error}"
        tally.garbage[send.__name__] += 1
        if complaint:
            tally.wrong.append(f"{send.__name__}: {complaint}")
        await asyncio.sleep(float(rng.uniform(0.0, 0.5)))


# --- The server's memory ---------------------------------------------------------------------------------------------


def family(pid: int) -> list[int]:
    """Return a process and its descendants. Empty where the system does not say, or it has ended."""
    pids = [pid]
    for each in pids:  # which grows meanwhile
        for file in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended
                pids += map(int, file.read_text(encoding="ascii").split())
    return [each for each in pids if Path(f"/proc/{each}").is_dir()]


def memory_mb(pid: int) -> float | None:
    """Resident memory of a process and of those that it started; None where the system does not say."""
    sizes = []
    for each in family(pid):
        with contextlib.suppress(OSError, StopIteration, ValueError):  # it has just ended
            lines = Path(f"/proc/{each}/status").read_text(encoding="ascii").splitlines()
            sizes.append(int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024)
    return sum(sizes) or None


def open_files(pid: int) -> int | None:
    """Count the open files of a process and of its children."""
    counts = []
    for each in family(pid):
        with contextlib.suppress(OSError):
            counts.append(len(os.listdir(f"/proc/{each}/fd")))
    return sum(counts) or None


async def watch_memory(pid: int, began: float, samples: list[tuple[float, float]]) -> None:
    while True:
        mb = memory_mb(pid)
        if mb is not None:
            samples.append((time.monotonic() - began, mb))
        await asyncio.sleep(SAMPLE_S)


def slope(samples: Sequence[tuple[float, float]]) -> float | None:
    """MB a minute over the later two thirds of a run, in which nothing is new any more: the median of the slopes
    between samples (Theil and Sen), which a few peaks do not move."""
    late = np.array(samples[len(samples) // 3 :])
    if len(late) < 6:
        return None
    late = late[:: max(1, len(late) // 200)]
    i, j = np.triu_indices(len(late), 1)
    return float(60 * np.median((late[j, 1] - late[i, 1]) / (late[j, 0] - late[i, 0])))


# --- The whole -------------------------------------------------------------------------------------------------------


async def soak(started: server.Server, *, clients: int, seconds: float, kinds: int = 48, seed: int = 0,
               say: Callable[[str], object] = lambda line: None) -> dict:
    """What was done and found; `problems` is empty where all is as it must be."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
    async with httpx.AsyncClient(base_url=started.url, limits=limits, timeout=PATIENCE_S, trust_env=False) as http:
        model = server.first_model(started.url)
        pool = questions(model, kinds, seed)
        began = time.monotonic()
        right = await alone(http, pool)
        say(f"{len(pool)} answers alone in {time.monotonic() - began:.1f} s, {len(set(right))} of them different")
        tally, samples = Tally(), []
        peer = Peer.of(started.url, model)
        await asyncio.sleep(0.5)
        before, files = server.metrics(started.url), open_files(started.pid)
        began = time.monotonic()
        until = began + seconds
        few = max(1, clients // 10)
        watch = asyncio.create_task(watch_memory(started.pid, began, samples))
        reporter = asyncio.create_task(_tell(tally, samples, began, say))
        async with asyncio.TaskGroup() as group:
            for client in range(clients):
                group.create_task(
                    vanish(http, client, pool, tally, until) if client < few else
                    disturb(peer, client, pool, right, tally, until) if client < 2 * few else
                    behave(http, client, pool, right, tally, until))
        took = time.monotonic() - began
        watch.cancel()
        reporter.cancel()
    idle = await settled(started.url)
    same_afterwards = await _after(started, pool, right)
    return judge(tally, samples, {
        "clients": clients, "vanishing": few, "garbage": few, "seconds": took, "model": model, "questions": len(pool),
        "different_answers": len(set(right)), "idle": idle, "files": [files, open_files(started.pid)],
        "same_afterwards": same_afterwards,
        "loop_lag_ms": {f"p{of}": _ms(server.percentile(before, server.metrics(started.url), LAG, of))
                        for of in (50, 99)}})


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


async def _tell(tally: Tally, samples: list, began: float, say) -> None:
    while True:
        await asyncio.sleep(15.0)
        memory = f"{samples[-1][1]:,.0f} MB" if samples else "unknown"
        say(f"{time.monotonic() - began:.0f} s: {tally.answered:,} answered, {tally.deferred:,} deferred, "
            f"{tally.vanished:,} vanished, {sum(tally.garbage.values()):,} of garbage, {len(tally.lost)} lost, "
            f"{len(tally.wrong)} wrong; memory {memory}")


async def settled(url: str) -> dict[str, float | None]:
    """Return the metrics of HELD once all are 0, or after SETTLE_S."""
    until = time.monotonic() + SETTLE_S
    while True:
        metrics = await asyncio.to_thread(server.metrics, url)
        idle = {name: server.value(metrics, metric) for name, metric in HELD.items()}
        if not any(idle.values()) or time.monotonic() > until:
            return idle
        await asyncio.sleep(0.2)


async def _after(started: server.Server, questions: Sequence[Question], right: Sequence[Reply]) -> bool:
    """Whether the server still answers as it did."""
    import httpx

    async with httpx.AsyncClient(base_url=started.url, timeout=PATIENCE_S, trust_env=False) as http:
        return await alone(http, questions[:8]) == list(right[:8])


def judge(tally: Tally, samples: Sequence[tuple[float, float]], facts: dict) -> dict:
    """The findings as they are written, and a sentence for each that is not as it must be."""
    rise, memory = slope(samples), [each for _, each in samples]
    minutes = min(JUDGED_S, facts["seconds"]) / 60
    allowed = max(GROWTH_MB, GROWTH * memory[0]) / minutes if memory else None
    problems = [f"lost: {each}" for each in tally.lost[:10]] + [f"wrong: {each}" for each in tally.wrong[:10]]
    problems += [f"{name} is {value:g} at the end" if value is not None else f"/metrics does not say {name}"
                 for name, value in facts["idle"].items() if value != 0]
    if rise is not None and rise > allowed:
        problems.append(f"memory grows by {rise:.1f} MB a minute; at most {allowed:.1f} is noise")
    files_before, files_after = facts["files"]
    if files_before is not None and files_after is not None and files_after > files_before + FILES:
        problems.append(f"{files_after} files and sockets are open at the end; there were {files_before}")
    if not facts["same_afterwards"]:
        problems.append("the server answers otherwise than before")
    if not tally.answered:
        problems.append("no request was answered")
    latencies = {f"p{of}": float(np.percentile(tally.seconds, of)) for of in (50, 95, 99)} if tally.seconds else None
    return {**facts, "answered": tally.answered, "deferred": tally.deferred, "lost": len(tally.lost),
            "wrong": len(tally.wrong), "vanished": tally.vanished, "sent_as_garbage": dict(tally.garbage),
            "tokens": tally.tokens, "tokens_per_second": tally.tokens / facts["seconds"], "answer_seconds": latencies,
            "memory_mb": {"first": memory[0], "last": memory[-1], "most": max(memory), "slope_per_minute": rise,
                          "allowed_per_minute": allowed,
                          "samples": [[round(t, 1), round(each, 1)] for t, each in samples[:: max(
                              1, len(samples) // 60)]]} if memory else None,
            "problems": problems}


def run(model: str, *, clients: int, seconds: float, options: Sequence[str] = (), say=lambda line: None) -> dict:
    """Start a server of `model`, soak it, and stop it."""
    with server.running(["--model", model, *options]) as started:
        result = asyncio.run(soak(started, clients=clients, seconds=seconds, say=say))
    return measure.stamped({"machine": measure.machine(), "options": list(options), **result})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.serve.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-llama", help="as labkit serve takes it")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--out", type=Path, help="a file for what was found, JSON")
    parser.add_argument("options", nargs="*", help="of labkit serve, after --")
    args = parser.parse_args()
    result = run(args.model, clients=args.clients, seconds=args.seconds, options=args.options,
                 say=lambda line: print(line, file=sys.stderr, flush=True))
    if args.out:
        write_text(args.out, json.dumps(result, indent=1, allow_nan=False) + "\n")
    shown = {key: value for key, value in result.items() if key not in ("machine", "memory_mb", "problems")}
    print(json.dumps(shown | {"memory_mb": {key: value for key, value in (result["memory_mb"] or {}).items()
                                            if key != "samples"}}, indent=1))
    for problem in result["problems"]:
        print(f"PROBLEM: {problem}")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
