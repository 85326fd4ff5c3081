"""The figures of the lesson "LayerNorm": what they say, and what they refuse."""

from labkit.course.drawings import layernorm as pictures


def test_a_row_in_registers():
    figure = pictures.quads(columns=27, lanes=4)
    assert figure.summary == "A row of 27 elements over 4 lanes: four neighbours each, in 2 rounds."
    assert figure.svg().startswith("<svg")
    assert "in 1 round." in pictures.quads(columns=16, lanes=4).summary
