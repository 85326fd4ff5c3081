"""bfloat16 in arrays of uint16."""

import numpy as np
import pytest

from labkit.kernels.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    bfloat16_of,
    decode,
    encode,
    float32_of,
    float_table,
    split,
)

PATTERNS = np.arange(2**16, dtype=np.uint16)
with np.errstate(invalid="ignore"):  # a NaN that signals
    FLOAT16_VALUES = PATTERNS.view(np.float16).astype(np.float64)
    BFLOAT16_VALUES = (PATTERNS.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def test_bfloat16_is_rounded_to_even_and_keeps_what_is_not_a_number():
    values = np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -np.inf, np.nan, 3.4e38], np.float32)
    assert list(float32_of(bfloat16_of(values))[:4]) == [1.0, 1.0, 1.0 + 2**-6, -np.inf]
    assert np.isnan(float32_of(bfloat16_of(values))[4])
    assert np.isinf(float32_of(bfloat16_of(values))[5])  # the nearest is beyond the largest


# --- Formats taken apart ----------------------------------------------------------------------------------------------


def test_what_12_34_becomes_in_half_precision():
    assert encode(12.34, FLOAT16, truncate=True) == 0x4A2B and decode(0x4A2B, FLOAT16) == 12.3359375
    assert encode(12.34, FLOAT16) == 0x4A2C and decode(0x4A2C, FLOAT16) == 12.34375
    assert 12.34 - decode(0x4A2B, FLOAT16) == pytest.approx(0.0040625, rel=1e-9)
    assert [int(part) for part in split(0x4A2B, FLOAT16)] == [0, 0b10010, 0b1000101011]  # 1.1000101011 * 2^(18 - 15)


@pytest.mark.parametrize(("format", "values"), [
    pytest.param(FLOAT16, FLOAT16_VALUES, id="float16"),
    pytest.param(BFLOAT16, BFLOAT16_VALUES, id="bfloat16, the upper half of a float32")])
def test_every_pattern_is_decoded_and_encoded(format, values):
    found = decode(PATTERNS, format)
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(values))  # of zeros, too
    number = ~np.isnan(values)
    for truncate in (False, True):
        np.testing.assert_array_equal(encode(values, format, truncate)[number], PATTERNS[number])
    assert np.isnan(decode(encode(values, format)[~number], format)).all()


def between_all(format) -> np.ndarray:
    """Around every two neighbouring numbers: their middle, and what lies just below and above it."""
    middle = decode(np.arange(format.infinity, dtype=np.uint16), format)
    middle = (middle[1:] + middle[:-1]) / 2
    positive = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), [1e30, np.inf, 1e-30]])
    return np.concatenate([positive, -positive])


@pytest.mark.filterwarnings("ignore:overflow")
def test_rounding_to_float16_is_numpys():
    values = between_all(FLOAT16)
    np.testing.assert_array_equal(encode(values, FLOAT16), values.astype(np.float16).view(np.uint16))


def test_rounding_to_bfloat16_is_that_of_float32s_upper_half():
    bits = (PATTERNS.astype(np.uint32)[:, None] << np.uint32(16)) + np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    values = bits.reshape(-1).view(np.float32)
    values = values[~np.isnan(values)]
    np.testing.assert_array_equal(encode(values, BFLOAT16), bfloat16_of(values))
    finite = values[np.isfinite(values)]
    cut = (finite.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    np.testing.assert_array_equal(encode(finite, BFLOAT16, truncate=True), cut)


def test_float32_is_encoded_as_the_machine_does():
    values = np.random.default_rng(0).standard_normal(1000) * 10.0 ** np.arange(-50, 50).repeat(10)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(encode(values, FLOAT32), values.astype(np.float32).view(np.uint32))


def test_truncating_goes_towards_zero_and_never_to_infinity():
    assert encode(65519.0, FLOAT16, truncate=True) == encode(1e9, FLOAT16, truncate=True) == FLOAT16.infinity - 1
    assert encode(65520.0, FLOAT16) == FLOAT16.infinity and encode(65519.0, FLOAT16) == FLOAT16.infinity - 1
    assert encode(-np.inf, FLOAT16, truncate=True) == 0xFC00


def test_the_table_shows_the_parts():
    table = float_table(12.34)
    rows = {(row[0], row[1]): row[2:] for row in table.table()["rows"]}
    assert rows["float16", "truncated"] == ["0x4A2B", "0", "10010", "1000101011", "12.3359375", "0.00406"]
    assert rows["bfloat16", "to nearest"][:4] == ["0x4145", "0", "10000010", "1000101"]
    assert table.result()["bits"]["float16, to nearest"] == 0x4A2C
