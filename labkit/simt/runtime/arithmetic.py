"""Operations on bits and numbers that Numba's CPU target lacks, or computes differently from a GPU."""

import math
import operator

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic, overload, register_jitable

from labkit.simt.runtime.operators import OPERATORS, narrows
from labkit.simt.runtime.shared_function import called_function, overloaded
from labkit.simt.runtime.signatures import signature_of


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


# ---------------------------------------------------------------- operators


def _as_numba(*_):
    return None


def _operator(function, emit=_as_numba, narrow=False, with_constant=False):
    """A binary operator with the types of Numba's `function`; with `narrow`, by the rule of labkit.simt.unsigned.

    emit(context, builder, a, b, resolved, arguments) emits what a GPU computes where Numba's CPU target differs, and
    returns None where it does not; a, b: the types of the operands.
    """

    @intrinsic(prefer_literal=True)
    def operation(typing_context, a, b):
        operands = types.unliteral(a), types.unliteral(b)
        truncated = narrow and narrows(*(ty == types.uint32 for ty in operands), with_constant)
        plain = (types.uint64, types.uint64) if truncated else operands
        resolved = typing_context.resolve_value_type(function).get_call_type(typing_context, plain, {})
        if isinstance(resolved.return_type, types.Array):
            raise NumbaTypeError(
                "whole arrays cannot be computed with or copied in device code: write it for one element"
            )
        returned = resolved.return_type
        if function is operator.pow and isinstance(b, types.IntegerLiteral) and not isinstance(plain[0], types.Integer):
            returned = plain[0]  # Numba: a constant exponent keeps the type of the base

        def codegen(context, builder, signature, arguments):
            if truncated:
                pairs = zip(arguments, operands, plain, strict=True)
                arguments = [context.cast(builder, value, ty, target) for value, ty, target in pairs]
            value = emit(context, builder, *(plain if truncated else (a, b)), returned, arguments)
            if value is None:
                pairs = zip(arguments, plain, resolved.args, strict=True)
                converted = [context.cast(builder, value, ty, target) for value, ty, target in pairs]
                value = context.get_function(function, resolved)(builder, converted)
            return context.cast(builder, value, returned, types.uint32) if truncated else value

        return (types.uint32 if truncated else returned)(a, b), codegen

    return operation


@intrinsic
def _quotient(typing_context, x, y):
    """x / y of two floats: infinite or NaN where y is 0, in a function that Numba compiles for itself too."""

    def codegen(context, builder, signature, arguments):
        return builder.fdiv(*arguments)

    return x(x, x), codegen


def _emit_power(context, builder, a, b, returned, arguments):
    """A power with an integer exponent of a float or complex: below zero it is 1 / x ** -n, which is infinite at 0."""
    if not isinstance(b, types.Integer) or isinstance(returned, types.Integer):
        return None
    base = context.cast(builder, arguments[0], types.unliteral(a), returned)
    inverse = _inverse(returned)
    if isinstance(b, types.IntegerLiteral):
        n = abs(b.literal_value)
        power = (lambda x: inverse(x**n)) if b.literal_value < 0 else (lambda x: x**n)
        return context.compile_internal(builder, power, returned(returned), [base])

    def power(x, n):
        return inverse(x**-n) if n < 0 else returned(x**n)

    return context.compile_internal(builder, power, returned(returned, types.unliteral(b)), [base, arguments[1]])


def _inverse(ty):
    if isinstance(ty, types.Complex):
        return register_jitable(lambda x: _complex_quotient(ty(1), ty(x)))
    return register_jitable(lambda x: _quotient(ty(1), ty(x)))


@register_jitable
def _complex_quotient(x, y):
    """x / y of two complex numbers of one type; by zero, of their parts."""
    if y == 0:
        return complex(_quotient(x.real, y.real), _quotient(x.imag, y.real))
    return x / y


