"""Pictures of banks, curves and bars of traffic: what they say, and that they draw."""

import numpy as np

from labkit.measure import plots


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


def test_traffic_is_drawn():
    figure = plots.traffic({"unfused": (4.0, 3.5), "fused": (0.5, 1.0)}, "Passes", "passes", least=1.5)
    assert figure.summary == "Passes: unfused 4 and 3.5 passes; fused 0.5 and 1 passes."
    assert figure.svg()
