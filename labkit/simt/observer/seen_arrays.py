"""Arrays whose loads and stores are seen: what an observed kernel gets in place of its arrays."""

import sys

import numpy as np

from labkit.simt.interpreted_values import converter, new_value
from labkit.simt.unsigned import Unsigned


class Allocation:
    """One allocation: what was written, who touched what last."""

    def __init__(self, space, array, known, base=0):
        self.space, self.base = space, base
        self.start = address_of(array)
        self.known = known  # True: the host wrote it; False: only what this launch writes is there
        self.written, self.cells = set(), {}


def address_of(array):
    return array.__array_interface__["data"][0]


def owner_of(array):
    """The array whose memory this one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class SeenArray:
    """An array, or a view of one, whose loads and stores are recorded. `name` is what the kernel calls it."""

    def __init__(self, observation, memory, array, name):
        self.observation, self.memory, self.array, self.name = observation, memory, array, name
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype
        self.size, self.strides, self.itemsize = array.size, array.strides, array.itemsize
        self.origin = memory.base - memory.start + address_of(array)  # of the first element, as a GPU would place it
        if memory.space != "local" and name not in observation.report.arrays:
            observation.report.arrays[name] = (self.origin, array.shape, array.itemsize)

    def __len__(self):
        return len(self.array)

    @property
    def T(self):
        return SeenArray(self.observation, self.memory, self.array.T, self.name)

    def reshape(self, *shape):
        return SeenArray(self.observation, self.memory, self.array.reshape(*shape), self.name)

    def view(self, dtype):
        return SeenArray(self.observation, self.memory, self.array.view(getattr(dtype, "dtype", dtype)), self.name)

    def _place(self, index):
        """(byte address, index) of an element; None and a view for fewer indices; OutOfBounds is recorded."""
        parts = index if type(index) is tuple else (index,)
        if len(parts) < self.ndim:
            return None, None
        address, plain = self.origin, []
        for part, length, stride in zip(parts, self.shape, self.strides, strict=True):
            if type(part) is not int:
                if isinstance(part, slice):
                    return None, None
                part = int(part)
            if not -length <= part < length:
                return -1, parts
            if part < 0:
                part += length
            plain.append(part)
            address += part * stride
        return address, tuple(plain)

    def __getitem__(self, index):
        return self._load(index, sys._getframe(1))

    def __iter__(self):
        frame = sys._getframe(1)  # the kernel's
        for k in range(len(self)):
            yield self._load(k, frame)

    def _load(self, index, frame):
        address, plain = self._place(index)
        if address is None:
            try:
                return SeenArray(self.observation, self.memory, self.array[index], self.name)
            except IndexError:
                self.observation.out_of_bounds(self, index, frame, "reads")
                return self
        if address < 0:
            self.observation.out_of_bounds(self, plain, frame, "reads")
            if self.dtype.names:
                return SeenRecord(self, (0,) * self.ndim)
            return self._number(self.dtype.type(0))
        if self.dtype.names:
            return SeenRecord(self, plain)
        self.observation.access("load", self, address, plain, frame)
        return self._number(self.array[plain])

    def __setitem__(self, index, value):
        address, plain = self._place(index)
        if address is None:
            part = self.array[index]
            for position in np.ndindex(part.shape):
                SeenArray(self.observation, self.memory, part, self.name)._store(position, value, sys._getframe(1))
            return
        if address < 0:
            self.observation.out_of_bounds(self, plain, sys._getframe(1), "writes")
            return
        self._store(plain, value, sys._getframe(1))

    def _store(self, plain, value, frame):
        address, plain = self._place(plain)
        self.observation.access("store", self, address, plain, frame)
        self._write(plain, value)

    def _write(self, plain, value):
        try:
            self.array[plain] = value
        except (OverflowError, ValueError):
            self.array[plain] = converter(self.dtype)(value)

    def _number(self, value):
        kind = self.dtype.kind
        if kind == "u":
            return Unsigned(value)
        return int(value) if kind == "i" else bool(value) if kind == "b" else value

    def atomic(self, op, index, value, extra, frame):
        address, plain = self._place(index)
        if address is None or address < 0:
            self.observation.out_of_bounds(self, index, frame, "updates")
            return self._number(self.dtype.type(0))
        self.observation.access("atomic", self, address, plain, frame)
        old = self._number(self.array[plain])
        self._write(plain, new_value(op, old, value, extra))
        return old


class SeenLocal(SeenArray):
    """An array of one thread: no race, no request. Only its bounds are looked at, and what was never written.

    written: True for each element that was.
    """

    def __init__(self, observation, memory, array, name, written=None):
        super().__init__(observation, memory, array, name)
        self.written = np.zeros(array.shape, bool) if written is None else written

    @property
    def T(self):
        return SeenLocal(self.observation, self.memory, self.array.T, self.name, self.written.T)

    def reshape(self, *shape):
        array, written = self.array.reshape(*shape), self.written.reshape(*shape)
        return SeenLocal(self.observation, self.memory, array, self.name, written)

    def view(self, dtype):
        self.written[...] = True  # which bytes of other elements were written is not kept
        array = self.array.view(getattr(dtype, "dtype", dtype))
        return SeenLocal(self.observation, self.memory, array, self.name, np.ones(array.shape, bool))

    def __getitem__(self, index):
        return self._load(index, sys._getframe(1))

    def _load(self, index, frame):
        try:
            value, written = self.array[index], self.written[index]
        except IndexError:
            self.observation.out_of_bounds(self, index, frame, "reads")
            return self._number(self.dtype.type(0))
        if isinstance(value, np.ndarray):
            return SeenLocal(self.observation, self.memory, value, self.name, written)
        if not written:
            place = index if isinstance(index, tuple) else (index,)
            self.observation.unwritten_local(self, place, frame.f_lineno)
        return self._number(value)

    def __setitem__(self, index, value):
        self._store(index, value, sys._getframe(1))

    def _store(self, index, value, frame):
        try:
            self.written[index] = True
        except IndexError:
            self.observation.out_of_bounds(self, index, frame, "writes")
        else:
            self._write(index, value)


class SeenRecord:
    """An element of an array of records: its fields are loaded and stored as elements of an array of that field."""

    __slots__ = ("_index", "_seen")

    def __init__(self, seen, index):
        object.__setattr__(self, "_seen", seen)
        object.__setattr__(self, "_index", index)

    def _field(self, name):
        seen = self._seen
        return SeenArray(seen.observation, seen.memory, seen.array[name], seen.name)

    def __getitem__(self, name):
        return self._field(name)._load(self._index, sys._getframe(1))

    def __getattr__(self, name):
        return self._field(name)._load(self._index, sys._getframe(1))

    def __setitem__(self, name, value):
        self._field(name)._store(self._index, value, sys._getframe(1))

    def __setattr__(self, name, value):
        self._field(name)._store(self._index, value, sys._getframe(1))
