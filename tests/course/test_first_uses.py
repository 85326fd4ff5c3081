"""Nothing is used before it is explained: words of the glossary, and names in the lessons' code."""

import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import first_uses, glossary
from labkit.course import registry as courses
from tests.course.site.pages import add_term


@pytest.fixture(scope="module")
def course():
    return courses.load(REPOSITORY)


@pytest.fixture(scope="module")
def words(course):
    return glossary.load(course)


@pytest.fixture(scope="module")
def by_lesson(course, words):
    return first_uses.markers(course, words)


@pytest.mark.sweep(every=True)
def test_the_lesson_that_a_term_declares_introduces_it(words, by_lesson):
    assert [f"{term.lesson} neither sets {term.name!r} in italics nor has it in a heading"
            for term in first_uses.not_introduced(words, by_lesson)] == []


def test_no_word_is_used_before_it_is_explained(course, words, by_lesson):
    assert [f"{use.lesson} uses {use.what!r}, which {use.home} explains: {use.where!r}"
            for use in first_uses.words_before(course, words, by_lesson)] == []


@pytest.mark.sweep(every=True)
def test_no_name_is_used_that_no_prose_has_named(course):
    assert [f"{use.lesson} has {use.what} in `{use.where}`, and no prose names it"
            for use in first_uses.names_before(course)] == []


def prose(text: str) -> str:
    return "# %% [markdown]\n" + "\n".join(f"# {line}".rstrip() for line in text.split("\n")) + "\n"


def early(course_dir, first: str, second: str = "A *warp* has 32 lanes."):
    """What the first of two lessons uses too early, where the second one explains `warp`."""
    course = courses.load(course_dir)
    add_term(course, "warp", "32 threads.", lesson="second", variants=["warps of threads"])
    for chapter, text in zip(course.chapters, (first, second), strict=True):
        chapter.source.write_text(text if text.startswith("# %%") else prose(text))
    words = glossary.load(course)
    found = first_uses.markers(course, words)
    return ([use.what for use in first_uses.words_before(course, words, found)],
            [term.name for term in first_uses.not_introduced(words, found)])


@pytest.mark.parametrize(("text", "too_early"), [
    ("Two warps.", True),
    ("Two warps (lesson 01).", False),
    ("Two warps, as lesson 00 says.", True),
    ("Two [warps](01_second.ipynb).", False),  # a link is a pointer
    ("One warp ([there](01_second.ipynb)).", False),
    ("Lesson 01 is next.\n\nTwo warps.", True),  # in another paragraph
    ("A *warp* is 32 threads.\n\nTwo warps.", False),  # this lesson says itself what it is
    ("Next: warps.", False),
    ("As *An Article on the Warp and its Lanes* says.", False),
    ("Call `warp`.", False),
    ("It is warped.", False),
])
def test_a_word_that_comes_before_its_lesson(course_dir, text, too_early):
    assert early(course_dir, text) == (["warp"] * too_early, [])


@pytest.mark.parametrize(("text", "introduced"), [
    ("A *warp*.", True), ("A **warp**.", True), ("## The warp\n\nIt is.", True), ("A warp.", False),
    ("*A warp of threads*.", False), ("Nothing.", False)])
def test_a_term_is_introduced_in_italics_in_bold_or_by_a_heading(course_dir, text, introduced):
    assert early(course_dir, "Nothing.", text) == ([], [] if introduced else ["warp"])


CODE = """
# %%
from labkit import cuda, observe
from labkit.models.step import Piece
from labkit.kernels import softmax

tile = cuda.shared.array(3, 4)
"""


@pytest.mark.parametrize(("text", "left"), [
    ("Nothing.", ["observe", "Piece", "cuda.shared.array"]),
    ("A `Piece(ids, 0)` of a text, and `observe`.", ["cuda.shared.array"]),
    ("`cuda.shared.array` is a Piece.", ["observe", "Piece"]),
    ("```\nPiece(ids)\n```\n\nThen `observe` it.", ["cuda.shared.array"]),
])
def test_a_name_in_code_is_named_in_prose_first(course_dir, text, left):
    course = courses.load(course_dir)
    course.chapters[0].source.write_text(prose(text) + CODE)
    course.chapters[1].source.write_text(prose("`Piece` and `observe`, too late.") + CODE)
    assert [use.what for use in first_uses.names_before(course) if use.lesson == "first"] == left
