"""Arrays in the memory of the CPU device, and the copies between it and the host: numba.cuda's names and rules.

Memory is a NumPy array that only a kernel and the copy functions may touch; a launch finds it as `d_a._array`.

Units   sizes in bytes
Source  CUDA C++ Programming Guide, "Device Memory"
"""

import contextlib
import ctypes

import numba
import numpy as np

from labkit.simt import array_interface
from labkit.simt.allocation import checked_dtype, extent_bytes, poisoned

__all__ = [
    "DeviceNDArray", "DeviceRecord", "ManagedNDArray", "MappedNDArray", "as_cuda_array", "defer_cleanup",
    "device_array", "device_array_like", "from_cuda_array_interface", "is_cuda_array", "managed_array", "mapped",
    "mapped_array", "mapped_array_like", "pinned", "pinned_array", "pinned_array_like", "to_device",
]  # fmt: skip


class DeviceNDArray:
    """An array in device memory. Kernels read and write it; the host copies it: `d_a.copy_to_host()`."""

    __slots__ = ("_array", "stream", "__weakref__")

    def __init__(self, array: np.ndarray, stream=0):
        self._array = array
        self.stream = stream

    shape = property(lambda self: self._array.shape)
    strides = property(lambda self: self._array.strides)
    dtype = property(lambda self: self._array.dtype)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    nbytes = property(lambda self: self._array.nbytes)
    itemsize = property(lambda self: self._array.itemsize)
    T = property(lambda self: self.transpose())
    _numba_type_ = property(lambda self: numba.typeof(self._array))
    device_ctypes_pointer = property(lambda self: ctypes.c_void_p(self.__cuda_array_interface__["data"][0]))
    __cuda_array_interface__ = property(lambda self: array_interface.exported(self._array, self.stream))

    @property
    def alloc_size(self) -> int:
        """Bytes from the first to the last element, gaps between rows included."""
        return extent_bytes(self.shape, self.strides, self.itemsize)

    @property
    def flags(self) -> dict[str, bool]:
        return {name: self._array.flags[name] for name in ("C_CONTIGUOUS", "F_CONTIGUOUS")}

    def is_c_contiguous(self) -> bool:
        return self._array.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        return self._array.flags.f_contiguous

    def __len__(self):
        if self.ndim == 0:
            raise TypeError("len() of a 0-dimensional device array")
        return self.shape[0]

    def __repr__(self):
        return f"<DeviceNDArray shape={self.shape} dtype={self.dtype}: copy_to_host() shows its values>"

    # Copies

    def copy_to_host(self, ary: np.ndarray | None = None, stream=0) -> np.ndarray:
        """The values as a new NumPy array, or copied into `ary` (same dtype, shape and strides)."""
        if any(stride < 0 for stride in self.strides):
            raise NotImplementedError(f"copy_to_host: negative strides are not supported, got {self.strides}")
        if ary is None:
            ary = np.ndarray(self.shape, self.dtype, np.empty(self.alloc_size, np.uint8), strides=self.strides)
        elif not isinstance(ary, np.ndarray):
            raise TypeError(f"copy_to_host: ary must be a NumPy array, not {type(ary).__name__}")
        else:
            _check_same_layout("copy_to_host", self._array, ary)
        ary.squeeze()[...] = self._array.squeeze()
        return ary

    def copy_to_device(self, ary, stream=0) -> None:
        """Copy the host or device array `ary` into this one: same dtype, same shape, both contiguous."""
        if not hasattr(ary, "dtype"):
            raise TypeError(f"copy_to_device: ary must be an array, not {type(ary).__name__}; use np.array(ary, dtype)")
        if ary.size == 0:
            return
        _check_contiguous(self._array)
        target = _core(self._array)
        if is_device_memory(ary):
            _check_contiguous(ary._array)
            source = _core(ary._array)
        else:
            source = np.asarray(_core(np.asarray(ary)), order="C" if target.flags.c_contiguous else "F")
        _check_same_layout("copy_to_device", target, source)
        target.squeeze()[...] = source.squeeze()

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if copy is False:
            raise ValueError("copy=False is not possible: the values of a device array always have to be copied")
        host = self.copy_to_host()
        return host if dtype is None else host.astype(dtype)

    # Views: no copy, the same memory

    def __getitem__(self, item):
        part = self._array[(*_basic_index(item), ...)]  # the ellipsis makes it a view, of 0 dimensions for an element
        if part.ndim:
            return DeviceNDArray(part, self.stream)
        return part[()] if part.dtype.names is None else DeviceRecord(part, self.stream)

    def __setitem__(self, item, value):
        value = value._array if is_device_memory(value) else np.asarray(value)
        target = self._array[(*_basic_index(item), ...)]
        if value.ndim > target.ndim:
            raise ValueError(f"cannot assign a {value.ndim}-D array to a {target.ndim}-D part of a device array")
        target[...] = value

    def getitem(self, item, stream=0):
        return self[item]

    def setitem(self, item, value, stream=0):
        self[item] = value

    def bind(self, stream=0) -> "DeviceNDArray":
        """The same memory with `stream` as its default stream."""
        return DeviceNDArray(self._array, stream)

    def view(self, dtype) -> "DeviceNDArray":
        """The same bytes read as `dtype`."""
        dtype = checked_dtype(dtype)
        if dtype.itemsize != self.itemsize and not self.is_c_contiguous():
            raise ValueError("view: to change the size of an element, the device array must be C-contiguous")
        return DeviceNDArray(self._array.view(dtype), self.stream)

    def reshape(self, *shape, order="C") -> "DeviceNDArray":
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = tuple(shape[0])
        return self._without_copy("reshape", self._array.reshape(shape, order=order))

    def ravel(self, order="C", stream=0) -> "DeviceNDArray":
        return self._without_copy("ravel", self._array.ravel(order=order))

    def squeeze(self, axis=None, stream=0) -> "DeviceNDArray":
        return DeviceNDArray(self._array.squeeze(axis), stream or self.stream)

    def split(self, section: int, stream=0):
        """Parts of `section` elements each, the last one shorter where it does not divide."""
        if self.ndim != 1 or not self.is_c_contiguous():
            raise ValueError(f"split: only a contiguous 1-D device array can be split, this one has shape {self.shape}")
        for begin in range(0, self.size, section):
            yield DeviceNDArray(self._array[begin : begin + section], stream or self.stream)

    def _without_copy(self, name: str, result: np.ndarray) -> "DeviceNDArray":
        if result.size and not np.may_share_memory(result, self._array):
            raise NotImplementedError(f"{name}: this would need a copy, since the device array is not contiguous")
        return DeviceNDArray(result, self.stream)

    def transpose(self, axes=None) -> "DeviceNDArray":
        """A transposed copy in new memory, for two dimensions, as numba.cuda makes it."""
        if axes is not None and tuple(axes) == tuple(range(self.ndim)):
            return self
        if self.ndim != 2:
            raise NotImplementedError(f"transpose: only 2-D device arrays, this one has {self.ndim} dimensions")
        if axes is not None and sorted(axes) != [0, 1]:
            raise ValueError(f"transpose: axes must be a permutation of (0, 1), not {axes!r}")
        result = device_array(self.shape[::-1], self.dtype)
        result._array[...] = self._array.T
        return result

    # What device memory cannot do: errors with a message for the learner who tries

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        raise TypeError(
            f"np.{ufunc.__name__} cannot work on a device array: copy_to_host() first, or write a kernel for it"
        )

    def __getattr__(self, name):
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            raise AttributeError(
                f"a device array has no .{name}: copy_to_host() gives a NumPy array that has it, or write a kernel"
            )
        raise AttributeError(f"a device array has no attribute {name!r}")


