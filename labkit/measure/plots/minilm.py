"""The figures of `labkit report minilm`, in the course's style.

    forms(rows, place)             microseconds a sentence of every form of a batch
    lengths(series, recorded)      time over the length that sentences are padded to
    shares(series, which)          what each launch takes of a pass
    ladder(series, size)           the steps of the model, slowest first
    agreement(result)              cosines over the scores that people gave
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import LogLocator

from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    GREY,
    INK,
    LONGEST_NAME,
    ORANGE,
    STYLE,
    CourseFigure,
    gpu_panels,
    grid_along,
    new_figure,
    panel_title,
    shorten,
    taken,
    widen_left,
)
from labkit.measure.plots.where_time_goes import lines_over
from labkit.measure.sts import Judged

LAUNCHES = {"embedding": "embeddings, LayerNorm", "qkv": "product to q, k, v", "attended": "attention",
            "attention.projected": "product after attention", "attention.normed": "residual, LayerNorm",
            "gelu": "product, GELU", "projected": "product back", "out": "residual, LayerNorm (2)",
            "pooled": "mean, length 1"}
SIZE = 11.5  # of the type: on a phone a figure is shown at half its width
FORM_COLOURS = {"packed": BLUE, "padded": ORANGE, "padded to 128": GREY}


def bars(title: str, subtitle: str, names: Sequence[str], values: Sequence[float], texts: Sequence[str],
          colours: Sequence[str], x_label: str) -> CourseFigure:
    """A bar for each name, shorter is faster."""
    figure, (ax,) = new_figure([0.36 * len(names) + 0.15], title, f"{title}: " + "; ".join(
        f"{name} {text}" for name, text in zip(names, texts, strict=True)) + f". {subtitle}.")
    with rc_context(STYLE):
        widen_left(ax, names, SIZE)
        for y, (name, value, text, colour) in enumerate(zip(names, values, texts, colours, strict=True)):
            ax.barh(y, value, height=0.62, color=colour)
            ax.annotate(text, (value, y), xytext=(5, 0), textcoords="offset points", va="center",
                        fontsize=SIZE)
            ax.annotate(shorten(name, LONGEST_NAME), (0, y), xytext=(-8, 0), textcoords="offset points", ha="right",
                        va="center", fontsize=SIZE, annotation_clip=False)
        ax.set_ylim(len(names) - 0.45, -0.55)
        ax.set_yticks([])
        ax.set_xlim(0, 1.45 * max(values))
        grid_along(ax, "x")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        ax.tick_params(labelsize=SIZE - 1)
        ax.set_xlabel(x_label, fontsize=SIZE - 1)
        panel_title(ax, subtitle)
    return figure


def duration(us: float) -> str:
    """Microseconds as a reader says them."""
    return f"{number(us)} us" if us < 1000 else f"{number(us / 1000)} ms" if us < 1e6 else f"{number(us / 1e6)} s"


def _unit(times: Iterable[float]) -> tuple[float, str]:
    """(microseconds of it, the unit's name) for an axis of these microseconds."""
    return (1.0, "microseconds") if max(times) < 2000 else (1000.0, "milliseconds")


def forms(rows: Sequence[Mapping], subtitle: str) -> CourseFigure:
    """rows: each with `work`, `form` and `us` a sentence."""
    scale, unit = _unit(row["us"] for row in rows)
    return bars("Time of a sentence, by the form of its batch", subtitle,
                 [f"{row['work']}, {row['form']}" for row in rows], [row["us"] / scale for row in rows],
                 [duration(row["us"]) for row in rows], [FORM_COLOURS[row["form"]] for row in rows],
                 f"{unit} a sentence")


LENGTH_LINES = (("torch_us", "PyTorch, SDPA", GREY, "s"), ("ours_us", "ours", BLUE, "o"))


def lengths(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Time of a sentence over the tokens that all are padded to, both axes logarithmic."""
    def known(panel: dict) -> dict:
        return {**panel, **{key: [np.nan if us is None else us for us in panel[key]] for key in ("torch_us", "ours_us")
                            if panel[key]}}

    panels, _ = gpu_panels(series, "minilm_lengths", recorded)
    panels = [known(panel) for panel in panels]
    beside = panels[0] if panels and panels[0]["where"] != series["where"] else None
    figure = lines_over(known(series), "minilm_lengths", beside, "Time of a sentence over its length", "tokens",
                        LENGTH_LINES, "tokens that each sentence is padded to")
    for ax, panel in zip(figure.axes, panels, strict=False):
        ax.set_xticks(panel["tokens"], [f"{n:,}" for n in panel["tokens"]])
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    return figure


def shares(series: Mapping, which: int = 0) -> CourseFigure:
    """What each kind of launch takes of a pass. On a GPU: by how much a pass is shorter without it."""
    one = series["passes"][which]
    rows, times = one["rows"], [max(0.0, row["us_saved"]) for row in one["rows"]]
    names = [LAUNCHES.get(row["name"], row["name"]) + (f" × {row['count']}" if row["count"] > 1 else "")
             for row in rows]
    batch = f"{one['sentences']:,} sentence{'s' if one['sentences'] != 1 else ''} of {one['tokens']}"
    colours = [ORANGE if row["name"] == "attended" else GREY if "norm" in row["name"] or row["name"] in
               ("out", "embedding", "pooled") else BLUE for row in rows]
    shared, (scale, unit) = [us / sum(times) for us in times], _unit(times)
    return bars(f"What each launch takes: {batch} tokens", taken(series), names, [us / scale for us in times],
                 [f"{duration(us)} ({'<1%' if fraction < 0.005 else f'{fraction:.0%}'})" for us, fraction in
                  zip(times, shared, strict=True)], colours,
                 f"{unit}, of {number(one['us'] / scale)} in all")


def ladder(series: Mapping, size: str) -> CourseFigure:
    """The steps at one size, such as "64 x 128"."""
    rows = series["steps"]
    values = [row["us"][size] for row in rows]
    return bars(f"The steps, {size.replace('x', 'sentences of')} tokens", taken(series),
                 [row["name"] for row in rows], values, [duration(us) for us in values], [BLUE] * len(rows),
                 "microseconds a sentence")


def agreement(result: Judged) -> CourseFigure:
    """A dot for each pair."""
    spearman = "Spearman's correlation " + ("is not defined" if result.spearman is None else f"{result.spearman:.4f}")
    figure, (ax,) = new_figure([3.4], "What people say, and what the cosine says",
                               f"Cosines of {len(result.cosines):,} pairs of sentences over their scores. {spearman}.")
    with rc_context(STYLE):
        many = len(result.cosines) > 200
        ax.tick_params(labelsize=SIZE - 1)
        ax.plot(result.pairs.scores, result.cosines, "o", color=BLUE, alpha=0.35 if many else 0.8,
                markersize=3 if many else 5, markeredgewidth=0)
        ax.axhline(0, color=INK, linewidth=0.8)
        grid_along(ax, "both")
        ax.set_xlabel("score given by people", fontsize=SIZE - 1)
        ax.set_ylabel("cosine", fontsize=SIZE - 1)
        panel_title(ax, f"{len(result.cosines):,} pairs; {spearman}")
    return figure
