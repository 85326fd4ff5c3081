"""The figures of the lesson "Matching PyTorch", in the course's style.

    score_matrices(lengths)    what attention computes of padded sentences, and what it needs to
    over_length(series)        time over the length that sentences are padded to, ours and PyTorch's
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    GREY,
    PALE,
    STYLE,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    grid_along,
    label_line_ends,
    leave_right,
    new_figure,
    note,
    panel_title,
    taken,
)
from labkit.models.minilm import FORMS

NAMES = {"padded_to_128": "padded to 128", "padded": "padded to the longest", "packed": "packed"}


def score_matrices(lengths: Sequence[int]) -> CourseFigure:
    """The matrix of scores of one head for each sentence, in each form of a batch, all to one scale: filled what its
    tokens need, pale what belongs to padding."""
    lengths = np.asarray(lengths, np.int64)
    if not 1 <= len(lengths) <= 12 or lengths.max() > 128 or lengths.min() < 1:
        raise ValueError("lengths must be 1 to 12 numbers from 1 to 128")
    needed = int((lengths**2).sum())
    gap, left = 0.06, 0.14
    unit = (WIDTH - 2 * left - gap * (len(lengths) - 1)) / (128 * len(lengths))
    panels = []
    for form in ("padded_to_128", "padded", "packed"):
        shape, _ = FORMS[form](lengths)
        sides = lengths if form == "packed" else np.full(len(lengths), shape.longest)
        panels.append((NAMES[form], sides, int((sides**2).sum())))
    heights = [0.36 + unit * sides.max() + 0.14 for _, sides, _ in panels]
    figure, ax = canvas(0.52 + sum(heights) + 0.30, "The scores of one head, sentence by sentence",
                        f"Sentences of {', '.join(map(str, lengths))} tokens need {needed:,} scores: " + "; ".join(
                            f"{name}, {count:,}" for name, _, count in panels) + ".")
    y = 0.52
    with rc_context(STYLE):
        for (name, sides, count), height in zip(panels, heights, strict=True):
            times = f", {count / needed:.1f} times what is needed" if count > needed else ", all of them needed"
            ax.text(left, y + 0.17, f"{name[0].upper()}{name[1:]}: {count:,} scores{times}", fontsize=9.5,
                    fontweight="bold", va="center")
            x = left
            for length, side in zip(lengths, sides, strict=True):
                draw_box(ax, x, y + 0.36, unit * side, unit * side, fill=PALE[GREY], edge=GREY, linewidth=0.5)
                draw_box(ax, x, y + 0.36, unit * length, unit * length, fill=BLUE, edge=BLUE, linewidth=0.3)
                x += unit * side + gap
            y += height
        note(ax, y + 0.12, "A square is a sentence: its queries down, its keys to the right. Blue is what its tokens "
             "need; grey is padding.")
    return figure


def over_length(series: dict) -> CourseFigure:
    """series: as measure.series.minilm.minilm_lengths returns it, whose PyTorch is not compiled."""
    tokens, lines = series["tokens"], [("ours", series["ours_us"], BLUE)]
    if series["torch_us"] is not None:
        lines.append(("PyTorch, SDPA", series["torch_us"], VERMILLION))
    summary = "; ".join(f"{name}: {us}" for name, us, _ in lines)
    figure, (ax,) = new_figure([2.6], "Time over length", f"Microseconds a sentence over the length that all are "
                               f"padded to. {taken(series)}. {summary}.")
    with rc_context(STYLE):
        leave_right(ax, [name for name, *_ in lines], 0.115)
        ends = []
        for name, us, colour in lines:
            points = [(x, y) for x, y in zip(tokens, us, strict=True) if y is not None]
            ax.plot(*zip(*points, strict=True), "o-", color=colour)
            ends.append((*points[-1], name, colour))
        ax.set_ylim(0, None)
        ax.set_xlim(0, 1.02 * max(tokens))
        ax.set_xlabel("tokens of each sentence")
        ax.set_ylabel("\u00b5s a sentence")
        grid_along(ax, "both")
        label_line_ends(ax, ends)
        panel_title(ax, f"{series['sentences']} sentences, in a graph. {taken(series)}")
    return figure
