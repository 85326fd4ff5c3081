"""Arrays that record their loads and stores: an observed kernel gets these instead of its arrays."""

import operator
import sys

import numpy as np

from labkit.simt.errors import shown_index
from labkit.simt.interpreted_values import new_value
from labkit.simt.typed_numbers import converter, is_undefined

_NUMBERS = (int, float, complex, np.number, np.bool_)
_COMPLEX = (complex, np.complexfloating)
_OTHERS = {"S": bytes, "U": str, "M": np.datetime64, "m": (np.timedelta64, int)}


def _is_no_index(part):
    return isinstance(part, slice) or part is Ellipsis or part is None


def _index(part):
    """An index as Python's int. Of a float it is a type error, as it is where a kernel is compiled."""
    try:
        return operator.index(part)
    except TypeError:
        kind = "an array" if isinstance(part, SeenArray) else type(part).__name__
        raise TypeError(f"an index must be an integer or a slice, not {kind}") from None


class Allocation:
    """One allocation: the written addresses, and the last accesses to each."""

    def __init__(self, space, array, known, base=0):
        self.space, self.base, self.owner = space, base, array
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
    """An array, or a view of one, whose loads and stores are recorded.

    name: what the kernel calls the array; shown: what a finding calls this view of it, such as x[2]
    """

    def __init__(self, observation, memory, array, name, shown=None):
        self.observation, self.memory, self.array, self.name = observation, memory, array, name
        self.shown = shown or name
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype
        self.size, self.strides, self.itemsize, self.nbytes = array.size, array.strides, array.itemsize, array.nbytes
        self.convert = converter(self.dtype) if self.dtype.kind in "iu" else None
        self.origin = memory.base - memory.start + address_of(array)  # of the first element, as a GPU would place it
        if memory.space != "local" and name not in observation.report.arrays:
            observation.report.arrays[name] = (self.origin, array.shape, array.itemsize)

    def __len__(self):
        return len(self.array)

    def __getattr__(self, name):
        if name not in (self.dtype.names or ()):
            raise AttributeError(f"'SeenArray' object has no attribute {name!r}")
        return self[name]

    # ---------------- views

    def _part(self, take, shown):
        """The view `take(self.array)`, recorded like this array."""
        return SeenArray(self.observation, self.memory, take(self.array), self.name, shown)

    @property
    def T(self):
        return self._part(lambda array: array.T, f"{self.shown}.T")

    @property
    def real(self):
        return self._part(lambda array: array.real, f"{self.shown}.real")

    @property
    def imag(self):
        return self._part(lambda array: array.imag, f"{self.shown}.imag")

    def reshape(self, *shape):
        if not self.array.flags.c_contiguous:
            raise TypeError("only a C-contiguous array can be reshaped in device code")
        return self._part(lambda array: array.reshape(*shape), self.shown)

    def view(self, dtype):
        return self._part(lambda array: array.view(getattr(dtype, "dtype", dtype)), self.shown)

    def _view(self, index, frame, verb):
        """The view of fewer indices than axes, or with slices; one of nothing where an index is out of bounds."""
        parts = index if type(index) is tuple else (index,)
        parts = tuple(part if _is_no_index(part) else _index(part) for part in parts)
        given = sum(part is not Ellipsis and part is not None for part in parts)
        if given > self.ndim:
            raise IndexError(f"{self.shown} has {self.ndim} axes, and {given} indices are used")
        axes, axis = [], 0
        for k, part in enumerate(parts):
            axes.append(axis)
            if part is Ellipsis:
                axis = self.ndim - sum(later is not None for later in parts[k + 1 :])
            elif part is not None:
                axis += 1
        for part, axis in zip(parts, axes, strict=True):
            if type(part) is int and not -self.shape[axis] <= part < self.shape[axis]:
                self.observation.out_of_bounds(self, index, frame, verb)
                return self._nowhere(parts)
        if any(type(part) is int and part < 0 for part in parts):
            self.observation.wrapped(self, parts)
        return self._part(lambda array: array[parts], f"{self.shown}[{shown_index(parts)}]")

    def _nowhere(self, parts):
        """Return a placeholder for a view that does not exist: zeros, whose accesses are not recorded.

        The index that led here has been reported; accesses to the view are no further faults.
        """
        ones = np.zeros([max(1, n) for n in self.shape], self.dtype)
        zeros = ones[tuple(0 if type(part) is int else part for part in parts)].copy()
        return SeenNowhere(self.observation, Allocation("local", zeros, True), zeros, self.name, self.shown)

    # ---------------- elements

    def _locate(self, index):
        """(byte address, index) of an element; (None, None) for a view; (-1, index) out of bounds."""
        parts = index if type(index) is tuple else (index,)
        if len(parts) != self.ndim:
            return None, None
        address, plain = self.origin, []
        for part, length, stride in zip(parts, self.shape, self.strides, strict=True):
            if type(part) is not int:
                if _is_no_index(part):
                    return None, None
                if is_undefined(part):
                    self.observation.undefined_index(self)
                part = _index(part)
            if not -length <= part < length:
                is_element = not any(map(_is_no_index, parts))
                return (-1, parts) if is_element else (None, None)
            if part < 0:
                self.observation.wrapped(self, parts)
                part += length
            plain.append(part)
            address += part * stride
        return address, tuple(plain)

    def __getitem__(self, index):
        if type(index) is str:
            return self._part(lambda array: array[index], f"{self.shown}[{index!r}]")
        return self._load(index, sys._getframe(1))

    def __iter__(self):
        frame = sys._getframe(1)  # the kernel's
        for k in range(len(self)):
            yield self._load(k, frame)

    def _load(self, index, frame):
        address, plain = self._locate(index)
        if address is None:
            return self._view(index, frame, "reads")
        if address < 0:
            self.observation.out_of_bounds(self, plain, frame, "reads")
            if self.dtype.names:
                return SeenRecord(self._nowhere((slice(None),) * self.ndim), (0,) * self.ndim)
            return self._as_scalar(self.dtype.type(0))
        if self.dtype.names:
            return SeenRecord(self, plain)
        return self._load_element(address, plain, frame)

    def _load_element(self, address, plain, frame):
        self.observation.access("load", self, address, plain, frame)
        return self._as_scalar(self.array[plain])

    def __setitem__(self, index, value):
        self._store(index, value, sys._getframe(1))

    def _store(self, index, value, frame):
        if isinstance(value, SeenArray):
            _refuse_whole(self)
        address, plain = self._locate(index)
        if address is None:
            self._view(index, frame, "writes")._fill(value, frame)
        elif address < 0:
            self.observation.out_of_bounds(self, plain, frame, "writes")
        else:
            if isinstance(value, SeenRecord) and self.dtype.names:
                for name in self.dtype.names:  # a record is copied field by field
                    SeenRecord(self, plain)._store(name, value._load(name, frame), frame)
                return
            self._store_element(address, plain, value, frame)

    def _store_element(self, address, plain, value, frame):
        before = self.array[plain].tobytes()
        self.observation.stored(self, plain, value, frame)
        self._write(plain, value)
        self.observation.stays = before == self.array[plain].tobytes()
        self.observation.access("store", self, address, plain, frame)

    def _write(self, plain, value):
        kinds = _OTHERS.get(self.dtype.kind, _NUMBERS)
        if not isinstance(value, kinds) or (isinstance(value, _COMPLEX) and self.dtype.kind != "c"):
            kind = "an array" if isinstance(value, SeenArray) else type(value).__name__
            raise TypeError(f"cannot store a value of type {kind} into an array of {self.dtype}")
        try:
            self.array[plain] = value
        except (OverflowError, ValueError):
            self.array[plain] = converter(self.dtype)(value)

    def _as_scalar(self, value):
        kind = self.dtype.kind
        if kind in "iu":
            return self.convert(int(value))
        return bool(value) if kind == "b" else value

    def atomic(self, op, index, value, extra, frame):
        address, plain = self._locate(index)
        if address is None or address < 0:
            self.observation.out_of_bounds(self, index, frame, "updates")
            return self._as_scalar(self.dtype.type(0))
        for given in (value, extra):
            self.observation.stored(self, plain, given, frame, "updates {} with an undefined value")
        self.observation.access("atomic", self, address, plain, frame)
        old = self._as_scalar(self.array[plain])
        self._write(plain, new_value(op, old, value, extra))
        return old

    # ---------------- all elements

    def sum(self):
        frame, total = sys._getframe(1), self._as_scalar(self.dtype.type(0))
        for position in np.ndindex(self.shape):
            total += self._load(position, frame)
        return total

    def fill(self, value):
        self._fill(value, sys._getframe(1))

    def _fill(self, value, frame):
        for position in np.ndindex(self.shape):
            self._store(position, value, frame)


