"""What all plots share: colours, the figure that shows itself, and the parts that plots are put together from.

A figure is WIDTH inches wide and its text at least SMALLEST points: so it can be read at 400 pixels, and is not loud at
1,200. It has a white ground of its own; the site's dark pages show it in the form that _common/dark_svg.py makes.
"""

from __future__ import annotations

import base64
import functools
import io
from pathlib import Path

from matplotlib import rc_context
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from labkit import measure
from labkit.measure import CPU_DEVICE
from labkit.measure.plots.svg import compact

# Okabe and Ito's colours, which stay apart for colour-blind readers.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
LINES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE)
MARKERS = "osD^v"
GREY, INK, FAINT = "#A7ADB3", "#22272B", "#66707A"
# The same colours, dark enough to be read as text on white.
TEXT = {BLUE: BLUE, ORANGE: "#8F6200", GREEN: "#00785A", VERMILLION: "#B84F00", PURPLE: "#A34D82", GREY: FAINT}
PALE = {BLUE: "#D6E6F1", ORANGE: "#FAEBCB", GREEN: "#CFEAE1", PURPLE: "#F4E3ED", GREY: "#E9ECEF"}
WIDTH = 6.4  # inches: 704 pixels at 110 to an inch
DOTS = 110
SMALLEST = 9.0  # points of any text; numbers in cells may be a point less
COURSE_GPU = "NVIDIA H200"  # its times come first, also where another GPU has recorded some
LARGEST_SVG = 150_000  # bytes; a larger figure is shown as a PNG
TITLE = 12.5
HERE = "On this machine: the CPU device, which shows work, not speed"
LONGEST_NAME = 34  # characters beside a bar
STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 10,
    "axes.edgecolor": "#C9CED3", "axes.labelcolor": INK, "axes.titlesize": 10.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.labelsize": 9.5, "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelsize": 9, "ytick.labelsize": 9,
    "text.color": INK, "axes.axisbelow": True, "grid.color": "#E8EBED", "grid.linewidth": 0.8,
    "lines.linewidth": 2.0, "lines.markersize": 4.5, "svg.hashsalt": "labkit",
    "svg.fonttype": "none", "svg.image_inline": True, "axes.facecolor": "none",
}


class CourseFigure(Figure):
    """A matplotlib figure that shows itself in a notebook, with or without pyplot, and sharp at every size."""

    summary = ""

    def png(self, dpi: int = 2 * DOTS) -> bytes:
        buffer = io.BytesIO()
        with rc_context(STYLE):
            self.savefig(buffer, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
        return buffer.getvalue()

    def svg(self) -> str:
        buffer = io.StringIO()
        with rc_context(STYLE):
            self.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None})
        return compact(buffer.getvalue(), self.pixels, self.summary)

    @property
    def pixels(self) -> int:
        return round(DOTS * self.get_figwidth())

    def content(self) -> tuple[str, str]:
        """Its media type, and the SVG, or the PNG in base64 where the SVG would be large."""
        text = self.svg()
        if len(text) <= LARGEST_SVG:
            return "image/svg+xml", text
        return "image/png", base64.b64encode(self.png()).decode()

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.svg().encode() if path.suffix == ".svg" else self.png())
        return path

    def _repr_mimebundle_(self, include=None, exclude=None):
        kind, content = self.content()
        return {kind: content, "text/plain": self.summary}, {kind: {"width": self.pixels}}

    def __repr__(self) -> str:
        return self.summary


def new_figure(heights: list[float], title: str, summary: str, gap: float = 0.98, bottom: float = 0.62):
    """A figure with one axes for each height in inches, one below the other, under a title."""
    with rc_context(STYLE):
        lines = wrapped(title, WIDTH - 0.30, TITLE, "bold")
        top = 0.70 + 0.22 * (len(lines) - 1)
        total = top + sum(heights) + gap * (len(heights) - 1) + bottom
        figure = CourseFigure(figsize=(WIDTH, total))
        figure.summary = summary
        figure.text(0.14 / WIDTH, 1 - 0.13 / total, "\n".join(lines), fontsize=TITLE, fontweight="bold", va="top",
                    linespacing=1.15)
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
        size = TITLE * min(1.0, (WIDTH - 0.28) / width_of(title, TITLE, "bold"))
        ax.text(0.14, 0.24, title, fontsize=size, fontweight="bold", va="center")
    return figure, ax


def note(ax, y: float, text: str, x: float = 0.14) -> None:
    """Lines of small grey text on a canvas, the first at y; the canvas grows if they do not fit."""
    lines = wrapped(text, WIDTH - x - 0.12, SMALLEST)
    for row, line in enumerate(lines):
        ax.text(x, y + 0.165 * row, line, fontsize=SMALLEST, color=FAINT, va="center")
    needed = y + 0.165 * (len(lines) - 1) + 0.18
    if needed > ax.get_ylim()[0]:
        ax.figure.set_figheight(needed)
        ax.set_ylim(needed, 0)


