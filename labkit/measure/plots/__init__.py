"""The course's plots, all in one style. Each function returns a figure; a notebook shows it.

    ladder(measured)               a bar for each rung, baselines in grey, the hardware's limit as a dashed line
    crossover(series)              vector addition over sizes: from where on the GPU is worth the trip
    block_shapes(series)           one kernel, many shapes of a block
    sizes(series)                  every rung over sizes
    roofline([measured, ...])      what the hardware allows, and where the rungs stand
    every_rung([measured, ...])    the same for all operations at once, numbered
    owners(), round_trip(trip)     which thread adds which element; what a trip to the device is made of
    broadcast_reads(), tile_walk()    which elements a broadcast sum reads; which tiles a block of a product reads
    reductions(), masks()          a sum by a tree and by shuffles; which scores a mask leaves
    traffic(moved, ...)            bytes read and written; launch_floor(series): small work, called and in a graph
    warp_addresses(touched)        the memory that one warp touches: sectors, and how much of each is used
    quads(), banks(places)         which lane keeps which part of a row; the banks of a tile
    curves(x, lines, ...)          functions of one variable
    timeline(panel, ...)           ranges, driver calls and the GPU's work as bars along time
    launch_cost(series), copy_cost(series)    what a launch and a copy cost, over sizes

Every figure says where its times were taken. Without a GPU a figure has two panels: the times taken here, on the CPU
device, and the recorded ones of a GPU.
"""

from __future__ import annotations

import base64
import contextlib
import io
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from labkit import measure
from labkit._common.tables import number, size_text
from labkit.measure import CPU_DEVICE, Ladder
from labkit.measure.roofline import PEAK_NAMES, Limits

# Okabe and Ito's colours, which stay apart for colour-blind readers.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
LINES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE)
MARKERS = "osD^v"
GREY, INK, FAINT = "#A7ADB3", "#22272B", "#66707A"
# The same colours, dark enough to be read as text on white.
TEXT = {BLUE: BLUE, ORANGE: "#8F6200", GREEN: "#00785A", VERMILLION: "#B84F00", PURPLE: "#A34D82", GREY: FAINT}
WIDTH = 7.0  # inches: 700 pixels at 100 dots an inch
LONGEST_NAME = 38  # characters beside a bar

STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9.5,
    "axes.edgecolor": "#C9CED3", "axes.labelcolor": INK, "axes.titlesize": 10.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.labelsize": 9, "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
    "text.color": INK, "axes.axisbelow": True, "grid.color": "#E8EBED", "grid.linewidth": 0.8,
    "lines.linewidth": 2.0, "lines.markersize": 4.5, "svg.hashsalt": "labkit",
}


class CourseFigure(Figure):
    """A matplotlib figure that shows itself in a notebook, with or without pyplot, and sharp: 100 pixels an inch."""

    summary = ""

    def png(self, dpi: int = 200) -> bytes:
        buffer = io.BytesIO()
        with rc_context(STYLE):
            self.savefig(buffer, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
        return buffer.getvalue()

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.png())
        return path

    def _repr_mimebundle_(self, include=None, exclude=None):
        encoded = base64.b64encode(self.png()).decode()
        width = round(100 * self.get_figwidth())
        return {"image/png": encoded, "text/plain": self.summary}, {"image/png": {"width": width}}

    def __repr__(self) -> str:
        return self.summary


def _figure(heights: list[float], title: str, summary: str, gap: float = 0.98, bottom: float = 0.60):
    """A figure with one axes for each height in inches, one below the other, under a title."""
    with rc_context(STYLE):
        top = 0.66
        total = top + sum(heights) + gap * (len(heights) - 1) + bottom
        figure = CourseFigure(figsize=(WIDTH, total))
        figure.summary = summary
        figure.text(0.02, 1 - 0.24 / total, title, fontsize=12.5, fontweight="bold", va="center")
        axes, edge = [], total - top
        for height in heights:
            axes.append(figure.add_axes((0.10, (edge - height) / total, 0.86, height / total)))
            edge -= height + gap
    return figure, axes


def _place(where: str, date: str | None) -> str:
    if where == CPU_DEVICE:
        return f"Here, on the {where[0:10]}: shows work, not GPU speed"
    return f"Measured on {where}" + (f", {date}" if date else "")


def _panels(here, recorded) -> list:
    """What was measured here, then what a GPU recorded, unless here is a GPU."""
    return [panel for panel in (here, recorded) if panel is not None]


# --- A ladder ------------------------------------------------------------------------------------------------------


def ladder(measured: Ladder, recorded: Ladder | None | str = "auto") -> CourseFigure:
    """A bar for each rung, slowest idea first, baselines below in grey.

    On a GPU the bars are GB/s or TFLOP/s, with the limit. On the CPU device they are times, and the recorded ladder of
    a GPU stands below; recorded=None leaves it out.
    """
    if recorded == "auto":
        recorded = None if measured.on_gpu else measure.recorded_ladder(measured.op)
    panels = _panels(measured, recorded)
    figure, axes = _figure([0.36 * len(panel.rows) + 0.15 for panel in panels], measured.title,
                           f"Ladder of {measured.op}: " + "; ".join(
                               f"{row.name} {number(row.timing.p50)} ms" for row in measured.rows)
                           + f". {_place(measured.where, measured.machine.get('date'))}.")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            _ladder_panel(ax, panel, [row.name for shown in panels for row in shown.rows])
    return figure


def _ladder_panel(ax, panel: Ladder, names: list[str]) -> None:
    rows = panel.rows
    rates = [panel.rate(row) for row in rows]
    show_rate = panel.on_gpu and all(rate is not None for rate in rates)
    values = rates if show_rate else [row.timing.p50 for row in rows]
    _wide_left(ax, names)
    longest = max([*values, panel.limit]) if show_rate else max(values)
    for y, (row, value) in enumerate(zip(rows, values, strict=True)):
        ax.barh(y, value, height=0.62, color=BLUE if row.kind == "rung" else GREY,
                hatch="////" if row.failed else None, edgecolor="white" if row.failed else "none", linewidth=0)
        text = f"{number(value)} {panel.unit}" if show_rate else f"{number(value)} ms"
        if show_rate and row.fraction is not None:
            text += f"  ({row.fraction:.0%})"
        inside = value > 0.45 * longest
        end = min(value, panel.limit) if show_rate and inside else value  # clear of the limit's line
        ax.annotate(text, (end, y), xytext=(-7 if inside else 5, 0), textcoords="offset points", va="center",
                    ha="right" if inside else "left", fontsize=9,
                    color="white" if inside and row.kind == "rung" else INK,
                    bbox={"facecolor": BLUE, "edgecolor": "none", "pad": 2} if inside and row.failed else None)
        ax.annotate(_shorten(row.name, LONGEST_NAME), (0, y), xytext=(-8, 0), textcoords="offset points", ha="right",
                    va="center", fontsize=9, color=INK if row.kind == "rung" else FAINT, annotation_clip=False)
    ax.set_ylim(len(rows) - 0.45, -0.95 if show_rate else -0.55)
    ax.set_yticks([])
    ax.set_xlim(0, longest * 1.06)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if show_rate:
        _limit_line(ax, panel)
    _quiet(ax, "x")
    ax.set_xlabel(panel.unit if show_rate else "milliseconds (shorter is faster)")
    _panel_title(ax, f"{_place(panel.where, panel.machine.get('date'))}; {size_text(panel.size)}")


