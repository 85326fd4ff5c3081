"""The figure of the lesson "Histogram", in the course's style.

    private_bins()      atomics on one histogram, and on one for each block
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    PALE,
    SMALLEST,
    STYLE,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    note,
)

VALUES = ((2, 1, 2, 2, 0, 2), (2, 2, 3, 1, 2, 2))
COLOURS = (BLUE, GREEN)


def private_bins(values=VALUES, bins: int = 4) -> CourseFigure:
    """Two blocks count their elements: in one array of bins, and in bins of their own that are added at the end."""
    if any(not 0 <= value < bins for block in values for value in block):
        raise ValueError(f"values has elements outside the bins 0 to {bins - 1}")
    elements = sum(map(len, values))
    added = sum(len(set(block)) for block in values)
    figure, ax = canvas(3.32, f"Private bins: {added} atomics on global memory instead of {elements}",
                        f"Two blocks count {elements} elements. With one histogram they make {elements} atomics on "
                        f"global memory, with a private histogram for each block {added}.")
    cell, between = 0.225, 0.42
    with rc_context(STYLE):
        for panel, name in enumerate(("one histogram", "one for each block")):
            x0 = 0.14 + panel * (WIDTH - 0.28 + between) / 2
            span = (WIDTH - 0.28 - between) / 2
            ax.text(x0, 0.62, name, fontsize=SMALLEST + 0.5, fontweight="bold", va="center")
            ax.text(x0, 2.94, "global memory", fontsize=SMALLEST, color=FAINT, va="center")
            total = [x0 + span / 2 + (b - bins / 2) * 0.34 for b in range(bins)]
            counts = [sum(block.count(b) for block in values) for b in range(bins)]
            for k, (block, colour) in enumerate(zip(values, COLOURS, strict=True)):
                left = x0 + k * (span - len(block) * cell)
                own = [left + len(block) * cell / 2 + (b - bins / 2) * 0.30 for b in range(bins)]
                for i, value in enumerate(block):
                    draw_box(ax, left + i * cell + 0.01, 0.92, cell - 0.02, 0.24, value, fill=PALE[colour],
                             size=SMALLEST - 1)
                    target = (own[value] + 0.13, 1.66) if panel else (total[value] + 0.16, 2.50)
                    ax.plot([left + (i + 0.5) * cell, target[0]], [1.16, target[1]], color=colour, linewidth=0.9)
                if panel:
                    for b in range(bins):
                        count = block.count(b)
                        draw_box(ax, own[b], 1.66, 0.26, 0.24, count, fill=PALE[colour if count else GREY],
                                 size=SMALLEST - 1)
                        if count:
                            ax.plot([own[b] + 0.13, total[b] + 0.16], [1.90, 2.50], color=colour, linewidth=0.9)
                    ax.text(x0 + span / 2, 1.78, "shared", fontsize=SMALLEST, color=FAINT, ha="center", va="center")
            for b in range(bins):
                draw_box(ax, total[b], 2.50, 0.32, 0.26, counts[b], fill=PALE[GREY])
        note(ax, 3.20, "Top: the elements of two blocks. A line is an atomic. Bottom: the histogram.")
    return figure
