"""A figure of who reads and writes what: threads on the left, an array's elements on the right."""

import base64
import io

from labkit.simt.errors import coordinates, short_position

DRAWN = 256  # threads that a figure shows
# The course's colours: reads, writes, atomics; ink and faint text.
_KINDS = {"load": ("#0072B2", "reads"), "store": ("#D55E00", "writes"), "atomic": ("#009E73", "updates")}
INK, FAINT = "#22272B", "#66707A"


def draw_accesses(report, array=None):
    """A figure of who reads and writes what in one array, by its name; the one with the most accesses if None."""
    names = {key[0]: key for key, cells in report.touched.items() if cells}
    if not names:
        raise ValueError(f"{report.kernel} touched no array that threads share: there is nothing to draw")
    if array is not None and array not in names:
        raise ValueError(f"array is {array!r}; this launch touched {', '.join(sorted(names))}")
    name, space = names[array] if array else max(names.values(), key=lambda k: len(report.touched[k]))
    cells = report.touched[name, space]
    kinds = [k for k in _KINDS if any(k in access_kinds for access_kinds in cells.values())]
    threads = sorted({thread for thread, _ in cells})
    elements, gaps = _elements(report, name, {address for _, address in cells})
    rows = max(len(threads), len(elements))
    height = min(9.5, max(1.6, 0.15 * rows)) + 0.9
    figure = _new_figure(height, f"{report.kernel}: who touches {name}, {space} memory")
    figure.text(0.02, 1 - 0.25 / height, f"{report.kernel}: who touches {name}", fontsize=12, fontweight="bold",
                color=INK, va="center")  # fmt: skip
    subtitle = f"{space} memory, shape {report.arrays[name][1]}"
    if space == "global":
        subtitle += "; grey bands are sectors of 32 bytes"
    if report.block[0] * report.block[1] * report.block[2] * report.grid[0] * report.grid[1] * report.grid[2] > DRAWN:
        subtitle += f"; the first {DRAWN} threads"
    figure.text(0.02, 1 - 0.47 / height, subtitle, fontsize=9, color=FAINT, va="center")
    for k, kind in enumerate(kinds):
        axes = figure.add_axes((k / len(kinds), 0.02, 1 / len(kinds), 1 - 0.6 / height - 0.02))
        pairs = [pair for pair, access_kinds in cells.items() if kind in access_kinds]
        _draw_panel(report, axes, kind, pairs, threads, elements, gaps, name, space, height - 1.0, len(kinds))
    return figure


def _elements(report, name, addresses):
    """The addresses to draw, and which of them follow a gap: neighbours that nothing touched, if they are few."""
    itemsize = report.arrays[name][2]
    first, last = min(addresses), max(addresses)
    span = (last - first) // itemsize + 1
    if span <= max(64, 4 * len(addresses)) and span <= 4 * DRAWN:
        return [first + k * itemsize for k in range(span)], set()
    elements = sorted(addresses)
    return elements, {b for a, b in zip(elements, elements[1:], strict=False) if b - a > itemsize}


