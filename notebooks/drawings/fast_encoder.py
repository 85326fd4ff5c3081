"""The figures of the lesson "Making the encoder fast", in the course's style.

    layer_of_each_step(layers)    the launches of a layer at each step of MiniLM's ladder, by kind
    step_times(series)            the recorded ladder: microseconds a sentence
    score_matrices(lengths)       what attention computes of padded sentences, and what it needs to
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
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
    grid_along,
    new_figure,
    note,
    panel_title,
    taken,
    widen_left,
)
from labkit.models.minilm import FORMS
from labkit.models.minilm_counts import Counted

KINDS = {"product": BLUE, "copy": VERMILLION, "attention": GREEN, "elementwise": PURPLE, "LayerNorm": ORANGE}
LONGER = {"elementwise": "GELU, residual", "copy": "split, merge", "LayerNorm": "LayerNorm"}
NAMES = {"padded_to_128": "padded to 128", "padded": "padded to the longest", "packed": "packed"}


def layer_of_each_step(layers: Mapping[str, Sequence[Counted]]) -> CourseFigure:
    """A line for each step, a box for each launch of one layer, in their order."""
    counts = [len(layer) for layer in layers.values()]
    longest = max(counts)
    left, top, tall, pitch = 1.86, 0.92, 0.24, 0.33
    wide = (WIDTH - left - 0.46) / longest
    figure, ax = canvas(top + len(layers) * pitch + 0.20, f"From {counts[0]} launches a layer to {counts[-1]}",
                        "; ".join(f"{name}: {len(layer)} launches" for name, layer in layers.items()) + ".")
    with rc_context(STYLE):
        x = 0.14
        for kind, colour in KINDS.items():
            draw_box(ax, x, 0.54, 0.16, 0.16, fill=colour)
            ax.text(x + 0.22, 0.62, LONGER.get(kind, kind), fontsize=9, va="center_baseline")
            x += 0.42 + 0.078 * len(LONGER.get(kind, kind))
        for row, (name, layer) in enumerate(layers.items()):
            y = top + row * pitch
            ax.text(left - 0.10, y + tall / 2, name, fontsize=9.5, ha="right", va="center_baseline")
            for i, one in enumerate(layer):
                draw_box(ax, left + i * wide, y, wide - 0.03, tall, fill=KINDS[one.kind])
            ax.text(left + len(layer) * wide + 0.06, y + tall / 2, len(layer), fontsize=9.5, fontweight="bold",
                    va="center_baseline")
    return figure


def step_times(series: dict) -> CourseFigure:
    """A panel for each batch, a bar for each step. series: as measure.series.minilm.minilm_ladder returns it."""
    steps = series["steps"]
    works = [work for work in steps[0]["us"] if all(one["us"].get(work) for one in steps)]
    us = [one["us"][works[0]] for one in steps]
    figure, axes = new_figure([0.24 * len(steps) + 0.2] * len(works),
                              f"The last form is {us[0] / us[-1]:.0f} times as fast as the first",
                              f"Microseconds a sentence. {taken(series)}. " + "; ".join(
        f"{one['name']}: " + ", ".join(f"{one['us'][work]:.1f} at {work}" for work in works) for one in steps) + ".")
    with rc_context(STYLE):
        for ax, work in zip(axes, works, strict=True):
            times = [one["us"][work] for one in steps]
            widen_left(ax, [one["name"] for one in steps])
            ax.barh(range(len(steps)), times, color=BLUE, height=0.66)
            for row, us in enumerate(times):
                ax.text(us + 0.012 * max(times), row, f"{us:.1f}", va="center_baseline", fontsize=9, color=INK)
            ax.set_yticks(range(len(steps)), [one["name"] for one in steps])
            ax.set_xlim(0, 1.12 * max(times))
            ax.invert_yaxis()
            ax.set_xlabel("\u00b5s a sentence, in a graph; shorter is better")
            grid_along(ax, "x")
            count, tokens = work.split(" x ")
            panel_title(ax, f"{count} sentences of {tokens} tokens. {taken(series)}")
    return figure


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
    figure, ax = canvas(0.52 + sum(heights) + 0.30,
                        f"Padded to 128, a head has {panels[0][2] / needed:.1f} times the scores it needs",
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
