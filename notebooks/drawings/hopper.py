"""The figures of the lesson "Hopper's tensor cores", in the course's style.

    warpgroup(columns)    what wgmma multiplies, where it is, and which warp holds which accumulators
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
    CourseFigure,
    canvas,
    draw_box,
)

SMALL = 9  # points
FRAME = {"edge": VERMILLION, "linewidth": 1.8, "zorder": 3}
WARPS = (BLUE, ORANGE, GREEN, PURPLE)


def warpgroup(columns: int = 128) -> CourseFigure:
    """wgmma m64nNk16 and mma.sync m16n8k16 in one scale: what lies in shared memory, what in registers, and whose."""
    if columns % 8 or not 8 <= columns <= 128:
        raise ValueError(f"columns is {columns}; the picture holds a multiple of 8 up to 128")
    scale, left, top, gap = 0.029, 0.55, 1.02, 0.16
    x_b, y_a = left + 16 * scale + gap, top + 16 * scale + gap
    small = x_b + columns * scale + 0.42
    flops = 2 * 64 * columns * 16
    figure, ax = canvas(y_a + 64 * scale + 0.66, f"One wgmma does the work of {flops // 4096} mma.sync, and "
                        "needs no fragments",
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
    figure, ax = canvas(bottom + 0.46, "One thread requests a box, and TMA copies, swizzles and fills it",
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
    figure, ax = canvas(height + 0.10, "A producer and two consumers save "
                        f"{1 - ends[1] / ends[0]:.0%} of the time",
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
