"""Drawings of reductions, softmax and LayerNorm, and what a masked softmax costs.

    reductions()                   a sum by a tree and by shuffles
    masks()                        which scores a mask leaves
    quads()                        which lane keeps which part of a row
    launch_floor(series)           small work, called and in a graph
"""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.ticker import NullLocator

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
    count_of,
    draw_box,
    grid_along,
    label_line_ends,
    leave_right,
    new_figure,
    note,
    panel_title,
    taken,
    time_axis,
)


def reductions(threads: int = 8) -> CourseFigure:
    """One sum over the threads of a block, step by step: a tree in shared memory, and shuffles within a warp.

    Each column is a thread, each row what it holds before a step. Solid: it holds a sum that is still needed.
    """
    if threads not in (4, 8, 16):
        raise ValueError(f"threads is {threads}; 4, 8 and 16 can be drawn")
    strides = [threads >> step for step in range(1, threads.bit_length())]
    between, left, cell = 0.62, 0.14, 0.27
    pitch = (WIDTH - 2 * left - between) / (2 * threads)
    top, rise = 0.92, 0.74
    height = top + rise * len(strides) + cell + 0.62
    figure, ax = canvas(height, f"{threads} numbers, {len(strides)} steps",
                        f"A sum over {threads} threads in {len(strides)} steps: by a tree in shared memory, where "
                        "half of the threads drop out at each step, and by shuffles, after which every thread has it.")
    with rc_context(STYLE):
        for panel, (name, colour) in enumerate((("a tree in shared memory", BLUE), ("shuffles within a warp", GREEN))):
            x0 = left + panel * (threads * pitch + between)
            middle = [x0 + (t + 0.5) * pitch for t in range(threads)]
            ax.text(x0, top - 0.36, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0, top - 0.14, "thread" if panel == 0 else "lane", fontsize=9, color=FAINT, va="center")
            for row in range(len(strides) + 1):
                y = top + row * rise
                if row:
                    stride, y_top = strides[row - 1], y - rise + cell
                    for t in range(threads if panel else stride):
                        for source in (t, t ^ stride if panel else t + stride):
                            ax.plot([middle[source], middle[t]], [y_top, y], color=colour, linewidth=0.9, alpha=0.75)
                    label = f"lane ^ {stride}" if panel else f"t + {stride}"
                    ax.text(x0 - 0.04 if panel else x0 + threads * pitch - 0.02, (y_top + y) / 2, label, fontsize=9,
                            color=TEXT[colour], ha="right", va="center",
                            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})
                holds = threads if panel else threads >> row
                for t in range(threads):
                    draw_box(ax, middle[t] - pitch / 2 + 0.03, y, pitch - 0.06, cell, t if row == 0 else 1 << row,
                             fill=colour if t < holds else PALE[GREY], ink="white" if t < holds else GREY, size=9)
        note(ax, height - 0.30, "First row: the thread's number. Below: of how many numbers it holds the sum. Grey: "
             "never read again. In the tree thread t adds what thread t + 4 holds, then t + 2, then t + 1, with a "
             "barrier after each step." if threads == 8 else "First row: the thread's number. Below: of how many "
             "numbers it holds the sum. Grey: never read again. A barrier follows each step of the tree.")
    return figure


def masks(size: int = 8, length: int = 5) -> CourseFigure:
    """Which keys each query sees: with no mask, with a causal one, with a sequence that is shorter than its row."""
    panels = (("none", lambda q, k: True, BLUE), ("causal", lambda q, k: k <= q, GREEN),
              (f"padding, length {length}", lambda q, k: k < length, ORANGE))
    left, between, top = 0.66, 0.36, 0.98
    cell = (WIDTH - left - 0.20 - 2 * between) / (3 * size)
    figure, ax = canvas(top + size * cell + 0.52, "Three masks, one form: each row sees its first columns",
                        f"{size} queries and {size} keys: without a mask every query sees every key, under a causal "
                        f"mask query q sees the keys 0 to q, with padding the first {length}.")
    with rc_context(STYLE):
        for i, (name, sees, colour) in enumerate(panels):
            x0 = left + i * (size * cell + between)
            ax.text(x0, top - 0.38, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0, top - 0.13, "key \u2192", fontsize=9, color=FAINT, va="center")
            if i == 0:
                ax.text(x0 - 0.10, top, "query \u2193", fontsize=9, color=FAINT, ha="right", va="top")
            for q in range(size):
                for k in range(size):
                    draw_box(ax, x0 + k * cell, top + q * cell, cell, cell, fill=colour if sees(q, k) else PALE[GREY])
        note(ax, top + size * cell + 0.28, "Coloured: the score counts. Grey: it is hidden, its probability is 0.")
    return figure


