"""The figures and tables of the lesson "GPT-2 writes".

    next_token(tokens, panels)    the distribution of the next token, as a sampler shapes it
    cache_curve(series)           the time of a token, with the cache and without it
    step_shares(series)           what each launch takes of a step, beside what its bytes need
    rates(series)                 tokens a second, for each model and each way to compute attention
    amdahl_table(series)          the softmax's share, and what its speed-up can be worth
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import LogLocator

from labkit import measure
from labkit._common.tables import PlainTable, number
from labkit.measure.plots.lines import lines_over
from labkit.measure.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    STYLE,
    TEXT,
    VERMILLION,
    CourseFigure,
    gpu_panels,
    grid_along,
    key,
    new_figure,
    panel_title,
    taken,
    widen_left,
)
from labkit.measure.series.generation import ATTENTIONS

SHAPE = "'s shape"  # after the name of a model with random weights
LAUNCHES = {"ln_1": "LayerNorm 1", "attn.c_attn": "product to q, k, v", "attn.cache": "k, v to the cache",
            "attn": "attention", "attn.added": "product, residual", "ln_2": "LayerNorm 2",
            "mlp.gelu": "product, GELU", "out": "product, residual", "ln_f": "last LayerNorm"}
WAYS = {"unfused": ("softmax in 3 launches", GREY), "fused": ("softmax in 1", BLUE),
        "one kernel": ("attention in 1 kernel", GREEN)}
HOWS = {"called": "launched from Python", "graph": "in a graph"}
# The report's results, distilgpt2 on an NVIDIA L4: tokens a second, ms a token, p50 in seconds; baseline, then fused.
SOURCE = {
    "The future of artificial intelligence": ((179.92, 5.558, 0.528), (178.70, 5.596, 0.530)),
    "In a world where technology": ((182.31, 5.485, 0.521), (181.56, 5.508, 0.522)),
    "The quick brown fox": ((179.10, 5.583, 0.536), (182.10, 5.492, 0.527)),
}


def labelled(name: str) -> str:
    """ "distilgpt2's shape" -> "shape of distilgpt2, random weights": no figure calls random weights distilgpt2."""
    return f"shape of {name.removesuffix(SHAPE)},\nrandom weights" if name.endswith(SHAPE) else name


def next_token(tokens: Sequence[str], panels: Mapping[str, np.ndarray], title: str = "The next token") -> CourseFigure:
    """Draw the probabilities of these tokens as bars, one panel for each way to shape them. Tokens that can no longer
    be sampled leave a gap."""
    count = len(panels)
    figure, axes = new_figure([1.45] * count, title, f"{title}: " + "; ".join(
        f"{name}: {tokens[int(np.argmax(probs))]!r} {np.max(probs):.0%}" for name, probs in panels.items()),
           gap=0.50, bottom=0.95)
    with rc_context(STYLE):
        for k, (ax, (name, probs)) in enumerate(zip(axes, panels.items(), strict=True)):
            box = ax.get_position()
            ax.set_position((0.08, box.y0, 0.90, box.height))
            probs = np.asarray(probs)
            ax.bar(range(len(tokens)), probs, color=BLUE, width=0.72)
            for i in np.flatnonzero(probs == 0):
                ax.annotate("\u00d7", (i, 0), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9,
                            color=TEXT[VERMILLION])
            ax.set_ylim(0, 1.12 * max(0.05, float(probs.max())))
            ax.set_xlim(-0.6, len(tokens) - 0.4)
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            ax.set_xticks(range(len(tokens)), [repr(t)[1:-1] for t in tokens] if k == count - 1 else [""] * len(tokens),
                          rotation=55, ha="right", rotation_mode="anchor")
            grid_along(ax, "y")
            remaining = int((probs > 0).sum())
            caption = "" if remaining == len(tokens) else f"; {remaining} of these {len(tokens)} are left"
            panel_title(ax, f"{name}{caption}")
    return figure


def cache_curve(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """The time of one more token over the number of tokens before it, both axes logarithmic."""
    lines = (("without_us", "without the cache", VERMILLION, "o"), ("with_us", "with the cache", BLUE, "D"))
    figure = lines_over(series, "cache_curve", recorded, "With a cache, a token costs the same at any length",
                        "position", lines, "tokens before it")
    for ax, panel in zip(figure.axes, gpu_panels(series, "cache_curve", recorded)[0], strict=False):
        shown = [n for n in panel["position"] if n != 768]  # too near to its neighbours
        ax.set_xticks(shown, [f"{n:,}" for n in shown])
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    return figure


def step_shares(series: dict, which: int = 0) -> CourseFigure:
    """What each launch takes of one step, of all layers; on a GPU with what its bytes need."""
    step = series["steps"][which]
    rows = [row for row in step["rows"] if row["us"] > 0.004 * step["us"]]
    names = [LAUNCHES.get(row["name"], row["name"]) + (f" × {row['count']}" if row["count"] > 1 else "")
             for row in rows]
    limits = {} if series["where"] == measure.CPU_DEVICE else (measure.recorded() or {}).get("limits", {})
    bandwidth = limits.get("bandwidth_gbs")
    model = labelled(series["model"]).replace("\n", " ")
    count = sum(row["count"] for row in step["rows"])
    title = f"A token with {step['position']:,} before it: {number(step['us'])} us in {count} launches"
    caption = "; ".join(f"{row['name']} {row['us'] / step['us']:.0%}" for row in rows)
    figure, (ax,) = new_figure([0.33 * len(rows) + 0.15], title,
                               f"{title}, {model}: {caption}. {taken(series)}.")
    with rc_context(STYLE):
        widen_left(ax, names)
        longest = max(row["us"] for row in rows)
        for y, (row, name) in enumerate(zip(rows, names, strict=True)):
            attention = row["name"].startswith("attn") and row["name"] not in ("attn.c_attn", "attn.added")
            ax.barh(y, row["us"], height=0.62, color=ORANGE if attention else BLUE)
            need = row["bytes"] / bandwidth / 1e3 if bandwidth and row["bytes"] else 0
            if need:
                ax.plot([need, need], [y - 0.38, y + 0.38], color=INK, linewidth=1.3)
            ax.annotate(f"{number(row['us'])} us  ({row['us'] / step['us']:.0%})", (max(row["us"], need), y),
                        xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)
            ax.annotate(name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right",
                        va="center", fontsize=9, annotation_clip=False)
        ax.set_ylim(len(rows) - 0.45, -0.55)
        ax.set_yticks([])
        ax.set_xlim(0, 1.28 * longest)
        grid_along(ax, "x")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        note = "; black line: what the bytes need" if bandwidth else ""
        ax.set_xlabel(f"microseconds, of {number(step['us'])} in all{note}")
        panel_title(ax, f"{model}. {taken(series)}")
    return figure


def rates(series: dict) -> CourseFigure:
    """Draw tokens per second, the mean over the prompts: for each model, launched from Python and in a graph, with
    attention in steps and as one kernel. The report's are next to those launched from Python."""
    panels = {}
    for one in series["models"]:
        for how in dict.fromkeys(row["how"] for row in one["prompts"][0]["rows"]):
            by_name = {name: [row["tokens_per_second"] for prompt in one["prompts"] for row in prompt["rows"]
                              if (row["attention"], row["how"]) == (name, how)] for name in ATTENTIONS}
            panels.setdefault(how, {})[labelled(one["name"])] = {
                name: float(np.mean(values)) for name, values in by_name.items() if values}
    if series["where"] != measure.CPU_DEVICE and "called" in panels:
        report_rates = {name: float(np.mean([both[k][0] for both in SOURCE.values()]))
                         for k, name in enumerate(("unfused", "fused"))}
        panels["called"] = {"distilgpt2, NVIDIA L4:\nthe report's": report_rates, **panels["called"]}
    caption = "; ".join(f"{HOWS[how]}: " + ", ".join(
        f"{name} " + " and ".join(f"{rate:,.0f}" for rate in by_name.values()) for name, by_name in groups.items())
        for how, groups in panels.items()).replace("\n", " ")
    heights = [0.24 * sum(len(by_name) + 0.8 for by_name in groups.values()) for groups in panels.values()]
    figure, axes = new_figure(heights, "A graph matters more than a fused kernel" if "graph" in panels
                              else "Tokens a second", f"Tokens a second. {caption}. "
                              f"{taken(series)}.", gap=0.72)
    with rc_context(STYLE):
        names = [line for groups in panels.values() for name in groups for line in name.split("\n")]
        for ax, (how, groups) in zip(axes, panels.items(), strict=True):
            widen_left(ax, names)
            _rates_panel(ax, groups)
            panel_title(ax, f"{HOWS[how][0].upper()}{HOWS[how][1:]}. {taken(series)}")
        used = [name for name in WAYS if any(name in by_name for groups in panels.values()
                                                 for by_name in groups.values())]
        key(figure, [WAYS[name] for name in used])
    return figure


