"""Compile several kernels in parallel before they are launched: a program that needs seventeen waits only for the
slowest.

    prepare(launches.needed(work))         # what `work` will launch and labkit.device.kernel_cache has not kept yet

Numba compiles with the interpreter's lock held, so threads would take turns. Each worker is a process of its own that
does not touch the GPU; it leaves what it compiled in the cache, where the launch finds it. The CPU device's kernels are
compiled by forks of this process: labkit.device.compile_forked.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable

from labkit.device import compile_forked, kernel_cache
from labkit.device.compile_forked import enough_workers
from labkit.device.kernel_key import instruction_name
from labkit.simt.kernel import Kernel


def missing(needed: Iterable[tuple], capability: tuple) -> dict[str, tuple]:
    """Key -> (kernel, argument types), of those that are neither compiled in this process nor kept on disk."""
    files, result = kernel_cache.store(), {}
    for kernel, argument_types in needed:
        if argument_types in kernel.overloads:
            continue
        with contextlib.suppress(Exception):  # kernels without a key are compiled at launch
            key = kernel_cache.key_for(kernel, argument_types, capability)
            if not files.path(key).exists():
                result[key] = (kernel, argument_types)
    return result


def prepare(needed: Iterable[tuple], *, workers: int | None = None, capability: tuple | None = None,
            progress: Callable[[int, int], None] | None = None, load: bool = True) -> int:
    """Compile the needed kernels that are not cached yet, in parallel worker processes; then, unless they are for
    other processes, load them. Return how many were compiled.

    needed: as launches.needed gives it. progress(done, of) is called as they are done.
    A kernel that fails in a worker is compiled again when it is launched, and raises its own error there.
    KeyboardInterrupt stops the workers; kernels they have cached stay.
    """
    needed = list(needed)
    of_cpu_device = [item for item in needed if isinstance(item[0], Kernel)]
    if of_cpu_device:
        return compile_forked.prepare(of_cpu_device, workers=workers, progress=progress)
    if not needed or kernel_cache.store() is None:
        return 0
    compiled = compile_missing(needed, workers, capability, progress)
    for kernel, argument_types in needed if load else ():
        with contextlib.suppress(Exception):  # the launch will report the error
            kernel.compile(argument_types).bind()
    return compiled


def compile_missing(needed: list[tuple], workers: int | None, capability: tuple | None,
                    progress: Callable[[int, int], None] | None) -> int:
    """The part of `prepare` that workers do."""
    capability = capability or kernel_cache.capability_here()
    jobs = missing(needed, capability)
    if workers is None:
        workers = enough_workers(len(jobs))
    count = min(workers, len(jobs))
    if not count:
        return 0
    pending, answers = queue.SimpleQueue(), queue.SimpleQueue()
    for key, (kernel, argument_types) in jobs.items():
        if (job := _pickled((kernel, argument_types, capability, key))) is not None:
            pending.put(job)
    processes = [_start_worker() for _ in range(count)]
    try:
        for worker in processes:
            threading.Thread(target=_feed, args=(worker, pending, answers), daemon=True).start()
        done = compiled = finished = 0
        while finished < count:
            if progress:
                progress(done, len(jobs))
            answer = answers.get()
            if answer is None:
                finished += 1
            else:
                done, compiled = done + 1, compiled + answer
        return compiled
    finally:
        for worker in processes:
            worker.kill()
        for worker in processes:
            worker.wait()
            with contextlib.suppress(OSError):
                worker.stdin.close()
            worker.stdout.close()


def _pickled(job: tuple) -> bytes | None:
    """None for a kernel that cannot be sent to another process."""
    from numba.cuda.serialize import NumbaPickler

    class Pickler(NumbaPickler):
        """By name what another process imports: the instructions of labkit.ptx, which Numba would send by value."""

        def reducer_override(self, value):
            name = instruction_name(value)
            if name is not None:
                return getattr, (sys.modules[value.__module__], name)
            return super().reducer_override(value)

    target = io.BytesIO()
    try:
        Pickler(target, protocol=4).dump(job)
    except Exception:  # pickle has many ways to refuse
        return None
    return target.getvalue()


def _start_worker() -> subprocess.Popen:
    """In a session of its own: Ctrl-C reaches this process, which stops the worker."""
    return subprocess.Popen([sys.executable, "-m", "labkit.device.compile_worker"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


def _feed(worker: subprocess.Popen, pending: queue.SimpleQueue, answers: queue.SimpleQueue) -> None:
    """Send kernels to one worker, one at a time, until there are no more or it is gone; then put None."""
    answer = b"0"
    while answer:
        try:
            job = pending.get_nowait()
        except queue.Empty:
            break
        answer = b""
        with contextlib.suppress(OSError, ValueError):
            worker.stdin.write(len(job).to_bytes(8, "little") + job)
            worker.stdin.flush()
            answer = worker.stdout.read(1)
        answers.put(answer == b"1")
    answers.put(None)
