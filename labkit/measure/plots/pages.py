"""The figures of lessons 39 and 40, in the course's style.

    page_table(blocks, sequences)    a block manager's state: each sequence's row of the table, and who holds which page
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib import rc_context
from matplotlib.patches import Rectangle

from labkit.engine.block_manager import BlockManager
from labkit.engine.sequence import Sequence as Served
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
    note,
    tint,
)

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, "#3B3FA6", "#756600", "#555B61")  # at most so many sequences
MOST_PAGES = 96
ACROSS = 16  # pages of memory in a line


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
                                   facecolor=tint(colour[name]), edgecolor="none"))
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