def wrapped(text: str, inches: float, size: float, weight: str = "normal") -> list[str]:
    """The text in lines that are at most so wide."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, size, weight) <= inches:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


@functools.lru_cache(4096)
def width_of(text: str, size: float, weight: str = "normal") -> float:
    """Inches that a line of text takes."""
    font = FontProperties(family="DejaVu Sans", weight=weight, size=size)
    points, _, _ = text_to_path.get_text_width_height_descent(text or " ", font, is_math_text(text))
    return 1.02 * points / 72  # drawn text may be a little wider


def make_room(figure, below: float, inches: float) -> None:
    """Moves everything that stands lower than `below` (inches from the top) down, and makes the figure higher."""
    total = figure.get_figheight()
    boxes = [(ax, ax.get_position()) for ax in figure.axes]
    texts = [(text, (1 - text.get_position()[1]) * total) for text in figure.texts]
    figure.set_figheight(total + inches)
    for ax, box in boxes:
        moved = inches if (1 - box.y1) * total >= below - 1e-6 else 0.0
        top = (1 - box.y1) * total + moved
        high = box.height * total
        ax.set_position((box.x0, 1 - (top + high) / (total + inches), box.width, high / (total + inches)))
    for text, top in texts:
        text.set_y(1 - (top + (inches if top >= below - 1e-6 else 0.0)) / (total + inches))


def foot(figure, text: str) -> None:
    """A line of small grey text below everything else."""
    if not text:
        return
    lines = wrapped(text.rstrip(".") + ".", WIDTH - 0.28, SMALLEST)
    total = figure.get_figheight()
    make_room(figure, total, 0.06 + 0.17 * len(lines))
    figure.text(0.14 / WIDTH, 0.08 / figure.get_figheight(), "\n".join(lines), fontsize=SMALLEST, color=FAINT,
                va="bottom", linespacing=1.25)


def draw_box(ax, x: float, y: float, width: float, height: float, text="", *, fill="none", edge="white", ink=INK,
             size: float = 9, **style) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, **{"linewidth": 0.8, **style}))
    if text != "":
        ax.text(x + width / 2, y + height / 2, text, ha="center", fontsize=size, color=ink, linespacing=1.0,
                va="center" if "\n" in str(text) else "center_baseline")


def draw_heading(ax, x: float, y: float, text: str, *below: str, ink=INK) -> None:
    """A line in bold, and lines below it."""
    ax.text(x, y, text, fontsize=SMALLEST + 0.5, fontweight="bold", va="center", color=ink)
    for row, line in enumerate(below):
        ax.text(x, y + 0.20 + 0.17 * row, line, fontsize=SMALLEST, va="center", color=FAINT)


def tint(colour: str, part: float = 0.45) -> tuple[float, ...]:
    """The colour on white."""
    return tuple(1 - part * (1 - int(colour[k : k + 2], 16) / 255) for k in (1, 3, 5))


def where_taken(where: str, date: str | None) -> str:
    if where == CPU_DEVICE:
        return HERE
    return f"Measured on {where}" + (f", {date}" if date else "")


def taken(series: dict) -> str:
    """Where and when a series was taken."""
    return where_taken(series["where"], series.get("date"))


def of_the_course(read, name: str):
    """What read(name) finds in the recordings of the course's own GPU, or, where there are none, in any GPU's."""
    try:
        return read(name, gpu=COURSE_GPU)
    except ValueError:
        return read(name)


def gpu_panels(local: dict, name: str, recorded: dict | None | str = "auto") -> tuple[list[dict], str]:
    """What a figure draws, and the line below it. Recorded times come first. What this machine's GPU measured stands
    beside them in the same unit; what its CPU device measured is no speed: the line says so, and it is not drawn."""
    if recorded == "auto":
        recorded = of_the_course(measure.recorded_series, name)
    return _panels(local, recorded, local["where"] == CPU_DEVICE)


def _panels(local, recorded, on_cpu: bool) -> tuple[list, str]:
    if on_cpu:
        return [recorded] if recorded is not None else [], HERE
    return ([local] if recorded is None or recorded == local else [recorded, local]), ""


def panel_taken(panels: list[dict], panel: dict) -> str:
    """Where a panel was taken; where there are two, also which of them is the reader's."""
    if len(panels) < 2:
        return taken(panel)
    return f"{'This machine' if panel is panels[1] else 'Recorded'}: {panel['where']}, {panel.get('date')}"


