"""Arrays and records of interpreted kernels: what they hold are numbers of typed_numbers.py."""

import numpy as np

from labkit.simt.typed_numbers import converter


def typed_scalar(value):
    """An argument of a launch as an interpreted kernel has it."""
    if isinstance(value, np.integer):
        return converter(value.dtype)(int(value))
    if isinstance(value, np.void):
        return RecordValue(value)
    if type(value) in (float, complex):
        return (np.float64 if type(value) is float else np.complex128)(value)
    return value


class RecordValue:
    """A record that is an argument by itself, or an element of an array: its fields are numbers of their types."""

    __slots__ = ("_record", "dtype")

    def __init__(self, record):
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "dtype", record.dtype)

    def __getitem__(self, name):
        value = self._record[name]
        return as_typed_array(value) if isinstance(value, np.ndarray) else typed_scalar(value)

    def __setitem__(self, name, value):
        self._record[name] = plain_record(value)

    __setattr__ = __setitem__

    def __getattr__(self, name):
        if name not in self.dtype.names:
            raise AttributeError(f"a record of {self.dtype} has no field {name}")
        return self[name]


def plain_record(value):
    """The record of NumPy behind a RecordValue; another value as it is."""
    return value._record if isinstance(value, RecordValue) else value


class _Floats(np.ndarray):
    """A float array as an interpreted kernel sees it: NumPy's, and view() takes the kernel's types."""

    def view(self, dtype):
        return as_typed_array(np.asarray(self).view(getattr(dtype, "dtype", dtype)))


class _Integers(_Floats):
    """An integer array: its elements are integers of its type, and stores wrap around."""

    def __getitem__(self, index):
        value = np.ndarray.__getitem__(self, index)
        if isinstance(value, np.ndarray):
            return value
        return converter(value.dtype)(int(value))

    def __iter__(self):
        return (self[k] for k in range(len(self)))

    def __setitem__(self, index, value):
        try:
            np.ndarray.__setitem__(self, index, value)
        except (OverflowError, ValueError):
            np.ndarray.__setitem__(self, index, converter(self.dtype)(value))


class _Records(_Floats):
    """An array of records: an element is a RecordValue, and a field of all of them an array."""

    def __getitem__(self, index):
        value = np.ndarray.__getitem__(self, index)
        return as_typed_array(value) if isinstance(value, np.ndarray) else RecordValue(value)

    def __getattr__(self, name):
        if name not in (self.dtype.names or ()):
            raise AttributeError(f"an array has no attribute {name!r}")
        return self[name]

    def __setitem__(self, index, value):
        np.ndarray.__setitem__(self, index, plain_record(value))


def as_typed_array(array):
    """An array as interpreted code takes it."""
    if array.dtype.names:
        return np.ndarray.view(array, _Records)
    return np.ndarray.view(array, _Integers if array.dtype.kind in "iu" else _Floats)
