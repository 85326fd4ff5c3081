"""The figures of the lesson "One kernel for a token", and the calculation behind one of them.

    decode_phases(...)        a layer of a Llama as phases: what each SM reads of the weights, and what else it does
    simulate(phases, ...)     when each SM begins and ends each phase, and what its ring holds
    with_and_without(...)     a layer on some SMs along time: calculated, without a ring and with one
    recorded_layer(series)    the middle layer on all SMs along time, as a GPU recorded it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib import rc_context

from labkit.kernels.persistent.decoder import ROWS, Decoder
from labkit.measure.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    PALE,
    PURPLE,
    STYLE,
    VERMILLION,
    CourseFigure,
    count_of,
    foot,
    grid_along,
    key,
    new_figure,
    panel_title,
    taken,
)
from labkit.measure.series.one_kernel import PHASES

COLOURS = dict(zip(PHASES, (BLUE, ORANGE, GREEN, PURPLE, VERMILLION), strict=True))
NAMES = {"norm_qkv": "qkv", "attention": "attention", "o": "o", "norm_gate_up": "gate, up", "down": "down"}


@dataclass(frozen=True)
class Phase:
    """kb (SMs,): the weights that each SM multiplies; us: a phase without weights takes this long instead."""

    name: str
    kb: np.ndarray
    us: float = 0.0


@dataclass(frozen=True)
class Span:
    """begin and end of a phase on each SM, in us; level (SMs, 2): what the ring holds then, in KB."""

    name: str
    begin: np.ndarray
    end: np.ndarray
    level: np.ndarray


def tiles_of(units: int, blocks: int) -> np.ndarray:
    """Return how many of `units` each block takes, if the blocks take them in turn."""
    return np.array([len(range(block, units, blocks)) for block in range(blocks)])


def decode_phases(decoder: Decoder, blocks: int, attention_us: float) -> list[Phase]:
    """Return the phases of a layer, in which the blocks take tiles of ROWS rows in turn, two at once of gate and up
    and of down."""
    def weights(rows, columns, unit_rows=ROWS):
        return tiles_of(-(-rows // unit_rows), blocks) * unit_rows * columns * decoder.element.dtype.itemsize / 1e3

    return [Phase("norm_qkv", weights(decoder.qkv_rows, decoder.hidden)),
            Phase("attention", np.zeros(blocks), attention_us),
            Phase("o", weights(decoder.hidden, decoder.attended)),
            Phase("norm_gate_up", weights(decoder.gate_up_rows, decoder.hidden, 2 * ROWS)),
            Phase("down", weights(decoder.hidden, decoder.mlp, 2 * ROWS))]


def simulate(phases: Sequence[Phase], ring_kb: float, kb_per_us: float, join_us: float, start_us: float,
             speed: float) -> list[Span]:
    """An SM reads at most kb_per_us, whatever the others do, and multiplies what is in shared memory `speed` times as
    fast. A join takes join_us after its last block has arrived. Without a ring (ring_kb is 0) the first weights of a
    phase arrive start_us after it begins; with one they are copied at all times, unless it is full."""
    now, level, spans = 0.0, np.zeros_like(phases[0].kb), []
    for phase in phases:
        begin, before = np.full_like(phase.kb, now), level
        # Until the ring is empty an SM multiplies at its own speed, then as fast as weights arrive.
        ahead = phase.kb <= level * speed / (speed - 1)
        us = np.where(ahead, phase.kb / (speed * kb_per_us), (phase.kb - level) / kb_per_us) + phase.us
        if not ring_kb:
            us = us + np.where(phase.kb > 0, start_us, 0.0)
        level = np.minimum(ring_kb, np.maximum(0.0, level + us * kb_per_us - phase.kb))
        spans.append(Span(phase.name, begin, begin + us, np.stack([before, level], axis=1)))
        now = (begin + us).max() + join_us
        level = np.minimum(ring_kb, level + (now - begin - us) * kb_per_us)
    return spans


def with_and_without(phases: Sequence[Phase], ring_kb: float, shown: Sequence[int], **parameters) -> CourseFigure:
    """The second of three layers, on the SMs `shown`; below them, what the ring of the first of them holds."""
    count = len(phases)
    layers = {name: simulate([*phases] * 3, size, **parameters)[count : 2 * count + 1]
              for name, size in (("without a ring", 0.0), (f"with a ring of {ring_kb:,.0f} KB", ring_kb))}
    us = {name: spans[count].begin[0] - spans[0].begin[0] for name, spans in layers.items()}
    figure, axes = new_figure([0.21 * len(shown) + 0.1] * 2 + [0.8], "The ring fills while an SM waits",
                              "A calculation, for one layer. " + "; ".join(
                                  f"{name}: {each:.1f} us" for name, each in us.items()) + ".", gap=0.86)
    with rc_context(STYLE):
        for ax, (name, spans) in zip(axes, layers.items(), strict=False):
            for row, sm in enumerate(shown):
                for span in spans[:count]:
                    ax.barh(row, span.end[sm] - span.begin[sm], left=span.begin[sm] - spans[0].begin[0], height=0.74,
                            linewidth=0, color=COLOURS[span.name])
            ax.set_yticks(range(len(shown)), [f"SM {sm}" for sm in shown], fontsize=9)
            ax.set_ylim(len(shown) - 0.4, -0.6)
            panel_title(ax, f"{name}: {us[name]:.1f} us")
        *_, spans = layers.values()
        first = shown[0]
        ends = [(at - spans[0].begin[0], level) for span in spans
                for at, level in zip((span.begin[first], span.end[first]), span.level[first], strict=True)][:-1]
        rate, speed = parameters["kb_per_us"], parameters["speed"]
        points = ends[:1]
        for (begin, before), (end, after) in pairwise(ends):  # it rises or falls as fast as it can, and then stays
            slope = rate if after > before else (1 - speed) * rate
            points += [(begin + (after - before) / slope, after), (end, after)]
        axes[2].fill_between(*zip(*points, strict=True), color=PALE[BLUE], edgecolor=BLUE, linewidth=1.2)
        axes[2].set_ylim(0, 1.1 * ring_kb)
        axes[2].set_ylabel("KB")
        axes[2].set_xlabel("microseconds, calculated")
        panel_title(axes[2], f"what the ring of SM {first} holds")
        for ax in axes:
            ax.set_xlim(0, 1.02 * max(us.values()))
            grid_along(ax, "x")
    key(figure, [(NAMES[name], COLOURS[name]) for name in PHASES])
    return figure


def recorded_layer(series: dict) -> CourseFigure:
    """A panel for each recorded number of sequences, a line for each block; white is waiting at a join."""
    panels = series["timelines"]
    names = [f"{count_of(panel['sequences'], 'sequence')}: {_layer_us(panel):.1f} us" for panel in panels]
    figure, axes = new_figure([1.9] * len(panels), "The middle layer on every SM",
                              f"{taken(series)}: {'; '.join(names)}.", gap=0.86)
    with rc_context(STYLE):
        for ax, panel, name in zip(axes, panels, names, strict=True):
            marks = np.array(panel["middle_layer_ns"]) / 1e3
            marks -= marks[:, 0].min()
            for number, phase in enumerate(PHASES):
                begin, end = marks[:, 2 * number], marks[:, 2 * number + 1]
                ax.barh(np.arange(len(marks)), end - begin, left=begin, height=1.0, linewidth=0, color=COLOURS[phase])
            ax.set_ylim(len(marks) - 0.5, -0.5)
            ax.set_ylabel("block")
            grid_along(ax, "x")
            panel_title(ax, name)
        axes[-1].set_xlabel("microseconds")
    key(figure, [(NAMES[name], COLOURS[name]) for name in PHASES])
    foot(figure, taken(series))
    return figure


def _layer_us(panel: dict) -> float:
    marks = np.array(panel["middle_layer_ns"])
    return float(marks[:, -1].max() - marks[:, 0].min()) / 1e3