def _limit_line(ax, panel: Ladder) -> None:
    ax.axvline(panel.limit, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
    what = "copy bandwidth" if panel.binds == "bytes" else PEAK_NAMES[panel.peak]
    ax.annotate(f"limit: {what}, {number(panel.limit)}", (panel.limit, 1), xycoords=("data", "axes fraction"),
                xytext=(-6, -1), textcoords="offset points", ha="right", va="top", fontsize=8.5, color=INK)


def _wide_left(ax, names=()) -> None:
    """Room for names left of the bars: as much as the widest takes."""
    outlines = [TextPath((0, 0), _shorten(name, LONGEST_NAME), size=9).get_extents() for name in names]
    widest = max((outline.width for outline in outlines), default=0)
    left = max(0.30, (1.08 * widest + 14) / 72 / WIDTH)  # drawn text is a little wider than its outline
    box = ax.get_position()
    ax.set_position((left, box.y0, 0.97 - left, box.height))


def _panel_title(ax, text: str) -> None:
    """Left-aligned with the figure, not with the bars."""
    figure = ax.figure
    box = ax.get_position()
    figure.text(0.02, box.y1 + 0.10 / figure.get_figheight(), text, fontsize=9, color=FAINT, va="bottom")


def _quiet(ax, axis: str) -> None:
    ax.grid(True, axis=axis)
    ax.tick_params(length=0)
    ax.spines["left"].set_visible(axis != "x")


# --- Over sizes ----------------------------------------------------------------------------------------------------


def _counts(ax, name: str = "elements") -> None:
    """A log axis of element counts, with words for the thousands."""
    def text(value, _):
        for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if value >= scale:
                return f"{value / scale:g}{unit}"
        return f"{value:g}"

    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(text))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(name)


def _times(ax) -> None:
    def text(value, _):
        if value < 0.999:
            return f"{value * 1000:g} \u00b5s"
        return f"{value:g} ms" if value < 999 else f"{value / 1000:g} s"

    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(text))
    ax.yaxis.set_minor_locator(NullLocator())


def _label_ends(ax, ends: list[tuple[float, float, str, str]], gap: float = 0.075) -> None:
    """Writes each line's name at its right end, in its colour, pushed apart so that no two overlap."""
    to_axes = ax.transAxes.inverted()
    spots = sorted([to_axes.transform(ax.transData.transform((x, y)))[1], name, colour] for x, y, name, colour in ends)
    heights = _spread([spot[0] for spot in spots], gap)
    for height, (_, name, colour) in zip(heights, spots, strict=True):
        ax.annotate(name, (1.0, height), xycoords="axes fraction", xytext=(6, 0), textcoords="offset points",
                    va="center", fontsize=8.5, color=colour, annotation_clip=False)


def _spread(heights: list[float], gap: float) -> list[float]:
    """Sorted heights within the axes, moved as little as keeps each two neighbours `gap` apart."""
    heights = list(heights)
    for _ in range(200):
        for i in range(len(heights) - 1):
            overlap = gap - (heights[i + 1] - heights[i])
            if overlap > 1e-6:
                heights[i] -= overlap / 2
                heights[i + 1] += overlap / 2
        heights[0] = max(heights[0], 0.03)
        heights[-1] = min(heights[-1], 1.0)
    return heights


CROSSOVER_LINES = (
    ("numpy_ms", "NumPy, on the host", GREY, "s"),
    ("with_copies_ms", "copies and kernel", VERMILLION, "D"),
    ("call_ms", "call from Python", ORANGE, "^"),
    ("kernel_ms", "kernel alone", BLUE, "o"),
)


