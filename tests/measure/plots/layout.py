"""The text of a figure, and what is wrong with its layout: text that is too small, leaves it or covers other text."""

from matplotlib.text import Text

from labkit.measure.plots.style import SMALLEST, WIDTH, CourseFigure

IN_CELLS = SMALLEST - 1.0  # points of a number in a cell


def texts(figure: CourseFigure) -> str:
    """All that can be read, ticks and titles too."""
    return " | ".join(item.get_text() for item in figure.findobj(Text) if item.get_text())


def drawn(figure: CourseFigure) -> list[str]:
    """What stands within the axes."""
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def faults(figure: CourseFigure) -> list[str]:
    figure.draw_without_rendering()
    found, boxes = [], []
    if figure.get_figwidth() != WIDTH:
        found.append(f"the figure is {figure.get_figwidth()} inches wide")
    hidden = _hidden(figure)
    for text in figure.findobj(Text):
        words = text.get_text().strip()
        if not words or not text.get_visible() or text in hidden:
            continue
        size = text.get_fontsize()
        least = IN_CELLS if all(c in "0123456789., \u2013\n\u2212\u00d7" for c in words) else SMALLEST
        if size < least:
            found.append(f"{words!r} has {size:g} points")
        box = Text.get_window_extent(text)  # of an annotation without its arrow
        if box.width == 0:
            continue
        dot = figure.dpi / 72
        pad = 0.16 * size * dot  # of a line's height, above and below its letters
        flat = text.get_rotation() in (0.0, 180.0)
        sides = (box.x0 + (0.5 if flat else pad), box.y0 + (pad if flat else 0.5), box.x1 - (0.5 if flat else pad),
                 box.y1 - (pad if flat else 0.5))
        if sides[0] < -1 or sides[1] < -1 or sides[2] > figure.bbox.width + 1 or sides[3] > figure.bbox.height + 1:
            found.append(f"{words!r} leaves the figure")
        if text.get_rotation() % 90 == 0:
            boxes.append((sides, words))
    for k, (one, words) in enumerate(boxes):
        for other, below in boxes[:k]:
            if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]:
                found.append(f"{words!r} covers {below!r}")
    return found


def _hidden(figure: CourseFigure) -> set[Text]:
    """Labels of ticks beyond an axis' limits, and of axes that are switched off."""
    found: set[Text] = set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not (ax.axison and low <= tick.get_loc() <= high):
                    found |= {tick.label1, tick.label2}
            if not ax.axison:
                found |= {axis.label, axis.get_offset_text()}
    return found
