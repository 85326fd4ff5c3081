"""The one thread that touches an engine. Requests come from any thread; outputs go to the event loops of their readers.

    thread = EngineThread(LLM("tiny-llama").engine)
    thread.start()
    stream = thread.submit("A hacker is", SamplingParams(max_tokens=32))        # in a coroutine
    async for output in stream:                 # a RequestOutput: all of the request's output so far
        print(output.outputs[0].text)
    thread.stop()

Anything else, such as an abort or a look at the engine's pages, is a function that this thread runs between two steps.
It never waits for a reader: a stream keeps only the newest output, which includes all earlier ones.
"""

from __future__ import annotations

import abc
import asyncio
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from labkit.engine.llm_engine import LLMEngine, Stats
from labkit.engine.outputs import RequestOutput
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.sequence import Request

log = logging.getLogger(__name__)

# To decode an output's text and to write it to a socket takes the host about 0.1 ms, during which no other thread of
# Python runs. So each of n streams shows what it has once in n of these: the readers take a fifth of the host's time.
PACE_S = 0.0005
GOLDEN = 0.618034  # the multiples of this have fractions that are spread evenly, however many there are
MAX_CONSECUTIVE_FAULTS = 3  # faults one after the other, without a step that went well between them


class Busy(Exception):
    """The queue of waiting requests is full."""


class Draining(Exception):
    """The engine takes no more requests, or ended before this one finished."""


class DeadlineExceeded(Exception):
    """The request did not finish before its deadline."""


class StepFault(Exception):
    """A step of the request's batch raised an error. The error itself is the cause of this one."""


class EngineDied(Exception):
    """The engine's process ended, by itself or killed, and its requests with it."""


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


class Stream:
    """A request's outputs: `async for output in stream`, by one reader, in the event loop for which it was submitted.

    A reader that comes late finds the newest output only. The iteration raises DeadlineExceeded, StepFault, EngineDied
    or Draining where that ended the request; after `cancel` it just ends.
    """

    def __init__(self, engine: Controls, request: Request, loop: asyncio.AbstractEventLoop, deadline_s: float | None,
                 final_only: bool):
        self.request, self.final_only = request, final_only
        self.arrived = time.perf_counter()
        self.deadline = None if deadline_s is None else time.monotonic() + deadline_s
        self.due = 0.0  # when an output that goes on is returned again
        self.entered = False  # the engine has the request
        self.retried = False  # added again after a fault, since it had not begun
        self.logprobs: dict[int, list] = {}  # received from another process, as unpack_logprobs takes them
        self._engine, self.loop = engine, loop
        self._newest: RequestOutput | None = None
        self._error: Exception | None = None
        self._ended = False
        self._reader: asyncio.Future | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @cached_property
    def prompt_token_ids(self) -> list[int]:
        """One list for all outputs."""
        return list(self.request.prompt)

    def cancel(self) -> None:
        """From any thread, at any time: the request's pages are free before the next step. Its outputs end."""
        self._engine.cancel(self.request_id)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> RequestOutput:
        while self._newest is None:
            if self._error:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._reader = self.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        output, self._newest = self._newest, None
        return output

    def deliver(self, output: RequestOutput | None, error: Exception | None, ended: bool) -> None:
        """In the event loop."""
        if output:
            self._newest = output
        self._error, self._ended = self._error or error, self._ended or ended
        if self._reader and not self._reader.done():
            self._reader.set_result(None)


