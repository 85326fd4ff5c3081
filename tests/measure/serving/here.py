"""Clients of a load in threads of the test's process instead of processes of their own, which take long to start."""

import asyncio
import json
import threading

from labkit.measure.serving.client import Client


class ClientHere:
    """In the place of labkit.measure.serving.drive's _Process."""

    def __init__(self, plan, lines, index):
        self.running, self.ready = True, False
        self._put = lambda found: lines.put((index, json.dumps(found)))
        self._client = Client(json.loads(json.dumps(plan)), self._put)
        self._lines, self._index, self._stop, self._loop = lines, index, None, None
        self._put({"ready": True})

    def write(self, begin):
        self._client.begin = begin
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        async def run():
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await self._client.run(self._stop)

        asyncio.run(run())
        self._lines.put((self._index, None))

    def stop(self):
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)

    def failed(self):
        return False

    def kill(self):
        if self._loop:
            self._thread.join(10)
