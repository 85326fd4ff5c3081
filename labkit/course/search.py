"""`labkit search`: the passages of the course nearest in meaning to a question, or, without an encoder, in words.

data/search.npz holds an embedding of each passage, float16, under the passage's digest; `labkit build` makes it where
the weights of MiniLM are. A passage that has changed since has another digest: it is found by its words until the index
is made anew, and all others by meaning. So a lesson can be changed without the weights.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit._common.errors import UserError
from labkit._common.files import whole_file
from labkit.course.passages import Passage, passages
from labkit.course.registry import Course, shown
from labkit.models import weights

NAME = "search.npz"
MODEL = weights.MINILM


@dataclass(frozen=True)
class Hit:
    passage: Passage
    score: float  # a cosine, or BM25's


# --- By meaning ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """rows: a passage's digest -> its row of embeddings (n, width), float16."""

    rows: dict[str, int]
    embeddings: np.ndarray

    @classmethod
    def read(cls, path: Path) -> Index:
        """Empty where there is none, or one of another model or another format."""
        try:
            with np.load(path, allow_pickle=False) as file:
                digests, embeddings, model = (file[name] for name in ("digests", "embeddings", "model"))
                if (str(model) == identity() and digests.ndim == 1 and digests.dtype.kind == "U"
                        and embeddings.dtype == np.float16 and embeddings.shape[:-1] == digests.shape):
                    return cls({str(digest): row for row, digest in enumerate(digests)}, embeddings)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            pass
        return cls({}, np.zeros((0, 0), np.float16))

    def write(self, path: Path) -> None:
        with whole_file(path) as file:
            np.savez(file, digests=np.array(list(self.rows)), embeddings=self.embeddings, model=np.array(identity()))

    def missing(self, corpus: Sequence[Passage]) -> list[Passage]:
        return [passage for passage in corpus if passage.digest not in self.rows]


def identity() -> str:
    """Of the model whose embeddings can be compared with one another."""
    return f"{MODEL.repository} {MODEL.files['model.safetensors'].sha256[:16]}"


def index_path(course: Course) -> Path:
    return course.root / "data" / NAME


def read_by_encoder(passage: Passage) -> str:
    return f"{passage.title}. {passage.text}"


def build(course: Course, encode: Callable[[list[str]], np.ndarray]) -> int | None:
    """Bring data/search.npz up to date. Only changed passages are encoded. Return their number, or None if the
    index was fresh."""
    path = index_path(course)
    index, corpus = Index.read(path), passages(course)
    unique = list({passage.digest: passage for passage in corpus}.values())
    missing = index.missing(unique)
    if not missing and len(unique) == len(index.rows):
        return None
    new_embeddings = encode([read_by_encoder(passage) for passage in missing]).astype(np.float16) if missing else ()
    new_rows = dict(zip((passage.digest for passage in missing), new_embeddings, strict=True))
    embeddings = np.stack([new_rows[passage.digest] if passage.digest in new_rows
                           else index.embeddings[index.rows[passage.digest]] for passage in unique])
    Index({passage.digest: row for row, passage in enumerate(unique)}, embeddings).write(path)
    return len(missing)


def stale(course: Course) -> str:
    """What of the index is no longer as the course is, in a sentence; "" where it is fresh, or there is none."""
    path = index_path(course)
    if not path.is_file():
        return ""
    corpus = passages(course)
    return _changed(course, len(Index.read(path).missing(corpus)), len(corpus))


def _changed(course: Course, count: int, of: int) -> str:
    return (f"{shown(course, index_path(course))}, the index of labkit search, is stale: {count:,} of {of:,} passages "
            f"have changed; run labkit build --search") if count else ""


def by_meaning(corpus: Sequence[Passage], index: Index, query: np.ndarray) -> list[Hit]:
    """All passages that the index knows, the nearest first. query: (width,), of length 1."""
    known = [passage for passage in corpus if passage.digest in index.rows]
    rows = index.embeddings[[index.rows[passage.digest] for passage in known]].astype(np.float32)
    return sections_of(Hit(passage, float(score)) for passage, score in zip(known, rows @ query, strict=True))


