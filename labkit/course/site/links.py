"""Whether every link within the site leads somewhere, and every anchor stands once on its page."""

from __future__ import annotations

import posixpath
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Links(HTMLParser):
    """links: what a page refers to. ids: how often each is on it. An iframe's own document is another page."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.ids: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]
        self.ids.update([attributes["id"]] if attributes.get("id") else [])
        for name in ("aria-labelledby", "aria-describedby", "aria-controls", "for"):  # they are links, too
            self.links += [f"#{target}" for target in (attributes.get(name) or "").split()]


def broken_links(folder: Path) -> list[str]:
    """One sentence for each link within the site whose target does not exist, and for each anchor that a page has
    twice."""
    pages = {path.relative_to(folder).as_posix(): _Links(path.read_text(encoding="utf-8"))
             for path in sorted(folder.rglob("*.html"))}
    problems = []
    for name, page in pages.items():
        problems += [f"{name}: {count} elements have the id {anchor!r}"
                     for anchor, count in page.ids.items() if count > 1]
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
            target = target if parts.path else name
            if not (folder / target).is_file():
                problems.append(f"{name}: the link to {link} leads to no file of the site")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                problems.append(f"{name}: the link to {link} leads to no anchor of that page")
    return problems
