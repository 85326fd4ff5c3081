"""The arguments of a launch: which values a kernel takes, and how host arrays travel to it and back."""

import numba
import numpy as np
from numba.core import types

from labkit.simt.arrays import DeviceNDArray, DeviceRecord, to_device
from labkit.simt.ptx import TensorMap

__all__ = ["ArgHint", "In", "InOut", "Out"]  # the names of numba.cuda


_TENSOR_MAP = types.Opaque("tensor_map")


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


def _host_view(value):
    """What compiled code works on: the NumPy array behind a device array, other values as they are."""
    if isinstance(value, DeviceRecord):
        return value._array[()]
    if type(value) is tuple:
        return tuple(_host_view(v) for v in value)
    return value._array if isinstance(value, DeviceNDArray) else value


def _fits(value, ty):
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


def _as_scalar(value, ty):
    if isinstance(ty, (types.Integer, types.Float, types.Complex, types.Boolean)):
        return numba.np.numpy_support.as_dtype(ty).type(value)
    return value
