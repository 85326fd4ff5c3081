"""The figures of the lesson "Hopper's tensor cores": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import hopper as pictures

PNG = b"\x89PNG"


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


@pytest.mark.parametrize("draw", [lambda: pictures.warpgroup(100), lambda: pictures.tma(13, 11, (8, 11))])
def test_what_does_not_fit_is_refused(draw):
    with pytest.raises(ValueError):
        draw()
