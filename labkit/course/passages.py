"""The course as passages for a search: the sections of its lessons, and the docstrings of its kernels."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import unescape
from pathlib import Path

from labkit._common.files import read_text
from labkit._common.markdown import plain
from labkit._common.paths import PACKAGE
from labkit.course import prose
from labkit.course.registry import Chapter, Course

MOST_WORDS = 150  # of a passage: a sentence encoder reads some 190, and what follows would not count
FEWEST_WORDS = 20  # of a docstring that is no rung's: "As above, in float64." answers no question


@dataclass(frozen=True)
class Passage:
    title: str
    text: str
    file: str  # from the repository's root on
    line: int
    lesson: str = ""  # "11_where_time_goes"; "" for a kernel
    anchor: str = ""  # of the section on the lesson's page; "" for its beginning

    @property
    def page(self) -> str:
        """Its address within the site; "" for a kernel, which has no page."""
        return f"{self.lesson}.html{'#' if self.anchor else ''}{self.anchor}" if self.lesson else ""

    @cached_property
    def digest(self) -> str:
        """Return the digest of the text, not of its position: a line inserted above changes nothing."""
        return hashlib.sha256(f"{self.title}\0{self.text}".encode()).hexdigest()[:16]


def passages(course: Course) -> list[Passage]:
    """Return all of the course's passages, lessons first. A long text is split into several of one title."""
    result = [passage for chapter in course.chapters if chapter.source.is_file() for passage in of_lesson(chapter)]
    for path in sorted((PACKAGE / "kernels").rglob("*.py")):
        result += of_kernels(path)
    return result


# --- Lessons ---------------------------------------------------------------------------------------------------------


def of_lesson(chapter: Chapter) -> Iterator[Passage]:
    file = f"notebooks/{chapter.name}.py"
    for index, (line, heading, anchor_, lines) in enumerate(sections(prose.rendered(chapter))):
        title = chapter.title if index == 0 else f"{chapter.title}: {heading}"
        for text in pieces("\n".join(lines)):
            yield Passage(title, text, file, line, chapter.name, anchor_)


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


def anchor(heading: str, used: set[str]) -> str:
    """The name of a section within its page. heading: as text or as HTML."""
    words = unescape(re.sub(r"<[^>]+>", "", heading)).lower()
    stem = re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "section"
    name, suffix = stem, 1
    while name in used:
        suffix += 1
        name = f"{stem}-{suffix}"
    return name


def pieces(markdown: str) -> Iterator[str]:
    """The text in pieces of at most MOST_WORDS words, cut between paragraphs where that can be."""
    words: list[str] = []
    for paragraph in re.split(r"\n\s*\n", plain(markdown)):
        new_words = paragraph.split()
        if words and len(words) + len(new_words) > MOST_WORDS:
            yield " ".join(words)
            words = []
        words += new_words
        while len(words) > MOST_WORDS:
            yield " ".join(words[:MOST_WORDS])
            words = words[MOST_WORDS:]
    if words:
        yield " ".join(words)


# --- Kernels ---------------------------------------------------------------------------------------------------------


def of_kernels(path: Path) -> Iterator[Passage]:
    """The docstrings of a file: its own, and those of what it defines for others; a rung's idea stands with its own."""
    file = path.relative_to(PACKAGE.parent).as_posix()
    tree = ast.parse(read_text(path))
    if about := ast.get_docstring(tree):
        for text in pieces(about):
            yield Passage(file.removeprefix("labkit/").removesuffix("/__init__.py"), text, file, 1)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        ideas = [word.value.value for call in node.decorator_list if isinstance(call, ast.Call)
                 for word in call.keywords if word.arg == "idea" and isinstance(word.value, ast.Constant)]
        about = "\n\n".join([*ideas, ast.get_docstring(node) or ""])
        for text in pieces(about) if ideas or len(about.split()) >= FEWEST_WORDS else ():
            yield Passage(node.name, text, file, node.lineno)