# --- By words --------------------------------------------------------------------------------------------------------
# Okapi BM25: a word counts the more the fewer passages have it, less each time it comes again, and less in long ones.
# Titles count three times. A word that no passage has stands for all that begin with it. The site's search.js does the
# same.

SATURATION, LENGTH, TITLE = 1.2, 0.75, 3


def words(text: str) -> list[str]:
    """Letters and digits, in small letters; the s of a plural is dropped, and snake_case is several words."""
    tokens = re.findall(r"[^\W_]+", text.lower())
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in tokens]


# What a question has and an answer need not have. It counts where a query has no other word.
ASKING = frozenset(words("a an and are at be by can do does for from has have how i in is it me my not of on or so that"
                         " the their there this to was what when where which who why will with you your"))


def by_words(corpus: Sequence[Passage], query: str) -> list[Hit]:
    """The passages that share a word with the query, the best first, by BM25."""
    counts = [Counter(words(passage.title) * TITLE + words(passage.text)) for passage in corpus]
    lengths = [sum(count.values()) for count in counts]
    mean = sum(lengths) / max(1, len(corpus))
    scores = [0.0] * len(corpus)
    query_words = set(words(query))
    for word in query_words - ASKING or query_words:
        frequencies = [count[word] for count in counts]
        if not any(frequencies) and len(word) > 2:
            frequencies = [sum(times for other, times in count.items() if other.startswith(word)) for count in counts]
        document_count = sum(map(bool, frequencies))
        rarity = math.log(1 + (len(corpus) - document_count + 0.5) / (document_count + 0.5))
        for index, times in enumerate(frequencies):
            scores[index] += rarity * times * (SATURATION + 1) / (
                times + SATURATION * (1 - LENGTH + LENGTH * lengths[index] / mean))
    return sections_of(Hit(passage, score) for passage, score in zip(corpus, scores, strict=True) if score)


def sections_of(hits) -> list[Hit]:
    """The best first, and of each section or docstring only its best passage."""
    best: dict[tuple, Hit] = {}
    for hit in sorted(hits, key=lambda hit: -hit.score):
        best.setdefault((hit.passage.file, hit.passage.line), hit)
    return list(best.values())


# --- Both ------------------------------------------------------------------------------------------------------------

FOUND_BY_WORDS = 3  # a changed passage that is among the first so many by words comes after the first by meaning


def search(course: Course, query: str, encode: Callable[[str], np.ndarray] | None) -> tuple[list[Hit], str]:
    """All hits, the best first, and a remark: why they were found by words, or what the index does not know yet.

    encode: text -> embedding of length 1; None where there is no encoder.
    """
    if not words(query):
        raise UserError("QUERY has no word to search for")
    corpus = passages(course)
    if encode is None:
        return by_words(corpus, query), (f"Found by words, not by meaning: `labkit weights {MODEL.name}` fetches the "
                                         f"encoder ({MODEL.nbytes / 1e6:.0f} MB)")
    index = Index.read(index_path(course))
    missing = index.missing(corpus)
    if len(missing) == len(corpus):
        return by_words(corpus, query), (f"Found by words, not by meaning: {shown(course, index_path(course))} is "
                                         f"missing or is another model's; labkit build --search makes it")
    hits = by_meaning(corpus, index, encode(query))
    if not missing:
        return hits, ""
    changed = [hit for hit in by_words(corpus, query)[:FOUND_BY_WORDS] if hit.passage.digest not in index.rows]
    sections = {(hit.passage.file, hit.passage.line) for hit in changed}
    others = [hit for hit in hits if (hit.passage.file, hit.passage.line) not in sections]
    return [*others[:1], *changed, *others[1:]], _changed(course, len(missing), len(corpus))
