"""The figures of the lesson "Gradients of a kernel", in the course's style.

    linear_products()             the three products of a linear layer, and the axis that each adds up
    step_sizes(steps, errors)     the error of a finite difference, over the size of its step
"""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    STYLE,
    TEXT,
    VERMILLION,
    CourseFigure,
    canvas,
    draw_box,
    new_figure,
    note,
)

LENGTHS = {"T": 1.00, "N": 0.72, "K": 0.44}  # inches of an axis
AXES = {"x": "TK", "W": "NK", "out": "TN", "dout": "TN", "dx": "TK", "dW": "NK"}  # down, across
PRODUCTS = (("out", "x", "W", "K", True), ("dx", "dout", "W", "N", False),
            ("dW", "dout", "x", "T", False))  # (result, two factors, the axis added up, forward pass)


def linear_products() -> CourseFigure:
    """Draw the factors and results of a linear layer's three products; the axis that is added up is orange."""
    figure, ax = canvas(4.80, "A linear layer: one product forward, two backward",
                        "; ".join(f"{result} ({', '.join(AXES[result])}) from {first} ({', '.join(AXES[first])}) and "
                                  f"{second} ({', '.join(AXES[second])}), added up over {axis}"
                                  for result, first, second, axis, _ in PRODUCTS) + ".")
    with rc_context(STYLE):
        for row, (result, first, second, summed, forward) in enumerate(PRODUCTS):
            middle = 1.16 + 1.28 * row
            ax.text(0.14, middle, "forward" if forward else "backward", fontsize=9.5, fontweight="bold", va="center")
            for name, centre in ((result, 1.70), (first, 3.40), (second, 5.10)):
                _draw_matrix(ax, name, centre, middle, summed, GREEN if name == result else BLUE)
            for x, sign in ((2.55, "="), (4.25, "×")):
                ax.text(x, middle, sign, fontsize=13, ha="center", va="center")
        note(ax, 4.50, "Green: the result. Orange: the axis of both factors that is added up, and that the result does "
             "not have. T tokens, K inputs, N outputs.")
    return figure


def _draw_matrix(ax, name: str, centre: float, middle: float, summed: str, colour: str) -> None:
    down, across = AXES[name]
    height, width = LENGTHS[down], LENGTHS[across]
    left, top = centre - width / 2, middle - height / 2
    draw_box(ax, left, top, width, height, fill=PALE[colour], edge=GREY)
    ax.text(centre, middle, name, fontsize=9, ha="center", va="center", color=TEXT[colour])
    for axis, x, y in ((across, centre, top - 0.09), (down, left - 0.11, middle)):
        bold = axis == summed
        ax.text(x, y, axis, fontsize=9.5, ha="center", va="center", color=TEXT[ORANGE if bold else GREY],
                fontweight="bold" if bold else "normal")


def step_sizes(steps, errors: dict[str, list]) -> CourseFigure:
    """Plot the relative error of a central difference. errors: a format's name -> the error for each step."""
    best = {name: int(np.argmin(values)) for name, values in errors.items()}
    found = "; ".join(f"in {name} smallest, {values[best[name]]:.0e}, for a step of {steps[best[name]]:.0e}"
                      for name, values in errors.items())
    figure, (ax,) = new_figure([3.1], "A step can be too large, and too small",
                               f"The error of a finite difference over its step: {found}.")
    with rc_context(STYLE):
        for (name, values), colour in zip(errors.items(), (BLUE, VERMILLION), strict=True):
            ax.plot(steps, values, "o-", color=colour, markeredgewidth=0)
            left = min(best[name] + 5, len(steps) - 1)  # on the branch of rounding
            ax.annotate(name, (steps[left], values[left]), (8, 8), textcoords="offset points",
                        fontweight="bold", color=TEXT[colour])
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(1e-12, 10)
        ax.set_xlabel("step h")
        ax.set_ylabel("relative error")
        ax.grid(True)
        ax.tick_params(length=0)
    return figure
