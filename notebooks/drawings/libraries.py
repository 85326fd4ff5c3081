"""The figure of the lesson "Libraries", in the course's style.

    two_readings(2, 3)    one memory, read row by row and column by column
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    ORANGE,
    PALE,
    PURPLE,
    STYLE,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
)

COLOURS = (BLUE, ORANGE, GREEN, PURPLE)


def two_readings(rows: int = 2, cols: int = 3) -> CourseFigure:
    """A row-major matrix, its memory, and the same memory read column by column."""
    if not (1 <= rows <= 4 and 1 <= cols <= 6 and rows * cols <= 14):
        raise ValueError(f"rows, cols are {rows}, {cols}; a picture holds at most 4 rows, 6 columns and 14 elements")
    cell, tall = 0.40, 0.30
    count = rows * cols
    figure, ax = canvas(1.62 + tall * (max(rows, cols) + 1), "Read by columns, the same memory is the transpose",
                        f"A matrix of {rows} x {cols} lies in memory row after row. Read column after column with "
                        f"columns of {cols} elements, the same memory is its transpose, {cols} x {rows}.")
    letters = "abcdefghijklmn"
    with rc_context(STYLE):
        strip = (WIDTH - count * cell) / 2
        ax.text(strip, 0.60, "memory", fontsize=9, color=FAINT, va="center")
        for i in range(count):
            draw_box(ax, strip + i * cell, 0.72, cell, tall, letters[i], fill=PALE[COLOURS[i // cols]], size=9)
            ax.text(strip + (i + 0.5) * cell, 0.72 + tall + 0.11, i, fontsize=9, color=FAINT, ha="center", va="center")
        top = 0.72 + tall + 0.66
        left, right = 0.62, WIDTH - 0.62 - max(rows, 3) * cell - 0.9
        ax.text(left, top - 0.24, f"row by row, NumPy and C: {rows} \u00d7 {cols}", fontsize=9, va="center")
        ax.text(right, top - 0.24, f"column by column, cuBLAS: {cols} \u00d7 {rows}", fontsize=9, va="center")
        for i in range(count):
            row, col = divmod(i, cols)
            draw_box(ax, left + col * cell, top + row * tall, cell, tall, letters[i], fill=PALE[COLOURS[row]], size=9)
            draw_box(ax, right + row * cell, top + col * tall, cell, tall, letters[i], fill=PALE[COLOURS[row]], size=9)
        ax.annotate("", (right - 0.15, top + tall), (left + cols * cell + 0.15, top + tall),
                    arrowprops={"arrowstyle": "-|>", "color": FAINT, "lw": 1.0})
        ax.text((left + cols * cell + right) / 2, top + tall - 0.20, "not one element\nhas moved", fontsize=9,
                color=FAINT, ha="center", va="center")
        ax.text(right + rows * cell + 0.12, top + cols * tall / 2, f"leading\ndimension {cols}", fontsize=9,
                color=FAINT, va="center")
    return figure
