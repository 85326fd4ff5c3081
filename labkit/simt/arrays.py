"""The host side of the CPU device: memory, streams, events and what the device says of itself.

The names and rules are numba.cuda's. Memory is a NumPy array that only a kernel and the copy functions may touch;
a kernel launch finds it as `d_a._array`. Work is done by the time a call returns, so streams keep order by doing
nothing, and an event is the time at which it was recorded.

Units   sizes in bytes, elapsed times in milliseconds
Source  CUDA C++ Programming Guide, "Device Memory", "Asynchronous Concurrent Execution", "Compute Capabilities"
"""

import contextlib
import itertools
import os
import time
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# The names of numba.cuda
__all__ = [
    "DeviceNDArray", "DeviceRecord", "MappedNDArray", "ManagedNDArray", "to_device", "device_array",
    "device_array_like", "pinned_array", "pinned_array_like", "mapped_array", "mapped_array_like", "managed_array",
    "pinned", "mapped", "defer_cleanup", "is_cuda_array", "as_cuda_array", "from_cuda_array_interface",
    "is_float16_supported", "is_bfloat16_supported", "is_fp8_supported", "In", "Out", "InOut", "ArgHint", "Stream",
    "Event", "stream", "default_stream", "legacy_default_stream", "per_thread_default_stream", "external_stream",
    "event", "event_elapsed_time", "synchronize", "profile_start", "profile_stop", "profiling", "MemoryInfo",
    "Device", "Context", "gpus", "list_devices", "select_device", "get_current_device", "current_context",
    "require_context", "close", "is_available", "is_supported_version", "cuda_error", "detect", "runtime",
]  # fmt: skip

POISON = 0xFF  # byte value of fresh memory: NaN as a float, -1 as an integer
ALIGNMENT = 256  # bytes; what cudaMalloc promises, and what coalescing is counted from
CHECK_ABOVE = 1 << 26  # bytes; smaller requests are not worth asking the system how much memory is free


@dataclass(frozen=True)
class Limits:
    """What a launch may ask for: compute capability 9.0, and 48 KB of shared memory as every CUDA device grants.

    shared_per_block_optin: what a kernel gets that was allowed more, on an H200.
    """

    max_threads_per_block: int = 1024
    max_block_dim: tuple[int, int, int] = (1024, 1024, 64)
    max_grid_dim: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    shared_per_block: int = 48 * 1024
    shared_per_block_optin: int = 232_448
    warp_size: int = 32


LIMITS = Limits()


# Memory ---------------------------------------------------------------------------------------------------------------


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

    @property
    def alloc_size(self) -> int:
        """Bytes from the first to the last element, gaps between rows included."""
        return _extent(self.shape, self.strides, self.itemsize)

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
        if is_cuda_array(ary):
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
        value = value._array if is_cuda_array(value) else np.asarray(value)
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
        dtype = _dtype(dtype)
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

    # What device memory cannot do, said to the learner who tries

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
        return obj
    host = np.asarray(obj)
    _check_contiguous(host)
    core = _core(host)
    memory = _poisoned(core.shape, core.dtype, order="C" if core.flags.c_contiguous else "F")
    if copy:
        memory[...] = core
    array = memory if core.ndim == host.ndim else np.lib.stride_tricks.as_strided(memory, host.shape, host.strides)
    return DeviceRecord(array, stream) if isinstance(obj, np.void) else DeviceNDArray(array, stream)


def device_array(shape, dtype=np.float64, strides=None, order="C", stream=0) -> DeviceNDArray:
    """Memory that nothing wrote yet. It holds NaN (-1 in integers): read before written, it shows."""
    return DeviceNDArray(_poisoned(shape, dtype, strides, order), stream)


def pinned_array(shape, dtype=np.float64, strides=None, order="C") -> np.ndarray:
    """A NumPy array in memory that the system keeps in place, so that copies from it can run beside kernels."""
    return _poisoned(shape, dtype, strides, order)


def mapped_array(shape, dtype=np.float64, strides=None, order="C", stream=0, portable=False, wc=False) -> MappedNDArray:
    """A NumPy array that kernels can read and write without a copy."""
    return _poisoned(shape, dtype, strides, order).view(MappedNDArray)


def managed_array(shape, dtype=np.float64, strides=None, order="C", stream=0, attach_global=True) -> ManagedNDArray:
    """A NumPy array in unified memory, addressed by host and kernels."""
    return _poisoned(shape, dtype, strides, order).view(ManagedNDArray)


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


def is_cuda_array(obj) -> bool:
    """Whether kernels of the CPU device can use `obj` as device memory."""
    return isinstance(obj, (DeviceNDArray, _HostVisible))


