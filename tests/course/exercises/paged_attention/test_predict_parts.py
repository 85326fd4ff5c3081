"""What a prediction of lesson 40 is checked by, against the library."""

import pytest
from numba import uint32

from labkit.course.exercises.paged_attention.predict_parts import _parts
from labkit.kernels.attention.paged_split import SPLITS, find_parts


@pytest.mark.cpu_device
@pytest.mark.parametrize("tokens", [1, 128, 129, 1000, 2049, 2600, 40_000])
def test_predicted_parts_are_the_kernels(tokens):
    _, _, parts = find_parts.py_func(uint32(tokens), SPLITS)
    assert _parts(tokens) == parts
