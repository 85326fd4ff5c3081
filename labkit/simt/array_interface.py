"""The CUDA Array Interface, version 3, for memory of the CPU device: how other libraries learn where an array is.

An address of the CPU device is one of the host. What another library describes is taken if it lies within an array that
was described to it; memory of a GPU is refused, and so is any other address.

Source  Numba's documentation, "CUDA Array Interface (Version 3)"
"""

import ctypes
import functools
import sys
import weakref

import numpy as np

from labkit.simt.allocation import extent_bytes

_EXPORTED = weakref.WeakValueDictionary()  # (first byte, end) -> the array that was described


@functools.cache
def driver_is_here() -> bool:
    """Whether a driver of NVIDIA's can be loaded: then a library may take a host address for one of its GPU."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def exported(array: np.ndarray, stream) -> dict:
    """The description of `array`, whose work is ordered by `stream` (0 for none). AttributeError where a GPU's library
    could use the address, which is none of its memory."""
    if driver_is_here():
        raise AttributeError("an array of the CPU device has no __cuda_array_interface__ where there is a GPU's driver")
    address = array.__array_interface__["data"][0] if array.size else 0
    if array.size:
        _EXPORTED[bounds(address, array.shape, array.strides, array.itemsize)] = array
    return {
        "shape": array.shape, "strides": None if array.flags.c_contiguous else array.strides, "version": 3,
        "typestr": array.dtype.str, "data": (address, not array.flags.writeable),
        "stream": int(stream.handle) if getattr(stream, "handle", 0) else None,
    }  # fmt: skip


class _Memory:
    """Memory at an address, for NumPy; keeps what owns it alive."""

    def __init__(self, described, owners):
        self.__array_interface__, self.owners = described, owners


def imported(name: str, subject: str, described: dict, owner) -> np.ndarray:
    """The array for a description, without a copy.

    name: the function of numba.cuda, subject: the memory, for the error. Raises TypeError for memory that is not the
    CPU device's, NotImplementedError for a masked array.
    """
    if described.get("mask") is not None:
        raise NotImplementedError(f"Masked arrays are not supported by cuda.{name}")
    shape, dtype, strides = tuple(described["shape"]), np.dtype(described["typestr"]), described.get("strides")
    if 0 in shape:
        return np.empty(shape, dtype)
    if not strides:
        strides = tuple(int(np.prod(shape[k + 1 :])) * dtype.itemsize for k in range(len(shape)))
    low, high = bounds(described["data"][0], shape, strides, dtype.itemsize)
    base = next((a for (start, end), a in list(_EXPORTED.items()) if start <= low and high <= end), None)
    if base is None:
        raise TypeError(
            f"{name}: {subject} is not memory of the CPU device, which cannot reach memory of a GPU. Run with "
            "LABKIT_DEVICE=gpu, or copy it to the host and use to_device()"
        )
    interface = {"shape": shape, "strides": tuple(strides), "typestr": dtype.str, "data": tuple(described["data"])}
    return array_at(interface, (base, owner))


def array_at(described: dict, owners) -> np.ndarray:
    """The array at an address of this process; it keeps `owners` alive."""
    return np.asarray(_Memory({"version": 3, **described}, owners))


def bounds(address, shape, strides, itemsize) -> tuple[int, int]:
    """The first byte of an array, and the end of its last."""
    low = address + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if stride < 0)
    return low, low + extent_bytes(shape, strides, itemsize)
