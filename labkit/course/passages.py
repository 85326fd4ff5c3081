"""The course as passages for a search: the sections of its lessons, its exercises, the docstrings of its kernels."""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from labkit._common.files import read_text
from labkit._common.markdown import anchor, plain
from labkit._common.paths import PACKAGE
from labkit.course import glossary, prose
from labkit.course.glossary import Term, pattern
from labkit.course.registry import Chapter, Course, Entry

MOST_WORDS = 150  # of a passage: a sentence encoder reads some 190, and what follows would not count
MOST_OF_A_LIST = 60  # of a passage that is made of a list's items, which have little to do with one another
FEWEST_WORDS = 20  # of a docstring that is no rung's: "As above, in float64." answers no question


@dataclass(frozen=True)
class Passage:
    title: str
    text: str
    file: str  # from the repository's root on
    line: int
    lesson: str = ""  # "11_where_time_goes"; of a kernel, the first that imports it, and "" where none does
    anchor: str = ""  # of the section on the lesson's page; "" for its beginning
    kind: str = "lesson"  # or "exercise", "kernel"
    heading: str = ""  # of a lesson's section
    terms: tuple[str, ...] = ()  # words of the glossary that this section explains

    @property
    def page(self) -> str:
        """Its address within the site. A kernel has no page: the address is that of a lesson with it, or ""."""
        if self.kind == "exercise":
            return f"exercises/{Path(self.file).stem}.html"
        return f"{self.lesson}.html{'#' if self.anchor else ''}{self.anchor}" if self.lesson else ""

    @cached_property
    def digest(self) -> str:
        """Return the digest of the text, not of its position: a line inserted above changes nothing."""
        return hashlib.sha256(f"{self.title}\0{self.text}".encode()).hexdigest()[:16]


