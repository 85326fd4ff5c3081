"""numba.cuda.fp16 on the CPU: float16 numbers computed in float32 and rounded once to the nearest float16.

That is the value of CUDA's half instructions for + - * / and the square root, whose float32 result has bits enough; the
functions that CUDA approximates (hsin, hexp, ...) differ from a GPU's by the last bit at most where it does.
The functions are plain Python as well, for the interpreter. `PARAMETERS` counts the arguments of each.
"""

import numpy as np
from numba.extending import register_jitable

PARAMETERS = {}


def _define(name, parameters, function):
    function.__name__ = name
    globals()[name] = register_jitable(function)
    PARAMETERS[name] = parameters


def _one(function):
    return lambda a: np.float16(function(np.float32(np.float16(a))))


def _two(function):
    return lambda a, b: np.float16(function(np.float32(np.float16(a)), np.float32(np.float16(b))))


def _test(function):
    return lambda a, b: function(np.float32(np.float16(a)), np.float32(np.float16(b)))


_plain = register_jitable
for _name, _function in {
    "habs": np.fabs, "hceil": np.ceil, "hcos": np.cos, "hexp": np.exp, "hfloor": np.floor, "hlog": np.log,
    "hlog10": np.log10, "hlog2": np.log2, "hneg": _plain(lambda x: -x), "hrcp": _plain(lambda x: np.float32(1) / x),
    "hrint": np.rint, "hrsqrt": _plain(lambda x: np.float32(1) / np.sqrt(x)), "hsin": np.sin, "hsqrt": np.sqrt,
    "htanh": np.tanh, "htrunc": np.trunc, "hexp2": np.exp2,
    "hexp10": _plain(lambda x: np.float32(np.power(np.float64(10), np.float64(x)))),
}.items():  # fmt: skip
    _define(_name, 1, _one(_function))
for _name, _function in {
    "hadd": _plain(lambda x, y: x + y), "hsub": _plain(lambda x, y: x - y), "hmul": _plain(lambda x, y: x * y),
    "hdiv": _plain(lambda x, y: x / y), "hmax": np.fmax, "hmin": np.fmin,
}.items():  # fmt: skip
    _define(_name, 2, _two(_function))
for _name, _function in {
    "heq": _plain(lambda x, y: x == y), "hne": _plain(lambda x, y: x != y), "hlt": _plain(lambda x, y: x < y),
    "hle": _plain(lambda x, y: x <= y), "hgt": _plain(lambda x, y: x > y), "hge": _plain(lambda x, y: x >= y),
}.items():  # fmt: skip
    _define(_name, 2, _test(_function))


@register_jitable
def _rounded_to_odd(exact):
    """The float32 next to a float64 that keeps, in its last bit, that something was lost: it can be rounded again."""
    near = np.float32(exact)
    if np.float64(near) != exact and np.isfinite(near):
        other = np.nextafter(near, np.float32(np.inf) if np.float64(near) < exact else np.float32(-np.inf))
        if (np.float32(near).view(np.int32) & np.int32(1)) == 0:
            near = other
    return near


def _multiply_add(a, b, c):
    a, b, c = np.float64(np.float16(a)), np.float64(np.float16(b)), np.float64(np.float16(c))
    return np.float16(_rounded_to_odd(a * b + c))  # the product has 22 bits: the sum is exact where it matters


_define("hfma", 3, _multiply_add)
