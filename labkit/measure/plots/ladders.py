"""What was measured: ladders, and times and rates over sizes.

    ladder(measured)               a bar for each rung, baselines in grey, the hardware's limit as a dashed line
    climbs(ladders)                every rung of several operations, beside the fastest library of each
    crossover(series)              vector addition over sizes: from which size the GPU pays
    sizes(series)                  every rung over sizes
    block_shapes(series)           one kernel, many shapes of a block
    traffic(moved, ...)            bytes read and written
    curves(x, lines, ...)          functions of one variable
"""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from labkit import measure
from labkit._common.tables import number, size_text
from labkit.measure import Ladder, comparisons
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREY,
    HERE,
    INK,
    LINES,
    LONGEST_NAME,
    MARKERS,
    ORANGE,
    PALE,
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
    of_the_course,
    panel_taken,
    panel_title,
    percent,
    shorten,
    taken,
    time_axis,
    unrecorded,
    where_taken,
    widen_left,
)
from labkit.measure.roofline import PEAK_NAMES

# --- A ladder ------------------------------------------------------------------------------------------------------


def ladder(measured: Ladder, recorded: Ladder | None | str = "auto") -> CourseFigure:
    """A bar for each rung, slowest idea first, baselines below in grey: GB/s or TFLOP/s, longer is better, with the
    hardware's limit.

    They are those that a GPU recorded. What this machine's GPU measured stands beside them, bar by bar. What the CPU
    device measured is no speed and has no bar: a line below says so. recorded=None leaves the recorded ones out.
    """
    if recorded == "auto":
        recorded = of_the_course(measure.recorded_ladder, measured.op)
    if not measured.on_gpu:
        if recorded is None:
            return unrecorded(measured.title, [(row.name, f"{number(row.timing.p50)} ms") for row in measured.rows])
        panels, below = [recorded], HERE
    else:
        both = recorded is not None and recorded != measured and recorded.unit == measured.unit
        panels, below = [recorded, measured] if both else [measured], ""
    first_panel = panels[0]
    rows = list({row.name: row for panel in panels for row in panel.rows if panel.rate(row) is not None}.values())
    rows.sort(key=lambda row: row.kind != "rung")  # a rung that only this machine has still stands among the rungs
    text = "; ".join(f"{panel.op}: " + ", ".join(f"{row.name} {number(panel.rate(row))} {panel.unit}" for row in
                     panel.rows if panel.rate(row) is not None) + f". {_place(panel)}" for panel in panels)
    figure, (ax,) = new_figure([0.36 * len(rows) * (1.0 if len(panels) == 1 else 1.5) + 0.28], first_panel.title,
                               f"Ladder of {text}. {below}".strip())
    with rc_context(STYLE):
        _ladder_panel(ax, panels, rows)
        if len(panels) == 1:
            panel_title(ax, _place(first_panel))
        else:
            _two_places(ax, panels)
        foot(figure, below)
    return figure


def climbs(ladders: list[Ladder]) -> CourseFigure:
    """A line for each operation and a dot for each rung, in the order of the ladder: its speed over that of the fastest
    library. All were recorded on one GPU."""
    text, first = [], ladders[0]
    figure, (ax,) = new_figure([0.42 * len(ladders) + 0.2], "Every rung beside the fastest library", "")
    with rc_context(STYLE):
        widen_left(ax, [one.op for one in ladders])
        ax.axvline(1, color=ORANGE, linestyle="--", linewidth=1.2)
        for y, one in enumerate(ladders):
            baseline = comparisons.of_ladder(one).baseline[1]
            shares = {row.name: baseline / row.ms for row in one.rows if row.kind == "rung"}
            values = list(shares.values())
            ax.plot(values, [y] * len(values), color=PALE[BLUE], linewidth=1.5, zorder=1)
            ax.scatter(values[1:], [y] * (len(values) - 1), s=26, color=BLUE, zorder=3)
            ax.scatter(values[:1], [y], s=26, facecolor="white", edgecolor=BLUE, zorder=3)
            ax.annotate(f"{max(values):.2f}", (max(values), y), xytext=(7, 0), textcoords="offset points", va="center",
                        fontsize=9, color=INK)
            ax.annotate(shorten(one.op, LONGEST_NAME), (0, y), xycoords=("axes fraction", "data"), xytext=(-8, 0),
                        textcoords="offset points", ha="right", va="center", fontsize=9.5, annotation_clip=False)
            text.append(f"{one.op}: " + ", ".join(f"{rung} {share:.2f}" for rung, share in shares.items()))
        ax.set_xscale("log")
        ax.set_xlim(0.002, 3)
        ax.set_ylim(len(ladders) - 0.5, -0.6)
        ax.set_yticks([])
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        grid_along(ax, "x")
        ax.set_xlabel("speed, relative to the fastest library")
        panel_title(ax, f"{where_taken(first.where, first.machine.get('date'))}. Hollow: the first rung.")
    figure.summary = f"Speed of each rung over that of the fastest library. {'; '.join(text)}."
    return figure


