"""The site: a start page, a page for every lesson and every exercise, a glossary, what runs on which GPU, paths for
classes, and a search over all of it.

`labkit run` writes it with this machine's results where there are some, `labkit site` with those that the course
ships. Our own pages, stylesheet and scripts, and no request to any server: it can be read offline. Formulas become
MathML. Without scripts the pages are the same, but for the search and a few buttons.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from textwrap import shorten

import jinja2
from markupsafe import Markup

from labkit._common.files import whole_folder
from labkit._common.paths import ASSETS
from labkit.course import abilities, colab, glossary, prose, search
from labkit.course.glossary import Glossary, Term, Use
from labkit.course.lessons import show_error, show_time
from labkit.course.passages import passages
from labkit.course.registry import Course
from labkit.course.site.lesson_page import HERE, Page, document, page_of, shipped
from labkit.course.site.links import broken_links
from labkit.course.site.preview import preview

__all__ = ["broken_links", "shipped", "uses_of", "write"]

DOCUMENTS = {"measured": "data/measured.md", "teaching": "data/teaching.md",
             "simulator": "labkit/simt/README.md"}  # pages that are Markdown files of the repository
SCRIPTS_AND_STYLES = ("site.css", "site.js", "search.js")


@dataclass(frozen=True)
class Entry:
    """A term of the glossary with its uses, in the course's order. explained: where its lesson says what it means."""

    term: Term
    uses: tuple[Use, ...]
    explained: Use


def write(course: Course, folder: Path | None = None, *, from_here: bool = True, repository: str | None = None,
          on_page: Callable[[int, int], None] | None = None) -> Path:
    """Render the site into `folder` (build/site). Returns the start page's path.

    from_here: with the results of this machine's runs, where there are any. repository: its address, such as
    https://github.com/owner/name; what pyproject.toml says if left out. on_page(done, of) is called with each lesson.
    The site is written beside the old one and swapped in whole.
    """
    folder = folder or course.root / "build" / "site"
    repository = course.repository if repository is None else repository
    with whole_folder(folder) as fresh:
        from labkit.course.site import exercise_page  # imports Numba: not before the folder can be written
        from labkit.measure import gpu_survey
        from labkit.measure.recorded import recorded_series, recordings_by_gpu
        from labkit.measure.series import compilers

        words = glossary.load(course)
        pages: dict[str, Page] = {}
        for chapter in course.chapters:
            if chapter.source.is_file():
                pages[chapter.name] = page_of(course, chapter, words, from_here=from_here, repository=repository)
            if on_page:
                on_page(len(pages), len(course.chapters))
        entries = uses_of(words, pages)
        survey = gpu_survey.read()
        able = {each.chapter.name: each for each in abilities.abilities(course, survey)}
        recorded = {gpu: len(set().union(*(file["ops"] for file in files)))
                    for gpu, files in recordings_by_gpu().items()}
        exercises = [exercise_page.page_of(course, entry) for entry in course.exercises]
        for inner in ("images", "previews", exercise_page.FOLDER):
            (fresh / inner).mkdir()
        templates = _templates()
        both_compilers = recorded_series("compilers")
        documents = {name: document(course.root, path, set(pages), repository) for name, path in DOCUMENTS.items()
                     if (course.root / path).is_file()}
        shared = {
            "course": course, "documents": documents, "pages": pages, "repository": repository, "entries": entries,
            "abilities": able, "free": abilities.FREE, "exercises": exercises, "recorded": recorded,
            "address": _address(repository),
            "made": datetime.now().isoformat(sep=" ", timespec="minutes"), **_summary(pages),
        }

        def render_page(href: str, template: str = "", title: str = "", description: str = "", above: str = "",
                        **about) -> None:
            """title: on its preview; "" where it has that of the start page. above: the line above it."""
            picture = f"previews/{Path(href).with_suffix('.png').name}" if title else "previews/index.png"
            if title or href == "index.html":
                (fresh / picture).write_bytes(preview(title or course.title, above or course.title,
                                                      description or course.tagline))
            context = {"href": href, "root": "../" * href.count("/"), "preview": picture, "description": description,
                       "title": title, **shared, **about}
            _write(fresh / href, templates.get_template(template or href).render(**context))

        render_page("index.html")
        if shared["ran"]:
            render_page("results.html", title="Results")
        if entries:
            render_page("glossary.html", title="Glossary", letters=_by_letter(entries))
        if able:
            render_page("gpus.html", title="What runs on which GPU", survey=survey, names=abilities.FAMILIES,
                        families=abilities.families(survey), pretended=abilities.pretended(),
                        both_compilers=both_compilers)
        if both_compilers:
            render_page("compilers.html", title="Two compilers", series=both_compilers,
                        found=compilers.compared(both_compilers))
        for name, (title, body) in documents.items():
            render_page(f"{name}.html", "document.html", title, body=body)
        for page, before, after in _in_order(list(pages.values())):
            chapter = page.chapter
            render_page(page.href, "lesson.html", chapter.title, prose.render_summary(chapter),
                        f"{course.title} · Lesson {chapter.number}", page=page, chapter=chapter, before=before,
                        after=after, exercises=[each for each in exercises if each.entry.chapter == chapter],
                        colab=colab.notebook_url(repository, f"notebooks/{chapter.name}.ipynb") if repository else "")
            pictures = {name: image.content for name, image in {**page.images, **page.for_gpus}.items()}
            for name, content in {**pictures, **page.dark}.items():
                (fresh / "images" / name).write_bytes(content)
        if exercises:
            render_page("exercises/index.html", "exercises.html", "Exercises")
            render_page("difficulties.html", title="Known difficulties")
        if course.paths:
            render_page("classes.html", title="For classes")
        for exercise, before, after in _in_order(exercises):
            own = course.exercises_of(exercise.entry.chapter)
            render_page(exercise.href, "exercise.html", exercise.entry.title, exercise.summary,
                        f"{course.title} · Lesson {exercise.entry.chapter.number}, an exercise", exercise=exercise,
                        before=before, after=after, number=own.index(exercise.entry) + 1, of=len(own))
        for name in SCRIPTS_AND_STYLES:
            shutil.copyfile(ASSETS / name, fresh / name)
        _write(fresh / ".nojekyll", "")  # GitHub Pages takes the files as they are
        _write(fresh / "passages.js", _passages(course, entries, repository, documents, with_gpus=bool(able)))
    return folder / "index.html"


