"""The site that `labkit run` writes: an index with the results, and a page for every lesson that was run.

Our own pages and stylesheet, and no request to any server: it can be read offline. Formulas become MathML. The one
script is the search's; without it the pages are the same but for its box.
"""

import base64
import json
import re
import shutil
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path

import jinja2
from markupsafe import Markup
from nbconvert.filters.ansi import ansi2html, strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from labkit._common.files import whole_folder
from labkit._common.paths import ASSETS
from labkit.course import search
from labkit.course.lessons import LessonResult, kept, show_error, show_time
from labkit.course.passages import anchor as anchor_of
from labkit.course.passages import passages
from labkit.course.registry import Chapter, Course


@dataclass
class Page:
    """A lesson, rendered."""

    chapter: Chapter
    result: LessonResult
    body: Markup
    toc: list[tuple[int, str, str]]  # level, anchor, text as HTML
    images: dict[str, bytes] = field(default_factory=dict)  # file name -> content
    thumbnail: str = ""

    @property
    def href(self) -> str:
        return f"{self.chapter.name}.html"


def write(course: Course, folder: Path | None = None) -> Path:
    """Render every kept lesson and the index into `folder` (build/site). Returns the index's path.

    The site is written beside the old one and swapped in whole.
    """
    folder = folder or course.root / "build" / "site"
    pages = {}
    for chapter in course.chapters:
        found = kept(course, chapter)
        if found:
            pages[chapter.name] = render(course, chapter, *found)

    with whole_folder(folder) as fresh:
        (fresh / "images").mkdir()
        templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(ASSETS),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        templates.filters.update(error=show_error, time=show_time)
        shared = {"course": course, "pages": pages, "made": datetime.now().isoformat(sep=" ", timespec="minutes")}
        _write(fresh / "index.html", templates.get_template("index.html").render(**shared, **_summary(pages)))
        lesson = templates.get_template("lesson.html")
        for position, chapter in enumerate(course.chapters):
            if chapter.name not in pages:
                continue
            page = pages[chapter.name]
            around = {
                "position": position,
                "before": _neighbour(course, pages, range(position - 1, -1, -1)),
                "after": _neighbour(course, pages, range(position + 1, len(course.chapters))),
            }
            _write(fresh / page.href, lesson.render(page=page, chapter=chapter, **around, **shared))
            for name, content in page.images.items():
                (fresh / "images" / name).write_bytes(content)
        for name in ("site.css", "search.js"):
            shutil.copyfile(ASSETS / name, fresh / name)
        _write(fresh / "passages.js", _passages(course, pages))
    return folder / "index.html"


def _passages(course: Course, pages: dict[str, Page]) -> str:
    """What search.js searches: JSON, in a script since a page that was opened as a file may read no other. Each passage
    is a title, where it is, a link or "", and its text. The lessons are those that have a page."""
    found = [[one.title, f"{one.file}:{one.line}" if not one.lesson else f"Lesson {one.lesson[:2]}", one.page, one.text]
             for one in passages(course) if not one.lesson or one.lesson in pages]
    return f"labkitPassages({json.dumps([sorted(search.ASKING), found], ensure_ascii=False, separators=(',', ':'))});\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _neighbour(course: Course, pages: dict[str, Page], order: range) -> Chapter | None:
    return next((course.chapters[i] for i in order if course.chapters[i].name in pages), None)


def _summary(pages: dict[str, Page]) -> dict:
    """What the index says about the whole run: the devices, the versions, how many passed."""
    results = [page.result for page in pages.values()]
    latest = max(results, key=lambda result: result.date, default=None)
    return {
        "results": results,
        "latest": latest,
        "devices": list(dict.fromkeys(result.device for result in results)),
        "only_cpu": all(result.device_kind == "cpu" for result in results),
        "passed": sum(result.passed for result in results),
        "total_seconds": sum(result.seconds for result in results),
    }


