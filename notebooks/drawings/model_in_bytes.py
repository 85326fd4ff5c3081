"""The figures of the lesson "A model in bytes", in the course's style.

    shards_and_blob(files, places, nbytes)    where each tensor lies in its file, and where in the device buffer
    bytes_of_a_token(parts, bandwidth_gbs)    the bytes that are read for one token, part by part
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib import rc_context
from matplotlib.patches import Polygon

from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    STYLE,
    WIDTH,
    CourseFigure,
    canvas,
    count_of,
    draw_box,
)

KINDS = (("embed_tokens", PURPLE, "embedding"), ("self_attn", BLUE, "attention"), ("mlp", GREEN, "MLP"),
         ("norm", ORANGE, "norms"))


def _colour(name: str) -> str:
    return next((colour for part, colour, _ in KINDS if part in name), GREY)


def shards_and_blob(files: Mapping[str, Mapping], places: Mapping, nbytes: int) -> CourseFigure:
    """Above, the tensors of each file (name -> an entry with begin and end); below, the one buffer (name -> a place
    with offset and nbytes). All to one scale; a band joins the two places of a tensor."""
    left, wide, tall, gap, top = 0.14, WIDTH - 0.28, 0.34, 0.20, 0.98
    sizes = {file: max(entry.end for entry in entries.values()) for file, entries in files.items()}
    scale = (wide - gap * (len(files) - 1)) / max(sum(sizes.values()), nbytes)
    below = top + tall + 1.25
    figure, ax = canvas(below + tall + 0.86, f"{count_of(len(files), 'file')} become one buffer, in the order of use",
                        f"{len(places)} tensors of {count_of(len(files), 'file')} lie in one buffer of {nbytes:,} "
                        "bytes, in the order of a forward pass: " + ", ".join(places) + ".")
    with rc_context(STYLE):
        x = left
        for file, entries in files.items():
            ax.text(x, top - 0.30, file, fontsize=9, fontweight="bold", va="center_baseline")
            ax.text(x, top - 0.12, f"{len(entries)} tensors, {sizes[file]:,} bytes", fontsize=9, color=FAINT,
                    va="center_baseline")
            for name, entry in entries.items():
                begin, end = x + scale * entry.begin, x + scale * entry.end
                span, colour = places[name], _colour(name)
                x0, x1 = left + scale * span.offset, left + scale * (span.offset + span.nbytes)
                ax.add_patch(Polygon([(begin, top + tall), (end, top + tall), (x1, below), (x0, below)], closed=True,
                                     facecolor=PALE[colour], edgecolor=colour, linewidth=0.5, alpha=0.55))
                for bar_x, width, y in ((begin, end - begin, top), (x0, x1 - x0, below)):
                    thin = width < 0.05  # a norm is thinner than an edge
                    draw_box(ax, bar_x, y, width, tall, fill=colour, edge=colour if thin else "white", linewidth=0.6,
                             zorder=3 + thin)
            x += scale * sizes[file] + gap
        ax.text(left, below + tall + 0.16, f"one buffer of {nbytes:,} bytes on the device, a map of "
                f"{len(places)} offsets on the host", fontsize=9, fontweight="bold", va="center_baseline")
        x = left
        for _, colour, words in KINDS:
            draw_box(ax, x, below + tall + 0.40, 0.16, 0.16, fill=colour)
            ax.text(x + 0.24, below + tall + 0.48, words, fontsize=9, va="center_baseline", color=INK)
            x += 1.3
    return figure


def bytes_of_a_token(parts: Mapping[str, int], bandwidth_gbs: float) -> CourseFigure:
    """Draw a bar for each part of the bytes read for one token (name -> bytes), with the time they take."""
    total, tall, top, left = sum(parts.values()), 0.30, 0.66, 2.30
    wide = WIDTH - left - 1.75
    us = {name: count / bandwidth_gbs / 1e3 for name, count in parts.items()}
    words = {name: f"{count / 1e6:,.1f} MB, {us[name]:,.1f} \u00b5s" if count > 1e5 else f"{count / 1e3:,.1f} KB"
             for name, count in parts.items()}
    figure, ax = canvas(top + len(parts) * 0.42 + 0.46, f"{max(parts, key=parts.get)}: most of what a token reads",
                        f"{total / 1e9:.3f} GB: " + "; ".join(f"{name} {size}" for name, size in words.items()) + ".")
    with rc_context(STYLE):
        for row, (name, count) in enumerate(parts.items()):
            y = top + row * 0.42
            ax.text(left - 0.12, y + tall / 2, name, fontsize=9.5, ha="right", va="center_baseline")
            width = wide * count / max(parts.values())
            draw_box(ax, left, y, width, tall, fill=BLUE)
            ax.text(left + width + 0.08, y + tall / 2, words[name], fontsize=9, va="center_baseline")
        ax.text(0.14, top + len(parts) * 0.42 + 0.16, f"Together {total / 1e9:.3f} GB, {sum(us.values()):,.0f} "
                f"\u00b5s at {bandwidth_gbs:,.0f} GB/s.", fontsize=9, color=FAINT, va="center_baseline")
    return figure
