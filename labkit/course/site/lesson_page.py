"""A lesson's notebook as a page: prose, code, and what the code gave.

A result that a prediction comes before is folded away until the reader asks for it; plain <details>, so that it works
without a script and by keyboard.
"""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from markupsafe import Markup
from nbconvert.filters.ansi import ansi2html, strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from labkit.course import colab, notebooks, prose
from labkit.course.glossary import Glossary, Marker
from labkit.course.lessons import LessonResult, kept
from labkit.course.passages import anchor as anchor_of
from labkit.course.registry import Chapter, Course
from labkit.course.site import code

HERE, SHIPPED, NONE = "here", "shipped", "none"  # whose results a page shows: this machine's, the course's, no one's


@dataclass
class Page:
    """A lesson, rendered. result: of a run on this machine only."""

    chapter: Chapter
    results: str  # HERE, SHIPPED or NONE
    result: LessonResult | None
    body: Markup
    toc: list[tuple[int, str, str]]  # level, anchor, text as HTML
    images: dict[str, Image] = field(default_factory=dict)  # by file name
    folded: int = 0  # results that wait to be asked for
    tips: Markup = Markup()
    marker: Marker | None = None

    @property
    def href(self) -> str:
        return f"{self.chapter.name}.html"

    @property
    def thumbnail(self) -> tuple[str, Image] | None:
        """The picture whose shape suits a small one best."""
        return min(self.images.items(), key=lambda pair: abs(pair[1].ratio - 1.7), default=None)


@dataclass(frozen=True)
class Image:
    """A file of the site. width, height: in CSS pixels; 0 where they are not known."""

    content: bytes
    width: int = 0
    height: int = 0

    @property
    def ratio(self) -> float:
        return self.width / self.height if self.height else 9.0


def page_of(course: Course, chapter: Chapter, glossary: Glossary, *, from_here: bool, repository: str = "") -> Page:
    """A chapter's page with the results of the last run on this machine, if `from_here` and there was one since its
    source changed; else with those of the notebook that the course ships; else, where that notebook is stale or
    edited, without any."""
    if from_here and (stored := kept(course, chapter)):
        return render(course, chapter, stored[1], glossary, HERE, stored[0], repository)
    if notebook := shipped(chapter):
        return render(course, chapter, notebook, glossary, SHIPPED, None, repository)
    return render(course, chapter, prose.to_notebook(chapter), glossary, NONE, None, repository)


def shipped(chapter: Chapter):
    """The built notebook; None where there is none, its source has changed, or somebody has edited it."""
    notebook = notebooks.read_notebook(chapter.built)
    if notebook is None:
        return None
    about = notebook.metadata.get("labkit", {})
    fresh = about.get("source_sha256") == notebooks.sha256(chapter.source_text())
    return notebook if fresh and about.get("cells_sha256") == notebooks.cells_sha256(notebook) else None


def render(course: Course, chapter: Chapter, notebook, glossary: Glossary, results: str,
           result: LessonResult | None = None, repository: str = "") -> Page:
    page = Page(chapter, results, result, Markup(), [], marker=Marker(glossary, chapter))
    markdown = _Markdown(page, {c.name for c in course.chapters})
    parts, predicted = [], False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            predicted = asks(cell.source)
            parts.append(f'<div class="prose">{page.marker.mark(markdown.html(cell.source))}</div>')
        elif cell.cell_type == "code" and cell.source.strip() and cell.get("id") != colab.SETUP:
            outputs = "".join(_output(output, page, repository) for output in _joined(cell.outputs))
            parts.append(f'<div class="cell">{_code(cell)}{_outputs(outputs, predicted, page)}</div>')
    page.body = Markup("\n".join(parts))
    page.tips = Markup(page.marker.tips(glossary))
    return page


def _code(cell) -> str:
    shown = code.python(cell.source)
    if notebooks.FOLDED not in cell.metadata.get("tags", []):
        return shown
    return f'<details class="code"><summary>Code</summary>{shown}</details>'


# --- Predictions -----------------------------------------------------------------------------------------------------