def as_cuda_array(obj, sync=True) -> DeviceNDArray:
    if is_cuda_array(obj):
        return obj
    if hasattr(obj, "__cuda_array_interface__"):
        raise TypeError(
            f"as_cuda_array: this {type(obj).__name__} is in GPU memory, which the CPU device cannot reach. "
            "Run with LABKIT_DEVICE=gpu, or copy it to the host and use to_device()"
        )
    raise TypeError(f"as_cuda_array: obj must be a device array, not {type(obj).__name__}; use to_device() to copy it")


def from_cuda_array_interface(desc, owner=None, sync=True):
    raise TypeError("from_cuda_array_interface: the CPU device cannot reach GPU memory; use to_device() on a host copy")


def is_float16_supported() -> bool:
    return True


def is_bfloat16_supported() -> bool:
    return False


def is_fp8_supported() -> bool:
    return False


def _shape(shape) -> tuple[int, ...]:
    shape = (shape,) if isinstance(shape, int) else shape
    if not isinstance(shape, (tuple, list)) or not all(isinstance(n, (int, np.integer)) for n in shape):
        raise TypeError(f"shape must be an int or a tuple of ints, not {shape!r} ({type(shape).__name__})")
    if any(n < 0 for n in shape):
        raise ValueError(f"shape must not be negative, got {tuple(shape)}")
    return tuple(int(n) for n in shape)


def _dtype(dtype) -> np.dtype:
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype must be a NumPy dtype such as np.float32, not {dtype!r} ({type(dtype)})") from None
    if dtype.hasobject:
        raise TypeError("a device array cannot hold Python objects: use a dtype of fixed size, such as np.float32")
    return dtype


def _extent(shape, strides, itemsize: int) -> int:
    """Bytes between the first and the end of the last element."""
    if 0 in shape:
        return 0
    return sum((n - 1) * abs(stride) for n, stride in zip(shape, strides, strict=True)) + itemsize


def _poisoned(shape, dtype, strides=None, order="C") -> np.ndarray:
    shape, dtype = _shape(shape), _dtype(dtype)
    if order not in ("C", "F"):
        raise ValueError(f"order must be 'C' or 'F', not {order!r}")
    strides = (strides,) if isinstance(strides, int) else strides or None
    if strides is None:
        nbytes = dtype.itemsize
        for n in shape:  # Python ints: a shape too large for the machine must not overflow
            nbytes *= n
    else:
        if len(strides) != len(shape) or any(stride < 0 for stride in strides):
            raise ValueError(f"strides must be one number of bytes, not negative, for each of {shape}, got {strides}")
        nbytes = _extent(shape, strides, dtype.itemsize)
    if nbytes > CHECK_ABOVE:
        free, total = _machine_memory()
        if nbytes > free:
            raise MemoryError(
                f"out of memory: {_gigabytes(nbytes)} asked for, {_gigabytes(free)} free of {_gigabytes(total)}. "
                "The memory of the CPU device is that of this machine; on a GPU it is the GPU's"
            )
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    memory = memory[start : start + nbytes]
    memory.fill(POISON)
    return np.ndarray(shape, dtype, memory, strides=strides, order=order)


def _poisoned_like(ary) -> np.ndarray:
    """Poisoned memory of the shape and dtype of `ary`, contiguous, with its order of axes."""
    array = ary._array if is_cuda_array(ary) else ary
    return _poisoned(array.shape, array.dtype, np.empty_like(array, subok=False).strides if array.ndim > 1 else None)


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
    ours, theirs = device.squeeze(), other.squeeze()
    if ours.shape != theirs.shape:
        raise ValueError(f"{name}: the device array has shape {device.shape}, ary has {other.shape}")
    if device.size and ours.strides != theirs.strides:
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


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.2f} GB"


def _machine_memory() -> "MemoryInfo":
    """Free and total memory of this machine, or of the container this process runs in."""
    if os.name == "nt":
        free, total = _windows_memory()
    else:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        free = page * os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else total
    try:  # Linux also counts what it could free for us
        with open("/proc/meminfo") as meminfo:
            free = next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable"))
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            allowed = int(limit.read())
            total, free = min(total, allowed), max(0, min(free, allowed - int(used.read())))
    except (OSError, ValueError):  # another system, or no container; ValueError: the limit reads "max"
        pass
    return MemoryInfo(free, total)


def _windows_memory() -> tuple[int, int]:
    import ctypes

    class Status(ctypes.Structure):  # MEMORYSTATUSEX
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong), ("total", ctypes.c_ulonglong)]
        _fields_ += [("free", ctypes.c_ulonglong), ("others", ctypes.c_ulonglong * 5)]

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return status.free, status.total


