"""The figures of lessons 17 and 18 that show how attention is computed, in the course's style.

    four_steps(tokens=6)           scores, mask, softmax and values of one small head
    running_maximum(scores, tile)  what a softmax knows of a row after each tile, and the factor that corrects it
    plain_block()                  what the threads of flash_plain hold and what they share
    register_tiles()               which scores one thread computes: in flash_plain, and in flash
    factor_in_place(lane=13)       accumulators of one tensor-core product as the first factor of the next
    schedules()                    products and exponentials in time, one after the other and side by side
"""

import numpy as np
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
    draw_box,
    grid_along,
    new_figure,
    panel_title,
)

CELL = 0.26  # inches


def _heading(ax, x: float, y: float, text: str, below: str, ink=INK) -> None:
    ax.text(x, y, text, fontsize=9.5, fontweight="bold", va="center", color=ink)
    ax.text(x, y + 0.20, below, fontsize=7.5, va="center", color=FAINT)


def four_steps(tokens: int = 6, size: int = 4, seed: int = 3) -> CourseFigure:
    """Causal attention of one head, with its numbers: a row for each query."""
    if not (2 <= tokens <= 6 and 2 <= size <= 4):
        raise ValueError(f"{tokens} tokens and heads of {size}: 2 to 6 tokens and 2 to 4 numbers are drawn")
    queries, keys, values = np.random.default_rng(seed).normal(size=(3, tokens, size))
    scores = queries @ keys.T / np.sqrt(size)
    seen = np.tril(np.ones(scores.shape, bool))
    weights = np.where(seen, np.exp(scores), 0)
    weights /= weights.sum(axis=1, keepdims=True)
    left, top, gap = 0.30, 1.00, 0.22
    figure, ax = canvas(top + tokens * CELL + 0.46, "Four steps from queries, keys and values to the output",
                        f"Causal attention of one head with {tokens} tokens: scores, the mask, the softmax of each "
                        f"row, and the weighted values.")

    def matrix(x0, numbers, colour, hidden=None):
        largest = np.abs(numbers).max()
        for (row, col), number in np.ndenumerate(numbers):
            out = hidden is not None and hidden[row, col]
            shade = float(np.clip(abs(number) / largest, 0, 1))
            draw_box(ax, x0 + col * CELL, top + row * CELL, CELL, CELL, fill=PALE[GREY] if out else "white")
            if not out:
                draw_box(ax, x0 + col * CELL, top + row * CELL, CELL, CELL, fill=colour, alpha=0.08 + 0.5 * shade)
            text = "\u2013\u221e" if out else f"{round(number, 1) + 0:.1f}"  # + 0: no -0.0
            ax.text(x0 + (col + 0.5) * CELL, top + (row + 0.5) * CELL, text, fontsize=6.5, ha="center",
                    va="center_baseline", color=FAINT if out else INK)

    with rc_context(STYLE):
        panels = (("1  scores", "q \u00b7 k / \u221aD", scores, PURPLE, None),
                  ("2  mask", "later keys are hidden", scores, PURPLE, ~seen),
                  ("3  softmax", "each row adds up to 1", weights, BLUE, None),
                  ("4  values", "rows of v, weighted", weights @ values, GREEN, None))
        x0 = left
        for name, below, numbers, colour, hidden in panels:
            _heading(ax, x0, top - 0.42, name, below, TEXT[colour])
            matrix(x0, numbers, colour, hidden)
            x0 += numbers.shape[1] * CELL + gap
        for row in range(tokens):
            ax.text(left - 0.08, top + (row + 0.5) * CELL, f"q{row}", fontsize=7, ha="right", va="center", color=FAINT)
        ax.text(0.14, top + tokens * CELL + 0.24, "A row for each query. Columns of the first three are keys; of the "
                "last, the numbers of the head.", fontsize=8, color=FAINT, va="center")
    return figure


