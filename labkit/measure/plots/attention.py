"""The figures of lessons 17, 18 and 38, in the course's style; those of the algorithm are in flash.py.

    qkv_rows(token=2, head=5)      where the queries, keys and values of a head are
    tiles(queries=40, tile=8)      the tiles that a block processes, without and with a causal mask
    over_lengths(series)           attention over the number of tokens
    over_caches(series)            one query over the length of its cache
    over_linear(series)            linear attention and softmax attention over the number of tokens
    linear_costs(size)             flops of both, and the numbers that both keep, over the number of tokens
"""

from matplotlib import rc_context

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
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    count_axis,
    draw_box,
    foot,
    gpu_panels,
    grid_along,
    label_line_ends,
    leave_right,
    new_figure,
    note,
    panel_taken,
    panel_title,
    taken,
    time_axis,
    unrecorded,
)

PARTS = (("queries", BLUE), ("keys", ORANGE), ("values", GREEN))


def qkv_rows(token: int = 2, head: int = 5, tokens: int = 6, heads: int = 12, size: int = 64) -> CourseFigure:
    """The rows of qkv: solid is what the block of this token and head reads."""
    if not (0 <= token < tokens <= 12 and 0 <= head < heads <= 16):
        raise ValueError(f"token {token} of {tokens} and head {head} of {heads}: a picture holds 12 tokens, 16 heads")
    width = heads * size
    left, top, tall, gap = 0.62, 1.06, 0.25, 0.10
    cell = (WIDTH - left - 0.16 - 2 * gap) / (3 * heads)
    figure, ax = canvas(top + tokens * tall + 0.92, "Where the numbers of a head lie",
                        f"Each row of qkv has {3 * width} numbers: queries, keys and values, {heads} heads of {size} "
                        f"each. Token {token} and head {head} need one piece of queries, and the keys and values of "
                        f"head {head} of all tokens.")
    with rc_context(STYLE):
        for part, (name, colour) in enumerate(PARTS):
            x0 = left + part * (heads * cell + gap)
            ax.text(x0, top - 0.40, name, fontsize=9.5, fontweight="bold", va="center", color=TEXT[colour])
            ax.text(x0, top - 0.17, f"from {part * width:,} on", fontsize=9, color=FAINT, va="center")
            for t in range(tokens):
                for h in range(heads):
                    used = h == head and (part > 0 or t == token)
                    text = h if t == 0 and h in (0, head, heads - 1) else ""
                    draw_box(ax, x0 + h * cell, top + t * tall, cell, tall, text,
                             fill=colour if used else PALE[colour], size=9,
                             ink="white" if used and colour != ORANGE else FAINT if not used else INK)
            middle, bottom = x0 + (head + 0.5) * cell, top + tokens * tall
            ax.annotate("", (middle, bottom + 0.02), (middle, bottom + 0.20),
                        arrowprops={"arrowstyle": "-|>", "color": TEXT[colour], "lw": 1.0})
            ax.text(middle, bottom + 0.29, f"{'t' if part == 0 else 'j'}\u00b7{3 * width} + {part * width} + "
                    f"{head}\u00b7{size}", fontsize=9, color=TEXT[colour], ha="center", va="center")
        for t in range(tokens):
            ax.text(left - 0.08, top + (t + 0.5) * tall, f"token {t}", fontsize=9, ha="right", va="center",
                    color=INK if t == token else FAINT)
        note(ax, top + tokens * tall + 0.63, f"A row for each token, a box for each head: {size} numbers. Solid: what "
             f"the result of token t = {token}, head {head}, is made of.")
    return figure


def tiles(queries: int = 40, tile: int = 8, block: int = 3) -> CourseFigure:
    """The scores of one head in tiles: what one block goes through, without a mask and with a causal one."""
    count = queries // tile
    if queries % tile or not 0 <= block < count <= 8:
        raise ValueError(f"{queries} queries in tiles of {tile}, block {block}: up to 8 whole tiles are drawn")
    left, top, gap, strip = 0.74, 1.34, 0.92, 0.26
    cell = (WIDTH - left - 0.16 - gap - 2 * (strip + 0.08)) / (2 * queries)
    side = queries * cell
    figure, ax = canvas(top + side + strip + 0.98, "One block: its queries stay, keys and values pass by",
                        f"Scores of {queries} queries and keys in tiles of {tile} x {tile}. Block {block} goes "
                        f"through {count} tiles without a mask, and through {block + 1} with a causal one; the last "
                        f"of these lies on the diagonal.")
    with rc_context(STYLE):
        for panel, causal in enumerate((False, True)):
            x0 = left + panel * (side + strip + gap)
            ax.text(x0, top - 0.80, "causal" if causal else "every query sees every key", fontsize=9.5,
                    fontweight="bold", va="center")
            steps = block + 1 if causal else count
            for k in range(count):
                used = k < steps
                draw_box(ax, x0 + k * tile * cell, top - strip - 0.08, tile * cell, strip, f"{k + 1}" if used else "",
                         fill=ORANGE if used else PALE[GREY], size=9)
                draw_box(ax, x0 + k * tile * cell, top + side + 0.08, tile * cell, strip, f"{k + 1}" if used else "",
                         fill=GREEN if used else PALE[GREY], ink="white", size=9)
                draw_box(ax, x0 - strip - 0.08, top + k * tile * cell, strip, tile * cell, "Q" if k == block else "",
                         fill=BLUE if k == block else PALE[BLUE], ink="white", size=9)
            ax.text(x0, top - strip - 0.20, "keys, a tile at a time \u2192", fontsize=9, color=TEXT[ORANGE],
                    va="center")
            ax.text(x0, top + side + strip + 0.20, "values, a tile at a time \u2192", fontsize=9,
                    color=TEXT[GREEN], va="center")
            for q in range(queries):
                for k in range(queries):
                    row, col, hidden = q // tile, k // tile, causal and k > q
                    skipped = causal and col > row
                    fill = "#FFFFFF" if skipped else GREY if hidden else (PURPLE if row == block else PALE[PURPLE])
                    draw_box(ax, x0 + k * cell, top + q * cell, cell, cell, fill=fill, linewidth=0.25)
            for row in range(count):
                for col in range(count):
                    draw_box(ax, x0 + col * tile * cell, top + row * tile * cell, tile * cell, tile * cell, edge=FAINT,
                             linewidth=0.5, zorder=2)
            for k in range(steps):
                cut = causal and k == block  # half of it is grey: the number goes to the other half
                ax.text(x0 + (k + (0.25 if cut else 0.5)) * tile * cell,
                        top + (block + (0.72 if cut else 0.5)) * tile * cell, k + 1, fontsize=9, fontweight="bold",
                        color="white", ha="center", va="center", zorder=4,
                        bbox={"facecolor": PURPLE, "edgecolor": "none", "pad": 1.2})
            draw_box(ax, x0, top + block * tile * cell, steps * tile * cell, tile * cell, edge=VERMILLION,
                     linewidth=2.0, zorder=3)
        note(ax, top + side + strip + 0.50, "Framed: the scores that one block computes, tile after tile, in "
             "registers. Purple: they count. Grey: computed and hidden by the mask. White: tiles that are never "
             "loaded.")
    return figure


