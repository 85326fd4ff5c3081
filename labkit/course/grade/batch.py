"""All answers of a class: workers that may die, a journal that loses nothing, one verdict for each answer.

The journal holds a small JSON file for each answer, written whole. A run that was interrupted, by whatever, finds them
and goes on; an answer, or a labkit, that has changed since is judged anew.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path

from labkit._common import paths
from labkit._common.errors import UserError
from labkit._common.files import write_text
from labkit.course.grade.answers import Answer, Refused, Unreadable, answers_in, program_of, read_cells
from labkit.course.grade.collect import Collected, Student
from labkit.course.grade.judge import Judge, Settings, plain_result
from labkit.course.registry import Course, Entry

ATTEMPTS = 3  # until an answer that ends its worker is given up
TASK_S = 900.0  # after which a worker counts as hung


@dataclass(frozen=True)
class Task:
    """One answer to be judged. key: of all that decides the verdict. alike: equal for equal programs."""

    student: str
    answer: Answer
    key: str
    alike: str

    @property
    def exercise(self) -> str:
        return self.answer.exercise


@dataclass
class Row:
    """One line of the scores."""

    student: Student
    entry: Entry
    result: dict
    file: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.result["passed"])

    @property
    def points(self) -> int:
        return self.entry.points if self.passed else 0


@dataclass
class Plan:
    """What there is to judge, what was found out by reading alone, and which exercises were set."""

    tasks: list[Task] = field(default_factory=list)
    entries: tuple[Entry, ...] = ()
    files: dict[tuple[str, str], str] = field(default_factory=dict)  # (student, exercise) -> file
    unreadable: dict[str, list[str]] = field(default_factory=dict)  # student -> why
    notes: list[str] = field(default_factory=list)


def plan(course: Course, collected: Collected, secret: bytes, wanted: set[str] | None = None) -> Plan:
    """Read every file, as text. Of files that answer the same exercise the newest counts. wanted: names of chapters."""
    made = Plan(notes=list(collected.notes))
    known = {entry.name: entry for entry in course.exercises if wanted is None or entry.chapter.name in wanted}
    version = labkit_digest()
    chapters = set(wanted or ())
    for name, files in collected.files.items():
        chosen: dict[str, tuple[Answer, str]] = {}
        for found in files:  # oldest first
            where = str(found.path)
            try:
                answers = answers_in(read_cells(found.read(), found.path.suffix.lower()))
            except (Unreadable, UserError, OSError) as error:
                made.unreadable.setdefault(name, []).append(f"{found.path.name}: {error}")
                made.notes.append(f"{where}: {error}")
                continue
            for exercise, answer in answers.items():
                if exercise not in known:
                    continue
                if exercise in chosen:
                    made.notes.append(f"{collected.students[name].shown}, {exercise}: {where} is newer than "
                                      f"{chosen[exercise][1]}, and counts")
                chosen[exercise] = (answer, where)
        for exercise, (answer, where) in chosen.items():
            chapters.add(known[exercise].chapter.name)
            made.files[name, exercise] = where
            key = _digest(name, exercise, *answer.above, "\0check\0", answer.call, version,
                          hashlib.sha256(secret).hexdigest())
            made.tasks.append(Task(name, answer, key, _alike(answer)))
    made.entries = tuple(entry for entry in known.values() if entry.chapter.name in chapters)
    return made


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _alike(answer: Answer) -> str:
    try:
        program = program_of(answer)
    except Refused:
        program = None
    return _digest(answer.exercise, program.digest if program else "")


def labkit_digest() -> str:
    """Of every source that can change a verdict."""
    digest = hashlib.sha256()
    for path in sorted(paths.PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(paths.PACKAGE)).encode() + path.read_bytes())
    return digest.hexdigest()


# --- The journal ---------------------------------------------------------------------------------------------------


class Journal:
    """The verdicts that have been reached, one file each."""

    def __init__(self, folder: Path):
        self.folder = folder

    def _path(self, student: str, exercise: str) -> Path:
        return self.folder / f"{_digest(student, exercise)[:40]}.json"

    def find(self, task: Task) -> dict | None:
        """The verdict on this very answer; None if there is none, or it cannot be read."""
        try:
            held = json.loads(self._path(task.student, task.exercise).read_text(encoding="utf-8"))
            return held["result"] if held["key"] == task.key and isinstance(held["result"]["passed"], bool) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, task: Task, result: dict) -> None:
        held = {"student": task.student, "exercise": task.exercise, "key": task.key, "result": result}
        try:
            write_text(self._path(task.student, task.exercise), json.dumps(held) + "\n")
        except OSError as error:
            raise UserError(f"the verdict on {task.exercise} could not be kept in {self.folder}: {error.strerror}. "
                            "No earlier verdict is lost: free some space and run the same command again") from None


class Lock:
    """One grader at a time in a folder of results. The system takes it back when the process ends, however it ends."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "w")  # noqa: SIM115, held until the process ends
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass
        except OSError:
            self._file.close()
            raise UserError(f"another labkit grade writes to {path.parent.parent}; wait for it, or give another --out"
                            ) from None

    def release(self) -> None:
        self._file.close()