def key(figure, entries) -> None:
    """What the colours mean, as (words, colour), in lines below the title. The last part that a figure gets."""
    lines, x = [[]], 0.14
    for words, colour in entries:
        wide = 0.17 + width_of(words, SMALLEST) + 0.20
        if x + wide > WIDTH and lines[-1]:
            lines.append([])
            x = 0.14
        lines[-1].append((x, words, colour))
        x += wide
    title = next(text for text in figure.texts if text.get_fontsize() == TITLE)
    top = 0.34 + 0.22 * title.get_text().count("\n")
    make_room(figure, top + 0.05, 0.06 + 0.21 * len(lines))
    total = figure.get_figheight()
    for row, line in enumerate(lines):
        y = 1 - (top + 0.17 + 0.20 * row) / total
        for x, words, colour in line:
            figure.text(x / WIDTH, y, "\u25a0", fontsize=11, color=colour, va="center_baseline")
            figure.text((x + 0.17) / WIDTH, y, words, fontsize=SMALLEST, va="center_baseline")


def unrecorded(title: str, rows: list[tuple[str, str]] = ()) -> CourseFigure:
    """In place of a plot where no GPU has recorded anything: what ran here, as a small table."""
    note_ = f"No GPU has recorded this yet. {HERE}."
    figure, ax = canvas(0.72 + 0.22 * len(rows) + 0.30, title, f"{title}: {note_} "
                        + "; ".join(f"{name} {value}" for name, value in rows))
    with rc_context(STYLE):
        for row, (name, value) in enumerate(rows):
            ax.text(0.14, 0.60 + 0.22 * row, name, va="center")
            ax.text(4.4, 0.60 + 0.22 * row, value, va="center", ha="right")
        note(ax, 0.66 + 0.22 * len(rows), note_)
    return figure


def same_limits(axes, along: str = "xy") -> None:
    """One scale for all panels."""
    for axis in along:
        limits = [getattr(ax, f"get_{axis}lim")() for ax in axes]
        for ax in axes:
            getattr(ax, f"set_{axis}lim")(min(low for low, _ in limits), max(high for _, high in limits))


def panel_title(ax, text: str) -> None:
    """Left-aligned with the figure, not with the bars; in several lines if it is long."""
    figure = ax.figure
    lines = wrapped(text, WIDTH - 0.28, SMALLEST)
    if len(lines) > 1:
        make_room(figure, (1 - ax.get_position().y1) * figure.get_figheight(), 0.155 * (len(lines) - 1))
    box = ax.get_position()
    figure.text(0.14 / WIDTH, box.y1 + 0.12 / figure.get_figheight(), "\n".join(lines), fontsize=SMALLEST, color=FAINT,
                va="bottom", linespacing=1.2)


def grid_along(ax, axis: str) -> None:
    """Lines across one axis or both. A logarithmic y axis of few decades gets ticks at 2 and 5 as well."""
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log" and high < 80 * low:
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.grid(True, axis=axis)
    ax.tick_params(length=0)
    ax.spines["left"].set_visible(axis != "x")


def widen_left(ax, names=(), size: float = 9.5) -> None:
    """Room for names left of the bars: as much as the widest takes in this size of type."""
    widest = max((width_of(shorten(name, LONGEST_NAME), size) for name in names), default=0)
    left = max(0.30, (1.03 * widest + 0.26) / WIDTH)
    box = ax.get_position()
    ax.set_position((left, box.y0, 0.97 - left, box.height))


def leave_right(ax, names, left: float = 0.105, size: float = 9.5) -> None:
    """Room for the lines' names at their right ends."""
    widest = max((width_of(name, size) for name in names), default=0)
    box = ax.get_position()
    ax.set_position((left, box.y0, 1 - left - (widest + 0.24) / WIDTH, box.height))


def shorten(text: str, max_len: int) -> str:
    return text if len(text) <= max_len else text[: max_len - 1].rstrip(" ,(") + "\u2026"


def percent(fraction: float) -> str:
    return "<1%" if 0 < fraction < 0.005 else f"{fraction:.0%}"


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


def label_line_ends(ax, ends: list[tuple[float, float, str, str]], gap: float | None = None) -> None:
    """Writes each line's name at its right end, in its colour, pushed apart so that no two overlap."""
    to_axes = ax.transAxes.inverted()
    spots = sorted([to_axes.transform(ax.transData.transform((x, y)))[1], name, colour] for x, y, name, colour in ends)
    high = ax.get_position().height * ax.figure.get_figheight()
    heights = spread_apart([spot[0] for spot in spots], gap or 0.185 / high)
    for height, (_, name, colour) in zip(heights, spots, strict=True):
        ax.annotate(name, (1.0, height), xycoords="axes fraction", xytext=(6, 0), textcoords="offset points",
                    va="center", fontsize=9.5, color=colour, annotation_clip=False)


def spread_apart(heights: list[float], gap: float, low: float = 0.03, high: float = 1.0) -> list[float]:
    """Sorted heights between low and high, moved as little as keeps each two neighbours `gap` apart."""
    heights = list(heights)
    for _ in range(200):
        for i in range(len(heights) - 1):
            overlap = gap - (heights[i + 1] - heights[i])
            if overlap > 1e-6:
                heights[i] -= overlap / 2
                heights[i + 1] += overlap / 2
        heights[0] = max(heights[0], low)
        heights[-1] = min(heights[-1], high)
    return heights
