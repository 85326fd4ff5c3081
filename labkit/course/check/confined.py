"""Work in a fork of this process, with limits on its CPU time and its memory: whatever it does, it can be ended.

    for value in confined(work, cpu_s=12.0, memory_bytes=1 << 30, wall_s=60.0): ...    # work(send) calls send(value)

A limit that host_limit sets reaches Python code alone; code in C (a comparison of lists that contain themselves, a
power of large integers) goes on. Where a process cannot be forked, FORKS is False.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable, Iterator

from labkit.device.compile_ahead import FORKS

__all__ = ["FORKS", "confined"]
LENGTH = struct.Struct("<I")  # before each message


def confined(work: Callable, *, cpu_s: float, memory_bytes: int, wall_s: float) -> Iterator:
    """Yield what work(send) sends from a fork of this process, which is killed when a limit is reached, the iterator is
    closed, or Ctrl-C comes. memory_bytes: how much it may allocate besides what this process holds now."""
    readable, writable = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the fork uses none of their locks
        child = os.fork()
    if child == 0:
        os.close(readable)
        _child(work, writable, cpu_s, memory_bytes)
    os.close(writable)
    try:
        yield from _messages(readable, time.monotonic() + wall_s)
    finally:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(readable)


def _messages(readable: int, deadline: float) -> Iterator:
    buffer = b""
    while (remaining := deadline - time.monotonic()) > 0 and select.select([readable], [], [], remaining)[0]:
        if not (chunk := os.read(readable, 1 << 16)):
            return
        buffer += chunk
        while len(buffer) >= LENGTH.size and len(buffer) >= (end := LENGTH.size + LENGTH.unpack_from(buffer)[0]):
            yield pickle.loads(buffer[LENGTH.size : end])
            buffer = buffer[end:]


def _child(work: Callable, writable: int, cpu_s: float, memory_bytes: int) -> None:
    """Run in the fork, and end it: without output, and without this process's exit handlers."""
    try:
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, 1), os.dup2(devnull, 2)
        _limit(cpu_s, memory_bytes)

        def send(value) -> None:
            message = pickle.dumps(value)
            os.write(writable, LENGTH.pack(len(message)) + message)

        work(send)
    except BaseException:  # whatever it was, nothing more is sent
        pass
    finally:
        os._exit(0)


def _limit(cpu_s: float, memory_bytes: int) -> None:
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)  # a fork begins at 0
    cpu = int(usage.ru_utime + usage.ru_stime + cpu_s) + 1
    limits = [(resource.RLIMIT_CPU, cpu), (resource.RLIMIT_CORE, 0)]
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as statm:
        pages = [int(part) for part in statm.read().split()]
        limits.append((resource.RLIMIT_DATA, pages[5] * resource.getpagesize() + memory_bytes))
    for kind, limit in limits:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, limit))
