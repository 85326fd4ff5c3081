"""Drawings of the matrix product: which elements a block, a thread and a lane read and keep, and when.

    tile_walk()                    which tiles a block of a product reads, step by step
    thread_tile()                  what one thread of a register-blocked product keeps and reads
    mma_lanes(lane)                which lane holds which element of a tensor-core instruction
    overlap()                      loads and products of one block in time
"""

from __future__ import annotations

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
    figure, ax = canvas(y_a + reach_m * cell + 0.52, "What one block reads, tile by tile",
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


def mma_lanes(lane: int = 13) -> CourseFigure:
    """Which lane holds which element of mma m16n8k16: numbers are lanes, colours registers. Framed: those of `lane`."""
    if not 0 <= lane < 32:
        raise ValueError(f"lane is {lane}; a warp has lanes 0 to 31")
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    tall, left, top, gap = 0.205, 0.20, 0.92, 0.36
    wide = (WIDTH - left - gap - 0.14) / 24
    b_x, a_y = left + 16 * wide + gap, top + 16 * tall + gap
    figure, ax = canvas(a_y + 16 * tall + 0.42, "Who holds what: mma.sync m16n8k16",
                        "The lane that holds each element of a (16 x 16), b (16 x 8) and the accumulators (16 x 8): "
                        "g = lane // 4 and q = lane % 4.")

    def matrix(x0, y0, rows, cols, lane_of, register_of):
        for r in range(rows):
            for c in range(cols):
                holder, corner = lane_of(r, c), (x0 + c * wide, y0 + r * tall)
                ink = TEXT[VERMILLION] if holder == lane else INK
                draw_box(ax, *corner, wide, tall, holder, fill=PALE[colours[register_of(r, c)]], ink=ink, size=9)
                if holder == lane:
                    draw_box(ax, *corner, wide, tall, edge=VERMILLION, linewidth=1.8, zorder=3)

    with rc_context(STYLE):
        matrix(left, a_y, 16, 16, lambda r, c: r % 8 * 4 + c % 8 // 2, lambda r, c: r // 8 + 2 * (c // 8))
        matrix(b_x, top, 16, 8, lambda r, c: c * 4 + r % 8 // 2, lambda r, c: r // 8)
        matrix(b_x, a_y, 16, 8, lambda r, c: r % 8 * 4 + c // 2, lambda r, c: r // 8)
        for x, y, name, size in ((left, a_y, "a", "16 \u00d7 16"), (b_x, top, "b", "16 \u00d7 8"),
                                 (b_x, a_y, "accumulators", "16 \u00d7 8")):
            ax.text(x, y - 0.13, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x + 0.12 + 0.085 * len(name), y - 0.13, size, fontsize=9, color=FAINT, va="center")
        g, q = divmod(lane, 4)
        lines = ((f"Lane {lane}: g = {lane} // 4 = {g}, q = {lane} % 4 = {q}", INK, "bold"),
                 ("a0  row g, columns 2q and 2q + 1", TEXT[BLUE], "normal"),
                 ("a1  row g + 8, the same columns", TEXT[ORANGE], "normal"),
                 ("a2  row g, columns 8 further", TEXT[GREEN], "normal"),
                 ("a3  row g + 8, columns 8 further", TEXT[PURPLE], "normal"),
                 ("b0  rows 2q and 2q + 1 of column g", TEXT[BLUE], "normal"),
                 ("b1  rows 8 further", TEXT[ORANGE], "normal"),
                 ("c0, c1  row g, columns 2q and 2q + 1", TEXT[BLUE], "normal"),
                 ("c2, c3  row g + 8", TEXT[ORANGE], "normal"))
        for k, (text, ink, weight) in enumerate(lines):
            ax.text(left, top + 0.25 + 0.26 * k, text, fontsize=9, color=ink, fontweight=weight, va="center")
        note(ax, a_y + 16 * tall + 0.22, "The number is the lane. A register of a or b holds two float16 values; "
                "each accumulator is a float32 of its own.")
    return figure


def overlap(tiles: int = 5, load: float = 1.9, multiply: float = 1.3) -> CourseFigure:
    """Loads and products of one block on a time line: with one pair of tiles, with two, and with three in a ring."""
    names = ("one pair of tiles", "two pairs", "a ring of three")
    left, top, tall, apart = 1.85, 0.72, 0.23, 0.98
    plans = []  # for each number of pairs: (start of the load, start of the product) of every tile
    for pairs in (1, 2, 3):
        plan = []
        for t in range(tiles):
            if pairs == 1:
                begin = plan[-1][1] + multiply if plan else 0.0  # the only place is free when it has been read
            else:
                begin = plan[t - pairs + 1][1] if t >= pairs - 1 else 0.0  # issued beside an earlier product
            plan.append((begin, max(begin + load, plan[-1][1] + multiply if plan else 0.0)))
        plans.append(plan)
    ends = [plan[-1][1] + multiply for plan in plans]
    scale = (WIDTH - left - 0.2) / max(ends)
    figure, ax = canvas(top + 3 * apart + 0.34, "Loads and products of one block, in time",
                        f"{tiles} tiles, loads of {load}, products of {multiply}: "
                        + ", ".join(f"{name} {end:.1f}" for name, end in zip(names, ends, strict=True)) + ".")
    with rc_context(STYLE):
        for row, (name, plan) in enumerate(zip(names, plans, strict=True)):
            y = top + row * apart
            lanes = max(1, row)  # loads that are under way at the same time
            ax.text(0.14, y + tall, name, fontsize=9, fontweight="bold", va="center")
            ax.text(left - 0.08, y + lanes * tall / 2, "load", fontsize=9, ha="right", va="center", color=TEXT[ORANGE])
            ax.text(left - 0.08, y + (lanes + 0.5) * tall, "multiply", fontsize=9, ha="right", va="center",
                    color=TEXT[BLUE])
            for t, (loads, multiplies) in enumerate(plan):
                draw_box(ax, left + loads * scale, y + t % lanes * tall, load * scale, tall, t, fill=PALE[ORANGE],
                         size=9)
                draw_box(ax, left + multiplies * scale, y + lanes * tall, multiply * scale, tall, t, fill=PALE[BLUE],
                         size=9)
        note(ax, top + 3 * apart + 0.12, "The number is the tile. Gaps between products are time in which the "
                "multiply-add units wait.")
    return figure
