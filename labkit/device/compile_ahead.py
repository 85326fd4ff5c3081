"""Compile several kernels in parallel before they are launched: a program that needs seventeen waits only for the
slowest.

    prepare(launches.needed(work))         # what `work` will launch and no cache on disk holds yet

Numba compiles with the interpreter's lock held, so threads would take turns. A worker is a process that compiles one
kernel after the other and leaves it in the cache, where the launch finds it. Kernels of the CPU device are compiled by
forks of this process, which have them in memory; kernels of a GPU by fresh interpreters, which inherit no CUDA context.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator

from labkit import device
from labkit._common.cores import cores
from labkit.device import compile_target, compiler, gpu_kernels, kernel_cache
from labkit.device.kernel_key import instruction_name

MIN_JOBS = 3  # for fewer, no worker is started: starting one takes as long as compiling two
MAX_WORKERS = 16
FORKS = hasattr(os, "fork") and sys.platform != "darwin"  # macOS's own libraries do not survive a fork


def enough_workers(jobs: int) -> int:
    return min(MAX_WORKERS, cores()) if jobs >= MIN_JOBS and cores() > 1 else 0


@kernel_cache.at_once()
def prepare(needed: Iterable[tuple], *, workers: int | None = None, capability: tuple | None = None,
            progress: Callable[[int, int], None] | None = None, load: bool = True) -> int:
    """Compile the needed kernels that are not cached yet, in parallel worker processes; then, unless they are for
    other processes, load them. Return how many were compiled.

    needed: as launches.needed gives it. progress(done, of) is called as they are done.
    A kernel that fails in a worker is compiled again when it is launched, and raises its own error there.
    KeyboardInterrupt stops the workers; kernels they have cached stay.
    """
    needed = list(needed)
    # Those of labkit.simt, by a method that only they have: on a GPU their class would be imported for nothing.
    if of_cpu_device := [item for item in needed if hasattr(item[0], "compile_for")]:
        return _prepare_cpu(of_cpu_device, workers, progress)
    if not needed or kernel_cache.store() is None:
        return 0
    jobs = _missing(needed, capability or compile_target.here())
    with contextlib.closing(_compiled(jobs, _start_worker, workers, progress)) as done:
        compiled = sum(is_kept for _, is_kept in done)
    for kernel, argument_types in needed if load else ():
        with contextlib.suppress(Exception):  # the launch will report the error
            gpu_kernels.function(kernel, argument_types)
    return compiled


def _prepare_cpu(needed: list[tuple], workers: int | None, progress: Callable[[int, int], None] | None) -> int:
    jobs = []
    for kernel, key in needed:
        with contextlib.suppress(Exception):  # the launch will report the error
            if not kernel.load(*key):
                jobs.append((kernel, key))

    def compile_job(index: bytes) -> bool:
        kernel, key = jobs[int.from_bytes(index, "little")]
        kernel.compile_for(*key)
        return True

    indices = [index.to_bytes(4, "little") for index in range(len(jobs))]
    with contextlib.closing(_compiled(indices, lambda: _Fork(compile_job), workers if FORKS else 0, progress)) as done:
        for index, _ in done:
            with contextlib.suppress(Exception):
                compile_job(index)  # loads what a fork has compiled, and compiles what none has
    return len(jobs)


# --- Processes --------------------------------------------------------------------------------------------------------


def _compiled(jobs: list[bytes], start: Callable, workers: int | None,
              progress: Callable[[int, int], None] | None) -> Iterator[tuple[bytes, bool]]:
    """Yield (job, whether it is now cached) as they are done; at the end those that no worker took.

    start() returns a worker, as _start_worker does. Where no more can be started, there are fewer.
    """
    count = min(enough_workers(len(jobs)) if workers is None else workers, len(jobs))
    pending, answers, processes = queue.SimpleQueue(), queue.SimpleQueue(), []
    for job in jobs:
        pending.put(job)
    try:
        with contextlib.suppress(OSError):
            for _ in range(count):
                processes.append(start())
        for process in processes:  # after the last fork: a fork has no threads
            threading.Thread(target=_feed, args=(process, pending, answers), daemon=True).start()
        running = len(processes)
        if progress and jobs:
            progress(0, len(jobs))
        for done in range(1, len(jobs) + 1):
            while running and (answer := answers.get()) is None:
                running -= 1
            yield answer if running else (pending.get(), False)
            if progress:
                progress(done, len(jobs))
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()


def _feed(process, pending: queue.SimpleQueue, answers: queue.SimpleQueue) -> None:
    """Send jobs to one worker, one at a time, until there are no more or it has ended; then put None."""
    answer = b"0"
    while answer:
        try:
            job = pending.get_nowait()
        except queue.Empty:
            break
        answer = b""
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(len(job).to_bytes(8, "little") + job)
            process.stdin.flush()
            answer = process.stdout.read(1)
        answers.put((job, answer == b"1"))
    answers.put(None)


def _work(jobs: io.BufferedIOBase, answers: io.BufferedIOBase, compile_job: Callable[[bytes], bool]) -> None:
    """The other end of `_feed`: answer each job with 1 if its kernel is now cached, else 0."""
    while size := int.from_bytes(jobs.read(8), "little"):
        try:
            is_kept = compile_job(jobs.read(size))
        except Exception:  # the launch will report the error
            is_kept = False
        answers.write(b"1" if is_kept else b"0")
        answers.flush()


class _Fork:
    """A worker that is a fork of this process, with what `_compiled` uses of a subprocess.Popen."""

    def __init__(self, compile_job: Callable[[bytes], bool]):
        here, there = socket.socketpair()
        with here, there, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the fork uses none of their locks
            self.pid = os.fork()
            if self.pid == 0:
                self._run(here, there, compile_job)
            self.stdin = self.stdout = here.makefile("rwb")

    @staticmethod
    def _run(here: socket.socket, there: socket.socket, compile_job: Callable[[bytes], bool]) -> None:
        """End the fork, too, without the parent's output or exit handlers."""
        try:
            here.close()
            devnull = os.open(os.devnull, os.O_RDWR)
            os.dup2(devnull, 1), os.dup2(devnull, 2)
            stream = there.makefile("rwb")
            _work(stream, stream, compile_job)
        finally:
            os._exit(0)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


