"""Markdown as the site shows it."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from markupsafe import Markup
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from labkit._common.markdown import anchor as anchor_of
from labkit.course.site import code

INLINE = ("", "a", "b", "br", "code", "em", "i", "img", "kbd", "mark", "s", "small", "span", "strong", "sub", "sup")


class Markdown:
    """Markdown to HTML: headings get anchors and go to the table of contents, formulas become MathML. lessons: the
    names of those that have a page. root: from the page to the site's folder, such as "../"."""

    def __init__(self, lessons: set[str], root: str = ""):
        self.lessons, self.root = lessons, root
        self.toc: list[tuple[int, str, str]] = []  # level, anchor, text as HTML

    def html(self, text: str) -> str:
        toc, lessons, root = self.toc, self.lessons, self.root

        class Renderer(IPythonRenderer):
            def heading(self, text: str, level: int, **attrs) -> str:
                if level == 1 and not toc:
                    return ""  # the page's header already says it
                anchor = anchor_of(text, {known for _, known, _ in toc})
                if level > 1:
                    toc.append((level, anchor, Markup(text)))
                link = f'<a class="anchor" href="#{anchor}" aria-label="Link to this section">#</a>'
                return f'<h{level} id="{anchor}">{text}{link}</h{level}>\n'

            def link(self, text: str, url: str, title: str | None = None) -> str:
                stem = Path(url.split("#")[0]).stem
                if url.split("#")[0].endswith((".ipynb", ".py")) and stem in lessons:
                    url = re.sub(r"^[^#]*", f"{root}{stem}.html", url)
                return super().link(text, url, title)

            def block_code(self, source: str, info: str | None = None, **attrs) -> str:
                if info and info.strip().startswith("py"):
                    return code.python(source)
                return f'<div class="highlight"><pre class="plain">{escape(source)}</pre></div>\n'

            def inline_html(self, html: str) -> str:
                name = re.match(r"</?([a-zA-Z][\w-]*)|<!--", html)  # cublas<t>gemm has no element
                return html if name and (name[1] or "").lower() in INLINE else escape(html)

            def table(self, text: str) -> str:
                return f'<div class="scroll"><table>{without_empty_heads(text)}</table></div>'

            def inline_math(self, body: str) -> str:
                return _mathml(body, "inline")

            def block_math(self, body: str) -> str:
                return f'<span class="formula">{_mathml(body, "block")}</span>'

        return MarkdownWithMath(renderer=Renderer(escape=False)).render(text)


def without_empty_heads(html: str) -> str:
    """The corner of a table heads nothing: a screen reader would announce a heading without a name."""
    return re.sub(r"<th((?: [^>]*)?)></th>", r"<td\1></td>", html)


def _mathml(latex: str, display: str) -> str:
    from latex2mathml.converter import convert

    return convert(latex, display=display)
