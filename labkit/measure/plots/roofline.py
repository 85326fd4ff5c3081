"""The roofline: what the hardware allows, and where the rungs stand.

    roofline([measured, ...])      flop/s over flop per byte, a name at each point
    every_rung([measured, ...])    the same for all operations at once, numbered
"""

from __future__ import annotations

import contextlib

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, NullLocator

from labkit import measure
from labkit._common.tables import number, size_text
from labkit.measure import Ladder
from labkit.measure.plots.style import (
    FAINT,
    GREY,
    INK,
    LINES,
    STYLE,
    TEXT,
    CourseFigure,
    grid_along,
    new_figure,
    panel_title,
    shorten,
    where_taken,
)
from labkit.measure.roofline import PEAK_NAMES, Limits


def roofline(measured: list[Ladder] | Ladder) -> CourseFigure | None:
    """flop/s over flop per byte: the roofs, and a point for each rung. GPU ladders only: a CPU time has no place here.

    Bytes are the least an operation must move, so all rungs of an operation stand above one another. The tensor cores'
    roofs are drawn where an operation runs on them. Where points are too many for their names, they are numbered, as by
    every_rung().
    """
    ladders = _gpu_ladders(measured)
    if len(ladders) > 4 or (len(ladders) > 1 and any(one.peak != "fp32" for one in ladders)):
        return every_rung(ladders, "Roofline")
    figure, (ax,) = new_figure([3.9], "Roofline", "Roofline, " + _all_where_taken(ladders))
    with rc_context(STYLE):
        peaks = ("fp32", "tf32", "f16") if any(one.peak != "fp32" for one in ladders) else ("fp32",)
        roofs, bandwidth = _roofs(ladders, peaks)
        top = max(roofs.values())
        intensities = [one.flops / one.bytes for one in ladders]
        ridges = [1000 * roof / bandwidth for roof in roofs.values()]
        low, high = min([*intensities, *ridges]) / 3, max([*intensities, *ridges]) * (30 if len(roofs) == 1 else 3000)
        rates = [row.tflops for one in ladders for row in one.rows if row.kind != "host"]
        _roof_axes(ax, (low, high), (min(rates) / 6, top * 2.2))
        _draw_roofs(ax, roofs, ladders[0], (low, high), max(1.15 * low, 1000 * min(roofs.values()) / bandwidth / 16))
        for one, colour, intensity in zip(ladders, LINES * 4, intensities, strict=False):
            points = [row for row in one.rows if row.kind != "host"]
            ends = []
            for row in points:
                shade = colour if row.kind == "rung" else GREY
                ax.plot([intensity], [row.tflops], "o" if row.kind == "rung" else "P", color=shade, markersize=7,
                        markeredgecolor="white", markeredgewidth=0.8)
                ends.append((row.tflops, row.name, TEXT[shade]))
            _label_points(ax, intensity, ends)
        panel_title(ax, _all_where_taken(ladders) + ". Dashed: the limits")
    return figure


def _gpu_ladders(measured) -> list[Ladder]:
    ladders = [measured] if isinstance(measured, Ladder) else list(measured)
    if not ladders:
        raise ValueError("measured is empty; pass at least one ladder")
    cpu = [one.op for one in ladders if not one.on_gpu]
    if cpu:
        raise ValueError(f"the ladder of {cpu[0]} was timed on the CPU device; a roofline needs a GPU's times: pass "
                         f"measure.recorded_ladder({cpu[0]!r})")
    return ladders


def _roofs(ladders: list[Ladder], peaks) -> tuple[dict, float]:
    """TFLOP/s of each peak that is known, and the bandwidth."""
    known = Limits(**ladders[0].limits)
    roofs = {}
    for name in peaks:
        with contextlib.suppress(ValueError):  # no one has measured it, and no data sheet here has it
            roofs[name] = known.peak(name)
    return roofs, known.bandwidth_gbs


def _roof_axes(ax, xlim: tuple, ylim: tuple) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(*xlim)
    ax.set_ylim(*ylim)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
        axis.set_minor_locator(NullLocator())
    ax.set_xlabel("flop per byte moved at least")
    ax.set_ylabel("TFLOP/s")
    grid_along(ax, "both")


