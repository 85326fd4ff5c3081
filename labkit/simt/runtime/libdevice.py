"""numba.cuda.libdevice on the CPU: each function rounds to the type that CUDA's has, single where its name ends in f.

The functions are plain Python as well, for the interpreter. Those that round in a direction of their own (`_rd`, `_ru`,
`_rz`), the Bessel functions and the inverses of erf are missing: they have no counterpart in NumPy or math.
`PARAMETERS` counts the arguments of each; outputs that CUDA writes through pointers are returned, as in numba.cuda.

Source  libdevice User's Guide, NVIDIA
"""

import math

import numpy as np
from numba.extending import register_jitable

from labkit.simt.runtime.arithmetic import modf as _parts

PARAMETERS = {}
_magnitude = abs  # the name is CUDA's from here on


def _define(name, parameters, function):
    function.__name__ = name
    globals()[name] = register_jitable(function)
    PARAMETERS[name] = parameters


def _one(function, ty, result_type=None):
    result_type = result_type or ty
    return lambda x: result_type(function(ty(x)))


def _two(function, ty, result_type=None):
    result_type = result_type or ty
    return lambda x, y: result_type(function(ty(x), ty(y)))


def _both(name, parameters, function):
    """name in double precision, and name with an f in single."""
    make = _one if parameters == 1 else _two
    _define(name, parameters, make(function, np.float64))
    _define(f"{name}f", parameters, make(function, np.float32))


# ---------------------------------------------------------------- functions of real numbers


@register_jitable
def _away_from_zero(x):
    """x rounded to an integer, ties away from zero."""
    integral = np.trunc(x)
    return integral + np.copysign(1, x) if _magnitude(x - integral) >= 0.5 else integral


@register_jitable
def _positive_difference(x, y):
    return x if x != x else y if y != y else x - y if x > y else 0 * x


@register_jitable
def _sine_of_pi(x):
    """sin(pi * x), exact at the multiples of 1/2."""
    reduced = x - 2 * np.rint(x / 2)  # in [-1, 1], exact
    if _magnitude(reduced) > 0.5:
        reduced = np.copysign(1, reduced) - reduced
    return np.sin(math.pi * reduced)


@register_jitable
def _cosine_of_pi(x):
    reduced = _magnitude(x - 2 * np.rint(x / 2))
    return np.sin(math.pi * (0.5 - reduced))


@register_jitable
def _saturated(x):
    return 1 if x > 1 else x if x > 0 else 0 * _magnitude(x) if x == x else 0


_plain = register_jitable
_reciprocal_root, _power_of_ten = _plain(lambda x: 1 / np.sqrt(x)), _plain(lambda x: np.power(10.0, np.float64(x)))
_identity, _divide = _plain(lambda x: x), _plain(lambda x, y: x / y)
_normal_distribution = _plain(lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0)))
_is_negative = _plain(lambda x: np.copysign(1, x) < 0)
for _name, _function in {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh, "cospi": _cosine_of_pi,
    "erf": math.erf, "erfc": math.erfc, "exp": np.exp, "exp10": _power_of_ten, "exp2": np.exp2,
    "expm1": np.expm1, "fabs": np.fabs, "floor": np.floor, "lgamma": math.lgamma, "log": np.log, "log10": np.log10,
    "log1p": np.log1p, "log2": np.log2, "nearbyint": np.rint, "normcdf": _normal_distribution,
    "rcbrt": _plain(lambda x: 1 / np.cbrt(x)), "rint": np.rint, "round": _away_from_zero, "rsqrt": _reciprocal_root,
    "sin": np.sin, "sinh": np.sinh, "sinpi": _sine_of_pi, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "tgamma": math.gamma, "trunc": np.trunc,
}.items():  # fmt: skip
    _both(_name, 1, _function)
