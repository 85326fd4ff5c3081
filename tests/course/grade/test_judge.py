"""The course's own answers, graded as if students had handed them in."""

from pathlib import Path

import pytest

from labkit.course import registry, workbooks
from labkit.course.grade import sandbox
from labkit.course.grade.answers import answers_in
from labkit.course.grade.judge import Judge, Settings

COURSE = registry.load()
CHAPTERS = [chapter for chapter in COURSE.chapters if COURSE.exercises_of(chapter)]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    if not sandbox.works("namespaces"):
        pytest.skip("this system offers no namespaces")
    folder: Path = tmp_path_factory.mktemp("grade")
    made = Judge(Settings(folder, b"a secret of the tests", "namespaces", wall_s=300))
    yield made
    made.close()


@pytest.mark.cpu_device
@pytest.mark.sweep
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_every_answer_passes_and_no_exercise_does_as_it_is_given(chapter, judge):
    wrong = []
    for given in (True, False):
        notebook = workbooks.to_notebook(COURSE, chapter, answers=given)
        answers = answers_in([cell.source for cell in notebook.cells if cell.cell_type == "code"])
        assert answers.keys() == {entry.name for entry in COURSE.exercises_of(chapter)}
        for name, answer in answers.items():
            result = judge.judge(name, answer)
            if result["passed"] != given or result["verdict"] == "refused":
                wrong.append((name, given, result["headline"], result["details"]))
    assert not wrong
