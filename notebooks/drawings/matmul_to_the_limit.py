"""The figures of the lesson "To the limit of the CUDA cores", in the course's style.

    thread_tile()    what one thread of a register-blocked product keeps and reads
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    STYLE,
    TEXT,
    CourseFigure,
    canvas,
    draw_box,
    note,
)


def thread_tile(threads: int = 4, size: int = 4, thread: tuple[int, int] = (2, 1)) -> CourseFigure:
    """One step of k in a block of threads x threads, each with a tile of size x size elements, `threads` apart.

    Coloured: what thread (x, y) keeps, and the numbers of a and b that it reads for it.
    """
    x, y = thread
    side = threads * size
    cell = 3.4 / (side + 2)
    left, top = 0.45, 0.72
    out_x, out_y = left + 2 * cell, top + 2 * cell
    figure, ax = canvas(out_y + side * cell + 0.50, "What one thread of a register-blocked product keeps and reads",
                        f"A block of {threads} x {threads} threads, each with {size} x {size} elements of out: in "
                        f"each step a thread reads {size} numbers of a and {size} of b for {size * size} products.")
    mine_rows = [y + threads * i for i in range(size)]
    mine_cols = [x + threads * i for i in range(size)]
    with rc_context(STYLE):
        for r in range(side):
            draw_box(ax, left, out_y + r * cell, cell, cell, fill=ORANGE if r in mine_rows else PALE[ORANGE])
            for c in range(side):
                own = r in mine_rows and c in mine_cols
                draw_box(ax, out_x + c * cell, out_y + r * cell, cell, cell, fill=BLUE if own else PALE[GREY])
        for c in range(side):
            draw_box(ax, out_x + c * cell, top, cell, cell, fill=GREEN if c in mine_cols else PALE[GREEN])
        ax.text(left, out_y - 0.14, "a", fontsize=9.5, fontweight="bold", va="center")
        ax.text(out_x - 0.10, top + cell / 2, "b", fontsize=9.5, fontweight="bold", va="center", ha="right")
        words = out_x + side * cell + 0.22
        lines = (("In one step of k it reads", INK, "bold"), (f"{size} numbers of a,", TEXT[ORANGE], "normal"),
                 (f"{size} numbers of b,", TEXT[GREEN], "normal"), ("and does a multiply-add for each", INK, "normal"),
                 (f"of its {size * size} accumulators.", TEXT[BLUE], "normal"))
        for k, (text, ink, weight) in enumerate(lines):
            ax.text(words, out_y + 0.15 + 0.25 * k, text, fontsize=9, color=ink, fontweight=weight, va="center")
        note(ax, out_y + side * cell + 0.28, f"Thread ({x}, {y}) of {threads} \u00d7 {threads}. Its elements lie "
                f"{threads} apart, so that neighbours in the block read neighbours in b.")
    return figure
