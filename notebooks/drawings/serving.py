"""The figures of the lesson "Serving", in the course's style.

    curves(xs, panels, title, along)    lines over a number that was varied, a panel for each quantity
    waits(panels, title)                how long each request waited for its first token, over its arrival
    window()                            a picture of the server's page, with the engine at work
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, NullLocator

from labkit._common.paths import ASSETS
from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    INK,
    LINES,
    MARKERS,
    STYLE,
    TEXT,
    VERMILLION,
    CourseFigure,
    count_of,
    grid_along,
    key,
    label_line_ends,
    leave_right,
    new_figure,
    panel_title,
    time_axis,
)


def curves(xs: Sequence[float], panels: Mapping[str, Mapping[str, Sequence[float]]], title: str, along: str, *,
           doubling: bool = False, mark: float | None = None) -> CourseFigure:
    """Plot panels: y-axis label -> line name -> its values at xs. doubling: each x is twice the one before,
    and the values are milliseconds on a logarithmic axis. mark: an x with a dashed line."""
    for panel, lines in panels.items():
        for name, values in lines.items():
            if len(values) != len(xs):
                raise ValueError(f"{panel}: {name!r} has {len(values)} values, and there are {len(xs)} of {along}")
    figure, axes = new_figure([1.75] * len(panels), title, "; ".join(
        f"{panel}: " + ", ".join(f"{name} from {number(values[0])} to {number(values[-1])}"
                                 for name, values in lines.items()) for panel, lines in panels.items()) + ".", gap=0.55)
    with rc_context(STYLE):
        for ax, (panel, lines) in zip(axes, panels.items(), strict=True):
            leave_right(ax, lines, 0.115)
            if doubling:
                ax.set_xscale("log", base=2)
                time_axis(ax)
            ends = []
            for (name, values), colour, marker in zip(lines.items(), LINES, MARKERS, strict=False):
                ax.plot(xs, values, color=colour, marker=marker, markeredgewidth=0)
                ends.append((xs[-1], values[-1], name, TEXT[colour]))
            if mark is not None:
                ax.axvline(mark, color=INK, linestyle=(0, (4, 3)), linewidth=1.1)
            if not doubling:
                ax.set_ylim(0, 1.08 * max(max(values) for values in lines.values()))
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            ax.set_xticks(xs, [f"{x:,.0f}" if doubling else f"{x:g}" for x in xs])
            ax.xaxis.set_minor_locator(NullLocator())
            ax.tick_params(labelbottom=ax is axes[-1])
            grid_along(ax, "y")
            label_line_ends(ax, ends)
            panel_title(ax, panel)
        axes[-1].set_xlabel(along)
    return figure


def waits(panels: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[bool]]],
          title: str = "Who waits") -> CourseFigure:
    """panels: a policy -> of each request its arrival and its time to the first token, in milliseconds, and whether its
    prompt is long. One scale for all."""
    tallest = max(max(ttft) for _, ttft, _ in panels.values())
    figure, axes = new_figure([1.2] * len(panels), title, "; ".join(
        f"{name}: {count_of(len(ttft), 'request')}, mean {number(float(np.mean(ttft)))} ms, longest "
        f"{number(float(np.max(ttft)))} ms" for name, (_, ttft, _) in panels.items()) + ".", gap=0.45)
    with rc_context(STYLE):
        for ax, (name, (arrivals, ttft, long)) in zip(axes, panels.items(), strict=True):
            long = np.asarray(long, bool)
            for which, colour, size in ((~long, BLUE, 9), (long, VERMILLION, 22)):
                ax.scatter(np.asarray(arrivals)[which] / 1e3, np.asarray(ttft)[which], s=size, color=colour,
                           linewidths=0)
            mean = float(np.mean(ttft))
            ax.axhline(mean, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
            ax.set_ylim(0, 1.08 * tallest)
            ax.set_ylabel("ms")
            ax.tick_params(labelbottom=ax is axes[-1])
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            grid_along(ax, "y")
            panel_title(ax, f"{name}: mean {mean:,.0f} ms (dashed), longest {np.max(ttft):,.0f} ms")
        axes[-1].set_xlabel("arrival, s")
        key(figure, [("short prompt", BLUE), ("long prompt", VERMILLION)])
    return figure


class Picture:
    """A picture from a file, which shows itself in a notebook. summary: the alternative text."""

    def __init__(self, content: bytes, width: int, summary: str):
        self.content, self.width, self.summary = content, width, summary

    def _repr_mimebundle_(self, include=None, exclude=None):
        encoded = base64.b64encode(self.content).decode()
        return {"image/png": encoded, "text/plain": self.summary}, {"image/png": {"width": self.width}}

    def __repr__(self) -> str:
        return self.summary


def window() -> Picture:
    return Picture((ASSETS / "window.png").read_bytes(), 830, (
        "The window: a chat that is being answered; the step that is computed, with its sequences; the seats with the "
        "pages of each; a map of all pages, where those that several sequences hold have a bold frame; and curves of "
        "throughput and latency over the last two minutes."))