def crossover(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Time of a vector addition over sizes: NumPy, the kernel alone, a call from Python, and with both copies.

    Circled: the size from which on the GPU wins, with and without the copies.
    """
    recorded = measure.recorded_beside(series, "vector_add_sizes", recorded)
    panels = _panels(series, recorded)
    figure, axes = _figure([2.9] * len(panels), "Vector addition over sizes",
                           "Time of a vector addition over sizes, " + _place(series["where"], series.get("date")))
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            box = ax.get_position()
            ax.set_position((0.095, box.y0, 0.705, box.height))
            ns = panel["n"]
            _counts(ax)
            _times(ax)
            lines = [line for line in CROSSOVER_LINES if panel.get(line[0])]
            for key, _, colour, marker in lines:
                ax.plot(ns, panel[key], color=colour, marker=marker, markeredgewidth=0)
            ax.set_xlim(ns[0] * 0.8, ns[-1] * 1.25)
            circled = False
            for key, colour in (("kernel_ms", BLUE), ("call_ms", ORANGE), ("with_copies_ms", VERMILLION)):
                n, ms = crossing(ns, panel.get(key), panel["numpy_ms"])
                if n is not None:
                    circled = True
                    ax.plot([n], [ms], "o", markersize=11, markerfacecolor="none", markeredgecolor=colour,
                            markeredgewidth=1.4)
                    ax.annotate(_short(n), (n, ms), xytext=(0, -16), textcoords="offset points", ha="center",
                                fontsize=8.5, color=TEXT[colour])
            _quiet(ax, "both")
            _label_ends(ax, [(ns[-1], panel[key][-1], name, TEXT[colour])
                             for key, name, colour, _ in lines])
            _panel_title(ax, _place(panel["where"], panel.get("date"))
                         + (". Circled: faster than NumPy from here on" if circled else ""))
    return figure


def crossing(ns: list, ours: list | None, theirs: list) -> tuple[float | None, float | None]:
    """Where `ours` falls below `theirs` for good, interpolated on log axes; (None, None) if it does not happen.

    Within 5 % at the largest size is a tie, not a win.
    """
    if not ours:
        return None, None
    gap = np.log(ours) - np.log(theirs)
    if gap[-1] >= np.log(0.95) or gap[0] <= 0:
        return None, None
    last = int(np.flatnonzero(gap > 0)[-1])
    share = gap[last] / (gap[last] - gap[last + 1])

    def between(values):
        return float(np.exp(np.log(values[last]) * (1 - share) + np.log(values[last + 1]) * share))

    return between(ns), between(theirs)


def _short(n: float) -> str:
    scale, unit = (1e6, "M") if n >= 1e6 else (1e3, "k")
    return f"{float(f'{n / scale:.2g}'):g}{unit}"


def sizes(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Every rung over sizes, baselines in grey: TFLOP/s or GB/s on a GPU, times on the CPU device."""
    recorded = measure.recorded_beside(series, f"{series['op']}_sizes", recorded)
    panels = _panels(series, recorded)
    figure, axes = _figure([2.9] * len(panels), f"{series['title']} over sizes",
                           f"{series['title']} over sizes, " + _place(series["where"], series.get("date")))
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            box = ax.get_position()
            ax.set_position((0.095, box.y0, 0.665, box.height))
            on_gpu = panel["where"] != CPU_DEVICE
            xs, ends = panel["x"], []
            rung_styles = iter(zip(LINES, MARKERS, strict=True))
            baseline_markers = iter(("P", "X", "s"))
            for line in panel["lines"]:
                if on_gpu and line["kind"] == "host":
                    continue
                values = line["rate"] if on_gpu else line["ms"]
                colour, marker = next(rung_styles) if line["kind"] == "rung" else (GREY, next(baseline_markers))
                ax.plot(xs, values, color=colour, marker=marker, markeredgewidth=0)
                ends.append((xs[-1], values[-1], line["name"], TEXT[colour]))
            ax.set_xscale("log", base=2)
            ax.set_xticks(xs, [f"{x:,}" for x in xs])
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set_xlim(xs[0] * 0.93, xs[-1] * 1.07)
            ax.set_xlabel(panel["x_label"])
            if on_gpu:
                ax.set_ylim(0, 1.12 * max(panel["limit"], max(e[1] for e in ends)))
                ax.axhline(panel["limit"], color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
                ax.annotate(f"limit: {panel['limit_name']}, {number(panel['limit'])} {panel['unit']}",
                            (0, panel["limit"]), xycoords=("axes fraction", "data"), xytext=(4, 3),
                            textcoords="offset points", fontsize=8.5)
                ax.set_ylabel(panel["unit"])
            else:
                _times(ax)
            _quiet(ax, "y")
            _label_ends(ax, ends)
            _panel_title(ax, _place(panel["where"], panel.get("date")))
    return figure


# --- Shapes of a block ---------------------------------------------------------------------------------------------


def block_shapes(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """One kernel over shapes of its block: largest blocks first, then by the extent along x, which runs fastest."""
    recorded = measure.recorded_beside(series, "volume_add_block_shapes", recorded)
    panels = _panels(series, recorded)
    groups = [sorted({int(np.prod(block)) for block in panel["blocks"]}, reverse=True) for panel in panels]
    figure, axes = _figure([0.235 * (len(panel["blocks"]) + len(counts)) for panel, counts in
                            zip(panels, groups, strict=True)], "The shape of a block",
                           "Shapes of a block, " + _place(series["where"], series.get("date")))
    with rc_context(STYLE):
        for ax, panel, counts in zip(axes, panels, groups, strict=True):
            box = ax.get_position()
            ax.set_position((0.155, box.y0, 0.80, box.height))
            on_gpu = panel["where"] != CPU_DEVICE
            values = panel["gbs"] if on_gpu else panel["ms"]
            y, short = 0, []
            for count in counts:
                ax.annotate(f"{count:,} threads", (0, y), xytext=(4, 0), textcoords="offset points", va="center",
                            fontsize=8.5, color=FAINT)
                chosen = [(block, value) for block, value in zip(panel["blocks"], values, strict=True)
                          if np.prod(block) == count]
                for block, value in sorted(chosen, reverse=True):
                    y += 1
                    full_sectors = block[0] >= 8
                    ax.barh(y, value, height=0.7, color=BLUE if full_sectors or not on_gpu else ORANGE)
                    ax.annotate(number(value), (value, y), xytext=(4, 0), textcoords="offset points", va="center",
                                fontsize=8.5)
                    ax.annotate(" \u00d7 ".join(str(b) for b in block), (0, y), xytext=(-6, 0), va="center", ha="right",
                                textcoords="offset points", fontsize=8.5, annotation_clip=False)
                    if not full_sectors:
                        short.append((value, y))
                y += 1
            ax.set_ylim(y - 0.4, -0.6)
            ax.set_yticks([])
            ax.set_xlim(0, 1.10 * max([*values, panel["limit"]] if on_gpu else values))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            if on_gpu:
                ax.axvline(panel["limit"], color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
                ax.annotate(f"limit: copy bandwidth, {number(panel['limit'])}", (panel["limit"], 1),
                            xycoords=("data", "axes fraction"), xytext=(-6, -1), textcoords="offset points",
                            ha="right", va="top", fontsize=8.5)
            ax.set_xlabel("GB/s" if on_gpu else "milliseconds (shorter is faster)")
            _quiet(ax, "x")
            _panel_title(ax, f"{_place(panel['where'], panel.get('date'))}; {size_text(panel['size'])}. "
                             f"Block: x \u00d7 y \u00d7 z threads")
            if on_gpu and short:
                value, y = min(short)
                ax.annotate("x shorter than 8: a warp uses only part of each 32-byte sector", (value, y),
                            xytext=(40, 0), textcoords="offset points", va="center", fontsize=8.5, color=TEXT[ORANGE])
    return figure


# --- The roofline --------------------------------------------------------------------------------------------------


def roofline(measured: list[Ladder] | Ladder) -> CourseFigure | None:
    """flop/s over flop per byte: the roofs, and a point for each rung. GPU ladders only: a CPU time has no place here.

    Bytes are the least an operation must move, so all rungs of an operation stand above one another. The tensor cores'
    roofs are drawn where an operation runs on them. More points than have room for their names are numbered, as by
    every_rung().
    """
    ladders = _gpu_ladders(measured)
    if len(ladders) > 4 or (len(ladders) > 1 and any(one.peak != "fp32" for one in ladders)):
        return every_rung(ladders, "Roofline")
    figure, (ax,) = _figure([3.9], "Roofline", "Roofline, " + _places(ladders))
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
        _panel_title(ax, _places(ladders) + ". Dashed: the limits")
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
    _quiet(ax, "both")


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
        place = _places(ladders)
        figure.summary = f"{title}, {place}"
        figure.text(0.012, 1 - 0.24 / total, title, fontsize=13, fontweight="bold", va="center")
        note = f"{place}. Operations of nearly the same intensity stand side by side."
        if without:
            note += f" Not on it, for want of arithmetic: {', '.join(without)}."
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
                    name = _shorten(name + (", failed" if row.failed else ""), int(150 * (room / wide - 0.045)))
                    share = "" if row.fraction is None else f"{row.fraction:.0%}"
                    ink = INK if row.kind == "rung" else FAINT
                    spot = (y - line * step) / total
                    figure.text(x + 0.012 * wide, spot, mark, fontsize=8.5, va="center", ha="right", color=ink,
                                fontweight="bold")
                    figure.text(x + 0.018 * wide, spot, name, fontsize=8.5, va="center", color=ink)
                    figure.text(x + room - 0.014 * wide, spot, share, fontsize=8.5, va="center", ha="right", color=ink)
                y -= heights[k]
    return figure


def _places(ladders: list[Ladder]) -> str:
    """One "Measured on ..." for each GPU, with the days."""
    by_gpu: dict[str, list[Ladder]] = {}
    for one in ladders:
        by_gpu.setdefault(one.where, []).append(one)
    return "; ".join(_place(where, measure.days(group)) for where, group in by_gpu.items())


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


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip(" ,(") + "\u2026"


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


# --- Vector addition: who adds what, and what the trip costs ---------------------------------------------------------


def owners(n: int = 29, block: int = 4, rungs: tuple[str, ...] = ("per_thread",), grid: int = 2) -> CourseFigure:
    """Which thread adds which element of a vector, for rungs of vector_add: per_thread, grid_stride, four_loads.

    A box is an element, the number in it its thread, counted over the whole grid. Thread 0's elements are filled.
    `grid` is the number of blocks that grid_stride gets.
    """
    tile = {"per_thread": block, "grid_stride": grid * block, "four_loads": 4 * block}
    unknown = [name for name in rungs if name not in tile]
    if unknown:
        raise ValueError(f"rungs holds {unknown[0]!r}; allowed are {', '.join(tile)}")
    figure, axes = _figure([0.62] * len(rungs), "Which thread adds which element",
                           f"Which thread adds which of {n} elements, in blocks of {block}: {', '.join(rungs)}.",
                           gap=0.62)
    with rc_context(STYLE):
        for ax, name in zip(axes, rungs, strict=True):
            box = ax.get_position()
            ax.set_position((0.02, box.y0, 0.96, box.height))
            reach = -(-n // tile[name]) * tile[name]
            for i in range(reach):
                if name == "per_thread":
                    thread = i
                elif name == "grid_stride":
                    thread = i % (grid * block)
                else:
                    thread = i // (4 * block) * block + i % block
                mine, inside = thread == 0, i < n
                shade = BLUE if mine else ("#DCE9F2", "#F6E7C8")[thread // block % 2]
                ax.add_patch(Rectangle((i + 0.05, 0.05), 0.9, 0.9, facecolor=shade if inside else "none", linewidth=0.9,
                                       edgecolor=shade if inside else GREY, linestyle="-" if inside else (0, (2, 2))))
                ax.text(i + 0.5, 0.5, thread, ha="center", va="center", fontsize=7.5,
                        color="white" if mine else INK if inside else FAINT)
            ax.set_xlim(0, max(reach, n))
            ax.set_ylim(0, 1)
            ax.set_yticks([])
            ticks = [i for i in range(reach) if i % block == 0 or i == n - 1]
            ax.set_xticks([i + 0.5 for i in ticks], [str(i) for i in ticks])
            ax.set_xlabel("element" if ax is axes[-1] else "")
            for side in ax.spines.values():
                side.set_visible(False)
            ax.tick_params(length=0)
            blocks = grid if name == "grid_stride" else reach // tile[name]
            count = f"{blocks} blocks of {block} threads"
            idle = f"; {_many(reach - n, 'thread')} beyond the end" if name == "per_thread" and reach > n else ""
            _panel_title(ax, f"{name}: {count}{idle}")
    return figure


def round_trip(here: dict, recorded: dict | None = None) -> CourseFigure:
    """The steps of one trip to the device, each bar beginning where the last ended, and NumPy beside it, in grey.

    A trip is {"steps": {name: milliseconds, ...}, "numpy_ms": ..., "title": where and how it was taken}.
    """
    trips = _panels(here, recorded)
    figure, axes = _figure([0.34 * (len(trip["steps"]) + 1) for trip in trips], "There, add, and back",
                           "; ".join(f"{name} {number(ms)} ms" for name, ms in here["steps"].items())
                           + f"; NumPy {number(here['numpy_ms'])} ms. {here['title']}.")
    with rc_context(STYLE):
        for ax, trip in zip(axes, trips, strict=True):
            box = ax.get_position()
            ax.set_position((0.22, box.y0, 0.75, box.height))
            longest = max(sum(trip["steps"].values()), trip["numpy_ms"])
            start = 0.0
            for y, (name, ms) in enumerate([*trip["steps"].items(), ("NumPy, on the host", trip["numpy_ms"])]):
                numpy = y == len(trip["steps"])
                start = 0.0 if numpy else start
                colour = GREY if numpy else BLUE if name == "kernel" else VERMILLION
                ax.barh(y, max(ms, 0.002 * longest), left=start, height=0.62, color=colour)
                left = start + ms > 0.85 * longest and not numpy
                ax.annotate(f"{number(ms)} ms", (start if left else start + ms, y), xytext=(-5 if left else 5, 0),
                            textcoords="offset points", va="center", ha="right" if left else "left", fontsize=9)
                ax.annotate(name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right", va="center",
                            fontsize=9, color=FAINT if numpy else INK, annotation_clip=False)
                start += ms
            ax.set_ylim(len(trip["steps"]) + 0.55, -0.55)
            ax.set_yticks([])
            ax.set_xlim(0, 1.12 * longest)
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            ax.set_xlabel("milliseconds since the trip began")
            _quiet(ax, "x")
            _panel_title(ax, trip["title"])
    return figure


SECTOR_BYTES = 32  # the least that a GPU moves between its caches and its memory


def sectors(indices, itemsize: int = 4) -> int:
    """How many 32-byte sectors hold these elements."""
    return len(np.unique(np.asarray(indices, np.int64) * itemsize // SECTOR_BYTES))


def warp_addresses(touched: dict[str, np.ndarray], title: str = "What one warp asks memory for", *,
                   itemsize: int = 4, columns: int = 3) -> CourseFigure:
    """The memory that the 32 lanes of one warp touch in one instruction: a row for each sector of 32 bytes, a cell for
    each element, with the lanes that want it. Grey cells travel too and nobody wants them.

    touched: a name -> the index of the element that each lane touches, lane 0 first. `columns` of them stand in a
    line.
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

    step = (WIDTH - 0.2) / 3
    cell = 0.19 * 8 / per_sector
    gap = 0.05  # between sectors that are no neighbours in memory
    head, foot = 0.52, 0.22

    def depth(found):
        return len(found) * cell + gap * sum(b - a > 1 for a, b in zip(found, found[1:], strict=False))

    heights = [head + max(depth(found) for _, _, found in line) + foot for line in lines]
    summary = f"{title}: " + "; ".join(f"{name}: {_many(len(found), 'sector')}" for name, _, found in panels) + "."
    figure, ax = _canvas(0.5 + sum(heights) + 0.28, title, summary)
    top = 0.5
    with rc_context(STYLE):
        for line, height in zip(lines, heights, strict=True):
            for column, (name, lanes, found) in enumerate(line):
                left = 0.14 + column * step
                ax.text(left, top + 0.12, name, fontsize=8.5, fontweight="bold", va="center")
                used = len(lanes) / (len(found) * per_sector)
                ax.text(left, top + 0.31, f"{_many(len(found), 'sector')}, {used:.0%} of the bytes used", fontsize=8,
                        color=FAINT, va="center")
                y, before = top + head - 0.05, None
                for sector in found:
                    y += gap if before is not None and sector - before > 1 else 0
                    ax.text(left + 0.50, y + cell / 2, f"{sector * SECTOR_BYTES:,}", ha="right", va="center_baseline",
                            fontsize=6.0, color=FAINT)
                    for i in range(per_sector):
                        wanted = lanes.get(sector * per_sector + i, [])
                        _box(ax, left + 0.55 + i * cell, y, cell, cell, _lane_text(wanted), ink="white",
                             fill=BLUE if wanted else PALE[GREY], size=6.2 if len(wanted) < 2 else 4.2)
                    y, before = y + cell, sector
            top += height
        ax.text(0.14, top + 0.08, "Blue: wanted, with the lanes' numbers. Grey: travels along. On the left: the byte "
                f"at which a sector of {SECTOR_BYTES} begins.", fontsize=8, color=FAINT, va="center")
    return figure


def _lane_text(lanes: list[int]) -> str:
    """"5"; "0, 16" and "0 to 15" on two lines, to fit into a box; "8x" for any other eight."""
    if len(lanes) < 2:
        return "".join(map(str, lanes))
    if lanes == list(range(lanes[0], lanes[-1] + 1)) and len(lanes) > 2:
        return f"{lanes[0]}\u2013\n{lanes[-1]}"
    return f"{lanes[0]},\n{lanes[1]}" if len(lanes) == 2 else f"{len(lanes)}\u00d7"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- Pictures of an idea -------------------------------------------------------------------------------------------

PALE = {BLUE: "#D6E6F1", ORANGE: "#FAEBCB", GREEN: "#CFEAE1", PURPLE: "#F4E3ED", GREY: "#E9ECEF"}


def _canvas(height: float, title: str, summary: str):
    """A figure with one axes over all of it, in inches, y down from the top: for drawing cells."""
    with rc_context(STYLE):
        figure = CourseFigure(figsize=(WIDTH, height))
        figure.summary = summary
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set_xlim(0, WIDTH)
        ax.set_ylim(height, 0)
        ax.axis("off")
        figure.text(0.02, 1 - 0.24 / height, title, fontsize=12.5, fontweight="bold", va="center")
    return figure, ax


def _box(ax, x: float, y: float, width: float, height: float, text="", *, fill="none", edge="white", ink=INK,
         size: float = 7.5, **style) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, **{"linewidth": 0.8, **style}))
    if text != "":
        ax.text(x + width / 2, y + height / 2, text, ha="center", fontsize=size, color=ink, linespacing=1.0,
                va="center" if "\n" in str(text) else "center_baseline")


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
    left, between = 0.52, 0.30
    cell = min(0.36, (WIDTH - left - 0.14 - 3 * between) / (4 * nz))
    tall, top, slab_gap = 0.27, 1.02, 0.16
    depth = nx * ny * tall + (nx - 1) * slab_gap
    figure, ax = _canvas(top + depth + 0.74, "Which element each element of the sum reads",
                         f"For a shape of {shape}: the flat indices of a, b and c that each element of out reads. "
                         + "; ".join(f"{name}: {formula}" for name, _, _, _, _, formula in panels) + ".")
    with rc_context(STYLE):
        for number_, (name, size, colour, index, solid, formula) in enumerate(panels):
            x0 = left + number_ * (nz * cell + between)
            ax.text(x0, top - 0.44, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0, top - 0.25, size, fontsize=8, color=FAINT, va="center")
            if number_:
                ax.text(x0 - between / 2, top + depth / 2, "=++"[number_ - 1], fontsize=13, ha="center", va="center")
            for x in range(nx):
                for y in range(ny):
                    row = top + (x * ny + y) * tall + x * slab_gap
                    if number_ == 0:
                        ax.text(left - 0.08, row + tall / 2, f"y={y}", fontsize=7, color=FAINT, ha="right", va="center")
                        if y == 0:
                            ax.text(0.14, row + ny * tall / 2, f"x={x}", fontsize=8, rotation=90, ha="center",
                                    va="center")
                    for z in range(nz):
                        full = solid(x, y, z)
                        ink = "white" if full and colour != ORANGE else INK if full or number_ == 0 else FAINT
                        _box(ax, x0 + z * cell, row, cell, tall, index(x, y, z), ink=ink,
                             fill=colour if full else PALE[colour])
            x, y, z = mark
            _box(ax, x0 + z * cell, top + (x * ny + y) * tall + x * slab_gap, cell, tall, edge=VERMILLION,
                 linewidth=2.0, zorder=3)
            ax.text(x0, top + depth + 0.18, formula, fontsize=8.5, va="center", color=TEXT[colour])
        ax.text(left, top - 0.09, "z \u2192", fontsize=7, color=FAINT, va="center")
        ax.text(0.14, top + depth + 0.50, f"Framed: out[{', '.join(map(str, mark))}] and the three elements it reads. "
                "Solid: an element of memory. Pale: the same element, read again.", fontsize=8, color=FAINT,
                va="center")
    return figure


def tile_walk(M: int = 7, N: int = 11, K: int = 10, tile: int = 4, block: tuple[int, int] = (2, 1)) -> CourseFigure:
    """The tiles of a and b that one block of a tiled product walks over, step by step: out = a @ b.

    block is (blockIdx.x, blockIdx.y). A zero stands where a tile reaches beyond its matrix. Framed: what one thread
    of the block needs, a row of a and a column of b.
    """
    col0, row0 = block[0] * tile, block[1] * tile
    if not (0 <= col0 < N and 0 <= row0 < M):
        raise ValueError(f"block is {block}, but {tile} x {tile} tiles over {M} x {N} make only "
                         f"{-(-N // tile)} x {-(-M // tile)} blocks")
    steps = -(-K // tile)
    colours = [(BLUE, ORANGE, GREEN, PURPLE)[i % 4] for i in range(steps)]
    reach_k, reach_m, reach_n = steps * tile, max(M, row0 + tile), max(N, col0 + tile)
    gap = 0.62
    cell = min(0.27, (WIDTH - 0.75 - gap) / (reach_k + reach_n))
    x_b = 0.45 + reach_k * cell + gap  # b and out begin here, a at 0.45
    y_a = 0.80 + reach_k * cell + gap  # a and out begin here, b at 0.80
    figure, ax = _canvas(y_a + reach_m * cell + 0.52, "What one block reads, tile by tile",
                         f"Block {block} of out = a @ b, M={M}, N={N}, K={K}, walks over {steps} tiles of {tile} x "
                         f"{tile} of a, to the right, and of b, downwards.")

    def matrix(x0, y0, rows, cols, reach_rows, reach_cols, step_of):
        for r in range(reach_rows):
            for c in range(reach_cols):
                step, inside = step_of(r, c), r < rows and c < cols
                x, y = x0 + c * cell, y0 + r * cell
                if inside:
                    fill = PALE[GREY] if step is None else step if isinstance(step, str) else colours[step]
                    _box(ax, x, y, cell, cell, fill=fill)
                elif step is not None:
                    zero = "" if isinstance(step, str) else "0"
                    _box(ax, x + 0.015, y + 0.015, cell - 0.03, cell - 0.03, zero, edge=GREY, size=7, ink=FAINT,
                         linestyle=(0, (2, 2)), linewidth=0.7)

    in_rows, in_cols = range(row0, row0 + tile), range(col0, col0 + tile)
    mine = (min(row0 + 1, M - 1), min(col0 + 1, N - 1))
    with rc_context(STYLE):
        matrix(0.45, y_a, M, K, reach_m, reach_k, lambda r, c: c // tile if r in in_rows else None)
        matrix(x_b, 0.80, K, N, reach_k, reach_n, lambda r, c: r // tile if c in in_cols else None)
        matrix(x_b, y_a, M, N, reach_m, reach_n, lambda r, c: "#59636E" if r in in_rows and c in in_cols else None)
        for step, colour in enumerate(colours):
            middle = (step + 0.5) * tile * cell
            ax.text(0.45 + middle, y_a + (row0 + tile) * cell + 0.13, f"step {step + 1}", fontsize=8.5, ha="center",
                    va="center", color=TEXT[colour], fontweight="bold")
            ax.text(x_b + (col0 + tile) * cell + 0.07, 0.80 + middle, f"step {step + 1}", fontsize=8.5, va="center",
                    color=TEXT[colour], fontweight="bold", rotation=270)
        frame = {"edge": VERMILLION, "linewidth": 2.0, "zorder": 3}
        _box(ax, 0.45, y_a + mine[0] * cell, K * cell, cell, **frame)
        _box(ax, x_b + mine[1] * cell, 0.80, cell, K * cell, **frame)
        _box(ax, x_b + mine[1] * cell, y_a + mine[0] * cell, cell, cell, **frame)
        for x, y, name, size in ((0.45, y_a, "a", f"{M} \u00d7 {K}"), (x_b, 0.80, "b", f"{K} \u00d7 {N}"),
                                 (x_b, y_a, "out", f"{M} \u00d7 {N}")):
            ax.text(x, y - 0.14, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x + 0.11 + 0.08 * len(name), y - 0.14, size, fontsize=8, color=FAINT, va="center")
        lines = (f"In each step the {tile * tile} threads", "1  load one element of each tile,",
                 "2  wait until both tiles are there,", f"3  do {tile} multiply-adds from the tiles,",
                 "4  wait until nobody reads them.")
        for number_, text in enumerate(lines):
            ax.text(0.45, 1.05 + 0.25 * number_, text, fontsize=9.5, va="center",
                    fontweight="normal" if number_ else "bold")
        ax.text(0.14, y_a + reach_m * cell + 0.36, "Dark: the block's part of out. Framed: one thread's element, and "
                "the row and the column it needs.", fontsize=8, color=FAINT, va="center")
    return figure


# --- Reductions and softmax ----------------------------------------------------------------------------------------


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
    figure, ax = _canvas(height, f"{threads} numbers, {len(strides)} steps",
                         f"A sum over {threads} threads in {len(strides)} steps: by a tree in shared memory, where "
                         "half of the threads drop out at each step, and by shuffles, after which every thread has it.")
    with rc_context(STYLE):
        for panel, (name, colour) in enumerate((("a tree in shared memory", BLUE), ("shuffles within a warp", GREEN))):
            x0 = left + panel * (threads * pitch + between)
            middle = [x0 + (t + 0.5) * pitch for t in range(threads)]
            ax.text(x0, top - 0.36, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0, top - 0.14, "thread" if panel == 0 else "lane", fontsize=7, color=FAINT, va="center")
            for row in range(len(strides) + 1):
                y = top + row * rise
                if row:
                    stride, before = strides[row - 1], y - rise + cell
                    for t in range(threads if panel else stride):
                        for source in (t, t ^ stride if panel else t + stride):
                            ax.plot([middle[source], middle[t]], [before, y], color=colour, linewidth=0.9, alpha=0.75)
                    label = f"lane ^ {stride}" if panel else f"+ the one {stride} further on, then a barrier"
                    ax.text(x0 - 0.04 if panel else x0 + threads * pitch - 0.02, (before + y) / 2, label, fontsize=7.5,
                            color=TEXT[colour], ha="right", va="center",
                            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})
                holds = threads if panel else threads >> row
                for t in range(threads):
                    _box(ax, middle[t] - pitch / 2 + 0.03, y, pitch - 0.06, cell, t if row == 0 else 1 << row,
                         fill=colour if t < holds else PALE[GREY], ink="white" if t < holds else GREY, size=7.5)
        ax.text(left, height - 0.30, "First row: the thread's number. Below: of how many numbers it holds the sum. "
                "Grey: nobody reads it.", fontsize=8, color=FAINT, va="center")
    return figure


def masks(size: int = 8, length: int = 5) -> CourseFigure:
    """Which keys each query sees: with no mask, with a causal one, with a sequence that is shorter than its row."""
    panels = (("none", lambda q, k: True, BLUE), ("causal", lambda q, k: k <= q, GREEN),
              (f"padding, length {length}", lambda q, k: k < length, ORANGE))
    left, between, top = 0.66, 0.36, 0.98
    cell = (WIDTH - left - 0.20 - 2 * between) / (3 * size)
    figure, ax = _canvas(top + size * cell + 0.52, "Three masks, one form: each row sees its first columns",
                         f"{size} queries and {size} keys: without a mask every query sees every key, under a causal "
                         f"mask query q sees the keys 0 to q, with padding the first {length}.")
    with rc_context(STYLE):
        for number_, (name, sees, colour) in enumerate(panels):
            x0 = left + number_ * (size * cell + between)
            ax.text(x0, top - 0.38, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0, top - 0.13, "key \u2192", fontsize=7, color=FAINT, va="center")
            if number_ == 0:
                ax.text(x0 - 0.10, top, "query \u2193", fontsize=7, color=FAINT, ha="right", va="top")
            for q in range(size):
                for k in range(size):
                    _box(ax, x0 + k * cell, top + q * cell, cell, cell, fill=colour if sees(q, k) else PALE[GREY])
        ax.text(0.14, top + size * cell + 0.28, "Coloured: the score counts. Grey: it is hidden, its probability is 0.",
                fontsize=8, color=FAINT, va="center")
    return figure


def traffic(moved: dict[str, tuple[float, float]], title: str, unit: str, least: float | None = None,
            place: str = "") -> CourseFigure:
    """Bars of what is read and what is written: name -> (read, written), in `unit`; a line at the least possible."""
    figure, (ax,) = _figure([0.40 * len(moved) + 0.12], title, f"{title}: " + "; ".join(
        f"{name} {number(read)} and {number(written)} {unit}" for name, (read, written) in moved.items()) + ".")
    with rc_context(STYLE):
        _wide_left(ax)
        longest = max(sum(both) for both in moved.values())
        for y, (name, (read, written)) in enumerate(moved.items()):
            ax.barh(y, read, height=0.62, color=BLUE)
            ax.barh(y, written, left=read, height=0.62, color=ORANGE)
            ax.annotate(f"{number(read)} + {number(written)}", (read + written, y), xytext=(5, 0), va="center",
                        textcoords="offset points", fontsize=9)
            ax.annotate(name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=9,
                        annotation_clip=False)
        ax.set_ylim(len(moved) - 0.45, -0.55)
        ax.set_yticks([])
        ax.set_xlim(0, 1.22 * longest)
        ax.set_xlabel(unit)
        if least is not None:
            ax.axvline(least, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
        _quiet(ax, "x")
        ax.annotate("read", (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", fontsize=9,
                    color=TEXT[BLUE], fontweight="bold")
        ax.annotate("written", (0, 1), xycoords="axes fraction", xytext=(34, 6), textcoords="offset points", fontsize=9,
                    color=TEXT[ORANGE], fontweight="bold")
        note = ". ".join(filter(None, (place, "Dashed: the least that has to move" if least else "")))
        ax.annotate(note, (1, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", fontsize=8.5,
                    color=FAINT, ha="right")
    return figure


def launch_floor(series: dict, mask: str = "causal") -> CourseFigure:
    """Masked softmax of one matrix over its size: unfused and fused, called from Python and in a graph."""
    rows = [row for row in series["rows"] if row["mask"] == mask and row["B"] == 1]
    sizes_ = [row["S"] for row in rows]
    figure, (ax,) = _figure([3.1], f"One matrix of S \u00d7 S, {mask} mask: what a call costs",
                            f"Times of a masked softmax for S = {', '.join(map(str, sizes_))}: unfused and fused, "
                            f"called from Python and in a graph. {_place(series['where'], series.get('date'))}.")
    with rc_context(STYLE):
        box = ax.get_position()
        ax.set_position((0.095, box.y0, 0.655, box.height))
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
        _times(ax)
        _quiet(ax, "y")
        _label_ends(ax, ends)
        _panel_title(ax, _place(series["where"], series.get("date")))
    return figure


# --- Where the time goes ---------------------------------------------------------------------------------------------

PHASES = {"allocate": ORANGE, "copy to the device": VERMILLION, "kernel": BLUE, "copy to the host": PURPLE,
          "free": GREEN}
TIMELINE_ROWS = {"ranges 1": "outer range", "ranges 2": "inner ranges", "driver": "driver calls", "GPU": "on the GPU"}


def timeline(*panels: dict) -> CourseFigure:
    """Time lines, one below the other. A panel is {"title", "events": [{"row", "name", "start_us", "us"}]}.

    Rows are the ranges of labkit.measure.nvtx, and where a profiler watched, the driver's calls and what the GPU did.
    """
    if not panels or not all(panel["events"] for panel in panels):
        raise ValueError("a panel holds no events; a time line needs at least one")
    present = [[row for row in TIMELINE_ROWS if any(event["row"] == row for event in panel["events"])]
               for panel in panels]
    figure, axes = _figure([0.40 * len(rows) + 0.1 for rows in present], "Where the time goes", "Time lines: "
                           + "; ".join(panel["title"] for panel in panels), gap=0.92)
    with rc_context(STYLE):
        for ax, panel, rows in zip(axes, panels, present, strict=True):
            box = ax.get_position()
            ax.set_position((0.155, box.y0, 0.815, box.height))
            end = max(event["start_us"] + event["us"] for event in panel["events"])
            scale, unit = (1000, "ms") if end > 3000 else (1, "\u00b5s")
            for event in panel["events"]:
                y, width = rows.index(event["row"]), event["us"] / scale
                colour = _phase_colour(event)
                ax.barh(y, width, left=event["start_us"] / scale, height=0.66, color=colour, edgecolor="white",
                        linewidth=0.6)
                name = event["name"] if event["row"].startswith("ranges") else _event_name(event["name"])
                room = event["us"] / end * 0.815 * WIDTH  # inches
                if room > 0.068 * len(name) + 0.06:
                    ax.annotate(name, ((event["start_us"] + event["us"] / 2) / scale, y), ha="center", va="center",
                                fontsize=8, color=INK if colour in ("#DDE1E5", ORANGE, "#C3C9CE") else "white")
            ax.set_ylim(len(rows) - 0.5, -0.6)
            ax.set_yticks(range(len(rows)), [TIMELINE_ROWS[row] for row in rows])
            ax.set_xlim(0, end / scale)
            ax.set_xlabel(unit)
            _quiet(ax, "x")
            _panel_title(ax, panel["title"])
        seen = [name for name in PHASES if any(event["name"] == name for panel in panels for event in panel["events"])]
        handles = [Rectangle((0, 0), 1, 1, color=PHASES[name]) for name in seen]
        if handles:
            figure.legend(handles, seen, loc="upper right", ncols=len(seen), frameon=False, fontsize=8,
                          bbox_to_anchor=(0.985, 0.999), handlelength=0.9, handletextpad=0.4, columnspacing=1.0)
    return figure


def _phase_colour(event: dict) -> str:
    if event["row"] == "ranges 1":
        return "#DDE1E5"
    if event["row"] == "driver":
        return "#C3C9CE"
    if event["row"] == "GPU":
        name = event["name"]
        return PHASES["copy to the device"] if "HtoD" in name else PHASES["copy to the host"] if "DtoH" in name else (
            GREY if "emset" in name else PHASES["kernel"])
    return PHASES.get(event["name"], GREY)


def _event_name(name: str) -> str:
    """A short name of a driver call or a kernel."""
    return name.split("(")[0].split("<")[0].split("::")[-1].split("[")[0].strip()[:28]


LAUNCH_LINES = (
    ("python_us", "Numba, from Python", BLUE, "o"),
    ("torch_us", "PyTorch", GREY, "s"),
    ("graph_us", "Numba, in a graph", GREEN, "D"),
    ("torch_graph_us", "PyTorch, in a graph", ORANGE, "^"),
)


def launch_cost(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Time of one vector addition among many, over sizes: the launch sets the floor, memory the slope."""
    recorded = measure.recorded_beside(series, "launch_sizes", recorded)
    return _lines_over(series, recorded, "What a launch costs", "n", LAUNCH_LINES, "elements", bound=12)


COPY_LINES = (
    ("h2d_pageable_us", "there, pageable", VERMILLION, "o"),
    ("d2h_pageable_us", "back, pageable", PURPLE, "s"),
    ("h2d_pinned_us", "there, pinned", BLUE, "D"),
    ("d2h_pinned_us", "back, pinned", GREEN, "^"),
)


def copy_cost(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Time of a copy over its size: a price for the trip, then a price for each byte."""
    recorded = measure.recorded_beside(series, "copy_sizes", recorded)
    return _lines_over(series, recorded, "What a copy costs", "bytes", COPY_LINES, "bytes")


def _lines_over(series: dict, recorded: dict | None, title: str, x: str, lines, x_label: str,
                bound: int | None = None) -> CourseFigure:
    """Microseconds over sizes, both axes logarithmic. bound: bytes an element, for the time that memory needs."""
    panels = _panels(series, recorded)
    figure, axes = _figure([2.8] * len(panels), title, f"{title}, {_place(series['where'], series.get('date'))}")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            box = ax.get_position()
            ax.set_position((0.095, box.y0, 0.675, box.height))
            _counts(ax, x_label)
            _times(ax)
            xs, ends = panel[x], []
            for key, name, colour, marker in lines:
                if panel.get(key):
                    values = [us / 1000 for us in panel[key]]
                    ax.plot(xs, values, color=colour, marker=marker, markeredgewidth=0)
                    ends.append((xs[-1], values[-1], name, TEXT[colour]))
            low = ax.get_ylim()[0]
            if bound and panel["where"] != CPU_DEVICE and measure.recorded() is not None:
                bandwidth = measure.recorded()["limits"]["bandwidth_gbs"]
                ax.plot(xs, [bound * n / bandwidth / 1e6 for n in xs], color=INK, linestyle=(0, (4, 3)), linewidth=1.1)
                at = 3 * low * bandwidth * 1e6 / bound
                ax.annotate("what memory needs", (at, 3 * low), xytext=(9, -4), textcoords="offset points",
                            fontsize=8.5)
            ax.set_ylim(low / 1.6, None)
            ax.set_xlim(xs[0] * 0.75, xs[-1] * 1.35)
            _quiet(ax, "both")
            _label_ends(ax, ends)
            _panel_title(ax, _place(panel["where"], panel.get("date")))
    return figure


# --- Layouts, and functions of one variable ---------------------------------------------------------------------------


def quads(columns: int = 27, lanes: int = 4) -> CourseFigure:
    """Which lane keeps which elements of a row, four neighbours at a time, for a warp of `lanes` lanes."""
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    rounds = -(-columns // (4 * lanes))
    left, top, tall = 1.02, 0.92, 0.34
    cell = (WIDTH - left - 0.2 - 0.06 * (lanes - 1)) / (4 * lanes)
    figure, ax = _canvas(top + rounds * (tall + 0.14) + 0.46, "A row in the registers of a warp",
                         f"A row of {columns} elements over {lanes} lanes: four neighbours each, in "
                         f"{_many(rounds, 'round')}.")
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
                        _box(ax, x, y, cell, tall, col, fill=PALE[colours[lane % 4]], size=8.5)
                    else:
                        _box(ax, x + 0.02, y + 0.02, cell - 0.04, tall - 0.04, "0", edge=GREY, ink=FAINT, size=8,
                             linestyle=(0, (2, 2)), linewidth=0.7)
        ax.text(0.14, top + rounds * (tall + 0.14) + 0.14, "The number is the column. A quad is one load of 128 bits. "
                "Dashed: beyond the row; a zero, which the sum does not feel.", fontsize=8, color=FAINT, va="center")
    return figure


def banks(places: dict, size: int = 8, column: int = 2) -> CourseFigure:
    """The bank of each element of a square tile, for tiles laid out in different ways, drawn with `size` banks.

    places: name -> place(row, col), the position of an element in shared memory. Framed: a warp that reads a column.
    """
    gap, left, top = 0.42, 0.2, 1.00
    cell = min(0.29, (WIDTH - 2 * left - gap * (len(places) - 1)) / (len(places) * size))
    said, panels = [], []
    for name, place in places.items():
        bank = [[place(row, col) % size for col in range(size)] for row in range(size)]
        wanted = [bank[row][column] for row in range(size)]
        steps = max(wanted.count(b) for b in wanted)
        panels.append((name, bank, steps))
        said.append(f"{name}: {_many(steps, 'step')}")
    figure, ax = _canvas(top + size * cell + 0.42, f"A column of a tile, and its banks (drawn with {size} for 32)",
                         "Reading a column of a tile: " + "; ".join(said) + ".")
    with rc_context(STYLE):
        for number_, (name, bank, steps) in enumerate(panels):
            x0 = left + number_ * (size * cell + gap)
            ax.text(x0, top - 0.43, name, fontsize=9, fontweight="bold", va="center")
            ax.text(x0, top - 0.20, f"a column takes {_many(steps, 'step')}", fontsize=8.5, va="center",
                    color=TEXT[VERMILLION] if steps > 1 else TEXT[GREEN])
            for row in range(size):
                for col in range(size):
                    hot = col == column
                    fill = (PALE[GREY], VERMILLION if steps > 1 else GREEN)[hot]
                    _box(ax, x0 + col * cell, top + row * cell, cell, cell, bank[row][col], fill=fill,
                         ink="white" if hot else FAINT, size=8)
        ax.text(0.14, top + size * cell + 0.24, "The number is the bank. Coloured: what the lanes of a warp want in "
                "one read. A bank gives one element in a step.", fontsize=8, color=FAINT, va="center")
    return figure


def curves(x, lines: dict, title: str, x_label: str, y_label: str, *, log_x: bool = False, log_y: bool = False,
           place: str = "", marks: bool = False) -> CourseFigure:
    """Functions of one variable: name -> values over `x`; what is not finite is left out. Names of several stand at the
    right ends. Where the points are marked, a logarithmic x axis is numbered at them."""
    figure, (ax,) = _figure([2.9], title, f"{title}: {', '.join(lines)} over {x_label}. {place}".strip())
    with rc_context(STYLE):
        box = ax.get_position()
        ax.set_position((0.125, box.y0, 0.655 if len(lines) > 1 else 0.83, box.height))
        ends = []
        for (name, values), colour, marker in zip(lines.items(), LINES, MARKERS, strict=False):
            values = np.asarray(values, np.float64)
            ax.plot(x, values, color=colour, marker=marker if marks else None, markeredgewidth=0)
            last = np.flatnonzero(np.isfinite(values))[-1]
            ends.append((x[last], values[last], name, TEXT[colour]))
        if log_x:
            ax.set_xscale("log")
            ax.xaxis.set_minor_locator(NullLocator())
            if marks:
                ax.set_xticks(x, [f"{at:,g}" for at in x])
        if log_y:
            ax.set_yscale("log")
            ax.yaxis.set_minor_locator(NullLocator())
            if all(np.nanmin(values) >= 1 for values in lines.values()):
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        _quiet(ax, "y")
        if len(lines) > 1:
            ax.get_ylim()  # settles the limits, which the names' places depend on
            _label_ends(ax, ends)
        if place:
            _panel_title(ax, place)
    return figure


# --- The product to the limit --------------------------------------------------------------------------------------


def patch(threads: int = 4, size: int = 4, thread: tuple[int, int] = (2, 1)) -> CourseFigure:
    """One step of k in a block of threads x threads, each with a patch of size x size elements, `threads` apart.

    Coloured: what thread (x, y) keeps, and the numbers of a and b that it reads for it.
    """
    x, y = thread
    side = threads * size
    cell = 3.9 / (side + 2)
    left, top = 0.45, 0.72
    out_x, out_y = left + 2 * cell, top + 2 * cell
    figure, ax = _canvas(out_y + side * cell + 0.50, "What one thread of a register-blocked product keeps and reads",
                         f"A block of {threads} x {threads} threads, each with {size} x {size} elements of out: in "
                         f"each step a thread reads {size} numbers of a and {size} of b for {size * size} products.")
    mine_rows = [y + threads * i for i in range(size)]
    mine_cols = [x + threads * i for i in range(size)]
    with rc_context(STYLE):
        for r in range(side):
            _box(ax, left, out_y + r * cell, cell, cell, fill=ORANGE if r in mine_rows else PALE[ORANGE])
            for c in range(side):
                own = r in mine_rows and c in mine_cols
                _box(ax, out_x + c * cell, out_y + r * cell, cell, cell, fill=BLUE if own else PALE[GREY])
        for c in range(side):
            _box(ax, out_x + c * cell, top, cell, cell, fill=GREEN if c in mine_cols else PALE[GREEN])
        ax.text(left, out_y - 0.14, "a", fontsize=9.5, fontweight="bold", va="center")
        ax.text(out_x - 0.10, top + cell / 2, "b", fontsize=9.5, fontweight="bold", va="center", ha="right")
        words = out_x + side * cell + 0.22
        lines = (("In one step of k it reads", INK, "bold"), (f"{size} numbers of a,", TEXT[ORANGE], "normal"),
                 (f"{size} numbers of b,", TEXT[GREEN], "normal"), ("and does a multiply-add for each", INK, "normal"),
                 (f"of its {size * size} sums.", TEXT[BLUE], "normal"))
        for k, (text, ink, weight) in enumerate(lines):
            ax.text(words, out_y + 0.15 + 0.25 * k, text, fontsize=9, color=ink, fontweight=weight, va="center")
        ax.text(0.14, out_y + side * cell + 0.28, f"Thread ({x}, {y}) of {threads} \u00d7 {threads}. Its elements lie "
                f"{threads} apart, so that neighbours in the block read neighbours in b.", fontsize=8, color=FAINT,
                va="center")
    return figure


def mma_lanes(lane: int = 13) -> CourseFigure:
    """Which lane holds which element of mma m16n8k16: numbers are lanes, colours registers. Framed: those of `lane`."""
    if not 0 <= lane < 32:
        raise ValueError(f"lane is {lane}; a warp has lanes 0 to 31")
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    wide, tall, left, top = 0.245, 0.205, 0.34, 0.92
    gap = 0.40
    b_x, a_y = left + 16 * wide + gap, top + 16 * tall + gap
    figure, ax = _canvas(a_y + 16 * tall + 0.42, "Who holds what: mma.sync m16n8k16",
                         "The lane that holds each element of a (16 x 16), b (16 x 8) and the sums (16 x 8): "
                         "g = lane // 4 and q = lane % 4.")

    def matrix(x0, y0, rows, cols, lane_of, register_of):
        for r in range(rows):
            for c in range(cols):
                holder, place = lane_of(r, c), (x0 + c * wide, y0 + r * tall)
                ink = TEXT[VERMILLION] if holder == lane else INK
                _box(ax, *place, wide, tall, holder, fill=PALE[colours[register_of(r, c)]], ink=ink, size=7)
                if holder == lane:
                    _box(ax, *place, wide, tall, edge=VERMILLION, linewidth=1.8, zorder=3)

    with rc_context(STYLE):
        matrix(left, a_y, 16, 16, lambda r, c: r % 8 * 4 + c % 8 // 2, lambda r, c: r // 8 + 2 * (c // 8))
        matrix(b_x, top, 16, 8, lambda r, c: c * 4 + r % 8 // 2, lambda r, c: r // 8)
        matrix(b_x, a_y, 16, 8, lambda r, c: r % 8 * 4 + c // 2, lambda r, c: r // 8)
        for x, y, name, size in ((left, a_y, "a", "16 \u00d7 16"), (b_x, top, "b", "16 \u00d7 8"),
                                 (b_x, a_y, "sums", "16 \u00d7 8")):
            ax.text(x, y - 0.13, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x + 0.12 + 0.085 * len(name), y - 0.13, size, fontsize=8, color=FAINT, va="center")
        g, q = divmod(lane, 4)
        lines = ((f"Lane {lane}: g = {lane} // 4 = {g}, q = {lane} % 4 = {q}", INK, "bold"),
                 ("a0  row g, columns 2q and 2q + 1", TEXT[BLUE], "normal"),
                 ("a1  row g + 8, the same columns", TEXT[ORANGE], "normal"),
                 ("a2  row g, columns 8 further", TEXT[GREEN], "normal"),
                 ("a3  row g + 8, columns 8 further", TEXT[PURPLE], "normal"),
                 ("b0  rows 2q and 2q + 1 of column g", TEXT[BLUE], "normal"),
                 ("b1  rows 8 further", TEXT[ORANGE], "normal"),
                 ("c0, c1  row g, columns 2q and 2q + 1", TEXT[BLUE], "normal"),
                 ("c2, c3  row g + 8", TEXT[ORANGE], "normal"))
        for k, (text, ink, weight) in enumerate(lines):
            ax.text(left, top + 0.25 + 0.26 * k, text, fontsize=9, color=ink, fontweight=weight, va="center")
        ax.text(0.14, a_y + 16 * tall + 0.22, "The number is the lane. A register of a or b holds two halves; each sum "
                "is a float32 of its own.", fontsize=8, color=FAINT, va="center")
    return figure


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
    figure, ax = _canvas(top + 3 * apart + 0.34, "Loads and products of one block, in time",
                         f"{tiles} tiles, loads of {load}, products of {multiply}: "
                         + ", ".join(f"{name} {end:.1f}" for name, end in zip(names, ends, strict=True)) + ".")
    with rc_context(STYLE):
        for row, (name, plan) in enumerate(zip(names, plans, strict=True)):
            y = top + row * apart
            lanes = max(1, row)  # loads that are under way at the same time
            ax.text(0.14, y + tall, name, fontsize=9, fontweight="bold", va="center")
            ax.text(left - 0.08, y + lanes * tall / 2, "load", fontsize=8, ha="right", va="center", color=TEXT[ORANGE])
            ax.text(left - 0.08, y + (lanes + 0.5) * tall, "multiply", fontsize=8, ha="right", va="center",
                    color=TEXT[BLUE])
            for t, (loads, multiplies) in enumerate(plan):
                _box(ax, left + loads * scale, y + t % lanes * tall, load * scale, tall, t, fill=PALE[ORANGE], size=8)
                _box(ax, left + multiplies * scale, y + lanes * tall, multiply * scale, tall, t, fill=PALE[BLUE],
                     size=8)
        ax.text(0.14, top + 3 * apart + 0.12, "The number is the tile. Gaps between products are time in which the "
                "multiply-add units wait.", fontsize=8, color=FAINT, va="center")
    return figure
