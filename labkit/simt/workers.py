"""Blocks over cores: a launch runs here.

A launch is synchronous. Its blocks run in the thread that launches, and where that takes long in a few others too
(compiled code holds no interpreter lock). Meanwhile one thread watches, so that Ctrl-C and the time limit reach a
running kernel. Kernels with atomics, kernels that print and kernels that synchronise the grid run on one thread, so
that their results repeat.
"""

import os
import queue
import threading
import time
import warnings

import numpy as np

from labkit.simt.codegen.native import array_words
from labkit.simt.errors import BarrierWarning
from labkit.simt.faults import barrier_warning, describe, unforeseen
from labkit.simt.interpreter import Interpreter
from labkit.simt.runtime.fault_record import (
    ABORT,
    ABORTED,
    CHECK_SIGNALS,
    CODE,
    DONE,
    ORDER,
    RECORD_SIZE,
    SPINNING,
    STRICT,
    WARNED,
    Stop,
)
from labkit.simt.settings import ORDERS, barrier_rule, current_order, is_in_turn, time_limit_s, worker_count

LONG_S = 200e-6  # of work that is left: other threads take part
_TICK_S, _IDLE_TICKS = 0.05, 20

_LAUNCH_LOCK = threading.RLock()
_WORKERS = _WATCH = None


def _after_fork():
    """A child process has none of its parent's threads, and must not wait for the locks that they held."""
    global _LAUNCH_LOCK, _WORKERS, _WATCH
    _LAUNCH_LOCK, _WORKERS, _WATCH = threading.RLock(), None, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Workers:
    """A few threads that run compiled code, started when one is needed; they end with the process. And memory for what
    runs there."""

    def __init__(self):
        self.count = worker_count()
        self.queue, self.threads = queue.SimpleQueue(), []
        self.records, self.memories = [], []  # not in use

    def call(self, functions):
        """Each in a thread of its own."""
        while len(self.threads) < len(functions):
            name = f"labkit-simt-{len(self.threads)}"
            self.threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self.threads[-1].start()
        for function in functions:
            self.queue.put(function)

    def _work(self):
        while True:
            self.queue.get()()

    def memory(self, size):
        """(scratch memory, 64-byte aligned, of this size or more; how compiled code has it). Given back afterwards."""
        memory, words = self.memories.pop() if self.memories else (None, None)
        if memory is None or memory.size < size:
            raw = np.empty(max(size, 1 << 16) + 64, np.uint8)
            start = -raw.ctypes.data % 64
            memory = raw[start : start + max(size, 1 << 16)]
            words = array_words(memory)
        return memory, words

    def record(self):
        """(a fault record, how compiled code has it). Give it back afterwards."""
        if self.records:
            return self.records.pop()
        record = np.zeros(RECORD_SIZE, np.int64)
        return record, array_words(record)


def _workers():
    global _WORKERS
    if _WORKERS is None:
        _WORKERS = _Workers()
    return _WORKERS


class _Watch:
    """A thread that looks at the running launch, some times a second; it sleeps while nothing is launched."""

    def __init__(self):
        self.launch, self.awake = None, threading.Event()
        threading.Thread(target=self._watch, name="labkit-simt-watch", daemon=True).start()

    def begin(self, launch):
        """Watch this launch. Returns the one that it interrupts: the handler of a signal may launch too."""
        self.launch, previous = launch, self.launch
        if not self.awake.is_set():
            self.awake.set()
        return previous

    def _watch(self):
        idle = 0
        while True:
            if idle > _IDLE_TICKS:
                self.awake.clear()
                if self.launch is None:
                    self.awake.wait()
                idle = 0
            time.sleep(_TICK_S)
            launch = self.launch
            idle = 0 if launch is not None else idle + 1
            if launch is not None:
                launch.tick()


def _watch():
    global _WATCH
    if _WATCH is None:
        _WATCH = _Watch()
    return _WATCH


