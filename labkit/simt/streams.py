"""Streams and events: numba.cuda's names. Work is done by the time a call returns, so streams keep order by doing
nothing, and an event is the time at which it was recorded.

Units   elapsed times in milliseconds
"""

import contextlib
import itertools
import time
import warnings

__all__ = [
    "Event", "Stream", "default_stream", "event", "event_elapsed_time", "external_stream", "legacy_default_stream",
    "per_thread_default_stream", "profile_start", "profile_stop", "profiling", "stream", "synchronize",
]  # fmt: skip


class Stream:
    """Work in order. On the CPU device each call ends before it returns, so there is never anything to wait for."""

    def __init__(self, handle: int, name: str = "", external=False):
        self.handle, self.external = handle, external  # external: made by another library
        self._name = name or f"CUDA stream {handle}"

    def __int__(self):
        return self.handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """(version of the protocol, handle), for libraries that take a stream of another one."""
        return 0, self.handle

    def __repr__(self):
        return f"<{self._name} of the CPU device>"

    def synchronize(self) -> None:
        pass

    @contextlib.contextmanager
    def auto_synchronize(self):
        yield self
        self.synchronize()

    def add_callback(self, callback, arg=None) -> None:
        """Call `callback(stream, status, arg)` when the work so far is done, which it is; its errors are warnings."""
        try:
            callback(self, 0, arg)
        except Exception as error:
            warnings.warn(f"Exception in stream callback: {error}", stacklevel=2)

    def async_done(self):
        """A future of the running event loop that resolves to this stream when the work so far is done."""
        import asyncio

        future = asyncio.get_running_loop().create_future()
        future.set_result(self)
        return future


_DEFAULT_STREAM = Stream(0, "Default CUDA stream")
_LEGACY_STREAM = Stream(1, "Legacy default CUDA stream")
_PER_THREAD_STREAM = Stream(2, "Per-thread default CUDA stream")
_handles = itertools.count(3)


def stream() -> Stream:
    return Stream(next(_handles))


def default_stream() -> Stream:
    return _DEFAULT_STREAM


def legacy_default_stream() -> Stream:
    return _LEGACY_STREAM


def per_thread_default_stream() -> Stream:
    return _PER_THREAD_STREAM


def external_stream(ptr: int) -> Stream:
    """The stream with this handle, made by another library; there is nothing to wait for in it either."""
    if not isinstance(ptr, int):
        raise TypeError(f"external_stream: ptr must be the handle of a stream, an int, not {type(ptr).__name__}")
    return Stream(ptr, f"External CUDA stream {ptr}", external=True)


class Event:
    """A point in a stream; two of them time what lies between."""

    def __init__(self, timing=True):
        self._timing = timing
        self._time_ns = None

    def record(self, stream=0) -> None:
        self._time_ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        pass

    def wait(self, stream=0) -> None:
        pass

    def query(self) -> bool:
        """Whether the work before the event is done."""
        return True

    def elapsed_time(self, evtend: "Event") -> float:
        return event_elapsed_time(self, evtend)


def event(timing=True) -> Event:
    return Event(timing)


def event_elapsed_time(evtstart: Event, evtend: Event) -> float:
    """Milliseconds between two recorded events."""
    for which, event in (("start", evtstart), ("end", evtend)):
        if not event._timing:
            raise RuntimeError(f"event_elapsed_time: the {which} event was made with timing=False, so it kept no time")
        if event._time_ns is None:
            raise RuntimeError(f"event_elapsed_time: the {which} event was never recorded: call its record() first")
    return (evtend._time_ns - evtstart._time_ns) / 1e6


def synchronize() -> None:
    """Wait until all work is done, which it is as soon as a call returns."""


def profile_start() -> None:
    pass


def profile_stop() -> None:
    pass


@contextlib.contextmanager
def profiling():
    yield
