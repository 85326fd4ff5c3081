"""Numbers, functions and arrays as an interpreted kernel sees them."""

import cmath
import enum
import functools
import math
import operator

import numpy as np
from numba.core import types
from numba.np import numpy_support

from labkit.simt import typed_numbers as numbers
from labkit.simt import undefined
from labkit.simt.arguments import tuple_like
from labkit.simt.runtime import fp16, libdevice, vector_types
from labkit.simt.runtime.signatures import signature_of
from labkit.simt.typed_arrays import typed_scalar
from labkit.simt.typed_numbers import converter


class _Numpy:
    """NumPy as kernels see it here: integer types wrap Python's integers."""

    def __getattr__(self, name):
        member = self.__dict__[name] = self._find(name)
        return member

    @staticmethod
    def ndenumerate(array):
        return ((position, array[position]) for position in np.ndindex(*array.shape))

    @staticmethod
    def _find(name):
        dtype = (
            np.dtype(name) if name in ("bool_", "float16", "float32", "float64", "complex64", "complex128") else None
        )
        if dtype is None and name.lstrip("u").startswith("int") and name.lstrip("uint").isdigit():
            dtype = np.dtype(name)
        if dtype is not None:
            return converter(dtype)
        member = getattr(np, name)
        return numbers.with_types_of(member, _exactly(member)) if isinstance(member, np.ufunc) else member


def _exactly(ufunc):
    """A ufunc of numbers as this module has them: NumPy takes a Python integer for one of any width."""
    return lambda *args: ufunc(*(numbers.as_numpy(x) for x in args))


class _Math:
    """math as kernels see it: float32 stays float32, and math errors return NaN or infinity instead of raising."""

    _NAMES = {
        "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
        "atan2": "arctan2", "atanh": "arctanh", "pow": "power",
    }  # fmt: skip

    def __getattr__(self, name):
        member = self.__dict__[name] = self._find(name)
        return member

    def _find(self, name):
        function = getattr(math, name)
        if isinstance(function, float):
            return function
        of_numpy = getattr(np, self._NAMES.get(name, name), None)
        if of_numpy is not None:
            return lambda *args: of_numpy(*map(_as_float, args))

        def guarded(*args):
            try:
                value = function(*args)
            except ValueError:
                is_pole = name in ("gamma", "lgamma") and (name == "lgamma" or args[0] == 0)
                value = math.inf if is_pole and math.isfinite(args[0]) else math.nan
            except OverflowError:
                value = math.inf
            return args[0].dtype.type(value) if isinstance(args[0], np.float32) else np.float64(value)

        return guarded


def _as_float(x):
    """An argument of a function of math: integers are float64, float16 is float32."""
    return np.float64(x) if isinstance(x, int) else np.float32(x) if isinstance(x, np.float16) else x


def _remainder(x, y):
    """math.remainder; NaN where it has no value."""
    if y == 0 or not math.isfinite(x) or math.isnan(y):
        return math.nan
    return math.remainder(float(x), float(y))


def _pow(x, n):
    if isinstance(n, numbers.Integer):
        return numbers.product(np.float64(x), n)
    return np.power(x, n)


def _view(value, dtype):
    """value.view(dtype), of an array or of a number."""
    if isinstance(numbers.numba_type(type(value)), types.Number):
        return typed_scalar(numbers.as_numpy(value).view(dtype.dtype))
    return value.view(dtype)


def _rsqrt(x):
    kind = np.float64 if isinstance(x, int) else type(x)
    return kind(1) / np.sqrt(kind(x))


@functools.cache
def _counter(kinds):
    """The conversion of a range's numbers, for bounds of these kinds; None where they are int64."""
    signature = signature_of(range, *map(numbers.numba_type, kinds)) if all(map(numbers.numba_type, kinds)) else None
    dtype = types.int64 if signature is None else signature.return_type.dtype
    return None if dtype == types.int64 else converter(dtype.name)