# --- Workers -------------------------------------------------------------------------------------------------------


def chunks(tasks: list[Task], most: int = 8) -> list[list[Task]]:
    """Equal programs together, so that one worker judges them one after the other; not so many that another waits."""
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.exercise, task.alike), []).append(task)
    return [group[k : k + most] for group in groups.values() for k in range(0, len(group), most)]


def given_up(task: Task, reason: str) -> dict:
    return plain_result(task.exercise, "not_graded", "The grader failed on it; a teacher must look at it.",
                        f"It was tried {ATTEMPTS} times: {reason}.")


def _work(connection, settings: Settings, slot: int) -> None:
    """A worker's process: tasks in, verdicts out."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the work
    os.environ["LABKIT_DEVICE"] = "cpu"
    judge = Judge(settings, slot)
    try:
        while True:
            task = connection.recv()
            if task is None:
                return
            try:
                connection.send(judge.judge(task.student, task.exercise, task.answer))
            except Exception as error:  # the grader's own fault: the worker that takes its place tries again
                connection.send(f"{type(error).__name__}: {error}")
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        judge.close()


class Worker:
    """A worker's process, and what it is busy with."""

    def __init__(self, settings: Settings, slot: int):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, settings, slot), daemon=True)
        self.process.start()
        theirs.close()
        self.slot = slot
        self.queue: list[Task] = []
        self.began = 0.0

    def next(self) -> None:
        """Begin the first task of the queue."""
        self.began = time.monotonic()
        with suppress(OSError):  # it has ended; wait() will say so
            self.connection.send(self.queue[0])

    def stop(self) -> None:
        with suppress(OSError):
            self.connection.send(None)
        self.process.join(3)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


def judge_locally(settings: Settings, tasks: list[Task], workers: int) -> Iterator[tuple[Task, dict]]:
    """(task, verdict) as they come, from processes of this machine. A worker that dies is replaced, and its answer
    judged again; one that does so ATTEMPTS times is given up."""
    waiting = chunks(tasks)[::-1]
    attempts: dict[str, int] = {}
    crew = [Worker(settings, slot) for slot in range(min(workers, max(len(waiting), 1)))]
    try:
        while waiting or any(worker.queue for worker in crew):
            for worker in crew:
                if not worker.queue and waiting:
                    worker.queue = waiting.pop()
                    worker.next()
            busy = [worker for worker in crew if worker.queue]
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            for worker in busy:
                result = None
                if worker.connection in ready:
                    with suppress(EOFError, OSError):
                        result = worker.connection.recv()
                elif time.monotonic() - worker.began < TASK_S:
                    continue
                task = worker.queue[0]
                if not isinstance(result, dict):
                    reason = result or "its worker ended"
                    attempts[task.key] = attempts.get(task.key, 0) + 1
                    rest = worker.queue[1:]
                    worker.process.kill()
                    worker.stop()
                    crew[crew.index(worker)] = Worker(settings, worker.slot)
                    if rest:
                        waiting.append(rest)
                    if attempts[task.key] < ATTEMPTS:
                        waiting.insert(0, [task])  # behind all others
                    else:
                        yield task, given_up(task, reason)
                    continue
                worker.queue.pop(0)
                if worker.queue:
                    worker.next()
                yield task, result
    finally:
        for worker in crew:
            if worker.queue:
                worker.process.kill()
        for worker in crew:
            worker.stop()


