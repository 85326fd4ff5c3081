"""The figures of the lesson "A sentence encoder", in the course's style.

    layer_launches(config, rows)    the launches of a layer, with LayerNorm before (GPT-2) and after (BERT) the sum
    layouts(lengths)                the rows of a batch in each form: padded to 128, padded to the longest, packed
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import ListedColormap
from matplotlib.patches import Circle, FancyArrowPatch

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
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    note,
)
from labkit.models.minilm import Config, lay_out

# (what a launch does, its colour, what happens beside it): "add" puts its result onto the residual stream, "through"
# takes the stream itself, adds to it what the launch before wrote, and normalises it.
PRE_LN = (("LayerNorm", ORANGE, ""), ("product: Q, K, V", BLUE, ""), ("attention", GREEN, ""),
          ("product, add", BLUE, "add"), ("LayerNorm", ORANGE, ""), ("product, GELU", BLUE, ""),
          ("product, add", BLUE, "add"))
POST_LN = (("product: Q, K, V", BLUE, ""), ("attention", GREEN, ""), ("product", BLUE, ""),
           ("add, LayerNorm", ORANGE, "through"), ("product, GELU", BLUE, ""), ("product", BLUE, ""),
           ("add, LayerNorm", ORANGE, "through"))


def layer_launches(config: Config, rows: int) -> CourseFigure:
    """The seven launches of a layer in both orders; beside BERT's what each writes, by the name under which MiniLM
    shows it to `watch`."""
    C, inner = config.hidden_size, config.intermediate_size
    wrote = (("qkv", 3 * C), ("attended", C), ("attention.projected", C), ("attention.normed", C), ("gelu", inner),
             ("projected", C), ("out", C))
    tall, pitch, top = 0.40, 0.60, 1.22
    bottom = top + 7 * pitch
    figure, ax = canvas(bottom + 0.42, "BERT adds in its LayerNorms, GPT-2 in its products",
                        "GPT-2, Pre-LN: " + ", ".join(name for name, *_ in PRE_LN) + ". BERT, Post-LN: " + ", ".join(
                            f"{name} ({key}, {rows} x {width})"
                            for (name, *_), (key, width) in zip(POST_LN, wrote, strict=True)) + ".")
    with rc_context(STYLE):
        for left, name, order in ((0.16, "GPT-2: Pre-LN", PRE_LN), (2.40, "BERT: Post-LN", POST_LN)):
            ax.text(left, 0.64, name, fontsize=11.5, fontweight="bold", va="center")
            _launches(ax, left + 0.16, left + 0.42, 1.48, top, tall, pitch, order)
        x = 2.40 + 0.42 + 1.48 + 0.16
        ax.text(x, 0.64, "what it writes", fontsize=9.5, color=FAINT, va="center")
        for row, (key, width) in enumerate(wrote):
            y = top + row * pitch + tall / 2
            ax.text(x, y - 0.09, key, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x, y + 0.10, f"({rows}, {width:,})", fontsize=9, color=FAINT, va="center")
    return figure


def _launches(ax, stream: float, box: float, wide: float, top: float, tall: float, pitch: float, order) -> None:
    """One column: the residual stream, thick, and the launches beside it or across it."""
    middle, bottom = box + wide / 2, top + len(order) * pitch
    ax.text(stream + 0.12, top - 0.20, "x", fontsize=11, fontstyle="italic", va="center")
    ax.plot([stream, stream], [top - 0.34, bottom - 0.04], color=INK, linewidth=2.4, solid_capstyle="butt", zorder=1)
    branching = True  # the next launch reads the stream
    for row, (text, colour, beside) in enumerate(order):
        y = top + row * pitch
        begin = stream - 0.14 if beside == "through" else box
        draw_box(ax, begin, y, box + wide - begin, tall, fill=PALE[colour], edge=colour, zorder=2)
        ax.text(box + 0.10, y + tall / 2, text, fontsize=10, va="center_baseline", zorder=3)
        if branching:
            _arrow(ax, (stream, y + tall / 2), (box, y + tall / 2))
        branching = bool(beside)
        if beside == "add":
            cy = y + tall + (pitch - tall) / 2
            ax.plot([middle, middle, stream], [y + tall, cy, cy], color=INK, linewidth=1.2)
            ax.add_patch(Circle((stream, cy), 0.085, facecolor="white", edgecolor=INK, linewidth=1.3, zorder=4))
            ax.text(stream, cy, "+", fontsize=10, ha="center", va="center_baseline", zorder=5)
        elif not beside:
            _arrow(ax, (middle, y + tall), (middle, y + pitch))
    _arrow(ax, (stream, bottom - 0.06), (stream, bottom + 0.18), width=2.4)
    ax.text(stream + 0.12, bottom + 0.10, "out", fontsize=11, fontstyle="italic", va="center")


def _arrow(ax, start, end, width: float = 1.2) -> None:
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, linewidth=width, color=INK,
                                 shrinkA=0, shrinkB=0, zorder=3))


LINE = 128  # rows of the batch on a line of the figure
FORMS = (("padded_to_128", "padded to 128"), ("padded", "padded to the longest, rounded up to 16"),
         ("packed", "packed"))
SHADES = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION)  # of sentences, in turns


def layouts(lengths: Sequence[int]) -> CourseFigure:
    """The rows of a batch of sentences with these lengths, in memory order, all forms to the same scale."""
    lengths = np.asarray(lengths, np.int64)
    panels = []
    for form, name in FORMS:
        shape, host = lay_out([np.zeros(count, np.int32) for count in lengths], form)
        owner = np.zeros(-(-shape.rows // LINE) * LINE)
        owner[shape.rows :] = np.nan
        for sentence, begin in enumerate(host[3 * shape.rows :][: len(lengths)]):
            owner[begin : begin + lengths[sentence]] = 1 + sentence % len(SHADES)
        panels.append((name, shape.rows, owner.reshape(-1, LINE)))
    tokens = int(lengths.sum())
    left, cell, caption = 0.14, (WIDTH - 0.28) / LINE, 0.30
    lines = sum(len(owner) for *_, owner in panels)
    height = 0.56 + len(panels) * (caption + 0.16) + lines * cell + 0.26
    most = max(count for _, count, _ in panels)
    figure, ax = canvas(height, f"Padded to 128, {len(lengths)} sentences are {1 - tokens / most:.0%} padding",
                        f"{len(lengths)} sentences of {tokens:,} tokens: " + "; ".join(
                            f"{name}, {count:,} rows, {1 - tokens / count:.0%} of them padding"
                            for name, count, _ in panels) + ".")
    colours = ListedColormap([PALE[GREY], *SHADES])
    y = 0.56
    with rc_context(STYLE):
        for name, count, owner in panels:
            ax.text(left, y + caption / 2, f"{name[0].upper()}{name[1:]}: {count:,} rows, "
                    f"{1 - tokens / count:.0%} padding", fontsize=9.5, fontweight="bold", va="center")
            y += caption
            ax.imshow(owner, cmap=colours, vmin=-0.5, vmax=len(SHADES) + 0.5, interpolation="none", aspect="auto",
                      extent=(left, left + LINE * cell, y + len(owner) * cell, y))
            y += len(owner) * cell + 0.16
        ax.set_xlim(0, WIDTH)
        ax.set_ylim(height, 0)
        note(ax, y + 0.06, f"A line is {LINE} rows of the batch. A stretch of one colour is a sentence; grey rows are "
             "padding.")
    return figure
