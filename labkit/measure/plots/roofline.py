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
from labkit.kernels.op import PEAKS
from labkit.measure import Ladder
from labkit.measure.plots.style import (
    FAINT,
    GREY,
    INK,
    LINES,
    SMALLEST,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    grid_along,
    make_room,
    new_figure,
    panel_title,
    percent,
    shorten,
    spread_apart,
    where_taken,
    width_of,
)
from labkit.measure.roofline import PEAK_NAMES, Limits


def roofline(measured: list[Ladder] | Ladder) -> CourseFigure | None:
    """flop/s over flop per byte: the roofs, and a point for each rung. GPU ladders only: a CPU time has no place here.

    Bytes are the least an operation must move, so all rungs of an operation stand above one another. Each point has its
    name beside it, joined to it by a line where the names stand too close. The tensor cores' roofs are drawn where an
    operation runs on them. Where points are too many for their names, operations are numbered, as by every_rung().
    """
    ladders = _gpu_ladders(measured)
    if len(ladders) > 4 or (len(ladders) > 1 and any(one.peak != "fp32" for one in ladders)):
        return every_rung(ladders, "Roofline")
    figure, (ax,) = new_figure([3.9], "Roofline", _summary("Roofline", ladders))
    with rc_context(STYLE):
        used = {one.peak for one in ladders}
        peaks = ("fp32",) if used == {"fp32"} else PEAKS if "fp8" in used else PEAKS[:3]
        roofs, bandwidth = _roofs(ladders, peaks)
        top = max(roofs.values())
        intensities = [one.flops / one.bytes for one in ladders]
        ridges = [1000 * roof / bandwidth for roof in roofs.values()]
        low, high = min([*intensities, *ridges]) / 3, max([*intensities, *ridges]) * (30 if len(roofs) == 1 else 3000)
        rates = [row.tflops for one in ladders for row in one.rows if row.kind != "host"]
        _roof_axes(ax, (low, high), (min(rates) / 6, top * 2.2))
        _draw_roofs(ax, roofs, ladders[0], (low, high), max(1.15 * low, 1000 * min(roofs.values()) / bandwidth / 16))
        for one, colour, intensity in zip(ladders, LINES * 4, intensities, strict=False):
            ends = []
            for row in (row for row in one.rows if row.kind != "host"):
                shade = colour if row.kind == "rung" else GREY
                ax.plot([intensity], [row.tflops], "o" if row.kind == "rung" else "P", color=shade, markersize=7,
                        markeredgecolor="white", markeredgewidth=0.8)
                ends.append((row.tflops, row.name, TEXT[shade]))
            _label_points(ax, intensity, ends, min(top, intensity * bandwidth / 1000), f"{one.op}_")
        panel_title(ax, _all_where_taken(ladders) + ". Dashed: the limits")
    return figure


def _summary(title: str, ladders: list[Ladder]) -> str:
    return f"{title}, {_all_where_taken(ladders)}. " + "; ".join(
        f"{_op_name(one)} at {number(one.flops / one.bytes)} flop per byte: " + ", ".join(
            f"{row.name} {number(row.tflops)} TFLOP/s" for row in one.rows if row.kind != "host")
        for one in ladders) + "."


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


def _draw_roofs(ax, roofs: dict, one: Ladder, xlim: tuple, slope_x: float,
                left: bool = False, below: bool = False) -> None:
    """The dashed lines with their names; that of the slope begins at slope_x, above the line or below it. left: the
    names of the tensor cores' roofs end where the roofs begin."""
    low, high = xlim
    known = Limits(**one.limits)
    bandwidth = known.bandwidth_gbs
    notes = {name: ", by the data sheet" for name in roofs if "not measured" in known.peak_source(name)}
    top = max(roofs.values())
    for name, roof in roofs.items():
        start = low if roof == top else 1000 * roof / bandwidth
        xs = np.geomspace(start, high, 400)
        ax.plot(xs, np.minimum(roof, xs * bandwidth / 1000), color=INK, linestyle=(0, (4, 3)), linewidth=1.3, zorder=1)
        label = PEAK_NAMES[name].replace(" peak of the", ",") + notes.get(name, "")
        inside = left and roof > min(roofs.values())  # left of its roof, where nothing else stands
        ax.annotate(f"{number(roof)} TFLOP/s, {label}", (1000 * roof / bandwidth if inside else high, roof),
                    xytext=(-6, 0) if inside else (-4, 4), ha="right", va="center" if inside else "baseline",
                    textcoords="offset points", fontsize=9)
    ax.annotate(f"{number(bandwidth)} GB/s" + ("" if below else ", copy bandwidth"),
                (slope_x, slope_x * bandwidth / 1000), xytext=(12, -12) if below else (0, 7),
                textcoords="offset points", fontsize=9, rotation=_slope_angle(ax), rotation_mode="anchor")