_JUDGE: list[Judge] = []
_ONE_AT_A_TIME = threading.Lock()


def judge_there(settings: Settings, tasks: list[Task], is_here: bool) -> list[dict]:
    """On a worker of a dask cluster: the verdicts on these answers. is_here: it shares this machine's folders."""
    with _ONE_AT_A_TIME:
        if not _JUDGE:
            import tempfile

            os.environ["LABKIT_DEVICE"] = "cpu"
            if not is_here:
                settings = replace(settings, folder=Path(tempfile.mkdtemp(prefix="labkit-grade-")))
            _JUDGE.append(Judge(settings, slot=os.getpid() % 100_000))
        return [_JUDGE[0].judge(task.student, task.exercise, task.answer) for task in tasks]


def close_there() -> None:
    while _JUDGE:
        _JUDGE.pop().close()


def judge_with_dask(settings: Settings, tasks: list[Task], workers: int, address: str | None
                    ) -> Iterator[tuple[Task, dict]]:
    """As judge_locally, on the dask.distributed cluster at `address`, or on one of this machine."""
    from dask.distributed import Client, LocalCluster, as_completed

    cluster = None if address else LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    try:
        client = Client(address or cluster, timeout="20s")
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"--scheduler {address}: no dask scheduler answers there: {error}") from None
    try:
        held, attempts = {}, {}
        for chunk in chunks(tasks):
            held[client.submit(judge_there, settings, chunk, cluster is not None, pure=False)] = chunk
        pending = as_completed(list(held))
        for future in pending:
            chunk = held.pop(future)
            if future.status == "finished":
                yield from zip(chunk, future.result(), strict=True)
                continue
            for task in chunk:  # its worker died, or the task failed there: each alone, so that one stops no other
                attempts[task.key] = attempts.get(task.key, 0) + 1
                if attempts[task.key] >= ATTEMPTS:
                    yield task, given_up(task, "its worker ended or failed")
                else:
                    again = client.submit(judge_there, settings, [task], cluster is not None, pure=False)
                    held[again] = [task]
                    pending.add(again)
    finally:
        with suppress(Exception):  # a worker that has ended needs no closing
            client.run(close_there)
        client.close()
        if cluster is not None:
            cluster.close()


# --- A run ---------------------------------------------------------------------------------------------------------


def run(settings: Settings, made: Plan, judged: Callable[..., Iterator], on_verdict: Callable | None = None
        ) -> dict[tuple[str, str], dict]:
    """(student, exercise) -> verdict, for every task. What the journal holds is not judged again.

    judged(settings, tasks) gives (task, verdict) as they come; on_verdict(task, verdict, was it in the journal).
    """
    for left in settings.folder.glob("worker-*"):  # of a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    journal = Journal(settings.folder / "journal")
    verdicts, open_tasks = {}, []
    for task in made.tasks:
        result = journal.find(task)
        if result is None:
            open_tasks.append(task)
            continue
        verdicts[task.student, task.exercise] = result
        if on_verdict:
            on_verdict(task, result, True)
    for task, result in judged(settings, open_tasks) if open_tasks else ():
        if result["verdict"] != "not_graded":
            journal.keep(task, result)
        verdicts[task.student, task.exercise] = result
        if on_verdict:
            on_verdict(task, result, False)
    return verdicts


def rows(collected: Collected, made: Plan, verdicts: dict[tuple[str, str], dict]) -> list[Row]:
    """Every student and every exercise that was set, those without an answer too."""
    found = []
    people = [*collected.students.items(), *((student.id, student) for student in collected.missing)]
    for name, student in sorted(people, key=lambda pair: (pair[1].name.casefold(), pair[0])):
        for entry in made.entries:
            result = verdicts.get((name, entry.name))
            if result is None:
                why = made.unreadable.get(name)
                result = plain_result(entry.name, "unreadable" if why else "missing",
                                      "No file with it could be read." if why else "It was not handed in.",
                                      *(why or ()))
            found.append(Row(student, entry, result, made.files.get((name, entry.name), "")))
    return found
