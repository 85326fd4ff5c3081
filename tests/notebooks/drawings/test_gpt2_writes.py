"""The figures of the lesson "GPT-2 writes": what they say, and what they refuse."""

import pytest

from labkit import measure
from labkit.course.drawings import gpt2_writes as pictures


def series(where, hows):
    def row(name, how, rate):
        return {"attention": name, "how": how, "tokens_per_second": rate}

    rates = {"unfused": 100.0, "fused": 110.0, "one kernel": 125.0}
    prompts = [{"text": "a", "rows": [row(name, how, rate) for how in hows for name, rate in rates.items()]}]
    return {"where": where, "date": "2026-11-21", "models": [{"name": "small's shape", "prompts": prompts}]}


def drawn(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_tokens_a_second_of_a_gpu_stand_beside_the_sources():
    figure = pictures.rates(series("NVIDIA H200", ("called", "graph")))
    assert len(figure.axes) == 2
    assert drawn(figure).count("shape of small,\nrandom weights") == 2
    assert "distilgpt2, NVIDIA L4:\nthe article's" in drawn(figure)
    assert drawn(figure).count("125  (1.25 times)") == 2
    assert "shape of small, random weights 100 and 110 and 125" in figure.summary
    assert "the article's 180 and 181" in figure.summary


def test_those_of_the_cpu_device_do_not():
    figure = pictures.rates(series(measure.CPU_DEVICE, ("called",)))
    assert len(figure.axes) == 1 and drawn(figure)[0] == "shape of small,\nrandom weights"
    assert "shows work, not speed" in figure.summary


def test_a_launch_that_is_quicker_than_its_line_has_its_number_behind_it(monkeypatch):
    monkeypatch.setattr(measure, "recorded", lambda *_, **__: {"limits": {"bandwidth_gbs": 1000.0}})
    rows = [{"name": "logits", "count": 1, "us": 4.0, "bytes": 5e6}, {"name": "ln_1", "count": 12, "us": 6.0,
                                                                     "bytes": None}]
    figure = pictures.step_shares({"where": "NVIDIA H200", "date": "2026-11-21", "model": "small's shape",
                                   "steps": [{"position": 52, "us": 10.0, "rows": rows}]})
    (number,) = [text for text in figure.axes[0].texts if text.get_text().startswith("4 us")]
    assert number.xy[0] == pytest.approx(5.0)
    assert "LayerNorm 1 × 12" in drawn(figure)
