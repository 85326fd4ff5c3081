"""The figures of the lesson "Making the encoder fast", in the course's style.

    layer_of_each_step(layers)    the launches of a layer at each step of MiniLM's ladder, by kind
    step_times(series)            the recorded ladder: microseconds a sentence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    STYLE,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    grid_along,
    new_figure,
    panel_title,
    taken,
    widen_left,
)
from labkit.models.minilm_counts import Counted

KINDS = {"product": BLUE, "copy": VERMILLION, "attention": GREEN, "elementwise": PURPLE, "LayerNorm": ORANGE}
LONGER = {"elementwise": "GELU, residual", "copy": "split, merge", "LayerNorm": "LayerNorm"}


def layer_of_each_step(layers: Mapping[str, Sequence[Counted]]) -> CourseFigure:
    """A line for each step, a box for each launch of one layer, in their order."""
    longest = max(map(len, layers.values()))
    left, top, tall, pitch = 1.86, 0.92, 0.24, 0.33
    wide = (WIDTH - left - 0.46) / longest
    figure, ax = canvas(top + len(layers) * pitch + 0.20, "The launches of a layer, step by step", "; ".join(
        f"{name}: {len(layer)} launches" for name, layer in layers.items()) + ".")
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
    figure, axes = new_figure([0.24 * len(steps) + 0.2] * len(works), "The ladder",
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
