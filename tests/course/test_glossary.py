"""The glossary: what its file may hold, that lessons use its terms, and that it has those which lessons use."""

import re

import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import glossary
from labkit.course import registry as courses
from labkit.course.passages import sections
from labkit.course.prose import rendered
from tests.course.site.pages import add_term

# Words of the field that must have an entry, under their own name or as a variant, once a lesson uses them.
FIELD = """accumulator; arithmetic intensity; atomic; bandwidth; bank conflict; barrier; bfloat16; block;
broadcasting; bus; cache; causal; coalesced; compute capability; continuous batching; CUDA graph; decode; device;
divergence; embedding; epilogue; event; flash attention; float16; flop; fragment; fused; GELU; goodput; grid; guard;
head; histogram; host; kernel; KV cache; lane; latency; latency hiding; launch; LayerNorm; Little's law; local memory;
logits; mask; multiprocessor; occupancy; online softmax; padding; page; page table; paged attention; pinned; pipeline;
preemption; prefill; prefix cache; profiler; PTX; query; race; reduction; register; residual; RMSNorm; roofline; RoPE;
row-major; rung; safetensors; sampling; scan; scheduler; sector; shared memory; shuffle; softmax; spill; stream;
stride; SwiGLU; swizzle; temperature; tensor core; TF32; thread; throughput; tile; TMA; token; tolerance; top-k;
top-p; transformer; vocabulary; warm-up; warp; warpgroup; wave; weights; Welford; wgmma; WordPiece"""


def prose(chapter) -> str:
    return "\n".join(line for _, heading, _, lines in sections(rendered(chapter)) for line in (heading, *lines))


def used(chapter, words) -> set[str]:
    """The names of the terms that a lesson's prose uses."""
    marker = glossary.Marker(words, chapter)
    marker.mark(prose(chapter).replace("<", "&lt;"))
    return set(marker.used)


@pytest.fixture(scope="module")
def course():
    return courses.load(REPOSITORY)


def test_every_term_is_used_in_a_lesson(course):
    words = glossary.load(course)
    found = set().union(*(used(chapter, words) for chapter in course.chapters))
    unused = {term.name for term in words.terms} - found
    assert not unused, f"no lesson uses {', '.join(sorted(unused))}"
    assert len(words.terms) > 80


def test_every_word_of_the_field_that_a_lesson_uses_has_an_entry(course):
    words = glossary.load(course)
    known = {word.lower() for term in words.terms for word in term.words}
    text = "\n".join(map(prose, course.chapters))
    missing = [word for word in re.split(r";\s+", FIELD)
               if word.lower() not in known and re.search(rf"\b{re.escape(word)}s?\b", text, re.IGNORECASE)]
    assert missing == []


def test_a_definition_is_a_sentence_or_two_or_three(course):
    for term in glossary.load(course).terms:
        assert re.fullmatch(r"([A-Z0-9]|labkit's).*[.]", term.means), term.name
        assert len(term.means.split()) < 45, term.name


WARP = "[[term]]\nname = 'warp'\nmeans = 'x'\nlesson = 'first'"


@pytest.mark.parametrize(("text", "words"), [
    ("x = 1", r"must hold tables that begin with \[\[term\]\]"),
    ("[[term]]\nname = ''", "term 1: 'name' must be a text"),
    ("[[term]]\nname = 'warp'", "term 1: 'means' must be a text"),
    ("[[term]]\nname = 'warp'\nmeans = 'x'", "term 1: 'lesson' must be a text"),
    ("[[term]]\nname = 'warp'\nmeans = 'x'\nlesson = '00'", "'lesson' is '00'; it must be .* one of first, second"),
    (f"{WARP}\ncolour = '00'", "'warp': unknown key 'colour'"),
    (f"{WARP}\nvariants = 'warps'", "'variants' must be a list of texts, not 'warps'"),
    (f"{WARP}\nsince = 'third'", "'since' is 'third'; it must be .* one of first, second"),
    (f"{WARP}\n"
     "[[term]]\nname = 'lane'\nmeans = 'y'\nlesson = 'first'\nvariants = ['Warp']",
     "'warp' stands for 'warp' and for 'lane'"),
    ("[[term", "is not valid TOML"),
])
def test_a_mistake_in_the_glossary_is_named(course_dir, text, words):
    (course_dir / "data").mkdir()
    (course_dir / "data" / "glossary.toml").write_text(text)
    with pytest.raises(courses.CourseError, match=words):
        glossary.load(courses.load(course_dir))


def test_a_word_of_everyday_english_has_its_meaning_from_its_lesson_on(course_dir):
    course = courses.load(course_dir)
    add_term(course, "page", "Sixteen tokens.", since="second")
    words = glossary.load(course)
    marked = [glossary.Marker(words, chapter).mark("<p>This page.</p>") for chapter in course.chapters]
    assert ["term" in each for each in marked] == [False, True]


def test_the_longest_term_counts_and_no_part_of_a_word(course_dir):
    course = courses.load(course_dir)
    for name, variants in (("memory", []), ("shared memory", []), ("Little's law", []), ("top-p", []), ("bus", [])):
        add_term(course, name, "It is.", variants=variants)
    marker = glossary.Marker(glossary.load(course), course.chapters[0])
    text = "<p>shared\nmemory, Little&#39;s law, busy, top-pick, <code>bus</code> <b title='bus'>-bus</b></p>"
    html = marker.mark(text)
    assert marker.used.keys() == {"shared memory", "Little's law"}
    assert re.sub(r"</?a[^>]*>", "", html) == text
    marker.mark("<p>Two buses.</p>")
    assert "bus" in marker.used
