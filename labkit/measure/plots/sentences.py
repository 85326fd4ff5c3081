"""The figures of lessons 30 and 31, in the course's style.

    cosines(texts, embeddings)     how near each sentence is to each other one
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import LinearSegmentedColormap

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    INK,
    PALE,
    STYLE,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
)

ACROSS = 29  # characters of a line beside a row of the matrix, of which there are two at most


def cosines(texts: Sequence[str], embeddings: np.ndarray) -> CourseFigure:
    """A matrix of cosines, two digits each. embeddings: (n, C), rows of length 1, one for each text."""
    count = len(texts)
    if len(embeddings) != count or not 2 <= count <= 14:
        raise ValueError(f"there are {count} texts and {len(embeddings)} embeddings; there must be as many of each, "
                         f"2 to 14")
    rows = np.asarray(embeddings, np.float64)
    matrix = rows @ rows.T
    colours = LinearSegmentedColormap.from_list("cosine", ["#FFFFFF", PALE[BLUE], BLUE])
    near = [(matrix[i, j], i, j) for i in range(count) for j in range(i)]
    _, one, other = max(near)
    left, top, tall = 2.66, 0.80, 0.42
    cell = (WIDTH - left - 0.16) / count
    figure, ax = canvas(top + count * tall + 0.34, "Cosines of sentences",
                        f"The cosine of each two of {count} sentences. The nearest two, {max(near)[0]:.2f}: "
                        f"{texts[other]!r} and {texts[one]!r}.")
    with rc_context(STYLE):
        for i, text in enumerate(texts):
            y = top + i * tall
            lines = textwrap.wrap(text, ACROSS, max_lines=2, placeholder="\u2026")
            ax.text(left - 0.32, y + tall / 2, "\n".join(lines), fontsize=9, ha="right", linespacing=1.05,
                    va="center" if len(lines) > 1 else "center_baseline")
            ax.text(left - 0.10, y + tall / 2, i, fontsize=9.5, ha="right", va="center_baseline", color=FAINT)
            ax.text(left + (i + 0.5) * cell, top - 0.14, i, fontsize=9.5, ha="center", va="center_baseline",
                    color=FAINT)
            for j in range(count):
                value = round(float(matrix[i, j]), 2) + 0.0  # without the sign of a zero
                draw_box(ax, left + j * cell, y, cell, tall, f"{value:.2f}".replace("-", "\u2212"), size=9,
                         fill=colours(min(max(value, 0.0), 1.0)), ink="white" if value > 0.7 else INK)
        ax.text(0.14, top + count * tall + 0.17, "White: 0, at right angles. Dark: 1, the same direction.", fontsize=9,
                color=FAINT, va="center")
    return figure


# --- The launches of a layer -----------------------------------------------------------------------------------------

# (what a launch does, its colour, what happens beside it): "add" puts its result onto the residual stream, "through"
# takes the stream itself, adds to it what the launch before wrote, and normalises it.
# --- The rows of a batch ---------------------------------------------------------------------------------------------
