"""A lesson's notebook as a page: prose, code, and what the code gave.

What follows a question is folded away until the reader asks for it; plain <details>, so that it works without a script
and by keyboard.
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

from labkit._common.dark_svg import dark
from labkit._common.markdown import anchor as anchor_of
from labkit.course import colab, notebooks, predictions, prose, static_view
from labkit.course.glossary import Glossary, Marker
from labkit.course.lessons import LessonResult, kept
from labkit.course.registry import Chapter, Course
from labkit.course.site import code, ladders
from labkit.course.site.markdown import Markdown, without_empty_heads

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
    for_gpus: dict[str, Image] = field(default_factory=dict)  # ladders that other GPUs recorded
    dark: dict[str, bytes] = field(default_factory=dict)  # the dark forms of those that are SVGs
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

    @staticmethod
    def dark_name(name: str) -> str:
        return name.replace(".svg", "-dark.svg")

    def shown(self, name: str, alt: str = "", sides: str = "") -> Markup:
        """The picture as HTML: an SVG in its light and its dark form, of which the stylesheet shows one. A browser
        fetches the other only when it is shown."""
        if not name.endswith(".svg"):
            return Markup(f'<img src="images/{name}" alt="{alt}"{sides} loading="lazy">')
        return Markup("".join(f'<img class="in-{kind}" src="images/{file}" alt="{alt}"{sides} loading="lazy">'
                              for kind, file in (("light", name), ("dark", self.dark_name(name)))))


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
    markdown = Markdown({c.name for c in course.chapters})
    page = Page(chapter, results, result, Markup(), markdown.toc, marker=Marker(glossary, chapter))
    parts: list[str] = []
    anchors: set[str] = set()
    fold: _Fold | None = None  # of the question that was asked last

    def put(html: str) -> None:
        """Into the fold, if there is one."""
        if html:
            (parts if fold is None else fold.parts).append(html)

    def close() -> None:
        nonlocal fold
        if fold is not None:
            page.folded += bool(fold.parts)
            parts.append(fold.html())
        fold = None

    def text(source: str) -> str:
        return f'<div class="prose">{page.marker.mark(markdown.html(source))}</div>'

    for cell in notebook.cells:
        kind = predictions.kind(cell)
        if kind == predictions.GUESS:
            close()
            question = predictions.line(cell)
            anchor = anchor_of(" ".join(question.split()[:9]), anchors)
            anchors.add(anchor)
            fold = _Fold(page.marker.mark(markdown.html(question)), anchor)
        elif kind == predictions.ANSWER:
            put(text(predictions.prose(cell)))
        elif cell.cell_type == "markdown":
            close()
            parts.append(text(cell.source))
        elif cell.cell_type == "code" and cell.source.strip() and cell.get("id") != colab.SETUP:
            outputs = "".join(_output(output, page, repository) for output in _joined(cell.outputs)
                              if not static_view.is_caption(output))
            outputs = f'<div class="outputs">{outputs}</div>' if outputs else ""
            if fold is not None and not fold.parts and not _is_folded(cell):  # the code to predict from is open
                parts.append(f'<div class="cell">{_code(cell)}</div>')
                put(outputs)
            else:
                put(f'<div class="cell">{_code(cell)}{outputs}</div>')
    close()
    page.body = Markup("\n".join(parts))
    page.tips = Markup(page.marker.tips(glossary))
    return page


def _code(cell) -> str:
    shown = code.python(cell.source)
    return f'<details class="code"><summary>Code</summary>{shown}</details>' if _is_folded(cell) else shown


def _is_folded(cell) -> bool:
    return notebooks.FOLDED in cell.metadata.get("tags", [])


# --- Predictions -----------------------------------------------------------------------------------------------------


class _Fold:
    """What a page gathers behind one question."""

    def __init__(self, question: str, anchor: str):
        self.question, self.anchor, self.parts = question, anchor, []

    def html(self) -> str:
        asked = f'<div class="prose">{self.question}</div>'
        if not self.parts:  # nothing to show: the question stays
            return asked
        return (f'<div class="prediction" id="{self.anchor}"><div class="asked">{asked}'
                '<label class="guess">Your guess <input type="text" placeholder=" " autocomplete="off"></label></div>'
                '<details class="result"><summary><span class="show">Show the result</span>'
                f'<span class="hide">Hide the result</span></summary>{"".join(self.parts)}</details></div>')


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
    if html := data.get(static_view.PLAYER) or data.get("text/html"):  # an iframe, a page of its own, stays as it is
        if "<iframe" not in html:
            html = without_empty_heads(code.sources(html, repository))
        return f'<div class="rich">{html}</div>'
    if "image/svg+xml" in data:
        summary = data.get("text/plain", "")
        figure = _image(data["image/svg+xml"].encode(), "svg", page, {}, summary)
        return ladders.with_choice(figure, summary, lambda svg, words, gpu: _image(svg.encode(), "svg", page, {}, words,
                                                                                   in_place_of_last=gpu))
    for mime, extension in (("image/png", "png"), ("image/jpeg", "jpg")):
        if mime in data:
            size = output.get("metadata", {}).get(mime, {})
            return _image(base64.b64decode(data[mime]), extension, page, size, data.get("text/plain", ""))
    if "text/markdown" in data:
        return f'<div class="prose">{Markdown(set()).html(data["text/markdown"])}</div>'
    if "text/plain" in data:
        return f"<pre>{escape(strip_ansi(data['text/plain']))}</pre>"
    return ""


def _image(content: bytes, extension: str, page: Page, size: dict, text: str, in_place_of_last: str = "") -> str:
    """A picture that is a link to itself: the page's script opens it large, without one the browser does.
    in_place_of_last: the GPU for whose readers it replaces the last picture."""
    index = len(page.images) + (not in_place_of_last)
    name = f"{page.chapter.name}-{index}{in_place_of_last and f'-{in_place_of_last}'}.{extension}"
    width, height = (int(size.get(side, 0)) for side in ("width", "height"))
    own_width, own_height = _size(content, extension)
    if own_width and not height:
        width = width or own_width
        height = round(own_height * width / own_width)
    image = Image(content, width, height)
    (page.for_gpus if in_place_of_last else page.images)[name] = image
    if extension == "svg":
        page.dark[image.dark_name(name)] = dark(content.decode()).encode()
    sides = f' width="{width}" height="{height}"' if width and height else f' width="{width}"' if width else ""
    described = text if text and not text.startswith("<") else f"Plot {index} of {page.chapter.title}"
    alt = escape(" ".join(described.split()))
    return (f'<figure class="plot"><a class="enlarge" href="images/{name}">{image.shown(name, alt, sides)}'
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


# --- Documents -------------------------------------------------------------------------------------------------------


_CODE_OR_LINK = re.compile(r"^```.*?^```|`[^`\n]*`|\[([^]]+)\]\(([^)]+)\)", re.DOTALL | re.MULTILINE)


def document(root: Path, path: str, lessons: set[str], repository: str) -> tuple[str, Markup]:
    """Return the title and the HTML of a Markdown file. path: from the root of the course. Its links lead to the
    repository, if its address is known, and are plain text otherwise."""
    folder = path.rpartition("/")[0]

    def in_repository(match) -> str:
        text, target = match.groups()
        if target is None:  # code
            return match[0]
        if "://" in target or target.startswith("#"):
            return match[0]
        return f"[{text}]({repository}/blob/HEAD/{folder}/{target})" if repository else text

    text = (root / path).read_text(encoding="utf-8")
    title, text = text.removeprefix("# ").split("\n", 1)
    text = re.sub(r"!\[[^]]*\]\([^)]*\)|<!--.*?-->", "", text)
    return title, Markup(Markdown(lessons).html(_CODE_OR_LINK.sub(in_repository, text)))
