"""Servers for tests: the app on a free port, in a thread, with the fake model or a real one behind it."""

import contextlib
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import uvicorn

from labkit._common.errors import UserError
from labkit.engine import LLMEngine
from labkit.serve.app import create_app
from labkit.serve.async_engine import AsyncEngine
from labkit.serve.engine_thread import EngineThread
from labkit.serve.server import Server, address, bound
from labkit.serve.settings import Settings
from tests.engine.fake_model import END, FakeRunner
from tests.engine.test_llm import Letters

PAGES = 60


class Template:
    """The contents one after the other, and a k where the answer begins."""

    path = "/a/path/of/this/machine/template.jinja"

    def render(self, messages):
        if any(message["role"] not in ("system", "user", "assistant") for message in messages):
            raise UserError(f"{self.path}: the chat template fails: roles must be known")
        return "".join(message["content"] for message in messages) + "k"


class Chatting(Letters):
    template = Template()

    def __len__(self):
        return 11

    def encode(self, text, marks=True):
        try:
            return super().encode(text)
        except ValueError:
            raise UserError("the prompt has letters that are not from a to k") from None


class Encoder:
    """An embedding is (length, 1, 0, 0)."""

    tokenizer = SimpleNamespace(encode=lambda texts: [[0] * len(text) for text in texts])

    def get_sentence_embedding_dimension(self):
        return 4

    def encode(self, texts):
        return np.array([[len(text), 1, 0, 0] for text in texts], np.float32)


def fake_engine(runner=None, tokenizer=None, **options):
    seats = options.setdefault("max_num_seqs", 4)
    return LLMEngine(runner or FakeRunner(PAGES, 4, seats, 64), tokenizer or Chatting(),
                     **{"max_num_batched_tokens": 16} | options)


@contextlib.contextmanager
def served(engine, settings=None, encoder=None):
    """url, thread, service, app. At the end no request is left, and no page is held."""
    settings = replace(settings or Settings(), port=0)
    transport = EngineThread(engine, encoder)
    transport.start()
    thread = AsyncEngine(transport, settings.max_waiting)
    sock = bound(settings)
    app = create_app(thread, settings)
    server = Server(app, settings)
    running = threading.Thread(target=server.run, args=([sock],))
    running.start()
    try:
        until(lambda: server.started)
        yield SimpleNamespace(url=address(sock), thread=thread, service=app.state.service, app=app)
        thread.resume()
        until(lambda: thread.unfinished == 0 and app.state.service.active == 0)
    finally:
        server.should_exit = True
        running.join(20)
        thread.stop(5)
    assert not running.is_alive()
    assert thread.stats.free_pages == thread.stats.pages


@contextlib.contextmanager
def listening(app):
    """The address of a server of uvicorn's own, with any app."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    running = threading.Thread(target=server.run)
    running.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        running.join(10)
    assert not running.is_alive(), "the server does not end"


def until(holds, seconds=10.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to this"
        time.sleep(0.005)


__all__ = ["END", "PAGES", "Chatting", "Encoder", "fake_engine", "listening", "served", "until"]