# --- Kernels of a GPU -------------------------------------------------------------------------------------------------


def _missing(needed: Iterable[tuple], capability: tuple) -> list[bytes]:
    """The jobs for those that are neither compiled in this process nor cached."""
    files, jobs = kernel_cache.store(), {}
    for kernel, argument_types in needed:
        if argument_types in kernel.overloads:
            continue
        with contextlib.suppress(Exception):  # what has no key, or cannot be pickled, is compiled at its launch
            key = kernel_cache.key_for(kernel, argument_types, capability)
            if key not in jobs and not files.path(key).exists():
                jobs[key] = _pickled((kernel, argument_types, capability, key))
    return list(jobs.values())


def _pickled(job: tuple) -> bytes:
    if compiler.is_mlir():
        from numba_cuda_mlir.numba_cuda.serialize import NumbaPickler
    else:
        from numba.cuda.serialize import NumbaPickler

    class Pickler(NumbaPickler):
        """By name what another process imports: the instructions of labkit.ptx, which Numba would send by value."""

        def reducer_override(self, value):
            name = instruction_name(value)
            if name is not None:
                return getattr, (sys.modules[value.__module__], name)
            return super().reducer_override(value)

    target = io.BytesIO()
    Pickler(target, protocol=4).dump(job)
    return target.getvalue()


def _start_worker() -> subprocess.Popen:
    """In a session of its own: Ctrl-C reaches this process, which stops the worker."""
    return subprocess.Popen([sys.executable, "-m", "labkit.device.compile_ahead"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


def _main() -> None:
    """Of the process that _start_worker starts."""
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # printed output must not be mistaken for an answer
    device.gpu_cuda()
    _work(jobs, answers, _compile_and_keep)


def _compile_and_keep(job: bytes) -> bool:
    """Compile a pickled (kernel, argument types, compute capability, key) and cache it. False if it is another kernel
    here than there, as where a file was edited since."""
    if compiler.is_mlir():
        from numba_cuda_mlir.numba_cuda import serialize
    else:
        from numba.cuda import serialize

    kernel, argument_types, capability, key = serialize.loads(job)
    files = kernel_cache.store()
    if files is None or kernel_cache.key_for(kernel, argument_types, capability) != key:
        return False
    with compile_target.as_if_on(capability):
        if compiler.is_mlir():
            kernel.compile(argument_types)  # and keeps it
            return files.path(key).exists()
        from numba.cuda.dispatcher import _Kernel

        compiled = _Kernel(kernel.py_func, argument_types, **kernel.targetoptions)
        compiled._codelibrary.get_cubin()
        return kernel_cache.keep(files, key, compiled)


if __name__ == "__main__":
    _main()
