"""Matplotlib's SVG made small and self-contained, so that a notebook can hold it.

    compact(text, width, title)    the same picture: no wrappers, short paths, one font list, a title for screen readers

Text stays text: it is sharp at every size, can be searched, and is drawn in the first of FONTS that the reader has.
They are about as wide as DejaVu Sans, by which the labels were placed, or narrower.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

FONTS = "'DejaVu Sans', Verdana, 'Bitstream Vera Sans', 'Noto Sans', Roboto, Arial, sans-serif"
SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
NUMBER = re.compile(r"(?<![#\w.])-?\d+\.\d+(?:e-?\d+)?(?!\w)")
WRITTEN = {"stroke-linejoin": "round", "stroke-linecap": "butt", "opacity": "1", "stroke-width": "1",
           "stroke-opacity": "1", "fill-opacity": "1", "stroke-miterlimit": "100000"}  # implied values


def compact(text: str, width: int, title: str) -> str:
    """The SVG at `width` pixels. The same text gives the same bytes."""
    root = ET.fromstring(text)
    view = [float(value) for value in root.get("viewBox").split()]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="{width}" '
             f'height="{round(width * view[3] / view[2])}" viewBox="0 0 {_short(view[2])} {_short(view[3])}" '
             f'role="img" font-family="{FONTS}" stroke-linejoin="round">', f"<title>{_escape(title)}</title>"]
    shapes: list[tuple[str, str, str]] = []  # (tag, attributes, path)
    for child in root:
        if child.tag in (SVG + "g", SVG + "defs"):
            _walk(child, shapes)
    previous = None
    for tag, attributes, content in shapes:
        if tag == "path" and previous == attributes:  # neighbours that look alike become one path
            parts[-1] = f'{parts[-1][:-3]}{content}"/>'
        elif tag == "path":
            parts.append(f'<path{attributes} d="{content}"/>')
        else:
            parts.append(content)
        previous = attributes if tag == "path" and "marker" not in attributes and "opacity" not in attributes else None
    return "\n".join((*parts, "</svg>"))


def _walk(node, shapes: list) -> None:
    for child in node:
        tag = child.tag.removeprefix(SVG)
        if tag == "g" and set(child.attrib) <= {"id"}:
            _walk(child, shapes)
        elif tag == "path" and "id" not in child.attrib:
            path = _path(child.get("d", ""))
            if path:
                shapes.append(("path", _attributes(child), path))
        elif tag == "defs":
            inside: list = []
            _walk(child, inside)
            if inside:
                shapes.append(("defs", "", "<defs>" + "".join(_whole(*one) for one in inside) + "</defs>"))
        elif tag != "style":
            shapes.append(("whole", "", _element(child, tag)))


def _whole(tag: str, attributes: str, content: str) -> str:
    return f'<path{attributes} d="{content}"/>' if tag == "path" else content


def _element(node, tag: str) -> str:
    """Text, markers, images and clip paths: as they are, with short numbers."""
    if tag == "path":
        return f'<path{_attributes(node)} d="{_path(node.get("d", ""))}"/>'
    inside = _escape(node.text) if node.text and node.text.strip() else ""
    for child in node:
        if isinstance(child.tag, str):
            inside += _element(child, child.tag.removeprefix(SVG))
            inside += _escape(child.tail) if child.tail and child.tail.strip() else ""
    return f"<{tag}{_attributes(node)}>{inside}</{tag}>" if inside else f"<{tag}{_attributes(node)}/>"


def _attributes(node) -> str:
    """Return the node's attributes with its style split into them, without implied values."""
    attributes: dict[str, str] = {}
    for name, value in node.attrib.items():
        if name == "style":
            for entry in filter(None, (part.strip() for part in value.split(";"))):
                key, _, text = entry.partition(":")
                attributes[key.strip()] = text.strip()
        elif name != "d" and not (name == "id" and node.tag in (SVG + "g", SVG + "text")):
            attributes[name.replace(XLINK, "xlink:")] = value
    attributes.pop("font-family", None)
    if "font" in attributes:  # the shorthand would bring its own family
        size = re.search(r"([\d.]+)px", attributes["font"])
        text = attributes.pop("font")
        attributes |= {"font-size": size[1], **({"font-weight": "bold"} if "bold" in text or "700" in text else {}),
                       **({"font-style": "italic"} if "italic" in text else {})}
    if node.tag == SVG + "text" and re.match(r"rotate\(-?0[ .]", attributes.get("transform", "")):
        del attributes["transform"]
    if node.tag == SVG + "text" and re.search("^ |  | $", node.text or ""):
        attributes["xml:space"] = "preserve"
    if node.tag == SVG + "image":
        attributes["image-rendering"] = "pixelated"
    if "font-size" in attributes:
        attributes["font-size"] = attributes["font-size"].removesuffix("px")
    return "".join(f' {name}="{_escape(_short_all(value) if name not in ("xlink:href", "id") else value)}"'
                   for name, value in attributes.items() if WRITTEN.get(name) != value)


def _path(path: str) -> str:
    """Absolute, to a hundredth of a point; straight lines along an axis in short."""
    words, position, start, out = path.split(), (0.0, 0.0), (0.0, 0.0), []
    k = 0
    while k < len(words):
        letter = words[k]
        count = {"M": 2, "L": 2, "C": 6, "Q": 4, "z": 0, "Z": 0}[letter]
        coords = [float(word) for word in words[k + 1 : k + 1 + count]]
        k += 1 + count
        if letter in "zZ":
            out.append("z")
            position = start
            continue
        to = (coords[-2], coords[-1])
        if letter == "L" and _short(to[1]) == _short(position[1]):
            out.append(f"H{_short(to[0])}")
        elif letter == "L" and _short(to[0]) == _short(position[0]):
            out.append(f"V{_short(to[1])}")
        else:
            out.append(letter + " ".join(map(_short, coords)))
        start = to if letter == "M" else start
        position = to
    return "".join(out)


def _short(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _short_all(text: str) -> str:
    return NUMBER.sub(lambda match: _short(float(match[0])), text)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
