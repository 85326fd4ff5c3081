"""The figures of the lesson "Batches", in the course's style.

    slots(timelines, title)    which request each slot serves in each step
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import ListedColormap

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
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    note,
)
from labkit.measure.simulation import Timeline

SHADES = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION)  # of requests and of buffers, in rotation


def slots(timelines: Mapping[str, Timeline], title: str = "Slots over time") -> CourseFigure:
    """A panel for each timeline, all to one scale: a row for each slot, a column for each step."""
    steps = max(timeline.steps for timeline in timelines.values())
    left, caption, gap = 0.62, 0.30, 0.20
    wide = (WIDTH - left - 0.16) / steps
    seats = sum(timeline.seats for timeline in timelines.values())
    tall = min(0.24, 3.6 / seats)
    height = 0.50 + len(timelines) * (caption + gap) + seats * tall + 0.30
    captions = {name: f"{name}: {one.steps:,} steps, {one.idle:.0%} of the slots idle"
                for name, one in timelines.items()}
    figure, ax = canvas(height, title, "; ".join(captions.values()) + ".")
    y, colours = 0.50, ListedColormap([PALE[GREY], *SHADES, INK])
    with rc_context(STYLE):
        for name, timeline in timelines.items():
            ax.text(0.14, y + caption / 2, captions[name], fontsize=9.5, fontweight="bold", va="center")
            y += caption
            cells = np.zeros((timeline.seats, timeline.steps))
            for cell in timeline.cells:
                cells[cell.seat, cell.step] = 1 + cell.request % len(SHADES)
            ax.imshow(cells, cmap=colours, vmin=-0.5, vmax=len(SHADES) + 1.5, interpolation="none", aspect="auto",
                      extent=(left, left + timeline.steps * wide, y + timeline.seats * tall, y), zorder=1)
            for seat in range(timeline.seats):
                ax.text(left - 0.08, y + (seat + 0.5) * tall, f"slot {seat}" if tall > 0.14 else "", fontsize=9,
                        color=FAINT, ha="right", va="center_baseline")
                ax.plot([left, left + timeline.steps * wide], [y + seat * tall] * 2, color="white", linewidth=1.2)
            for cell in timeline.cells:
                if cell.kind == "prefill":
                    ax.plot([left + (cell.step + 0.5) * wide], [y + (cell.seat + 0.5) * tall], "o", color="white",
                            markersize=min(4.0, 28 * wide), markeredgewidth=0)
            for start in _firsts(timeline):
                ax.plot([left + start.step * wide] * 2, [y + start.seat * tall, y + (start.seat + 1) * tall],
                        color="white", linewidth=1.6, solid_capstyle="butt")
            y += timeline.seats * tall + gap
        note(ax, y + 0.06, "Steps from left to right. A stretch of one colour is a request, a dot its prompt, grey an "
             "idle slot.")
        ax.set_xlim(0, WIDTH)
        ax.set_ylim(max(height, figure.get_figheight()), 0)
    return figure


def _firsts(timeline: Timeline) -> list:
    """The first cell of each request."""
    first_cells = {}
    for cell in timeline.cells:
        first_cells.setdefault(cell.request, cell)
    return list(first_cells.values())