def _draw_roofs(ax, roofs: dict, one: Ladder, xlim: tuple, slope_x: float | None, size: float = 8.5) -> None:
    low, high = xlim
    known = Limits(**one.limits)
    bandwidth = known.bandwidth_gbs
    notes = {name: ", by the data sheet" for name in roofs if "not measured" in known.peak_source(name)}
    top = max(roofs.values())
    for name, roof in roofs.items():
        ridge = 1000 * roof / bandwidth
        start = low if roof == top else ridge
        xs = np.geomspace(start, high, 400)
        ax.plot(xs, np.minimum(roof, xs * bandwidth / 1000), color=INK, linestyle=(0, (4, 3)), linewidth=1.3, zorder=1)
        if slope_x is not None:
            what = PEAK_NAMES[name] if size < 9 else PEAK_NAMES[name].replace(" peak of the", ",")
            ax.annotate(f"{number(roof)} TFLOP/s, {what}{notes.get(name, '')}", (high, roof),
                        xytext=(-4, 4), ha="right", textcoords="offset points", fontsize=size)
    if slope_x is None:  # the panel beside this one says what the roofs are
        return
    ax.annotate(f"{number(bandwidth)} GB/s, copy bandwidth", (slope_x, slope_x * bandwidth / 1000), xytext=(0, 7),
                textcoords="offset points", fontsize=size, rotation=_slope_angle(ax), rotation_mode="anchor")


MANY = ("#0072B2", "#C04F00", "#00785A", "#A34D82", "#8F6200", "#332288", "#7A1F45", "#3E6B2F", "#44688A", "#6A5ACD",
        "#9C3D3D", "#4F5B66", "#00708A", "#7B5B1A")  # dark enough for a white number


def every_rung(measured: list[Ladder], title: str = "Every rung on one roofline") -> CourseFigure:
    """Every rung of every operation on one roofline: numbers on the points, names and fractions of the limit below.

    Of an operation measured at several sizes pass the ladder of one. Baselines are grey, with letters. Operations that
    do no arithmetic have no place on it and are named under the title. Where the operations leave a wide gap between
    the slope and the flat roofs the axis is broken there. 1,280 pixels wide; 840 for one or two operations.
    """
    ladders = _gpu_ladders(measured)
    without = [one.op for one in ladders if not one.flops]
    newest = max(ladders, key=lambda one: (one.limits.get("f16_tflops") is not None, one.machine.get("date") or ""))
    ladders = sorted((one for one in ladders if one.flops), key=lambda one: one.flops / one.bytes)
    blocks = []  # of the legend: ladder, colour, lines
    for one, colour in zip(ladders, MANY * 4, strict=False):
        rungs = [(str(k), row) for k, row in enumerate(one.rungs, 1)]
        baselines = [(chr(ord("a") + k), row) for k, row in enumerate(r for r in one.rows if r.kind == "baseline")]
        blocks.append((one, colour, [*rungs, *baselines]))
    line, columns, width, plot = 0.158, 5 if len(blocks) > 12 else 4, 12.8, 6.0
    if len(blocks) <= 2:
        columns, width, plot = 2, 8.4, 4.4
    wide = 12.8 / width  # what is a share of the figure's width, and meant in inches
    heights = [line * (len(lines) + 3.0) for _, _, lines in blocks]
    fill = _columns(heights, columns)
    legend = max(sum(heights[k] for k in column) for column in fill)
    top, foot = 0.72, 0.62
    total = top + plot + foot + legend + 0.1
    with rc_context(STYLE):
        figure = CourseFigure(figsize=(width, total))
        place = _all_where_taken(ladders)
        figure.summary = f"{title}, {place}"
        figure.text(0.012, 1 - 0.24 / total, title, fontsize=13, fontweight="bold", va="center")
        note = f"{place}. Operations of nearly the same intensity stand side by side."
        if without:
            note += f" Not on it, since they have no arithmetic: {', '.join(without)}."
        figure.text(0.012, 1 - 0.50 / total, note, fontsize=9, color=FAINT, va="center")
        roofs, bandwidth = _roofs([newest], ("fp32", "tf32", "f16"))
        rates = [row.tflops for one in ladders for row in one.rows if row.kind != "host"]
        intensities = [one.flops / one.bytes for one in ladders]
        ylim = (min(rates) / 3, max(roofs.values()) * 1.9)
        limits = _broken(intensities, 1000 * max(roofs.values()) / bandwidth)
        bottom, height = (foot + legend) / total, plot / total
        shares = (1.0,) if len(limits) == 1 else (0.56, 0.43)
        left = 0.055 * wide
        for number_, (xlim, share) in enumerate(zip(limits, shares, strict=True)):
            ax = figure.add_axes((left, bottom, (0.99 - 0.055 * wide) * share, height))
            left += (1.0 - 0.055 * wide) * share
            _roof_axes(ax, xlim, ylim)
            last = number_ == len(limits) - 1
            slope_x = max(1.25 * xlim[0], 1200 * roofs["fp32"] / bandwidth)
            _draw_roofs(ax, roofs, newest, xlim, slope_x if last else None, size=9)
            if number_:
                ax.set_ylabel("")
                ax.tick_params(labelleft=False)
                ax.spines["left"].set_linestyle((0, (2, 3)))
            inside = [block for block in blocks if xlim[0] <= block[0].flops / block[0].bytes <= xlim[1]]
            _number_points(ax, inside, roofs, bandwidth)
        room = 0.985 / columns
        for at, column in enumerate(fill):
            y = foot + legend - 0.62
            for k in column:
                one, colour, lines = blocks[k]
                x = 0.012 + at * room
                figure.text(x, y / total, _op_name(one), fontsize=8.5, fontweight="bold", color=colour, va="center")
                figure.text(x, (y - line) / total, size_text(one.size), fontsize=8, color=FAINT, va="center")
                for step, (mark, row) in enumerate(lines, 2):
                    name = row.name.removeprefix(f"{one.op}_") if row.kind == "rung" else row.name
                    name = shorten(name + (", failed" if row.failed else ""), int(150 * (room / wide - 0.045)))
                    share = "" if row.fraction is None else f"{row.fraction:.0%}"
                    ink = INK if row.kind == "rung" else FAINT
                    spot = (y - line * step) / total
                    figure.text(x + 0.012 * wide, spot, mark, fontsize=8.5, va="center", ha="right", color=ink,
                                fontweight="bold")
                    figure.text(x + 0.018 * wide, spot, name, fontsize=8.5, va="center", color=ink)
                    figure.text(x + room - 0.014 * wide, spot, share, fontsize=8.5, va="center", ha="right", color=ink)
                y -= heights[k]
    return figure