def _emit_divide(context, builder, a, b, returned, arguments):
    """A complex number divided by zero: its parts are."""
    if not isinstance(returned, types.Complex):
        return None
    pairs = zip(arguments, (a, b), strict=True)
    parts = [context.cast(builder, value, types.unliteral(ty), returned) for value, ty in pairs]

    def divide(x, y):
        return returned(_complex_quotient(x, y))

    return context.compile_internal(builder, divide, returned(returned, returned), parts)


def _emit_shift(right):
    """A shift by more than 63 bits, or by a negative number: all bits leave, as a GPU has it."""

    def emit(context, builder, a, b, returned, arguments):
        if isinstance(b, types.IntegerLiteral) and 0 <= b.literal_value < 64:
            return None
        value = context.cast(builder, arguments[0], types.unliteral(a), returned)
        amount = context.cast(builder, arguments[1], types.unliteral(b), types.int64)
        last, zero = ir.Constant(value.type, 63), ir.Constant(value.type, 0)
        inside = builder.icmp_unsigned("<=", amount, last)
        if right and returned.signed:
            return builder.ashr(value, builder.select(inside, amount, last))
        shift = builder.lshr if right else builder.shl
        return builder.select(inside, shift(value, builder.and_(amount, last)), zero)

    return emit


def _emit_division(is_remainder):
    """// and % of integers, rounded down; 0 where a GPU has no result. Without branches: Numba's has eight blocks."""

    def emit(context, builder, a, b, returned, arguments):
        if not isinstance(returned, types.Integer):
            return None
        x, y = (context.cast(builder, value, types.unliteral(ty), returned)
                for value, ty in zip(arguments, (a, b), strict=True))  # fmt: skip
        zero, one = x.type(0), x.type(1)
        none = builder.icmp_unsigned("==", y, zero)
        if returned.signed:
            is_min = builder.icmp_signed("==", x, x.type(returned.minval))
            none = builder.or_(none, builder.and_(is_min, builder.icmp_signed("==", y, x.type(-1))))
        y = builder.select(none, one, y)
        if not returned.signed:
            return builder.urem(x, y) if is_remainder else builder.select(none, zero, builder.udiv(x, y))
        remainder = builder.srem(x, y)
        differ = builder.icmp_signed("<", builder.xor(remainder, y), zero)
        above = builder.and_(differ, builder.icmp_signed("!=", remainder, zero))
        if is_remainder:
            return builder.select(above, builder.add(remainder, y), remainder)
        quotient = builder.sdiv(x, y)
        return builder.select(none, zero, builder.select(above, builder.sub(quotient, one), quotient))

    return emit


_EMITTED = {operator.mod: _emit_division(is_remainder=True), operator.floordiv: _emit_division(is_remainder=False),
            operator.lshift: _emit_shift(False), operator.rshift: _emit_shift(True), operator.pow: _emit_power,
            operator.truediv: _emit_divide}  # fmt: skip
modulo, floor_divide, shift_left, shift_right, power, divide = (
    _operator(function, emit) for function, emit in _EMITTED.items()
)
NARROW = {f"narrow_{name}{'_constant' if with_constant else ''}":
          _operator(function, _EMITTED.get(function, _as_numba), True, with_constant)
          for name, function in OPERATORS.items() for with_constant in (False, True)}  # fmt: skip
globals().update(NARROW)


@intrinsic
def unsigned_shape(typing_context, array):
    """array.shape as uint32."""
    if not isinstance(array, types.Array):
        raise NumbaTypeError(f"u32.shape: array is {array}; it must be an array")
    returned = types.UniTuple(types.uint32, array.ndim)

    def codegen(context, builder, signature, arguments):
        struct = context.make_array(array)(context, builder, arguments[0])
        extents = cgutils.unpack_tuple(builder, struct.shape, array.ndim)
        return context.make_tuple(builder, returned, [builder.trunc(extent, ir.IntType(32)) for extent in extents])

    return returned(array), codegen


@intrinsic
def math_pow(typing_context, x, y):
    """math.pow: of an integer exponent below zero too."""
    resolved = signature_of(math.pow, x, y)

    def codegen(context, builder, signature, arguments):
        pairs = zip(arguments, (x, y), resolved.args, strict=True)
        converted = [context.cast(builder, value, ty, target) for value, ty, target in pairs]
        value = _emit_power(context, builder, *resolved.args, resolved.return_type, converted)
        return context.get_function(math.pow, resolved)(builder, converted) if value is None else value

    return resolved.return_type(x, y), codegen