# Arguments of a launch ------------------------------------------------------------------------------------------------


class ArgHint:
    """How a host array travels to a kernel and back. A bare host array travels as InOut."""

    def __init__(self, value):
        self.value = value

    def to_device(self, retr: list, stream=0):
        """The device array for the kernel; what has to happen after the launch is appended to `retr`, to be called."""
        raise NotImplementedError


class In(ArgHint):
    """Copied to the device; what the kernel writes does not come back."""

    def to_device(self, retr, stream=0):
        return to_device(self.value, stream)


class Out(ArgHint):
    """Copied back after the launch; the kernel starts from memory that nothing wrote."""

    def to_device(self, retr, stream=0):
        device = to_device(self.value, stream, copy=isinstance(self, InOut))
        if device is not self.value:
            retr.append(lambda: device.copy_to_host(self.value, stream))
        return device


class InOut(Out):
    """Copied to the device before the launch and back after it."""


# Streams and events ---------------------------------------------------------------------------------------------------


class Stream:
    """Work in order. On the CPU device each call ends before it returns, so there is never anything to wait for."""

    def __init__(self, handle: int, name: str = ""):
        self.handle = handle
        self._name = name or f"CUDA stream {handle}"

    def __int__(self):
        return self.handle

    def __repr__(self):
        return f"<{self._name} of the CPU device>"

    def synchronize(self) -> None:
        pass

    @contextlib.contextmanager
    def auto_synchronize(self):
        yield self
        self.synchronize()

    def add_callback(self, callback, arg=None) -> None:
        """Call `callback(stream, status, arg)` when the work so far is done, which it is; its errors are warnings."""
        try:
            callback(self, 0, arg)
        except Exception as error:
            warnings.warn(f"Exception in stream callback: {error}", stacklevel=2)

    def async_done(self):
        """A future of the running event loop that resolves to this stream when the work so far is done."""
        import asyncio

        future = asyncio.get_running_loop().create_future()
        future.set_result(self)
        return future


_DEFAULT_STREAM = Stream(0, "Default CUDA stream")
_LEGACY_STREAM = Stream(1, "Legacy default CUDA stream")
_PER_THREAD_STREAM = Stream(2, "Per-thread default CUDA stream")
_handles = itertools.count(3)


def stream() -> Stream:
    return Stream(next(_handles))


def default_stream() -> Stream:
    return _DEFAULT_STREAM


def legacy_default_stream() -> Stream:
    return _LEGACY_STREAM


def per_thread_default_stream() -> Stream:
    return _PER_THREAD_STREAM


def external_stream(ptr: int):
    raise NotImplementedError("external_stream: the CPU device has no CUDA stream to wrap; use cuda.stream()")


class Event:
    """A point in a stream; two of them time what lies between."""

    def __init__(self, timing=True):
        self._timing = timing
        self._time_ns = None

    def record(self, stream=0) -> None:
        self._time_ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        pass

    def wait(self, stream=0) -> None:
        pass

    def query(self) -> bool:
        """Whether the work before the event is done."""
        return True

    def elapsed_time(self, evtend: "Event") -> float:
        return event_elapsed_time(self, evtend)


def event(timing=True) -> Event:
    return Event(timing)


def event_elapsed_time(evtstart: Event, evtend: Event) -> float:
    """Milliseconds between two recorded events."""
    for which, event in (("start", evtstart), ("end", evtend)):
        if not event._timing:
            raise RuntimeError(f"event_elapsed_time: the {which} event was made with timing=False, so it kept no time")
        if event._time_ns is None:
            raise RuntimeError(f"event_elapsed_time: the {which} event was never recorded: call its record() first")
    return (evtend._time_ns - evtstart._time_ns) / 1e6


def synchronize() -> None:
    """Wait until all work is done, which it is as soon as a call returns."""


def profile_start() -> None:
    pass


def profile_stop() -> None:
    pass


@contextlib.contextmanager
def profiling():
    yield


# The device and its context -------------------------------------------------------------------------------------------


class MemoryInfo(NamedTuple):
    free: int  # bytes
    total: int  # bytes