# A lesson asks in the imperative, at the end of the prose above a cell, or under a heading that says so; or its prose
# ends with a question.
ASKS = re.compile(r"\b[Bb]efore you (?:run|look|read|go|open|turn)\b|(?:^|[.:;?!)] |\*\*)(?:Predict|Guess|Write down|"
                  r"Draw|Try it on paper)\b|\b(?:then|and|first) (?:guess|predict)\b|^#+ .*\b[Pp]rediction\b", re.M)
LAST_PARAGRAPHS = 2


def asks(markdown: str) -> bool:
    """Whether this prose asks for a prediction of what the next cell gives."""
    sections = re.split(r"(?m)^(?=#+ )", markdown)
    last = sections[-1].strip()
    heading, _, text = last.partition("\n") if last.startswith("#") else ("", "", last)
    paragraphs = re.split(r"\n\s*\n", text.strip())[-LAST_PARAGRAPHS:]
    lines = [heading, *(" ".join(paragraph.split()) for paragraph in paragraphs)]
    return text.rstrip(" *)\n").endswith("?") or bool(ASKS.search("\n".join(lines)))


def _outputs(outputs: str, predicted: bool, page: Page) -> str:
    if not outputs:
        return ""
    shown = f'<div class="outputs">{outputs}</div>'
    if not predicted or 'class="source"' in outputs:  # code to read is a part of the question
        return shown
    page.folded += 1
    return ('<details class="result"><summary><span class="ask">Show the result</span><span class="asked">Hide the '
            f"result</span></summary>{shown}</details>")


# --- Outputs ---------------------------------------------------------------------------------------------------------


def _joined(outputs):
    """Neighbouring pieces of one stream as one output."""
    joined = []
    for output in outputs:
        if joined and output.output_type == "stream" == joined[-1]["output_type"] and output.name == joined[-1]["name"]:
            joined[-1] = {**joined[-1], "text": joined[-1]["text"] + output.text}
        else:
            joined.append(dict(output))
    return joined


def _output(output: dict, page: Page, repository: str) -> str:
    kind = output["output_type"]
    if kind == "stream":
        return f'<pre class="stream {escape(output["name"])}">{ansi2html(output["text"])}</pre>'
    if kind == "error":
        return f'<pre class="error">{ansi2html(chr(10).join(output["traceback"]))}</pre>'
    data = output.get("data", {})
    if "text/html" in data:  # an iframe, a page of its own, stays as it is
        html = data["text/html"]
        if "<iframe" not in html:
            html = _without_empty_heads(code.sources(html, repository))
        return f'<div class="rich">{html}</div>'
    if "image/svg+xml" in data:
        return _image(data["image/svg+xml"].encode(), "svg", page, {}, data.get("text/plain", ""))
    for mime, extension in (("image/png", "png"), ("image/jpeg", "jpg")):
        if mime in data:
            size = output.get("metadata", {}).get(mime, {})
            return _image(base64.b64decode(data[mime]), extension, page, size, data.get("text/plain", ""))
    if "text/markdown" in data:
        return f'<div class="prose">{_Markdown(page, set()).html(data["text/markdown"])}</div>'
    if "text/plain" in data:
        return f"<pre>{escape(strip_ansi(data['text/plain']))}</pre>"
    return ""


def _image(content: bytes, extension: str, page: Page, size: dict, text: str) -> str:
    """A picture that is a link to itself: the page's script opens it large, without one the browser does."""
    index = len(page.images) + 1
    name = f"{page.chapter.name}-{index}.{extension}"
    width, height = (int(size.get(side, 0)) for side in ("width", "height"))
    own_width, own_height = _size(content, extension)
    if own_width and not height:
        width = width or own_width
        height = round(own_height * width / own_width)
    page.images[name] = Image(content, width, height)
    sides = f' width="{width}" height="{height}"' if width and height else f' width="{width}"' if width else ""
    described = text if text and not text.startswith("<") else f"Plot {index} of {page.chapter.title}"
    alt = escape(" ".join(described.split()))
    return (f'<figure class="plot"><a class="enlarge" href="images/{name}">'
            f'<img src="images/{name}" alt="{alt}"{sides} loading="lazy">'
            '<span class="unseen">, enlarge</span></a></figure>')


