"""The field's words as the course uses them: data/glossary.toml, and where the lessons use each.

    [[term]]
    name = "coalesced access"
    lesson = "vector_add"                      the lesson, without its number, that explains the term
    variants = ["coalesced", "coalescing"]     other words for it in the lessons; a plural's s needs none
    since = "paged_attention"                  a word of everyday English: the lesson, without its number, from which
                                               on it has this meaning
    means = "One or two sentences."
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html import escape

from labkit._common.errors import short
from labkit._common.files import read_text
from labkit._common.markdown import anchor
from labkit.course.registry import Chapter, Course, CourseError

NAME = "glossary.toml"
FIELDS = ("name", "means", "lesson", "variants", "since")


@dataclass(frozen=True)
class Term:
    name: str
    means: str
    lesson: str
    variants: tuple[str, ...] = ()
    since: str = ""

    @property
    def anchor(self) -> str:
        return anchor(self.name, set())

    @property
    def words(self) -> tuple[str, ...]:
        return (self.name, *self.variants)


@dataclass(frozen=True)
class Use:
    """A lesson that uses a term. section: the anchor of the section in which it does first; "" above the first one."""

    chapter: Chapter
    section: str
    title: str  # of the section
    introduced: bool  # the lesson emphasises it, as it does where it says what a word means, or has it in a heading


@dataclass(frozen=True)
class Glossary:
    """terms: by name. positions: a lesson's name without its number -> its position in the course."""

    terms: tuple[Term, ...] = ()
    positions: dict[str, int] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> dict[str, Term]:
        return {term.name: term for term in self.terms}

    def known_in(self, chapter: Chapter) -> tuple[Term, ...]:
        """The terms that have their meaning in this lesson."""
        return tuple(term for term in self.terms
                     if not term.since or self.positions[term.since] <= int(chapter.number))


def load(course: Course) -> Glossary:
    """Read and check data/glossary.toml; a course without one has no terms."""
    path = course.root / "data" / NAME
    try:
        data = tomllib.loads(read_text(path))
    except FileNotFoundError:
        return Glossary()
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"data/{NAME} is not valid TOML: {error}") from None
    positions = {chapter.name[3:]: int(chapter.number) for chapter in course.chapters}
    entries = data.get("term", [])
    if data.keys() - {"term"} or not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise CourseError(f"data/{NAME} must hold tables that begin with [[term]], and nothing else")
    used_words: dict[str, str] = {}
    terms = []
    for position, entry in enumerate(entries, 1):
        term = _term(entry, f"data/{NAME}, term {position}", positions)
        for word in (term.anchor, *{word.lower() for word in term.words} - {term.anchor}):
            if word in used_words:
                raise CourseError(f"data/{NAME}: {word!r} stands for {used_words[word]!r} and for {term.name!r}")
            used_words[word] = term.name
        terms.append(term)
    return Glossary(tuple(sorted(terms, key=lambda term: term.name.lower())), positions)