def _slope_angle(ax) -> float:
    (x0, y0), (x1, y1) = ax.transData.transform([(1, 1), (10, 10)])
    return float(np.degrees(np.arctan2(y1 - y0, x1 - x0)))


def _label_points(ax, x: float, points: list[tuple[float, str, str]], roof: float, prefix: str) -> None:
    """Each name right of its point and below the roof. Names too close to each other are moved apart; a line leads from
    such a name to its point."""
    to_axes = ax.transAxes.inverted()
    x_fraction, ceiling = to_axes.transform(ax.transData.transform((x, roof)))
    spots = sorted([to_axes.transform(ax.transData.transform((x, y)))[1], y, name, colour]
                   for y, name, colour in points)
    high = ax.get_position().height * ax.figure.get_figheight()
    room = (1 - x_fraction) * ax.get_position().width * WIDTH - 0.20
    heights = spread_apart([spot[0] for spot in spots], 0.185 / high, high=max(spots[-1][0], ceiling - 0.10 / high))
    for height, (point_y, y, name, colour) in zip(heights, spots, strict=True):
        if width_of(name, 9) > room:
            name = name.removeprefix(prefix)
        while width_of(name, 9) > room:
            name = shorten(name, len(name) - 1)
        moved = abs(height - point_y) * high > 0.03
        ax.annotate(name, (x, y), xycoords="data", xytext=(24 if moved else 9, 72 * high * (height - point_y)),
                    textcoords="offset points", va="center", fontsize=9, color=colour,
                    arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 1, "shrinkB": 5,
                                "relpos": (0, 0.5)} if moved else None)


# --- Every rung -----------------------------------------------------------------------------------------------------

MANY = ("#0072B2", "#C04F00", "#00785A", "#A34D82", "#8F6200", "#332288", "#7A1F45", "#3E6B2F", "#44688A", "#6A5ACD",
        "#9C3D3D", "#4F5B66", "#00708A", "#7B5B1A")  # dark enough for a white number
DISC = 0.20  # inches between the numbers of operations
BESIDE = 0.07  # and between their dots, where operations have nearly the same intensity


def every_rung(measured: list[Ladder], title: str = "Every rung on one roofline") -> CourseFigure:
    """Every rung of every operation on one roofline: a column of dots for each operation, with its number above it, and
    a list below that says what each is and how near to its limit its rungs come.

    Of an operation measured at several sizes pass the ladder of one. Baselines are grey. Operations that do no
    arithmetic have no place on it and are named under the title.
    """
    ladders = _gpu_ladders(measured)
    without = [one.op for one in ladders if not one.flops]
    newest = max(ladders, key=lambda one: (one.limits.get("f16_tflops") is not None, one.machine.get("date") or ""))
    ladders = sorted((one for one in ladders if one.flops), key=lambda one: one.flops / one.bytes)
    figure, (ax,) = new_figure([4.6], title, _summary(title, ladders))
    with rc_context(STYLE):
        roofs, bandwidth = _roofs([newest], ("fp32", "tf32", "f16"))
        rates = [row.tflops for one in ladders for row in one.rows if row.kind != "host"]
        intensities = [one.flops / one.bytes for one in ladders]
        ridge = 1000 * min(roofs.values()) / bandwidth
        xlim = (min([*intensities, ridge / 30]) / 2.5, max(intensities) * 150)
        _roof_axes(ax, xlim, (min(rates) / 2.5, max(roofs.values()) * 5))
        stops = [xlim[0], *(x for x in intensities if x < ridge), 4 * ridge]
        widest = max(range(len(stops) - 1), key=lambda k: stops[k + 1] / stops[k])
        _draw_roofs(ax, roofs, newest, xlim, 1.3 * stops[widest], left=True, below=widest > 0)
        _columns(ax, ladders, bandwidth)
        note_ = f" Not on it, since they have no arithmetic: {', '.join(without)}." if without else ""
        panel_title(ax, f"{_all_where_taken(ladders)}. A dot is a rung; grey: a library. Dashed: copy "
                        f"bandwidth and the peaks of arithmetic.{note_}")
        _list(figure, ladders)
    return figure


