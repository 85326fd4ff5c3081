"""Drawings of ideas, in the style of the plots. Each function computes what it draws and returns a figure.

    launch_map(n, threads_per_block)    which thread of which block takes which element
    warp_addresses(touched)             the memory that one warp touches: sectors, and how much of each is used
    banks(places)                       the banks of a tile
"""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context
from matplotlib.patches import Rectangle

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    LINES,
    PALE,
    STYLE,
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    count_of,
    draw_box,
    new_figure,
    note,
    width_of,
)


def launch_map(n: int, threads_per_block: int) -> CourseFigure:
    """Which thread of which block takes which of n elements, and which threads find none. Up to 64 threads."""
    blocks = -(-n // threads_per_block)
    threads = blocks * threads_per_block
    if not 1 <= threads <= 64:
        raise ValueError(f"{blocks} blocks of {threads_per_block} are {threads} threads; a picture holds 1 to 64")
    idle = threads - n
    summary = f"{blocks} blocks of {threads_per_block} threads over {n} elements; {idle} threads have none"
    figure, (ax,) = new_figure([1.5], "Which thread takes which element", summary)
    pitch = 0.86 * WIDTH * 72 / max(threads, 8)  # points between two threads
    dot, small = min(15, 0.8 * pitch), min(8.5, 0.45 * pitch)
    with rc_context(STYLE):
        for i in range(threads):
            block, thread = divmod(i, threads_per_block)
            colour = LINES[block % len(LINES)] if i < n else GREY
            ax.plot([i], [1], "o", color=colour, markersize=dot, markerfacecolor=colour if i < n else "white")
            ax.text(i, 1, thread, ha="center", va="center_baseline", fontsize=small, color="white" if i < n else FAINT)
            if i < n:
                ax.annotate("", (i, 0.32), (i, 0.80), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.2})
                ax.add_patch(Rectangle((i - 0.42, -0.1), 0.84, 0.36, facecolor=colour, alpha=0.16, edgecolor="none"))
                ax.text(i, 0.07, i, ha="center", va="center", fontsize=small, color=INK)
        for block in range(blocks):
            middle = (block + 0.5) * threads_per_block - 0.5
            ax.text(middle, 1.35, f"block {block}", ha="center", fontsize=9, color=TEXT[LINES[block % len(LINES)]])
        if idle:
            middle = n + (idle - 1) / 2
            ax.text(middle, 0.55, "no element:\nthe guard", ha="center", va="center", fontsize=9, color=FAINT)
        ax.text(-0.75, 1, "thread", ha="right", va="center", fontsize=9, color=FAINT)
        ax.text(-0.75, 0.07, "element", ha="right", va="center", fontsize=9, color=FAINT)
        ax.set_xlim(-0.6, max(threads, 8) - 0.4)
        ax.set_ylim(-0.2, 1.6)
        ax.axis("off")
    return figure


SECTOR_BYTES = 32  # the least that a GPU moves between its caches and its memory


