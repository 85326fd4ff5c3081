"""Markdown as the text that it shows, and the anchors of its headings."""

import re
from html import unescape


def plain(markdown: str) -> str:
    """Markdown without its marks."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|<[^<>]*>", "", markdown)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(?m)^[ \t]*(```.*|[|: -]*-{3,}[|: -]*)$", "", text)  # a fence; the line below a table's head
    text = re.sub(r"(?m)^[ \t]*([-*+>]|\d+\.)[ \t]+", "", text)  # of a list, of a quotation
    return re.sub(r"`|\*\*|(?<!\w)\*(?=\S)|(?<=[^\s*])\*(?!\w)|\|", "", text)


def anchor(heading: str, used: set[str]) -> str:
    """The name of a section within its page. heading: as text or as HTML."""
    words = unescape(re.sub(r"<[^>]+>", "", heading)).lower()
    stem = re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "section"
    name, suffix = stem, 1
    while name in used:
        suffix += 1
        name = f"{stem}-{suffix}"
    return name
