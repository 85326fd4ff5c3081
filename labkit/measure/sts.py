"""The STS benchmark: pairs of sentences that people have scored, and how well the cosines of embeddings rank them.

    pairs = read(Path("sts-test.csv"))          # .scores, .sentences; .problems names the lines that are left out
    result = judged(pairs, encoder.encode)      # .spearman

Files are separated by tabs or commas: `score, sentence1, sentence2`; the official seven columns (genre, file, year, id,
score, sentence1, sentence2); or any columns under a header that names these three.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit._common.errors import UserError, short
from labkit._common.files import read_text
from labkit.models.minilm_reference import cosines

MOST_LINES = 10  # of a sentence in quotes
OFFICIAL = (4, 5, 6)  # score and both sentences among the columns of sts-train.csv, sts-dev.csv and sts-test.csv
NAMES = ({"score", "label", "similarity", "similarity_score", "gold", "gold_score", "relatedness_score"},
         {"sentence1", "sentence_1", "sentence_a", "sent_1", "s1", "text1"},
         {"sentence2", "sentence_2", "sentence_b", "sent_2", "s2", "text2"})


@dataclass(frozen=True)
class Pairs:
    """problems: the lines that were left out, each as a sentence that begins with its number."""

    scores: np.ndarray
    sentences: tuple[tuple[str, str], ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """spearman: None where all scores, or all cosines, are equal."""

    pairs: Pairs
    cosines: np.ndarray
    spearman: float | None


def read(path: Path) -> Pairs:
    """The pairs in a file. Raises UserError that names it where it cannot be read, where its columns are not known, or
    where fewer than two lines can be used."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise UserError(f"{path} is not there") from None
    rows = _rows(text.removeprefix("\ufeff"), path)
    if not rows:
        raise UserError(f"{path} is empty; it must hold lines of a score and two sentences")
    columns = _header(rows[0][1])
    if columns is not None:
        rows = rows[1:]
    scores, sentences, problems = [], [], []
    for line_num, cells in rows:
        try:
            score, *two = _cells(cells, columns)
            scores.append(_score(score))
            sentences.append(tuple(two))
        except ValueError as error:
            problems.append(f"line {line_num:,}: {error}")
    if len(scores) < 2:
        raise UserError(f"{path} has {len(scores)} lines that can be used; two at least are needed, each with a "
                        f"score and two sentences, separated by tabs or commas"
                        + (f". {'; '.join(problems[:3])}" if problems else ""))
    return Pairs(np.array(scores), tuple(sentences), tuple(problems))


def _rows(text: str, path: Path) -> list[tuple[int, list[str]]]:
    """(number of its first line, cells) of every row that is not blank. Where there are tabs, quotes are characters
    like others, as in the official files."""
    lines = text.split("\n")
    if "\t" in next((line for line in lines if line.strip()), ""):
        return [(line_num, line.rstrip("\r").split("\t")) for line_num, line in enumerate(lines, 1) if line.strip()]
    reader, rows, previous_line = csv.reader(io.StringIO(text, newline="")), [], 0
    try:
        for cells in reader:
            if reader.line_num - previous_line > MOST_LINES:
                raise csv.Error(f"a quote is not closed within {MOST_LINES} lines")
            if any(cell.strip() for cell in cells):
                rows.append((previous_line + 1, cells))
            previous_line = reader.line_num
    except csv.Error as error:
        raise UserError(f"{path}: the row that begins in line {previous_line + 1:,} is no CSV: {error}") from None
    return rows


def _header(cells: Sequence[str]) -> tuple[int, int, int] | None:
    """Return the columns of score and sentences, if the first row names them."""
    names = [cell.strip().lower().replace(" ", "_") for cell in cells]
    columns = tuple(next((i for i, name in enumerate(names) if name in known), None) for known in NAMES)
    return None if None in columns else columns


def _cells(cells: Sequence[str], columns: tuple[int, int, int] | None) -> list[str]:
    """Return the score and both sentences of a row. Raise ValueError that names the missing part."""
    if columns is None:
        columns = (0, 1, 2) if len(cells) == 3 else OFFICIAL
        if len(cells) == 3 and not _is_number(cells[0]) and _is_number(cells[2]):
            columns = (2, 0, 1)
    if len(cells) <= max(columns):
        expected = "3 or 7" if columns == OFFICIAL else f"{max(columns) + 1}"
        raise ValueError(f"it has {len(cells)} column{'s' if len(cells) != 1 else ''}, not {expected}")
    values = [cells[i].strip() for i in columns]
    if not (values[1] and values[2]):
        raise ValueError("a sentence is empty")
    return values


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _score(text: str) -> float:
    if not _is_number(text):
        raise ValueError(f"the score is {short(text)}, which is no number")
    return float(text)


def judged(pairs: Pairs, encode: Callable[[list[str]], np.ndarray]) -> Judged:
    """encode: texts -> (n, hidden). A sentence that occurs more than once is embedded once."""
    texts = list(dict.fromkeys(text for both in pairs.sentences for text in both))
    row_of = {text: row for row, text in enumerate(texts)}
    embeddings = encode(texts)
    one, other = (embeddings[[row_of[both[side]] for both in pairs.sentences]] for side in (0, 1))
    similarity = cosines(one, other)
    return Judged(pairs, similarity, spearman(similarity, pairs.scores))


def spearman(one: np.ndarray, other: np.ndarray) -> float | None:
    """Spearman's correlation: Pearson's of the ranks, where equal values share the mean of theirs. None where it is not
    defined, because all values of one side are equal."""
    one, other = (ranks(np.asarray(values)) for values in (one, other))
    one, other = one - one.mean(), other - other.mean()
    lengths = math.sqrt((one @ one) * (other @ other))
    return float(one @ other / lengths) if lengths > 0 else None


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, from 1; equal values share the mean of the ranks that they take."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
