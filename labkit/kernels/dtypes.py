"""bfloat16, which NumPy has no type for: arrays of uint16 hold it. It is the upper half of a float32."""

import numpy as np


def bfloat16_of(values) -> np.ndarray:
    """The nearest bfloat16, ties to even, as uint16. NaN stays NaN; beyond the largest is infinity."""
    values = np.ascontiguousarray(values, np.float32)
    bits = values.view(np.uint32)
    nearest = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    quiet_nan = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(values), quiet_nan, nearest)


def float32_of(bits: np.ndarray) -> np.ndarray:
    """The same values as float32, of the uint16 that hold bfloat16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float64_of(value):
    """An array as float64; uint16 holds bfloat16. Integers and what is no array stay as they are."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.uint16:
        return float32_of(value).astype(np.float64)
    return value.astype(np.float64) if value.dtype.kind == "f" else value