def _term(entry: dict, where: str, positions: dict[str, int]) -> Term:
    for key in ("name", "means", "lesson"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise CourseError(f"{where}: {key!r} must be a text that is not empty")
    where = f"data/{NAME}, {entry['name']!r}"
    if unknown := entry.keys() - set(FIELDS):
        raise CourseError(f"{where}: unknown key {sorted(unknown)[0]!r}; allowed are {', '.join(FIELDS)}")
    variants, since = entry.get("variants", []), entry.get("since", "")
    if not isinstance(variants, list) or not all(isinstance(word, str) and word.strip() for word in variants):
        raise CourseError(f"{where}: 'variants' must be a list of texts, not {short(variants)}")
    for key, topic in (("lesson", entry["lesson"]), ("since", since)):
        if topic and topic not in positions:
            raise CourseError(f"{where}: {key!r} is {short(topic)}; it must be a lesson's name without its number, one "
                              f"of {', '.join(positions)}")
    return Term(entry["name"], entry["means"], entry["lesson"], tuple(variants), since)


WORD = re.compile(r"[^\W_](?:[\w-]|'|’|&#39;|&#x27;)*")


def _stems(word: str) -> list[str]:
    """A word in small letters, and what it is the plural of if it is one."""
    word = re.sub(r"(?:'|’|&#39;|&#x27;).*", "", word.lower())
    return [word, *(word.removesuffix(end) for end in ("s", "es") if word.endswith(end))]


def pattern(word: str) -> str:
    """A word in capitals is no other: SM is not sm. Elsewhere a capital may begin a sentence."""
    text = re.escape(word).replace("'", "(?:'|’|&#39;|&#x27;)").replace(r"\ ", r"\s+")
    return text if re.search(r"[A-Z]", word[1:]) else f"(?i:{text})"


TAG = re.compile(r"""(<(?:[^<>"']|"[^"]*"|'[^']*')*>)""")
SKIPPED_TAGS = ("a", "code", "pre", "math", "svg", "script", "style", "button", "h1", "h2", "h3", "h4", "h5", "h6")


class Marker:
    """Goes through a lesson's prose from its beginning to its end, and links the first use of each term.

    used: a term's name -> its Use. headed: the same, of terms in the lesson's title or in a heading.
    """

    def __init__(self, glossary: Glossary, chapter: Chapter):
        self.chapter, self.used, self.headed = chapter, {}, {}
        self._section, self._title = "", chapter.title
        known = glossary.known_in(chapter)
        words = sorted(((word, term) for term in known for word in term.words), key=lambda pair: -len(pair[0]))
        self._beginning: dict[str, list[tuple[re.Pattern, Term]]] = {}  # by their first word; the longest first
        for word, term in words:
            whole = re.compile(rf"{pattern(word)}(?:e?s)?(?![\w-])")
            self._beginning.setdefault(_stems(WORD.match(word)[0])[0], []).append((whole, term))
        self._head(chapter.title)

    def explained(self, term: Term) -> Use | None:
        """Where this lesson says what the term means, or uses it first; None where it does not use it."""
        use, headed = self.used.get(term.name), self.headed.get(term.name)
        return use if use and use.introduced else headed or use

    def mark(self, html: str) -> str:
        """Return the HTML with links on the first use of each term."""
        pieces = TAG.split(html)
        skipped_depth = 0  # how many elements are open in which nothing is marked
        heading: list[str] | None = None
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                if heading is not None:
                    heading.append(piece)
                elif not skipped_depth:
                    emphasised = index > 0 and pieces[index - 1 : index + 2 : 2] in (["<em>", "</em>"],
                                                                                      ["<strong>", "</strong>"])
                    pieces[index] = self._linked(piece, emphasised)
                continue
            name = re.match(r"</?\s*([a-zA-Z0-9]*)", piece)[1].lower()
            if name in SKIPPED_TAGS and not piece.endswith("/>"):
                skipped_depth += -1 if piece.startswith("</") else 1
            if section := re.match(r'<h[2-6] id="([^"]*)"', piece):
                self._section, heading = section[1], []
            elif heading is not None and (piece.startswith("</h") or 'class="anchor"' in piece):
                self._title, heading = "".join(heading), None
                self._head(self._title)
        return "".join(pieces)

    def _head(self, title: str) -> None:
        for _, term in self._found(title):
            self.headed.setdefault(term.name, Use(self.chapter, self._section, title, introduced=True))

    def _linked(self, text: str, emphasised: bool) -> str:
        """A piece of text without tags; emphasised: all of it."""
        output, end = [], 0
        for match, term in self._found(text):
            output += [text[end : match.start()], self._link(term, match[0], emphasised and match[0] == text)]
            end = match.end()
        return "".join([*output, text[end:]])

    def _found(self, text: str) -> Iterator[tuple[re.Match, Term]]:
        """The terms in a piece of text without tags, one after the other."""
        end = 0
        for word in WORD.finditer(text):
            if word.start() < end or text[word.start() - 1 : word.start()] == "-":
                continue
            for whole, term in (pair for stem in _stems(word[0]) for pair in self._beginning.get(stem, ())):
                if match := whole.match(text, word.start()):
                    yield match, term
                    end = match.end()
                    break

    def _link(self, term: Term, words: str, introduced: bool) -> str:
        earlier = self.used.get(term.name)
        if earlier is None or (introduced and not earlier.introduced):
            self.used[term.name] = Use(self.chapter, self._section, self._title, introduced)
        if earlier is not None:
            return words
        return (f'<a class="term" href="glossary.html#{term.anchor}" aria-describedby="tip_{term.anchor}">'
                f"{words}</a>")

    def tips(self, glossary: Glossary) -> str:
        """What the links are described by."""
        return "".join(f'<p role="tooltip" id="tip_{term.anchor}">{escape(term.means)}</p>'
                       for term in glossary.terms if term.name in self.used)
