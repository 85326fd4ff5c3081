"""The figures of a server under load, from invented runs."""

import math

import pytest

from labkit.measure.plots import serve as pictures
from labkit.measure.serving import results
from labkit.measure.serving.command import of_run
from labkit.measure.serving.drive import Run
from labkit.measure.serving.load import Load, Slo, Work
from tests import made_up


def a_run(rate, concurrency=None, slow=1.0, error=None, tokens=5):
    records = [{"number": number, "at": None, "sent": 0.1 * number, "first": slow * (0.05 + 0.01 * number),
                "took": slow, "gaps": [0.1 * slow] * (tokens - 1), "prompt_tokens": 4, "output_tokens": tokens,
                "error": error, "detail": None} for number in range(8)]
    run = Run(Load([Work([1], tokens)] * 8, rate, concurrency), records, seconds=2.0)
    return of_run(run, Slo.of("ttft=100"))


def found(*runs):
    return {"model_id": "tiny", "runs": list(runs), "where": made_up.GPU, "date": "2026-01-02"}


def written(figure):
    return [text.get_text() for text in (*figure.texts, *(one for ax in figure.axes for one in ax.texts))]


def test_several_rates_have_four_panels():
    figure = pictures.load(found(a_run(4.0, slow=2.0), a_run(1.0), a_run(math.inf)))
    assert len(figure.axes) == 4
    names = written(figure)
    assert {"\u25cf 4 a second", "\u25a0 1 a second", "\u25c6 all at once", "TTFT p50", "ITL p99", "asked for",
            "delivered", "within the SLO", "tiny under load"} <= set(names)
    throughput = figure.axes[2]
    assert [list(line.get_xdata()) for line in throughput.lines] == [[1.0, 4.0]] * 3  # sorted, and only finite rates
    assert [list(line.get_ydata()) for line in throughput.lines[:2]] == [[5.0, 20.0], [20.0, 20.0]]
    assert "4 a second: 20 tokens/s, TTFT p50 170" in figure.summary and made_up.GPU in figure.summary


def test_a_closed_loop_has_the_distributions_alone():
    figure = pictures.load(found(a_run(None, 8)))
    assert len(figure.axes) == 2 and "\u25cf 8 at a time" in written(figure)
    curve = figure.axes[0].lines[0]
    assert list(curve.get_ydata()) == [each / 100 for each in results.CURVE] and curve.get_marker() == "o"
    assert curve.get_xdata()[0] == pytest.approx(50) and curve.get_xdata()[-1] == pytest.approx(120)


def test_each_half_alone_is_for_a_lesson():
    both = found(a_run(4.0), a_run(1.0))
    assert len(pictures.distributions(both).axes) == 2 == len(pictures.against_rate(both).axes)
    assert pictures.distributions(both, [a_run(2.0)]).summary.startswith("2 a second")


def test_runs_without_answers_and_answers_of_one_token():
    single = a_run(1.0, tokens=1)
    figure = pictures.load(found(single, a_run(2.0, error="timeout"), a_run(3.0, tokens=1)))
    assert len(figure.axes) == 4 and len(figure.axes[1].lines) == 0 and "2 a second" not in written(figure)
    assert figure.svg().startswith("<svg")
    with pytest.raises(ValueError, match="no run has an answer"):
        pictures.load(found(a_run(2.0, error="timeout")))
