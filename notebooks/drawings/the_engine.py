"""The figures of the lesson "The engine", in the course's style.

    host_and_device(host_us, device_us)    two time lines: one step after the other, and the next one prepared meanwhile
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    INK,
    ORANGE,
    STYLE,
    CourseFigure,
    count_of,
    grid_along,
    new_figure,
    panel_title,
)


def host_and_device(host_us: float, device_us: float, steps: int = 5) -> CourseFigure:
    """Time lines of steps of which each takes the host and the device so long: in turns, and overlapped, where the host
    prepares a step while the device runs the one before."""
    if not (host_us > 0 and device_us > 0 and steps > 0):
        raise ValueError(f"host_us is {host_us}, device_us {device_us} and steps {steps}; all must be more than 0")
    turns, overlapped, free = [], [], 0.0
    for step in range(steps):
        begin = step * (host_us + device_us)
        turns.append((begin, begin + host_us))
        # The host schedules step n when it has launched n - 1 and read n - 2: it waits for that one's end.
        begin = 0.0 if not step else max(overlapped[-1][0] + host_us, overlapped[-2][1] + device_us if step > 1 else 0)
        run = max(begin + host_us, free)
        overlapped.append((begin, run))
        free = run + device_us
    panels = (("one after the other", turns), ("step n + 1 is prepared while step n runs", overlapped))
    ends = {name: line[-1][1] + device_us for name, line in panels}
    figure, axes = new_figure([0.80] * 2, "Overlapped, only the slower of the two counts", "; ".join(
        f"{name}: {count_of(steps, 'step')} in {end:,.0f} us" for name, end in ends.items()) + ".", gap=0.60)
    with rc_context(STYLE):
        for ax, (name, line) in zip(axes, panels, strict=True):
            for step, (host, run) in enumerate(line):
                for y, begin, width, colour in ((0, host, host_us, ORANGE), (1, run, device_us, BLUE)):
                    ax.barh(y, width, left=begin, height=0.72, color=colour, edgecolor="white", linewidth=1.2)
                    if width > 0.03 * max(ends.values()):
                        ax.annotate(str(step), (begin + width / 2, y), ha="center", va="center", fontsize=9,
                                    color=INK if colour == ORANGE else "white")
            ax.set_ylim(1.5, -0.5)
            ax.set_yticks([0, 1], ["host", "device"])
            ax.set_xlim(0, 1.01 * max(ends.values()))
            grid_along(ax, "x")
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            panel_title(ax, f"{name[0].upper()}{name[1:]}: {ends[name]:,.0f} \u00b5s")
        axes[-1].set_xlabel("microseconds; the number is the step's")
    return figure
