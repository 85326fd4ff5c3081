"""A class graded: the journal, workers that die, interruptions, equal scores for equal input, and what is written."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit._common.errors import UserError
from labkit.cli import app
from labkit.course import registry
from labkit.course.grade import batch, feedback, journal, sandbox
from labkit.course.grade.collect import collect
from labkit.course.grade.journal import Journal, Lock
from labkit.course.grade.judge import Settings, plain_result, read_secret, seed_of
from labkit.course.grade.tasks import Plan, Task, plan
from tests.course.grade.made_up import (
    RIGHT_FUNCTION,
    RIGHT_KERNEL,
    UNGUARDED,
    function_cells,
    hand_in,
    kernel_cells,
)

SECRET = b"a secret of the tests"
PREDICTION = ("blocks, idle, last_block, last_thread = {}", 'check("predict_last_block", blocks=blocks, idle=idle, '
              "last_block=last_block, last_thread=last_thread)")


def handed_in(folder: Path, students: int = 3) -> Path:
    """Predictions, which need no isolated process; right for every second student."""
    for number in range(students):
        numbers = "11, 56, 10, 39" if number % 2 == 0 else "10, 0, 10, 39"
        hand_in(folder / f"student{number}" / "x.ipynb", PREDICTION[0].format(numbers), PREDICTION[1])
    return folder


def planned(folder: Path) -> Plan:
    return plan(registry.load(), collect(folder), SECRET)


def judged_by(kind):
    """A worker of the tests: passes every answer (kind "failing": none), and remembers which."""
    seen = []

    def judged(settings, tasks):
        for task in tasks:
            seen.append((task.student, task.exercise))
            if kind == "interrupted" and len(seen) == 2:
                raise KeyboardInterrupt
            verdict = "wrong_result" if kind == "failing" else "passed"
            yield task, {**plain_result(task.exercise, verdict, task.student), "passed": verdict == "passed"}

    return judged, seen


@pytest.fixture
def settings(tmp_path):
    return Settings(tmp_path / "out" / ".work", SECRET, "namespaces")


def test_seeds_are_secret_equal_for_equal_programs_and_else_different():
    assert seed_of(SECRET, "saxpy", "a digest") == seed_of(SECRET, "saxpy", "a digest")
    others = {seed_of(SECRET, "saxpy", "a digest"), seed_of(SECRET, "saxpy", "another"), seed_of(SECRET, "gram",
              "a digest"), seed_of(b"another", "saxpy", "a digest"), seed_of(SECRET, "saxp", "ya digest")}
    assert len(others) == 5


def test_the_secret_is_made_once_and_private(tmp_path):
    path = tmp_path / "secret"
    secret = read_secret(path)
    assert read_secret(path) == secret and len(secret) == 64 and path.stat().st_mode & 0o77 == 0
    path.write_text("short")
    with pytest.raises(UserError, match="5 bytes"):
        read_secret(path)


def test_an_interrupted_run_goes_on_and_judges_nothing_twice(tmp_path, settings):
    made = planned(handed_in(tmp_path / "class"))
    judged, first = judged_by("interrupted")
    with pytest.raises(KeyboardInterrupt):
        batch.run(settings, made, judged)
    judged, second = judged_by("whole")
    verdicts = batch.run(settings, made, judged)
    assert len(verdicts) == 3 and len(first) == 2 and len(second) == 2
    assert first[0] not in second
    judged, third = judged_by("whole")
    assert batch.run(settings, made, judged) == verdicts and third == []


def test_an_answer_that_has_changed_is_judged_anew(tmp_path, settings):
    folder = handed_in(tmp_path / "class")
    judged, _ = judged_by("whole")
    batch.run(settings, planned(folder), judged)
    hand_in(folder / "student1" / "x.ipynb", PREDICTION[0].format("1, 2, 3, 4"), PREDICTION[1])
    judged, seen = judged_by("whole")
    batch.run(settings, planned(folder), judged)
    assert seen == [("student1", "predict_last_block")]


def test_a_journal_file_that_is_half_written_or_forged_is_not_believed(tmp_path):
    kept = Journal(tmp_path)
    task = Task("alice", type("A", (), {"exercise": "saxpy"})(), "key", "alike", "program")
    kept.keep(task, plain_result("saxpy", "passed", ""))
    (path,) = tmp_path.iterdir()
    assert kept.find(task) and kept.find(Task("alice", task.answer, "another key", "alike", "program")) is None
    for text in ("", '{"key": "key"', "[]", '{"key": "key", "result": {"passed": "yes"}}'):
        path.write_text(text)
        assert kept.find(task) is None


def test_a_full_disk_stops_with_a_sentence_and_loses_nothing(tmp_path, settings, monkeypatch):
    made = planned(handed_in(tmp_path / "class"))
    written = []

    def full(path, text):
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append(path)
        write(path, text)

    write = journal.write_text
    monkeypatch.setattr(journal, "write_text", full)
    with pytest.raises(UserError, match="No space left on device.*run the same command again"):
        batch.run(settings, made, judged_by("whole")[0])
    monkeypatch.undo()
    judged, seen = judged_by("whole")
    assert len(batch.run(settings, made, judged)) == 3 and len(seen) == 1


def test_the_newest_of_several_files_counts_and_is_named(tmp_path):
    for name, numbers, changed in (("late", "11, 56, 10, 39", 2_000_000_000), ("early", "0, 0, 0, 0", 1_000_000_000)):
        path = hand_in(tmp_path / "alice" / f"{name}.ipynb", PREDICTION[0].format(numbers), PREDICTION[1])
        os.utime(path, (changed, changed))
    made = planned(tmp_path)
    assert "11, 56" in made.tasks[0].answer.above[0] and len(made.tasks) == 1
    assert any("late.ipynb counts, not " in note.text for note in made.notes)


def test_a_copy_in_work_counts_before_what_was_given_out(tmp_path):
    """Also one with the name that its chapter had before the chapters were numbered anew."""
    for place, numbers, changed in (("work/exercises/77_before", "11, 56, 10, 39", 1_000_000_000),
                                    ("exercises/00_start_here", "0, 0, 0, 0", 2_000_000_000)):
        path = hand_in(tmp_path / "alice" / f"{place}.ipynb", PREDICTION[0].format(numbers), PREDICTION[1])
        os.utime(path, (changed, changed))
    (task,) = planned(tmp_path).tasks
    assert "11, 56" in task.answer.above[0]


def answered(folder: Path, **answers: str) -> Path:
    for student, answer in answers.items():
        hand_in(folder / student / "x.ipynb", *function_cells(answer))
    return folder


def test_of_equal_answers_one_is_judged_for_all(tmp_path, settings):
    folder = answered(tmp_path / "class", alice=RIGHT_FUNCTION, bob=f"{RIGHT_FUNCTION}  \n", carol=RIGHT_FUNCTION,
                      commented=f"# mine\n{RIGHT_FUNCTION}", dora="blocks_needed = None", erik="blocks_needed = None")
    judged, seen = judged_by("whole")
    verdicts = batch.run(settings, planned(folder), judged)
    assert [student for student, _ in seen] == ["alice", "commented", "dora"] and len(verdicts) == 6
    answered(folder, carol=f"# late\n{RIGHT_FUNCTION}", felix=RIGHT_FUNCTION)
    judged, seen = judged_by("whole")
    assert len(batch.run(settings, planned(folder), judged)) == 7
    assert [student for student, _ in seen] == ["carol"]


def test_predictions_and_answers_that_cannot_be_read_are_judged_each(tmp_path):
    made = planned(handed_in(answered(tmp_path / "class", alice="lambda", bob="lambda"), students=4))
    assert len({task.alike for task in made.tasks}) == len(made.tasks) == 6


def test_a_kernel_that_passes_passes_under_other_names_and_one_that_fails_fails_in_its_own_words(tmp_path, settings):
    variants = {"alice": RIGHT_KERNEL, "bob": RIGHT_KERNEL.replace("i ", "row ").replace("[i]", "[row]"),
                "carol": f"# mine\n{RIGHT_KERNEL}", "dora": RIGHT_KERNEL, "erik": UNGUARDED}
    for student, answer in variants.items():
        hand_in(tmp_path / "class" / student / "x.ipynb", *kernel_cells(answer))
    judged, seen = judged_by("whole")
    verdicts = batch.run(settings, planned(tmp_path / "class"), judged)
    assert [student for student, _ in seen] == ["alice", "erik"] and len(verdicts) == 5
    assert verdicts["bob", "saxpy"]["passed"]
    judged, seen = judged_by("failing")
    verdicts = batch.run(Settings(tmp_path / "other", SECRET, "namespaces"), planned(tmp_path / "class"), judged)
    assert [student for student, _ in seen] == ["alice", "erik", "bob", "carol"]
    assert {student: verdict["headline"] for (student, _), verdict in verdicts.items()} == {
        "alice": "alice", "bob": "bob", "carol": "carol", "dora": "alice", "erik": "erik"}
    judged, seen = judged_by("failing")
    hand_in(tmp_path / "class" / "felix" / "x.ipynb", *kernel_cells(f"# me too\n{RIGHT_KERNEL}"))
    batch.run(Settings(tmp_path / "other", SECRET, "namespaces"), planned(tmp_path / "class"), judged)
    assert [student for student, _ in seen] == ["felix"]


def test_a_second_grader_in_the_same_folder_is_refused(tmp_path):
    lock = Lock(tmp_path / "out" / ".work" / "lock")
    with pytest.raises(UserError, match="another labkit grade"):
        Lock(tmp_path / "out" / ".work" / "lock")
    lock.release()
    Lock(tmp_path / "out" / ".work" / "lock").release()


# --- Whole runs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def namespaces():
    if not sandbox.works("namespaces"):
        pytest.skip("this system offers no namespaces")


def grade(folder: Path, out: Path, *more: str):
    return CliRunner().invoke(app, ["grade", str(folder), "--out", str(out), "--secret", str(out.parent / "secret"),
                                    "--workers", "1", *more])


@pytest.mark.sweep(every=True)
@pytest.mark.usefixtures("namespaces")
@pytest.mark.cpu_device
def test_a_class_is_graded_and_every_page_is_safe(tmp_path):
    folder = handed_in(tmp_path / "class", students=2)
    hostile = "def blocks_needed(n, each, threads):\n    raise ValueError('<img src=x onerror=alert(1)>')"
    hand_in(folder / "<script>alert(1)<" / "x.ipynb", *function_cells(hostile))
    hand_in(folder / "=HYPERLINK(1)" / "x.ipynb", *function_cells())
    hand_in(folder / "broken" / "x.ipynb")
    (folder / "broken" / "x.ipynb").write_bytes(b"\xff\xff")
    hand_in(folder / "refused" / "x.ipynb", *function_cells("lambda: 1"))
    roster = tmp_path / "roster.csv"
    roster.write_text("id,name\nstudent0,Alice\ncarol,Carol\n")
    done = grade(folder, tmp_path / "out", "--roster", str(roster))
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "out" / "scores.json").read_text())
    got = {(row["student"], row["exercise"]): row for row in data["scores"]}
    assert got["student0", "predict_last_block"]["passed"] and not got["student1", "predict_last_block"]["passed"]
    assert got["=HYPERLINK(1)", "blocks_needed"]["points"] > 0
    assert got["<script>alert(1)<", "blocks_needed"]["headline"] == "It raised ValueError."
    assert got["carol", "blocks_needed"]["verdict"] == "missing" and data["missing"] == ["carol"]
    assert got["broken", "blocks_needed"]["verdict"] == "unreadable" and data["isolation"] == "namespaces"
    refused = got["refused", "blocks_needed"]
    assert refused["verdict"] == "refused" and "is not defined in a cell above" in refused["why"]
    (note,) = [note for note in data["notes"] if "cannot be graded" in note]
    assert note == f"refused: blocks_needed cannot be graded: {refused['why']}"
    for page in ("index.html", "feedback/refused.html"):  # for the teacher and for the student
        assert "which is passed to check, is not defined in a cell above" in (tmp_path / "out" / page).read_text()
    rows = list(csv.DictReader((tmp_path / "out" / "scores.csv").open()))
    assert len(rows) == len(data["scores"]) and {row["student"] for row in rows} >= {"'=HYPERLINK(1)"}
    pages = [tmp_path / "out" / "index.html", *(tmp_path / "out" / "feedback").iterdir()]
    assert len(pages) == 8
    for page in pages:
        text = page.read_text()
        assert "<script" not in text and "<img" not in text and "default-src 'none'" in text, page
    again = grade(folder, tmp_path / "again", "--roster", str(roster))
    other = json.loads((tmp_path / "again" / "scores.json").read_text())
    assert again.exit_code == 0
    for data_ in (data, other):
        for row in data_["scores"]:
            row.pop("seconds")
    assert other["scores"] == data["scores"]


@pytest.mark.usefixtures("namespaces")
@pytest.mark.cpu_device
@pytest.mark.sweep
def test_a_grader_that_is_killed_goes_on_and_a_worker_that_is_killed_is_replaced(tmp_path):
    folder = tmp_path / "class"
    for number in range(30):  # different programs: of equal ones the first would be judged for all
        answer = RIGHT_FUNCTION.replace("    return", f"    mine = {number}\n    return")
        hand_in(folder / f"student{number:02d}" / "x.ipynb", *function_cells(answer))
    command = [sys.executable, "-m", "labkit", "grade", str(folder), "--out", str(tmp_path / "out"), "--secret",
               str(tmp_path / "secret"), "--workers", "1"]
    journal = tmp_path / "out" / ".work" / "journal"

    def kept() -> int:
        return len(list(journal.glob("*.json"))) if journal.is_dir() else 0

    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 240
    while kept() < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    process.kill()
    process.wait()
    time.sleep(0.5)  # its worker notices
    before = {path.name: path.stat().st_mtime_ns for path in journal.glob("*.json")}
    assert 2 <= len(before) < 30
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while kept() < len(before) + 2 and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    threads = Path(f"/proc/{process.pid}/task").glob("*/children")  # any thread may have started it
    children = [pid for thread in threads for pid in thread.read_text().split()]
    workers = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(workers) == 1, f"{kept()} of 30 are kept, and the grader's exit code is {process.poll()}"
    os.kill(int(workers[0]), signal.SIGKILL)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and "30 of" in output
    assert {name: journal.joinpath(name).stat().st_mtime_ns for name in before} == before


@pytest.mark.parametrize(("more", "message"), [
    (["--workers", "-1"], "--workers is -1"),
    (["--isolation", "none"], "allowed are auto, namespaces, bwrap, limits"),
    (["--chapter", "77"], "no chapter '77'"),
])
def test_a_wrong_option_is_named(more, message, tmp_path):
    handed_in(tmp_path / "class", 1)
    done = CliRunner().invoke(app, ["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--secret",
                                    str(tmp_path / "secret"), *more])
    assert done.exit_code == 2 and message in " ".join(done.output.split())


def test_without_nbgrader_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbgrader.api", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[classroom\]'"):
        feedback.gradebook_class()


def test_page_names_are_different_and_safe():
    names = ["alice", "Alice/..", "../etc", "index", "a" * 300, "", "\ud800", "a b", "a_b"]
    pages = [feedback.page_name(name) for name in names]
    assert len(set(pages)) == len(names)
    assert all(len(page) < 90 and "/" not in page and ".." not in page for page in pages)


def test_the_gradebook_holds_the_scores(tmp_path):
    pytest.importorskip("nbgrader")
    made = planned(handed_in(tmp_path / "class"))
    verdicts = batch.run(Settings(tmp_path / "work", SECRET, "namespaces"), made, judged_by("whole")[0])
    rows = batch.rows(collect(tmp_path / "class"), made, verdicts)
    feedback.write_gradebook(tmp_path / "gradebook.db", rows)
    with feedback.gradebook_class()(f"sqlite:///{tmp_path / 'gradebook.db'}") as book:
        entry = registry.load().exercise("predict_last_block")
        grade_ = book.find_grade(entry.name, entry.chapter.name, entry.chapter.name, "student0")
        assert grade_.auto_score == entry.points