def _range(*bounds):
    counted, convert = range(*map(numbers.as_integer, bounds)), _counter(tuple(map(type, bounds)))
    return counted if convert is None else map(convert, counted)


def _unsigned_range(*bounds):
    """u32.range. A GPU's compiler takes it for granted that the variable, which goes one step beyond, does not wrap."""
    counted = range(*map(numbers.as_integer, bounds))
    if counted and counted[-1] + counted.step >= 1 << 32:
        raise ValueError(f"u32.range ends at {counted[-1]:,} with steps of {counted.step:,}; the next number, "
                         f"{counted[-1] + counted.step:,}, must be less than 2**32")
    return counted


def _as_interpreted(value):
    """Integers are Python's here."""
    if isinstance(value, tuple):
        return tuple_like(value, map(_as_interpreted, value))
    return int(value) if isinstance(value, np.integer) else value


class _Guarded:
    """A module's functions; math errors return NaN or infinity instead of raising."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        function = getattr(self._module, name)

        def guarded(*args):
            try:
                return _as_interpreted(function(*args))
            except ValueError:
                return math.nan
            except (OverflowError, ZeroDivisionError):
                return math.inf

        self.__dict__[name] = guarded
        return guarded


FUNCTIONS = {
    **{f"_{name}": function for name, function in numbers.OPERATORS.items()},
    **undefined.FUNCTIONS,
    **numbers.NARROW,
    "_view": _view,
    "_is": lambda a, b: a is b if a is None or b is None or isinstance(a, enum.Enum) else a == b,
    "_constant_power": numbers.constant_power,
    "_unsigned_shape": lambda array: tuple(map(numbers.Uint32, array.shape)),
    "_popc": numbers.popc,
    "_fma": lambda a, b, c: type(c)(float(a) * float(b) + float(c)) if isinstance(c, np.float32) else a * b + c,
    "_rsqrt": _rsqrt,
    "_cbrt": np.cbrt,
    "_selp": lambda test, a, b: a if test else b,
    "_remainder": numbers.with_types_of(math.remainder, _remainder),
    "_fmod": numbers.with_types_of(math.fmod, np.fmod),
    "_modf": numbers.with_types_of(math.modf, math.modf),
    "_ldexp": numbers.with_types_of(math.ldexp, lambda x, n: np.ldexp(x, int(n))),
    "_frexp": numbers.with_types_of(math.frexp, np.frexp),
    "_math_pow": numbers.with_types_of(math.pow, _pow),
    **{f"_{n}": numbers.with_types_of(getattr(math, n), getattr(np, n)) for n in ("floor", "ceil", "trunc")},
    "_ffs": numbers.ffs,
    "_clz": numbers.clz,
    "_brev": numbers.brev,
    "_np": _Numpy(),
    "_math": _Math(),
    "_cmath": _Guarded(cmath),
    "_libdevice": _Guarded(libdevice),
    "_fp16": _Guarded(fp16),
    "_vector": vector_types,
    "_float64": np.float64, "_uint64": converter("uint64"),
    "_complex128": np.complex128,
    "int": lambda x=0: numbers.to_integer(x),
    "float": numbers.to_float, "bool": numbers.as_bool,
    "complex": lambda *parts: np.complex128(complex(*parts)),
    "abs": numbers.absolute,
    "min": numbers.minimum,
    "max": numbers.maximum,
    "round": numbers.rounded,
    "_round_digits": numbers.rounded,
    "range": _range,
    "_unsigned_range": _unsigned_range,
    "divmod": lambda a, b: (numbers.floor_divide(a, b), numbers.modulo(a, b)),
    "_operator": operator,  # of numbers: see resolve.py for those with types
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


def dtype_of(ty):
    """The NumPy dtype of a declaration's Numba type."""
    return np.dtype(bool) if ty == types.boolean else numpy_support.as_dtype(ty)
