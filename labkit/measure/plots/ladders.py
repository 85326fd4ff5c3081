"""What was measured: ladders, and times and rates over sizes.

    ladder(measured)               a bar for each rung, baselines in grey, the hardware's limit as a dashed line
    crossover(series)              vector addition over sizes: from which size the GPU pays
    sizes(series)                  every rung over sizes
    block_shapes(series)           one kernel, many shapes of a block
    traffic(moved, ...)            bytes read and written
    curves(x, lines, ...)          functions of one variable
"""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, NullLocator

from labkit import measure
from labkit._common.tables import number, size_text
from labkit.measure import CPU_DEVICE, Ladder
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    LINES,
    LONGEST_NAME,
    MARKERS,
    ORANGE,
    STYLE,
    TEXT,
    VERMILLION,
    CourseFigure,
    count_axis,
    grid_along,
    here_and_recorded,
    label_line_ends,
    new_figure,
    panel_title,
    shorten,
    taken,
    time_axis,
    where_taken,
    widen_left,
)
from labkit.measure.roofline import PEAK_NAMES

# --- A ladder ------------------------------------------------------------------------------------------------------


def ladder(measured: Ladder, recorded: Ladder | None | str = "auto") -> CourseFigure:
    """A bar for each rung, slowest idea first, baselines below in grey.

    On a GPU the bars are GB/s or TFLOP/s, with the limit. On the CPU device they are times, and the recorded ladder of
    a GPU stands below; recorded=None leaves it out.
    """
    if recorded == "auto":
        recorded = None if measured.on_gpu else measure.recorded_ladder(measured.op)
    panels = here_and_recorded(measured, recorded)
    figure, axes = new_figure([0.36 * len(panel.rows) + 0.15 for panel in panels], measured.title,
                              f"Ladder of {measured.op}: " + "; ".join(
                                  f"{row.name} {number(row.timing.p50)} ms" for row in measured.rows)
                              + f". {where_taken(measured.where, measured.machine.get('date'))}.")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            _ladder_panel(ax, panel, [row.name for shown in panels for row in shown.rows])
    return figure


def _ladder_panel(ax, panel: Ladder, names: list[str]) -> None:
    rows = panel.rows
    rates = [panel.rate(row) for row in rows]
    show_rate = panel.on_gpu and all(rate is not None for rate in rates)
    values = rates if show_rate else [row.timing.p50 for row in rows]
    widen_left(ax, names)
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
                    color="white" if inside and row.kind == "rung" else INK,
                    bbox={"facecolor": BLUE, "edgecolor": "none", "pad": 2} if inside and row.failed else None)
        ax.annotate(shorten(row.name, LONGEST_NAME), (0, y), xytext=(-8, 0), textcoords="offset points", ha="right",
                    va="center", fontsize=9, color=INK if row.kind == "rung" else FAINT, annotation_clip=False)
    ax.set_ylim(len(rows) - 0.45, -0.95 if show_rate else -0.55)
    ax.set_yticks([])
    ax.set_xlim(0, longest * 1.06)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if show_rate:
        _limit_line(ax, panel)
    grid_along(ax, "x")
    ax.set_xlabel(panel.unit if show_rate else "milliseconds (shorter is faster)")
    panel_title(ax, f"{where_taken(panel.where, panel.machine.get('date'))}; {size_text(panel.size)}")


