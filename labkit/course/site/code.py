"""Code as the site shows it: coloured, and in lines that wrap with a hanging indent, so that no comment is cut off."""

import re
from html import escape, unescape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

# What labkit.course.show makes of a kernel's source in a notebook: a style, a caption where the source has a place,
# and lines whose classes begin with lk-.
SOURCE = re.compile(r'(?:<style>[^<]*</style>)?<div class="labkit-source">'
                    r'(?:<div class="labkit-source-where">(?P<where>[^<]*)</div>)?<pre>(?P<code>.*?)</pre></div>', re.S)


def python(code: str) -> str:
    """Python source as a block."""
    return block(highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)))


def block(lines: str) -> str:
    """Lines of HTML, whose elements end with their line, as a block of code."""
    return f'<div class="highlight"><pre>{hanging(lines)}</pre></div>'


def hanging(lines: str) -> str:
    """Wrap each line in an element that knows its indent, by which a wrapped part is indented. Copied text is the
    original code."""
    rows = lines.rstrip("\n").split("\n")
    return "".join(f'<span class="line"{_indent(line)}>{line}\n</span>' for line in rows)


def _indent(line: str) -> str:
    text = unescape(re.sub(r"<[^>]+>", "", line))
    indent = len(text) - len(text.lstrip(" "))
    return f' style="--indent:{indent}"' if indent else ""


def sources(html: str, repository: str = "") -> str:
    """An output's HTML with each piece of source that a lesson shows as a block of code under its place."""

    def figure(match: re.Match) -> str:
        location = match["where"] or ""
        path, _, line = unescape(location).rpartition(":")
        if location and repository and not path.startswith("/"):
            address = escape(f"{repository}/blob/HEAD/{path}#L{line}")
            location = f'<a href="{address}">{location}</a>'
        caption = f"<figcaption>{location}</figcaption>" if location else ""
        return f'<figure class="source">{caption}{block(match["code"])}</figure>'

    return SOURCE.sub(figure, html)
