"""The course's plots, all in one style. Each function returns a figure; a notebook shows it.

    ladder(measured)               a bar for each rung, rivals in grey, the hardware's limit as a dashed line
    crossover(series)              vector addition over sizes: from where on the GPU is worth the trip
    block_shapes(series)           one kernel, many shapes of a block
    sizes(series)                  every rung over sizes
    roofline([measured, ...])      what the hardware allows, and where the rungs stand

Every figure says where its times were taken. Without a GPU a figure has two panels: the times taken here, on the CPU
device, and the recorded ones of a GPU.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from labkit import measure
from labkit.measure import CPU_DEVICE, Ladder
from labkit.tables import number, size_text

# Okabe and Ito's colours, which stay apart for colour-blind readers.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
LINES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE)
MARKERS = "osD^v"
GREY, INK, FAINT = "#A7ADB3", "#22272B", "#66707A"
# The same colours, dark enough to be read as text on white.
TEXT = {BLUE: BLUE, ORANGE: "#8F6200", GREEN: "#00785A", VERMILLION: "#B84F00", PURPLE: "#A34D82", GREY: FAINT}
WIDTH = 7.0  # inches: 700 pixels at 100 dots an inch

STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9.5,
    "axes.edgecolor": "#C9CED3", "axes.labelcolor": INK, "axes.titlesize": 10.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.labelsize": 9, "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
    "text.color": INK, "axes.axisbelow": True, "grid.color": "#E8EBED", "grid.linewidth": 0.8,
    "lines.linewidth": 2.0, "lines.markersize": 4.5, "svg.hashsalt": "labkit",
}


class CourseFigure(Figure):
    """A matplotlib figure that shows itself in a notebook, with or without pyplot, 700 pixels wide and sharp."""

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
        return {"image/png": encoded, "text/plain": self.summary}, {"image/png": {"width": 700}}

    def __repr__(self) -> str:
        return self.summary


def _figure(heights: list[float], title: str, summary: str):
    """A figure with one axes for each height in inches, one below the other, under a title."""
    with rc_context(STYLE):
        top, gap, bottom = 0.66, 0.98, 0.60
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
    """A bar for each rung, slowest idea first, rivals below in grey.

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
            _ladder_panel(ax, panel)
    return figure


def _ladder_panel(ax, panel: Ladder) -> None:
    rows = panel.rows
    rates = [panel.rate(row) for row in rows]
    show_rate = panel.on_gpu and all(rate is not None for rate in rates)
    values = rates if show_rate else [row.timing.p50 for row in rows]
    _wide_left(ax)
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
                    color="white" if inside and row.kind == "rung" else INK)
        ax.annotate(row.name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=9,
                    color=INK if row.kind == "rung" else FAINT, annotation_clip=False)
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
    what = "copy bandwidth" if panel.binds == "bytes" else "float32 peak"
    ax.annotate(f"limit: {what}, {number(panel.limit)}", (panel.limit, 1), xycoords=("data", "axes fraction"),
                xytext=(-6, -1), textcoords="offset points", ha="right", va="top", fontsize=8.5, color=INK)