for _name, _function in {
    "atan2": np.arctan2, "copysign": np.copysign, "fdim": _positive_difference, "fmax": np.fmax, "fmin": np.fmin,
    "fmod": np.fmod, "hypot": np.hypot, "nextafter": np.nextafter, "pow": np.power,
}.items():  # fmt: skip
    _both(_name, 2, _function)
for _name, _function in {
    "cosf": np.cos, "exp10f": _power_of_ten, "expf": np.exp, "log10f": np.log10, "log2f": np.log2, "logf": np.log,
    "sinf": np.sin, "tanf": np.tan,
}.items():  # fmt: skip
    _define(f"fast_{_name}", 1, _one(_function, np.float32))
_define("fast_powf", 2, _two(np.power, np.float32))
_define("fast_fdividef", 2, _two(_divide, np.float32))
_define("saturatef", 1, _one(_saturated, np.float32))
for _letter, _type in (("f", np.float32), ("d", np.float64)):
    for _name, _function in {"add": _plain(lambda x, y: x + y), "mul": _plain(lambda x, y: x * y), "div": _divide,
                             "sub": _plain(lambda x, y: x - y)}.items():  # fmt: skip
        if (_letter, _name) != ("d", "sub"):  # CUDA has none
            _define(f"{_letter}{_name}_rn", 2, _two(_function, _type))
    _define(f"{_letter}rcp_rn", 1, _one(_plain(lambda x: 1 / x), _type))
    _define(f"{_letter}sqrt_rn", 1, _one(np.sqrt, _type))
_define("frsqrt_rn", 1, _one(_reciprocal_root, np.float32))


def _integer_power(ty):
    return lambda x, n: ty(np.power(ty(x), np.float64(n)))


def _scaled(ty):
    return lambda x, n: ty(math.ldexp(ty(x), np.int32(n)))


for _suffix, _type in (("", np.float64), ("f", np.float32)):
    _define(f"powi{_suffix}", 2, _integer_power(_type))
    _define(f"ldexp{_suffix}", 2, _scaled(_type))
    _define(f"scalbn{_suffix}", 2, _scaled(_type))


# ---------------------------------------------------------------- several results


def _pair(first, second, ty):
    return lambda x: (ty(first(ty(x))), ty(second(ty(x))))


def _mantissa_and_exponent(ty):
    def parts(x):
        mantissa, exponent = math.frexp(ty(x))
        return ty(mantissa), np.int32(exponent)

    return parts


def _fraction_and_whole(ty):
    def parts(x):
        fraction, integral = _parts(ty(x))
        return ty(fraction), ty(integral)

    return parts


for _suffix, _type in (("", np.float64), ("f", np.float32)):
    _define(f"sincos{_suffix}", 1, _pair(np.sin, np.cos, _type))
    _define(f"sincospi{_suffix}", 1, _pair(_sine_of_pi, _cosine_of_pi, _type))
    _define(f"frexp{_suffix}", 1, _mantissa_and_exponent(_type))
    _define(f"modf{_suffix}", 1, _fraction_and_whole(_type))
_define("fast_sincosf", 1, _pair(np.sin, np.cos, np.float32))


# ---------------------------------------------------------------- tests, conversions, bits


for _name, _function in {"isnan": np.isnan, "isinf": np.isinf, "signbit": _is_negative}.items():
    for _letter, _type in (("f", np.float32), ("d", np.float64)):
        _define(f"{_name}{_letter}", 1, _one(_function, _type, np.int32))
_define("isfinited", 1, _one(np.isfinite, np.float64, np.int32))
_define("finitef", 1, _one(np.isfinite, np.float32, np.int32))


def _to_integer(rounded, source, ty):
    """As a GPU converts: what does not fit becomes the nearest that does, NaN becomes 0."""
    min_value, max_value = int(np.iinfo(ty).min), int(np.iinfo(ty).max)
    limit = float(max_value) if ty is np.int32 else 2.0**63

    def convert(x):
        y = np.float64(rounded(source(x)))
        if y != y:
            return ty(0)
        if y >= limit:
            return ty(max_value)
        return ty(y) if y > min_value else ty(min_value)

    return convert


