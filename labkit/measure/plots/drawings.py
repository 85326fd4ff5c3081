"""Drawings of ideas, in the style of the plots. Each function computes what it draws and returns a figure.

    launch_map(n, threads_per_block)    which thread of which block takes which element
    owners()                            which thread adds which element of a vector
    warp_addresses(touched)             the memory that one warp touches: sectors, and how much of each is used
    banks(places)                       the banks of a tile
    broadcast_reads()                   which elements a broadcast sum reads
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
    ORANGE,
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
    panel_title,
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


def owners(n: int = 29, block: int = 4, rungs: tuple[str, ...] = ("per_thread",), grid: int = 2) -> CourseFigure:
    """Which thread adds which element of a vector, for rungs of vector_add: per_thread, grid_stride, four_loads.

    A box is an element, the number in it its thread, counted over the whole grid. Thread 0's elements are filled.
    `grid` is the number of blocks that grid_stride gets.
    """
    tile = {"per_thread": block, "grid_stride": grid * block, "four_loads": 4 * block}
    unknown = [name for name in rungs if name not in tile]
    if unknown:
        raise ValueError(f"rungs holds {unknown[0]!r}; allowed are {', '.join(tile)}")
    figure, axes = new_figure([0.62] * len(rungs), "Which thread adds which element",
                              f"Which thread adds which of {n} elements, in blocks of {block}: {', '.join(rungs)}.",
                              gap=0.62)
    with rc_context(STYLE):
        for ax, name in zip(axes, rungs, strict=True):
            box = ax.get_position()
            ax.set_position((0.02, box.y0, 0.96, box.height))
            end = -(-n // tile[name]) * tile[name]
            for i in range(end):
                if name == "per_thread":
                    thread = i
                elif name == "grid_stride":
                    thread = i % (grid * block)
                else:
                    thread = i // (4 * block) * block + i % block
                selected, inside = thread == 0, i < n
                shade = BLUE if selected else ("#DCE9F2", "#F6E7C8")[thread // block % 2]
                ax.add_patch(Rectangle((i + 0.05, 0.05), 0.9, 0.9, facecolor=shade if inside else "none", linewidth=0.9,
                                       edgecolor=shade if inside else GREY, linestyle="-" if inside else (0, (2, 2))))
                ax.text(i + 0.5, 0.5, thread, ha="center", va="center", fontsize=8,
                        color="white" if selected else INK if inside else FAINT)
            ax.set_xlim(0, max(end, n))
            ax.set_ylim(0, 1)
            ax.set_yticks([])
            ticks = [i for i in range(end) if i % block == 0 or i == n - 1]
            ax.set_xticks([i + 0.5 for i in ticks], [str(i) for i in ticks])
            ax.set_xlabel("element" if ax is axes[-1] else "")
            for side in ax.spines.values():
                side.set_visible(False)
            ax.tick_params(length=0)
            blocks = grid if name == "grid_stride" else end // tile[name]
            count = f"{blocks} blocks of {block} threads"
            idle = f"; {count_of(end - n, 'thread')} beyond the end" if name == "per_thread" and end > n else ""
            panel_title(ax, f"{name}: {count}{idle}")
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


def broadcast_reads(shape: tuple[int, int, int] = (2, 3, 4), mark: tuple[int, int, int] = (1, 2, 3)) -> CourseFigure:
    """out = a + b[:, :, None] + c[:, None, None], element by element. The number in a box is the flat index of the
    element that is read there; a pale box reads again what the solid box of its row or slab has read. Framed: `mark`.
    """
    nx, ny, nz = shape
    if not all(0 <= m < extent for m, extent in zip(mark, shape, strict=True)):
        raise ValueError(f"mark is {mark}, which lies outside of shape {shape}")
    panels = (
        ("out", f"{shape}", GREY, lambda x, y, z: (x * ny + y) * nz + z, lambda x, y, z: False,
         f"x\u00b7{ny * nz} + y\u00b7{nz} + z"),
        ("a", f"{shape}", BLUE, lambda x, y, z: (x * ny + y) * nz + z, lambda x, y, z: True,
         f"x\u00b7{ny * nz} + y\u00b7{nz} + z"),
        ("b[:, :, None]", f"{(nx, ny, 1)}", ORANGE, lambda x, y, z: x * ny + y, lambda x, y, z: z == 0,
         f"x\u00b7{ny} + y + z\u00b70"),
        ("c[:, None, None]", f"{(nx, 1, 1)}", GREEN, lambda x, y, z: x, lambda x, y, z: y == z == 0,
         "x + y\u00b70 + z\u00b70"),
    )
    left, between = 0.62, 0.30
    cell = min(0.36, (WIDTH - left - 0.14 - 3 * between) / (4 * nz))
    tall, top, slab_gap = 0.27, 1.02, 0.16
    depth = nx * ny * tall + (nx - 1) * slab_gap
    figure, ax = canvas(top + depth + 0.74, "Which element each element of the sum reads",
                        f"For a shape of {shape}: the flat indices of a, b and c that each element of out reads. "
                        + "; ".join(f"{name}: {formula}" for name, _, _, _, _, formula in panels) + ".")
    with rc_context(STYLE):
        for i, (name, size, colour, index, solid, formula) in enumerate(panels):
            x0 = left + i * (nz * cell + between)
            ax.text(x0, top - 0.44, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0, top - 0.25, size, fontsize=9, color=FAINT, va="center")
            if i:
                ax.text(x0 - between / 2, top + depth / 2, "=++"[i - 1], fontsize=13, ha="center", va="center")
            for x in range(nx):
                for y in range(ny):
                    row = top + (x * ny + y) * tall + x * slab_gap
                    if i == 0:
                        ax.text(left - 0.08, row + tall / 2, f"y={y}", fontsize=9, color=FAINT, ha="right", va="center")
                        if y == 0:
                            ax.text(0.14, row + ny * tall / 2, f"x={x}", fontsize=9, rotation=90, ha="center",
                                    va="center")
                    for z in range(nz):
                        full = solid(x, y, z)
                        ink = "white" if full and colour != ORANGE else INK if full or i == 0 else FAINT
                        draw_box(ax, x0 + z * cell, row, cell, tall, index(x, y, z), ink=ink,
                                 fill=colour if full else PALE[colour])
            x, y, z = mark
            draw_box(ax, x0 + z * cell, top + (x * ny + y) * tall + x * slab_gap, cell, tall, edge=VERMILLION,
                     linewidth=2.0, zorder=3)
            ax.text(x0, top + depth + 0.18, formula, fontsize=9, va="center", color=TEXT[colour])
        ax.text(left, top - 0.09, "z \u2192", fontsize=9, color=FAINT, va="center")
        note(ax, top + depth + 0.50, f"Framed: out[{', '.join(map(str, mark))}] and the three elements it reads. "
                "Solid: an element of memory. Pale: the same element, read again.")
    return figure
