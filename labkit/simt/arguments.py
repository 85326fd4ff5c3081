"""The arguments of a launch: which values a kernel takes, and how host arrays travel to it and back."""

import numba
import numpy as np
from numba.core import types

from labkit.simt.arrays import DeviceNDArray, DeviceRecord, as_cuda_array, to_device
from labkit.simt.errors import ArgumentError
from labkit.simt.ptx import TensorMap

__all__ = ["ArgHint", "In", "InOut", "Out"]  # the names of numba.cuda


TENSOR_MAP_TYPE = types.Opaque("tensor_map")


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


def host_view(value):
    """What compiled code works on: the NumPy array behind a device array, other values as they are."""
    if isinstance(value, DeviceRecord):
        return value._array[()]
    if type(value) is tuple:
        return tuple(host_view(v) for v in value)
    return value._array if isinstance(value, DeviceNDArray) else value


def argument_value(kernel, name, value):
    """What compiled code is given for an argument of a launch. Raises ArgumentError for what a kernel cannot take."""
    who = f"{kernel.__name__}: argument {name!r}"
    value = host_view(value)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or value.dtype.kind in "SUOmM":
            raise ArgumentError(f"{who} is an array of {value.dtype}; a kernel takes numbers")
        return value
    if isinstance(value, np.float16):
        return np.float32(value)
    if isinstance(value, (bool, int, float, complex, np.generic, tuple, TensorMap)):
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise ArgumentError(f"{who} is {value}, which does not fit in 64 bits")
        return value
    if isinstance(value, (list, str, dict, set)) or value is None or callable(value):
        raise ArgumentError(
            f"{who} is a host object ({type(value).__name__}); a kernel takes numbers, tuples of numbers and arrays"
        )
    if hasattr(value, "__cuda_array_interface__"):
        return as_cuda_array(value)._array
    if hasattr(value, "__array__"):  # a torch tensor on the CPU, say
        return np.asarray(value)
    raise ArgumentError(f"{who} has the type {type(value).__name__}; a kernel takes numbers, tuples and arrays")


def fits(value, ty):
    """Whether a kernel that was compiled for this type takes the value."""
    if isinstance(value, TensorMap):
        return True
    if isinstance(ty, types.Array):
        if not isinstance(value, np.ndarray) or value.ndim != ty.ndim:
            return False
        given = numba.typeof(value)
        return given.dtype == ty.dtype and (ty.layout in ("A", given.layout) or value.size == 1) and (
            given.mutable or not ty.mutable
        )  # fmt: skip
    return not isinstance(value, np.ndarray)


def as_scalar(value, ty):
    if isinstance(ty, (types.Integer, types.Float, types.Complex, types.Boolean)):
        return numba.np.numpy_support.as_dtype(ty).type(value)
    return value