def _limit_line(ax, panel: Ladder) -> None:
    ax.axvline(panel.limit, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
    what = "copy bandwidth" if panel.binds == "bytes" else PEAK_NAMES[panel.peak]
    ax.annotate(f"limit: {what}, {number(panel.limit)}", (panel.limit, 1), xycoords=("data", "axes fraction"),
                xytext=(-6, -1), textcoords="offset points", ha="right", va="top", fontsize=8.5, color=INK)


# --- Over sizes ----------------------------------------------------------------------------------------------------

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
    recorded = measure.recorded_beside(series, "vector_add_sizes", recorded)
    panels = here_and_recorded(series, recorded)
    figure, axes = new_figure([2.9] * len(panels), "Vector addition over sizes",
                              "Time of a vector addition over sizes, " + taken(series))
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            box = ax.get_position()
            ax.set_position((0.095, box.y0, 0.705, box.height))
            ns = panel["n"]
            count_axis(ax)
            time_axis(ax)
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
                    ax.annotate(_rounded(n), (n, ms), xytext=(0, -16), textcoords="offset points", ha="center",
                                fontsize=8.5, color=TEXT[colour])
            grid_along(ax, "both")
            label_line_ends(ax, [(ns[-1], panel[key][-1], name, TEXT[colour])
                                 for key, name, colour, _ in lines])
            panel_title(ax, taken(panel)
                        + (". Circled: faster than NumPy from here on" if circled else ""))
    return figure


def crossing(ns: list, ours: list | None, theirs: list) -> tuple[float | None, float | None]:
    """Where `ours` falls below `theirs` for good, interpolated on log axes; (None, None) if it does not happen.

    Within 5 % at the largest size is a tie, not a win.
    """
    if not ours:
        return None, None
    gap = np.log(ours) - np.log(theirs)
    if gap[-1] >= np.log(0.95) or gap[0] <= 0:
        return None, None
    last = int(np.flatnonzero(gap > 0)[-1])
    share = gap[last] / (gap[last] - gap[last + 1])

    def between(values):
        return float(np.exp(np.log(values[last]) * (1 - share) + np.log(values[last + 1]) * share))

    return between(ns), between(theirs)


def _rounded(n: float) -> str:
    scale, unit = (1e6, "M") if n >= 1e6 else (1e3, "k")
    return f"{float(f'{n / scale:.2g}'):g}{unit}"


def sizes(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Every rung over sizes, baselines in grey: TFLOP/s or GB/s on a GPU, times on the CPU device."""
    recorded = measure.recorded_beside(series, f"{series['op']}_sizes", recorded)
    panels = here_and_recorded(series, recorded)
    figure, axes = new_figure([2.9] * len(panels), f"{series['title']} over sizes",
                              f"{series['title']} over sizes, " + taken(series))
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            box = ax.get_position()
            ax.set_position((0.095, box.y0, 0.665, box.height))
            on_gpu = panel["where"] != CPU_DEVICE
            xs, ends = panel["x"], []
            rung_styles = iter(zip(LINES, MARKERS, strict=True))
            baseline_markers = iter(("P", "X", "s"))
            for line in panel["lines"]:
                if on_gpu and line["kind"] == "host":
                    continue
                values = line["rate"] if on_gpu else line["ms"]
                colour, marker = next(rung_styles) if line["kind"] == "rung" else (GREY, next(baseline_markers))
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
                time_axis(ax)
            grid_along(ax, "y")
            label_line_ends(ax, ends)
            panel_title(ax, taken(panel))
    return figure


# --- Shapes of a block ---------------------------------------------------------------------------------------------


def block_shapes(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """One kernel over shapes of its block: largest blocks first, then by the extent along x, which runs fastest."""
    recorded = measure.recorded_beside(series, "volume_add_block_shapes", recorded)
    panels = here_and_recorded(series, recorded)
    groups = [sorted({int(np.prod(block)) for block in panel["blocks"]}, reverse=True) for panel in panels]
    figure, axes = new_figure([0.235 * (len(panel["blocks"]) + len(counts)) for panel, counts in
                               zip(panels, groups, strict=True)], "The shape of a block",
                              "Shapes of a block, " + taken(series))
    with rc_context(STYLE):
        for ax, panel, counts in zip(axes, panels, groups, strict=True):
            box = ax.get_position()
            ax.set_position((0.155, box.y0, 0.80, box.height))
            on_gpu = panel["where"] != CPU_DEVICE
            values = panel["gbs"] if on_gpu else panel["ms"]
            y, short = 0, []
            for count in counts:
                ax.annotate(f"{count:,} threads", (0, y), xytext=(4, 0), textcoords="offset points", va="center",
                            fontsize=8.5, color=FAINT)
                chosen = [(block, value) for block, value in zip(panel["blocks"], values, strict=True)
                          if np.prod(block) == count]
                for block, value in sorted(chosen, reverse=True):
                    y += 1
                    full_sectors = block[0] >= 8
                    ax.barh(y, value, height=0.7, color=BLUE if full_sectors or not on_gpu else ORANGE)
                    ax.annotate(number(value), (value, y), xytext=(4, 0), textcoords="offset points", va="center",
                                fontsize=8.5)
                    ax.annotate(" \u00d7 ".join(str(b) for b in block), (0, y), xytext=(-6, 0), va="center", ha="right",
                                textcoords="offset points", fontsize=8.5, annotation_clip=False)
                    if not full_sectors:
                        short.append((value, y))
                y += 1
            ax.set_ylim(y - 0.4, -0.6)
            ax.set_yticks([])
            ax.set_xlim(0, 1.10 * max([*values, panel["limit"]] if on_gpu else values))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            if on_gpu:
                ax.axvline(panel["limit"], color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
                ax.annotate(f"limit: copy bandwidth, {number(panel['limit'])}", (panel["limit"], 1),
                            xycoords=("data", "axes fraction"), xytext=(-6, -1), textcoords="offset points",
                            ha="right", va="top", fontsize=8.5)
            ax.set_xlabel("GB/s" if on_gpu else "milliseconds (shorter is faster)")
            grid_along(ax, "x")
            panel_title(ax, f"{taken(panel)}; {size_text(panel['size'])}. "
                            f"Block: x \u00d7 y \u00d7 z threads")
            if on_gpu and short:
                value, y = min(short)
                ax.annotate("x shorter than 8: a warp uses only part of each 32-byte sector", (value, y),
                            xytext=(40, 0), textcoords="offset points", va="center", fontsize=8.5, color=TEXT[ORANGE])
    return figure


# --- Bytes moved, and functions of one variable --------------------------------------------------------------


def traffic(moved: dict[str, tuple[float, float]], title: str, unit: str, least: float | None = None,
            place: str = "") -> CourseFigure:
    """Bars of what is read and what is written: name -> (read, written), in `unit`; a line at the least possible."""
    figure, (ax,) = new_figure([0.40 * len(moved) + 0.12], title, f"{title}: " + "; ".join(
        f"{name} {number(read)} and {number(written)} {unit}" for name, (read, written) in moved.items()) + ".")
    with rc_context(STYLE):
        widen_left(ax)
        longest = max(sum(both) for both in moved.values())
        for y, (name, (read, written)) in enumerate(moved.items()):
            ax.barh(y, read, height=0.62, color=BLUE)
            ax.barh(y, written, left=read, height=0.62, color=ORANGE)
            ax.annotate(f"{number(read)} + {number(written)}", (read + written, y), xytext=(5, 0), va="center",
                        textcoords="offset points", fontsize=9)
            ax.annotate(name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=9,
                        annotation_clip=False)
        ax.set_ylim(len(moved) - 0.45, -0.55)
        ax.set_yticks([])
        ax.set_xlim(0, 1.22 * longest)
        ax.set_xlabel(unit)
        if least is not None:
            ax.axvline(least, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
        grid_along(ax, "x")
        ax.annotate("read", (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", fontsize=9,
                    color=TEXT[BLUE], fontweight="bold")
        ax.annotate("written", (0, 1), xycoords="axes fraction", xytext=(34, 6), textcoords="offset points", fontsize=9,
                    color=TEXT[ORANGE], fontweight="bold")
        note = ". ".join(filter(None, (place, "Dashed: the least that has to move" if least else "")))
        ax.annotate(note, (1, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", fontsize=8.5,
                    color=FAINT, ha="right")
    return figure


def curves(x, lines: dict, title: str, x_label: str, y_label: str, *, log_x: bool = False, log_y: bool = False,
           place: str = "", marks: bool = False) -> CourseFigure:
    """Functions of one variable: name -> values over `x`; what is not finite is left out. Names of several stand at the
    right ends. Where the points are marked, a logarithmic x axis is numbered at them."""
    figure, (ax,) = new_figure([2.9], title, f"{title}: {', '.join(lines)} over {x_label}. {place}".strip())
    with rc_context(STYLE):
        box = ax.get_position()
        ax.set_position((0.125, box.y0, 0.655 if len(lines) > 1 else 0.83, box.height))
        ends = []
        for (name, values), colour, marker in zip(lines.items(), LINES, MARKERS, strict=False):
            values = np.asarray(values, np.float64)
            ax.plot(x, values, color=colour, marker=marker if marks else None, markeredgewidth=0)
            last = np.flatnonzero(np.isfinite(values))[-1]
            ends.append((x[last], values[last], name, TEXT[colour]))
        if log_x:
            ax.set_xscale("log")
            ax.xaxis.set_minor_locator(NullLocator())
            if marks:
                ax.set_xticks(x, [f"{at:,g}" for at in x])
        if log_y:
            ax.set_yscale("log")
            ax.yaxis.set_minor_locator(NullLocator())
            if all(np.nanmin(values) >= 1 for values in lines.values()):
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        grid_along(ax, "y")
        if len(lines) > 1:
            ax.get_ylim()  # settles the limits, which the names' places depend on
            label_line_ends(ax, ends)
        if place:
            panel_title(ax, place)
    return figure
