"""Limits on time, a line while kernels are compiled, and the order in which the CPU device runs threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time

from numba.core import event

from labkit import cuda, device
from labkit.simt import blocks_in_turn, strict_barriers, thread_order, time_limit

KERNEL_LIMIT_S = 5.0  # without a block that ends
QUIET_S = 2.0  # compiling for longer is announced
ASLEEP = 3  # how much longer than its CPU time a function may take, one that sleeps or waits for another
AGAIN_S = 0.5  # a callback may swallow what stops a function: it is then stopped again


class HostTimeout(BaseException):
    """A host function ran for too long. No Exception: nothing between it and `host_limit` is meant to catch it."""


@contextlib.contextmanager
def limited(order: str, seconds: float | None = None):
    """On the CPU device the block's kernels run their threads in this order, and for KERNEL_LIMIT_S (or `seconds`) at
    most."""
    if device.on_gpu():
        yield
        return
    limit = time_limit(KERNEL_LIMIT_S if seconds is None else seconds)
    with thread_order(order), blocks_in_turn(), strict_barriers(), limit:  # so that a verdict is always the same
        yield


def wait() -> None:
    """cuda.synchronize, but not for ever: a kernel cannot be stopped on a GPU, but the learner can get a message."""
    if not device.on_gpu():
        cuda.synchronize()
        return
    done = cuda.event(timing=False)
    done.record()
    limit = time.monotonic() + KERNEL_LIMIT_S
    while not done.query():
        if time.monotonic() > limit:
            raise HostTimeout
        time.sleep(0.0005)
    cuda.synchronize()


class _CompileClock(event.Listener):
    """The seconds that one thread spends in Numba's compiler: not the answer's own, and announced if they are many."""

    def __init__(self, now=time.monotonic):
        self.ident, self.now, self.depth, self.begin, self.spent = threading.get_ident(), now, 0, 0.0, 0.0

    def on_start(self, event):
        if threading.get_ident() == self.ident:
            if self.depth == 0:
                self.begin = self.now()
            self.depth += 1

    def on_end(self, event):
        if threading.get_ident() == self.ident and self.depth:
            self.depth -= 1
            if self.depth == 0:
                self.spent += self.now() - self.begin

    def seconds(self) -> float:
        """Also read by other threads: `depth` is looked at first, so that a compile that ends now counts at least."""
        running = self.now() - self.begin if self.depth else 0.0
        return self.spent + running


@contextlib.contextmanager
def _listening(*clocks: _CompileClock):
    """The clocks run with Numba's compiler, and with that of GPU code, which has events of its own."""
    of_gpu = [sys.modules.get(f"{package}.core.event") for package in ("numba.cuda", "numba_cuda_mlir.numba_cuda")]
    with contextlib.ExitStack() as stack:
        for clock in clocks:
            stack.enter_context(event.install_listener("numba:compile", clock))
            for events in filter(None, of_gpu if device.on_gpu() else ()):
                events.Listener.register(_CompileClock)
                stack.enter_context(events.install_listener("numba-cuda:compiler_lock", clock))
        yield


@contextlib.contextmanager
def compile_clock():
    """A clock whose seconds() are those that this thread spent in the block on compiling kernels."""
    clock = _CompileClock()
    with _listening(clock):
        yield clock


@contextlib.contextmanager
def host_limit(seconds: float):
    """Raises HostTimeout in this thread if the block takes longer on the CPU, compiling left out, or ASLEEP times as
    long of wall-clock time: a busy machine stops nothing that ends. Reaches Python code, a `while True: pass`
    too. Once the block has been left nothing is raised any more."""
    ident, lock, done = threading.get_ident(), threading.Lock(), threading.Event()
    limits = [(_CompileClock(now), now(), limit_s)
              for now, limit_s in ((_thread_clock(ident), seconds), (time.monotonic, ASLEEP * seconds))]

    def remaining() -> float:
        return min(limit_s - (clock.now() - begin - clock.seconds()) for clock, begin, limit_s in limits)

    def watch():
        while (remaining_s := remaining()) > 0:
            if done.wait(min(remaining_s, 1.0)):
                return
        while not done.is_set():
            with lock, threading._active_limbo_lock:
                # Until a new thread runs, CPython holds its state under the ident of the thread that starts it, and
                # gives it the exception: the new one would die, and its starter wait for it for ever.
                if not done.is_set() and not threading._limbo:
                    _raise_in(ident, HostTimeout)
            done.wait(AGAIN_S)

    def close() -> bool:
        try:
            with lock:
                done.set()
                _raise_in(ident, None)  # cancel a pending exception
            return True
        except HostTimeout:  # it was raised just now
            return False

    def hook(hook_args, previous_hook=sys.unraisablehook):  # raised in a destructor it would only be printed
        if not isinstance(hook_args.exc_value, HostTimeout):
            previous_hook(hook_args)

    watcher = threading.Thread(target=watch, daemon=True, name="labkit-host-limit")
    previous_hook, sys.unraisablehook = sys.unraisablehook, hook
    try:
        with _listening(*(clock for clock, *_ in limits)):
            try:
                watcher.start()
                yield
            finally:
                while not close():
                    pass
    finally:
        sys.unraisablehook = previous_hook


def _thread_clock(ident: int):
    """Seconds that a thread was on a CPU; by the clock on the wall where a system does not say that to other threads.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock = time.pthread_getcpuclockid(ident)
    return lambda: time.clock_gettime(clock)


def _raise_in(ident: int, kind) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(kind) if kind else None)


@contextlib.contextmanager
def announced_compiling():
    """Show a line while kernels are compiled, if that takes longer than QUIET_S; remove it afterwards."""
    if os.environ.get("NBGRADER_EXECUTION"):  # it gives no points to a cell that writes to stderr
        yield
        return
    clock, done = _CompileClock(), threading.Event()

    def watch():
        while clock.seconds() < QUIET_S:
            if done.wait(0.1):
                return
        clear = _shown_line("Compiling the kernels. This takes a while the first time; after that they are cached ...")
        done.wait()
        clear()

    watcher = threading.Thread(target=watch, daemon=True, name="labkit-compiling")
    with _listening(clock):
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join(5.0)


def _shown_line(text: str):
    """Show a line below the notebook's cell, or on stderr; return the function that removes it."""
    module = sys.modules.get("IPython")
    if module is not None and hasattr(shell := module.get_ipython(), "kernel"):
        from IPython.display import display

        del shell
        handle = display({"text/plain": text}, raw=True, display_id=True)
        return lambda: handle.update({"text/plain": ""}, raw=True)
    stream = sys.stderr
    if stream.isatty():
        print(text, end="", file=stream, flush=True)
        return lambda: print(f"\r{' ' * len(text)}\r", end="", file=stream, flush=True)
    print(text, file=stream, flush=True)
    return lambda: None
