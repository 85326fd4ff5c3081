"""A server of OpenAI's completions whose latencies are known: it notes when it wrote what, and fails when asked to.

What happens to a request is in its prompt's first token: an index into `scripts`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Script:
    """first_s: until the first text; gap_s: between texts; at_a_time: tokens in each. fails: None, a status,
    or "cut", "error", "silent", "html", "empty", "hang". usage: the server counts tokens."""

    first_s: float = 0.0
    gap_s: float = 0.0
    at_a_time: int = 1
    fails: int | str | None = None
    usage: bool = True


@dataclass
class Written:
    """When a request came, and when each of its texts was written, on the monotonic clock; its body."""

    came: float
    body: dict
    texts: list[float] = field(default_factory=list)
    gone: bool = False  # the client went away before the end


class FakeServer:
    """with FakeServer(scripts) as server: server.url, server.written, server.most (requests at a time)"""

    def __init__(self, *scripts: Script, metrics: str = "", refuses: str | None = None):
        self.scripts, self.metrics, self.refuses = scripts or (Script(),), metrics, refuses
        self.written: list[Written] = []
        self.running = self.most = 0

    def __enter__(self) -> FakeServer:
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *_) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self, started) -> None:
        async def serve():
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            started.set()
            await self._stop.wait()
            server.close()

        asyncio.run(serve())

    async def _connection(self, reader, writer) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
                if method == "POST":
                    await self._complete(json.loads(body), reader, writer)
                else:
                    self._get(path, writer)
                await writer.drain()
                if b"connection: close" in head.lower():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _get(self, path: str, writer) -> None:
        if path == "/v1/models":
            _respond(writer, 200, json.dumps({"object": "list", "data": [{"id": "fake", "object": "model"}]}))
        elif path == "/metrics" and self.metrics:
            _respond(writer, 200, self.metrics, "text/plain")
        else:
            _respond(writer, 404, "{}")

    async def _complete(self, body: dict, reader, writer) -> None:
        noted = Written(time.monotonic(), body)
        self.written.append(noted)
        if self.refuses and self.refuses in body:
            _respond(writer, 400, json.dumps({"error": {"message": f"{self.refuses} is not known"}}))
            return
        script = self.scripts[body["prompt"][0] % len(self.scripts)]
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self._answer(script, body, noted, reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            noted.gone = True
            raise
        finally:
            self.running -= 1

    async def _answer(self, script: Script, body: dict, noted: Written, reader, writer) -> None:
        if isinstance(script.fails, int):
            _respond(writer, script.fails, json.dumps({"error": {"message": f"this is {script.fails}"}}))
            return
        if script.fails == "html":
            _respond(writer, 200, "data: <html>\n\n", "text/html")
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if script.fails == "hang":
            await reader.read(1)  # nothing comes but the end of the connection
            raise ConnectionResetError
        await asyncio.sleep(script.first_s)
        left = body["max_tokens"]
        while left and script.fails != "empty":
            count = min(left, script.at_a_time)
            left -= count
            noted.texts.append(time.monotonic())
            await _event(writer, {"choices": [{"index": 0, "text": " w" * count, "finish_reason": None}]})
            if script.fails == "cut" and len(noted.texts) == 2:
                writer.transport.abort()
                raise ConnectionResetError
            if script.fails == "error" and len(noted.texts) == 2:
                await _event(writer, {"error": {"message": "a step failed", "code": 500}})
                left = 0
            if left:
                await asyncio.sleep(script.gap_s)
        await _event(writer, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        if script.usage and body.get("stream_options", {}).get("include_usage"):
            await _event(writer, {"choices": [], "usage": {"prompt_tokens": len(body["prompt"]),
                                                           "completion_tokens": body["max_tokens"]}})
        if script.fails != "silent":
            _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


async def _event(writer, found: dict) -> None:
    _chunk(writer, f"data: {json.dumps(found)}\n\n".encode())
    await writer.drain()
    if writer.transport.is_closing():
        raise ConnectionResetError


def _chunk(writer, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _respond(writer, status: int, text: str, kind: str = "application/json") -> None:
    data = text.encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
