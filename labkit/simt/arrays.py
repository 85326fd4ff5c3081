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
from labkit.simt.allocation import checked_dtype, checked_shape, extent_bytes, poisoned
from labkit.simt.device_memory import MemoryPointer
from labkit.simt.streams import default_stream, external_stream

__all__ = [
    "DeviceNDArray", "DeviceRecord", "ManagedNDArray", "MappedNDArray", "as_cuda_array", "defer_cleanup",
    "device_array", "device_array_like", "from_cuda_array_interface", "is_cuda_array", "managed_array", "mapped",
    "mapped_array", "mapped_array_like", "pinned", "pinned_array", "pinned_array_like", "to_device",
]  # fmt: skip
NOT_CONTIGUOUS = (  # numba.cuda's words
    "Array contains non-contiguous buffer and cannot be transferred as a single memory region. Please ensure "
    "contiguous buffer with numpy .ascontiguousarray()"
)


class DeviceNDArray:
    """An array in device memory. Kernels read and write it; the host copies it: `d_a.copy_to_host()`."""

    __slots__ = ("_array", "stream", "__weakref__")
    __cuda_memory__ = __cuda_ndarray__ = True

    def __init__(self, shape, strides, dtype, stream=0, gpu_data=None):
        """gpu_data: a MemoryPointer to use, with room for the array; fresh memory unless given."""
        if gpu_data is None:
            self._hold(poisoned(shape, dtype, strides), stream)
        else:
            self._hold(_at(gpu_data, checked_shape(shape), strides, checked_dtype(dtype)), stream)

    def _hold(self, array: np.ndarray, stream) -> None:
        self._array, self.stream = array, stream

    shape = property(lambda self: self._array.shape)
    strides = property(lambda self: self._array.strides)
    dtype = property(lambda self: self._array.dtype)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    nbytes = property(lambda self: self._array.nbytes)
    itemsize = property(lambda self: self._array.itemsize)
    T = property(lambda self: self.transpose())
    _numba_type_ = property(lambda self: numba.typeof(self._array))
    device_ctypes_pointer = property(lambda self: ctypes.c_size_t(self._array.ctypes.data if self.size else 0))
    gpu_data = property(lambda self: _memory_of(self._array))
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
            raise NotImplementedError(f"D->H copy not implemented for negative strides: {self.strides}")
        if isinstance(ary, np.void):
            _check_same_layout(self._array, np.asarray(ary))
            for name in ary.dtype.names:
                ary[name] = self._array[name]
            return ary
        if ary is None:
            ary = np.ndarray(self.shape, self.dtype, np.empty(self.alloc_size, np.uint8), strides=self.strides)
        elif not isinstance(ary, np.ndarray):
            raise TypeError(f"copy_to_host: ary must be a NumPy array, not {type(ary).__name__}")
        else:
            _check_same_layout(self._array, ary)
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
        _check_same_layout(target, source)
        target.squeeze()[...] = source.squeeze()

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if copy is False:
            raise ValueError("`copy=False` is not supported: the values of a device array always have to be copied")
        host = self.copy_to_host()
        return host if dtype is None else host.astype(dtype)

    def as_cuda_arg(self) -> MemoryPointer:
        return self.gpu_data

    def get_ipc_handle(self):
        raise NotImplementedError("get_ipc_handle: other processes cannot reach the memory of the CPU device")

    # Views: no copy, the same memory

    def __getitem__(self, item):
        part = self._array[(*_basic_index(item), ...)]  # the ellipsis makes it a view, of 0 dimensions for an element
        if part.ndim:
            return on_device(part, self.stream)
        return part[()] if part.dtype.names is None else on_device(part, self.stream, DeviceRecord)

    def __setitem__(self, item, value):
        self.setitem(item, value)

    def setitem(self, item, value, stream=0):
        value = value._array if is_device_memory(value) else np.asarray(value)
        target = self._array[(*_basic_index(item), ...)]
        if value.ndim > target.ndim:
            raise ValueError(f"Can't assign {value.ndim}-D array to {target.ndim}-D self")
        try:
            target[...] = value
        except ValueError:
            raise ValueError(_cannot_copy(value, target)) from None
        if not (stream or self.stream):
            default_stream().synchronize()

    def getitem(self, item, stream=0):
        return self[item]

    def bind(self, stream=0) -> "DeviceNDArray":
        """The same memory with `stream` as its default stream."""
        return on_device(self._array, stream)

    def view(self, dtype) -> "DeviceNDArray":
        """The same bytes read as `dtype`."""
        dtype = checked_dtype(dtype)
        if dtype.itemsize != self.itemsize and not self.is_c_contiguous():
            raise ValueError("To change to a dtype of a different size, the array must be C-contiguous")
        return on_device(self._array.view(dtype), self.stream)

    def reshape(self, *shape, order="C") -> "DeviceNDArray":
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = tuple(shape[0])
        return self._without_copy("reshape", self._array.reshape(shape, order=order))

    def ravel(self, order="C", stream=0) -> "DeviceNDArray":
        return self._without_copy("ravel", self._array.ravel(order=order))

    def squeeze(self, axis=None, stream=0) -> "DeviceNDArray":
        return on_device(self._array.squeeze(axis), stream or self.stream)

    def split(self, section: int, stream=0):
        """Parts of `section` elements each, the last one shorter where it does not divide."""
        if self.ndim != 1 or not self.is_c_contiguous():
            raise ValueError(f"split: only a contiguous 1-D device array can be split, this one has shape {self.shape}")
        for begin in range(0, self.size, section):
            yield on_device(self._array[begin : begin + section], stream or self.stream)

    def _without_copy(self, name: str, result: np.ndarray) -> "DeviceNDArray":
        if result.size and not np.may_share_memory(result, self._array):
            raise NotImplementedError(f"{name}: this would need a copy, since the device array is not contiguous")
        return on_device(result, self.stream)

    def transpose(self, axes=None) -> "DeviceNDArray":
        """A transposed copy in new memory, for two dimensions, as numba.cuda makes it."""
        if axes is not None and tuple(axes) == tuple(range(self.ndim)):
            return self
        if self.ndim != 2:
            raise NotImplementedError("transposing a non-2D DeviceNDArray isn't supported")
        if axes is not None and sorted(axes) != [0, 1]:
            raise ValueError(f"invalid axes list {axes!r}")
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
    _numba_type_ = property(lambda self: numba.from_dtype(self.dtype))

    def __init__(self, dtype, stream=0, gpu_data=None):
        super().__init__((), None, dtype, stream, gpu_data)

    def __getitem__(self, field):
        part = self._array[field]
        if part.dtype.names is not None:
            return on_device(part, self.stream, DeviceRecord)
        return part[()] if part.ndim == 0 else on_device(part, self.stream)

    def __setitem__(self, field, value):
        self._array[field] = value


