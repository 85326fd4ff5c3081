"""What `check` says: the verdict, and how wrong numbers and errors become words.

A verdict shows itself in a notebook (HTML), in a terminal (rich) and to tools (JSON, with the mimetype that
labkit._common.tables names).
"""

from __future__ import annotations

import ast
import html
import inspect
import io
import linecache
import os
import re
import sys
import textwrap
from dataclasses import dataclass

import numpy as np

from labkit._common.tables import MIMETYPE


@dataclass(frozen=True, repr=False)
class Verdict:
    """The outcome of one check. `passed` decides; the rest says why and where."""

    exercise: str
    title: str
    passed: bool
    kind: str  # "passed", "wrong_result", "out_of_bounds", "race", "barrier", "never_ends", "unchanged", ...
    headline: str
    details: tuple[str, ...] = ()  # paragraphs; the first says most
    table: dict | None = None  # {"columns": [...], "rows": [[...]]}: expected against got
    mistake: str = ""  # the known mistake that this answer makes, or that it resembles
    mistake_is_exact: bool = False  # it does the same in everything that was compared; else it only looks like it
    where: str = ""  # "on the CPU device", "measured on NVIDIA H200"
    size: dict | None = None  # of the smallest case that failed
    seed: int | None = None  # repeats the check: check(name, kernel, seed=...)
    seconds: float = 0.0
    compiling: float = 0.0  # seconds of these that went into compiling kernels, which are kept
    can_play: bool = False  # the kernel's threads can be watched in the case that failed
    player: str = ""  # the page that shows them step by step, where one was asked for
    time_ms: float | None = None  # on a GPU, where the exercise is timed
    ratio: float | None = None  # time over the baseline's

    def __post_init__(self):
        object.__setattr__(self, "headline", in_the_singular(self.headline))
        object.__setattr__(self, "details", tuple(map(in_the_singular, self.details)))

    def result(self) -> dict:
        """For tools, as JSON."""
        return {"kind": "check", "exercise": self.exercise, "title": self.title, "passed": self.passed,
                "verdict": self.kind, "headline": self.headline, "details": list(self.details), "table": self.table,
                "mistake": self.mistake, "mistake_is_exact": self.mistake_is_exact, "where": self.where,
                "size": self.size, "seed": self.seed, "seconds": round(self.seconds, 3),
                "compiling": round(self.compiling, 3), "can_play": self.can_play,
                "player": self.player,
                "time_ms": self.time_ms, "ratio": self.ratio}

    @classmethod
    def from_result(cls, result: dict) -> Verdict:
        """The verdict whose result() this is."""
        values = {**result, "kind": result["verdict"], "details": tuple(result["details"])}
        del values["verdict"]
        return cls(**values)

    @property
    def footer(self) -> str:
        return self._footer(can_be_typed_to())

    def _footer(self, notebook: bool) -> str:
        parts = [f"Reached {self.where}, in {self.seconds - self.compiling:.1f} s"] if self.where else []
        if parts and self.compiling >= 0.5:
            parts[0] += f" and {self.compiling:.1f} s for compiling, which the next check will not need"
        if self.seed is not None and not self.passed:
            parts.append(f"the same inputs again: seed={self.seed}")
        if not self.passed and self.kind != "unchanged":
            parts.append(f'a hint: hint("{self.exercise}")' if notebook else f"a hint: labkit hint {self.exercise}")
        if self.player:
            parts.append(f"its threads, step by step: {self.player}")
        elif self.can_play:
            parts.append(f"its threads, step by step: labkit check {self.exercise} --play")
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}." if text else ""

    @property
    def status(self) -> str:
        return "Passed" if self.passed else "Not yet"

    def __rich__(self):
        from rich.console import Group
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        head = Text.assemble((self.status, "bold green" if self.passed else "bold red"), f"  {self.title}")
        parts = [Text(self.headline, style="bold")] + [Text(paragraph) for paragraph in self.details]
        if self.table:
            table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
            for column in self.table["columns"]:
                table.add_column(column, justify="right" if column != "" else "left")
            for row in self.table["rows"]:
                table.add_row(*row)
            parts.append(Padding(table, (0, 0, 0, 2)))
        if self.mistake:
            parts.append(Text(mistake_sentence(self.mistake, self.mistake_is_exact), style="yellow"))
        if self.footer:
            parts.append(Text(self.footer, style="dim"))
        return Group(head, *(Padding(part, (0, 0, 0, 2)) for part in parts))

    def __str__(self) -> str:
        from rich.console import Console

        buffer = io.StringIO()
        console = Console(file=buffer, width=100, color_system=None, highlight=False, force_jupyter=False)
        console.print(self)
        return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().split("\n"))

    __repr__ = __str__

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": str(self), "text/html": self._html(), MIMETYPE: self.result()}

    def _ipython_display_(self):
        """Show the verdict as display() does, never as the cell's result: nbgrader takes that for points."""
        if not os.environ.get("NBGRADER_EXECUTION"):
            raise NotImplementedError  # IPython then takes the bundle
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)

    def _html(self) -> str:
        """Colours that can be read on a light page and on a dark one; the text takes the page's own."""
        colour = "#2e9e4f" if self.passed else "#d9534f"
        line = '<div style="margin:.35em 0{}">{}</div>'.format
        parts = [
            f'<div><strong style="color:{colour}">{"✓" if self.passed else "✗"} {self.status}</strong>&ensp;'
            f"{html.escape(self.title)}</div>",
            line(";font-weight:600", marked_up(self.headline)),
            *(line("", marked_up(paragraph)) for paragraph in self.details),
        ]
        if self.table:
            cell = '<{0} style="padding:.1em 1em .1em 0;text-align:right;font-family:monospace">{1}</{0}>'.format
            head = "".join(cell("th", html.escape(column)) for column in self.table["columns"])
            rows = "".join(
                "<tr>" + "".join(cell("td", html.escape(value)) for value in row) + "</tr>"
                for row in self.table["rows"]
            )
            parts.append(f'<table style="margin:.4em 0"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>')
        if self.mistake:
            parts.append(line(";border-left:3px solid #e0a030;padding-left:.6em", marked_up(
                mistake_sentence(self.mistake, self.mistake_is_exact))))
        if footer := self._footer(notebook=True):
            parts.append(line(";opacity:.7;font-size:90%", marked_up(footer)))
        return (
            f'<div class="labkit-verdict" style="border-left:4px solid {colour};padding:.3em 0 .3em .9em;'
            f'margin:.4em 0;max-width:62em">{"".join(parts)}</div>'
        )


