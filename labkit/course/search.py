"""`labkit search`: the passages of the course nearest in meaning to a question, or, without an encoder, in words.

data/search.npz holds an embedding of each passage, float16, under the passage's digest; `labkit build` makes it where
the weights of MiniLM are. A passage that has changed since has another digest: it is found by its words until the index
is made anew, and all others by meaning. So a lesson can be changed without the weights.
"""

from __future__ import annotations

import functools
import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit._common.errors import UserError
from labkit._common.files import whole_file
from labkit.course.glossary import Term
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
        return [passage for passage in corpus if passage.digest not in self.rows and is_indexed(passage)]


def identity() -> str:
    """Of the model whose embeddings can be compared with one another."""
    return f"{MODEL.repository} {MODEL.files['model.safetensors'].sha256[:16]}"


def is_indexed(passage: Passage) -> bool:
    """Exercises, and what stands beside the matter of a lesson, are found by their words alone: a smaller index."""
    return passage.kind == "kernel" or (passage.kind == "lesson" and SIDE.get(passage.heading, 1.0) > SIDE["Try it"])


def index_path(course: Course) -> Path:
    return course.root / "data" / NAME


def read_by_encoder(passage: Passage) -> str:
    return f"{passage.title}. {passage.text}"


def build(course: Course, encode: Callable[[list[str]], np.ndarray]) -> int | None:
    """Bring data/search.npz up to date. Only changed passages are encoded. Return their number, or None if the
    index was fresh."""
    path = index_path(course)
    index, corpus = Index.read(path), passages(course)
    unique = list({passage.digest: passage for passage in corpus if is_indexed(passage)}.values())
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
    corpus = [passage for passage in passages(course) if is_indexed(passage)]
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
# A section's heading counts more than its text, and so do the words of the glossary that it explains. Words that stand
# side by side in the question count once more where they do in a passage. A passage with only some of the words is
# worth less, and so is one of a kind that seldom answers a question, unless the question is its title. A word that no
# passage has stands for all that begin with it. The site's search.js does the same.

SATURATION, LENGTH = 1.2, 0.75
NAMED, TERM, PAIR = 1.0, 4, 0.25
EXACT = 2.0  # the weight of a passage whose title is asked for: of a kernel by its name
SHORTEST = 40  # words: what is shorter is no better for it
KINDS = {"lesson": 1.0, "exercise": 0.5, "kernel": 0.4}
SIDE = {"": 0.6, "Resources": 0.2, "What was implemented": 0.3, "How this notebook is kept": 0.3, "Try it": 0.5,
        "What I learned": 0.6, "Prediction": 0.8}  # sections of lessons, by heading; "" is the part above the first


def words(text: str) -> list[str]:
    """Letters and digits, in small letters and without endings; snake_case is several words."""
    return [stem(word) for word in re.findall(r"[^\W_]+", text.lower())]


def stem(word: str) -> str:
    """A word without the s of a plural, -ing, -ed and a last e: tile, tiles, tiled and tiling are one."""
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            word = word[: -len(ending)]
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


# What a question has and an answer need not have. It counts where a query has no other word.
ASKING = frozenset(words("""a about an and are as at be by can could did do does for from get go good had happen happens
has have how i if in into is it its like long many me much must my need not of on or should so than that the their them
then there these they this to use used using was way were what when where which while who why will with work works would
you your"""))


@dataclass(frozen=True)
class Counted:
    """A passage's words: how often each counts, how many there are, which stand side by side, and those of each of its
    names, which are its heading and the terms that it explains."""

    counts: Counter[str]
    length: int
    pairs: frozenset[tuple[str, str]]
    names: tuple[frozenset[str], ...]
    weight: float


@functools.lru_cache(4096)
def counted(passage: Passage) -> Counted:
    lesson = passage.title.removesuffix(f": {passage.heading}") if passage.heading else ""
    heading = passage.heading or passage.title
    title, text = words(heading), words(passage.text)
    counts = Counter(words(lesson) + title + text)
    for word in {word for term in passage.terms for word in words(term)}:
        counts[word] += TERM
    pairs = frozenset((*zip(title, title[1:], strict=False), *zip(text, text[1:], strict=False)))
    names = (frozenset(words(name)) - ASKING for name in (heading, *passage.terms))
    return Counted(counts, max(SHORTEST, len(text)), pairs, tuple(filter(None, names)), weight(passage))


def weight(passage: Passage) -> float:
    return KINDS[passage.kind] * (SIDE.get(passage.heading, 1.0) if passage.kind == "lesson" else 1.0)


