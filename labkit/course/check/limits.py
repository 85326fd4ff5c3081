"""Limits on time, and the order in which the CPU device runs threads."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time

from labkit import cuda, device

KERNEL_LIMIT_S = 5.0  # without a block that ends


class HostTimeout(Exception):
    """A host function ran for too long."""


@contextlib.contextmanager
def limited(order: str):
    """On the CPU device the block's kernels run their threads in this order, and for KERNEL_LIMIT_S at most."""
    if device.on_gpu():
        yield
        return
    from labkit.simt import strict_barriers, thread_order, time_limit

    with thread_order(order), time_limit(KERNEL_LIMIT_S), strict_barriers():
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


@contextlib.contextmanager
def host_limit(seconds: float):
    """Raises HostTimeout in this thread if the block takes longer. Reaches Python code, a `while True: pass` too."""
    ident, lock, state = threading.get_ident(), threading.Lock(), {"over": False}

    def fire():
        with lock:
            if not state["over"]:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(HostTimeout))

    timer = threading.Timer(seconds, fire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            state["over"] = True
        timer.cancel()
