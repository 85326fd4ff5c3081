"""Made-up copies are found however they are changed, and independent right answers are not taken for copies."""

import random

import pytest

from labkit.course import exercises, registry, workbooks
from labkit.course.grade import similar
from labkit.course.grade.collect import collect
from labkit.course.grade.feedback import write_similar
from labkit.course.grade.similar import Answered, as_html, as_text, pairs_among, pairs_of_class, parts_of
from labkit.course.grade.tasks import plan
from tests.course.grade.independent import ANSWERS, COPIERS, renamed, with_dead_code
from tests.course.grade.made_up import FIRST, hand_in

COURSE = registry.load()


def known_of(chapter) -> list[str]:
    return [cell.source for answers in (False, True)
            for cell in workbooks.to_notebook(COURSE, chapter, answers=answers).cells if cell.cell_type == "code"]


GIVEN = known_of(COURSE.exercise("gram").chapter)


def class_with(*more: Answered) -> list[Answered]:
    return [*(Answered(name, source) for name, source in ANSWERS.items()), *more]


@pytest.mark.parametrize("copier", COPIERS)
def test_a_copy_is_found_and_nothing_else(copier):
    for name, source in ANSWERS.items():
        (pair,) = pairs_among("gram", class_with(Answered("copier", COPIERS[copier](source))), GIVEN)
        assert {pair.one.student, pair.other.student} == {name, "copier"}
        assert pair.share > 0.8 and len(pair.same) >= 3


def test_independent_answers_are_no_pairs_and_far_from_it(monkeypatch):
    assert pairs_among("gram", class_with(), GIVEN) == []
    monkeypatch.setattr(similar, "SHARE", 0.0)
    monkeypatch.setattr(similar, "LEAST_PARTS", 1)
    assert all(pair.share < 0.2 for pair in pairs_among("gram", class_with(), GIVEN))


def test_answers_with_one_natural_form_are_no_pairs():
    """The course's own answers, handed in by several, and a short one."""
    assert pairs_among("gram", [Answered(str(k), "\n".join(GIVEN)) for k in range(3)], GIVEN) == []
    short = "@cuda.jit\ndef scale(x, out):\n    i = cuda.grid(1)\n    if i < x.size:\n        out[i] = 2 * x[i]\n"
    line = "    out[i] = x[a * i + b] * y[c * i + d] if a * i + b < x.size and c * i + d < y.size else e * i + g * x[0]"
    line += "\n"
    long = [short.replace("    if", f"{line}    {extra}\n    if") for extra in ("pass", "x[0] = 1")]
    assert pairs_among("scale", [Answered("a", long[0]), Answered("b", long[1])]) == []
    assert pairs_among("scale", [Answered("a", short), Answered("b", renamed(short))]) == []


def test_what_most_of_the_class_shares_is_left_out():
    shared, (name, source) = ANSWERS["flat shared memory"], list(ANSWERS.items())[2]
    crowd = [Answered(f"student {k}", renamed(shared, k)) for k in range(12)]
    both = [Answered("one", source), Answered("other", with_dead_code(renamed(source)))]
    (pair,) = pairs_among("gram", [*crowd, *both], GIVEN)
    assert {pair.one.student, pair.other.student} == {"one", "other"}, name


def test_what_was_handed_out_is_left_out():
    source = ANSWERS["one array with two halves"]
    pair = [Answered("one", source), Answered("other", renamed(source))]
    assert len(pairs_among("gram", pair)) == 1
    assert pairs_among("gram", pair, [source]) == []


def test_the_page_shows_both_sides_and_runs_nothing():
    hostile = ANSWERS["flat shared memory"] + "\n'</pre><script>alert(1)</script>'\n"
    pairs = pairs_among("gram", [Answered("<b>Eve</b>", hostile), Answered("Bob", renamed(hostile))], GIVEN)
    page, text = as_html(pairs), as_text(pairs)
    assert "<script" not in page and "<b>" not in page and "&lt;b&gt;Eve" in page and page.count("<mark") > 10
    assert "cols_tile[me]" in text and "1 pair." in text and "share" in text and " | " in text
    assert "0 pairs." in as_text([])


@pytest.mark.parametrize("source", [
    "def f(:", "x = " + "(" * 150 + "1" + ")" * 150, "x = 0" + " + y" * 3000, "\0", "x = 1\n" * 10_000,
    "def f(x):\n    return x + x\ny = " + "f(" * 60 + "a" + ")" * 60,
    "".join(f"def f{k}(x):\n    return f{k + 1}(x) + f{k + 1}(x)\n" for k in range(40)) + "y = f0(1)",
    "x = a + b * c - d + e\n" * 300 + "y = x + x * x - x + x\n" * 300])
def test_hostile_sources_take_no_time(source):
    assert len(parts_of(source)) < 2_000


def test_a_student_is_no_pair_with_themselves():
    source = ANSWERS["flat shared memory"]
    assert pairs_among("gram", [Answered("a", source), Answered("a", source)]) == []


def test_the_pairs_of_a_class_are_found_in_its_notebooks(tmp_path):
    for student, source in (("ada", ANSWERS["flat shared memory"]), ("bob", ANSWERS["one array with two halves"]),
                            ("eve", renamed(ANSWERS["flat shared memory"]))):
        hand_in(tmp_path / "class" / student / "05_matmul.ipynb", FIRST, source, 'check("gram", gram)')
    collected = collect(tmp_path / "class")
    pairs = pairs_of_class(COURSE, collected, plan(COURSE, collected, b"a secret of the tests"))
    assert [(pair.exercise, pair.one.student, pair.other.student) for pair in pairs] == [("gram", "ada", "eve")]
    write_similar(tmp_path, pairs)
    page = (tmp_path / "similar.html").read_text()
    assert "default-src 'none'" in page and "gram: ada and eve share" in page
    assert "gram: ada and eve share" in (tmp_path / "similar.txt").read_text()


@pytest.mark.sweep
@pytest.mark.parametrize("name", ANSWERS)
def test_the_independent_answers_are_right(name, tmp_path):
    import linecache

    import numpy as np
    from numba import float32

    from labkit import cuda
    from labkit.course.check import examine

    file = str(tmp_path / "gram.py")
    linecache.cache[file] = (len(ANSWERS[name]), None, ANSWERS[name].splitlines(keepends=True), file)
    namespace = {"cuda": cuda, "float32": float32, "np": np}
    exec(compile(ANSWERS[name], file, "exec"), namespace)
    verdict = examine(exercises.find("gram"), namespace["gram"], seed=1)
    assert verdict.passed, str(verdict)


@pytest.mark.sweep
def test_a_class_of_300_has_few_false_pairs():
    """Answers made of lines that are drawn from the independent ones would be copies; here each is one of eight, under
    other names, so that pairs within one of the eight are the copies, and all others are false."""
    drawn = random.Random(0)
    names = list(ANSWERS)
    crowd = []
    for k in range(300):
        which = drawn.choice(names)
        crowd.append(Answered(f"{which}/{k}", renamed(ANSWERS[which], k)))
    pairs = pairs_among("gram", crowd, GIVEN)
    false = [p for p in pairs if p.one.student.split("/")[0] != p.other.student.split("/")[0]]
    assert len(false) < 0.01 * 300 * 299 / 2 and pairs
