"""The figures of the lesson "Tensor cores", in the course's style.

    mma_lanes(lane)       which lane holds which element of a tensor-core instruction
    ldmatrix(lane)        whose address points where, and what a lane receives
    swizzle()             a tile of 8 x 8 pieces in shared memory: as it is, padded, swizzled
    warpgroup(columns)    what wgmma multiplies, where it lies, and which warp holds which accumulators
    tma()                 a box that hangs over the edge of its matrix, on its way to shared memory
    specialised()         one block after another in time, and one persistent block with a task for each warpgroup
"""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.patches import FancyArrowPatch

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


def ldmatrix(lane: int = 13) -> CourseFigure:
    """A 16 x 16 tile of float16 values in shared memory: which lane points to which row, and what `lane` receives."""
    if not 0 <= lane < 32:
        raise ValueError(f"lane is {lane}; a warp has lanes 0 to 31")
    wide, tall, left, top, gap = 0.185, 0.185, 0.62, 0.86, 0.22
    block, row_given = divmod(lane, 8)
    g, q = divmod(lane, 4)
    figure, ax = canvas(top + 16 * tall + gap + 0.46, "ldmatrix: four blocks of 8 \u00d7 8 in one instruction",
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
    figure, ax = canvas(top + 9 * cell + 0.70, f"Piece {piece} of eight rows, and the banks it lies in",
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


def warpgroup(columns: int = 128) -> CourseFigure:
    """wgmma m64nNk16 and mma.sync m16n8k16 in one scale: what lies in shared memory, what in registers, and whose."""
    if columns % 8 or not 8 <= columns <= 128:
        raise ValueError(f"columns is {columns}; the picture holds a multiple of 8 up to 128")
    scale, left, top, gap = 0.029, 0.55, 1.02, 0.16
    x_b, y_a = left + 16 * scale + gap, top + 16 * scale + gap
    small = x_b + columns * scale + 0.42
    flops = 2 * 64 * columns * 16
    figure, ax = canvas(y_a + 64 * scale + 0.66, "wgmma: four warps, and no fragments of a or b",
                        f"wgmma m64n{columns}k16: {flops:,} flops, a and b in shared memory, {columns // 2} "
                        "accumulators in the registers of each of 128 threads; mma.sync: 4,096 flops, all in "
                        "registers.")
    with rc_context(STYLE):
        draw_box(ax, x_b, top, columns * scale, 16 * scale, f"b: 16 \u00d7 {columns}, in shared memory",
                 fill=PALE[GREY], edge=GREY, size=SMALL)
        for warp, colour in enumerate(WARPS):
            y = y_a + 16 * warp * scale
            draw_box(ax, left, y, 16 * scale, 16 * scale, fill=PALE[GREY], edge=GREY)
            draw_box(ax, x_b, y, columns * scale, 16 * scale, f"warp {warp}: 16 rows, {columns // 2} registers a lane",
                     fill=PALE[colour], ink=TEXT[colour], size=SMALL)
        ax.text(left - 0.09, y_a + 32 * scale, "a: 64 \u00d7 16, in shared memory", fontsize=SMALL, rotation=90,
                ha="right", va="center")
        ax.text(x_b, top - 0.35, f"wgmma m64n{columns}k16", fontsize=SMALL + 0.5, fontweight="bold", va="center")
        ax.text(x_b, top - 0.14, f"{flops:,} flops", fontsize=SMALL, color=FAINT, va="center")
        ax.text(small - 0.12, top - 0.35, "mma.sync", fontsize=SMALL + 0.5, fontweight="bold", va="center")
        ax.text(small - 0.12, top - 0.14, f"{2 * 16 * 8 * 16:,} flops", fontsize=SMALL, color=FAINT, va="center")
        for x, y, wide, tall in ((small, y_a, 16, 16), (small + 16 * scale + 0.08, top, 8, 16),
                                 (small + 16 * scale + 0.08, y_a, 8, 16)):
            draw_box(ax, x, y, wide * scale, tall * scale, fill=PALE[BLUE])
        for k, text in enumerate(("all in the", "registers", "of one warp")):
            ax.text(small - 0.12, y_a + 16 * scale + 0.22 + 0.19 * k, text, fontsize=SMALL, color=TEXT[BLUE],
                    va="center")
        for k, text in enumerate(("Both drawn to one scale. Coloured: registers. Grey: shared memory, which the "
                                  "tensor cores", "read themselves; a descriptor of 64 bits says where and how.")):
            ax.text(0.14, y_a + 64 * scale + 0.24 + 0.19 * k, text, fontsize=SMALL, color=FAINT, va="center")
    return figure


def tma(rows: int = 13, cols: int = 11, box: tuple[int, int] = (8, 5)) -> CourseFigure:
    """A box of 8 x 8 on its way from a matrix of rows x cols to shared memory. A cell of the matrix is a piece of 16
    bytes in one row; box: its first row and piece."""
    row0, col0 = box
    if not (0 <= row0 < rows and 0 <= col0 < cols):
        raise ValueError(f"box begins at {box}, outside of a matrix of {rows} x {cols} pieces")
    cell, left, top = 0.185, 0.30, 0.92
    inside = sum(1 for r in range(8) for p in range(8) if row0 + r < rows and col0 + p < cols)
    x1 = left + max(cols, col0 + 8) * cell + 1.15
    bottom = top + max(rows, row0 + 8) * cell
    figure, ax = canvas(bottom + 0.46, "TMA: one thread requests a box",
                        f"A box of 8 x 8 pieces at row {row0}, piece {col0} of a matrix of {rows} x {cols}: {inside} "
                        f"pieces are copied, {64 - inside} are zeros, and {64 * 16:,} bytes count on the mbarrier.")
    with rc_context(STYLE):
        ax.text(left, top - 0.16, "the matrix, in global memory", fontsize=SMALL, fontweight="bold", va="center")
        ax.text(x1, top - 0.16, "the box, in shared memory", fontsize=SMALL, fontweight="bold", va="center")
        for r in range(max(rows, row0 + 8)):
            for p in range(max(cols, col0 + 8)):
                in_matrix, in_box = r < rows and p < cols, 0 <= r - row0 < 8 and 0 <= p - col0 < 8
                x, y = left + p * cell, top + r * cell
                if in_matrix:
                    draw_box(ax, x, y, cell, cell, fill=(GREEN if p == col0 + 1 else PALE[BLUE]) if in_box
                             else PALE[GREY])
                elif in_box:
                    draw_box(ax, x, y, cell, cell, "0", fill="none", edge=PALE[GREY], ink=FAINT, size=SMALL)
        draw_box(ax, left + col0 * cell, top + row0 * cell, 8 * cell, 8 * cell, **FRAME)
        for r in range(8):
            for p in range(8):
                zero = row0 + r >= rows or col0 + p >= cols
                fill = "none" if zero else GREEN if p == 1 else PALE[BLUE]
                draw_box(ax, x1 + (p ^ r) * cell, top + r * cell, cell, cell, "0" if zero else "", fill=fill,
                         edge=PALE[GREY] if zero else "white", ink=FAINT, size=SMALL)
        draw_box(ax, x1, top, 8 * cell, 8 * cell, **FRAME)
        ax.add_patch(FancyArrowPatch((left + (col0 + 8) * cell + 0.05, top + (row0 + 2) * cell),
                                     (x1 - 0.06, top + 5 * cell), arrowstyle="-|>", mutation_scale=12, color=VERMILLION,
                                     connectionstyle="arc3,rad=-0.2", linewidth=1.5))
        lines = (("1  one thread: the barrier", INK), ("   expects 1,024 bytes", INK), ("2  it requests the box", INK),
                 ("3  TMA copies, swizzles,", TEXT[VERMILLION]), ("   and counts the bytes", TEXT[VERMILLION]),
                 ("4  all bytes are there:", TEXT[GREEN]), ("   waiting threads go on", TEXT[GREEN]))
        for k, (text, ink) in enumerate(lines):
            ax.text(x1, top + 8 * cell + 0.30 + 0.20 * k, text, fontsize=SMALL, color=ink, va="center")
        ax.text(0.14, bottom + 0.24, "A cell is 16 bytes. Beyond the edges TMA writes zeros. Green: one piece of each "
                "row.", fontsize=SMALL, color=FAINT, va="center")
    return figure


def specialised(tiles: int = 3, steps: int = 4, stages: int = 3, load: float = 1.3, multiply: float = 0.5,
                store: float = 1.0) -> CourseFigure:
    """Tiles of an SM in time: a block for each tile, and a persistent block with a producer and two consumers.

    In arbitrary units: a copy takes `load`, one consumer's products of a step `multiply`, storing a tile `store`.
    """
    apart = _blocks_in_turn(tiles, steps, stages, load, multiply, store)
    together = _producer_and_consumers(tiles, steps, stages, load, multiply, store)
    ends = [max(end for *_, end, _ in plan) for plan in (apart, together)]
    left, top, tall = 1.20, 0.98, 0.22
    scale = (6.4 - left - 0.16) / max(ends)
    panels = (("a block for each tile", apart, ("copies", "both groups")),
              ("one block for all tiles", together, ("producer", "consumer 0", "consumer 1")))
    height = top + sum((len(names) + stages - 1) * tall + 0.62 for *_, names in panels) - 0.10
    figure, ax = canvas(height + 0.10, "Who waits, and when",
                        f"{tiles} tiles of {steps} steps: {ends[0]:.1f} with a block for each, {ends[1]:.1f} with a "
                        "producer and two consumers.")
    fills = {"load": ORANGE, "multiply": BLUE, "store": GREEN}
    with rc_context(STYLE):
        y = top
        for (name, plan, names), end in zip(panels, ends, strict=True):
            ax.text(0.14, y - 0.17, f"{name}: {end / ends[1]:.2f} times as long" if end != ends[1] else name,
                    fontsize=SMALL + 0.5, fontweight="bold", va="center")
            for lane, label in enumerate(names):
                label_y = y + (stages / 2 if lane == 0 else stages + lane - 0.5) * tall
                ax.text(left - 0.08, label_y, label, fontsize=SMALL, ha="right", va="center")
            for kind, lane, begin, stop, text in plan:
                draw_box(ax, left + begin * scale, y + lane * tall, (stop - begin) * scale, tall, text,
                         fill=PALE[fills[kind]], ink=TEXT[fills[kind]], size=SMALL)
            y += (len(names) + stages - 1) * tall + 0.62
        for x, word, colour in ((0.14, "copy by TMA", ORANGE), (1.30, "multiply", BLUE), (2.15, "store", GREEN)):
            ax.text(x, y - 0.42, word, fontsize=SMALL, color=TEXT[colour], va="center", fontweight="bold")
        ax.text(2.75, y - 0.42, "In a box: the stage of the ring. Drawn, not measured.", fontsize=SMALL, color=FAINT,
                va="center")
    return figure


def _blocks_in_turn(tiles, steps, stages, load, multiply, store) -> list[tuple]:
    """(kind, lane, begin, end, text): each block fills its ring from nothing, and stores before the next one begins."""
    plan, now = [], 0.0
    for _ in range(tiles):
        begins = [now] * min(stages, steps)
        for step in range(steps):
            plan.append(("load", step % stages, begins[step], begins[step] + load, step % stages))
            now = max(now, begins[step] + load)
            plan.append(("multiply", stages, now, now + 2 * multiply, step % stages))
            now += 2 * multiply
            begins.append(now)  # the stage is free
        plan.append(("store", stages, now, now + store, ""))
        now += store
    return plan


def _producer_and_consumers(tiles, steps, stages, load, multiply, store) -> list[tuple]:
    """The same work: copies run on into the next tile, and the consumers take turns on the tensor cores."""
    plan, freed = [], [0.0] * stages
    free, tensor_cores = [0.0, 0.0], 0.0
    for step in range(tiles * steps):
        stage = step % stages
        begin = freed[stage]
        plan.append(("load", stage, begin, begin + load, stage))
        for consumer in range(2):
            start = max(begin + load, free[consumer], tensor_cores)
            free[consumer] = tensor_cores = start + multiply
            plan.append(("multiply", stages + consumer, start, start + multiply, stage))
        freed[stage] = max(free)
        if step % steps == steps - 1:
            for consumer in range(2):
                plan.append(("store", stages + consumer, free[consumer], free[consumer] + store, ""))
                free[consumer] += store
    return plan