def _place(panel: Ladder) -> str:
    return f"{where_taken(panel.where, panel.machine.get('date'))}; {size_text(panel.size)}"


def _two_places(ax, panels: list[Ladder]) -> None:
    """The key: pale bars are the recorded ones."""
    panel_title(ax, f"Dark: this machine, {panels[1].where}, {size_text(panels[1].size)}. Pale: recorded on "
                    f"{panels[0].where}, {panels[0].machine.get('date')}, {size_text(panels[0].size)}.")


def _ladder_panel(ax, panels: list[Ladder], rows: list) -> None:
    """A group of bars for each row, the recorded one first; dashed lines at the limits."""
    widen_left(ax, [row.name for row in rows])
    longest = max([panel.rate(row) for panel in panels for row in panel.rows if panel.rate(row) is not None]
                  + [panel.limit for panel in panels])
    unit = panels[0].unit
    for y, name in enumerate(row.name for row in rows):
        for i, panel in enumerate(panels):
            row = next((row for row in panel.rows if row.name == name), None)
            rate = None if row is None else panel.rate(row)
            if rate is not None:
                offset = (0.0,) if len(panels) == 1 else (-0.21, 0.21)
                _bar(ax, y + offset[i], 0.62 if len(panels) == 1 else 0.38, row, rate, panel, longest,
                     pale=len(panels) == 2 and i == 0)
        ax.annotate(shorten(name, LONGEST_NAME), (0, y), xytext=(-8, 0), textcoords="offset points", ha="right",
                    va="center", fontsize=9.5, color=INK if rows[y].kind == "rung" else FAINT, annotation_clip=False)
    ax.set_ylim(len(rows) - 0.45, -1.05 - 0.45 * (len(panels) - 1))
    ax.set_yticks([])
    ax.set_xlim(0, longest * 1.06)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.xaxis.set_major_locator(MaxNLocator(5))
    for row, panel in enumerate(panels):
        suffix = "" if len(panels) == 1 else (", recorded", ", here")[row]
        _limit_line(ax, panel, suffix, longest, row)
    grid_along(ax, "x")
    ax.set_xlabel(f"{unit}; longer is better")


def _bar(ax, y: float, height: float, row, rate: float, panel: Ladder, longest: float, pale: bool) -> None:
    """One bar, with its rate and its share of the limit written in it or after it."""
    rung = row.kind == "rung"
    colour = (PALE[BLUE] if rung else PALE[GREY]) if pale else (BLUE if rung else GREY)
    ax.barh(y, rate, height=height, color=colour, hatch="////" if row.failed else None,
            edgecolor="white" if row.failed else "none", linewidth=0)
    text = f"{number(rate)}" + ("" if row.fraction is None else f"  ({percent(row.fraction)})")
    inside = rate > 0.45 * longest
    end = min(rate, panel.limit) if inside else rate  # clear of the limit's line
    white = inside and rung and not pale
    ax.annotate(text, (end, y), xytext=(-7 if inside else 5, 0), textcoords="offset points", va="center",
                ha="right" if inside else "left", fontsize=9.5, color="white" if white else INK,
                bbox={"facecolor": colour if inside else "white", "edgecolor": "none", "pad": 1.5} if row.failed or not
                inside else None)


def _limit_line(ax, panel: Ladder, suffix: str, longest: float, line: int) -> None:
    ax.axvline(panel.limit, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
    limit_name = "copy bandwidth" if panel.binds == "bytes" else PEAK_NAMES[panel.peak]
    left = panel.limit > 0.5 * longest
    ax.annotate(f"limit{suffix}: {limit_name}, {number(panel.limit)} {panel.unit}", (panel.limit, 1),
                xycoords=("data", "axes fraction"), xytext=(-6 if left else 6, -1 - 13 * line),
                textcoords="offset points", ha="right" if left else "left", va="top", fontsize=9, color=INK)


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
    panels, below = gpu_panels(series, "vector_add_sizes", recorded)
    if not panels:
        return unrecorded("Vector addition over sizes")
    figure, axes = new_figure([2.9] * len(panels), "Vector addition over sizes",
                              "Time of a vector addition over sizes: " + "; ".join(f"{taken(panel)}" + "".join(
                                  f", {name} {number(panel[key][0])} to {number(panel[key][-1])} ms"
                                  for key, name, *_ in CROSSOVER_LINES if panel.get(key)) for panel in panels)
                              + f". {below}")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            leave_right(ax, [name for _, name, *_ in CROSSOVER_LINES])
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
                                fontsize=9, color=TEXT[colour])
            grid_along(ax, "both")
            label_line_ends(ax, [(ns[-1], panel[key][-1], name, TEXT[colour])
                                 for key, name, colour, _ in lines])
            panel_title(ax, panel_taken(panels, panel)
                        + (". Circled: faster than NumPy from here on" if circled else ""))
        foot(figure, below)
    return figure