def dispatch(updates: list[tuple[Stream, RequestOutput | None, Exception | None, bool]],
             cancel: Callable[[str], object]) -> None:
    """Send (stream, output, error, whether it ends) to the event loops: one call for each loop. cancel: is called for
    each unfinished request whose loop is closed."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple]] = {}
    for update in updates:
        loops.setdefault(update[0].loop, []).append(update)
    for loop, batch in loops.items():
        try:
            loop.call_soon_threadsafe(_deliver, batch)
        except RuntimeError:  # the loop is closed: no one reads
            for stream, _, _, ended in batch:
                if not ended:
                    cancel(stream.request_id)


def _deliver(updates: list[tuple]) -> None:
    for stream, *update in updates:
        stream.deliver(*update)


class Controls(abc.ABC):
    """The interface of a server to an engine, from any thread, in this process or another one.

    engine: checks requests. stats, steps, faults: what it counts, after its last step or change. healthy: its last
    steps did not all fail. running: it makes steps. embedding_size: numbers of an embedding; None where there is no
    encoder. max_waiting: requests that wait for their first step.
    """

    engine: LLMEngine
    stats: Stats
    steps: int
    faults: int
    healthy: bool
    running: bool
    embedding_size: int | None

    def __init__(self, max_waiting: int):
        if max_waiting < 1:
            raise ValueError(f"max_waiting is {max_waiting}; it must be 1 or more")
        self.max_waiting = max_waiting
        self._ids = itertools.count(1)
        self._lock = threading.RLock()  # of what follows
        self._streams: dict[str, Stream] = {}  # of requests that have not ended, by their ids
        self._waiting: dict[str, Stream] = {}  # of these, without a step yet
        self._draining, self._paused, self._delay_s = False, False, 0.0
        self._end_reason = "the engine has ended"  # once it does not run

    @property
    def tokenizer(self):
        return self.engine.tokenizer

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its output."""
        return self.engine.runner.max_model_len

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def waiting(self) -> int:
        """Requests that wait for their first step."""
        return len(self._waiting)

    @property
    def trouble(self) -> str:
        """Why it does not serve; "" while it does."""
        if not self.running:
            return self._end_reason
        return "" if self.healthy else f"the engine's last {MAX_CONSECUTIVE_FAULTS} steps all failed"

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return not self.trouble

    def request_of(self, prompt, params: SamplingParams) -> Request:
        """Prepare a request for `submit`. It takes time, so an event loop calls it in another thread. Raises ValueError
        for what cannot run."""
        return self.engine.request_of(str(next(self._ids)), prompt, params)

    def submit(self, prompt, params: SamplingParams | None = None, deadline_s: float | None = None,
               loop: asyncio.AbstractEventLoop | None = None, *, final_only: bool = False) -> Stream:
        """prompt: as LLMEngine.add_request takes it, or a request of request_of; the thread that calls makes a text's
        tokens. deadline_s: from now to the end of the request. loop: of the reader; None: the one that runs.
        final_only: the reader wants the last output alone.

        Raises ValueError for what cannot run, Busy, Draining, EngineDied.
        """
        loop = loop or asyncio.get_running_loop()
        request = prompt if isinstance(prompt, Request) else self.request_of(prompt, params or SamplingParams())
        stream = Stream(self, request, loop, deadline_s, final_only)
        with self._lock:
            if self._draining:
                raise self._refusal()
            if len(self._waiting) >= self.max_waiting:
                raise Busy(f"{len(self._waiting):,} requests wait, as many as may; try again later")
            self._streams[request.request_id] = self._waiting[request.request_id] = stream
            self._enqueue(stream, deadline_s)
        return stream

    def _refusal(self) -> Exception:
        """Why it takes no requests."""
        return Draining("the server is about to end and takes no more requests")

    def drain(self) -> None:
        """Take no more requests; unfinished ones go on, even if it was paused."""
        with self._lock:
            self._draining = True
            self._on_control("drain")

    def pause(self) -> None:
        """Launch no step after the current one. Requests may still be submitted and cancelled."""
        with self._lock:
            self._paused = True
            self._on_control("pause")

    def resume(self) -> None:
        with self._lock:
            self._paused = False
            self._on_control("resume")

    def step_once(self) -> None:
        """Run one more step while paused; without requests, once the next one arrives."""
        with self._lock:
            self._on_control("step_once")

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def delay_s(self) -> float:
        """Seconds from the end of a step to the next one, for watching."""
        return self._delay_s

    @delay_s.setter
    def delay_s(self, seconds: float) -> None:
        if not 0 <= seconds <= 60:
            raise ValueError(f"delay_s is {seconds}; it must be from 0 to 60")
        with self._lock:
            self._delay_s = seconds
            self._on_control("delay_s", seconds)

    def _remove(self, request_id: str) -> Stream | None:
        with self._lock:
            self._waiting.pop(request_id, None)
            return self._streams.pop(request_id, None)

    @abc.abstractmethod
    def cancel(self, request_id: str) -> None:
        """A stream's `cancel`."""

    @abc.abstractmethod
    def ask(self, function: Callable, *arguments) -> Future:
        """function(thread, *arguments) runs in the thread of the EngineThread, between two steps; its result, or what
        it raises, is the future's. The function may have to be imported by another process. Raises Draining."""

    @abc.abstractmethod
    def stop(self, drain_s: float = 30.0) -> None:
        """Take no more requests, give unfinished ones so many seconds to finish, and end."""

    @abc.abstractmethod
    def _enqueue(self, stream: Stream, deadline_s: float | None) -> None:
        """Queue the request for the engine."""

    @abc.abstractmethod
    def _on_control(self, name: str, *arguments) -> None:
        """Called when one of the methods above was called, or an attribute set."""


