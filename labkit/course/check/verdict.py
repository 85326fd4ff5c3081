"""What `check` says: the verdict, and how wrong numbers and errors become words.

A verdict shows itself in a notebook (HTML), in a terminal (rich) and to tools (JSON, with the mimetype that
labkit._common.tables names).
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import sys
from dataclasses import asdict, dataclass

import numpy as np

from labkit import device
from labkit._common.errors import UserError
from labkit._common.tables import MIMETYPE
from labkit.course import registry
from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.draw import threads_of
from labkit.course.check.run import OBSERVED_THREADS
from labkit.course.check.timing import Timing
from labkit.course.check.words import in_the_singular
from labkit.course.exercises import Exercise


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
    where: str = ""  # "on the CPU device", "on NVIDIA H200"
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
        return asdict(self) | {"kind": "check", "verdict": self.kind, "details": list(self.details),
                               "seconds": round(self.seconds, 3), "compiling": round(self.compiling, 3)}

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
        parts = [f"Checked {self.where}, in {self.seconds - self.compiling:.1f} s"] if self.where else []
        if parts and self.compiling >= 0.5:
            parts[0] += f" and {self.compiling:.1f} s for compiling, which the next check will skip"
        if self.seed is not None and not self.passed:
            parts.append(f"to repeat these inputs: seed={self.seed}")
        if not self.passed and self.kind != "unchanged":
            parts.append(f'for a hint: hint("{self.exercise}")' if notebook else
                         f"for a hint: labkit hint {self.exercise}")
        if self.player:
            parts.append(f"to step through its threads: {self.player}")
        elif self.can_play:
            parts.append(f"to step through its threads: labkit check {self.exercise} --play")
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


PLAYABLE = ("wrong_result", "out_of_bounds", "race", "barrier", "uninitialized", "input_changed", "demand")


def can_play(exercise: Exercise, diagnosis: Diagnosis) -> bool:
    """Whether the threads of a kernel can be watched in the case in which it failed."""
    case = diagnosis.case
    if exercise.kind != "kernel" or case is None or diagnosis.kind not in PLAYABLE:
        return False
    return case.size in (exercise.observe_sizes or ()) or threads_of(exercise, case) <= OBSERVED_THREADS


def verdict_of(exercise: Exercise, diagnosis: Diagnosis, seed: int, timing: Timing, player: str, seconds: float,
               compiling: float) -> Verdict:
    """The diagnosis as a Verdict. seconds, compiling: of the whole check."""
    case, passed, is_drawn = diagnosis.case, diagnosis.kind == "passed", exercise.kind != "predict"
    size = {k: int(v) if isinstance(v, np.integer) else v for k, v in case.size.items()} if case else None
    details = (timing.sentence, *diagnosis.details) if timing.sentence else diagnosis.details
    return Verdict(exercise=exercise.name, title=_title(exercise.name), passed=passed, kind=diagnosis.kind,
                   headline=diagnosis.headline, details=details, table=diagnosis.table, mistake=diagnosis.mistake,
                   mistake_is_exact=diagnosis.mistake_is_exact, where=_where() if is_drawn else "", size=size,
                   seed=seed if is_drawn and (passed or case) else None, seconds=seconds, compiling=compiling,
                   can_play=can_play(exercise, diagnosis), player=player, time_ms=timing.ms, ratio=timing.ratio)


def _where() -> str:
    return f"on {device.name()}" if device.on_gpu() else "on the CPU device"


def _title(name: str) -> str:
    with contextlib.suppress(UserError):
        return registry.load().exercise(name).title
    return name


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
