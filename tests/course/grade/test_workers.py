"""Answers handed out to processes and to a dask cluster whose workers are killed, join, fail or are not there."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace

import pytest

from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.course.grade import sandbox, workers
from labkit.course.grade.judge import Settings
from labkit.course.grade.tasks import Task, labkit_digest
from tests import interrupts
from tests.course.grade.made_up import RIGHT_FUNCTION, function_cells, hand_in, stand_in

pytestmark = pytest.mark.sweep  # README's command installs no dask; .ci/run does, before the sweep

LIMIT_S = 90  # of the whole, on a machine that does other things


def tasks(*students: str) -> list[Task]:
    answer = SimpleNamespace(exercise="saxpy")
    return [Task(student, answer, f"key of {student}", student, student) for student in students]


# --- On a worker, without dask -------------------------------------------------------------------------------------


class Judged:
    made: list = []

    def __init__(self, settings):
        self.settings, self.closed = settings, False
        Judged.made.append(self)

    def judge(self, exercise, answer):
        return {"secret": self.settings.secret, "closed": self.closed}

    def close(self):
        self.closed = True


@pytest.fixture
def judges(monkeypatch):
    monkeypatch.setattr(workers, "Judge", Judged)
    monkeypatch.setattr(workers, "_JUDGES", {})
    monkeypatch.setattr(Judged, "made", [])
    return Judged.made


def test_each_run_has_a_judge_of_its_own_on_a_worker(tmp_path, judges):
    first, second = (Settings(tmp_path, secret, "namespaces") for secret in (b"one", b"two"))
    (task,) = tasks("alice")
    for settings, secret in ((first, b"one"), (second, b"two"), (first, b"one")):
        assert workers.judge_there(settings, task, True, labkit_digest()) == {"secret": secret, "closed": False}
    assert len(judges) == 2
    workers.close_there(first)
    assert [judge.closed for judge in judges] == [True, False]
    workers.close_there(first)
    assert workers.judge_there(first, task, True, labkit_digest())["closed"] is False


def test_a_worker_with_another_labkit_judges_nothing(tmp_path, judges):
    with pytest.raises(RuntimeError, match="install the same on both"):
        workers.judge_there(Settings(tmp_path, b"one", "namespaces"), *tasks("alice"), True, "another version")
    assert not judges


def test_a_worker_of_another_machine_has_folders_of_its_own_and_hides_the_graders(tmp_path, judges, monkeypatch):
    monkeypatch.setattr(workers.tempfile, "gettempdir", lambda: str(tmp_path))
    settings = Settings(tmp_path / "out" / ".work", b"one", "namespaces", (tmp_path / "class",))
    workers.judge_there(settings, *tasks("alice"), False, labkit_digest())
    there = judges[0].settings
    assert there.folder == workers.own_folder() != settings.folder and there.folder.parent == tmp_path
    assert set(there.hidden) == {tmp_path / "class", settings.folder}


def test_a_folder_that_others_can_enter_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(workers.tempfile, "gettempdir", lambda: str(tmp_path))
    own = workers.own_folder()
    assert own.stat().st_mode & 0o77 == 0 and workers.own_folder() == own
    own.chmod(0o777)
    assert workers.own_folder() != own
    own.rmdir()
    own.symlink_to(tmp_path)
    assert not workers.own_folder().is_symlink()


# --- A cluster -----------------------------------------------------------------------------------------------------


class Processes:
    """A scheduler and workers, each a process, as a teacher starts them."""

    def __init__(self, folder):
        self.file, self.started = folder / "scheduler.json", []
        self.scheduler = self._start("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(self.file),
                                     DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0")
        limit = time.monotonic() + LIMIT_S
        while not self.file.is_file() or not self.file.read_text().endswith("}"):
            assert time.monotonic() < limit and self.scheduler.poll() is None
            time.sleep(0.05)
        self.address = json.loads(self.file.read_text())["address"]

    def _start(self, what: str, *arguments: str, **environment: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments]
        paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths} | environment, cwd="/",
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        self.started.append(process)
        return process

    def worker(self, nanny: bool = False, **environment: str) -> subprocess.Popen:
        return self._start("worker", self.address, "--nthreads", "1", "--no-dashboard",
                           *(() if nanny else ("--no-nanny",)), **environment)

    def wait_for(self, count: int) -> None:
        from dask.distributed import Client

        with Client(self.address, timeout="60s") as client:
            client.wait_for_workers(count, timeout=LIMIT_S)

    def stop(self) -> None:
        for process in reversed(self.started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def processes(tmp_path):
    pytest.importorskip("distributed", reason="needs dask: pip install -e '.[grade]'")
    running = Processes(tmp_path)
    yield running
    running.stop()


def handed_out(processes, some: list[Task], judge=stand_in):
    settings = Settings(processes.file.parent / "work", b"a secret of the tests", "namespaces")
    return workers.judge_with_dask(settings, some, processes.address, judge)


def test_a_worker_is_killed_and_another_joins_and_every_answer_has_one_verdict(processes):
    started = [processes.worker(), processes.worker()]
    processes.wait_for(2)
    found, by = Counter(), []
    for task, result in handed_out(processes, tasks(*(f"student{k}" for k in range(120)))):
        found[task.student] += 1
        by.append(int(result["details"][0]))
        if len(by) == 20:
            started[0].send_signal(signal.SIGKILL)
            started.append(processes.worker())
            limit = time.monotonic() + LIMIT_S
        if len(by) == 60:
            processes.wait_for(2)
    assert time.monotonic() < limit
    assert len(found) == 120 and set(found.values()) == {1}
    assert set(by) == {worker.pid for worker in started}
    assert started[0].pid in by[:20] and started[0].pid not in by[22:] and started[2].pid not in by[:20]


def test_the_only_process_of_this_machine_is_killed_and_its_answer_is_judged_by_the_next(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY))  # the worker, which gets this path, imports stand_in
    found, by = Counter(), []
    settings = Settings(tmp_path / "work", b"a secret of the tests", "namespaces")
    for task, result in workers.judge_locally(settings, tasks(*(f"s{k}" for k in range(20))), 1, stand_in):
        found[task.student] += 1
        by.append(int(result["details"][0]))
        if len(by) == 5:
            time.sleep(0.02)  # by now it has the next
            os.kill(by[0], signal.SIGKILL)
    assert len(found) == 20 and set(found.values()) == {1}
    assert len(set(by)) == 2 and by[-1] != by[0]


def test_a_slow_answer_holds_no_other_and_a_deadly_one_is_given_up_alone(processes):
    for _ in range(2):
        processes.worker(nanny=True)
    processes.wait_for(2)
    check_slow_and_deadly(processes.file.parent / "work", functools.partial(handed_out, processes))


def test_slow_and_deadly_answers_are_no_different_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY))
    settings = Settings(tmp_path / "work", b"a secret of the tests", "namespaces")
    check_slow_and_deadly(settings.folder, lambda some: workers.judge_locally(settings, some, 2, stand_in))


def check_slow_and_deadly(folder, judge_all):
    order = []
    for task, result in judge_all(tasks("slow", *(f"student{k}" for k in range(20)), "deadly")):
        order.append((task.student, result["verdict"]))
        if len(order) == 20:
            folder.mkdir()
            (folder / "go on").touch()
    assert [verdict for _, verdict in order[:20]] == ["passed"] * 20 and len(order) == 22
    assert sorted(order[20:]) == [("deadly", "not_graded"), ("slow", "passed")]


def test_a_worker_that_fails_gets_no_more_and_with_no_other_that_is_reported(processes):
    broken = processes.worker(LABKIT_TEST_BROKEN="1")
    good = processes.worker()
    processes.wait_for(2)
    by = {int(result["details"][0]) for _, result in handed_out(processes, tasks(*(f"s{k}" for k in range(40))))}
    assert by == {good.pid}
    good.send_signal(signal.SIGKILL)
    good.wait()
    with pytest.raises(UserError, match="no worker of the dask cluster can grade.*no namespaces here"):
        list(handed_out(processes, tasks(*(f"s{k}" for k in range(40)))))
    assert broken.poll() is None


def test_no_scheduler_no_worker_and_a_scheduler_that_ends_are_named(processes, monkeypatch):
    monkeypatch.setattr(workers, "WORKERS_S", 0.5)
    with pytest.raises(UserError, match="has no workers. Start one"):
        list(handed_out(processes, tasks("alice")))
    processes.worker()
    processes.wait_for(1)
    verdicts = handed_out(processes, tasks(*(f"s{k}" for k in range(200))))
    assert next(verdicts)[1]["passed"]
    processes.scheduler.send_signal(signal.SIGKILL)
    with pytest.raises(UserError, match="connection to the dask scheduler was lost"):
        list(verdicts)


@pytest.mark.cpu_device
def test_ctrl_c_ends_a_run_quietly_and_the_next_goes_on(tmp_path):
    if not sandbox.works("namespaces"):
        pytest.skip("this system offers no namespaces")
    for number in range(12):
        hand_in(tmp_path / "class" / f"student{number}" / "x.ipynb", *function_cells(f"K = {number}\n{RIGHT_FUNCTION}"))
    command = [sys.executable, "-m", "labkit", "grade", str(tmp_path / "class"), "--out", str(tmp_path / "out"),
               "--secret", str(tmp_path / "secret"), "--workers", "2"]
    process = interrupts.popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    journal, limit = tmp_path / "out" / ".work" / "journal", time.monotonic() + LIMIT_S
    while len(list(journal.glob("*.json"))) < 3 and time.monotonic() < limit:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=60)
    kept = {path: path.stat().st_mtime_ns for path in journal.glob("*.json")}
    assert process.returncode == 130 and "Traceback" not in output and 3 <= len(kept) < 12
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "12 of" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.cpu_device
def test_scores_are_those_of_this_machines_own_processes(processes, tmp_path):
    if not sandbox.works("namespaces"):
        pytest.skip("this system offers no namespaces")
    wrong = RIGHT_FUNCTION.replace("-(-n //", "(n //")
    for number in range(4):
        answer = (RIGHT_FUNCTION, wrong, f"K = 3\n{RIGHT_FUNCTION}", "def blocks_needed(*a):\n    raise ValueError")
        hand_in(tmp_path / "class" / f"student{number}" / "x.ipynb", *function_cells(answer[number]))
    processes.worker(), processes.worker()
    found = {}
    for name, more in (("there", ["--scheduler", processes.address]), ("here", ["--workers", "1"])):
        command = [sys.executable, "-m", "labkit", "grade", str(tmp_path / "class"), "--out", str(tmp_path / name),
                   "--secret", str(tmp_path / "secret"), *more]
        subprocess.run(command, check=True, cwd=REPOSITORY, timeout=300)
        scores = json.loads((tmp_path / name / "scores.json").read_text())["scores"]
        found[name] = [{key: value for key, value in row.items() if key != "seconds"} for row in scores]
    assert found["there"] == found["here"]
    passed = [row["passed"] for row in found["here"] if row["exercise"] == "blocks_needed"]
    assert passed == [True, False, True, False]