def _refuse_whole(self, *_):
    raise TypeError("whole arrays cannot be computed with or copied in device code: write it for one element")


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    for _prefix in ("", "r", "i"):
        setattr(SeenArray, f"__{_prefix}{_name}__", _refuse_whole)
for _name in ("lt", "le", "eq", "ne", "gt", "ge", "neg", "invert", "abs", "bool"):
    setattr(SeenArray, f"__{_name}__", _refuse_whole)


class SeenNowhere(SeenArray):
    """A view that is out of bounds, or a part of one: zeros. The index that led to it has been reported."""

    def _part(self, take, shown):
        array = take(self.array)
        return SeenNowhere(self.observation, self.memory, array, self.name, shown)

    def _load_element(self, address, plain, frame):
        return self._as_scalar(self.dtype.type(0))

    def _store_element(self, address, plain, value, frame):
        pass

    def atomic(self, op, index, value, extra, frame):
        return self._as_scalar(self.dtype.type(0))


class SeenLocal(SeenArray):
    """An array of one thread: no races, no requests. Only bounds and reads of unwritten elements are checked.

    written: True for each element that was.
    """

    def __init__(self, observation, memory, array, name, shown=None, written=None):
        super().__init__(observation, memory, array, name, shown)
        self.written = np.zeros(array.shape, _flags(array.dtype)) if written is None else written

    def _part(self, take, shown):
        return SeenLocal(self.observation, self.memory, take(self.array), self.name, shown, take(self.written))

    def view(self, dtype):
        self.written[...] = True  # which bytes were written is not tracked across dtypes
        array = self.array.view(getattr(dtype, "dtype", dtype))
        written = np.ones(array.shape, bool)
        return SeenLocal(self.observation, self.memory, array, self.name, self.shown, written)

    def _load_element(self, address, plain, frame):
        if not self.written[plain]:
            self.observation.unwritten_local(self, plain, frame.f_lineno)
        return self._as_scalar(self.array[plain])

    def _store_element(self, address, plain, value, frame):
        self.written[plain] = True
        self._write(plain, value)


