"""Work in flight of a block and its threads: mbarriers, copies, products."""

import numpy as np

WINDOW = 1024  # the address of the first byte of a block's shared memory


class MBarrier:
    """An mbarrier."""

    def __init__(self, name, count):
        self.name, self.count = name, count
        self.phase, self.missing, self.bytes = 0, count, 0

    def passes(self, parity):
        return (self.phase & 1) != (int(parity) & 1)

    def arrive(self, expected=0):
        self.bytes += expected
        self.missing -= 1
        self._complete()

    def receive(self, nbytes):
        self.bytes -= nbytes
        self._complete()

    def _complete(self):
        if self.missing == 0 and self.bytes == 0:
            self.phase += 1
            self.missing = self.count

    def __str__(self):
        text = f"{self.name}: in phase {self.phase} (parity {self.phase & 1}), {self.count - self.missing} of "
        text += f"{self.count} arrived"
        if self.bytes:
            text += f", {self.bytes:,} bytes expected that no TMA load has brought" if self.bytes > 0 else (
                f", {-self.bytes:,} bytes more than expected")  # fmt: skip
        return text


class Block:
    """State of a block beside its threads: the window of shared memory, barriers, work in flight."""

    def __init__(self, size):
        raw = np.full(size + 1024, 0xFF, np.uint8)
        start = -raw.ctypes.data % 1024
        self.window = raw[start : start + size]
        self.address = self.window.ctypes.data - WINDOW
        self.arrays = []  # (first address, end, name) of the shared arrays
        self.barriers, self.loads = {}, []
        self.products = {}  # warpgroup -> wgmma in flight

    def bytes_at(self, base, size):
        return self.window[base - WINDOW : base - WINDOW + size]

    def name_of(self, address):
        for base, end, name in self.arrays:
            if base <= address < end:
                return name, base
        return "shared memory", WINDOW


class Pending:
    """What one thread has started and not waited for: cp.async, or TMA stores. Groups are counted."""

    def __init__(self):
        self.items, self.committed, self.last_wait = [], 0, None

    def start(self, item):
        self.items.append((self.committed, item))

    def wait(self, newest):
        """The items that must be complete when at most the `newest` groups may be in flight."""
        reached = self.committed - newest
        done = [item for group, item in self.items if group < reached]
        self.items = [(group, item) for group, item in self.items if group >= reached]
        return done


class AsyncCopy:
    """A cp.async in flight."""

    def __init__(self, thread, line, target, i, data, name):
        self.thread, self.line, self.target, self.i, self.data, self.name = thread, line, target, i, data, name
