"""Weights of a linear layer in 4 or 8 bits: the numbers that they stand for, and how they lie in a GPU's memory.

Shapes  codes (N, K); scales (N, K / group), or (N, 1) with a scale for each row; zeros as scales, or None
Formats INT4, a code c of 0 to 15 is (c - zero) * scale, zero 8 unless given; INT8, c of -128 to 127 is c * scale;
        E4M3, an FP8 number of 4 bits of exponent and 3 of mantissa times scale
Work    4 bits in groups of 128 with a scale of 16 bits each: 4.125 bits a weight; 8 bits: 8
Source  PTX ISA, "Matrix Fragments for mma.m16n8k16"; Micikevicius et al., "FP8 Formats for Deep Learning" (2022)

The packed form. A tile is 16 rows by 64 columns of INT4, or by 32 of 8 bits: 512 bytes, one load of 16 bytes by each
lane of a warp. Lane 4g + q holds what it multiplies itself: rows g and g + 8, and of every 32 columns 8q to 8q + 7. In
columns 4 * p to 4 * p + 3 of those eight, product p of two, the four registers of A in mma.m16n8k16 hold

    register 0    row g, columns 0 and 1        register 1    row g + 8, columns 0 and 1
    register 2    row g, columns 2 and 3        register 3    row g + 8, columns 2 and 3

An INT4 word holds one product: register r is nibbles r and r + 4, so that `word >> 4 * r & 0x000F000F` has both. A word
of 8 bits holds two registers, the first in bytes 0 and 2, the second in bytes 1 and 3. Scales of groups, and zeros, lie
by tile, group and g: a word of two, for rows g and g + 8. Rows and columns beyond the edge are zeros.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit import cuda
from labkit.kernels.dtypes import float64_of

INT4, INT8, E4M3 = "int4", "int8", "e4m3"
GROUPS = (32, 64, 128)  # columns that share a scale of INT4
TILE = 16  # rows
STEP = {INT4: 64, INT8: 32, E4M3: 32}  # columns of a tile
CODES = {INT4: np.uint8, INT8: np.int8, E4M3: np.uint8}
MIDDLE = 8  # the zero of INT4 without zeros


def e4m3_value(codes) -> np.ndarray:
    """Return the float64 values of E4M3 codes: no infinities, and NaN for 0x7F and 0xFF alone."""
    codes = np.asarray(codes, np.uint8).astype(np.int64)
    exponent, fraction = codes >> 3 & 15, codes & 7
    value = np.ldexp(np.where(exponent > 0, 8.0, 0.0) + fraction, np.maximum(exponent, 1) - 10)
    value = np.where(codes & 0x7F == 0x7F, np.nan, value)
    return np.where(codes >> 7 == 1, -value, value)


def e4m3_codes(values: np.ndarray) -> np.ndarray:
    """Return the nearest E4M3 numbers, ties to even, as uint8; beyond the largest, 448, is 448."""
    magnitude = np.minimum(np.abs(values), 448.0)
    # -6 is the exponent of the smallest normal number, and of all below it; frexp calls that of 0 zero.
    exponent = np.where(magnitude == 0, -6, np.maximum(np.frexp(magnitude)[1] - 1, -6))
    significand = np.rint(np.ldexp(magnitude, 3 - exponent)).astype(np.int64)  # a carry into the exponent is right, too
    return ((exponent + 6 << 3) + significand | np.signbit(values).astype(np.int64) << 7).astype(np.uint8)


class Packed(NamedTuple):
    """Weights as the kernels take them, in arrays of the host or of a device.

    words: uint32 (tiles of rows, tiles of columns, lane, 4). scales: of INT4, uint32 (tiles of rows, groups, g), words
    of two float16 or bfloat16 (uint16), as scale_dtype says; else float32 (N,). zeros: of INT4, uint32 shaped as
    scales, words of two integers; or None.
    """

    format: str
    group: int
    rows: int
    columns: int
    words: object
    scales: object
    zeros: object
    scale_dtype: np.dtype

    def to_device(self) -> "Packed":
        words, scales, zeros = (None if one is None else cuda.to_device(one)
                                for one in (self.words, self.scales, self.zeros))
        return self._replace(words=words, scales=scales, zeros=zeros)


@dataclass(frozen=True, eq=False)
class Quantized:
    """Quantised weights on the host, checked: `format` is INT4, INT8 or E4M3.

    codes (N, K): uint8 of INT4 (one code a byte) and E4M3, int8 of INT8. group: columns that share a scale, 0 for all
    of a row. INT4: scales (N, K / group), float16, or bfloat16 in uint16; zeros, uint8, of the same shape, or None.
    INT8 and E4M3: group 0, scales float32 (N, 1).
    """

    format: str
    group: int
    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None

    def __post_init__(self):
        if self.format not in STEP:
            raise ValueError(f"format is {self.format!r}; {', '.join(map(repr, STEP))} are allowed")
        _check("codes", self.codes, (CODES[self.format],), None)
        in_groups = self.format == INT4
        if (self.group not in GROUPS) if in_groups else (self.group != 0):
            raise ValueError(f"group is {self.group}; {'32, 64 and 128' if in_groups else '0, a scale for each row,'} "
                             f"allowed for {self.format}")
        if in_groups and self.columns % self.group:
            raise ValueError(f"codes has {self.columns} columns; it must be a multiple of group, {self.group}")
        shape = (self.rows, self.columns // self.group if in_groups else 1)
        _check("scales", self.scales, (np.float16, np.uint16) if in_groups else (np.float32,), shape)
        if self.format == INT4 and self.codes.max() > 15:
            raise ValueError(f"codes has {self.codes.max()}; codes of int4 are 0 to 15")
        if self.format == E4M3 and (self.codes & 0x7F == 0x7F).any():
            raise ValueError("codes has NaN (0x7F or 0xFF); weights must be numbers")
        if self.zeros is not None:
            if not in_groups:
                raise ValueError(f"zeros are given; {self.format} has none")
            _check("zeros", self.zeros, (np.uint8,), shape)
            if self.zeros.max() > 15:
                raise ValueError(f"zeros has {self.zeros.max()}; zeros are 0 to 15")

    @property
    def rows(self) -> int:
        return self.codes.shape[0]

    @property
    def columns(self) -> int:
        return self.codes.shape[1]

    @property
    def bits(self) -> int:
        return 4 if self.format == INT4 else 8

    def dequantize(self) -> np.ndarray:
        """Return the weights (N, K) in float64; exact."""
        scales = float64_of(self.scales)
        if self.format == E4M3:
            return e4m3_value(self.codes) * scales
        if self.format == INT8:
            return self.codes * scales
        zeros = MIDDLE if self.zeros is None else np.repeat(self.zeros.astype(np.float64), self.group, axis=1)
        return (self.codes.astype(np.float64) - zeros) * np.repeat(scales, self.group, axis=1)

    def pack(self) -> Packed:
        """Return the weights as the kernels take them, in host arrays."""
        if self.format != INT4:
            return Packed(self.format, 0, self.rows, self.columns, pack_codes(self.codes, self.format),
                          np.ascontiguousarray(self.scales[:, 0]), None, self.scales.dtype)
        zeros = None if self.zeros is None else pack_groups(self.zeros.astype(np.uint16))
        return Packed(self.format, self.group, self.rows, self.columns, pack_codes(self.codes, self.format),
                      pack_groups(self.scales), zeros, self.scales.dtype)


def _check(name: str, array, dtypes: tuple, shape: tuple | None) -> None:
    """Raise an error that names the argument unless it is a NumPy array of one of the dtypes and of this shape."""
    if not isinstance(array, np.ndarray) or array.dtype.type not in dtypes:
        allowed = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise TypeError(f"{name} must be a NumPy array of {allowed}, not {getattr(array, 'dtype', type(array))}")
    if array.ndim != 2 or array.size == 0 or (shape is not None and array.shape != shape):
        raise ValueError(f"{name} has shape {array.shape}; it must be {shape or '(rows, columns), both at least 1'}")


# Codes have the axes (tile, row half, g, tile of columns) and those that _SPLIT makes of a tile's columns: of INT4
# which 32, then as of 8 bits q, product, pair of columns, one of the pair. _ORDER is the order of all axes in memory.
_SPLIT = {INT4: (2, 4, 2, 2, 2), INT8: (4, 2, 2, 2), E4M3: (4, 2, 2, 2)}
_ORDER = {INT4: (0, 3, 2, 5, 4, 6, 8, 7, 1), INT8: (0, 3, 2, 4, 5, 6, 7, 1), E4M3: (0, 3, 2, 4, 5, 6, 7, 1)}


def pack_codes(codes: np.ndarray, format: str) -> np.ndarray:
    """Return codes (N, K) as words (tiles of rows, tiles of columns, 32, 4), uint32; those beyond an edge are 0, and
    8 in INT4."""
    step = STEP[format]
    rows, columns = codes.shape
    fill = MIDDLE if format == INT4 else 0
    padded = np.pad(codes, ((0, -rows % TILE), (0, -columns % step)), constant_values=fill)
    split = padded.reshape(-1, 2, 8, padded.shape[1] // step, *_SPLIT[format])
    ordered = np.ascontiguousarray(split.transpose(_ORDER[format]))
    if format == INT4:
        pairs = ordered.reshape(-1, 2)
        ordered = pairs[:, 0] | pairs[:, 1] << 4
    return ordered.reshape(-1).view(np.uint32).reshape(padded.shape[0] // TILE, padded.shape[1] // step, 32, 4)


def unpack_codes(words: np.ndarray, format: str, rows: int, columns: int) -> np.ndarray:
    """Return the codes (rows, columns) that pack_codes made words of."""
    ordered = np.ascontiguousarray(words).reshape(-1).view(CODES[format])
    if format == INT4:
        ordered = np.stack([ordered & 15, ordered >> 4], axis=1)
    axes = (words.shape[0], 2, 8, words.shape[1], *_SPLIT[format])
    ordered = ordered.reshape([axes[axis] for axis in _ORDER[format]])
    codes = ordered.transpose(np.argsort(_ORDER[format])).reshape(words.shape[0] * TILE, -1)
    return np.ascontiguousarray(codes[:rows, :columns])


def pack_groups(values: np.ndarray) -> np.ndarray:
    """Return scales or zeros (N, groups) of 16 bits as words of two (tiles of rows, groups, g), those beyond the last
    row 0."""
    padded = np.pad(values, ((0, -values.shape[0] % TILE), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, 2, 8, values.shape[1]).transpose(0, 3, 2, 1)).view(np.uint32)[..., 0]


def unpack_groups(words: np.ndarray, rows: int, dtype) -> np.ndarray:
    """Return the scales or zeros (rows, groups), of this dtype, that pack_groups packed."""
    pairs = words[..., None].view(dtype)
    return np.ascontiguousarray(pairs.transpose(0, 3, 2, 1).reshape(-1, words.shape[1])[:rows])


def unpack(packed: Packed) -> Quantized:
    """Return what was packed."""
    codes = unpack_codes(packed.words, packed.format, packed.rows, packed.columns)
    if packed.format != INT4:
        return Quantized(packed.format, 0, codes, packed.scales[:, None])
    zeros = None if packed.zeros is None else unpack_groups(packed.zeros, packed.rows, np.uint16).astype(np.uint8)
    scales = unpack_groups(packed.scales, packed.rows, packed.scale_dtype)
    return Quantized(packed.format, packed.group, codes, scales, zeros)
