"""The figures of the lesson "Reductions": the sums they show, who adds, and what they refuse."""

import pytest

from labkit.course.drawings import reductions as pictures
from tests.measure.plots.layout import drawn


@pytest.mark.parametrize("kind", pictures.TITLES)
def test_every_tree_ends_with_the_sum_of_all_elements(kind):
    holds, _, _ = pictures._steps(kind)[-1]
    assert holds[0] == (32 if kind == "first_add" else 16)
    assert pictures.tree(kind).svg()


def test_spread_threads_split_all_warps_and_strides_meet_in_banks():
    words = {kind: [text for _, _, text in pictures._steps(kind)[1:]] for kind in pictures.TITLES}
    assert words["divergent"][0] == "4 of 4 warps add, 4 split; then a barrier"
    assert words["strided"][1] == "1 of 4 warps add; 4 lanes meet in a bank; then a barrier"
    assert not any("bank" in text for text in words["sequential"])
    assert words["last_warp"][-1] == "1 of 4 warps add; a shuffle, no barrier"


def test_the_grid_and_the_wide_loads_are_drawn():
    assert "round 2" in drawn(pictures.grid_stride())
    assert "four neighbours" in pictures.wide().summary and pictures.wide().png()


def test_another_tree_is_refused():
    with pytest.raises(ValueError, match="kind is 'tall'; divergent, strided"):
        pictures.tree("tall")
