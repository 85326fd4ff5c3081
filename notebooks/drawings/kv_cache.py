"""The figures of the lesson "The KV cache", in the course's style.

    rows_on_roofline(work, bandwidth_gbs, tflops, where)     what bounds a product of T rows
    over_positions(positions, with_cache, without, where)    the work for each token, with a cache and without one
    buffer_plan(names, offsets, sizes, live, title)          where buffers lie in memory, launch by launch
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, NullLocator

from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    LINES,
    ORANGE,
    PALE,
    PURPLE,
    STYLE,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    grid_along,
    label_line_ends,
    leave_right,
    new_figure,
    panel_title,
)

SHADES = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION)  # of requests and of buffers, in rotation


def rows_on_roofline(work: Mapping[int, tuple[float, float]], bandwidth_gbs: float, tflops: float,
                     where: str) -> CourseFigure:
    """work: rows -> (flops, bytes) of a product. The roof is what the limits allow; each point is a product on it."""
    points = [(rows, flops / moved, min(tflops, flops / moved * bandwidth_gbs / 1e3))
              for rows, (flops, moved) in work.items()]
    ridge = 1e3 * tflops / bandwidth_gbs
    figure, (ax,) = new_figure([3.1], "A product of few rows waits for memory",
                               f"{where}: {number(bandwidth_gbs)} GB/s and "
                               f"{number(tflops)} TFLOP/s meet at {ridge:.0f} flop per byte. At most " + ", ".join(
                                   f"{number(rate)} TFLOP/s at T = {rows:,}" for rows, _, rate in points)
                               + ".")
    with rc_context(STYLE):
        low, high = min(x for _, x, _ in points) / 2, max(ridge, max(x for _, x, _ in points)) * 2.5
        xs = np.geomspace(low, high, 300)
        ax.plot(xs, np.minimum(tflops, xs * bandwidth_gbs / 1e3), color=INK, linestyle=(0, (4, 3)), linewidth=1.3,
                zorder=1)
        ax.axvspan(low, ridge, color=PALE[BLUE], alpha=0.5, linewidth=0, zorder=0)
        ax.axvspan(ridge, high, color=PALE[ORANGE], alpha=0.5, linewidth=0, zorder=0)
        for i, (rows, x, rate) in enumerate(points):
            ax.plot([x], [rate], "o", color=BLUE if x < ridge else VERMILLION, markersize=7, markeredgecolor="white",
                    zorder=3)
            flat = rate > 0.9 * tflops  # labels of neighbours alternate above and below
            ax.annotate(f"T = {rows:,}", (x, rate), xytext=(0, (-16, 9)[i % 2]) if flat else (9, -4),
                        ha="center" if flat else "left", textcoords="offset points", fontsize=9)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(low, high)
        ax.set_ylim(min(rate for *_, rate in points) / 3, tflops * 5)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
            axis.set_minor_locator(NullLocator())
        ax.set_xlabel("flop per byte")
        ax.set_ylabel("TFLOP/s, at most")
        ax.text(ridge / 1.15, tflops * 3.2, "bytes decide", ha="right", va="center", fontsize=9)
        ax.text(ridge * 1.15, tflops * 3.2, "flops decide", ha="left", va="center", fontsize=9)
        grid_along(ax, "both")
        panel_title(ax, f"The limits of {where}: {number(bandwidth_gbs)} GB/s, {number(tflops)} TFLOP/s. Each point "
                    "is the most they allow.")
    return figure


def over_positions(positions: Sequence[int], with_cache: Mapping[str, Sequence[float]],
                   without: Mapping[str, Sequence[float]], where: str) -> CourseFigure:
    """A panel for each name of a quantity, such as "MFLOP"; two lines in each, a value for each position."""
    title = "Without a cache, every token costs more than the last"
    figure, axes = new_figure([1.55] * len(with_cache), title, "; ".join(
        f"{name} of the last token: {with_cache[name][-1]:.3g} with a cache, {without[name][-1]:.3g} without one"
        for name in with_cache) + f". {where}.", gap=0.66)
    with rc_context(STYLE):
        for ax, name in zip(axes, with_cache, strict=True):
            leave_right(ax, ["with a cache", "without one"])
            ends = []
            lines = (with_cache[name], "with a cache"), (without[name], "without one")
            for line, (values, label) in enumerate(lines):
                ax.plot(positions, values, color=LINES[line])
                ends.append((positions[-1], values[-1], label, LINES[line]))
            ax.set_ylim(0, 1.08 * max(*with_cache[name], *without[name]))
            ax.set_xlim(positions[0], positions[-1])
            ax.set_xlabel("tokens before the new one" if ax is axes[-1] else "")
            grid_along(ax, "both")
            label_line_ends(ax, ends)
            panel_title(ax, name)
    return figure


def buffer_plan(names: Sequence[str], offsets: Mapping[str, int], sizes: Mapping[str, int],
                live: Sequence[Collection[str]], title: str) -> CourseFigure:
    """Launches from left to right, with these names, and addresses downwards; a box for each stretch of launches in
    which a buffer is live. A box too low for a name has it beside it."""
    end, separate = max(offsets[name] + sizes[name] for name in offsets), sum(sizes.values())
    left, top, tall, below = 0.72, 0.86, 3.0, 1.26
    wide = (WIDTH - left - 0.16) / len(live)
    figure, ax = canvas(top + tall + below, title, f"{end:,} bytes where each buffer of its own would take "
                        f"{separate:,}: " + ", ".join(f"{name} at {offsets[name]:,}" for name in offsets) + ".")
    scale = tall / end
    with rc_context(STYLE):
        ax.text(0.14, 0.56, f"{end / 1e6:.3g} MB together; {separate / 1e6:.3g} MB if each had its own", fontsize=9,
                color=FAINT, va="center")
        draw_box(ax, left, top, wide * len(live), tall, fill=PALE[GREY])
        for shade, name in enumerate(sorted(offsets, key=lambda name: -sizes[name])):
            runs = _stretches([name in these for these in live])
            for begin, last in runs:
                y, height = top + scale * offsets[name], scale * sizes[name]
                draw_box(ax, left + begin * wide, y, (last - begin + 1) * wide, height, fill=SHADES[shade % 5])
                if height > 0.13:
                    ink = INK if SHADES[shade % 5] in (ORANGE, PURPLE) else "white"
                    ax.text(left + (begin + last + 1) / 2 * wide, y + height / 2, name, fontsize=9,
                            color=ink, ha="center", va="center_baseline")
                else:
                    ax.text(left + begin * wide - 0.04, y + height, name, fontsize=9, ha="right", va="bottom")
        for megabytes in _ticks(end / 1e6):
            ax.text(left - 0.08, top + scale * megabytes * 1e6, f"{megabytes:g} MB", fontsize=9, ha="right",
                    va="center", color=FAINT)
        for i, name in enumerate(names):
            ax.text(left + (i + 0.5) * wide + 0.04, top + tall + 0.08, name, fontsize=9, rotation=45, ha="right",
                    va="top", rotation_mode="anchor")
    return figure


def _stretches(present: Sequence[bool]) -> list[tuple[int, int]]:
    """(first, last) of each run of True."""
    edges = np.flatnonzero(np.diff([0, *map(int, present), 0]))
    return [(int(begin), int(end) - 1) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


def _ticks(end: float) -> list[float]:
    step = next(step for power in range(-6, 6) for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
                if end / step <= 5)
    return [round(step * count, 9) for count in range(int(end / step) + 1)]
