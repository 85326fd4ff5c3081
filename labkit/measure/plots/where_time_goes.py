"""Where the time goes besides the kernels: launches, copies, and a program along time.

    round_trip(trip)                          what a trip to the device is made of
    timeline(panel, ...)                      ranges, driver calls and the GPU's work as bars along time
    launch_cost(series), copy_cost(series)    what a launch and a copy cost, over sizes
"""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter

from labkit import measure
from labkit._common.tables import number
from labkit.measure import CPU_DEVICE
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    HERE,
    INK,
    ORANGE,
    PURPLE,
    STYLE,
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    count_axis,
    foot,
    gpu_panels,
    grid_along,
    key,
    label_line_ends,
    leave_right,
    new_figure,
    panel_taken,
    panel_title,
    same_limits,
    taken,
    time_axis,
    unrecorded,
    width_of,
)


def round_trip(here: dict, recorded: dict | None = None) -> CourseFigure:
    """The steps of one trip to the device, each bar beginning where the last ended, and NumPy beside it, in grey.

    A trip is {"steps": {name: milliseconds, ...}, "numpy_ms": ..., "title": where and how it was taken}. The recorded
    one stands first; the trip `here` is drawn if this machine has a GPU.
    """
    on_cpu = here.get("where", measure.where()) == CPU_DEVICE
    trips = [trip for trip in (recorded, None if on_cpu else here) if trip]
    if not trips:
        return unrecorded("There, add, and back", [(name, f"{number(ms)} ms") for name, ms in here["steps"].items()])
    figure, axes = new_figure([0.34 * (len(trip["steps"]) + 1) for trip in trips], "There, add, and back",
                              "; ".join(f"{trip['title']}: " + ", ".join(
                                  f"{name} {number(ms)} ms" for name, ms in trip["steps"].items())
                                  + f"; NumPy {number(trip['numpy_ms'])} ms" for trip in trips) + ".")
    with rc_context(STYLE):
        for ax, trip in zip(axes, trips, strict=True):
            box = ax.get_position()
            ax.set_position((0.25, box.y0, 0.71, box.height))
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
            grid_along(ax, "x")
            panel_title(ax, trip["title"])
        if len(trips) > 1:
            same_limits(axes, "x")
        foot(figure, HERE if on_cpu else "")
    return figure


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
    figure, axes = new_figure([0.40 * len(rows) + 0.1 for rows in present], "Where the time goes", "Time lines: "
                              + "; ".join(panel["title"] for panel in panels), gap=0.92)
    with rc_context(STYLE):
        for ax, panel, rows in zip(axes, panels, present, strict=True):
            box = ax.get_position()
            ax.set_position((0.175, box.y0, 0.795, box.height))
            end = max(event["start_us"] + event["us"] for event in panel["events"])
            scale, unit = (1000, "ms") if end > 3000 else (1, "\u00b5s")
            for event in panel["events"]:
                y, width = rows.index(event["row"]), event["us"] / scale
                colour = _phase_colour(event)
                ax.barh(y, width, left=event["start_us"] / scale, height=0.66, color=colour, edgecolor="white",
                        linewidth=0.6)
                name = event["name"] if event["row"].startswith("ranges") else _event_name(event["name"])
                room = event["us"] / end * 0.795 * WIDTH  # inches
                if room > width_of(name, 9) + 0.06:
                    ax.annotate(name, ((event["start_us"] + event["us"] / 2) / scale, y), ha="center", va="center",
                                fontsize=9, color=INK if colour in ("#DDE1E5", ORANGE, "#C3C9CE") else "white")
            ax.set_ylim(len(rows) - 0.5, -0.6)
            ax.set_yticks(range(len(rows)), [TIMELINE_ROWS[row] for row in rows])
            ax.set_xlim(0, end / scale)
            ax.set_xlabel(unit)
            grid_along(ax, "x")
            panel_title(ax, panel["title"])
        key(figure, [(name, colour) for name, colour in PHASES.items()
                     if any(event["name"] == name for panel in panels for event in panel["events"])])
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
    ("python_us", "ours, from Python", BLUE, "o"),
    ("torch_us", "PyTorch", GREY, "s"),
    ("graph_us", "ours, in a graph", GREEN, "D"),
    ("torch_graph_us", "PyTorch, in a graph", ORANGE, "^"),
)


def launch_cost(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Time of one vector addition among many, over sizes: the launch sets the floor, memory the slope."""
    return lines_over(series, "launch_sizes", recorded, "What a launch costs", "n", LAUNCH_LINES, "elements", bound=12)


COPY_LINES = (
    ("h2d_pageable_us", "there, pageable", VERMILLION, "o"),
    ("d2h_pageable_us", "back, pageable", PURPLE, "s"),
    ("h2d_pinned_us", "there, pinned", BLUE, "D"),
    ("d2h_pinned_us", "back, pinned", GREEN, "^"),
)


def copy_cost(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Time of a copy over its size: a price for the trip, then a price for each byte."""
    return lines_over(series, "copy_sizes", recorded, "What a copy costs", "bytes", COPY_LINES, "bytes")


def lines_over(series: dict, name: str, recorded: dict | None | str, title: str, x: str, lines, x_label: str,
               bound: int | None = None) -> CourseFigure:
    """Microseconds over sizes, both axes logarithmic: the recording of this name, then what this machine's GPU
    measured. bound: bytes an element, for the time that memory needs."""
    panels, below = gpu_panels(series, name, recorded)
    if not panels:
        return unrecorded(title)
    figure, axes = new_figure([2.8] * len(panels), title, f"{title}: " + "; ".join(f"{taken(panel)}" + "".join(
        f", {words} {number(panel[key][0])} to {number(panel[key][-1])} us" for key, words, *_ in lines
        if panel.get(key)) for panel in panels) + f". {below}")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            leave_right(ax, [words for key, words, *_ in lines if panel.get(key)])
            count_axis(ax, x_label)
            time_axis(ax)
            xs, ends = panel[x], []
            for key, words, colour, marker in lines:
                if panel.get(key):
                    values = [us / 1000 for us in panel[key]]
                    ax.plot(xs, values, color=colour, marker=marker, markeredgewidth=0)
                    ends.append((xs[-1], values[-1], words, TEXT[colour]))
            low = ax.get_ylim()[0]
            known = measure.recorded() if bound else None
            if known is not None and known["machine"]["gpu"] == panel["where"]:
                bandwidth = known["limits"]["bandwidth_gbs"]
                ax.plot(xs, [bound * n / bandwidth / 1e6 for n in xs], color=INK, linestyle=(0, (4, 3)), linewidth=1.1)
                label_x = 3 * low * bandwidth * 1e6 / bound
                ax.annotate("what memory needs", (label_x, 3 * low), xytext=(-7, 4), textcoords="offset points",
                            fontsize=9, ha="right")
            ax.set_ylim(low / 1.6, None)
            ax.set_xlim(xs[0] * 0.75, xs[-1] * 1.35)
            grid_along(ax, "both")
            label_line_ends(ax, ends)
            panel_title(ax, panel_taken(panels, panel))
        foot(figure, below)
    return figure
