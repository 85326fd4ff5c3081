"""`labkit serve`: uvicorn with the app, the model loaded beside it, and what signals do.

It listens at once, so that /health answers while the model is loaded and kernels are compiled; /ready does when it can
serve. The first SIGTERM or Ctrl-C drains: new requests are answered with 503, those that run have drain_s to end, and
the process ends with code 0. The second one ends it at once. An engine's process that fails is started again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from labkit._common.cores import cores
from labkit._common.errors import UserError
from labkit.serve.app import create_app
from labkit.serve.async_engine import AsyncEngine
from labkit.serve.engine_process import SWITCH_S, EngineProcess, Loading
from labkit.serve.errors import SERVER, ApiError
from labkit.serve.gate import is_loopback
from labkit.serve.loading import exempt_from_collections, load_model
from labkit.serve.service import Service
from labkit.serve.settings import Settings

log = logging.getLogger(__name__)

LOG = {"version": 1, "disable_existing_loggers": False,
       "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(message)s"}},
       "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
       "loggers": {"uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
                   "labkit.serve": {"handlers": ["stderr"], "level": "INFO", "propagate": False}}}


class Protocol(H11Protocol):
    """Answers errors that precede a request in OpenAI's format too: invalid HTTP, headers too large to be read, too
    many connections. Closes idle connections."""

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self.settings: Settings = self.config.app.state.service.settings
        self._too_many = len(self.connections) > self.settings.max_connections
        self.loop.call_later(self.settings.body_s, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._too_many:
            super().data_received(data)
        elif not self.transport.is_closing():
            self._refuse(ApiError(503, f"{len(self.connections):,} connections are open, more than may; try again "
                                       "later", type=SERVER, code="too_many_connections",
                                  headers={"retry-after": str(self.settings.retry_after_s)}))

    def send_400_response(self, msg: str) -> None:
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self._refuse(ApiError(431, "the request's headers are too large", code="headers_too_large") if status == 431
                     else ApiError(400, "this is no HTTP request", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        body = json.dumps(error.body).encode()
        headers = error.headers | {"content-type": "application/json", "content-length": len(body),
                                   "connection": "close"}
        lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
                 *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.transport.write("\r\n".join(lines).encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Drains at the first signal."""

    def __init__(self, app, settings: Settings):
        super().__init__(uvicorn.Config(
            app, http=Protocol, ws="none", lifespan="on", log_config=LOG, access_log=False, server_header=False,
            proxy_headers=False, h11_max_incomplete_event_size=settings.max_headers, timeout_graceful_shutdown=5))
        self.service: Service = app.state.service
        self.stopping = threading.Event()
        self.listening: Callable[[], None] = lambda: None  # called when connections are accepted

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        if self.started:
            self.listening()

    async def serve(self, sockets=None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig, frame) -> None:
        if self.stopping.is_set():
            os._exit(128 + sig)
        self.stopping.set()
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self.drain()))

    async def drain(self) -> None:
        self.stopping.set()
        self.service.drain()
        end = time.monotonic() + self.service.settings.drain_s
        while self.service.active and time.monotonic() < end:
            await asyncio.sleep(0.02)
        if self.service.engine:
            await asyncio.to_thread(self.service.engine.stop, 0)  # remaining requests end with an error
        self.should_exit = True


def bound(settings: Settings) -> socket.socket:
    """Raises UserError where it cannot listen there."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        raise UserError(f"cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}. --port 0 "
                        f"takes a port that is free") from None
    return sock


def address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(settings: Settings, *, say: Callable[[str], None], ready: Callable[[str], None],
        doing: Callable[[str], None], load: Loading | None = None) -> None:
    """Serve until a signal ends it. say: prints a line for the user. doing: gets the current loading or compiling step.
    ready: gets the lines to print once it can serve. load: called where the engine will run; None: load_model. Its
    exceptions propagate."""
    sock = bound(settings)
    server = Server(create_app(None, settings), settings)
    service, errors, url = server.service, [], address(sock)

    def report(stage: str) -> None:
        service.doing = stage
        doing(stage)

    connect = partial(EngineProcess, load=load or load_model) if in_process(settings) else load or load_model

    def start() -> AsyncEngine:
        engine = AsyncEngine(connect(settings, doing=report), settings.max_waiting)
        exempt_from_collections()
        service.serve(engine)
        if server.stopping.is_set():
            service.drain()
        return engine

    def loading() -> None:
        began = time.monotonic()
        try:
            engine = start()
        except BaseException as error:
            service.failure = "its model could not be loaded"
            errors.append(error)
            server.should_exit = True
            return
        if not server.stopping.is_set():
            ready(ready_message(service, url))
        if isinstance(engine.transport, EngineProcess):
            keep_alive(engine, start, began, server)

    loader = threading.Thread(target=loading, name="loader", daemon=True)

    def listening() -> None:
        say(f"labkit listens on {url}")
        if not is_loopback(settings.host) and not settings.api_key:
            say("Whoever reaches this address can use it: --api-key asks for a key")
        loader.start()

    server.listening = listening
    previous = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        server.run([sock])
    finally:
        sys.setswitchinterval(previous)
    server.stopping.set()
    if service.engine:
        service.engine.stop(drain_s=0)
        loader.join(5)
    if errors:
        raise errors[0]
    if loader.is_alive() or service.engine and service.engine.running:  # a thread that compiles cannot be asked to stop
        sys.stdout.flush()
        os._exit(0)
    logging.shutdown()


def in_process(settings: Settings) -> bool:
    """Whether the engine gets a process of its own."""
    if settings.engine_process is not None:
        return settings.engine_process
    from labkit import device

    return device.on_gpu() and cores() > 1


def keep_alive(engine: AsyncEngine, start: Callable[[], AsyncEngine], began: float, server: Server) -> None:
    """Restart an engine's process whenever it fails, at the earliest restart_s after its last start, until the server
    ends. began: when it was started, by time.monotonic()."""
    service = server.service
    while True:
        engine.transport.failed.wait()
        reason = engine.trouble
        while not server.stopping.is_set():
            again_at = began + service.settings.restart_s
            service.lose(reason, again_at)
            engine.stop(0)  # one whose steps fail is still there
            log.error("%s", service.condition[1])
            if server.stopping.wait(max(0.0, again_at - time.monotonic())):
                break
            service.lose(reason)
            began = time.monotonic()
            try:
                engine = start()
                log.info("the engine's process was started again, and serves")
                service.metrics.restarts.inc()
                break
            except Exception as error:  # its message may quote this machine: it is only for the log
                log.exception("the engine's process could not be started again")
                reason = f"the engine's process could not be started again ({type(error).__name__})"
        if server.stopping.is_set():
            return


def ready_message(service: Service, url: str) -> str:
    """Where it serves, and how to try it."""
    chat = getattr(service.tokenizer, "template", None) is not None
    path, payload = ("chat/completions",
                     {"messages": [{"role": "user", "content": "What is a hacker?"}]}) if chat else \
        ("completions", {"prompt": "A hacker is"})
    body = json.dumps({"model": service.model_name} | payload)
    key = " -H \"Authorization: Bearer $LABKIT_API_KEY\"" if service.settings.api_key else ""
    return (f"{' and '.join(service.models)} at {url}/v1; a chat, and the engine at work, in a browser at {url}/\n"
            f"  curl {url}/v1/{path}{key} -H 'Content-Type: application/json' \\\n    -d '{body}'")
