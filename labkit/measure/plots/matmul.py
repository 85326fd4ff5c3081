"""Drawings of the matrix product: which elements a block, a thread and a lane read and keep, and when.

    overlap()    loads and products of one block in time
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit._common.tables import number
from labkit.measure import Ladder
from labkit.measure.plots.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    SMALLEST,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    new_figure,
    note,
    panel_title,
    where_taken,
    widen_left,
)


def overlap(tiles: int = 5, load: float = 1.9, multiply: float = 1.3) -> CourseFigure:
    """Loads and products of one block on a time line: with one pair of tiles, with two, and with three in a ring."""
    names = ("one pair of tiles", "two pairs", "a ring of three")
    left, top, tall, apart = 1.85, 0.72, 0.23, 0.98
    plans = []  # for each number of pairs: (start of the load, start of the product) of every tile
    for pairs in (1, 2, 3):
        plan = []
        for t in range(tiles):
            if pairs == 1:
                begin = plan[-1][1] + multiply if plan else 0.0  # the only place is free when it has been read
            else:
                begin = plan[t - pairs + 1][1] if t >= pairs - 1 else 0.0  # issued beside an earlier product
            plan.append((begin, max(begin + load, plan[-1][1] + multiply if plan else 0.0)))
        plans.append(plan)
    ends = [plan[-1][1] + multiply for plan in plans]
    scale = (WIDTH - left - 0.2) / max(ends)
    figure, ax = canvas(top + 3 * apart + 0.34, "Loads and products of one block, in time",
                        f"{tiles} tiles, loads of {load}, products of {multiply}: "
                        + ", ".join(f"{name} {end:.1f}" for name, end in zip(names, ends, strict=True)) + ".")
    with rc_context(STYLE):
        for row, (name, plan) in enumerate(zip(names, plans, strict=True)):
            y = top + row * apart
            lanes = max(1, row)  # loads that are under way at the same time
            ax.text(0.14, y + tall, name, fontsize=9, fontweight="bold", va="center")
            ax.text(left - 0.08, y + lanes * tall / 2, "load", fontsize=9, ha="right", va="center", color=TEXT[ORANGE])
            ax.text(left - 0.08, y + (lanes + 0.5) * tall, "multiply", fontsize=9, ha="right", va="center",
                    color=TEXT[BLUE])
            for t, (loads, multiplies) in enumerate(plan):
                draw_box(ax, left + loads * scale, y + t % lanes * tall, load * scale, tall, t, fill=PALE[ORANGE],
                         size=9)
                draw_box(ax, left + multiplies * scale, y + lanes * tall, multiply * scale, tall, t, fill=PALE[BLUE],
                         size=9)
        note(ax, top + 3 * apart + 0.12, "The number is the tile. Gaps between products are time in which the "
                "multiply-add units wait.")
    return figure


def climb(ladder: Ladder, rung: str, against: str | None = None) -> CourseFigure:
    """A bar for each rung up to `rung`, and its factor over `against`: left out, the rung before that did not fail."""
    rungs = [row for row in ladder.rows if row.kind == "rung"]
    names = [row.name.removeprefix(f"{ladder.op}_") for row in rungs]
    if rung not in names:
        raise ValueError(f"rung is {rung!r}; the ladder of {ladder.op} has {', '.join(names)}")
    last = names.index(rung)
    if against is None:
        against = next((name for name, row in reversed(list(zip(names, rungs, strict=True))[:last])
                        if not row.failed), names[0])
    reference, rungs, names = rungs[names.index(against)], rungs[: last + 1], names[: last + 1]
    factor = rungs[last].tflops / reference.tflops
    factor_text = f"\u00d7 {factor:.1f}" if factor >= 1.95 else f"\u00d7 {factor:.2f}"
    title = f"{rung}: {factor_text.removeprefix(chr(215) + ' ')} times as fast as {against}"
    figure, (ax,) = new_figure([0.27 * len(rungs) + 0.1], title, f"{title}. " + "; ".join(
        f"{name} {number(row.tflops)} TFLOP/s" for name, row in zip(names, rungs, strict=True)), bottom=0.25)
    with rc_context(STYLE):
        widen_left(ax, names)
        for y, (name, row) in enumerate(zip(names, rungs, strict=True)):
            colour = BLUE if y == last else ORANGE if name == against else GREY
            ax.barh(y, row.tflops, height=0.66, color=colour, hatch="////" if row.failed else None,
                    edgecolor="white" if row.failed else "none", linewidth=0)
            text = f" {number(row.tflops)} TFLOP/s" + (f"   {factor_text}" if y == last else "")
            ax.text(row.tflops, y, text + ("   (failed)" if row.failed else ""), va="center", fontsize=SMALLEST,
                    fontweight="bold" if y == last else "normal", color=INK)
        ax.set_yticks(range(len(names)), names, fontsize=SMALLEST)
        ax.set_ylim(len(names) - 0.45, -0.55)
        ax.set_xlim(0, 1.65 * max(row.tflops for row in rungs))
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.spines["bottom"].set_visible(False)
        panel_title(ax, where_taken(ladder.where, ladder.machine.get("date")))
    return figure
