"""An engine in a process of its own, as the transport of an AsyncEngine.

    engine = AsyncEngine(EngineProcess(settings, load_model, doing=print))     # returns when it has loaded its model

HTTP and steps have an interpreter each. In a single one they take turns: while a text is written to its socket no step
is prepared, and the device waits. Requests and commands go to the other process; outputs and counters come back after
each step, and a request's outputs of several steps are merged into one where this side was busy.
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
from labkit.serve.async_engine import Draining, EngineDied, Receiver, Transport, Update
from labkit.serve.engine_thread import EngineThread
from labkit.serve.settings import Settings

log = logging.getLogger(__name__)

SWITCH_S = 0.001  # how long a thread may hold the interpreter: Python's default, 5 ms, is as long as a step

SIGNALS = {signal.SIGINT, signal.SIGTERM}  # which end a server; a terminal sends them to all of its processes
ENDED = "the engine's process has ended"

# Return a started thread with its model; the function is called with the current stage.
Loading = Callable[[Settings, Callable[[str], None]], EngineThread]


class RunnerFacts(NamedTuple):
    """What checks of requests need of a runner."""

    num_pages: int
    page_size: int
    max_model_len: int
    vocab_size: int


class Facts(NamedTuple):
    """What the server's process knows of the engine from the beginning."""

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
    """Messages in order. A thread sends them, so `put` never blocks. take: returns further messages to send; it is
    called again after each `wake`."""

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
        """Close once all messages are sent."""
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
            except OSError:  # the other side is gone; the receiving thread notices
                return
            if closing:
                return

    def received(self) -> Iterator[tuple]:
        """Yield messages until the other side is gone."""
        while True:
            try:
                messages = pickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                return
            yield from messages


# --- In the engine's process -----------------------------------------------------------------------------------------


class Host(Receiver):
    """Handles the other process's requests and returns the results."""

    def __init__(self, connection, settings: Settings, load: Loading):
        self._settings, self._load = settings, load
        self._lock = threading.Lock()  # of what follows
        self._updates: dict[str, Update] = {}  # of each request: its newest output, its error, whether it has ended
        self._sent_logprobs: dict[str, dict[int, int]] = {}  # of each request: as pack_logprobs has them
        self._began: list[str] = []  # requests that have had their first step
        self._status: Status | None = None  # the newest one, and the one last sent
        self._sent_status: Status | None = None
        self.thread: EngineThread | None = None
        self.channel = Channel(connection, self._take)

    def run(self) -> None:
        """Run until the other process asks it to stop, or is gone."""
        threading.Thread(target=self._load_engine, name="loader", daemon=True).start()
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

    def _load_engine(self) -> None:
        try:
            self.thread = thread = self._load(self._settings, lambda what: self.channel.put("doing", what))
            self._status = self._sent_status = status_of(thread)
            thread.receiver = self
            runner = thread.engine.runner
            facts = Facts(RunnerFacts(runner.num_pages, runner.page_size, runner.max_model_len, runner.vocab_size),
                          thread.engine.tokenizer, thread.embedding_size, self._sent_status)
            self.channel.put("loaded", pickle.dumps(facts))
        except BaseException as error:
            self.channel.put("failed", portable(error))

    # Requests from the other process.

    def _submit(self, request: Request, deadline_s: float | None, final_only: bool) -> None:
        try:
            self.thread.submit(request, deadline_s, final_only)
        except Exception as error:
            self.on_updates([Update(request.request_id, None, error, True)])

    def _cancel(self, request_id: str) -> None:
        self.thread.cancel(request_id)

    def _ask(self, ask_id: int, function: Callable, arguments: tuple) -> None:
        def answer(future: Future) -> None:
            error = future.exception()
            self.channel.put("answer", ask_id, None if error else future.result(), error and portable(error))

        try:
            self.thread.ask(function, *arguments).add_done_callback(answer)
        except Exception as error:
            self.channel.put("answer", ask_id, None, portable(error))

    def _control(self, name: str, *arguments) -> None:
        self.thread.control(name, *arguments)

    # Calls of the engine's thread.

    def on_updates(self, updates: list[Update]) -> None:
        with self._lock:
            for name, output, error, ended in updates:
                if output:
                    output.prompt, output.prompt_token_ids = None, []  # the other process has them
                previous = self._updates[name].output if name in self._updates else None
                self._updates[name] = Update(name, output or previous, error and portable(error), ended)
            self._status = status_of(self.thread)
        self.channel.wake()

    def on_began(self, request_ids: list[str]) -> None:
        with self._lock:
            self._began += request_ids
        self.channel.wake()

    def on_change(self) -> None:
        with self._lock:
            self._status = status_of(self.thread)
        self.channel.wake()

    def _take(self) -> list[tuple]:
        with self._lock:
            updates, self._updates, status = list(self._updates.values()), {}, self._status
            began, self._began = self._began, []
        messages = [("began", began)] if began else []
        if status != self._sent_status:  # before the updates: whoever reads a fault finds it counted
            self._sent_status = status
            messages.append(("status", status))
        for name, output, _, ended in updates:
            sent = self._sent_logprobs.pop(name, {})
            if not ended:
                self._sent_logprobs[name] = sent
            if output:
                pack_logprobs(output, sent)
        if updates:
            messages.append(("updates", updates))
        return messages