def _all_where_taken(ladders: list[Ladder]) -> str:
    """One "Measured on ..." for each GPU, with the days."""
    by_gpu: dict[str, list[Ladder]] = {}
    for one in ladders:
        by_gpu.setdefault(one.where, []).append(one)
    return "; ".join(where_taken(where, measure.days(group)) for where, group in by_gpu.items())


def _broken(intensities: list[float], ridge: float) -> list[tuple[float, float]]:
    """x limits of the panels: two where the operations leave more than a decade between them, else one."""
    low, high = min(intensities), max([*intensities, ridge])
    ordered = sorted(intensities)
    gaps = [(after / before, before, after) for before, after in zip(ordered, ordered[1:], strict=False)]
    widest, before, after = max(gaps, default=(1.0, low, high))
    if widest < 12 or len(ordered) < 6:
        return [(min(low, ridge / 60) / 2.2, high * 60)]
    return [(low / 1.5, before * 1.9), (min(after / 3, ridge / 8), high * 60)]


def _op_name(one: Ladder) -> str:
    return one.op.replace("_", " ")


def _columns(heights: list[float], count: int) -> list[list[int]]:
    """Blocks in their order over columns: the least height at which they fit."""
    def fill(limit):
        columns, used = [[]], 0.0
        for k, height in enumerate(heights):
            if columns[-1] and used + height > limit:
                columns.append([])
                used = 0.0
            columns[-1].append(k)
            used += height
        return columns

    limit = max(heights, default=0.0)
    while len(fill(limit)) > count:
        limit *= 1.02
    return fill(limit)


