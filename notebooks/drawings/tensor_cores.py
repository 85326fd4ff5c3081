"""The figures of the lesson "Tensor cores", in the course's style.

    mma_lanes(lane)    which lane holds which element of a tensor-core instruction
    ldmatrix(lane)     whose address points where, and what a lane receives
    swizzle()          a tile of 8 x 8 pieces in shared memory: as it is, padded, swizzled
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
    count_of,
    draw_box,
    note,
)

SMALL = 9  # points
FRAME = {"edge": VERMILLION, "linewidth": 1.8, "zorder": 3}
WARPS = (BLUE, ORANGE, GREEN, PURPLE)


def mma_lanes(lane: int = 13) -> CourseFigure:
    """Which lane holds which element of mma m16n8k16: numbers are lanes, colours registers. Framed: those of `lane`."""
    if not 0 <= lane < 32:
        raise ValueError(f"lane is {lane}; a warp has lanes 0 to 31")
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    tall, left, top, gap = 0.205, 0.20, 0.92, 0.36
    wide = (WIDTH - left - gap - 0.14) / 24
    b_x, a_y = left + 16 * wide + gap, top + 16 * tall + gap
    figure, ax = canvas(a_y + 16 * tall + 0.42, "In mma.sync a lane holds 14 elements, and which is fixed",
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


def ldmatrix(lane: int = 13) -> CourseFigure:
    """A 16 x 16 tile of float16 values in shared memory: which lane points to which row, and what `lane` receives."""
    if not 0 <= lane < 32:
        raise ValueError(f"lane is {lane}; a warp has lanes 0 to 31")
    wide, tall, left, top, gap = 0.185, 0.185, 0.62, 0.86, 0.22
    block, row_given = divmod(lane, 8)
    g, q = divmod(lane, 4)
    figure, ax = canvas(top + 16 * tall + gap + 0.46, "A lane names one row for ldmatrix, and receives four pairs",
                        f"Lane {lane} points to row {row_given} of block {block}, and receives columns {2 * q} and "
                        f"{2 * q + 1} of row {g} of each block, one register for each.")
    with rc_context(STYLE):
        for n, colour in enumerate(WARPS):
            x0, y0 = left + n // 2 * (8 * wide + gap), top + n % 2 * (8 * tall + gap)
            ax.text(x0 + 4 * wide, y0 - 0.10, f"block {n}", fontsize=SMALL, color=TEXT[colour], ha="center",
                    va="center")
            for r in range(8):
                for c in range(8):
                    in_fragment = r == g and c // 2 == q
                    draw_box(ax, x0 + c * wide, y0 + r * tall, wide, tall, fill=colour if in_fragment else PALE[colour])
                pointer = 8 * n + r
                selected = pointer == lane
                side = x0 - 0.06 if n < 2 else x0 + 8 * wide + 0.06
                ax.text(side, y0 + (r + 0.5) * tall, str(pointer), fontsize=SMALL, va="center_baseline",
                        ha="right" if n < 2 else "left", color=TEXT[VERMILLION] if selected else FAINT,
                        fontweight="bold" if selected else "normal")
                if selected:
                    draw_box(ax, x0, y0 + r * tall, 8 * wide, tall, **FRAME)
        words = left + 16 * wide + gap + 0.46
        lines = (("Beside a row:", INK, "bold"), ("the lane that gives", INK, "normal"),
                 ("its address", INK, "normal"), ("", INK, "normal"),
                 (f"Lane {lane}", INK, "bold"), (f"points to row {row_given}", TEXT[VERMILLION], "normal"),
                 (f"of block {block}: 16 bytes", TEXT[VERMILLION], "normal"), ("", INK, "normal"),
                 (f"g = {g}, q = {q}: it gets", INK, "normal"), (f"row {g}, columns {2 * q}, {2 * q + 1}", INK, "bold"),
                 *((f"of block {n} in a{n}", TEXT[colour], "normal") for n, colour in enumerate(WARPS)))
        for k, (text, ink, weight) in enumerate(lines):
            ax.text(words, top + 0.10 + 0.215 * k, text, fontsize=SMALL, color=ink, fontweight=weight, va="center")
        ax.text(0.14, top + 16 * tall + gap + 0.24, "Framed: the row that the lane points to. Dark: the two numbers "
                "that it receives of each block.", fontsize=SMALL, color=FAINT, va="center")
    return figure


def swizzle(piece: int = 2) -> CourseFigure:
    """Eight rows of eight 16-byte pieces in shared memory, laid out in three ways; coloured: piece `piece` of each row,
    which one step of ldmatrix reads. A line is 128 bytes, all 32 banks."""
    layouts = (("as it is", lambda r, p: 8 * r + p), ("a piece of padding", lambda r, p: 9 * r + p),
               ("swizzled: p ^ r", lambda r, p: 8 * r + (p ^ r)))
    if not 0 <= piece < 8:
        raise ValueError(f"piece is {piece}; a row has pieces 0 to 7")
    cell, left, top, gap = 0.215, 0.20, 1.12, 0.33
    steps = []
    for _, slot_of in layouts:
        banks = [slot_of(r, piece) % 8 for r in range(8)]
        steps.append(max(banks.count(bank) for bank in banks))
    figure, ax = canvas(top + 9 * cell + 0.70, "Swizzled, a piece of eight rows is read in one step, without padding",
                        "Reading it takes " + "; ".join(f"{name}: {count_of(n, 'step')}" for (name, _), n in
                                                        zip(layouts, steps, strict=True)) + ".")
    with rc_context(STYLE):
        for panel, ((name, slot_of), step) in enumerate(zip(layouts, steps, strict=True)):
            x0 = left + panel * (8 * cell + gap)
            colour = VERMILLION if step > 1 else GREEN
            ax.text(x0, top - 0.56, name, fontsize=SMALL + 0.5, fontweight="bold", va="center")
            ax.text(x0, top - 0.35, f"read in {count_of(step, 'step')}", fontsize=SMALL, color=TEXT[colour],
                    va="center")
            for bank in range(0, 8, 2):
                ax.text(x0 + (bank + 0.5) * cell, top - 0.11, str(4 * bank), fontsize=SMALL - 0.5, color=FAINT,
                        ha="center", va="center")
            element_of = {slot_of(r, p): (r, p) for r in range(8) for p in range(8)}
            for cell_index in range(max(element_of) + 1):
                y, x = divmod(cell_index, 8)
                r, p = element_of.get(cell_index, (0, ""))
                hot = p == piece
                fill = colour if hot else PALE[BLUE if r % 2 else GREY] if p != "" else "none"
                draw_box(ax, x0 + x * cell, top + y * cell, cell, cell, p, fill=fill, size=SMALL,
                         ink="white" if hot else FAINT, edge="white" if p != "" else PALE[GREY])
        for k, text in enumerate(("A line is 128 bytes; above it, the first of the four banks of every second place.",
                                  "In a box: the piece's number p in its row r. Rows alternate in colour.")):
            ax.text(0.14, top + 9 * cell + 0.24 + 0.19 * k, text, fontsize=SMALL, color=FAINT, va="center")
    return figure