_ATTRIBUTES = {
    "WARP_SIZE": LIMITS.warp_size,
    "MAX_THREADS_PER_BLOCK": LIMITS.max_threads_per_block,
    "MAX_SHARED_MEMORY_PER_BLOCK": LIMITS.shared_per_block,
    "MULTIPROCESSOR_COUNT": os.cpu_count(),  # blocks run on the cores
    "TOTAL_CONSTANT_MEMORY": 64 * 1024,
    "UNIFIED_ADDRESSING": 1,
    "MANAGED_MEMORY": 1,
    "CAN_MAP_HOST_MEMORY": 1,
    "COOPERATIVE_LAUNCH": 1,
    "KERNEL_EXEC_TIMEOUT": 0,
    "PCI_DOMAIN_ID": 0,
    "PCI_BUS_ID": 0,
    "PCI_DEVICE_ID": 0,
}
for _axis, _threads, _blocks in zip("XYZ", LIMITS.max_block_dim, LIMITS.max_grid_dim, strict=True):
    _ATTRIBUTES |= {f"MAX_BLOCK_DIM_{_axis}": _threads, f"MAX_GRID_DIM_{_axis}": _blocks}


class Device:
    """The CPU device, described as a GPU describes itself. It is number 0 and the only one."""

    id = 0
    name = "labkit CPU device"
    compute_capability = (9, 0)
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    supports_float16 = True
    supports_bfloat16 = False
    supports_fp8 = False

    def __getattr__(self, attribute):
        if attribute in _ATTRIBUTES:
            return _ATTRIBUTES[attribute]
        raise AttributeError(f"the CPU device has no attribute {attribute!r}; it has {', '.join(sorted(_ATTRIBUTES))}")

    def __repr__(self):
        return f"<CUDA device 0 '{self.name}'>"

    def __enter__(self):
        return None  # as numba.cuda.gpus[0]

    def __exit__(self, *exception):
        pass

    def get_primary_context(self) -> "Context":
        return _CONTEXT

    def reset(self) -> None:
        pass


class Context:
    """What a process holds on the device."""

    def __init__(self, device: Device):
        self.device = device

    def get_memory_info(self) -> MemoryInfo:
        """Memory of this machine that is free and that there is."""
        return _machine_memory()

    def synchronize(self) -> None:
        pass

    def reset(self) -> None:
        """Forget all work; device arrays stay, as ordinary Python objects."""

    def push(self) -> None:
        pass

    def pop(self) -> None:
        pass

    defer_cleanup = staticmethod(defer_cleanup)
    create_stream = staticmethod(stream)
    create_event = staticmethod(event)
    create_external_stream = staticmethod(external_stream)
    get_default_stream = staticmethod(default_stream)
    get_legacy_default_stream = staticmethod(legacy_default_stream)
    get_per_thread_default_stream = staticmethod(per_thread_default_stream)


_DEVICE = Device()
_CONTEXT = Context(_DEVICE)


class DeviceList:
    """`cuda.gpus`: one device; `with cuda.gpus[0]:` selects it."""

    lst = (_DEVICE,)
    current = _DEVICE

    def __getitem__(self, index: int) -> Device:
        return self.lst[_device_number(index)]

    def __iter__(self):
        return iter(self.lst)

    def __len__(self):
        return len(self.lst)

    def __str__(self):
        return "<Managed Device 0>"


gpus = DeviceList()


def _device_number(device_id: int) -> int:
    if device_id != 0:
        raise IndexError(f"device {device_id} does not exist: the CPU device is the only one and has number 0")
    return 0


def list_devices() -> DeviceList:
    return gpus


def select_device(device_id: int) -> Device:
    return gpus[device_id]


def get_current_device() -> Device:
    return _DEVICE


def current_context(devnum: int | None = None) -> Context:
    _device_number(devnum or 0)
    return _CONTEXT


def require_context(fn):
    """A context is always there."""
    return fn


def close() -> None:
    """End the use of the device; the next call starts it again."""


def is_available() -> bool:
    """Whether kernels can run: they can, on the CPU."""
    return True


def is_supported_version() -> bool:
    return True


def cuda_error() -> str | None:
    """The reason why the device could not be started: none."""
    return None


def detect() -> bool:
    """Print which device runs the kernels; True, since one does."""
    print("Found 1 CUDA devices")
    print(f"id 0    {_DEVICE.name:>20} {'[SUPPORTED: no GPU, kernels run on the CPU]':>40}")
    print(f"{'Compute Capability':>40}: {'.'.join(map(str, _DEVICE.compute_capability))}, its limits and its rules")
    print(f"{'Multiprocessors':>40}: {_DEVICE.MULTIPROCESSOR_COUNT} (CPU cores)")
    print(f"{'Memory':>40}: {_gigabytes(_machine_memory().total)} (of this machine)")
    print(f"{'FP16 Support':>40}: Yes")
    print("Summary:\n\t1/1 devices are supported")
    return True


class Runtime:
    """`cuda.runtime`: the version of the CUDA toolkit, of which the CPU device uses none."""

    def get_version(self) -> tuple[int, int]:
        return (0, 0)

    def is_supported_version(self) -> bool:
        return True


runtime = Runtime()
