"""bfloat16, which NumPy has no type for: arrays of uint16 hold it. It is the upper half of a float32.

And the three formats taken apart, to show the bits of a value in each:

    float_table(12.34)                        # sign, exponent, fraction, value and error in each format
    hex(encode(12.34, FLOAT16))               # 0x4a2c, the nearest; truncate=True cuts: 0x4a2b
    decode(0x4A2C, FLOAT16)                   # 12.34375
"""

from dataclasses import dataclass

import numpy as np

from labkit._common.tables import ResultTable


def bfloat16_of(values) -> np.ndarray:
    """The nearest bfloat16, ties to even, as uint16. NaN stays NaN; beyond the largest is infinity."""
    values = np.atleast_1d(np.asanyarray(values, np.float32, order="C"))
    bits = values.view(np.uint32)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    quiet_nan = ((bits >> 16) | 0x40).astype(np.uint16)
    return np.where(np.isnan(values), quiet_nan, nearest)


def of_dtype(values, dtype) -> np.ndarray:
    """The values rounded to the nearest of a type, uint16 for bfloat16."""
    return bfloat16_of(values) if np.dtype(dtype) == np.uint16 else np.asarray(values, dtype)


def float32_of(bits: np.ndarray) -> np.ndarray:
    """The same values as float32, of the uint16 that hold bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float64_of(value):
    """Convert an array to float64; uint16 holds bfloat16. Integers and non-arrays are returned unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.uint16:
        return float32_of(value).astype(np.float64)
    return value.astype(np.float64) if value.dtype.kind == "f" else value


# --- Formats taken apart ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FloatFormat:
    """IEEE 754's way to lay out a number: a sign, an exponent with a bias, and a fraction after the binary point.

        value = (-1)^sign * 1.fraction * 2^(exponent - bias)

    With exponent 0 the number begins with 0. instead of 1., at the exponent 1 - bias: the subnormal numbers, and zero.
    With all bits of the exponent set it is infinite, or, with a fraction, NaN.
    """

    name: str
    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def infinity(self) -> int:
        """The bits of positive infinity: those of the largest number are one less."""
        return (2**self.exponent_bits - 1) << self.fraction_bits

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(f"uint{self.bits}")


FLOAT32, FLOAT16, BFLOAT16 = (FloatFormat("float32", 8, 23), FloatFormat("float16", 5, 10),
                              FloatFormat("bfloat16", 8, 7))


def split(bits, format: FloatFormat) -> tuple:
    """(sign, exponent, fraction) of numbers given by their bits: the exponent with its bias."""
    bits = np.asarray(bits).astype(np.int64)
    return (bits >> (format.bits - 1), bits >> format.fraction_bits & (2**format.exponent_bits - 1),
            bits & (2**format.fraction_bits - 1))


def decode(bits, format: FloatFormat):
    """The float64 values of numbers given by their bits, from sign, exponent and fraction; exact."""
    sign, exponent, fraction = split(bits, format)
    normal = exponent > 0
    significand = np.where(normal, 2**format.fraction_bits + fraction, fraction).astype(np.float64)
    value = np.ldexp(significand, np.where(normal, exponent, 1) - format.bias - format.fraction_bits)
    special = exponent == 2**format.exponent_bits - 1
    value = np.where(special, np.where(fraction == 0, np.inf, np.nan), value)
    return np.where(sign == 1, -value, value)[()]


def encode(values, format: FloatFormat, truncate: bool = False):
    """The bits of the nearest number of the format, ties to the even one; beyond the largest is infinity.

    truncate: the bits that do not fit are cut off, which never makes a number larger: on average twice the error, and
    always to the same side.
    """
    values = np.asarray(values, np.float64)
    magnitude = np.abs(values)
    finite = np.where(np.isfinite(magnitude), magnitude, 0.0)
    min_exponent = 1 - format.bias  # the exponent of the smallest normal number, and of all below it
    exponent = np.where(finite == 0, min_exponent, np.maximum(np.frexp(finite)[1] - 1, min_exponent))
    scaled = np.ldexp(finite, format.fraction_bits - exponent)  # the integer part is what fits
    significand = (np.floor(scaled) if truncate else np.rint(scaled)).astype(np.int64)  # rint: ties to even
    # A normal number's leading one adds 1 to the exponent; a carry from rounding into it is right, too.
    bits = ((exponent - min_exponent).astype(np.int64) << format.fraction_bits) + significand
    bits = np.minimum(bits, format.infinity - 1 if truncate else format.infinity)
    bits = np.where(np.isinf(magnitude), format.infinity, bits)
    bits = np.where(np.isnan(magnitude), format.infinity | 1 << (format.fraction_bits - 1), bits)
    return (bits | np.signbit(values).astype(np.int64) << (format.bits - 1)).astype(format.dtype)[()]


@dataclass(frozen=True, repr=False)
class FloatTable(ResultTable):
    """A number in the three formats, rounded to nearest and truncated. Prints as a table."""

    value: float
    rows: tuple[tuple, ...]  # (format, how, bits, sign, exponent, fraction, value, error)

    def table(self) -> dict:
        cells = [[format.name, how, f"0x{bits:0{format.bits // 4}X}", str(sign), f"{exponent:0{format.exponent_bits}b}",
                  f"{fraction:0{format.fraction_bits}b}", f"{value:.10g}", f"{error:.3g}"]
                 for format, how, bits, sign, exponent, fraction, value, error in self.rows]
        return {"title": f"{self.value!r} in bits",
                "columns": ["format", "rounded", "bits", "sign", "exponent", "fraction", "value", "error"],
                "rows": cells, "notes": ["Exponents are shown with their bias, "
                                         + ", ".join(f"{one.bias} in {one.name}" for one in (FLOAT32, FLOAT16)) + "."]}

    def result(self) -> dict:
        return {"kind": "floats", "value": self.value,
                "bits": {f"{format.name}, {how}": int(bits) for format, how, bits, *_ in self.rows}}


def float_table(value: float) -> FloatTable:
    """A number in float32, float16 and bfloat16: its bits, in parts, and the error."""
    rows = []
    for format in (FLOAT32, FLOAT16, BFLOAT16):
        for how, truncate in (("to nearest", False), ("truncated", True)):
            bits = int(encode(value, format, truncate))
            decoded = float(decode(bits, format))
            rows.append((format, how, bits, *(int(part) for part in split(bits, format)), decoded,
                         0.0 if decoded == value else abs(decoded - value)))
    return FloatTable(float(value), tuple(rows))
