"""The figures of the lesson "Llama by hand", in the course's style.

    rotations(frequencies, pairs)      some pairs of a head, rotated as at each position
    wavelengths(plain, scaled, ...)    the wavelength of every pair, as it is and as llama3 scaling changes it
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.patches import Circle

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    grid_along,
    new_figure,
    panel_title,
)


def rotations(frequencies: Sequence[float], pairs: Sequence[int], positions: int = 9) -> CourseFigure:
    """A row for each of these pairs, a dial for each position from 0 on. frequencies: radians from one position to the
    next, for every pair of a head."""
    frequencies = np.asarray(frequencies, np.float64)
    if not pairs or not all(0 <= pair < len(frequencies) for pair in pairs):
        raise ValueError(f"pairs are {list(pairs)}; each must be one of the {len(frequencies)} pairs, 0 to "
                         f"{len(frequencies) - 1}")
    if not 2 <= positions <= 12:
        raise ValueError(f"positions is {positions}; from 2 to 12 fit")
    waves = 2 * np.pi / frequencies
    left, top, tall = 2.02, 0.80, 0.60
    wide = (WIDTH - left - 0.20) / positions
    radius = 0.40 * min(wide, tall)
    figure, ax = canvas(top + len(pairs) * tall + 0.16, "Each pair of a head turns at its own speed",
                        f"Dials for positions 0 to {positions - 1}: " + "; ".join(
                            f"pair {pair} turns once in {waves[pair]:,.1f} tokens" for pair in pairs) + ".")
    with rc_context(STYLE):
        ax.text(left - 0.14, top - 0.22, "position", fontsize=9, color=FAINT, ha="right", va="center_baseline")
        for position in range(positions):
            ax.text(left + (position + 0.5) * wide, top - 0.22, position, fontsize=9.5, ha="center", color=FAINT,
                    va="center_baseline")
        for row, pair in enumerate(pairs):
            y = top + (row + 0.5) * tall
            ax.text(0.14, y - 0.09, f"pair {pair}", fontsize=10, fontweight="bold", va="center_baseline")
            ax.text(0.14, y + 0.12, f"a turn in {waves[pair]:,.1f} tokens", fontsize=9, color=FAINT,
                    va="center_baseline")
            for position in range(positions):
                x, angle = left + (position + 0.5) * wide, frequencies[pair] * position
                ax.add_patch(Circle((x, y), radius, facecolor=PALE[BLUE], edgecolor=GREY, linewidth=0.8))
                ax.plot([x, x + radius * math.cos(angle)], [y, y - radius * math.sin(angle)], color=BLUE,
                        linewidth=1.8, solid_capstyle="round")
    return figure


def wavelengths(plain: Sequence[float], scaled: Sequence[float], context: int, low: float, high: float,
                ) -> CourseFigure:
    """Tokens for a full turn of each pair. plain, scaled: radians from one position to the next. context: the number of
    positions in the first training; a pair that completes at least `high` turns in it is kept, one that completes at
    most `low` is stretched by the whole factor."""
    old, new = (2 * np.pi / np.asarray(each, np.float64) for each in (plain, scaled))
    if old.shape != new.shape or old.ndim != 1:
        raise ValueError(f"plain has shape {old.shape} and scaled {new.shape}; both must be one number for each "
                         f"pair")
    unchanged = int(np.isclose(old, new).sum())
    stretched = int((context / old <= low).sum())
    figure, (ax,) = new_figure([3.1], "llama3 scaling stretches only the slow pairs",
                               f"Tokens for a full turn of each of {len(old)} pairs: {unchanged} are kept, {stretched} "
                               f"are stretched by the whole factor, {len(old) - unchanged - stretched} lie between.")
    with rc_context(STYLE):
        pairs = np.arange(len(old))
        ax.axhspan(context / high, context / low, color=PALE[GREEN], zorder=0)
        ax.plot(pairs, old, color=BLUE, marker="o", markeredgewidth=0)
        ax.plot(pairs, new, color=ORANGE, marker="s", markersize=4)
        ax.set_yscale("log")
        ax.set_xlim(-0.6, len(old) - 0.4)
        ax.set_xlabel("pair of a head")
        grid_along(ax, "y")
        ax.annotate("unscaled", (pairs[-1], old[-1]), xytext=(2, -34), textcoords="offset points", ha="right",
                    fontsize=9, color=TEXT[BLUE], fontweight="bold")
        ax.annotate("scaled", (pairs[-1], new[-1]), xytext=(-18, 0), textcoords="offset points", ha="right",
                    fontsize=9, color=TEXT[ORANGE], fontweight="bold")
        ax.annotate(f"{high:g} turns to {low:g} in {context:,} tokens", (0, context / math.sqrt(low * high)),
                    xytext=(4, 0), textcoords="offset points", fontsize=9, color=TEXT[GREEN], va="center")
        panel_title(ax, f"Tokens for a full turn: {unchanged} pairs kept, {stretched} stretched by the whole factor")
    return figure