def _no_operator(name: str, symbol: str):
    def refuse(self, *_):
        raise TypeError(f"{symbol} does not work on a device array: copy_to_host() first, or write a kernel for it")

    refuse.__name__ = name
    return refuse


_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
_OPERATORS |= {"matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}
for _name, _symbol in _OPERATORS.items():
    for _variant, _suffix in ((f"__{_name}__", ""), (f"__r{_name}__", ""), (f"__i{_name}__", "=")):
        setattr(DeviceNDArray, _variant, _no_operator(_variant, _symbol + _suffix))
for _name, _symbol in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "neg": "-", "abs": "abs", "invert": "~"}.items():
    setattr(DeviceNDArray, f"__{_name}__", _no_operator(f"__{_name}__", _symbol))


class DeviceRecord(DeviceNDArray):
    """One record of a structured dtype in device memory; `record["field"]` reads and writes its fields."""

    __slots__ = ()

    def __getitem__(self, field):
        part = self._array[field]
        if part.dtype.names is not None:
            return DeviceRecord(part, self.stream)
        return part[()] if part.ndim == 0 else DeviceNDArray(part, self.stream)

    def __setitem__(self, field, value):
        self._array[field] = value


class _HostVisible(np.ndarray):
    """Memory that host and kernels both address: a NumPy array on the host, device memory in a kernel."""

    stream = 0

    @property
    def _array(self) -> np.ndarray:
        return self.view(np.ndarray)

    __cuda_array_interface__ = property(lambda self: array_interface.exported(self._array, self.stream))

    def copy_to_host(self, ary=None, stream=0):
        return DeviceNDArray(self._array).copy_to_host(ary)

    def copy_to_device(self, ary, stream=0):
        DeviceNDArray(self._array).copy_to_device(ary)