def _columns(ax, ladders: list[Ladder], bandwidth: float) -> None:
    """Dots where they are, columns at nearly the same place beside each other; above them the operations' numbers,
    fanned out and joined to them by lines."""
    ax.apply_aspect()
    inches = ax.figure.dpi
    xs = [ax.transData.transform((one.flops / one.bytes, 1))[0] / inches for one in ladders]
    left, right = (edge / inches for edge in ax.transAxes.transform([(0, 0), (1, 0)])[:, 0])
    wide = right - left
    dot_xs, label_xs = ([left + label_x * wide for label_x in spread_apart([(x - left) / wide for x in xs], gap / wide)]
                        for gap in (BESIDE, DISC))
    inverse = ax.transData.inverted()
    for k, (one, dot_x, label_x) in enumerate(zip(ladders, dot_xs, label_xs, strict=True)):
        colour, x = MANY[k % len(MANY)], inverse.transform((dot_x * inches, 0))[0]
        rows = [row for row in one.rows if row.kind != "host"]
        ax.plot([x, x], [min(row.tflops for row in rows), max(row.tflops for row in rows)], color=colour, linewidth=0.8,
                alpha=0.6, zorder=2)
        for row in sorted(rows, key=lambda row: row.kind == "rung"):  # the rungs in front
            rung = row.kind == "rung"
            ax.plot([x], [row.tflops], "o" if rung else "P", markersize=5.5, color=colour if rung else GREY,
                    markeredgecolor="white", markeredgewidth=0.6, zorder=3 if rung else 2.5)
        best = max(row.tflops for row in rows)
        under = ax.transData.transform((x, best))[1] / inches
        above = inverse.transform((label_x * inches, 0))[0]
        slope = ax.transData.transform((1, above * bandwidth / 1000))[1] / inches
        high = under + 0.30 if under + 0.30 < slope and x * bandwidth / 1000 > 60 else max(under, slope) + 0.30
        spot = inverse.transform((label_x * inches, high * inches))
        ax.plot([x, spot[0]], [best, spot[1]], color=colour, linewidth=0.8, zorder=2)
        ax.plot(*spot, "o", markersize=13.5, color=colour, markeredgecolor="white", markeredgewidth=0.8, zorder=4)
        ax.annotate(str(k + 1), spot, ha="center", va="center_baseline", fontsize=SMALLEST, fontweight="bold",
                    color="white", zorder=5)


def _list(figure, ladders: list[Ladder]) -> None:
    """Two lines for each operation."""
    total = figure.get_figheight()
    pitch = 0.40
    make_room(figure, total, pitch * len(ladders) + 0.10)
    total_now = figure.get_figheight()
    for k, one in enumerate(ladders):
        colour, y = MANY[k % len(MANY)], total + 0.12 + pitch * k
        size_at = 0.46 + width_of(_op_name(one), 9.5, "bold") + 0.14
        bold = {"fontsize": 9.5, "fontweight": "bold", "color": colour}
        for x, below, text, style in ((0.36, 0, str(k + 1), {**bold, "ha": "right"}), (0.46, 0, _op_name(one), bold),
                                      (size_at, 0, size_text(one.size), {"fontsize": SMALLEST, "color": FAINT}),
                                      (0.46, 0.17, _of_its_limit(one), {"fontsize": SMALLEST})):
            figure.text(x / WIDTH, 1 - (y + below) / total_now, text, va="center", **style)


def _of_its_limit(one: Ladder) -> str:
    """ "3 rungs: naive 1% to pipelined 75% of the limit; PyTorch 78%". What PyTorch compiled is "compiled 78%"."""
    rungs = sorted((row for row in one.rungs if row.fraction is not None), key=lambda row: row.fraction)
    baseline = max((row for row in one.rows if row.kind == "baseline" and row.fraction is not None),
                   key=lambda row: row.fraction, default=None)
    ends = [f"{row.name.removeprefix(f'{one.op}_')} {percent(row.fraction)}" for row in (rungs[:1] + rungs[-1:])]
    text = f"{len(rungs)} rungs: {' to '.join(dict.fromkeys(ends))} of the limit"
    if baseline is not None:
        name = baseline.name.split(" (")[0].removeprefix("PyTorch, ").replace("compiled and autotuned", "autotuned")
        text += f"; {name} {percent(baseline.fraction)}"
    return text


def _all_where_taken(ladders: list[Ladder]) -> str:
    """One "Measured on ..." for each GPU, with the days."""
    by_gpu: dict[str, list[Ladder]] = {}
    for one in ladders:
        by_gpu.setdefault(one.where, []).append(one)
    return "; ".join(where_taken(where, measure.days(group)) for where, group in by_gpu.items())


def _op_name(one: Ladder) -> str:
    return one.op.replace("_", " ")
