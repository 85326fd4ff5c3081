"""The figures of the lesson "The first right token", in the course's style.

    head_weights(tokens, weights)    which tokens each query head attends to, one panel for each head
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import LinearSegmentedColormap

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREY,
    ORANGE,
    PALE,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    note,
)

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
    figure, ax = canvas(top + lines * (side + 0.42) + below, "Heads that share keys still attend differently",
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
