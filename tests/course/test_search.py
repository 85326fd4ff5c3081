"""The search: the course as passages, words, and an index whose encoder here only counts letters."""

import re
import string
import tomllib
from pathlib import Path

import numpy as np
import pytest

from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.course import glossary, passages, prose, search
from labkit.course import registry as courses
from labkit.course.site.markdown import Markdown
from labkit.models import weights
from tests.course.site.pages import add_term

LESSON = """\
# %% [markdown]
# # 00 · First
#
# *Lab notebook, 20 November 2026*
#
# A kernel waits for *memory*, and for [copies](01_second.ipynb).
#
# ## Tiles & `blocks`
#
# One tile.
#
# ```python
# ## no heading
# ```

# %%
x = 1  # ## no heading either

# %% [markdown]
# Still about tiles: $a_i * b$ in `tile[32]`.
#
# ## Tiles & `blocks`
#
# | a | b |
# |---|--:|
# | 1 | 2 |
#
# ### Deeper

# %% [markdown]
# Bank conflicts, softmax_online and 2 * 3 * 4.
"""


@pytest.fixture
def course(course_dir):
    (course_dir / "notebooks" / "00_first.py").write_text(LESSON)
    return courses.load(course_dir)


QUESTIONS = tomllib.loads((Path(__file__).parent / "search_questions.toml").read_text(encoding="utf-8"))["question"]


@pytest.fixture
def lessons(course, monkeypatch):
    """Without labkit's own kernels: few passages, which do not change with them."""
    monkeypatch.setattr(passages, "of_kernels", lambda path: iter(()))
    monkeypatch.chdir(course.root)
    return course


# --- Passages --------------------------------------------------------------------------------------------------------


def test_a_lesson_is_its_sections(course):
    found = list(passages.of_lesson(course.chapters[0]))
    assert [(one.title, one.line, one.page) for one in found] == [
        ("First", 1, "00_first.html"), ("First: Tiles & blocks", 8, "00_first.html#tiles-blocks"),
        ("First: Tiles & blocks", 22, "00_first.html#tiles-blocks-2"), ("First: Deeper", 28, "00_first.html#deeper")]
    assert [one.text for one in found] == [
        "A kernel waits for memory, and for copies.",
        "One tile. ## no heading Still about tiles: $a_i * b$ in tile[32].",
        "a b 1 2", "Bank conflicts, softmax_online and 2 * 3 * 4."]
    assert all(LESSON.splitlines()[one.line - 1].startswith("# ##") for one in found[1:])


@pytest.mark.sweep(every=True)
def test_the_anchors_are_those_of_the_site():
    for chapter in courses.load(REPOSITORY).chapters:
        markdown = Markdown(set())
        for cell in re.split(r"(?m)^# %%", prose.rendered(chapter)):
            if cell.startswith(" [markdown]"):
                lines = [line[1:].removeprefix(" ") for line in cell.splitlines() if line.startswith("#")]
                markdown.html("\n".join(lines))
        anchors = [anchor for _, _, anchor, _ in passages.sections(prose.rendered(chapter))[1:]]
        assert anchors == [anchor for _, anchor, _ in markdown.toc] and anchors, chapter.name
        headings = [heading for _, heading, _, _ in passages.sections(prose.rendered(chapter))[1:]]
        assert anchors == [passages.anchor(heading, set()) for heading in headings], (
            f"{chapter.name}: two sections of one heading; the second's link would change if the first one went")


def test_markdown_without_its_marks():
    text = "- one *two* **three** `f(x)`\n  2. [four](x.py) ![five](y.png)\n> a * b - c <br> d_e\n```python\n1 - 2\n```"
    assert " ".join(passages.plain(text).split()) == "one two three f(x) four a * b - c d_e 1 - 2"


