"""What a learner has done is remembered: the first day of each, the hints that were seen, and nothing is taken away."""

import datetime
import json
import shutil

import nbformat
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import progress
from labkit.course import registry as courses
from labkit.course.registry import CourseError

MADE_UP = REPOSITORY / "tests" / "made_up_exercises"


@pytest.fixture
def course(tmp_path):
    shutil.copy(MADE_UP / "course.toml", tmp_path)
    return courses.load(tmp_path)


def on_day(monkeypatch, day: str) -> None:
    class Date(datetime.date):
        @classmethod
        def today(cls):
            return cls.fromisoformat(day)

    monkeypatch.setattr(progress, "date", Date)


def test_the_first_day_stays(course, monkeypatch):
    on_day(monkeypatch, "2026-01-02")
    progress.passed(course, "count_blocks")
    progress.shown(course, "scale_again")
    on_day(monkeypatch, "2026-03-04")
    for name in ("count_blocks", "idle_threads"):
        progress.passed(course, name)
    progress.shown(course, "scale_again")
    found = progress.read(course)
    assert found["passed"] == {"count_blocks": "2026-01-02", "idle_threads": "2026-03-04"}
    assert found["shown"] == {"scale_again": "2026-01-02"}
    with pytest.raises(CourseError, match="no exercise 'nothing'"):
        progress.passed(course, "nothing")


def test_hints_come_one_after_the_other_and_an_earlier_one_takes_nothing_back(course):
    def told(tier=None):
        return progress.hint(course, "scale_vector", tier)[:11]

    assert [told() for _ in range(4)] == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3", "Hint 3 of 3"]
    assert told(1) == "Hint 1 of 3" and told() == "Hint 3 of 3"
    assert progress.read(course)["hints"] == {"scale_vector": 3}
    for tier in (0, 4, "1"):
        with pytest.raises(CourseError, match="the hints of scale_vector are 1 to 3"):
            told(tier)


def test_a_finished_lesson_leaves_the_rest_of_what_is_remembered(course):
    progress.passed(course, "count_blocks")
    progress.hint(course, "scale_vector")
    chapter = course.chapters[0]
    cell = nbformat.v4.new_code_cell("1", execution_count=1)
    chapter.built.parent.mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), chapter.built)
    before = progress.read(course)
    assert list(progress.finished(course)) == [chapter.name]
    after = progress.read(course)
    assert list(after.pop("finished")) == [chapter.name] and before.pop("finished") == {}
    assert after == before and list(after["passed"]) == ["count_blocks"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"passed": 3, "hints": null}'])
def test_a_damaged_file_is_an_empty_one(course, text):
    course.state_dir.mkdir(exist_ok=True)
    (course.state_dir / "progress.json").write_text(text)
    assert progress.read(course) == {name: {} for name in progress.TABLES}
    progress.passed(course, "count_blocks")
    assert list(json.loads((course.state_dir / "progress.json").read_text())) == ["passed"]
