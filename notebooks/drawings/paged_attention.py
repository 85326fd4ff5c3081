"""The figures of the lesson "Paged attention", in the course's style.

    page_reads(size=64, pages=10)       which lane reads what of a page, and which warp takes which page
    rates(counts, lines, reading)       the rate at which each kernel reads, over the number of sequences
    rows_and_keys(lengths, contexts)    the rows of each sequence in paged_prefill, and the keys that they see
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import rc_context
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from labkit.kernels.attention.paged_split import WARPS
from labkit.kernels.attention.pages import PAGE
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    LINES,
    MARKERS,
    ORANGE,
    PURPLE,
    STYLE,
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    count_of,
    draw_box,
    foot,
    grid_along,
    label_line_ends,
    leave_right,
    new_figure,
    note,
    tint,
)

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, "#3B3FA6", "#756600", "#555B61")  # at most so many sequences


def page_reads(size: int = 64, pages: int = 10) -> CourseFigure:
    """The keys of one head in a page, in bfloat16, as a warp of make_paged_decode reads them, in boxes of 16 bytes; and
    the pages of a sequence with the warps that take them. size: numbers of a head, a power of two."""
    if size not in (16, 32, 64, 128) or not 1 <= pages <= 16:
        raise ValueError(f"size is {size} and pages is {pages}; size must be 16, 32, 64 or 128, and pages 1 to 16")
    lanes = size // 8  # that share a key
    groups = 32 // lanes
    left, top, tall, wide = 0.92, 0.86, 0.205, 3.9 / lanes
    below = top + PAGE * tall + 0.52
    figure, ax = canvas(below + 0.48, f"A warp reads {groups} keys of a page at a time", (
        f"The {size * 2} bytes of a key are read by {count_of(lanes, 'lane')}, 16 bytes each, so that a warp reads "
        f"{groups} keys at a time. A sequence has {pages} pages; warp w takes pages w, w + {WARPS} and so on."))
    with rc_context(STYLE):
        ax.text(0.14, 0.66, "Keys of one head in a page: boxes of 16 bytes, with the lane that reads each",
                fontsize=9.5, fontweight="bold", va="center")
        for token in range(PAGE):
            group = token % groups
            ax.text(left - 0.10, top + (token + 0.5) * tall, f"token {token}", fontsize=9, ha="right",
                    va="center_baseline", color=FAINT)
            ax.text(left + lanes * wide + 0.12, top + (token + 0.5) * tall, f"group {group}, load {token // groups}",
                    fontsize=9, va="center_baseline", color=FAINT)
            for piece in range(lanes):
                draw_box(ax, left + piece * wide, top + token * tall, wide, tall, group * lanes + piece, size=9,
                         fill=tint(COLOURS[group % len(COLOURS)], 0.40 if token // groups % 2 == 0 else 0.20))
        ax.text(0.14, below - 0.18, "The pages of a sequence, and the warp that takes each", fontsize=9.5,
                fontweight="bold", va="center")
        for page in range(pages):
            draw_box(ax, 0.14 + page * 0.42, below, 0.38, 0.30, page % WARPS, edge=GREY, size=9,
                     fill=tint(GREY, 0.15 + 0.25 * (page % WARPS)))
    return figure


def rates(counts: Sequence[int], lines: Mapping[str, Sequence[float]], reading: float) -> CourseFigure:
    """GB/s of each kernel over the number of sequences. reading: the rate of a kernel that only reads, as a line."""
    figure, (ax,) = new_figure([2.6], "Tensor cores bring decoding near the rate of reading", "; ".join(
        f"{name}: " + ", ".join(f"{rate:,.0f}" for rate in values) for name, values in lines.items()) + (
        f" GB/s for {', '.join(map(str, counts))} sequences; a kernel that only reads: {reading:,.0f}."))
    with rc_context(STYLE):
        leave_right(ax, ("only reading", *lines), 0.115)
        ax.set_xscale("log", base=2)
        ends = [(counts[-1], reading, "only reading", INK)]
        for (name, values), colour, marker in zip(lines.items(), LINES, MARKERS, strict=False):
            ax.plot(counts, values, color=colour, marker=marker, markeredgewidth=0)
            ends.append((counts[-1], values[-1], name, TEXT[colour]))
        ax.axhline(reading, color=INK, linestyle=(0, (4, 3)), linewidth=1.1)
        ax.set_ylim(0, 1.1 * reading)
        ax.set_xticks(counts, [str(count) for count in counts])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.set_xlabel("sequences of 1,024 tokens")
        ax.set_ylabel("GB/s")
        grid_along(ax, "y")
        label_line_ends(ax, ends)
        foot(figure, "NVIDIA H200, in a CUDA graph")
    return figure


def rows_and_keys(lengths: Sequence[int], contexts: Sequence[int]) -> CourseFigure:
    """A panel of cells for each sequence: its rows of this launch down, its keys to the right. Filled: what a row sees;
    darker: keys that were in the cache before."""
    if len(lengths) != len(contexts) or not 1 <= len(lengths) <= 5 or any(
            not 0 < length <= context for length, context in zip(lengths, contexts, strict=True)):
        raise ValueError("lengths and contexts must be 1 to 5 numbers each, no length 0 or above its context")
    gap, left = 0.30, 0.14
    unit = min(0.12, (WIDTH - 2 * left - gap * (len(lengths) - 1)) / sum(contexts))
    tall = max(lengths) * unit
    pairs = [length * (context - length) + length * (length + 1) // 2
             for length, context in zip(lengths, contexts, strict=True)]
    figure, ax = canvas(0.98 + tall + 0.44, "One launch serves prompts, parts of prompts and single tokens", "; ".join(
        f"{count_of(length, 'row')} of a sequence of {context} tokens, {pair:,} scores"
        for length, context, pair in zip(lengths, contexts, pairs, strict=True)) + ".")
    with rc_context(STYLE):
        x = left
        for i, (length, context) in enumerate(zip(lengths, contexts, strict=True)):
            ax.text(x, 0.62, f"sequence {i}", fontsize=9.5, fontweight="bold", va="center")
            ax.text(x, 0.80, f"{length} of {context}", fontsize=9, color=FAINT, va="center")
            for row in range(length):
                cached = context - length
                ax.add_patch(Rectangle((x, 0.98 + row * unit), cached * unit, unit * 0.86, facecolor=tint(BLUE, 0.75),
                                       edgecolor="none"))
                ax.add_patch(Rectangle((x + cached * unit, 0.98 + row * unit), (row + 1) * unit, unit * 0.86,
                                       facecolor=tint(BLUE, 0.30), edgecolor="none"))
            draw_box(ax, x, 0.98, context * unit, length * unit, edge=GREY)
            x += max(context * unit, 0.72) + gap
        note(ax, 0.98 + tall + 0.22, "New rows down, keys to the right. Dark: keys in the cache before. Light: keys of "
             "this launch.")
    return figure