def test_long_sections_are_cut_between_paragraphs():
    paragraphs = [" ".join([f"p{number}"] * count) for number, count in enumerate((100, 40, 20, 400, 3))]
    found = [text.split() for text in passages.pieces("\n\n".join(paragraphs))]
    assert [len(one) for one in found] == [140, 20, 150, 150, 103]
    assert [set(one) for one in found] == [{"p0", "p1"}, {"p2"}, {"p3"}, {"p3"}, {"p3", "p4"}]


def test_what_stands_above_a_kernel(tmp_path, monkeypatch):
    path = tmp_path / "labkit" / "kernels" / "made_up.py"
    path.parent.mkdir(parents=True)
    path.write_text('"""Rows, made up."""\n\n\n@rung(kernel=k, idea="a warp a row")\ndef rows_warp(x):\n'
                    '    """No barrier."""\n\n\ndef helper(x):\n    """Too short to find."""\n\n\n'
                    'def _own(x):\n    """' + "word " * 30 + '"""\n')
    monkeypatch.setattr(passages, "PACKAGE", tmp_path / "labkit")
    found = list(passages.of_kernels(path))
    assert [(one.title, one.text, one.line, one.page) for one in found] == [
        ("kernels/made_up.py", "Rows, made up.", 1, ""), ("rows_warp", "a warp a row No barrier.", 5, "")]
    assert {one.file for one in found} == {"labkit/kernels/made_up.py"}


@pytest.mark.sweep(every=True)
def test_the_whole_course_can_be_found():
    found = passages.passages(courses.load(REPOSITORY))
    assert 400 < len(found) < 2500
    assert all((REPOSITORY / one.file).is_file() and one.text and one.line >= 1 for one in found)
    assert {"softmax_online", "kernels/transpose.py"} <= {one.title for one in found}


def test_a_digest_is_of_the_words_alone(course):
    before = [one.digest for one in passages.of_lesson(course.chapters[0])]
    source = course.chapters[0].source
    source.write_text("# %%\nx = 0\n\n" + source.read_text().replace("One tile.", "Two tiles."))
    after = [one.digest for one in passages.of_lesson(course.chapters[0])]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True, True]


# --- By words --------------------------------------------------------------------------------------------------------


def test_words():
    assert search.words("Why is `softmax_online` slow? Kernels, classes, 日本") == [
        "why", "is", "softmax", "onlin", "slow", "kernel", "class", "日本"]
    for forms in ("tile tiles tiled tiling", "spill spills spilled spilling", "map mapped mapping", "cache caches"):
        assert len(set(search.words(forms))) == 1, forms
    assert search.words("pass bus ring bed need") == ["pass", "bus", "ring", "bed", "need"]  # no endings


def titles(hits):
    return [hit.passage.title for hit in hits]


def test_rare_words_and_titles_count_more(lessons):
    found = passages.passages(lessons)
    assert titles(search.by_words(found, "bank conflict")) == ["First: Deeper"]
    assert titles(search.by_words(found, "where are my tiles"))[0] == "First: Tiles & blocks"
    hits = search.by_words(found, "the bank of b")
    assert titles(hits) == ["First: Deeper", "First: Tiles & blocks", "First: Tiles & blocks"]  # bank is rarer
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert search.by_words(found, "zebra") == []


def test_what_every_question_has_counts_only_where_nothing_else_is_asked(lessons):
    found = passages.passages(lessons)
    assert titles(search.by_words(found, "why does it have a conflict?")) == ["First: Deeper"]
    assert titles(search.by_words(found, "for")) == ["First"]


def test_a_word_that_is_not_typed_to_its_end_stands_for_all_that_begin_with_it(lessons):
    found = passages.passages(lessons)
    assert titles(search.by_words(found, "conf")) == ["First: Deeper"]
    assert search.by_words(found, "co") == []
    assert titles(search.by_words(found, "cop memor")) == ["First"]


def test_of_a_long_section_only_the_best_piece_is_shown():
    same = [passages.Passage("Long", text, "notebooks/x.py", 7) for text in ("warp", "warp warp shuffle", "block")]
    (hit,) = search.by_words(same, "warp shuffle")
    assert hit.passage is same[1]


