"""The CPU device's kernels compiled side by side, by forks of this process, which have them in their memory.

    prepare(launches.needed(work))         # as labkit.device.compile_ahead has it

A fork compiles one kernel after the other and leaves it in the cache on disk, from where this process loads it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator

from labkit._common.cores import cores

MIN_JOBS = 3  # for fewer, no worker is started: starting one takes as long as compiling two
MAX_WORKERS = 16
FORKS = hasattr(os, "fork") and sys.platform != "darwin"  # macOS's own libraries do not survive a fork
TICKET = 2  # bytes: the index of a kernel


def enough_workers(jobs: int) -> int:
    return min(MAX_WORKERS, cores()) if jobs >= MIN_JOBS and cores() > 1 else 0


def prepare(needed: Iterable[tuple], *, workers: int | None = None,
            progress: Callable[[int, int], None] | None = None) -> int:
    """Compile the needed kernels that are not cached on disk, then load them all. Return how many were compiled.

    needed, progress: as compile_ahead.prepare takes them. A kernel that cannot be compiled raises its own error when it
    is launched. KeyboardInterrupt stops the workers; kernels they have cached stay.
    """
    jobs = []
    for kernel, key in needed:
        with contextlib.suppress(Exception):  # the launch will report the error
            if not kernel.load(*key):
                jobs.append((kernel, key))
    count = min(enough_workers(len(jobs)) if workers is None else workers, len(jobs)) if FORKS else 0
    if not jobs:
        return 0
    if progress:
        progress(0, len(jobs))
    with contextlib.closing(_compiled_by_forks(jobs, count)) as compiled:
        for done, (kernel, key) in enumerate(compiled, 1):
            with contextlib.suppress(Exception):
                kernel.compile_for(*key)
            if progress:
                progress(done, len(jobs))
    return len(jobs)


def _compiled_by_forks(jobs: list[tuple], count: int) -> Iterator[tuple]:
    """Yield the jobs as they are completed; at the end those that were lost with their worker."""
    if not count:
        yield from jobs
        return
    tickets = [index.to_bytes(TICKET, "little") for index in range(len(jobs))]
    tickets_in, tickets_out = os.pipe()
    done_in, done_out = os.pipe()
    os.write(tickets_out, b"".join(tickets))  # a pipe holds 64 KB; each worker takes one ticket at a time
    os.close(tickets_out)
    children = []
    try:
        with warnings.catch_warnings(), contextlib.suppress(OSError):  # fewer workers, where no more are allowed
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the fork uses none of their locks
            for _ in range(count):
                child = os.fork()
                if child == 0:
                    _work(jobs, tickets_in, done_out)
                children.append(child)
        os.close(done_out)
        done_out = None
        remaining = dict(enumerate(jobs))
        while ticket := os.read(done_in, TICKET):
            yield remaining.pop(int.from_bytes(ticket, "little"))
        yield from remaining.values()
    finally:
        for child in children:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for fd in (tickets_in, done_in, done_out):
            if fd is not None:
                os.close(fd)


def _work(jobs: list[tuple], tickets_in: int, done_out: int) -> None:
    """Run in a fork and end it, without the parent's output or exit handlers."""
    try:
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, 1), os.dup2(devnull, 2)
        while ticket := os.read(tickets_in, TICKET):
            kernel, key = jobs[int.from_bytes(ticket, "little")]
            with contextlib.suppress(Exception):
                kernel.compile_for(*key)
            os.write(done_out, ticket)
    finally:
        os._exit(0)
