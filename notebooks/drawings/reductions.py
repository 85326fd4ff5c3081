"""The figures of the lesson "Reductions", in the course's style: a block of 16 threads, in warps of four lanes.

    tree("divergent")    one block's sum, step by step: who adds what, which warps work, in which banks they meet
    grid_stride()        the elements that each block of a small grid adds up
    wide()               what a warp requests with one instruction: an element a lane, or four
"""

from __future__ import annotations

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
    SMALLEST,
    STYLE,
    TEXT,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    note,
)

THREADS, LANES = 16, 4
WARPS = (BLUE, GREEN, ORANGE, PURPLE)
TITLES = {
    "divergent": "Spread threads keep every warp busy, and split it",
    "strided": "Consecutive threads let warps rest, but meet in few banks",
    "sequential": "Consecutive sums are in different banks",
    "first_add": "An addition while loading: no thread begins idle",
    "last_warp": "One warp needs no barriers",
}
LEFT, CELL, RISE = 0.14, 0.25, 0.66
PITCH = 0.278


def tree(kind: str = "divergent") -> CourseFigure:
    """One sum over 16 threads. A cell says how many elements its sum holds; the number above it is the thread that
    made the addition, in the colour of its warp."""
    if kind not in TITLES:
        raise ValueError(f"kind is {kind!r}; {', '.join(TITLES)} can be drawn")
    steps = _steps(kind)
    loads = 2 if kind == "first_add" else 1
    top = 0.92
    figure, ax = canvas(top + 0.34 * (loads - 1) + RISE * (len(steps) - 1) + CELL + 0.40, TITLES[kind],
                        f"A sum over 16 threads in four warps, {kind}: " + "; ".join(text for _, _, text in steps[1:]))
    with rc_context(STYLE):
        ax.text(LEFT, top - 0.20, "x" if loads == 2 else "shared memory, elements 0 to 15", fontsize=SMALLEST,
                color=FAINT, va="center")
        for extra in range(loads - 1):
            _cells(ax, top + 0.28 * extra, [1] * THREADS, set(range(THREADS)))
        top += 0.28 * (loads - 1)
        for row, (holds, adds, text) in enumerate(steps):
            y = top + RISE * row
            for thread, (target, sources) in adds.items():
                colour = WARPS[thread // LANES]
                for source in sources:
                    ax.plot([_middle(source), _middle(target)], [y - RISE + CELL, y], color=colour, linewidth=0.9,
                            alpha=0.8)
                ax.text(_middle(target) - 0.035, y - 0.10, thread, fontsize=SMALLEST - 1, color=TEXT[colour],
                        va="center", ha="right")
            later = steps[row + 1][1] if row + 1 < len(steps) else {0: (0, (0,))}
            _cells(ax, y, holds, {source for _, sources in later.values() for source in sources})
            for line, part in enumerate(text.split("; ") if row else ()):
                ax.text(LEFT + THREADS * PITCH + 0.10, y - 0.16 + 0.165 * line, part, fontsize=SMALLEST, va="center",
                        color=TEXT["#D55E00"] if "split" in part or "bank" in part else FAINT)
        note(ax, top + RISE * (len(steps) - 1) + CELL + 0.24, "In a cell: how many elements it sums. Above it: "
             "the thread that added, in the colour of its warp. Grey: not read again.")
    return figure


def _steps(kind: str) -> list[tuple[list[int], dict, str]]:
    """(what each element holds, thread -> (target, sources), words) before the first step and after each."""
    holds = [1] * THREADS
    steps = [(list(holds), {}, "")]
    if kind == "first_add":
        holds = [2] * THREADS
        steps.append((list(holds), {t: (t, (t,)) for t in range(THREADS)}, "4 of 4 warps add"))
    for step in range(4):
        stride = 1 << step if kind in ("divergent", "strided") else THREADS >> 1 + step
        shuffled = kind == "last_warp" and stride < LANES
        if kind == "divergent":
            adds = {t: (t, (t, t + stride)) for t in range(0, THREADS, 2 * stride)}
        elif kind == "strided":
            lefts = range(0, THREADS, 2 * stride)
            adds = {t: (left, (left, left + stride)) for t, left in enumerate(lefts)}
        elif shuffled:
            adds = {t: (t, (t, t ^ stride)) for t in range(LANES)}
        else:
            adds = {t: (t, (t, t + stride)) for t in range(stride)}
        before = list(holds)
        for target, sources in adds.values():
            holds[target] = sum(before[source] for source in sources)
        steps.append((list(holds), adds, _words(adds, shuffled)))
    return steps


def _words(adds: dict, shuffled: bool) -> str:
    warps = {}
    for thread, (target, _) in adds.items():
        warps.setdefault(thread // LANES, []).append(target)
    split = sum(len(targets) < LANES for targets in warps.values())
    ways = max(max([target % LANES for target in targets].count(bank) for bank in range(LANES))
               for targets in warps.values())
    parts = [f"{len(warps)} of 4 warps add" + (f", {split} split" if split else "")]
    if ways > 1:
        parts.append(f"{ways} lanes meet in a bank")
    parts.append("a shuffle, no barrier" if shuffled else "then a barrier")
    return "; ".join(parts)


def _cells(ax, y: float, holds: list[int], needed: set[int]) -> None:
    for i, count in enumerate(holds):
        live = i in needed
        draw_box(ax, LEFT + i * PITCH + 0.02, y, PITCH - 0.04, CELL, count, size=SMALLEST - 1,
                 fill=PALE[BLUE] if live else PALE[GREY], ink=INK if live else GREY)


def _middle(element: int) -> float:
    return LEFT + (element + 0.5) * PITCH


def grid_stride(blocks: int = 3, threads: int = 4, rounds: int = 3) -> CourseFigure:
    """Which block adds up which elements. A block takes two elements for each of its threads in a round."""
    columns = 2 * blocks * threads
    pitch = (WIDTH - 1.10 - 0.20) / columns
    figure, ax = canvas(1.02 + 0.40 * rounds + 0.42, "The grid goes through the array: one tree a block, at the end",
                        f"{blocks} blocks of {threads} threads go through {columns * rounds} elements in {rounds} "
                        "rounds.")
    with rc_context(STYLE):
        for b in range(blocks):
            ax.text(1.10 + 2 * threads * pitch * b, 0.72, f"block {b}", fontsize=SMALLEST, color=TEXT[WARPS[b]],
                    va="center")
        for r in range(rounds):
            y = 0.90 + 0.40 * r
            ax.text(1.00, y + CELL / 2, f"round {r}", fontsize=SMALLEST, color=FAINT, ha="right", va="center")
            for i in range(columns):
                draw_box(ax, 1.10 + i * pitch + 0.01, y, pitch - 0.02, CELL, i % threads, size=SMALLEST - 1,
                         fill=PALE[WARPS[i // (2 * threads)]])
        note(ax, 0.90 + 0.40 * rounds + 0.12, "One row after the other is the array. In a cell: the thread of the "
             "block that adds this element to its own sum.")
    return figure


def wide(lanes: int = LANES, loads: int = 4) -> CourseFigure:
    """The elements that the lanes of one warp have requested before the first of them is added."""
    step = lanes * 4
    columns = step * loads
    pitch = (WIDTH - 0.28) / columns
    figure, ax = canvas(1.98, f"In flight before the first addition: 2 elements a lane, or {4 * loads}",
                        f"A warp of {lanes} lanes: two loads of one element in each lane, or {loads} loads of four "
                        "neighbours in each lane.")
    with rc_context(STYLE):
        for panel, (name, width, count) in enumerate((("two loads of 4 bytes a lane", 1, 2),
                                                      (f"{loads} loads of 16 bytes a lane", 4, loads))):
            y = 0.80 + 0.62 * panel
            ax.text(0.14, y - 0.16, name, fontsize=SMALLEST + 0.5, fontweight="bold", va="center")
            for i in range(columns):
                load, within = divmod(i, lanes * width)
                asked = load < count
                draw_box(ax, 0.14 + i * pitch, y, pitch, CELL, fill=PALE[WARPS[within // width]] if asked
                         else PALE[GREY], linewidth=0.5)
                if asked and within % width == 0:
                    ax.text(0.14 + (i + width / 2) * pitch, y + CELL / 2, within // width, fontsize=SMALLEST - 1,
                            ha="center", va="center_baseline")
        note(ax, 1.86, "A strip of the array. Coloured: requested, with the number of the lane. One white line to the "
             "next is an element.")
    return figure
