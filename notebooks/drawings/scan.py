"""The figures of the lesson "Scan", in the course's style.

    steps()        Hillis and Steele: every element adds the one 1, 2, 4, ... before it
    tree()         Blelloch: pairs are added up a tree, and prefixes are passed down
    look_back()    blocks over time: each waits for the one before it, or looks back
    compaction()   the scan of flags as places in the output
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
    width_of,
)

VALUES = (3, 1, 7, 0, 4, 1, 6, 3)
LEFT, RIGHT, CELL, RISE = 1.62, 0.20, 0.30, 0.62


def steps(values=VALUES) -> CourseFigure:
    """An inclusive scan in log2(n) steps, in each of which all but a few elements add one that stands before them."""
    n = _checked(values)
    rows, distance = [list(values)], 1
    while distance < n:
        previous = rows[-1]
        rows.append([previous[i] + previous[i - distance] if i >= distance else previous[i] for i in range(n)])
        distance *= 2
    figure, ax, middle = _columns(n, len(rows), f"Hillis and Steele: {n} elements, {len(rows) - 1} steps",
                                  f"An inclusive scan of {n} numbers: in each of {len(rows) - 1} steps an element adds "
                                  "the one that stands 1, 2, 4 places before it.")
    with rc_context(STYLE):
        for step, row in enumerate(rows):
            distance = 1 << step - 1 if step else n
            for i in range(n):
                if i >= distance:
                    _line(ax, middle, step, i - distance, i, BLUE)
                    _line(ax, middle, step, i, i, BLUE)
            for i, value in enumerate(row):
                _cell(ax, middle, step, i, value, BLUE if i >= distance else None)
            adds = n - distance
            _name(ax, step, f"{distance} before: {adds} additions" if step else "x")
        _note(ax, len(rows), "Blue: an addition. Every thread reads before any thread writes: two barriers in a step.")
    return figure


def tree(values=VALUES) -> CourseFigure:
    """Draw an exclusive scan: the sums of pairs go up a tree, then the prefix of each pair goes down."""
    n = _checked(values)
    levels = n.bit_length() - 1
    row, rows = list(values), [(list(values), {}, None, "x")]
    for level in range(levels):
        distance, changed = 1 << level, {}
        for right in range(2 * distance - 1, n, 2 * distance):
            changed[right] = (right - distance, right)
            row[right] += row[right - distance]
        rows.append((list(row), changed, BLUE, f"up: {len(changed)} addition{'s' * (len(changed) > 1)}"))
    row[-1] = 0
    rows.append((list(row), {n - 1: ()}, ORANGE, "the total becomes 0"))
    for level in reversed(range(levels)):
        distance, changed = 1 << level, {}
        for right in range(2 * distance - 1, n, 2 * distance):
            left = right - distance
            changed |= {left: (right,), right: (left, right)}
            row[left], row[right] = row[right], row[left] + row[right]
        rows.append((list(row), changed, GREEN, f"down: {len(changed) // 2} addition{'s' * (len(changed) > 2)}"))
    figure, ax, middle = _columns(n, len(rows), f"Blelloch: up a tree and down again, {2 * (n - 1)} additions",
                                  f"An exclusive scan of {n} numbers: {levels} steps up a tree of sums, then {levels} "
                                  "steps down, in which each left half receives what stands before its pair.")
    with rc_context(STYLE):
        for row_index, (row, changed, colour, name) in enumerate(rows):
            for i, sources in changed.items():
                for source in sources:
                    _line(ax, middle, row_index, source, i, colour)
            for i, value in enumerate(row):
                _cell(ax, middle, row_index, i, value, colour if i in changed else None)
            _name(ax, row_index, name)
        _note(ax, len(rows), "Blue: the sum of a pair. Green: what stands before. Grey: not touched in this step.")
    return figure


def look_back(load=(5, 4, 11, 5, 5, 4, 6, 5), start=(0, 0, 0, 0, 1, 1, 1, 2), look: float = 0.8, store: float = 2.5
              ) -> CourseFigure:
    """A schedule by hand of the blocks of a single pass. load: how long each takes to read and scan its tile.

    Above, a block waits until the one before it knows the sum up to its end. Below it looks back over totals.
    """
    blocks = len(load)
    known = [begin + took for begin, took in zip(start, load, strict=True)]  # when the total of the tile is known
    panels = []
    for name, decoupled in (("each waits for the one before it", False), ("decoupled look-back", True)):
        through, waits = [], []
        for tile in range(blocks):
            now, predecessor = known[tile], tile
            while predecessor > 0:
                predecessor -= 1
                now = max(now, known[predecessor] if decoupled else through[predecessor]) + look
                if through[predecessor] <= now:
                    break
            through.append(now)
            waits.append(tile - predecessor)
        panels.append((name, through, waits))
    end = max(max(through) for _, through, _ in panels) + store
    left, tall, gap, top = 0.70, 0.18, 0.06, 0.92
    panel_height = blocks * (tall + gap) + 0.62
    figure, ax = canvas(top + 2 * panel_height + 0.10, "Eight blocks, of which one is late",
                        "A schedule of eight blocks made by hand. Above, every block behind the late one waits in a "
                        "chain. Below, they have published their totals, and end one after another without a chain.")
    scale = (WIDTH - left - 0.25) / end
    with rc_context(STYLE):
        for panel, (name, through, waits) in enumerate(panels):
            y0 = top + panel * panel_height
            ax.text(0.14, y0 - 0.20, name, fontsize=SMALLEST + 0.5, fontweight="bold", va="center")
            for tile in range(blocks):
                y = y0 + tile * (tall + gap)
                ax.text(left - 0.10, y + tall / 2, f"tile {tile}", fontsize=SMALLEST, color=FAINT, ha="right",
                        va="center")
                for begin, stop, colour in ((start[tile], known[tile], BLUE), (known[tile], through[tile], ORANGE),
                                            (through[tile], through[tile] + store, GREEN)):
                    draw_box(ax, left + begin * scale, y, (stop - begin) * scale, tall, fill=colour)
                if waits[tile] > 1:
                    ax.text(left + (through[tile] + store) * scale + 0.06, y + tall / 2, f"over {waits[tile]} tiles",
                            fontsize=SMALLEST, color=TEXT[ORANGE], va="center")
        y = top + 2 * panel_height - 0.20
        x = left
        for colour, words in ((BLUE, "load and scan the tile"), (ORANGE, "wait, look back"), (GREEN, "store")):
            draw_box(ax, x, y - 0.06, 0.16, 0.12, fill=colour)
            ax.text(x + 0.22, y, words, fontsize=SMALLEST, color=FAINT, va="center")
            x += 0.22 + width_of(words, SMALLEST) + 0.35
    return figure


def compaction(keep=(0, 1, 1, 0, 1, 0, 0, 1)) -> CourseFigure:
    """Where each element goes that is kept: as many places along as elements before it are kept."""
    n, left = len(keep), 1.30
    pitch = (WIDTH - left - RIGHT) / n
    offsets = [sum(keep[:i]) for i in range(n)]
    figure, ax = canvas(3.36, "Compaction: an exclusive scan of the flags is the place",
                        f"{n} elements, of which {sum(keep)} are kept. The exclusive scan of the flags says where each "
                        "of them goes.")
    with rc_context(STYLE):
        for row_index, (name, row) in enumerate((("x", "abcdefgh"[:n]), ("keep", keep), ("scan", offsets))):
            y = 0.70 + 0.50 * row_index
            ax.text(left - 0.16, y + CELL / 2, name, fontsize=9, ha="right", va="center_baseline")
            for i, value in enumerate(row):
                draw_box(ax, left + i * pitch + 0.03, y, pitch - 0.06, CELL, value, size=9,
                         fill=PALE[PURPLE] if keep[i] else PALE[GREY], ink=INK if keep[i] else FAINT)
        y = 2.66
        ax.text(left - 0.16, y + CELL / 2, "out", fontsize=9, ha="right", va="center_baseline")
        for i in range(n):
            if keep[i]:
                x = left + offsets[i] * pitch
                ax.plot([left + (i + 0.5) * pitch, x + pitch / 2], [1.70 + CELL, y], color=PURPLE, linewidth=1.0)
                draw_box(ax, x + 0.03, y, pitch - 0.06, CELL, "abcdefgh"[i], size=9, fill=PALE[PURPLE])
    return figure


def _checked(values) -> int:
    if len(values) not in (4, 8, 16):
        raise ValueError(f"values has {len(values)} elements; 4, 8 and 16 can be drawn")
    return len(values)


def _columns(n: int, rows: int, title: str, summary: str):
    pitch = (WIDTH - LEFT - RIGHT) / n
    figure, ax = canvas(0.62 + (rows - 1) * RISE + CELL + 0.44, title, summary)
    return figure, ax, [LEFT + (i + 0.5) * pitch for i in range(n)]


def _top(level: int) -> float:
    return 0.62 + level * RISE


def _line(ax, middle, level: int, source: int, target: int, colour: str) -> None:
    ax.plot([middle[source], middle[target]], [_top(level - 1) + CELL, _top(level)], color=colour, linewidth=1.0,
            alpha=0.8)


def _cell(ax, middle, level: int, i: int, value, colour: str | None) -> None:
    width = middle[1] - middle[0] - 0.08
    draw_box(ax, middle[i] - width / 2, _top(level), width, CELL, value, size=9, fill=colour or PALE[GREY],
             ink="white" if colour and colour != ORANGE else INK)


def _name(ax, level: int, text: str) -> None:
    ax.text(LEFT - 0.10, _top(level) + CELL / 2, text, fontsize=SMALLEST, color=FAINT, ha="right",
            va="center_baseline")


def _note(ax, rows: int, text: str) -> None:
    note(ax, _top(rows - 1) + CELL + 0.26, text)
