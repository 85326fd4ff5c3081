"""The figures of the lesson "The scheduler", in the course's style.

    requests_over_steps(history, pages)    what each sequence did in each step, and how many pages were held
    tokens_of_steps(panels)                the tokens of each step, of prompts and of outputs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context

from labkit.engine.recording import Recorded
from labkit.measure.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    STYLE,
    VERMILLION,
    WIDTH,
    CourseFigure,
    count_of,
    grid_along,
    key,
    new_figure,
    panel_title,
    width_of,
)
from labkit.measure.simulation import Timeline

KINDS = {"prefill": ("prompt", ORANGE), "decode": ("one more token", BLUE), "again": ("computed again", VERMILLION)}


def requests_over_steps(history: Sequence[Recorded], pages: int, title: str = "Requests over steps") -> CourseFigure:
    """A line for each sequence, a column for each step; below, the pages that were held, of `pages` in all. A cross is
    a preemption: in that step the sequence gave its pages back."""
    if not history:
        raise ValueError("the history has no steps; a figure needs one at least")
    names = list(dict.fromkeys(part.name for step in history for part in step.parts))
    several = len({request for request, _ in names}) < len(names)
    crosses = sum(len(step.preempted) for step in history)
    figure, (ax, below) = new_figure([0.25 * len(names) + 0.05, 0.75], title, (
        f"{count_of(len(history), 'step')} of {count_of(len(names), 'sequence')}, "
        f"{count_of(crosses, 'preemption')}; at most {max(step.held for step in history)} of {pages} pages held."),
        gap=0.42, bottom=0.55)
    rows = {name: row for row, name in enumerate(names)}
    labels = [f"{request}/{index}" if several else request for request, index in names]
    left = (0.40 + max(width_of(label, 9) for label in (*labels, f"{pages}"))) / WIDTH
    with rc_context(STYLE):
        for each in (ax, below):
            box = each.get_position()
            each.set_position((left, box.y0, 0.97 - left, box.height))
        for i, step in enumerate(history):
            for name in step.waiting:
                if name in rows:
                    ax.barh(rows[name], 1, left=i, height=0.14, color=GREY, linewidth=0)
            done = dict.fromkeys(part.name for part in step.parts)
            for name in done:
                parts, left = [part for part in step.parts if part.name == name], float(i)
                total = sum(part.tokens for part in parts)
                for part in parts:
                    ax.barh(rows[name], part.tokens / total, left=left, height=0.76, color=KINDS[part.kind][1],
                            linewidth=0)
                    left += part.tokens / total
            for name in step.preempted:
                if name in rows:
                    ax.plot([i + 0.5], [rows[name]], "x", color=INK, markersize=7, markeredgewidth=1.8)
        ax.set_ylim(len(names) - 0.45, -0.55)
        ax.set_yticks(range(len(names)), labels)
        ax.set_ylabel("request")
        ax.tick_params(length=0, labelbottom=False)
        below.stairs([step.held for step in history], range(len(history) + 1), fill=True, color=PALE[GREEN],
                     edgecolor=GREEN, linewidth=1.4)
        below.axhline(pages, color=INK, linewidth=1.0)
        below.set_ylim(0, 1.18 * pages)
        below.set_yticks([0, pages])
        below.set_ylabel("pages")
        below.set_xlabel("step")
        for each in (ax, below):
            each.set_xlim(0, len(history))
        grid_along(below, "y")
        key(figure, [(words, colour) for kind, (words, colour) in KINDS.items()
                         if any(step.tokens(kind) for step in history)] + [("waiting", GREY)])
    return figure


def tokens_of_steps(panels: Mapping[str, Timeline], title: str = "Tokens of each step") -> CourseFigure:
    """Stacked bars, a panel for each timeline, all to one scale: tokens of prompts on those of outputs."""
    counts = {}
    for name, timeline in panels.items():
        counts[name] = np.zeros((2, timeline.steps))
        for cell in timeline.cells:
            counts[name][int(cell.kind == "prefill"), cell.step] += cell.tokens
    if not counts or not all(each.size for each in counts.values()):
        raise ValueError("a panel has no steps; a figure needs one at least")
    tallest = max(each.sum(0).max() for each in counts.values())
    longest = max(each.shape[1] for each in counts.values())
    figure, axes = new_figure([1.35] * len(counts), title, "; ".join(
        f"{name}: {each.shape[1]} steps, at most {each.sum(0).max():.0f} tokens in one"
        for name, each in counts.items()) + ".", gap=0.55)
    with rc_context(STYLE):
        for ax, (name, (decode, prefill)) in zip(axes, counts.items(), strict=True):
            steps = np.arange(len(decode)) + 0.5
            ax.bar(steps, decode, width=0.9, color=BLUE)
            ax.bar(steps, prefill, width=0.9, bottom=decode, color=ORANGE)
            ax.set_xlim(0, longest)
            ax.set_ylim(0, 1.12 * tallest)
            ax.set_ylabel("tokens")
            grid_along(ax, "y")
            panel_title(ax, f"{name}: {len(decode)} steps, at most {(decode + prefill).max():.0f} tokens in one")
        axes[-1].set_xlabel("step")
        key(figure, [KINDS["prefill"], KINDS["decode"]])
    return figure
