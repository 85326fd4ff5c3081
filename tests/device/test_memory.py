import numpy as np
import pytest

from labkit.device.memory import PIECE, copy_pieces, zeros


def test_zeros_are_zeros_of_the_shape_and_the_type():
    for shape, dtype in ((5, np.uint16), ((3, 4), np.float32)):
        array = zeros(shape, dtype)
        assert array.copy_to_host().dtype == dtype
        np.testing.assert_array_equal(array.copy_to_host(), np.zeros(shape, dtype))


def test_pieces_go_where_they_belong_and_an_error_of_a_maker_is_raised():
    array, rng = zeros(PIECE + 5000, np.uint8), np.random.default_rng(0)
    expected = np.zeros(PIECE + 5000, np.uint8)
    makers = []
    for begin, end in ((PIECE + 900, PIECE + 4990), (3, 3), (17, 18), *((100 * i, 100 * i + 50) for i in range(1, 40)),
                       (5000, PIECE + 800)):
        expected[begin:end] = rng.integers(1, 256, end - begin)
        makers.append(lambda begin=begin, end=end: (begin, expected[begin:end]))
    copy_pieces(array, makers)
    np.testing.assert_array_equal(array.copy_to_host(), expected)

    def wrong():
        raise ValueError("the third")

    with pytest.raises(ValueError, match="the third"):
        copy_pieces(array, [*makers[:2], wrong])
