"""The figures of the lesson "Making the encoder fast": what they say, and what they refuse."""

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
