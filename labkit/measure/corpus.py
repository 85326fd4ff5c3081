"""Sentences to measure a sentence encoder with: data/sentences.txt, 2,000 of the course's lessons, one a line.

    texts = sentences(2000)     # digest(texts) names them; recordings say it

They are those of the lessons on 24 November 2026, and stay as they are when lessons change: what was measured with them
can be measured again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from labkit._common.errors import UserError
from labkit._common.files import read_text
from labkit._common.paths import find_root


def sentences(count: int) -> list[str]:
    """Return `count` different sentences, in the order of the file, spread over all of it.

    Raises UserError where there are fewer.
    """
    path = find_root() / "data" / "sentences.txt"
    lines = read_text(path).splitlines()
    if len(lines) < count:
        raise UserError(f"{path} has {len(lines):,} sentences; {count:,} are needed")
    return [lines[i * len(lines) // count] for i in range(count)]


def digest(texts: Sequence[str]) -> str:
    """Return a digest of these texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
