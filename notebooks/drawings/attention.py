"""The figures of the lesson "Attention", in the course's style.

    qkv_rows(token=2, head=5)    where the queries, keys and values of a head are
    four_steps(tokens=6)         scores, mask, softmax and values of one small head
    strides(head=1)              one row of memory for each token, and the matrices that tile_product reads there
"""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SMALLEST,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    draw_heading,
    note,
)

PARTS = (("queries", BLUE), ("keys", ORANGE), ("values", GREEN))


def qkv_rows(token: int = 2, head: int = 5, tokens: int = 6, heads: int = 12, size: int = 64) -> CourseFigure:
    """The rows of qkv: solid is what the block of this token and head reads."""
    if not (0 <= token < tokens <= 12 and 0 <= head < heads <= 16):
        raise ValueError(f"token {token} of {tokens} and head {head} of {heads}: a picture holds 12 tokens, 16 heads")
    width = heads * size
    left, top, tall, gap = 0.62, 1.06, 0.25, 0.10
    cell = (WIDTH - left - 0.16 - 2 * gap) / (3 * heads)
    figure, ax = canvas(top + tokens * tall + 0.92, "Every head has its columns in the rows of qkv",
                        f"Each row of qkv has {3 * width} numbers: queries, keys and values, {heads} heads of {size} "
                        f"each. Token {token} and head {head} need one piece of queries, and the keys and values of "
                        f"head {head} of all tokens.")
    with rc_context(STYLE):
        for part, (name, colour) in enumerate(PARTS):
            x0 = left + part * (heads * cell + gap)
            ax.text(x0, top - 0.40, name, fontsize=9.5, fontweight="bold", va="center", color=TEXT[colour])
            ax.text(x0, top - 0.17, f"from {part * width:,} on", fontsize=9, color=FAINT, va="center")
            for t in range(tokens):
                for h in range(heads):
                    used = h == head and (part > 0 or t == token)
                    text = h if t == 0 and h in (0, head, heads - 1) else ""
                    draw_box(ax, x0 + h * cell, top + t * tall, cell, tall, text,
                             fill=colour if used else PALE[colour], size=9,
                             ink="white" if used and colour != ORANGE else FAINT if not used else INK)
            middle, bottom = x0 + (head + 0.5) * cell, top + tokens * tall
            ax.annotate("", (middle, bottom + 0.02), (middle, bottom + 0.20),
                        arrowprops={"arrowstyle": "-|>", "color": TEXT[colour], "lw": 1.0})
            ax.text(middle, bottom + 0.29, f"{'t' if part == 0 else 'j'}\u00b7{3 * width} + {part * width} + "
                    f"{head}\u00b7{size}", fontsize=9, color=TEXT[colour], ha="center", va="center")
        for t in range(tokens):
            ax.text(left - 0.08, top + (t + 0.5) * tall, f"token {t}", fontsize=9, ha="right", va="center",
                    color=INK if t == token else FAINT)
        note(ax, top + tokens * tall + 0.63, f"A row for each token, a box for each head: {size} numbers. Solid: what "
             f"the result of token t = {token}, head {head}, is made of.")
    return figure