def _number_points(ax, blocks, roofs: dict, bandwidth: float, size: float = 15.0) -> None:
    """A numbered disc for each row, moved sideways where it would hide another; the operation's title above its roof.

    `size` is a disc's width in pixels of a hundredth of an inch.
    """
    scale = ax.figure.dpi / 100
    placed: list[tuple[float, float]] = []

    def free(spots):
        return all(abs(x - px) >= size * scale or abs(y - py) >= size * scale
                   for x, y in spots for px, py in placed)

    slanted, flat = [], []
    back = ax.transData.inverted()
    for one, colour, lines in sorted(blocks, key=lambda block: block[0].flops / block[0].bytes):
        intensity = one.flops / one.bytes
        own = []
        for mark, row in lines:
            x, y = ax.transData.transform((intensity, row.tflops))
            lane = next(lane for lane in (k // 2 * (-1) ** k for k in range(1, 2 * len(lines) + 2))  # 0, 1, -1, 2, ...
                        if all(lane != other or abs(y - oy) >= size * scale for other, oy, *_ in own))
            own.append((lane, y, x + lane * size * scale, mark, row))
        step = size * scale
        shift = next(shift for k in range(200) for shift in (k * step / 2, -k * step / 2)
                     if free([(x + shift, y) for _, y, x, *_ in own]))
        for _, y, x, mark, row in own:
            placed.append((x + shift, y))
            at = back.transform((x + shift, y))
            shade = colour if row.kind == "rung" else "#7C848B"
            ax.plot(*at, "o" if row.kind == "rung" else "s", markersize=10.2 if row.kind == "rung" else 9.2,
                    markerfacecolor="white" if row.failed else shade, markeredgecolor=shade if row.failed else "white",
                    markeredgewidth=1.2 if row.failed else 0.7, zorder=3, clip_on=False)
            ax.annotate(mark, at, ha="center", va="center_baseline", fontsize=7, fontweight="bold", zorder=4,
                        color=shade if row.failed else "white")
        under = intensity * bandwidth / 1000 < min(roofs.values())
        (slanted if under else flat).append((float(np.mean([spot[2] for spot in own])) + shift,
                                             min(spot[1] for spot in own), _op_name(one), colour))
    style = {"fontsize": 8.5, "fontweight": "bold", "va": "center"}
    last = -np.inf
    for x, _, title, colour in sorted(slanted):  # under the slope: the title above it, aslant
        x = last = max(x, last + 23 * scale)
        slope = ax.transData.transform((1, back.transform((x, 0))[0] * bandwidth / 1000))[1]
        y = max([slope, *(py for px, py in placed if abs(px - x) < 20 * scale)])
        ax.annotate(title, back.transform((x, y)), xytext=(-1, 9), textcoords="offset points", color=colour,
                    rotation=62, rotation_mode="anchor", ha="left", **style)
    taken = [(x, y, size * scale / 2) for x, y in placed]
    lines_at = [ax.transData.transform((1, roof))[1] for roof in roofs.values()]
    for x, lowest, title, colour in sorted(flat, key=lambda item: -item[1]):  # under a flat roof: below its points
        y, reach = lowest - 14 * scale, 3.3 * scale * len(title)
        while (any(abs(x - other) < reach + wide and abs(y - height) < 13 * scale for other, height, wide in taken)
               or any(abs(y - line) < 9 * scale for line in lines_at)):
            y -= 2 * scale
        taken.append((x, y, reach))
        ax.annotate(title, back.transform((x, y)), color=colour, ha="center", **style)


def _slope_angle(ax) -> float:
    (x0, y0), (x1, y1) = ax.transData.transform([(1, 1), (10, 10)])
    return float(np.degrees(np.arctan2(y1 - y0, x1 - x0)))


def _label_points(ax, x: float, points: list[tuple[float, str, str]], gap: float = 0.052) -> None:
    to_axes = ax.transAxes.inverted()
    spots = sorted([[to_axes.transform(ax.transData.transform((x, y)))[1], name, colour] for y, name, colour in points])
    # From the top down: below the roof there is room.
    for above, below in zip(spots[::-1], spots[-2::-1], strict=False):
        below[0] = min(below[0], above[0] - gap)
    for height, name, colour in spots:
        ax.annotate(name, (x, height), xycoords=("data", "axes fraction"), xytext=(9, 0), textcoords="offset points",
                    va="center", fontsize=8.5, color=colour)
