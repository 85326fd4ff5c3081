"""Numbers, functions and arrays as an interpreted kernel sees them."""

import math
import operator

import numpy as np
from numba.core import types
from numba.np import numpy_support

from labkit.simt.unsigned import Unsigned


def _divide(a, b):
    try:
        return a / b
    except ZeroDivisionError:
        return np.float64(a) / np.float64(b)


def _floor_divide(a, b):
    return 0 if not isinstance(b, np.inexact | float) and b == 0 else a // b


def _modulo(a, b):
    return 0 if not isinstance(b, np.inexact | float) and b == 0 else a % b


class _Numpy:
    """NumPy as kernels see it here: integer types wrap Python's integers."""

    def __getattr__(self, name):
        found = self.__dict__[name] = self._find(name)
        return found

    @staticmethod
    def _find(name):
        dtype = (
            np.dtype(name) if name in ("bool_", "float16", "float32", "float64", "complex64", "complex128") else None
        )
        if dtype is None and name.lstrip("u").startswith("int") and name.lstrip("uint").isdigit():
            dtype = np.dtype(name)
        if dtype is None:
            return getattr(np, name)
        return converter(dtype)


class _Math:
    """math as kernels see it: float32 stays float32, and what has no value is NaN or infinite instead of an error."""

    _NAMES = {
        "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
        "atan2": "arctan2", "atanh": "arctanh", "pow": "power",
    }  # fmt: skip

    def __getattr__(self, name):
        found = self.__dict__[name] = self._find(name)
        return found

    def _find(self, name):
        function = getattr(math, name)
        if isinstance(function, float):
            return function
        of_numpy = getattr(np, self._NAMES.get(name, name), None)
        if of_numpy is not None:
            return lambda *args: of_numpy(*(float(a) if isinstance(a, int) else a for a in args))

        def guarded(*args):
            try:
                return function(*args)
            except ValueError:
                return math.nan
            except OverflowError:
                return math.inf

        return guarded


def _integer(value=0):
    """int() as a kernel has it: NaN and infinity become some integer."""
    try:
        return int(value)
    except (ValueError, OverflowError):
        return -(1 << 63)


def converter(dtype):
    """The type as a function of the kernel: `uint32(x)`."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        mask, half = (1 << bits) - 1, 1 << (bits - 1)

        def convert(value):
            kind = type(value)
            if kind is Unsigned and value <= mask:
                return value
            return Unsigned((value if kind is int else _integer(value)) & mask)

        def convert_signed(value):
            value = (value if type(value) is int else _integer(value)) & mask
            return value - mask - 1 if value >= half else value

        made = convert if dtype.kind == "u" else convert_signed
    else:

        def made(value):
            return dtype.type(value)

    made.dtype = dtype
    return made


FUNCTIONS = {
    "_popc": lambda x: int(x & 0xFFFFFFFFFFFFFFFF).bit_count(),
    "_fma": lambda a, b, c: type(c)(float(a) * float(b) + float(c)) if isinstance(c, np.float32) else a * b + c,
    "_rsqrt": lambda x: type(x)(1) / np.sqrt(x),
    "_cbrt": np.cbrt,
    "_selp": lambda test, a, b: a if test else b,
    "_remainder": math.remainder,
    "_modf": math.modf,
    "_ffs": lambda x: (x & -x).bit_length(),
    "_clz": lambda x: 32 - x.bit_length() if 0 <= x < 2**32 else 64 - (x & (2**64 - 1)).bit_length(),
    "_brev": lambda x: int(f"{x & (2**32 - 1):032b}"[::-1], 2),
    "_divide": _divide,
    "_floor_divide": _floor_divide,
    "_modulo": _modulo,
    "_np": _Numpy(),
    "_math": _Math(),
    "int": _integer,
    "_operator": operator,
}


def new_value(op, old, value, extra=None):
    """What an atomic leaves behind."""
    return {
        "add": lambda: old + value,
        "sub": lambda: old - value,
        "max": lambda: value if value > old else old,
        "min": lambda: value if value < old else old,
        "nanmax": lambda: value if value > old or old != old else old,
        "nanmin": lambda: value if value < old or old != old else old,
        "and_": lambda: old & value,
        "or_": lambda: old | value,
        "xor": lambda: old ^ value,
        "exch": lambda: value,
        "inc": lambda: 0 if old >= value else old + 1,
        "dec": lambda: value if old == 0 or old > value else old - 1,
        "cas": lambda: extra if old == value else old,
    }[op]()


class _Floats(np.ndarray):
    """A float array as an interpreted kernel sees it: NumPy's, and view() takes the kernel's types."""

    def view(self, dtype):
        return as_seen(np.asarray(self).view(getattr(dtype, "dtype", dtype)))


class _Integers(_Floats):
    """An integer array: its elements are Python's integers, and what is stored wraps around."""

    def __getitem__(self, index):
        value = np.ndarray.__getitem__(self, index)
        if isinstance(value, np.ndarray):
            return value
        return Unsigned(value) if value.dtype.kind == "u" else int(value)

    def __iter__(self):
        return (self[k] for k in range(len(self)))

    def __setitem__(self, index, value):
        try:
            np.ndarray.__setitem__(self, index, value)
        except (OverflowError, ValueError):
            np.ndarray.__setitem__(self, index, converter(self.dtype)(value))


def as_seen(array):
    """An array as interpreted code takes it."""
    return np.ndarray.view(array, _Integers if array.dtype.kind in "iu" else _Floats)


def dtype_of(ty):
    """The NumPy dtype of a declaration's Numba type."""
    return np.dtype(bool) if ty == types.boolean else numpy_support.as_dtype(ty)
