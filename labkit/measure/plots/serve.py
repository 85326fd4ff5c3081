"""The figures of a server under load, in the course's style. A run is one as labkit.measure.serving.command.of_run
makes it; a series or a file of `labkit bench serve` holds several.

    load(found)               both of those below, of what a file holds
    distributions(runs)       TTFT and ITL: which part of the requests, or of the gaps, was at least as quick
    against_rate(runs)        throughput and latency over the rate at which requests arrive
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    LINES,
    MARKERS,
    STYLE,
    TEXT,
    VERMILLION,
    CourseFigure,
    foot,
    grid_along,
    label_line_ends,
    new_figure,
    panel_title,
    taken,
)
from labkit.measure.serving.results import CURVE, NAMES

HEIGHT = 2.1  # inches of a panel
RIGHT = 0.20  # of the figure's width, for the names at the lines' ends
GLYPHS = dict(zip(MARKERS, "\u25cf\u25a0\u25c6\u25b2\u25bc", strict=True))  # the markers, as characters of a name


def load(series: Mapping) -> CourseFigure:
    """Of a file of `labkit bench serve`: the distributions, and below them, where several rates were measured, the
    curves over the rate."""
    runs = answered(series["runs"])
    over_rate = len(with_rates(runs)) > 1
    panels = 4 if over_rate else 2
    figure, axes = new_figure([HEIGHT] * panels, f"{series['model_id']} under load", _summary(runs, series), gap=1.0)
    with rc_context(STYLE):
        _distribution(axes[0], runs, "ttft")
        _distribution(axes[1], runs, "itl")
        if over_rate:
            _throughput(axes[2], with_rates(runs))
            _latency(axes[3], with_rates(runs))
        foot(figure, taken(series))
    return figure


def distributions(series: Mapping, runs: Sequence[Mapping] | None = None) -> CourseFigure:
    runs = answered(runs if runs is not None else series["runs"])
    figure, axes = new_figure([HEIGHT] * 2, "How quick most answers are", _summary(runs, series), gap=1.0)
    with rc_context(STYLE):
        _distribution(axes[0], runs, "ttft")
        _distribution(axes[1], runs, "itl")
        foot(figure, taken(series))
    return figure


def against_rate(series: Mapping, runs: Sequence[Mapping] | None = None) -> CourseFigure:
    runs = with_rates(answered(runs if runs is not None else series["runs"]))
    figure, axes = new_figure([HEIGHT] * 2, "Throughput and latency over the rate of arrivals", _summary(runs, series),
                              gap=1.0)
    with rc_context(STYLE):
        _throughput(axes[0], runs)
        _latency(axes[1], runs)
        foot(figure, taken(series))
    return figure


def answered(runs: Sequence[Mapping]) -> list[Mapping]:
    """Those in which a request was answered: of the others there is nothing to draw."""
    completed = [run for run in runs if run["completed"]]
    if not completed:
        raise ValueError("no run has an answer: there is nothing to draw")
    return completed


def with_rates(runs: Sequence[Mapping]) -> list[Mapping]:
    """Those with a finite rate of arrivals, the lowest first."""
    return sorted((run for run in runs if isinstance(run["request_rate"], int | float)),
                  key=lambda run: run["request_rate"])


def _summary(runs: Sequence[Mapping], series: Mapping) -> str:
    return "; ".join(
        f"{run['name']}: {run['output_throughput']:,.0f} tokens/s, TTFT p50 {number(run['median_ttft_ms'])} and p99 "
        f"{number(run['p99_ttft_ms'])} ms" + ("" if run["median_itl_ms"] is None else
                                              f", ITL p50 {number(run['median_itl_ms'])} and p99 "
                                              f"{number(run['p99_itl_ms'])} ms") for run in runs
                                              ) + f". {taken(series)}."


def _leave_right(ax) -> None:
    box = ax.get_position()
    ax.set_position((box.x0, box.y0, box.width - RIGHT, box.height))


def _distribution(ax, runs: Sequence[Mapping], name: str) -> None:
    """A line for each run, from its quickest to its slowest; the axis of milliseconds is logarithmic."""
    quantity, noun = (("From one event to the next", "gaps") if name == "itl" else  # an event may hold several tokens
                      (NAMES[name], "requests"))
    panel_title(ax, f"{quantity}, {name.upper()}: the part of the {noun} in which it was no longer")
    _leave_right(ax)
    ax.set_xscale("log")
    curves = [(run["name"], run[f"{name}_curve"]) for run in runs if run[f"{name}_curve"]]
    p99 = max((curve[CURVE.index(99)] for _, curve in curves), default=1.0)
    for i, (label, curve) in enumerate(curves):
        colour, marker = LINES[i % len(LINES)], MARKERS[i % len(MARKERS)]
        ax.plot(curve, [each / 100 for each in CURVE], color=colour, marker=marker, markersize=6, markeredgewidth=0,
                markevery=[CURVE.index(each) for each in (25, 50, 75)])
        # All lines end at 100 %: their names stand beside the panel from the top, in the lines' order.
        ax.annotate(f"{GLYPHS[marker]} {label}", (1.0, 0.95 - 0.11 * i), xycoords="axes fraction", xytext=(8, 0),
                    va="center", textcoords="offset points", fontsize=9, color=TEXT[colour], annotation_clip=False)
    low = min((curve[CURVE.index(5)] for _, curve in curves), default=0.1)
    ax.set_xlim(max(0.01, 0.8 * low), max(1.6 * p99, 3 * max(0.01, low)))  # the slowest hundredth may leave the panel
    ax.set_ylim(0, 1.03)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    _milliseconds(ax.xaxis)
    ax.set_xlabel("milliseconds")
    grid_along(ax, "both")


def _milliseconds(axis) -> None:
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())


def _throughput(ax, runs: Sequence[Mapping]) -> None:
    """Output tokens a second; the dashed line is what was asked for, where the server keeps up with it."""
    panel_title(ax, "Output tokens per second")
    _leave_right(ax)
    rates = [run["request_rate"] for run in runs]
    offered = [run["request_rate"] * run["total_output_tokens"] / run["completed"] for run in runs]
    achieved = [run["output_throughput"] for run in runs]
    ax.plot(rates, offered, color=GREY, linestyle=(0, (4, 3)), linewidth=1.3)
    ax.plot(rates, achieved, color=BLUE, marker="o", markeredgewidth=0)
    ax.set_ylim(0, 1.08 * max(*offered, *achieved))
    ends = [(rates[-1], offered[-1], "asked for", FAINT), (rates[-1], achieved[-1], "delivered", TEXT[BLUE])]
    good = [(run["request_rate"], run["request_goodput"] * run["total_output_tokens"] / run["completed"])
            for run in runs if run.get("request_goodput") is not None]
    if good:
        ax.plot(*zip(*good, strict=True), color=LINES[2], marker="s", markeredgewidth=0)
        ends.append((*good[-1], "within the SLO", TEXT[LINES[2]]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _finish(ax, rates, ends)


def _latency(ax, runs: Sequence[Mapping]) -> None:
    panel_title(ax, "Milliseconds")
    _leave_right(ax)
    rates, ends = [run["request_rate"] for run in runs], []
    ax.set_yscale("log")
    for name, colour in (("ttft", VERMILLION), ("itl", BLUE)):
        for i, (part, label, style) in enumerate((("median", "p50", "-"), ("p99", "p99", (0, (4, 2))))):
            points = [(rate, run[f"{part}_{name}_ms"]) for rate, run in zip(rates, runs, strict=True)
                      if run[f"{part}_{name}_ms"]]
            if points:
                ax.plot(*zip(*points, strict=True), color=colour, linestyle=style, marker=MARKERS[i],
                        markeredgewidth=0)
                ends.append((*points[-1], f"{name.upper()} {label}", TEXT[colour]))
    _milliseconds(ax.yaxis)
    _finish(ax, rates, ends)


def _finish(ax, rates: Sequence[float], ends: list[tuple]) -> None:
    margin = 0.04 * (rates[-1] - rates[0]) or 0.1 * rates[0]
    ax.set_xlim(rates[0] - margin, rates[-1] + margin)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("requests a second that arrive", color=INK)
    grid_along(ax, "both")
    ax.get_ylim()  # settles the limits, which the names' places depend on
    label_line_ends(ax, ends)
