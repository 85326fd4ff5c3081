"""The picture that a link to a page shows elsewhere: its title over the course's four squares, as a PNG."""

from __future__ import annotations

import functools
import io

from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, MARGIN = 1200, 630, 80
DARK, LIGHT = (14, 52, 36), (253, 253, 251)  # all colours lie between the two: a small file, drawn in 20 ms
INK, SOFT, ACCENT, PALE, PAPER = 0, 100, 40, 165, 255
MOST_LINES = 3


def preview(title: str, above: str, below: str) -> bytes:
    """A title between two lines of small type."""
    image = Image.new("L", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    for x, y, shade in ((0, 0, ACCENT), (1, 0, PALE), (0, 1, PALE), (1, 1, ACCENT)):
        left, top = MARGIN + 44 * x, MARGIN + 44 * y
        draw.rounded_rectangle((left, top, left + 36, top + 36), 8, fill=shade)
    draw.text((MARGIN + 110, MARGIN + 40), above, SOFT, _font(34), anchor="lm")
    for row, line in enumerate(_lines(title, _font(72, bold=True), WIDTH - 2 * MARGIN)[:MOST_LINES]):
        draw.text((MARGIN, 220 + 92 * row), line, INK, _font(72, bold=True))
    for row, line in enumerate(_lines(below, _font(30), WIDTH - 2 * MARGIN)[:2]):
        draw.text((MARGIN, HEIGHT - MARGIN - 70 + 42 * row), line, SOFT, _font(30))
    image.putpalette([round(dark + (light - dark) * level / 255) for level in range(256)
                      for dark, light in zip(DARK, LIGHT, strict=True)])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()


@functools.cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """matplotlib's own font: the same on every machine."""
    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf", size)


def _lines(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