class RunningLaunch:
    """One launch: dispatches ranges of blocks, keeps the fault of the first block that has one: the same in every run,
    whichever thread runs which range."""

    def __init__(self, compiled, grid, block, dynamic, arguments, limit, in_turn=False):
        self.compiled, self.limit, self.limit_reached = compiled, limit, None
        self.kept = arguments  # what the addresses in `bound` point to
        self.bound = compiled.bound(grid, block, dynamic, arguments)
        self.blocks = grid[0] * grid[1] * grid[2]
        self.threads = block[0] * block[1] * block[2]
        program = compiled.program
        self.workers = _workers()
        in_order = compiled.ordered or program.has_atomics or program.prints or is_in_turn()
        serial = program.cooperative or in_order or in_turn
        self.runners = 1 if serial else min(self.workers.count, self.blocks)
        self.chunk = self.blocks if self.runners == 1 else max(1, min(self.blocks // (self.runners * 8), 1 << 14))
        self.scratch = compiled.scratch_bytes(self.threads, self.blocks if program.cooperative else 1, dynamic)
        self.settings = barrier_rule(), ORDERS.index(current_order())
        self.held, self.records = [], []  # one for each thread that takes part
        self._take_record()
        self.lock = threading.Lock()
        self.next, self.helpers, self.fault = 0, 0, None
        self.starts = [0] * self.runners  # start of the range that each runner runs
        self.finished = None
        self.seen, self.since, self.warned = None, 0.0, None

    def _take_record(self):
        record, words = self.workers.record()
        record.fill(0)
        record[STRICT], record[ORDER] = self.settings
        self.held.append((record, words))
        self.records.append(record)

    def run(self):
        """Until the last block is done, or the launch is stopped."""
        watch = _watch()
        previous = watch.begin(self)
        try:
            if self.compiled.program.spins:  # blocks may wait for one another
                self._get_help()
            self._run_blocks(0)
            self._await_help()
        except BaseException:  # Ctrl-C between two ranges
            self.stop()
            self._await_help()
            raise
        finally:
            watch.launch = previous
            with self.lock:  # from now on the records are another launch's
                self.warned = next((record.copy() for record in self.records if record[WARNED]), None)
                self.workers.records += self.held
                self.records = []

    def _get_help(self):
        """Other threads take part from now on."""
        if self.finished is None and self.runners > 1:
            with self.lock:
                for _ in range(1, self.runners):
                    self._take_record()
                self.helpers, self.finished = self.runners - 1, threading.Event()
            self.workers.call([lambda k=k: self._help(k) for k in range(1, self.runners)])

    def _await_help(self):
        while self.finished is not None and not self.finished.wait(_TICK_S):  # Windows interrupts no longer wait
            pass

    def _help(self, k):
        try:
            self._run_blocks(k)
        finally:
            with self.lock:
                self.helpers -= 1
                if not self.helpers:
                    self.finished.set()

    def _run_blocks(self, k):
        record, record_words = self.held[k]
        memory, memory_words = self.workers.memory(self.scratch)
        chunk = self.chunk
        try:
            while True:
                with self.lock:
                    if self.fault is not None or self.next >= self.blocks:
                        break
                    self.starts[k] = start = self.next
                    self.next = last = min(start + chunk, self.blocks)
                began = time.perf_counter()
                self.bound(start, last, memory_words, record_words)
                if self.finished is None and last < self.blocks:
                    left_s = (time.perf_counter() - began) / (last - start) * (self.blocks - last)
                    if left_s > LONG_S:
                        self._get_help()
                    else:
                        chunk = self.blocks  # what is left is not worth a second range
        except BaseException as error:  # reported when all runners have ended
            with self.lock:
                rank = self._rank(error, record), self.starts[k]
                if self.fault is None or rank < self.fault[0]:
                    self.fault = rank, error, record.copy()
                for record, start in zip(self.records, self.starts, strict=False):
                    if start > self.starts[k] or rank[0] == 0:  # the ranges before this one may still have a fault
                        record[ABORT] = 1
        finally:
            self.workers.memories.append((memory, memory_words))

    @staticmethod
    def _rank(error, record):
        """Which of several errors is reported: the least. What the handler of a signal raised comes first, then errors
        other than kernel faults, then faults; a range stopped from outside comes last."""
        if not isinstance(error, Stop):
            return 0 if record[CODE] else 1
        return 3 if record[CODE] == ABORTED else 2

    def stop(self):
        with self.lock:
            for record in self.records:
                record[ABORT] = 1

    def spun(self):
        """True if it was stopped since a thread waits for one that compiled code has yet to run."""
        return self.fault is not None and self.fault[2][CODE] == SPINNING

    def tick(self):
        """Called by the thread that watches, some times a second: let signals be handled, and stop the launch if no
        block ended within the limit. Its seconds are those of the CPU, for each thread, so that a busy machine stops no
        kernel that ends."""
        with self.lock:
            if not self.records:
                return
            if self.records[0][ABORT] == 0:
                self.records[0][ABORT] = CHECK_SIGNALS
            now = sum(int(record[DONE]) for record in self.records), self.next
        if now != self.seen:
            self.seen, self.since = now, time.process_time()
        elif self.limit and time.process_time() - self.since > self.limit * (self.helpers + 1):
            self.limit_reached = self.limit
            self.stop()


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


def interpret(compiled, grid, block, dynamic, arguments):
    with _LAUNCH_LOCK:
        interpreter = Interpreter(compiled.program, grid, block, dynamic, arguments)
        interpreter.run()
    if interpreter.warning:
        warnings.warn(BarrierWarning(interpreter.warning), stacklevel=4)


def run_blocks(kernel, compiled, grid, block, dynamic, arguments):
    limit = time_limit_s()
    with _LAUNCH_LOCK:
        written = _written((*compiled.constants, *arguments)) if compiled.program.spins else ()
        saved = [(array, array.copy()) for array in written]
        run = RunningLaunch(compiled, grid, block, dynamic, arguments, limit)
        run.run()
        if run.spun() and run.runners > 1:  # perhaps another worker was slow: one block after the other
            _restore(saved)
            run = RunningLaunch(compiled, grid, block, dynamic, arguments, limit, in_turn=True)
            run.run()
        if run.spun():
            _restore(saved)
            interpret(compiled, grid, block, dynamic, arguments)
            return
    if run.fault is not None:
        (rank, _), error, record = run.fault
        if isinstance(error, Stop):
            raise describe(record, compiled, grid, block, run.limit_reached) from None
        if isinstance(error, Exception) and rank:
            raise unforeseen(error, kernel.py_func) from error
        raise error
    if run.warned is not None:
        warnings.warn(barrier_warning(run.warned, kernel.__name__, compiled.sites, grid, block), stacklevel=4)