def sectors(indices, itemsize: int = 4) -> int:
    """How many 32-byte sectors hold these elements."""
    return len(np.unique(np.asarray(indices, np.int64) * itemsize // SECTOR_BYTES))


def warp_addresses(touched: dict[str, np.ndarray], title: str = "What one warp asks memory for", *,
                   itemsize: int = 4, columns: int = 3) -> CourseFigure:
    """Draw the memory that the 32 lanes of a warp touch in one instruction: a row for each sector of 32 bytes, a cell
    for each element, with the lanes that read it. Grey cells are transferred too, although no lane reads them.

    touched: a name -> the index of the element that each lane touches, lane 0 first. `columns`: how many are side
    by side.
    """
    if not touched:
        raise ValueError("touched is empty; pass at least one name with the element index of each lane")
    if not 1 <= columns <= 3:
        raise ValueError(f"columns is {columns}; 1 to 3 fit")
    per_sector = SECTOR_BYTES // itemsize
    panels = []
    for name, indices in touched.items():
        lanes: dict[int, list[int]] = {}
        for lane, index in enumerate(np.asarray(indices).reshape(-1).tolist()):
            lanes.setdefault(index, []).append(lane)
        panels.append((name, lanes, sorted({index // per_sector for index in lanes})))
    lines = [panels[i : i + columns] for i in range(0, len(panels), columns)]

    shown = [f"{sector * SECTOR_BYTES:,}" for _, _, sectors in panels for sector in sectors]
    label = max(width_of(text, 8) for text in shown) + 0.05
    step = (WIDTH - 0.18) / 3
    cell, tall = (step - label - 0.16) / per_sector, 0.165
    gap = 0.04  # between sectors that are no neighbours in memory
    head, foot_ = 0.52, 0.20

    def depth(sectors):
        return len(sectors) * tall + gap * sum(b - a > 1 for a, b in zip(sectors, sectors[1:], strict=False))

    heights = [head + max(depth(sectors) for _, _, sectors in line) + foot_ for line in lines]
    summary = f"{title}: " + "; ".join(
        f"{name}: {count_of(len(sectors), 'sector')}, {_used(lanes, sectors, per_sector):.0%} of the bytes used"
        for name, lanes, sectors in panels) + "."
    figure, ax = canvas(0.5 + sum(heights) + 0.28, title, summary)
    top, size = 0.5, 9 if cell > 0.185 else 8
    several = any(len(threads) > 1 for _, lanes, _ in panels for threads in lanes.values())
    with rc_context(STYLE):
        for line, height in zip(lines, heights, strict=True):
            for column, (name, lanes, sectors) in enumerate(line):
                left = 0.14 + column * step
                ax.text(left, top + 0.12, name, fontsize=9, fontweight="bold", va="center")
                used = f"{_used(lanes, sectors, per_sector):.0%} used"
                ax.text(left, top + 0.31, f"{count_of(len(sectors), 'sector')}, {used}", fontsize=9, color=FAINT,
                        va="center")
                y, previous = top + head - 0.05, None
                for sector in sectors:
                    y += gap if previous is not None and sector - previous > 1 else 0
                    ax.text(left + label - 0.04, y + tall / 2, f"{sector * SECTOR_BYTES:,}", ha="right",
                            va="center_baseline", fontsize=8, color=FAINT)
                    for i in range(per_sector):
                        threads = lanes.get(sector * per_sector + i, [])
                        text = "" if not threads else threads[0] if len(threads) == 1 else len(threads)
                        fill = PALE[GREY] if not threads else BLUE if len(threads) == 1 else GREEN
                        draw_box(ax, left + label + i * cell, y, cell, tall, text, ink="white", fill=fill, size=size)
                    y, previous = y + tall, sector
            top += height
        note(ax, top + 0.08, "Blue: wanted by one lane, whose number it is. " + (
            "Green: wanted by several lanes; the number says by how many. " if several else "")
            + f"Grey: travels along, unused. On the left: the byte at which the sector of {SECTOR_BYTES} begins.")
    return figure


def _used(lanes: dict, sectors: list, per_sector: int) -> float:
    return len(lanes) / (len(sectors) * per_sector)


def banks(places: dict, size: int = 8, column: int = 2) -> CourseFigure:
    """The bank of each element of a square tile, for tiles laid out in different ways, drawn with `size` banks.

    places: name -> place(row, col), the position of an element in shared memory. Framed: a warp that reads a column.
    """
    gap, left, top = 0.42, 0.2, 1.00
    cell = min(0.29, (WIDTH - 2 * left - gap * (len(places) - 1)) / (len(places) * size))
    captions, panels = [], []
    for name, bank_of in places.items():
        bank = [[bank_of(row, col) % size for col in range(size)] for row in range(size)]
        column_banks = [bank[row][column] for row in range(size)]
        steps = max(column_banks.count(b) for b in column_banks)
        panels.append((name, bank, steps))
        captions.append(f"{name}: {count_of(steps, 'step')}")
    figure, ax = canvas(top + size * cell + 0.42, f"A column of a tile, and its banks (drawn with {size} for 32)",
                        "Reading a column of a tile: " + "; ".join(captions) + ".")
    with rc_context(STYLE):
        for i, (name, bank, steps) in enumerate(panels):
            x0 = left + i * (size * cell + gap)
            ax.text(x0, top - 0.43, name, fontsize=9, fontweight="bold", va="center")
            ax.text(x0, top - 0.20, f"a column takes {count_of(steps, 'step')}", fontsize=9, va="center",
                    color=TEXT[VERMILLION] if steps > 1 else TEXT[GREEN])
            for row in range(size):
                for col in range(size):
                    hot = col == column
                    fill = (PALE[GREY], VERMILLION if steps > 1 else GREEN)[hot]
                    draw_box(ax, x0 + col * cell, top + row * cell, cell, cell, bank[row][col], fill=fill,
                             ink="white" if hot else FAINT, size=9)
        note(ax, top + size * cell + 0.24, "The number is the bank. Coloured: what the lanes of a warp read in "
                "one read. A bank gives one element in a step.")
    return figure
