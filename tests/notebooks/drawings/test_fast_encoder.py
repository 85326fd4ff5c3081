"""The figures of the lesson "Making the encoder fast": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import fast_encoder as pictures
from labkit.models.minilm import Config
from labkit.models.minilm_counts import launches_of_layer
from labkit.models.minilm_steps import STEPS
from tests.measure.plots.layout import drawn

SMALL = Config(hidden_size=64, num_attention_heads=2, intermediate_size=96)


def test_a_box_for_each_launch_of_each_step():
    layers = {one.name: launches_of_layer(one, SMALL, [5, 3]) for one in STEPS}
    figure = pictures.layer_of_each_step(layers)
    assert figure.summary.startswith("simple: 18 launches; cp.async: 18 launches; one product: 12 launches;")
    boxes = len(figure.axes[0].patches)
    assert boxes == len(pictures.KINDS) + sum(map(len, layers.values()))
    assert {"18", "12", "10", "9", "7", *layers} <= set(drawn(figure))
    assert figure.svg().startswith("<svg")


STAMP = {"where": "NVIDIA H200", "date": "2026-11-30"}


def test_the_recorded_ladder():
    series = {"steps": [{"name": name, "us": {"64 x 128": 30.0 / k, "64 x 16": 4.0 / k}} for k, name in
                        enumerate(("simple", "packed"), 1)], **STAMP}
    figure = pictures.step_times(series)
    assert figure.summary == ("Microseconds a sentence. Measured on NVIDIA H200, 2026-11-30. simple: 30.0 at 64 x 128, "
                              "4.0 at 64 x 16; packed: 15.0 at 64 x 128, 2.0 at 64 x 16.")
    assert len(figure.axes) == 2 and {"30.0", "15.0", "4.0", "2.0"} <= set(drawn(figure))
    assert figure.svg().startswith("<svg")


def test_score_matrices_count_what_is_needed():
    figure = pictures.score_matrices([5, 20, 16])
    assert figure.summary == ("Sentences of 5, 20, 16 tokens need 681 scores: padded to 128, 49,152; padded to the "
                              "longest, 3,072; packed, 681.")
    assert "Padded to the longest: 3,072 scores, 4.5 times what is needed" in drawn(figure)
    assert "Packed: 681 scores, all of them needed" in drawn(figure)
    assert figure.svg().startswith("<svg")


@pytest.mark.parametrize("lengths", [[], [0, 3], [129], [3] * 13])
def test_what_does_not_fit_is_refused(lengths):
    with pytest.raises(ValueError):
        pictures.score_matrices(lengths)
