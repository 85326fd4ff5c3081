"""What a diagnosis holds."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.course.check.draw import Case


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Why an answer is wrong, in words; or that it is right, kind "passed"."""

    kind: str
    headline: str = ""
    details: tuple[str, ...] = ()
    table: dict | None = None
    summary: str = ""  # what the wrong elements have in common
    mistake: str = ""  # the known wrong answer that does the same
    mistake_is_exact: bool = False  # in everything that was compared
    case: Case | None = None  # the one that failed
