"""A client of an OpenAI-compatible server, in a process of its own: sends the requests of a plan and times the answers.

    python client.py

On standard input comes the plan, a line of JSON. The client answers that it is ready, and waits for a second line, the
moment at which to begin; the input stays open, and its end stops the client. Nothing of labkit is imported: the process
starts at once, and no other thread takes its time.

On standard output there is a line of JSON for each request that ended, for each moment of the run ("beat"), and at the
end how late the event loop was ("lags"). Times are seconds; those of a request are taken from when it was sent.
"""

import asyncio
import contextlib
import json
import math
import os
import sys
import threading
import time

BEAT_S = 0.25
LAG_S = 0.02  # between two samples of the event loop's lag
CONNECT_S = 10.0
KEEP_ALIVE_S = 2.0  # less than servers keep a connection that is idle, so that none is used as it closes
STOPPED = "stopped"  # the kind of error of a request that the benchmark itself cut off
DETAIL = 300  # characters of an error's message that are kept


class Events:
    """Parse the data of server-sent events from the pieces in which they arrive."""

    def __init__(self):
        self._left = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data line of each event that this piece completes; servers of this API send one per event."""
        *lines, self._left = (self._left + piece).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class Answer:
    """A request's answer and its times. gaps: seconds between one piece of text and the next."""

    def __init__(self, index: int, arrival: float | None, sent_at: float):
        self.number, self.at, self.sent = index, arrival, sent_at
        self.first = self.last = None  # when the first and the newest text came
        self.gaps: list[float] = []
        self.usage: dict | None = None
        self.ended = False
        self.error = self.detail = None

    def read(self, data: bytes, now: float) -> int:
        """Process one event; return its number of text pieces. A choice with only a finish reason has none."""
        if data == b"[DONE]":
            self.ended = True
            return 0
        chunk = json.loads(data)
        if "error" in chunk:
            self.fail("error in the stream", chunk["error"])
            return 0
        self.usage = chunk.get("usage") or self.usage
        if not any(choice.get("text") for choice in chunk.get("choices", ())):
            return 0
        if self.last is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now
        return 1

    def fail(self, error: str, detail) -> None:
        if self.error is None:  # the first of them is the cause
            self.error, self.detail = error, message_of(detail)

    def record(self, now: float) -> dict:
        usage = self.usage or {}
        return {"number": self.number, "at": self.at, "sent": self.sent, "took": now - self.sent,
                "first": None if self.first is None else self.first - self.sent,
                "gaps": [round(gap, 6) for gap in self.gaps], "prompt_tokens": usage.get("prompt_tokens"),
                "output_tokens": usage.get("completion_tokens"), "error": self.error, "detail": self.detail}


