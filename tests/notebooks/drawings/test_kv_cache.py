"""The figures of the lesson "The KV cache": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import kv_cache as pictures
from labkit.models.buffers import first_fit, liveness, llama_launches
from tests.measure.plots.layout import drawn


def test_rows_on_either_side_of_the_ridge():
    figure = pictures.rows_on_roofline({1: (2e9, 2e9), 1024: (2e12, 2.5e9)}, 4000.0, 800.0, "a GPU")
    assert figure.summary == ("a GPU: 4,000 GB/s and 800 TFLOP/s meet at 200 flop per byte. At most 4 TFLOP/s at "
                              "T = 1, 800 TFLOP/s at T = 1,024.")
    assert {"T = 1", "T = 1,024", "bytes decide", "flops decide"} <= set(drawn(figure))
    assert figure.svg().startswith("<svg")


def test_the_work_of_each_token_with_and_without_a_cache():
    figure = pictures.over_positions([5, 6, 7], {"MFLOP": [1, 1, 1.5]}, {"MFLOP": [5, 6, 7]}, "here")
    assert figure.summary == "MFLOP of the last token: 1.5 with a cache, 7 without one. here."
    assert len(figure.axes) == 1 and {"with a cache", "without one"} <= set(drawn(figure))
    assert figure.svg().startswith("<svg")


def test_a_box_for_each_stretch_of_launches_in_which_a_buffer_is_live():
    launches = llama_launches(1)
    live, sizes = liveness(launches), {"x": 4_000_000, "normed": 4_000_000, "gated": 9_000_000}
    offsets = first_fit(sizes, live)
    figure = pictures.buffer_plan([launch.name for launch in launches], offsets, sizes, live, "A plan")
    assert figure.summary == ("17,000,192 bytes where each buffer of its own would take 17,000,000: gated at 0, x at "
                              "9,000,192, normed at 13,000,192.")
    assert drawn(figure).count("normed") == 3  # before attention, before the MLP, before the head
    assert drawn(figure).count("x") == drawn(figure).count("gated") == 1
    assert figure.svg().startswith("<svg")


@pytest.mark.parametrize(("there", "stretches"), [
    ([True, True, False, True], [(0, 1), (3, 3)]), ([False, False], []), ([True], [(0, 0)])])
def test_stretches(there, stretches):
    assert pictures._stretches(there) == stretches
