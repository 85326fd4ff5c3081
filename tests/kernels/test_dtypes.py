"""bfloat16 in arrays of uint16."""

import numpy as np

from labkit.kernels.dtypes import bfloat16_of, float32_of


def test_bfloat16_is_rounded_to_even_and_keeps_what_is_not_a_number():
    values = np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -np.inf, np.nan, 3.4e38], np.float32)
    assert list(float32_of(bfloat16_of(values))[:4]) == [1.0, 1.0, 1.0 + 2**-6, -np.inf]
    assert np.isnan(float32_of(bfloat16_of(values))[4])
    assert np.isinf(float32_of(bfloat16_of(values))[5])  # the nearest is beyond the largest
