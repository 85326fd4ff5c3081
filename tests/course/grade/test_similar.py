"""Made-up copies are found however they are changed, and independent right answers are not taken for copies."""

import functools
import itertools
import random
import tomllib

import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import exercise_files, exercises, registry, workbooks
from labkit.course.grade import similar
from labkit.course.grade.collect import collect
from labkit.course.grade.feedback import write_similar
from labkit.course.grade.similar import Answered, as_html, as_text, pairs_among, pairs_of_class, parts_of
from labkit.course.grade.tasks import plan
from tests.course.grade.independent import ANSWERS, COPIERS, renamed, with_dead_code
from tests.course.grade.made_up import FIRST, hand_in

COURSE = registry.load()


@functools.cache
def given_of(chapter) -> list[str]:
    return [cell.source for cell in workbooks.to_notebook(COURSE, chapter).cells if cell.cell_type == "code"]


def own_of(name: str) -> str:
    return exercise_files.solution(name).answer


GIVEN = given_of(COURSE.exercise("gram").chapter)
OWN = own_of("gram")


def class_with(*more: Answered) -> list[Answered]:
    return [*(Answered(name, source) for name, source in ANSWERS.items()), *more]


@pytest.mark.parametrize("copier", COPIERS)
def test_a_copy_is_found_and_nothing_else(copier):
    for name, source in ANSWERS.items():
        (pair,) = pairs_among("gram", class_with(Answered("copier", COPIERS[copier](source))), GIVEN, OWN)
        assert {pair.one.student, pair.other.student} == {name, "copier"}
        assert pair.share > 0.8 and len(pair.same) >= 3


def test_independent_answers_are_no_pairs_and_far_from_it(monkeypatch):
    assert pairs_among("gram", class_with(), GIVEN, OWN) == []
    for name in ("LEAST", "SHARE", "SHARE_OF_MUCH"):
        monkeypatch.setattr(similar, name, 0.1)
    assert all(pair.share < 0.5 for pair in pairs_among("gram", class_with(), GIVEN, OWN))


@pytest.mark.parametrize("name", ["count_down", "saxpy", "blocks_needed", "every_second"])
def test_short_answers_with_one_natural_form_are_no_pairs(name):
    """The course's own, handed in by several under other names."""
    own = own_of(name)
    assert not pair_of(name, renamed(own, 1, name), renamed(own, 2, name))


def test_an_exercise_as_it_was_given_is_no_pair():
    assert pairs_among("gram", [Answered(str(k), "\n".join(GIVEN)) for k in range(3)], GIVEN, OWN) == []


def test_a_part_of_the_courses_own_answer_counts_less():
    source = ANSWERS["flat shared memory"]
    small = source[: source.index("    top = ")]
    both = [Answered("one", small), Answered("other", renamed(small))]
    assert len(pairs_among("gram", both)) == 1 and pairs_among("gram", both, (), small) == []


def pair_of(name: str, one: str, other: str) -> bool:
    given = given_of(COURSE.exercise(name).chapter)
    return bool(pairs_among(name, [Answered("one", one), Answered("other", other)], given, own_of(name)))


def test_what_most_of_the_class_shares_is_left_out():
    shared, (name, source) = ANSWERS["flat shared memory"], list(ANSWERS.items())[2]
    crowd = [Answered(f"student {k}", renamed(shared, k)) for k in range(12)]
    both = [Answered("one", source), Answered("other", with_dead_code(renamed(source)))]
    (pair,) = pairs_among("gram", [*crowd, *both], GIVEN, OWN)
    assert {pair.one.student, pair.other.student} == {"one", "other"}, name


def test_what_was_handed_out_is_left_out():
    source = ANSWERS["one array with two halves"]
    pair = [Answered("one", source), Answered("other", renamed(source))]
    assert len(pairs_among("gram", pair)) == 1
    assert pairs_among("gram", pair, [source]) == []


def test_the_page_shows_both_sides_and_runs_nothing():
    hostile = ANSWERS["flat shared memory"] + "\n'</pre><script>alert(1)</script>'\n"
    pairs = pairs_among("gram", [Answered("<b>Eve</b>", hostile), Answered("Bob", renamed(hostile))], GIVEN, OWN)
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
        hand_in(tmp_path / "class" / student / "06_matmul.ipynb", FIRST, source, 'check("gram", gram)')
    collected = collect(tmp_path / "class")
    pairs = pairs_of_class(COURSE, collected, plan(COURSE, collected, b"a secret of the tests"))
    assert [(pair.exercise, pair.one.student, pair.other.student) for pair in pairs] == [("gram", "ada", "eve")]
    write_similar(tmp_path, pairs)
    page = (tmp_path / "similar.html").read_text()
    assert "default-src 'none'" in page and "gram: ada and eve share" in page
    assert "gram: ada and eve share" in (tmp_path / "similar.txt").read_text()


# --- Over all exercises --------------------------------------------------------------------------------------------

WRITTEN = [answer for answer in tomllib.loads((REPOSITORY / "tests/course/check/wrong_answers.toml").read_text(
    encoding="utf-8"))["answer"] if "source" in answer]


def found_of(copier: str, answers: list[dict]) -> list[dict]:
    return [answer for answer in answers
            if pair_of(answer["exercise"], answer["source"], COPIERS[copier](answer["source"], answer["exercise"]))]


@pytest.mark.sweep(every=True)
def test_copies_of_answers_to_many_exercises_are_found():
    """Every 20th of those that learners wrote. The others are short, in the one natural form."""
    some = WRITTEN[::20]
    for copier in ("renamed", "all of it"):
        found = found_of(copier, some)
        assert len(found) >= 0.6 * len(some) and len({answer["exercise"] for answer in found}) >= 20, copier


@pytest.mark.sweep
@pytest.mark.parametrize("copier", COPIERS)
def test_copies_are_found_in_nearly_all_exercises(copier):
    found = found_of(copier, WRITTEN)
    wrong, right = ([answer for answer in WRITTEN if answer["right"] == kind] for kind in (False, True))
    print(copier, len(found), len(WRITTEN), len({answer["exercise"] for answer in found}))
    assert sum(not answer["right"] for answer in found) >= 0.6 * len(wrong)
    assert sum(answer["right"] for answer in found) >= 0.8 * len(right)
    assert len({answer["exercise"] for answer in found}) >= 0.9 * len({answer["exercise"] for answer in WRITTEN})


@pytest.mark.sweep(every=True)
def test_independent_right_answers_to_many_exercises_are_no_pairs():
    """The course's own, the unusual ones, and those to `gram`: under 1% are taken for copies."""
    right = {entry.name: [own_of(entry.name)] for entry in COURSE.exercises}
    for answer in WRITTEN:
        right[answer["exercise"]] += [answer["source"]] * answer["right"]
    right["gram"] += ANSWERS.values()
    pairs = [(name, *both) for name, sources in right.items() for both in itertools.combinations(sources, 2)]
    false = [name for name, one, other in pairs if pair_of(name, one, other)]
    assert len(pairs) > 120 and len(false) < 0.01 * len(pairs), false


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
    pairs = pairs_among("gram", crowd, GIVEN, OWN)
    false = [p for p in pairs if p.one.student.split("/")[0] != p.other.student.split("/")[0]]
    assert len(false) < 0.01 * 300 * 299 / 2 and pairs
