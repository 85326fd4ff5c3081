"""The figures of the lesson "Fused masked softmax", in the course's style.

    masks()                 which scores a mask leaves
    launch_floor(series)    small work, called and in a graph
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
    STYLE,
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
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
