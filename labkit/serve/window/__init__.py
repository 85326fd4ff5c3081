"""The window: a page with a chat, and beside it the engine live. create_app takes its router in.

`/` is the page: one document that asks no other server for anything. `/window/events` are server-sent events of the
engine's state, ten times a second at most, and only while someone watches: the first one is all of it, those that
follow are what changed. `/window/control` pauses, steps, and slows down. No text of a request is in any of it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from labkit._common.files import read_text
from labkit.serve.async_engine import AsyncEngine, Draining
from labkit.serve.errors import ApiError
from labkit.serve.gate import is_loopback
from labkit.serve.service import Service
from labkit.serve.window.kernels import NOTE
from labkit.serve.window.look import Looked, look, look_no_more
from labkit.serve.window.state import Picture

log = logging.getLogger(__name__)

EVERY_S = 0.1  # between two events
SHARE = 0.02  # of the engine's time that the window may take, at most
UNREAD = 3  # events that a slow reader may be behind; after that it is sent a snapshot
LONG_S = 0.7  # a step that takes longer, to compile kernels for example, is shown as such
KEEPALIVE_S = 10.0  # a comment line is sent after so long without an event
MAX_WATCHERS = 32
STEP_S = 60.0  # how long a single step is waited for
SLOWEST_S = 10.0
SCRIPTS = ("live.js", "pages.js", "charts.js", "chat.js")


@functools.cache
def page() -> tuple[str, str]:
    """The document, and the policy under which a browser shows it: it may run its own script and ask its own server,
    nothing else."""
    folder = Path(__file__).parent
    script = '"use strict";\n(() => {\n' + "\n".join(read_text(folder / name) for name in SCRIPTS) + "})();\n"
    text = read_text(folder / "page.html").replace("/* page.css */", read_text(folder / "page.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
              f"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
    return text.replace("/* page.js */", script), policy


class Wanted(BaseModel):
    """delay_s: seconds between two steps, with the action "delay"."""

    model_config = ConfigDict(extra="forbid")
    action: Literal["pause", "resume", "step", "delay"]
    delay_s: float | None = Field(default=None, ge=0, le=SLOWEST_S)


class Watcher:
    """A reader of the events."""

    def __init__(self):
        self.unread: deque[bytes] = deque()
        self.needs_snapshot = True
        self.wake = asyncio.Event()


class Window:
    """model: its name. chat: whether it has a chat template; None: unknown. control: whether the page may pause and
    step the engine, which then all requests wait for."""

    def __init__(self, engine: AsyncEngine, *, model: str = "", chat: bool | None = None, control: bool = False):
        self.engine, self.control = engine, control
        self._facts = {"model": model, "chat": chat, "control": control}
        self._watchers: set[Watcher] = set()
        self._pump: asyncio.Task | None = None
        self.looked = 0  # how often the engine was looked at
        self.look_s = 0.0  # how long that took it, the last time

    # --- Who watches -------------------------------------------------------------------------------------------------

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    async def events(self) -> AsyncIterator[bytes]:
        """Until the reader goes, or the engine takes no more requests."""
        watcher = Watcher()
        self._watchers.add(watcher)
        if self._pump is None:
            self._pump = asyncio.create_task(self._poll())
        try:
            yield b": the engine's state\n\n"
            while self._pump and not self._pump.done():
                try:
                    await asyncio.wait_for(watcher.wake.wait(), KEEPALIVE_S)
                except TimeoutError:
                    yield b": still there\n\n"
                    continue
                watcher.wake.clear()
                while watcher.unread:
                    yield watcher.unread.popleft()
        finally:
            self._watchers.discard(watcher)

    async def _poll(self) -> None:
        """While there are watchers."""
        picture, last_state, kernel_shares, reset = Picture(), None, None, True
        try:
            while self._watchers and not self.engine.draining:
                began = time.monotonic()
                result, reset = await self._look(reset), False
                event = picture.apply(result.change) | result.steps | self._facts | self._controls()
                keys = keys_of(event)
                if result.launched and keys:  # without keys no step runs, and the last one stays shown
                    kernel_shares = {"note": NOTE, "rows": result.launched.shares(keys)}
                event["kernels"] = kernel_shares
                state = {name: value for name, value in event.items() if name not in ("steps", "sums")}
                if state != last_state or event["steps"] or any(each.needs_snapshot for each in self._watchers):
                    self._publish(event, picture)
                    last_state = state
                pause = max(EVERY_S, self.look_s / SHARE)
                await asyncio.sleep(max(0.0, pause - (time.monotonic() - began)))
        except Draining:
            pass
        except Exception:
            log.exception("the window cannot look at the engine any more")
        finally:
            self._pump = None
            with contextlib.suppress(Draining):
                self.engine.ask(look_no_more)
            for watcher in self._watchers:
                watcher.wake.set()

    async def _look(self, reset: bool) -> Looked:
        """As long as a step keeps the engine, those who watch hear of it."""
        began = time.monotonic()
        future = asyncio.wrap_future(self.engine.ask(look, reset))
        while not (await asyncio.wait({future}, timeout=LONG_S))[0]:
            self._send(_event("long", self._facts | self._controls() | {"seconds": round(time.monotonic() - began, 1)}))
        self.look_s = future.result().seconds
        self.looked += 1
        return future.result()

    def _send(self, line: bytes) -> None:
        """Send an event that does not depend on earlier ones."""
        for watcher in self._watchers:
            if len(watcher.unread) < UNREAD:
                watcher.unread.append(line)
                watcher.wake.set()

    def _publish(self, event: dict, picture: Picture) -> None:
        change = snapshot = None
        for watcher in self._watchers:
            if len(watcher.unread) >= UNREAD:
                watcher.unread.clear()
                watcher.needs_snapshot = True
            if watcher.needs_snapshot:
                snapshot = snapshot or _event("whole", event | picture.whole())
            else:
                change = change or _event("change", event)
            watcher.unread.append(snapshot if watcher.needs_snapshot else change)
            watcher.needs_snapshot = False
            watcher.wake.set()

    def _controls(self) -> dict:
        return {"paused": self.engine.paused, "delay_s": self.engine.delay_s}

    # --- Commands of the page ----------------------------------------------------------------------------------------

    async def do(self, command: Wanted) -> dict:
        """Raise ApiError if the action is not possible now."""
        engine = self.engine
        if command.action == "pause":
            engine.pause()
        elif command.action == "resume":
            engine.resume()
        elif command.action == "delay":
            if command.delay_s is None:
                raise ApiError(400, "delay_s is missing; the action delay needs it, in seconds", param="delay_s")
            engine.delay_s = command.delay_s
        else:
            if not engine.paused:
                raise ApiError(409, "the engine is not paused; pause it before it steps once", code="not_paused")
            if not engine.unfinished:
                raise ApiError(409, "no request has anything left to compute", code="idle")
            previous, end = engine.steps, time.monotonic() + STEP_S
            engine.step_once()
            while engine.steps == previous and engine.unfinished and engine.alive and time.monotonic() < end:
                await asyncio.sleep(0.005)
        return self._controls() | {"steps": engine.steps}


# --- Routes ----------------------------------------------------------------------------------------------------------

router = APIRouter(include_in_schema=False)


def window_of(request: Request) -> Window:
    """The app's, made when it is first asked for. Raises ApiError or Draining where there is no engine to look at."""
    service: Service = request.app.state.service
    engine, settings = service.ready(), service.settings
    if engine.draining:
        raise Draining("the server is about to end")
    window = getattr(request.app.state, "window", None)
    if window is None or window.engine is not engine:
        window = request.app.state.window = Window(
            engine, model=service.model_name, chat=getattr(service.tokenizer, "template", None) is not None,
            control=settings.window_control or is_loopback(settings.host))
    return window


@router.get("/")
async def show() -> HTMLResponse:
    text, policy = page()
    return HTMLResponse(text, headers={
        "Content-Security-Policy": policy, "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff"})


@router.get("/window/events")
async def events(request: Request) -> StreamingResponse:
    window = window_of(request)
    if window.watchers >= MAX_WATCHERS:
        raise ApiError(429, f"{window.watchers} watch already, as many as may", code="too_many_watchers",
                       headers={"retry-after": "5"})
    return StreamingResponse(window.events(), media_type="text/event-stream", headers={
        "Cache-Control": "no-store", "X-Accel-Buffering": "no"})


@router.post("/window/control")
async def control(request: Request, wanted: Wanted) -> dict:
    window = window_of(request)
    if not window.control:
        raise ApiError(403, "this server's window shows the engine and does not control it; --window-control allows it",
                       code="no_control")
    return await window.do(wanted)


def keys_of(event: dict) -> int:
    """Tokens in the contexts of the sequences that are in the step."""
    seats = {seat for seat, _, _ in (event["step"] or {"chunks": ()})["chunks"]}
    return sum(seat["computed"] for seat in event["seats"] if seat["seat"] in seats)


def _event(name: str, data: dict) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
