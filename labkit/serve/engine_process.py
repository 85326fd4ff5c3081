"""An engine in a process of its own, which is used as an EngineThread is.

    engine = EngineProcess(settings, load_model, doing=print)      # returns when the other process has loaded its model
    stream = engine.submit("A hacker is", SamplingParams(max_tokens=32))
    ...
    engine.stop()

HTTP and steps have an interpreter each. In one they take turns: while a text is written to its socket no step is
prepared, and the device waits. Here requests and commands go to the other process, outputs come from it, and so does
what it counts after each step; what several steps brought a stream goes as one output where this side was busy.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from multiprocessing import resource_tracker
from typing import NamedTuple

from labkit.engine.llm_engine import LLMEngine, Stats
from labkit.engine.outputs import Logprobs, RequestOutput, unpack
from labkit.engine.sequence import Request
from labkit.serve.engine_thread import Controls, Draining, EngineDied, EngineThread, Stream, hand_over
from labkit.serve.settings import Settings

log = logging.getLogger(__name__)

SWITCH_S = 0.001  # how long a thread may keep the interpreter from another one: Python's 5 ms are a whole step

SIGNALS = {signal.SIGINT, signal.SIGTERM}  # which end a server; a terminal sends them to all of its processes
ENDED = "the engine's process has ended"

# A started thread with its model; the function is called with what it does.
Loading = Callable[[Settings, Callable[[str], None]], EngineThread]


class RunnerFacts(NamedTuple):
    """What checks of requests need of a runner."""

    num_pages: int
    page_size: int
    max_model_len: int
    vocab_size: int


class Facts(NamedTuple):
    """What the process that has no engine knows of it from the beginning."""

    runner: RunnerFacts
    tokenizer: object
    embedding_size: int | None
    status: Status


class Status(NamedTuple):
    """What an EngineThread counts, after its last step or change."""

    stats: Stats
    steps: int
    faults: int
    healthy: bool


class Channel:
    """Messages in their order. A thread sends them, so who puts one waits for nothing. take: returns those that are to
    be sent next beside what was put; it is called again after each `wake`."""

    def __init__(self, connection, take: Callable[[], list[tuple]] = list):
        self._connection, self._take = connection, take
        self._changed, self._messages = threading.Condition(), deque()
        self._awake = self._closing = False
        self._thread = threading.Thread(target=self._send, name="sender", daemon=True)
        self._thread.start()

    def put(self, *message) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify()

    def wake(self) -> None:
        with self._changed:
            self._awake = True
            self._changed.notify()

    def close(self, seconds: float = 5.0) -> None:
        """After what was put is sent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _send(self) -> None:
        while True:
            with self._changed:
                while not (self._messages or self._awake or self._closing):
                    self._changed.wait()
                messages, closing, self._awake = list(self._messages), self._closing, False
                self._messages.clear()
            messages += self._take()
            try:
                if messages:
                    self._connection.send_bytes(pickle.dumps(messages, pickle.HIGHEST_PROTOCOL))
            except OSError:  # the other side has gone; who receives finds out
                return
            if closing:
                return

    def received(self) -> Iterator[tuple]:
        """Until the other side has gone."""
        while True:
            try:
                messages = pickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                return
            yield from messages


# --- In the engine's process -----------------------------------------------------------------------------------------


