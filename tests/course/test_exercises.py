"""Every exercise of every chapter: its answer passes, each known wrong answer is rejected by name, its skeleton fails.

New chapters are covered by being there. The made-up exercises show that the tests bite.
"""

import time

import pytest

from labkit import device
from labkit._common.paths import REPOSITORY
from labkit.course import exercises
from labkit.course import registry as course
from labkit.course import workbooks as workbook
from labkit.course.check import examine
from labkit.course.exercises import Exercise
from tests.course.expensive import marks_of

pytestmark = pytest.mark.cpu_device

ROOT = REPOSITORY
COURSE = course.load(ROOT)
EXERCISES = exercises.load()
WRONG = [(name, mistake) for name, exercise in EXERCISES.items() for mistake in exercise.wrong]
CHAPTERS = [chapter.name for chapter in workbook.with_exercises(COURSE, COURSE.chapters)]


def rejected(exercise: Exercise, mistake: str):
    """What check says to a known wrong answer."""
    wrong = exercise.wrong[mistake]
    if exercise.kind == "predict":
        return examine(exercise, None, numbers={**exercise.truth(), **wrong})
    return examine(exercise, wrong)


def test_course_toml_and_the_exercises_name_the_same():
    assert workbook.unmatched(COURSE) == []


@pytest.mark.sampled(1, sweep=47)
@pytest.mark.parametrize(("name", "mistake"), [pytest.param(*one, marks=marks_of(one[0])) for one in WRONG])
def test_a_known_wrong_answer_is_rejected_and_named(name, mistake):
    if device.on_gpu() and EXERCISES[name].kind == "kernel":
        pytest.skip("the CPU device names mistakes; on a GPU some of them are undefined behaviour")
    verdict = rejected(EXERCISES[name], mistake)
    assert not verdict.passed
    assert verdict.mistake == mistake, str(verdict)


@pytest.mark.parametrize("name", EXERCISES)
def test_hints_are_three_and_different(name):
    hints = COURSE.exercise(name).hints
    assert len(set(hints)) == 3
    assert all(hint == hint.strip() and len(hint) > 15 for hint in hints)


@pytest.mark.sampled(0, sweep=7, quick="01_vector_add")
@pytest.mark.parametrize("name", CHAPTERS)
def test_answers_pass_and_skeletons_run_and_fail(name):
    (chapter,) = COURSE.pick([name])
    begin = time.perf_counter()
    assert workbook.verify_chapter(COURSE, chapter) == []
    print(f"{name}: {time.perf_counter() - begin:.1f} s")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHAPTERS)
def test_answers_pass_and_skeletons_fail_on_a_gpu(name):
    (chapter,) = COURSE.pick([name])
    assert workbook.verify_chapter(COURSE, chapter) == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_chapter_climbs_from_one_line_to_a_blank_page(name):
    """Both a prediction and a blank page where there are three exercises or more. A lesson that was split off a longer
    one has a single idea, for which one of both and a second exercise are enough."""
    (chapter,) = COURSE.pick([name])
    entries = COURSE.exercises_of(chapter)
    skeletons = [cell.source for cell in workbook.to_notebook(COURSE, chapter).cells]
    has_prediction = any(EXERCISES[entry.name].kind == "predict" for entry in entries)
    has_blank_page = any(f"{entry.name} = None" in source for entry in entries for source in skeletons)
    assert len(entries) >= 2
    assert has_prediction or has_blank_page
    if len(entries) > 2:
        assert has_prediction
        assert has_blank_page