class EngineThread(Controls):
    """engine: nothing else may touch it while the thread runs. encoder: of embeddings, as in
    labkit.models.sentences, for functions run by `ask`.

    observers: each is called with a StepReport after each step, in this thread, and must be quick. changed: is called
    in this thread when stats may have changed.
    faults: steps that raised an error. The requests of their batch ended with it; the engine went on with the others.
    """

    def __init__(self, engine: LLMEngine, max_waiting: int = 256, encoder=None):
        super().__init__(max_waiting)
        self.engine, self.encoder = engine, encoder
        self.observers: list[Callable[[StepReport], None]] = []
        self.changed: Callable[[], None] = lambda: None
        self.steps = self.faults = 0
        self.last_fault: Exception | None = None
        self.stats: Stats = engine.stats()
        self._faults_in_a_row = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._changed = threading.Condition(self._lock)
        self._inbox: deque[Callable[[], None]] = deque()  # to run between two steps
        self._single_steps, self._next_step = 0, 0.0
        self._end_at: float | None = None  # the time after which it waits for no request; None: it keeps running
        # The thread's own.
        self._deadlines: list[tuple[float, str]] = []  # a heap; those of requests that have ended are in it
        self._chunks: tuple[SeatWork, ...] = ()
        engine.watch = self._on_launch

    # --- From any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self, drain_s: float = 30.0) -> None:
        with self._changed:
            self._draining, self._end_at = True, time.monotonic() + drain_s
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(drain_s + 5)  # a step that hangs must not keep the process

    def arrived(self, request_id: str) -> float | None:
        """When a request was submitted, by time.perf_counter(); None once it has ended."""
        stream = self._streams.get(request_id)
        return stream and stream.arrived

    def waiting_ids(self) -> set[str]:
        """Of the requests that wait for their first step."""
        with self._lock:
            return set(self._waiting)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def healthy(self) -> bool:
        return self._faults_in_a_row < MAX_CONSECUTIVE_FAULTS

    @property
    def embedding_size(self) -> int | None:
        return self.encoder and self.encoder.get_sentence_embedding_dimension()

    def cancel(self, request_id: str) -> None:
        with self._changed:
            stream = self._streams.get(request_id)
            if stream:
                self._post(partial(self._finish, stream))

    def call(self, function: Callable[[LLMEngine], object]) -> Future:
        """`ask` for a function of the engine."""
        future: Future = Future()
        with self._changed:
            if self._end_at is not None or not self._thread.is_alive():
                raise Draining("the engine's thread has ended")
            self._post(partial(_answer, future, function, self.engine))
        return future

    def ask(self, function: Callable, *arguments) -> Future:
        return self.call(lambda engine: function(self, *arguments))

    def _enqueue(self, stream: Stream, deadline_s: float | None) -> None:
        self._post(partial(self._admit, stream))

    def _on_control(self, name: str, *arguments) -> None:
        if name == "pause":
            self._single_steps = 0
        elif name == "step_once":
            self._single_steps += 1
        elif name == "delay_s":
            self._next_step = 0.0
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
        with self._changed:
            self._draining, self._end_at = True, 0.0
        for stream in list(self._streams.values()):
            self._finish(stream, Draining("the server ended before the answer was complete"))
        self._process_inbox()
        self.stats = self.engine.stats()
        self.changed()

    def _is_done(self) -> bool:
        with self._changed:
            return self._end_at is not None and (not self._streams or time.monotonic() >= self._end_at)

    def _wait(self) -> None:
        """Wait until there is something to do."""
        with self._changed:
            while not self._inbox and not self._can_step():
                times = [self._end_at, self._deadlines and self._deadlines[0][0],
                         self._next_step if self._should_step() else None]
                wake_at = min((moment for moment in times if moment), default=None)
                if (wake_at is not None and wake_at <= time.monotonic()
                        or self._end_at is not None and not self._streams):
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
            stream = self._streams.get(heapq.heappop(self._deadlines)[1])
            if stream:
                self._finish(stream, DeadlineExceeded("the request did not end in the time that it was given"))
                changed = True
        if changed:
            self.stats = self.engine.stats()
            self.changed()

    def _admit(self, stream: Stream) -> None:
        if stream.request_id not in self._streams:
            return
        try:
            self.engine.add(stream.request)
        except Exception as error:
            self._finish(stream, error)
            return
        stream.entered = True
        if stream.deadline is not None:
            heapq.heappush(self._deadlines, (stream.deadline, stream.request_id))

    def _finish(self, stream: Stream, error: Exception | None = None) -> None:
        """End a request that has not finished, and free its pages."""
        if self._remove(stream.request_id):
            self.engine.abort_request(stream.request_id)
            dispatch([(stream, None, error, True)], self.cancel)

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
            for request_id in [queued.request_id for queued in self._waiting.values() if _has_begun(queued.request)]:
                del self._waiting[request_id]
        if self._chunks or self.stats.generated > previous.generated:  # not for a call that returned aborted outputs
            self.steps += 1
            self._report(began, seconds, previous, sum(output.finished for output in outputs))
        self.changed()

    def _on_launch(self, step) -> None:
        """Record the step's chunks while its sequences still have their seats."""
        self._chunks = tuple(SeatWork(
            sequence.request.request_id, sequence.seat, length,
            "decode" if length == 1 and begin >= len(sequence.request.prompt) else "prefill")
            for sequence, begin, length, _ in step.chunks)

    def _is_due(self, request: Request) -> bool:
        stream, now = self._streams.get(request.request_id), time.monotonic()
        if stream is None or stream.final_only or now < stream.due and not self._delay_s and not self._paused:
            return False
        pace = PACE_S * len(self._streams)
        # Streams that begin in the same step are spread over the time between two outputs, not shown all at once.
        stream.due = now + pace * (1 if stream.due else int(request.request_id) * GOLDEN % 1)
        return True

    def _route(self, outputs: list[RequestOutput]) -> None:
        updates = []
        for output in outputs:
            stream = self._remove(output.request_id) if output.finished else self._streams.get(output.request_id)
            if stream:  # None if it was cancelled
                updates.append((stream, output, None, output.finished))
        dispatch(updates, self.cancel)

    def _on_step_failed(self, error: BaseException) -> None:
        """The engine is empty. Requests that had not begun were not part of the failed step: they are added again, but
        only once, since a request that makes every step fail must not stay."""
        self.faults += 1
        self._faults_in_a_row += 1
        self.last_fault = error
        log.error("a step failed; its batch's requests end", exc_info=error)
        for stream in list(self._streams.values()):
            if not stream.entered:
                continue
            if not stream.retried and not _has_begun(stream.request):
                stream.retried = True
                self._admit(stream)
                continue
            fault = StepFault(f"a step of this request's batch failed: {type(error).__name__}")
            fault.__cause__ = error
            self._finish(stream, fault)
        self.stats = self.engine.stats()
        self.changed()

    def _report(self, began: float, seconds: float, previous: Stats, finished: int) -> None:
        if not self.observers:
            return
        running, stats = self.engine.scheduler.running, self.stats
        waiting = len(self._streams) - len({sequence.request for sequence in running})
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


def _answer(future: Future, function: Callable, engine: LLMEngine) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function(engine))
        except BaseException as error:
            future.set_exception(error)
