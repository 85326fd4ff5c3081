"""A server in a process of its own, what it says of itself, and what its /metrics count.

    with running(["--model", "tiny-llama"]) as server:
        server.url, server.pid
        before = metrics(server.url)
        ...
        percentile(before, metrics(server.url), "labkit_event_loop_lag_seconds", 99)
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from labkit._common.errors import UserError

READY_S = 600.0  # a model is loaded, and kernels may be compiled
DRAIN_S = 40.0  # for the requests that run, when it is asked to stop
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Server(NamedTuple):
    url: str
    pid: int


@contextlib.contextmanager
def running(options: Sequence[str], *, ready_s: float = READY_S, waiting: Callable[[float], object] | None = None,
            environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """`labkit serve` with these options at a free port of this machine, until the block ends; then it drains.

    waiting(seconds): called while it is not ready. Raises UserError with its last words where it does not get there.
    """
    port = free_port()
    command = [sys.executable, "-m", "labkit", "serve", "--port", str(port), *options]
    # LABKIT_API_KEY belongs to another server.
    base_env = {name: text for name, text in os.environ.items() if name != "LABKIT_API_KEY"}
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   start_new_session=True, env={**base_env, **path, **(environment or {})})
        server = Server(f"http://127.0.0.1:{port}", process.pid)
        try:
            _wait_until_ready(process, server.url, log, ready_s, waiting)
            yield server
        finally:
            stop(process)


def _wait_until_ready(process, url: str, log, ready_s: float, waiting) -> None:
    began = time.monotonic()
    while not is_ready(url):
        seconds = time.monotonic() - began
        if process.poll() is not None or seconds > ready_s:
            log.seek(0)
            words = log.read().decode(errors="replace").strip()[-800:]
            reason = "ended" if process.poll() is not None else f"was not ready after {seconds:.0f} s"
            raise UserError(f"the server {reason}: {words or 'it wrote nothing'}")
        if waiting:
            waiting(seconds)
        time.sleep(0.1)


def stop(process: subprocess.Popen, drain_s: float = DRAIN_S) -> int:
    """Terminate it, kill it if it does not exit, and return its status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(drain_s)
        except subprocess.TimeoutExpired:
            pass
        finally:  # a second Ctrl-C, too
            if process.poll() is None:
                process.kill()
    return process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


# --- What it says of itself ------------------------------------------------------------------------------------------


def fetch(url: str, key: str | None = None, timeout_s: float = 10.0) -> str:
    """The text at `url`. Raises OSError; HTTPError is one."""
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"} if key else {})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    local = urllib.request.urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    with (direct.open if local else urllib.request.urlopen)(request, timeout=timeout_s) as answer:
        return answer.read().decode(errors="replace")


def is_ready(url: str) -> bool:
    try:
        fetch(f"{url}/ready", timeout_s=2.0)
    except OSError:
        return False
    return True


def first_model(url: str, key: str | None = None) -> str:
    """Return the name of the first model served at `url`. Raises UserError where none is."""
    try:
        return json.loads(fetch(f"{url}/v1/models", key))["data"][0]["id"]
    except urllib.error.HTTPError as error:
        raise UserError(f"{url}/v1/models answers with status {error.code}" + (
            "; --api-key names the key it asks for" if error.code in (401, 403) else "")) from None
    except OSError as error:
        raise UserError(f"no server answers at {url}: {getattr(error, 'reason', error)}") from None
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{url}/v1/models is no list of models; --url is the server's address without /v1, such as "
                        f"http://127.0.0.1:8000") from None


# --- What it counts --------------------------------------------------------------------------------------------------

Metrics = dict[str, dict[tuple[tuple[str, str], ...], float]]  # name -> labels -> value


def metrics(url: str, key: str | None = None) -> Metrics:
    return parse(fetch(f"{url}/metrics", key))


def parse(text: str) -> Metrics:
    """Parse Prometheus' text format."""
    metrics: Metrics = {}
    for line in text.splitlines():
        sample = None if line.startswith("#") else SAMPLE.match(line)
        if sample:
            name, labels, value = sample.groups()
            metrics.setdefault(name, {})[tuple(sorted(LABEL.findall(labels or "")))] = float(value)
    return metrics


def value(metrics: Metrics, name: str) -> float | None:
    """Return a counter or a gauge, summed over its labels; None if it is missing."""
    return math.fsum(metrics[name].values()) if name in metrics else None


def percentile(before: Metrics, after: Metrics, name: str, of: float) -> float | None:
    """A percentile of what a histogram counted between two moments, in its unit: interpolated within its bucket, as
    Prometheus' histogram_quantile does. Beyond the last finite bound it is that bound; None where nothing was counted.
    """
    counts: dict[float, float] = {}
    for moment, sign in ((after, 1), (before, -1)):
        for labels, count in moment.get(f"{name}_bucket", {}).items():
            bound = float(dict(labels)["le"])
            counts[bound] = counts.get(bound, 0.0) + sign * count
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] <= 0:
        return None
    target, low, below = of / 100 * counts[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= target:
            if math.isinf(bound):
                return low
            inside = counts[bound] - below
            return low + (bound - low) * ((target - below) / inside if inside else 1.0)
        low, below = bound, counts[bound]
    return low
