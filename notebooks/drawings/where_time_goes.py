"""The figures and tables of the lesson "Where the time goes".

    timeline(panel, ...)    ranges, driver calls and the GPU's work as bars along time
    copy_cost(series)       what a copy costs, over sizes
    trips_table(...)        the parts of a small product: the notebook's, recorded and taken here
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit import measure
from labkit._common.tables import PlainTable, number
from labkit.measure.plots.lines import lines_over
from labkit.measure.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    STYLE,
    VERMILLION,
    WIDTH,
    CourseFigure,
    grid_along,
    key,
    new_figure,
    panel_title,
    width_of,
)
from labkit.measure.series.overheads import trace

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
    figure, axes = new_figure([0.40 * len(rows) + 0.1 for rows in present],
                              "For most of the time the GPU waits for its host",
                              "Time lines: " + "; ".join(panel["title"] for panel in panels), gap=0.92)
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


COPY_LINES = (
    ("h2d_pageable_us", "there, pageable", VERMILLION, "o"),
    ("d2h_pageable_us", "back, pageable", PURPLE, "s"),
    ("h2d_pinned_us", "there, pinned", BLUE, "D"),
    ("d2h_pinned_us", "back, pinned", GREEN, "^"),
)


def copy_cost(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Time of a copy over its size: a price for the trip, then a price for each byte."""
    return lines_over(series, "copy_sizes", recorded, "A copy pays for its start, then for its bytes", "bytes",
                      COPY_LINES, "bytes")


# What the notebook that this lesson follows read from nsys for a matrix product in CUDA C++, in a cold process.
SOURCE_US = {"matrix product": 125_366.415, "allocate": 125_357.659, "copy to the device": 3.330, "kernel": 3.652,
             "copy to the host": 0.110, "free": 0.140}


def trips_table(first: list[dict], second: list[dict], recorded: dict | None = None) -> PlainTable:
    """The parts of the small product in microseconds: the notebook's, a recorded GPU's cold and warm, and two trips
    taken here, each as Ranges.to_json() gives it."""
    recorded = recorded or measure.recorded_series("cold_start", gpu="NVIDIA H200")
    columns = [SOURCE_US, *({one["path"][-1]: 1000 * one["ms"] for one in trip}
                            for trip in (recorded["trips"][0], recorded["trips"][-1], first, second))]
    rows = [(part, *(number(column.get(part)) for column in columns)) for part in SOURCE_US]
    gpu = recorded["where"].removeprefix("NVIDIA ")
    notes = ["Microseconds, by the host's clock. That notebook timed with nsys; its ranges do not wait for the device.",
             f"Here: {measure.where()}.",
             f"{recorded['where']}, {recorded['date']}: a fresh process; before the first range it imported "
             f"labkit and Numba ({recorded['import_ms']:,.0f} ms)."]
    return PlainTable("A small product, end to end", ("part", "that notebook, cold", f"{gpu}, cold", f"{gpu}, warm",
                                                      "here, first", "here, second"), tuple(rows), tuple(notes))


def trace_panel(series: dict | None = None) -> dict:
    """The trace taken here, or else the recorded one, as a panel of timeline()."""
    series = series or trace() or measure.recorded_series("trace", gpu="NVIDIA H200")
    return {"title": f"Measured on {series['where']}, {series['date']}: warm, by PyTorch's profiler",
            "events": [_named(event) for event in series["events"]]}


def _named(event: dict) -> dict:
    """The profiler's exporter writes "Kernel" for a range called "kernel"."""
    return {**event, "name": event["name"].lower()} if event["row"].startswith("ranges") else event
