import numpy as np

from labkit.device.memory import zeros


def test_zeros_are_zeros_of_the_shape_and_the_type():
    for shape, dtype in ((5, np.uint16), ((3, 4), np.float32)):
        array = zeros(shape, dtype)
        assert array.copy_to_host().dtype == dtype
        np.testing.assert_array_equal(array.copy_to_host(), np.zeros(shape, dtype))