class _HostVisible(np.ndarray):
    """Memory that host and kernels both address: a NumPy array on the host, device memory in a kernel."""

    stream = 0

    @property
    def _array(self) -> np.ndarray:
        return self.view(np.ndarray)

    __cuda_memory__ = __cuda_ndarray__ = True
    device_ctypes_pointer = DeviceNDArray.device_ctypes_pointer
    gpu_data = DeviceNDArray.gpu_data
    alloc_size = DeviceNDArray.alloc_size
    as_cuda_arg, get_ipc_handle = DeviceNDArray.as_cuda_arg, DeviceNDArray.get_ipc_handle
    is_c_contiguous, is_f_contiguous = DeviceNDArray.is_c_contiguous, DeviceNDArray.is_f_contiguous
    __cuda_array_interface__ = property(lambda self: array_interface.exported(self._array, self.stream))

    def bind(self, stream=0):
        """The same memory with `stream` as its default stream."""
        return _with_stream(self.view(), stream)

    def split(self, section, stream=0):
        return on_device(self._array, self.stream).split(section, stream)

    def copy_to_host(self, ary=None, stream=0):
        return on_device(self._array).copy_to_host(ary)

    def copy_to_device(self, ary, stream=0):
        on_device(self._array).copy_to_device(ary)


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
    return on_device(array, stream, DeviceRecord if isinstance(obj, np.void) else DeviceNDArray)


def device_array(shape, dtype=np.float64, strides=None, order="C", stream=0) -> DeviceNDArray:
    """Memory that nothing wrote yet. It holds NaN (-1 in integers): read before written, it shows."""
    return on_device(poisoned(shape, dtype, strides, order), stream)


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
    return on_device(_poisoned_like(ary), stream)


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
    devices = [on_device(array, stream) for array in arrays]
    yield devices[0] if len(devices) == 1 else devices


@contextlib.contextmanager
def defer_cleanup():
    """Memory is freed by Python as soon as nothing refers to it; there is nothing to put off."""
    yield


