"""PTX intrinsics that compute with registers: packing, conversions, approximations."""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from labkit.simt.runtime.float16 import float_to_half, half_to_float

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


def float_to_bf16(builder, value):
    """Emit: the bfloat16 (i16) nearest to a float32, ties to even."""
    bits = builder.bitcast(value, _I32)
    odd = builder.and_(builder.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, ir.Constant(_I32, 0x7FFF))), ir.Constant(_I32, 16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, ir.Constant(_I32, 0x7FFF), rounded), _I16)


def bf16_to_float(builder, half):
    return builder.bitcast(builder.shl(builder.zext(half, _I32), ir.Constant(_I32, 16)), _F32)


def emit_pair(builder, convert, x, y):
    low, high = (builder.zext(convert(builder, value), _I32) for value in (x, y))
    return builder.or_(low, builder.shl(high, ir.Constant(_I32, 16)))


def _pack(convert):
    @intrinsic
    def pack(typing_context, x, y):
        def codegen(context, builder, signature, arguments):
            return emit_pair(builder, convert, *arguments)

        return types.uint32(types.float32, types.float32), codegen

    return pack


def _unpack(convert):
    @intrinsic
    def unpack(typing_context, word):
        def codegen(context, builder, signature, arguments):
            parts = [builder.trunc(builder.lshr(arguments[0], ir.Constant(_I32, k)), _I16) for k in (0, 16)]
            return cgutils.pack_array(builder, [convert(builder, half) for half in parts])

        return types.UniTuple(types.float32, 2)(types.uint32), codegen

    return unpack


pack_half2, pack_bf162 = _pack(float_to_half), _pack(float_to_bf16)
unpack_half2, unpack_bf162 = _unpack(half_to_float), _unpack(bf16_to_float)


def _fma(to_float, convert):
    """Emit: a * b + c of the two elements of a word, in float64 before it is rounded."""
    @intrinsic
    def fma(typing_context, a, b, c):
        def codegen(context, builder, signature, arguments):
            results = []
            for shift in (0, 16):
                parts = [builder.trunc(builder.lshr(word, ir.Constant(_I32, shift)), _I16) for word in arguments]
                a, b, c = (builder.fpext(to_float(builder, half), ir.DoubleType()) for half in parts)
                results.append(builder.fptrunc(builder.fadd(builder.fmul(a, b), c), _F32))
            return emit_pair(builder, convert, *results)

        return types.uint32(types.uint32, types.uint32, types.uint32), codegen

    return fma


fma_half2, fma_bf162 = _fma(half_to_float, float_to_half), _fma(bf16_to_float, float_to_bf16)


def _unary(operand, result, emit):
    @intrinsic
    def operation(typing_context, x):
        return result(operand), lambda context, builder, signature, arguments: emit(builder, arguments[0])

    return operation


def _round_to_tf32(builder, value):
    """Emit: the bits of a float32 rounded to 10 bits of mantissa, ties away from zero."""
    bits = builder.bitcast(value, _I32)
    rounded = builder.and_(builder.add(bits, ir.Constant(_I32, 0x1000)), ir.Constant(_I32, 0xFFFFE000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(is_nan, ir.Constant(_I32, 0x7FFFFFFF), rounded)


def _flush(builder, value):
    """Emit: the value, or a zero of its sign if it is subnormal."""
    bits = builder.bitcast(value, _I32)
    tiny = builder.icmp_unsigned("==", builder.and_(bits, ir.Constant(_I32, 0x7F800000)), ir.Constant(_I32, 0))
    return builder.bitcast(builder.select(tiny, builder.and_(bits, ir.Constant(_I32, 0x80000000)), bits), _F32)


float_bits = _unary(types.float32, types.uint32, lambda builder, x: builder.bitcast(x, _I32))
bits_float = _unary(types.uint32, types.float32, lambda builder, x: builder.bitcast(x, _F32))
to_tf32 = _unary(types.float32, types.uint32, _round_to_tf32)
flush = _unary(types.float32, types.float32, _flush)
rcp_approx = _unary(types.float32, types.float32, lambda builder, x: _flush(
    builder, builder.fdiv(ir.Constant(_F32, 1), _flush(builder, x))))  # fmt: skip


@register_jitable
def mul_hi(a, b):
    return np.uint32((np.uint64(np.uint32(a)) * np.uint64(np.uint32(b))) >> np.uint64(32))


@register_jitable
def tanh_approx(x):
    return np.float32(math.tanh(np.float32(x)))


@register_jitable
def exp2_approx(x):
    return flush(np.float32(np.exp2(flush(x))))
