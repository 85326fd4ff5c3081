"""Blocks over cores: a launch runs here.

A launch is synchronous. Blocks are dispatched to a few threads (compiled code holds no interpreter lock) while the
main thread waits, so that Ctrl-C and the time limit reach a running kernel. Kernels with atomics, kernels that
print and kernels that synchronise the grid run on one thread, so that their results repeat.
"""

import os
import queue
import threading
import time
import warnings

import numpy as np

from labkit.simt.faults import describe, grid_barrier_warning, unforeseen
from labkit.simt.interpreter import Interpreter
from labkit.simt.runtime.fault_record import (
    ABORT,
    ABORTED,
    CODE,
    DONE,
    ORDER,
    RECORD_SIZE,
    SPINNING,
    STRICT,
    WARNED,
    Stop,
)
from labkit.simt.settings import ORDERS, current_order, is_in_turn, is_strict, time_limit_s, worker_count

_LAUNCH_LOCK = threading.RLock()
_WORKERS = None


def _after_fork():
    """A child process has none of its parent's threads, and must not wait for the locks that they held."""
    global _LAUNCH_LOCK, _WORKERS
    _LAUNCH_LOCK, _WORKERS = threading.RLock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Workers:
    """A few threads that run compiled code. Started at the first launch; they end with the process."""

    def __init__(self):
        self.count = worker_count()
        self.queue = queue.SimpleQueue()
        self.scratch = threading.local()
        for k in range(self.count):
            threading.Thread(target=self._work, name=f"labkit-simt-{k}", daemon=True).start()

    def _work(self):
        while True:
            self.queue.get()()

    def memory(self, size):
        """This thread's scratch memory, 64-byte aligned, grown when needed."""
        scratch = getattr(self.scratch, "array", None)
        if scratch is None or scratch.size < size:
            raw = np.empty(max(size, 1 << 16) + 64, np.uint8)
            start = -raw.ctypes.data % 64
            scratch = self.scratch.array = raw[start : start + max(size, 1 << 16)]
        return scratch


def _workers():
    global _WORKERS
    if _WORKERS is None:
        _WORKERS = _Workers()
    return _WORKERS


class RunningLaunch:
    """One running launch: dispatches ranges of blocks, keeps the fault of the first block that has one: the same in
    every run, whichever thread runs which range."""

    def __init__(self, compiled, grid, block, dynamic, arguments, in_turn=False):
        self.compiled, self.grid, self.block, self.dynamic = compiled, grid, block, dynamic
        self.arguments = (*compiled.constants, *arguments)
        self.blocks = grid[0] * grid[1] * grid[2]
        self.threads = block[0] * block[1] * block[2]
        self.cooperative = compiled.program.cooperative
        workers = _workers()
        in_order = compiled.ordered or compiled.program.has_atomics or compiled.program.prints or is_in_turn()
        serial = self.cooperative or in_order or in_turn
        self.runners = 1 if serial else min(workers.count, self.blocks)
        in_parts = max(1, min(self.blocks // (self.runners * 8), 1 << 14))
        self.chunk = self.blocks if self.cooperative or compiled.ordered else in_parts
        self.records = np.zeros((self.runners, RECORD_SIZE), np.int64)
        self.records[:, STRICT], self.records[:, ORDER] = is_strict(), ORDERS.index(current_order())
        self.lock = threading.Lock()
        self.next, self.running, self.fault = 0, self.runners, None
        self.starts = [0] * self.runners  # start of the range that each worker runs
        self.finished = threading.Event()
        scratch = compiled.scratch_bytes(self.threads, self.blocks if self.cooperative else 1, dynamic)
        for k in range(self.runners):
            workers.queue.put(lambda k=k: self._run_blocks(k, workers, scratch))

    def _run_blocks(self, k, workers, scratch):
        record = self.records[k]
        try:
            memory = workers.memory(scratch)
            while True:
                with self.lock:
                    if self.fault is not None or self.next >= self.blocks:
                        break
                    self.starts[k] = start = self.next
                    self.next = last = min(start + self.chunk, self.blocks)
                self.compiled.entry(start, last, self.grid, self.block, self.dynamic, memory, record, *self.arguments)
        except BaseException as error:  # reported by the thread that waits
            with self.lock:
                # Errors other than kernel faults rank first, a range stopped from outside last; then the first one.
                rank = 0 if record[CODE] == 0 else 2 if record[CODE] == ABORTED else 1, self.starts[k]
                if self.fault is None or rank < self.fault[0]:
                    self.fault = rank, error, record.copy()
                later = [other for other, start in enumerate(self.starts) if start > self.starts[k]]
                self.records[later, ABORT] = 1  # the ranges before this one may still have a fault
        finally:
            with self.lock:
                self.running -= 1
                if not self.running:
                    self.finished.set()

    def stop(self):
        self.records[:, ABORT] = 1

    def spun(self):
        """True if it was stopped since a thread waits for one that compiled code has yet to run."""
        return self.fault is not None and self.fault[2][CODE] == SPINNING

    def progress(self):
        return int(self.records[:, DONE].sum()), self.next

    def wait(self, limit):
        """Until the last block is done. Returns the limit in seconds if no block ended for so long, else None. Seconds
        are those of the CPU, for each thread, so that a busy machine stops no kernel that ends."""
        if self.finished.wait(0.05):
            return None
        last_progress, since = self.progress(), time.process_time()
        while not self.finished.wait(0.05):
            now = self.progress()
            if now != last_progress:
                last_progress, since = now, time.process_time()
            elif limit and time.process_time() - since > limit * self.running:
                self.stop()
                self.finished.wait()
                return limit
        return None


def _written(arguments):
    """The arrays among a launch's arguments that a kernel may write."""
    for value in arguments:
        if isinstance(value, tuple):
            yield from _written(value)
        elif isinstance(value, np.ndarray) and value.flags.writeable:
            yield value


def _restore(saved):
    for array, content in saved:
        array[...] = content


def _run(limit, *launch, **how):
    """(the launch, at its end; the limit in seconds if that stopped it, else None)."""
    run = RunningLaunch(*launch, **how)
    try:
        return run, run.wait(limit)
    except BaseException:  # Ctrl-C: the kernel stops at its next loop or block, then the exception goes on
        run.stop()
        run.finished.wait()
        raise


def interpret(compiled, grid, block, dynamic, arguments):
    with _LAUNCH_LOCK:
        Interpreter(compiled.program, grid, block, dynamic, arguments).run()


def run_blocks(kernel, compiled, grid, block, dynamic, arguments):
    limit = time_limit_s()
    with _LAUNCH_LOCK:
        written = _written((*compiled.constants, *arguments)) if compiled.program.spins else ()
        saved = [(array, array.copy()) for array in written]
        run, limit_reached = _run(limit, compiled, grid, block, dynamic, arguments)
        if run.spun() and run.runners > 1:  # perhaps another worker was slow: one block after the other
            _restore(saved)
            run, limit_reached = _run(limit, compiled, grid, block, dynamic, arguments, in_turn=True)
        if run.spun():
            _restore(saved)
            interpret(compiled, grid, block, dynamic, arguments)
            return
    if run.fault is not None:
        _, error, record = run.fault
        if isinstance(error, Stop):
            raise describe(record, compiled, grid, block, limit_reached) from None
        if isinstance(error, Exception):
            raise unforeseen(error, kernel.py_func) from error
        raise error
    if run.records[0, WARNED]:  # a kernel that synchronises the grid runs on one thread
        warnings.warn(grid_barrier_warning(run.records[0], kernel.__name__, compiled.sites, grid, block), stacklevel=4)
