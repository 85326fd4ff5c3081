"""Outputs to a client as they come, as server-sent events; and the client that goes away before its answer is there."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from labkit.engine.outputs import CompletionOutput, RequestOutput
from labkit.serve.async_engine import Stream
from labkit.serve.errors import ApiError, of_exception
from labkit.serve.protocol import Shape, ended_by_token

log = logging.getLogger(__name__)
GONE = 499  # the status of an answer that no client receives, in logs and metrics; nginx's number


class ClientGone(Exception):
    """The client closed its connection before the answer was there."""


async def gone(receive) -> None:
    """Returns when the client has closed its connection. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Awaitable):
    """What `work` returns; it is cancelled when the client goes away. Raises ClientGone."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def merged(streams: list[Stream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """(number of the stream, output) of all of them as they come."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    reading = {asyncio.ensure_future(anext(stream, None)): index for index, stream in enumerate(streams)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index, output = reading.pop(task), task.result()
                if output is not None:
                    yield index, output
                    reading[asyncio.ensure_future(anext(streams[index], None))] = index
    finally:
        for task in reading:
            task.cancel()


class Choice:
    """How much of one output the client has."""

    def __init__(self, index: int, shape: Shape):
        self._index, self._shape = index, shape
        self._characters = self._tokens = self._offset = 0
        self._begun = self._ended = False

    def deltas(self, output: CompletionOutput) -> list[dict]:
        """Return the new chunks. A text only grows, so nothing is lost if outputs were skipped."""
        if self._ended:
            return []
        chunks = [] if self._begun else self._shape.opening(self._index)
        text, logprobs = output.text[self._characters :], None
        if output.logprobs is not None and len(output.token_ids) - ended_by_token(output) > self._tokens:
            logprobs = self._shape.logprobs(output, self._tokens, self._offset)
            self._offset += sum(map(len, logprobs.get("tokens", ())))  # a chat's have no offsets
            self._tokens = len(output.token_ids)
        if text or logprobs or output.finish_reason:
            chunks.append(self._shape.delta(self._index, text, logprobs, output.finish_reason))
        self._begun, self._ended = True, output.finish_reason is not None
        self._characters += len(text)
        return chunks


def event(value: dict) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """events: byte strings, each a whole number of events. The first must be there before this answer begins: what goes
    wrong before it still has a status. What goes wrong later is an event, as OpenAI's clients expect it.

    write_s: a client that takes nothing for so long is given up; others never wait for it.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, events: AsyncIterator[bytes], write_s: float, headers: dict[str, str]):
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"} | headers)
        del self.headers["content-length"]
        self._first, self._events, self._write_s = first, events, write_s

    async def __call__(self, scope, receive, send) -> None:
        writing, leaving = asyncio.ensure_future(self._write(send)), asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done() or isinstance(writing.exception(), TimeoutError):
                raise ClientGone
            writing.result()
        finally:
            for task in (writing, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
            await self._events.aclose()

    async def _write(self, send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            async with asyncio.timeout(self._write_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await write(self._first)
        try:
            async for body in self._events:
                await write(body)
        except TimeoutError:
            raise
        except Exception as error:
            api_error = of_exception(error)
            log_fault(error, api_error)
            await write(event(api_error.body))
        await write(b"", more=False)


def log_fault(error: Exception, answered: ApiError) -> None:
    """Log a fault of the server with its location. The message may quote a request, so it is left out. Faults of steps
    are logged where they happen."""
    if answered.code == "internal_error":
        frames, traceback = [], error.__traceback__
        while traceback:
            frames.append(f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}")
            traceback = traceback.tb_next
        log.error("%s at %s", type(error).__name__, " <- ".join(reversed(frames)))