def message_of(detail) -> str:
    """The message in an error of OpenAI's shape, whole or as the object itself; else what there is, cut off."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        content = json.loads(detail) if isinstance(detail, str) else detail
        content = content.get("error", content)
        detail = content.get("message", detail)
    return str(detail)[:DETAIL]


class Client:
    """plan: url, model, key, body (further fields of each request), timeout_s, concurrency (None: no limit) and
    requests: (number, prompt, output, seconds after the run's begin or None). write: is given each line."""

    def __init__(self, plan: dict, write):
        self.plan, self.write = plan, write
        self.begin = math.inf  # of the run, on the machine's monotonic clock
        self.in_flight = self.pieces = 0
        self._bodies = [(index, arrival, self._body(prompt, output)) for index, prompt, output, arrival in
                        plan["requests"]]

    def now(self) -> float:
        """Seconds after the run's begin."""
        return time.monotonic() - self.begin

    async def run(self, stop: asyncio.Event) -> None:
        import httpx

        plan = self.plan
        headers = {"content-type": "application/json", "accept": "text/event-stream",
                   "accept-encoding": "identity"}
        if plan["key"]:
            headers["authorization"] = f"Bearer {plan['key']}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_S)
        timeout = httpx.Timeout(plan["timeout_s"], connect=min(CONNECT_S, plan["timeout_s"]))
        local = httpx.URL(plan["url"]).host in ("localhost", "127.0.0.1", "::1")
        async with httpx.AsyncClient(limits=limits, timeout=timeout, headers=headers, trust_env=not local) as http:
            watch = asyncio.create_task(self._watch())
            work = asyncio.create_task(self._all(http))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            for task in (work, stopped, watch):
                task.cancel()
            for task in await asyncio.gather(work, watch, stopped, return_exceptions=True):
                if isinstance(task, Exception):
                    raise task

    async def _all(self, http) -> None:
        await asyncio.sleep(max(0.0, -self.now()))
        if all(arrival is None for _, arrival, _ in self._bodies):
            await self._closed_loop(http, iter(self._bodies))
        else:
            await self._open_loop(http, self._bodies)

    def _body(self, prompt: list[int], output: int) -> bytes:
        return json.dumps({"model": self.plan["model"], "prompt": prompt, "max_tokens": output, "temperature": 0,
                           "stream": True, "stream_options": {"include_usage": True}, **self.plan["body"]}).encode()

    async def _closed_loop(self, http, bodies) -> None:
        async def one_after_the_other():
            for index, arrival, body in bodies:
                await self._ask(http, index, arrival, body)

        count = self.plan["concurrency"] or len(self._bodies)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(count, len(self._bodies))):
                group.create_task(one_after_the_other())

    async def _open_loop(self, http, bodies) -> None:
        limit = self.plan["concurrency"]
        free = asyncio.Semaphore(limit) if limit else contextlib.nullcontext()

        async def when_free(index, arrival, body):
            async with free:
                await self._ask(http, index, arrival, body)

        async with asyncio.TaskGroup() as group:
            for index, arrival, body in bodies:
                await asyncio.sleep(max(0.0, arrival - self.now()))
                group.create_task(when_free(index, arrival, body))

    async def _ask(self, http, index: int, arrival: float | None, body: bytes) -> None:
        import httpx

        answer = Answer(index, arrival, self.now())
        self.in_flight += 1
        try:
            async with asyncio.timeout(self.plan["timeout_s"]):
                await self._stream(http, body, answer)
        except (TimeoutError, httpx.TimeoutException):
            answer.fail("timeout", f"no answer within {self.plan['timeout_s']:g} s")
        except httpx.ConnectError as error:
            answer.fail("no connection", error)
        except httpx.HTTPError as error:
            answer.fail("connection lost", error or type(error).__name__)
        except ValueError as error:
            answer.fail("not this API", error)
        except asyncio.CancelledError:
            answer.fail(STOPPED, "")
            raise
        finally:
            self.in_flight -= 1
            self.write(answer.record(self.now()))

    async def _stream(self, http, body: bytes, answer: Answer) -> None:
        async with http.stream("POST", f"{self.plan['url']}/v1/completions", content=body) as response:
            if response.status_code != 200:
                answer.fail(f"HTTP {response.status_code}", (await response.aread()).decode(errors="replace"))
                return
            events = Events()
            async for piece in response.aiter_bytes():
                for data in events.feed(piece):
                    self.pieces += answer.read(data, self.now())
        if answer.first is None:
            answer.fail("no text", "the answer ended without any text")
        elif not answer.ended:
            answer.fail("cut short", "the stream ended without [DONE]")

    async def _watch(self) -> None:
        """Beats, and how much later than asked this task is woken."""
        lags, due = [], self.now() + BEAT_S
        try:
            while True:
                deadline = self.now() + LAG_S
                await asyncio.sleep(LAG_S)
                now = self.now()
                lags.append(round(max(0.0, now - deadline), 6))
                if now >= due:
                    self.write({"beat": now, "in_flight": self.in_flight, "pieces": self.pieces})
                    due = now + BEAT_S
        finally:
            self.write({"lags": lags})


def main() -> None:
    plan = json.loads(sys.stdin.buffer.readline())
    out = sys.stdout

    def write(line: dict) -> None:
        with contextlib.suppress(BrokenPipeError):
            out.write(json.dumps(line) + "\n")
            out.flush()

    async def run():
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        client.begin = begin

        def wait_for_the_end():
            os.read(sys.stdin.fileno(), 1)  # not by the file object, whose lock a waiting thread would hold at the exit
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(stop.set)

        threading.Thread(target=wait_for_the_end, daemon=True).start()
        await client.run(stop)

    client = Client(plan, write)

    write({"ready": True})
    line = sys.stdin.buffer.readline()
    if line:
        begin = json.loads(line)
        asyncio.run(run())


if __name__ == "__main__":
    main()