def _flags(dtype):
    """The dtype that has a truth for each number of an element."""
    if dtype.subdtype:
        return np.dtype((_flags(dtype.base), dtype.shape))
    return np.dtype(bool) if dtype.names is None else np.dtype([(n, _flags(dtype[n])) for n in dtype.names])


class SeenRecord:
    """An element of an array of records: its fields are loaded and stored as elements of an array of that field."""

    __slots__ = ("_index", "_seen")

    def __init__(self, seen, index):
        object.__setattr__(self, "_seen", seen)
        object.__setattr__(self, "_index", index)

    def _field(self, name):
        seen = self._seen
        return seen._part(lambda array: array[name], seen.shown)

    def _load(self, name, frame):
        name = self._seen.dtype.names[name] if type(name) is int else name
        return self._field(name)._load(self._index, frame)

    def __getitem__(self, name):
        return self._load(name, sys._getframe(1))

    def __getattr__(self, name):
        return self._load(name, sys._getframe(1))

    def _store(self, name, value, frame):
        field = self._field(name)
        if not isinstance(value, SeenArray):
            return field._store(self._index, value, frame)
        view = field._view(self._index, frame, "writes")  # a field that is an array
        for position in np.ndindex(view.shape):
            view._store(position, value._load(position, frame), frame)

    def __setitem__(self, name, value):
        self._store(name, value, sys._getframe(1))

    def __setattr__(self, name, value):
        self._store(name, value, sys._getframe(1))
