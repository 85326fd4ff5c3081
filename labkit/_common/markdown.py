"""Markdown as the text that it shows."""

import re


def plain(markdown: str) -> str:
    """Markdown without its marks."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|<[^<>]*>", "", markdown)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(?m)^[ \t]*(```.*|[|: -]*-{3,}[|: -]*)$", "", text)  # a fence; the line below a table's head
    text = re.sub(r"(?m)^[ \t]*([-*+>]|\d+\.)[ \t]+", "", text)  # of a list, of a quotation
    return re.sub(r"`|\*\*|(?<!\w)\*(?=\S)|(?<=[^\s*])\*(?!\w)|\|", "", text)
