"""What all plots share: colours, the figure that shows itself, and the parts that plots are put together from."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from labkit.measure import CPU_DEVICE

# Okabe and Ito's colours, which stay apart for colour-blind readers.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
LINES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE)
MARKERS = "osD^v"
GREY, INK, FAINT = "#A7ADB3", "#22272B", "#66707A"
# The same colours, dark enough to be read as text on white.
TEXT = {BLUE: BLUE, ORANGE: "#8F6200", GREEN: "#00785A", VERMILLION: "#B84F00", PURPLE: "#A34D82", GREY: FAINT}
PALE = {BLUE: "#D6E6F1", ORANGE: "#FAEBCB", GREEN: "#CFEAE1", PURPLE: "#F4E3ED", GREY: "#E9ECEF"}
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


def new_figure(heights: list[float], title: str, summary: str, gap: float = 0.98, bottom: float = 0.60):
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


def canvas(height: float, title: str, summary: str):
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


def draw_box(ax, x: float, y: float, width: float, height: float, text="", *, fill="none", edge="white", ink=INK,
             size: float = 7.5, **style) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, **{"linewidth": 0.8, **style}))
    if text != "":
        ax.text(x + width / 2, y + height / 2, text, ha="center", fontsize=size, color=ink, linespacing=1.0,
                va="center" if "\n" in str(text) else "center_baseline")


def where_taken(where: str, date: str | None) -> str:
    if where == CPU_DEVICE:
        return f"Here, on the {where[0:10]}: shows work, not GPU speed"
    return f"Measured on {where}" + (f", {date}" if date else "")


def taken(series: dict) -> str:
    """Where and when a series was taken."""
    return where_taken(series["where"], series.get("date"))


def here_and_recorded(here, recorded) -> list:
    """What was measured here, then what a GPU recorded, unless here is a GPU."""
    return [panel for panel in (here, recorded) if panel is not None]


def panel_title(ax, text: str) -> None:
    """Left-aligned with the figure, not with the bars."""
    figure = ax.figure
    box = ax.get_position()
    figure.text(0.02, box.y1 + 0.10 / figure.get_figheight(), text, fontsize=9, color=FAINT, va="bottom")


def grid_along(ax, axis: str) -> None:
    ax.grid(True, axis=axis)
    ax.tick_params(length=0)
    ax.spines["left"].set_visible(axis != "x")


def widen_left(ax, names=(), size: float = 9) -> None:
    """Room for names left of the bars: as much as the widest takes in this size of type."""
    outlines = [TextPath((0, 0), shorten(name, LONGEST_NAME), size=size).get_extents() for name in names]
    widest = max((outline.width for outline in outlines), default=0)
    left = max(0.30, (1.08 * widest + 14) / 72 / WIDTH)  # drawn text is a little wider than its outline
    box = ax.get_position()
    ax.set_position((left, box.y0, 0.97 - left, box.height))


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip(" ,(") + "\u2026"


def count_of(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def count_axis(ax, name: str = "elements") -> None:
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


def time_axis(ax) -> None:
    def text(value, _):
        if value < 0.999:
            return f"{value * 1000:g} \u00b5s"
        return f"{value:g} ms" if value < 999 else f"{value / 1000:g} s"

    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(text))
    ax.yaxis.set_minor_locator(NullLocator())


def label_line_ends(ax, ends: list[tuple[float, float, str, str]], gap: float = 0.075) -> None:
    """Writes each line's name at its right end, in its colour, pushed apart so that no two overlap."""
    to_axes = ax.transAxes.inverted()
    spots = sorted([to_axes.transform(ax.transData.transform((x, y)))[1], name, colour] for x, y, name, colour in ends)
    heights = spread_apart([spot[0] for spot in spots], gap)
    for height, (_, name, colour) in zip(heights, spots, strict=True):
        ax.annotate(name, (1.0, height), xycoords="axes fraction", xytext=(6, 0), textcoords="offset points",
                    va="center", fontsize=8.5, color=colour, annotation_clip=False)


def spread_apart(heights: list[float], gap: float) -> list[float]:
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
