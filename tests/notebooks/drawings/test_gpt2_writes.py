"""The figures of the lesson "GPT-2 writes": what they say, and what they refuse."""

import numpy as np
import pytest

from labkit import measure
from labkit.course.drawings import gpt2_writes as pictures
from labkit.measure.series.generation import PROMPTS
from tests.measure.plots.layout import drawn


def series(where, hows):
    def row(name, how, rate):
        return {"attention": name, "how": how, "tokens_per_second": rate}

    rates = {"unfused": 100.0, "fused": 110.0, "one kernel": 125.0}
    prompts = [{"text": "a", "rows": [row(name, how, rate) for how in hows for name, rate in rates.items()]}]
    return {"where": where, "date": "2026-11-21", "models": [{"name": "small's shape", "prompts": prompts}]}


def test_tokens_a_second_of_a_gpu_stand_beside_the_sources():
    figure = pictures.rates(series("NVIDIA H200", ("called", "graph")))
    assert len(figure.axes) == 2
    assert drawn(figure).count("shape of small,\nrandom weights") == 2
    assert "distilgpt2, NVIDIA L4:\nthe report's" in drawn(figure)
    assert drawn(figure).count("125  (1.25 times)") == 2
    assert "shape of small, random weights 100 and 110 and 125" in figure.summary
    assert "the report's 180 and 181" in figure.summary


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


def test_amdahl():
    assert pictures.amdahl(0.0, 100) == 1 and pictures.amdahl(1.0, 5) == pytest.approx(5)
    assert pictures.amdahl(0.1, 2) == pytest.approx(1 / 0.95)
    assert pictures.amdahl(0.5, np.inf) == pytest.approx(2)
    step = {"unfused": {"us": 100.0, "softmax_us": 20.0}, "fused": {"us": 91.0, "softmax_us": 10.0}}
    found = pictures.judged(step)
    assert (found["share"], found["speedup"]) == (0.2, 2.0)
    assert found["predicted"] == pytest.approx(1 / 0.9) and found["most"] == pytest.approx(1.25)
    series = {"models": [{"name": "small", "step": step}], "where": "here", "date": "today"}
    assert pictures.amdahl_table(series).table()["rows"] == [
        ["a token, small", "20.0%", "2.00", "1.111", "1.099", "1.250"]]


def test_the_reports_numbers_fit_one_another():
    assert set(pictures.SOURCE) == set(PROMPTS)
    for rows in pictures.SOURCE.values():
        for rate, ms, seconds in rows:  # they fit one another: some 95 tokens each
            assert 1000 / rate == pytest.approx(ms, rel=2e-3) and 94 < rate * seconds < 97


def test_how_far_the_law_misses():
    def step(fused, called=None):
        unfused = {"us": 200.0, "softmax_us": 40.0}
        after = {"us": fused, "softmax_us": 10.0}
        if called:
            unfused |= {"called_us": 2000.0, "called_softmax_us": 400.0}
            after |= {"called_us": called, "called_softmax_us": 100.0}
        return {"unfused": unfused, "fused": after, "position": 1, "count": 1}

    exact = step(170.0, called=1360.0)  # by the law 170 and 1,700
    found = pictures.apart({"where": "a GPU", "models": [{"step": exact}], "prefill": [step(160.0)]})
    assert found == {"graph": pytest.approx(170 / 160 - 1), "called": pytest.approx(0.25)}
    assert pictures.apart({"where": measure.CPU_DEVICE, "models": [{"step": step(170.0)}]}) == {
        "called": pytest.approx(0, abs=1e-12)}
