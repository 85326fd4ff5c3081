"""The figures of the lesson "A faster block": what they say, and what they refuse."""

from labkit.course.drawings import faster_block as pictures


def test_recorded_times_may_be_missing(monkeypatch):
    monkeypatch.setattr(pictures.measure, "recorded_ladder", lambda *_, **__: None)
    times = pictures.recorded_times()
    assert len(times) == len(pictures.LESSON_ROWS) and set(map(tuple, times.values())) == {(None,) * 4}


def test_rows_that_are_recorded_are_those_of_the_operations():
    from labkit.kernels.baselines import forms
    from labkit.models.gpt2_block_op import GPT2_BLOCK, GPT2_BLOCK_HALF

    known = {(op.name, name) for op in (GPT2_BLOCK, GPT2_BLOCK_HALF)
             for name in (*(rung.__name__ for rung in op.rungs),
                          *(form.title for one in op.baselines for form in forms(one)))}
    assert set(pictures.LESSON_ROWS.values()) <= known


def test_seven_launches_say_what_they_move():
    figure = pictures.seven_launches(tokens=16)
    assert "seven launches with 16 tokens" in figure.summary and "attention" in figure.summary
    assert figure.svg().startswith("<svg")
