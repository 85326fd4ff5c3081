"""The initial state of an observed launch, kept so that it can be replayed."""

import ctypes
from dataclasses import dataclass

import numpy as np

from labkit.simt.arguments import tuple_like
from labkit.simt.array_interface import bounds

KEPT_BYTES = 16 << 20  # of a launch's arrays


@dataclass(frozen=True)
class KeptArray:
    """An array argument at the start of the launch: a view of one of the kept memories."""

    memory: int
    offset: int
    shape: tuple
    strides: tuple
    dtype: np.dtype


@dataclass(frozen=True)
class KeptMemory:
    """One allocation at the start of the launch. known, base: as in an Allocation."""

    content: np.ndarray  # bytes
    known: bool
    base: int


class KeptLaunch:
    """A kernel, its configuration and its arguments, with a copy of the arrays. `nbytes` is None if they are kept."""

    def __init__(self, function, grid, block, shared_bytes, bound):
        """bound: {parameter: what the observed kernel gets}, before it runs."""
        self.function, self.grid, self.block, self.shared_bytes = function, grid, block, shared_bytes
        self.memories, self._memory_index, self.nbytes = [], {}, None
        needed = sum(extent(memory.owner)[1] for memory in _memories(bound.values()))
        if needed > KEPT_BYTES:
            self.nbytes = needed
        else:
            self.args = [self._snapshot(value) for value in bound.values()]

    def _snapshot(self, value):
        if isinstance(value, tuple):
            return tuple_like(value, map(self._snapshot, value))
        memory = getattr(value, "memory", None)
        if memory is None:
            return value
        start, size = extent(memory.owner)
        if id(memory) not in self._memory_index:
            self._memory_index[id(memory)] = len(self.memories)
            content = np.frombuffer((ctypes.c_uint8 * size).from_address(start), np.uint8).copy() if size else (
                np.zeros(0, np.uint8))
            self.memories.append(KeptMemory(content, memory.known, memory.base))
        array = value.array
        offset = array.__array_interface__["data"][0] - start
        return KeptArray(self._memory_index[id(memory)], offset, array.shape, array.strides, array.dtype)


def _memories(values):
    memories = {}
    for value in values:
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, tuple):
                memories.update({id(memory): memory for memory in _memories([part])})
            elif hasattr(part, "memory"):
                memories[id(part.memory)] = part.memory
    return list(memories.values())


def extent(array):
    """(address of the first byte, bytes up to the last one) of an array, whatever its strides."""
    start = array.__array_interface__["data"][0]
    low, end = bounds(start, array.shape, array.strides, array.itemsize) if array.size else (start, start)
    return low, end - low
