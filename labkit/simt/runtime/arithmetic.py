"""Operations on bits and numbers that Numba's CPU target lacks, or computes differently from a GPU."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic, overload, register_jitable

from labkit.simt.runtime.shared_function import never_inline, shared_function


def _bits(result, emit):
    @intrinsic
    def operation(typing_context, x):
        if not isinstance(x, types.Integer):
            raise NumbaTypeError(f"expected an integer, got {x}")
        x = types.unliteral(x)
        returned = result(x)

        def codegen(context, builder, signature, arguments):
            value = emit(builder, arguments[0])
            unsigned = types.Integer.from_bitwidth(x.bitwidth, False)
            return context.cast(builder, value, unsigned, returned)

        return returned(x), codegen

    return operation


def _find_first_set(builder, value):
    zero = ir.Constant(value.type, 0)
    position = builder.add(builder.cttz(value, ir.Constant(ir.IntType(1), 0)), ir.Constant(value.type, 1))
    return builder.select(builder.icmp_unsigned("==", value, zero), zero, position)


popc = _bits(lambda x: x, lambda builder, value: builder.ctpop(value))
clz = _bits(lambda x: x, lambda builder, value: builder.ctlz(value, ir.Constant(ir.IntType(1), 0)))
ffs = _bits(lambda x: types.uint32, _find_first_set)
brev = _bits(
    lambda x: types.uint64 if x.bitwidth == 64 else types.uint32, lambda builder, value: builder.bitreverse(value)
)


@intrinsic
def fma(typing_context, a, b, c):
    """a * b + c with one rounding, in float32 if all three are, else in float64."""
    single = all(x == types.float32 for x in (a, b, c))
    result = types.float32 if single else types.float64

    def codegen(context, builder, signature, arguments):
        pairs = zip(signature.args, arguments, strict=True)
        return builder.fma(*(context.cast(builder, value, ty, result) for ty, value in pairs))

    return result(a, b, c), codegen


@register_jitable
def cbrt(x):
    return np.cbrt(x)


@register_jitable
def rsqrt(x):
    return type_one(x) / np.sqrt(x)


@intrinsic
def type_one(typing_context, x):
    """1 in the type of x."""
    result = x if isinstance(x, types.Float) else types.float64
    return result(x), lambda context, builder, signature, arguments: context.get_constant(result, 1)


@register_jitable
def remainder(x, y):
    """x - n*y for the integer n nearest to x/y, ties to even: math.remainder, which Numba's CPU target lacks."""
    divisor = abs(y)
    rest = abs(np.fmod(x, divisor + divisor))  # exact, and keeps the parity of n
    if rest + rest > divisor:
        rest -= divisor
        if rest + rest >= divisor:
            rest -= divisor
    return -rest if x < 0 else rest


@register_jitable
def modf(x):
    """(fraction, whole part) of x, both with its sign."""
    whole = np.trunc(x)
    fraction = x - whole
    if np.isinf(x):
        fraction = type_one(x) - type_one(x)
    return np.copysign(fraction, x), whole


def selp(test, a, b):
    """a if test else b; a and b of one type, as on a GPU."""


@overload(selp)
def _selp(test, a, b):
    if types.unliteral(a) != types.unliteral(b):
        raise NumbaTypeError(f"cuda.selp needs two values of one type, not {a} and {b}")
    return lambda test, a, b: a if test else b


@shared_function
def coprime(n):
    """A step that visits 0 to n - 1 in a scattered order: no common divisor with n, near n times the golden ratio."""
    never_inline()
    step = max(1, int(n * 0.618))
    while True:
        a, b = step, n
        while b:
            a, b = b, a % b
        if a == 1:
            return step
        step += 1
