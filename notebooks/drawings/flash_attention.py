"""The figures of the lesson "Flash attention", in the course's style.

    tiles(queries=40, tile=8)        the tiles that a block processes, without and with a causal mask
    over_lengths(series)             attention over the number of tokens
    over_caches(series)              one query over the length of its cache
    running_maximum(scores, tile)    what a softmax knows of a row after each tile, and the factor that corrects it
    plain_block()                    what the threads of flash_plain hold and what they share
    register_tiles()                 which scores one thread computes: in flash_plain, and in flash
    factor_in_place(lane=13)         accumulators of one tensor-core product as the first factor of the next
    schedules()                      products and exponentials in time, one after the other and side by side
"""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context

from labkit.measure.plots.lines import attention_over
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SMALLEST,
    STYLE,
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    draw_heading,
    grid_along,
    new_figure,
    note,
    panel_title,
    width_of,
)


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


def over_lengths(series: dict, mask: str = "none", recorded: dict | None | str = "auto") -> CourseFigure:
    """Attention over the number of tokens, both axes logarithmic."""
    caption = "every query sees every key" if mask == "none" else "causal"
    return attention_over(series, recorded, "attention_sizes", "S",
                          f"Attention over the number of tokens, {caption}", "tokens", mask)


def over_caches(series: dict, recorded: dict | None | str = "auto") -> CourseFigure:
    """One query over the length of its cache, both axes logarithmic."""
    return attention_over(series, recorded, "attention_keys", "keys", "One query against its cache",
                          "keys in the cache")