# --- Questions and their homes ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole():
    return courses.load(REPOSITORY)


@pytest.fixture(scope="module")
def found_in(whole):
    """The passages of the whole course."""
    return passages.passages(whole)


def homes_of(course, question) -> set[tuple[str, int]]:
    """(file, line) of the sections that a question should find."""
    (chapter,) = (chapter for chapter in course.chapters if chapter.topic == question["lesson"])
    lines = {heading: line for line, heading, _, _ in passages.sections(prose.rendered(chapter))}
    missing = set(question["headings"]) - lines.keys()
    assert not missing, f"{question['asked']!r}: {chapter.name} has no heading {sorted(missing)[0]!r}"
    return {(f"notebooks/{chapter.name}.py", lines[heading]) for heading in question["headings"]}


def reciprocal_ranks(course, rank) -> dict[str, float]:
    """Question -> 1 / the place of its home among the hits, 0 where it is not found."""
    result = {}
    for question in QUESTIONS:
        homes, hits = homes_of(course, question), rank(question["asked"])
        places = [place for place, hit in enumerate(hits, 1) if (hit.passage.file, hit.passage.line) in homes]
        result[question["asked"]] = 1 / places[0] if places else 0.0
    return result


@pytest.mark.sweep(every=True)
def test_questions_find_their_homes_by_words(whole, found_in):
    ranks = reciprocal_ranks(whole, lambda asked: search.by_words(found_in, asked))
    assert len(ranks) == len(QUESTIONS) >= 60
    assert np.mean([*ranks.values()]) >= 0.8, sorted(ranks.items(), key=lambda pair: pair[1])[:15]
    first = {asked for asked, rank in ranks.items() if rank == 1}
    assert {"why is my kernel slow", "bank conflict", "what is a warp", "out of memory"} <= first and len(first) > 44


@pytest.mark.sweep
def test_questions_find_their_homes_by_meaning_and_words(whole, found_in):
    """By the vectors of data/search.npz and MiniLM's of the questions."""
    index = search.Index.read(search.index_path(whole))
    if not weights.is_there(search.MODEL):
        pytest.skip("labkit weights minilm")
    from labkit.models.sentences import Encoder

    asked = [question["asked"] for question in QUESTIONS]
    vectors = dict(zip(asked, Encoder.from_pretrained(search.MODEL.name).encode(asked), strict=True))
    ranks = reciprocal_ranks(whole, lambda query: search.by_both(search.by_meaning(found_in, index, vectors[query]),
                                                                 search.by_words(found_in, query)))
    assert np.mean([*ranks.values()]) >= 0.8, sorted(ranks.items(), key=lambda pair: pair[1])[:15]


def test_what_learners_call_a_section_names_one_that_is_there(whole):
    for topic, called in passages.other_words(whole).items():
        for heading in called:
            homes_of(whole, {"asked": "data/search_words.toml", "lesson": topic, "headings": [heading]})


def test_a_section_has_the_terms_that_it_explains(course):
    add_term(course, "memory", "It keeps.", variants=["storage"])
    add_term(course, "block", "Threads.")
    add_term(course, "first", "The title.")
    found = list(passages.of_lesson(course.chapters[0], glossary.load(course).terms))
    assert [(one.heading, one.terms) for one in found] == [
        ("", ("memory", "storage")), ("Tiles & blocks", ("block", "first")), ("Tiles & blocks", ()), ("Deeper", ())]
    assert titles(search.by_words(found, "storage")) == ["First"]


def test_a_list_is_not_one_passage():
    items = [" ".join([f"i{number}"] * 50) for number in range(3)]
    found = list(passages.pieces("Before.\n\n" + "\n".join(f"- {item}" for item in items) + "\n- one\n- two\n\nAfter."))
    assert found == ["Before.", *items[:2], f"{items[2]} one two", "After."]


