"""An engine for event loops: requests come from any thread; outputs go to the event loops of their readers.

    engine = AsyncEngine(transport)             # an EngineThread that was started, or an EngineProcess
    stream = engine.submit("A hacker is", SamplingParams(max_tokens=32))        # in a coroutine
    async for output in stream:                 # a RequestOutput: all of the request's output so far
        print(output.outputs[0].text)
    engine.stop()

Anything else, such as a look at the engine's pages, is a function that the engine's thread runs between two steps. It
never waits for a reader: a stream keeps only the newest output, which includes all earlier ones.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from labkit.engine.llm_engine import LLMEngine, Stats
from labkit.engine.outputs import RequestOutput
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.sequence import Request

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


class Update(NamedTuple):
    """What is new of a request. ended: nothing will follow."""

    request_id: str
    output: RequestOutput | None
    error: Exception | None
    ended: bool


class Receiver:
    """What a transport calls, in a thread of its own. By default nothing happens."""

    def on_updates(self, updates: list[Update]) -> None:
        """Of several requests at once."""

    def on_began(self, request_ids: list[str]) -> None:
        """They have had their first step."""

    def on_change(self) -> None:
        """The transport's stats may have changed."""

    def on_end(self, error: Exception) -> None:
        """There are no more steps, and requests that have not ended end with this error."""


class Transport(abc.ABC):
    """The way to the thread in which an engine makes its steps.

    engine: checks requests. stats, steps, faults: what it counts, after its last step or change. healthy: its last
    steps did not all fail. running: it makes steps; end_reason: why not. embedding_size: numbers of an embedding; None
    where there is no encoder.
    """

    engine: LLMEngine
    stats: Stats
    steps: int
    faults: int
    healthy: bool
    running: bool
    embedding_size: int | None
    end_reason = "the engine has ended"
    receiver = Receiver()

    @abc.abstractmethod
    def submit(self, request: Request, deadline_s: float | None, final_only: bool) -> None:
        """Queue the request for the engine. Raises Draining where no step will follow."""

    @abc.abstractmethod
    def cancel(self, request_id: str) -> None:
        """End the request, if it has not ended, without an error."""

    @abc.abstractmethod
    def control(self, name: str, *arguments) -> None:
        """drain, pause, resume, step_once or delay_s, as AsyncEngine has them."""

    @abc.abstractmethod
    def ask(self, function: Callable, *arguments) -> Future:
        """function(thread, *arguments) runs in the thread of the EngineThread, between two steps; its result, or what
        it raises, is the future's. The function may have to be imported by another process. Raises Draining."""

    @abc.abstractmethod
    def stop(self, drain_s: float) -> None:
        """Give unfinished requests so many seconds to finish, and end."""

    def refusal(self) -> Exception:
        """Why it takes no requests."""
        return Draining("the server is about to end and takes no more requests")


class Stream:
    """A request's outputs: `async for output in stream`, by one reader, in the event loop for which it was submitted.

    A reader that comes late finds the newest output only. The iteration raises DeadlineExceeded, StepFault, EngineDied
    or Draining where that ended the request; after `cancel` it just ends.
    """

    def __init__(self, transport: Transport, request: Request, loop: asyncio.AbstractEventLoop):
        self.request, self.loop, self._transport = request, loop, transport
        self._newest: RequestOutput | None = None
        self._error: Exception | None = None
        self._ended = False
        self._reader: asyncio.Future | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def cancel(self) -> None:
        """From any thread, at any time: the request's pages are free before the next step. Its outputs end."""
        self._transport.cancel(self.request_id)

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


def _deliver(updates: list[tuple]) -> None:
    for stream, update in updates:
        stream.deliver(update.output, update.error, update.ended)


def _of_transport(name: str) -> property:
    return property(lambda engine: getattr(engine.transport, name))


class AsyncEngine(Receiver):
    """transport: whose engine is served, and by it alone. max_waiting: requests that wait for their first step."""

    engine, stats, steps, faults, healthy, running, embedding_size = map(_of_transport, (
        "engine", "stats", "steps", "faults", "healthy", "running", "embedding_size"))

    def __init__(self, transport: Transport, max_waiting: int = 256):
        if max_waiting < 1:
            raise ValueError(f"max_waiting is {max_waiting}; it must be 1 or more")
        self.transport, self.max_waiting = transport, max_waiting
        self._ids = itertools.count(1)
        self._lock = threading.RLock()  # of what follows
        self._streams: dict[str, Stream] = {}  # of requests that have not ended, by their ids
        self._waiting: set[str] = set()  # of these, without a step yet
        self._paused, self._delay_s = False, 0.0
        transport.receiver = self
        self._draining = not transport.running

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
            return self.transport.end_reason
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
        stream = Stream(self.transport, request, loop)
        with self._lock:
            if self._draining:
                raise self.transport.refusal()
            if len(self._waiting) >= self.max_waiting:
                raise Busy(f"{len(self._waiting):,} requests wait, as many as may; try again later")
            self.transport.submit(request, deadline_s, final_only)
            self._streams[request.request_id] = stream  # its first update waits for the lock
            self._waiting.add(request.request_id)
        return stream

    def ask(self, function: Callable, *arguments) -> Future:
        """As Transport.ask."""
        return self.transport.ask(function, *arguments)

    def stop(self, drain_s: float = 30.0) -> None:
        """Take no more requests, give unfinished ones so many seconds to finish, and end."""
        with self._lock:
            self._draining = True
        self.transport.stop(drain_s)

    # --- How it runs -------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more requests; unfinished ones go on, even if it was paused."""
        with self._lock:
            self._draining = True
            self.transport.control("drain")

    def pause(self) -> None:
        """Launch no step after the current one. Requests may still be submitted and cancelled."""
        with self._lock:
            self._paused = True
            self.transport.control("pause")

    def resume(self) -> None:
        with self._lock:
            self._paused = False
            self.transport.control("resume")

    def step_once(self) -> None:
        """Run one more step while paused; without requests, once the next one arrives."""
        self.transport.control("step_once")

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
            self.transport.control("delay_s", seconds)

    # --- From the transport ------------------------------------------------------------------------------------------

    def on_updates(self, updates: list[Update]) -> None:
        """Send them to the event loops of their readers: one call for each loop."""
        loops: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Update]]] = {}
        with self._lock:
            for update in updates:
                stream = self._streams.get(update.request_id)
                if update.ended:
                    self._streams.pop(update.request_id, None)
                    self._waiting.discard(update.request_id)
                if stream:
                    loops.setdefault(stream.loop, []).append((stream, update))
        for loop, batch in loops.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:  # the loop is closed: no one reads
                for stream, update in batch:
                    if not update.ended:
                        stream.cancel()

    def on_began(self, request_ids: list[str]) -> None:
        with self._lock:
            self._waiting.difference_update(request_ids)

    def on_end(self, error: Exception) -> None:
        with self._lock:
            self._draining = True
            names = list(self._streams)
        self.on_updates([Update(name, None, error, True) for name in names])
