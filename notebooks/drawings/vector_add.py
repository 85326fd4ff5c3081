"""The figures of the lesson "Vector addition", in the course's style.

    owners()            which thread adds which element of a vector
    round_trip(trip)    what a trip to the device is made of
"""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from labkit import measure
from labkit._common.tables import number
from labkit.measure import CPU_DEVICE
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREY,
    HERE,
    INK,
    STYLE,
    VERMILLION,
    CourseFigure,
    count_of,
    foot,
    grid_along,
    new_figure,
    panel_title,
    same_limits,
    unrecorded,
)


def owners(n: int = 29, block: int = 4, rungs: tuple[str, ...] = ("per_thread",), grid: int = 2) -> CourseFigure:
    """Which thread adds which element of a vector, for rungs of vector_add: per_thread, grid_stride, four_loads.

    A box is an element, the number in it its thread, counted over the whole grid. Thread 0's elements are filled.
    `grid` is the number of blocks that grid_stride gets.
    """
    tile = {"per_thread": block, "grid_stride": grid * block, "four_loads": 4 * block}
    unknown = [name for name in rungs if name not in tile]
    if unknown:
        raise ValueError(f"rungs holds {unknown[0]!r}; allowed are {', '.join(tile)}")
    figure, axes = new_figure([0.62] * len(rungs), "Neighbouring threads add neighbouring elements",
                              f"Which thread adds which of {n} elements, in blocks of {block}: {', '.join(rungs)}.",
                              gap=0.62)
    with rc_context(STYLE):
        for ax, name in zip(axes, rungs, strict=True):
            box = ax.get_position()
            ax.set_position((0.02, box.y0, 0.96, box.height))
            end = -(-n // tile[name]) * tile[name]
            for i in range(end):
                if name == "per_thread":
                    thread = i
                elif name == "grid_stride":
                    thread = i % (grid * block)
                else:
                    thread = i // (4 * block) * block + i % block
                selected, inside = thread == 0, i < n
                shade = BLUE if selected else ("#DCE9F2", "#F6E7C8")[thread // block % 2]
                ax.add_patch(Rectangle((i + 0.05, 0.05), 0.9, 0.9, facecolor=shade if inside else "none", linewidth=0.9,
                                       edgecolor=shade if inside else GREY, linestyle="-" if inside else (0, (2, 2))))
                ax.text(i + 0.5, 0.5, thread, ha="center", va="center", fontsize=8,
                        color="white" if selected else INK if inside else FAINT)
            ax.set_xlim(0, max(end, n))
            ax.set_ylim(0, 1)
            ax.set_yticks([])
            ticks = [i for i in range(end) if i % block == 0 or i == n - 1]
            ax.set_xticks([i + 0.5 for i in ticks], [str(i) for i in ticks])
            ax.set_xlabel("element" if ax is axes[-1] else "")
            for side in ax.spines.values():
                side.set_visible(False)
            ax.tick_params(length=0)
            blocks = grid if name == "grid_stride" else end // tile[name]
            count = f"{blocks} blocks of {block} threads"
            idle = f"; {count_of(end - n, 'thread')} beyond the end" if name == "per_thread" and end > n else ""
            panel_title(ax, f"{name}: {count}{idle}")
    return figure


def round_trip(here: dict, recorded: dict | None = None) -> CourseFigure:
    """The steps of one trip to the device, each bar beginning where the last ended, and NumPy beside it, in grey.

    A trip is {"steps": {name: milliseconds, ...}, "numpy_ms": ..., "title": where and how it was taken}. The recorded
    one stands first; the trip `here` is drawn if this machine has a GPU.
    """
    on_cpu = here.get("where", measure.where()) == CPU_DEVICE
    trips = [trip for trip in (recorded, None if on_cpu else here) if trip]
    if not trips:
        return unrecorded("There, add, and back", [(name, f"{number(ms)} ms") for name, ms in here["steps"].items()])
    heights = [0.34 * (len(trip["steps"]) + 1) for trip in trips]
    figure, axes = new_figure(heights, "The copies take nearly all of the trip",
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