class CheckFailed(AssertionError):
    """Raised by `check` where a failing verdict must fail the cell: under nbgrader and `labkit check`."""

    def __init__(self, verdict: Verdict):
        super().__init__(f"{verdict.exercise}: {verdict.headline}")
        self.verdict = verdict

    def _render_traceback_(self):  # IPython shows this; the verdict itself stands above
        return [f"CheckFailed: {self}"]


def mistake_sentence(mistake: str, exact: bool) -> str:
    return f"A known mistake does exactly this: {mistake}." if exact else f"This looks like a known mistake: {mistake}."


def in_ipython() -> bool:
    module = sys.modules.get("IPython")
    return bool(module and module.get_ipython())


def can_be_typed_to() -> bool:
    """A notebook or an interactive Python: it displays what check returns, and takes hint(...)."""
    return in_ipython() or hasattr(sys, "ps1")


def marked_up(text: str) -> str:
    """HTML of a sentence, with `code` in it."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False)).replace("\n", "<br>")


# --- Wrong numbers -------------------------------------------------------------------------------------------------


def show_value(value) -> str:
    if isinstance(value, (float, np.floating)) and np.isnan(value):
        return "NaN"
    if isinstance(value, np.unsignedinteger):  # the exercises that have these are about bits
        return f"0x{int(value):0{2 * value.itemsize}X}"
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def counted(things, noun: str) -> str:
    count = things if isinstance(things, int) else len(things)
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


NOUNS = {f"{noun}s": noun for noun in (
    "thread", "number", "element", "load", "store", "block", "argument", "row", "column", "lane", "warp", "key", "head",
    "token", "part", "weight", "array", "graph", "replay", "request", "sector", "step", "time", "input", "kernel",
    "chunk", "atomic", "barrier", "call", "parameter", "size", "conflict", "copy", "round", "counter", "output",
    "product", "length", "bin", "value", "turn", "shuffle", "read", "block", "line", "score", "page", "slot", "count",
    "bit", "word", "expert", "difference", "mistake", "event", "stream", "place", "tile", "sum", "result")} | {
    "launches": "launch", "passes": "pass", "bytes": "byte", "queries": "query", "copies": "copy", "axes": "axis",
    "indices": "index", "branches": "branch"}  # fmt: skip
VERBS = {"are": "is", "were": "was", "have": "has", "make": "makes", "move": "moves", "load": "loads", "take": "takes",
         "store": "stores", "do": "does", "idle": "idles", "compute": "computes", "need": "needs"}
_ONE_OF_MANY = re.compile(rf"(?<![\w.,:=\[(*/+-])(?<![*/+-] )1 ((?:\w+ly |different |wrong |more )?)"
                          rf"({'|'.join(NOUNS)})\b(?: (that ))?(?: ?\b({'|'.join(VERBS)})\b)?")


def in_the_singular(text: str) -> str:
    """The sentence with "1 thread makes" where it says "1 threads make": counts are put into sentences of many."""
    parts = text.split("`")  # code stays as it is
    return "`".join(part if k % 2 else _ONE_OF_MANY.sub(_singular, part) for k, part in enumerate(parts))


def _singular(match: re.Match) -> str:
    before, noun, that, verb = match.groups()
    return f"1 {before}{NOUNS[noun]}" + (" that " if that else " " * bool(verb)) + (VERBS[verb] if verb else "")


def show_index(index: tuple) -> str:
    return str(index[0]) if len(index) == 1 else f"[{', '.join(map(str, index))}]"


def table_of(expected: np.ndarray, got: np.ndarray, wrong: np.ndarray, unwritten: np.ndarray, around: int = 3) -> dict:
    """Expected against got, from a little before the first wrong element to a little after it, in memory order."""
    first = int(np.argmax(wrong.reshape(-1)))
    start, stop = max(0, first - around), min(wrong.size, first + 2 * around)
    rows = []
    for flat in range(start, stop):
        index = tuple(int(i) for i in np.unravel_index(flat, wrong.shape)) if wrong.ndim else ()
        value = "not written" if unwritten.reshape(-1)[flat] else show_value(got.reshape(-1)[flat])
        rows.append([show_index(index) if index else "value", show_value(expected.reshape(-1)[flat]), value,
                     "wrong" if wrong.reshape(-1)[flat] else ""])
    return {"columns": ["index", "expected", "got", ""], "rows": rows}


# --- Errors --------------------------------------------------------------------------------------------------------


def source_line(filename: str, line: int) -> str:
    return linecache.getline(filename, line).strip() if filename and line else ""


def bare_code(filename: str, line: int) -> str:
    """A line without its spaces: equal where two answers have the same line."""
    return "".join(source_line(filename, line).split("#")[0].split())


def quote_line(filename: str, line: int) -> str:
    code = source_line(filename, line)
    return f"Line {line}: `{code}`" if code else f"Line {line}."


def parsed(function):
    """The source of a function or kernel as a tree, and the line in its file at which it starts; (None, 0) if there is
    none to be read."""
    function = getattr(function, "py_func", function)
    try:
        lines, first_line = inspect.getsourcelines(function)
        return ast.parse(textwrap.dedent("".join(lines))), first_line
    except (OSError, TypeError, SyntaxError):
        return None, 0


def without_file(message: str) -> str:
    """The message without the file at its end: there is only one, the learner's."""
    return re.sub(r" \((this notebook|<[^()\n]*>|[^()\n]*\.py)(:\d+)?\)$", "", message.rstrip())


def split_line(message: str) -> tuple[str, int]:
    """("it says", 3) of "kernel, line 3: it says"; the line is 0 where none is named."""
    match = re.match(r"\w+, line (\d+): (.*)", message, re.DOTALL)
    return (match.group(2), int(match.group(1))) if match else (message, 0)


def coordinates(position: tuple) -> str:
    """(96, 0, 0) -> "96"; (3, 1, 0) -> "(3, 1)"."""
    if position[1] == position[2] == 0:
        return str(position[0])
    return str(tuple(position[:2])) if position[2] == 0 else str(tuple(position))
