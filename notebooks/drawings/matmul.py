"""The figures of the lesson "Matrix multiplication", in the course's style.

    tile_walk()       which tiles a block of a product reads, step by step
    block_orders()    which blocks run together in two orders, and what they read
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
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    note,
)


def tile_walk(M: int = 7, N: int = 11, K: int = 10, tile: int = 4, block: tuple[int, int] = (2, 1)) -> CourseFigure:
    """The tiles of a and b that one block of a tiled product walks over, step by step: out = a @ b.

    block is (blockIdx.x, blockIdx.y). A zero stands where a tile reaches beyond its matrix. Framed: what one thread
    of the block needs, a row of a and a column of b.
    """
    col0, row0 = block[0] * tile, block[1] * tile
    if not (0 <= col0 < N and 0 <= row0 < M):
        raise ValueError(f"block is {block}, but {tile} x {tile} tiles over {M} x {N} make only "
                         f"{-(-N // tile)} x {-(-M // tile)} blocks")
    steps = -(-K // tile)
    colours = [(BLUE, ORANGE, GREEN, PURPLE)[i % 4] for i in range(steps)]
    reach_k, reach_m, reach_n = steps * tile, max(M, row0 + tile), max(N, col0 + tile)
    gap = 0.62
    cell = min(0.27, (WIDTH - 0.75 - gap) / (reach_k + reach_n))
    x_b = 0.45 + reach_k * cell + gap  # b and out begin here, a at 0.45
    y_a = 0.80 + reach_k * cell + gap  # a and out begin here, b at 0.80
    figure, ax = canvas(y_a + reach_m * cell + 0.52, "One block reads a strip of each matrix, tile by tile",
                        f"Block {block} of out = a @ b, M={M}, N={N}, K={K}, walks over {steps} tiles of {tile} x "
                        f"{tile} of a, to the right, and of b, downwards.")

    def matrix(x0, y0, rows, cols, reach_rows, reach_cols, step_of):
        for r in range(reach_rows):
            for c in range(reach_cols):
                step, inside = step_of(r, c), r < rows and c < cols
                x, y = x0 + c * cell, y0 + r * cell
                if inside:
                    fill = PALE[GREY] if step is None else step if isinstance(step, str) else colours[step]
                    draw_box(ax, x, y, cell, cell, fill=fill)
                elif step is not None:
                    zero = "" if isinstance(step, str) else "0"
                    draw_box(ax, x + 0.015, y + 0.015, cell - 0.03, cell - 0.03, zero, edge=GREY, size=9, ink=FAINT,
                             linestyle=(0, (2, 2)), linewidth=0.7)

    in_rows, in_cols = range(row0, row0 + tile), range(col0, col0 + tile)
    element = (min(row0 + 1, M - 1), min(col0 + 1, N - 1))
    with rc_context(STYLE):
        matrix(0.45, y_a, M, K, reach_m, reach_k, lambda r, c: c // tile if r in in_rows else None)
        matrix(x_b, 0.80, K, N, reach_k, reach_n, lambda r, c: r // tile if c in in_cols else None)
        matrix(x_b, y_a, M, N, reach_m, reach_n, lambda r, c: "#59636E" if r in in_rows and c in in_cols else None)
        for step, colour in enumerate(colours):
            middle = (step + 0.5) * tile * cell
            ax.text(0.45 + middle, y_a + (row0 + tile) * cell + 0.13, f"step {step + 1}", fontsize=9, ha="center",
                    va="center", color=TEXT[colour], fontweight="bold")
            ax.text(x_b + (col0 + tile) * cell + 0.07, 0.80 + middle, f"step {step + 1}", fontsize=9, va="center",
                    color=TEXT[colour], fontweight="bold", rotation=270)
        frame = {"edge": VERMILLION, "linewidth": 2.0, "zorder": 3}
        draw_box(ax, 0.45, y_a + element[0] * cell, K * cell, cell, **frame)
        draw_box(ax, x_b + element[1] * cell, 0.80, cell, K * cell, **frame)
        draw_box(ax, x_b + element[1] * cell, y_a + element[0] * cell, cell, cell, **frame)
        for x, y, name, size in ((0.45, y_a, "a", f"{M} \u00d7 {K}"), (x_b, 0.80, "b", f"{K} \u00d7 {N}"),
                                 (x_b, y_a, "out", f"{M} \u00d7 {N}")):
            ax.text(x, y - 0.14, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x + 0.11 + 0.08 * len(name), y - 0.14, size, fontsize=9, color=FAINT, va="center")
        lines = (f"In each step the {tile * tile} threads", "1  load one element of each tile,",
                 "2  wait until both tiles are there,", f"3  do {tile} multiply-adds from the tiles,",
                 "4  wait until no thread reads them.")
        for line_no, text in enumerate(lines):
            ax.text(0.45, 1.05 + 0.25 * line_no, text, fontsize=9.5, va="center",
                    fontweight="normal" if line_no else "bold")
        note(ax, y_a + reach_m * cell + 0.36, "Dark: the block's part of out. Framed: one thread's element, and "
                "the row and the column it needs.")
    return figure


def block_orders(side: int = 24, together: int = 36, group: int = 6) -> CourseFigure:
    """The first `together` of side x side blocks of out = a @ b, in rows and in groups of `group` rows, with the strips
    of a and b that they read: one of a for each row of blocks, one of b for each column."""
    if not 0 < group <= side or not 0 < together <= side * group:
        raise ValueError(f"{together} blocks do not fit in a group of {group} rows of {side} blocks")
    orders = (("row by row", [divmod(n, side) for n in range(together)]),
              (f"in groups of {group} rows", [(n % group, n // group) for n in range(together)]))
    strips = [(len({r for r, _ in order}), len({c for _, c in order})) for _, order in orders]
    counts = [rows + cols for rows, cols in strips]
    cell, left, top, apart = 0.1, 0.42, 1.22, 3.15
    figure, ax = canvas(top + side * cell + 0.42, f"The same {together} blocks read {counts[0]} strips in one order, "
                        f"{counts[1]} in the other",
                        f"{side} x {side} blocks, {together} at a time: " + "; ".join(
                            f"{name}, {rows} strips of a and {cols} of b" for (name, _), (rows, cols)
                            in zip(orders, strips, strict=True)) + ".")
    with rc_context(STYLE):
        for panel, ((name, order), (rows, cols)) in enumerate(zip(orders, strips, strict=True)):
            x0 = left + panel * apart
            ax.text(x0 - 0.28, 0.55, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0 - 0.28, 0.74, f"{rows} strips of a + {cols} of b = {rows + cols}", fontsize=9, va="center")
            ax.text(x0 - 0.19, top - 0.12, "a", fontsize=9, fontweight="bold", va="center", ha="center",
                    color=TEXT[ORANGE])
            ax.text(x0 - 0.08, top - 0.24, "b", fontsize=9, fontweight="bold", va="center", ha="right",
                    color=TEXT[GREEN])
            for n in range(side):
                draw_box(ax, x0 - 0.26, top + n * cell, 0.16, cell, fill=ORANGE if n < rows else PALE[ORANGE])
                draw_box(ax, x0 + n * cell, top - 0.32, cell, 0.16, fill=GREEN if n < cols else PALE[GREEN])
            draw_box(ax, x0, top, side * cell, side * cell, fill=PALE[GREY])
            for r, c in order:
                draw_box(ax, x0 + c * cell, top + r * cell, cell, cell, fill=BLUE)
            path = [(x0 + (c + 0.5) * cell, top + (r + 0.5) * cell) for r, c in order]
            ax.plot(*zip(*path, strict=True), color="white", linewidth=0.8)
            ax.plot(*path[0], "o", color="white", markersize=2.6)
        note(ax, top + side * cell + 0.20, "Blue: the blocks that run together, in the order of the white line. Orange "
             "and green: the strips of a and b that they read.")
    return figure
