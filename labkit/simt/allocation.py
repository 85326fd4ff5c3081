"""Fresh memory of the CPU device: aligned, and poisoned, so that what nothing wrote shows."""

import os
from typing import NamedTuple

import numpy as np

POISON = 0xFF  # byte value of fresh memory: NaN as a float, -1 as an integer
ALIGNMENT = 256  # bytes; what cudaMalloc promises, and what coalescing is counted from
CHECK_ABOVE = 1 << 26  # bytes; smaller requests are not worth asking the system how much memory is free


class MemoryInfo(NamedTuple):
    free: int  # bytes
    total: int  # bytes


def poisoned(shape, dtype, strides=None, order="C") -> np.ndarray:
    shape, dtype = checked_shape(shape), checked_dtype(dtype)
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
        nbytes = extent_bytes(shape, strides, dtype.itemsize)
    if nbytes > CHECK_ABOVE:
        free, total = machine_memory()
        if nbytes > free:
            raise MemoryError(
                f"out of memory: {gigabytes(nbytes)} requested, {gigabytes(free)} free of {gigabytes(total)}. "
                "The memory of the CPU device is that of this machine; on a GPU it is the GPU's"
            )
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    memory = memory[start : start + nbytes]
    memory.fill(POISON)
    return np.ndarray(shape, dtype, memory, strides=strides, order=order)


def checked_shape(shape) -> tuple[int, ...]:
    shape = (shape,) if isinstance(shape, int) else shape
    if isinstance(shape, np.ndarray) and shape.ndim == 1 and shape.dtype.kind in "iu":
        shape = tuple(shape.tolist())
    if not isinstance(shape, (tuple, list)) or not all(isinstance(n, (int, np.integer)) for n in shape):
        raise TypeError(f"shape must be an int or a tuple of ints, not {shape!r} ({type(shape).__name__})")
    if any(n < 0 for n in shape):
        raise ValueError(f"shape must not be negative, got {tuple(shape)}")
    return tuple(int(n) for n in shape)


def checked_dtype(dtype) -> np.dtype:
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype must be a NumPy dtype such as np.float32, not {dtype!r} ({type(dtype)})") from None
    if dtype.hasobject:
        raise TypeError("a device array cannot hold Python objects: use a dtype of fixed size, such as np.float32")
    return dtype


def extent_bytes(shape, strides, itemsize: int) -> int:
    """Bytes between the first and the end of the last element."""
    if 0 in shape:
        return 0
    return sum((n - 1) * abs(stride) for n, stride in zip(shape, strides, strict=True)) + itemsize


def gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.2f} GB"


def machine_memory() -> "MemoryInfo":
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
