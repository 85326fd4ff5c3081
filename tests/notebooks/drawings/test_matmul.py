"""The figures of the lesson "Matrix multiplication": what they say, and what they refuse."""

import pytest
from matplotlib.text import Text

from labkit.course.drawings import matmul as pictures
from tests.measure.plots.layout import texts


def test_tile_walk_fills_the_tails_with_zeros():
    figure = pictures.tile_walk(M=7, N=11, K=10, tile=4, block=(2, 1))
    zeros = [item for item in figure.findobj(Text) if item.get_text() == "0"]
    assert len(zeros) == (4 * 12 - 3 * 10) + (12 * 4 - 10 * 3)
    assert "step 3" in texts(figure)
    assert "step 4" not in texts(figure)
    assert not [item for item in pictures.tile_walk(8, 8, 8, 4, (0, 0)).findobj(Text) if item.get_text() == "0"]
    with pytest.raises(ValueError, match="only 3 x 2 blocks"):
        pictures.tile_walk(7, 11, 10, 4, (3, 0))


def test_blocks_in_groups_read_fewer_strips():
    figure = pictures.block_orders(side=24, together=36, group=6)
    assert figure.summary == ("24 x 24 blocks, 36 at a time: row by row, 2 strips of a and 24 of b; in groups of 6 "
                              "rows, 6 strips of a and 6 of b.")
    with pytest.raises(ValueError, match="do not fit"):
        pictures.block_orders(side=4, together=36, group=6)