for _name, _source in (("float", np.float32), ("double", np.float64)):
    for _suffix, _rounded in {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}.items():
        _define(f"{_name}2int_{_suffix}", 1, _to_integer(_rounded, _source, np.int32))
        _define(f"{_name}2ll_{_suffix}", 1, _to_integer(_rounded, _source, np.int64))
for _suffix, _source in (("", np.float64), ("f", np.float32)):
    _define(f"llrint{_suffix}", 1, _to_integer(np.rint, _source, np.int64))
    _define(f"llround{_suffix}", 1, _to_integer(_away_from_zero, _source, np.int64))
_define("double2float_rn", 1, _one(_identity, np.float64, np.float32))
_define("int2float_rn", 1, _one(_identity, np.int32, np.float32))
_define("int2double_rn", 1, _one(_identity, np.int32, np.float64))
_define("ll2float_rn", 1, _one(_identity, np.int64, np.float32))
_define("ll2double_rn", 1, _one(_identity, np.int64, np.float64))


# ---------------------------------------------------------------- integers


@register_jitable
def _as_int32(x):
    return np.int32(np.int64(x))  # from above 2^31 too, where the interpreter's numbers are Python's


@register_jitable
def _bit(x, k):
    return (np.int64(x) >> np.int64(k)) & np.int64(1)


def _leading_zeros(bits):
    def count(x):
        zeros = 0
        while zeros < bits and _bit(x, bits - 1 - zeros) == 0:
            zeros += 1
        return np.int32(zeros)

    return count


def _first_set(bits):
    def position(x):
        for k in range(bits):
            if _bit(x, k):
                return np.int32(k + 1)
        return np.int32(0)

    return position


def _set_bits(bits):
    def count(x):
        total = 0
        for k in range(bits):
            total += _bit(x, k)
        return np.int32(total)

    return count


def _reversed_bits(bits, ty):
    def in_reverse(x):
        result = np.int64(0)
        for k in range(bits):
            result = (result << np.int64(1)) | _bit(x, k)
        return ty(result)

    return in_reverse


for _suffix, _bits, _type in (("", 32, np.int32), ("ll", 64, np.int64)):
    _define(f"clz{_suffix}", 1, _leading_zeros(_bits))
    _define(f"ffs{_suffix}", 1, _first_set(_bits))
    _define(f"popc{_suffix}", 1, _set_bits(_bits))
    _define(f"brev{_suffix}", 1, _reversed_bits(_bits, _type))


def _of_int32(function, parameters):
    if parameters == 1:
        return lambda x: _as_int32(function(_as_int32(x)))
    return lambda x, y: _as_int32(function(_as_int32(x), _as_int32(y)))


def _sum_of_differences(x, y, z):
    distance = _magnitude(np.int64(_as_int32(x)) - np.int64(_as_int32(y)))
    return _as_int32(distance + np.int64(_as_int32(z)))


_define("abs", 1, _of_int32(_magnitude, 1))
_define("llabs", 1, _one(_magnitude, np.int64))
for _name, _function in {"max": lambda x, y: x if x > y else y, "min": lambda x, y: x if x < y else y}.items():
    _function = _plain(_function)
    _define(_name, 2, _of_int32(_function, 2))
    _define(f"ll{_name}", 2, _two(_function, np.int64))
for _name, _function in {
    "mulhi": lambda x, y: (np.int64(x) * np.int64(y)) >> np.int64(32),
    "hadd": lambda x, y: (np.int64(x) + np.int64(y)) >> np.int64(1),
    "rhadd": lambda x, y: (np.int64(x) + np.int64(y) + np.int64(1)) >> np.int64(1),
}.items():
    _define(_name, 2, _of_int32(_plain(_function), 2))
_define("sad", 3, _sum_of_differences)
