"""The figure of the lesson "Softmax", in the course's style.

    join()      two parts of a row, each with its maximum and its sum, become one
"""

from __future__ import annotations

import math

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    ORANGE,
    PALE,
    SMALLEST,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    note,
)


def join(left=(1, 3, 2), right=(5, 4)) -> CourseFigure:
    """Join the parts of a row, cut in two, to the maximum and the sum of the whole, without its elements."""
    parts = [(values, max(values), sum(math.exp(v - max(values)) for v in values)) for values in (left, right)]
    largest = max(m for _, m, _ in parts)
    total = sum(s * math.exp(m - largest) for _, m, s in parts)
    figure, ax = canvas(2.78, "Two values per part are enough to join it to any other",
                        f"A row cut into {left} and {right}: maxima {parts[0][1]} and {parts[1][1]}, sums "
                        f"{parts[0][2]:.2f} and {parts[1][2]:.2f}; joined: {largest} and {total:.2f}.")
    cell, gap = 0.42, 1.25
    x = 0.9
    with rc_context(STYLE):
        ax.text(0.14, 0.78, "row", fontsize=SMALLEST, color=FAINT, va="center")
        centres = []
        for (values, m, s), colour in zip(parts, (BLUE, GREEN), strict=True):
            for i, value in enumerate(values):
                draw_box(ax, x + i * cell, 0.64, cell - 0.03, 0.28, value, fill=PALE[colour])
            middle = x + len(values) * cell / 2
            box = middle - 0.85
            draw_box(ax, box, 1.22, 1.70, 0.28, f"m = {m},  s = {s:.2f}", fill=PALE[colour])
            ax.plot([middle, middle], [0.94, 1.22], color=colour, linewidth=1)
            centres.append((middle, m, colour))
            x += len(values) * cell + gap
        target = sum(middle for middle, _, _ in centres) / 2
        for middle, m, colour in centres:
            ax.plot([middle, target], [1.50, 2.00], color=colour, linewidth=1)
            side = -1 if middle < target else 1
            ax.text((middle + target) / 2 + 0.42 * side, 1.78, f"s \u00b7 exp({m} \u2212 {largest})", fontsize=SMALLEST,
                    color=TEXT[colour], va="center", ha="right" if side < 0 else "left")
        draw_box(ax, target - 0.95, 2.00, 1.90, 0.28, f"M = {largest},  S = {total:.2f}", fill=PALE[ORANGE])
        note(ax, 2.52, "m: the largest element of a part. s: the sum of exp(x \u2212 m) over its elements.")
        ax.set_xlim(0, WIDTH)
    return figure
