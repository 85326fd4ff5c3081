"""Pictures of rows in registers and of banks, and curves: what they say, and that they draw."""

import numpy as np

from labkit.measure import plots


def test_a_row_in_registers():
    figure = plots.quads(columns=27, lanes=4)
    assert figure.summary == "A row of 27 elements over 4 lanes: four neighbours each, in 2 rounds."
    assert figure.svg().startswith("<svg")
    assert "in 1 round." in plots.quads(columns=16, lanes=4).summary


def test_banks_count_the_steps():
    figure = plots.banks({"plain": lambda row, col: 8 * row + col, "padded": lambda row, col: 9 * row + col,
                          "by ten": lambda row, col: 10 * row + col})
    assert figure.summary == "Reading a column of a tile: plain: 8 steps; padded: 1 step; by ten: 2 steps."
    assert figure.svg().startswith("<svg")


def test_curves_leave_out_what_is_not_finite():
    x = [1, 10, 100]
    lines = {"good": [1, 2, 3], "bad": [1, np.nan, np.inf]}
    figure = plots.curves(x, lines, "Errors", "x", "y", log_x=True, log_y=True)
    assert figure.summary == "Errors: good, bad over x."
    assert figure.svg().startswith("<svg")
    assert plots.curves(x, {"one": x}, "One", "x", "y", place="Here").summary == "One: one over x. Here"