# --- Times -----------------------------------------------------------------------------------------------------------

LENGTH_LINES = {"three passes": (PURPLE, "v", "-"), "whole matrix": (VERMILLION, "D", "-"), "flash": (BLUE, "o", "-"),
                "flash, f16": (BLUE, "o", ":"), "decode": (GREEN, "^", "-"), "decode, f16": (GREEN, "^", ":"),
                "SDPA": (GREY, "s", "-"), "SDPA, f16": (GREY, "s", ":"), "linear, quadratic": (PURPLE, "v", "-"),
                "linear, running": (ORANGE, "^", "-"), "linear, chunked": (GREEN, "D", "-")}


def over_lengths(series: dict, mask: str = "none", recorded: dict | None | str = "auto") -> CourseFigure:
    """Attention over the number of tokens, both axes logarithmic."""
    caption = "every query sees every key" if mask == "none" else "causal"
    return _over(series, recorded, "attention_sizes", "S", f"Attention over the number of tokens, {caption}", "tokens",
                 mask)


def over_caches(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """One query over the length of its cache, both axes logarithmic."""
    return _over(series, recorded, "attention_keys", "keys", "One query against its cache", "keys in the cache")


def over_linear(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """Linear attention in its three forms, and softmax attention, causal; both axes logarithmic."""
    return _over(series, recorded, "linear_attention_lengths", "S", "Linear attention over the number of tokens",
                 "tokens")


def linear_costs(size: int = 64, tokens: tuple[int, ...] = tuple(2**i for i in range(4, 15))) -> CourseFigure:
    """A panel for the flops of a head over all its tokens, and one for the numbers that it keeps for the next token."""
    counts = {"flops of a head, in all": ([2 * size * n * (n + 1) for n in tokens], [4 * size**2 * n for n in tokens]),
              "numbers kept for the next token": ([2 * size * n for n in tokens], [size * (size + 1)] * len(tokens))}
    title = f"Softmax and linear attention, counted: heads of {size}"
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


def _over(series: dict, recorded, name: str, x: str, title: str, x_label: str, mask: str | None = None):
    panels, below = gpu_panels(series, name, recorded)
    if not panels:
        return unrecorded(title)
    figure, axes = new_figure([3.1] * len(panels), title, f"{title}: " + "; ".join(
        f"{taken(panel)}, {x} from {panel[x][0]:,} to {panel[x][-1]:,}" for panel in panels) + f". {below}")
    with rc_context(STYLE):
        for ax, panel in zip(axes, panels, strict=True):
            leave_right(ax, [line["name"] for line in panel["lines"]], 0.115)
            count_axis(ax, x_label)
            time_axis(ax)
            ends, last = [], panel[x][-1]
            for line in panel["lines"]:
                if mask is not None and line["mask"] != mask:
                    continue
                colour, marker, style = LENGTH_LINES[line["name"]]
                points = [(n, us / 1000) for n, us in zip(panel[x], line["us"], strict=True) if us is not None]
                ax.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=style, markeredgewidth=0)
                if points[-1][0] == last:
                    ends.append((*points[-1], line["name"], TEXT[colour]))
                else:
                    ax.annotate(line["name"], points[-1], xytext=(6, 3), textcoords="offset points", fontsize=9,
                                color=TEXT[colour])
            ax.set_xlim(panel[x][0] * 0.8, last * 1.2)
            ax.set_xticks(panel[x], [f"{n:,}" for n in panel[x]])
            grid_along(ax, "both")
            ax.get_ylim()  # settles the limits, which the names' places depend on
            label_line_ends(ax, ends)
            panel_title(ax, panel_taken(panels, panel))
        foot(figure, below)
    return figure