def quads(columns: int = 27, lanes: int = 4) -> CourseFigure:
    """Which lane keeps which elements of a row, four neighbours at a time, for a warp of `lanes` lanes."""
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    rounds = -(-columns // (4 * lanes))
    left, top, tall = 1.02, 0.92, 0.34
    cell = (WIDTH - left - 0.2 - 0.06 * (lanes - 1)) / (4 * lanes)
    figure, ax = canvas(top + rounds * (tall + 0.14) + 0.46, "A row in the registers of a warp",
                        f"A row of {columns} elements over {lanes} lanes: four neighbours each, in "
                        f"{count_of(rounds, 'round')}.")
    with rc_context(STYLE):
        for lane in range(lanes):
            middle = left + lane * (4 * cell + 0.06) + 2 * cell
            ax.text(middle, top - 0.20, f"lane {lane}", fontsize=9, fontweight="bold", ha="center", va="center",
                    color=TEXT[colours[lane % 4]])
        for q in range(rounds):
            y = top + q * (tall + 0.14)
            ax.text(0.14, y + tall / 2, f"quad {q}", fontsize=9, va="center")
            for lane in range(lanes):
                for e in range(4):
                    col = 4 * lanes * q + 4 * lane + e
                    x = left + lane * (4 * cell + 0.06) + e * cell
                    if col < columns:
                        draw_box(ax, x, y, cell, tall, col, fill=PALE[colours[lane % 4]], size=9)
                    else:
                        draw_box(ax, x + 0.02, y + 0.02, cell - 0.04, tall - 0.04, "0", edge=GREY, ink=FAINT, size=9,
                                 linestyle=(0, (2, 2)), linewidth=0.7)
        note(ax, top + rounds * (tall + 0.14) + 0.14, "The number is the column. A quad is one load of 128 bits. "
             "Dashed: beyond the row, a zero, which leaves the sum as it is.")
    return figure


def launch_floor(series: dict, mask: str = "causal") -> CourseFigure:
    """Masked softmax of one matrix over its size: unfused and fused, called from Python and in a graph."""
    rows = [row for row in series["rows"] if row["mask"] == mask and row["B"] == 1]
    sizes_ = [row["S"] for row in rows]
    figure, (ax,) = new_figure([3.1], f"One matrix of S \u00d7 S, {mask} mask: what a call costs",
                               f"Times of a masked softmax for S = {', '.join(map(str, sizes_))}: unfused and fused, "
                               f"called from Python and in a graph. {taken(series)}.")
    with rc_context(STYLE):
        leave_right(ax, [f"{series['unfused']}, in a graph", "fused, in a graph"])
        library, ends = series["unfused"], []
        for key, name, colour, marker, style in (
                ("unfused", f"{library}, called", GREY, "s", "-"),
                ("unfused_graph", f"{library}, in a graph", GREY, "s", ":"),
                ("fused", "fused, called", VERMILLION, "o", "-"), ("fused_graph", "fused, in a graph", BLUE, "o", "-")):
            if any(row[key] is None for row in rows):
                continue
            values = [row[key]["p50"] for row in rows]
            ax.plot(sizes_, values, color=colour, marker=marker, linestyle=style, markeredgewidth=0)
            ends.append((sizes_[-1], values[-1], name, TEXT[colour]))
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes_, [f"{s:,}" for s in sizes_])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel("S")
        time_axis(ax)
        grid_along(ax, "y")
        label_line_ends(ax, ends)
        panel_title(ax, taken(series))
    return figure
