"""scripts/made_up_class.py: classes that are the same for the same seed, in layouts that the grader reads."""

import csv

import pytest

from labkit.course import registry
from labkit.course.grade.collect import collect
from labkit.course.grade.tasks import plan
from tests.scripts import loaded

pytestmark = pytest.mark.sweep(every=True)  # about the repository: .ci/run runs it


@pytest.fixture(scope="module")
def script():
    with loaded("made_up_class") as found:
        yield found


@pytest.fixture
def made(script, tmp_path):
    """made("name", layout): (the folder, what each answer is meant to be)."""
    def make(name, layout="flat", seed=1, students=8):
        folder = tmp_path / name / "class"
        folder.parent.mkdir()
        return folder, script.make(folder, "00", students, seed, layout)

    return make


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.ipynb")}


def test_the_same_seed_makes_the_same_class_and_another_seed_another(made):
    first, second, other = (made(name, seed=seed)[0] for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert files(first) == files(second) != files(other)


@pytest.mark.parametrize("layout", ["nbgrader", "moodle", "flat"])
def test_the_grader_finds_every_student_and_every_answer(made, script, layout):
    folder, answers = made("class", layout)
    collected = collect(folder, folder.parent / "roster.csv")
    assert not collected.missing and len(collected.students) == 8 and not collected.notes
    readable = [answer for answer in answers if answer.kind != "broken file"]
    tasks = plan(registry.load(), collected, b"a secret of the tests").tasks
    assert len(tasks) == len(readable)
    assert {answer.kind for answer in answers} <= {*script.MIX, "broken file"}
    with open(folder.parent / "expected.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(answers)


def test_renamed_variables_leave_the_program_as_it_was(script):
    import random

    source = "K = 2\ndef f(n, out):\n    i = n * K\n    total = i + 1\n    out[0] = total\n"
    seen = set()
    for seed in range(20):
        namespace, out = {}, [0]
        exec(text := script.renamed(source, random.Random(seed)), namespace)
        namespace["f"](3, out)
        assert out == [7]
        seen.add(text)
    assert len(seen) > 5


def test_a_folder_that_is_there_is_left_alone(made, script, tmp_path):
    folder, _ = made("class")
    before = files(folder)
    with pytest.raises(SystemExit, match="is there already"):
        script.make(folder, "00", 1, 1)
    assert files(folder) == before
