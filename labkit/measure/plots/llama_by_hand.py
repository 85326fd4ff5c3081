"""The figures of lessons 29 and 30, in the course's style.

    rotations(frequencies, pairs)          some pairs of a head, rotated as at each position
    wavelengths(plain, scaled, ...)        the wavelength of every pair, as it is and as llama3 scaling changes it
    head_weights(tokens, weights)          which tokens each query head attends to, one panel for each head
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import LinearSegmentedColormap
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
    draw_box,
    grid_along,
    new_figure,
    note,
    panel_title,
)

# --- Positions as rotations ------------------------------------------------------------------------------------------


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
    figure, ax = canvas(top + len(pairs) * tall + 0.16, "A position is a rotation",
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


# --- Wavelengths -----------------------------------------------------------------------------------------------------


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
    figure, (ax,) = new_figure([3.1], "Wavelengths under llama3 scaling",
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


# --- The weights of attention ----------------------------------------------------------------------------------------

ACROSS = 4  # panels beside each other


def head_weights(tokens: Sequence[str], weights: np.ndarray, shared: int) -> CourseFigure:
    """weights (H, T, T): row t of a head has the weights with which token t attends to itself and the tokens before it.
    shared: how many neighbouring query heads have the same keys and values."""
    weights = np.asarray(weights, np.float64)
    heads, count = weights.shape[0], len(tokens)
    if weights.shape != (heads, count, count) or count > 16 or heads > 16:
        raise ValueError(f"weights has shape {weights.shape} and there are {count} tokens; it must be (heads, tokens, "
                         f"tokens), with at most 16 of each")
    lines, left, top, gap = -(-heads // ACROSS), 1.04, 1.12, 0.16
    side = (WIDTH - left - 0.14 - (ACROSS - 1) * gap) / ACROSS
    below = 0.56  # for the names of the columns
    colours = LinearSegmentedColormap.from_list("weights", ["#FFFFFF", BLUE])
    figure, ax = canvas(top + lines * (side + 0.42) + below, "What each head attends to",
                        f"Attention weights of {heads} heads over {count} tokens; {shared} heads in a row share keys "
                        f"and values. The last token reads most from " + ", ".join(
                            f"{tokens[int(np.argmax(each[-1]))]!r}" for each in weights) + ".")
    names = [repr(token.strip() or token)[1:-1] for token in tokens]
    with rc_context(STYLE):
        note(ax, 0.54, "Row: the token that attends. Column: the token attended to. White: weight 0; dark blue: 1.")
        for head, each in enumerate(weights):
            x = left + head % ACROSS * (side + gap)
            y = top + head // ACROSS * (side + 0.42)
            colour = (BLUE, ORANGE)[head // shared % 2]
            ax.text(x, y - 0.12, f"head {head}", fontsize=9, fontweight="bold", va="center_baseline",
                    color=TEXT[colour])
            ax.text(x + side, y - 0.12, f"k, v {head // shared}", fontsize=9, ha="right", va="center_baseline",
                    color=TEXT[colour])
            visible = np.where(np.tril(np.ones((count, count))) > 0, each, np.nan)
            draw_box(ax, x, y, side, side, fill=PALE[GREY], edge="none")
            ax.imshow(visible, cmap=colours, vmin=0, vmax=1, interpolation="none", aspect="auto",
                      extent=(x, x + side, y + side, y), zorder=2)
            ax.plot([x, x + side, x + side, x, x], [y, y, y + side, y + side, y], color=GREY, linewidth=0.8,
                    zorder=3)
            cell = side / count
            size = min(9.0, 69 * cell)
            if head % ACROSS == 0:
                for t, name in enumerate(names):
                    ax.text(x - 0.06, y + (t + 0.5) * cell, name, fontsize=size, ha="right", va="center", color=FAINT)
            if head // ACROSS == lines - 1:
                for t, name in enumerate(names):
                    ax.text(x + (t + 0.5) * cell, y + side + 0.06, name, fontsize=size, rotation=90,
                            ha="center", va="top", color=FAINT)
        ax.set_xlim(0, WIDTH)
        ax.set_ylim(top + lines * (side + 0.42) + below, 0)
    return figure