def test_sections_beside_the_matter_and_kernels_come_after_what_explains():
    def passage(heading, kind="lesson"):
        return passages.Passage(f"A: {heading}", "a warp shuffle", f"{heading}.py", 1, kind=kind,
                                heading=heading if kind == "lesson" else "")

    found = [passage("Resources"), passage("rung", "kernel"), passage("Try it"), passage("Shuffles"), passage("Body")]
    assert [hit.passage.title[3:] for hit in search.by_words(found, "warp shuffle")] == [
        "Shuffles", "Body", "Try it", "rung", "Resources"]


def test_a_kernel_leads_to_the_first_lesson_that_imports_it(course, tmp_path, monkeypatch):
    path = tmp_path / "labkit" / "kernels" / "softmax" / "rows.py"
    path.parent.mkdir(parents=True)
    path.write_text('"""Rows."""\n')
    monkeypatch.setattr(passages, "PACKAGE", tmp_path / "labkit")
    assert passages.passages(course)[-1].page == ""
    for line in ("from labkit.kernels.softmax.rows import x", "from labkit.kernels.softmax import other, rows"):
        course.chapters[1].source.write_text(f"# %%\n{line}\n")
        found = passages.passages(course)[-1]
        assert (found.title, found.page) == ("kernels/softmax/rows.py", "01_second.html")


@pytest.mark.sweep(every=True)
def test_an_exercise_is_found_and_leads_to_its_page(found_in):
    hits = search.by_words(found_in, "exercise transpose through shared memory")
    hit = next(hit for hit in hits[:5] if hit.passage.kind == "exercise")
    assert hit.passage.page == "exercises/transpose_tiled.html"
    assert hit.passage.file.endswith("/transpose_tiled.py") and (REPOSITORY / hit.passage.file).is_file()


@pytest.mark.sweep(every=True)
def test_a_kernel_is_found_by_its_name(found_in):
    hits = search.by_words(found_in, "softmax_online")
    assert hits[0].passage.kind == "kernel" and hits[0].passage.title == "softmax_online"


def test_the_terms_that_a_question_names(whole):
    terms = glossary.load(whole).terms
    assert [term.name for term in search.definitions(terms, "what is a bank conflict?")] == ["bank conflict"]
    assert [term.name for term in search.definitions(terms, "streaming multiprocessors")] == ["multiprocessor"]
    assert "occupancy" in [term.name for term in search.definitions(terms, "occup")]
    for other in ("zebra", "why is my kernel slow", "a warp that waits"):
        assert search.definitions(terms, other) == [], other


# --- By meaning ------------------------------------------------------------------------------------------------------


def letters(texts):
    """An embedding: how often each letter occurs, of length 1."""
    alone = isinstance(texts, str)
    counts = np.array([[text.lower().count(letter) + 1e-3 for letter in string.ascii_lowercase]
                       for text in ([texts] if alone else texts)], np.float32)
    counts /= np.linalg.norm(counts, axis=1, keepdims=True)
    return counts[0] if alone else counts


def test_the_index_finds_what_is_near(lessons):
    assert search.stale(lessons) == ""  # there is none
    count = len(passages.passages(lessons))
    assert search.build(lessons, letters) == count
    assert search.build(lessons, letters) is None and search.stale(lessons) == ""
    wanted = passages.passages(lessons)[3]
    hits, remark = search.search(lessons, search.read_by_encoder(wanted), letters)
    assert hits[0].passage == wanted and hits[0].score == pytest.approx(1, abs=2e-3) and remark == ""
    assert len(hits) == len({(one.file, one.line) for one in passages.passages(lessons)})