def _draw_panel(report, axes, kind, pairs, threads, elements, gaps, name, space, inches, panels):
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.patches import Rectangle

    start, shape, itemsize = report.arrays[name]
    block_size = report.block[0] * report.block[1] * report.block[2]
    colour, verb = _KINDS[kind]
    left, right, wide = 0.24, 0.74, 0.024 * panels
    tall = 1 / len(elements)
    thread_y = {t: (k + 0.5) / len(threads) for k, t in enumerate(threads)}
    cell_y = {address: (k + 0.5) * tall for k, address in enumerate(elements)}
    many = len(pairs) > 600
    axes.add_collection(LineCollection(
        [[(left, thread_y[t]), (right, cell_y[a])] for t, a in pairs],
        colors=colour, linewidths=0.5 if many else 0.9, alpha=0.35 if many else 0.75, zorder=2,
    ))  # fmt: skip
    if space == "global":  # bands of a sector each, every other one darker
        sectors = {}
        for address, y in cell_y.items():
            sectors.setdefault(address // 32, []).append(y)
        for k, ys in enumerate(sectors.values()):
            low, high = min(ys) - tall / 2, max(ys) + tall / 2
            shade = "#CDD3D8" if k % 2 else "#E8EBED"
            axes.add_patch(Rectangle((right - 0.025, low), wide + 0.05, high - low, color=shade, lw=0, zorder=1))
    used = {address for _, address in pairs}
    boxes = [Rectangle((right, y - 0.4 * tall), wide, 0.8 * tall) for y in cell_y.values()]
    axes.add_collection(PatchCollection(
        boxes, facecolors=[colour if a in used else "white" for a in cell_y],
        edgecolors=[colour if a in used else "#C9CED3" for a in cell_y], linewidths=0.5, zorder=3,
    ))  # fmt: skip
    active = {thread for thread, _ in pairs}
    size = max(3, min(16, 200 * inches / len(threads) / 4))
    axes.scatter([left] * len(threads), list(thread_y.values()), s=size, zorder=3, linewidths=0.5,
                 color=[INK if t in active else "#C9CED3" for t in threads])  # fmt: skip
    room = max(1, int(inches / 0.14))  # labels that fit
    step = _step(len(threads), room)
    many_blocks = report.grid != (1, 1, 1)
    for t, y in thread_y.items():
        linear = t % block_size
        if linear % step == 0 or len(threads) <= room:
            position = short_position(coordinates(linear, report.block), report.block).strip("()")
            axes.text(left - 0.02, y, position, ha="right", va="center", fontsize=7, color=FAINT)
    group_of = (lambda t: t // block_size) if many_blocks else (lambda t: t // 32)
    groups = {}
    for t, y in thread_y.items():
        groups.setdefault(group_of(t), []).append(y)
    for group, ys in groups.items() if many_blocks or len(groups) > 1 else ():
        axes.plot([0.115, 0.115], [min(ys), max(ys)], color="#C9CED3", linewidth=2, solid_capstyle="butt")
        axes.text(0.10, (min(ys) + max(ys)) / 2, f"{'block' if many_blocks else 'warp'} {group}", rotation=90,
                  ha="right", va="center", fontsize=7.5, color=FAINT)  # fmt: skip
    step = _step(len(elements), room)
    for k, (address, y) in enumerate(cell_y.items()):
        flat_index = (address - start) // itemsize
        if k % step == 0:
            axes.text(right + wide + 0.035, y, _index(flat_index, shape), ha="left", va="center", fontsize=7,
                      color=FAINT)  # fmt: skip
        if address in gaps:
            axes.plot([right - 0.01, right + wide + 0.01], [y - tall / 2] * 2, color=INK, linewidth=0.6, ls=":")
    axes.text(left, -0.012, "threads", ha="center", va="bottom", fontsize=8.5, color=INK)
    axes.text((left + right) / 2, -0.012, verb, ha="center", va="bottom", fontsize=9.5, color=colour,
              fontweight="bold")  # fmt: skip
    axes.text(right + wide / 2, -0.012, name, ha="center", va="bottom", fontsize=8.5, color=INK, family="monospace")
    axes.set_xlim(0, 1)
    axes.set_ylim(1.005, -0.02 - 0.16 / inches)
    axes.axis("off")


def _new_figure(height, summary):
    """A figure 7 inches wide that a notebook shows by itself, with or without pyplot."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_mimebundle_(self, include=None, exclude=None):
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
            encoded = base64.b64encode(buffer.getvalue()).decode()
            return {"image/png": encoded, "text/plain": summary}, {"image/png": {"width": 700}}

        def __repr__(self):
            return summary

    return Picture(figsize=(7, height), facecolor="white")


def _step(count, room):
    """Every how many of them a label stands: a power of two."""
    step = 1
    while count / step > room:
        step *= 2
    return step


def _index(flat_index, shape):
    """The index of the element with this number in an array of this shape, in C order."""
    parts = []
    for length in reversed(shape[1:]):
        flat_index, part = divmod(flat_index, max(length, 1))
        parts.append(part)
    return ", ".join(map(str, [flat_index, *reversed(parts)]))