def running_maximum(scores, tile: int) -> CourseFigure:
    """A row of scores in tiles: row_max after each, and the factor that corrects what was added up before."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 1 or not 1 <= tile < len(scores):
        raise ValueError(f"scores of shape {scores.shape} in tiles of {tile}: one row of more than one tile is drawn")
    begins = range(0, len(scores), tile)
    maxima = [scores[: begin + tile].max() for begin in begins]
    factors = np.exp([-np.inf, *(a - b for a, b in zip(maxima, maxima[1:], strict=False))])
    figure, (above, below) = new_figure(
        [1.7, 0.9], "What is known of a row after each tile",
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
        above.text(len(scores) - 0.6, maxima[-1], "row_max", color=TEXT[BLUE], fontsize=8.5, ha="right", va="bottom")
        above.margins(y=0.18)
        grid_along(above, "y")
        panel_title(above, "the scores, and the largest so far")
        middles = [begin + (tile - 1) / 2 for begin in begins]
        below.bar(middles, factors, width=tile * 0.6, color=VERMILLION)
        for middle, factor in zip(middles, factors, strict=True):
            below.text(middle, factor + 0.05, f"{factor:.2f}", fontsize=8, ha="center", va="bottom")
        below.set_ylim(0, 1.35)
        below.set_yticks([0, 1])
        below.set_xlabel("key")
        panel_title(below, "the factor for row_sum and acc")
    return figure


def plain_block(queries: int = 8, keys: int = 5, thread: int = 3, key: int = 2) -> CourseFigure:
    """What the threads of flash_plain hold in registers, and the tile that all of them read."""
    if not (0 <= thread < queries <= 10 and 0 <= key < keys <= 6):
        raise ValueError(f"thread {thread} of {queries} and key {key} of {keys}: up to 10 threads and 6 keys are drawn")
    left, top, tall = 0.92, 2.02, 0.24
    own, cell = 0.80, 0.44
    scores_x = left + own + 0.16
    acc_x = scores_x + keys * cell + 0.16
    figure, ax = canvas(top + queries * tall + 1.42, "flash_plain: one thread, one query",
                        f"{queries} threads, each with a query and its accumulators in registers, and a tile of "
                        f"{keys} keys and values in shared memory, of which all threads read key {key} at once.")
    with rc_context(STYLE):
        _heading(ax, 0.14, 0.62, "in shared memory", "loaded once, for all threads of the block")
        for j in range(keys):
            at = j == key
            draw_box(ax, scores_x + j * cell, 0.96, cell, 0.62, f"key\n{j}", fill=ORANGE if at else PALE[ORANGE],
                     size=7.5)
            draw_box(ax, scores_x + j * cell, top + queries * tall + 0.22, cell, 0.62, f"value\n{j}",
                     fill=GREEN if at else PALE[GREEN], ink="white" if at else INK, size=7.5)
        middle = scores_x + (key + 0.5) * cell
        for begin, end, colour in ((1.62, top - 0.06, ORANGE),
                                   (top + queries * tall + 0.19, top + queries * tall + 0.03, GREEN)):
            ax.annotate("", (middle, end), (middle, begin),
                        arrowprops={"arrowstyle": "-|>", "color": TEXT[colour], "lw": 1.4})
        ax.text(middle + 0.10, 1.78, "every thread reads this key now: one broadcast", fontsize=8, color=TEXT[ORANGE],
                va="center")
        for n in range(queries):
            y, mine = top + n * tall, n == thread
            ax.text(left - 0.08, y + tall / 2, f"thread {n}", fontsize=7.5, ha="right", va="center",
                    color=INK if mine else FAINT, fontweight="bold" if mine else "normal")
            draw_box(ax, left, y, own, tall, "query", fill=BLUE if mine else PALE[BLUE],
                     ink="white" if mine else INK, size=7)
            for j in range(keys):
                done, now = j < key, j == key
                draw_box(ax, scores_x + j * cell, y, cell, tall, "score" if done or now else "",
                         fill=PURPLE if mine and (done or now) else PALE[PURPLE] if done or now else "white",
                         edge=PALE[GREY] if not (done or now) else "white",
                         ink="white" if mine else INK, size=6.5)
            draw_box(ax, acc_x, y, own, tall, "acc", fill=BLUE if mine else PALE[BLUE], ink="white" if mine else INK,
                     size=7)
            draw_box(ax, acc_x + own + 0.06, y, 0.62, tall, "row_max", fill=PALE[GREY], size=6.5)
            draw_box(ax, acc_x + own + 0.74, y, 0.62, tall, "row_sum", fill=PALE[GREY], size=6.5)
        below = top + queries * tall
        ax.text(left, below + 0.16, "registers", fontsize=7.5, color=TEXT[BLUE], va="center")
        ax.text(acc_x, below + 0.16, "registers", fontsize=7.5, color=TEXT[BLUE], va="center")
        ax.text(0.14, below + 1.04, "First all scores of the tile, from left to right; then the correction; then the "
                "exponentials times the values, in the", fontsize=8, color=FAINT, va="center")
        ax.text(0.14, below + 1.22, "same order. The kernel has 64 threads and tiles of 32 keys.", fontsize=8,
                color=FAINT, va="center")
    return figure


def register_tiles(thread: int = 21, across: int = 8, down: int = 4) -> CourseFigure:
    """The scores of one block: those of one thread in flash_plain, and in flash, with what the thread reads."""
    if not 0 <= thread < 64:
        raise ValueError(f"thread is {thread}; flash_plain has threads 0 to 63")
    left, top, step = 0.52, 1.42, 0.041
    x, y = thread % across, thread // across
    groups = 64 // down
    panels = (("flash_plain", f"thread {thread} has one query and every key", 32, [thread], list(range(32)),
               "32 loads of 16 bytes for 128 multiply-adds"),
              ("flash", f"thread {thread} (x = {x}, y = {y}) has {down} queries and 8 keys", 64,
               list(range(y, 64, groups)), list(range(x, 64, across)), "12 loads of 16 bytes for 128 multiply-adds"))
    figure, ax = canvas(top + 64 * step + 0.66, "The scores of one block, and those of one thread",
                        f"flash_plain: thread {thread} has the scores of one query and 32 keys. flash: "
                        f"{down} queries and 8 keys, each number of which it uses {down} or 8 times.")
    with rc_context(STYLE):
        x0 = left
        for name, below, keys, rows, columns, loads in panels:
            _heading(ax, x0, top - 0.72, name, below, TEXT[PURPLE])
            draw_box(ax, x0, top, keys * step, 64 * step, fill=PALE[PURPLE], edge=FAINT, linewidth=0.6)
            for row in rows:
                draw_box(ax, x0 - 0.16, top + row * step, 0.11, step, fill=BLUE, linewidth=0)
                for col in columns:
                    draw_box(ax, x0 + col * step, top + row * step, step, step, fill=VERMILLION, linewidth=0)
            for col in columns:
                draw_box(ax, x0 + col * step, top - 0.16, step * 0.8, 0.11, fill=ORANGE, linewidth=0)
            ax.text(x0, top - 0.26, "keys \u2192", fontsize=7.5, color=TEXT[ORANGE], va="center")
            ax.text(x0, top + 64 * step + 0.16, loads, fontsize=8, va="center")
            x0 += max(keys * step, 2.6) + 0.62
        ax.text(left - 0.24, top + 32 * step, "queries", fontsize=7.5, color=TEXT[BLUE], rotation=90, ha="center",
                va="center")
        ax.text(0.14, top + 64 * step + 0.44, "Red: the scores that the thread computes. Blue and orange: the queries "
                "and keys that it needs for them.", fontsize=8, color=FAINT, va="center")
    return figure


def factor_in_place(lane: int = 13) -> CourseFigure:
    """Two tiles of accumulators, and the first factor that they become: the elements of one lane."""
    if not 0 <= lane < 32:
        raise ValueError(f"lane is {lane}; a warp has lanes 0 to 31")
    g, q = divmod(lane, 4)
    cell, left, top = 0.178, 0.42, 1.12
    second = left + 16 * cell + 0.78
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    figure, ax = canvas(top + 16 * cell + 0.52, f"Where lane {lane} holds its numbers",
                        f"Lane {lane} holds rows {g} and {g + 8}, columns {2 * q}, {2 * q + 1}, {2 * q + 8} and "
                        f"{2 * q + 9} of two tiles of accumulators, and the same elements of a first factor.")
    with rc_context(STYLE):
        _heading(ax, left, top - 0.46, "accumulators of two products", "16 \u00d7 8 scores each, float32", TEXT[PURPLE])
        _heading(ax, second, top - 0.46, "first factor of the next product", "16 \u00d7 16 exponentials, float16",
                 TEXT[PURPLE])
        for x0, names in ((left, lambda r, c: f"c{2 * (r // 8) + c % 2}"),
                          (second, lambda r, c: f"a{r // 8 + 2 * (c // 8)}")):
            for r in range(16):
                for c in range(16):
                    mine = r % 8 == g and c % 8 // 2 == q
                    register = r // 8 + 2 * (c // 8)
                    draw_box(ax, x0 + c * cell, top + r * cell, cell, cell, names(r, c) if mine else "",
                             fill=colours[register] if mine else PALE[GREY], size=6.5,
                             ink="white" if colours[register] != ORANGE else INK)
        draw_box(ax, left, top, 8 * cell, 16 * cell, edge=FAINT, linewidth=1.2)
        draw_box(ax, left + 8 * cell, top, 8 * cell, 16 * cell, edge=FAINT, linewidth=1.2)
        draw_box(ax, second, top, 16 * cell, 16 * cell, edge=FAINT, linewidth=1.2)
        ax.annotate("", (second - 0.10, top + 8 * cell), (left + 16 * cell + 0.10, top + 8 * cell),
                    arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.4})
        ax.text((left + 16 * cell + second) / 2, top + 8 * cell - 0.13, "exp,\nround", fontsize=7.5, ha="center",
                va="bottom")
        ax.text(0.14, top + 16 * cell + 0.28, "Two neighbours of one colour, rounded to float16, fill one register of "
                "the factor. No number changes its lane.", fontsize=8, color=FAINT, va="center")
    return figure


def schedules(product: float = 256, exponentials: float = 512, rest: float = 400, tiles: int = 4) -> CourseFigure:
    """Products and exponentials of one warpgroup in time, in clocks: with mma.sync, and with wgmma."""
    softmax = exponentials + rest
    serial, overlapped, at = [], [], 0.0
    for _ in range(tiles):  # scores, softmax, values
        serial.append((at, at + product, at + product + softmax))
        at += 2 * product + softmax
    serial_end, at = at, 0.0
    for _ in range(tiles):  # the values of a tile are multiplied while the exponentials of the next are taken
        overlapped.append((at, at + product, at + product + softmax + product))
        at += product + softmax
    overlapped[-1] = (*overlapped[-1][:2], at)  # no scores come before the last values
    overlapped_end = at + product
    left, top, tall, apart = 1.30, 0.94, 0.26, 1.22
    scale = (WIDTH - left - 0.2) / serial_end
    figure, ax = canvas(top + 2 * apart + 0.20, "One group of warps in time",
                        f"{tiles} tiles, one after the other: {serial_end:,.0f} clocks; with the values of one tile "
                        f"beside the exponentials of the next: {overlapped_end:,.0f}.")
    with rc_context(STYLE):
        for row, (name, plan, end) in enumerate((("mma.sync: a warp waits for its products", serial, serial_end),
                                                 ("wgmma: products run beside the softmax", overlapped,
                                                  overlapped_end))):
            y = top + row * apart
            ax.text(0.14, y - 0.20, name, fontsize=9, fontweight="bold", va="center")
            ax.text(left - 0.08, y + tall / 2, "tensor cores", fontsize=8, ha="right", va="center", color=TEXT[PURPLE])
            ax.text(left - 0.08, y + 1.5 * tall, "softmax", fontsize=8, ha="right", va="center", color=TEXT[BLUE])
            for n, (scores, softmax_at, values) in enumerate(plan):
                draw_box(ax, left + scores * scale, y, product * scale, tall, f"S{n}", fill=PALE[PURPLE], size=7)
                draw_box(ax, left + softmax_at * scale, y + tall, softmax * scale, tall, f"softmax {n}",
                         fill=PALE[BLUE], size=7)
                draw_box(ax, left + values * scale, y, product * scale, tall, f"V{n}", fill=PALE[GREEN], size=7)
            ax.text(left + end * scale, y + 2 * tall + 0.14, f"{end:,.0f} clocks", fontsize=8, ha="right", va="center",
                    color=FAINT)
        ax.text(0.14, top + 2 * apart - 0.06, f"S: scores of a tile, V: its values, {product:.0f} clocks each. A "
                f"softmax takes {softmax:.0f}: {exponentials:.0f} for exponentials, {rest:.0f} for the rest.",
                fontsize=8, color=FAINT, va="center")
    return figure