class MappedNDArray(_HostVisible):
    """Pinned host memory that kernels address over the bus."""


class ManagedNDArray(_HostVisible):
    """Unified memory: pages move to whoever touches them."""


def to_device(obj, stream=0, copy=True, to=None):
    """Copy `obj` (an array, a list, a number or a record) to the device; a device array is returned as it is."""
    if to is not None:
        if copy:
            to.copy_to_device(obj, stream)
        return to
    if is_cuda_array(obj):
        return as_cuda_array(obj)
    host = np.asarray(obj)
    _check_contiguous(host)
    core = _core(host)
    memory = poisoned(core.shape, core.dtype, order="C" if core.flags.c_contiguous else "F")
    if copy:
        memory[...] = core
    array = memory if core.ndim == host.ndim else np.lib.stride_tricks.as_strided(memory, host.shape, host.strides)
    return DeviceRecord(array, stream) if isinstance(obj, np.void) else DeviceNDArray(array, stream)


def device_array(shape, dtype=np.float64, strides=None, order="C", stream=0) -> DeviceNDArray:
    """Memory that nothing wrote yet. It holds NaN (-1 in integers): read before written, it shows."""
    return DeviceNDArray(poisoned(shape, dtype, strides, order), stream)


def pinned_array(shape, dtype=np.float64, strides=None, order="C") -> np.ndarray:
    """A NumPy array in memory that the system keeps in place, so that copies from it can run beside kernels."""
    return poisoned(shape, dtype, strides, order)


def mapped_array(shape, dtype=np.float64, strides=None, order="C", stream=0, portable=False, wc=False) -> MappedNDArray:
    """A NumPy array that kernels can read and write without a copy."""
    return _with_stream(poisoned(shape, dtype, strides, order).view(MappedNDArray), stream)


def managed_array(shape, dtype=np.float64, strides=None, order="C", stream=0, attach_global=True) -> ManagedNDArray:
    """A NumPy array in unified memory, addressed by host and kernels."""
    return _with_stream(poisoned(shape, dtype, strides, order).view(ManagedNDArray), stream)


def _with_stream(array, stream):
    array.stream = stream
    return array


def device_array_like(ary, stream=0) -> DeviceNDArray:
    return DeviceNDArray(_poisoned_like(ary), stream)


def pinned_array_like(ary) -> np.ndarray:
    return _poisoned_like(ary)


