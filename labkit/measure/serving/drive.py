"""The clients of a load: started, watched, stopped. They are processes of their own, so that neither the server nor
what shows their progress takes their time."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from labkit._common.errors import UserError
from labkit.measure.serving import client
from labkit.measure.serving.load import Load

PER_CLIENT = 32  # streams that one client reads without being late, at hundreds of pieces a second each
START_S = 30.0  # for the clients to be ready
STOP_S = 5.0  # for them to hand in what they have; then they are killed


@dataclass(frozen=True)
class Target:
    """A server. key: of its API, if it asks for one. body: fields of each request beside the usual ones."""

    url: str
    model: str
    key: str | None = None
    body: dict = field(default_factory=dict)


@dataclass
class Seen:
    """How far a run has come."""

    requests: int
    ended: int = 0
    failed: int = 0
    in_flight: int = 0
    pieces: int = 0


@dataclass
class Run:
    """records: as client.Answer makes them, of the requests that have ended, in the load's order."""

    load: Load
    records: list[dict] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0
    stopped: bool = False

    @property
    def client_lag_ms(self) -> dict | None:
        """Return how late the clients' own event loops were."""
        if not self.lags:
            return None
        p50, p99, maximum = np.percentile(self.lags, (50, 99, 100))
        return {"p50": 1000 * float(p50), "p99": 1000 * float(p99), "max": 1000 * float(maximum)}


def clients_for(load: Load) -> int:
    """Return the number of processes: one for PER_CLIENT streams at a time, on at most a quarter of the CPU's cores."""
    concurrency = min(load.concurrency or len(load.work), len(load.work))
    return max(1, min(-(-concurrency // PER_CLIENT), (os.cpu_count() or 1) // 4))


def drive(load: Load, target: Target, *, timeout_s: float = 600.0, clients: int | None = None,
          watch: Callable[[Seen], None] | None = None) -> Run:
    """Send the load and wait until every request has ended. After Ctrl-C it returns what there is, and `stopped` is
    true. Raises RuntimeError where a client itself fails."""
    if importlib.util.find_spec("httpx") is None:
        raise UserError("the benchmark asks the server with httpx, which is not installed: pip install -e '.[serve]'")
    count = min(clients or clients_for(load), load.concurrency or len(load.work))
    arrivals = load.arrivals()
    requests = [[i, one.prompt, one.output, arrival] for i, (one, arrival) in
                enumerate(zip(load.work, arrivals, strict=True))]
    run, status = Run(load), Seen(len(requests))
    common = {"url": target.url, "model": target.model, "key": target.key, "body": target.body, "timeout_s": timeout_s}
    plans = [common | {"requests": requests[index::count], "concurrency": _share(load.concurrency, index, count)}
             for index in range(count)]
    lines: queue.Queue = queue.Queue()
    processes: list[_Process] = []
    try:
        processes += [_Process(plan, lines, index) for index, plan in enumerate(plans)]
        _gather(run, status, processes, lines, watch, ready=True, until=time.monotonic() + START_S)
        run.began = time.monotonic() + 0.01
        for process in processes:
            process.write(run.began)
        _gather(run, status, processes, lines, watch)
    except KeyboardInterrupt:
        run.stopped = True
        for process in processes:
            process.stop()
        _gather(run, status, processes, lines, None, until=time.monotonic() + STOP_S)
    finally:
        for process in processes:
            process.kill()
    run.seconds = max((one["sent"] + one["took"] for one in run.records), default=0.0)  # also of those cut off
    run.records = sorted((one for one in run.records if one["error"] != client.STOPPED), key=lambda one: one["number"])
    return run


def _share(concurrency: int | None, index: int, count: int) -> int | None:
    return None if concurrency is None else concurrency // count + (index < concurrency % count)


def _gather(run: Run, status: Seen, processes: list[_Process], lines: queue.Queue,
            watch: Callable[[Seen], None] | None, *, ready: bool = False, until: float = math.inf) -> None:
    """Read the clients' lines until each has ended; with `ready` until each is ready."""
    beats = [(0, 0)] * len(processes)
    while time.monotonic() < until and any(process.running and not (ready and process.ready) for process in processes):
        try:
            index, line = lines.get(timeout=0.2)
        except queue.Empty:
            continue
        if line is None:
            processes[index].running = False
            if processes[index].failed() and not run.stopped:
                raise RuntimeError(f"a client of the benchmark failed: {processes[index].message()}")
            continue
        message = json.loads(line)
        if "ready" in message:
            processes[index].ready = True
        elif "beat" in message:
            beats[index] = message["in_flight"], message["pieces"]
            status.in_flight, status.pieces = (sum(values) for values in zip(*beats, strict=True))
        elif "lags" in message:
            run.lags += message["lags"]
        else:
            run.records.append(message)
            status.ended += 1
            status.failed += message["error"] is not None
        if watch:
            watch(status)


class _Process:
    """A client. Ctrl-C in the terminal does not reach it: it is stopped by the end of its input."""

    def __init__(self, plan: dict, lines: queue.Queue, index: int):
        self.running, self.ready = True, False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen([sys.executable, "-P", client.__file__], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True)
        threading.Thread(target=self._read, args=(lines, index), daemon=True).start()
        self.write(plan)

    def write(self, line) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has failed and reports why at the end
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self, lines: queue.Queue, index: int) -> None:
        for line in self._process.stdout:
            lines.put((index, line))
        lines.put((index, None))

    def stop(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def failed(self) -> bool:
        return self._process.wait(timeout=STOP_S) != 0

    def message(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return text.splitlines()[-1] if text else f"it ended with {self._process.returncode}"

    def kill(self) -> None:
        self.stop()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

