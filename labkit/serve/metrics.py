"""What a server has done and does, for Prometheus: counters, gauges and histograms, in a registry of each app's own."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from labkit.serve.async_engine import AsyncEngine

LATENCY = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
INTER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)
LAG_EVERY_S, LAG_SAMPLES = 0.02, 3000  # a minute


class Metrics:
    """engine: returns the engine, or None before there is one."""

    def __init__(self, engine: Callable[[], AsyncEngine | None]):
        self._registry = registry = CollectorRegistry()
        self._lags: deque[float] = deque(maxlen=LAG_SAMPLES)
        self._engine = engine
        self.requests = Counter("labkit_requests", "Requests that were answered", ("path", "status"), registry=registry)
        self.disconnects = Counter("labkit_disconnects", "Requests whose client went away first", registry=registry)
        self.restarts = Counter("labkit_engine_restarts", "Times that the engine's process was started again",
                                registry=registry)
        self.prompt_tokens = Counter("labkit_prompt_tokens", "Tokens of the prompts that were taken", registry=registry)
        self.active = Gauge("labkit_requests_active", "Requests under /v1 that are being answered", registry=registry)
        self.first_token = Histogram(
            "labkit_time_to_first_token_seconds", "From a request's arrival to its first token", buckets=LATENCY,
            registry=registry)
        self.inter_token = Histogram(
            "labkit_inter_token_latency_seconds", "Between tokens of an output, as its stream is shown them",
            buckets=INTER_TOKEN, registry=registry)
        self.whole = Histogram("labkit_request_seconds", "From a request's arrival to its last token", buckets=LATENCY,
                               registry=registry)
        self._lag = Histogram("labkit_event_loop_lag_seconds", "How late the event loop wakes who slept",
                              buckets=LAG, registry=registry)
        registry.register(self)  # for collect

    def collect(self) -> Iterator:
        """What the engine counts itself."""
        lags = list(self._lags)
        for name, percentile in (("p50", 50), ("p99", 99), ("max", 100)):
            yield GaugeMetricFamily(f"labkit_event_loop_lag_{name}_seconds", "Over the last minute",
                                    float(np.percentile(lags, percentile)) if lags else 0.0)
        engine = self._engine()
        if engine is None:
            return
        stats = engine.stats
        for name, text, value in (
                ("running", "Requests that have begun", engine.unfinished - engine.waiting),
                ("waiting", "Requests that wait for their first step", engine.waiting),
                ("kv_pages", "Pages of the KV cache", stats.pages),
                ("kv_pages_held", "Pages that sequences hold", stats.pages - stats.free_pages),
                ("kv_pages_cached", "Pages that a prompt may find in the prefix cache", stats.cached_pages)):
            yield GaugeMetricFamily(f"labkit_{name}", text, value)
        for name, text, value in (
                ("generated_tokens", "Tokens that were sampled", stats.generated),
                ("computed_tokens", "Rows of the model: of prompts and of outputs", stats.tokens),
                ("prefix_cached_tokens", "Tokens of prompts that were found in the prefix cache", stats.cached_tokens),
                ("preemptions", "Sequences that gave their pages back and were computed again", stats.preemptions),
                ("steps", "Steps of the engine", stats.steps),
                ("step_faults", "Steps that raised an error", engine.faults)):
            yield CounterMetricFamily(f"labkit_{name}", text, value)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    async def watch_loop(self) -> None:
        """Measures the event loop's lag for as long as it runs."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            lag = max(0.0, time.perf_counter() - began - LAG_EVERY_S)
            self._lags.append(lag)
            self._lag.observe(lag)


class Clock:
    """The times of one request, from its arrival on."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._began = self._last = time.perf_counter()
        self._tokens = 0

    def saw(self, tokens: int) -> None:
        """tokens: of its longest output so far."""
        now, new = time.perf_counter(), tokens - self._tokens
        if new <= 0:
            return
        if self._tokens == 0:
            self._metrics.first_token.observe(now - self._began)
        else:
            self._metrics.inter_token.observe((now - self._last) / new)
        self._last, self._tokens = now, tokens

    def ended(self) -> None:
        self._metrics.whole.observe(time.perf_counter() - self._began)