class Host:
    """Handles the other process's requests and returns the results. It is the event loop of all streams."""

    def __init__(self, connection, settings: Settings, load: Loading):
        self._settings, self._load = settings, load
        self._lock = threading.Lock()  # of what follows
        self._news: dict[str, tuple] = {}  # of each request: its newest output, an error, whether it has ended
        self._sent_logprobs: dict[str, dict[int, int]] = {}  # of each request: as pack_logprobs has them
        self._waiting: set[str] = set()  # submitted, and without a step as far as the other process knows
        self._status: Status | None = None  # the newest, and what the other process has
        self._sent: Status | None = None
        self.thread: EngineThread | None = None
        self.channel = Channel(connection, self._take)

    def run(self) -> None:
        """Until the other process asks it to stop, or has gone."""
        threading.Thread(target=self._loaded, name="loader", daemon=True).start()
        for name, *arguments in self.channel.received():
            if name == "stop":
                if self.thread:
                    self.thread.stop(*arguments)
                break
            getattr(self, f"_{name}")(*arguments)
        else:  # no one is left to read anything
            if self.thread:
                self.thread.stop(0)
        self.channel.close()

    def _loaded(self) -> None:
        try:
            self.thread = thread = self._load(self._settings, lambda what: self.channel.put("doing", what))
            self._status = self._sent = status_of(thread)
            thread.changed = self._changed
            runner = thread.engine.runner
            facts = Facts(RunnerFacts(runner.num_pages, runner.page_size, runner.max_model_len, runner.vocab_size),
                          thread.tokenizer, thread.embedding_size, self._sent)
            self.channel.put("loaded", pickle.dumps(facts))
        except BaseException as error:
            self.channel.put("failed", portable(error))

    # Requests from the other process.

    def _submit(self, request: Request, deadline_s: float | None, final_only: bool) -> None:
        try:
            self.thread.submit(request, deadline_s=deadline_s, loop=self, final_only=final_only)
        except Exception as error:
            with self._lock:
                self._news[request.request_id] = None, portable(error), True
            self.channel.wake()
            return
        with self._lock:
            self._waiting.add(request.request_id)

    def _cancel(self, request_id: str) -> None:
        self.thread.cancel(request_id)

    def _ask(self, number: int, function: Callable, arguments: tuple) -> None:
        def answer(future: Future) -> None:
            error = future.exception()
            self.channel.put("answer", number, None if error else future.result(), error and portable(error))

        try:
            self.thread.ask(function, *arguments).add_done_callback(answer)
        except Exception as error:
            self.channel.put("answer", number, None, portable(error))

    def _control(self, name: str, *arguments) -> None:
        if arguments:
            setattr(self.thread, name, *arguments)
        else:
            getattr(self.thread, name)()

    # What the engine's thread tells.

    def call_soon_threadsafe(self, deliver: Callable, news: list[tuple]) -> None:
        """As an event loop has it, for EngineThread's streams."""
        with self._lock:
            for stream, output, error, ended in news:
                name = stream.request_id
                if output:
                    output.prompt, output.prompt_token_ids = None, []  # the other process has them
                before, *_ = self._news.get(name, (None,))
                self._news[name] = output or before, error and portable(error), ended
        self.channel.wake()

    def _changed(self) -> None:
        with self._lock:
            self._status = status_of(self.thread)
        self.channel.wake()

    def _take(self) -> list[tuple]:
        with self._lock:
            news, self._news, status = self._news, {}, self._status
            begun = []
            if self._waiting:
                begun = list(self._waiting - self.thread.waiting_ids())
                self._waiting.difference_update(begun)
        messages = [("began", begun)] if begun else []
        for name, (output, _, ended) in news.items():
            sent = self._sent_logprobs.pop(name, {})
            if not ended:
                self._sent_logprobs[name] = sent
            if output:
                pack_logprobs(output, sent)
        if news:
            messages.append(("news", [(name, *each) for name, each in news.items()]))
        if status != self._sent:
            self._sent = status
            messages.append(("status", status))
        return messages


def pack_logprobs(output: RequestOutput, sent: dict[int, int]) -> None:
    """Replaces the output's logprobs by those that the other process does not have yet. sent: how many it has, by the
    output's index, -1 for the prompt; it is brought up to date."""
    if output.prompt_logprobs is not None:
        known, sent[-1] = sent.get(-1, 0), len(output.prompt_logprobs)
        output.prompt_logprobs = output.prompt_logprobs.packed(known)
    for one in output.outputs:
        if one.logprobs is not None:
            known, sent[one.index] = sent.get(one.index, 0), len(one.logprobs)
            one.logprobs = one.logprobs.packed(known)


def unpack_logprobs(output: RequestOutput, known: dict[int, list], texts: Mapping[int, str | None]) -> None:
    """Undoes pack_logprobs in the other process. known: what came before, by the same indices; new ones are appended.
    texts: token -> its text."""
    def grown(index: int, packed) -> Logprobs:
        entries = known.setdefault(index, [])
        entries += unpack(*packed)
        return Logprobs(entries, texts)

    if output.prompt_logprobs is not None:
        output.prompt_logprobs = grown(-1, output.prompt_logprobs)
    for one in output.outputs:
        if one.logprobs is not None:
            one.logprobs = grown(one.index, one.logprobs)


def status_of(thread: EngineThread) -> Status:
    return Status(thread.stats, thread.steps, thread.faults, thread.healthy)


def portable(error: BaseException) -> BaseException:
    """The error, or one with its words where it cannot be sent."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def serve(connection, settings: Settings, load: Loading) -> None:
    """What the process does. Signals are for the other one, which asks this one to stop."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    Host(connection, settings, load).run()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # who compiles or hangs cannot be asked to stop


# --- In the process that answers -------------------------------------------------------------------------------------


