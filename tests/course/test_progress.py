"""What a learner has done is remembered: the first day of each, the hints that were seen, and nothing is taken away."""

import datetime
import json
import shutil
import subprocess
import sys

import nbformat
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import progress
from labkit.course import registry as courses
from labkit.course.registry import CourseError
from tests import made_up_exercises

MADE_UP = REPOSITORY / "tests" / "made_up_exercises"


@pytest.fixture(autouse=True)
def in_the_course(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # from elsewhere, paths are shown absolute


@pytest.fixture
def course(tmp_path, monkeypatch):
    made_up_exercises.copy_to(tmp_path, monkeypatch)
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
    def hint(tier=None):
        return progress.hint(course, "scale_vector", tier)[:11]

    assert [hint() for _ in range(4)] == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3", "Hint 3 of 3"]
    assert hint(1) == "Hint 1 of 3" and hint() == "Hint 3 of 3"
    assert progress.read(course)["hints"] == {"scale_vector": 3}
    for tier in (0, 4, "1"):
        with pytest.raises(CourseError, match="the hints of scale_vector are 1 to 3"):
            hint(tier)


def test_a_finished_lesson_leaves_the_rest_of_what_is_remembered(course):
    progress.passed(course, "count_blocks")
    progress.hint(course, "scale_vector")
    chapter = course.chapters[0]
    cell = nbformat.v4.new_code_cell("1", execution_count=1)
    chapter.own_lesson.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), chapter.own_lesson)
    before = progress.read(course)
    assert list(progress.finished(course)) == [chapter.name]
    after = progress.read(course)
    assert list(after.pop("finished")) == [chapter.name] and before.pop("finished") == {}
    assert after == before and list(after["passed"]) == ["count_blocks"]


DAY = "2026-01-02"
GOOD = {"passed": {"count_blocks": DAY}, "hints": {"scale_vector": 2}}
DAMAGED = {  # what the file holds -> what can be read of it
    "empty": ("", {}),
    "cut off": (json.dumps(GOOD)[:-9], {}),
    "one comma too many": (json.dumps(GOOD)[:-1] + ",}", GOOD),
    "a comma too many inside": (json.dumps(GOOD).replace('"}', '",}'), GOOD),
    "a list": ("[1]", {}),
    "nested without end": ("[" * 100_000, {}),
    "not UTF-8": (b"\xff\xfe{}", {}),
    "half a pair": ('{"passed": {"count_blocks": "\\ud800"}}', {}),
    "no tables": (json.dumps(GOOD | {"shown": 3, "finished": None}), GOOD),
    "hints that are no numbers": (json.dumps(GOOD | {"hints": {"scale_vector": "many", "scale_again": 1}}),
                                  GOOD | {"hints": {"scale_again": 1}}),
    "a negative hint": (json.dumps(GOOD | {"hints": {"scale_vector": -5}}), {"passed": GOOD["passed"]}),
    "days that are none": (json.dumps({"passed": {"count_blocks": 5, "scale_vector": DAY}}),
                           {"passed": {"scale_vector": DAY}}),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("command", ["read", "passed", "hint"])
def test_a_damaged_file_is_kept_aside_with_what_can_be_read_of_it(course, damage, command):
    text, expected = DAMAGED[damage]
    content = text if isinstance(text, bytes) else text.encode()
    course.state_dir.mkdir(exist_ok=True)
    (course.state_dir / "progress.json").write_bytes(content)
    with pytest.warns(UserWarning, match=r"^\.labkit/progress\.json.*; the damaged one is now \.labkit/backups/"):
        {"read": progress.read, "passed": lambda course: progress.passed(course, "idle_threads"),
         "hint": lambda course: progress.hint(course, "idle_threads", 3)}[command](course)
    (backup,) = (course.state_dir / "backups").iterdir()
    assert backup.read_bytes() == content
    found = progress.read(course)  # without a warning: all is well again
    added = {"read": {}, "passed": {"passed": "idle_threads"}, "hint": {"hints": "idle_threads"}}[command]
    for table, name in added.items():
        assert found[table].pop(name)
    assert {name: table for name, table in found.items() if table} == expected


def test_a_directory_in_its_place_is_kept_aside(course):
    (course.state_dir / "progress.json").mkdir(parents=True)
    (course.state_dir / "progress.json" / "mine").write_text("mine")
    with pytest.warns(UserWarning, match="progress.json cannot be read: Is a directory"):
        progress.passed(course, "count_blocks")
    (backup,) = (course.state_dir / "backups").iterdir()
    assert (backup / "mine").read_text() == "mine"
    assert list(progress.read(course)["passed"]) == ["count_blocks"]


def test_tables_of_a_later_version_stay(course):
    course.state_dir.mkdir()
    path = course.state_dir / "progress.json"
    path.write_text(json.dumps(GOOD | {"stars": {"count_blocks": [1, 2]}}))
    progress.passed(course, "idle_threads")
    assert json.loads(path.read_text())["stars"] == {"count_blocks": [1, 2]}


def test_what_cannot_be_written_is_a_sentence(course):
    course.state_dir.write_text("a file where the directory should be")
    with pytest.raises(CourseError, match="progress.json cannot be written: File exists"):
        progress.passed(course, "count_blocks")
    assert progress.read(course) == {name: {} for name in progress.TABLES}


MANY = """
from labkit.course import progress, registry
import pathlib, sys
course = registry.load(pathlib.Path(sys.argv[1]))
for entry in course.exercises[int(sys.argv[2])::4]:
    progress.passed(course, entry.name)
    progress.hint(course, entry.name)
"""


def test_what_several_processes_report_at_once_is_all_kept(course):
    toml, folder = course.root / "course.toml", course.root / "own" / "first"
    more = [f"more_{n}" for n in range(40)]
    for name in more:
        shutil.copy(folder / "idle_threads.py", folder / f"{name}.py")
    toml.write_text(toml.read_text().replace('"scale_again"', ", ".join(map('"{}"'.format, ["scale_again", *more]))))
    course = courses.load(course.root)
    processes = [subprocess.Popen([sys.executable, "-c", MANY, course.root, str(part)]) for part in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    names = {entry.name for entry in course.exercises}
    found = progress.read(course)
    assert set(found["passed"]) == set(found["hints"]) == names and len(names) > 40


def test_wrong_predictions_are_remembered_and_are_no_damage(course):
    progress.tried(course, "idle_threads", ["8"])
    progress.tried(course, "idle_threads", ["8", "104"])
    progress.passed(course, "idle_threads")
    found = progress.read(course)  # without a warning
    assert found["tried"] == {"idle_threads": ["8", "104"]} and list(found["passed"]) == ["idle_threads"]