# ---------------------------------------------------------------------------------------------------------------
# A notebook to HTML


def render(course: Course, chapter: Chapter, result: LessonResult, notebook) -> Page:
    page = Page(chapter, result, Markup(), [])
    markdown = _Markdown(page, {c.name for c in course.chapters})
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(f'<div class="prose">{markdown.html(cell.source)}</div>')
        elif cell.cell_type == "code" and cell.source.strip():
            parts.append(f'<div class="cell"><div class="highlight"><pre>{_python(cell.source)}</pre></div>')
            outputs = "".join(_output(output, page) for output in _joined(cell.outputs))
            parts.append(f'<div class="outputs">{outputs}</div></div>' if outputs else "</div>")
    page.body = Markup("\n".join(parts))
    return page


def _python(code: str) -> str:
    return highlight(code, PythonLexer(), HtmlFormatter(nowrap=True))


def _joined(outputs):
    """Neighbouring pieces of one stream as one output."""
    joined = []
    for output in outputs:
        if joined and output.output_type == "stream" == joined[-1]["output_type"] and output.name == joined[-1]["name"]:
            joined[-1] = {**joined[-1], "text": joined[-1]["text"] + output.text}
        else:
            joined.append(dict(output))
    return joined


def _output(output: dict, page: Page) -> str:
    kind = output["output_type"]
    if kind == "stream":
        return f'<pre class="stream {escape(output["name"])}">{ansi2html(output["text"])}</pre>'
    if kind == "error":
        return f'<pre class="error">{ansi2html(chr(10).join(output["traceback"]))}</pre>'
    data = output.get("data", {})
    for mime, extension in (("image/png", "png"), ("image/jpeg", "jpg")):
        if mime in data and "text/html" not in data:
            size = output.get("metadata", {}).get(mime, {})
            return _image(base64.b64decode(data[mime]), extension, page, size, data.get("text/plain", ""))
    if "text/html" in data:
        return f'<div class="rich">{data["text/html"]}</div>'
    if "image/svg+xml" in data:
        return _image(data["image/svg+xml"].encode(), "svg", page, {}, data.get("text/plain", ""))
    if "text/markdown" in data:
        return f'<div class="prose">{_Markdown(page, set()).html(data["text/markdown"])}</div>'
    if "text/plain" in data:
        return f"<pre>{escape(strip_ansi(data['text/plain']))}</pre>"
    return ""


def _image(content: bytes, extension: str, page: Page, size: dict, text: str) -> str:
    number = len(page.images) + 1
    name = f"{page.chapter.name}-{number}.{extension}"
    page.images[name] = content
    page.thumbnail = page.thumbnail or name
    width = f' width="{int(size["width"])}"' if "width" in size else ""
    described = text if text and not text.startswith("<") else f"Plot {number} of {page.chapter.title}"
    alt = escape(" ".join(described.split()))
    return f'<figure><img src="images/{name}" alt="{alt}"{width} loading="lazy"></figure>'


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
                link = f'<a class="anchor" href="#{anchor}" aria-label="link to this section">#</a>'
                return f'<h{level} id="{anchor}">{text}{link}</h{level}>\n'

            def link(self, text: str, url: str, title: str | None = None) -> str:
                stem = Path(url.split("#")[0]).stem
                if url.split("#")[0].endswith((".ipynb", ".py")) and stem in lessons:
                    url = re.sub(r"^[^#]*", f"{stem}.html", url)
                return super().link(text, url, title)

            def table(self, text: str) -> str:
                return f'<div class="scroll"><table>{text}</table></div>'

            def inline_math(self, body: str) -> str:
                return _mathml(body, "inline")

            def block_math(self, body: str) -> str:
                return _mathml(body, "block")

        return MarkdownWithMath(renderer=Renderer(escape=False)).render(text)


def _mathml(latex: str, display: str) -> str:
    from latex2mathml.converter import convert

    return convert(latex, display=display)
