"""What a teacher should know of a class's submissions: at most one line a kind and student, identity first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# In the order in which a teacher reads them: whose a file is, then what was not read or not graded, then what was
# chosen.
KINDS = ("another student", "same name", "root", "layout", "roster", "unreadable", "link", "archive", "too large",
         "not graded", "several answers")


@dataclass(frozen=True)
class Note:
    """kind: one of KINDS. text: about one file, or one answer. student: as shown; "" for the archive as a whole."""

    kind: str
    text: str
    student: str = ""


def lines(notes: Iterable[Note]) -> list[str]:
    """One line for each kind and student: the first note, and how many more there are."""
    groups: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        groups.setdefault((note.kind, note.student), []).append(note.text)
    result = []
    for (_, student), texts in sorted(groups.items(), key=lambda group: KINDS.index(group[0][0])):
        prefix = f"{student}: " if student else ""
        more = f" (and {len(texts) - 1:,} more like this)" if len(texts) > 1 else ""
        result.append(f"{prefix}{texts[0]}{more}")
    return result
