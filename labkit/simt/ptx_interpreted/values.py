"""PTX intrinsics that compute with registers: packing, conversions, approximations."""

import numpy as np

from labkit.simt.typed_numbers import Uint32


def from_bf16(bits):
    """uint16 bits of bfloat16 -> float32."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    """float32 -> uint16 bits of the nearest bfloat16, ties to even."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def from_tf32(words):
    """uint32 words -> float32, without the low 13 bits, which TF32 does not have."""
    return (words & np.uint32(0xFFFFE000)).view(np.float32)


def from_e4m3(codes):
    """uint8 codes of E4M3 -> float32: sign, exponent and fraction in place, but for the exponent's bias, 7 and not 127.
    0x7F and 0xFF are NaN."""
    bits = codes.astype(np.uint32)
    values = ((bits & 0x7F) << 20 | (bits & 0x80) << 24).view(np.float32) * np.float32(2.0**120)
    return np.where(bits & 0x7F == 0x7F, np.float32(np.nan), values)


def rounded_to_tf32(values):
    """float32 -> the nearest values of TF32, ties away from zero; NaN stays."""
    return np.where(np.isnan(values), values, from_tf32(values.view(np.uint32) + np.uint32(0x1000)))


def _pack(pair):
    low, high = pair.view(np.uint16).tolist()
    return Uint32(low | high << 16)


def _split_word(word, dtype):
    word = int(word)
    return np.array([word & 0xFFFF, word >> 16 & 0xFFFF], np.uint16).view(dtype)


def pack_half2(x, y):
    return _pack(np.array([x, y], np.float32).astype(np.float16))


def unpack_half2(word):
    return tuple(_split_word(word, np.float16).astype(np.float32))


def pack_bf162(x, y):
    return _pack(to_bf16(np.array([x, y], np.float32)))


def unpack_bf162(word):
    return tuple(from_bf16(_split_word(word, np.uint16)))


def _fma(a, b, c, dtype):
    a, b, c = (_split_word(word, dtype) for word in (a, b, c))
    if dtype == np.uint16:
        a, b, c = map(from_bf16, (a, b, c))
    return (a.astype(np.float64) * b + c).astype(np.float32)


def fma_half2(a, b, c):
    return _pack(_fma(a, b, c, np.float16).astype(np.float16))


def fma_bf162(a, b, c):
    return _pack(to_bf16(_fma(a, b, c, np.uint16)))


def float_bits(x):
    return Uint32(np.float32(x).view(np.uint32))


def bits_float(u):
    return np.uint32(int(u) & 0xFFFFFFFF).view(np.float32)


def to_tf32(x):
    x = np.float32(x)
    if np.isnan(x):
        return Uint32(0x7FFFFFFF)
    return Uint32(int(x.view(np.uint32)) + 0x1000 & 0xFFFFE000)


def _flush(x):
    x = np.float32(x)
    return np.float32(np.copysign(0, x)) if abs(x) < np.finfo(np.float32).tiny else x


def mul_hi(a, b):
    return Uint32((int(a) & 0xFFFFFFFF) * (int(b) & 0xFFFFFFFF) >> 32)


def tanh_approx(x):
    return np.tanh(np.float32(x))


def exp2_approx(x):
    return _flush(np.exp2(_flush(x)))


def rcp_approx(x):
    return _flush(np.float32(1) / _flush(x))


VALUES = (pack_half2, unpack_half2, pack_bf162, unpack_bf162, fma_half2, fma_bf162, float_bits, bits_float, to_tf32,
          mul_hi, tanh_approx, exp2_approx, rcp_approx)  # fmt: skip
