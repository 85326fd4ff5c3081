"""The figures and tables of the lesson "Graphs and streams".

    remembered()           what a graph remembers: an array in memory, whatever its name in Python means later
    engines(*panels)       what the two copy engines and the SMs do, along time, a colour for each stream
    chunks(series)         time of the whole over the number of chunks, beside what the schedule predicts
    launch_cost(series)    what a launch costs, over sizes
    baseline_table()       the fair baseline: a call from Python and in a graph
"""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, MaxNLocator

from labkit import measure
from labkit._common.tables import PlainTable, number, size_text
from labkit.measure.plots.lines import lines_over
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
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    grid_along,
    label_line_ends,
    new_figure,
    panel_title,
    taken,
)
from labkit.measure.series.streams import ENGINES, makespan

OF_STREAM = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE)
LAUNCH_LINES = (
    ("python_us", "ours, from Python", BLUE, "o"),
    ("torch_us", "PyTorch", GREY, "s"),
    ("graph_us", "ours, in a graph", GREEN, "D"),
    ("torch_graph_us", "PyTorch, in a graph", ORANGE, "^"),
)


def remembered() -> CourseFigure:
    """The name x, the arrays in the device's memory, and a captured graph, at three moments."""
    moments = (("after the capture", 1, "x"), ("after 100s were copied into x", 100, "x"),
               ("after x was bound to an array of zeros", 100, "kept"))
    tall, left, middle, right = 0.30, 0.30, 2.15, 4.75
    figure, ax = canvas(0.98 + 0.90 * len(moments) + 0.30, "A graph remembers arrays, not names", "; ".join(
        f"{moment}: the graph adds the array with {value}s, which Python calls {name}"
        for moment, value, name in moments) + ".")
    with rc_context(STYLE):
        for at, heading in ((left, "name in Python"), (middle, "memory of the device"), (right, "in the graph")):
            ax.text(at, 0.60, heading, fontsize=9, color=FAINT, va="center")
        for row, (moment, value, name) in enumerate(moments):
            y = 0.94 + 0.90 * row
            ax.text(0.14, y, moment, fontsize=9, fontweight="bold", va="center")
            arrays = [(name, value, BLUE)] + ([("x", 0, GREY)] if name != "x" else [])
            for k, (label, number_in, colour) in enumerate(arrays):
                top = y + 0.18 + 0.37 * k
                draw_box(ax, left, top, 0.62, tall, label, edge=GREY)
                for i in range(4):
                    draw_box(ax, middle + 0.42 * i, top, 0.42, tall, "\u2026" if i == 3 else number_in,
                             fill="#EEF0F2" if colour == GREY else PALE[colour])
                _arrow(ax, left + 0.66, middle - 0.06, top + tall / 2, FAINT)
            draw_box(ax, right, y + 0.18, WIDTH - right - 0.2, tall, "10 \u00d7 add this to y", edge=BLUE,
                     linewidth=1.4)
            _arrow(ax, right - 0.04, middle + 4 * 0.42 + 0.06, y + 0.18 + tall / 2, BLUE)
    return figure


def _arrow(ax, start: float, end: float, y: float, colour: str) -> None:
    ax.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.2})


