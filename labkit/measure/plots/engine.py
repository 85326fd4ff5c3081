"""The figures of the Llama engine's measurements, in the course's style.

    decode_steps(series)       the time of a step over the number of its sequences, with the bound from its bytes
    seats(series)              which request holds each seat over the time of a run, static or continuous
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    GREY,
    INK,
    LINES,
    ORANGE,
    PALE,
    PURPLE,
    STYLE,
    TEXT,
    CourseFigure,
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

COMPARED = ("contiguous, static", "contiguous, continuous")
TORCH_LINES = (("eager, in a graph", "PyTorch", ORANGE, "v"), ("compiled, in a graph", "PyTorch, compiled", GREY, "s"))


def decode_steps(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Milliseconds of a step over its sequences, both axes logarithmic."""
    panels, below = gpu_panels(series, "llama_decode", recorded)
    if not panels:
        return unrecorded(f"One more token for sequences of {series['tokens']:,}")
    figure, axes = new_figure([3.0] * len(panels), f"One more token for sequences of {panels[0]['tokens']:,}",
                              "Milliseconds of a step in a graph: " + ". ".join("; ".join(
                                  f"{row['sequences']} sequences {number(row['ms']['p50'])}" for row in panel["rows"])
                              + f". {taken(panel)}" for panel in panels) + f". {below}")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            leave_right(ax, ["called from Python", "bound from its bytes", "PyTorch, compiled"])
            rows = panel["rows"]
            counts = [row["sequences"] for row in rows]
            ax.set_xscale("log", base=2)
            time_axis(ax)
            ends = [_line(ax, counts, [row["called_ms"] for row in rows], "called from Python", PURPLE, "D"),
                    _line(ax, counts, [row["ms"]["p50"] for row in rows], "in a graph", BLUE, "o")]
            for key, name, colour, marker in TORCH_LINES:
                points = [(row["sequences"], row["torch"][key]) for row in rows
                          if row["torch"] and row["torch"].get(key) is not None]
                if points:
                    ends.append(_line(ax, *zip(*points, strict=True), name, colour, marker))
            if all("bound_ms" in row for row in rows):
                bound = [row["bound_ms"] for row in rows]
                ax.plot(counts, bound, color=INK, linestyle=(0, (4, 3)), linewidth=1.1)
                ends.append((counts[-1], bound[-1], "bound from its bytes", INK))
            _finish_counts(ax, counts)
            label_line_ends(ax, ends)
            panel_title(ax, panel_taken(panels, panel))
        foot(figure, below)
    return figure


def _line(ax, xs, values, name: str, colour: str, marker: str) -> tuple:
    ax.plot(xs, values, color=colour, marker=marker, markeredgewidth=0)
    return xs[-1], values[-1], name, TEXT[colour]


def _finish_counts(ax, counts: Sequence[int]) -> None:
    ax.set_xticks(counts, [f"{count:,}" for count in counts])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_formatter(NullFormatter())
    low, high = ax.get_ylim()
    ticks = [base * 10.0**power for power in range(-3, 5) for base in ((1, 2, 5) if high > 4 * low else range(1, 10))]
    ax.set_yticks([tick for tick in ticks if low <= tick <= high])
    ax.set_ylim(low, high)
    ax.set_xlim(counts[0] * 0.8, counts[-1] * 1.25)
    ax.set_xlabel("sequences in the step")
    grid_along(ax, "both")
    ax.get_ylim()  # settles the limits, which the names' places depend on


def seats(series: dict, names: Sequence[str] = COMPARED) -> CourseFigure:
    """A row for each seat and a bar for each stay of a request, coloured only to tell neighbours apart. A vertical line
    marks the end of the run. All panels share the time axis."""
    rows = {row["name"]: row for row in series["rows"]}
    chosen = [rows[name] for name in names]
    end = max(row["seconds"] for row in chosen)
    figure, axes = new_figure([max(1.0, min(2.4, 0.16 * row["most_sequences"])) for row in chosen], "Seats over time",
                              "; ".join(map(_of_run, chosen)) + f". {taken(series)}.", gap=0.82)
    with rc_context(STYLE):
        for ax, row in zip(axes, chosen, strict=True):
            spans = row["spans"]
            for seat, request, begin, stop in zip(*(spans[key] for key in ("seat", "request", "begin", "end")),
                                                  strict=True):
                colour = LINES[request % len(LINES)]
                ax.barh(seat, stop - begin, left=begin, height=0.78, color=PALE.get(colour, "#F3D9CC"),
                        edgecolor=colour, linewidth=0.5)
            ax.axvline(row["seconds"], color=INK, linewidth=1.1)
            count = row["most_sequences"]
            ax.set_ylim(count - 0.4, -0.6)
            ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            ax.set_ylabel("seat")
            ax.set_xlim(0, 1.02 * end)
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            grid_along(ax, "x")
            panel_title(ax, _of_run(row))
        axes[-1].set_xlabel("seconds")
        foot(figure, taken(series))
    return figure


def _of_run(row: dict) -> str:
    """Its time and rate; where the seats limited the batch, also the part of their time that is empty."""
    text = f"{row['name']}: {number(row['seconds'])} s, {row['tokens_per_second']:,.0f} tokens a second"
    if row["most_sequences"] < row["seats"]:
        return text
    spans = row["spans"]
    busy = sum(end - begin for begin, end in zip(spans["begin"], spans["end"], strict=True))
    return f"{text}; seats are empty for {max(0.0, 1 - busy / (row['seconds'] * row['seats'])):.0%} of the time"
