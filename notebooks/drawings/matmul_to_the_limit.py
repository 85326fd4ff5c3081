"""The figures of the lesson "To the limit of the CUDA cores", in the course's style.

    thread_tile()      what one thread of a register-blocked product keeps and reads
    warp_tile()        what one warp reads in a step: its thread tiles in two rows, or in a tile of 64 x 32
    reading_ahead()    reads and products of a warp in time, one after the other and one step ahead
    product_order()    64 products row by row, and in an order that turns around
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
    VERMILLION,
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
    figure, ax = canvas(out_y + side * cell + 0.50,
                        f"{2 * size} elements from shared memory feed {size * size} products",
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


def warp_tile() -> CourseFigure:
    """The part of a block's 128 x 128 elements that warp 0 computes, and what it reads of a and b in one step of k."""
    panels = (("two rows of 16 thread tiles", [(0, 8), (64, 72)], [(0, 128)]),
              ("8 rows of 4 thread tiles", [(0, 64)], [(0, 32)]))
    reads = [sum(end - begin for begin, end in rows + cols) for _, rows, cols in panels]
    scale, left, top, apart = 0.0175, 0.62, 1.34, 3.15
    figure, ax = canvas(top + 128 * scale + 0.42, f"A warp reads {reads[0]} elements for 2,048 products, or {reads[1]}",
                        "; ".join(f"{name}: {count} elements" for (name, *_), count in zip(panels, reads, strict=True)))
    with rc_context(STYLE):
        for panel, (name, rows, cols) in enumerate(panels):
            x0 = left + panel * apart
            down, across = (sum(end - begin for begin, end in spans) for spans in (rows, cols))
            ax.text(x0 - 0.40, 0.57, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0 - 0.40, 0.77, f"{down} of a + {across} of b = {down + across}", fontsize=9, va="center")
            ax.text(x0 - 0.19, top - 0.12, "a", fontsize=9, fontweight="bold", va="center", ha="center",
                    color=TEXT[ORANGE])
            ax.text(x0 - 0.08, top - 0.24, "b", fontsize=9, fontweight="bold", va="center", ha="right",
                    color=TEXT[GREEN])
            draw_box(ax, x0 - 0.27, top, 0.16, 128 * scale, fill=PALE[ORANGE])
            draw_box(ax, x0, top - 0.32, 128 * scale, 0.16, fill=PALE[GREEN])
            draw_box(ax, x0, top, 128 * scale, 128 * scale, fill=PALE[GREY])
            for begin, end in rows:
                draw_box(ax, x0 - 0.27, top + begin * scale, 0.16, (end - begin) * scale, fill=ORANGE)
                for first, last in cols:
                    draw_box(ax, x0 + first * scale, top + begin * scale, (last - first) * scale, (end - begin) * scale,
                             fill=BLUE)
            for first, last in cols:
                draw_box(ax, x0 + first * scale, top - 0.32, (last - first) * scale, 0.16, fill=GREEN)
        note(ax, top + 128 * scale + 0.20, "Blue: warp 0's part of the block's 128 \u00d7 128 elements. Orange and "
             "green: what it reads of a and b in one step of k.")
    return figure


def reading_ahead(steps: int = 5, read: float = 0.6, multiply: float = 1.0) -> CourseFigure:
    """Reads from shared memory and products of one warp in time. In arbitrary units."""
    apart = [(n * (read + multiply), n * (read + multiply) + read) for n in range(steps)]
    ahead = [(max(0, read + (n - 1) * multiply) if n else 0.0, read + n * multiply) for n in range(steps)]
    ends = [plan[-1][1] + multiply for plan in (apart, ahead)]
    left, top, tall = 1.20, 0.86, 0.24
    scale = (6.4 - left - 0.16) / max(ends)
    figure, ax = canvas(top + 2 * 0.92 + 0.22, "Read one step ahead, only the first read is waited for",
                        f"{steps} steps, reads of {read}, products of {multiply}: {ends[0]:.1f} one after the other, "
                        f"{ends[1]:.1f} one step ahead.")
    with rc_context(STYLE):
        for panel, (name, plan) in enumerate((("read, then multiply", apart), ("read one step ahead", ahead))):
            y = top + panel * 0.92
            ax.text(0.14, y - 0.15, name, fontsize=9.5, fontweight="bold", va="center")
            for lane, (label, colour) in enumerate((("read", ORANGE), ("multiply", BLUE))):
                ax.text(left - 0.08, y + (lane + 0.5) * tall, label, fontsize=9, ha="right", va="center",
                        color=TEXT[colour])
            for n, (reads, multiplies) in enumerate(plan):
                draw_box(ax, left + reads * scale, y, read * scale, tall, n, fill=PALE[ORANGE])
                draw_box(ax, left + multiplies * scale, y + tall, multiply * scale, tall, n, fill=PALE[BLUE])
        note(ax, top + 2 * 0.92 - 0.10, "The number is the step of k. Drawn, not measured.")
    return figure


def product_order(size: int = 8) -> CourseFigure:
    """size x size products of a thread, in the order of two loops, and in one that turns around at each end."""
    panels = (("row by row", [(i, j) for i in range(size) for j in range(size)]),
              ("turning around", [(n if j % 2 == 0 else size - 1 - n, j) for j in range(size) for n in range(size)]))
    breaks = [[one for one in zip(order, order[1:], strict=False) if one[0][0] != one[1][0] and one[0][1] != one[1][1]]
              for _, order in panels]
    cell, left, top, apart = 0.27, 0.30, 1.05, 3.1
    figure, ax = canvas(top + size * cell + 0.42,
                        f"Row by row both factors change {len(breaks[0])} times; turning around, never",
                        f"{size * size} products: " + "; ".join(f"{name}, both factors change {len(each)} times" for
                                                               (name, _), each in zip(panels, breaks, strict=True)))
    with rc_context(STYLE):
        for panel, ((name, order), jumps) in enumerate(zip(panels, breaks, strict=True)):
            x0 = left + panel * apart
            ax.text(x0 - 0.16, 0.57, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0 - 0.16, 0.76, f"both factors change {len(jumps)} times", fontsize=9, va="center",
                    color=TEXT[VERMILLION if jumps else GREEN])
            for r in range(size):
                for c in range(size):
                    draw_box(ax, x0 + c * cell, top + r * cell, cell, cell, fill=PALE[GREY])
            for before, after in zip(order, order[1:], strict=False):
                ends = [(x0 + (c + 0.5) * cell, top + (r + 0.5) * cell) for r, c in (before, after)]
                ax.plot(*zip(*ends, strict=True), linewidth=1.4,
                        color=VERMILLION if (before, after) in jumps else BLUE,
                        linestyle=(0, (3, 2)) if (before, after) in jumps else "-")
        note(ax, top + size * cell + 0.20, "A row is a number of a, a column a number of b. Dashed: the next product "
             "shares neither with the one before.")
    return figure
