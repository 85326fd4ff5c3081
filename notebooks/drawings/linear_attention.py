"""The figures of the lesson "Linear attention", in the course's style.

    over_linear(series)    linear attention and softmax attention over the number of tokens
    linear_costs(size)     flops of both, and the elements that both keep, over the number of tokens
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit.measure.plots.lines import attention_over
from labkit.measure.plots.style import (
    BLUE,
    ORANGE,
    STYLE,
    TEXT,
    CourseFigure,
    grid_along,
    label_line_ends,
    leave_right,
    new_figure,
    panel_title,
)


def over_linear(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Linear attention in its three forms, and softmax attention, causal; both axes logarithmic."""
    return attention_over(series, recorded, "linear_attention_lengths", "S",
                          "Linear attention in chunks overtakes softmax attention", "tokens")


def linear_costs(size: int = 64, tokens: tuple[int, ...] = tuple(2**i for i in range(4, 15))) -> CourseFigure:
    """A panel for the flops of a head over all tokens, and one for the elements that it keeps for the next token."""
    counts = {"flops of a head, in all": ([2 * size * n * (n + 1) for n in tokens], [4 * size**2 * n for n in tokens]),
              "elements kept for the next token": ([2 * size * n for n in tokens], [size * (size + 1)] * len(tokens))}
    title = f"A cache grows, a state does not: heads of {size}"
    figure, axes = new_figure([2.3, 2.3], title, f"{title}. " + "; ".join(
        f"{name}: softmax {softmax[-1]:,} and linear {linear[-1]:,} at {tokens[-1]:,} tokens"
        for name, (softmax, linear) in counts.items()) + ".")
    with rc_context(STYLE):
        for ax, (name, lines) in zip(axes, counts.items(), strict=True):
            leave_right(ax, ("softmax", "linear"), 0.115)
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ends = []
            for of, values, colour in zip(("softmax", "linear"), lines, (BLUE, ORANGE), strict=True):
                ax.plot(tokens, values, color=colour, marker="o", markersize=3)
                ends.append((tokens[-1], values[-1], of, TEXT[colour]))
            ax.set_xticks(tokens[::2], [f"{n:,}" for n in tokens[::2]])
            ax.minorticks_off()
            ax.set_xlabel("tokens")
            grid_along(ax, "both")
            ax.get_ylim()
            label_line_ends(ax, ends)
            panel_title(ax, name)
    return figure