def running_maximum(scores, tile: int) -> CourseFigure:
    """A row of scores in tiles: row_max after each, and the factor that corrects what was added up before."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 1 or not 1 <= tile < len(scores):
        raise ValueError(f"scores of shape {scores.shape} in tiles of {tile}: one row of more than one tile is drawn")
    begins = range(0, len(scores), tile)
    maxima = [scores[: begin + tile].max() for begin in begins]
    factors = np.exp([-np.inf, *(a - b for a, b in zip(maxima, maxima[1:], strict=False))])
    figure, (above, below) = new_figure(
        [1.7, 0.9], "A larger score corrects all that was added up before",
        "row_max after each tile: " + ", ".join(f"{m:.2f}" for m in maxima) + "; the factors: "
        + ", ".join(f"{f:.3f}" for f in factors) + ".", gap=0.62)
    with rc_context(STYLE):
        for ax in (above, below):
            for begin in begins:
                ax.axvline(begin - 0.5, color=PALE[GREY], linewidth=1.0, zorder=0)
            ax.set_xlim(-1, len(scores))
            ax.set_xticks(list(begins), [f"{begin}" for begin in begins])
        above.plot(scores, "o", color=PURPLE, markersize=3, markeredgewidth=0)
        edges = [*begins, len(scores)]
        above.stairs(maxima, [edge - 0.5 for edge in edges], baseline=None, color=BLUE, linewidth=2)
        above.annotate("row_max", (len(scores) - 0.6, maxima[-1]), xytext=(0, 3), textcoords="offset points",
                       color=TEXT[BLUE], fontsize=SMALLEST, ha="right", va="bottom")
        above.margins(y=0.18)
        grid_along(above, "y")
        panel_title(above, "the scores, and the largest so far")
        middles = [begin + (tile - 1) / 2 for begin in begins]
        below.bar(middles, factors, width=tile * 0.6, color=VERMILLION)
        for middle, factor in zip(middles, factors, strict=True):
            below.text(middle, factor + 0.05, f"{factor:.2f}", fontsize=SMALLEST, ha="center", va="bottom")
        below.set_ylim(0, 1.35)
        below.set_yticks([0, 1])
        below.tick_params(length=0)
        below.set_xlabel("key")
        panel_title(below, "the factor for row_sum and acc")
    return figure


def plain_block(queries: int = 8, keys: int = 5, thread: int = 3, key: int = 2) -> CourseFigure:
    """What the threads of flash_plain hold in registers, and the tile that all of them read."""
    if not (0 <= thread < queries <= 10 and 0 <= key < keys <= 6):
        raise ValueError(f"thread {thread} of {queries} and key {key} of {keys}: up to 10 threads and 6 keys are drawn")
    left, top, tall, gap = 0.82, 2.02, 0.25, 0.14
    own, cell, sums = 0.56, 2.40 / max(keys, 5), 0.68
    scores_x = left + own + gap
    acc_x = scores_x + keys * cell + gap
    below = top + queries * tall
    figure, ax = canvas(below + 1.20, "flash_plain: a thread uses what it loads once",
                        f"{queries} threads, each with a query and its accumulators in registers, and a tile of "
                        f"{keys} keys and values in shared memory, of which all threads read key {key} at once.")
    with rc_context(STYLE):
        draw_heading(ax, 0.14, 0.62, "in shared memory", "loaded once, for all threads of the block")
        for j in range(keys):
            current = j == key
            draw_box(ax, scores_x + j * cell, 0.98, cell, 0.60, f"key\n{j}", fill=ORANGE if current else PALE[ORANGE])
            draw_box(ax, scores_x + j * cell, below + 0.26, cell, 0.60, f"value\n{j}",
                     fill=GREEN if current else PALE[GREEN], ink="white" if current else INK)
        middle = scores_x + (key + 0.5) * cell
        for begin, end, colour in ((1.62, top - 0.04, ORANGE), (below + 0.24, below + 0.02, GREEN)):
            ax.annotate("", (middle, end), (middle, begin),
                        arrowprops={"arrowstyle": "-|>", "color": TEXT[colour], "lw": 1.4})
        words = "every thread reads this key now: one broadcast"
        fits = middle + 0.12 + width_of(words, SMALLEST) < WIDTH - 0.10
        ax.text(middle + (0.12 if fits else -0.12), 1.79, words, fontsize=SMALLEST, color=TEXT[ORANGE], va="center",
                ha="left" if fits else "right")
        for n in range(queries):
            y, mine = top + n * tall, n == thread
            ax.text(left - 0.08, y + tall / 2, f"thread {n}", fontsize=SMALLEST, ha="right", va="center_baseline",
                    color=INK if mine else FAINT, fontweight="bold" if mine else "normal")
            draw_box(ax, left, y, own, tall, "query", fill=BLUE if mine else PALE[BLUE], ink="white" if mine else INK)
            for j in range(keys):
                visible = j <= key
                draw_box(ax, scores_x + j * cell, y, cell, tall, "score" if visible else "",
                         fill="white" if not visible else PURPLE if mine else PALE[PURPLE],
                         edge="white" if visible else PALE[GREY], ink="white" if mine else INK)
            draw_box(ax, acc_x, y, own, tall, "acc", fill=BLUE if mine else PALE[BLUE], ink="white" if mine else INK)
            for k, name in enumerate(("row_max", "row_sum")):
                draw_box(ax, acc_x + own + 0.06 + k * (sums + 0.06), y, sums, tall, name, fill=PALE[GREY])
        for x in (left, acc_x):
            ax.text(x, below + 0.16, "registers", fontsize=SMALLEST, color=TEXT[BLUE], va="center")
        note(ax, below + 1.08, "First all scores, left to right, into shared memory; then the correction; then the "
             "exponentials times the values, in the same order. The kernel has 64 threads and tiles of 32 keys.")
    return figure


def register_tiles(thread: int = 21, across: int = 8, down: int = 4) -> CourseFigure:
    """The scores of one block: those of one thread in flash_plain, and in flash, with what the thread reads."""
    if not 0 <= thread < 64:
        raise ValueError(f"thread is {thread}; flash_plain has threads 0 to 63")
    left, top, step, apart = 0.56, 1.54, 0.045, 2.70
    x, y = thread % across, thread // across
    groups = 64 // down
    panels = (("flash_plain", (f"thread {thread}:", "one query and every key"), 32, [thread], list(range(32)), 32),
              ("flash", (f"thread {thread}, x = {x}, y = {y}:", f"{down} queries and 8 keys"), 64,
               list(range(y, 64, groups)), list(range(x, 64, across)), 12))
    figure, ax = canvas(top + 64 * step + 0.78, "In flash a thread uses what it loads four or eight times",
                        f"flash_plain: thread {thread} has the scores of one query and 32 keys. flash: "
                        f"{down} queries and 8 keys, each number of which it uses {down} or 8 times.")
    with rc_context(STYLE):
        for panel, (name, below, keys, rows, columns, loads) in enumerate(panels):
            x0 = left + panel * apart
            draw_heading(ax, x0, top - 0.88, name, *below, ink=TEXT[PURPLE])
            draw_box(ax, x0, top, keys * step, 64 * step, fill=PALE[PURPLE], edge=FAINT, linewidth=0.6)
            for row in rows:
                draw_box(ax, x0 - 0.16, top + row * step, 0.11, step, fill=BLUE, linewidth=0)
                for col in columns:
                    draw_box(ax, x0 + col * step, top + row * step, step, step, fill=VERMILLION, linewidth=0)
            for col in columns:
                draw_box(ax, x0 + col * step, top - 0.16, step * 0.8, 0.11, fill=ORANGE, linewidth=0)
            ax.text(x0, top - 0.27, "keys \u2192", fontsize=SMALLEST, color=TEXT[ORANGE], va="center")
            ax.text(x0 - 0.26, top + 32 * step, "queries", fontsize=SMALLEST, color=TEXT[BLUE], rotation=90,
                    ha="center", va="center")
            for line, text in enumerate((f"{loads} loads of 16 bytes", "for 128 multiply-adds")):
                ax.text(x0, top + 64 * step + 0.16 + 0.17 * line, text, fontsize=SMALLEST, va="center")
        note(ax, top + 64 * step + 0.64, "Red: the thread's scores. Blue and orange: the queries and keys that it "
             "needs for them.")
    return figure


def factor_in_place(lane: int = 13) -> CourseFigure:
    """Two tiles of accumulators, and the first factor that they become: the elements of one lane."""
    if not 0 <= lane < 32:
        raise ValueError(f"lane is {lane}; a warp has lanes 0 to 31")
    g, q = divmod(lane, 4)
    cell, left, top = 0.174, 0.16, 1.12
    second = WIDTH - 0.16 - 16 * cell
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    figure, ax = canvas(top + 16 * cell + 0.52, f"Lane {lane} already holds its part of the next factor",
                        f"Lane {lane} holds rows {g} and {g + 8}, columns {2 * q}, {2 * q + 1}, {2 * q + 8} and "
                        f"{2 * q + 9} of two tiles of accumulators, and the same elements of a first factor.")
    with rc_context(STYLE):
        draw_heading(ax, left, top - 0.46, "accumulators of two products", "16 \u00d7 8 scores each, float32: c0 to c3",
                 ink=TEXT[PURPLE])
        draw_heading(ax, second, top - 0.46, "first factor of the next product",
                 "16 \u00d7 16 exponentials, float16: a0 to a3", ink=TEXT[PURPLE])
        for x0 in (left, second):
            for r in range(16):
                for c in range(16):
                    draw_box(ax, x0 + c * cell, top + r * cell, cell, cell, fill=PALE[GREY])
        for register, colour in enumerate(colours):
            x, y = (2 * q + 8 * (register // 2)) * cell, top + (g + 8 * (register % 2)) * cell
            ink = INK if colour == ORANGE else "white"
            for k in range(2):
                draw_box(ax, left + x + k * cell, y, cell, cell, 2 * (register % 2) + k, fill=colour, ink=ink)
            draw_box(ax, second + x, y, 2 * cell, cell, f"a{register}", fill=colour, ink=ink)
        draw_box(ax, left, top, 8 * cell, 16 * cell, edge=FAINT, linewidth=1.2)
        draw_box(ax, left + 8 * cell, top, 8 * cell, 16 * cell, edge=FAINT, linewidth=1.2)
        draw_box(ax, second, top, 16 * cell, 16 * cell, edge=FAINT, linewidth=1.2)
        ax.annotate("", (second - 0.06, top + 8 * cell), (left + 16 * cell + 0.06, top + 8 * cell),
                    arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.4})
        ax.text((left + 16 * cell + second) / 2, top + 8 * cell - 0.13, "exp,\nround", fontsize=SMALLEST, ha="center",
                va="bottom")
        for row, text in enumerate(("Two neighbours of one colour, rounded to float16, fill one register of the "
                                    "factor.", "No number changes its lane.")):
            note(ax, top + 16 * cell + 0.26 + 0.17 * row, text)
    return figure


def schedules(product: float = 256, exponentials: float = 512, other: float = 400, tiles: int = 4) -> CourseFigure:
    """Products and exponentials of one warpgroup in time, in clocks: with mma.sync, and with wgmma."""
    softmax = exponentials + other
    serial, overlapped, time = [], [], 0.0
    for _ in range(tiles):  # scores, softmax, values
        serial.append((time, time + product, time + product + softmax))
        time += 2 * product + softmax
    serial_end, time = time, 0.0
    for _ in range(tiles):  # the values of a tile are multiplied while the exponentials of the next are taken
        overlapped.append((time, time + product, time + product + softmax + product))
        time += product + softmax
    overlapped[-1] = (*overlapped[-1][:2], time)  # no scores come before the last values
    overlapped_end = time + product
    left, top, tall, apart = 1.10, 0.88, 0.27, 1.24
    scale = (WIDTH - left - 0.2) / serial_end
    figure, ax = canvas(top + 2 * apart, "The product with the values hides behind exponentials",
                        f"{tiles} tiles, one after the other: {serial_end:,.0f} clocks; with the values of one tile "
                        f"beside the exponentials of the next: {overlapped_end:,.0f}.")
    with rc_context(STYLE):
        for row, (name, plan, end) in enumerate((("mma.sync: a warp waits for its products", serial, serial_end),
                                                 ("wgmma: products run beside the softmax", overlapped,
                                                  overlapped_end))):
            y = top + row * apart
            ax.text(0.14, y - 0.20, name, fontsize=SMALLEST + 0.5, fontweight="bold", va="center")
            for line, label, colour in ((0.5, "tensor cores", PURPLE), (1.5, "softmax", BLUE)):
                ax.text(left - 0.08, y + line * tall, label, fontsize=SMALLEST, ha="right", va="center_baseline",
                        color=TEXT[colour])
            for n, (scores, softmax_at, values) in enumerate(plan):
                draw_box(ax, left + scores * scale, y, product * scale, tall, f"S{n}", fill=PALE[PURPLE])
                draw_box(ax, left + softmax_at * scale, y + tall, softmax * scale, tall, f"softmax {n}",
                         fill=PALE[BLUE])
                draw_box(ax, left + values * scale, y, product * scale, tall, f"V{n}", fill=PALE[GREEN])
            ax.text(left + end * scale, y + 2 * tall + 0.14, f"{end:,.0f} clocks", fontsize=SMALLEST, ha="right",
                    va="center", color=FAINT)
        for row, text in enumerate((
                f"S: scores of a tile, V: its values, {product:.0f} clocks each.",
                f"A softmax takes {softmax:.0f}: {exponentials:.0f} for exponentials, {other:.0f} for the rest.")):
            note(ax, top + 2 * apart - 0.20 + 0.17 * row, text)
    return figure