def uses_of(words: Glossary, pages: dict[str, Page]) -> list[Entry]:
    """The terms that lessons use, and where."""
    markers = [page.marker for page in pages.values() if page.marker]
    entries = []
    for term in words.terms:
        uses = tuple(marker.used[term.name] for marker in markers if term.name in marker.used)
        own = next((marker for marker in markers if marker.chapter.topic == term.lesson), None)
        if explained := own and own.explained(term) or next(iter(uses), None):
            entries.append(Entry(term, uses, explained))
    return entries


def _in_order(pages: list) -> list[tuple]:
    """(page, the one before, the one after), None at the ends."""
    return list(zip(pages, [None, *pages], [*pages[1:], None], strict=False))


def _address(repository: str) -> str:
    """Where GitHub Pages puts the site, with a slash at its end; "" without a repository. A preview needs it."""
    owner, _, name = repository.removeprefix("https://github.com/").partition("/")
    return f"https://{owner.lower()}.github.io/{name}/" if name else ""


def _by_letter(entries: list[Entry]) -> dict[str, list[Entry]]:
    letters: dict[str, list[Entry]] = {}
    for entry in entries:
        letters.setdefault(entry.term.name[0].upper(), []).append(entry)
    return letters


def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters.update(error=show_error, time=show_time, summary=prose.render_summary)
    return templates


def _passages(course: Course, entries: list[Entry], repository: str, documents: dict[str, tuple[str, Markup]],
              with_gpus: bool) -> str:
    """What search.js searches: JSON, in a script since a page that was opened as a file may read no other. The words
    that every question has; the passages, each a title, where it is, a link or "", its text, its heading, the other
    names that it has, and its weight; and the glossary, each a term with its variants, a link and what it means."""
    rows = []
    for passage in passages(course):
        number, link = passage.lesson[:2], passage.page
        where = f"Lesson {number}" if passage.kind == "lesson" else f"Exercise of lesson {number}"
        if passage.kind == "kernel":
            where = f"{passage.file}:{passage.line}" + (f", a kernel of lesson {number}" if number else "")
            link = f"{repository}/blob/HEAD/{passage.file}#L{passage.line}" if repository else link
        rows.append([passage.title, where, link, passage.text, passage.heading, passage.terms, search.weight(passage)])
    if with_gpus:
        text = (f"Which rungs and models of each lesson run on which GPU: {'; '.join(abilities.FAMILIES.values())}; "
                "and what an older one lacks.")
        rows.append(["What runs on which GPU", "Page", "gpus.html", text, "", [], 1])
    if course.exercises:
        text = "The mistakes that the exercises' checks know, lesson by lesson."
        rows.append(["Known difficulties", "Page", "difficulties.html", text, "", ["misconceptions"], 1])
    rows += [[title, "Page", f"{name}.html", shorten(body.striptags(), 600, placeholder=" ..."), "", [], 1]
             for name, (title, body) in documents.items()]
    rows += [[f"For classes: {path.title}", "Page", f"classes.html#{path.name}", path.summary, path.title,
              ["class", "syllabus", "schedule"], 1] for path in course.paths]
    terms = [[entry.term.words, f"glossary.html#{entry.term.anchor}", entry.term.means] for entry in entries]
    content = json.dumps([sorted(search.ASKING), rows, terms], ensure_ascii=False, separators=(",", ":"))
    return f"labkitPassages({content});\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _summary(pages: dict[str, Page]) -> dict:
    """What the pages say about the runs on this machine: the devices, the versions, how many lessons passed."""
    ran = [page for page in pages.values() if page.results == HERE]
    results = [page.result for page in ran]
    return {
        "ran": ran,
        "latest": max(results, key=lambda result: result.date, default=None),
        "devices": list(dict.fromkeys(result.device for result in results)),
        "only_cpu": all(result.device_kind == "cpu" for result in results),
        "passed": sum(result.passed for result in results),
        "total_seconds": sum(result.seconds for result in results),
    }
