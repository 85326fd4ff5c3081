"""An SVG for a dark page: light and dark exchanged in OKLab, in which equal steps look equal. The site makes the dark
form of each plot with it; there is nothing to do in a plot."""

import functools
import re

DARKEST, SPAN, BEND = 0.20, 0.74, 2.0  # of OKLab's lightness; the bend keeps strong colours away from the dark ground

SHADES = {"white": "black", "black": "white", "dark": "light", "light": "dark", "pale": "dim"}  # in keys and captions


def dark(text: str) -> str:
    """The SVG with light and dark exchanged: each colour keeps its hue, and what could be told apart still can."""
    text = re.sub(r'\b(fill|stroke|stop-color)="#([0-9a-fA-F]{6})"',
                  lambda match: f'{match[1]}="{_dark_colour(match[2])}"', text)
    text = re.sub(r">[^<]+<", lambda words: re.sub(r"\b[A-Za-z][a-z]+\b", _shade, words[0]), text)
    text = re.sub(r"<image ", '<image style="filter: invert(1) hue-rotate(180deg)" ', text)
    return re.sub(r"<text(?![^>]* fill=)", f'<text fill="{_dark_colour("000000")}"', text)


def _shade(word: re.Match) -> str:
    other = SHADES.get(word[0].lower(), word[0])
    return other.capitalize() if word[0][0].isupper() else other


@functools.cache
def _dark_colour(code: str) -> str:
    """A colour as #rrggbb, its lightness turned around in OKLab, and its chroma as large as sRGB allows."""
    lightness, a, b = _to_oklab(*(int(code[k : k + 2], 16) / 255 for k in (0, 2, 4)))
    turned = DARKEST + SPAN * (1 - lightness**BEND)
    for chroma in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0):
        channels = _to_srgb(turned, chroma * a, chroma * b)
        if all(-0.001 <= channel <= 1.001 for channel in channels):
            break
    return "#" + "".join(f"{round(255 * min(1.0, max(0.0, channel))):02x}" for channel in channels)


def _to_oklab(*srgb: float) -> tuple[float, float, float]:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in srgb)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    medium = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
            1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
            0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short)


def _to_srgb(lightness: float, a: float, b: float) -> list[float]:
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
              -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
              -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short)
    return [12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in linear]