def passages(course: Course) -> list[Passage]:
    """Return all of the course's passages, lessons first. A long text is split into several of one title."""
    chapters = [chapter for chapter in course.chapters if chapter.source.is_file()]
    terms, called = glossary.load(course).terms, other_words(course)
    result = [passage for chapter in chapters for passage in of_lesson(
        chapter, [term for term in terms if term.lesson == chapter.topic], called.get(chapter.topic, {}))]
    result += [passage for entry in course.exercises for passage in of_exercise(entry)]
    lessons: dict[str, str] = {}  # module -> the first lesson that imports it
    for chapter in chapters:
        for module in _imported(chapter.source_text()):
            lessons.setdefault(module, chapter.name)
    for path in sorted((PACKAGE / "kernels").rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        result += [replace(passage, lesson=lessons.get(module, "")) for passage in of_kernels(path)]
    return result


def _imported(source: str) -> Iterator[str]:
    """The modules of labkit's kernels that a lesson's code may import."""
    for package, names in re.findall(r"(?m)^from (labkit\.kernels[\w.]*) import (.*)", source):
        yield package
        yield from (f"{package}.{name}" for name in re.findall(r"\w+", names))


# --- Lessons ---------------------------------------------------------------------------------------------------------


def other_words(course: Course) -> dict[str, dict[str, tuple[str, ...]]]:
    """Lesson by topic -> heading -> what learners call what stands there, by data/search_words.toml."""
    path = course.root / "data" / "search_words.toml"
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for entry in tomllib.loads(read_text(path))["section"] if path.is_file() else ():
        found.setdefault(entry["lesson"], {})[entry["heading"]] = tuple(entry["words"])
    return found


def of_lesson(chapter: Chapter, terms: Iterable[Term] = (),
              called: Mapping[str, tuple[str, ...]] | None = None) -> Iterator[Passage]:
    """terms: of the glossary, those that this lesson explains. called: other words for a section, by its heading."""
    file, found = f"notebooks/{chapter.name}.py", sections(prose.rendered(chapter))
    homes = {term: _home(term, chapter, found) for term in terms}
    for index, (line, heading, anchor_, lines) in enumerate(found):
        title = chapter.title if index == 0 else f"{chapter.title}: {heading}"
        words = (*(word for term, home in homes.items() if home == line for word in term.words),
                 *(called or {}).get(heading, ()))
        for text in pieces("\n".join(lines)):
            yield Passage(title, text, file, line, chapter.name, anchor_, heading=heading, terms=words)


def _home(term: Term, chapter: Chapter, found: list[tuple[int, str, str, list[str]]]) -> int | None:
    """The line of the first section that sets the term in italics or in bold or, if none does, has it in its heading. A
    term in the lesson's title is explained below the first heading: above it stands what will be learned."""
    words = f"(?:{'|'.join(map(pattern, term.words))})(?:e?s)?"
    emphasised = re.compile(rf"(?<!\*)\*\*?{words}\*\*?(?!\*)")
    homes = [line for line, _, _, lines in found if emphasised.search("\n".join(lines))]
    homes += [line for line, heading, _, _ in found if re.search(rf"\b{words}\b", heading)]
    if re.search(rf"\b{words}\b", chapter.title):
        homes += [line for line, _, _, _ in found[1:2]]
    return next(iter(homes), None)


def sections(source: str) -> list[tuple[int, str, str, list[str]]]:
    """(line, heading, anchor, lines of prose) of each section of a lesson's source. The first one stands below the
    title, and has no anchor."""
    result: list[tuple[int, str, str, list[str]]] = [(1, "", "", [])]
    used_anchors: set[str] = set()
    in_prose = in_fence = False
    for line_number, line in enumerate(source.splitlines(), 1):
        if line.startswith("# %%"):
            in_prose, in_fence = "[markdown]" in line, False
            continue
        if not in_prose or not line.startswith("#"):
            continue
        text = line[1:].removeprefix(" ")
        in_fence ^= text.lstrip().startswith("```")
        heading = None if in_fence else re.match(r"(#{1,6})\s+(.*)", text)
        if heading is None and not text.startswith("*Lab notebook,"):
            result[-1][3].append(text)
        elif heading and len(heading[1]) > 1:
            name = plain(heading[2])
            result.append((line_number, name, anchor(name, used_anchors), []))
            used_anchors.add(result[-1][2])
    return result


def pieces(markdown: str) -> Iterator[str]:
    """The text in pieces of at most MOST_WORDS words, cut between paragraphs where that can be."""
    words: list[str] = []
    of_a_list = False
    for paragraph in re.split(r"\n\s*\n|\n(?=[ \t]*(?:[-*+]|\d+\.)[ \t])", markdown):
        in_list = bool(re.match(r"\s*(?:[-*+]|\d+\.)[ \t]", paragraph))
        new_words = plain(paragraph).split()
        most = MOST_OF_A_LIST if in_list or of_a_list else MOST_WORDS
        if words and (len(words) + len(new_words) > most or in_list != of_a_list):
            yield " ".join(words)
            words = []
        of_a_list = in_list
        words += new_words
        while len(words) > MOST_WORDS:
            yield " ".join(words[:MOST_WORDS])
            words = words[MOST_WORDS:]
    if words:
        yield " ".join(words)


# --- Exercises -------------------------------------------------------------------------------------------------------


def of_exercise(entry: Entry) -> Iterator[Passage]:
    """What an exercise asks for."""
    path = entry.file.path
    file = path.relative_to(PACKAGE.parent).as_posix() if path.is_relative_to(PACKAGE) else str(path)
    for text in pieces(entry.file.text):
        yield Passage(f"Exercise: {entry.title}", text, file, 1, entry.chapter.name, kind="exercise")


# --- Kernels ---------------------------------------------------------------------------------------------------------


def of_kernels(path: Path) -> Iterator[Passage]:
    """The docstrings of a file: its own, and those of what it defines for others; a rung's idea stands with its own."""
    file = path.relative_to(PACKAGE.parent).as_posix()
    tree = ast.parse(read_text(path))
    if about := ast.get_docstring(tree):
        for text in pieces(about):
            yield Passage(file.removeprefix("labkit/").removesuffix("/__init__.py"), text, file, 1, kind="kernel")
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        ideas = [word.value.value for call in node.decorator_list if isinstance(call, ast.Call)
                 for word in call.keywords if word.arg == "idea" and isinstance(word.value, ast.Constant)]
        about = "\n\n".join([*ideas, ast.get_docstring(node) or ""])
        for text in pieces(about) if ideas or len(about.split()) >= FEWEST_WORDS else ():
            yield Passage(node.name, text, file, node.lineno, kind="kernel")
