"""The dark form of an SVG: dark, legible, and the same picture."""

import re

from labkit._common.dark_svg import dark
from labkit.measure.plots import style


def luminance(colour: str) -> float:
    """Relative luminance by WCAG."""
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def dark_of(colour: str) -> str:
    return re.search(r'fill="(#\w{6})"', dark(f'<path fill="{colour}"/>'))[1]


def test_the_dark_form_is_dark_and_what_is_written_on_it_can_be_read():
    ground = dark_of("#FFFFFF")
    assert luminance(ground) < 0.02
    for colour in (style.INK, style.FAINT, *style.TEXT.values()):
        assert contrast(dark_of(colour), ground) > 4.5, colour
    for line in style.LINES:
        assert contrast(dark_of(line), ground) > 3, line
    for strong in (style.BLUE, style.VERMILLION, style.GREEN):
        assert contrast(dark_of("#FFFFFF"), dark_of(strong)) > 4, strong  # white on a bar
    for pale in style.PALE.values():
        assert contrast(dark_of(style.INK), dark_of(pale)) > 7, pale  # ink in a cell


def test_the_dark_form_has_the_same_shapes_and_words():
    figure, ax = style.canvas(2.0, "A title", "What is on it")
    ax.text(1, 1, "words", color="#009E73")
    ax.imshow([[0, 1], [1, 0]])
    made = figure.svg()
    text = dark(made)
    assert 'style="filter: invert(1) hue-rotate(180deg)"' in text and "<image" in made
    strip = re.compile(r' style="filter[^"]*"|(?<= )fill="#\w{6}" ?|"#\w{6}"')
    assert strip.sub("", text) == strip.sub("", made) != dark
    assert "#009e73" in made.lower() and "#009e73" not in text
    assert all("fill=" in tag for tag in re.findall("<text[^>]*>", text))
    reference = '<use xlink:href="#abcdef" fill="url(#abc123)"/>'
    assert dark(reference) == reference


def test_a_caption_names_the_shades_that_are_seen():
    text = '<text fill="#000000">Row: the token. White: weight 0; dark blue: 1. Lights, Pale</text>'
    assert ">Row: the token. Black: weight 0; light blue: 1. Lights, Dim<" in dark(text)
