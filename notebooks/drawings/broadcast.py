"""The figures of the lesson "Broadcasting", in the course's style.

    broadcast_reads()    which elements a broadcast sum reads
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
    STYLE,
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    note,
)


def broadcast_reads(shape: tuple[int, int, int] = (2, 3, 4), mark: tuple[int, int, int] = (1, 2, 3)) -> CourseFigure:
    """out = a + b[:, :, None] + c[:, None, None], element by element. The number in a box is the flat index of the
    element that is read there; a pale box reads again what the solid box of its row or slab has read. Framed: `mark`.
    """
    nx, ny, nz = shape
    if not all(0 <= m < extent for m, extent in zip(mark, shape, strict=True)):
        raise ValueError(f"mark is {mark}, which is outside of shape {shape}")
    panels = (
        ("out", f"{shape}", GREY, lambda x, y, z: (x * ny + y) * nz + z, lambda x, y, z: False,
         f"x\u00b7{ny * nz} + y\u00b7{nz} + z"),
        ("a", f"{shape}", BLUE, lambda x, y, z: (x * ny + y) * nz + z, lambda x, y, z: True,
         f"x\u00b7{ny * nz} + y\u00b7{nz} + z"),
        ("b[:, :, None]", f"{(nx, ny, 1)}", ORANGE, lambda x, y, z: x * ny + y, lambda x, y, z: z == 0,
         f"x\u00b7{ny} + y + z\u00b70"),
        ("c[:, None, None]", f"{(nx, 1, 1)}", GREEN, lambda x, y, z: x, lambda x, y, z: y == z == 0,
         "x + y\u00b70 + z\u00b70"),
    )
    left, between = 0.62, 0.30
    cell = min(0.36, (WIDTH - left - 0.14 - 3 * between) / (4 * nz))
    tall, top, slab_gap = 0.27, 1.02, 0.16
    depth = nx * ny * tall + (nx - 1) * slab_gap
    figure, ax = canvas(top + depth + 0.74, "Along z, the sum reads the same elements of b and c again",
                        f"For a shape of {shape}: the flat indices of a, b and c that each element of out reads. "
                        + "; ".join(f"{name}: {formula}" for name, _, _, _, _, formula in panels) + ".")
    with rc_context(STYLE):
        for i, (name, size, colour, index, solid, formula) in enumerate(panels):
            x0 = left + i * (nz * cell + between)
            ax.text(x0, top - 0.44, name, fontsize=9.5, fontweight="bold", va="center")
            ax.text(x0, top - 0.25, size, fontsize=9, color=FAINT, va="center")
            if i:
                ax.text(x0 - between / 2, top + depth / 2, "=++"[i - 1], fontsize=13, ha="center", va="center")
            for x in range(nx):
                for y in range(ny):
                    row = top + (x * ny + y) * tall + x * slab_gap
                    if i == 0:
                        ax.text(left - 0.08, row + tall / 2, f"y={y}", fontsize=9, color=FAINT, ha="right", va="center")
                        if y == 0:
                            ax.text(0.14, row + ny * tall / 2, f"x={x}", fontsize=9, rotation=90, ha="center",
                                    va="center")
                    for z in range(nz):
                        full = solid(x, y, z)
                        ink = "white" if full and colour != ORANGE else INK if full or i == 0 else FAINT
                        draw_box(ax, x0 + z * cell, row, cell, tall, index(x, y, z), ink=ink,
                                 fill=colour if full else PALE[colour])
            x, y, z = mark
            draw_box(ax, x0 + z * cell, top + (x * ny + y) * tall + x * slab_gap, cell, tall, edge=VERMILLION,
                     linewidth=2.0, zorder=3)
            ax.text(x0, top + depth + 0.18, formula, fontsize=9, va="center", color=TEXT[colour])
        ax.text(left, top - 0.09, "z \u2192", fontsize=9, color=FAINT, va="center")
        note(ax, top + depth + 0.50, f"Framed: out[{', '.join(map(str, mark))}] and the three elements it reads. "
                "Solid: an element of memory. Pale: the same element, read again.")
    return figure
