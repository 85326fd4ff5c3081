"""The figures of the lesson "Linear attention": what they say, and what they refuse."""

from labkit.course.drawings import linear_attention as pictures
from labkit.measure import CPU_DEVICE


def test_linear_attention_beside_softmax():
    series = {"S": [128, 8192], "where": "NVIDIA H200", "date": "2026-11-24",
              "lines": [{"name": "linear, quadratic", "us": [5.0, None]}, {"name": "linear, chunked", "us": [4.0, 9.0]},
                        {"name": "flash", "us": [3.0, 900.0]}]}
    figure = pictures.over_linear(series, recorded=None)
    assert len(figure.axes[0].lines) == 3 and "S from 128 to 8,192" in figure.summary
    assert "No GPU has recorded this yet" in pictures.over_linear(series | {"where": CPU_DEVICE}, recorded=None).summary
    counted = pictures.linear_costs(64, (16, 128))
    assert "softmax 2,113,536 and linear 2,097,152 at 128 tokens" in counted.summary  # 127 tokens: the same
    assert "softmax 16,384 and linear 4,160 at 128 tokens" in counted.summary
    assert counted.svg().startswith("<svg")
