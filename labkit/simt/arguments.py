"""The arguments of a launch: which values a kernel takes, and how host arrays travel to it and back."""

import enum

import numba
import numpy as np
from numba.core import registry, types
from numba.np import numpy_support

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
        """Return the device array for the kernel; append callbacks to run after the launch to `retr`."""
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


def tuple_like(value, parts):
    """A tuple of these parts; where `value` has names for its own, a tuple with the same names."""
    return value._make(parts) if hasattr(value, "_make") else tuple(parts)


def host_view(value):
    """What compiled code works on: the NumPy array behind a device array, other values as they are."""
    if isinstance(value, DeviceRecord):
        return value._array[()]
    if isinstance(value, tuple):
        return tuple_like(value, map(host_view, value))
    return value._array if isinstance(value, DeviceNDArray) else value


def argument_value(kernel, name, value):
    """What compiled code is given for an argument of a launch. Raises ArgumentError for what a kernel cannot take."""
    who = f"{kernel.__name__}: argument {name!r}"
    on_device, value = isinstance(value, DeviceNDArray), host_view(value)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise ArgumentError(f"{who} is an array of {value.dtype}; a kernel takes numbers")
        _check_aligned(who, value.dtype)
        if on_device and not value.flags.aligned:  # an array of the host is copied to an address that is
            raise ArgumentError(f"{who} begins at an address that is not a multiple of the {value.dtype.alignment} "
                                f"bytes that {value.dtype} needs; a GPU stops at the first access to it")
        return value
    if isinstance(value, np.float16):
        return np.float32(value)
    if isinstance(value, tuple):
        return tuple_like(value, (argument_value(kernel, f"{name}[{k}]", part) for k, part in enumerate(value)))
    if isinstance(value, (bool, int, float, complex, np.generic, TensorMap, enum.Enum)):
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


_SCALARS = {bool, float, complex, *(np.dtype(code).type for code in "?bBhHiIlLqQfdFD")}


def quick_arguments(args):
    """(values, what decides their types) where all are of kinds that need few checks, else (None, None).

    The same decide them in another launch: its values need no other check than this one's.
    """
    values, kinds = [], []
    for value in args:
        kind = type(value)
        if kind is DeviceNDArray:
            value = value._array
            kind = type(value)
        if kind is np.ndarray:
            kind = value.dtype, value.ndim, value.flags.num
        elif kind is int:
            if not -(2**63) <= value < 2**63:
                return None, None
        elif kind not in _SCALARS:
            return None, None
        values.append(value)
        kinds.append(kind)
    return values, tuple(kinds)


def check_signature(name, argument_types):
    """Raises ArgumentError for a signature with records that a GPU cannot load."""
    for ty in argument_types:
        if isinstance(ty, types.Array) and isinstance(ty.dtype, types.Record):
            _check_aligned(f"{name}: the type {ty} of the signature", numpy_support.as_dtype(ty.dtype))


def _check_aligned(who, dtype):
    """A GPU loads a number of 4 bytes from a multiple of 4 only: the fields of a record must be aligned."""
    if dtype.names is None:
        return
    for name in dtype.names:
        field, offset = dtype.fields[name][:2]
        if offset % field.alignment or dtype.itemsize % field.alignment:
            raise ArgumentError(
                f"{who} is an array of records, and at the field {name!r}, byte {offset} of {dtype.itemsize}, the "
                f"type {field} is not aligned to {field.alignment} bytes; make the dtype with align=True"
            )
        _check_aligned(who, field.base)


# ---------------------------------------------------------------- a kernel that is compiled for given types


def fits(value, ty):
    """How far a value is from the type of a signature: 0 the same, more the worse; None if it cannot be passed."""
    if isinstance(value, TensorMap):
        return 0
    if isinstance(ty, types.Array):
        if not isinstance(value, np.ndarray) or value.ndim != ty.ndim:
            return None
        actual = numba.typeof(value)
        same = actual.dtype == ty.dtype and (ty.layout in ("A", actual.layout) or value.size == 1)
        return 0 if same and (actual.mutable or not ty.mutable) else None
    if isinstance(ty, types.BaseTuple):
        if not isinstance(value, tuple) or len(value) != len(ty.types):
            return None
        distances = [fits(part, part_type) for part, part_type in zip(value, ty.types, strict=True)]
        return None if None in distances else max(distances, default=0)
    if isinstance(ty, types.Record):
        return 0 if isinstance(value, np.void) and numba.typeof(value) == ty else None
    if isinstance(value, (np.ndarray, tuple, np.void)):
        return None
    if isinstance(ty, types.Integer) and not isinstance(value, (int, np.integer, np.bool_)):
        return None  # a launch on a GPU refuses to cut a number off
    if isinstance(ty, types.Float) and isinstance(value, (complex, np.complexfloating)):
        return None
    conversion = registry.cpu_target.typing_context.can_convert(numba.typeof(value), ty)
    return None if conversion is None else conversion.value


def as_scalar(value, ty):
    """The value as a kernel takes it that is compiled for this type; integers wrap around, as in a GPU's launch."""
    if isinstance(ty, types.BaseTuple):
        return tuple_like(value, (as_scalar(part, part_type) for part, part_type in zip(value, ty.types, strict=True)))
    if isinstance(ty, types.Integer):
        bits = int(value) & ((1 << ty.bitwidth) - 1)
        return np.array(bits, f"u{ty.bitwidth // 8}").view(ty.name)[()]
    if ty == types.float16:
        return np.float32(np.float16(value))
    if isinstance(ty, (types.Float, types.Complex, types.Boolean)):
        return numpy_support.as_dtype(ty).type(value)
    return value


def passed_type(ty):
    """The type that compiled code is given: Numba cannot pass a float16 to a CPU, its value travels as a float32."""
    if isinstance(ty, types.BaseTuple):
        return types.BaseTuple.from_types([passed_type(part) for part in ty.types], getattr(ty, "instance_class", None))
    return types.float32 if ty == types.float16 else ty
