"""The figures of the lesson "The scheduler": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import the_scheduler as pictures
from labkit.engine.recording import Part, Recorded
from labkit.measure.simulation import Work, simulate

ONE, OTHER = ("0", 0), ("1", 0)
HISTORY = [Recorded((Part(ONE, "prefill", 5), Part(OTHER, "prefill", 2)), (), (), 3),
           Recorded((Part(ONE, "decode", 1),), (OTHER,), (OTHER,), 2),
           Recorded((Part(OTHER, "again", 2), Part(OTHER, "decode", 1)), (), (), 1)]


def test_requests_over_steps_says_what_was_preempted():
    figure = pictures.requests_over_steps(HISTORY, pages=4)
    assert figure.summary == "3 steps of 2 sequences, 1 preemption; at most 3 of 4 pages held."
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0", "1"] and figure.svg()
    crosses = [line for line in figure.axes[0].get_lines() if line.get_marker() == "x"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in crosses] == [(1.5, 1)]
    with pytest.raises(ValueError, match="the history has no steps"):
        pictures.requests_over_steps([], 4)


def test_tokens_of_steps_are_those_of_the_timeline():
    panels = {f"a budget of {budget}": simulate([Work(3, 4), Work(20, 2)], max_num_batched_tokens=budget)
              for budget in (8, 100)}
    figure = pictures.tokens_of_steps(panels)
    assert figure.summary == "a budget of 8: 5 steps, at most 8 tokens in one; a budget of 100: 4 steps, at most 23 " \
                             "tokens in one." and figure.svg()
    with pytest.raises(ValueError, match="a panel has no steps"):
        pictures.tokens_of_steps({})
