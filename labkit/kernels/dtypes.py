"""Types that NumPy lacks: bfloat16, which arrays of uint16 hold, and what float64 makes of each type."""

import numpy as np


def float64_of(value):
    """An array as float64; uint16 holds bfloat16. Integers and what is no array stay as they are."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.uint16:
        return (value.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def bfloat16_of(values: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16, to nearest, ties to even; as the uint16 that hold it. For finite numbers."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