def engines(*panels: dict) -> CourseFigure:
    """Time lines, one below the other, on one scale. A panel is {"title", "events": [{"engine", "stream", "start_ms",
    "ms"}]}, a bar for each event."""
    if not panels or not all(panel["events"] for panel in panels):
        raise ValueError("a panel holds no events; a time line needs at least one")
    ends = [max(event["start_ms"] + event["ms"] for event in panel["events"]) for panel in panels]
    figure, axes = new_figure([1.05] * len(panels), "The longest of the three engines sets the pace", "; ".join(
        f"{panel['title']}: {number(end)} ms" for panel, end in zip(panels, ends, strict=True)) + ".", gap=0.86)
    with rc_context(STYLE):
        for ax, panel, end in zip(axes, panels, ends, strict=True):
            box = ax.get_position()
            ax.set_position((0.215, box.y0, 0.765, box.height))
            counts = dict.fromkeys(ENGINES, 0)
            for event in panel["events"]:
                y, counts[event["engine"]] = ENGINES.index(event["engine"]), counts[event["engine"]] + 1
                ax.barh(y, event["ms"], left=event["start_ms"], height=0.7, linewidth=0.8, edgecolor="white",
                        color=OF_STREAM[event["stream"] % len(OF_STREAM)])
                if event["ms"] > 0.03 * max(ends):
                    ax.annotate(str(counts[event["engine"]]), (event["start_ms"] + event["ms"] / 2, y), ha="center",
                                va="center", fontsize=9, color="white")
            ax.annotate(f"{number(end)} ms", (end, 2), xytext=(6, 0), textcoords="offset points", va="center",
                        fontsize=9, color=FAINT, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
            ax.set_ylim(2.6, -0.6)
            ax.set_yticks(range(3), ENGINES, fontsize=9)
            ax.set_xlim(0, 1.17 * max(ends))
            ax.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
            ax.set_xlabel("milliseconds")
            grid_along(ax, "x")
            panel_title(ax, panel["title"])
    return figure


def chunks(series: dict) -> CourseFigure:
    """A line over the number of chunks for each memory and number of streams, and the schedule's prediction.

    series: as labkit.measure.series.streams.streams() returns it.
    """
    figure, (ax,) = new_figure([3.0], "Chunks on streams help, up to a point", "", bottom=0.62)
    lines = {}
    for run in series["runs"]:
        lines.setdefault((run["memory"], run["streams"]), []).append((run["chunks"], run["ms"]["p50"]))
    counts = sorted({run["chunks"] for run in series["runs"]})
    alone = {memory: dict(points)[1] for (memory, streams), points in lines.items() if streams == 1}
    style = {("pinned", 3): (BLUE, "pinned, 3 streams"), ("pinned", 1): (GREEN, "pinned, 1 stream"),
             ("pageable", 3): (VERMILLION, "pageable, 3 streams"), ("pageable", 1): (ORANGE, "pageable, 1 stream")}
    with rc_context(STYLE):
        box = ax.get_position()
        ax.set_position((0.095, box.y0, 0.64, box.height))
        ends = []
        predicted = [makespan(series["parts"], count) for count in counts]
        ax.plot(counts, predicted, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
        ends.append((counts[-1], predicted[-1], "the schedule", INK))
        for key, points in sorted(lines.items()):
            if len(points) + (key[1] > 1) < 2:
                continue
            points = sorted(set(points) | {(1, alone[key[0]])})
            colour, name = style.get(key, (GREY, f"{key[0]}, {key[1]} streams"))
            ax.plot(*zip(*points, strict=True), color=colour, marker="o", markeredgewidth=0)
            ends.append((*points[-1], name, TEXT[colour]))
        ax.set_xscale("log", base=2)
        ax.set_xticks(counts)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.set_xlim(0.8 * counts[0], 1.25 * counts[-1])
        ax.set_ylim(0, None)
        ax.set_xlabel("chunks")
        ax.set_ylabel("ms")
        grid_along(ax, "both")
        label_line_ends(ax, [end for end in ends if end[0] == counts[-1]])
        for count, ms, name, colour in ends:
            if count < counts[-1]:
                ax.annotate(name, (count, ms), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9.5,
                            color=colour)
        panel_title(ax, taken(series))
    figure.summary = (f"{4 * series['n'] / 1e6:,.0f} MB there and back, {taken(series)}: " + "; ".join(
        f"{name} {number(ms)} ms in {count} chunks" for count, ms, name, _ in ends) + ".")
    return figure


def launch_cost(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Time of one vector addition among many, over sizes: the launch sets the floor, memory the slope."""
    return lines_over(series, "launch_sizes", recorded, "Small work costs a launch, large work its bytes", "n",
                      LAUNCH_LINES, "elements", bound=12)


def baseline_table(local: dict | None = None, recorded: dict | None | str = "auto") -> PlainTable:
    """The fair baseline: microseconds for a call from Python and inside a graph, here and as recorded on a GPU."""
    if recorded == "auto":
        recorded = measure.recorded_series("fair_baseline") if local is None or local["where"] == measure.CPU_DEVICE \
            else None
    rows, notes = [], []
    for series in filter(None, (recorded, local)):
        rows += [(row["name"], number(row["kernels"]), number(row["call_us"]), number(row["graph_us"]),
                  series["where"].split(":")[0]) for row in series["rows"]]
        notes.append(f"{size_text(series['size'])}: {series['where']}, {series['date']}.")
    return PlainTable("Bias, GELU, residual: one call in a row of many",
                      ("", "kernels", "from Python, us", "in a graph, us", "where"), tuple(rows), tuple(notes))
