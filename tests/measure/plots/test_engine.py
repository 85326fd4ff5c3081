"""The figures of the engine's series, from invented rows."""

import pytest

from labkit.measure import CPU_DEVICE
from labkit.measure.plots import engine as pictures
from tests import made_up

STAMP = {"where": made_up.GPU, "date": "2026-01-02"}


def decode(on_gpu=True):
    rows = [{"sequences": count, "ms": {"p5": 0.9, "p50": ms, "p95": 9.0}, "called_ms": ms + 0.2, "torch": None}
            for count, ms in ((1, 0.75), (32, 1.1), (256, 3.2))]
    if on_gpu:
        rows[0]["torch"] = {"eager, in a graph": 2.1, "compiled, in a graph": None, "compiled: why not": "no compiler"}
        for row in rows:
            row["bound_ms"] = 0.8 * row["ms"]["p50"]
    return {"tokens": 1024, "rows": rows} | (STAMP if on_gpu else {"where": CPU_DEVICE, "date": "2026-01-02"})


def load():
    rows = [{"name": name, "seats": seats, "most_sequences": 2, "seconds": seconds, "tokens_per_second": 100 / seconds,
             "spans": {"seat": [0, 1, 0], "request": [0, 1, 2], "begin": [0, 0, 1.0], "end": [1.0, 0.5, seconds]}}
            for name, seats, seconds in (("contiguous, static", 2, 2.0), ("contiguous, continuous", 2, 1.5),
                                         ("pages, continuous", 8, 1.25))]
    return {"requests": 3, "shortest": 3, "longest": 16, "rows": rows, **STAMP}


def written(figure):
    return [text.get_text() for text in (*figure.texts, *(one for ax in figure.axes for one in ax.texts))]


def test_steps_stand_beside_their_bytes_and_pytorchs():
    figure = pictures.decode_steps(decode(), recorded=None)
    names = written(figure)
    assert {"in a graph", "called from Python", "PyTorch", "bound from its bytes"} < set(names)
    assert "PyTorch, compiled" not in names
    assert "1 sequences 0.75; 32 sequences 1.1; 256 sequences 3.2" in figure.summary
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1", "32", "256"]


def test_of_the_cpu_device_only_the_recorded_ones_are_drawn():
    figure = pictures.decode_steps(decode(on_gpu=False), recorded=decode())
    assert len(figure.axes) == 1 and len(figure.axes[0].lines) == 4


def test_seats_that_stay_empty_are_seen():
    figure = pictures.seats(load())
    static, continuous = figure.axes
    assert [(bar.get_x(), bar.get_width(), round(bar.get_y() + bar.get_height() / 2)) for bar in static.patches] == [
        (0, 1.0, 0), (0, 0.5, 1), (1.0, 1.0, 0)]
    assert static.get_xlim() == continuous.get_xlim()
    assert "contiguous, static: 2 s, 50 tokens a second; seats are empty for 38% of the time" in written(figure)
    assert "pages, continuous: 1.25 s, 80 tokens a second." in pictures.seats(load(), ["pages, continuous"]).summary
    with pytest.raises(KeyError):
        pictures.seats(load(), ["no such run"])
