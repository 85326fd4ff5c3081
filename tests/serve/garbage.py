"""Invalid input to a server, over raw sockets, and the required answer: a client error in OpenAI's format, or nothing
at all if it is not a request.

Each function of GARBAGE sends one input and returns None, or a sentence that names the fault of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import urllib.parse
from typing import NamedTuple

import numpy as np

from labkit.measure.serving.client import Events

COMPLETIONS = "/v1/completions"
HUGE = 24_000_000  # bytes of a body
SLOW_S, SLOW_BYTES = 0.02, 64  # a slow reader takes so many bytes each time, so far apart


class Peer(NamedTuple):
    """A server as sockets see it."""

    host: str
    port: int
    model: str

    @classmethod
    def of(cls, url: str, model: str) -> Peer:
        parts = urllib.parse.urlsplit(url)
        return cls(parts.hostname, parts.port or 80, model)


class Answered(NamedTuple):
    status: int | None  # None: the connection was closed without an answer
    body: bytes


def head(peer: Peer, path: str, length: int, kind: str = "application/json") -> bytes:
    return (f"POST {path} HTTP/1.1\r\nhost: {peer.host}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n"
            f"connection: close\r\n\r\n").encode()


@contextlib.asynccontextmanager
async def connection(peer: Peer | None = None, **options):
    """Options are asyncio.open_connection's."""
    reader, writer = await asyncio.open_connection(*(peer[:2] if peer else ()), **options)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def exchange(peer: Peer, data: bytes) -> Answered:
    """Sends bytes and reads to the end of the connection. A server may close it before it has read all of a body that
    is too large."""
    async with connection(peer) as (reader, writer):
        writer.write(data)
        with contextlib.suppress(OSError):
            await writer.drain()
        received = b""
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                received += piece
    top, _, body = received.partition(b"\r\n\r\n")
    words = top.split(b" ", 2)
    return Answered(int(words[1]) if len(words) > 1 and words[1].isdigit() else None, body)


async def post(peer: Peer, body: bytes, path: str = COMPLETIONS) -> Answered:
    return await exchange(peer, head(peer, path, len(body)) + body)


def refused(answer: Answered, statuses=range(400, 500)) -> str | None:
    """None for an error that is the client's, in OpenAI's shape."""
    if answer.status not in statuses:
        return f"it answers {answer.status}: {answer.body[:200]!r}"
    try:
        error = json.loads(answer.body)["error"]
        valid = isinstance(error["message"], str) and {"type", "param", "code"} <= error.keys()
    except (ValueError, LookupError, TypeError):
        valid = False
    return None if valid else f"its {answer.status} is not in OpenAI's shape: {answer.body[:200]!r}"


def usual(peer: Peer, **fields) -> bytes:
    return json.dumps({"model": peer.model, "prompt": "A hacker is", "max_tokens": 4, **fields}).encode()


async def broken_json(peer: Peer, rng) -> str | None:
    request = usual(peer)
    return refused(await post(peer, request[: int(rng.integers(1, len(request)))]))


async def no_text_at_all(peer: Peer, rng) -> str | None:
    return refused(await post(peer, rng.integers(0, 256, 200, np.uint8).tobytes()))


async def wrong_types(peer: Peer, rng) -> str | None:
    wrong = [{"prompt": {"a": 1}}, {"max_tokens": "many"}, {"temperature": []}, {"stop": 5}, {"stream": "perhaps"},
             {"n": None, "prompt": [[]]}, {"prompt": [1.5, 2.5]}, {"logprobs": "all"}, {"seed": {}}]
    return refused(await post(peer, usual(peer, **wrong[int(rng.integers(len(wrong)))])))


async def out_of_range(peer: Peer, rng) -> str | None:
    wrong = [{"temperature": -1}, {"top_p": 2.0}, {"max_tokens": -5}, {"n": 0}, {"n": 100_000}, {"prompt": [-1]},
             {"prompt": [10**9]}, {"max_tokens": 10**9}, {"prompt": "word " * 20_000}, {"frequency_penalty": 1e9}]
    return refused(await post(peer, usual(peer, **wrong[int(rng.integers(len(wrong)))])))


async def unknown_fields(peer: Peer, rng) -> str | None:
    return refused(await post(peer, usual(peer, no_such_field=int(rng.integers(9)))))


async def unknown_model(peer: Peer, rng) -> str | None:
    return refused(await post(peer, usual(peer, model="no-such-model")), (404, 400))


async def unknown_path(peer: Peer, rng) -> str | None:
    return refused(await post(peer, usual(peer), "/v1/no/such/path"))


async def nested_deeply(peer: Peer, rng) -> str | None:
    return refused(await post(peer, b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"))


async def huge_body(peer: Peer, rng) -> str | None:
    answer = await post(peer, b'{"prompt": "' + b"a" * HUGE + b'"}')
    return None if answer.status is None else refused(answer, (400, 413))


async def huge_headers(peer: Peer, rng) -> str | None:
    answer = await exchange(peer, b"GET /v1/models HTTP/1.1\r\nhost: a\r\nx-long: " + b"a" * 200_000 + b"\r\n\r\n")
    return None if answer.status in (None, 400, 413, 431) else f"it answers {answer.status} to huge headers"


async def no_http(peer: Peer, rng) -> str | None:
    answer = await exchange(peer, rng.integers(0, 256, 300, np.uint8).tobytes() + b"\r\n\r\n")
    return None if answer.status in (None, 400) else f"it answers {answer.status} to what is no request"


async def half_sent_headers(peer: Peer, rng) -> str | None:
    """They stop in the middle; after a while the connection is closed."""
    async with connection(peer) as (_, writer):
        writer.write(head(peer, COMPLETIONS, 100)[: int(rng.integers(5, 60))])
        await writer.drain()
        await asyncio.sleep(float(rng.uniform(0.5, 3.0)))
    return None


async def half_sent_body(peer: Peer, rng) -> str | None:
    async with connection(peer) as (_, writer):
        writer.write(head(peer, COMPLETIONS, 10_000) + b'{"prompt": "never')
        await writer.drain()
        await asyncio.sleep(float(rng.uniform(0.5, 3.0)))
    return None


GARBAGE = (broken_json, no_text_at_all, wrong_types, out_of_range, unknown_fields, unknown_model, unknown_path,
           nested_deeply, huge_body, huge_headers, no_http, half_sent_headers, half_sent_body)


async def read_slowly(peer: Peer, path: str, body: dict) -> list[dict]:
    """The chunks of a streamed answer, read a few bytes at a time through a small buffer. Raises RuntimeError where it
    is no whole stream."""
    data = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    bare = socket.socket()
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    bare.setblocking(False)
    await asyncio.get_running_loop().sock_connect(bare, (peer.host, peer.port))
    async with connection(sock=bare, limit=SLOW_BYTES) as (reader, writer):
        writer.write(head(peer, path, len(data)) + data)
        await writer.drain()
        received = b""
        while piece := await reader.read(SLOW_BYTES):
            received += piece
            await asyncio.sleep(SLOW_S)
    top, _, chunk = received.partition(b"\r\n\r\n")
    if not top.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"it answers {top[:60]!r}, {chunk[:200]!r}")
    chunked = b"transfer-encoding: chunked" in top.lower()
    events = Events().feed(unchunked(chunk) if chunked else chunk)
    if not events or events[-1] != b"[DONE]":
        raise RuntimeError("the stream ended without [DONE]")
    return [json.loads(event) for event in events[:-1]]


def unchunked(data: bytes) -> bytes:
    """Return the body of a chunked answer."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if length == 0:
            break
        body, data = body + data[:length], data[length + 2 :]
    return body
