"""The one thread that touches an engine: it makes the steps, and runs what others ask of it between two of them."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from labkit.engine.llm_engine import LLMEngine, Stats
from labkit.engine.outputs import RequestOutput
from labkit.engine.sequence import Request
from labkit.serve.async_engine import (
    MAX_CONSECUTIVE_FAULTS,
    DeadlineExceeded,
    Draining,
    StepFault,
    Transport,
    Update,
)

log = logging.getLogger(__name__)

# To decode an output's text and to write it to a socket takes the host about 0.1 ms, during which no other thread of
# Python runs. So each of n streams shows what it has once in n of these: the readers take a fifth of the host's time.
PACE_S = 0.0005
GOLDEN = 0.618034  # the multiples of this have fractions that are spread evenly, however many there are


class SeatWork(NamedTuple):
    """What was computed for one seat in a step. kind: "prefill" for tokens of a prompt, or computed again after a
    preemption, or "decode"."""

    request_id: str
    seat: int
    tokens: int
    kind: str


@dataclass(frozen=True)
class StepReport:
    """One call of LLMEngine.step: the step that it launched, and what the step before brought.

    number: counted from 1. began: by time.perf_counter(). chunks: of the step that was launched. waiting: requests
    without a seat. running: sequences with one. preempted, generated, finished: sequences that gave their pages back,
    tokens that were sampled, and requests that ended.
    """

    number: int
    began: float
    seconds: float
    chunks: tuple[SeatWork, ...]
    waiting: int
    running: int
    preempted: int
    generated: int
    finished: int


@dataclass(eq=False)
class Submitted:
    """A request that has not ended."""

    request: Request
    deadline: float | None  # by time.monotonic()
    final_only: bool
    arrived: float = field(default_factory=time.perf_counter)
    due: float = 0.0  # when an output that goes on is returned again
    entered: bool = False  # the engine has the request
    retried: bool = False  # added again after a fault, since it had not begun

    @property
    def request_id(self) -> str:
        return self.request.request_id


class EngineThread(Transport):
    """engine: nothing else may touch it while the thread runs. encoder: of embeddings, as in
    labkit.models.sentences, for functions run by `ask`.

    observers: each is called with a StepReport after each step, in this thread, and must be quick.
    faults: steps that raised an error. The requests of their batch ended with it; the engine went on with the others.
    """

    def __init__(self, engine: LLMEngine, encoder=None):
        self.engine, self.encoder = engine, encoder
        self.observers: list[Callable[[StepReport], None]] = []
        self.steps = self.faults = 0
        self.last_fault: Exception | None = None
        self.stats: Stats = engine.stats()
        self._faults_in_a_row = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._changed = threading.Condition()  # of what follows
        self._requests: dict[str, Submitted] = {}
        self._draining, self._paused, self._delay_s = False, False, 0.0
        self._inbox: deque[Callable[[], None]] = deque()  # to run between two steps
        self._single_steps, self._next_step = 0, 0.0
        self._end_at: float | None = None  # the time after which it waits for no request; None: it keeps running
        self._is_over = False
        # The thread's own.
        self._waiting: set[str] = set()  # requests without a step yet
        self._deadlines: list[tuple[float, str]] = []  # a heap; those of requests that have ended are in it
        self._chunks: tuple[SeatWork, ...] = ()
        engine.watch = self._on_launch

    # --- From any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self, drain_s: float) -> None:
        with self._changed:
            self._draining, self._end_at = True, time.monotonic() + drain_s
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(drain_s + 5)  # a step that hangs must not keep the process

    def arrived(self, request_id: str) -> float | None:
        """When a request was submitted, by time.perf_counter(); None once it has ended."""
        submitted = self._requests.get(request_id)
        return submitted and submitted.arrived

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def healthy(self) -> bool:
        return self._faults_in_a_row < MAX_CONSECUTIVE_FAULTS

    @property
    def embedding_size(self) -> int | None:
        return self.encoder and self.encoder.get_sentence_embedding_dimension()

    def submit(self, request: Request, deadline_s: float | None, final_only: bool) -> None:
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        submitted = Submitted(request, deadline, final_only)
        with self._changed:
            if self._is_over:
                raise self.refusal()
            self._requests[request.request_id] = submitted
            self._waiting.add(request.request_id)
            self._post(partial(self._admit, submitted))

    def cancel(self, request_id: str) -> None:
        with self._changed:
            if submitted := self._requests.get(request_id):
                self._post(partial(self._finish, submitted))

    def ask(self, function: Callable, *arguments) -> Future:
        future: Future = Future()
        with self._changed:
            if self._end_at is not None or not self._thread.is_alive():
                raise Draining("the engine's thread has ended")
            self._post(partial(_answer, future, function, self, *arguments))
        return future

    def control(self, name: str, *arguments) -> None:
        with self._changed:
            if name == "drain":
                self._draining = True
            elif name == "pause":
                self._paused, self._single_steps = True, 0
            elif name == "resume":
                self._paused = False
            elif name == "step_once":
                self._single_steps += 1
            elif name == "delay_s":
                (self._delay_s,), self._next_step = arguments, 0.0
            self._changed.notify()

    def _post(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        self._changed.notify()

    # --- In the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._wait()
                self._process_inbox()
                if self._can_step():
                    self._step()
        except BaseException:
            log.exception("the engine's thread failed")
        error = Draining("the server ended before the answer was complete")
        with self._changed:
            self._draining, self._end_at, self._is_over = True, 0.0, True
        for submitted in list(self._requests.values()):
            self._finish(submitted, error)
        self._process_inbox()
        self.stats = self.engine.stats()
        self.receiver.on_change()
        self.receiver.on_end(error)

    def _is_done(self) -> bool:
        with self._changed:
            return self._end_at is not None and (not self._requests or time.monotonic() >= self._end_at)

    def _wait(self) -> None:
        """Wait until there is something to do."""
        with self._changed:
            while not self._inbox and not self._can_step():
                times = [self._end_at, self._deadlines and self._deadlines[0][0],
                         self._next_step if self._should_step() else None]
                wake_at = min((moment for moment in times if moment), default=None)
                if (wake_at is not None and wake_at <= time.monotonic()
                        or self._end_at is not None and not self._requests):
                    return
                self._changed.wait(wake_at and wake_at - time.monotonic())

    def _should_step(self) -> bool:
        runs = not self._paused or self._single_steps or self._draining
        return bool(runs and self.engine.has_unfinished_requests())

    def _can_step(self) -> bool:
        return self._should_step() and (not self._next_step or time.monotonic() >= self._next_step)

    def _process_inbox(self) -> None:
        """Run the posted functions; end requests past their deadlines."""
        changed = False
        while self._inbox:
            self._inbox.popleft()()
            changed = True
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            submitted = self._requests.get(heapq.heappop(self._deadlines)[1])
            if submitted:
                self._finish(submitted, DeadlineExceeded("the request did not end in the time that it was given"))
                changed = True
        if changed:
            self.stats = self.engine.stats()
            self.receiver.on_change()

    def _admit(self, submitted: Submitted) -> None:
        if submitted.request_id not in self._requests:
            return
        try:
            self.engine.add(submitted.request)
        except Exception as error:
            self._finish(submitted, error)
            return
        submitted.entered = True
        if submitted.deadline is not None:
            heapq.heappush(self._deadlines, (submitted.deadline, submitted.request_id))

    def _remove(self, request_id: str) -> Submitted | None:
        with self._changed:
            self._waiting.discard(request_id)
            return self._requests.pop(request_id, None)

    def _finish(self, submitted: Submitted, error: Exception | None = None) -> None:
        """End a request that has not finished, and free its pages."""
        if self._remove(submitted.request_id):
            self.engine.abort_request(submitted.request_id)
            self.receiver.on_updates([Update(submitted.request_id, None, error, True)])

    def _step(self) -> None:
        began, previous = time.perf_counter(), self.stats
        self._chunks = ()
        try:
            outputs = self.engine.step(due=self._is_due)
        except BaseException as error:  # whatever it is, this thread must continue
            self._on_step_failed(error)
            return
        seconds = time.perf_counter() - began
        self.stats = self.engine.stats()
        if self.stats.generated > previous.generated:  # a launch alone may yet turn out to have failed
            self._faults_in_a_row = 0
        self._route(outputs)
        with self._changed:
            self._single_steps = max(0, self._single_steps - 1) if self._paused else 0
            self._next_step = time.monotonic() + self._delay_s if self._delay_s else 0.0
            began_now = [name for name in self._waiting if _has_begun(self._requests[name].request)]
            self._waiting.difference_update(began_now)
        if began_now:
            self.receiver.on_began(began_now)
        if self._chunks or self.stats.generated > previous.generated:  # not for a call that returned aborted outputs
            self.steps += 1
            self._report(began, seconds, previous, sum(output.finished for output in outputs))
        self.receiver.on_change()

    def _on_launch(self, step) -> None:
        """Record the step's chunks while its sequences still have their seats."""
        self._chunks = tuple(SeatWork(
            sequence.request.request_id, sequence.seat, length,
            "decode" if length == 1 and begin >= len(sequence.request.prompt) else "prefill")
            for sequence, begin, length, _ in step.chunks)

    def _is_due(self, request: Request) -> bool:
        one, now = self._requests.get(request.request_id), time.monotonic()
        if one is None or one.final_only or now < one.due and not self._delay_s and not self._paused:
            return False
        pace = PACE_S * len(self._requests)
        # Streams that begin in the same step are spread over the time between two outputs, not shown all at once.
        one.due = now + pace * (1 if one.due else int(request.request_id) * GOLDEN % 1)
        return True

    def _route(self, outputs: list[RequestOutput]) -> None:
        updates = []
        for output in outputs:
            known = self._remove(output.request_id) if output.finished else self._requests.get(output.request_id)
            if known:  # None if it was cancelled
                updates.append(Update(output.request_id, output, None, output.finished))
        self.receiver.on_updates(updates)

    def _on_step_failed(self, error: BaseException) -> None:
        """The engine is empty. Requests that had not begun were not part of the failed step: they are added again, but
        only once, since a request that makes every step fail must not stay."""
        self.faults += 1
        self._faults_in_a_row += 1
        self.last_fault = error
        log.error("a step failed; its batch's requests end", exc_info=error)
        for one in list(self._requests.values()):
            if not one.entered:
                continue
            if not one.retried and not _has_begun(one.request):
                one.retried = True
                self._admit(one)
                continue
            fault = StepFault(f"a step of this request's batch failed: {type(error).__name__}")
            fault.__cause__ = error
            self._finish(one, fault)
        self.stats = self.engine.stats()
        self.receiver.on_change()

    def _report(self, began: float, seconds: float, previous: Stats, finished: int) -> None:
        if not self.observers:
            return
        running, stats = self.engine.scheduler.running, self.stats
        waiting = len(self._requests) - len({sequence.request for sequence in running})
        report = StepReport(
            self.steps, began, seconds, self._chunks, waiting, len(running), stats.preemptions - previous.preemptions,
            stats.generated - previous.generated, finished)
        for observer in list(self.observers):
            try:
                observer(report)
            except Exception:
                log.exception("an observer of steps failed and is called no more")
                self.observers.remove(observer)


def _has_begun(request: Request) -> bool:
    return request.num_cached_tokens is not None


def _answer(future: Future, function: Callable, *arguments) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
