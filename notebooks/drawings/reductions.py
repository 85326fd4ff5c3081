"""The figures of the lesson "Reductions and softmax", in the course's style.

    reductions()    a sum by a tree and by shuffles
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    PALE,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    note,
)


def reductions(threads: int = 8) -> CourseFigure:
    """One sum over the threads of a block, step by step: a tree in shared memory, and shuffles within a warp.

    Each column is a thread, each row what it holds before a step. Solid: it holds a sum that is still needed.
    """
    if threads not in (4, 8, 16):
        raise ValueError(f"threads is {threads}; 4, 8 and 16 can be drawn")
    strides = [threads >> step for step in range(1, threads.bit_length())]
    between, left, cell = 0.62, 0.14, 0.27
    pitch = (WIDTH - 2 * left - between) / (2 * threads)
    top, rise = 0.92, 0.74
    height = top + rise * len(strides) + cell + 0.62
    figure, ax = canvas(height, f"{threads} numbers, {len(strides)} steps",
                        f"A sum over {threads} threads in {len(strides)} steps: by a tree in shared memory, where "
                        "half of the threads drop out at each step, and by shuffles, after which every thread has it.")
    with rc_context(STYLE):
        for panel, (name, colour) in enumerate((("a tree in shared memory", BLUE), ("shuffles within a warp", GREEN))):
            x0 = left + panel * (threads * pitch + between)
            middle = [x0 + (t + 0.5) * pitch for t in range(threads)]
            ax.text(x0, top - 0.36, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0, top - 0.14, "thread" if panel == 0 else "lane", fontsize=9, color=FAINT, va="center")
            for row in range(len(strides) + 1):
                y = top + row * rise
                if row:
                    stride, y_top = strides[row - 1], y - rise + cell
                    for t in range(threads if panel else stride):
                        for source in (t, t ^ stride if panel else t + stride):
                            ax.plot([middle[source], middle[t]], [y_top, y], color=colour, linewidth=0.9, alpha=0.75)
                    label = f"lane ^ {stride}" if panel else f"t + {stride}"
                    ax.text(x0 - 0.04 if panel else x0 + threads * pitch - 0.02, (y_top + y) / 2, label, fontsize=9,
                            color=TEXT[colour], ha="right", va="center",
                            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})
                holds = threads if panel else threads >> row
                for t in range(threads):
                    draw_box(ax, middle[t] - pitch / 2 + 0.03, y, pitch - 0.06, cell, t if row == 0 else 1 << row,
                             fill=colour if t < holds else PALE[GREY], ink="white" if t < holds else GREY, size=9)
        note(ax, height - 0.30, "First row: the thread's number. Below: of how many numbers it holds the sum. Grey: "
             "never read again. In the tree thread t adds what thread t + 4 holds, then t + 2, then t + 1, with a "
             "barrier after each step." if threads == 8 else "First row: the thread's number. Below: of how many "
             "numbers it holds the sum. Grey: never read again. A barrier follows each step of the tree.")
    return figure
