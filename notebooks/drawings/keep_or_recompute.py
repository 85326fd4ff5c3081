"""The figures of the lesson "Keep or recompute", in the course's style.

    strips()    the tiles of causal attention that one block goes through, for queries and for keys
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    PALE,
    STYLE,
    TEXT,
    CourseFigure,
    canvas,
    draw_box,
    draw_heading,
    note,
)


def strips(tiles: int = 6, block: int = 3) -> CourseFigure:
    """Draw block number `block` of either launch of attention's backward pass, in a matrix of tiles x tiles."""
    cell, top = 0.34, 1.26
    rows, columns = [(block, col) for col in range(block + 1)], [(row, block) for row in range(block, tiles)]
    figure, ax = canvas(top + tiles * cell + 0.62, "A block keeps queries or keys, and loads the others in tiles",
                        f"Of {tiles} x {tiles} tiles of causal attention, the block of queries {block} goes through "
                        f"{len(rows)} tiles of keys, and the block of keys {block} through {len(columns)} of queries.")
    with rc_context(STYLE):
        for left, title, writes, visited, colour in ((0.62, "A block of queries", "adds up dQ", rows, BLUE),
                                                     (3.72, "A block of keys", "adds up dK and dV", columns, GREEN)):
            draw_heading(ax, left, 0.62, title, writes, ink=TEXT[colour])
            ax.text(left + tiles * cell / 2, top - 0.16, "keys", fontsize=9, ha="center", va="center", color=FAINT)
            ax.text(left - 0.16, top + tiles * cell / 2, "queries", fontsize=9, ha="center", va="center",
                    rotation=90, color=FAINT)
            for row in range(tiles):
                for col in range(row + 1):
                    order = visited.index((row, col)) + 1 if (row, col) in visited else ""
                    draw_box(ax, left + col * cell, top + row * cell, cell, cell, order,
                             fill=PALE[colour if order else GREY])
        note(ax, top + tiles * cell + 0.24, "Each square is a tile of scores. The numbers are the order in which the "
             "block recomputes its tiles. Tiles above the diagonal are hidden by the causal mask.")
    return figure