def mapped_array_like(ary, stream=0, portable=False, wc=False) -> MappedNDArray:
    return _poisoned_like(ary).view(MappedNDArray)


@contextlib.contextmanager
def pinned(*arrays):
    """Keep host arrays in place while the block runs; the CPU device needs no more than the arrays themselves."""
    for array in arrays:
        _check_contiguous(array)
    yield


@contextlib.contextmanager
def mapped(*arrays, stream=0):
    """Device arrays that share the memory of the host arrays while the block runs."""
    for array in arrays:
        _check_contiguous(array)
    devices = [DeviceNDArray(array, stream) for array in arrays]
    yield devices[0] if len(devices) == 1 else devices


@contextlib.contextmanager
def defer_cleanup():
    """Memory is freed by Python as soon as nothing refers to it; there is nothing to put off."""
    yield


def is_device_memory(obj) -> bool:
    """Whether `obj` is an array of the CPU device itself."""
    return isinstance(obj, (DeviceNDArray, _HostVisible))


def is_cuda_array(obj) -> bool:
    """Whether `obj` says where in device memory it is: it has __cuda_array_interface__."""
    return is_device_memory(obj) or hasattr(obj, "__cuda_array_interface__")


def as_cuda_array(obj, sync=True) -> DeviceNDArray:
    """The device array that `obj` is, or that it describes with __cuda_array_interface__: no copy."""
    if is_device_memory(obj):
        return obj
    if not hasattr(obj, "__cuda_array_interface__"):
        type_name = type(obj).__name__
        raise TypeError(f"as_cuda_array: obj must be a device array, not {type_name}; use to_device() to copy it")
    described = obj.__cuda_array_interface__
    return DeviceNDArray(array_interface.imported("as_cuda_array", f"this {type(obj).__name__}", described, obj))


def from_cuda_array_interface(desc, owner=None, sync=True) -> DeviceNDArray:
    """The device array that a dictionary of the CUDA Array Interface describes: no copy."""
    subject = "the memory that desc describes"
    return DeviceNDArray(array_interface.imported("from_cuda_array_interface", subject, desc, owner))


def _poisoned_like(ary) -> np.ndarray:
    """Poisoned memory of the shape and dtype of `ary`, contiguous, with its order of axes."""
    array = as_cuda_array(ary)._array if is_cuda_array(ary) else ary
    return poisoned(array.shape, array.dtype, np.empty_like(array, subok=False).strides if array.ndim > 1 else None)


def _core(array: np.ndarray) -> np.ndarray:
    """The memory behind a broadcast array, without its repeated axes."""
    if array.size == 0 or 0 not in array.strides:
        return array
    return array[tuple(0 if stride == 0 else slice(None) for stride in array.strides)]


def _check_contiguous(array: np.ndarray) -> None:
    core = _core(array)
    if not (core.flags.c_contiguous or core.flags.f_contiguous):
        raise ValueError(
            f"the array of shape {array.shape} and strides {array.strides} has gaps in memory, so it cannot be copied "
            "in one piece: use np.ascontiguousarray(ary) on the host"
        )


def _check_same_layout(name: str, device: np.ndarray, other: np.ndarray) -> None:
    if device.dtype != other.dtype:
        raise TypeError(f"{name}: the device array has dtype {device.dtype}, ary has {other.dtype}; they must be equal")
    device_view, other_view = device.squeeze(), other.squeeze()
    if device_view.shape != other_view.shape:
        raise ValueError(f"{name}: the device array has shape {device.shape}, ary has {other.shape}")
    if device.size and device_view.strides != other_view.strides:
        raise ValueError(
            f"{name}: the device array has strides {device.strides}, ary has {other.strides}; they must be equal"
        )


def _basic_index(item) -> tuple:
    item = item if isinstance(item, tuple) else (item,)
    for part in item:
        if not isinstance(part, (int, np.integer, slice)) or isinstance(part, bool):
            raise TypeError(
                f"a device array takes integers and slices as index, not {type(part).__name__}: "
                "copy_to_host() first, or write a kernel"
            )
    return item
