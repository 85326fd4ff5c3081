"""The layout of a step, and what does not fit."""

import numpy as np
import pytest

from labkit.models.step import Inputs, Piece, Shape, lay_out, shape_of

ONE, MANY = Piece([7], 31, [4, 9]), Piece([1, 2, 3], 15, [5, 2])


def test_the_layout():
    step = Inputs(tokens=8, sequences=3, pages=3).step([ONE, MANY])
    assert step.shape == shape_of([ONE, MANY]) == Shape(4, 2, 1, 3)
    expected = {"ids": [7, 1, 2, 3], "positions": [31, 15, 16, 17], "slots": [9 * 16 + 15, 5 * 16 + 15, 32, 33],
                "begins": [0, 1], "lengths": [1, 3], "contexts": [32, 18], "last": [0, 3],
                "page_table": [[4, 9, 0], [5, 2, 0]]}
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(step, name).copy_to_host(), values, err_msg=name)


def test_a_larger_shape_is_filled_with_rows_of_no_sequence():
    step = Inputs(tokens=8, sequences=4, pages=2).step([ONE, ONE], Shape(4, 4, 4, 0))
    expected = {"slots": [159, 159, -1, -1], "positions": [31, 31, 0, 0], "lengths": [1, 1, 0, 0],
                "contexts": [32, 32, 0, 0]}
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(step, name).copy_to_host(), values, err_msg=name)


def test_the_views_of_a_shape_are_made_once():
    inputs = Inputs(tokens=8, sequences=2, pages=2)
    assert inputs.step([ONE]) is inputs.step([Piece([8], 3, [1])])


@pytest.mark.parametrize(("pieces", "shape", "message"), [
    ([Piece([], 0, [1])], None, "piece 0: 0 tokens after 0"),
    ([ONE, Piece([1], 32, [4, 9])], None, "from 3 to 2 pages"),
    ([Piece([1, 2], 0, [1, 2, 3])], None, "and 3 pages of 16; at least one token, and from 1 to 2"),
    ([Piece([1], -1, [1])], None, "1 tokens after -1"), ([ONE, MANY], Shape(8, 3, 2, 3), "has 2 decoding sequences, "),
    ([ONE, MANY], Shape(4, 2, 1, 2), "the pieces need .*longest=3.*, and the step has .*longest=2"),
    ([ONE] * 3, None, "3 rows of 3 sequences; memory was allocated for 8 of 2"),
])  # fmt: skip
def test_what_does_not_fit(pieces, shape, message):
    with pytest.raises(ValueError, match=message):
        Inputs(tokens=8, sequences=2, pages=2).step(pieces, shape)


def test_the_host_array_is_as_long_as_the_shape_needs():
    assert lay_out([ONE, MANY], Shape(4, 2, 1, 3), 5).size == 3 * 4 + (4 + 5) * 2