def by_words(corpus: Sequence[Passage], query: str) -> list[Hit]:
    """The passages that share a word with the query, the best first, by BM25."""
    documents = [counted(passage) for passage in corpus]
    mean = sum(document.length for document in documents) / max(1, len(corpus))
    in_order = words(query)
    asked = set(in_order) - ASKING or set(in_order)
    named = [{word: len(asked & name) / len(name) for name in sorted(document.names, key=lambda name: len(asked & name)
              / len(name)) for word in name} for document in documents]  # the share of the best name with the word
    scores, matched = [0.0] * len(corpus), [0] * len(corpus)
    for word in asked:
        frequencies = [document.counts[word] for document in documents]
        if not any(frequencies) and len(word) > 2:
            frequencies = [sum(times for other, times in document.counts.items() if other.startswith(word))
                           for document in documents]
        rarity = _rarity(sum(map(bool, frequencies)), len(corpus))
        for index, (times, document) in enumerate(zip(frequencies, documents, strict=True)):
            scores[index] += rarity * times * (SATURATION + 1) / (
                times + SATURATION * (1 - LENGTH + LENGTH * document.length / mean))
            scores[index] += rarity * NAMED * named[index].get(word, 0)
            matched[index] += times > 0
    for pair in set(zip(in_order, in_order[1:], strict=False)):
        if not asked.isdisjoint(pair):
            having = [index for index, document in enumerate(documents) if pair in document.pairs]
            for index in having:
                scores[index] += PAIR * _rarity(len(having), len(corpus))
    title = query.strip().lower()
    return sections_of(Hit(passage, score * (document.weight if passage.title.lower() != title else EXACT)
                           * (1 + count / len(asked)) / 2)
                       for passage, score, document, count in zip(corpus, scores, documents, matched, strict=True)
                       if score)


def _rarity(document_count: int, of: int) -> float:
    return math.log(1 + (of - document_count + 0.5) / (document_count + 0.5))


def sections_of(hits) -> list[Hit]:
    """The best first, and of each section or docstring only its best passage."""
    best: dict[tuple, Hit] = {}
    for hit in sorted(hits, key=lambda hit: -hit.score):
        best.setdefault((hit.passage.file, hit.passage.line), hit)
    return list(best.values())


def definitions(terms: Iterable[Term], query: str) -> list[Term]:
    """The terms of the glossary that a query asks for: "what is a bank conflict", not "why is my kernel slow". While it
    is typed, those that begin so, too."""
    asked, small = set(words(query)), " ".join(query.lower().split())
    names = sorted(((set(words(name)), term) for term in terms for name in term.words), key=lambda pair: -len(pair[0]))
    found, covered = {}, set()
    for name, term in names:
        if name <= asked and not name <= covered:
            found[term.name] = term
            covered |= name
    if not asked - ASKING <= covered:
        found = {}
    found |= {term.name: term for term in terms if len(small) > 2 and term.name.lower().startswith(small)}
    return list(found.values())


# --- Both ------------------------------------------------------------------------------------------------------------

SMOOTHING = 3  # the larger, the less the first places count
WORDS = 3  # what a place by words is worth, of one by meaning


def search(course: Course, query: str, encode: Callable[[str], np.ndarray] | None) -> tuple[list[Hit], str]:
    """All hits, the best first, and a remark: why they were found by words, or what the index does not know yet.

    encode: text -> embedding of length 1; None where there is no encoder. With one, a section's place is made of its
    place by meaning and of that by words; one that has changed since the index was made has only the second.
    """
    if not words(query):
        raise UserError("QUERY has no word to search for")
    corpus = passages(course)
    if encode is None:
        return by_words(corpus, query), (f"Found by words, not by meaning: `labkit weights {MODEL.name}` fetches the "
                                         f"encoder ({MODEL.nbytes / 1e6:.0f} MB)")
    index = Index.read(index_path(course))
    missing, count = index.missing(corpus), sum(map(is_indexed, corpus))
    if len(missing) == count:
        return by_words(corpus, query), (f"Found by words, not by meaning: {shown(course, index_path(course))} is "
                                         f"missing or is another model's; labkit build --search makes it")
    hits = by_both(by_meaning(corpus, index, encode(query)), by_words(corpus, query))
    return hits, _changed(course, len(missing), count)


def by_both(near: list[Hit], sharing: list[Hit]) -> list[Hit]:
    """Reciprocal rank fusion: a section counts 1 / (SMOOTHING + place) for each list, and more for its words. Its score
    stays that by meaning, or 0 where the index does not know it."""
    found: dict[tuple, Hit] = {}
    places: Counter[tuple] = Counter()
    near = sorted(near, key=lambda hit: -hit.score * weight(hit.passage))
    for hits, share in ((near, 1), (sharing, WORDS)):
        for place, hit in enumerate(hits, 1):
            section = (hit.passage.file, hit.passage.line)
            found.setdefault(section, hit if hits is near else Hit(hit.passage, 0.0))
            places[section] += share / (SMOOTHING + place)
    return [found[section] for section, _ in places.most_common()]
