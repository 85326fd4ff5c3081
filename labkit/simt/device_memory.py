"""Untyped device memory, and the functions of numba.cuda.cudadrv.driver that copy between addresses.

An address of the CPU device is one of the host. A copy that would leave memory of known size raises ValueError.

Units   sizes in bytes
Source  Numba's documentation, "External Memory Management (EMM) Plugin interface"
"""

import ctypes
import weakref

import numpy as np

from labkit.simt.allocation import extent_bytes, poisoned


class MemoryPointer:
    """A range of device memory. It lives as long as this object or a view of it does; then `finalizer` is called."""

    __cuda_memory__ = True

    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        """pointer: the address, as an int or a c_void_p. owner: what keeps the memory alive."""
        self.context, self.size, self._owner = context, size, owner
        self.device_pointer = self.handle = (pointer.value if isinstance(pointer, ctypes.c_void_p) else pointer) or 0
        self.is_managed = finalizer is not None
        self._views = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, finalizer) if finalizer is not None else None

    owner = property(lambda self: self._owner if isinstance(self._owner, MemoryPointer) else self)
    refct = property(lambda self: 1 + len(self._views))
    device_ctypes_pointer = property(lambda self: ctypes.c_size_t(self.device_pointer))
    device_pointer_value = property(lambda self: self.device_pointer or None)

    def own(self) -> "MemoryPointer":
        """Another reference to the same memory."""
        return self.view(0)

    def view(self, start, stop=None) -> "MemoryPointer":
        """The memory from byte `start` to byte `stop`, or to the end."""
        size = (self.size if stop is None else stop) - start
        if size < 0:
            raise RuntimeError(f"size cannot be negative: view({start}, {stop}) of {self.size} bytes")
        view = MemoryPointer(self.context, self.device_pointer + start, size, self.owner)
        self.owner._views.add(view)
        return view

    def free(self) -> None:
        """Call the finalizer now."""
        if self._finalizer is not None:
            if not self._finalizer.alive:
                raise RuntimeError("Freeing dead memory")
            self._finalizer()

    def memset(self, byte, count=None, stream=0) -> None:
        device_memset(self, byte, self.size if count is None else count, stream)


def allocated(nbytes, context=None) -> MemoryPointer:
    """Fresh memory."""
    memory = poisoned(nbytes, np.uint8)
    return MemoryPointer(context, memory.ctypes.data, nbytes, memory)


def is_device_memory(obj) -> bool:
    return getattr(obj, "__cuda_memory__", False)


def require_device_memory(obj) -> None:
    if not is_device_memory(obj):
        raise TypeError(f"Not a CUDA memory object: {type(obj).__name__}; use cuda.to_device()")


def device_ctypes_pointer(obj):
    if obj is None:
        return ctypes.c_size_t(0)
    require_device_memory(obj)
    return obj.device_ctypes_pointer


def device_pointer(obj) -> int:
    """The address of device memory."""
    return device_ctypes_pointer(obj).value


def device_memory_size(obj) -> int:
    require_device_memory(obj)
    return obj.size if isinstance(obj, MemoryPointer) else _extent(obj)


def host_memory_extents(obj) -> tuple[int, int]:
    """The first address of a host buffer, and the end of its last element."""
    array = np.asarray(obj)
    low, high = np.lib.array_utils.byte_bounds(array) if hasattr(np.lib, "array_utils") else np.byte_bounds(array)
    return int(low), int(high)


def host_memory_size(obj) -> int:
    low, high = host_memory_extents(obj)
    return high - low


def host_pointer(obj, readonly=False) -> int:
    """The address of a host buffer. An int is one already."""
    if isinstance(obj, (int, np.integer)):
        return int(obj)
    array = np.asarray(obj)
    if not readonly and not array.flags.writeable:
        raise ValueError("host_pointer: the buffer is read-only, and must be writable")
    return array.ctypes.data


def host_to_device(dst, src, size, stream=0) -> None:
    """Copy `size` bytes of the host buffer `src` to the device memory `dst`."""
    _check_size("host_to_device", size, dst=device_memory_size(dst), src=_host_size(src))
    ctypes.memmove(device_pointer(dst), host_pointer(src, readonly=True), size)


def device_to_host(dst, src, size, stream=0) -> None:
    """Copy `size` bytes of the device memory `src` to the host buffer `dst`."""
    _check_size("device_to_host", size, dst=_host_size(dst), src=device_memory_size(src))
    ctypes.memmove(host_pointer(dst), device_pointer(src), size)


def device_to_device(dst, src, size, stream=0) -> None:
    _check_size("device_to_device", size, dst=device_memory_size(dst), src=device_memory_size(src))
    ctypes.memmove(device_pointer(dst), device_pointer(src), size)


def device_memset(dst, val, size, stream=0) -> None:
    """Set `size` bytes of device memory to the value `val`, 0 to 255."""
    _check_size("device_memset", size, dst=device_memory_size(dst))
    ctypes.memset(device_pointer(dst), val & 0xFF, size)


def _host_size(obj):
    return None if isinstance(obj, (int, np.integer)) else host_memory_size(obj)


def _extent(array) -> int:
    return extent_bytes(array.shape, array.strides, array.dtype.itemsize)


def _check_size(name, size, **sizes):
    for which, has in sizes.items():
        if has is not None and not 0 <= size <= has:
            raise ValueError(f"{name}: size is {size}; it must be 0 to {has}, the bytes of {which}")