def test_only_what_has_changed_is_encoded_and_what_is_stale_is_known(lessons):
    search.build(lessons, letters)
    before = search.Index.read(search.index_path(lessons))
    source = lessons.chapters[0].source
    source.write_text("# %%\n0\n\n" + source.read_text().replace("One tile.", "Two warps."))
    count = len(passages.passages(lessons))
    assert f"is stale: 1 of {count} passages have changed; run labkit build --search" in search.stale(lessons)
    hits, remark = search.search(lessons, "memory", letters)
    assert remark == search.stale(lessons)
    assert "Two warps" not in " ".join(hit.passage.text for hit in hits) and len(hits) >= 3  # the others are found
    assert {hit.passage.line for hit in hits if hit.passage.title == "First: Deeper"} == {31}  # where it is now
    hits, _ = search.search(lessons, "two warps", letters)
    assert "Two warps" in hits[0].passage.text  # by its words
    assert len({(hit.passage.file, hit.passage.line) for hit in hits}) == len(hits)
    asked = []
    assert search.build(lessons, lambda texts: asked.append(texts) or letters(texts)) == 1
    assert len(asked[0]) == 1 and "Two warps" in asked[0][0]
    after = search.Index.read(search.index_path(lessons))
    kept = before.rows.keys() & after.rows.keys()
    assert len(kept) == len(before.rows) - 1
    for digest in kept:
        np.testing.assert_array_equal(before.embeddings[before.rows[digest]], after.embeddings[after.rows[digest]])


def test_passages_that_are_gone_leave_the_index(lessons):
    search.build(lessons, letters)
    source = lessons.chapters[0].source
    source.write_text(source.read_text().split("# ### Deeper")[0])
    assert search.stale(lessons) == ""  # all that there is can be found
    assert search.build(lessons, letters) == 0
    assert len(search.Index.read(search.index_path(lessons)).rows) == len(passages.passages(lessons))


def test_the_same_passages_make_the_same_file(lessons):
    search.build(lessons, letters)
    path = search.index_path(lessons)
    first = path.read_bytes()
    path.unlink()
    search.build(lessons, letters)
    assert path.read_bytes() == first


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"\x93NUMPY", "another model", "another type"])
def test_an_index_that_cannot_be_used_is_none(lessons, content):
    search.build(lessons, letters)
    path = search.index_path(lessons)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with np.load(path) as file:
            parts = dict(file)
        changed = {"model": np.array("x")} if "model" in content else {"embeddings": parts["embeddings"].astype("f4")}
        with open(path, "wb") as file:
            np.savez(file, **parts | changed)
    hits, remark = search.search(lessons, "memory", letters)
    assert titles(hits) == titles(search.by_words(passages.passages(lessons), "memory"))
    assert "Found by words, not by meaning: data/search.npz is missing or is another model's" in remark
    assert "labkit build --search" in search.stale(lessons)
    assert search.build(lessons, letters) == len(passages.passages(lessons))


def test_a_build_that_is_stopped_leaves_the_index_as_it_was(lessons):
    search.build(lessons, letters)
    before = search.index_path(lessons).read_bytes()
    lessons.chapters[0].source.write_text(LESSON.replace("One tile.", "Three tiles."))

    def stopped(texts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search.build(lessons, stopped)
    assert search.index_path(lessons).read_bytes() == before


def test_without_an_encoder_it_goes_by_words_and_says_so(lessons):
    hits, remark = search.search(lessons, "bank conflicts", None)
    assert titles(hits) == ["First: Deeper"]
    assert remark == "Found by words, not by meaning: `labkit weights minilm` fetches the encoder (92 MB)"
    with pytest.raises(UserError, match="QUERY has no word to search for"):
        search.search(lessons, " ?! ", None)


@pytest.mark.sweep(every=True)
def test_the_repositorys_index_is_of_this_model_and_small():
    path = REPOSITORY / "data" / search.NAME
    index = search.Index.read(path)
    assert index.embeddings.shape == (len(index.rows), 384) and len(index.rows) > 400
    assert path.stat().st_size < min(840 * len(index.rows), 1_500_000)  # 768 bytes a passage, and its digest
    found = passages.passages(courses.load(REPOSITORY))
    assert len(index.missing(found)) < len(found) / 4, search.stale(courses.load(REPOSITORY))  # a few may wait
    lengths = np.linalg.norm(index.embeddings.astype(np.float64), axis=1)
    assert np.abs(lengths - 1).max() < 2e-3