def _rates_panel(ax, groups: Mapping[str, Mapping[str, float]]) -> None:
    y = 0.0
    for model, rates in groups.items():
        ax.annotate(model, (0, y + (len(rates) - 1) / 2), xytext=(-8, 0), textcoords="offset points", ha="right",
                    va="center", fontsize=9, annotation_clip=False)
        for name, rate in rates.items():
            ax.barh(y, rate, height=0.86, color=WAYS[name][1])
            times = "" if name == "unfused" else f"  ({rate / rates['unfused']:.2f} times)"
            ax.annotate(f"{number(rate)}{times}", (rate, y), xytext=(5, 0), textcoords="offset points", va="center",
                        fontsize=9)
            y += 1
        y += 0.8
    ax.set_ylim(y - 1.1, -0.7)
    ax.set_yticks([])
    ax.set_xlim(0, 1.45 * max(max(rates.values()) for rates in groups.values()))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    grid_along(ax, "x")


def speedups(fractions: Sequence[float], factors: Mapping[str, float]) -> dict[str, list[float]]:
    """Amdahl's law as lines for plots.curves."""
    return {name: [amdahl(p, factor) for p in fractions] for name, factor in factors.items()}


def amdahl(fraction: float, speedup: float) -> float:
    """Return the speed-up of the whole, if a part that takes `fraction` of it becomes `speedup` times as fast."""
    return 1 / (1 - fraction + fraction / speedup)


