"""The figures of the lesson "LayerNorm", in the course's style.

    quads()    which lane keeps which part of a row
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    count_of,
    draw_box,
    note,
)


def quads(columns: int = 27, lanes: int = 4) -> CourseFigure:
    """Which lane keeps which elements of a row, four neighbours at a time, for a warp of `lanes` lanes."""
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    rounds = -(-columns // (4 * lanes))
    left, top, tall = 1.02, 0.92, 0.34
    cell = (WIDTH - left - 0.2 - 0.06 * (lanes - 1)) / (4 * lanes)
    figure, ax = canvas(top + rounds * (tall + 0.14) + 0.46, "A row spread over the registers of a warp",
                        f"A row of {columns} elements over {lanes} lanes: four neighbours each, in "
                        f"{count_of(rounds, 'round')}.")
    with rc_context(STYLE):
        for lane in range(lanes):
            middle = left + lane * (4 * cell + 0.06) + 2 * cell
            ax.text(middle, top - 0.20, f"lane {lane}", fontsize=9, fontweight="bold", ha="center", va="center",
                    color=TEXT[colours[lane % 4]])
        for q in range(rounds):
            y = top + q * (tall + 0.14)
            ax.text(0.14, y + tall / 2, f"quad {q}", fontsize=9, va="center")
            for lane in range(lanes):
                for e in range(4):
                    col = 4 * lanes * q + 4 * lane + e
                    x = left + lane * (4 * cell + 0.06) + e * cell
                    if col < columns:
                        draw_box(ax, x, y, cell, tall, col, fill=PALE[colours[lane % 4]], size=9)
                    else:
                        draw_box(ax, x + 0.02, y + 0.02, cell - 0.04, tall - 0.04, "0", edge=GREY, ink=FAINT, size=9,
                                 linestyle=(0, (2, 2)), linewidth=0.7)
        note(ax, top + rounds * (tall + 0.14) + 0.14, "The number is the column. A quad is one load of 128 bits. "
             "Dashed: beyond the row, a zero, which leaves the sum as it is.")
    return figure
