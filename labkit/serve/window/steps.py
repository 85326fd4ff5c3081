"""Totals of the steps since the last report: tokens, latencies, and the current step.

    steps = Steps(arrived)          # an observer of an EngineThread
    thread.observers.append(steps)
    steps.take()                    # from any thread: a dictionary for JSON, and the count begins again
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

MAX_STEPS, MAX_TIMES = 120, 64  # that are kept between two calls of `take`, however long it does not come


class Steps:
    """arrived(request_id): by time.perf_counter(), when a request came; None where that is not known."""

    def __init__(self, arrived: Callable[[str], float | None]):
        self._arrived = arrived
        self._lock = threading.Lock()
        self._last: dict[tuple[str, int], float] = {}  # of each sequence that decodes: when its last token came
        self._begun: dict[str, None] = {}  # requests that have their first token
        self.now: dict | None = None  # the step that was launched last
        self._begin()

    def _begin(self) -> None:
        self._steps = deque(maxlen=MAX_STEPS)
        self._first_token_s, self._gaps = deque(maxlen=16 * MAX_TIMES), deque(maxlen=16 * MAX_TIMES)
        self._generated = self._prompt = self._preempted = 0

    def __call__(self, report) -> None:
        end = report.began + report.seconds
        decoding = [(chunk.request_id, chunk.seat) for chunk in report.chunks if chunk.kind == "decode"]
        prefill = sum(chunk.tokens for chunk in report.chunks if chunk.kind == "prefill")
        with self._lock:
            for sequence in decoding:
                previous = self._last.get(sequence)
                if previous is not None:
                    self._gaps.append(end - previous)
                elif sequence[0] not in self._begun and (arrival := self._arrived(sequence[0])) is not None:
                    self._begun[sequence[0]] = None
                    self._first_token_s.append(end - arrival)
                self._last[sequence] = end
            if len(self._last) > 2 * len(decoding) + 256:
                self._last = dict.fromkeys(decoding, end)
                self._begun = {name: None for name in self._begun if self._arrived(name) is not None}
            self._steps.append([report.number, prefill, len(decoding), round(report.seconds, 5)])
            self._generated += report.generated
            self._prompt += prefill
            self._preempted += report.preempted
            self.now = {"number": report.number, "seconds": round(report.seconds, 5),
                        "chunks": [[chunk.seat, chunk.tokens, chunk.kind] for chunk in report.chunks]}

    def take(self) -> dict:
        with self._lock:
            summary = {"step": self.now, "steps": list(self._steps), "sums": {
                "generated": self._generated, "prompt": self._prompt, "preempted": self._preempted,
                "first_ms": thinned(self._first_token_s), "gap_ms": thinned(self._gaps)}}
            self._begin()
        return summary


def thinned(seconds) -> list[float]:
    """In milliseconds; of many, as many of all sizes as are kept."""
    ordered = sorted(seconds)
    step = max(1, -(-len(ordered) // MAX_TIMES))
    return [round(1000 * each, 2) for each in ordered[step // 2 :: step]]

