"""Numbers in prose: `labkit build` works them out from a recording, where they stand.

In the markdown of notebooks/*.py and in the summaries of course.toml:

    {{ swap }}, {{ share:.0% }}         the value of an expression, formatted as in an f-string
    far faster than NumPy{{ if far }}   words that have to be so: the mark is left out of what a reader sees
    1.98 GHz{{ hardware }}              a number that is in no recording: hardware, quoted, compiled or example
    9.1 us{{ later series.x.us }}       a number that still has to be recorded: unrecorded() lists it

Longer expressions get a name in the lesson's last cell, `# %% [numbers]`, which the notebook leaves out: assignments in
Python, commented out. labkit.course.expressions lists what an expression may use. PAGES are read as they are: there a
mark is a comment behind the number, 0.96<!-- = row("matmul", "tiled").fraction -->, and the build refreshes the number.
The exercises are not checked: what they give is made up.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

from labkit._common.files import read_text
from labkit.course import notebooks, predictions
from labkit.course.registry import Chapter, Course, CourseError

PAGES = ("README.md", "data/README.md", "data/teaching.md")
NUMBERS = "# %% [numbers]"
FACTS = ("hardware", "quoted", "compiled", "example")

_HOLE = re.compile(r"\{\{ (.+?) \}\}")
_FORMATTED = re.compile(r"(.+?)(?::(,|[,.\d]*[defg%]))?")
_CELL = re.compile(r"^# %% \[markdown\].*\n((?:#(?! %%).*\n?)*)", re.MULTILINE)
_COMMENT = re.compile(rf"<!-- ((?:if|later) .+?|{'|'.join(FACTS)}) -->")
_REFRESHED = re.compile(r"([\w.,%-]+)(<!-- = (.+?) -->)")

# A quantity that was typed: digits with a unit, or a decimal which is no version. "2, 3 and 7 ms" is one.
_NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)?"
_UNIT = r"[ -]?(?:(?:[nuµm]s|[GM]B(?:/s)?|[GT]FLOP(?:/s)?|GHz|seconds|percent|registers|instructions|clocks|times)\b|%)"
_VERSIONED = ("CUDA", "Llama", "ptxas", "tileiras")
_DECIMAL = "".join(rf"(?<!{name} )" for name in _VERSIONED) + r"(?<![\w.])\d+\.\d+(?!\.?\w)"
_QUANTITY = rf"(?:{_NUMBER}{_UNIT}|{_DECIMAL})"
_TYPED = re.compile(rf"(?:(?:{_QUANTITY}|{_NUMBER})(?:, | to |,? and |,? or ))*{_QUANTITY}")
_UNLINTED = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]+\$|^ *\|[^\n]*$|(?<=\])\([^)]*\)|<!--.*?-->",
                       re.DOTALL | re.MULTILINE)


class _Failed(Exception):
    """Why an expression has no value."""


# --- Rendering -------------------------------------------------------------------------------------------------------


def rendered(chapter: Chapter) -> str:
    """The lesson's source as a reader sees it, on the same lines."""
    return render(chapter.source_text(), f"notebooks/{chapter.name}.py")


def to_notebook(chapter: Chapter):
    """The chapter's source as a notebook without outputs, its numbers in place, what follows a question folded, with
    stable cell ids and its hashes in the metadata."""
    name, shown = f"notebooks/{chapter.name}.py", rendered(chapter)
    notebook = notebooks.parse(shown, name)
    predictions.fold(notebook)
    notebooks.label(notebook, name, notebooks.sha256(chapter.source_text()))
    notebook.metadata["labkit"]["prose_sha256"] = notebooks.sha256(shown)
    return notebook


def render(source: str, name: str) -> str:
    """A lesson's source with its numbers in place. Raises CourseError for an expression that cannot be worked out."""
    lesson, definitions = split(source)
    value = evaluator(definitions)
    return _CELL.sub(lambda cell: _filled(cell, lambda at: f"{name}, line {_line(lesson, at)}", value), lesson)


def render_summary(chapter: Chapter) -> str:
    """The chapter's summary as a reader sees it."""
    whole = re.match(".*", chapter.summary)
    return _filled(whole, lambda at: f"course.toml, the summary of {chapter.name}", evaluator())


def refreshed(page: str, name: str) -> str:
    """A page with the values before its expressions as they are now."""
    value = evaluator()

    def refresh(match: re.Match) -> str:
        try:
            return _shown(match[3], value) + match[2]
        except _Failed as error:
            raise CourseError(_fault(f"{name}, line {_line(page, match.start())}", page, match, error)) from None

    return _REFRESHED.sub(refresh, page)


def split(source: str) -> tuple[str, str]:
    """(the lesson, its last cell with the definitions of names, without the marks of a comment)."""
    lesson, _, block = source.partition(f"\n{NUMBERS}\n")
    return lesson, re.sub("^# ?", "", block, flags=re.MULTILINE)


def evaluator(definitions: str = "") -> Callable[[str], object]:
    """Return what works an expression out, with the recording as it is at the first one. It raises _Failed."""
    try:
        defined = {ast.unparse(one.targets[0]): ast.unparse(one.value) for one in ast.parse(definitions).body}
    except (SyntaxError, AttributeError) as error:
        raise CourseError(f"{NUMBERS}, a lesson's last cell, holds more than assignments to names: {error}") from None

    @cache
    def names() -> dict:
        from labkit.course import expressions  # imports Numba

        return expressions.namespace()

    def value(expression: str) -> object:
        while True:
            try:
                return eval(expression, names())  # a lesson's source is ours
            except Exception as error:  # whatever an expression may raise
                name = error.name if isinstance(error, NameError) else None
                if name not in defined:
                    raise _Failed(_reason(error)) from None
            definition = defined.pop(name)
            try:
                names()[name] = value(definition)
            except _Failed as error:
                defined[name] = definition
                raise _Failed(f"{name} = {definition}: {error}") from None

    return value