def _wide_left(ax) -> None:
    """Room for names left of the bars."""
    box = ax.get_position()
    ax.set_position((0.30, box.y0, 0.67, box.height))


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
    if recorded == "auto":
        recorded = None if series["where"] != CPU_DEVICE else measure.recorded_series("vector_add_sizes")
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
    """Where `ours` falls below `theirs` for good, interpolated on log axes; (None, None) if it does not happen."""
    if not ours:
        return None, None
    gap = np.log(ours) - np.log(theirs)
    if gap[-1] >= 0 or gap[0] <= 0:
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
    """Every rung over sizes, rivals in grey: TFLOP/s or GB/s on a GPU, times on the CPU device."""
    if recorded == "auto":
        recorded = None if series["where"] != CPU_DEVICE else measure.recorded_series(f"{series['op']}_sizes")
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
            rival_markers = iter(("P", "X", "s"))
            for line in panel["lines"]:
                if on_gpu and line["kind"] == "host":
                    continue
                values = line["rate"] if on_gpu else line["ms"]
                colour, marker = next(rung_styles) if line["kind"] == "rung" else (GREY, next(rival_markers))
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
    """One kernel over shapes of its block, sorted by the extent along x, the axis that runs fastest in memory."""
    if recorded == "auto":
        recorded = None if series["where"] != CPU_DEVICE else measure.recorded_series("volume_add_block_shapes")
    panels = _panels(series, recorded)
    figure, axes = _figure([0.235 * len(panel["blocks"]) for panel in panels], "The shape of a block",
                           "Shapes of a block, " + _place(series["where"], series.get("date")))
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            box = ax.get_position()
            ax.set_position((0.155, box.y0, 0.80, box.height))
            on_gpu = panel["where"] != CPU_DEVICE
            values = panel["gbs"] if on_gpu else panel["ms"]
            order = sorted(range(len(values)), key=lambda i: (-panel["blocks"][i][0], np.prod(panel["blocks"][i])))
            for y, i in enumerate(order):
                block = panel["blocks"][i]
                full_sectors = block[0] >= 8
                ax.barh(y, values[i], height=0.7, color=BLUE if full_sectors or not on_gpu else ORANGE)
                ax.annotate(number(values[i]), (values[i], y), xytext=(4, 0), textcoords="offset points", va="center",
                            fontsize=8.5)
                ax.annotate(" \u00d7 ".join(str(b) for b in block), (0, y), xytext=(-6, 0), textcoords="offset points",
                            ha="right", va="center", fontsize=8.5, annotation_clip=False)
            ax.set_ylim(len(order) - 0.4, -1.2 if on_gpu else -0.6)
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
            short = [y for y, i in enumerate(order) if panel["blocks"][i][0] < 8]
            if on_gpu and short:
                y = min(short, key=lambda y: values[order[y]])
                ax.annotate("x shorter than 8: a warp uses only part of each 32-byte sector", (values[order[y]], y),
                            xytext=(40, 0), textcoords="offset points", va="center", fontsize=8.5, color=TEXT[ORANGE])
    return figure


# --- The roofline --------------------------------------------------------------------------------------------------


def roofline(measured: list[Ladder] | Ladder) -> CourseFigure | None:
    """flop/s over flop per byte: the roof, and a point for each rung. GPU ladders only: a CPU time has no place here.

    Bytes are the least an operation must move, so all rungs of an operation stand above one another.
    """
    ladders = [measured] if isinstance(measured, Ladder) else list(measured)
    if not ladders:
        raise ValueError("measured is empty; pass at least one ladder")
    cpu = [one.op for one in ladders if not one.on_gpu]
    if cpu:
        raise ValueError(f"the ladder of {cpu[0]} was timed on the CPU device; a roofline needs a GPU's times: pass "
                         f"measure.recorded_ladder({cpu[0]!r})")
    place = {(one.where, one.machine.get("date")) for one in ladders}
    figure, (ax,) = _figure([3.9], "Roofline", "Roofline, " + "; ".join(_place(*p) for p in place))
    with rc_context(STYLE):
        bandwidth = ladders[0].limits["bandwidth_gbs"]
        peak = ladders[0].limits["fp32_tflops"]
        intensities = [one.flops / one.bytes for one in ladders]
        ridge = 1000 * peak / bandwidth
        low, high = min([*intensities, ridge]) / 3, max([*intensities, ridge]) * 30
        xs = np.geomspace(low, high, 400)
        ax.plot(xs, np.minimum(peak, xs * bandwidth / 1000), color=INK, linestyle=(0, (4, 3)), linewidth=1.3)
        ax.set_xscale("log")
        ax.set_yscale("log")
        rates = [row.tflops for one in ladders for row in one.rows if row.kind != "host"]
        ax.set_xlim(low, high)
        ax.set_ylim(min(rates) / 6, peak * 2.2)
        for one, colour, intensity in zip(ladders, LINES * 4, intensities, strict=False):
            points = [row for row in one.rows if row.kind != "host"]
            ends = []
            for row in points:
                shade = colour if row.kind == "rung" else GREY
                ax.plot([intensity], [row.tflops], "o" if row.kind == "rung" else "P", color=shade, markersize=7,
                        markeredgecolor="white", markeredgewidth=0.8)
                ends.append((row.tflops, row.name, TEXT[shade]))
            _label_points(ax, intensity, ends)
        ax.annotate(f"{number(peak)} TFLOP/s, float32 peak", (high, peak), xytext=(-4, 4), ha="right",
                    textcoords="offset points", fontsize=8.5)
        slope_x = ridge / 16
        ax.annotate(f"{number(bandwidth)} GB/s, copy bandwidth", (slope_x, slope_x * bandwidth / 1000), xytext=(0, 7),
                    textcoords="offset points", fontsize=8.5, rotation=_slope_angle(ax), rotation_mode="anchor")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_xlabel("flop per byte moved at least")
        ax.set_ylabel("TFLOP/s")
        _quiet(ax, "both")
        _panel_title(ax, "; ".join(_place(*p) for p in place) + ". Dashed: measured copy bandwidth and float32 peak")
    return figure


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
