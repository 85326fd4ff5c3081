"""Lines over sizes, as several lessons draw them.

    lines_over(series, name, ...)        microseconds over sizes, with what memory needs
    attention_over(series, ...)          attention's forms over a length
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit import measure
from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    STYLE,
    TEXT,
    VERMILLION,
    CourseFigure,
    count_axis,
    foot,
    gpu_panels,
    grid_along,
    label_line_ends,
    leave_right,
    new_figure,
    panel_taken,
    panel_title,
    taken,
    time_axis,
    unrecorded,
)


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


LENGTH_LINES = {"three passes": (PURPLE, "v", "-"), "whole matrix": (VERMILLION, "D", "-"), "flash": (BLUE, "o", "-"),
                "flash, f16": (BLUE, "o", ":"), "decode": (GREEN, "^", "-"), "decode, f16": (GREEN, "^", ":"),
                "SDPA": (GREY, "s", "-"), "SDPA, f16": (GREY, "s", ":"), "linear, quadratic": (PURPLE, "v", "-"),
                "linear, running": (ORANGE, "^", "-"), "linear, chunked": (GREEN, "D", "-")}


def attention_over(series: dict, recorded: dict | None | str, name: str, x: str, title: str, x_label: str,
                   mask: str | None = None) -> CourseFigure:
    """A line for each form of attention, milliseconds, both axes logarithmic."""
    panels, below = gpu_panels(series, name, recorded)
    if not panels:
        return unrecorded(title)
    figure, axes = new_figure([3.1] * len(panels), title, f"{title}: " + "; ".join(
        f"{taken(panel)}, {x} from {panel[x][0]:,} to {panel[x][-1]:,}" for panel in panels) + f". {below}")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            leave_right(ax, [line["name"] for line in panel["lines"]], 0.115)
            count_axis(ax, x_label)
            time_axis(ax)
            ends, last = [], panel[x][-1]
            for line in panel["lines"]:
                if mask is not None and line["mask"] != mask:
                    continue
                colour, marker, style = LENGTH_LINES[line["name"]]
                points = [(n, us / 1000) for n, us in zip(panel[x], line["us"], strict=True) if us is not None]
                ax.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=style, markeredgewidth=0)
                if points[-1][0] == last:
                    ends.append((*points[-1], line["name"], TEXT[colour]))
                else:
                    ax.annotate(line["name"], points[-1], xytext=(6, 3), textcoords="offset points", fontsize=9,
                                color=TEXT[colour])
            ax.set_xlim(panel[x][0] * 0.8, last * 1.2)
            ax.set_xticks(panel[x], [f"{n:,}" for n in panel[x]])
            grid_along(ax, "both")
            ax.get_ylim()  # settles the limits, which the names' places depend on
            label_line_ends(ax, ends)
            panel_title(ax, panel_taken(panels, panel))
        foot(figure, below)
    return figure