def _reason(error: Exception) -> str:
    return f"no recording has {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"


def _filled(text: re.Match, where: Callable[[int], str], value: Callable) -> str:
    def fill(hole: re.Match) -> str:
        if _kind(hole) != "value":
            return ""
        try:
            return _shown(hole[1], value)
        except _Failed as error:
            raise CourseError(_fault(where(text.start() + hole.start()), text[0], hole, error)) from None

    return _HOLE.sub(fill, text[0])


def _kind(hole: re.Match) -> str:
    """value, if, later, or one of FACTS."""
    word = hole[1].split(" ")[0]
    return word if hole[1] in FACTS or (word in ("if", "later") and word != hole[1]) else "value"


def _shown(expression: str, value: Callable) -> str:
    """The value of "expression" or of "expression:.1f" as text."""
    code, form = _FORMATTED.fullmatch(expression).groups()
    result = value(code)
    return format(result, form) if form else str(result)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _fault(where: str, text: str, match: re.Match, reason: object) -> str:
    """Describe what is wrong at a match in one sentence, and quote the prose around it."""
    around = text[max(0, match.start() - 80) : match.start()], text[match.end() : match.end() + 40]
    before, after = (" ".join(re.sub(r"^# ?", "", part, flags=re.MULTILINE).split()) for part in around)
    return f"{where}: {reason}: ...{before} {match[0]}{'' if after[:1] in ',.;:)' else ' '}{after}..."


# --- The check -------------------------------------------------------------------------------------------------------


def problems(course: Course, chapters: Collection[Chapter] | None = None) -> list[str]:
    """What prose says and no recording does, and numbers that were typed, in these chapters, or in all, and in README:
    a list of sentences."""
    chosen = [chapter for chapter in _with_source(course) if chapters is None or chapter in chapters]
    found = [problem for chapter in chosen for problem in problems_of_lesson(chapter)]
    for name, text in _pages(course):
        found += _problems(name, text, evaluator())
    return found


def problems_of_lesson(chapter: Chapter) -> list[str]:
    lesson, definitions = split(chapter.source_text())
    return _problems(f"notebooks/{chapter.name}.py", _prose(lesson), evaluator(definitions))


def unrecorded(course: Course) -> list[str]:
    """The numbers marked `later` that no recording has yet."""
    texts = [(f"notebooks/{chapter.name}.py", _prose(chapter.source_text())) for chapter in _with_source(course)]
    return [_fault(name, text, hole, "still to be recorded")
            for name, text in (*texts, *_pages(course)) for hole in _HOLE.finditer(text) if _kind(hole) == "later"]


def _with_source(course: Course) -> list[Chapter]:
    return [chapter for chapter in course.chapters if chapter.source.is_file()]


def _prose(lesson: str) -> str:
    """The markdown cells of a lesson's source, each on its own lines, and nothing else."""
    parts, end = [], 0
    for cell in _CELL.finditer(lesson):
        parts += ["\n" * lesson.count("\n", end, cell.start(1)), re.sub(r"^# ?", "", cell[1], flags=re.MULTILINE)]
        end = cell.end()
    return "".join(parts)


def _pages(course: Course) -> Iterator[tuple[str, str]]:
    """(name, prose with marks as in a lesson) of the pages that there are, and of the summaries."""
    yield from ((f"course.toml, chapter {chapter.number}", chapter.summary) for chapter in course.chapters)
    for name in PAGES:
        path: Path = course.root / name
        if path.is_file():
            text = re.sub(r"<!-- (\w+): made by.*?<!-- end of \1 -->", lambda part: "\n" * part[0].count("\n"),
                          read_text(path), flags=re.DOTALL)
            yield name, _COMMENT.sub(r"{{ \1 }}", _REFRESHED.sub(r"{{ \3 }}", text))


def _problems(name: str, text: str, value: Callable) -> list[str]:
    """The marks of a text that are wrong, and the numbers without one."""
    found = []
    for hole in _HOLE.finditer(text):
        try:
            if problem := _wrong(hole, value):
                found.append(_fault(f"{name}, line {_line(text, hole.start())}", text, hole, problem))
        except _Failed as error:
            found.append(_fault(f"{name}, line {_line(text, hole.start())}", text, hole, error))
    found += [_fault(f"{name}, line {_line(text, brace.start())}", text, brace, "a mark stands on one line: {{ swap }}")
              for brace in re.finditer(r"\{\{ ", _HOLE.sub(lambda hole: " " * len(hole[0]), text))]
    blank = _UNLINTED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    blank = _HOLE.sub(lambda hole: ("_" if _kind(hole) == "value" else "{") * len(hole[0]), blank).replace("\n", " ")
    return found + [
        _fault(f"{name}, line {_line(text, match.start())}", text, match,
               "a number was typed; take it from a recording, or say what it is, as in 1.98 GHz{{ hardware }}")
        for match in _TYPED.finditer(blank) if not blank.startswith("{", match.end())]


def _wrong(hole: re.Match, value: Callable) -> str | None:
    """What is wrong with a mark; raises _Failed if its expression cannot be worked out."""
    kind = _kind(hole)
    if kind == "value":
        _shown(hole[1], value)
    elif kind == "if" and not value(hole[1].removeprefix("if ")):
        return "this is no longer so"
    elif kind == "later":
        try:
            return f"it is recorded now: {_shown(hole[1].removeprefix('later '), value)}"
        except _Failed:
            return None
    return None