def pack_logprobs(output: RequestOutput, sent: dict[int, int]) -> None:
    """Replaces the output's logprobs by those that the other process does not have yet. sent: how many it has, by the
    output's index, -1 for the prompt; it is brought up to date."""
    if output.prompt_logprobs is not None:
        known, sent[-1] = sent.get(-1, 0), len(output.prompt_logprobs)
        output.prompt_logprobs = output.prompt_logprobs.packed(known)
    for completion in output.outputs:
        if completion.logprobs is not None:
            known, sent[completion.index] = sent.get(completion.index, 0), len(completion.logprobs)
            completion.logprobs = completion.logprobs.packed(known)


def unpack_logprobs(output: RequestOutput, known: dict[int, list], texts: Mapping[int, str | None]) -> None:
    """Undoes pack_logprobs in the other process. known: what came before, by the same indices; new ones are appended.
    texts: token -> its text."""
    def extend(index: int, packed) -> Logprobs:
        entries = known.setdefault(index, [])
        entries += unpack(*packed)
        return Logprobs(entries, texts)

    if output.prompt_logprobs is not None:
        output.prompt_logprobs = extend(-1, output.prompt_logprobs)
    for completion in output.outputs:
        if completion.logprobs is not None:
            completion.logprobs = extend(completion.index, completion.logprobs)


def status_of(thread: EngineThread) -> Status:
    return Status(thread.stats, thread.steps, thread.faults, thread.healthy)


def portable(error: BaseException) -> BaseException:
    """Return the error, or one with the same message where it cannot be pickled."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def serve(connection, settings: Settings, load: Loading) -> None:
    """The process's main function. Signals are for the other process, which asks this one to stop."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    Host(connection, settings, load).run()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a thread that compiles or hangs cannot be asked to stop


# --- In the process that answers -------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A request that the other process has. logprobs: received of it, as unpack_logprobs takes them."""

    request: Request
    prompt_token_ids: list[int]  # one list for all outputs
    logprobs: dict[int, list]


