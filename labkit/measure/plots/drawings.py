"""Drawings of ideas, in the style of the plots. Each function computes what it draws and returns a figure.

    launch_map(n, threads_per_block)    which thread of which block takes which element
"""

from matplotlib import rc_context
from matplotlib.patches import Rectangle

from labkit.measure.plots import FAINT, GREY, INK, LINES, STYLE, TEXT, WIDTH, CourseFigure, _figure


def launch_map(n: int, threads_per_block: int) -> CourseFigure:
    """Which thread of which block takes which of n elements, and which threads find none. Up to 64 threads."""
    blocks = -(-n // threads_per_block)
    threads = blocks * threads_per_block
    if not 1 <= threads <= 64:
        raise ValueError(f"{blocks} blocks of {threads_per_block} are {threads} threads; a picture holds 1 to 64")
    idle = threads - n
    summary = f"{blocks} blocks of {threads_per_block} threads over {n} elements; {idle} threads have none"
    figure, (ax,) = _figure([1.5], "Which thread takes which element", summary)
    pitch = 0.86 * WIDTH * 72 / max(threads, 8)  # points between two threads
    dot, small = min(15, 0.8 * pitch), min(8.5, 0.45 * pitch)
    with rc_context(STYLE):
        for i in range(threads):
            block, thread = divmod(i, threads_per_block)
            colour = LINES[block % len(LINES)] if i < n else GREY
            ax.plot([i], [1], "o", color=colour, markersize=dot, markerfacecolor=colour if i < n else "white")
            ax.text(i, 1, thread, ha="center", va="center_baseline", fontsize=small, color="white" if i < n else FAINT)
            if i < n:
                ax.annotate("", (i, 0.32), (i, 0.80), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.2})
                ax.add_patch(Rectangle((i - 0.42, -0.1), 0.84, 0.36, facecolor=colour, alpha=0.16, edgecolor="none"))
                ax.text(i, 0.07, i, ha="center", va="center", fontsize=small, color=INK)
        for block in range(blocks):
            middle = (block + 0.5) * threads_per_block - 0.5
            ax.text(middle, 1.35, f"block {block}", ha="center", fontsize=9, color=TEXT[LINES[block % len(LINES)]])
        if idle:
            middle = n + (idle - 1) / 2
            ax.text(middle, 0.55, "no element:\nthe guard", ha="center", va="center", fontsize=8, color=FAINT)
        ax.text(-0.75, 1, "thread", ha="right", va="center", fontsize=9, color=FAINT)
        ax.text(-0.75, 0.07, "element", ha="right", va="center", fontsize=9, color=FAINT)
        ax.set_xlim(-0.6, max(threads, 8) - 0.4)
        ax.set_ylim(-0.2, 1.6)
        ax.axis("off")
    return figure
