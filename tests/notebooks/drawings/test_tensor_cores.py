"""The figures of the lesson "Tensor cores": what they say, and what they refuse."""


import pytest

from labkit.course.drawings import tensor_cores as pictures
from tests.measure.plots.layout import texts


def test_the_elements_of_a_lane():
    shown = texts(pictures.mma_lanes(lane=31))
    assert "g = 31 // 4 = 7, q = 31 % 4 = 3" in shown
    with pytest.raises(ValueError, match="lane is 32"):
        pictures.mma_lanes(32)


PNG = b"\x89PNG"


def test_ldmatrix_points_and_receives():
    figure = pictures.ldmatrix(13)
    assert figure.summary == ("Lane 13 points to row 5 of block 1, and receives columns 2 and 3 of row 3 of each "
                              "block, one register for each.")
    assert figure.png().startswith(PNG)


def test_a_swizzle_spreads_a_column_over_the_banks():
    for piece in range(8):
        assert pictures.swizzle(piece).summary == ("Reading it takes as it is: 8 steps; a piece of padding: 1 step; "
                                                   "swizzled: p ^ r: 1 step.")
    assert pictures.swizzle().png().startswith(PNG)


def test_tma_counts_whole_boxes():
    assert pictures.tma(13, 11, (8, 5)).summary == (
        "A box of 8 x 8 pieces at row 8, piece 5 of a matrix of 13 x 11: 30 pieces are copied, 34 are zeros, and 1,024 "
        "bytes count on the mbarrier.")
    assert pictures.tma().png().startswith(PNG)


def test_warpgroup_counts_registers_and_flops():
    figure = pictures.warpgroup(64)
    assert "m64n64k16: 131,072 flops" in figure.summary and "32 accumulators" in figure.summary
    assert figure.png().startswith(PNG)


def test_a_producer_saves_the_start_and_the_store_of_each_tile():
    work = (3, 4, 3, 1.3, 0.5, 1.0)
    for plan in (pictures._blocks_in_turn(*work), pictures._producer_and_consumers(*work)):
        assert sum(kind == "load" for kind, *_ in plan) == 12
        lanes = {}
        for _, lane, begin, end, _ in sorted(plan, key=lambda one: one[2]):
            assert begin >= lanes.get(lane, 0.0) - 1e-9  # nothing does two things at a time
            lanes[lane] = end
    ends = pictures.specialised().summary.split(": ")[1].split(", ")
    apart, together = (float(end.split(" with")[0]) for end in ends)
    assert together < apart
    assert pictures.specialised().png().startswith(PNG)


@pytest.mark.parametrize("draw", [lambda: pictures.ldmatrix(32),
                                  lambda: pictures.swizzle(8), lambda: pictures.warpgroup(100),
                                  lambda: pictures.tma(13, 11, (8, 11))])
def test_what_does_not_fit_is_refused(draw):
    with pytest.raises(ValueError):
        draw()