class EngineProcess(Controls):
    """As EngineThread, but that functions go to `ask`, and nothing observes the steps here.

    engine: no step is ever made with it; it has the tokenizer, and knows which requests can run.
    failed: is set once it serves no more: the process has ended, or its last steps all failed.
    """

    def __init__(self, settings: Settings, load: Loading, doing: Callable[[str], None] = lambda what: None):
        """Raises what `load` raises in the other process, and RuntimeError where that process ends."""
        super().__init__(settings.max_waiting)
        self._doing, self._answers = doing, {}
        self._asked = itertools.count()
        self._loaded: Future[None] = Future()
        self._stopping, self.running, self.failed = False, True, threading.Event()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, settings, load), name="engine")
        with blocked_signals():
            self._process.start()
        theirs.close()
        self._channel = Channel(ours)
        self._receiver = threading.Thread(target=self._receive, name="engine", daemon=True)
        self._receiver.start()
        try:
            self._loaded.result()
        except BaseException:
            self.stop(0)
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    # --- What goes there ---------------------------------------------------------------------------------------------

    def _enter_soon(self, stream: Stream, deadline_s: float | None) -> None:
        self._channel.put("submit", stream.request, deadline_s, stream.final_only)

    def cancel(self, request_id: str) -> None:
        if request_id in self._streams:
            self._channel.put("cancel", request_id)

    def ask(self, function: Callable, *arguments) -> Future:
        """function(thread, *arguments), which the other process can import, between two steps there."""
        future: Future = Future()
        with self._lock:
            if self._stopping or not self.running:
                raise self._refusal()
            number = next(self._asked)
            self._answers[number] = future
        self._channel.put("ask", number, function, arguments)
        return future

    def _refusal(self) -> Exception:
        if self._stopping:
            return Draining(ENDED)
        return super()._refusal() if self.running else EngineDied(self._ended)

    def _controlled(self, name: str, *arguments) -> None:
        self._channel.put("control", name, *arguments)

    def stop(self, drain_s: float = 30.0) -> None:
        """As EngineThread.stop; the process is gone afterwards."""
        with self._lock:
            self._draining = True
            first, self._stopping = not self._stopping, True
        if first:
            self._channel.put("stop", drain_s)
        self._process.join(drain_s + 5)
        if self._process.is_alive():  # a step that hangs must not keep it
            self._process.kill()
            self._process.join(5)
        self._receiver.join(5)
        self._channel.close()

    # --- Messages from the engine's process --------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            for name, *arguments in self._channel.received():
                getattr(self, f"_{name}_came")(*arguments)
        except Exception:
            log.exception("the engine's process sent what cannot be read")
            self._process.kill()
        self._process.join(5)
        how = in_words(self._process.exitcode)
        with self._lock:
            self._draining, self.running = True, False
            self._ended = f"the engine's process ended ({how})"
            answers, self._answers = self._answers, {}
        error: Exception = Draining(ENDED)
        if not self._stopping:
            error = EngineDied(f"{self._ended} before the answer was complete")
            log.error("%s; its requests end", self._ended)
        for future in answers.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        if not self._loaded.done():
            self._loaded.set_exception(RuntimeError(f"the engine's process ended while it loaded its model ({how})"))
        hand_over([(self._forget(name), None, error, True) for name in list(self._streams)], self.cancel)
        self.failed.set()

    def _doing_came(self, what: str) -> None:
        self._doing(what)

    def _failed_came(self, error: BaseException) -> None:
        self._loaded.set_exception(error)

    def _loaded_came(self, pickled: bytes) -> None:
        facts: Facts = pickle.loads(pickled)
        self.engine = LLMEngine(facts.runner, facts.tokenizer)
        self.embedding_size = facts.embedding_size
        self._status_came(facts.status)  # here, not by who waits: the next one may have come by then
        self._loaded.set_result(None)

    def _status_came(self, status: Status) -> None:
        self.stats, self.steps, self.faults, self.healthy = status
        if not self.healthy:
            self.failed.set()

    def _began_came(self, request_ids: list[str]) -> None:
        with self._lock:
            for request_id in request_ids:
                self._waiting.pop(request_id, None)

    def _answer_came(self, number: int, result, error: BaseException | None) -> None:
        future = self._answers.pop(number, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _news_came(self, news: list[tuple[str, RequestOutput | None, Exception | None, bool]]) -> None:
        found = []
        for request_id, output, error, ended in news:
            stream = self._forget(request_id) if ended else self._streams.get(request_id)
            if stream:
                if output:
                    output.prompt, output.prompt_token_ids = stream.request.text, stream.prompt_token_ids
                    unpack_logprobs(output, stream.logprobs, self.engine.texts_of(stream.request.params))
                found.append((stream, output, error, ended))
        hand_over(found, self.cancel)


def in_words(exit_code: int | None) -> str:
    """How a process ended."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"killed by {name}{', as the system does when memory runs out' if name == 'SIGKILL' else ''}"


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """From this thread, and for good from a process that it starts meanwhile; not on Windows."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would let them through again when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