def judged(step: Mapping, called: bool = False) -> dict:
    """From softmax_share: the softmax's share of a step, its own speed-up, what Amdahl's law predicts from it, the gain
    if it took no time, and what was measured."""
    prefix = "called_" if called else ""
    one, other = step["unfused"], step["fused"]
    part = one[f"{prefix}softmax_us"] / one[f"{prefix}us"]
    speedup = one[f"{prefix}softmax_us"] / other[f"{prefix}softmax_us"]
    return {"share": part, "speedup": speedup, "predicted": amdahl(part, speedup), "most": amdahl(part, np.inf),
            "measured": one[f"{prefix}us"] / other[f"{prefix}us"]}


def apart(series: Mapping) -> dict[str, float]:
    """Return the largest difference between Amdahl's law and the measurement: for calls from Python, and for a
    graph."""
    errors: dict[str, list[float]] = {}
    for step in [one["step"] for one in series["models"]] + list(series.get("prefill", ())):
        for called in (False, True)[: 1 + ("called_us" in step["unfused"])]:
            j = judged(step, called)
            how = "called" if called or series["where"] == measure.CPU_DEVICE else "graph"
            errors.setdefault(how, []).append(abs(j["measured"] / j["predicted"] - 1))
    return {how: max(values) for how, values in errors.items()}


def amdahl_table(series: Mapping) -> PlainTable:
    """The softmax's share, and what its speed-up can be worth, for each model, and for prompts of some lengths."""
    rows = []

    def row(label, step, called=False):
        j = judged(step, called)
        rows.append((label, f"{j['share']:.1%}", f"{j['speedup']:.2f}", f"{j['predicted']:.3f}", f"{j['measured']:.3f}",
                     f"{j['most']:.3f}"))

    for one in series["models"]:
        on_gpu = "called_us" in one["step"]["unfused"]
        row(f"a token, {one['name']}" + (", in a graph" if on_gpu else ""), one["step"])
        if on_gpu:
            row(f"a token, {one['name']}, launched from Python", one["step"], called=True)
    for step in series.get("prefill", ()):
        row(f"a prompt of {step['count']:,}, GPT-2 small's shape, in a graph", step)
    return PlainTable("What a faster softmax is worth",
                      ("", "its share", "its speed-up", "predicted", "measured", "at most"), tuple(rows),
                      ("Share: softmax in three launches, of the time of the whole. Predicted by Amdahl's law. At "
                       "most: if softmax took no time at all.", f"{series['where']}, {series['date']}."))
