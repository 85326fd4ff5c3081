"""Sentences to measure a sentence encoder with: the prose of the course's lessons.

    texts = sentences(2000)     # the same ones wherever the lessons are the same; digest(texts) names them
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from labkit._common.errors import UserError
from labkit._common.files import read_text
from labkit._common.markdown import plain
from labkit._common.paths import find_root

FEWEST, MOST = 4, 60  # words of a sentence
# A sentence ends with one of these marks, and a capital, a quotation or a bracket begins the next one.
END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][)\"”]))\s+(?=[A-Z\"“(])")
# A heading, a line of a list or below it, of a table, a formula or a fence; the date of a lesson.
OTHER = re.compile(r"# (#|- |  |\d+\. |\||\$\$|```|\*Lab notebook,)")


def sentences(count: int, root: Path | None = None) -> list[str]:
    """`count` different sentences of the lessons under `root`, in their order, spread over all of them.

    Raises UserError where there are fewer.
    """
    folder = (root or find_root()) / "notebooks"
    found = list(dict.fromkeys(sentence for path in sorted(folder.glob("[0-9][0-9]_*.py"))
                               for sentence in of_lesson(read_text(path))))
    if len(found) < count:
        raise UserError(f"the lessons in {folder} have {len(found):,} sentences; {count:,} are needed")
    return [found[i * len(found) // count] for i in range(count)]


def of_lesson(source: str) -> list[str]:
    """The sentences in the Markdown cells of a lesson, without headings, lists, tables, formulas and code."""
    found: list[str] = []
    for paragraph in paragraphs(source):
        for sentence in END.split(plain(paragraph)):
            words = sentence.split()
            if FEWEST <= len(words) <= MOST and re.search(r"[.!?][)\"”]?$", sentence.rstrip()) and "$" not in sentence:
                found.append(" ".join(words))
    return found


def paragraphs(source: str) -> list[str]:
    """The paragraphs of running text in a lesson's Markdown cells."""
    found, lines = [], []
    in_prose = in_fence = False
    for line in [*source.splitlines(), "# %%"]:
        text = line[1:].strip()
        is_cell = line.startswith("# %%")
        in_fence = not is_cell and in_fence ^ text.startswith("```")
        is_text = in_prose and line.startswith("# ") and not is_cell and not in_fence and not OTHER.match(line)
        if is_text and text:
            lines.append(text)
        elif lines:
            found.append(" ".join(lines))
            lines = []
        if is_cell:
            in_prose = "[markdown]" in line
    return found


def digest(texts: Sequence[str]) -> str:
    """A name for these texts: the same for the same ones."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