def crossing(ns: list, kernel_ms: list | None, baseline_ms: list) -> tuple[float | None, float | None]:
    """Return where `kernel_ms` falls below `baseline_ms` for good, interpolated on log axes; (None, None) if never.

    Within 5 % at the largest size is a tie, not a win.
    """
    if not kernel_ms:
        return None, None
    gap = np.log(kernel_ms) - np.log(baseline_ms)
    if gap[-1] >= np.log(0.95) or gap[0] <= 0:
        return None, None
    last = int(np.flatnonzero(gap > 0)[-1])
    fraction = gap[last] / (gap[last] - gap[last + 1])

    def between(values):
        return float(np.exp(np.log(values[last]) * (1 - fraction) + np.log(values[last + 1]) * fraction))

    return between(ns), between(baseline_ms)


def _rounded(n: float) -> str:
    scale, unit = (1e6, "M") if n >= 1e6 else (1e3, "k")
    return f"{float(f'{n / scale:.2g}'):g}{unit}"


def sizes(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """TFLOP/s or GB/s of every rung over sizes, baselines in grey: as recorded, and as this machine's GPU measured."""
    title = f"{series['title']} over sizes"
    panels, below = gpu_panels(series, f"{series['op']}_sizes", recorded)
    if not panels:
        return unrecorded(title)
    figure, axes = new_figure([2.9] * len(panels), title, f"{title}, {panels[0]['unit']}: " + "; ".join(
        f"{taken(panel)}, " + ", ".join(f"{line['name']} {number(line['rate'][0])} to {number(line['rate'][-1])}"
                                        for line in _on_the_gpu(panel)) for panel in panels) + f". {below}")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            xs, ends = panel["x"], []
            leave_right(ax, [line["name"] for line in _on_the_gpu(panel)])
            rung_styles = iter(zip(LINES * 3, MARKERS * 3, strict=True))
            baseline_markers = iter("PXs" * 3)
            for line in _on_the_gpu(panel):
                values = line["rate"]
                colour, marker = next(rung_styles) if line["kind"] == "rung" else (GREY, next(baseline_markers))
                ax.plot(xs, values, color=colour, marker=marker, markeredgewidth=0)
                ends.append((xs[-1], values[-1], line["name"], TEXT[colour]))
            ax.set_xscale("log", base=2)
            ax.set_xticks(xs, [f"{x:,}" for x in xs])
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set_xlim(xs[0] * 0.93, xs[-1] * 1.07)
            ax.set_xlabel(panel["x_label"])
            ax.set_ylim(0, 1.12 * max(panel["limit"], max(e[1] for e in ends)))
            ax.axhline(panel["limit"], color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
            ax.annotate(f"limit: {panel['limit_name']}, {number(panel['limit'])} {panel['unit']}",
                        (0, panel["limit"]), xycoords=("axes fraction", "data"), xytext=(4, 3),
                        textcoords="offset points", fontsize=9)
            ax.set_ylabel(panel["unit"])
            grid_along(ax, "y")
            label_line_ends(ax, ends)
            panel_title(ax, f"{panel_taken(panels, panel)}. Higher is better")
        foot(figure, below)
    return figure


def _on_the_gpu(panel: dict) -> list[dict]:
    return [line for line in panel["lines"] if line["kind"] != "host"]


# --- Shapes of a block ---------------------------------------------------------------------------------------------


def block_shapes(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """One kernel over shapes of its block: largest blocks first, then by the extent along x, which runs fastest."""
    panels, below = gpu_panels(series, "volume_add_block_shapes", recorded)
    if not panels:
        return unrecorded("The shape of a block")
    groups = [sorted({int(np.prod(block)) for block in panel["blocks"]}, reverse=True) for panel in panels]
    figure, axes = new_figure([0.235 * (len(panel["blocks"]) + len(counts)) + 0.1 for panel, counts in
                               zip(panels, groups, strict=True)], "The shape of a block",
                              "GB/s of one kernel: " + "; ".join(f"{taken(panel)}, " + ", ".join(
                                  f"{_shape(block)} {number(gbs)}" for block, gbs in
                                  zip(panel["blocks"], panel["gbs"], strict=True)) for panel in panels) + f". {below}")
    with rc_context(STYLE):
        for ax, panel, counts in zip(axes, panels, groups, strict=True):
            box = ax.get_position()
            ax.set_position((0.17, box.y0, 0.80, box.height))
            y = 0
            for count in counts:
                ax.annotate(f"{count:,} threads", (0, y), xytext=(4, 0), textcoords="offset points", va="center",
                            fontsize=9, color=FAINT)
                annotated = [(block, value) for block, value in zip(panel["blocks"], panel["gbs"], strict=True)
                             if np.prod(block) == count]
                for block, value in sorted(annotated, reverse=True):
                    y += 1
                    ax.barh(y, value, height=0.7, color=BLUE if block[0] >= 8 else ORANGE)
                    ax.annotate(number(value), (value, y), xytext=(4, 0), textcoords="offset points", va="center",
                                fontsize=9)
                    ax.annotate(_shape(block), (0, y), xytext=(-6, 0), va="center", ha="right",
                                textcoords="offset points", fontsize=9, annotation_clip=False)
                y += 1
            ax.set_ylim(y - 0.4, -0.9)
            ax.set_yticks([])
            ax.set_xlim(0, 1.10 * max([*panel["gbs"], panel["limit"]]))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            ax.axvline(panel["limit"], color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
            ax.annotate(f"limit: copy bandwidth, {number(panel['limit'])} GB/s", (panel["limit"], 1),
                        xycoords=("data", "axes fraction"), xytext=(-6, -1), textcoords="offset points",
                        ha="right", va="top", fontsize=9)
            ax.set_xlabel("GB/s; longer is better")
            grid_along(ax, "x")
            short = any(block[0] < 8 for block in panel["blocks"])
            panel_title(ax, f"{panel_taken(panels, panel)}; {size_text(panel['size'])}. Block: x \u00d7 y \u00d7 z "
                            "threads." + (" Orange: x is shorter than 8, so that a warp uses only part of each 32-byte "
                                          "sector." if short else ""))
        foot(figure, below)
    return figure


def _shape(block) -> str:
    return " \u00d7 ".join(str(extent) for extent in block)


# --- Bytes moved, and functions of one variable --------------------------------------------------------------


def traffic(moved: dict[str, tuple[float, float]], title: str, unit: str, least: float | None = None,
            place: str = "") -> CourseFigure:
    """Draw bars of reads and writes: name -> (read, written), in `unit`; a line at the least possible."""
    figure, (ax,) = new_figure([0.40 * len(moved) + 0.40], title, f"{title}: " + "; ".join(
        f"{name} {number(read)} and {number(written)} {unit}" for name, (read, written) in moved.items()) + ".")
    with rc_context(STYLE):
        widen_left(ax, moved)
        longest = max(sum(both) for both in moved.values())
        for y, (name, (read, written)) in enumerate(moved.items()):
            ax.barh(y, read, height=0.62, color=BLUE)
            ax.barh(y, written, left=read, height=0.62, color=ORANGE)
            ax.annotate(f"{number(read)} + {number(written)}", (read + written, y), xytext=(6, 0), va="center",
                        textcoords="offset points", fontsize=9,
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0})
            ax.annotate(name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=9,
                        annotation_clip=False)
        ax.set_ylim(len(moved) - 0.45, -1.25)
        ax.set_yticks([])
        ax.set_xlim(0, 1.22 * longest)
        ax.set_xlabel(unit)
        if least is not None:
            ax.axvline(least, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
        grid_along(ax, "x")
        segments = next(iter(moved.values()))
        for x, words, colour in ((0, "read", BLUE), (segments[0], "written", ORANGE)):
            ax.annotate(words, (x, -0.85), xytext=(2, 0), textcoords="offset points", fontsize=9.5, va="center",
                        color=TEXT[colour], fontweight="bold")
        panel_title(ax, ". ".join(filter(None, (place, "Dashed: the least that has to move" if least else ""))))
    return figure


def curves(x, lines: dict, title: str, x_label: str, y_label: str, *, log_x: bool = False, log_y: bool = False,
           place: str = "", marks: bool = False) -> CourseFigure:
    """Plot functions of one variable: name -> values over `x`; non-finite values are left out. Names of several are at
    the right ends. Where the points are marked, a logarithmic x axis has its ticks at them."""
    figure, (ax,) = new_figure([2.9], title, f"{title}: {', '.join(lines)} over {x_label}. {place}".strip())
    with rc_context(STYLE):
        leave_right(ax, lines if len(lines) > 1 else (), 0.135)
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
                ax.set_xticks(x, [f"{tick:,g}" for tick in x])
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
