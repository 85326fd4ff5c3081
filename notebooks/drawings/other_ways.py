"""The figures of the lesson "Other ways to write a kernel", in the course's style.

    over_rows(series)     softmax by BLAS over the number of rows
    masks(19, 8)          which thread or program has which element, and which have none
    languages(series)     one job in three languages, on a GPU
    over_tiles(series)    vector addition over the size of a tile
"""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, NullLocator

from labkit import measure
from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    LINES,
    MARKERS,
    ORANGE,
    PALE,
    PURPLE,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    foot,
    gpu_panels,
    grid_along,
    label_line_ends,
    leave_right,
    new_figure,
    note,
    panel_taken,
    panel_title,
    taken,
    time_axis,
    unrecorded,
    widen_left,
)

COLOURS = (BLUE, ORANGE, GREEN, PURPLE)


def over_rows(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Milliseconds over the number of rows: the loops, and the kernels that take all rows in one launch."""
    panels, below = gpu_panels(series, "softmax_rows", recorded)
    if not panels:
        return unrecorded("Softmax by BLAS over the number of rows")
    figure, axes = new_figure([2.7] * len(panels), "Loops over library calls pay for every row",
                              "Softmax by BLAS over the number of rows: " + "; ".join(
                                  f"{taken(panel)}" + "".join(f", {line['name']} {number(line['ms'][0])} to "
                                                              f"{number(line['ms'][-1])} ms" for line in panel["lines"])
                                  for panel in panels) + f". {below}")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            leave_right(ax, [line["name"] for line in panel["lines"]])
            ends, styles = [], iter(zip(LINES, MARKERS, strict=True))
            for line in panel["lines"]:
                colour, marker = (GREY, "P") if line["name"].startswith("torch") else next(styles)
                ax.plot(panel["rows"], line["ms"], color=colour, marker=marker, markeredgewidth=0)
                ends.append((panel["rows"][-1], line["ms"][-1], line["name"], TEXT[colour]))
            ax.set_xscale("log", base=2)
            ax.set_xticks(panel["rows"], [f"{count:,}" for count in panel["rows"]])
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set_xlabel("rows")
            time_axis(ax)
            times = [ms for line in panel["lines"] for ms in line["ms"]]
            ax.set_ylim(10 ** np.floor(np.log10(min(times))), 10 ** np.ceil(np.log10(max(times))))
            grid_along(ax, "y")
            label_line_ends(ax, ends)
            panel_title(ax, panel_taken(panels, panel))
        foot(figure, below)
    return figure


def masks(n: int = 19, block: int = 8) -> CourseFigure:
    """n elements: one thread each in Numba, and programs or tiles of `block` elements with a mask at the end."""
    programs = -(-n // block)
    slots = programs * block
    if not 1 <= slots <= 40:
        raise ValueError(f"{programs} programs of {block} are {slots} elements; a picture holds 1 to 40")
    cell, tall, left = min(0.30, (WIDTH - 1.75) / slots), 0.28, 1.45
    figure, ax = canvas(2.92, "A mask replaces the guard of every thread",
                        f"{n} elements. One thread an element: {slots} threads in {programs} blocks, {slots - n} with "
                        f"none. One program a block: {programs} programs of {block} elements, {slots - n} masked.")
    with rc_context(STYLE):
        rows = ((0.78, "Numba", f"{slots} threads,\none element each"),
                (1.66, "Triton, cuTile", f"{programs} programs,\n{block} elements each"))
        for y, name, description in rows:
            ax.text(0.14, y + 0.02, name, fontsize=9, fontweight="bold", va="center")
            ax.text(0.14, y + 0.30, description, fontsize=9, color=FAINT, va="center", linespacing=1.1)
            for i in range(slots):
                program, colour = i // block, COLOURS[i // block % len(COLOURS)]
                inside = i < n
                gap = 0.02 if name == "Numba" else 0.0
                draw_box(ax, left + i * cell + gap, y, cell - 2 * gap, tall, i, size=9, ink=INK if inside else FAINT,
                         fill=PALE[colour] if inside else "white", edge=colour if name == "Numba" and inside else GREY,
                         linewidth=0.9 if name == "Numba" else 0.5, linestyle="-" if inside else (0, (2, 2)))
            for program in range(programs):
                colour = COLOURS[program % len(COLOURS)]
                x = left + program * block * cell
                if name != "Numba":
                    draw_box(ax, x, y, block * cell, tall, edge=colour, linewidth=2.0, zorder=3)
                kind = "block" if name == "Numba" else "program"
                ax.text(x + block * cell / 2, y + tall + 0.14, f"{kind} {program}", fontsize=9, ha="center",
                        va="center", color=TEXT[colour])
        if slots > n:
            middle = left + (n + (slots - n) / 2) * cell
            ax.text(middle, rows[0][0] - 0.11, "if i < n", fontsize=9, ha="center", va="center", color=FAINT)
            ax.text(middle, rows[1][0] - 0.11, "mask", fontsize=9, ha="center", va="center", color=FAINT)
        note(ax, 2.62, "In Triton and cuTile the compiler decides which thread of the GPU holds which element of a "
             "program.")
    return figure


def languages(series: dict | None = None) -> CourseFigure | None:
    """GB/s of the same job in each language, as measured or as recorded on a GPU. None if there is neither."""
    series = series or measure.recorded_series("three_languages")
    if series is None:
        return None
    jobs = series["jobs"]
    figure, axes = new_figure([0.34 * len(job["rows"]) for job in jobs],
                              "The language matters for softmax, not for sums",
                              "GB/s of vector addition and softmax in Numba, Triton and cuTile, "
                              + taken(series), gap=0.62, bottom=0.30)
    names = {"vector_add": "Vector addition", "softmax": "Softmax of each row"}
    widest = max(row["gbs"] for job in jobs for row in job["rows"])
    with rc_context(STYLE):
        for ax, job in zip(axes, jobs, strict=True):
            widen_left(ax, [row["name"] for each in jobs for row in each["rows"]])
            for y, row in enumerate(job["rows"]):
                colour = BLUE if row["name"].startswith("Numba") else {"Triton": GREEN, "cuTile": ORANGE}.get(
                    row["name"], GREY)
                ax.barh(y, row["gbs"], color=colour, height=0.62)
                ax.text(row["gbs"], y, f"  {number(row['gbs'])}", va="center_baseline", fontsize=9)
            ax.set_yticks(range(len(job["rows"])), [row["name"] for row in job["rows"]])
            ax.tick_params(axis="y", labelcolor=INK)
            ax.invert_yaxis()
            ax.set_xlim(0, 1.16 * widest)
            ax.set_xticks([])
            grid_along(ax, "x")
            ax.grid(False)
            size = ", ".join(f"{key} = {value:,}" for key, value in job["size"].items())
            panel_title(ax, f"{names.get(job['op'], job['op'])}, {size}: GB/s, longer is better. {taken(series)}")
    return figure


def over_tiles(series: dict | None = None) -> CourseFigure | None:
    """GB/s of vector addition over the size of a tile, as measured or recorded on a GPU. None if there is neither."""
    series = series or measure.recorded_series("tile_sizes")
    if series is None:
        return None
    figure, (ax,) = new_figure([2.6], "Small tiles leave threads without work",
                               "Vector addition over the size of a tile, " + taken(series))
    with rc_context(STYLE):
        leave_right(ax, [line["name"] for line in series["lines"]], 0.125)
        ends = []
        for line in series["lines"]:
            colour, marker = {"Triton": (GREEN, "o"), "cuTile": (ORANGE, "s")}[line["name"]]
            ax.plot(series["tiles"], line["gbs"], color=colour, marker=marker, markeredgewidth=0)
            ends.append((series["tiles"][-1], line["gbs"][-1], line["name"], TEXT[colour]))
        ax.set_xscale("log", base=2)
        ax.set_xticks(series["tiles"], [f"{tile:,}" for tile in series["tiles"]])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel("elements in a tile")
        ax.set_ylim(0, None)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.set_ylabel("GB/s")
        grid_along(ax, "y")
        label_line_ends(ax, ends)
        panel_title(ax, f"Vector addition, {series['n']:,} elements. " + taken(series))
    return figure