def four_steps(tokens: int = 6, size: int = 4, seed: int = 3) -> CourseFigure:
    """Causal attention of one head, with its numbers: a row for each query."""
    if not (2 <= tokens <= 6 and 2 <= size <= 4):
        raise ValueError(f"{tokens} tokens and heads of {size}: 2 to 6 tokens and 2 to 4 numbers are drawn")
    queries, keys, values = np.random.default_rng(seed).normal(size=(3, tokens, size))
    scores = queries @ keys.T / np.sqrt(size)
    visible = np.tril(np.ones(scores.shape, bool))
    weights = np.where(visible, np.exp(scores), 0)
    weights /= weights.sum(axis=1, keepdims=True)
    left, top, wide, tall, gap = 0.42, 1.24, 0.44, 0.25, 0.42
    rise = tokens * tall + 0.96
    figure, ax = canvas(top + rise + tokens * tall + 0.30, "Four steps from queries, keys and values to the output",
                        f"Causal attention of one head with {tokens} tokens: scores, the mask, the softmax of each "
                        f"row, and the weighted values.")

    def matrix(x0, y0, data, colour, hidden=None):
        largest = np.abs(data).max()
        for (row, col), value in np.ndenumerate(data):
            out = hidden is not None and hidden[row, col]
            x, y = x0 + col * wide, y0 + row * tall
            shade = float(np.clip(abs(value) / largest, 0, 1))
            draw_box(ax, x, y, wide, tall, fill=PALE[GREY] if out else "white")
            if not out:
                draw_box(ax, x, y, wide, tall, fill=colour, alpha=0.08 + 0.5 * shade)
            text = "\u2212\u221e" if out else f"{round(value, 1) + 0:.1f}".replace("-", "\u2212")  # + 0: no -0.0
            ax.text(x + wide / 2, y + tall / 2, text, fontsize=SMALLEST, ha="center", va="center_baseline",
                    color=FAINT if out else INK)

    with rc_context(STYLE):
        panels = (("1  scores", "q \u00b7 k / \u221aD", scores, PURPLE, None),
                  ("2  mask", "later keys are hidden", scores, PURPLE, ~visible),
                  ("3  softmax", "each row adds up to 1", weights, BLUE, None),
                  ("4  values", "rows of v, weighted and added", weights @ values, GREEN, None))
        for i, (name, below, data, colour, hidden) in enumerate(panels):
            x0, y0 = left + i % 2 * (6 * wide + gap), top + i // 2 * rise
            draw_heading(ax, x0, y0 - 0.60, name, below, ink=TEXT[colour])
            for col in range(tokens if data.shape == scores.shape else 0):
                ax.text(x0 + (col + 0.5) * wide, y0 - 0.12, f"k{col}", fontsize=SMALLEST, ha="center", va="center",
                        color=FAINT)
            for row in range(tokens):
                ax.text(x0 - 0.08, y0 + (row + 0.5) * tall, f"q{row}", fontsize=SMALLEST, ha="right",
                        va="center_baseline", color=FAINT)
            matrix(x0, y0, data, colour, hidden)
        note(ax, top + rise + tokens * tall + 0.20, "A row for each query. Columns of the first three are keys; of the "
             "last, the numbers of the head.")
    return figure


def strides(head: int = 1, tokens: int = 4, heads: int = 2, size: int = 2) -> CourseFigure:
    """The addresses of a small qkv, and what a product reads of one head: where it begins and two strides."""
    if not (0 <= head < heads <= 2 and 1 <= size <= 2 and 2 <= tokens <= 5):
        raise ValueError(f"head {head} of {heads}, {size} elements, {tokens} tokens: up to two heads of two elements "
                         "and five tokens are drawn")
    columns = 3 * heads * size
    left, top, tall, gap = 0.76, 0.94, 0.27, 0.10
    cell = (WIDTH - left - 0.16 - 2 * gap) / columns
    below = top + tokens * tall + 1.16  # where the three matrices begin
    rows = max(tokens, size)
    figure, ax = canvas(below + rows * tall + 0.36, "Swap two strides, and a matrix is transposed",
                        f"qkv of {tokens} tokens and {heads} heads of {size}: the addresses of the queries, the keys "
                        f"transposed and the values of head {head}, each with where it begins and two strides.")
    with rc_context(STYLE):
        for part, (name, colour) in enumerate(PARTS):
            x0 = left + part * (heads * size * cell + gap)
            ax.text(x0, top - 0.16, name, fontsize=9.5, fontweight="bold", va="center", color=TEXT[colour])
            for t in range(tokens):
                for c in range(heads * size):
                    used = c // size == head
                    draw_box(ax, x0 + c * cell, top + t * tall, cell, tall, t * columns + part * heads * size + c,
                             fill=PALE[colour] if used else "white", size=9, ink=INK if used else FAINT)
        for t in range(tokens):
            ax.text(left - 0.08, top + (t + 0.5) * tall, f"token {t}", fontsize=9, ha="right", va="center")
        small, x0 = 0.36, 0.16
        for part, (name, colour) in enumerate(PARTS):
            begin = part * heads * size + head * size
            down, across = (1, columns) if part == 1 else (columns, 1)
            height, width = (size, tokens) if part == 1 else (tokens, size)
            ax.text(x0, below - 0.68, f"{name}, transposed" if part == 1 else name, fontsize=9.5, fontweight="bold",
                    va="center", color=TEXT[colour])
            ax.text(x0, below - 0.44, f"begins at {begin}", fontsize=9, color=FAINT, va="center")
            ax.text(x0, below - 0.22, f"row +{down}, column +{across}", fontsize=9, color=FAINT, va="center")
            for row in range(height):
                for col in range(width):
                    draw_box(ax, x0 + col * small, below + row * tall, small, tall,
                             begin + row * down + col * across, fill=PALE[colour], size=9)
            x0 += max(width * small, 1.66) + 0.42
        note(ax, below + rows * tall + 0.20, f"The numbers are addresses. Shaded: head {head}. Not one key moves.")
    return figure