class EngineProcess(Transport):
    """engine: no step is ever made with it; it has the tokenizer, and knows which requests can run.
    failed: set once it no longer serves: the process has ended, or its last steps all failed.
    """

    def __init__(self, settings: Settings, load: Loading, doing: Callable[[str], None] = lambda stage: None):
        """Raises what `load` raises in the other process, and RuntimeError where that process ends."""
        self._doing, self._ask_ids = doing, itertools.count()
        self._lock = threading.Lock()  # of what follows
        self._answers: dict[int, Future] = {}
        self._sent: dict[str, Sent] = {}
        self._loaded: Future[None] = Future()
        self._stopping, self.running, self.failed = False, True, threading.Event()
        context = multiprocessing.get_context("spawn")
        connection, child_connection = context.Pipe()
        self._process = context.Process(target=serve, args=(child_connection, settings, load), name="engine")
        with blocked_signals():
            self._process.start()
        child_connection.close()
        self._channel = Channel(connection)
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

    # --- To the engine's process -------------------------------------------------------------------------------------

    def submit(self, request: Request, deadline_s: float | None, final_only: bool) -> None:
        self._sent[request.request_id] = Sent(request, list(request.prompt), {})
        self._channel.put("submit", request, deadline_s, final_only)

    def cancel(self, request_id: str) -> None:
        if request_id in self._sent:
            self._channel.put("cancel", request_id)

    def ask(self, function: Callable, *arguments) -> Future:
        future: Future = Future()
        with self._lock:
            if self._stopping or not self.running:
                raise self.refusal()
            ask_id = next(self._ask_ids)
            self._answers[ask_id] = future
        self._channel.put("ask", ask_id, function, arguments)
        return future

    def refusal(self) -> Exception:
        if self._stopping:
            return Draining(ENDED)
        return super().refusal() if self.running else EngineDied(self.end_reason)

    def control(self, name: str, *arguments) -> None:
        self._channel.put("control", name, *arguments)

    def stop(self, drain_s: float) -> None:
        """The process is gone afterwards."""
        with self._lock:
            is_first, self._stopping = not self._stopping, True
        if is_first:
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
                getattr(self, f"_on_{name}")(*arguments)
        except Exception:
            log.exception("the engine's process sent what cannot be read")
            self._process.kill()
        self._process.join(5)
        exit_text = in_words(self._process.exitcode)
        with self._lock:
            self.running, self.end_reason = False, f"the engine's process ended ({exit_text})"
            answers, self._answers = self._answers, {}
        error: Exception = Draining(ENDED)
        if not self._stopping:
            error = EngineDied(f"{self.end_reason} before the answer was complete")
            log.error("%s; its requests end", self.end_reason)
        for future in answers.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        if not self._loaded.done():
            self._loaded.set_exception(
                RuntimeError(f"the engine's process ended while it loaded its model ({exit_text})"))
        self.receiver.on_end(error)
        self.failed.set()

    def _on_doing(self, stage: str) -> None:
        self._doing(stage)

    def _on_failed(self, error: BaseException) -> None:
        self._loaded.set_exception(error)

    def _on_loaded(self, pickled: bytes) -> None:
        facts: Facts = pickle.loads(pickled)
        self.engine = LLMEngine(facts.runner, facts.tokenizer)
        self.embedding_size = facts.embedding_size
        self._on_status(facts.status)  # here, not in __init__: the next status may have arrived by then
        self._loaded.set_result(None)

    def _on_status(self, status: Status) -> None:
        self.stats, self.steps, self.faults, self.healthy = status
        if not self.healthy:
            self.failed.set()

    def _on_began(self, request_ids: list[str]) -> None:
        self.receiver.on_began(request_ids)

    def _on_answer(self, ask_id: int, result, error: BaseException | None) -> None:
        future = self._answers.pop(ask_id, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _on_updates(self, updates: list[Update]) -> None:
        for name, output, _, ended in updates:
            sent = self._sent.pop(name) if ended else self._sent[name]
            if output:
                output.prompt, output.prompt_token_ids = sent.request.text, sent.prompt_token_ids
                unpack_logprobs(output, sent.logprobs, self.engine.texts_of(sent.request.params))
        self.receiver.on_updates(updates)


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
    """Block signals in this thread, and permanently in a process started meanwhile; not on Windows."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would unblock them when it starts
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