def _size(content: bytes, extension: str) -> tuple[int, int]:
    """Width and height of a PNG or an SVG in pixels, (0, 0) where they are not found."""
    if extension == "png" and len(content) >= 24 and content.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack(">II", content[16:24])
    if extension == "svg":
        root = (re.search(rb"<svg\b[^>]*>", content) or [b""])[0]
        sides = [re.search(rb'\s%s="([\d.]+)(pt|px)?"' % side, root) for side in (b"width", b"height")]
        if all(sides):
            width, height = (float(side[1]) * (4 / 3 if side[2] == b"pt" else 1) for side in sides)
            return round(width), round(height)
    return 0, 0


# --- Markdown --------------------------------------------------------------------------------------------------------


def document(path: Path, lessons: set[str], repository: str) -> tuple[str, Markup]:
    """Return the title and the HTML of a Markdown file of the course. Its links lead to the repository, if its address
    is known, and are plain text otherwise."""
    folder = path.parent.name

    def in_repository(match) -> str:
        text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        return f"[{text}]({repository}/blob/HEAD/{folder}/{target})" if repository else text

    text = path.read_text(encoding="utf-8")
    title, text = text.removeprefix("# ").split("\n", 1)
    text = re.sub(r"!\[[^]]*\]\([^)]*\)|<!--.*?-->", "", text)
    page = Page(None, NONE, None, Markup(), [])
    return title, Markup(_Markdown(page, lessons).html(re.sub(r"\[([^]]+)\]\(([^)]+)\)", in_repository, text)))


INLINE = ("", "a", "b", "br", "code", "em", "i", "img", "kbd", "mark", "s", "small", "span", "strong", "sub", "sup")


class _Markdown:
    """Markdown to HTML: headings get anchors and go to the table of contents, formulas become MathML."""

    def __init__(self, page: Page, lessons: set[str]):
        self.page, self.lessons = page, lessons

    def html(self, text: str) -> str:
        page, lessons = self.page, self.lessons

        class Renderer(IPythonRenderer):
            def heading(self, text: str, level: int, **attrs) -> str:
                if level == 1 and not page.toc:
                    return ""  # the page's header already says it
                anchor = anchor_of(text, {known for _, known, _ in page.toc})
                if level > 1:
                    page.toc.append((level, anchor, Markup(text)))
                link = f'<a class="anchor" href="#{anchor}" aria-label="Link to this section">#</a>'
                return f'<h{level} id="{anchor}">{text}{link}</h{level}>\n'

            def link(self, text: str, url: str, title: str | None = None) -> str:
                stem = Path(url.split("#")[0]).stem
                if url.split("#")[0].endswith((".ipynb", ".py")) and stem in lessons:
                    url = re.sub(r"^[^#]*", f"{stem}.html", url)
                return super().link(text, url, title)

            def block_code(self, source: str, info: str | None = None, **attrs) -> str:
                if info and info.strip().startswith("py"):
                    return code.python(source)
                return f'<div class="highlight"><pre class="plain">{escape(source)}</pre></div>\n'

            def inline_html(self, html: str) -> str:
                name = re.match(r"</?([a-zA-Z][\w-]*)|<!--", html)  # cublas<t>gemm has no element
                return html if name and (name[1] or "").lower() in INLINE else escape(html)

            def table(self, text: str) -> str:
                return f'<div class="scroll"><table>{_without_empty_heads(text)}</table></div>'

            def inline_math(self, body: str) -> str:
                return _mathml(body, "inline")

            def block_math(self, body: str) -> str:
                return f'<span class="formula">{_mathml(body, "block")}</span>'

        return MarkdownWithMath(renderer=Renderer(escape=False)).render(text)


def _without_empty_heads(html: str) -> str:
    """The corner of a table heads nothing: a screen reader would announce a heading without a name."""
    return re.sub(r"<th((?: [^>]*)?)></th>", r"<td\1></td>", html)


def _mathml(latex: str, display: str) -> str:
    from latex2mathml.converter import convert

    return convert(latex, display=display)