def on_device(array: np.ndarray, stream=0, kind=DeviceNDArray) -> DeviceNDArray:
    """The device array whose memory is this NumPy array."""
    made = object.__new__(kind)
    made._hold(array, stream)
    return made


def _memory_of(array: np.ndarray) -> MemoryPointer:
    """The memory of an array, from its first byte to its last."""
    if not array.size:
        return MemoryPointer(None, 0, 0)
    low, high = array_interface.bounds(array.ctypes.data, array.shape, array.strides, array.itemsize)
    return MemoryPointer(None, low, high - low, array)


def _at(memory: MemoryPointer, shape, strides, dtype) -> np.ndarray:
    """The array of these elements at the beginning of `memory`."""
    strides = strides or tuple(int(np.prod(shape[k + 1 :])) * dtype.itemsize for k in range(len(shape)))
    needed = extent_bytes(shape, strides, dtype.itemsize)
    if needed > memory.size:
        raise ValueError(f"gpu_data has {memory.size} bytes, and an array of shape {shape} needs {needed}")
    described = {"shape": shape, "strides": strides, "typestr": dtype.str, "data": (memory.device_pointer, False)}
    return array_interface.array_at(described, memory)


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
    return _described("as_cuda_array", f"this {type(obj).__name__}", obj.__cuda_array_interface__, obj, sync)


def from_cuda_array_interface(desc, owner=None, sync=True) -> DeviceNDArray:
    """The device array that a dictionary of the CUDA Array Interface describes: no copy."""
    return _described("from_cuda_array_interface", "the memory that desc describes", desc, owner, sync)


def _described(name, subject, desc, owner, sync) -> DeviceNDArray:
    array = array_interface.imported(name, subject, desc, owner)
    stream = external_stream(desc["stream"]) if desc.get("stream") else 0
    if stream and sync and numba.config.CUDA_ARRAY_INTERFACE_SYNC:
        stream.synchronize()
    return on_device(array, stream)


def _poisoned_like(ary) -> np.ndarray:
    """Poisoned memory of the shape and dtype of `ary`, contiguous, with its order of axes."""
    array = as_cuda_array(ary)._array if is_cuda_array(ary) else ary
    return poisoned(array.shape, array.dtype, np.empty_like(array, subok=False).strides if array.ndim > 1 else None)


def _cannot_copy(value: np.ndarray, target: np.ndarray) -> str:
    shape = (1,) * (target.ndim - value.ndim) + value.shape
    for axis, (given, has) in enumerate(zip(shape, target.shape, strict=True)):
        if given not in (1, has):
            return f"Can't copy sequence with size {given} to array axis {axis} with dimension {has}"
    return f"cannot convert {value.dtype} to {target.dtype}"


def is_contiguous(array) -> bool:
    """Whether an array is C-contiguous, apart from its repeated axes and those of one element."""
    size = array.dtype.itemsize
    for n, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if n > 1 and stride != 0:
            if size != stride:
                return False
            size *= n
    return True


def _core(array: np.ndarray) -> np.ndarray:
    """The memory behind a broadcast array, without its repeated axes."""
    if array.size == 0 or 0 not in array.strides:
        return array
    return array[tuple(0 if stride == 0 else slice(None) for stride in array.strides)]


def _check_contiguous(array: np.ndarray) -> None:
    core = _core(array)
    if not (core.flags.c_contiguous or core.flags.f_contiguous):
        raise ValueError(NOT_CONTIGUOUS)


def _check_same_layout(device: np.ndarray, other: np.ndarray) -> None:
    if device.dtype != other.dtype:
        raise TypeError(f"incompatible dtype: {device.dtype} vs. {other.dtype}")
    device_view, other_view = device.squeeze(), other.squeeze()
    if device_view.shape != other_view.shape:
        raise ValueError(f"incompatible shape: {device.shape} vs. {other.shape}")
    if device.size and device_view.strides != other_view.strides:
        raise ValueError(f"incompatible strides: {device.strides} vs. {other.strides}")


def _basic_index(item) -> tuple:
    item = item if isinstance(item, tuple) else (item,)
    for part in item:
        if not isinstance(part, (int, np.integer, slice)) or isinstance(part, bool):
            raise TypeError(
                f"a device array takes integers and slices as index, not {type(part).__name__}: "
                "copy_to_host() first, or write a kernel"
            )
    return item
