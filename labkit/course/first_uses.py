"""What a lesson uses before any has explained it: words of the glossary, and names that its code imports or calls.

A word counts as explained from the lesson on that the glossary declares, or from one that sets it in italics or in bold
as it says what it means. Before that it may stand only in a paragraph that names the lesson to come: "(lesson 12)". A
name in code, such as cuda.shared.array or Piece, counts as explained where prose has named it, in this lesson or an
earlier one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.course import notebooks, prose
from labkit.course.glossary import Glossary, Marker, Term
from labkit.course.registry import Chapter, Course
from labkit.course.site.markdown import Markdown

NAMESPACES = ("cuda", "ptx")  # what is called from these needs an explanation each
# What only measures, draws or names a module needs none.
ORDINARY = frozenset({"cuda", "ptx", "plots", "measure", "device"})
IN_CODE = re.compile(r"(?s)(`+)(.+?)(?<!`)\1(?!`)")  # fenced code begins and ends with three
TITLE_OF_A_WORK = re.compile(r"(?<![\w*])\*(?=[^\s*])[^*]{26,}(?<=[^\s*])\*(?![\w*])")  # longer than any term


@dataclass(frozen=True)
class FirstUse:
    """A word or a name that a lesson uses too early. home: the lesson that explains it; "" where none does."""

    lesson: str  # by topic, as home
    what: str
    home: str
    where: str  # the paragraph's beginning, or the line of code


# --- Words of the glossary -------------------------------------------------------------------------------------------


def markers(course: Course, words: Glossary) -> dict[str, Marker]:
    """Lesson by topic -> what it uses and explains."""
    found = {}
    for chapter in course.chapters:
        marker, markdown = Marker(words, chapter), Markdown(set())
        for text in _prose(chapter):
            marker.mark(markdown.html(text))
        found[chapter.topic] = marker
    return found


def not_introduced(words: Glossary, by_lesson: dict[str, Marker]) -> list[Term]:
    """The terms that the lesson they declare neither emphasises nor has in a heading."""
    return [term for term in words.terms
            if not ((use := by_lesson[term.lesson].explained(term)) and use.introduced)]


def words_before(course: Course, words: Glossary, by_lesson: dict[str, Marker]) -> list[FirstUse]:
    """Each term and lesson in which it stands before it is explained, once."""
    explained: set[str] = set()
    found = []
    for chapter in course.chapters:
        used = by_lesson[chapter.topic].used
        explained |= {term.name for term in words.terms if term.lesson == chapter.topic}
        explained |= {name for name, use in used.items() if use.introduced}
        for term in (words.by_name[name] for name in used if name not in explained):
            home = next(each for each in course.chapters if each.topic == term.lesson)
            if paragraph := _without_pointer(chapter, term, home, words):
                found.append(FirstUse(chapter.topic, term.name, term.lesson, paragraph))
    return found


def _without_pointer(chapter: Chapter, term: Term, home: Chapter, words: Glossary) -> str:
    """The first paragraph that uses the term and does not name the lesson that explains it; "" where each does."""
    marker = Marker(Glossary((term,), words.positions), chapter)
    begins = re.compile("|".join(re.escape(word) for word in term.words), re.IGNORECASE)
    for text in _prose(chapter):
        for paragraph in filter(begins.search, re.split(r"\n\s*\n|\n(?=#+ )|\n(?=- )", text)):
            marker.used.clear()
            marker.mark(Markdown(set()).html(paragraph))
            if marker.used and not _points_to(paragraph, home):
                return " ".join(paragraph.split())[:90]
    return ""


def _points_to(paragraph: str, home: Chapter) -> bool:
    return (paragraph.startswith("Next: ") or f"{home.name}.ipynb" in paragraph
            or bool(re.search(rf"[Ll]essons?\b.*?\b{home.number}\b", paragraph, re.S)))


def _prose(chapter: Chapter) -> Iterator[str]:
    """The prose of a lesson's cells as Markdown."""
    for cell in re.split(r"(?m)^# %%", prose.rendered(chapter)):
        if cell.startswith(" [markdown]"):
            text = "\n".join(line[1:].removeprefix(" ") for line in cell.splitlines()[1:] if line.startswith("#"))
            yield TITLE_OF_A_WORK.sub("", text)


# --- Names in code ---------------------------------------------------------------------------------------------------


def names_before(course: Course) -> list[FirstUse]:
    """Each name of labkit's in the code of a lesson that neither its prose nor an earlier lesson's has named, where the
    course uses it first."""
    mentioned: set[str] = set()
    used: set[str] = set()
    found = []
    for chapter in course.chapters:
        text = "\n".join(_prose(chapter))
        mentioned |= set(re.findall(r"\w+", " ".join(code for _, code in IN_CODE.findall(text))))
        for name, line in _names(chapter):
            if name in used:
                continue
            used.add(name)
            if not set(name.split(".")) & mentioned - set(NAMESPACES):
                found.append(FirstUse(chapter.topic, name, "", line))
    return found


def _names(chapter: Chapter) -> Iterator[tuple[str, str]]:
    """(name, line of code) of what a lesson imports from labkit itself, of the classes that it imports from its
    packages, and of what it calls from NAMESPACES. Kernels and their launchers are what a lesson is about."""
    for cell in notebooks.parse(chapter.source_text(), chapter.source.name).cells:
        if cell.cell_type != "code":
            continue
        lines = cell.source.splitlines()
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "labkit":
                for alias in node.names:
                    name = alias.asname or alias.name
                    a_class = name[0].isupper() and not name.isupper()
                    if a_class or (node.module == "labkit" and name not in ORDINARY):
                        yield name, lines[alias.lineno - 1].strip()
            elif isinstance(node, ast.Attribute):
                dotted = ast.unparse(node)
                is_part = f"{dotted}." in lines[node.lineno - 1]  # cuda.shared of cuda.shared.array
                if re.fullmatch(rf"(?:{'|'.join(NAMESPACES)})(\.\w+)+", dotted) and not is_part:
                    yield dotted, lines[node.lineno - 1].strip()
