"""float16 for Numba's CPU target, which has the type but no code for it.

A half is kept in 16 bits; arithmetic converts to float32, computes, and rounds to the nearest half, ties to even: what
a GPU's half instructions give for +, -, * and /. Other functions of float16 give float32. Importing this registers it.
Source: the conversions are the branch-by-range ones of F. Giesen, "Half to float done quick" and its inverse.
"""

import operator

from llvmlite import ir
from numba import types
from numba.core.datamodel import default_manager
from numba.core.datamodel.models import PrimitiveModel
from numba.core.typing.templates import builtin_registry, signature
from numba.extending import lower_builtin, lower_cast

_I16, _I32, _F32, _F64 = ir.IntType(16), ir.IntType(32), ir.FloatType(), ir.DoubleType()


class _FloatModel(PrimitiveModel):
    """float16 as 16 bits, float32 and float64 as they were."""

    def __init__(self, manager, ty):
        super().__init__(manager, ty, {16: _I16, 32: _F32, 64: _F64}[ty.bitwidth])


def _i32(value):
    return ir.Constant(_I32, value & 0xFFFFFFFF)


def half_to_float(builder, half):
    """Emit: the float32 with the value of a half (i16)."""
    wide = builder.zext(half, _I32)
    bits = builder.shl(builder.and_(wide, _i32(0x7FFF)), _i32(13))
    exponent = builder.and_(bits, _i32(0x7C00 << 13))
    normal = builder.add(bits, _i32((127 - 15) << 23))
    infinite = builder.add(normal, _i32((128 - 16) << 23))
    magic = builder.bitcast(_i32(113 << 23), _F32)
    subnormal = builder.fsub(builder.bitcast(builder.add(normal, _i32(1 << 23)), _F32), magic)
    is_infinite = builder.icmp_unsigned("==", exponent, _i32(0x7C00 << 13))
    is_subnormal = builder.icmp_unsigned("==", exponent, _i32(0))
    magnitude = builder.select(is_infinite, infinite, normal)
    magnitude = builder.select(is_subnormal, builder.bitcast(subnormal, _I32), magnitude)
    sign = builder.shl(builder.and_(wide, _i32(0x8000)), _i32(16))
    return builder.bitcast(builder.or_(magnitude, sign), _F32)


def float_to_half(builder, value):
    """Emit: the half (i16) nearest to a float32, ties to even."""
    bits = builder.bitcast(value, _I32)
    sign = builder.and_(bits, _i32(0x80000000))
    bits = builder.xor(bits, sign)
    is_nan = builder.icmp_unsigned(">", bits, _i32(255 << 23))
    large = builder.select(is_nan, _i32(0x7E00), _i32(0x7C00))
    magic = ((127 - 15) + (23 - 10) + 1) << 23
    shifted = builder.fadd(builder.bitcast(bits, _F32), builder.bitcast(_i32(magic), _F32))
    small = builder.sub(builder.bitcast(shifted, _I32), _i32(magic))
    odd = builder.and_(builder.lshr(bits, _i32(13)), _i32(1))
    rounded = builder.add(builder.add(bits, _i32(((15 - 127) << 23) + 0xFFF)), odd)
    result = builder.lshr(rounded, _i32(13))
    result = builder.select(builder.icmp_unsigned("<", bits, _i32(113 << 23)), small, result)
    result = builder.select(builder.icmp_unsigned(">=", bits, _i32((127 + 16) << 23)), large, result)
    return builder.trunc(builder.or_(result, builder.lshr(sign, _i32(16))), _I16)


def _from_half(context, builder, from_type, to_type, value):
    if to_type == types.float16:
        return value
    return context.cast(builder, half_to_float(builder, value), types.float32, to_type)


def _to_half(context, builder, from_type, to_type, value):
    if from_type == types.float16:
        return value
    return float_to_half(builder, context.cast(builder, value, from_type, types.float32))


def _binary(emit):
    def lower(context, builder, sig, args):
        a, b = (half_to_float(builder, x) for x in args)
        return float_to_half(builder, emit(builder, a, b))

    return lower


def _negate(context, builder, sig, args):
    return builder.xor(args[0], ir.Constant(_I16, 0x8000))


def _print(context, builder, signature, args):
    value = context.cast(builder, args[0], types.float16, types.float32)
    return context.get_function("print_item", types.none(types.float32))(builder, (value,))


def _is_true(context, builder, sig, args):
    magnitude = builder.and_(args[0], ir.Constant(_I16, 0x7FFF))
    return builder.icmp_unsigned("!=", magnitude, ir.Constant(_I16, 0))


def _register():
    default_manager.register(types.Float, _FloatModel)
    default_manager._cache.clear()
    for other in (types.float32, types.float64, types.Integer, types.Boolean, types.Complex):
        lower_cast(types.float16, other)(_from_half)
        lower_cast(other, types.float16)(_to_half)
    arithmetic = {
        operator.add: lambda builder, x, y: builder.fadd(x, y),
        operator.sub: lambda builder, x, y: builder.fsub(x, y),
        operator.mul: lambda builder, x, y: builder.fmul(x, y),
        operator.truediv: lambda builder, x, y: builder.fdiv(x, y),
    }
    in_place = {operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
                operator.itruediv: operator.truediv}  # fmt: skip
    for function in (*arithmetic, *in_place):
        _add_case(function, signature(types.float16, types.float16, types.float16))
        lower_builtin(function, types.float16, types.float16)(_binary(arithmetic[in_place.get(function, function)]))
    _add_case(operator.neg, signature(types.float16, types.float16))
    lower_builtin(operator.neg, types.float16)(_negate)
    lower_builtin(bool, types.float16)(_is_true)
    lower_builtin("print_item", types.float16)(_print)


def _add_case(function, case):
    """Let Numba's type inference know one more signature of a built-in operator."""
    for value, ty in builtin_registry.globals:
        if value is function:
            for template in ty.templates:
                if hasattr(template, "cases"):
                    template.cases = [*template.cases, case]


_register()
