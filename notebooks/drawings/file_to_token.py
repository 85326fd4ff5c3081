"""The figures of the lesson "From a file to a token", in the course's style.

    file_layout(tensors)    what lies where in a safetensors file
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    note,
)

KIND_COLOURS = (BLUE, ORANGE, GREEN)


def file_layout(entries: Mapping[str, object], header_bytes: int, names: Sequence[str]) -> CourseFigure:
    """A safetensors file from its first byte on. entries: name -> an object with begin, end and shape, as
    labkit.models.safetensors.read gives them; `names` are drawn, the rest only indicated."""
    left, wide, tall, top = 0.14, WIDTH - 0.28, 0.42, 0.80
    figure, ax = canvas(top + 1.9, "The tensors follow one another without gaps",
                        f"8 bytes, a header of {header_bytes:,} bytes of JSON, then "
                        f"{len(entries)} tensors one after the other: " + ", ".join(names) + ".")
    sizes = np.array([entries[name].end - entries[name].begin for name in names], np.float64)
    widths = 0.62 + (wide - 2.15 - 0.62 * len(names) - 0.5) * np.sqrt(sizes) / np.sqrt(sizes).sum()
    with rc_context(STYLE):
        draw_box(ax, left, top, 0.55, tall, "8 bytes", fill=PALE[GREY], size=9)
        draw_box(ax, left + 0.55, top, 1.6, tall, "{ header in JSON }", fill=PALE[PURPLE], size=9)
        ax.text(left, top - 0.12, "0", fontsize=9, color=FAINT, ha="left", va="center")
        ax.text(left + 0.55, top - 0.12, "8", fontsize=9, color=FAINT, ha="center", va="center")
        begin = 8 + header_bytes
        ax.text(left + 2.15, top - 0.12, f"{begin:,}", fontsize=9, color=FAINT, ha="center", va="center")
        x = left + 2.15
        for k, (name, width) in enumerate(zip(names, widths, strict=True)):
            draw_box(ax, x, top, width, tall, "", fill=PALE[KIND_COLOURS[k % 3]])
            middle, low = x + width / 2, top + tall + 0.22 + 0.36 * (k % 3)
            ax.plot([middle, middle], [top + tall, low - 0.06], color=GREY, linewidth=0.8)
            ax.text(middle, low, ".".join(name.split(".")[-2:]), fontsize=9, ha="center", va="center",
                    color=TEXT[KIND_COLOURS[k % 3]], fontweight="bold",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})
            ax.text(middle, low + 0.15, f"{' × '.join(map(str, entries[name].shape))}, from {entries[name].begin:,}",
                    fontsize=9, ha="center", va="center", color=FAINT,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
            x += width
        draw_box(ax, x, top, left + wide - x, tall, "\u2026", fill=PALE[GREY], size=10)
        note(ax, top + 1.78, "The header gives each tensor's name, type, shape and offsets, counted from its own end. "
             "Widths not to scale.")
    return figure
