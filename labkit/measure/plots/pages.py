"""The figures of lessons 33 and 34, in the course's style.

    page_table(blocks, sequences)    a block manager's state: each sequence's row of the table, and who holds which page
    page_reads(size=64, pages=10)    which lane reads what of a page, and which warp takes which page
    running_softmax(scores)          the running maximum and the running sum of a row of scores
    rows_and_keys(lengths, contexts) one launch of paged_prefill: the rows of each sequence and the keys that they see
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.patches import Rectangle

from labkit.engine.block_manager import BlockManager
from labkit.engine.sequence import Sequence as Served
from labkit.kernels.attention.paged_split import WARPS
from labkit.kernels.attention.pages import PAGE
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
    count_of,
    draw_box,
    grid_along,
    new_figure,
    note,
)

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, "#3B3FA6", "#756600", "#555B61")  # at most so many sequences
MOST_PAGES = 96
ACROSS = 16  # pages of memory in a line


def _tint(colour: str, part: float = 0.45) -> tuple:
    """The colour on white."""
    channels = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return tuple(1 - part * (1 - channels))


def page_table(blocks: BlockManager, sequences: Mapping[str, Served]) -> CourseFigure:
    """sequences: by the names that they are to have; those that hold no pages are left out, and the others keep their
    colours. A page is filled as far as it holds computed tokens; one with several holders has a stripe of each one's
    colour."""
    if not 1 <= len(sequences) <= len(COLOURS) or blocks.num_pages > MOST_PAGES:
        raise ValueError(f"there are {len(sequences)} sequences and {blocks.num_pages} pages; 1 to {len(COLOURS)} "
                         f"sequences and at most {MOST_PAGES} pages can be drawn")
    colour = dict(zip(sequences, COLOURS, strict=False))
    sequences = {name: sequence for name, sequence in sequences.items() if sequence.pages}
    if not sequences:
        raise ValueError("none of the sequences holds a page; draw the table while they are being served")
    holders: dict[int, list[str]] = {}
    filled: dict[int, int] = {}
    for name, sequence in sequences.items():
        for i, page in enumerate(sequence.pages):
            holders.setdefault(page, []).append(name)
            filled_slots = min(blocks.page_size, max(0, sequence.computed - i * blocks.page_size))
            filled[page] = max(filled.get(page, 0), filled_slots)
    num_held, shared = len(holders), sum(len(each) > 1 for each in holders.values())
    num_cached = sum(blocks.is_cached(page) for page in range(blocks.num_pages) if page not in holders)
    lines = -(-blocks.num_pages // ACROSS)
    side, left, top, pitch = 0.36, 1.86, 0.86, 0.42
    memory = top + len(sequences) * pitch + 0.52
    summary = "; ".join(f"{name}: {count_of(each.computed, 'token')} in pages {', '.join(map(str, each.pages))}"
                        for name, each in sequences.items())
    figure, ax = canvas(memory + lines * (side + 0.06) + 0.44, "Page table and memory",
                        f"{summary}. Of {blocks.num_pages} pages {num_held} are held, {shared} of them by several; "
                        f"{num_cached} are free and still hold a prompt's tokens.")

    def page_box(x: float, y: float, page: int) -> None:
        owners = holders.get(page, [])
        draw_box(ax, x, y, side, 0.34, fill=PALE[GREY] if not owners and blocks.is_cached(page) else "white", edge=GREY)
        wide = side * filled.get(page, 0) / blocks.page_size
        for i, name in enumerate(owners):
            ax.add_patch(Rectangle((x, y + i * 0.34 / len(owners)), wide, 0.34 / len(owners),
                                   facecolor=_tint(colour[name]), edgecolor="none"))
        draw_box(ax, x, y, side, 0.34, page, edge=INK if len(owners) > 1 else GREY,
                 linewidth=1.8 if len(owners) > 1 else 0.8, size=9, ink=INK if owners else FAINT)

    with rc_context(STYLE):
        ax.text(0.14, top - 0.22, "The page table: a row for each sequence, its pages in the order of its tokens",
                fontsize=9.5, fontweight="bold", va="center")
        for row, (name, sequence) in enumerate(sequences.items()):
            y = top + row * pitch
            ax.text(0.14, y + 0.17, name, fontsize=9.5, va="center_baseline", fontweight="bold",
                    color=TEXT.get(colour[name], colour[name]))
            ax.text(left - 0.12, y + 0.17, count_of(sequence.computed, "token"), fontsize=9, ha="right",
                    va="center_baseline", color=FAINT)
            for i, page in enumerate(sequence.pages):
                page_box(left + i * (side + 0.05), y, page)
        ax.text(0.14, memory - 0.22, f"Memory: {blocks.num_pages} pages of {blocks.page_size} tokens, {num_held} held, "
                f"{shared} of them by several sequences", fontsize=9.5, fontweight="bold", va="center")
        pitch_across = (WIDTH - 0.28 - side) / (ACROSS - 1)
        for page in range(blocks.num_pages):
            page_box(0.14 + page % ACROSS * pitch_across, memory + page // ACROSS * (side + 0.06), page)
        note(ax, memory + lines * (side + 0.06) + 0.16, "Filled as far as there are tokens. Bold frame: shared. White: "
             "free. Grey: free, still in the prefix cache.")
    return figure


def page_reads(size: int = 64, pages: int = 10) -> CourseFigure:
    """The keys of one head in a page, in bfloat16, as a warp of make_paged_decode reads them, in boxes of 16 bytes; and
    the pages of a sequence with the warps that take them. size: numbers of a head, a power of two."""
    if size not in (16, 32, 64, 128) or not 1 <= pages <= 16:
        raise ValueError(f"size is {size} and pages is {pages}; size must be 16, 32, 64 or 128, and pages 1 to 16")
    lanes = size // 8  # that share a key
    groups = 32 // lanes
    left, top, tall, wide = 0.92, 0.86, 0.205, 3.9 / lanes
    below = top + PAGE * tall + 0.52
    figure, ax = canvas(below + 0.48, "A warp and a page", (
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
                         fill=_tint(COLOURS[group % len(COLOURS)], 0.40 if token // groups % 2 == 0 else 0.20))
        ax.text(0.14, below - 0.18, "The pages of a sequence, and the warp that takes each", fontsize=9.5,
                fontweight="bold", va="center")
        for page in range(pages):
            draw_box(ax, 0.14 + page * 0.42, below, 0.38, 0.30, page % WARPS, edge=GREY, size=9,
                     fill=_tint(GREY, 0.15 + 0.25 * (page % WARPS)))
    return figure


def running_softmax(scores: Sequence[float]) -> CourseFigure:
    """Above the scores of a row and their running maximum; below the sum of the exponentials so far, which is scaled
    down where the maximum grows."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 1 or not 2 <= scores.size <= 200:
        raise ValueError(f"scores has shape {scores.shape}; it must be a row of 2 to 200 numbers")
    row_max, row_sum, maxima, sums, previous_sums = -np.inf, 0.0, [], [], []
    for score in scores:
        new = max(row_max, score)
        previous_sums.append(row_sum)
        row_sum = row_sum * np.exp(row_max - new) + np.exp(score - new)
        row_max = new
        maxima.append(row_max)
        sums.append(row_sum)
    keys = np.arange(scores.size)
    grown = [key for key in keys[1:] if maxima[key] > maxima[key - 1]]
    figure, (upper, lower) = new_figure([1.7, 1.5], "The running maximum and sum of a softmax", (
        f"The running maximum of {scores.size} scores grows {count_of(len(grown) + 1, 'time')}, from {maxima[0]:.2f} "
        f"to {maxima[-1]:.2f}; the sum ends at {sums[-1]:.2f}."), gap=0.34)
    with rc_context(STYLE):
        for ax in (upper, lower):
            for key in grown:
                ax.axvline(key, color=PALE[ORANGE], linewidth=5, zorder=0)
            ax.set_xlim(-0.5, scores.size - 0.5)
            grid_along(ax, "y")
        upper.plot(keys, scores, "o", color=GREY)
        upper.step(keys, maxima, where="post", color=BLUE)
        upper.set_ylabel("score, running maximum")
        upper.set_xticklabels([])
        lower.plot(keys, sums, "-o", color=VERMILLION)
        lower.set_ylim(0, None)
        lower.set_ylabel("running sum")
        lower.set_xlabel("key; shaded: the maximum grows, the sum is scaled by exp(old \u2212 new)")
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
    figure, ax = canvas(0.98 + tall + 0.44, "One launch: the new rows and the keys that they see", "; ".join(
        f"{count_of(length, 'row')} of a sequence of {context} tokens, {pair:,} scores"
        for length, context, pair in zip(lengths, contexts, pairs, strict=True)) + ".")
    with rc_context(STYLE):
        x = left
        for i, (length, context) in enumerate(zip(lengths, contexts, strict=True)):
            ax.text(x, 0.62, f"sequence {i}", fontsize=9.5, fontweight="bold", va="center")
            ax.text(x, 0.80, f"{length} of {context}", fontsize=9, color=FAINT, va="center")
            for row in range(length):
                cached = context - length
                ax.add_patch(Rectangle((x, 0.98 + row * unit), cached * unit, unit * 0.86, facecolor=_tint(BLUE, 0.75),
                                       edgecolor="none"))
                ax.add_patch(Rectangle((x + cached * unit, 0.98 + row * unit), (row + 1) * unit, unit * 0.86,
                                       facecolor=_tint(BLUE, 0.30), edgecolor="none"))
            draw_box(ax, x, 0.98, context * unit, length * unit, edge=GREY)
            x += max(context * unit, 0.72) + gap
        note(ax, 0.98 + tall + 0.22, "New rows down, keys to the right. Dark: keys in the cache before. Light: keys of "
             "this launch.")
    return figure