# ---------------------------------------------------------------- functions


def _rounding(name):
    """math.floor and its kind, which give a float on a GPU; of a float16 a float32."""
    function = getattr(np, name)

    @overloaded
    def rounding(x):
        kind = signature_of(getattr(math, name), x).return_type
        return lambda x: function(kind(x))

    return rounding


floor, ceil, trunc = _rounding("floor"), _rounding("ceil"), _rounding("trunc")


@overloaded
def round_digits(x, digits):
    """round(x, digits), as numba.cuda computes it: in float64, half to even. Numba's CPU target keeps to float32."""
    if not isinstance(x, types.Float):
        return lambda x, digits: round(x, digits)

    kind = types.float32 if x in (types.float16, types.float32) else types.float64

    def typed(x, digits):
        value = np.float64(x)
        pow1, pow2 = 10.0 ** abs(digits), 1.0
        if digits > 22:
            pow1, pow2 = 1e22, 10.0 ** (digits - 22)
        scaled = value * pow1 * pow2 if digits >= 0 else value / pow1
        if not np.isfinite(scaled):
            return kind(x)
        nearest = np.rint(scaled)
        return kind(nearest / pow2 / pow1) if digits >= 0 else kind(nearest * pow1)

    return typed


@overloaded
def remainder(x, y):
    """x - n*y for the integer n nearest to x/y, ties to even: math.remainder, which Numba's CPU target lacks."""
    kind = signature_of(math.remainder, x, y).return_type
    return lambda x, y: _remainder(kind(x), kind(y))


@register_jitable
def _remainder(x, y):
    divisor = abs(y)
    result = abs(np.fmod(x, divisor + divisor))  # exact, and keeps the parity of n
    if result + result > divisor:
        result -= divisor
        if result + result >= divisor:
            result -= divisor
    return -result if x < 0 else result


@overloaded
def fmod(x, y):
    """math.fmod: x - n*y, with the sign of x. Numba's CPU target takes integers for something else."""
    kind = signature_of(math.fmod, x, y).return_type
    return lambda x, y: np.fmod(kind(x), kind(y))


@overloaded
def ldexp(x, n):
    """math.ldexp, of small integers as a float32, as on a GPU."""
    kind, exponent = signature_of(math.ldexp, x, n).args
    return lambda x, n: math.ldexp(kind(x), exponent(n))


@overloaded
def frexp(x):
    """math.frexp, of small integers as a float32, as on a GPU."""
    (kind,) = signature_of(math.frexp, x).args
    return lambda x: math.frexp(kind(x))


def modf(x):
    """(fraction, whole part) of x, both with its sign."""
    return _modf(x)  # as observed kernels call it, through libdevice


@overload(modf)
def _modf_overload(x):
    (kind,) = signature_of(math.modf, x).args
    return lambda x: _modf(kind(x))


@register_jitable
def _modf(x):
    integral = np.trunc(x)
    fraction = x - integral
    if np.isinf(x):
        fraction = type_one(x) - type_one(x)
    return np.copysign(fraction, x), integral


@overloaded
def selp(test, a, b):
    """a if test else b; a and b of one type, as on a GPU."""
    if types.unliteral(a) != types.unliteral(b):
        raise NumbaTypeError(f"cuda.selp needs two values of one type, not {a} and {b}")
    return lambda test, a, b: a if test else b


@called_function
def visits(order, n):
    """(step, offset) of an order other than forward: the k-th thread to run is (k * step + offset) % n.

    In reverse: from n - 1 down. Scattered: a step near n times the golden ratio that has no common divisor with n.
    """
    if order == 1:
        return n - 1, n - 1
    step = max(1, int(n * 0.618))
    while True:
        a, b = step, n
        while b:
            a, b = b, a % b
        if a == 1:
            return step, 0
        step += 1
