"""A report as one page of HTML that needs no other file: sections of paragraphs, tables and figures.

    write(Path("build/report.html"), lambda: Page(title, tagline, badges, sections))
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import jinja2
from markupsafe import Markup

from labkit import measure
from labkit._common.errors import UserError
from labkit._common.files import whole_file
from labkit._common.paths import ASSETS
from labkit._common.tables import PlainTable, to_html
from labkit.measure.plots import CourseFigure


@dataclass(frozen=True)
class Folded:
    """Parts that the reader opens."""

    title: str
    parts: tuple[str | PlainTable, ...]


@dataclass(frozen=True)
class Section:
    """A part of the page. eyebrow: a line above its title. A text is a paragraph."""

    title: str
    eyebrow: str
    parts: tuple[str | PlainTable | CourseFigure | Folded, ...]

    @property
    def anchor(self) -> str:
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())


@dataclass(frozen=True)
class Badge:
    text: str
    good: bool = False


@dataclass(frozen=True)
class Page:
    title: str
    tagline: str
    badges: tuple[Badge, ...]
    sections: tuple[Section, ...]


def written_badge() -> Badge:
    """When the page was made, and on which device."""
    return Badge(f"Written {datetime.datetime.now().isoformat(sep=' ', timespec='minutes')}, {measure.where()}")


def html_of(part) -> Markup:
    if isinstance(part, Folded):
        inside = Markup("").join(html_of(one) for one in part.parts)
        return Markup(f"<details><summary>{escape(part.title)}</summary>{inside}</details>")
    if isinstance(part, PlainTable):
        return Markup(f'<div class="rich">{to_html(part.table())}</div>')
    if isinstance(part, CourseFigure):
        kind, content = part.content()
        encoded = content if kind == "image/png" else base64.b64encode(content.encode()).decode()
        return Markup(f'<figure><img src="data:{kind};base64,{encoded}" alt="{escape(part.summary)}" '
                      f'width="{part.pixels}"></figure>')
    return Markup(f'<div class="prose"><p>{escape(part)}</p></div>')


def render(page: Page) -> str:
    templates = jinja2.Environment(loader=jinja2.FileSystemLoader(ASSETS), autoescape=True, trim_blocks=True,
                                   lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    templates.filters["part"] = html_of
    return templates.get_template("report.html").render(
        page=page, css=Markup((ASSETS / "site.css").read_text(encoding="utf-8")))


def write(path: Path, make: Callable[[], Page]) -> Path:
    """The page that make() returns, in one file that needs no other. A folder gets it as report.html. Whether the
    file can be written is known before make() begins; if an error or Ctrl-C ends it, what was there stays."""
    path = path / "report.html" if path.is_dir() else path
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no file that could be replaced")
    try:
        with whole_file(path) as file:
            file.write(render(make()).encode("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    return path
