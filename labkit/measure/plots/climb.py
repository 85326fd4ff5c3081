"""For lessons that climb one idea at a time, and for the lesson on the machine.

    speed_up(op)            how many times as fast each rung is as the one before it
    memories(recorded)      the memories of a GPU: size, latency and bandwidth, from the registers down to HBM
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib import rc_context

from labkit import measure
from labkit._common.tables import number, size_text
from labkit.measure import Ladder
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
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
    grid_along,
    new_figure,
    note,
    of_the_course,
    panel_title,
    unrecorded,
    where_taken,
    widen_left,
)


def speed_up(op: str | Ladder, rungs: list[str] | None = None) -> CourseFigure:
    """A bar for each rung after the first: its speed over that of the rung before, as a GPU recorded them. Below 1, in
    orange: the rung is slower. A rung that the ladder marks as failed is no base: the next one is compared with the
    last that did not fail. rungs: only these, in this order, by their names."""
    ladder = op if isinstance(op, Ladder) else of_the_course(measure.recorded_ladder, op)
    if ladder is None or not ladder.on_gpu:
        return unrecorded(f"What each rung of {op if isinstance(op, str) else op.op} gains")
    rows = [ladder.row(name) for name in rungs] if rungs is not None else list(ladder.rungs)
    if len(rows) < 2:
        raise ValueError(f"rungs holds {len(rows)}; a speed-up needs two at least")
    steps, base = [], rows[0]
    for row in rows[1:]:
        steps.append((row.name, base.timing.p50 / row.timing.p50))
        base = base if row.failed else row
    whole = rows[0].timing.p50 / rows[-1].timing.p50
    title = f"{ladder.title}: what each rung gains"
    figure, (ax,) = new_figure([0.36 * len(steps) + 0.15], title, f"{title}, over the rung before. " + "; ".join(
        f"{name} {times:.2f} times" for name, times in steps) + f". {rows[-1].name} is {number(whole)} times as fast "
        f"as {rows[0].name}. {where_taken(ladder.where, ladder.machine.get('date'))}; {size_text(ladder.size)}.")
    with rc_context(STYLE):
        widen_left(ax, [name for name, _ in steps])
        for y, (name, times) in enumerate(steps):
            ax.barh(y, times - 1, left=1, height=0.62, color=BLUE if times >= 1 else ORANGE)
            ax.annotate(f"{times:.2f}\u00d7" if times < 10 else f"{number(times)}\u00d7", (max(times, 1), y),
                        xytext=(5, 0), textcoords="offset points", va="center", fontsize=9.5)
            ax.annotate(name, (0, y), xycoords=("axes fraction", "data"), xytext=(-8, 0), textcoords="offset points",
                        ha="right", va="center", fontsize=9.5, annotation_clip=False)
        ax.axvline(1, color=INK, linewidth=1.0)
        ax.set_xscale("log")
        most, least = max(times for _, times in steps), min(times for _, times in steps)
        ax.set_xlim(min(0.9, 0.8 * least), 1.5 * max(most, 1.4))
        ticks = [tick for tick in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100) if ax.get_xlim()[0] <= tick <= ax.get_xlim()[1]]
        ax.set_xticks(ticks, [f"{tick:g}\u00d7" for tick in ticks])
        ax.minorticks_off()
        ax.set_ylim(len(steps) - 0.45, -0.55)
        ax.set_yticks([])
        grid_along(ax, "x")
        ax.set_xlabel("times as fast as the rung before")
        panel_title(ax, f"{where_taken(ladder.where, ladder.machine.get('date'))}; {size_text(ladder.size)}. All "
                        f"together: {number(whole)} times as fast as {rows[0].name}")
    return figure


SHADES = (VERMILLION, ORANGE, GREEN, BLUE, PURPLE)
COLUMNS = (("size", 2.50), ("latency", 4.22), ("bandwidth", 5.32))


def memories(recorded: Mapping | None = None) -> CourseFigure:
    """The memories of a GPU, nearest first, each wider than the one above it.

    recorded: {"memories": [{"name", "bytes", "per" ("thread", "block", "SM" or "GPU"), "ns", "gbs"}, ...], "where",
    "date"}; ns and gbs may be None where nothing was measured. None, or nothing recorded: the figure says so.
    """
    recorded = recorded or of_the_course(measure.recorded_series, "memories")
    if not recorded or not recorded.get("memories"):
        return unrecorded("The memories of a GPU")
    rows = recorded["memories"]
    place = where_taken(recorded["where"], recorded.get("date"))
    written = [(row["name"], _bytes(row), "" if row.get("ns") is None else f"{number(row['ns'])} ns",
                "" if row.get("gbs") is None else _rate(row["gbs"])) for row in rows]
    top, tall, pitch = 0.86, 0.44, 0.54
    figure, ax = canvas(top + pitch * len(rows) + 0.34, "The memories of a GPU", "; ".join(
        ", ".join(filter(None, parts)) for parts in written) + f". {place}.")
    with rc_context(STYLE):
        for words, x in COLUMNS:
            ax.text(x, top - 0.18, words, fontsize=9.5, fontweight="bold", va="center")
        for k, (name, *values) in enumerate(written):
            colour, y = SHADES[k % len(SHADES)], top + pitch * k
            wide = 0.96 + 1.22 * (k + 1) / len(rows)  # nearest and smallest first; the widths only say the order
            draw_box(ax, 0.14, y, wide, tall, fill=PALE.get(colour, "#F8DCCB"), edge=colour)
            ax.text(0.24, y + tall / 2, name, fontsize=10, fontweight="bold", va="center", color=TEXT[colour])
            for (_, x), value in zip(COLUMNS, values, strict=True):
                ax.text(x, y + tall / 2, value or "not measured", fontsize=9.5, va="center",
                        color=INK if value else FAINT)
        note(ax, top + pitch * len(rows) + 0.10, f"{place}. From the nearest to the farthest; the widths only "
             "show the order.")
    return figure


def _bytes(row: Mapping) -> str:
    count = row["bytes"]
    for unit, scale in (("GB", 1e9), ("MB", 2**20), ("KB", 2**10)):  # HBM is sold in GB of 10^9 bytes
        if count >= scale:
            return f"{count / scale:,.3g} {unit} per {row['per']}" if row["per"] != "GPU" else (
                f"{count / scale:,.3g} {unit}")
    return f"{count} bytes per {row['per']}"


def _rate(gbs: float) -> str:
    return f"{gbs / 1000:,.3g} TB/s" if gbs >= 1000 else f"{number(gbs)} GB/s"
